"""Sums over the ranks of one machine, by shared windows of MPI (`MPI_Win_allocate_shared`).

In: flat arrays, by all ranks of a group in one order. Out: their sums, in the order of ranks. To
start a sum is to copy an array where all others see it and to say so in a word; to finish it is to
wait for the words of all, and to fold what they wrote straight into the result. No message is sent
and no thread is needed: what a rank started is there for others while it computes on. Memory is
used again when all ranks have said that they took the sum. Which memory a sum gets follows from
the order of calls alone, so ranks agree on it without asking. The invariant: a rank writes only its
own part and its own words, and a word only after what it speaks of (`Win.Sync` keeps the order).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...core.ranks import Array

if TYPE_CHECKING:
    from .mpi import MpiWorld

Fold = Callable[[Sequence[Array], "Array | None"], Array]
MOST_SHARING = 8  # ranks of a group; each reads what all wrote, in larger ones a part of it
SLAB_BYTES = 8 << 20  # of a window, from which slots are cut
MOST_SHARE = 0.25  # of the memory for windows that is free, for one group
_LINE = 64  # bytes that two ranks' words must not share
_WRITTEN, _TAKEN = 0, 1  # words of a rank


class Slot:
    """Room for one sum at a time: words of every rank, and a part for each."""

    def __init__(self, window: Any, memory: Array, count: int, nbytes: int) -> None:
        self.window, self.memory, self.count, self.nbytes = window, memory, count, nbytes
        self.words = memoryview(memory[: _LINE * count]).cast("q")  # type: ignore[arg-type]
        self.round = 0
        self._parts: dict[tuple[Any, int], list[Array]] = {}

    def parts(self, dtype: Any, size: int) -> list[Array]:
        """What each rank writes, as an array."""
        found = self._parts.get((dtype, size))
        if found is None:
            starts = [_LINE * self.count + rank * self.nbytes for rank in range(self.count)]
            nbytes = size * dtype.itemsize
            found = [self.memory[at : at + nbytes].view(dtype) for at in starts]
            self._parts[dtype, size] = found
        return found

    def all_say(self, word: int, number: int) -> bool:
        """True if every rank has come to a round."""
        words = self.words
        for at in range(word, len(words), _LINE // 8):
            if words[at] < number:
                return False
        self.window.Sync()
        return True

    def say(self, rank: int, word: int) -> None:
        """Let all know what this rank has done."""
        self.window.Sync()
        self.words[rank * (_LINE // 8) + word] = self.round


class Started(NamedTuple):
    """A sum under way."""

    slot: Slot
    dtype: Any
    size: int
    fold: Fold
    begun: float


class Travel(NamedTuple):
    """What is known of a sum that was made, for traces: seconds of the clock."""

    begun: float
    done: float
    waited: float
    nbytes: int


class SharedSums:
    """The sums of one group, whose ranks are on one machine."""

    def __init__(self, world: MpiWorld, comm: Any) -> None:
        self.world, self.comm = world, comm
        self.me, self.count = comm.Get_rank(), comm.Get_size()
        self.left = int(comm.allreduce(_free_bytes(), op=world.mpi.MIN) * MOST_SHARE)
        self._free: dict[int, list[Slot]] = {}
        self._slab: tuple[Any, Array] | None = None
        self._at = 0  # where the next slot of the slab begins

    def slot(self, nbytes: int) -> Slot | None:
        """Room for a sum that is not used here; None if there is none left. All ranks ask alike."""
        rounded = -(-nbytes // _LINE) * _LINE
        waiting = self._free.setdefault(rounded, [])
        if waiting:
            return waiting.pop()
        wanted = self.count * (_LINE + rounded)
        if self._slab is None or self._at + wanted > len(self._slab[1]):
            slab = max(SLAB_BYTES, wanted)
            if slab > self.left:
                return None
            self.left -= slab
            self._slab, self._at = self._window(slab), 0
        window, memory = self._slab
        made = Slot(window, memory[self._at : self._at + wanted], self.count, rounded)
        self._at += wanted
        return made

    def _window(self, nbytes: int) -> tuple[Any, Array]:
        """Memory of zeros that all ranks of the group see."""
        with self.world.watchdog.waiting("the making of a shared window"):
            made = self.world.mpi.Win.Allocate_shared(
                nbytes if self.me == 0 else 0, 1, comm=self.comm
            )
            made.Lock_all()
            memory = np.frombuffer(made.Shared_query(0)[0], np.uint8)
            if self.me == 0:
                memory[:] = 0
                made.Sync()
            self.comm.Barrier()
            made.Sync()
        self.world.windows.append(made)
        return made, memory

    def start(self, slot: Slot, array: Array, fold: Fold, label: str) -> Started:
        """Let all others see an array."""
        if not slot.all_say(_TAKEN, slot.round):
            self.world.wait_until(lambda: slot.all_say(_TAKEN, slot.round), label)
        slot.round += 1
        np.copyto(slot.parts(array.dtype, array.size)[self.me], array)
        slot.say(self.me, _WRITTEN)
        self.world.bytes_sent += array.nbytes * (self.count - 1)
        return Started(slot, array.dtype, array.size, fold, time.perf_counter())

    def finish(self, sum_: Started, label: str, out: Array | None) -> Array:
        """The sum, folded into an array if one is given."""
        slot, waited = sum_.slot, 0.0
        if not slot.all_say(_WRITTEN, slot.round):
            waited = self.world.wait_until(lambda: slot.all_say(_WRITTEN, slot.round), label)
        made = np.empty(sum_.size, sum_.dtype) if out is None else out
        found = sum_.fold(slot.parts(sum_.dtype, sum_.size), made)
        slot.say(self.me, _TAKEN)
        self._free[slot.nbytes].append(slot)
        nbytes = sum_.size * sum_.dtype.itemsize
        self.world.trace.append(Travel(sum_.begun, time.perf_counter(), waited, nbytes))
        return found


def _free_bytes() -> int:
    """Bytes that windows may have on this machine."""
    try:
        about = os.statvfs("/dev/shm")
    except OSError:
        return 1 << 30  # it has no such place, so no such limit
    return about.f_bavail * about.f_frsize
