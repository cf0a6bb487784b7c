"""asin, acos, atan and atan2: odd polynomials on small arguments, then multiples of pi / 4.

asin and acos of more than 1/2 go through the root of (1 - a) / 2; atan2 divides the smaller side by
the larger, turns what is above tan(pi / 8) by pi / 4, and adds the eighths of a turn at the end.
Multiples of pi are pairs, and so is the quotient, so that the sum is rounded about once.
"""

from __future__ import annotations

import math
from math import inf, nan

from ....core.dtype import float32
from . import tables as T
from .exponential import format_of
from .values import (
    Num,
    Pair,
    exact_product,
    fma,
    least,
    pick,
    polynomial,
    quick_sum,
    quotient,
    where,
)

_TAN_EIGHTH = math.tan(math.pi / 8)


def _asin_parts(a: Num) -> tuple[Num, Num, Num]:
    """(where |a| > 1/2, s, rest): asin(s) = s + rest, s being |a| or the root of (1 - |a|) / 2."""
    size = a.magnitude()
    far = size > 0.5
    z = where(far, (1.0 - size) * 0.5, size * size)
    root = z.root()
    square, lost = exact_product(root, root)
    missing = ((z - square) - lost) / where(root > 0.0, root + root, 1.0)
    s = where(far, root, size)
    rest = polynomial(z, pick(a, T.ASIN_32, T.ASIN_64)) * (z * s)
    return far, s, where(far, rest + missing, rest)


def asin(a: Num) -> Num:
    """The angle whose sine is a."""
    far, s, rest = _asin_parts(a)
    high, low = pick(a, T.PI_2_PAIR_PARTS_32, T.PI_2_PAIR_PARTS_64)
    first, err = quick_sum(s.const(high), s * -2.0)
    turned = first + (err + fma(rest, -2.0, low))
    return where(far, turned, s + rest).with_sign(a)


def acos(a: Num) -> Num:
    """The angle whose cosine is a."""
    far, s, rest = _asin_parts(a)
    negative = a.bits() < 0
    s2, rest2 = where(far, s + s, s), where(far, rest + rest, rest)
    plus = far ^ negative  # near: pi/2 - a; far: 2 s, or pi - 2 s for negative a
    s2, rest2 = where(plus, s2, -s2), where(plus, rest2, -rest2)
    quarter = pick(a, T.PI_2_PAIR_PARTS_32, T.PI_2_PAIR_PARTS_64)
    half = pick(a, T.PI_PAIR_PARTS_32, T.PI_PAIR_PARTS_64)
    high, low = (
        where(far, where(negative, a.const(h), 0.0), a.const(q))
        for h, q in zip(half, quarter, strict=True)
    )
    first, err = quick_sum(high, s2)
    return first + (err + (low + rest2))


def _add_eighths(top: Num, bottom: Num, eighths: Num, backwards: Num) -> Num:
    """eighths * pi / 4 plus (or where `backwards` minus) the angle of top / bottom <= 1."""
    steep = top > bottom * _TAN_EIGHTH
    zero = top.const(0.0)
    less, less_low = quick_sum(-bottom, top)
    more, more_low = quick_sum(bottom, top)
    tops = where(steep, less, top), where(steep, less_low, zero)
    bottoms = where(steep, more, bottom), where(steep, more_low, zero)
    t, low = quotient(tops, bottoms)
    z = t * t
    rest = fma(polynomial(z, pick(t, T.ATAN_32, T.ATAN_64)), z * t, low)
    t, rest = where(backwards, -t, t), where(backwards, -rest, rest)
    step = where(backwards, zero.const(-1.0), 1.0)
    eighths = where(steep, eighths + step, eighths)
    high, small = pick(t, T.PI_4_PARTS_32, T.PI_4_PARTS_64)
    first, err = quick_sum(eighths * high, t)
    return first + (err + fma(eighths, small, rest))


def atan(a: Num) -> Num:
    """The angle whose tangent is a."""
    size = a.magnitude()
    cut = least(size, 2.0**100)
    above = size > 1.0
    one = size.const(1.0)
    top, bottom = where(above, one, cut), where(above, cut, one)
    found = _add_eighths(top, bottom, where(above, 2.0, size.const(0.0)), above)
    return where(size < format_of(a).tiny, a, found.with_sign(a))


def _moderate(top: Num, bottom: Num) -> Pair:
    """Both scaled so that neither their sum nor an inverse leaves the range."""
    top = where(bottom.equals(inf), where(top.equals(inf), top.const(1.0), 0.0), top)
    bottom = where(bottom.equals(inf), 1.0, bottom)
    far, near, by = (100, 30, 60) if top.dtype is float32 else (900, 200, 140)
    small = where(bottom < 2.0**near, top.const(2.0**by), 1.0)
    scale = where(bottom > 2.0**far, 2.0**-by, small)
    return top * scale, where(bottom.equals(0.0), 1.0, bottom * scale)


def atan2(a: Num, b: Num) -> Num:
    """The angle of the point (b, a)."""
    y, x = a.magnitude(), b.magnitude()
    above = y > x
    top, bottom = _moderate(where(above, x, y), where(above, y, x))
    left = b.bits() < 0
    zero = top.const(0.0)
    eighths = where(above, 2.0, where(left, zero.const(4.0), zero))
    found = _add_eighths(top, bottom, eighths, above ^ left)
    return where(a.unordered(b), nan, found.with_sign(a))
