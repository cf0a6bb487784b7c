"""Collectives: values combined or moved between the ranks of a mesh; and tensors in shards.

In: one value on each rank. ALL_REDUCE folds them, ALL_GATHER joins them along a dimension,
REDUCE_SCATTER adds them and leaves each rank its part, ALL_TO_ALL splits one dimension and joins
another, SEND_RECV moves values along one axis of the mesh. LOCAL is this rank's shard of a value
that all ranks see whole, UNSHARD the whole of which each rank has a shard, SHARD the value with the
wish that it is kept in shards; the last of their argument says if the wish is weak: such a value
(a weight of ZeRO) is gathered where it meets one in other shards. Arguments never name ranks.
Sums run in the order of ranks, however data travels: bits depend on the mesh alone. Gradients are
those of the sum of all ranks' results. `RANKED` has the same ops in one process, where the ranks
are the leading axis of every value: that is what they mean, and what tests compare with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np

from .. import shape as sizes
from ..dtype import int64
from ..node import Node, Shape, constant_like, dims_of, make, shape_of
from ..op import Array, Op
from ..origin import places
from ..ranks import (
    Layout,
    MeshAxes,
    axes_size,
    check_world,
    coordinates,
    group_of,
    index_variable,
    mesh_size,
    rank_at,
    world,
)
from .elementwise import ADD, CAST, MAX, MIN, MUL, WHERE, maximum, minimum
from .leaf import BUFFER, iota
from .movement import expand, permute, reshape, shrink
from .reduce import identity_of, others_product, reduce_node

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "mul": np.multiply, "max": maximum, "min": minimum,
}  # fmt: skip
_OPS: dict[str, Op] = {"add": ADD, "mul": MUL, "max": MAX, "min": MIN}


# --- what data travels ---------------------------------------------------------------------------


def label_of(node: Node) -> str:
    """What the watchdog says of a rank that waits here."""
    where = places(node.origins)
    return f"{node.op.name}{_axes_text(node)} of {node.dtype}{list(node.shape)}" + (
        f" at {where}" if where else ""
    )


def _axes_text(node: Node) -> str:
    axes = node.arg[1]
    return f"({', '.join([str(a) for a in axes])})" if node.op not in LAYOUT_OPS else ""


def group_for(node: Node) -> list[int]:
    """The ranks that a collective of this one's is over."""
    check_world(node.arg[0])
    return group_of(node.arg[0], node.arg[1], world().rank)


def _fold(how: str, parts: Sequence[Array], node: Node, out: Array | None = None) -> Array:
    """The values of ranks combined in their order, into an array if one is given."""
    dtype, combine = node.src[0].dtype, _COMBINE[how]  # a START's own dtype is that of its ticket
    if out is not None and isinstance(combine, np.ufunc) and not dtype.is_small_float:
        with np.errstate(all="ignore"):
            combine(parts[0], parts[1], out=out)
            for part in parts[2:]:
                combine(out, part, out=out)
        return out
    wide = [a.astype(np.float32) if dtype.is_small_float else a for a in parts]
    total: Array = fold(combine, wide)
    found = np.asarray(total).astype(dtype.numpy, copy=False)
    if out is None:
        return found
    np.copyto(out, found)
    return out


