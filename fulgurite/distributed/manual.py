"""The manual mode: a function that each rank runs on its own shards, with explicit collectives.

In: a function of local tensors, a mesh, and how arguments and results are split. Out: a function of
whole tensors. With many processes the function's graph is built once, on this rank's shards; with
one process all ranks are computed side by side, as the leading axis of every value, so results,
gradients and errors are those of the real thing: that is the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from ..core import build, ranks
from ..core.dtype import int64
from ..core.node import Node, constant, remember, toposort
from ..core.ops.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    LOCAL,
    RANKED,
    REDUCE_SCATTER,
    SEND_RECV,
    UNSHARD,
    local_shape,
    used_axes,
)
from ..core.ops.leaf import iota
from ..core.ops.movement import permute, reshape, shrink
from ..core.ops.transform import EXAMPLE, _batched, new_batch, spread
from ..core.ranks import Layout, MeshAxes
from ..errors import ArgumentError
from ..tensor import Tensor, TensorLike, node_of, transforming, wrap
from ..tree import flatten, unflatten
from .mesh import Mesh, check_layout, check_outside
from .mesh import inside as _inside


def shard_map(
    function: Callable[..., Any], mesh: Mesh, in_splits: Any, out_splits: Any
) -> Callable[..., Any]:
    """The function of whole tensors whose shards every rank gives to `function`.

    `in_splits` has one split (or None) for each argument, `out_splits` one for each result: a dict
    from mesh axis to the dimension that it splits. A result that an axis does not split must be the
    same on all its ranks. Inside, `fg.all_reduce` and the like exchange values.

    >>> mesh = fg.Mesh({"data": 4})
    >>> total = fg.shard_map(lambda x: fg.all_reduce(x.sum(), "data"), mesh, [{"data": 0}], None)
    >>> total(fg.arange(8)).item()
    28
    """
    splits = in_splits if isinstance(in_splits, list | tuple) else (in_splits,)

    @wraps(function)
    def mapped(*args: Any) -> Any:
        check_outside("fg.shard_map")
        if len(args) != len(splits):
            raise ArgumentError(
                f"{len(args)} arguments and {len(splits)} splits", "give one for each"
            )
        leaves: list[tuple[Node, Layout]] = []
        forms = []
        for arg, split in zip(args, splits, strict=True):
            found, form = flatten(arg)
            forms.append(form)
            for leaf in found:
                node = node_of(leaf)
                layout = mesh.layout(split, node.ndim)
                check_layout(node, mesh, layout)
                leaves.append((node, layout))
        run = _spread if mesh.is_spread else _side_by_side

        def call(local: Sequence[Node]) -> tuple[list[Node], Any]:
            rest = iter([wrap(build.note(node)) for node in local])
            given = [unflatten(form, [next(rest) for _ in range(form.count)]) for form in forms]
            outputs, out_form = flatten(function(*given))
            return [node_of(output) for output in outputs], out_form

        before = _inside.mesh, _inside.lanes
        _inside.mesh = mesh
        try:
            with transforming():
                results, out_form = run(mesh, leaves, call, out_splits)
        finally:
            _inside.mesh, _inside.lanes = before
        return unflatten(out_form, [wrap(build.note(node)) for node in results])

    return mapped


Call = Callable[[Sequence[Node]], tuple[list[Node], Any]]


def _out_layouts(
    mesh: Mesh, nodes: Sequence[Node], ndims: Sequence[int], splits: Any
) -> list[Layout]:
    several = isinstance(splits, list | tuple)
    given = list(splits) if several else [splits] * len(nodes)
    if len(given) != len(nodes):
        raise ArgumentError(f"{len(nodes)} results and {len(given)} splits", "give one for each")
    return [mesh.layout(split, ndim) for split, ndim in zip(given, ndims, strict=True)]


def _spread(
    mesh: Mesh, leaves: list[tuple[Node, Layout]], call: Call, out_splits: Any
) -> tuple[list[Node], Any]:
    """This rank's part of the job."""
    local = [LOCAL(node, arg=(mesh.shape, layout)) for node, layout in leaves]
    found, form = call(local)
    layouts = _out_layouts(mesh, found, [n.ndim for n in found], out_splits)
    pairs = zip(found, layouts, strict=True)
    return [UNSHARD(node, arg=(mesh.shape, layout, False)) for node, layout in pairs], form


# --- one process ---------------------------------------------------------------------------------


def _side_by_side(
    mesh: Mesh, leaves: list[tuple[Node, Layout]], call: Call, out_splits: Any
) -> tuple[list[Node], Any]:
    """All ranks at once, along a leading axis."""
    batch = _inside.lanes = new_batch()
    local = [EXAMPLE(stacked(node, mesh.shape, layout), arg=batch) for node, layout in leaves]
    found, form = call(local)
    lanes = ranked(found, batch, mesh.shape)
    layouts = _out_layouts(mesh, found, [n.ndim for n in found], out_splits)
    return [unstacked(n, mesh.shape, lay) for n, lay in zip(lanes, layouts, strict=True)], form


def ranked(roots: Sequence[Node], batch: int, mesh: MeshAxes) -> list[Node]:
    """Every root for all ranks at once: collectives read across the leading axis."""
    done: dict[Node, Node] = {}
    size = ranks.mesh_size(mesh)
    for node in toposort(roots):
        if node.op is EXAMPLE and node.arg == batch:
            done[node] = node.src[0]
        elif node.op in RANKED and (node.src[0] in done or node.arg[0] == mesh):
            source = node.src[0]
            lanes = done[source] if source in done else spread(source, size)
            done[node] = remember(RANKED[node.op](node, lanes), node.origins)
        elif any([s in done for s in node.src]):
            done[node] = remember(_batched(node, done), node.origins)
    return [done[root] if root in done else spread(root, size) for root in roots]


