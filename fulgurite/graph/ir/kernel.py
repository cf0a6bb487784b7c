"""Kernels and schedules: what the scheduler hands to plans.

In: groups of nodes that become one kernel. Out: `Kernel`s, small graphs over their own PARAMs.
A kernel is keyed at tensor level before anything is lowered: params are numbered on first use,
inexact constants are scalars that arrive like data, and nodes are interned, so twelve equal layers,
or the same update with another learning rate, are one body and one kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import field
from functools import cache
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from ...core.dtype import DType, decode
from ...core.lazy_dataclass import dataclass
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, Shape, make, remember, toposort
from ...core.ops.effect import CONTIGUOUS, REMAT
from ...core.ops.leaf import CONST, PARAM, SINK, param
from ...core.ops.movement import RESHAPE, expand
from ...core.origin import Origin
from .kernel_kind import KernelKind
from .reshape_groups import CannotLower

if TYPE_CHECKING:
    from .lower import IndexKernel

Memory: TypeAlias = "Node | tuple[int, DType]"  # a stored value, or the bits of a scalar


@dataclass(frozen=True, slots=True)
class Kernel:
    """One unit of native code: outputs as a graph over its numbered params."""

    kind: KernelKind
    body: Node  # SINK of the outputs; interned, so its identity is the kernel's structure
    inputs: int
    lowered: IndexKernel | CannotLower | None = field(default=None, compare=False, repr=False)
    plan: object = field(default=None, compare=False, repr=False)  # of its provider

    @property
    def indexed(self) -> IndexKernel:
        """Its body in index notation; `CannotLower` says why it has none."""
        found = self.lowered
        if isinstance(found, CannotLower):
            raise CannotLower(*found.args)
        assert found is not None, f"{self.name} was not lowered"
        return found

    @property
    def key(self) -> Hashable:
        """Equal kernels have equal keys."""
        return self.body

    @property
    def name(self) -> str:
        """A readable name: its kind and the ops that end it."""
        return f"{self.kind}:{'+'.join(root.op.name for root in self.body.src)}"


def is_collective(kernel: Kernel) -> bool:
    """True if a kernel does nothing but exchange values with other ranks."""
    return all([root.op.family == "collective" for root in kernel.body.src])


def params_of(kernel: Kernel) -> list[Node]:
    """The params of a kernel in order: inputs, then outputs."""
    known = {n.arg[0]: n for n in toposort([kernel.body]) if n.op is PARAM}
    return [*[known[number] for number in range(kernel.inputs)], *kernel.body.src]


def param_dtypes(kernel: Kernel) -> tuple[DType, ...]:
    """The dtypes of a kernel's params in order: inputs, then outputs."""
    return tuple([param.dtype for param in params_of(kernel)])


class Slot(NamedTuple):
    """A place for a value: an input, a constant, or something a kernel writes."""

    dtype: DType
    shape: Shape
    device: str | None
    bits: int | None = None  # of a constant


class Item(NamedTuple):
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


class Schedule(NamedTuple):
    """Kernels in order over slots; the first `inputs` slots are the params of the graph."""

    inputs: int
    slots: tuple[Slot | None, ...]  # None: an input that nothing reads
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...] = ()  # (slot, the input whose memory it takes over)
    joined: tuple[tuple[int, int], ...] = ()  # (a part, the slot in whose memory it is stored)

    def __str__(self) -> str:
        lines = [f"{self.inputs} inputs, outputs in slots {list(self.outputs)}"]
        lines += [f"[{slot}] over [{place}]" for slot, place in self.aliases]
        lines += [f"[{slot}] within [{place}]" for slot, place in self.joined]
        for item in self.items:
            where = f"  # {item.lines[0]}" if item.lines else ""
            lines.append(f"{list(item.writes)} = {item.kernel.name}{list(item.reads)}{where}")
        return "\n".join(lines)


