"""The host's memory, pooled: blocks that are freed serve the next value of their size.

In: a number of bytes. Out: a `Block`, aligned to a cache line, that goes back to the pool when the
last value or array that uses it is gone. Touching fresh pages of a 64 MiB value costs more than
computing it, so blocks are kept, in size classes an eighth apart, up to a bound; `empty_cache()`
gives them back to the system. Counts are kept for `fg.memory_stats()`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy as np

from ...core.lazy_dataclass import dataclass
from ...core.op import Array
from ..device import MemoryLimitError
from ..holders import readable
from ..host.device import HostBuffer, Piece

ALIGN = 64
IDLE = 1 << 30  # bytes of free blocks that are kept
HUGE = 1 << 21  # bytes of a huge page, of which NumPy asks the system for blocks of 4 MiB and more
SLAB = 4 * HUGE  # bytes that values which stay share: most of a weight would be in small pages
GROWN_BYTES = 1 << 16  # of values that get room to grow; smaller ones are copied as quickly
SPARED = 4096  # bytes up to which a program keeps the memory of a result itself
FEW_SPARED = 1 << 16  # the same of the last results alone, as they are more to keep
FEW = 2  # of them: one is held while the next is computed


@dataclass(eq=False, repr=False)
class MemoryStats:
    """Bytes and blocks of the host's pool, now and since the process began."""

    used: int = 0  # in values that are alive
    peak: int = 0  # the most that was used at once
    idle: int = 0  # free, kept for later
    fresh: int = 0  # blocks had from the system
    reused: int = 0  # blocks had from the pool


class Raw:
    """Memory had from the system: where it begins, aligned, and how much there is."""

    __slots__ = ("address", "before", "memory", "size")

    def __init__(self, size: int, slack: int = 8) -> None:
        """So many bytes; in whole huge pages where these have a `slack`th of them more at most.

        A huge page is zeroed by the system in a seventh of the time that its small ones take.
        """
        pages = -(-size // HUGE) * HUGE
        whole = size >= HUGE and slack * (pages - size) <= size
        self.memory = np.empty(pages + HUGE if whole else size, np.uint8)
        self.size = size
        start: int = self.memory.__array_interface__["data"][0]
        self.before = -start % (HUGE if whole else ALIGN)  # bytes that are not used
        self.address = start + self.before


class Slab:
    """Huge pages that values which stay lie in, one behind the other; it goes with the last."""

    def __init__(self) -> None:
        self.memory = np.empty(SLAB + HUGE, np.uint8)
        start: int = self.memory.__array_interface__["data"][0]
        self.begin = self.free = start + -start % HUGE

    def piece(self, size: int) -> Raw | None:
        """The next so many bytes, if they are left."""
        if self.free + size > self.begin + SLAB:
            return None
        raw = Raw.__new__(Raw)
        raw.memory, raw.size, raw.address = self.memory, size, self.free
        self.free += size
        return raw


class Block:
    """Some bytes of the pool; NumPy arrays may be made over it and keep it alive."""

    __slots__ = ("__weakref__", "_give_back", "address", "nbytes", "raw")

    def __init__(
        self, raw: Raw, nbytes: int, give_back: Callable[[Raw], None], owns: bool = True
    ) -> None:
        self.nbytes, self._give_back = nbytes, give_back
        self.address = raw.address
        if owns:  # else `raw` is set by who has it now, once an array is over it
            self.raw = raw

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1",
                "data": (self.address, False)}  # fmt: skip

    def bytes(self) -> Array:
        """All of it as an array that keeps it."""
        return np.asarray(self)

    def __del__(self) -> None:
        try:
            raw = self.raw
        except AttributeError:  # interrupted while it was made, or before it owned anything
            return
        self._give_back(raw)


class BlockBuffer(HostBuffer):
    """A value in pooled memory; its array is made on demand, and then owns the memory."""

    __slots__ = ("_give_back", "_nbytes", "dtype", "joined", "raw", "shape")
    owner = Block
    joined: int  # of a concatenation, the axis; of others it is not there

    def __init__(
        self, raw: Raw, nbytes: int, shape: tuple[int, ...], dtype: Any,
        give_back: Callable[[Raw], None] | None = None,
    ) -> None:  # fmt: skip
        self.exported = None
        self._address = raw.address
        self._nbytes = nbytes
        self.shape, self.dtype = shape, dtype
        self._give_back = give_back or POOL.give_back
        self.raw: Raw | None = raw  # at last: `__del__` gives it back

    @property
    def array(self) -> Array:
        """The memory itself; it lives as long as any view of it."""
        if self.exported is None:
            with POOL.lock:  # of two threads that look at once one makes it
                if self.exported is None:
                    raw = self.raw
                    assert raw is not None
                    block = Block(raw, self._nbytes, self._give_back, owns=False)
                    made = block.bytes().view(self.dtype).reshape(self.shape)
                    # stores without a call between, where an interrupt could come: one owner
                    block.raw, self.raw, self.exported = raw, None, made
        return self.exported

    def copied(self, shape: tuple[int, ...]) -> Array:
        """Its values in an array of their own: nothing owns its memory for that."""
        raw = self.raw
        if raw is None or not self._nbytes:  # somebody has its array already
            return np.array(self.array.reshape(shape))
        return np.ndarray(shape, self.dtype, raw.memory, raw.before).copy()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._nbytes

    def __del__(self) -> None:
        try:
            raw = self.raw
        except AttributeError:  # interrupted while it was made
            return
        if raw is not None:
            self._give_back(raw)


