"""sin, cos and tan: range reduction by pi / 2 (Cody-Waite, Payne-Hanek for large arguments).

A number is reduced by multiples of pi / 2, in float64 to a pair; the quadrant chooses between sine
and cosine. That is right below a limit. Where any lane is beyond it, a loop over the lanes
multiplies the number's 53 bits with the bits of 2 / pi that matter to it, in whole numbers: what
comes before them gives whole turns, what comes after is too small. That loop is a function of its
own, `far`, so that what uses sin stays short.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf, pi

from ....core.dtype import float32, float64, int32, int64
from ..llvm.emitter import Val
from . import tables as T
from .exponential import format_of
from .values import (
    Num,
    Pair,
    constant_pair,
    exact_product,
    exact_sum,
    fma,
    fused,
    polynomial,
    product,
    quick_sum,
    quotient,
    rarely,
    where,
)

_LIMIT = {float32: 2.0**17, float64: 2.0**20}  # above which an argument is huge
WORDS = "vecmath.two_over_pi"  # only functions that are called use it
_TWO_OVER_PI = 2 / pi


# --- huge arguments ------------------------------------------------------------------------------


def _word(like: Num, place: Num) -> Num:
    """A word of 2 / pi, from the table that a module of this function has."""
    at = like.e.let(f"getelementptr i64, ptr @{WORDS}, i64 {place.val.text}")
    return like.make(f"load i64, ptr {at}", int64)


def words() -> str:
    """The table of the bits of 2 / pi, as a line of a module."""
    listed = ", ".join(f"i64 {w - (1 << 64) if w >> 63 else w}" for w in T.TWO_OVER_PI)
    return f"@{WORDS} = private constant [{len(T.TWO_OVER_PI)} x i64] [{listed}], align 8"


def _wide_product(a: Num, b: Num, add: str | None) -> str:
    """a * b + add in 128 bits."""
    e = a.e
    left, right = (e.let(f"zext i64 {n.val.text} to i128") for n in (a, b))
    found = e.let(f"mul i128 {left}, {right}")
    return found if add is None else e.let(f"add i128 {found}, {add}")


def _reduce_one(x: Num) -> tuple[Num, Pair]:
    """(quadrant, r) of one float64 from 2**16 up to the largest."""
    e = x.e
    bits = x.bits()
    exponent = (bits >> 52) & 0x7FF
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    first = exponent - (1075 - 62)  # the bit of 2 / pi, counting its word of zeros, worth 2
    place, by = first >> 6, first & 63
    words = [_word(x, place + i) for i in range(4)]
    window = [a.call("fshl", b, by) for a, b in pairwise(words)]
    low = e.let(f"lshr i128 {_wide_product(mantissa, window[2], None)}, 64")
    middle = _wide_product(mantissa, window[1], low)
    high = _wide_product(mantissa, window[0], e.let(f"lshr i128 {middle}, 64"))
    kept = e.let(f"and i128 {middle}, {(1 << 64) - 1}")
    turns = e.let(f"or i128 {e.let(f'shl i128 {high}, 64')}, {kept}")  # in quarters, times 2**126
    fraction = e.let(f"shl i128 {turns}, 2")
    whole = e.let(f"lshr i128 {turns}, 126")
    more = e.let(f"lshr i128 {fraction}, 127")  # above a half: the next quarter, and below it
    quarter = e.let(f"trunc i128 {e.let(f'add i128 {whole}, {more}')} to i64")
    size = e.call("i128", "llvm.abs.i128", f"i128 {fraction}", "i1 false")
    zeros = e.call("i128", "llvm.ctlz.i128", f"i128 {size}", "i1 false")
    size = e.let(f"shl i128 {size}, {zeros}")
    parts = []
    for down in (75, 22):
        part = e.let(f"trunc i128 {e.let(f'lshr i128 {size}, {down}')} to i64")
        parts.append((Num(e, Val(part, int64)) & ((1 << 53) - 1)).rounded_to(float64))
    count = Num(e, Val(e.let(f"trunc i128 {zeros} to i64"), int64))
    scale = ((1023 - 53 - count) << 52).real()
    ratio = parts[0] * scale, parts[1] * (scale * 2.0**-53)
    r = product(ratio, constant_pair(x, T.PI_2_PAIR_PARTS_64))
    negative = Num(e, Val(e.let(f"icmp ne i128 {more}, 0"), x.equals(x).dtype))
    flip = negative ^ (bits < 0)
    quadrant = Num(e, Val(quarter, int64))
    quadrant = where(bits < 0, -quadrant, quadrant)
    return quadrant, (where(flip, -r[0], r[0]), where(flip, -r[1], r[1]))


# --- smaller ones --------------------------------------------------------------------------------


def _reduce(x: Num) -> tuple[Num, Pair]:
    """(quadrant, r) with x = quadrant * pi / 2 + r, for a float64 up to the limit."""
    shift = format_of(x).shift
    shifted = fma(x, _TWO_OVER_PI, shift)
    n = shifted - shift
    first, second, third, last = T.PI_2_PARTS_64
    high = x - n * first
    low = n.const(0.0)
    for part in (second, third):
        term = n * part
        less = high - term
        low = low + ((high - less) - term)
        high = less
    return shifted.bits(), quick_sum(high, low - n * last)


def _reduce_single(x: Num, paired: bool) -> tuple[Num, Pair]:
    """The same for float32; unless `paired`, r is rounded and nothing is left over."""
    shift = format_of(x).shift
    shifted = fma(x, _TWO_OVER_PI, shift)
    n = shifted - shift
    if not fused(x.e):
        wide, times = x.rounded_to(float64), n.rounded_to(float64)
        most, least = T.PI_2_WIDE_PARTS_64
        return shifted.bits(), _narrow((wide - times * most) - times * least)
    first, second, last = T.PI_2_PARTS_32
    high = fma(n, -first, x)  # exact
    if not paired:
        return shifted.bits(), (fma(n, -last, fma(n, -second, high)), n.const(0.0))
    term, lost = exact_product(n, n.const(-second))
    r, err = exact_sum(high, term)
    return shifted.bits(), quick_sum(r, fma(n, -last, err + lost))


def _narrow(r: Num) -> Pair:
    """A float64 as a pair of float32."""
    high = r.rounded_to(float32)
    return high, (r - high.rounded_to(float64)).rounded_to(float32)


# --- polynomials ---------------------------------------------------------------------------------


def _sine(r: Pair, table: tuple[float, ...]) -> Pair:
    high, low = r
    z = high * high
    return high, fma(polynomial(z, table), z * high, fma(z * -0.5, low, low))


def _cosine(r: Pair, table: tuple[float, ...]) -> Pair:
    high, low = r
    z = high * high
    first, err = quick_sum(high.const(1.0), z * -0.5)
    return first, err + fma(polynomial(z, table), z * z, -(high * low))


def _flip(value: Num, odd: Num) -> Num:
    """The value, negated where the last bit of a whole number is 1."""
    return (value.bits() ^ (odd << (value.dtype.bits - 1))).real()


def _single(quadrant: Num, r: Num) -> Num:
    """sin(r + quadrant * pi / 2): one polynomial with the coefficients of sine or cosine."""
    use_cosine = (quadrant & 1).differs(0)
    first = where(use_cosine, 1.0, r)
    z = r * r
    p = where(use_cosine, T.COS_32[0], z.const(T.SIN_32[0]))
    for cosine, sine in zip(T.COS_32[1:], T.SIN_32[1:], strict=True):
        p = fma(p, z, where(use_cosine, cosine, z.const(sine)))
    return _flip(fma(z * first, p, first), quadrant >> 1)


def _sine_or_cosine(quadrant: Num, r: Pair, quarters: int) -> Num:
    """sin(r + (quadrant + quarters) * pi / 2)."""
    if quarters:
        quadrant = quadrant + quarters
    if r[0].dtype is float32:
        return _single(quadrant, r[0])
    use_cosine = (quadrant & 1).differs(0)
    sine, cosine = _sine(r, T.SIN_64), _cosine(r, T.COS_64)
    found = where(use_cosine, cosine[0], sine[0]) + where(use_cosine, cosine[1], sine[1])
    return _flip(found, quadrant >> 1)


def _tangent(quadrant: Num, r: Pair) -> Num:
    """tan(r + quadrant * pi / 2): sine over cosine, both as pairs."""
    turned = (quadrant & 1).differs(0)
    narrow = r[0].dtype is float32
    sine = _sine(r, T.SIN_32 if narrow else T.SIN_64)
    cosine = _cosine(r, T.COS_FAR_32 if narrow else T.COS_64)
    tops = where(turned, -cosine[0], sine[0]), where(turned, -cosine[1], sine[1])
    bottoms = where(turned, sine[0], cosine[0]), where(turned, sine[1], cosine[1])
    high, low = quotient(quick_sum(*tops), quick_sum(*bottoms))
    return high + low


FINISH: dict[str, Callable[[Num, Pair], Num]] = {
    "sin": lambda quadrant, r: _sine_or_cosine(quadrant, r, 0),
    "cos": lambda quadrant, r: _sine_or_cosine(quadrant, r, 1),
    "tan": _tangent,
}

# --- the functions -------------------------------------------------------------------------------


def _far_one(name: str, x: Num) -> Num:
    quadrant, r = _reduce_one(x.rounded_to(float64))
    if x.dtype is float32:
        quadrant, r = quadrant.rounded_to(int32), _narrow(r[0])
    return FINISH[name](quadrant, r)


def far(name: str, a: Num) -> Num:
    """A function of numbers from 2**16 on, lane by lane."""
    e = a.e
    if not a.val.vector:
        return _far_one(name, a)
    whole = e.type_of(a.dtype, True)

    def lane(index: str, names: list[str]) -> list[str]:
        text = e.let(f"extractelement {whole} {a.val.text}, i64 {index}")
        found = e.typed(_far_one(name, Num(e, Val(text, a.dtype))).val)
        return [e.let(f"insertelement {whole} {names[0]}, {found}, i64 {index}")]

    return Num(e, Val(e.loop("0", str(e.lanes), 1, [(whole, "poison")], lane)[0], a.dtype, True))


def trigonometric(name: str, far: Callable[[Num], Num]) -> Callable[[Num], Num]:
    """sin, cos or tan; `far` is the same function for numbers from 2**16 on."""

    def function(a: Num) -> Num:
        size = a.magnitude()
        narrow = a.dtype is float32
        usual = FINISH[name](*(_reduce_single(a, name == "tan") if narrow else _reduce(a)))
        huge = (size > _LIMIT[a.dtype]) & (size < inf)

        def slow() -> list[Num]:
            return [where(huge, far(where(huge, a, 2.0**20)), usual)]

        (found,) = rarely(huge, [usual], slow)
        found = where(size < inf, found, a - a)
        return found if name == "cos" else where(size < format_of(a).tiny, a, found)

    return function
