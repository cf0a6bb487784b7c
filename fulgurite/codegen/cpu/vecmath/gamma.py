"""lgamma: Stirling's formula from 8 on, below it steps to the interval around 2 and a polynomial.

lgamma(2 + d) is a polynomial in d between -1/2 and 1/2; other numbers below 8 get there by whole
steps, which add or subtract the log of a product. Below -1/2 the reflection formula leads back to
positive numbers; it costs a second log, computed only if some lane needs it. The float64 function
sums pairs, since terms cancel near 1 and near the zeros; float32 is computed in float64 without.
"""

from __future__ import annotations

from math import inf

from ....core.dtype import float32, float64
from . import tables as T
from .logarithm import atanh_series, log_pair, split
from .values import (
    Num,
    Pair,
    constant_pair,
    exact_product,
    exact_sum,
    fma,
    nearest_whole,
    polynomial,
    quick_sum,
    rarely,
    where,
)

_LOG_PI = T.LOG_PI_PARTS_64


def _is_far(x: Num) -> Num:
    """True in lanes from which on Stirling's series has all digits."""
    return x >= 8.0


def _stepped(x: Num) -> tuple[Num, Num, Num, Num]:
    """(where the log is subtracted, d, product of the steps, what its rounding lost)."""
    down = x < 1.5
    tiny = x < 0.5
    one, lost = quick_sum(x.const(1.0), x)
    high, low = exact_product(x, one)
    steps = where(tiny, high.magnitude(), where(down, x, 1.0))
    low = fma(x, lost, low)
    low = where(tiny, where(x < 0.0, -low, low), 0.0)
    d = where(tiny, x, x - where(down, x.const(1.0), 2.0))
    for step in range(1, 7):
        take = x >= step + 1.5
        less = x - float(step)
        steps = where(take, steps * less, steps)
        d = where(take, less - 2.0, d)
    return down, d, steps, low


def _full_log(high: Num, low: Num | None) -> Pair:
    """log(high + low) as a pair."""
    k, (first, rest) = log_pair(high, low)
    total, err = quick_sum(k * T.LN2_PARTS_64[0], first)
    return quick_sum(total, err + fma(k, T.LN2_PARTS_64[1], rest))


def _positive(x: Num) -> Pair:
    """lgamma of a number above -1/2."""
    far = _is_far(x)
    down, d, steps, lost = _stepped(x)
    log, low = _full_log(where(far, x, steps), where(far, 0.0, lost))
    slope = constant_pair(x, T.LGAMMA_SLOPE_PARTS_64)
    curve, rest = exact_product(d, slope[0])
    rest = fma(polynomial(d, T.LGAMMA_64), d * d, fma(d, slope[1], rest))
    high, err = exact_sum(where(down, -log, log), curve)
    near = high, err + (where(down, -low, low) + rest)
    less, err = quick_sum(log, -1.0)
    grown, lost = exact_product(x, less)
    rest = fma(x, err + low, lost)
    high, err = quick_sum(grown, log * -0.5)
    inverse = 1.0 / x
    half = T.HALF_LOG_2PI_PARTS_64
    high, more = exact_sum(high, x.const(half[0]))
    tail = fma(polynomial(inverse * inverse, T.STIRLING_64), inverse, fma(low, -0.5, half[1]))
    return where(far, high, near[0]), where(far, (more + err) + (rest + tail), near[1])


def _sine_of_turns(x: Num, table: tuple[float, ...]) -> Num:
    """|sin(pi * x)|, exactly 0 at whole numbers."""
    r = x - nearest_whole(x)
    return (polynomial(r * r, table) * r).magnitude()


def _double(a: Num) -> Num:
    mirrored = a <= -0.5
    size = a.magnitude()
    high, low = _positive(where(mirrored, size, a))
    usual = where(high < inf, high + low, high)

    def slow() -> list[Num]:
        sine = _sine_of_turns(size, T.SIN_PI_64)
        log, rest = _full_log(size * sine, None)
        first, err = exact_sum(size.const(_LOG_PI[0]), -log)
        total, more = exact_sum(first, -high)
        found = total + ((err + more) + ((_LOG_PI[1] - rest) - low))
        found = where(high < inf, found, -high)
        return [where(mirrored, where(sine.equals(0.0), inf, found), usual)]

    (found,) = rarely(mirrored, [usual], slow)
    return found


def _plain_log(x: Num) -> Num:
    """log of a float64 above 0 to about 40 bits."""
    k, m = split(x)
    f, half, rest = atanh_series(m, T.ATANH_WIDE)
    return fma(k, T.LN2_PARTS_64[0], (f - half) + fma(k, T.LN2_PARTS_64[1], rest))


def _single(a: Num) -> Num:
    """A float32's lgamma, given and returned as a float64."""
    mirrored = a <= -0.5
    size = a.magnitude()
    x = where(mirrored, size, a)
    far = _is_far(x)
    down, d, steps, _ = _stepped(x)
    log = _plain_log(where(far, x, steps))
    curve = d * fma(polynomial(d, T.LGAMMA_WIDE), d, T.LGAMMA_SLOPE_PARTS_64[0])
    near = where(down, -log, log) + curve
    inverse = 1.0 / x
    tail = fma(polynomial(inverse * inverse, T.STIRLING_WIDE), inverse, T.HALF_LOG_2PI_PARTS_64[0])
    usual = where(far, fma(x, log - 1.0, fma(log, -0.5, tail)), near)

    def slow() -> list[Num]:
        sine = _sine_of_turns(size, T.SIN_PI_WIDE)
        found = (_LOG_PI[0] - _plain_log(size * sine)) - usual
        return [where(mirrored, where(sine.equals(0.0), inf, found), usual)]

    (found,) = rarely(mirrored, [usual], slow)
    return found


def lgamma(a: Num) -> Num:
    """The log of the gamma function's magnitude."""
    x = a.rounded_to(float64)
    found = _single(x).rounded_to(float32) if a.dtype is float32 else _double(a)
    found = where(a.equals(0.0) | a.magnitude().equals(inf), inf, found)
    return where(a.unordered(a), a, found)
