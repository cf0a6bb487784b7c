"""log, log2, log10, log1p, asinh, acosh, atanh and pow: exponent and mantissa, then a polynomial.

A positive number is 2**k * m with m between the roots of 1/2 and 2, and log(m) is a polynomial: in
f = m - 1 for the quick float32 log, else in s = f / (2 + f), which is smaller. The inverse
hyperbolic functions are logs of a pair. pow keeps log(a) in about 64 bits, since its error is
multiplied by the exponent; in float32 it is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf, nan

from ....core.dtype import float32, float64, int32
from . import tables as T
from .exponential import exp_pair, format_of, power_of_two, scaled
from .values import (
    Num,
    Pair,
    constant_pair,
    exact_product,
    exact_sum,
    fma,
    fused,
    least,
    most,
    nearest_whole,
    pick,
    polynomial,
    product,
    quick_sum,
    quotient,
    root_pair,
    where,
)

_LOG2_E = math.log2(math.e)
_ROOT_HALF = {float32: 0x3F3504F3, float64: 0x3FE6A09E667F3BCD}


def split(x: Num) -> tuple[Num, Num]:
    """(k as a float, m) with x = 2**k * m, for x above 0; denormals are scaled first."""
    form = format_of(x)
    up = form.mantissa + 1
    small = x < 2.0 ** (1 - form.bias)
    bits = where(small, x * 2.0**up, x).bits()
    k = (bits - _ROOT_HALF[x.dtype]) >> form.mantissa
    m = (bits - (k << form.mantissa)).real()
    k = k.rounded_to(int32).rounded_to(x.dtype)
    return where(small, k - float(up), k), m


def atanh_series(m: Num, table: Sequence[float]) -> tuple[Num, Num, Num]:
    """(f, f * f / 2, rest): log(m) is the first less the second plus the third."""
    f = m - 1.0
    s = f / (m + 1.0)
    z = s * s
    half = f * (f * 0.5)
    return f, half, s * fma(polynomial(z, table), z, half)


def log_pair(high: Num, low: Num | None) -> tuple[Num, Pair]:
    """(k, pair) with log(high + low) = k * log(2) + pair, for float64s as in `_log`."""
    k, m = split(high)
    f, half, rest = atanh_series(m, T.ATANH_64)
    lost = exact_product(f * 0.5, f)[1]
    first, err = quick_sum(f, -half)
    rest = (err - lost) + rest
    return k, (first, rest if low is None else rest + low / high)


def _log(high: Num, low: Num | None, once_more: Num | None = None) -> Num:
    """log(high + low) for high above 0 and low far below it; `once_more` log(2) where it holds."""
    narrow = high.dtype is float32
    k, (first, rest) = _log_single(high, low) if narrow else log_pair(high, low)
    if once_more is not None:
        k = where(once_more, k + 1.0, k)
    big, small = pick(k, T.LN2_PARTS_32, T.LN2_PARTS_64)
    if narrow:
        return fma(k, big, first + fma(k, small, rest))
    total, err = quick_sum(k * big, first)
    return total + (err + fma(k, small, rest))


def _log_single(high: Num, low: Num | None) -> tuple[Num, Pair]:
    """The same parts for float32, by a longer polynomial without a division."""
    k, m = split(high)
    f = m - 1.0
    square = f * f
    rest = fma(square, -0.5, polynomial(f, T.LOG_32) * (square * f))
    return k, (f, rest if low is None else rest + low / high)


def _edges(x: Num, found: Num) -> Num:
    """The log of 0, of numbers below it, of inf and of NaN."""
    found = where(x.equals(inf), inf, found)
    return where(x > 0.0, found, where(x.equals(0.0), -inf, found.const(nan)))


def log(a: Num) -> Num:
    """The natural logarithm."""
    return _edges(a, _log(a, None))


def _other_base(a: Num, factor: Sequence[float], exponent: Sequence[float]) -> Num:
    """The log of a float64 times a factor of two parts."""
    k, (high, low) = log_pair(a, None)
    first, lost = exact_product(high, high.const(factor[0]))
    rest = lost + fma(high, factor[1], low * factor[0])
    total, err = quick_sum(k * exponent[0], first)
    return _edges(a, total + (err + fma(k, exponent[1], rest)))


def _other_base_single(
    a: Num, table: Sequence[float], factor: Sequence[float], exponent: Sequence[float]
) -> Num:
    """The same for float32: a polynomial of its own, its linear term in two parts."""
    k, m = split(a)
    f = m - 1.0
    rest = fma(polynomial(f, table), f * f, f * factor[1])
    if not fused(a.e):
        rest = rest + exact_product(f, f.const(factor[0]))[1]
    found = fma(f, factor[0], fma(k, exponent[1], rest))
    return _edges(a, fma(k, exponent[0], found))


def log2(a: Num) -> Num:
    """The logarithm to base 2."""
    if a.dtype is float32:
        return _other_base_single(a, T.LOG2_32, T.LOG2_E_PARTS_32, (1.0, 0.0))
    return _other_base(a, T.LOG2_E_PARTS_64, (1.0, 0.0))


def log10(a: Num) -> Num:
    """The logarithm to base 10."""
    if a.dtype is float32:
        return _other_base_single(a, T.LOG10_32, T.LOG10_E_PARTS_32, T.LOG10_2_PARTS_32)
    return _other_base(a, T.LOG10_E_PARTS_64, T.LOG10_2_PARTS_64)


def log1p(a: Num) -> Num:
    """log(1 + a)."""
    high, low = exact_sum(a.const(1.0), a)
    found = _edges(high, _log(high, low))
    return where(a.magnitude() < format_of(a).tiny, a, found)


def _one_plus(x: Pair) -> Pair:
    high, low = exact_sum(x[0].const(1.0), x[0])
    return high, low + x[1]


def _log_of_large(x: Num, large: Num, value: Pair) -> Num:
    """log of the pair, or where x is large log(2 * x)."""
    return _log(where(large, x, value[0]), where(large, 0.0, value[1]), large)


def asinh(a: Num) -> Num:
    """log(a + sqrt(a * a + 1)), as the log of 1 + (a + a * a / (1 + sqrt(a * a + 1)))."""
    x = a.magnitude()
    large = x > (2.0**60 if a.dtype is float32 else 2.0**500)
    cut = where(large, 1.0, x)
    square = exact_product(cut, cut)
    rest = quotient(square, _one_plus(root_pair(_one_plus(square))))
    high, low = exact_sum(cut, rest[0])
    found = _log_of_large(x, large, _one_plus((high, low + rest[1])))
    found = where(x < inf, found, x).with_sign(a)
    return where(x < format_of(a).tiny, a, found)


def acosh(a: Num) -> Num:
    """log(a + sqrt(a * a - 1))."""
    large = a > (2.0**60 if a.dtype is float32 else 2.0**500)
    x = where(large, 1.5, a)
    square, lost = exact_product(x, x)
    less, err = quick_sum(square, -1.0)
    root = root_pair((less, err + lost))
    high, low = exact_sum(x, root[0])
    found = _log_of_large(a, large, (high, low + root[1]))
    found = where(a < inf, found, a)
    return where(a > 1.0, found, where(a.equals(1.0), 0.0, a.const(nan)))


def atanh(a: Num) -> Num:
    """log((1 + a) / (1 - a)) / 2, as the log of 1 + 2 * a / (1 - a)."""
    x = a.magnitude()
    below = quick_sum(x.const(1.0), -x)
    ratio = quotient((x + x, x.const(0.0)), below)
    found = _log(*_one_plus(ratio)) * 0.5
    found = where(x < 1.0, found, where(x.equals(1.0), inf, x.const(nan))).with_sign(a)
    return where(x < format_of(a).tiny, a, found)


# --- pow -----------------------------------------------------------------------------------------


def _log_exact(x: Num) -> Pair:
    """log(x) of a float64 above 0 with about 64 bits."""
    k, m = split(x)
    f = m - 1.0
    s = quotient((f, f.const(0.0)), quick_sum(f.const(2.0), f))
    s = quick_sum(*s)
    z = product(s, s)
    third = product(z, constant_pair(f, T.THIRD_PARTS_64))
    third = third[0], fma(polynomial(z[0], T.ATANH_FAR_64), z[0] * z[0], third[1])
    rest = product(s, third)
    high, low = quick_sum(s[0], rest[0])
    low = low + (s[1] + rest[1])
    total, err = quick_sum(k * T.LN2_PARTS_64[0], high + high)
    return quick_sum(total, err + fma(k, T.LN2_PARTS_64[1], low + low))


def _power_double(x: Num, y: Num) -> Num:
    """x ** y for x at or above 0, away from the special cases."""
    high, low = _log_exact(x)
    high = where(x.equals(0.0), -inf, where(x.equals(inf), inf, high))
    grown, lost = exact_product(y, high)
    fits = grown.magnitude() < 1000.0
    rest = where(fits, fma(y, low, lost), 0.0)
    cut = most(least(grown, 710.0), -746.0)
    shifted, (one, small) = exp_pair(cut, rest)
    return scaled(one + small, shifted)


def _power_single(x: Num, y: Num) -> Num:
    """The same for a float32, computed in float64."""
    wide, times = x.rounded_to(float64), y.rounded_to(float64)
    bits = wide.bits()
    k = (bits - _ROOT_HALF[float64]) >> 52
    m = (bits - (k << 52)).real()
    k = k.rounded_to(int32).rounded_to(float64)
    f, half, rest = atanh_series(m, T.ATANH_WIDE)
    log2 = fma(f - half + rest, _LOG2_E, k)
    log2 = where(x.equals(0.0), -inf, where(x.equals(inf), inf, log2))
    grown = most(least(times * log2, 200.0), -200.0)
    shift = 1.5 * 2.0**52 + 1023
    shifted = grown + shift
    r = grown - (shifted - shift)
    p = fma(polynomial(r, T.EXP2_WIDE), r, 1.0)
    return (p * power_of_two(shifted, 52)).rounded_to(float32)


def power(a: Num, b: Num) -> Num:
    """a ** b, with C's special cases: 1 ** b and a ** 0 are 1 even for NaN."""
    size = a.magnitude()
    body = _power_single if a.dtype is float32 else _power_double
    found = body(size, b)
    times = b.magnitude()
    half = times * 0.5
    whole = nearest_whole(times).equals(times)
    odd = whole & nearest_whole(half).differs(half)
    negative = a.bits() < 0
    sign = where(odd & negative, a.bits() & (-1 << (a.dtype.bits - 1)), a.bits().const(0))
    found = (found.bits() | sign).real()
    lost = (a < 0.0) & (size < inf) & ~whole
    found = where(lost, nan, found)
    found = where(size.equals(1.0) & times.equals(inf), 1.0, found)
    found = where(a.unordered(b), nan, found)
    return where(a.equals(1.0) | b.equals(0.0), 1.0, found)
