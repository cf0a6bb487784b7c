"""What the generated tests share: hostile values, exact rounding, and running one op.

`nearest` is the oracle of every rounding in these tests: exact fractions, rounded once to the
nearest even neighbour on a dtype's grid, written from the formats' definitions and not with the
functions under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fulgurite.core import dtype as dtypes
from fulgurite.core.dtype import DTYPES, DType
from fulgurite.core.node import Node
from fulgurite.core.op import Array, Op
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.runtime.host.evaluate import evaluate

INTEGERS = tuple(d for d in DTYPES if d.kind in "iu")
FLOATS = tuple(d for d in DTYPES if d.kind == "f")
COMPLEX = tuple(d for d in DTYPES if d.kind == "c")


@dataclass(frozen=True)
class Format:
    """A binary float format: bits of the significand, exponents, and its largest number."""

    precision: int
    lowest: int  # exponent of the smallest normal number
    largest: float
    infinite: bool = True


FORMATS: dict[DType, Format] = {
    dtypes.float64: Format(53, -1022, (2 - 2.0**-52) * 2.0**1023),
    dtypes.float32: Format(24, -126, (2 - 2.0**-23) * 2.0**127),
    dtypes.bfloat16: Format(8, -126, (2 - 2.0**-7) * 2.0**127),
    dtypes.float16: Format(11, -14, 65504.0),
    dtypes.float8_e5m2: Format(3, -14, 57344.0),
    dtypes.float8_e4m3fn: Format(4, -6, 448.0, infinite=False),
}


def nearest(value: Fraction | float, dtype: DType) -> float:
    """The number of the dtype's grid nearest to a value, halves to even; rounded once."""
    form = FORMATS[dtype]
    beyond = math.inf if form.infinite else math.nan
    if not isinstance(value, Fraction):
        if math.isnan(value):
            return value
        if math.isinf(value):
            return math.copysign(beyond, value)
        if value == 0:
            return value
        value = Fraction(value)
    if value == 0:
        return 0.0
    step = ulp(value, dtype)
    rounded = round(value / step) * step
    sign = -1.0 if value < 0 else 1.0
    if abs(rounded) > Fraction(form.largest):
        return sign * beyond
    return math.copysign(float(rounded), sign)


def ulp(value: Fraction, dtype: DType) -> Fraction:
    """The distance of neighbours on the dtype's grid at a value."""
    form, size = FORMATS[dtype], abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length() if size else form.lowest
    if size < Fraction(2) ** exponent:
        exponent -= 1
    return Fraction(2) ** (max(exponent, form.lowest) - form.precision + 1)


def wrap(value: int, dtype: DType) -> int:
    """A whole number modulo the dtype's width."""
    low, high = dtype.limits
    return (value - low) % (high - low + 1) + low


def hostile(dtype: DType) -> Array:
    """Values on which naive code fails: ±0, ±inf, NaN, denormals, limits and their neighbours."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        low, high = dtype.limits
        near = {low, low + 1, high, high - 1, high // 2, high // 2 + 1}
        small = {-8, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, dtype.bits - 1, dtype.bits}
        inside = sorted(v for v in near | small if low <= v <= high)
        return np.array(inside, dtype.numpy)
    if dtype.kind == "c":
        parts = [0.0, -0.0, 1.5, -2.0, 0.25]
        return np.array([complex(a, b) for a in parts for b in parts], dtype.numpy)
    form = FORMATS[dtype]
    tiny, normal = 2.0 ** (form.lowest - form.precision + 1), 2.0**form.lowest
    positive = [
        0.0, tiny, 3 * tiny, normal - tiny, normal, 0.1, 1 / 3, 0.5, 1.0,
        1 + 2.0 ** (1 - form.precision), 1.5, 2.5, 3.0, 7.0, 60.0, 90.0, form.largest / 2,
        form.largest, math.inf, math.nan,
    ]  # fmt: skip
    grid = [nearest(v, dtype) for v in positive]
    with np.errstate(all="ignore"):
        return np.array([*grid, *(-v for v in grid)], np.float64).astype(dtype.numpy)


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Every pair of hostile values, as two flat arrays."""
    a, b = np.meshgrid(hostile(dtype), hostile(dtype))
    return a.ravel(), b.ravel()


def leaf(array: Array) -> Node:
    """A buffer for an array."""
    return new_buffer(array.shape, dtypes.dtype_of(array.dtype))


def run(build: Callable[..., Node], *arrays: Array) -> Array:
    """The value of a graph that is built from one leaf per array."""
    leaves = [leaf(a) for a in arrays]
    node = build(*leaves)
    problem = node.op.check(node)
    assert problem is None, problem
    (value,) = evaluate([node], dict(zip(leaves, arrays, strict=True)))
    assert value.dtype == node.dtype.numpy
    assert value.shape == node.shape
    return value


def apply(op: Op, *arrays: Array, arg: Hashable = None) -> Array:
    """The value of one op on arrays."""
    return run(lambda *src: op(*src, arg=arg), *arrays)


def numbers(array: Array) -> list[Any]:
    """The elements as Python numbers, exactly."""
    if array.dtype.kind in "biucf":
        return [v.item() for v in array.ravel()]
    return [float(v) for v in array.ravel()]


def on_grid(values: Sequence[Any], dtype: DType) -> Array:
    """Python numbers that are on the dtype's grid, as an array."""
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return np.array(values, np.float64).astype(dtype.numpy)
    return np.array(values, dtype.numpy)


def assert_same(actual: Array, expected: Array, *sources: Array) -> None:
    """Equal bit for bit, except that a NaN is like any other; names the sources that differ."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    same = (actual == expected) & (_negative(actual) == _negative(expected))
    same |= (actual != actual) & (expected != expected)
    if np.all(same):
        return
    at = int(np.flatnonzero(~same.ravel())[0])
    given = ", ".join(str(s.ravel()[at]) for s in sources if s.shape == actual.shape)
    count = int(np.sum(~same))
    raise AssertionError(
        f"{count} of {same.size} differ; at {at} ({given}): "
        f"{actual.ravel()[at]} should be {expected.ravel()[at]}"
    )


def _negative(array: Array) -> Array:
    if array.dtype.kind in "biu":
        return np.zeros(array.shape, bool)
    if array.dtype.kind == "c":
        return np.asarray(np.signbit(array.real) * 2 + np.signbit(array.imag))
    return np.asarray(np.signbit(array))
