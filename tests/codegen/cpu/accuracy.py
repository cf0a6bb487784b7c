"""How far vecmath's functions are from the exact ones, in units in the last place.

In: nothing. Out: `docs/accuracy.md`, by `python -m tests.codegen.cpu.accuracy --write`; the tests
measure a part of it. A function is compiled alone, for any target this machine can run, and
compared with an oracle of more bits: float64 for float32, long double for float64 where NumPy has
the function, mpmath for the rest. What a quick oracle finds worst is measured again with mpmath.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.emitter import Emitter, Val, scalar_type
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.llvm.maths import EXPANSIONS, intrinsic
from fulgurite.codegen.cpu.target import VECTORS, Target, target
from fulgurite.codegen.cpu.vecmath import IN_PIECES, library
from fulgurite.core.dtype import DType, bfloat16, float16, float32, float64, round_to

Array = np.ndarray[Any, Any]
DOCUMENT = Path(__file__).parents[3] / "docs" / "accuracy.md"
_Call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)


@dataclass(frozen=True)
class Function:
    """A function, its oracles, and where its arguments are worth a closer look."""

    name: str
    exact: Callable[..., Any]  # mpmath's
    numpy: Callable[..., Any] | None  # in any NumPy float, if NumPy has it
    dense: tuple[tuple[float, float], ...]
    bound: float = 2.0
    arity: int = 1


def _mp_pow(x: Any, y: Any) -> Any:
    return mpmath.power(x, y)


def _mp_lgamma(x: Any) -> Any:
    return mpmath.re(mpmath.loggamma(x)) if x > 0 else mpmath.log(abs(mpmath.gamma(x)))


def _mp_erfc(x: Any) -> Any:
    return mpmath.erfc(min(x, mpmath.mpf(200)))  # mpmath cannot do huge ones


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


_m = mpmath
FUNCTIONS = {
    f.name: f
    for f in (
        Function("exp", _m.exp, np.exp, ((-104, 89), (-1, 1), (-746, 710))),
        Function("exp2", lambda x: _m.power(2, x), np.exp2, ((-150, 128), (-1, 1), (-1075, 1024))),
        Function("expm1", _m.expm1, np.expm1, ((-20, 89), (-1, 1), (-40, 710))),
        Function("log", _m.log, np.log, ((0, 4), (0.9, 1.1))),
        Function("log2", lambda x: _m.log(x, 2), np.log2, ((0, 4), (0.9, 1.1))),
        Function("log10", _m.log10, np.log10, ((0, 4), (0.9, 1.1))),
        Function("log1p", _m.log1p, np.log1p, ((-1, 4), (-0.1, 0.1))),
        Function("sin", _m.sin, np.sin, ((-10, 10), (-2e5, 2e5), (-2e6, 2e6))),
        Function("cos", _m.cos, np.cos, ((-10, 10), (-2e5, 2e5), (-2e6, 2e6))),
        Function("tan", _m.tan, np.tan, ((-10, 10), (-2e5, 2e5), (-2e6, 2e6))),
        Function("asin", _m.asin, np.arcsin, ((-1, 1),)),
        Function("acos", _m.acos, np.arccos, ((-1, 1),)),
        Function("atan", _m.atan, np.arctan, ((-8, 8),)),
        Function("atan2", _m.atan2, np.arctan2, ((-8, 8), (-1e-3, 1e-3)), arity=2),
        Function("sinh", _m.sinh, np.sinh, ((-90, 90), (-2, 2), (-711, 711))),
        Function("cosh", _m.cosh, np.cosh, ((-90, 90), (-2, 2), (-711, 711))),
        Function("tanh", _m.tanh, np.tanh, ((-10, 10), (-1, 1), (-23, 23))),
        Function("asinh", _m.asinh, np.arcsinh, ((-8, 8), (-1, 1))),
        Function("acosh", _m.acosh, np.arccosh, ((1, 8), (1, 1.1))),
        Function("atanh", _m.atanh, np.arctanh, ((-1, 1), (-0.6, 0.6))),
        Function("erf", _m.erf, None, ((-6, 6), (-1, 1))),
        Function("erfc", _mp_erfc, None, ((-6, 28), (-1, 1), (0, 10.2))),
        Function("pow", _mp_pow, np.power, ((0, 8), (-20, 20), (0.9, 1.1)), 4.0, arity=2),
        Function("sqrt", _m.sqrt, np.sqrt, ((0, 4),)),
        Function("rsqrt", lambda x: 1 / _m.sqrt(x), _rsqrt, ((0, 4),)),
        Function("cbrt", lambda x: _m.sign(x) * _m.cbrt(abs(x)), np.cbrt, ((-8, 8),)),
        Function("lgamma", _mp_lgamma, None, ((0, 10), (0.9, 2.1), (-20, 0), (0, 1e3)), 4.0),
    )
}  # fmt: skip


# --- running -------------------------------------------------------------------------------------


def text_of(name: str, dtype: DType, lanes: int) -> str:
    """A module whose `kernel(a, b, out, count)` maps whole vectors."""
    e = Emitter(lanes)
    kind, inner = e.type_of(dtype, True), scalar_type(dtype)
    arity = FUNCTIONS[name].arity

    def once(index: str, _: list[str]) -> list[str]:
        values = []
        for source in ("%a", "%b")[:arity]:
            at = e.let(f"getelementptr {inner}, ptr {source}, i64 {index}")
            values.append(Val(e.let(f"load {kind}, ptr {at}, align 4"), dtype, True))
        if name == "sqrt":
            found = intrinsic(e, "llvm.sqrt", *values)
        else:
            found = EXPANSIONS[name](e, dtype, values)
        at = e.let(f"getelementptr {inner}, ptr %out, i64 {index}")
        e.line(f"store {kind} {found.text}, ptr {at}, align 4")
        return []

    e.loop("0", "%count", lanes, [], once)
    e.line("ret void")
    body, declared = "\n".join(e.lines), "\n".join(e.declared.values())
    args = "ptr noalias %a, ptr noalias %b, ptr noalias %out, i64 %count"
    return f"define void @kernel({args}) {{\nentry:\n{body}\n}}\n{declared}\n"


@cache
def compiled(name: str, dtype: DType, vectors: str) -> Callable[..., Array]:
    """The function on arrays, in machine code for a kind of vectors."""
    lanes = VECTORS[vectors]
    text = text_of(name, dtype, lanes)
    code = load(compile_object([text, *library(text)], Target("x86_64", vectors)))
    call = _Call(code["kernel"])

    def run(*arrays: Array) -> Array:
        count = arrays[0].size
        room = -(-count // lanes) * lanes
        padded = [np.resize(np.ascontiguousarray(a, dtype.numpy), room) for a in arrays]
        out = np.empty(room, dtype.numpy)
        call(padded[0].ctypes.data, padded[-1].ctypes.data, out.ctypes.data, room)
        return out[:count]

    return run


def widths() -> list[str]:
    """The kinds of vectors this machine can run."""
    order = ["sse2", "avx2", "avx512"]
    return order[: order.index(target().vectors) + 1]


def kinds_of(f: Function, dtype: DType) -> list[str]:
    """Kinds of vectors that give bits of their own, the widest first."""
    if dtype is float32 and f.name in IN_PIECES:
        return widths()[::-1]
    return [widths()[-1], "sse2"]


# --- samples -------------------------------------------------------------------------------------


def samples(f: Function, dtype: DType, count: int, seed: int = 0) -> list[Array]:
    """Arguments: all exponents, dense regions, and the edges."""
    rng = np.random.default_rng([seed, *f.name.encode(), dtype.bits])
    found = [_one_sample(f, dtype, count, rng) for _ in range(f.arity)]
    found = [one[: min(map(len, found))] for one in found]
    if f.name == "pow":  # a base near 1 with an exponent that takes it to the ends of the range
        base = 1 + rng.uniform(-0.5, 0.5, count // 2) * 2.0 ** -rng.uniform(0, 50, count // 2)
        base = base.astype(dtype.numpy).astype(np.float64)
        base = np.where(base == 1, 3, base)
        top = 88 if dtype is float32 else 709
        exponent = rng.uniform(-1.05 * top, top, base.size) / np.log(base)
        found = [np.concatenate([a, b.astype(dtype.numpy)])
                 for a, b in zip(found, (base, exponent), strict=True)]  # fmt: skip
    return found


def strided(stride: int) -> Array:
    """Every so manieth float32 of them all, but for inf and NaN."""
    found: Array = np.arange(0, 1 << 32, stride).astype(np.uint32).view(np.float32)
    return found[np.isfinite(found)]


def edges(dtype: DType) -> Array:
    """Numbers at which functions like to go wrong."""
    info = np.finfo(dtype.numpy)
    some = [0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 2.5, 1e30, 1e5, 100.0, 10.0, 171.5, 0.25, math.pi,
            math.pi / 2, info.max, info.tiny, info.smallest_subnormal, info.tiny / 3, 7.0, 8.0,
            88.7, 709.7, 104.0, 745.0, 2.0**24, 2.0**53, 2.0**17, 2.0**20, 1e300, 22.0,
            5.0]  # fmt: skip
    with np.errstate(all="ignore"):
        found = np.array(some, np.float64).astype(dtype.numpy)
        found = np.concatenate([np.nextafter(found, np.inf, dtype=dtype.numpy), found,
                                np.nextafter(found, -np.inf, dtype=dtype.numpy)])  # fmt: skip
    found = found[np.isfinite(found)]
    return np.concatenate([found, -found])


def _one_sample(f: Function, dtype: DType, count: int, rng: np.random.Generator) -> Array:
    raw = np.dtype(f"uint{dtype.bits}")
    parts = [rng.integers(0, 1 << dtype.bits, count // 2, raw, endpoint=False).view(dtype.numpy)]
    for low, high in f.dense:
        parts.append(rng.uniform(low, high, count // 2 // len(f.dense)).astype(dtype.numpy))
    found = np.concatenate([*parts, np.tile(edges(dtype), 8 if f.arity == 2 else 1)])
    found = found[np.isfinite(found)]
    return rng.permutation(found) if f.arity == 2 else found  # every kind with every other


# --- measuring -----------------------------------------------------------------------------------


def unit(exact: Array, dtype: DType) -> Array:
    """The distance of neighbours at a number of more bits."""
    info = np.finfo(dtype.numpy)
    exponent = np.frexp(np.where(exact == 0, 1, exact))[1] - 1
    exponent = np.where(exact == 0, info.minexp, np.clip(exponent, info.minexp, info.maxexp))
    return np.asarray(np.ldexp(exact.dtype.type(1), exponent - info.nmant))


def errors(f: Function, dtype: DType, first: Array, got: Array, exact: Array) -> Array:
    """How many units each result is off; inf counts as the number after the largest."""
    info = np.finfo(dtype.numpy)
    over = np.ldexp(exact.dtype.type(1), info.maxexp)
    wide = got.astype(exact.dtype)
    ends = np.isinf(exact)
    limit = np.where(np.isinf(wide), np.copysign(over, wide), wide)
    aim = np.where(np.abs(exact) > over, np.copysign(over, exact), exact)
    size = unit(aim, dtype)
    if f.name == "lgamma":  # which has zeros below 0 that no float hits
        size = np.where(first < 0, np.maximum(size, unit(np.ones_like(aim), dtype)), size)
    with np.errstate(invalid="ignore"):
        off = np.abs(limit - aim) / size
    off = np.where(ends, np.where(wide == exact, 0, off), off)
    both = np.isnan(exact) & np.isnan(wide)
    return np.where(both, 0, np.where(np.isnan(off), np.inf, off)).astype(np.float64)


def quick_oracle(f: Function, dtype: DType, arrays: list[Array]) -> Array | None:
    """Results with more bits than the dtype has, if there is a quick way to have them."""
    wide = np.float64 if dtype is float32 else np.longdouble
    with np.errstate(all="ignore"):
        if f.numpy is not None:
            return np.asarray(f.numpy(*[a.astype(wide) for a in arrays]))
        if dtype is float32:
            lifted = np.frompyfunc(by_python(f.name), 1, 1)
            return np.asarray(lifted(arrays[0].astype(np.float64)), np.float64)
    return None


def by_python(name: str) -> Callable[[float], float]:
    def lgamma(x: float) -> float:
        try:
            return math.lgamma(x)
        except (ValueError, OverflowError):
            return math.inf

    return {"erf": math.erf, "erfc": math.erfc, "lgamma": lgamma}[name]


def slow_oracle(f: Function, arrays: list[Array]) -> Array:
    """Results by mpmath, rounded to long double; NaN where the function is not real."""
    out = np.empty(arrays[0].shape, np.longdouble)
    for i, values in enumerate(zip(*[a.tolist() for a in arrays], strict=True)):
        # digits for what cancels when reducing a huge angle
        with mpmath.workprec(1300 if f.name in ("sin", "cos", "tan") else 180):
            out[i] = _mp_value(f, values)
    return out


def _mp_value(f: Function, values: tuple[float, ...]) -> np.longdouble:
    try:
        y = f.exact(*[mpmath.mpf(v) for v in values])
    except (ValueError, ZeroDivisionError, OverflowError):
        return np.longdouble("inf" if f.name == "lgamma" else "nan")
    if isinstance(y, mpmath.mpc):
        return np.longdouble("nan")
    if not mpmath.isfinite(y):
        return np.longdouble(float(y))
    mantissa, exponent = mpmath.frexp(y)
    if exponent > 16000:
        return np.longdouble("inf") * int(mpmath.sign(y))
    if exponent < -16000:
        return np.longdouble(0.0) * int(mpmath.sign(y) or 1)
    high = float(mantissa)
    low = float(mantissa - high)
    return np.longdouble(np.ldexp(np.longdouble(high) + np.longdouble(low), int(exponent)))


@dataclass(frozen=True)
class Found:
    """The worst error seen, over how many inputs, and where."""

    worst: float
    count: int
    where: tuple[float, ...]


def measure(f: Function, dtype: DType, vectors: Sequence[str], arrays: list[Array]) -> list[Found]:
    """The worst error for each kind of vectors; a quick oracle's worst are seen again by mpmath."""
    exact = quick_oracle(f, dtype, arrays)
    sure = exact is None
    if exact is None:
        exact = slow_oracle(f, arrays)
    found = []
    for kind in vectors:
        got = compiled(f.name, dtype, kind)(*arrays)
        off = errors(f, dtype, arrays[0], got, exact)
        if not sure:
            worst = np.argpartition(off, -10)[-10:]
            chosen = [a[worst] for a in arrays]
            again = errors(f, dtype, chosen[0], got[worst], slow_oracle(f, chosen))
            off[worst] = again  # the eleventh worst and those below are as good as the oracle
        place = int(np.argmax(off))
        found.append(Found(float(off[place]), off.size, tuple(float(a[place]) for a in arrays)))
    return found


