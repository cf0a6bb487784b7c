"""Strength reduction of division by a loop invariant: a reciprocal, then the rounding put right.

In: a divisor that does not change in a loop, and vectors. Out: quotients. With r = 1/s rounded,
q = x*r is off by a unit in the last place at most; the remainder x - q*s is exact in one fused
step and gives the rounded quotient. Where that is no number (of infinite or NaN operands, or too
large) q itself is the answer. A tiny divisor, whose reciprocal would overflow, is scaled up with x.
Only quotients of numbers near the smallest normal ones can differ from a division's, by one unit.
"""

from __future__ import annotations

from ....core.dtype import float32, float64
from ....core.lazy_dataclass import dataclass
from .emitter import Emitter, Val
from .maths import compare, intrinsic, select

_TINY = {True: (2.0**-100, 2.0**64), False: (2.0**-900, 2.0**512)}  # by "is it float32"


@dataclass(frozen=True, slots=True)
class Divisor:
    """A number made ready to divide by: scale, scaled and negated, reciprocal; all in lanes."""

    scale: Val
    minus: Val
    reciprocal: Val


def divisor(e: Emitter, value: Val) -> Divisor:
    """Compute, once, what dividing by a number needs."""
    bound, factor = _TINY[value.dtype is float32]
    kind = e.type_of(value.dtype, False)
    size = intrinsic(e, "llvm.fabs", value)
    tiny = compare(e, "fcmp olt", size, e.const(bound, value.dtype))
    scale = select(e, tiny, e.const(factor, value.dtype), e.const(1.0, value.dtype))
    scaled = Val(e.let(f"fmul {kind} {value.text}, {scale.text}"), value.dtype)
    one = e.const(1.0, value.dtype).text
    reciprocal = Val(e.let(f"fdiv {kind} {one}, {scaled.text}"), value.dtype)
    minus = Val(e.let(f"fneg {kind} {scaled.text}"), value.dtype)
    return Divisor(e.splat(scale), e.splat(minus), e.splat(reciprocal))


def divided(e: Emitter, x: Val, by: Divisor) -> Val:
    """The lanes of x divided."""
    kind = e.type_of(x.dtype, True)
    scaled = Val(e.let(f"fmul {kind} {x.text}, {by.scale.text}"), x.dtype, True)
    near = Val(e.let(f"fmul {kind} {scaled.text}, {by.reciprocal.text}"), x.dtype, True)
    left = intrinsic(e, "llvm.fma", near, by.minus, scaled)
    mended = intrinsic(e, "llvm.fma", left, by.reciprocal, near)
    known = compare(e, "fcmp ord", mended, mended)
    return intrinsic(e, "llvm.copysign", select(e, known, mended, near), near)  # 0 keeps its sign


def divided_lanes(e: Emitter, x: Val, by: Val) -> Val:
    """Whole quotients of int64 lanes from 0 to 2^50; all lanes of the divisor are alike.

    A half more than x is at least half a divisor's part away from any multiple of it: more than
    what rounding in float64 takes.
    """
    whole, kind = e.type_of(x.dtype, True), e.type_of(float64, True)
    real, below = [e.let(f"sitofp {whole} {v.text} to {kind}") for v in (x, by)]
    reciprocal = e.let(f"fdiv {kind} {e.const(1.0, float64, True).text}, {below}")
    more = e.let(f"fadd {kind} {real}, {e.const(0.5, float64, True).text}")
    found = e.let(f"fmul {kind} {more}, {reciprocal}")
    return Val(e.let(f"fptosi {kind} {found} to {whole}"), x.dtype, True)
