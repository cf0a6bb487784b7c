"""Gathers and scatters: index, index_put, embeddings and their gradients.

Places below 0 count from the end where torch has them so (`x[i]`, `index_put`, `index_fill`); for
all other operators they are errors, as are places past the end for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ...core import build
from ...core.origin import indexing
from ...functional.array.indexing import slices_at
from ...tensor import Tensor, node_of, wrap
from ..table import Refused, Use, aten, cast, host, tensor

host("its result decides shapes or branches on the host", "nonzero", "_local_scalar_dense",
     "masked_select", "unique_dim", "_unique2", "unique_consecutive", "bincount")  # fmt: skip


def _from_front(index: Any, size: int) -> Any:
    """Places of which none counts from the end, for functions that would count so."""
    index = cast(index, fg.int64)
    return fg.where(index < 0, index - size, index)


def _rows(x: Any, index: Any, axis: int) -> Any:
    """The slices at places along an axis, of which none counts from the end."""
    with indexing(axis):
        return wrap(slices_at(node_of(x), node_of(cast(index, fg.int64)), axis))


def _line(places: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Places along some axes as places in all of their elements, in order; what is outside of one
    axis is outside of all."""
    if len(places) == 1:
        return places[0]
    line: Any = 0
    inside: Any = True
    for place, size in zip(places, sizes, strict=True):
        line = line * size + fg.where(place < 0, place + size, place)
        inside = inside & (place >= -size) & (place < size)
    return fg.where(inside, line, math.prod(sizes))