def in_chunks(f: Function, vectors: Sequence[str], numbers: Array) -> list[Found]:
    """The same for a long array of float32, a piece at a time."""
    best = [Found(-1.0, 0, ())] * len(vectors)
    for start in range(0, numbers.size, 1 << 20):
        piece = measure(f, float32, vectors, [numbers[start : start + (1 << 20)]])
        best = [_joined(a, b) for a, b in zip(best, piece, strict=True)]
    return best


def _joined(a: Found, b: Found) -> Found:
    top = a if a.worst >= b.worst else b
    return Found(top.worst, a.count + b.count, top.where)


# --- small floats --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Small:
    """How many results of a small float are not the nearest one, and by how many steps at most."""

    count: int
    wrong: int
    steps: int


def every(dtype: DType) -> Array:
    """All numbers of 16 bits, NaN but once."""
    found = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    return found[~np.isnan(found.astype(np.float32))]


def pairs(dtype: DType, count: int, seed: int = 0) -> list[Array]:
    """Pairs of small floats: half of them any bits, half from where results are moderate."""
    rng = np.random.default_rng([seed, count, dtype.bits])
    found = []
    for _ in range(2):
        raw = rng.integers(0, 1 << 16, count // 2, np.uint16, endpoint=False).view(dtype.numpy)
        with np.errstate(invalid="ignore"):
            raw = np.where(np.isnan(raw.astype(np.float32)), dtype.numpy.type(1), raw)
        near = rng.normal(0, 4, count - count // 2).astype(np.float32).astype(dtype.numpy)
        found.append(rng.permutation(np.concatenate([raw, near])))
    return found


def measure_small(f: Function, dtype: DType, vectors: str, arrays: list[Array]) -> Small:
    """A small float's function is the float32 one, rounded."""
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float32) for a in arrays]
        got = round_to(compiled(f.name, float32, vectors)(*wide), dtype)
        exact = quick_oracle(f, float32, wide)
        assert exact is not None
        right = round_to(exact, dtype)
    steps = np.abs(_steps(got) - _steps(right))
    nan = np.isnan(got.astype(np.float32)), np.isnan(right.astype(np.float32))
    steps = np.where(nan[0] | nan[1], np.where(nan[0] & nan[1], 0, 1 << 16), steps)
    return Small(steps.size, int(np.count_nonzero(steps)), int(steps.max()))