class Room:
    """Memory that values grow in: what is behind the bytes in use is free."""

    def __init__(self, nbytes: int) -> None:
        self.block, self.size, self.used = POOL.block(nbytes), nbytes, 0
        self.address = self.block.address
        self._lock = threading.Lock()

    def claim(self, end: int, more: int) -> bool:
        """True if a value that ends here may have more bytes behind it: from then on it has."""
        with self._lock:
            if self.used != end or end + more > self.size:
                return False
            self.used = end + more
            return True

    def give_up(self, end: int, more: int) -> None:
        """Bytes that were claimed and never written are free again, if nothing is behind them."""
        with self._lock:
            if self.used == end + more:
                self.used = end


class Grown(Piece):
    """A value at the beginning of memory with room behind it. Nobody writes over it.

    In memory the axis that it grows along comes before all others, so that what is new lies behind
    what is there; unless that is so by itself (`axis` 0), its elements do not follow each other.
    """

    __slots__ = ("_nbytes", "axis", "dtype", "room", "shape")

    def __init__(
        self, room: Room, shape: tuple[int, ...], dtype: Any, nbytes: int, axis: int = 0
    ) -> None:
        self.exported = None
        self.room, self.shape, self.dtype, self.axis = room, shape, dtype, axis
        self._nbytes = nbytes
        self._address = 0 if axis else room.address

    @property
    def array(self) -> Array:
        """The memory itself, which nobody can write to."""
        if self.exported is None:
            shape, axis = self.shape, self.axis
            part = self.room.block.bytes()[: self._nbytes].view(self.dtype)
            part.flags.writeable = False
            laid = part.reshape((shape[axis], *shape[:axis], *shape[axis + 1 :]) if axis else shape)
            self.exported = np.moveaxis(laid, 0, axis) if axis else laid
        return self.exported

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._nbytes

    def copied(self, shape: tuple[int, ...]) -> Array:
        """Its values in an array of their own."""
        return np.array(self.array.reshape(shape), order="C")

    @property
    def start(self) -> int:
        """Where it begins, for kernels that append to it."""
        return self.room.address

    def give_up(self, shorter: HostBuffer) -> None:
        """What is behind a shorter value was not written after all."""
        self.room.give_up(shorter.nbytes, self._nbytes - shorter.nbytes)


def inner_axis(shape: tuple[int, ...], axis: int) -> int:
    """The axis that a value grows along; 0 if what is before it has one element."""
    return axis if prod(shape[:axis]) != 1 else 0


def may_grow(buffer: HostBuffer, axis: int) -> bool:
    """True if a value has grown along an axis before."""
    if type(buffer) is Grown:
        return buffer.axis == axis
    return type(buffer) is BlockBuffer and getattr(buffer, "joined", None) == axis


def grown(buffer: HostBuffer, axis: int, shape: tuple[int, ...], dtype: Any) -> Grown:
    """Memory for a value that begins with another: that of the first if there is room.

    What is behind the first is still to be written.
    """
    end, count = buffer.nbytes, prod(shape) * dtype.itemsize
    room = buffer.room if type(buffer) is Grown and buffer.axis == axis else None
    if room is None or not room.claim(end, count - end):
        room = Room(2 * count)
        room.claim(0, count)
        old = np.moveaxis(buffer.array, axis, 0) if axis else buffer.array
        room.block.bytes()[:end].view(dtype).reshape(old.shape)[...] = old
    return Grown(room, shape, dtype, count, axis)


def extended(
    buffer: HostBuffer, behind: HostBuffer, shape: tuple[int, ...], dtype: Any
) -> HostBuffer:
    """A value and another behind it, in the memory of the first if there is room."""
    end, more = buffer.nbytes, behind.nbytes
    made = grown(buffer, 0, shape, dtype)
    made.room.block.bytes()[end : end + more].view(dtype)[:] = behind.array.reshape(-1)
    return made


