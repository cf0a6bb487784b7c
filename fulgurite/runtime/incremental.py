"""Running a plan again where its inputs changed: only the kernels that depend on them.

In: a plan, inputs, and what a run before it left. Out: the memory of every value, and which kernels
ran. A plan that keeps is linked anew, so that each value has memory of its own and none takes over
another's; single kernels are plans of one item. Nothing is compiled for it. What sizes decide only
at run time, or what writes over its inputs, is not kept: such plans run whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..graph.kernel import Item, Schedule, Slot
from ..graph.memory import Layout, slot_bytes
from .device import Buffer, get_device
from .plan import Plan, link
from .steps import constants_of

Values = dict[int, Buffer]  # by slot


class Incremental:
    """A plan whose kernels can be run one by one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        schedule = plan.schedule
        self.device = get_device(plan.device)
        self.written = [slot for item in schedule.items for slot in item.writes]
        slots = [s for place in self.written if (s := schedule.slots[place]) is not None]
        fixed = all([isinstance(n, int) for slot in slots for n in slot.shape])
        self.can_keep = fixed and not schedule.aliases
        self.kept_bytes = sum(map(slot_bytes, slots)) if fixed else 0  # by keeping
        self._whole: Plan | None = None
        self._single: dict[int, Plan] = {}
        self._constants: Values | None = None

    def whole(self, inputs: Sequence[Buffer], values: dict[str, int], poison: bool) -> Values:
        """Run every kernel and keep what each of them wrote."""
        assert self.can_keep, "nothing of this plan can be kept"
        if self._whole is None:
            schedule = replace(self.plan.schedule, outputs=tuple(dict.fromkeys(self.written)))
            self._whole = link(schedule, self.plan.kernels, _NO_ARENA, self.device)
        found = self._whole.run(inputs, values, poison)
        self.plan.runs += 1
        return dict(zip(self._whole.schedule.outputs, found, strict=True))

    def affected(self, changed: Collection[int]) -> list[int]:
        """The kernels that depend on changed slots, or on nothing that is known, in order."""
        dirty, found = set(changed), []
        for number, item in enumerate(self.plan.schedule.items):
            blind = item.kernel.kind == "host" and not item.reads
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
        now = {**before, **self._constants, **dict(enumerate(inputs))}
        for number in numbers:
            item = self.plan.schedule.items[number]
            if number not in self._single:
                self._single[number] = self._alone(number, item)
            made = self._single[number].run([now[slot] for slot in item.reads], values, poison)
            now.update(zip(item.writes, made, strict=True))
        return {slot: now[slot] for slot in self.written}

    def _alone(self, number: int, item: Item) -> Plan:
        slots: list[Slot | None] = []
        for place in (*item.reads, *item.writes):
            slot = self.plan.schedule.slots[place]
            assert slot is not None, "a kernel reads and writes slots that exist"
            slots.append(replace(slot, bits=None))
        count = len(item.reads)
        writes = tuple(range(count, len(slots)))
        single = Item(item.kernel, tuple(range(count)), writes, item.origins, item.reason)
        schedule = Schedule(count, tuple(slots), (single,), writes)
        return link(schedule, [self.plan.kernels[number]], _NO_ARENA, self.device)


_NO_ARENA = Layout({}, 0, 0, 0, 0)
