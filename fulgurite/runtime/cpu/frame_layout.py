"""Where everything is among the words of a frame, and the records of launches over it.

In: a schedule, its native kernels and its loops. Out: the place of every slot and variable, for
each kernel the words by which the driver (codegen/cpu/driver.py) launches it, and `Frame`s, which
hold the memory of one run at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...codegen.cpu.driver import LAUNCH, SLOTS
from ...graph.ir.kernel import Item, Schedule
from ..host.device import HostBuffer
from .objects import Native
from .pool import Block

if TYPE_CHECKING:
    from .executor import Program

Words = Any  # array('q'), which is not generic at run time


class Inlined:
    """A loop inside a program (loops.py): its records, and the memory of one run."""

    body: Program
    count: int

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many slots it takes in the frame around it: its body's frame, and memory."""

    @abstractmethod
    def records(self, reads: Sequence[int], writes: Sequence[int], first: int) -> list[int]:
        """Its records, over slots of what it reads and writes, and from `first` on its own."""

    @abstractmethod
    def memory(self, poison: bool) -> tuple[list[int], list[Frame | Block]]:
        """The addresses of its own slots for one run at a time, and what keeps them."""


class Frame:
    """One run's words, and the memory of its intermediates."""

    __slots__ = ("address", "arena", "begun", "inner", "memory", "offsets", "views",
                 "words", "workspace")  # fmt: skip

    def __init__(
        self, words: Words, arena: Block, workspace: Block, offsets: Mapping[int, int]
    ) -> None:
        self.words, self.arena, self.workspace = words, arena, workspace
        self.offsets = offsets  # of slots in the arena
        self.memory: HostBuffer | None = None  # the arena, for reports
        self.address = words.buffer_info()[0]
        self.inner: list[Any] = []  # the memory of loops inside, and the frames of their bodies
        self.begun = False  # does this run write over an input by now?
        self.views: dict[int, HostBuffer] = {}  # of slots of fixed size that host steps touch


class FrameLayout:
    """Where everything is among the words of a frame, as the driver reads them.

    A header, the addresses of slots (inputs first, then fresh outputs: a call's arguments; the
    workspace and those of loops last), values of variables, and room for the params and values of
    one launch.
    """

    def __init__(
        self, schedule: Schedule, fresh: Sequence[int], native: Sequence[Native],
        loops: Sequence[Inlined],
    ) -> None:  # fmt: skip
        self.room = len(schedule.slots)  # the slot of the workspace
        self.own: dict[Inlined, int] = {}  # the first slot of each loop's own
        count = self.room + 1
        for loop in loops:
            self.own[loop] = count
            count += loop.slots
        self.names = list(dict.fromkeys(name for c in native for name in c.variables))
        order = dict.fromkeys([*range(schedule.inputs), *fresh, *range(self.room + 1)])
        self.word = {place: SLOTS + rank for rank, place in enumerate(order)}
        self.variables = SLOTS + count
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

    def loop(self, item: Item, made: Inlined) -> list[int]:
        """The records of a loop."""
        reads, writes = ([self.word[i] - SLOTS for i in part] for part in (item.reads, item.writes))
        return made.records(reads, writes, self.own[made])

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
