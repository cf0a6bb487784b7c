"""Buckets: sums over ranks of several machines, which share messages and travel while kernels run.

In: flat arrays with the group they are summed over. Out: the sums. Arrays of one dtype, group and
fold fill a bucket; full, or as soon as one of its sums is waited for, it goes on its way in two
rounds: every rank gets one part of all arrays and folds it in the order of ranks, then all gather
the parts. A thread keeps MPI going between the calls of the main thread. Rounds of one bucket may
overlap with those of the next, but second rounds begin in the order of buckets on every rank, or
messages would meet the wrong ones.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.ranks import Array

if TYPE_CHECKING:
    from .mpi import MpiWorld
    from .windows import Fold

BUCKET_BYTES = 1 << 20
_PERIOD_SECONDS = 500e-6  # between two askings of the thread


class Bucket:
    """Arrays that travel together."""

    def __init__(self, group: tuple[int, ...], fold: Fold, dtype: Any, room: int) -> None:
        self.group, self.fold = group, fold
        self.flat: Array | None = np.empty(room + len(group), dtype)  # MPI reads it in round one
        self.room, self.used = room, 0
        self.nbytes = 0
        self.requests: list[Any] | None = None  # of the round that is under way
        self.parts: list[Array] = []
        self.size = 0
        self.whole: Array | None = None
        self.begun = self.done = 0.0  # seconds of the clock, for traces
        self.waited = 0.0  # seconds that the main thread waited for it

    @property
    def is_done(self) -> bool:
        """True if its sums are there."""
        return self.done > 0


class Buckets:
    """All buckets of a rank."""

    def __init__(self, world: MpiWorld) -> None:
        self.world, self.mpi = world, world.mpi
        self._open: dict[tuple[Any, ...], Bucket] = {}
        self._queue: deque[Bucket] = deque()  # those under way, in order
        self._sums: dict[int, tuple[Bucket, int, int]] = {}  # and where in it
        self._tickets = itertools.count(1 << 40)
        self._comms: dict[tuple[int, ...], Any] = {}
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="fulgurite-mpi", daemon=True)
        self._thread.start()
        threading._register_atexit(self.stop)  # type: ignore[attr-defined]  # before MPI ends

    def stop(self) -> None:
        """End the thread."""
        self._ended = True
        self._awake.set()
        self._thread.join(1.0)

    def add(self, group: tuple[int, ...], array: Array, how: str, fold: Fold, label: str) -> int:
        """Put an array into the bucket of its kind."""
        key = group, array.dtype, how
        bucket = self._open.get(key)
        if bucket is not None and bucket.used + array.size > bucket.room:
            self._send_off(key)
            bucket = None
        if bucket is None:
            room = max(array.size, BUCKET_BYTES // array.itemsize)
            bucket = self._open[key] = Bucket(group, fold, array.dtype, room)
        ticket = next(self._tickets)
        self._sums[ticket] = bucket, bucket.used, bucket.used + array.size
        assert bucket.flat is not None
        bucket.flat[bucket.used : bucket.used + array.size] = array
        bucket.used += array.size
        bucket.nbytes += array.nbytes
        if bucket.used == bucket.room:
            self._send_off(key)
        return ticket

    def take(self, ticket: int, label: str) -> Array:
        """A sum; its bucket is sent off now if it was not, and waited for."""
        bucket, start, stop = self._sums.pop(ticket)
        for key, waiting in list(self._open.items()):
            if waiting is bucket:
                self._send_off(key)
        begin = time.perf_counter()
        nap = 20e-6
        with self.world.watchdog.waiting(label):
            while not bucket.is_done:
                with self._lock:
                    self._progress()
                if not bucket.is_done:
                    time.sleep(nap)
                    nap = min(nap + 10e-6, _PERIOD_SECONDS)
        waited = time.perf_counter() - begin
        bucket.waited += waited
        self.world.seconds_waited += waited
        assert bucket.whole is not None
        return bucket.whole[start:stop]

    # --- rounds ----------------------------------------------------------------------------------

    def _comm(self, group: tuple[int, ...]) -> Any:
        """Communicators of our own: nobody else's messages come between."""
        found = self._comms.get(group)
        if found is None:
            found = self._comms[group] = self.world._comm(group).Dup()
        return found

    def _send_off(self, key: tuple[Any, ...]) -> None:
        bucket = self._open.pop(key)
        comm = self._comm(bucket.group)
        count, me = len(bucket.group), comm.Get_rank()
        bucket.size = -(-bucket.used // count)
        assert bucket.flat is not None
        bucket.flat[bucket.used : count * bucket.size] = 0
        flat = bucket.flat[: count * bucket.size].reshape(count, bucket.size)
        bucket.begun = time.perf_counter()
        byte = self.mpi.BYTE
        with self._lock:
            bucket.parts = [flat[i] if i == me else np.empty_like(flat[i]) for i in range(count)]
            others = [i for i in range(count) if i != me]
            views = [part.view(np.uint8) for part in bucket.parts]
            requests = [comm.Irecv([views[i], byte], source=i, tag=2) for i in others]
            sent = [flat[i].view(np.uint8) for i in others]
            requests += [
                comm.Isend([part, byte], dest=i, tag=2)
                for i, part in zip(others, sent, strict=True)
            ]
            bucket.requests = requests
            self._queue.append(bucket)
        self.world.bytes_sent += 2 * bucket.size * flat.itemsize * (count - 1)
        self._awake.set()

    def _progress(self) -> None:
        """Take every bucket as far as it can go; only the first may begin its second round."""
        test = self.mpi.Request.Testall
        for bucket in list(self._queue):
            assert bucket.requests is not None
            if not test(bucket.requests):
                continue
            if bucket.whole is None:
                if bucket is not self._first_in_first_round():
                    continue
                mine = np.ascontiguousarray(bucket.fold(bucket.parts, None))
                whole = np.empty((len(bucket.group), bucket.size), mine.dtype)
                byte = self.mpi.BYTE
                bucket.parts, bucket.flat = [mine], None
                request = self._comm(bucket.group).Iallgather(
                    [mine.view(np.uint8), byte], [whole.reshape(-1).view(np.uint8), byte]
                )
                bucket.whole, bucket.requests = whole.reshape(-1), [request]
            else:
                bucket.done = time.perf_counter()
                bucket.parts = []
                self._queue.remove(bucket)
                self.world.trace.append(bucket)

    def _first_in_first_round(self) -> Bucket:
        return next(b for b in self._queue if b.whole is None)

    def _work(self) -> None:
        """Keep MPI going while the main thread computes."""
        while not self._ended:
            self._awake.wait()
            while self._queue and not self._ended:
                with self._lock:
                    self._progress()
                time.sleep(_PERIOD_SECONDS)
            self._awake.clear()
            if self._queue:
                self._awake.set()
