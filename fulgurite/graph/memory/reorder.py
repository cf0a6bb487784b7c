"""List scheduling by liveness: kernels that free more memory than they take run early.

In: the items of a schedule in a topological order, their slots and which slots are results. Out:
the same items in another topological order. An item moves up, right behind its last producer, if
it is then the last reader of more bytes than it writes (results live to the end, so they cost
nothing). So a weight's gradient is computed as soon as its two factors exist, and they are freed.
A few scalars made of inputs come first. Nothing moves down; kernels with effects do not move.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from ..ir.kernel import Item, Schedule, Slot
from ..tables import GRAPH
from .arena import slot_bytes


def reorder(schedule: Schedule) -> Schedule:
    """The schedule with kernels that free memory as early as they can run."""
    items = sooner(schedule.items, schedule.slots, set(schedule.outputs))
    return schedule._replace(items=tuple(items))


def sooner(items: Sequence[Item], slots: Sequence[Slot | None], results: Set[int]) -> list[Item]:
    """The items with those that free memory as early as they can run."""
    order = _Order(items, slots, results)
    for number in [n for n in range(len(items)) if order.costs_nothing(n)]:
        order.run(number)
    for number in range(len(items)):
        order.run(number)
    return [items[number] for number in order.found]


class _Order:
    def __init__(
        self, items: Sequence[Item], slots: Sequence[Slot | None], results: Set[int]
    ) -> None:
        self.items, self.slots = items, slots
        self.made = {slot for item in items for slot in item.writes}
        self.kept = results
        self.readers: dict[int, list[int]] = {}  # of each slot that an item writes
        self.missing = [0] * len(items)  # how many of its reads an item still waits for
        for number, item in enumerate(items):
            for slot in set(item.reads):
                if slot in self.made:
                    self.readers.setdefault(slot, []).append(number)
                    self.missing[number] += 1
        self.left = {slot: len(found) for slot, found in self.readers.items()}
        self.done: set[int] = set()
        self.found: list[int] = []

    def run(self, number: int) -> None:
        """Put an item next, and behind it all that it makes possible and that frees memory."""
        stack = [number]
        while stack:
            number = stack.pop()
            if number in self.done:
                continue
            self.done.add(number)
            self.found.append(number)
            item = self.items[number]
            near: list[int] = []
            for slot in item.writes:
                for reader in self.readers.get(slot, ()):
                    self.missing[reader] -= 1
                    near.append(reader)
            for slot in set(item.reads):
                if slot in self.left:
                    self.left[slot] -= 1
                    if self.left[slot] == 1:
                        near.extend(self.readers[slot])
            stack.extend([n for n in sorted(set(near), reverse=True) if self.frees(n)])

    def costs_nothing(self, number: int) -> bool:
        """True if it is made of inputs alone and too small to be a burden from the start."""
        item = self.items[number]
        ready = not self.missing[number] and item.kernel.kind.is_movable
        return ready and sum([self.bytes(s) for s in item.writes]) <= GRAPH.early_result_bytes

    def frees(self, number: int) -> bool:
        """True if it can run now, and frees more bytes than it allocates."""
        item = self.items[number]
        if number in self.done or self.missing[number] or not item.kernel.kind.is_movable:
            return False
        begun = sum([self.bytes(s) for s in item.writes if s not in self.kept])
        last = [s for s in set(item.reads) if self.left.get(s) == 1 and s not in self.kept]
        return sum([self.bytes(s) for s in last]) > begun

    def bytes(self, number: int) -> int:
        slot = self.slots[number]
        assert slot is not None
        return slot_bytes(slot)
