"""Ops whose places are data: GATHER, SCATTER and SORT, all along one axis.

GATHER: result[.., i, ..] = x[.., index[.., i, ..], ..]; index has the result's shape and x agrees
with it off the axis, so embedding, take-along-axis and fancy indexing are this op after movement.
SCATTER is its mirror image: a copy of x in which values are combined at the indexed places.
SORT gives the stable order as places; the sorted values are a GATHER of them, which also carries
the gradient. An index out of range is an error, never a wrapped or dropped access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import BoundsError
from ..dtype import dtype_of, int32
from ..node import Bounds, Node, constant, constant_like
from ..op import Array, Op
from ..origin import axes_at, places
from ..shape import prod, same
from .elementwise import ADD, AND, EQ, LT, MAX, WHERE
from .leaf import iota
from .movement import expand, reshape

_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
SCATTERS = ("set", *_UFUNCS)


def gather(x: Node, index: Node, axis: int) -> Node:
    """The elements of x at the indexed places along an axis."""
    return GATHER(x, index, arg=axis)


def scatter(name: str, x: Node, index: Node, values: Node, axis: int) -> Node:
    """x with values set, added, ... at the indexed places; of several set, the last one stays."""
    return SCATTER(x, index, values, arg=(name, axis))


def sort_order(x: Node, axis: int, descending: bool = False, first: int = 0) -> Node:
    """The places of the elements in rising order, equal ones in their old order, NaN last.

    With `first` only so many places are what they should be: nobody reads those behind them.
    """
    return SORT(x, arg=(axis, descending, first) if first else (axis, descending))


def is_sorted(node: Node) -> bool:
    """True if a gather puts what it reads in order: by the places of a sort of just that."""
    if node.op is not GATHER or node.src[1].op is not SORT:
        return False
    order = node.src[1]
    return order.src[0] is node.src[0] and order.arg[0] == node.arg and len(order.arg) == 2


def outside(
    least: int, most: int, size: int, where: str | None = None, from_end: bool = True,
    axis: int | None = None,
) -> BoundsError:  # fmt: skip
    """The error of indices that leave an axis; `from_end`: negative ones had the size added."""
    added = size if from_end else 0
    worst = least - added if least < 0 else most
    hint = f"indices run from {-added} to {size - 1}" if size else "there is nothing to index"
    which = "an axis" if axis is None else f"axis {axis}"
    return BoundsError(f"index {worst} is outside {which} of size {size}", hint, where)


def _inside(node: Node, index: Array, size: int) -> Array:
    places: Array = index.astype(np.intp, copy=False)
    if index.size and int(places.view(np.uintp).max()) >= size:  # what is below 0 is beyond all
        axes = axes_at(node.origins)
        raise _outside(node, node.src[1], index, size, axes[0] if len(axes) == 1 else None)
    return places


def _outside(node: Node, index: Node, values: Array, size: int, axis: int | None) -> BoundsError:
    least, most, line = int(values.min()), int(values.max()), places(node.origins)
    return outside(least, most, size, line, _counts_from_end(index), axis)


def first_outside(node: Node, values: Mapping[Node, Array]) -> BoundsError | None:
    """Of several index arrays that are one (`functional.advanced`): the first to leave its axis."""
    axes = axes_at(node.origins)
    if node.op not in (GATHER, SCATTER) or len(axes) < 2:
        return None
    merged = _moved_from(node.src[1])
    limits = list(_limits(merged.src[0])) if merged.op is WHERE else []
    for axis, limit in zip(axes, limits, strict=False):
        found, size = values[limit.src[0]], int(values[limit.src[1]].flat[0])
        if int(found.min()) < 0 or int(found.max()) >= size:
            return _outside(node, limit.src[0], found, size, axis)
    return None


def _limits(inside: Node) -> Iterator[Node]:
    """The comparisons `place < size` in a conjunction, in order."""
    inside = _moved_from(inside)
    if inside.op is AND:
        for part in inside.src:
            yield from _limits(part)
    elif inside.op is LT:
        yield inside


def _moved_from(x: Node) -> Node:
    """What a node shows the elements of, in other places or dtypes."""
    while x.op.family == "movement" or x.op.name == "cast":
        x = x.src[0]
    return x


def _counts_from_end(index: Node) -> bool:
    """True if the size was added to negative indices, as `functional.indexing.places` does."""
    index = _moved_from(index)
    return index.op is WHERE and index.src[0].op is LT and index.src[1].op is ADD


def _agree(x: Node, index: Node, axis: int) -> str | None:
    if not 0 <= axis < x.ndim or x.ndim != index.ndim:
        return f"no axis {axis} in both {x.shape} and {index.shape}"
    if index.dtype.kind not in "iu":
        return f"an index is a whole number, not {index.dtype}"
    for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if d != axis and not same(n, m):
            return f"{x.shape} and {index.shape} differ off axis {axis}"
    return None


# --- gather --------------------------------------------------------------------------------------


def _gather_numpy(node: Node, x: Array, index: Array) -> Array:
    axis = node.arg
    index = _inside(node, index, x.shape[axis])
    if index.ndim == 1:
        return x.take(index)
    if index.size and _only_along(index, axis):
        line = index[tuple(slice(None) if d == axis else 0 for d in range(index.ndim))]
        return np.take(x, line, axis)  # the same places everywhere: an embedding
    return np.take_along_axis(x, index, axis)


def _only_along(index: Array, axis: int) -> bool:
    """True if the index is the same everywhere off the axis (an expanded view)."""
    steps = zip(index.strides, index.shape, strict=True)
    return all(s == 0 or n == 1 for d, (s, n) in enumerate(steps) if d != axis)


def _gather_grad(g: Node, y: Node, x: Node, index: Node) -> tuple[Node | None, ...]:
    axis, nothing = y.arg, constant_like(0, x)
    if index.shape[axis] == 1 and index.dtype.bits >= 32:  # one place each: no sums, so a map
        steps = iota(x.shape, axis, index.dtype)
        hit = EQ(steps, expand(gather(steps, index, axis), x.shape))  # gathered, so it is checked
        return WHERE(hit, expand(g, x.shape), nothing), None
    return scatter("add", nothing, index, g, axis), None


GATHER = Op(
    name="gather", family="indexing", doc="elements at indexed places along an axis", arity=2,
    numpy=_gather_numpy, shape=lambda node: node.src[1].shape, grad=_gather_grad,
    batch=lambda y, src: gather(src[0], src[1], y.arg + 1), cost=4,
    check=lambda node: _agree(node.src[0], node.src[1], node.arg),
    interval=lambda node, bounds: bounds[0],
)  # fmt: skip


# --- scatter -------------------------------------------------------------------------------------


def _scatter_numpy(node: Node, x: Array, index: Array, values: Array) -> Array:
    name, axis = node.arg
    index = _inside(node, index, x.shape[axis])
    out = np.array(x, order="C")
    at = list(np.ogrid[tuple(slice(0, n) for n in index.shape)])
    at[axis] = index
    if values.size:
        places = np.ravel_multi_index(tuple(np.broadcast_arrays(*at)), out.shape)
        combine_at(name, out.reshape(-1), places.ravel(), values.ravel())
    return out


def combine_at(name: str, memory: Array, places: Array, values: Array) -> None:
    """Set, add, ... values at places of flat memory, in order; small floats round once."""
    if name == "set":  # of several values for one place the last stays, by rule not by luck
        _, last = np.unique(places[::-1], return_index=True)
        chosen = places.size - 1 - last
        memory[places[chosen]] = values[chosen]
        return
    small = dtype_of(memory.dtype).is_small_float
    wide = memory.astype(np.float32) if small else memory.copy()
    _UFUNCS[name].at(wide, places, values.astype(wide.dtype))
    if name in ("max", "min") and wide.dtype.kind == "f":
        wide = _signed_zero(name, memory, places, values, wide)
    memory[:] = wide


def _signed_zero(name: str, x: Array, places: Array, values: Array, out: Array) -> Array:
    """Of zeros of both signs the maximum is 0.0 and the minimum -0.0, whatever came first."""
    zero = 0.0 if name == "max" else -0.0
    met = np.array((x == 0) & (np.signbit(x) == np.signbit(zero)))
    np.logical_or.at(met, places, (values == 0) & (np.signbit(values) == np.signbit(zero)))
    return np.where(out == 0, np.where(met, zero, -zero).astype(out.dtype), out)


def _scatter_check(node: Node) -> str | None:
    name, axis = node.arg
    x, index, values = node.src
    if name not in SCATTERS:
        return f"there is no scatter {name!r}"
    if values.shape != index.shape or values.dtype is not x.dtype:
        return f"values {values.shape} {values.dtype} do not fit {index.shape} {x.dtype}"
    return _agree(x, index, axis)


def _scatter_grad(g: Node, y: Node, x: Node, index: Node, v: Node) -> tuple[Node | None, ...]:
    name, axis = y.arg
    if name == "add":
        return g, None, gather(g, index, axis)
    zero, here = constant_like(0, g), gather(g, index, axis)
    if name == "set":
        order = _positions(index)
        table = scatter("max", constant(-1, int32, x.shape), index, order, axis)
        won = EQ(gather(table, index, axis), order)
        kept = EQ(table, constant_like(-1, table))
        return WHERE(kept, g, zero), None, WHERE(won, here, constant_like(0, here))
    if name == "mul":
        return _scatter_mul_grad(g, y, x, index, v)
    top = gather(y, index, axis)
    hit, old = EQ(v, top), EQ(x, y)
    one_v, one_x = constant_like(1, v), constant_like(1, x)
    zero_v = constant_like(0, v)
    kept = WHERE(old, one_x, zero)
    ties = scatter("add", kept, index, WHERE(hit, one_v, zero_v), axis)
    share = g / MAX(ties, one_x)
    return kept * share, None, WHERE(hit, gather(share, index, axis), zero_v)


def _positions(index: Node) -> Node:
    """The row-major number of each element: larger is later."""
    return reshape(iota((prod(index.shape),), 0, int32), index.shape)


def _scatter_mul_grad(g: Node, y: Node, x: Node, index: Node, v: Node) -> tuple[Node | None, ...]:
    """Products without a factor: divide where no factor is zero, else count the zeros."""
    axis = y.arg[1]
    one_x, one_v = constant_like(1, x), constant_like(1, v)
    zero_x, zero_v = constant_like(0, x), constant_like(0, v)
    x_is_zero, v_is_zero = EQ(x, zero_x), EQ(v, zero_v)
    zeros = scatter(
        "add", WHERE(x_is_zero, one_x, zero_x), index, WHERE(v_is_zero, one_v, zero_v), axis
    )
    safe_x, safe_v = WHERE(x_is_zero, one_x, x), WHERE(v_is_zero, one_v, v)
    product = scatter("mul", safe_x, index, safe_v, axis)
    others_x = zeros - WHERE(x_is_zero, one_x, zero_x)
    grad_x = WHERE(EQ(others_x, zero_x), product / safe_x, zero_x)
    others_v = gather(zeros, index, axis) - WHERE(v_is_zero, one_v, zero_v)
    grad_v = WHERE(EQ(others_v, zero_v), gather(product, index, axis) / safe_v, zero_v)
    return g * grad_x, None, gather(g, index, axis) * grad_v


SCATTER = Op(
    name="scatter", family="indexing", doc="a copy with values combined at indexed places", arity=3,
    numpy=_scatter_numpy, check=_scatter_check, grad=_scatter_grad, cost=8,
    batch=lambda y, src: scatter(y.arg[0], src[0], src[1], src[2], y.arg[1] + 1),
)  # fmt: skip


# --- sort ----------------------------------------------------------------------------------------


def _sort_numpy(node: Node, x: Array) -> Array:
    return sorted_places(x, *node.arg[:2])


PACKED_SORT = 1024  # elements of a line from which keys with places behind them are sorted instead


def _sort_keys(x: Array) -> Array | None:
    """Numbers of 32 bits without a sign in the order of the elements; None where 32 do not do."""
    if x.dtype.kind == "f" and x.itemsize <= 4:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            single = x.astype(np.float32) + np.float32(0)  # -0 becomes 0, which it equals
        bits = single.view(np.int32)
        mirrored = bits ^ ((bits >> 31) | np.int32(-1 << 31))  # the more negative, the less
        return np.where(np.isnan(single), np.uint32(0xFFFFFFFF), mirrored.view(np.uint32))
    if x.dtype.kind not in "biu" or not x.size:
        return None
    if x.itemsize < 4 or x.dtype.kind == "b":
        return x.astype(np.int32).view(np.uint32) ^ np.uint32(1 << 31)
    least = x.min()
    if int(x.max()) - int(least) >= 1 << 32:
        return None
    # sums of whole numbers wrap, and so does what is left of a difference
    distance: Array = x.view(f"u{x.itemsize}") - least.view(f"u{x.itemsize}")
    return distance.astype(np.uint32)


def _packed_order(keys: Array, axis: int) -> Array:
    """The stable order of keys: no two are equal with their places behind them, so that any sort is
    stable, and NumPy's of plain numbers has vectors."""
    places = np.arange(keys.shape[axis], dtype=np.uint64)
    places = np.expand_dims(places, [d for d in range(keys.ndim) if d != axis % keys.ndim])
    both: Array = (keys.astype(np.uint64) << np.uint64(32)) | places
    both.sort(axis=axis)
    return both.astype(np.uint32).view(np.int32)


