"""Kernels and schedules: what the scheduler hands to plans.

In: groups of nodes that become one kernel. Out: `Kernel`s, small graphs over their own PARAMs.
A kernel is keyed at tensor level before anything is lowered: params are numbered on first use,
inexact constants are scalars that arrive like data, and the key is the plain tuple of entries, so
twelve equal layers, or the same update with another learning rate, are one kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.dtype import DType
from ..core.node import Node, Shape, make, remember, shape_of
from ..core.ops.leaf import CONST, SINK, param
from ..core.ops.movement import RESHAPE, expand
from ..core.origin import Origin


@dataclass(frozen=True, slots=True)
class Kernel:
    """One unit of native code: outputs as a graph over its numbered params."""

    kind: str  # map, reduce, contract, scan, sort, scatter or host
    body: Node  # SINK of the outputs; interned, so its identity is the kernel's structure
    inputs: int

    @property
    def key(self) -> Hashable:
        """Equal kernels have equal keys."""
        return self.body

    @property
    def name(self) -> str:
        """A readable name: its kind and the ops that end it."""
        return f"{self.kind}:{'+'.join(root.op.name for root in self.body.src)}"


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
    origins: tuple[Origin, ...]  # the user's lines that it computes
    reason: str = ""  # why it begins a kernel of its own

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that it computes, as text."""
        return tuple(dict.fromkeys(map(str, self.origins)))


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
            where = f"  # {item.lines[0]}" if item.lines else ""
            lines.append(f"{list(item.writes)} = {item.kernel.name}{list(item.reads)}{where}")
        return "\n".join(lines)


class Extractor:
    """Cuts kernels out of a graph; equal cuts give the same `Kernel` object."""

    def __init__(self, slots: list[Slot | None]) -> None:
        self.slots = slots
        self.kernels: dict[Hashable, Kernel] = {}
        self.scalars: dict[tuple[int, DType], int] = {}

    def cut(
        self, kind: str, outputs: Sequence[Node], place: dict[Node, int]
    ) -> tuple[Kernel, tuple[int, ...], tuple[Origin, ...]]:
        """The kernel that computes `outputs` from what has a place, and the slots it reads."""
        entries, reads, nodes = self._entries(outputs, place)
        key = (kind, entries)
        found = self.kernels.get(key)
        if found is None:
            found = self.kernels[key] = Kernel(kind, _restored(entries, nodes), len(reads))
        origins = dict.fromkeys([n.origins[0] for n in nodes if n.origins])
        return found, reads, tuple(origins)

    def _entries(
        self, outputs: Sequence[Node], place: dict[Node, int]
    ) -> tuple[tuple[Hashable, ...], tuple[int, ...], list[Node]]:
        number: dict[Node, int] = {}
        reads: dict[int, int] = {}  # slot -> param number
        entries: list[Hashable] = []
        nodes: list[Node] = []
        inside = set(outputs)
        path: list[Node] = []
        stack = [iter(outputs)]
        while stack:  # depth first, sources first, as toposort
            for node in stack[-1]:
                if node in number:
                    continue
                op = node.op
                memory = _memory(node) if op is RESHAPE else node
                slot = place.get(memory)
                entry: Hashable
                if slot is not None and memory not in inside and node not in inside:
                    entry = ("param", node.dtype, reads.setdefault(slot, len(reads)), node.shape)
                elif op is CONST and node.dtype.is_inexact and not node.src:
                    slot = self._scalar(node)
                    entry = ("scalar", node.dtype, reads.setdefault(slot, len(reads)), node.arg[1])
                else:
                    path.append(node)
                    stack.append(iter(node.src))
                    break
                number[node] = len(entries)
                nodes.append(node)
                entries.append(entry)
            else:
                stack.pop()
                if path:
                    node = path.pop()
                    number[node] = len(entries)
                    nodes.append(node)
                    entries.append((node.op, node.dtype, node.arg, *[number[s] for s in node.src]))
        entries.extend([number[output] for output in outputs])
        return tuple(entries), tuple(reads), nodes

    def _scalar(self, node: Node) -> int:
        key = (node.arg[0], node.dtype)
        slot = self.scalars.get(key)
        if slot is None:
            slot = self.scalars[key] = len(self.slots)
            self.slots.append(Slot(node.dtype, (), None, node.arg[0]))
        return slot


def _memory(node: Node) -> Node:
    """What a reshape reads: row-major memory has every shape of as many elements."""
    while node.op is RESHAPE and all(isinstance(n, int) for n in node.src[0].shape):
        node = node.src[0]
    return node


def _restored(entries: Sequence[Any], originals: Sequence[Node]) -> Node:
    """The SINK that entries describe, with the user's lines of what it was cut from."""
    nodes: list[Node] = []
    roots: list[Node] = []
    for entry in entries:
        if isinstance(entry, int):
            roots.append(nodes[entry])
        elif entry[0] == "param":
            _, dtype, number, shape = entry
            nodes.append(param(number, shape, dtype, None))
        elif entry[0] == "scalar":
            _, dtype, number, dims = entry
            shape = shape_of(dims, ())
            nodes.append(expand(param(number, (1,) * len(shape), dtype, None), shape))
        else:
            op, dtype, arg, *places = entry
            nodes.append(make(op, dtype, tuple([nodes[p] for p in places]), arg))
    for node, original in zip(nodes, originals, strict=True):
        remember(node, original.origins)
    return SINK(*roots)
