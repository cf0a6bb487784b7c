"""A caching allocator for a GPU's memory: blocks by size class, ordered by one stream.

In: sizes. Out: `CudaBuffer`s over `Block`s. A block that nobody holds goes back to a free list of
its class, from any thread and from the garbage collector, without a call of the driver. It is
handed out again at once: all work is in the order of one stream, so what the last holder launched
runs before what the next one does. When the driver has no more, the free lists are given back and
it is asked once more.
Blocks are counted by the buffers over them and have no finalizer: the garbage collector calls those
of all it found before it frees any. For the same reason no finalizer hands a block on to the next
value of its kind: `Ring`s keep such values, and know by counts of references that nobody else does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from sys import getrefcount
from typing import Any

from ..device import MemoryLimitError
from ..donation import counts_are_exact
from . import driver as cuda

RING_BYTES = 1 << 24  # larger blocks are for everybody
RING = 3  # buffers of one result of a plan that take turns
LEAST = 512  # bytes of the smallest class
STEPS = 2  # bits below the leading one that tell classes apart: four to an octave


def size_class(nbytes: int) -> int:
    """The bytes that are taken for so many: at most a fifth more."""
    if nbytes <= LEAST:
        return LEAST
    step = 1 << max(nbytes.bit_length() - 1 - STEPS, 9)
    return -(-nbytes // step) * step


class Block:
    """Memory of the GPU that goes back to its pool when its last buffer is gone."""

    __slots__ = (
        "__weakref__",
        "address",
        "exported",
        "failed",
        "holders",
        "pool",
        "size",
    )

    def __init__(self, pool: MemoryPool, address: int, size: int) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.holders = 0  # buffers over it
        self.exported: object | None = None
        self.failed: BaseException | None = None  # why there is no value in it

    def give_back(self) -> None:
        """Let anybody have it."""
        self.pool.give(self.address, self.size)


class BorrowedBlock:
    """Memory of another library: its owner gets it back when nobody holds it."""

    __slots__ = ("__weakref__", "address", "discard", "exported", "failed", "holders", "owner")
    size = 0
    failed: BaseException | None

    def __init__(self, owner: Any, discard: Callable[[Any], None]) -> None:
        self.owner, self.address, self.discard = owner, owner.address, discard
        self.holders = 0
        self.exported: object | None = owner  # who may write to it
        self.failed = None

    def give_back(self) -> None:
        """Let its owner have it."""
        self.discard(self.owner)


class CudaBuffer:
    """A value in a block."""

    __slots__ = ("__weakref__", "address", "arrival", "block", "nbytes")
    arrival: Any  # of one that is still on the host: `start.ArrivingBuffer`

    def __init__(self, block: Block | BorrowedBlock, address: int, nbytes: int) -> None:
        self.block, self.address, self.nbytes = block, address, nbytes
        block.holders += 1

    def __del__(self) -> None:
        block = self.block
        block.holders -= 1
        if not block.holders:
            block.give_back()

    exported = property(attrgetter("block.exported"), doc="Who else was given the memory.")

    @property
    def shared(self) -> bool:
        """True if somebody else may write to the memory."""
        return isinstance(self.block, BorrowedBlock)

    def exclusive(self) -> bool:
        """True if no other buffer is over the same block and nobody else was given it."""
        return self.block.holders == 1 and self.block.exported is None


def _references() -> int:
    """How often a thing is counted that only a pair of a list holds, of which a loop has it."""
    (found,) = [getrefcount(thing) for thing, _ in [(object(), None)]]
    return found


SOLE = _references() if counts_are_exact() else 0  # else nothing is ever known to be held once


class Ring:
    """The buffers of one result of a plan: values take turns in the same few.

    Addresses that come again are arguments that a graph has already, and a buffer that nobody else
    holds (`SOLE`) is a result again as it is: nothing is made or freed. The pool counts one that
    waits among those in use; its statistics do not (`MemoryPool.stats`).
    """

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.entries: list[tuple[CudaBuffer, weakref.ref[CudaBuffer]]] = []
        pool.rings.add(self)

    def fresh(self, nbytes: int) -> tuple[CudaBuffer, weakref.ref[CudaBuffer]]:
        """A buffer that takes turns from now on, if it is not too large, in place of the oldest."""
        block = self.pool.take(nbytes)
        made = CudaBuffer(block, block.address, nbytes)
        entry = made, weakref.ref(made)
        if block.size <= RING_BYTES:
            del self.entries[: 1 - RING]
            self.entries.append(entry)
        return entry

    def waiting(self) -> int:
        """Bytes of buffers that nobody holds."""
        return sum([b.block.size for b, _ in self.entries if getrefcount(b) == SOLE])

    def give_up(self) -> None:
        """Let anybody have the memory."""
        self.entries.clear()


class MemoryPool:
    """Blocks of one GPU."""

    def __init__(self, context: cuda.Context, stream: cuda.Stream, limit: int = 0) -> None:
        self.context, self.stream, self.limit = context, stream, limit
        self.driver_pool = cuda.Pool(context)
        self.free: dict[int, list[int]] = {}
        self.used = self.peak = self.idle = self.fresh = self.reused = 0
        self.rings: weakref.WeakSet[Ring] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.reclaim: Callable[[], object] = int  # asks others to let go of what they keep

    def take(self, nbytes: int) -> Block:
        """A block of at least so many bytes."""
        size = size_class(nbytes)
        listed = self.free.get(size)
        try:
            if not listed:
                raise IndexError
            address = listed.pop()
            self.idle -= size
            self.reused += 1
        except IndexError:  # nothing there, or another thread was quicker
            address = self._fresh(size)
        self.used += size
        self.peak = max(self.peak, self.used)
        return Block(self, address, size)

    def give(self, address: int, size: int) -> None:
        """Take a block back; the driver is not called."""
        self.used -= size
        self.idle += size
        self.free.setdefault(size, []).append(address)

    def _fresh(self, size: int) -> int:
        with self._lock:
            if not self.limit or self.used + self.idle + size <= self.limit:
                try:
                    found = self.driver_pool.allocate(size, self.stream)
                    self.fresh += 1
                    return found
                except cuda.CudaMemoryError:
                    pass
        self.reclaim()
        self.empty()
        with self._lock:
            try:
                if self.limit and self.used + self.idle + size > self.limit:
                    raise MemoryLimitError("the limit of the pool")
                found = self.driver_pool.allocate(size, self.stream)
                self.fresh += 1
                return found
            except (cuda.CudaMemoryError, MemoryLimitError) as problem:
                free, total = self.context.memory()
                raise MemoryLimitError(
                    f"no memory for {_amount(size)} on the GPU: tensors and plans of this process "
                    f"hold {_amount(self.used)}, {_amount(free)} of {_amount(total)} are free",
                    "free some tensors, use smaller batches, or call fg.empty_cache() in other "
                    "processes that use this GPU",
                ) from problem

    def empty(self) -> int:
        """Give blocks that nobody holds back to the driver; how many bytes that were."""
        freed = 0
        with self._lock:
            for size, listed in self.free.items():
                while listed:
                    self.driver_pool.free(listed.pop(), self.stream)
                    self.idle -= size
                    freed += size
            self.stream.synchronize()
            self.driver_pool.trim()
        return freed

    def close(self) -> None:
        """Give all of it back to the driver, as far as nobody holds it."""
        self.empty()
        self.driver_pool.close()

    def stats(self, reset_peak: bool = False) -> dict[str, int]:
        """Bytes and blocks, as every device counts them."""
        waiting = sum([ring.waiting() for ring in list(self.rings)])
        found = {
            "fresh": self.fresh, "idle": self.idle + waiting, "peak": self.peak,
            "reused": self.reused, "used": self.used - waiting,
        }  # fmt: skip
        if reset_peak:
            self.peak = found["used"]
        return found


def _amount(nbytes: int) -> str:
    """Bytes in words."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
