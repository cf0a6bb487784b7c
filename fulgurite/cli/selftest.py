"""A self-test of some seconds: does this installation compute what it should?

In: nothing. Out: one (name, passed, detail) for each check, in order. A check is a function that
returns a short detail or raises; adding one is adding a function to `CHECKS`, or to `NATIVE` if it
compiles. A failing check never stops the ones after it: a report from a broken machine is worth
more when it is complete. That is why native code runs in a process of its own: a compiler that does
not suit may end it. Nothing comes from the disk cache. Checks raise rather than assert, so that
`python -O` runs the same test.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..core.op import Array

Check = Callable[[], str]
Result = tuple[str, bool, str]
LIMIT = 120  # seconds for all native checks, which take three


def float32_arithmetic() -> str:
    """NumPy rounds float32 to nearest-even and keeps denormals."""
    one, half_step = np.float32(1), np.float32(2.0**-24)
    _expect(bool(one + half_step == one), "1 + 2**-24 does not round to even")
    _expect(bool(one + np.float32(1.5) * half_step > one), "1 + 1.5 * 2**-24 does not round up")
    smallest = np.full(64, 2.0**-149, np.float32)
    _expect(bool((smallest + smallest == np.float32(2.0**-148)).all()), "denormals are flushed")
    _expect(bool(np.signbit(np.float32(-0.0))), "-0.0 lost its sign")
    return "round to nearest even, denormals kept"


def float32_matmul() -> str:
    """A product of small integers is exact in float32, whatever the BLAS."""
    a = np.arange(64 * 64, dtype=np.int64).reshape(64, 64) % 17 - 8
    got = a.astype(np.float32) @ a.T.astype(np.float32)
    _expect(bool((got == a @ a.T).all()), "a product of small integers is not exact")
    return "64 x 64 product is exact"


def narrow_float_grid() -> str:
    """The 8- and 16-bit floats round and overflow as their formats say."""
    cases: list[tuple[type[np.generic], float, float]] = [
        (np.float16, 65520.0, np.inf),
        (ml_dtypes.bfloat16, 1.0 + 2.0**-8, 1.0),
        (ml_dtypes.bfloat16, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-6),
        (ml_dtypes.bfloat16, 1e300, np.inf),
        (ml_dtypes.float8_e4m3fn, 448.0, 448.0),
        (ml_dtypes.float8_e4m3fn, 1.0625, 1.0),
        (ml_dtypes.float8_e5m2, 57344.0, 57344.0),
        (ml_dtypes.float8_e5m2, 1e6, np.inf),
    ]
    with np.errstate(over="ignore"):
        for kind, number, expected in cases:
            got = float(np.asarray(number, np.float64).astype(kind).astype(np.float64))
            _expect(got == expected, f"{kind.__name__}({number!r}) is {got}, not {expected}")
    return f"{len(cases)} roundings"


def options() -> str:
    """The options in the environment are understood, and their device exists."""
    from ..config import current
    from ..runtime.device import get_device

    device = current().device
    get_device(device)
    return f"device {device}"


def fused_graph() -> str:
    """A lazy graph is fused, compiled, run and differentiated as NumPy would compute it."""
    from .. import Tensor, explain, grad, softmax

    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    top = softmax(Tensor(x), axis=-1)
    kernels = len(explain(top).kernels)
    _expect(kernels == 1, f"softmax is {kernels} kernels, not 1")
    close = np.allclose(top.numpy(), e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)
    _expect(close, "softmax is wrong")
    slope = grad(lambda t: (t * t).sum())(Tensor(x)).numpy()
    _expect(bool((slope == 2 * x).all()), "a gradient is wrong")
    return "softmax in one kernel, gradient right"


CHECKS: list[Check] = [
    float32_arithmetic, float32_matmul, narrow_float_grid, options, fused_graph,
]  # fmt: skip


# --- native code ---------------------------------------------------------------------------------


def native_map() -> str:
    """Elementwise arithmetic, with a length that is no multiple of any vector."""
    x = np.linspace(-3, 3, 1021, dtype=np.float32)
    for dtype in (np.float32, np.float64, np.int32):
        a = x.astype(dtype)
        _agree(f"a map of {dtype.__name__}", lambda t: t * 3 - 1, (a,), a * 3 - 1, 0)
    return "1,021 elements of three dtypes"


def native_reduction() -> str:
    """Sums and maxima along both axes."""
    x = np.linspace(-3, 3, 61 * 127, dtype=np.float32).reshape(61, 127)
    for axis in (0, 1):
        total = x.sum(axis=axis, dtype=np.float64)
        _agree("a sum", lambda t, axis=axis: t.sum(axis=axis), (x,), total, 1e-4)
        _agree("a maximum", lambda t, axis=axis: t.max(axis=axis), (x,), x.max(axis=axis), 0)
    return "sums and maxima, both axes"


def native_product() -> str:
    """A matrix product of whole numbers, which is exact."""
    a = (np.arange(67 * 129) % 17 - 8).reshape(67, 129)
    b = (np.arange(129 * 71) % 13 - 6).reshape(129, 71)
    for dtype in (np.float32, np.float64):
        given = a.astype(dtype), b.astype(dtype)
        _agree(f"a product of {dtype.__name__}", lambda s, t: s @ t, given, a @ b, 0)
    return "67 x 129 x 71, exact"


def native_fold() -> str:
    """Attention as one kernel that keeps no matrix of weights."""
    from .. import softmax

    q = np.sin(np.arange(3 * 256 * 64)).reshape(3, 256, 64).astype(np.float32)
    scores = q[0].astype(np.float64) @ q[1].T / 8
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted = weights / weights.sum(axis=1, keepdims=True) @ q[2]
    given = (q[0], q[1], q[2])
    _agree("a fold", lambda q, k, v: softmax(q @ k.mT / 8, axis=-1) @ v, given, wanted, 1e-5)
    return "attention over 256 rows"


def native_functions() -> str:
    """Every vectorised function against the C library's."""
    import fulgurite as fg

    for name in FUNCTIONS:
        start = 1.0 if name == "acosh" else 0.0
        for dtype, error in ((np.float32, 2e-6), (np.float64, 1e-14)):
            x = np.linspace(start + 0.05, start + 0.95, 203).astype(dtype)
            exact = np.array([getattr(math, name)(number) for number in x.tolist()])
            _agree(f"{name} of {dtype.__name__}", getattr(fg, name), (x,), exact, error)
    return f"{len(FUNCTIONS)} functions of two dtypes"


FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "sqrt",
)  # fmt: skip

NATIVE: list[Check] = [
    native_map, native_reduction, native_product, native_fold, native_functions,
]  # fmt: skip


def _agree(
    what: str, function: Callable[..., Any], given: tuple[Array, ...], wanted: Array, error: float
) -> None:
    """Native code, compiled now, gives what NumPy gives."""
    from .. import Tensor, config

    with config(device="cpu", tier="native", disk_cache=False):
        found = function(*[Tensor(array) for array in given]).numpy()
    off = float(np.max(np.abs(found.astype(np.float64) - wanted) / (1 + np.abs(wanted))))
    _expect(off <= error, f"{what} is off by {off:.1e}. {MEANWHILE}")


MEANWHILE = "Set FULGURITE_DEVICE=reference, which is slow and right, and report this"


def native() -> list[Result]:
    """The native checks, in a process of their own; what it did not come to has failed."""
    from ..codegen.cpu.llvm import versions

    reason = versions.unusable()
    if not NATIVE or reason == versions.MISSING:
        return [("native code", True, f"left out: {reason}")] if NATIVE else []
    if reason is not None:
        hint = f"pip install {versions.requirement()}"
        return [("native code", False, f"{reason}. Until then NumPy runs everything: {hint}")]
    names = [check.__name__ for check in NATIVE]
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = os.pathsep.join([folder, *[path for path in sys.path if path]])
    code = "from fulgurite.cli import selftest; selftest.print_native()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *names], env=os.environ | {"PYTHONPATH": paths},
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        out, end = done.stdout, _ending(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        end = f"not done after {LIMIT} seconds"
    results: list[Result] = [tuple(json.loads(line)) for line in out.splitlines()]
    hint = f"Try: pip install {versions.requirement()}. {MEANWHILE}"
    for name in names[len(results) :]:
        results.append((_title(name), False, f"{end}. {hint}"))
        end = "not run, because of that"
    return results


def _ending(code: int, said: str) -> str:
    """How a process ended, in words."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        words = next((line for line in said.splitlines() if "LLVM ERROR" in line), "")
        return f"the process ended with {name}" + (f" ({words[:160]})" if words else "")
    lines = said.strip().splitlines()
    return lines[-1][:200] if lines else f"the process ended with code {code}"


def print_native() -> None:
    """What the child process prints: a line of JSON for each check, as soon as it is done."""
    for check in NATIVE:
        if check.__name__ in sys.argv[1:]:
            print(json.dumps(_run_one(check)), flush=True)


# --- running -------------------------------------------------------------------------------------


def run() -> list[Result]:
    """Run every check; each gives its name, whether it passed, and a detail."""
    return [*[_run_one(check) for check in CHECKS], *native()]


def _title(name: str) -> str:
    return name.replace("_", " ")


def _run_one(check: Check) -> Result:
    name = _title(check.__name__)
    try:
        return name, True, check()
    except Exception as error:  # whatever it is, it is this check's result
        return name, False, f"{type(error).__name__}: {error}"


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ArithmeticError(otherwise)
