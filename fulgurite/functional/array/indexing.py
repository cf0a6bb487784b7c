"""Parts of a tensor: cuts by ints and slices, and elements at places that are data.

In: ints, slices, None; or a tensor of whole numbers. Out: cuts, flips and strides of the tensor,
which fuse; an int outside its dimension is an error at the user's line. An index that is data is
checked when it is read, and the error names the same line. `advanced.py` mixes the two kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import build
from ...core import shape as sizes
from ...core.dtype import int32, int64
from ...core.node import Node, Size
from ...core.ops.elementwise import ADD, LT
from ...core.origin import indexing
from ...core.symbolic.sym import as_index, varies
from ...errors import ArgumentError, BoundsError, DTypeError, FulguriteError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..common import rank_of
from ..template import templated


def basic(x: Node, parts: Sequence[Any]) -> Node:
    """Cut, flip, stride, then one reshape that drops ints and adds new axes."""
    cuts, steps, keep = cuts_of(x, parts)
    out = build.shrink(x, cuts)
    back = [axis for axis, step in enumerate(steps) if step < 0]
    out = build.flip(out, back) if back else out
    for axis, step in enumerate(steps):
        if abs(step) > 1 and out.shape[axis] != 0:
            out = build.drop(build.window(out, axis, 1, abs(step)), (out.ndim,))
    return build.reshape(out, tuple(1 if axis is None else out.shape[axis] for axis in keep))


def cuts_of(
    x: Node, parts: Sequence[Any]
) -> tuple[list[tuple[Size, Size]], list[int], list[int | None]]:
    """For each dimension of x its cut and the step through it; for each of the result, whose."""
    cuts: list[tuple[Size, Size]] = []
    steps: list[int] = []
    keep: list[int | None] = []  # of each dimension of the result, where it comes from
    for part in parts:
        if part is None:
            keep.append(None)
            continue
        axis, size = len(cuts), x.shape[len(cuts)]
        if isinstance(part, slice):
            start, stop, step = _range(part, size)
            keep.append(axis)
        else:
            start, step = _place(part, size, axis), 1
            stop = sizes.add(start, 1)
        cuts.append((start, stop))
        steps.append(step)
    return cuts, steps, keep


def _range(part: slice, size: Size) -> tuple[Size, Size, int]:
    """The smallest cut that holds every element of a slice, and the step through it."""
    ends = [part.start, part.stop]
    if isinstance(size, Node) or any([isinstance(end, Node) for end in ends]):
        if part.step not in (None, 1):
            raise ArgumentError("a slice with a variable has no step", "cut first, then step")
        start, stop = [None if end is None else _end(end, size) for end in ends]
        return 0 if start is None else start, size if stop is None else stop, 1
    if any(map(varies, (size, *ends))) and _follows(part):
        return _clipped(part, size, 1 if part.step is None else part.step)
    try:
        found = range(*part.indices(size))
    except FulguriteError:
        raise
    except (TypeError, ValueError) as problem:
        raise ArgumentError(f"{part} is no slice: {problem}", "use whole numbers") from None
    if not found:
        return 0, 0, 1
    return min(found[0], found[-1]), max(found[0], found[-1]) + 1, found.step


def _follows(part: slice) -> bool:
    """True if a slice's ends follow from a size that varies: steps ahead, or back over all."""
    step = part.step
    if step is None or type(step) is not int:
        return step is None
    return step > 0 or (step < 0 and part.start is None and part.stop is None)


def _clipped(part: slice, size: int, step: int) -> tuple[int, int, int]:
    """A slice as Python cuts it, of sizes that remember how they came about."""
    found = []
    for end, otherwise in ((part.start, 0), (part.stop, size)):
        place = otherwise if end is None else as_index(end)
        place = place + size if place < 0 else place
        found.append(0 if place < 0 else size if place > size else place)
    start, stop = found
    if step < 0:  # from the last one down to the first that it meets
        start = (size - 1) % -step
    return (start, stop, step) if start < stop else (0, 0, 1)


def _end(end: Any, size: Size) -> Size:
    """A place in a dimension, where one of the two is a variable: what is below 0 is counted back.

    Nothing is clipped: whether it is inside must hold for all values of the variables.
    """
    if not isinstance(end, Node):
        try:
            end = as_index(end)
        except TypeError:
            raise ArgumentError(f"{end!r} is no end of a slice", "use whole numbers") from None
        return end if end >= 0 else sizes.add(size, end)
    place = build.as_place(end)
    if sizes.lower(place) >= 0:
        return place
    if sizes.upper(place) < 0:
        return sizes.add(size, place)
    raise BoundsError(
        f"{sizes.size_text(place)} may be below 0 or not, depending on its variables",
        "count from one end: the bounds of a variable are those of all its values",
    )


def _place(part: Any, size: Size, axis: int) -> Size:
    """An int counted from the front; negative ones count from the back."""
    if isinstance(part, Node):
        return _end(part, size)
    try:
        place = as_index(part)
    except TypeError:
        raise ArgumentError(
            f"{type(part).__name__} {part!r} is no index", "use ints, slices, ... and None"
        ) from None
    if isinstance(size, Node):
        return place if place >= 0 else sizes.add(size, place)
    if not -size <= place < size:
        hint = f"indices run from {-size} to {size - 1}" if size else "it is empty"
        raise BoundsError(f"index {place} is outside axis {axis} of size {size}", hint)
    return place if place >= 0 else place + size


# --- places that are data ------------------------------------------------------------------------


