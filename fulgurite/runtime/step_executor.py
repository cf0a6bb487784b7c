"""Running a schedule kernel by kernel from Python: the plain executor, for any device.

In: a schedule, a callable for each of its kernels, the layout of its memory. Out: `run(inputs)`,
which gives a fresh buffer for each output. Intermediates live in an arena that a call checks out,
so two threads can run one plan; a step that fails leaves nothing behind but garbage. A kernel that
may fail is waited for by its own callable, so nothing is left to `check`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.dtype import DType, array_of_bits
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Shape
from ..graph.ir.kernel import Item, Schedule
from ..graph.memory.arena import Layout
from .host.evaluate import size_value
from .recording import Recorder, timed_step

if TYPE_CHECKING:
    from .device import Buffer, Device, Executable, Pass, Replay, Values

StepCode = Callable[[Sequence["Buffer"], Sequence["Buffer"], "Values"], None]
"""A kernel that Python launches: (inputs, outputs to fill, values of variables)."""

IDLE = 2  # arenas that a plan keeps for the next calls


class StepArena(NamedTuple):
    """Intermediates in one buffer."""

    memory: Buffer
    offsets: Mapping[int, int]  # of slots


class HostExecutor:
    """What executors share that the host drives step by step: no launch is a whole plan."""

    workspace = 0
    deferred = False
    host_items: Sequence[Item] = ()

    @abstractmethod
    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass; a fresh buffer for each output."""

    def run_keeping(
        self, arena: Any, inputs: Sequence[Buffer], values: Values, poison: bool
    ) -> list[Buffer]:
        """The same as `run`."""
        return self.run(inputs, values, poison)

    def check(self) -> None:
        """Nothing: every step has said whether it failed."""

    def replay(self, in_place: bool) -> Replay | None:
        """None: a plan is more than one launch."""
        return None

    def passes(self) -> Pass | None:
        """None: a plan is more than one launch."""
        return None


