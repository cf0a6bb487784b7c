"""Where everything is among the words of a frame, and the records of launches over it.

In: a schedule and the native kernels of its items. Out: the place of every slot and variable, and
for each kernel the words by which the driver (codegen/cpu/driver.py) launches it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.cpu.driver import LAUNCH, SLOTS
from ...graph.ir.kernel import Item, Schedule
from .objects import Native

Words = Any  # array('q'), which is not generic at run time


class FrameLayout:
    """Where everything is among the words of a frame, as the driver reads them.

    A header, the addresses of slots (inputs first, then fresh outputs: a call's arguments; the
    workspace last), values of variables, and room for the params and values of one launch.
    """

    def __init__(self, schedule: Schedule, fresh: Sequence[int], native: Sequence[Native]) -> None:
        self.room = len(schedule.slots)  # the slot of the workspace
        self.names = list(dict.fromkeys(name for c in native for name in c.variables))
        order = dict.fromkeys([*range(schedule.inputs), *fresh, *range(self.room + 1)])
        self.word = {place: SLOTS + rank for rank, place in enumerate(order)}
        self.variables = SLOTS + self.room + 1
        params = max((len(i.reads) + len(i.writes) + 1 for i in schedule.items), default=0)
        values = 2 + max((len(c.variables) + len(c.numbers) for c in native), default=0)
        free = self.variables + len(self.names)
        self.header = SLOTS, self.variables, free, free + params
        self.spare = free + params + values  # the word of variables that no kernel reads
        self.size = self.spare + 1

    def launches(self, item: Item, made: Native, address: Callable[[str], int]) -> list[int]:
        """The records of a kernel's launches."""
        slots = [self.word[i] - SLOTS for i in (*item.reads, *item.writes, self.room)]
        places = [self.names.index(name) for name in made.variables]
        tail = [*slots, *places, *made.numbers]
        words: list[int] = []
        for symbol, units, shared in made.launches:
            words += [LAUNCH, 8 + len(tail), address(symbol), units, shared,
                      len(slots), len(places), len(made.numbers), *tail]  # fmt: skip
        return words

    def patch(
        self, words: Words, at: int, item: Item, made: Native, address: Callable[[str], int]
    ) -> None:
        """Write the launches of a kernel over those of the same slots for other sizes."""
        numbers = array("q", made.numbers)
        fixed = 8 + len(item.reads) + len(item.writes) + 1 + len(made.variables)
        for symbol, units, shared in made.launches:
            words[at + 2], words[at + 3], words[at + 4] = address(symbol), units, shared
            words[at + fixed : at + fixed + len(numbers)] = numbers
            at += fixed + len(numbers)