def _key(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Index tensors as NumPy's key; masks are another operator's business."""
    key: list[Any] = []
    for index in indices:
        if index is None:
            key.append(slice(None))
            continue
        if index.dtype.kind == "b" or (index.dtype is fg.uint8):
            raise Refused("indexing with a mask, whose result has a size that the data decide")
        key.append(cast(index, fg.int64))
    return tuple(key)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(use: Use, x: Any, indices: Sequence[Any]) -> Any:
    """Elements at places."""
    if 0 in use.shape:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    return x[_key(indices)]


def _put_by_mask(x: Any, mask: Any, values: Any, accumulate: bool) -> Any:
    """x with one value where a mask of the first axes holds, or added to there."""
    if values.size != 1:
        raise Refused("as many values as a mask holds, which the data decide")
    mask = fg.reshape(mask, (*mask.shape, *[1] * (x.ndim - mask.ndim)))
    value = fg.reshape(cast(values, x.dtype), ())
    return fg.where(mask, x + value if accumulate else value, x)


@aten("index_put", "_unsafe_index_put")
def index_put(
    use: Use, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Any:
    """x with elements at places replaced, or added to."""
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype.kind == "b" and indices[0] is given[0]:
        return _put_by_mask(x, given[0], values, accumulate)
    if 0 in x.shape or 0 in values.shape or any(0 in i.shape for i in given):
        return x
    if accumulate and x.dtype.kind == "b":
        raise Refused("adding up truths at places")
    axes = [axis for axis, i in enumerate(indices) if i is not None]
    others = [axis for axis in range(x.ndim) if axis not in axes]
    places = fg.broadcast_arrays(*_key(given))
    count, inner = places[0].ndim, [x.shape[axis] for axis in others]
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if together else 0  # where the axes of the places are in the values
    shape = [*inner[:first], *places[0].shape, *inner[first:]]
    value = fg.broadcast_to(cast(values, x.dtype), shape)
    value = fg.moveaxis(value, tuple(range(first, first + count)), tuple(range(count)))
    line = fg.reshape(_line(places, [x.shape[axis] for axis in axes]), (-1,))
    flat = fg.reshape(fg.permute_dims(x, [*axes, *others]), (-1, *inner))
    change = fg.index_add if accumulate else fg.index_copy
    changed = change(flat, 0, line, fg.reshape(value, (line.shape[0], *inner)))
    changed = fg.reshape(changed, [x.shape[axis] for axis in (*axes, *others)])
    back = [(*axes, *others).index(axis) for axis in range(x.ndim)]
    return fg.permute_dims(changed, back)


@aten("index_select")
def index_select(use: Use, x: Any, dim: int, index: Any) -> Any:
    """Places of an axis."""
    if x.ndim == 0:
        return fg.reshape(x, use.shape)
    if 0 in use.shape:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    return _rows(x, fg.reshape(index, (-1,)), dim % x.ndim)


@aten("embedding")
def embedding(
    use: Use, weight: Any, indices: Any, padding_idx: int = -1, by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    """Rows of a matrix."""
    if 0 in use.shape:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    return _rows(weight, indices, 0)


@aten("embedding_dense_backward")
def embedding_backward(
    use: Use, grad: Any, indices: Any, rows: int, padding_idx: int, by_freq: bool
) -> Any:
    """Gradients of rows, added up where a row was taken several times."""
    line = fg.reshape(_from_front(indices, rows), (-1,))
    width = grad.shape[-1]
    lines = cast(fg.reshape(grad, (-1, width)), use.wide)
    zeros = fg.full((rows, width), 0.0, dtype=use.wide)
    if not line.shape[0] or not width:
        return cast(zeros, use.dtype)
    if by_freq:
        counts = fg.full((rows,), 0, dtype=fg.int64)
        counts = fg.scatter_add(counts, 0, line, fg.full(line.shape, 1, dtype=fg.int64))
        lines = lines / cast(fg.expand_dims(fg.take(counts, line, axis=0), -1), use.wide)
    if padding_idx >= 0:
        lines = fg.where(fg.expand_dims(line == padding_idx, -1), 0.0, lines)
    return cast(fg.index_add(zeros, 0, line, lines), use.dtype)


@aten("gather")
def gather(use: Use, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """Elements at places along an axis."""
    if 0 in use.shape:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    if x.ndim == 0 or index.ndim == 0:
        line = _rows(fg.reshape(x, (-1,)), fg.reshape(index, (-1,)), 0)
        return fg.reshape(line, use.shape)
    axis = dim % x.ndim
    x = x[tuple([slice(None) if d == axis else slice(n) for d, n in enumerate(index.shape)])]
    with indexing(axis):
        return wrap(build.gather(node_of(x), node_of(cast(index, fg.int64)), axis))


def _scatter(x: Any, dim: int, index: Any, source: Any, reduce: str | None, own: bool) -> Any:
    """x with elements of a source at places along an axis."""
    if 0 in index.shape or 0 in x.shape:
        return x
    shape = x.shape
    if x.ndim == 0:
        x = fg.reshape(x, (1,))
    axis = dim % x.ndim
    index = _from_front(fg.reshape(index, index.shape or (1,)), x.shape[axis])
    if isinstance(source, Tensor):
        source = cast(fg.reshape(source, source.shape or (1,)), x.dtype)
        source = source[tuple([slice(n) for n in index.shape])]
    else:
        source = fg.full(index.shape, cast(source, x.dtype), dtype=x.dtype)
    if reduce is None:
        out = fg.scatter(x, axis, index, source)
    elif reduce == "sum" and own:
        out = fg.scatter_add(x, axis, index, source)
    else:
        out = fg.scatter_reduce(x, axis, index, source, reduce, include_self=own)
    return fg.reshape(out, shape)


@aten("scatter.src", "scatter.value")
def scatter(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    """x with elements at places replaced."""
    return _scatter(x, dim, index, source, None, True)


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_by(use: Use, x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    """x with elements at places added to or multiplied."""
    return _scatter(x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce], True)


@aten("scatter_add")
def scatter_add(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    """x with elements at places added to."""
    if x.dtype.kind == "b":
        raise Refused("adding up truths at places")
    return _scatter(x, dim, index, source, "sum", True)


@aten("scatter_reduce.two")
def scatter_reduce(
    use: Use, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """x with elements at places reduced with those of a source."""
    if x.dtype.kind == "b":
        raise Refused("reducing truths at places")
    return _scatter(x, dim, index, source, reduce, include_self)


@aten("index_add", "index_copy", "index_fill.int_Scalar", "index_fill.int_Tensor")
def index_change(use: Use, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """x with places of an axis added to, or replaced."""
    if 0 in x.shape or 0 in index.shape:
        return x
    if x.dtype.kind == "b" and use.name.startswith("index_add"):
        raise Refused("adding up truths at places")
    flat = x if x.ndim else fg.reshape(x, (1,))
    axis = dim % flat.ndim
    line = cast(fg.reshape(index, (-1,)), fg.int64)
    if not use.name.startswith("index_fill"):
        line = _from_front(line, flat.shape[axis])
    value = tensor(source, x.dtype)
    shape = [*flat.shape[:axis], line.shape[0], *flat.shape[axis + 1 :]]
    if use.name.startswith("index_fill"):
        value = fg.broadcast_to(fg.reshape(value, ()), shape)
    value = fg.reshape(value, shape)
    if not use.name.startswith("index_add"):
        return fg.reshape(fg.index_copy(flat, axis, line, value), x.shape)
    value = value if alpha == 1 else value * cast(alpha, x.dtype)
    return fg.reshape(fg.index_add(flat, axis, line, value), x.shape)


@aten("masked_scatter")
def masked_scatter(use: Use, x: Any, mask: Any, source: Any) -> Any:
    """x with the elements of a source where the mask holds, in order."""
    mask, x = fg.broadcast_to(mask, use.shape), fg.broadcast_to(x, use.shape)
    if 0 in use.shape or 0 in source.shape:
        return x
    flat = fg.reshape(mask, (-1,))
    places = fg.cumulative_sum(cast(flat, fg.int64), axis=0) - 1
    line = fg.reshape(source, (-1,))
    places = fg.clip(places, 0, line.shape[0] - 1)
    taken = fg.reshape(fg.take(line, places, axis=0), use.shape)
    return fg.where(mask, cast(taken, x.dtype), x)


@aten("masked_scatter_backward")
def masked_scatter_backward(use: Use, grad: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """Gradients of where the mask holds, in order, for as many as the source has; behind them 0."""
    count = math.prod(use.shape)
    if 0 in grad.shape or not count:
        return fg.full(use.shape, cast(0, use.dtype), dtype=use.dtype)
    flat = fg.reshape(fg.broadcast_to(mask, grad.shape), (-1,))
    places = fg.clip(fg.cumulative_sum(cast(flat, fg.int64), axis=0) - 1, 0, count - 1)
    given = fg.where(flat, fg.reshape(grad, (-1,)), cast(0, grad.dtype))
    zeros = fg.full((count,), cast(0, grad.dtype), dtype=grad.dtype)
    return fg.reshape(fg.scatter_add(zeros, 0, places, given), use.shape)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(use: Use, x: Any, mask: Any, value: Any) -> Any:
    """x with one number where the mask holds."""
    return fg.broadcast_to(fg.where(mask, tensor(value, x.dtype), x), use.shape)


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    use: Use, weight: Any, indices: Any, offsets: Any, by_freq: bool = False, mode: int = 0,
    sparse: bool = False, weights: Any = None, last: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Rows of a matrix, added up (0), averaged (1) or compared (2) bag by bag."""
    if mode == 2 or 0 in indices.shape or 0 in offsets.shape:
        raise Refused("bags of largest elements, or of none")
    line, starts = cast(indices, fg.int64), cast(offsets, fg.int64)
    bags = starts.shape[0] - int(last)
    starts = starts[:bags]
    bag = fg.searchsorted(starts, fg.arange(line.shape[0], dtype=fg.int64), side="right") - 1
    bag = cast(bag, fg.int64)
    rows = cast(_rows(weight, line, 0), use_wide(use))
    kept = fg.full(line.shape, True) if padding_idx < 0 else line != padding_idx
    if weights is not None:
        rows = rows * fg.expand_dims(cast(weights, rows.dtype), -1)
    rows = fg.where(fg.expand_dims(kept, -1), rows, 0.0)
    total = fg.index_add(fg.full((bags, weight.shape[1]), 0.0, dtype=rows.dtype), 0, bag, rows)
    size = fg.index_add(fg.full((bags,), 0, dtype=fg.int64), 0, bag, cast(kept, fg.int64))
    if mode == 1:
        total = total / cast(fg.maximum(fg.expand_dims(size, -1), 1), total.dtype)
    results = [cast(total, weight.dtype), bag, size, size]
    return tuple([
        r if tuple(r.shape) == tuple(o.shape) else fg.full(tuple(o.shape), 0, dtype=fg.int64)
        for r, o in zip(results, use.out, strict=True)
    ])  # fmt: skip


def use_wide(use: Use) -> Any:
    """The type to add up the first result in."""
    from ..dtypes import TO_OURS, compute_dtype

    return compute_dtype(TO_OURS[use.out[0].dtype])