def stacked(x: Node, mesh: MeshAxes, layout: Layout) -> Node:
    """The shards of all ranks along a leading axis."""
    sizes = dict(mesh)
    shape: list[Any] = []
    places: dict[str, int] = {}
    own: list[int] = []
    for n, axes, local in zip(x.shape, layout, local_shape(mesh, layout, x.shape), strict=True):
        for axis in axes:
            places[axis] = len(shape)
            shape.append(sizes[axis])
        own.append(len(shape))
        shape.append(local if axes else n)
    split = reshape(x, tuple(shape))
    order = [places[name] for name, _ in mesh if name in places]
    split = permute(split, (*order, *own))
    there = [name for name, _ in mesh if name in places]
    inner = split.shape[len(order) :]
    grid = reshape(split, (*[sizes[n] if n in there else 1 for n, _ in mesh], *inner))
    whole = build.expand(grid, (*[size for _, size in mesh], *inner))
    return reshape(whole, (ranks.mesh_size(mesh), *inner))


def unstacked(lanes: Node, mesh: MeshAxes, layout: Layout) -> Node:
    """The whole value of shards along a leading axis; of equal shards the first."""
    used = used_axes(layout)
    grid = reshape(lanes, (*[size for _, size in mesh], *lanes.shape[1:]))
    k = len(mesh)
    cuts: list[Any] = [
        *[(0, size if name in used else 1) for name, size in mesh],
        *[(0, n) for n in lanes.shape[1:]],
    ]
    grid = shrink(grid, cuts)
    names = [name for name, _ in mesh]
    order: list[int] = [d for d, name in enumerate(names) if name not in used]
    shape: list[Any] = []
    for dim, axes in enumerate(layout):
        order += [*[names.index(axis) for axis in axes], k + dim]
        shape.append(lanes.shape[1 + dim] * ranks.axes_size(mesh, axes))
    return reshape(permute(grid, tuple(order)), tuple(shape))


# --- what ranks may do inside --------------------------------------------------------------------


def _mesh_axes(axes: str | Sequence[str]) -> tuple[MeshAxes, tuple[str, ...]]:
    mesh = _inside.mesh
    if mesh is None:
        raise ArgumentError(
            "a collective outside of fg.shard_map", "ranks exchange values inside of it"
        )
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    for name in names:
        mesh[name]
    return mesh.shape, names


def _checked(node: Node) -> Tensor:
    problem = node.op.check(node)
    if problem is not None:
        raise ArgumentError(f"{node.op}: {problem}", "see docs/distributed.md")
    return wrap(build.note(node))


def all_reduce(x: TensorLike, axes: str | Sequence[str], op: str = "add") -> Tensor:
    """Inside `fg.shard_map`: the values of all ranks along mesh axes folded; every rank gets that.

    `op` is "add", "mul", "max" or "min". Sums run in the order of ranks.
    """
    mesh, names = _mesh_axes(axes)
    return _checked(ALL_REDUCE(node_of(x), arg=(mesh, names, op)))


def all_gather(x: TensorLike, axes: str | Sequence[str], axis: int = 0) -> Tensor:
    """Inside `fg.shard_map`: the values of all ranks along mesh axes, joined along a dimension."""
    mesh, names = _mesh_axes(axes)
    node = node_of(x)
    return _checked(ALL_GATHER(node, arg=(mesh, names, build.as_axis(axis, node.ndim))))


def reduce_scatter(x: TensorLike, axes: str | Sequence[str], axis: int = 0) -> Tensor:
    """Inside `fg.shard_map`: the sum of all ranks' values, of which each keeps its part."""
    mesh, names = _mesh_axes(axes)
    node = node_of(x)
    return _checked(REDUCE_SCATTER(node, arg=(mesh, names, build.as_axis(axis, node.ndim))))


def all_to_all(
    x: TensorLike, axes: str | Sequence[str], split_axis: int, concat_axis: int
) -> Tensor:
    """Inside `fg.shard_map`: parts along one dimension are exchanged and joined along another."""
    mesh, names = _mesh_axes(axes)
    node = node_of(x)
    split, join = build.as_axis(split_axis, node.ndim), build.as_axis(concat_axis, node.ndim)
    return _checked(ALL_TO_ALL(node, arg=(mesh, names, split, join)))


def send_recv(x: TensorLike, axis: str, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Inside `fg.shard_map`: (source, destination) pairs along one mesh axis; others get zeros."""
    mesh, names = _mesh_axes(axis)
    ends = tuple([(int(a), int(b)) for a, b in pairs])
    return _checked(SEND_RECV(node_of(x), arg=(mesh, names, ends)))


def axis_index(axis: str) -> Tensor:
    """Inside `fg.shard_map`: where this rank stands along a mesh axis."""
    mesh, _ = _mesh_axes(axis)
    if _inside.lanes is None:
        return wrap(ranks.index_variable(mesh, axis) + constant(0, int64))
    size = ranks.mesh_size(mesh)
    sizes = dict(mesh)
    inner = ranks.axes_size(
        mesh, [name for name, _ in mesh[[n for n, _ in mesh].index(axis) + 1 :]]
    )
    places = (iota((size,), 0, int64) // inner) % sizes[axis]
    return wrap(EXAMPLE(places, arg=_inside.lanes))