class StepExecutor(HostExecutor):
    """A schedule as a loop over its items."""

    def __init__(
        self, device: Device, schedule: Schedule, code: Sequence[Executable], layout: Layout
    ) -> None:
        self.device, self.schedule, self.layout = device, schedule, layout
        self.code: Sequence[StepCode] = code
        self.constants = constants_of(device, schedule)
        self._arenas: list[StepArena] = []
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass over the kernels; a fresh buffer for each output."""
        arena = self._acquire(poison)
        found = self.run_keeping(arena, inputs, values, poison)
        with self._lock:
            if len(self._arenas) < IDLE:
                self._arenas.append(arena)
        return found

    def run_keeping(
        self, arena: StepArena, inputs: Sequence[Buffer], values: Values, poison: bool
    ) -> list[Buffer]:
        """The same, with intermediates in this arena."""
        schedule, device = self.schedule, self.device
        slots = self._slots(arena, inputs, values)
        for place in dict.fromkeys(schedule.outputs):
            if place not in slots:
                slots[place] = device.allocate(*place_of(schedule, place, values), poison)
        self._run(slots, inputs, values)
        slots |= {place: inputs[source] for place, source in schedule.aliases}
        found: list[Buffer] = []
        for place in schedule.outputs:
            known = place < schedule.inputs or place in self.constants or place in arena.offsets
            if known or any([slots[place] is other for other in found]):
                found.append(device.allocate(*place_of(schedule, place, values)))
                device.copy(device.contiguous(slots[place]), found[-1])  # a value of its own
            else:
                found.append(slots[place])
        return found

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        """One pass from given memory into given memory."""
        arena = self._acquire(False)
        slots = self._slots(arena, inputs, values)
        late: list[tuple[int, Buffer]] = []
        for place, output in zip(self.schedule.outputs, outputs, strict=True):
            if place not in slots:
                slots[place] = output
            elif slots[place].address != output.address:
                late.append((place, output))
        self._run(slots, inputs, values)
        for place, output in late:
            self.device.copy(slots[place], output)
        with self._lock:
            if len(self._arenas) < IDLE:
                self._arenas.append(arena)

    def _slots(
        self, arena: StepArena, inputs: Sequence[Buffer], values: Values
    ) -> dict[int, Buffer]:
        """The memory of all that is not an output."""
        schedule, device = self.schedule, self.device
        slots = {**dict(enumerate(inputs)), **self.constants}
        for place, offset in arena.offsets.items():
            slots[place] = device.view(arena.memory, offset, *place_of(schedule, place, values))
        for place, source in schedule.aliases:
            slots[place] = device.view(inputs[source], 0, *place_of(schedule, place, values))
        return slots

    def _run(self, slots: Mapping[int, Buffer], inputs: Sequence[Buffer], values: Values) -> None:
        saved = saved_copies(self.device, self.schedule, inputs)
        recorder = self.device.recorder
        code = self.code if recorder is None else self._timed(recorder)
        try:
            for item, execute in zip(self.schedule.items, code, strict=True):
                reads = [slots[i] for i in item.reads]
                execute(reads, [slots[i] for i in item.writes], values)
        except BaseException:
            restore_copies(self.device, inputs, saved)
            raise

    def _timed(self, recorder: Recorder) -> Sequence[StepCode]:
        """The code of every item, which tells a recorder how long it takes."""
        used = self.device.memory_stats()["used"]

        def timed(number: int, execute: StepCode) -> StepCode:
            def run(reads: Sequence[Buffer], writes: Sequence[Buffer], values: Values) -> None:
                name = self.device.name
                with timed_step(recorder, self.schedule, name, number, "steps", used):
                    execute(reads, writes, values)

            return run

        return [timed(number, execute) for number, execute in enumerate(self.code)]

    def _acquire(self, poison: bool) -> StepArena:
        with self._lock:
            if self._arenas and not poison:
                return self._arenas.pop()
        return self.keep(self.layout, poison)

    def keep(self, layout: Layout, poison: bool) -> StepArena:
        """An arena with intermediates where a layout says."""
        return StepArena(self.device.arena(layout.arena_bytes, poison), layout.offsets)


# --- writing over inputs -------------------------------------------------------------------------


def saved_copies(device: Device, schedule: Schedule, inputs: Sequence[Buffer]) -> dict[int, Buffer]:
    """What the inputs hold that steps will write over: one may fail on the way."""
    found: dict[int, Buffer] = {}
    for _, i in schedule.aliases:
        found[i] = device.arena(inputs[i].nbytes)
        device.copy(inputs[i], found[i])
    return found


def restore_copies(device: Device, inputs: Sequence[Buffer], saved: Mapping[int, Buffer]) -> None:
    """Put back what inputs held before a run that failed."""
    for i, copy in saved.items():
        device.copy(copy, inputs[i])


def spoil(problem: BaseException) -> None:
    """Say of an exception that memory was being written over when it came."""
    setattr(problem, _SPOILED, True)


def is_spoiled(problem: BaseException) -> bool:
    """True if memory was being written over when an exception came."""
    return hasattr(problem, _SPOILED)


_SPOILED = "_fulgurite_written_over"


# --- slots ---------------------------------------------------------------------------------------


def constants_of(device: Device, schedule: Schedule) -> dict[int, Buffer]:
    """The memory of the numbers that a schedule holds itself, by slot."""
    return {
        place: device.from_host(array_of_bits(slot.bits, slot.dtype))
        for place, slot in enumerate(schedule.slots)
        if slot is not None and slot.bits is not None
    }


def place_of(schedule: Schedule, place: int, values: Values) -> tuple[tuple[int, ...], DType]:
    """A slot's shape in ints, and its dtype."""
    slot = schedule.slots[place]
    assert slot is not None
    return concrete(slot.shape, values), slot.dtype


def concrete(shape: Shape, values: Values) -> tuple[int, ...]:
    """A shape in ints once the variables are known."""
    for size in shape:
        if type(size) is not int:
            break
    else:
        return shape  # type: ignore[return-value]
    return tuple([n if isinstance(n, int) else size_value(n, values) for n in shape])
