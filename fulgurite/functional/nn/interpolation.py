"""Straight lines between points: piecewise linear interpolation of one variable.

In: places, and the points of a curve by rising place. Out: the height of the curve at each place,
in the dtype of all three. The slope by the places is that of the line they lie on (at a point,
the one to its right); heights have gradients too. Outside of the points the curve goes on level,
or with the numbers given for it.
"""

from __future__ import annotations

from ...core.dtype import promote
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike
from ..array.indexing import take
from ..array.movement import concat
from ..array.sorting import argsort, searchsorted
from ..common import as_tensor, astype, common_floats, floating, wide
from ..math.elementwise import clip, equal, isnan, remainder, where


def interp(
    x: TensorLike,
    xp: TensorLike,
    fp: TensorLike,
    left: TensorLike | None = None,
    right: TensorLike | None = None,
    period: float | None = None,
) -> Tensor:
    """The height at x of the lines through the points (xp, fp), whose xp must rise.

    Below xp[0] it is `left` (fp[0] unless given), above xp[-1] `right`. With a `period` the curve
    repeats, and xp may be in any order. NaN in x stays NaN.

    >>> fg.interp(fg.Tensor([0.5, 2.0, 9.0]), [0.0, 1.0, 3.0], [0.0, 10.0, 30.0]).tolist()
    [5.0, 20.0, 30.0]
    """
    at, known = (wide(part) for part in common_floats(x, xp))
    heights = wide(fp, at)
    if known.ndim != 1 or known.shape != heights.shape or known.size == 0:
        raise ShapeError(
            f"points of shapes {known.shape} and {heights.shape}",
            "give two lines of one length, with at least one point",
        )
    if at.dtype.kind == "c":
        raise DTypeError("complex places have no order", "only the heights fp may be complex")
    if period is not None:
        at, known, heights = _repeated(at, known, heights, period)
        left = right = None
    found = _on_lines(at, known, heights)
    found = where(at < known[0], heights[0] if left is None else left, found)
    found = where(at > known[-1], heights[-1] if right is None else right, found)
    dtype = promote(*[part.dtype for part in (*common_floats(x, xp), floating(fp))])
    return astype(found, dtype)


def _on_lines(at: Tensor, known: Tensor, heights: Tensor) -> Tensor:
    """The heights between the first and the last point."""
    count = known.size
    if count == 1:
        return heights[0] + (at - at)  # NaN stays
    right = clip(searchsorted(known, at, side="right"), 1, count - 1)
    x0, x1 = take(known, right - 1, axis=0), take(known, right, axis=0)
    y0, y1 = take(heights, right - 1, axis=0), take(heights, right, axis=0)
    width = x1 - x0
    slope = (y1 - y0) / where(width == 0, 1, width)
    from_left, from_right = y0 + slope * (at - x0), y1 + slope * (at - x1)
    found = where(at >= known[-1], from_right, from_left)
    odd = isnan(found) & ~isnan(at)  # an infinite slope: the point itself, or the other end
    level = where(equal(y0, y1) | (at == x0), y0, from_right)
    return where(odd, where(at == x1, y1, level), found)


def _repeated(
    at: Tensor, known: Tensor, heights: Tensor, period: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Places and points within one period, in order, with a neighbour from each next one."""
    length = abs(float(period))
    if not 0 < length < float("inf"):
        raise ArgumentError(f"period is {period}", "give a length other than 0")
    at, known = remainder(at, length), remainder(known, length)
    order = argsort(known)
    known, heights = take(known, order, axis=0), take(heights, order, axis=0)
    known = concat([known[-1:] - length, known, known[:1] + length])
    return at, known, concat([heights[-1:], as_tensor(heights), heights[:1]])
