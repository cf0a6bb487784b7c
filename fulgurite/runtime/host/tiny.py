"""A tiny graph on the host: its NumPy meanings in a row, with nothing between them.

In: the one host kernel of a schedule made by `graph.whole`. Out: `run(inputs)`. Results are the
arrays that NumPy made, not copies of them, unless they share memory with something else; what
depends on no input, a mask of a roll or a triangle, is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.node import Node, toposort
from ...core.op import Array, meaning_of
from ...core.ops.effect import CALL, CUSTOM
from ...core.ops.leaf import CONST, PARAM, SINK, VAR
from ...core.ops.movement import EXPAND
from ...core.symbolic.sym import varies
from ...graph.ir.kernel import Schedule
from ...graph.ir.kernel_kind import KernelKind
from ...graph.memory.arena import Layout
from ..device import Buffer, Device, MemoryLimitError, Values
from ..recording import timed_step
from ..step_executor import HostExecutor, StepArena
from .device import HostBuffer

_DONE_ONCE = frozenset({"leaf", "elementwise", "movement", "reduce"})  # which cannot fail
_KEPT_ELEMENTS = 1 << 12  # of a value that a plan keeps
MAX_ARRAY_ELEMENTS = 1 << 58  # elements: NumPy counts the bytes of an array in 63 bits


def is_whole(schedule: Schedule) -> bool:
    """True if a schedule is one host step over static sizes."""
    if len(schedule.items) != 1 or schedule.items[0].kernel.kind is not KernelKind.HOST:
        return False
    nodes = toposort([schedule.items[0].kernel.body])
    written = set(schedule.items[0].writes)
    plain = all(i < schedule.inputs for i in schedule.items[0].reads)  # no constants in slots
    static = not any([n.op in (VAR, CALL) or any(map(varies, n.shape)) for n in nodes])
    return plain and static and written >= set(schedule.outputs)


def _too_large(node: Node) -> MemoryLimitError:
    return MemoryLimitError(
        f"no memory for {node.dtype} of shape {node.shape}", "free some tensors or use less"
    )


def _broadcast_alone(order: Sequence[Node], roots: Sequence[Node]) -> set[Node]:
    """EXPANDs whose readers NumPy broadcasts by itself: elementwise ops with a whole source too."""
    found = {node for node in order if node.op is EXPAND and node not in roots}
    for node in order:
        stretched = found.intersection(node.src)
        if stretched and (node.op.family != "elementwise" or stretched.issuperset(node.src)):
            found -= stretched
    return found


class TinyExecutor(HostExecutor):
    """The steps of a tiny graph: NumPy's calls in a row."""

    def __init__(self, schedule: Schedule, device: Device) -> None:
        self.schedule, self.device = schedule, device
        (item,) = schedule.items
        order = [n for n in toposort([item.kernel.body]) if n.op is not SINK]
        place = {node: i for i, node in enumerate(order)}
        self.order = order
        self.first: list[Array | None] = [None] * len(order)
        self.params: list[tuple[int, int, tuple[int, ...]]] = []
        self.steps: list[tuple[int, Node, tuple[int, ...]]] = []
        for i, node in enumerate(order):
            if prod(node.shape) > MAX_ARRAY_ELEMENTS:  # sizes are numbers here
                raise _too_large(node)
            if node.op is PARAM:
                self.params.append((i, item.reads[node.arg[0]], node.shape))  # type: ignore[arg-type]
            elif node.op is CONST and not node.src:
                assert node.op.numpy is not None
                self.first[i] = node.op.numpy(node)
        self._find_steps(place, item.kernel.body.src)
        self._do_once()
        self.calls = [(i, meaning_of(node), sources) for i, node, sources in self.steps]
        known = [i for i, array in enumerate(self.first) if array is not None]
        self.given = {*known, *[i for i, n in enumerate(order) if n.op in (PARAM, CUSTOM)]}
        roots = dict(zip(item.writes, item.kernel.body.src, strict=True))
        self.roots = [place[roots[output]] for output in schedule.outputs]

    def _find_steps(self, place: dict[Node, int], roots: Sequence[Node]) -> None:
        """What is computed, with the places of sources; NumPy broadcasts some of them by itself."""
        skipped = _broadcast_alone(self.order, roots)
        for i, node in enumerate(self.order):
            if node.op is PARAM or node in skipped or (node.op is CONST and not node.src):
                continue
            sources = [s.src[0] if s in skipped else s for s in node.src]
            self.steps.append((i, node, tuple([place[s] for s in sources])))

    def _do_once(self) -> None:
        """Take steps that depend on no input out of those of every run."""
        left = []
        for i, node, sources in self.steps:
            arrays = [now for s in sources if (now := self.first[s]) is not None]
            few = node.op.family in _DONE_ONCE and prod(node.shape) <= _KEPT_ELEMENTS
            if few and len(arrays) == len(sources):
                assert node.op.numpy is not None
                with np.errstate(all="ignore"):
                    self.first[i] = node.op.numpy(node, *arrays)
            else:
                left.append((i, node, sources))
        self.steps = left

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass over the nodes."""
        recorder = self.device.recorder
        if recorder is None:
            return self._run(inputs)
        used = self.device.memory_stats()["used"]
        with timed_step(recorder, self.schedule, self.device.name, 0, "tiny", used):
            return self._run(inputs)

    def _run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        now = self.first.copy()
        for i, number, shape in self.params:
            array: Array = inputs[number].array  # type: ignore[attr-defined]
            now[i] = array if array.shape == shape else array.reshape(shape)
        with np.errstate(all="ignore"):
            for i, call, sources in self.calls:
                try:
                    now[i] = call(*[now[s] for s in sources])
                except MemoryError as problem:
                    raise _too_large(self.order[i]) from problem
        taken = {id(now[i]) for i in self.given}  # what others hold, or a result already
        found: list[Buffer] = []
        for root in self.roots:
            array = now[root]  # type: ignore[assignment]
            own = type(array) is np.ndarray and array.base is None and array.flags.c_contiguous
            if not own or id(array) in taken:
                try:
                    array = np.array(array, order="C")
                except MemoryError as problem:
                    raise _too_large(self.order[root]) from problem
            taken.add(id(array))
            found.append(HostBuffer(array))
        return found

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        """One pass, whose results are copied."""
        for made, to in zip(self.run(inputs, values, False), outputs, strict=True):
            np.copyto(to.array, made.array.reshape(to.array.shape))  # type: ignore[attr-defined]

    def keep(self, layout: Layout, poison: bool) -> StepArena:
        """Nothing is between inputs and results."""
        return StepArena(HostBuffer(np.empty(0, np.uint8)), {})