def _steps(numbers: Array) -> Array:
    """Small floats numbered in order; both zeros are 0."""
    bits = numbers.view(np.uint16).astype(np.int64)
    return np.where(bits >> 15, 0x8000 - bits, bits)


# --- the document --------------------------------------------------------------------------------

_HEAD = """# Accuracy of native functions

Written by `python -m tests.codegen.cpu.accuracy --write`; do not edit.

Errors are in units in the last place of the exact result (0.5 is a result rounded once). *fused* is
the worst with fused multiply-add (AVX2, AVX-512), *plain* without (SSE2); *where* is the argument
of the larger one. AVX2 and AVX-512 give the same bits, but for tanh, erf and erfc of float32, which
AVX-512 looks up in pieces. float32: every {stride}th of all finite numbers, and samples from where
the function is used; float64: samples over all exponents, from where the function is used, and
edges. float64 of erf, erfc and lgamma is measured by mpmath alone, hence fewer samples. lgamma
below 0, which has zeros that no float hits, is measured relative to at least 1.

| function | dtype | fused | plain | bound | inputs | where |
| --- | --- | --- | --- | --- | --- | --- |
"""
_SMALL = """
## float16 and bfloat16

They compute in float32 and are rounded then. Over all numbers (functions of two: {pairs:,} pairs)
this many results are not the nearest number; all are next to it.

| function | float16 | bfloat16 |
| --- | --- | --- |
"""


