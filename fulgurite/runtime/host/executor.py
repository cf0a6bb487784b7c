"""Running a schedule kernel by kernel from Python: the plain way, for the reference device.

In: a schedule, a callable for each of its kernels, the layout of its memory. Out: `run(inputs)`,
which gives a fresh buffer for each output. Intermediates live in an arena that a call checks out,
so two threads can run one plan; a step that fails leaves nothing behind but garbage.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ...core.dtype import DType, array_of_bits
from ...core.node import Shape
from ...core.op import Array
from ...graph.ir.kernel import Schedule
from ...graph.memory.arena import Layout
from ..device import Buffer, Device, Executable
from .evaluate import size_value

IDLE = 2  # arenas that a plan keeps for the next calls


class Steps:
    """A schedule as a loop over its items."""

    workspace = 0

    def __init__(
        self, device: Device, schedule: Schedule, code: Sequence[Executable], layout: Layout
    ) -> None:
        self.device, self.schedule, self.code, self.layout = device, schedule, code, layout
        self.constants = constants_of(device, schedule)
        self._arenas: list[Buffer] = []
        self._lock = threading.Lock()

    def run(
        self, inputs: Sequence[Buffer], values: dict[str, int], poison: bool
    ) -> list[Buffer]:  # fmt: skip
        """One pass over the kernels; a fresh buffer for each output."""
        schedule, device = self.schedule, self.device
        slots: list[Buffer | None] = [*inputs, *[None] * (len(schedule.slots) - len(inputs))]
        for place, number in self.constants.items():
            slots[place] = number
        arena = self._check_out(poison)
        for place, offset in self.layout.offsets.items():
            shape, dtype = place_of(schedule, place, values)
            slots[place] = device.part(arena, offset, shape, dtype)
        for place, source in schedule.aliases:
            shape, _ = place_of(schedule, place, values)
            memory: Any = inputs[source]
            slots[place] = type(memory)(memory.array.reshape(shape))
        for place in dict.fromkeys(schedule.outputs):
            if slots[place] is None:
                shape, dtype = place_of(schedule, place, values)
                slots[place] = device.allocate(shape, dtype, poison)
        saved = saved_copies(schedule, inputs)
        try:
            for item, execute in zip(schedule.items, self.code, strict=True):
                reads = [slots[i] for i in item.reads]
                writes = [slots[i] for i in item.writes]
                execute(reads, writes, values)
        except BaseException:
            restore_copies(inputs, saved)
            raise
        self._check_in(arena)
        over = dict(schedule.aliases)
        return distinct(device, [inputs[over[i]] if i in over else slots[i]
                                 for i in schedule.outputs])  # fmt: skip

    def _check_out(self, poison: bool) -> Buffer:
        with self._lock:
            if self._arenas and not poison:
                return self._arenas.pop()
        return self.device.arena(self.layout.arena_bytes, poison)

    def _check_in(self, arena: Buffer) -> None:
        with self._lock:
            if len(self._arenas) < IDLE:
                self._arenas.append(arena)


# --- writing over inputs -------------------------------------------------------------------------


def saved_copies(schedule: Schedule, inputs: Sequence[Buffer]) -> dict[int, Array]:
    """What the inputs hold that Python code will write over: it may fail on the way."""
    return {i: inputs[i].array.copy() for _, i in schedule.aliases}  # type: ignore[attr-defined]


def restore_copies(inputs: Sequence[Buffer], saved: dict[int, Array]) -> None:
    """Put back what inputs held before a run that failed."""
    for i, array in saved.items():
        inputs[i].array[...] = array  # type: ignore[attr-defined]


def spoil(problem: BaseException) -> None:
    """Say of an exception that memory was being written over when it came."""
    setattr(problem, _SPOILED, True)


def is_spoiled(problem: BaseException) -> bool:
    """Was memory being written over when an exception came?"""
    return hasattr(problem, _SPOILED)


_SPOILED = "_fulgurite_written_over"


def constants_of(device: Device, schedule: Schedule) -> dict[int, Buffer]:
    """The memory of the numbers that a schedule holds itself, by slot."""
    return {
        place: device.from_host(array_of_bits(slot.bits, slot.dtype))
        for place, slot in enumerate(schedule.slots)
        if slot is not None and slot.bits is not None
    }


def place_of(
    schedule: Schedule, place: int, values: dict[str, int]
) -> tuple[tuple[int, ...], DType]:
    """A slot's shape in ints, and its dtype."""
    slot = schedule.slots[place]
    assert slot is not None
    return concrete(slot.shape, values), slot.dtype


def concrete(shape: Shape, values: dict[str, int]) -> tuple[int, ...]:
    """A shape in ints once the variables are known."""
    for size in shape:
        if type(size) is not int:
            break
    else:
        return shape  # type: ignore[return-value]
    return tuple([n if isinstance(n, int) else size_value(n, values) for n in shape])


def distinct(device: Device, outputs: Sequence[Buffer | None]) -> list[Buffer]:
    """The results; one that was asked for twice is two values."""
    found: list[Buffer] = []
    for buffer in outputs:
        assert buffer is not None
        again = any(buffer is other for other in found)
        found.append(device.from_host(device.to_host(buffer)) if again else buffer)
    return found
