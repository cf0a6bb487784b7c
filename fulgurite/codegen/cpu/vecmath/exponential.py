"""exp, exp2, expm1, sinh, cosh, tanh: range reduction by log 2, a polynomial, 2**n by bits.

A number is split as n * log(2) + r with |r| <= log(2) / 2 (for exp2: n + r). n comes from adding a
number so large that the sum's last bits are n; those bits, shifted into the exponent, are 2**n.
sinh and cosh come from one pair of polynomials, an even and an odd one, so nothing cancels near 0.
Every path is free of branches; a result that is denormal is rounded once more, by its scaling.
"""

from __future__ import annotations

import math

from ....core.dtype import float32
from ....core.lazy_dataclass import dataclass
from . import tables as T
from .pieces import AVX512, each_register, has_pieces, odd_in_pieces
from .values import (
    Num,
    Pair,
    exact_product,
    exact_sum,
    fma,
    least,
    most,
    pick,
    polynomial,
    quick_sum,
    quotient,
    where,
)

_LOG2_E, _LOG_2 = math.log2(math.e), math.log(2)


@dataclass(frozen=True, slots=True)
class Format:
    """What the bits of a float look like, and where functions leave its range."""

    mantissa: int
    bias: int
    shift: float  # adding it rounds to a whole number
    tiny: float  # below it x and x + x * x are one number
    lowest: float  # exp of it is 0
    highest: float  # exp of it is inf
    hyperbolic: float  # and cosh of it
    flat: float  # tanh of it is 1
    minus_one: float  # expm1 of it is -1


SINGLE = Format(23, 127, 1.5 * 2.0**23, 2.0**-30, -104.0, 89.0, 89.6, 9.5, -18.0)
DOUBLE = Format(52, 1023, 1.5 * 2.0**52, 2.0**-60, -746.0, 710.0, 710.6, 22.0, -38.0)


def format_of(x: Num) -> Format:
    """The format of a value's dtype."""
    return SINGLE if x.dtype is float32 else DOUBLE


def reduced(x: Num, offset: int) -> tuple[Num, Num, Num]:
    """(a float with n + offset in its last bits, r, what r lost) for x = n * log(2) + r."""
    shifted, n, first, low = _reduced_in_parts(x, offset)
    r = fma(n, -low, first)
    return shifted, r, fma(n, -low, first - r)


def reduced_pair(x: Num, less: Num, offset: int) -> tuple[Num, Num]:
    """(a float with n + offset in its last bits, r) for x - less = n * log(2) + r."""
    shifted, n, first, low = _reduced_in_parts(x, offset)
    return shifted, first - fma(n, low, less)


def _reduced_in_parts(x: Num, offset: int) -> tuple[Num, Num, Num, float]:
    """A float with n + offset in its last bits, n, x without the high part of n * log(2), which is
    exact, and the low part of log(2)."""
    shift = format_of(x).shift + offset
    shifted = fma(x, _LOG2_E, shift)
    n = shifted - shift
    high, low = pick(x, T.LN2_PARTS_32, T.LN2_PARTS_64)
    return shifted, n, fma(n, -high, x), low


def power_of_two(shifted: Num, mantissa: int) -> Num:
    """2**(n - bias) from the n in a float's last bits."""
    return (shifted.bits() << mantissa).real()


def scaled(value: Num, shifted: Num) -> Num:
    """value * 2**n, for n + 2 * bias in the last bits, in two steps so that no step overflows."""
    form = format_of(value)
    if value.e.lanes >= AVX512 and value.val.vector and value.dtype is float32:
        return _scaled_at_once(value, shifted - (form.shift + 2 * form.bias))
    mantissa = form.mantissa
    bits = shifted.bits()
    half = bits >> 1
    return value * (half << mantissa).real() * ((bits - half) << mantissa).real()


def _scaled_at_once(value: Num, n: Num) -> Num:
    """value * 2**n by one instruction for each vector of the host."""
    kind, name = f"<{AVX512} x float>", "llvm.x86.avx512.mask.scalef.ps.512"
    value.e.declare(f"{kind} @{name}({kind}, {kind}, {kind}, i16, i32)", name)

    def call(names: list[str]) -> str:
        first, second = [f"{kind} {text}" for text in names]
        return f"call {kind} @{name}({first}, {second}, {first}, i16 -1, i32 4)"

    return each_register([value, n], call)


def exp(a: Num) -> Num:
    """e ** a."""
    form = format_of(a)
    x = most(least(a, form.highest), form.lowest)
    shifted, r, low = reduced(x, 2 * form.bias)
    if a.dtype is float32:
        p = fma(polynomial(r, T.EXP_32), r * r, r)
    else:
        p = r + fma(polynomial(r, T.EXP_64), r * r, low)
    return scaled(p + 1.0, shifted)