class MemoryPool:
    """Free blocks by size class."""

    def __init__(self) -> None:
        self._free: dict[int, list[Raw]] = {}
        self._slab: Slab | None = None  # with room for more
        self.most = IDLE
        self.lock = threading.RLock()  # re-entrant: the collector may free a block while held
        self.stats = MemoryStats()

    def after_fork(self) -> None:
        """In a child process no other thread lives: a lock it held is open again."""
        self.lock = threading.RLock()

    @staticmethod
    def size_of(nbytes: int) -> int:
        """The size class that serves so many bytes, aligned."""
        return size_class(nbytes + ALIGN)

    def block(self, nbytes: int) -> Block:
        """Memory of at least so many bytes; its contents are whatever was there."""
        return Block(self.take(self.size_of(nbytes), slack=2), nbytes, self.give_back)

    def lasting(self, nbytes: int) -> Block:
        """Memory for a value that stays and is read again and again, such as a packed weight.

        What does not fill huge pages shares them with others of its kind: with small pages a
        product of few rows spends a tenth of its time on looking their addresses up.
        """
        size = -(-nbytes // ALIGN) * ALIGN
        if not 0 < size <= SLAB // 2:
            return self.block(nbytes)
        with self.lock:
            raw = self._slab.piece(size) if self._slab is not None else None
            if raw is None:
                try:
                    self._slab = Slab()
                except (MemoryError, ValueError, OverflowError):
                    return self.block(nbytes)
                raw = self._slab.piece(size)
                assert raw is not None, "a slab has room for two"
            self.stats.fresh += 1
            self.stats.used += size
            self.stats.peak = max(self.stats.peak, self.stats.used)
        return Block(raw, nbytes, self._let_go)

    def _let_go(self, raw: Raw) -> None:
        """A piece of a slab is not kept for later."""
        with self.lock:
            self.stats.used -= raw.size

    def take(self, size: int, slack: int = 8) -> Raw:
        """Raw memory of a size class, which must be given back."""
        stats = self.stats
        with self.lock:
            stack = self._free.get(size)
            if stack:
                raw = stack.pop()
                stats.idle -= size
                stats.reused += 1
            else:
                raw = self._fresh(size, slack)
                stats.fresh += 1
            stats.used += size
            if stats.used > stats.peak:
                stats.peak = stats.used
        return raw

    def _fresh(self, size: int, slack: int) -> Raw:
        try:
            return Raw(size, slack)
        except (MemoryError, ValueError, OverflowError):
            self.empty()
        try:
            return Raw(size)
        except (MemoryError, ValueError, OverflowError) as problem:
            raise MemoryLimitError(
                f"no memory for {readable(size)}", "free some tensors or use less"
            ) from problem

    def give_back(self, raw: Raw) -> None:
        """Keep free memory for later."""
        with self.lock:
            size, stats = raw.size, self.stats
            stats.used -= size
            if stats.idle + size <= self.most:  # no global name: this may run at the very end
                self._free.setdefault(size, []).append(raw)
                stats.idle += size

    def empty(self) -> int:
        """Give all free blocks back to the system; how many bytes that were."""
        with self.lock:
            freed = self.stats.idle
            self._free.clear()
            self._slab = None
            self.stats.idle = 0
        return freed

    def reset_peak(self) -> None:
        """Begin to look for the peak anew."""
        self.stats.peak = self.stats.used


class Spares(list[Raw]):
    """Memory of small results of one program, for its next run: no lock, no counting.

    To the pool it is in use until `give_back`, or until the program and its results are gone.
    """

    __slots__ = ()

    def give_back(self) -> None:
        """Give all of it to the pool."""
        while self:
            try:
                POOL.give_back(self.pop())
            except IndexError:  # another thread took the last one
                return

    def __del__(self) -> None:
        if POOL is not None:  # else the interpreter ends
            self.give_back()


class FewSpares(Spares):
    """The same of larger results: the pool has what is beyond a few."""

    __slots__ = ()

    def append(self, raw: Raw) -> None:
        """Keep it, or give it to the pool."""
        if len(self) < FEW:
            super().append(raw)
        elif POOL is not None:  # else the interpreter ends
            POOL.give_back(raw)


def spares_for(nbytes: int, once: bool) -> Spares | None:
    """What keeps the memory of results of so many bytes; few of them, if a plan has them `once`
    and not for each of many sizes."""
    if nbytes <= SPARED:
        return Spares()
    return FewSpares() if once and nbytes <= FEW_SPARED else None


def size_class(nbytes: int) -> int:
    """The size of the block that serves so many bytes: at most an eighth more."""
    if nbytes <= 512:
        return -(-nbytes // 64) * 64
    step = 1 << (nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


class Keeper(Protocol):
    """Something that keeps memory for its next use."""

    def forget(self) -> None:
        """Let go of it."""

    def spared(self) -> int:
        """How many bytes of results that are gone it keeps, which the pool counts as used."""


KEEPERS: weakref.WeakSet[Keeper] = weakref.WeakSet()


def spared_bytes() -> int:
    """How much memory of results that are gone programs keep for their next run."""
    return sum([keeper.spared() for keeper in list(KEEPERS)])


def forget_idle() -> None:
    """Let go of the arenas that plans keep for their next run."""
    for keeper in list(KEEPERS):
        keeper.forget()


POOL = MemoryPool()
os.register_at_fork(after_in_child=POOL.after_fork)