def rows(f: Function, stride: int, count: int) -> list[str]:
    """A function's lines of the document."""
    lines = []
    for dtype in (float32, float64):
        kinds = kinds_of(f, dtype)
        slow = dtype is float64 and f.numpy is None
        found = measure(f, dtype, kinds, samples(f, dtype, count // 20 if slow else count))
        if dtype is float32 and f.arity == 1:
            more = in_chunks(f, kinds, strided(stride))
            found = [_joined(a, b) for a, b in zip(found, more, strict=True)]
        top = max(found, key=lambda n: n.worst)
        fused = max(one.worst for one in found[:-1])
        at = ", ".join(f"{v:.9g}" if dtype is float32 else repr(v) for v in top.where)
        lines.append(
            f"| {f.name} | {dtype.name} | {fused:.3f} | {found[-1].worst:.3f} "
            f"| {f.bound:g} | {top.count:,} | {at} |"
        )
    return lines


def document(stride: int = 257, count: int = 2_000_000, pair_count: int = 10_000_000) -> str:
    """The whole of docs/accuracy.md."""
    lines = [line for f in FUNCTIONS.values() for line in rows(f, stride, count)]
    small = []
    for f in FUNCTIONS.values():
        cells = []
        for dtype in (float16, bfloat16):
            inputs = [every(dtype)] if f.arity == 1 else pairs(dtype, pair_count)
            found = measure_small(f, dtype, widths()[-1], inputs)
            assert found.steps <= 1, (f.name, dtype, found)
            cells.append(f"{found.wrong:,} ({100 * found.wrong / found.count:.4f} %)")
        small.append(f"| {f.name} | {' | '.join(cells)} |")
    head = _HEAD.format(stride=stride) + "\n".join(lines) + "\n"
    return head + _SMALL.format(pairs=pair_count) + "\n".join(small) + "\n"


if __name__ == "__main__":
    if "--write" not in sys.argv:
        sys.exit("usage: python -m tests.codegen.cpu.accuracy --write")
    DOCUMENT.write_text(document(), encoding="utf-8")
