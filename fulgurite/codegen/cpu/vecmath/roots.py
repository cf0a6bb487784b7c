"""rsqrt and cbrt; the square root itself is an instruction.

rsqrt is 1 / sqrt(a) with what the two roundings lost put back, in float64 plain. cbrt starts from
the bits divided by three and is refined twice, then once more with a square that is exact.
"""

from __future__ import annotations

from math import inf

from ....core.dtype import float32, float64, int32, int64
from .values import Num, fma, fused, where


def rsqrt(a: Num) -> Num:
    """One over the square root."""
    if a.dtype is not float32:
        return 1.0 / a.root()
    if not fused(a.e):
        return (1.0 / a.rounded_to(float64).root()).rounded_to(float32)
    root = a.root()
    first = 1.0 / root
    lost = fma(-root, root, a) * first * first
    better = fma(fma(lost, -0.5, fma(-root, first, 1.0)), first, first)
    return where((a > 0.0) & (a < inf), better, first)


def cbrt(a: Num) -> Num:
    """The cube root; float32 through float64, which takes a refinement less."""
    x = a.rounded_to(float64).magnitude()
    tiny, huge = x < 2.0**-1022, x > 2.0**1000
    if a.dtype is not float32:
        x = x * where(tiny, 2.0**54, where(huge, x.const(2.0**-54), 1.0))
    top = (x.bits() >> 32).rounded_to(int32).rounded_to(float64)
    third = (top * (1 / 3) + (1023 * 2 / 3 - 0.0331) * 2.0**20).rounded_to(int32)
    t = (third.rounded_to(int64) << 32).real()
    for _ in range(2):
        cube = t * t * t
        t = t * ((cube + (x + x)) / ((cube + cube) + x))
    if a.dtype is not float32:
        t = (t.bits() & -(1 << 27)).real()
        ratio = x / (t * t)
        t = fma(t, (ratio - t) / ((t + t) + ratio), t)
        t = t * where(tiny, 2.0**-18, where(huge, t.const(2.0**18), 1.0))
    t = t.rounded_to(a.dtype).with_sign(a)
    return where(a.equals(0.0) | ~(a.magnitude() < inf), a, t)