def _all_reduce_numpy(node: Node, a: Array) -> Array:
    """Each rank folds one part of every rank's value, in their order, and sends it to all."""
    group = group_for(node)
    count = len(group)
    if count == 1:
        return a
    label = label_of(node)
    flat = np.ascontiguousarray(a).reshape(-1)
    if flat.nbytes <= ONE_MESSAGE_BYTES:  # one round of small messages in place of two
        return _fold(node.arg[2], world().gather(group, flat, label), node).reshape(a.shape)
    size = -(-flat.size // count)
    padded = np.zeros(size * count, flat.dtype)
    padded[: flat.size] = flat
    parts = world().exchange(group, list(padded.reshape(count, size)), label)
    mine = _fold(node.arg[2], parts, node)
    whole = np.concatenate(world().gather(group, mine, label))
    return whole[: flat.size].reshape(a.shape)


ONE_MESSAGE_BYTES = 4096


_tickets = itertools.count(1)
_finished: dict[int, Array] = {}  # results of what was started where nothing runs meanwhile


def _start_numpy(node: Node, a: Array) -> Array:
    """Begin a sum: this world's own way, or all of it at once."""
    return np.asarray(start_sum(node, a, group_for(node), label_of(node)), np.int64)


def _wait_numpy(node: Node, ticket: Array) -> Array:
    shape = shape_of(node.arg, node.src)
    return finish_sum(int(ticket), wait_label(node), None).reshape(shape)


def start_sum(node: Node, a: Array, group: Sequence[int], label: str) -> int:
    """Begin what a START says over a group of ranks; its ticket."""
    begin = getattr(world(), "start_reduce", None)
    if begin is None or len(group) == 1:
        ticket = next(_tickets)
        _finished[ticket] = np.array(_all_reduce_numpy(node, a)).reshape(-1)
        return ticket
    flat, how = np.ascontiguousarray(a).reshape(-1), node.arg[2]
    made: int = begin(group, flat, how, lambda parts, out: _fold(how, parts, node, out), label)
    return made


def finish_sum(ticket: int, label: str, out: Array | None) -> Array:
    """The sum of a ticket, flat; in an array if one is given."""
    found = _finished.pop(ticket, None)
    if found is None:
        made: Array = world().finish_reduce(ticket, label, out)  # type: ignore[attr-defined]
        return made
    if out is None:
        return found
    np.copyto(out, found)
    return out


def wait_label(node: Node) -> str:
    """What the watchdog says of a rank that waits for a sum."""
    return f"the wait for all_reduce of {node.dtype}{list(node.shape)}"


def _all_gather_numpy(node: Node, a: Array) -> Array:
    parts = world().gather(group_for(node), np.ascontiguousarray(a), label_of(node))
    return np.concatenate(parts, axis=node.arg[2])


def _reduce_scatter_numpy(node: Node, a: Array) -> Array:
    group = group_for(node)
    parts = [np.ascontiguousarray(p) for p in np.split(a, len(group), axis=node.arg[2])]
    return _fold("add", world().exchange(group, parts, label_of(node)), node)


def _all_to_all_numpy(node: Node, a: Array) -> Array:
    _, _, split, join = node.arg
    group = group_for(node)
    parts = [np.ascontiguousarray(p) for p in np.split(a, len(group), axis=split)]
    return np.concatenate(world().exchange(group, parts, label_of(node)), axis=join)


def _send_recv_numpy(node: Node, a: Array) -> Array:
    mesh, axes, pairs = node.arg
    check_world(mesh)
    rank = world().rank
    here = coordinates(mesh, rank)
    (axis,) = axes

    def neighbour(place: int) -> int:
        return rank_at(mesh, {**here, axis: place}, rank)

    to = [neighbour(there) for source, there in pairs if source == here[axis]]
    sources = [neighbour(source) for source, there in pairs if there == here[axis]]
    found = world().route(to, sources, np.ascontiguousarray(a), label_of(node))
    return found[0] if found else np.zeros_like(a)


# --- shards --------------------------------------------------------------------------------------


def local_shape(mesh: MeshAxes, layout: Layout, shape: Shape) -> Shape:
    """The shape of one shard; where parts are not equal, that of the first."""
    return tuple([part_size(mesh, axes, n) for n, axes in zip(shape, layout, strict=True)])


def part_size(mesh: MeshAxes, axes: Sequence[str], n: Any) -> Any:
    """How much of a dimension a rank has; the last ones may have less that counts."""
    count = axes_size(mesh, axes)
    return -(-n // count) if isinstance(n, int) else sizes.floordiv(n, count) if axes else n


def is_uneven(mesh: MeshAxes, axes: Sequence[str], n: Any) -> bool:
    """True if the parts of a dimension are not equal: the last ones go beyond it."""
    return isinstance(n, int) and n % axes_size(mesh, axes) != 0


def whole_shape(mesh: MeshAxes, layout: Layout, shape: Shape) -> Shape:
    """The shape of what such shards make."""
    pairs = zip(shape, layout, strict=True)
    return tuple([sizes.mul(n, axes_size(mesh, axes)) for n, axes in pairs])


def used_axes(layout: Layout) -> tuple[str, ...]:
    """The mesh axes that split something."""
    return tuple([axis for axes in layout for axis in axes])


def other_axes(mesh: MeshAxes, layout: Layout) -> tuple[str, ...]:
    """The mesh axes along which every rank has the same shard."""
    used = used_axes(layout)
    return tuple([name for name, size in mesh if name not in used and size > 1])


def part_number(mesh: MeshAxes, axes: Sequence[str]) -> Any:
    """Which part of a dimension that axes split is this rank's, as a number known when it runs."""
    number: Any = 0
    for axis in axes:
        number = sizes.add(sizes.mul(number, dict(mesh)[axis]), index_variable(mesh, axis))
    return number


def own_part(x: Node, mesh: MeshAxes, axes: Sequence[str], dim: int) -> Node:
    """This rank's part of a value along one dimension."""
    if axes_size(mesh, axes) == 1:
        return x
    size = sizes.floordiv(x.shape[dim], axes_size(mesh, axes))
    start = sizes.mul(part_number(mesh, axes), size)
    cuts: list[Any] = [(0, n) for n in x.shape]
    cuts[dim] = (start, sizes.add(start, size))
    return shrink(x, cuts)


def _local_numpy(node: Node, a: Array) -> Array:
    mesh, layout = node.arg
    check_world(mesh)
    here = coordinates(mesh, world().rank)
    for dim, axes in enumerate(layout):
        number = 0
        for axis in axes:
            number = number * dict(mesh)[axis] + here[axis]
        a = np.split(a, axes_size(mesh, axes), axis=dim)[number] if axes else a
    return a


def _unshard_numpy(node: Node, a: Array) -> Array:
    mesh, layout, _ = node.arg
    check_world(mesh)
    for dim, axes in enumerate(layout):
        if axes:
            group = group_of(mesh, axes, world().rank)
            parts = world().gather(group, np.ascontiguousarray(a), label_of(node))
            a = np.concatenate(parts, axis=dim)
    return a


# --- what is wrong -------------------------------------------------------------------------------


def _mesh_check(node: Node) -> str | None:
    mesh, axes = node.arg[:2]
    names = dict(mesh)
    unknown = [axis for axis in axes if axis not in names]
    if unknown or len(set(axes)) != len(axes):
        return f"the axes {axes} are not in the mesh {mesh}"
    return None


def _dim_check(node: Node, *dims: int) -> str | None:
    inside = all(0 <= d < node.src[0].ndim for d in dims)
    return _mesh_check(node) or (None if inside else f"no dimension {dims} in {node.src[0].shape}")


def _splits(node: Node, dim: int) -> str | None:
    problem = _dim_check(node, dim)
    size, count = node.src[0].shape[dim] if problem is None else 0, axes_size(*node.arg[:2])
    if problem is None and isinstance(size, int) and size % count:
        problem = f"a dimension of {size} has no {count} equal parts"
    return problem


def layout_problem(mesh: MeshAxes, layout: Layout, shape: Shape, even: bool = True) -> str | None:
    """What is wrong with keeping a value of this shape in shards, equal ones if they must be."""
    if len(layout) != len(shape):
        return f"a layout of {len(layout)} dimensions for a value of {len(shape)}"
    used = used_axes(layout)
    if not set(used) <= set(dict(mesh)) or len(set(used)) != len(used):
        return f"the axes {used} are not axes of the mesh {mesh}, each once"
    for n, axes in zip(shape, layout, strict=True):
        count = axes_size(mesh, axes)
        if isinstance(n, int) and n % count and even:
            return f"a dimension of {n} has no {count} equal parts"
    return None


# --- gradients and batches -----------------------------------------------------------------------


def _all_reduce_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    """As of REDUCE along ranks: those that tie share alike, a product is one of others."""
    mesh, axes, how = y.arg
    total = ALL_REDUCE(g, arg=(mesh, axes, "add"))
    if how == "add":
        return (total,)
    if how == "mul":
        rows = ALL_GATHER(reshape(a, (1, *a.shape)), arg=(mesh, axes, 0))
        own = ALL_TO_ALL(others_product(rows, (0,)), arg=(mesh, axes, 0, 0))  # sent by every rank
        return (total * reshape(shrink(own, [(0, 1), *[(0, n) for n in a.shape]]), a.shape),)
    one = constant_like(1, a)
    hit = WHERE(a.eq(y), one, constant_like(0, a))
    ties = ALL_REDUCE(hit, arg=(mesh, axes, "add"))  # none if a NaN was met
    return (hit * (total / MAX(ties, one)),)


def _all_reduce_check(node: Node) -> str | None:
    known = node.arg[2] in _OPS and node.dtype.kind in _OPS[node.arg[2]].kinds
    return _mesh_check(node) or (None if known else f"{node.arg[2]!r} does not fold {node.dtype}")


def _all_reduce_check_of_source(node: Node) -> str | None:
    return _all_reduce_check(ALL_REDUCE(node.src[0], arg=node.arg))


def started(x: Node) -> Node:
    """An ALL_REDUCE as its start and the wait for it."""
    source = x.src[0]
    dims, extra = dims_of(x.shape, 1)
    return make(WAIT, x.dtype, (START(source, arg=x.arg), *extra), dims)


def _gathered(node: Node) -> Shape:
    mesh, axes, dim = node.arg
    return _resized(node.src[0].shape, dim, axes_size(mesh, axes), 1)


def _scattered(node: Node) -> Shape:
    mesh, axes, dim = node.arg
    return _resized(node.src[0].shape, dim, 1, axes_size(mesh, axes))


def _exchanged(node: Node) -> Shape:
    mesh, axes, split, join = node.arg
    count = axes_size(mesh, axes)
    return _resized(_resized(node.src[0].shape, split, 1, count), join, count, 1)


def _resized(shape: Shape, dim: int, times: int, over: int) -> Shape:
    n = sizes.floordiv(shape[dim], over) if over > 1 else shape[dim]
    return (*shape[:dim], sizes.mul(n, times), *shape[dim + 1 :])


def _shifted(y: Node, src: tuple[Node, ...]) -> Node:
    """The batch rule of an op whose argument ends in dimensions."""
    return y.op(src[0], arg=(*y.arg[:2], *[d + 1 for d in y.arg[2:]]))


def _unchanged(y: Node, src: tuple[Node, ...]) -> Node:
    return y.op(src[0], arg=y.arg)


def _with_whole_batch(y: Node, src: tuple[Node, ...]) -> Node:
    return y.op(src[0], arg=(y.arg[0], ((), *y.arg[1]), *y.arg[2:]))


def _send_recv_check(node: Node) -> str | None:
    problem = _mesh_check(node)
    mesh, axes, pairs = node.arg
    if problem is not None or len(axes) != 1:
        return problem or "values are sent along one axis"
    count = axes_size(mesh, axes)
    ends = list(zip(*pairs, strict=True)) or [(), ()]
    fits = all(0 <= i < count for pair in pairs for i in pair)
    once = all(len(set(end)) == len(end) for end in ends)
    return None if fits and once else f"{pairs} do not send from and to each of {count} ranks once"


def _local_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    mesh, layout = y.arg
    again = other_axes(mesh, layout)
    total = ALL_REDUCE(g, arg=(mesh, again, "add")) if again else g
    return (UNSHARD(total, arg=(mesh, layout, False)),)


def _unshard_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    """Of equal shards the first is the one whose value counts."""
    mesh, layout, _ = y.arg
    own = LOCAL(g, arg=(mesh, layout))
    again = other_axes(mesh, layout)
    if not again:
        return (own,)
    number = CAST(_as_node(part_number(mesh, again)), arg=own.dtype)
    spread = expand(reshape(number, (1,) * own.ndim), own.shape)
    zero = constant_like(0, own)
    return (WHERE(spread.eq(zero), own, zero),)


def _as_node(size: Any) -> Node:
    assert isinstance(size, Node)
    return size


def _layout_check(node: Node) -> str | None:
    mesh, layout = node.arg[:2]
    shape = node.shape if node.op is UNSHARD else node.src[0].shape
    return layout_problem(mesh, layout, shape, even=node.op is not SHARD)


ALL_REDUCE: Op = Op(
    name="all_reduce", family="collective", doc="the values of all ranks of a group folded",
    arity=1, numpy=_all_reduce_numpy, grad=_all_reduce_grad, batch=_unchanged,
    check=_all_reduce_check, cost=1000,
)  # fmt: skip
ALL_GATHER: Op = Op(
    name="all_gather", family="collective", doc="the values of all ranks joined along a dimension",
    arity=1, numpy=_all_gather_numpy, shape=_gathered, batch=_shifted, cost=1000,
    grad=lambda g, y, a: (REDUCE_SCATTER(g, arg=y.arg),),
    check=lambda node: _dim_check(node, node.arg[2]),
)  # fmt: skip
REDUCE_SCATTER: Op = Op(
    name="reduce_scatter", family="collective", doc="a rank's part of the sum of all ranks' values",
    arity=1, kinds="iufc", numpy=_reduce_scatter_numpy, shape=_scattered, batch=_shifted, cost=1000,
    grad=lambda g, y, a: (ALL_GATHER(g, arg=y.arg),),
    check=lambda node: _splits(node, node.arg[2]),
)  # fmt: skip
ALL_TO_ALL: Op = Op(
    name="all_to_all", family="collective", cost=1000,
    doc="parts along one dimension exchanged, joined along another", arity=1,
    numpy=_all_to_all_numpy, shape=_exchanged, batch=_shifted,
    grad=lambda g, y, a: (ALL_TO_ALL(g, arg=(*y.arg[:2], y.arg[3], y.arg[2])),),
    check=lambda node: _splits(node, node.arg[2]) or _dim_check(node, node.arg[3]),
)  # fmt: skip
SEND_RECV: Op = Op(
    name="send_recv", family="collective", cost=1000, arity=1, numpy=_send_recv_numpy,
    doc="values sent along an axis of the mesh, zeros where none arrives", batch=_unchanged,
    grad=lambda g, y, a: (SEND_RECV(g, arg=(*y.arg[:2], _reversed(y.arg[2]))),),
    check=_send_recv_check,
)  # fmt: skip
LOCAL: Op = Op(
    name="local", family="collective", doc="this rank's shard of a value", arity=1,
    numpy=_local_numpy, shape=lambda node: local_shape(node.arg[0], node.arg[1], node.src[0].shape),
    grad=_local_grad, batch=_with_whole_batch, check=_layout_check, cost=0,
)  # fmt: skip
UNSHARD: Op = Op(
    name="unshard", family="collective", doc="the whole value of which each rank has a shard",
    arity=1, numpy=_unshard_numpy, grad=_unshard_grad,
    shape=lambda node: whole_shape(node.arg[0], node.arg[1], node.src[0].shape),
    batch=_with_whole_batch, check=_layout_check, cost=1000,
)  # fmt: skip
SHARD: Op = Op(
    name="shard", family="collective", doc="the value, kept in shards", arity=1,
    numpy=lambda node, a: a, grad=lambda g, y, a: (SHARD(g, arg=y.arg),),
    batch=_with_whole_batch, check=_layout_check, cost=0,
)  # fmt: skip
# Only the compiler makes these two: an ALL_REDUCE in two steps, between which others run.
START = Op(
    name="start_all_reduce", family="collective", doc="a sum over ranks begun: its ticket", arity=1,
    numpy=_start_numpy, dtype=lambda src, arg: int64, shape=lambda node: (), cost=1000,
    check=_all_reduce_check_of_source,
)  # fmt: skip
WAIT = Op(
    name="wait_all_reduce", family="collective", doc="what a sum over ranks gives", arity=1,
    dtype=None, numpy=_wait_numpy, shape=lambda node: shape_of(node.arg, node.src), cost=1000,
    sizes=slice(None),
)  # fmt: skip
LAYOUT_OPS = frozenset({LOCAL, UNSHARD, SHARD})
EXCHANGES = frozenset({ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECV})
COMMUNICATES = EXCHANGES | LAYOUT_OPS


def is_memory(node: Node) -> bool:
    """True if a value is in memory: all of it on every rank, or in shards."""
    return node.op is BUFFER or (node.op is UNSHARD and node.src[0].op is BUFFER)


def _reversed(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple([(there, source) for source, there in pairs])


# --- one process, ranks as the leading axis ------------------------------------------------------


def _apart(x: Node, mesh: MeshAxes) -> Node:
    """The rank axis as one dimension for each axis of the mesh."""
    return reshape(x, (*[size for _, size in mesh], *x.shape[1:]))


def _together(x: Node, mesh: MeshAxes) -> Node:
    return reshape(x, (mesh_size(mesh), *x.shape[len(mesh) :]))


def _numbers(mesh: MeshAxes, axes: Sequence[str]) -> tuple[int, ...]:
    names = [name for name, _ in mesh]
    return tuple([names.index(axis) for axis in axes])


def _ranked_all_reduce(y: Node, x: Node) -> Node:
    mesh, axes, how = y.arg
    lanes = _apart(x, mesh)
    total = reduce_node(how, lanes, _numbers(mesh, axes))
    return _together(expand(total, lanes.shape), mesh)


def _ranked_all_gather(y: Node, x: Node) -> Node:
    mesh, axes, dim = y.arg
    return _gather_lanes(x, mesh, axes, dim)


def _gather_lanes(x: Node, mesh: MeshAxes, axes: Sequence[str], dim: int) -> Node:
    """The values of a group joined along a dimension, the same for all of the group."""
    k, moved = len(mesh), _numbers(mesh, axes)
    lanes = _apart(x, mesh)
    kept = [d for d in range(k) if d not in moved]
    before = list(range(k, k + dim))
    after = list(range(k + dim, lanes.ndim))
    joined = permute(lanes, tuple([*kept, *before, *moved, *after]))
    size = sizes.mul(lanes.shape[k + dim], axes_size(mesh, axes))
    shape = [lanes.shape[d] for d in kept]
    rest = [*lanes.shape[k : k + dim], size, *lanes.shape[k + dim + 1 :]]
    joined = reshape(joined, (*shape, *rest))
    for d in sorted(moved):
        joined = reshape(joined, (*joined.shape[:d], 1, *joined.shape[d:]))
    return _together(expand(joined, (*lanes.shape[:k], *rest)), mesh)


def _own_lane(x: Node, mesh: MeshAxes, axes: Sequence[str], dim: int) -> Node:
    """Of every rank's value the part that is its own along a dimension."""
    count = axes_size(mesh, axes)
    lanes = _apart(x, mesh)
    k = len(mesh)
    size = sizes.floordiv(lanes.shape[k + dim], count)
    parts = reshape(
        lanes, (*lanes.shape[: k + dim], *[dict(mesh)[a] for a in axes], size,
                *lanes.shape[k + dim + 1 :])
    )  # fmt: skip
    for axis in reversed(axes):  # the diagonal of the mesh's axis and the part's
        place = k + dim + list(axes).index(axis)
        parts = _diagonal(parts, _numbers(mesh, (axis,))[0], place)
    return _together(parts, mesh)


def _diagonal(x: Node, a: int, b: int) -> Node:
    """The elements at which two dimensions agree, at the first; the second is gone."""
    same = iota(x.shape, a).eq(iota(x.shape, b))
    how = "add" if x.dtype.kind != "b" else "max"
    chosen = WHERE(same, x, constant_like(identity_of(how, x.dtype), x))  # -0.0 stays what it is
    kept = reduce_node(how, chosen, (b,))
    return reshape(kept, (*kept.shape[:b], *kept.shape[b + 1 :]))


def _ranked_reduce_scatter(y: Node, x: Node) -> Node:
    mesh, axes, dim = y.arg
    lanes = _apart(x, mesh)
    total = reduce_node("add", lanes, _numbers(mesh, axes))
    return _own_lane(_together(expand(total, lanes.shape), mesh), mesh, axes, dim)


def _ranked_all_to_all(y: Node, x: Node) -> Node:
    """Every rank gathers along the new dimension and keeps its part of the old one."""
    mesh, axes, split, join = y.arg
    if split != join:
        return _own_lane(_gather_lanes(x, mesh, axes, join), mesh, axes, split)
    count, d = axes_size(mesh, axes), 1 + split  # the parts are a dimension of their own
    size = sizes.floordiv(x.shape[d], count)
    parts = reshape(x, (*x.shape[:d], count, size, *x.shape[d + 1 :]))
    own = _own_lane(_gather_lanes(parts, mesh, axes, split + 1), mesh, axes, split)
    return reshape(own, x.shape)


def _ranked_send_recv(y: Node, x: Node) -> Node:
    mesh, axes, pairs = y.arg
    lanes = _apart(x, mesh)
    (d,) = _numbers(mesh, axes)
    index = iota(lanes.shape, d)
    result = constant_like(0, lanes)
    for source, there in pairs:
        cuts: list[Any] = [(0, n) for n in lanes.shape]
        cuts[d] = (source, source + 1)
        row = expand(shrink(lanes, cuts), lanes.shape)
        result = WHERE(index.eq(constant_like(there, index)), row, result)
    return _together(result, mesh)


def _ranked_local(y: Node, x: Node) -> Node:
    mesh, layout = y.arg
    for dim, axes in enumerate(layout):
        x = _own_lane(x, mesh, axes, dim) if axes else x
    return x


def _ranked_unshard(y: Node, x: Node) -> Node:
    mesh, layout, _ = y.arg
    for dim, axes in enumerate(layout):
        x = _gather_lanes(x, mesh, axes, dim) if axes else x
    return x


RANKED: dict[Op, Callable[[Node, Node], Node]] = {
    ALL_REDUCE: _ranked_all_reduce,
    ALL_GATHER: _ranked_all_gather,
    REDUCE_SCATTER: _ranked_reduce_scatter,
    ALL_TO_ALL: _ranked_all_to_all,
    SEND_RECV: _ranked_send_recv,
    LOCAL: _ranked_local,
    UNSHARD: _ranked_unshard,
    SHARD: lambda y, x: x,
}
