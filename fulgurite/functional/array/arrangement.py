"""Elements repeated, turned and lined up: rolls, tiles, sliding windows, diagonals.

In: tensors. Out: tensors made of movement ops, which fuse into their readers. Only `repeat` with
a count for each element needs to look at data: the counts decide the shape of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from ...core import build
from ...core import shape as sizes
from ...core.node import Node, Size
from ...core.ops.elementwise import EQ, MUL
from ...core.symbolic.sym import as_index
from ...errors import ArgumentError, AxisError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..common import Axis, apply, as_tensor, as_whole
from ..math.elementwise import where
from ..math.products import diagonal_of
from ..math.reduction import sum
from ..template import templated
from .indexing import take
from .movement import concat, flip


@templated
def roll(x: TensorLike, shift: SupportsIndex | Sequence[int], axis: Axis = None) -> Tensor:
    """The elements moved along axes; those that leave at the end come in at the start.

    >>> fg.roll(fg.Tensor([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    node = node_of(x)
    if axis is None:
        if not isinstance(shift, SupportsIndex):
            raise ArgumentError(f"shift is {shift!r} without axes", "name an axis for each")
        flat = build.reshape(node, (sizes.prod(node.shape),))
        return wrap(build.reshape(node_of(roll(wrap(flat), shift, 0)), node.shape))
    axes = [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] * len(axes) if isinstance(shift, SupportsIndex) else list(shift)
    if len(shifts) != len(axes):
        raise ArgumentError(f"{len(shifts)} shifts for {len(axes)} axes", "give one for each")
    for place, by in zip([build.as_axis(a, node.ndim) for a in axes], shifts, strict=True):
        node = _rolled(node, place, as_index(by))
    return wrap(node)


def _rolled(x: Node, axis: int, by: int) -> Node:
    size = x.shape[axis]
    if not isinstance(size, int):
        raise ShapeError("a dimension of variable size does not roll", "join slices of it")
    cut = -by % size if size else 0
    if cut == 0:
        return x
    parts = []
    for start, stop in ((cut, size), (0, cut)):
        cuts = [(start, stop) if d == axis else (0, n) for d, n in enumerate(x.shape)]
        parts.append(wrap(build.shrink(x, cuts)))
    return node_of(concat(parts, axis))


def repeat(x: TensorLike, repeats: TensorLike, axis: int | None = None) -> Tensor:
    """Each element several times in a row along an axis; None flattens x first.

    A count for each element is data and is realized.

    >>> fg.repeat(fg.Tensor([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    >>> fg.repeat(fg.Tensor([[1, 2], [3, 4]]), fg.Tensor([0, 2]), axis=0).tolist()
    [[3, 4], [3, 4]]
    """
    if isinstance(repeats, int | Node):
        return _spread(x, repeats, axis)
    node = node_of(x)
    if axis is None:
        node, axis = build.reshape(node, (sizes.prod(node.shape),)), 0
    place = build.as_axis(axis, node.ndim)
    size = node.shape[place]
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ArgumentError("repeats are whole numbers at least 0", "give one, or one for each")
    if counts.size == 1:
        return repeat(wrap(node), int(counts.reshape(())), axis)
    if counts.shape != (size,):
        raise ShapeError(
            f"{counts.size} counts for {sizes.size_text(size)} elements", "give one for each"
        )
    return take(wrap(node), np.repeat(np.arange(len(counts), dtype=np.int32), counts), place)


@templated
def _spread(x: TensorLike, repeats: int | Node, axis: int | None) -> Tensor:
    """Each element equally often."""
    node = node_of(x)
    if axis is None:
        node, axis = build.reshape(node, (sizes.prod(node.shape),)), 0
    place = build.as_axis(axis, node.ndim)
    before, size, after = node.shape[:place], node.shape[place], node.shape[place + 1 :]
    count = build.as_size(repeats)
    thin = build.reshape(node, (*before, size, 1, *after))
    spread = build.expand(thin, (*before, size, count, *after))
    return wrap(build.reshape(spread, (*before, sizes.mul(size, count), *after)))


@templated
def tile(x: TensorLike, repetitions: int | Sequence[int]) -> Tensor:
    """x laid side by side, so many times along each dimension.

    >>> fg.tile(fg.Tensor([1, 2]), 2).tolist(), fg.tile(fg.Tensor([1, 2]), (2, 1)).tolist()
    ([1, 2, 1, 2], [[1, 2], [1, 2]])
    """
    node = node_of(x)
    counts = build.as_shape(repetitions)
    missing = len(counts) - node.ndim
    shape = (*[1] * missing, *node.shape)
    counts = (*[1] * -missing, *counts)
    thin = build.reshape(node, [n for size in shape for n in (1, size)])
    both = list(zip(counts, shape, strict=True))
    wide = build.expand(thin, [n for pair in both for n in pair])
    return wrap(build.reshape(wide, [sizes.mul(*pair) for pair in both]))


@templated
def unfold(x: TensorLike, axis: int, size: int, step: int = 1) -> Tensor:
    """Windows of `size` elements along an axis, `step` apart; the window's own axis comes last.

    >>> fg.unfold(fg.arange(5), 0, 3).tolist()
    [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    """
    return wrap(build.window(node_of(x), axis, size, step))


@templated
def sliding_window_view(
    x: TensorLike, window_shape: int | Sequence[int], axis: Axis = None
) -> Tensor:
    """Windows along several axes, one after the other; their own axes come last.

    >>> fg.sliding_window_view(fg.zeros((4, 5)), (2, 3)).shape
    (3, 3, 2, 3)
    """
    node = node_of(x)
    sizes_ = [window_shape] if isinstance(window_shape, int) else list(window_shape)
    axes = range(node.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    if len(axes) != len(sizes_):
        raise ArgumentError(f"{len(sizes_)} windows for {len(axes)} axes", "give one for each")
    for place, size in zip([build.as_axis(a, node.ndim) for a in axes], sizes_, strict=True):
        node = build.window(node, place, size)
    return wrap(node)


# --- turning -------------------------------------------------------------------------------------


@templated
def rot90(x: TensorLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """x turned k times by a quarter, from the first of two axes towards the second.

    >>> fg.rot90(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    tensor = as_tensor(x)
    if len(axes) != 2 or len(build.as_axes(axes, tensor.ndim)) != 2:
        raise AxisError(f"{tuple(axes)} is no plane", "name two axes")
    first, second = (build.as_axis(a, tensor.ndim) for a in axes)
    order = list(range(tensor.ndim))
    order[first], order[second] = second, first
    turns = k % 4
    if turns == 0:
        return wrap(node_of(tensor))
    if turns == 2:
        return flip(tensor, (first, second))
    if turns == 1:
        return wrap(build.permute(node_of(flip(tensor, second)), order))
    return flip(wrap(build.permute(node_of(tensor), order)), second)


def flipud(x: TensorLike) -> Tensor:
    """The rows (the first dimension) backwards.

    >>> fg.flipud(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [[3, 4], [1, 2]]
    """
    return flip(x, 0)


def fliplr(x: TensorLike) -> Tensor:
    """The columns (the second dimension) backwards.

    >>> fg.fliplr(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    return flip(x, 1)


# --- diagonals -----------------------------------------------------------------------------------


@templated
def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Diagonal number `offset` of two dimensions, as the last dimension.

    >>> fg.diagonal(fg.Tensor([[1, 2, 3], [4, 5, 6]]), offset=1).tolist()
    [2, 6]
    """
    node = node_of(x)
    first, second = build.as_axis(axis1, node.ndim), build.as_axis(axis2, node.ndim)
    if first == second:
        raise AxisError(f"axis {first} has no diagonal with itself", "name two axes")
    rows, columns = node.shape[first], node.shape[second]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError("a diagonal of variable sizes", "use fixed sizes")
    offset = as_whole(offset, "offset")
    down, right = max(-offset, 0), max(offset, 0)
    length = max(0, min(rows - down, columns - right))
    cuts: list[tuple[Size, Size]] = [(0, n) for n in node.shape]
    cuts[first] = (min(down, rows), min(down, rows) + length)
    cuts[second] = (min(right, columns), min(right, columns) + length)
    return wrap(diagonal_of(build.shrink(node, cuts), first, second))


@templated
def diag(x: TensorLike, k: int = 0) -> Tensor:
    """Diagonal number k of a matrix, or the matrix that has these elements there.

    >>> fg.diag(fg.Tensor([1, 2])).tolist(), fg.diag(fg.Tensor([[1, 2], [3, 4]])).tolist()
    ([[1, 0], [0, 2]], [1, 4])
    """
    node, k = node_of(x), as_whole(k, "k")
    if node.ndim == 2:
        return diagonal(x, k)
    if node.ndim != 1:
        raise ShapeError(f"{sizes.show(node.shape)} has no diagonal", "give 1 or 2 dimensions")
    rows = build.pad(build.reshape(node, (node.shape[0], 1)), [(max(-k, 0), max(k, 0)), (0, 0)])
    size = rows.shape[0]
    row, column = (wrap(build.iota((size, size), axis)) for axis in (0, 1))
    return where(apply(EQ, row + k, column), wrap(rows), 0)


@templated
def trace(
    x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: object = None
) -> Tensor:
    """The sum of a diagonal.

    >>> fg.trace(fg.Tensor([[1, 2], [3, 4]])).item()
    5
    """
    return sum(diagonal(x, offset, axis1, axis2), -1, dtype)


@templated
def kron(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Each element of x1 replaced by itself times x2.

    >>> fg.kron(fg.Tensor([1, 10]), fg.Tensor([1, 2])).tolist()
    [1, 2, 10, 20]
    """
    a, b = (node_of(x) for x in lifted(x1, x2))
    ndim = max(a.ndim, b.ndim)
    first, second = ((*[1] * (ndim - x.ndim), *x.shape) for x in (a, b))
    coarse = build.reshape(a, [n for size in first for n in (size, 1)])
    fine = build.reshape(b, [n for size in second for n in (1, size)])
    product = build.apply(MUL, coarse, fine)
    return wrap(build.reshape(product, [sizes.mul(*p) for p in zip(first, second, strict=True)]))
