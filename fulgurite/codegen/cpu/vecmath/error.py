"""erf and erfc: an odd polynomial near 0, exp(-x * x) times a slow function further out.

exp(x * x) * erfc(x) * (1 + 2 x) hardly changes, and is a polynomial in (x - middle) / (x + middle)
for all x above 1/2. erfc keeps every step as a pair, since its results are compared relatively down
to denormals. Where remainders are exact, float32's erfc has (x + 3/2) in place of (1 + 2 x) and of
(x + middle), so that one division and one polynomial do from 0 on. float32's erf, whose tail is
subtracted from 1, takes the quicker exp(-x * g(x)). AVX-512 has float32's erf in pieces, and erfc
as exp(-x * x) times a function in pieces.
"""

from __future__ import annotations

from ....core.dtype import float32
from . import tables as T
from .exponential import exp, exp_pair, format_of, power_of_two, reduced, reduced_pair, scaled
from .pieces import as_vector, has_pieces, in_pieces, odd_in_pieces
from .values import (
    Num,
    Pair,
    exact_product,
    fma,
    fused,
    least,
    pick,
    polynomial,
    product,
    quick_sum,
    quotient,
    where,
)


def _near(a: Num, size: Num) -> Num:
    """erf(a) / a - 1 times a: what is to be added to a."""
    return polynomial(size * size, pick(a, T.ERF_32, T.ERF_64)) * a


def _slow_function(x: Num) -> tuple[Pair, Pair]:
    """(1 + 2 x) exp(x * x) erfc(x), and 1 + 2 x, for x from 1/2 on."""
    middle = T.ERFC_LIMITS[x.dtype.name]
    t = (x - middle) / (x + middle)
    table = pick(x, T.ERFC_32, T.ERFC_64)
    last, low = pick(x, T.ERFC_LAST_PARTS_32, T.ERFC_LAST_PARTS_64)
    high, err = quick_sum(x.const(last), t * polynomial(t, table[:-1]))
    return (high, err + low), quick_sum(x + x, x.const(1.0))  # 2 x is at least 1


def _tail(x: Num) -> tuple[Num, Pair]:
    """erfc(x) for x from 1/2 on, as 2**n times a pair; n + 2 * bias is in the last bits."""
    slow, below = _slow_function(x)
    square, lost = exact_product(x, x)
    shifted, power = exp_pair(-square, -lost)
    return shifted, quotient(product(power, slow), below)


def _narrow_erfc(a: Num, size: Num) -> Num:
    """erfc in float32: one division, one polynomial from 0 on, and what rounding lost added last.

    An inverse that is off moves the polynomial too: 1.7 times as much counts at 0, 1.2 far out.
    """
    x = least(size, 10.2)
    square, low = exact_product(x, x)
    below, lost = quick_sum(x.const(T.ERFC_LIMITS["from"]), x)
    inverse = 1.0 / below
    off = fma(-lost, inverse, fma(-inverse, below, 1.0))
    t = fma(inverse, -2 * T.ERFC_LIMITS["from"], 1.0)
    last, table = T.ERFC_ALL_32[-1], T.ERFC_ALL_32[:-1]
    slow, err = quick_sum(x.const(last), polynomial(t, table) * t)
    share, rest = exact_product(slow, inverse)
    shifted, r, _ = reduced(-square, 2 * format_of(a).bias)
    grown = fma(polynomial(r, T.EXP_32), r * r, r)
    rest = fma(share, fma(off, fma(inverse, 0.9, 1.1), -low), fma(err, inverse, rest))
    far = share + fma(share, grown, fma(rest, grown, rest))
    far = scaled(far, shifted)
    return where(a < 0.0, 2.0 - far, far)


def _erfc_in_pieces(a: Num) -> Num:
    """erfc in float32: exp(-x * x) times a function in pieces."""
    x = least(a.magnitude(), 10.2)
    square, low = exact_product(x, x)
    slope, t, value = in_pieces(x, (x + 1.0).bits() >> 21, T.ERFC_PIECES)
    rest = slope * t
    shifted, r = reduced_pair(-square, low, 2 * format_of(a).bias)
    grown = fma(polynomial(r, T.EXP_32), r * r, r)
    far = scaled(value + fma(value + rest, grown, rest), shifted)
    return where(a < 0.0, 2.0 - far, far)


def erf(a: Num) -> Num:
    """The error function."""
    size = a.magnitude()
    if has_pieces(a):
        return odd_in_pieces(a, 3.94, T.WIDTHS["erf"], T.ERF_PIECES)
    near = a + _near(a, size)
    if a.dtype is float32:
        x = least(size, 4.0)
        shifted, r, _ = reduced(polynomial(x, T.ERF_FAR_32) * -x, format_of(a).bias)
        p = fma(polynomial(r, T.EXP_32), r * r, r)
        grown = power_of_two(shifted, format_of(a).mantissa)
        far = 1.0 - fma(grown, p, grown)
        return where(size < 0.9375, near, far.with_sign(a))
    x = least(size, 6.0)
    slow, below = _slow_function(x)
    far = 1.0 - exp(-(x * x)) * (slow[0] + slow[1]) / below[0]  # far below 1: needs no pairs
    return where(size < 1.0, near, far.with_sign(a))


def erfc(a: Num) -> Num:
    """1 - erf(a)."""
    size = a.magnitude()
    if has_pieces(a):
        return _erfc_in_pieces(a) if a.val.vector else as_vector(erfc, a)
    if a.dtype is float32 and fused(a.e):
        return _narrow_erfc(a, size)
    first, err = quick_sum(a.const(1.0), -a)
    near = first + (err - _near(a, size))
    shifted, (high, low) = _tail(least(size, 10.2 if a.dtype is float32 else 27.3))
    far = scaled(high + low, shifted)
    far = where(a < 0.0, 2.0 - far, far)
    return where(size < 0.5, near, far)