def sorted_places(x: Array, axis: int, descending: bool) -> Array:
    """The stable order along an axis; NaN comes last rising and first falling."""
    wide = x.astype(np.float32) if dtype_of(x.dtype).is_small_float else x
    if x.shape[axis] >= PACKED_SORT:
        keys = _sort_keys(wide)
        if keys is not None:
            return _packed_order(~keys if descending else keys, axis)
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable").astype(np.int32)
    # stable in falling order: sort the mirror image and mirror the places
    order = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(order, axis)).astype(np.int32)


def _sort_check(node: Node) -> str | None:
    axis, descending, *first = node.arg
    fits = 0 <= axis < node.src[0].ndim and isinstance(descending, bool)
    fits = fits and all([type(n) is int and n > 0 for n in first]) and len(first) <= 1
    return None if fits else f"bad sort {node.arg}"


def _sort_interval(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    size = node.shape[node.arg[0]]
    return (0, max(0, size - 1)) if isinstance(size, int) else None


SORT = Op(
    name="sort", family="indexing", doc="the stable order along an axis, as places", arity=1,
    dtype=lambda src, arg: int32, numpy=_sort_numpy, check=_sort_check, kinds="biuf",
    grad=lambda g, y, x: (None,), interval=_sort_interval, cost=40,
    batch=lambda y, src: sort_order(src[0], y.arg[0] + 1, *y.arg[1:]),
)  # fmt: skip