def exp_pair(high: Num, low: Num) -> tuple[Num, Pair]:
    """exp(high + low) as 2**n times a pair; n + 2 * bias is in the last bits. `high` in range."""
    shifted, r, lost = reduced(high, 2 * format_of(high).bias)
    curve = polynomial(r, pick(high, T.EXP_32, T.EXP_64)) * (r * r)
    small = lost + low
    one, err = quick_sum(high.const(1.0), r)
    return shifted, (one, err + (curve + fma(small, r + curve, small)))


def exp2(a: Num) -> Num:
    """2 ** a."""
    form = format_of(a)
    x = most(least(a, form.bias + 2.0), -form.bias - form.mantissa - 2.0)
    shift = form.shift + 2 * form.bias
    shifted = x + shift
    r = x - (shifted - shift)
    return scaled(fma(polynomial(r, pick(a, T.EXP2_32, T.EXP2_64)), r, 1.0), shifted)


def expm1(a: Num) -> Num:
    """e ** a - 1, as 2**n * (e**r - 1) + (2**n - 1); all halved, so that 2**n stays in range."""
    form = format_of(a)
    x = most(least(a, form.highest), form.minus_one)
    shifted, r, low = reduced(x, form.bias - 1)
    half = power_of_two(shifted, form.mantissa)
    rest = fma(polynomial(r, pick(a, T.EXP_32, T.EXP_64)), r * r, low)
    high, lost = exact_sum(half - 0.5, half * r)
    found = high + fma(half, rest, lost)
    return where(a.magnitude() < form.tiny, a, found + found)


def _hyperbolic(x: Num) -> tuple[Pair, Pair]:
    """Halves of sinh and cosh of a number at or above 0, both as pairs."""
    form = format_of(x)
    shifted, r, low = reduced(x, form.bias - 2)
    grown = power_of_two(shifted, form.mantissa)
    field = 2 * (form.bias - 2) - (shifted.bits() & (4 * form.bias + 3))
    shrunk = (where(field > 0, field, 0) << form.mantissa).real()
    sides = quick_sum(grown, -shrunk), quick_sum(grown, shrunk)
    z = r * r
    even = fma(polynomial(z, pick(x, T.COSH_32, T.COSH_64)), z, low * r)
    odd = fma(polynomial(z, pick(x, T.SINH_32, T.SINH_64)), z * r, low)
    found: list[Pair] = []
    for (first, first_low), (second, second_low) in (sides, sides[::-1]):
        slope, lost = exact_product(second, r)
        high, err = exact_sum(first, slope)
        lost = lost + fma(second_low, r, first_low)
        found.append(quick_sum(high, (err + lost) + fma(first, even, second * odd)))
    return found[0], found[1]


def sinh(a: Num) -> Num:
    """(exp(a) - exp(-a)) / 2."""
    form = format_of(a)
    size = a.magnitude()
    (high, low), _ = _hyperbolic(least(size, form.hyperbolic))
    half = high + low
    return where(size < form.tiny, a, (half + half).with_sign(a))


def cosh(a: Num) -> Num:
    """(exp(a) + exp(-a)) / 2."""
    _, (high, low) = _hyperbolic(least(a.magnitude(), format_of(a).hyperbolic))
    half = high + low
    return half + half


def tanh(a: Num) -> Num:
    """sinh / cosh; in float32 h / (h + 1) of h = (exp(2 |a|) - 1) / 2, which is exact near 0,
    or in pieces."""
    form = format_of(a)
    size = a.magnitude()
    if has_pieces(a):
        return odd_in_pieces(a, 9.05, T.WIDTHS["tanh"], T.TANH_PIECES)
    x = least(size, form.flat)
    if a.dtype is float32:
        shift = form.shift + form.bias
        shifted = fma(x, 2 * _LOG2_E, -0.4999) + shift  # rounded down: nothing cancels below
        r = fma(shifted - shift, -0.5 * _LOG_2, x)  # the further from 0, the less it counts
        p = fma(polynomial(r, T.TANH_32), r * r, r)
        grown = power_of_two(shifted, form.mantissa)
        half = fma(grown, p, fma(grown, 0.5, -0.5))
        found = half / (half + 1.0)
        return where(half < 0.75, fma(-half, found, half), found).with_sign(a)
    high, low = quotient(*_hyperbolic(x))
    return where(size < form.tiny, a, (high + low).with_sign(a))
