"""The same elements at other places: shapes, orders, joins and cuts.

In: tensors. Out: tensors that fuse into their readers as index arithmetic. Joining is a choice
between padded pieces, not a sum of them: a sum would turn -0.0 into 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from ...core import build
from ...core import shape as sizes
from ...core.build import note
from ...core.dtype import bool_, int32, promote
from ...core.node import Node, Size, constant
from ...core.op import derived
from ...core.ops.elementwise import LT, WHERE
from ...core.ops.leaf import iota
from ...core.ops.movement import PAD
from ...core.origin import capture
from ...errors import ArgumentError, AxisError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..common import Axis, ShapeLike
from ..math.elementwise import clip, where
from ..template import templated


@templated
def reshape(x: TensorLike, shape: ShapeLike, *, copy: bool | None = None) -> Tensor:
    """The elements in order, in another shape; one size may be -1 and is worked out.

    `copy` is the array API standard's: values never change under a reader, so it makes no odds.

    >>> fg.reshape(fg.arange(4), (2, -1)).tolist()
    [[0, 1], [2, 3]]
    """
    return wrap(build.reshape(node_of(x), shape))


@templated
def permute_dims(x: TensorLike, axes: Sequence[int]) -> Tensor:
    """The dimensions in another order.

    >>> fg.permute_dims(fg.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return wrap(build.permute(node_of(x), axes))


@templated
def transpose(x: TensorLike, *axes: int | Sequence[int]) -> Tensor:
    """Two dimensions swapped; without any all are reversed, and a full order is taken as it is.

    >>> x = fg.zeros((2, 3, 4))
    >>> fg.transpose(x, 0, 1).shape, fg.transpose(x).shape, fg.transpose(x, (1, 0, 2)).shape
    ((3, 2, 4), (4, 3, 2), (3, 2, 4))
    """
    node = node_of(x)
    if len(axes) == 2:
        return swapaxes(x, *cast(tuple[int, int], axes))
    order = axes[0] if len(axes) == 1 else axes
    if order is None or (isinstance(order, Sequence) and not order):
        order = range(node.ndim)[::-1]
    return wrap(build.permute(node, cast(Sequence[int], order)))


@templated
def matrix_transpose(x: TensorLike) -> Tensor:
    """The last two dimensions swapped: every matrix transposed.

    >>> fg.matrix_transpose(fg.zeros((2, 3, 4))).shape
    (2, 4, 3)
    """
    return swapaxes(x, -1, -2)


@templated
def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Two dimensions swapped.

    >>> fg.swapaxes(fg.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    node = node_of(x)
    order = list(range(node.ndim))
    a, b = build.as_axis(axis1, node.ndim), build.as_axis(axis2, node.ndim)
    order[a], order[b] = b, a
    return wrap(build.permute(node, order))


@templated
def moveaxis(
    x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]
) -> Tensor:
    """Some dimensions at other places, the rest in their old order.

    >>> fg.moveaxis(fg.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    node = node_of(x)
    old, new = _places(source, node.ndim), _places(destination, node.ndim)
    if len(old) != len(new):
        raise AxisError(f"{len(old)} axes for {len(new)} places", "give as many of both")
    order = [d for d in range(node.ndim) if d not in old]
    for place, axis in sorted(zip(new, old, strict=True)):
        order.insert(place, axis)
    return wrap(build.permute(node, order))


def _places(axes: int | Sequence[int], ndim: int) -> list[int]:
    """Axes in the order they were given, each once."""
    build.as_axes(axes, ndim)
    return [build.as_axis(a, ndim) for a in ([axes] if isinstance(axes, int) else axes)]


@templated
def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """x repeated along new dimensions and those of size 1; -1 keeps a size.

    >>> fg.broadcast_to(fg.Tensor([[1], [2]]), (2, 3)).tolist()
    [[1, 1, 1], [2, 2, 2]]
    """
    node = node_of(x)
    several = isinstance(shape, Iterable) and not isinstance(shape, Node | str)
    wanted: list[Size] = list(cast(Sequence[Size], shape)) if several else [cast(Size, shape)]
    for place in range(1, len(wanted) + 1):
        if wanted[-place] == -1 and place <= node.ndim:
            wanted[-place] = node.shape[-place]
    return wrap(build.expand(node, wanted))


def broadcast_arrays(*arrays: TensorLike) -> tuple[Tensor, ...]:
    """All of them stretched to their common shape.

    >>> [a.shape for a in fg.broadcast_arrays(fg.zeros((3, 1)), fg.zeros(4))]
    [(3, 4), (3, 4)]
    """
    nodes = [node_of(x) for x in arrays]
    shape = sizes.broadcast(*[node.shape for node in nodes]) if nodes else ()
    return tuple([wrap(build.expand(node, shape)) for node in nodes])


@templated
def expand_dims(x: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """New dimensions of size 1 at these places of the result.

    >>> fg.expand_dims(fg.zeros((2, 3)), 1).shape
    (2, 1, 3)
    """
    node = node_of(x)
    wanted = list(axis) if isinstance(axis, Iterable) else [axis]
    ndim = node.ndim + len(wanted)
    new = build.as_axes(wanted, ndim)
    old = iter(node.shape)
    shape = [1 if d in new else next(old) for d in range(ndim)]
    return wrap(build.reshape(node, shape))


@templated
def squeeze(x: TensorLike, axis: Axis = None) -> Tensor:
    """x without some dimensions of size 1; by default without any of them.

    >>> fg.squeeze(fg.zeros((1, 3, 1)), axis=0).shape, fg.squeeze(fg.zeros((1, 3, 1))).shape
    ((3, 1), (3,))
    """
    node = node_of(x)
    if axis is None:
        return wrap(build.drop(node, tuple(d for d, n in enumerate(node.shape) if n == 1)))
    gone = build.as_axes(axis, node.ndim, lone=True)
    for place in gone:
        if node.shape[place] != 1:
            raise ShapeError(
                f"dimension {place} of {sizes.show(node.shape)} is not of size 1",
                "only dimensions of size 1 can go",
            )
    return wrap(build.drop(node, gone))


@templated
def flatten(x: TensorLike, start: int = 0, end: int = -1) -> Tensor:
    """Neighbouring dimensions, from start up to and with end, as one.

    >>> fg.flatten(fg.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    node = node_of(x)
    if not node.ndim:
        return wrap(build.reshape(node, (1,)))
    first, last = build.as_axis(start, node.ndim), build.as_axis(end, node.ndim)
    if first > last:
        raise AxisError(f"flatten from {start} to {end} is empty", "let start come first")
    merged = sizes.prod(node.shape[first : last + 1])
    return wrap(build.reshape(node, (*node.shape[:first], merged, *node.shape[last + 1 :])))


@templated
def flip(x: TensorLike, axis: Axis = None) -> Tensor:
    """Some dimensions backwards; by default all.

    >>> fg.flip(fg.Tensor([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    return wrap(build.flip(node_of(x), axis))


# --- padding -------------------------------------------------------------------------------------


@templated
def pad(
    x: TensorLike, pad_width: Any, mode: str = "constant", constant_values: TensorLike = 0
) -> Tensor:
    """More elements before and after: constant, or from the "edge", by "reflect" or "wrap".

    >>> fg.pad(fg.Tensor([1, 2]), (1, 2), constant_values=9).tolist()
    [9, 1, 2, 9, 9]
    >>> fg.pad(fg.Tensor([1, 2, 3]), 2, mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    node = node_of(x)
    pads = _pads(pad_width, node.ndim)
    if mode not in _MODES:
        raise ArgumentError(f"there is no padding {mode!r}", f"one of {', '.join(_MODES)}")
    if mode == "constant":
        if type(constant_values) in (int, float) and str(constant_values) in ("0", "0.0"):
            return wrap(build.pad(node, pads))  # not -0.0
        value = lifted(constant_values)[0]
        kind = node.dtype
        value = build.cast(value, kind) if isinstance(value, Node) else build.const(value, kind)
        inside = build.pad(build.const(True, bool_, node.shape), pads)
        return wrap(build.where(inside, build.pad(node, pads), value))
    for axis, (low, high) in enumerate(pads):
        if low or high:
            node = _pad_along(node, axis, low, high, mode)
    return wrap(node)


_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def _pads(width: Any, ndim: int) -> list[tuple[Size, Size]]:
    """One pair for each dimension, from a number, a pair, or pairs."""
    rows = width if _is_row(width) else (width, width)
    pairs: list[tuple[Size, Size]] = []
    for row in rows if any(map(_is_row, rows)) else [rows]:
        pair = [build.as_size(n) for n in (row if _is_row(row) else (row,))]
        if len(pair) not in (1, 2):
            raise ArgumentError(f"{width!r} is no padding", "give a pair for each dimension")
        pairs.append((pair[0], pair[-1]))
    pairs = pairs * ndim if len(pairs) == 1 else pairs
    if len(pairs) != ndim:
        raise ShapeError(f"{len(pairs)} paddings for {ndim} dimensions", "give one pair for each")
    return pairs


def _is_row(x: object) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str)


def _pad_along(x: Node, axis: int, before: Size, after: Size, mode: str) -> Node:
    """More elements that are copies of others: a gather at folded places."""
    size = x.shape[axis]
    if not isinstance(size, int) or not isinstance(before, int):
        raise ShapeError(f"{mode} padding needs fixed sizes", "pad with a constant instead")
    if size == 0:
        raise ShapeError(f"{mode} padding of no elements", "pad with a constant instead")
    shape = tuple(
        sizes.add(sizes.add(n, before), after) if d == axis else n for d, n in enumerate(x.shape)
    )
    place = wrap(build.iota(shape, axis, int32)) - before
    if mode == "edge":
        folded = clip(place, 0, size - 1)
    elif mode == "wrap":
        folded = place % size
    else:
        period = max(1, 2 * (size - 1) if mode == "reflect" else 2 * size)
        last = period if mode == "reflect" else period - 1
        around = place % period
        folded = where(around < size, around, last - around)
    return build.gather(x, node_of(folded), axis)


# --- joining and cutting -------------------------------------------------------------------------


@templated
def concat(arrays: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """Several tensors one after the other along an axis; None flattens them first.

    >>> fg.concat([fg.Tensor([1, 2]), fg.Tensor([3])]).tolist()
    [1, 2, 3]
    """
    nodes = _listed(arrays)
    if axis is None:
        nodes, axis = [build.reshape(node, (-1,)) for node in nodes], 0
    first = nodes[0]
    place = build.as_axis(axis, first.ndim)
    rest = first.shape[:place] + first.shape[place + 1 :]
    for node in nodes:
        if build.is_plain(node.shape) and node.shape[:place] + node.shape[place + 1 :] == rest:
            continue
        fits = node.ndim == first.ndim and all(
            d == place or sizes.same(n, m)
            for d, (n, m) in enumerate(zip(node.shape, first.shape, strict=True))
        )
        if not fits:
            raise ShapeError(
                f"{sizes.show(first.shape)} and {sizes.show(node.shape)} do not join along "
                f"axis {place}",
                "all other dimensions must agree",
            )
    return wrap(join([node for node in nodes if node.shape[place] != 0] or nodes[:1], place))


def _listed(arrays: Sequence[TensorLike]) -> list[Node]:
    """Nodes of one dtype on one device, at least one."""
    if isinstance(arrays, Tensor | Node) or not isinstance(arrays, Iterable):
        kind = type(arrays).__name__
        raise ArgumentError(f"one {kind} is not several tensors", "give a list: [a, b]")
    nodes = [node_of(x) for x in lifted(*arrays)]
    if not nodes:
        raise ArgumentError("there is nothing to join", "give at least one tensor")
    if len({node.dtype for node in nodes}) == 1:
        return nodes
    dtype = promote(*[node.dtype for node in nodes])
    return [build.cast(node, dtype) for node in nodes]


def join(nodes: Sequence[Node], axis: int) -> Node:
    """Halves joined by choosing between them, padded: work grows with log(pieces)."""
    if len(nodes) == 1:
        return nodes[0]
    left, right = join(nodes[: len(nodes) // 2], axis), join(nodes[len(nodes) // 2 :], axis)
    before, after = left.shape[axis], right.shape[axis]
    if build.is_plain(left.shape) and build.is_plain(right.shape) and before and after:
        return _plainly_joined(left, right, axis)
    left = build.pad(left, [(0, after if d == axis else 0) for d in range(left.ndim)])
    right = build.pad(right, [(before if d == axis else 0, 0) for d in range(right.ndim)])
    place = build.iota(left.shape, axis)
    limit = before if isinstance(before, int) else build.cast(before, int32)
    return build.where(build.apply(LT, place, limit), left, right)


def _plainly_joined(left: Node, right: Node, axis: int) -> Node:
    """Two values of sizes that are numbers, one behind the other: node by node."""
    here, before, after = capture(), int(left.shape[axis]), int(right.shape[axis])  # type: ignore[arg-type]
    shape = (*left.shape[:axis], before + after, *left.shape[axis + 1 :])
    pads = [0] * (2 * len(shape))
    pads[2 * axis + 1] = after
    left = note(derived(PAD(left, arg=tuple(pads)), shape), here)
    pads[2 * axis : 2 * axis + 2] = [before, 0]
    right = note(derived(PAD(right, arg=tuple(pads)), shape), here)
    place = note(derived(iota(shape, axis), shape), here)
    is_left = note(derived(LT(place, derived(constant(before, int32, shape), shape)), shape), here)
    return note(derived(WHERE(is_left, left, right), shape), here)


@templated
def stack(arrays: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Several tensors of one shape along a new axis.

    >>> fg.stack([fg.Tensor([1, 2]), fg.Tensor([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    nodes = _listed(arrays)
    shapes = {node.shape: None for node in nodes}
    if len(shapes) > 1:
        texts = " and ".join(map(sizes.show, shapes))
        raise ShapeError(f"shapes {texts} do not stack", "all must be equal")
    return concat([expand_dims(wrap(node), axis) for node in nodes], axis)


def unstack(x: TensorLike, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, one by one.

    >>> [row.tolist() for row in fg.unstack(fg.Tensor([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    return tuple(squeeze(part, axis) for part in split(x, 1, axis))


def split(x: TensorLike, size: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Consecutive parts of given sizes along an axis; of one size, the last may be smaller.

    >>> [p.tolist() for p in fg.split(fg.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    >>> [p.tolist() for p in fg.split(fg.arange(5), (4, 1))]
    [[0, 1, 2, 3], [4]]
    """
    node = node_of(x)
    place, total = build.as_axis(axis, node.ndim), _fixed(node, axis)
    if not isinstance(size, Iterable):
        step = build.as_positive(size, "size")
        parts: list[int] = []
        left = total
        while left > 0:  # which a size that varies answers by a guard
            parts.append(min(step, left))
            left -= parts[-1]
    else:
        parts = [_whole_size(part) for part in size]
        if sum(parts) != total:
            raise ShapeError(f"parts of {parts} do not make up {total}", "they must add up")
    out, start = [], 0
    for part in parts:
        cuts = [(0, n) if d != place else (start, start + part) for d, n in enumerate(node.shape)]
        out.append(wrap(build.shrink(node, cuts)))
        start += part
    return tuple(out)


def chunk(x: TensorLike, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """At most so many parts of equal size along an axis; the last may be smaller.

    >>> [p.tolist() for p in fg.chunk(fg.arange(5), 3)]
    [[0, 1], [2, 3], [4]]
    """
    total = _fixed(node_of(x), axis)
    return split(x, max(1, -(-total // build.as_positive(chunks, "chunks"))), axis)


def _whole_size(part: object) -> int:
    size = build.as_size(part)
    if not isinstance(size, int):
        raise ShapeError("a part of variable size", "give parts of fixed sizes, or use slices")
    return size


def _fixed(node: Node, axis: int) -> int:
    size = node.shape[build.as_axis(axis, node.ndim)]
    if not isinstance(size, int):
        raise ShapeError("a dimension of variable size cannot be cut up", "use slices")
    return size
