"""Where everything is among the words of a frame, and the records of launches over it.

In: a schedule, its native kernels and its loops. Out: the place of every slot and variable, for
each kernel the words by which the driver (codegen/cpu/driver.py) launches it, `Frame`s, which hold
the memory of one run at a time, and how memory for each result is made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...codegen.cpu.driver import LAUNCH, SLOTS
from ...core.node import Shape
from ...core.shape import upper
from ...errors import BoundsError
from ...graph.ir.kernel import Item, Schedule, Slot
from ...graph.memory.arena import slot_bytes
from ..host.device import HostBuffer
from .objects import Native
from .pool import POOL, Block, Spares, spares_for

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
    workspace and those of loops last), values of variables, room for the params and values of one
    launch, and the addresses of packed operands.
    """

    def __init__(
        self, schedule: Schedule, fresh: Sequence[int], native: Sequence[Native],
        loops: Sequence[Inlined], packed: Iterable[int] = (),
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
        params = max((len(i.reads) + len(i.writes) + 2 for i in schedule.items), default=0)
        values = 2 + max((len(c.variables) + len(c.numbers) for c in native), default=0)
        free = self.variables + len(self.names)
        self.header = SLOTS, self.variables, free, free + params
        self.spare = free + params + values  # the word of variables that no kernel reads
        # last, so that all else is where it is without them: slots of packed operands, by item
        self.packed = {item: self.spare + 1 - SLOTS + i for i, item in enumerate(packed)}
        self.size = self.spare + 1 + len(self.packed)

    def launches(
        self, number: int, item: Item, made: Native, address: Callable[[str], int]
    ) -> list[int]:
        """The records of a kernel's launches."""
        slots = [self.word[i] - SLOTS for i in (*item.reads, *item.writes, self.room)]
        if number in self.packed:
            slots.append(self.packed[number])
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

    @staticmethod
    def places(words: Words, at: int, made: Native) -> list[list[int]]:
        """Of each launch of a kernel the words of its code, units, sharing and numbers."""
        found: list[list[int]] = []
        for _ in made.launches:
            end = at + words[at + 1]  # a record knows its length, and numbers are its last words
            found.append([at + 2, at + 3, at + 4, *range(end - len(made.numbers), end)])
            at = end
        return found


# --- results --------------------------------------------------------------------------------------

Result = tuple[int, int, int, tuple[int, ...], Any, Spares | None]
"""A fresh output: slot, bytes, size class, shape, dtype, and memory of small ones for later."""


def result_of(slot: Slot | None, place: int, once: bool = False) -> Result:
    """How memory for a slot is made at each run; `once`: it is not one of many sizes."""
    assert slot is not None, "outputs are there"
    nbytes = slot_bytes(slot)
    made = at_most(slot.shape), slot.dtype.numpy, spares_for(nbytes, once)
    return place, nbytes, POOL.size_of(nbytes), *made


def is_sized(slot: Slot | None) -> bool:
    """True if a slot's size is known at run time only."""
    return slot is not None and not all([isinstance(n, int) for n in slot.shape])


def corner(sizes: Sequence[int]) -> Any:
    """The index of the part in use; the dots keep a single number an array."""
    return (*[slice(n) for n in sizes], ...)


def at_most(shape: Shape) -> tuple[int, ...]:
    """A shape at the upper bound of every size."""
    return tuple([n if isinstance(n, int) else upper(n) for n in shape])


def out_of_range(size: int) -> BoundsError:
    """The error of an index that left its axis."""
    return BoundsError(
        f"an index is outside an axis of size {size}", f"indices run from {-size} to {size - 1}"
    )
