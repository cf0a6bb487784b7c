"""A self-test of about a second: does this installation compute what it should?

Goes in: nothing. Comes out: one (name, passed, detail) per check, in order. A
check is a function that returns a short detail or raises; adding one is adding
a function to `CHECKS`. A failing check never stops the ones after it, because
a report from a broken machine is worth more when it is complete. Checks raise
rather than assert, so that `python -O` runs the same test.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

Check = Callable[[], str]


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
    from .config import current
    from .runtime.device import get_device

    device = current().device
    get_device(device)
    return f"device {device}"


def fused_graph() -> str:
    """A lazy graph is fused, compiled, run and differentiated as NumPy would compute it."""
    from . import Tensor, explain, grad, softmax

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


def run() -> list[tuple[str, bool, str]]:
    """Run every check; each gives its name, whether it passed, and a detail."""
    return [_run_one(check) for check in CHECKS]


def _run_one(check: Check) -> tuple[str, bool, str]:
    name = check.__name__.replace("_", " ")
    try:
        return name, True, check()
    except Exception as error:  # whatever it is, it is this check's result
        return name, False, f"{type(error).__name__}: {error}"


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ArithmeticError(otherwise)
