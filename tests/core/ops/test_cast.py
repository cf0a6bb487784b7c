"""CAST between every pair of dtypes against one exact rule, and BITCAST's round trips.

The rule: a float becomes whole toward zero, cut at the limits, NaN gives 0; a whole number wraps
into a narrower one; to a float everything rounds once, to the nearest, halves to even; to bool is
"not zero"; a complex number loses its imaginary part.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    complex64,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from fulgurite.core.node import constant
from fulgurite.core.op import Array
from fulgurite.core.ops.elementwise import BITCAST, CAST
from tests.core.ops.samples import (
    FLOATS,
    FORMATS,
    apply,
    assert_same,
    hostile,
    nearest,
    numbers,
    on_grid,
    wrap,
)


def cast_rule(value: Any, source: DType, target: DType) -> Any:
    """The exact number that a cast gives."""
    if target is bool_:
        return value != 0
    if target.kind == "c":
        part = float32 if target is complex64 else float64
        whole = complex(value)
        real = nearest(Fraction(value), part) if source.is_integer else nearest(whole.real, part)
        return complex(real, nearest(whole.imag, part))
    if source.kind == "c":
        value = value.real
    if target.is_float:
        return nearest(Fraction(value) if source.is_integer else value, target)
    low, high = target.limits
    if source.is_integer:
        return wrap(int(value), target)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, math.trunc(value)))


def near_ties(source: DType, target: DType) -> Array:
    """Numbers of the source at, just below and just above the middle of two of the target."""
    form = FORMATS[target]
    values: list[Any] = []
    for significand in (2**form.precision + 1, 2**form.precision + 3):  # one bit too many
        for exponent in (-form.precision, 0, 12, form.lowest - form.precision + 2):
            middle = Fraction(significand) * Fraction(2) ** exponent
            smallest = Fraction(1, 2**40) * middle
            values += [middle, middle + smallest, middle - smallest, middle + 1, middle - 1]
    top = Fraction(form.largest)
    values += [top, top + top / 2**form.precision / 2, top * (1 + Fraction(1, 2**form.precision))]
    if source.is_float:
        return on_grid([nearest(v, source) for v in [*values, *(-v for v in values)]], source)
    low, high = source.limits
    whole = {int(v) for v in values} | {int(-v) for v in values}
    whole |= {high - high // 2**form.precision // 2 + d for d in (-1, 0, 1)}
    for shift in range(form.precision + 2, source.bits - 1):  # a tie, at every magnitude
        middle_ = ((1 << form.precision) + 1) << shift - form.precision - 1
        whole |= {middle_, middle_ + 1, middle_ - 1, -middle_, -middle_ - 1, -middle_ + 1}
    return on_grid(sorted(v for v in whole if low <= v <= high), source)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_a_cast_follows_the_exact_rule(source: DType, target: DType) -> None:
    a = hostile(source)
    if target.is_float and source.kind in "iuf":
        a = np.concatenate([a, near_ties(source, target)])
    elif source.is_float and target.kind in "iu":
        low, high = target.limits
        edges = [low - 1, low - 0.5, low, high, high + 0.5, high + 1, high * 2, low * 2]
        a = np.concatenate([a, on_grid([nearest(float(e), source) for e in edges], source)])
    expected = [cast_rule(v, source, target) for v in numbers(a)]
    assert_same(apply(CAST, a, arg=target), on_grid(expected, target), a)


@given(st.floats(allow_nan=False), st.sampled_from(FLOATS))
def test_a_float64_rounds_once_to_any_float(value: float, target: DType) -> None:
    actual = apply(CAST, np.array([value]), arg=target)
    assert_same(actual, on_grid([nearest(value, target)], target))


@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from([int64, uint64]), st.sampled_from(FLOATS))
def test_a_whole_number_rounds_once_to_any_float(value: int, source: DType, target: DType) -> None:
    value = wrap(value, source)
    actual = apply(CAST, np.array([value], source.numpy), arg=target)
    assert_same(actual, on_grid([nearest(Fraction(value), target)], target))


@pytest.mark.parametrize(
    ("value", "target", "bits"),
    [
        (1 + 2.0**-8 + 2.0**-40, bfloat16, 0x3F81),  # through float32 it would be a tie: 0x3F80
        (1 + 2.0**-4 + 2.0**-40, float8_e4m3fn, 0x39),
        (1 + 2.0**-3 + 2.0**-40, float8_e5m2, 0x3D),
        (1 + 2.0**-11 + 2.0**-40, float16, 0x3C01),
    ],
    ids=lambda v: str(v),
)
def test_a_float64_just_above_a_tie_is_not_rounded_twice(
    value: float, target: DType, bits: int
) -> None:
    view = np.uint8 if target.bits == 8 else np.uint16
    assert apply(CAST, np.array([value]), arg=target).view(view)[0] == bits


@pytest.mark.parametrize("source", [int32, int64, uint32, uint64], ids=str)
def test_a_whole_number_just_above_a_tie_is_not_rounded_twice(source: DType) -> None:
    for shift in range(25, source.bits - 1):
        tie = (0b100000001) << shift - 8  # nine bits, of which bfloat16 keeps eight
        value = np.array([tie, tie + 1], source.numpy)
        low, high = 2.0**shift, 2.0**shift * (1 + 2.0**-7)
        assert numbers(apply(CAST, value, arg=bfloat16)) == [low, high]


def test_a_constant_is_committed_exactly_as_a_cast_rounds() -> None:
    for number in (2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**36 + 1, 2**63 - 1):
        for target in (*FLOATS,):
            cast = apply(CAST, np.array([number]), arg=target)
            assert_same(cast, on_grid([constant(number, target).value], target))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iuf"], ids=str)
def test_a_bitcast_and_back_keeps_every_bit(dtype: DType) -> None:
    same_width = [d for d in DTYPES if d.kind in "iuf" and d.bits == dtype.bits]
    raw = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[dtype.bits]
    if dtype.bits <= 16:
        patterns = np.arange(1 << dtype.bits).astype(raw)
    else:
        patterns = np.random.default_rng(3).integers(0, 1 << dtype.bits, 999, dtype=raw)
    a = patterns.view(dtype.numpy)
    for other in same_width:
        there = apply(BITCAST, a, arg=other)
        np.testing.assert_array_equal(there.view(raw), patterns)
        np.testing.assert_array_equal(apply(BITCAST, there, arg=dtype).view(raw), patterns)


def test_a_bitcast_reads_a_float_as_ieee_754_stores_it() -> None:
    assert apply(BITCAST, np.array([1.0, -0.0], np.float32), arg=uint32).tolist() == [
        0x3F800000,
        0x80000000,
    ]
    assert apply(BITCAST, np.array(1.0, np.float32), arg=uint32).shape == ()
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert apply(BITCAST, turned, arg=int32).shape == (3, 2)


def test_a_bitcast_to_another_width_does_not_pass_its_check() -> None:
    x = constant(1.0, float32, (2,))
    assert BITCAST.check(BITCAST(x, arg=uint32)) is None
    said = BITCAST.check(BITCAST(x, arg=uint64))
    assert said == "the bits of float32 are not those of uint64"
