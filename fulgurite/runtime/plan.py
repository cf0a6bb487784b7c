"""Plans: a schedule compiled to steps over slots, run again and again with other buffers.

In: a `Schedule`, or for `run` the buffers of its inputs. Out: fresh output buffers. A plan holds no
buffer of any caller: intermediates live in an arena that a call checks out, so two threads can run
one plan, and outputs are allocated for each call, so none aliases an earlier one. Steps are
[Alloc | Launch] in order; a step that fails leaves nothing behind but garbage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..core.dtype import DType, array_of_bits
from ..core.node import Shape
from ..graph.kernel import Item, Kernel, Schedule
from ..graph.memory import Layout, plan_memory
from .cache import WeakCache
from .device import Buffer, Device, Executable, get_device
from .reference import size_value


class CompiledKernel:
    """A kernel and its native code on one device."""

    __slots__ = ("__weakref__", "kernel", "run")

    def __init__(self, kernel: Kernel, run: Executable) -> None:
        self.kernel, self.run = kernel, run


KERNELS: WeakCache[tuple[str, object], CompiledKernel] = WeakCache("kernels")


@dataclass(frozen=True, slots=True)
class Alloc:
    """Give a result memory of its own."""

    slot: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel."""

    item: Item
    compiled: CompiledKernel


Step = Alloc | Launch
Observer = Callable[[Step], None]
_IDLE = 2  # arenas that a plan keeps for the next calls


@dataclass(eq=False)
class Plan:
    """Replayable steps; `run` gives the outputs for other inputs without compiling."""

    schedule: Schedule
    device: str
    steps: tuple[Step, ...]
    constants: tuple[tuple[int, Buffer], ...]
    layout: Layout
    runs: int = 0
    _arenas: list[Buffer] = field(default_factory=list)
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
        device, known = get_device(self.device), values or {}
        slots: list[Buffer | None] = [*inputs, *[None] * (len(self.schedule.slots) - len(inputs))]
        for place, number in self.constants:
            slots[place] = number
        arena = self._check_out(device, poison)
        for place, offset in self.layout.offsets.items():
            shape, dtype = self._place(place, known)
            slots[place] = device.part(arena, offset, shape, dtype)
        for step in self.steps:
            if observe is not None:
                observe(step)
            if isinstance(step, Alloc):
                shape, dtype = self._place(step.slot, known)
                slots[step.slot] = device.allocate(shape, dtype, poison)
            else:
                reads = [slots[i] for i in step.item.reads]
                writes = [slots[i] for i in step.item.writes]
                step.compiled.run(reads, writes, known)  # type: ignore[arg-type]
        self._check_in(arena)
        return _distinct(device, [slots[i] for i in self.schedule.outputs])

    def _place(self, place: int, values: dict[str, int]) -> tuple[tuple[int, ...], DType]:
        slot = self.schedule.slots[place]
        assert slot is not None
        return concrete(slot.shape, values), slot.dtype

    def _check_out(self, device: Device, poison: bool) -> Buffer:
        with self._lock:
            self.runs += 1
            if self._arenas and not poison:
                return self._arenas.pop()
        return device.arena(self.layout.arena_bytes, poison)

    def _check_in(self, arena: Buffer) -> None:
        with self._lock:
            if len(self._arenas) < _IDLE:
                self._arenas.append(arena)


def _distinct(device: Device, outputs: Sequence[Buffer | None]) -> list[Buffer]:
    """The results; one that was asked for twice is two values."""
    found: list[Buffer] = []
    for buffer in outputs:
        assert buffer is not None
        again = any(buffer is other for other in found)
        found.append(device.from_host(device.to_host(buffer)) if again else buffer)
    return found


def concrete(shape: Shape, values: dict[str, int]) -> tuple[int, ...]:
    """A shape in ints once the variables are known."""
    return tuple([n if isinstance(n, int) else size_value(n, values) for n in shape])


def compile_plan(schedule: Schedule, device: str) -> Plan:
    """Kernels through the kernel cache, intermediates laid out in an arena."""
    backend = get_device(device)
    steps: list[Step] = []
    outputs = set(schedule.outputs)
    for item in schedule.items:
        compiled = KERNELS.get_or_make(
            (device, item.kernel.key), partial(_compiled, backend, item.kernel)
        )
        steps.extend(Alloc(slot) for slot in item.writes if slot in outputs)
        steps.append(Launch(item, compiled))
    constants = tuple(
        (place, backend.from_host(array_of_bits(slot.bits, slot.dtype)))
        for place, slot in enumerate(schedule.slots)
        if slot is not None and slot.bits is not None
    )
    return Plan(schedule, device, tuple(steps), constants, plan_memory(schedule))


def _compiled(backend: Device, kernel: Kernel) -> CompiledKernel:
    return CompiledKernel(kernel, backend.compile(kernel))
