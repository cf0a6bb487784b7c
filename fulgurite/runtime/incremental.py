"""Incremental execution: of a plan whose inputs changed only the kernels that depend on them run.

In: a plan, inputs, and what a run before it left. Out: the memory of every value, and which kernels
ran. A plan that keeps runs in an arena where each value has memory of its own and none takes over
another's; single kernels are plans of one item. Nothing is compiled for it. What sizes decide only
at run time, or what writes over its inputs, is not kept: such plans run whole. One thread at a
time runs it: what a whole run leaves in an arena is good until the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..graph.ir.kernel import Item, Schedule, Slot
from ..graph.ir.kernel_kind import KernelKind
from ..graph.memory.arena import Layout, slot_bytes
from .device import Arena, Buffer, Device, get_device
from .plan import Plan, link
from .step_executor import constants_of

_NO_ARENA = Layout({}, 0, 0, 0, 0)


class Values(dict[int, Buffer]):
    """The memory of values by slot; what is in an arena is looked up there when requested."""

    def __init__(
        self, known: Iterable[tuple[int, Buffer]], schedule: Schedule, layout: Layout,
        arena: Arena, device: Device,
    ) -> None:  # fmt: skip
        super().__init__(known)
        self.schedule, self.layout, self.arena, self.device = schedule, layout, arena, device

    def __missing__(self, place: int) -> Buffer:
        slot, offset = self.schedule.slots[place], self.layout.offsets[place]
        assert slot is not None, f"slot {place} is in no arena"
        shape: Any = slot.shape
        self[place] = self.device.view(self.arena.memory, offset, shape, slot.dtype)
        return self[place]


class Incremental:
    """A plan whose kernels can be run one by one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        schedule = plan.schedule
        self.device = get_device(plan.device)
        self.written = [slot for item in schedule.items for slot in item.writes]
        slots = [s for place in self.written if (s := schedule.slots[place]) is not None]
        fixed = not plan.shared and all([isinstance(n, int) for s in slots for n in s.shape])
        self.can_keep = fixed and not schedule.aliases and not schedule.joined
        self.kept_bytes = sum(map(slot_bytes, slots)) if fixed else 0  # by keeping
        self._arena: Arena | None = None  # of whole runs: it holds what was not a result
        self._layout = _apart(schedule, self.device.align) if self.can_keep else _NO_ARENA
        self._single: dict[int, Plan] = {}
        self._constants: dict[int, Buffer] | None = None

    def whole(self, inputs: Sequence[Buffer], values: dict[str, int], poison: bool) -> Values:
        """Run every kernel and keep what each of them wrote."""
        assert self.can_keep, "nothing of this plan can be kept"
        self.plan.runs += 1
        executor, schedule = self.plan.executor, self.plan.schedule
        if self._arena is None or poison:
            self._arena = executor.keep(self._layout, poison)
        found = executor.run_keeping(self._arena, inputs, values, poison)
        if executor.deferred:
            executor.check()
        known = zip(schedule.outputs, found, strict=True)
        return Values(known, schedule, self._layout, self._arena, self.device)

    def affected(self, changed: Collection[int]) -> list[int]:
        """The kernels that depend on changed slots, or on nothing that is known, in order."""
        dirty, found = set(changed), []
        for number, item in enumerate(self.plan.schedule.items):
            blind = item.kernel.kind is KernelKind.HOST and not item.reads
            if blind or any([slot in dirty for slot in item.reads]):
                found.append(number)
                dirty.update(item.writes)
        return found

    def some(
        self, numbers: Sequence[int], inputs: Sequence[Buffer], before: Values,
        values: dict[str, int], poison: bool,
    ) -> Values:  # fmt: skip
        """Run some kernels, over what others wrote before; the memory of every value after."""
        if self._constants is None:
            self._constants = constants_of(self.device, self.plan.schedule)
        now = Values(before.items(), before.schedule, before.layout, before.arena, before.device)
        now.update(self._constants)
        now.update(enumerate(inputs))
        for number in numbers:
            item = self.plan.schedule.items[number]
            if number not in self._single:
                self._single[number] = self._alone(number, item)
            made = self._single[number].run([now[slot] for slot in item.reads], values, poison)
            now.update(zip(item.writes, made, strict=True))
        return now

    def _alone(self, number: int, item: Item) -> Plan:
        slots: list[Slot | None] = []
        for place in (*item.reads, *item.writes):
            slot = self.plan.schedule.slots[place]
            assert slot is not None, "a kernel reads and writes slots that exist"
            slots.append(slot._replace(bits=None))
        count = len(item.reads)
        writes = tuple(range(count, len(slots)))
        single = Item(item.kernel, tuple(range(count)), writes, item.origins, item.reason)
        schedule = Schedule(count, tuple(slots), (single,), writes)
        return link(schedule, [self.plan.kernels[number]], _NO_ARENA, self.device)


def _apart(schedule: Schedule, align: int) -> Layout:
    """A place of its own for everything that is not a result."""
    offsets: dict[int, int] = {}
    top = 0
    for item in schedule.items:
        for place in item.writes:
            slot = schedule.slots[place]
            if place not in schedule.outputs and slot is not None:
                offsets[place] = top
                top += -(-slot_bytes(slot) // align) * align
    return Layout(offsets, top, top, 0, 0)
