"""Copies from the host beside the compute stream, through a ring of pinned memory.

In: large host arrays. Out: buffers whose values are there for all that is launched later. An array
goes through slots of pinned memory, chunk by chunk, on a stream of its own: what was launched
before, a training step, runs meanwhile, and the host waits for no kernel. The compute stream waits
for the last chunk. Memory for the copies is not the pool's, whose blocks are handed out again in
the order of the compute stream: a block that comes back here is marked there, and taken again when
the mark is reached.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import driver as cuda
from .memory import Block, CudaBuffer, size_class

if TYPE_CHECKING:
    from ...core.op import Array
    from .device import CudaDevice

STAGED_BYTES = 1 << 16  # the smallest array that goes this way; smaller ones are copied at once
SLOT_BYTES, SLOTS = 1 << 22, 4  # of pinned memory
PARKED = 3  # blocks of a size that wait for the next array: values take turns in them


class Slot:
    """Pinned memory, and the event behind the copy that reads it last."""

    def __init__(self, driver: cuda.Driver, nbytes: int = SLOT_BYTES) -> None:
        self.pinned, self.copied = cuda.Pinned(driver, nbytes), cuda.Event(driver)
        self.used = False


class Staging:
    """The copy stream of one GPU; `give` makes it the pool of the blocks it hands out."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.driver, self.pool = device, device.driver, device.pool
        self.stream = cuda.Stream(self.driver)
        self.slots: list[Slot] = []  # made as they are needed: pinning takes its time
        self.turn = 0
        self.marks: dict[int, cuda.Event] = {}  # of each block, by its address
        self.released: list[tuple[int, int]] = []  # by the garbage collector: no call of the driver
        self.parked: dict[int, list[int]] = {}  # by size, the oldest first
        self._lock = threading.Lock()

    def put(self, array: Array) -> CudaBuffer | None:
        """A contiguous array on the GPU; None if there is no memory for it here."""
        with self._lock:
            block = self._block(size_class(array.nbytes))
            if block is None:
                return None
            for start, slot, nbytes in self._chunks(array.nbytes):
                at = slot.pinned.address
                ctypes.memmove(at, array.ctypes.data + start, nbytes)
                cuda.copy_in(self.driver, block.address + start, at, nbytes, self.stream)
                slot.copied.record(self.stream)
                slot.used = True
            self.device.stream.wait(slot.copied)
            return CudaBuffer(block, block.address, array.nbytes)

    def _chunks(self, nbytes: int) -> Iterator[tuple[int, Slot, int]]:
        """Where chunks begin, slots whose last copy is done, and how long chunks are."""
        start = 0
        while start < nbytes:
            if self.turn == len(self.slots):
                self.slots.append(Slot(self.driver))
            slot = self.slots[self.turn]
            self.turn = (self.turn + 1) % SLOTS
            if slot.used:
                slot.copied.synchronize()
            length = min(slot.pinned.nbytes, nbytes - start)
            yield start, slot, length
            start += length

    # --- memory ----------------------------------------------------------------------------------

    def _block(self, size: int) -> Block | None:
        """A block whose last holder's launches are done, or that the copies wait for."""
        self._park()
        waiting = self.parked.get(size, [])
        address = next((a for a in waiting if self.marks[a].is_done()), 0)
        if not address and len(waiting) < PARKED:
            address = self._fresh(size)
        if not address and waiting:
            address = waiting[0]
            self.stream.wait(self.marks[address])
        if not address:
            return None
        if address in waiting:
            waiting.remove(address)
            self.pool.idle -= size
            self.pool.reused += 1
        self.pool.used += size
        self.pool.peak = max(self.pool.peak, self.pool.used)
        pool: Any = self
        return Block(pool, address, size)

    def _fresh(self, size: int) -> int:
        pool = self.pool
        if pool.limit and pool.used + pool.idle + size > pool.limit:
            return 0
        try:
            address = pool.driver_pool.allocate(size, self.stream)
        except cuda.CudaMemoryError:
            return 0
        pool.fresh += 1
        self.marks[address] = cuda.Event(self.driver)
        return address

    def give(self, address: int, size: int) -> None:
        """Take a block back; the driver is not called."""
        self.pool.used -= size
        self.pool.idle += size
        self.released.append((address, size))

    def _park(self) -> None:
        """Mark blocks that came back; too many of a size are for everybody on the GPU."""
        while self.released:
            address, size = self.released.pop()
            waiting = self.parked.setdefault(size, [])
            if len(waiting) < PARKED:
                self.marks[address].record(self.device.stream)
                waiting.append(address)
            else:
                self._let_go(address, size)

    def _let_go(self, address: int, size: int) -> None:
        self.marks.pop(address).close()
        self.pool.free.setdefault(size, []).append(address)

    def empty(self) -> None:
        """Let anybody have the blocks that wait here."""
        with self._lock:
            self._park()
            for size, waiting in self.parked.items():
                for address in waiting:
                    self._let_go(address, size)
            self.parked.clear()
