"""Meshes, and tensors that are kept in shards over one.

In: sizes by name, and for a tensor which mesh axis splits which dimension. Out: a global view.
Every rank runs the same lines on tensors of the whole shape; `shard` says where each part of a
value lives, and what is computed from it follows (`graph/passes/partition.py`). In one process a
mesh is only a plan: shards are whole, so the same file runs with one rank and with many.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from operator import index

from .._lazy import FORK_LOCK
from ..core import build, ranks
from ..core.node import Node
from ..core.ops.collective import SHARD, layout_problem
from ..core.ranks import Layout, MeshAxes
from ..errors import ArgumentError
from ..runtime.distributed.launcher import is_launched
from ..tensor import Tensor, TensorLike, node_of, wrap

Split = Mapping[str, int]  # mesh axis -> dimension that it splits


class Mesh:
    """Ranks in a grid whose axes have names.

    Ranks are numbered row by row: the last axis is that of neighbours.

    >>> mesh = fg.Mesh({"data": 2, "model": 2})
    >>> mesh.size, mesh.axes
    (4, ('data', 'model'))
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        pairs = [(str(name), index(size)) for name, size in axes.items()]
        if not pairs or any([size < 1 or not name for name, size in pairs]):
            raise ArgumentError(f"a mesh of {dict(axes)}", 'give sizes by name: {"data": 4}')
        self.shape: MeshAxes = tuple(pairs)
        join_job()
        if ranks.world().size > 1:
            ranks.check_world(self.shape)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its axes."""
        return tuple([name for name, _ in self.shape])

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return ranks.mesh_size(self.shape)

    def __getitem__(self, axis: str) -> int:
        """The size of an axis."""
        if axis not in self.axes:
            raise ArgumentError(f"a mesh of {self.axes} has no axis {axis!r}", "name one of them")
        return dict(self.shape)[axis]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash(self.shape)

    def __repr__(self) -> str:
        return f"Mesh({dict(self.shape)})"

    @property
    def is_spread(self) -> bool:
        """True if its ranks are processes; in one process it is only a plan."""
        return ranks.world().size > 1

    def layout(self, split: Split | None, ndim: int) -> Layout:
        """For each dimension the axes that split it, in the order of the mesh."""
        found: list[tuple[str, ...]] = [() for _ in range(ndim)]
        for axis in split or {}:
            if axis not in self.axes:
                raise ArgumentError(f"{self} has no axis {axis!r}", f"name one of {self.axes}")
        for axis in self.axes:
            if split and axis in split and self[axis] > 1:
                dim = build.as_axis(split[axis], ndim)
                found[dim] = (*found[dim], axis)
        return tuple(found)


class _Inside(threading.local):
    """The mesh of the `fg.shard_map` that is being built, and the number of its rank axis."""

    mesh: Mesh | None = None
    lanes: int | None = None


inside = _Inside()


def check_outside(name: str) -> None:
    """An error in a function of shards: what splits whole values has none there."""
    if inside.mesh is not None:
        raise ArgumentError(
            f"{name} inside of fg.shard_map", "call it outside, on whole values: use more axes"
        )


def join_job() -> None:
    """Meet the other processes, if this one was launched as one of several."""
    if ranks.world().size == 1 and is_launched():
        with FORK_LOCK:
            from ..runtime.distributed import mpi
        mpi.join()


def job() -> tuple[int, int]:
    """The number of this process among those of its job, and how many there are."""
    join_job()
    return ranks.world().rank, ranks.world().size


def shard(x: TensorLike, mesh: Mesh, split: Split | None = None) -> Tensor:
    """The tensor, kept in shards: each mesh axis that is named splits the dimension it is given.

    Every rank calls it with the same whole value and goes on computing with whole shapes; each
    keeps its part only. Without a split every rank keeps all of it. Gradients are sharded alike.
    A size that the mesh does not divide is split for computing (the last ranks have less), but what
    is kept of such a value is whole on every rank.

    >>> mesh = fg.Mesh({"data": 2})
    >>> fg.shard(fg.ones((4, 3)), mesh, {"data": 0}).shape
    (4, 3)
    """
    check_outside("fg.shard")
    node = node_of(x)
    layout = mesh.layout(split, node.ndim)
    check_layout(node, mesh, layout, even=False)
    if not mesh.is_spread:
        return x if isinstance(x, Tensor) else wrap(node)
    return wrap(build.note(SHARD(node, arg=(mesh.shape, layout, False))))


def check_layout(node: Node, mesh: Mesh, layout: Layout, even: bool = True) -> None:
    """An error unless a value has such shards, equal ones if they must be."""
    problem = layout_problem(mesh.shape, layout, node.shape, even)
    if problem is not None:
        raise ArgumentError(problem, "split a dimension that the mesh divides", None)
