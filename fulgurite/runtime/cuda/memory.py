"""A caching allocator for a GPU's memory: blocks by size class, ordered by one stream.

In: sizes. Out: `CudaBuffer`s over `Block`s. A block that nobody holds goes back to a free list of
its class, from any thread and from the garbage collector, without a call of the driver. It is
handed out again at once: all work is in the order of one stream, so what the last holder launched
runs before what the next one does. When the driver has no more, the free lists are given back and
it is asked once more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..device import MemoryLimitError
from . import driver as cuda

SPARE_BYTES = 1 << 24  # larger blocks are for everybody
LEAST = 512  # bytes of the smallest class
SPARES = 2  # blocks that wait for the next value of their kind
STEPS = 2  # bits below the leading one that tell classes apart: four to an octave


def size_class(nbytes: int) -> int:
    """The bytes that are taken for so many: at most a fifth more."""
    if nbytes <= LEAST:
        return LEAST
    step = 1 << max(nbytes.bit_length() - 1 - STEPS, 9)
    return -(-nbytes // step) * step


class Block:
    """Memory of the GPU that goes back to its pool when nobody holds it."""

    __slots__ = (
        "__weakref__",
        "address",
        "exported",
        "failed",
        "holders",
        "pool",
        "size",
        "spares",
    )

    def __init__(self, pool: MemoryPool, address: int, size: int) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.holders = 0  # buffers over it
        self.exported: object | None = None
        self.failed: BaseException | None = None  # why there is no value in it
        self.spares: Spares | None = None  # of whoever wants this very block again

    def __del__(self) -> None:
        self.pool.give(self.address, self.size)


class Spares:
    """Blocks that wait for the next value of their kind: values take turns in the same few.

    Addresses that come again are arguments that a graph has already. The pool counts a waiting
    block among those in use; its statistics do not (`MemoryPool.stats`).
    """

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.blocks: list[Block] = []
        pool.spares.add(self)

    def take(self, nbytes: int) -> Block:
        """A block that comes back here, if it is not too large."""
        try:
            block = self.blocks.pop()
        except IndexError:
            block = self.pool.take(nbytes)
            if block.size <= SPARE_BYTES:
                block.spares = self
        else:
            self.pool.reused += 1
        return block

    def give_up(self) -> None:
        """Let anybody have the blocks."""
        self.blocks.clear()


class BorrowedBlock:
    """Memory of another library: its owner gets it back when nobody holds it."""

    __slots__ = ("__weakref__", "address", "discard", "exported", "failed", "holders", "owner")
    size, spares = 0, None  # nobody waits for it
    failed: BaseException | None

    def __init__(self, owner: Any, discard: Callable[[Any], None]) -> None:
        self.owner, self.address, self.discard = owner, owner.address, discard
        self.holders = 0
        self.exported: object | None = owner  # who may write to it
        self.failed = None

    def __del__(self) -> None:
        self.discard(self.owner)


class CudaBuffer:
    """A value in a block."""

    __slots__ = ("__weakref__", "address", "block", "nbytes")

    def __init__(self, block: Block | BorrowedBlock, address: int, nbytes: int) -> None:
        self.block, self.address, self.nbytes = block, address, nbytes
        block.holders += 1

    def __del__(self) -> None:
        """Whoever wants this very block again gets it, if no other buffer is over it."""
        block = self.block
        block.holders -= 1
        spares = block.spares
        if spares is not None and not block.holders and len(spares.blocks) < SPARES:
            block.exported = block.failed = None
            spares.blocks.append(block)  # type: ignore[arg-type]

    @property
    def exported(self) -> object | None:
        """Who else was given the memory."""
        return self.block.exported

    @property
    def shared(self) -> bool:
        """True if somebody else may write to the memory."""
        return isinstance(self.block, BorrowedBlock)

    def exclusive(self) -> bool:
        """True if no other buffer is over the same block and nobody else was given it."""
        return self.block.holders == 1 and self.block.exported is None


class MemoryPool:
    """Blocks of one GPU."""

    def __init__(self, context: cuda.Context, stream: cuda.Stream, limit: int = 0) -> None:
        self.context, self.stream, self.limit = context, stream, limit
        self.driver_pool = cuda.Pool(context)
        self.free: dict[int, list[int]] = {}
        self.used = self.peak = self.idle = self.fresh = self.reused = 0
        self.spares: weakref.WeakSet[Spares] = weakref.WeakSet()
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

    def stats(self, reset_peak: bool = False) -> dict[str, int]:
        """Bytes and blocks, as every device counts them."""
        waiting = sum([block.size for spares in list(self.spares) for block in spares.blocks])
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