Cut: TypeAlias = tuple[Kernel, tuple[Memory, ...], tuple[Origin, ...]]


class Extractor:
    """Cuts kernels out of a graph; equal cuts give the same `Kernel` object."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, Node], Kernel] = {}
        self.param, self.scalar = cache(_param), cache(_scalar)

    def cut(self, kind: str, outputs: Sequence[Node], readable: Set[Node]) -> Cut:
        """The kernel that computes `outputs` from what is readable, and what it reads of that."""
        made, reads = self._copied(kind, outputs, readable)
        roots: list[Node] = []
        owner: dict[Node, Node] = {}
        for output in outputs:
            root = made[output]
            while owner.setdefault(root, output) is not output:
                root = CONTIGUOUS(root)  # they differed only in when they run: each has its memory
            roots.append(root)
        body = SINK(*roots)
        found = self.kernels.get((kind, body))
        if found is None:
            found = self.kernels[kind, body] = Kernel(KernelKind(kind), body, len(reads))
            for original, copy in made.items():
                remember(copy, original.origins)
        computed = [n for n, copy in made.items() if copy.op is not PARAM and n.op is not CONST]
        lines = dict.fromkeys([n.origins[0] for n in computed or made if n.origins])
        return found, tuple(reads), tuple(lines)

    def _copied(
        self, kind: str, outputs: Sequence[Node], readable: Set[Node]
    ) -> tuple[dict[Node, Node], dict[Memory, int]]:
        """The nodes that compute `outputs`, over numbered params, and the number of each memory."""
        made: dict[Node, Node] = {}
        reads: dict[Memory, int] = {}
        path: list[Node] = []
        stack = [iter(outputs)]
        while stack:  # depth first, sources first, as toposort
            for node in stack[-1]:
                if node in made:
                    continue
                op = node.op
                memory = _memory(node) if op is RESHAPE and node not in outputs else node
                if memory in readable:
                    number = reads.setdefault(memory, len(reads))
                    made[node] = self.param(number, node.dtype, node.shape)
                elif op is CONST and node.dtype.is_inexact and not _stays(kind, node):
                    number = reads.setdefault((node.arg[0], node.dtype), len(reads))
                    made[node] = self.scalar(number, node.dtype, node.shape)
                else:
                    path.append(node)
                    stack.append(iter(node.src[:1] if op is REMAT else node.src))
                    break
            else:
                stack.pop()
                if path:
                    node = path.pop()
                    made[node] = _copy(node, made, node in outputs)
        return made, reads


def _copy(node: Node, made: Mapping[Node, Node], is_output: bool) -> Node:
    """A node over the copies of its sources."""
    if node.op is REMAT:  # when it runs is decided: within a kernel it is its value
        value = made[node.src[0]]
        return CONTIGUOUS(value) if is_output else value
    sources = tuple(map(made.__getitem__, node.src))
    return make(node.op, node.dtype, sources, node.arg)


def _stays(kind: str, node: Node) -> bool:
    """True if a constant is compiled into the kernel: in a fold those that laws name."""
    return bool(node.src) or (kind == KernelKind.FOLD and in_laws((node.arg[0], node.dtype)))


def in_laws(memory: Memory) -> bool:
    """True if laws of folds name the number: it is a constant of their kernels, not an input."""
    return not isinstance(memory, Node) and decode(*memory) in _NAMED


_NAMED = (0.0, 1.0, 2.0, inf, -inf)


def _param(number: int, dtype: DType, shape: Shape) -> Node:
    return param(number, shape, dtype, None)


def _scalar(number: int, dtype: DType, shape: Shape) -> Node:
    return expand(param(number, (1,) * len(shape), dtype, None), shape)


def _memory(node: Node) -> Node:
    """What a reshape reads: row-major memory has every shape of as many elements."""
    while node.op is REMAT or (
        node.op is RESHAPE and all(isinstance(n, int) for n in node.src[0].shape)
    ):
        node = node.src[0]
    return node
