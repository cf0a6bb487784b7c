"""Plans: a schedule compiled to steps over slots, run again and again with other buffers.

In: a `Schedule`, or for `run` the buffers of its inputs. Out: fresh output buffers. A plan holds no
buffer of any caller: intermediates live in an arena that a call checks out, so two threads can run
one plan, and outputs are allocated for each call, so none aliases an earlier one. Steps are
[Alloc | Launch | Free] in order; a step that fails leaves nothing behind but garbage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.dtype import array_of_bits
from ..core.node import Shape
from ..graph.schedule import Item, Kernel, Schedule
from .cache import WeakCache
from .device import Buffer, Executable, get_device
from .reference import size_value


class CompiledKernel:
    """A kernel and its native code on one device."""

    __slots__ = ("__weakref__", "kernel", "run")

    def __init__(self, kernel: Kernel, run: Executable) -> None:
        self.kernel, self.run = kernel, run


KERNELS: WeakCache[tuple[str, object], CompiledKernel] = WeakCache("kernels")


@dataclass(frozen=True, slots=True)
class Alloc:
    """Give a slot memory."""

    slot: int


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody reads a slot any more."""

    slot: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel."""

    item: Item
    compiled: CompiledKernel


Step = Alloc | Free | Launch
Observer = Callable[[Step], None]


@dataclass(eq=False)
class Plan:
    """Replayable steps; `run` gives the outputs for other inputs without compiling."""

    schedule: Schedule
    device: str
    steps: tuple[Step, ...]
    constants: tuple[tuple[int, Buffer], ...]
    runs: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def kernels(self) -> list[CompiledKernel]:
        """The compiled kernels in the order they run."""
        return [step.compiled for step in self.steps if isinstance(step, Launch)]

    def run(
        self,
        inputs: Sequence[Buffer],
        values: dict[str, int] | None = None,
        poison: bool = False,
        observe: Observer | None = None,
    ) -> list[Buffer]:
        """One pass over the steps; a fresh buffer for each output."""
        assert len(inputs) == self.schedule.inputs, "a plan takes exactly its inputs"
        device = get_device(self.device)
        known = values or {}
        slots: list[Buffer | None] = [*inputs, *[None] * (len(self.schedule.slots) - len(inputs))]
        for place, number in self.constants:
            slots[place] = number
        for step in self.steps:
            if observe is not None:
                observe(step)
            if isinstance(step, Launch):
                item = step.item
                reads = [slots[i] for i in item.reads]
                writes = [slots[i] for i in item.writes]
                step.compiled.run(reads, writes, known)  # type: ignore[arg-type]
            elif isinstance(step, Alloc):
                slot = self.schedule.slots[step.slot]
                assert slot is not None
                slots[step.slot] = device.allocate(concrete(slot.shape, known), slot.dtype, poison)
            else:
                slots[step.slot] = None
        with self._lock:
            self.runs += 1
        outputs: list[Buffer] = []
        for place in self.schedule.outputs:
            buffer = slots[place]
            assert buffer is not None
            if any(buffer is other for other in outputs):  # asked for twice: two values
                buffer = device.from_host(device.to_host(buffer))
            outputs.append(buffer)
        return outputs


def concrete(shape: Shape, values: dict[str, int]) -> tuple[int, ...]:
    """A shape in ints once the variables are known."""
    return tuple([n if isinstance(n, int) else size_value(n, values) for n in shape])


def compile_plan(schedule: Schedule, device: str) -> Plan:
    """Kernels through the kernel cache, slots freed after their last reader."""
    backend = get_device(device)
    last: dict[int, int] = {}
    for number, item in enumerate(schedule.items):
        for slot in item.reads:
            last[slot] = number
    kept = set(schedule.outputs) | set(range(schedule.inputs))
    steps: list[Step] = []
    for number, item in enumerate(schedule.items):
        compiled = KERNELS.get_or_make(
            (device, item.kernel.key),
            lambda kernel=item.kernel: CompiledKernel(kernel, backend.compile(kernel)),  # type: ignore[misc]
        )
        steps.extend(Alloc(slot) for slot in item.writes)
        steps.append(Launch(item, compiled))
        ends = [s for s in (*item.reads, *item.writes) if last.get(s, number) == number]
        steps.extend(Free(slot) for slot in dict.fromkeys(ends) if slot not in kept)
    constants = tuple(
        (place, backend.from_host(np.array(array_of_bits(slot.bits, slot.dtype))))
        for place, slot in enumerate(schedule.slots)
        if slot is not None and slot.bits is not None
    )
    return Plan(schedule, device, tuple(steps), constants)
