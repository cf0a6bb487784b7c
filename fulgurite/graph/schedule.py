"""Scheduling: a normalised graph becomes kernels in the order they run.

In: a SINK over PARAMs. Out: a `Schedule`: items of one kernel each, over numbered slots. A kernel
is a small graph over its own PARAMs, numbered on first use, so that identical layers are one
kernel and compile once. Nodes come in topological order, so an item reads only slots written
before it. For now every node that computes is a kernel of its own; constants ride inside the
kernel that reads them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..core.dtype import DType
from ..core.node import Node, Shape, toposort
from ..core.ops.leaf import CONST, IOTA, PARAM, SINK, VAR, param
from ..core.ops.movement import expand, reshape
from ..core.substitute import rebuild

_INLINE = frozenset({CONST, VAR, IOTA})  # leaves that cost nothing to make again


@dataclass(frozen=True, slots=True)
class Kernel:
    """One unit of native code: outputs as a graph over its numbered params."""

    body: Node  # SINK of the outputs; as a node it is its own normalised key
    inputs: int

    @property
    def key(self) -> Hashable:
        """Equal kernels have equal keys: the body is interned, so identity is structure."""
        return self.body

    @property
    def name(self) -> str:
        """A readable name."""
        return "_".join(root.op.name for root in self.body.src)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a value: an input, a constant, or something a kernel writes."""

    dtype: DType
    shape: Shape
    device: str | None
    bits: int | None = None  # of a constant


@dataclass(frozen=True, slots=True)
class Item:
    """One kernel and the slots it reads and writes."""

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    origin: str  # the user's line, if known


@dataclass(frozen=True, slots=True)
class Schedule:
    """Kernels in order over slots; the first `inputs` slots are the params of the graph."""

    inputs: int
    slots: tuple[Slot | None, ...]  # None: an input that nothing reads
    items: tuple[Item, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"{self.inputs} inputs, outputs in slots {list(self.outputs)}"]
        for item in self.items:
            reads, writes = list(item.reads), list(item.writes)
            where = f"  # {item.origin}" if item.origin else ""
            lines.append(f"{writes} = {item.kernel.name}{reads}{where}")
        return "\n".join(lines)


def schedule(sink: Node, inputs: int) -> Schedule:
    """One kernel for each computing node, in topological order."""
    assert sink.op is SINK, "a schedule is of a SINK"
    order = toposort([sink])
    roots = set(sink.src)
    slots: list[Slot | None] = [None] * inputs
    place: dict[Node, int] = {}
    items: list[Item] = []
    for node in order:
        if node.op is PARAM:
            place[node] = node.arg[0]
            slots[node.arg[0]] = _slot(node)
        elif node.op is not SINK and (node in roots or not _rides_along(node)):
            item = _item(node, place, slots)
            place[node] = item.writes[0]
            items.append(item)
    return Schedule(inputs, tuple(slots), tuple(items), tuple([place[r] for r in sink.src]))


def _rides_along(node: Node) -> bool:
    """Is it a leaf or arithmetic on sizes, which every kernel that needs it carries inside?"""
    return node.op in _INLINE or (
        node.device is None and node.dtype.kind in "iu" and node.shape == ()
    )


def _slot(node: Node) -> Slot:
    return Slot(node.dtype, node.shape, node.device)


def _item(node: Node, place: dict[Node, int], slots: list[Slot | None]) -> Item:
    """The kernel of one node: what it reads becomes its params, numbered on first use."""
    reads: dict[int, Node] = {}

    def number(slot: int, shape: Shape, dtype: DType, device: str | None) -> Node:
        return reads.setdefault(slot, param(len(reads), shape, dtype, device))

    def carried(source: Node) -> Node:
        return rebuild(source, tuple([carried(s) for s in source.src]))

    def inside(source: Node) -> Node:
        slot = place.get(source)
        if slot is not None:
            return number(slot, source.shape, source.dtype, source.device)
        if source.op is CONST and not source.src:  # a number is data: kernels differ in none
            slots.append(Slot(source.dtype, (), None, source.arg[0]))
            scalar = number(len(slots) - 1, (), source.dtype, None)
            return expand(reshape(scalar, (1,) * source.ndim), source.shape)
        return carried(source)

    data = len(node.src) if node.op.arity is None else node.op.arity
    sources = [inside(s) if i < data else carried(s) for i, s in enumerate(node.src)]
    body = rebuild(node, tuple(sources))
    origin = str(node.origins[0]) if node.origins else ""
    slots.append(_slot(node))
    return Item(Kernel(SINK(body), len(reads)), tuple(reads), (len(slots) - 1,), origin)
