"""Views and copies of views: shapes, permutations, slices, joins and padding.

A view is a value here: AOTAutograd has made every graph functional before it is lowered, and what
a view's shape is torch's meta function has said already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import fulgurite as fg

from ...tensor import Tensor
from ..home import offset_of
from ..table import Refused, Use, aten, cast, replaced


@aten("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims")
@aten("view_copy", "unsqueeze_copy", "squeeze_copy", "_reshape_alias", "flatten.using_ints")
def reshape(use: Use, x: Any, *_: Any, **__: Any) -> Any:
    """The elements in order, in another shape."""
    return fg.reshape(x, use.shape)


@aten("expand", "expand_copy")
def expand(use: Use, x: Any, *_: Any, **__: Any) -> Any:
    """Stretched along axes of size 1 and new ones."""
    return fg.broadcast_to(x, use.shape)


@aten("permute", "permute_copy")
def permute(use: Use, x: Any, dims: Sequence[int]) -> Any:
    """The axes in another order."""
    return fg.permute_dims(x, [d % x.ndim for d in dims])


@aten("t")
def t(use: Use, x: Any) -> Any:
    """The transpose of a matrix; anything smaller is itself."""
    return fg.permute_dims(x, [1, 0]) if x.ndim == 2 else x


@aten("transpose.int")
def transpose(use: Use, x: Any, first: int, second: int) -> Any:
    """Two axes exchanged."""
    return fg.swapaxes(x, first, second) if x.ndim else x


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(
    use: Use, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Some places of an axis."""
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, _end(end), step),)]


def _end(end: Any) -> Any:
    """The end of a slice; torch writes the largest number for "all"."""
    return None if end is None or end >= (1 << 62) else end


@aten("select.int", "select_copy.int")
def select(use: Use, x: Any, dim: int, index: int) -> Any:
    """One place of an axis."""
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


