"""Distances between every two of many points.

In: two stacks of points, (..., n, size) and (..., m, size). Out: (..., n, m) p-norms of their
differences, which are taken as they are, not by a matrix product of squares: points that lie close
together lose no digits, and the distance of a point from itself is exactly 0. Its slope there is
0, so distances of coinciding points put no NaN into a gradient.
"""

from __future__ import annotations

from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike
from ..array.creation import zeros
from ..array.movement import expand_dims
from ..common import astype, common_floats, wide
from ..template import templated
from .reduction import p_norm


@templated
def cdist(x1: TensorLike, x2: TensorLike, p: float = 2.0) -> Tensor:
    """The p-norm of the difference of every row of x1 and every row of x2.

    p is 2 for the usual distance, 1 for the sum of absolute differences, `inf` for the largest of
    them, 0 for how many coordinates differ.

    >>> fg.cdist(fg.Tensor([[0.0, 0.0], [3.0, 4.0]]), fg.Tensor([[0.0, 0.0]])).tolist()
    [[0.0], [5.0]]
    """
    narrow, other = common_floats(x1, x2)
    if not p >= 0:
        raise ArgumentError(f"p is {p}", "give 0 or more; inf for the largest difference")
    if min(narrow.ndim, other.ndim) < 2 or narrow.shape[-1] != other.shape[-1]:
        raise ShapeError(
            f"points of shapes {narrow.shape} and {other.shape}",
            "give (..., n, size) and (..., m, size)",
        )
    apart = expand_dims(wide(narrow), -2) - expand_dims(wide(other), -3)
    if apart.shape[-1] == 0:
        return zeros(apart.shape[:-1], narrow.dtype, narrow.device)
    return astype(p_norm(apart, float(p), -1, False), narrow.dtype)
