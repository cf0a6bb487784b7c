"""Ranks in a mesh, and who carries data between them: the seam that collectives call.

In: mesh axes as data, `(("data", 4), ("model", 2))`, ranks in row-major order, and a `World`, which
moves arrays between processes. Out: which ranks form a group, and where this one stands. Nothing
here knows MPI or NCCL: `runtime/distributed` enters itself. A world of more ranks than a mesh holds
as many copies of it, the mesh's own axes inside. The invariant: a graph never holds a rank, so that
all ranks compile one program; where a rank stands is bound when it runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..errors import ArgumentError
from .dtype import int64
from .node import Node
from .ops.leaf import variable

Array: TypeAlias = np.ndarray[Any, Any]
MeshAxes: TypeAlias = tuple[tuple[str, int], ...]  # name and size, outermost first
Layout: TypeAlias = tuple[tuple[str, ...], ...]  # for each dimension the mesh axes that split it


class World(Protocol):
    """Processes that exchange arrays; every call is made by all ranks of a group, in one order."""

    rank: int
    size: int

    def exchange(self, group: Sequence[int], parts: Sequence[Array], label: str) -> list[Array]:
        """Part number i goes to member i of the group; what every member sent here, in order."""

    def gather(self, group: Sequence[int], part: Array, label: str) -> list[Array]:
        """One part of every member of the group, in order."""

    def route(
        self, to: Sequence[int], sources: Sequence[int], array: Array, label: str
    ) -> list[Array]:
        """The array goes to some ranks; what came from the sources, in order."""

    def agree(self, digest: str, where: str) -> None:
        """An error unless all ranks are about to run the same program."""


class Alone:
    """The world of one process."""

    rank = 0
    size = 1

    def exchange(self, group: Sequence[int], parts: Sequence[Array], label: str) -> list[Array]:
        """What was given."""
        return list(parts)

    def gather(self, group: Sequence[int], part: Array, label: str) -> list[Array]:
        """What was given."""
        return [part]

    def route(
        self, to: Sequence[int], sources: Sequence[int], array: Array, label: str
    ) -> list[Array]:
        """What was given, if it is sent here."""
        return [array for _ in sources]

    def agree(self, digest: str, where: str) -> None:
        """Nobody else runs anything."""


_world: World = Alone()
_here = threading.local()  # a thread that stands for a rank has a world of its own


def world() -> World:
    """The processes of this job."""
    found: World = getattr(_here, "world", _world)
    return found


def enter_world(found: World, thread: bool = False) -> None:
    """Let collectives reach other processes; those of one thread, if it stands for a rank."""
    global _world
    if thread:
        _here.world = found
    else:
        _world = found


# what launchers set: which of the processes of its machine this one is
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def local_rank() -> int:
    """The number of this process among those of its machine: it uses that GPU."""
    for name in _LOCAL_RANKS:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


# --- places in a mesh ----------------------------------------------------------------------------


def mesh_size(mesh: MeshAxes) -> int:
    """How many ranks a mesh has."""
    return prod([size for _, size in mesh])


def check_world(mesh: MeshAxes) -> None:
    """An error unless the processes of this job fill whole copies of a mesh."""
    size = mesh_size(mesh)
    if world().size % size:
        raise ArgumentError(
            f"a mesh of {size} ranks in a job of {world().size}",
            f"launch it with: fulgurite launch -n {size} script.py",
        )


def coordinates(mesh: MeshAxes, rank: int) -> dict[str, int]:
    """Where a rank stands along each axis."""
    found: dict[str, int] = {}
    rest = rank % mesh_size(mesh)
    for name, size in reversed(mesh):
        rest, found[name] = divmod(rest, size)
    return found


def rank_at(mesh: MeshAxes, place: Mapping[str, int], rank: int) -> int:
    """The rank at a place of the copy of the mesh that a rank is in."""
    number = 0
    for name, size in mesh:
        number = number * size + place[name]
    return rank - rank % mesh_size(mesh) + number


def group_of(mesh: MeshAxes, axes: Sequence[str], rank: int) -> list[int]:
    """The ranks that differ from this one along some axes only, the last axis fastest."""
    sizes = dict(mesh)
    places = [coordinates(mesh, rank)]
    for axis in axes:
        places = [{**place, axis: i} for place in places for i in range(sizes[axis])]
    return [rank_at(mesh, place, rank) for place in places]


def axes_size(mesh: MeshAxes, axes: Sequence[str]) -> int:
    """How many parts some axes make."""
    sizes = dict(mesh)
    return prod([sizes[axis] for axis in axes])


_positions: dict[str, tuple[MeshAxes, str]] = {}  # the variables that stand for a rank's place


def index_variable(mesh: MeshAxes, axis: str) -> Node:
    """Where this rank stands along an axis, as a number that is known when a graph runs."""
    sizes = "x".join([f"{name}{size}" for name, size in mesh])
    name = f"rank along {axis} of {sizes}"
    _positions[name] = mesh, axis
    return variable(name, 0, dict(mesh)[axis] - 1, (), int64)


def position_values() -> dict[str, int]:
    """The values of these variables on this rank."""
    return {
        name: coordinates(mesh, world().rank)[axis] for name, (mesh, axis) in _positions.items()
    }