@aten("slice_scatter")
def slice_scatter(
    use: Use, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """x with a slice of it replaced."""
    key = (slice(None),) * (dim % x.ndim) + (slice(start, _end(end), step),)
    return replaced(x, key, source)


@aten("select_scatter")
def select_scatter(use: Use, x: Any, source: Any, dim: int, index: int) -> Any:
    """x with one place of an axis replaced."""
    return replaced(x, (slice(None),) * (dim % x.ndim) + (index,), source)


@aten("diagonal", "diagonal_copy")
def diagonal(use: Use, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The diagonal of two axes, as the last axis."""
    if 0 in use.shape:
        return fg.full(use.shape, 0, dtype=x.dtype)
    moved = fg.moveaxis(x, (dim1 % x.ndim, dim2 % x.ndim), (-2, -1))
    rows, columns = moved.shape[-2:]
    first = max(0, -offset) * columns + max(0, offset)
    count = use.shape[-1]
    flat = fg.reshape(moved, (*moved.shape[:-2], rows * columns))
    return flat[..., first : first + (count - 1) * (columns + 1) + 1 : columns + 1]


@aten("diagonal_scatter")
def diagonal_scatter(
    use: Use, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """x with a diagonal of it replaced."""
    moved = fg.moveaxis(x, (dim1 % x.ndim, dim2 % x.ndim), (-2, -1))
    rows, columns = moved.shape[-2:]
    first = max(0, -offset) * columns + max(0, offset)
    count = source.shape[-1]
    if 0 in source.shape:
        return x
    flat = fg.reshape(moved, (*moved.shape[:-2], rows * columns))
    key = (..., slice(first, first + (count - 1) * (columns + 1) + 1, columns + 1))
    changed = fg.reshape(replaced(flat, key, source), moved.shape)
    return fg.moveaxis(changed, (-2, -1), (dim1 % x.ndim, dim2 % x.ndim))


@aten("cat", "concat", "concatenate")
def cat(use: Use, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors one after the other; torch leaves empty lines out."""
    kept = [cast(x, use.dtype) for x in tensors if x.shape != (0,)]
    if not kept:
        return fg.full(use.shape, 0, dtype=use.dtype)
    return fg.concat(kept, axis=dim % len(use.shape))


@aten("stack")
def stack(use: Use, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors along a new axis."""
    return fg.stack([cast(x, use.dtype) for x in tensors], axis=dim)


@aten("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(use: Use, x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Pieces of an axis, one after the other."""
    ends = np.cumsum(sizes)
    where = (slice(None),) * (dim % x.ndim)
    return tuple([x[(*where, slice(int(e) - n, int(e)))] for n, e in zip(sizes, ends, strict=True)])


@aten("split.Tensor")
def split(use: Use, x: Any, size: int, dim: int = 0) -> Any:
    """Pieces of one size, the last perhaps smaller."""
    sizes = [part.shape[dim % x.ndim] for part in use.out]
    return split_with_sizes(use, x, sizes, dim)


@aten("unbind.int", "unbind_copy.int")
def unbind(use: Use, x: Any, dim: int = 0) -> Any:
    """Every place of an axis."""
    where = (slice(None),) * (dim % x.ndim)
    return tuple([x[(*where, i)] for i in range(x.shape[dim % x.ndim])])


@aten("flip")
def flip(use: Use, x: Any, dims: Sequence[int]) -> Any:
    """Axes backwards."""
    return fg.flip(x, tuple([d % x.ndim for d in dims])) if dims and x.ndim else x


@aten("roll")
def roll(use: Use, x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Axes turned round; without axes, all elements in order."""
    if 0 in x.shape:
        return x
    if not dims:
        return fg.reshape(fg.roll(fg.reshape(x, (-1,)), shifts[0], 0), x.shape)
    return fg.roll(x, list(shifts), tuple([d % x.ndim for d in dims]))


@aten("repeat")
def repeat(use: Use, x: Any, repeats: Sequence[int]) -> Any:
    """Copies beside each other."""
    if 0 in use.shape:
        return fg.full(use.shape, 0, dtype=x.dtype)
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    pairs = [n for r, s in zip(repeats, shape, strict=True) for n in (r, s)]
    ones = [n for s in shape for n in (1, s)]
    return fg.reshape(fg.broadcast_to(fg.reshape(x, ones), pairs), use.shape)


@aten("unfold", "unfold_copy")
def unfold(use: Use, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows of an axis, as a new last axis."""
    from ...core import build
    from ...tensor import node_of, wrap

    if x.ndim == 0:
        return fg.reshape(x, use.shape)
    axis = dim % x.ndim
    if size == 0 or 0 in use.shape:
        raise Refused("windows of no elements")
    node = build.window(node_of(x), axis, size, step, 1)
    return fg.reshape(wrap(node), use.shape)


def pairs_of(pads: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """torch's padding, the last axis first, as (before, after) of every axis."""
    given = [(pads[2 * i], pads[2 * i + 1]) for i in range(len(pads) // 2)]
    return [(0, 0)] * (ndim - len(given)) + given[::-1]


@aten("constant_pad_nd")
def constant_pad(use: Use, x: Any, pads: Sequence[int], value: Any = 0) -> Any:
    """Wider by a constant; less than nothing cuts off."""
    pairs = pairs_of(pads, x.ndim)
    cut = tuple(
        [slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, x.shape, strict=True)]
    )
    x = x[cut] if any(a < 0 or b < 0 for a, b in pairs) else x
    wide = [(max(0, a), max(0, b)) for a, b in pairs]
    if not any(a or b for a, b in wide):
        return x
    return fg.pad(x, wide, constant_values=cast(value, x.dtype))


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def edge_pad(use: Use, x: Any, pads: Sequence[int]) -> Any:
    """Wider by a mirror image, or by copies of the edge; one axis after the other."""
    mirror = use.name.startswith("reflection")
    for axis, (low, high) in enumerate(pairs_of(pads, x.ndim)):
        n = x.shape[axis]
        if not low and not high:
            continue
        places = np.arange(-low, n + high)
        if mirror and n > 1:
            places = np.abs(places)
            places = (n - 1) - np.abs((n - 1) - places)
        else:
            places = np.clip(places, 0, n - 1)
        x = _taken(x, places, axis)
    return x


def _taken(x: Tensor, places: Any, axis: int) -> Tensor:
    """Places of an axis in runs: slices, forwards and backwards, and repeated edges."""
    where = (slice(None),) * axis
    parts = []
    begin = 0
    steps = np.diff(places)
    while begin < len(places):
        end = begin + 1
        while end < len(places) and steps[end - 1] == steps[begin]:
            end += 1
        step = int(steps[begin]) if end - begin > 1 else 1
        first, last = int(places[begin]), int(places[end - 1])
        if step == 0:
            piece = x[(*where, slice(first, first + 1))]
            shape = list(piece.shape)
            shape[axis] = end - begin
            parts.append(fg.broadcast_to(piece, shape))
        elif step > 0:
            parts.append(x[(*where, slice(first, last + 1))])
        else:
            parts.append(fg.flip(x[(*where, slice(last, first + 1))], axis))
        begin = end
    return fg.concat(parts, axis=axis) if len(parts) > 1 else parts[0]


@aten("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
@aten("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def edge_pad_backward(use: Use, grad: Any, x: Any, pads: Sequence[int]) -> Any:
    """The gradient of padding by what is there."""
    name = use.name.replace("_backward", "")
    forward = Use(name, use.out, use.fakes, use.used, use.device)
    return fg.vjp(lambda x: edge_pad(forward, x, pads), x)[1](grad)[0]


@aten("as_strided", "as_strided_copy")
def as_strided(
    use: Use, x: Any, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Any:
    """Elements by their places in memory, as the layout of x in torch would have them."""
    fake = use.fakes[0]
    first = offset_of(fake)
    start = first if offset is None else offset
    if (list(size), list(stride), start) == (list(fake.shape), list(fake.stride()), first):
        return x
    flat = _in_memory_order(x, fake)
    places = np.array(start - first, np.int64)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n) * s
    if places.size == 0:
        return fg.full(tuple(size), 0, dtype=x.dtype)
    low, high = int(places.min()), int(places.max())
    if low < 0 or high >= flat.shape[0]:
        raise Refused("as_strided outside of the tensor's own memory")
    if list(stride) == _dense(size) and math.prod(size) == high - low + 1:
        return fg.reshape(flat[low : high + 1], tuple(size))
    return fg.take(flat, fg.Tensor(places), axis=0)


def _dense(size: Sequence[int]) -> list[int]:
    return [math.prod(size[i + 1 :]) for i in range(len(size))]


def _in_memory_order(x: Tensor, fake: Any) -> Tensor:
    """All elements of a dense tensor in the order of their addresses."""
    order = sorted(range(x.ndim), key=lambda d: (-fake.stride(d), -fake.shape[d]))
    wide = [d for d in order if fake.shape[d] != 1]
    if [fake.stride(d) for d in wide] != _dense([fake.shape[d] for d in wide]):
        raise Refused("as_strided of a tensor whose memory has gaps")
    return fg.reshape(fg.permute_dims(x, order), (-1,))


@aten("narrow_copy")
def narrow_copy(use: Use, x: Any, dim: int, start: int, length: int) -> Any:
    """So many places of an axis."""
    start = start + x.shape[dim % x.ndim] if start < 0 else start
    return slice_(use, x, dim, start, start + length)


@aten("as_strided_scatter")
def as_strided_scatter(
    use: Use, x: Any, source: Any, size: Sequence[int], stride: Sequence[int],
    offset: int | None = None,
) -> Any:  # fmt: skip
    """x with elements replaced by their places in memory."""
    fake = use.fakes[0]
    first = offset_of(fake)
    start = first if offset is None else offset
    if (list(size), list(stride), start) == (list(fake.shape), list(fake.stride()), first):
        return cast(source, x.dtype)
    flat = _in_memory_order(x, fake)
    places = np.array(start - first, np.int64)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n) * s
    line = places.reshape(-1)
    if len(np.unique(line)) != len(line) or not len(line) or line.max() >= flat.shape[0]:
        raise Refused("as_strided_scatter to places that overlap or lie outside")
    value = fg.reshape(cast(source, x.dtype), (-1,))
    changed = fg.index_copy(flat, 0, fg.Tensor(line), value)
    order = sorted(range(x.ndim), key=lambda d: (-fake.stride(d), -fake.shape[d]))
    moved = fg.reshape(changed, [fake.shape[d] for d in order])
    return fg.permute_dims(moved, [order.index(d) for d in range(x.ndim)])