def places(index: Node, size: Size) -> Node:
    """Whole numbers counted from the front; negative ones counted from the back before."""
    if index.dtype.kind not in "iu":
        hint = "index with x[mask]" if index.dtype.kind == "b" else "cast it to int32"
        raise DTypeError(f"an index is a whole number, not {index.dtype}", hint)
    if size == 0 and 0 not in index.shape:
        raise BoundsError("an axis of size 0 has no elements to index", "use an empty index")
    if index.dtype.kind == "u":
        return index
    wide = int32 if index.dtype.bits <= 32 and sizes.upper(size) <= int32.limits[1] else int64
    index = build.cast(index, wide)
    limit = size if isinstance(size, int) else build.cast(size, wide)
    return build.where(build.apply(LT, index, 0), build.apply(ADD, index, limit), index)


def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """The slices of x at indexed places along an axis; None flattens x first.

    >>> fg.take(fg.Tensor([[1, 2], [3, 4]]), fg.Tensor([1, -2]), axis=0).tolist()
    [[3, 4], [1, 2]]
    """
    if axis is None:
        node, index = (node_of(part) for part in lifted(x, indices))
        return _taken(wrap(build.reshape(node, (-1,))), wrap(index), 0)
    place = build.as_axis(axis, rank_of(x))
    with indexing(place):
        return _taken(x, indices, place)


@templated
def _taken(x: TensorLike, indices: TensorLike, axis: int) -> Tensor:
    node, index = (node_of(part) for part in lifted(x, indices))
    return wrap(slices_at(node, places(index, node.shape[axis]), axis))


def slices_at(x: Node, index: Node, axis: int) -> Node:
    """The slices of x at places counted from the front."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if index.ndim > 1 and not all([isinstance(n, int) for n in index.shape]):
        return _slices_of_each(x, index, axis)
    count = sizes.prod(index.shape)
    line = build.reshape(index, (*[1] * len(before), count, *[1] * len(after)))
    out = build.gather(x, build.expand(line, (*before, count, *after)), axis)
    return build.reshape(out, (*before, *index.shape, *after))


def _slices_of_each(x: Node, index: Node, axis: int) -> Node:
    """The same with no axes of the index in one: lengths that vary have no kernel for that."""
    before, here, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    outer = index.shape[:-1]
    x = build.reshape(x, (*before, *[1] * len(outer), here, *after))
    x = build.expand(x, (*before, *outer, here, *after))
    line = build.reshape(index, (*[1] * len(before), *index.shape, *[1] * len(after)))
    return build.gather(x, build.expand(line, (*before, *index.shape, *after)), axis + len(outer))


def take_along_axis(x: TensorLike, indices: TensorLike, axis: int = -1) -> Tensor:
    """For each place of `indices` the element of x there along the axis.

    >>> fg.take_along_axis(fg.Tensor([[1, 2], [3, 4]]), fg.Tensor([[1], [0]]), axis=1).tolist()
    [[2], [3]]
    """
    return _along(x, indices, axis, from_front=False)


def classes_along(x: TensorLike, indices: TensorLike, axis: int = -1) -> Tensor:
    """take_along_axis where no place counts from the back: a negative one is an error."""
    return _along(x, indices, axis, from_front=True)


def _from_front(index: Node, size: Size) -> Node:
    places(index, size)  # the same complaints
    return build.cast(index, int32) if index.dtype.bits < 32 else index


def _along(x: TensorLike, indices: TensorLike, axis: int, *, from_front: bool) -> Tensor:
    place = build.as_axis(axis, rank_of(x))
    with indexing(place):
        return _found_along(x, indices, place, from_front)


@templated
def _found_along(x: TensorLike, indices: TensorLike, place: int, from_front: bool) -> Tensor:
    node, index = (node_of(part) for part in lifted(x, indices))
    counted = _from_front if from_front else places
    if index.ndim != node.ndim:
        raise ShapeError(
            f"{sizes.show(index.shape)} does not index {sizes.show(node.shape)}",
            "give as many dimensions as x has, or use take",
        )
    here, there = _without(node.shape, place), _without(index.shape, place)
    common = sizes.broadcast(here, there)
    found = build.expand(counted(index, node.shape[place]), _with(common, place, index))
    return wrap(build.gather(build.expand(node, _with(common, place, node)), found, place))


def _without(shape: tuple[Size, ...], axis: int) -> tuple[Size, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _with(shape: tuple[Size, ...], axis: int, like: Node) -> tuple[Size, ...]:
    return (*shape[:axis], like.shape[axis], *shape[axis:])


def gather(x: TensorLike, axis: int, index: TensorLike) -> Tensor:
    """As take_along_axis, but `index` may be smaller than x in the other dimensions too.

    >>> fg.gather(fg.Tensor([[1, 2], [3, 4]]), 1, fg.Tensor([[1, 1, 0]])).tolist()
    [[2, 2, 1]]
    """
    place = build.as_axis(axis, rank_of(x))
    with indexing(place):
        return _gathered(x, place, index)


@templated
def _gathered(x: TensorLike, place: int, index: TensorLike) -> Tensor:
    node, indices = (node_of(part) for part in lifted(x, index))
    if indices.ndim != node.ndim:
        raise ShapeError(
            f"{sizes.show(indices.shape)} does not index {sizes.show(node.shape)}",
            "give as many dimensions as x has, or use take",
        )
    cuts = [
        (0, n if d == place else m)
        for d, (n, m) in enumerate(zip(node.shape, indices.shape, strict=True))
    ]
    found = places(indices, node.shape[place])
    return wrap(build.gather(build.shrink(node, cuts), found, place))
