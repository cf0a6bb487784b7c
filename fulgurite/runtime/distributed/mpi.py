"""The world of an MPI job: arrays between processes, over `mpi4py`.

In: parts of arrays and the ranks they go to. Out: what arrived. We write no transport: every call
is a nonblocking one of MPI's, and we wait by asking, with short sleeps between (MPI's own waits
burn a core, which the other ranks of a small machine need). Data goes as bytes, so every dtype can.
Sums that a plan starts early travel in shared windows within a machine (`windows`), in buckets of
messages elsewhere (`buckets`). Before a plan with collectives runs, all ranks compare digests of
their plans: another program on one rank is an error that names it, not a hang. Whoever waits too
long is the watchdog's business.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._lazy import FORK_LOCK
from ...core import ranks
from ...core.ranks import Array
from ...errors import DistributedError
from .buckets import Buckets
from .watchdog import Watchdog
from .windows import MOST_SHARING, Fold, SharedSums, Started

TIMEOUT_SECONDS = 10.0  # of ranks that stand still, unless FULGURITE_TIMEOUT says otherwise
DIGEST_BYTES = 32
_YIELDS = 200  # askings before the first sleep
_SHORT_SLEEP, _LONG_SLEEP = 20e-6, 500e-6  # seconds


def join() -> MpiWorld:
    """Start MPI in this process and meet the others."""
    found = ranks.world()
    if isinstance(found, MpiWorld):
        return found
    with FORK_LOCK:
        try:
            import mpi4py
        except ImportError:
            raise DistributedError(
                "this process is one of several, and mpi4py is not installed",
                "pip install 'fulgurite[distributed]'",
            ) from None
    mpi4py.rc.thread_level = "multiple"  # the watchdog answers while the main thread computes
    with FORK_LOCK:
        from mpi4py import MPI
    made = MpiWorld(MPI)
    ranks.enter_world(made)
    return made


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class MpiWorld:
    """All processes of one mpiexec."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.all = mpi.COMM_WORLD.Dup()
        self.rank: int = self.all.Get_rank()
        self.size: int = self.all.Get_size()
        self._comms: dict[tuple[int, ...], Any] = {tuple(range(self.size)): self.all}
        self._control = mpi.COMM_WORLD.Dup()
        self._agreement: tuple[Any, Array, str, str] | None = None
        seconds = float(os.environ.get("FULGURITE_TIMEOUT", "") or TIMEOUT_SECONDS)
        self.watchdog = Watchdog(mpi, mpi.COMM_WORLD.Dup(), seconds)
        self.trace: deque[Any] = deque(maxlen=256)  # of sums: begun, done, waited, nbytes
        self.buckets = Buckets(self)
        self.windows: list[Any] = []
        self._shared: dict[tuple[int, ...], SharedSums | None] = {}
        self._sums: dict[int, tuple[SharedSums, Started]] = {}
        self._tickets = itertools.count(1 << 41)
        self.bytes_sent = 0
        self.seconds_waited = 0.0

    # --- arrays ----------------------------------------------------------------------------------

    def exchange(self, group: Sequence[int], parts: Sequence[Array], label: str) -> list[Array]:
        """Part number i goes to member i of the group; what every member sent here, in order."""
        me = list(group).index(self.rank)
        to = [rank for rank in group if rank != self.rank]
        sent = [part for i, part in enumerate(parts) if i != me]
        found = self._swap(to, sent, to, [np.empty_like(p) for p in sent], label)
        return [*found[:me], parts[me], *found[me:]]

    def gather(self, group: Sequence[int], part: Array, label: str) -> list[Array]:
        """One part of every member of the group, in order."""
        if len(group) == 1:
            return [part]
        self._check_agreement()
        comm = self._comm(tuple(group))
        whole = np.empty((len(group), *part.shape), part.dtype)
        self.bytes_sent += part.nbytes * (len(group) - 1)
        mine = _bytes(part)
        request = comm.Iallgather(
            [mine, self.mpi.BYTE], [whole.reshape(-1).view(np.uint8), self.mpi.BYTE]
        )
        self._wait([request], label)
        return list(whole)

    def route(
        self, to: Sequence[int], sources: Sequence[int], array: Array, label: str
    ) -> list[Array]:
        """The array goes to some ranks; what came from the sources, in order."""
        into = [np.empty_like(array) for _ in sources]
        return self._swap(to, [array for _ in to], sources, into, label)

    def _swap(
        self, to: Sequence[int], sent: Sequence[Array], sources: Sequence[int],
        into: Sequence[Array], label: str,
    ) -> list[Array]:  # fmt: skip
        self._check_agreement()
        held = [_bytes(part) for part in sent]
        requests = [
            self.all.Irecv([part.reshape(-1).view(np.uint8), self.mpi.BYTE], source=rank, tag=1)
            for rank, part in zip(sources, into, strict=True)
        ]
        requests += [
            self.all.Isend([part, self.mpi.BYTE], dest=rank, tag=1)
            for rank, part in zip(to, held, strict=True)
        ]
        self.bytes_sent += sum([part.nbytes for part in held])
        self._wait(requests, label)
        return list(into)

    def _comm(self, group: tuple[int, ...]) -> Any:
        found = self._comms.get(group)
        if found is None:
            made = self.all.Get_group().Incl(group)
            found = self._comms[group] = self.all.Create_group(made, tag=sum(group) % 1000)
        return found

    def _wait(self, requests: Sequence[Any], label: str) -> None:
        """Wait until all messages have arrived."""
        test, waiting = self.mpi.Request.Testall, list(requests)
        self.wait_until(lambda: test(waiting), label)

    def wait_until(self, is_done: Callable[[], bool], label: str) -> float:
        """Ask until it is done: yielding at first, then sleeping a little longer each time."""
        start = time.perf_counter()
        asked, nap = 0, _SHORT_SLEEP
        with self.watchdog.waiting(label):
            while not is_done():
                asked += 1
                if asked < _YIELDS:
                    os.sched_yield()
                else:
                    time.sleep(nap)
                    nap = min(nap * 1.5, _LONG_SLEEP)
        waited = time.perf_counter() - start
        self.seconds_waited += waited
        return waited

    # --- sums that run meanwhile -----------------------------------------------------------------

    def start_reduce(
        self, group: Sequence[int], array: Array, how: str, fold: Fold, label: str
    ) -> int:
        """Begin a sum; its ticket. In messages it shares a bucket with others."""
        self._check_agreement()
        members = tuple(group)
        shared = self._shared_sums(members)
        slot = shared.slot(array.nbytes) if shared is not None else None
        if shared is None or slot is None:
            return self.buckets.add(members, array, how, fold, label)
        ticket = next(self._tickets)
        self._sums[ticket] = shared, shared.start(slot, array, fold, label)
        return ticket

    def finish_reduce(self, ticket: int, label: str, out: Array | None = None) -> Array:
        """The sum of what was put in under a ticket, in an array if one is given."""
        found = self._sums.pop(ticket, None)
        if found is not None:
            shared, started = found
            return shared.finish(started, label, out)
        whole = self.buckets.take(ticket, label)
        if out is None:
            return whole
        np.copyto(out, whole)
        return out

    def _shared_sums(self, group: tuple[int, ...]) -> SharedSums | None:
        """Sums in shared memory, if all of a group are on one machine and few enough."""
        if group not in self._shared:
            found = None
            if len(group) <= MOST_SHARING:
                comm = self._comm(group)
                with self.watchdog.waiting("the making of a shared window"):
                    near = comm.Split_type(self.mpi.COMM_TYPE_SHARED)
                    is_near = comm.allreduce(near.Get_size(), op=self.mpi.MIN) == len(group)
                    found = SharedSums(self, near) if is_near else None
            self._shared[group] = found
        return self._shared[group]

    # --- one program -----------------------------------------------------------------------------

    def agree(self, digest: str, where: str) -> None:
        """Begin to compare what all ranks are about to run; the first collective looks."""
        self._check_agreement()
        mine = np.frombuffer(digest.encode()[:DIGEST_BYTES].ljust(DIGEST_BYTES), np.uint8).copy()
        found = np.empty((self.size, DIGEST_BYTES), np.uint8)
        request = self._control.Iallgather([mine, self.mpi.BYTE], [found, self.mpi.BYTE])
        self._agreement = request, found, digest, where
        self._mine = mine  # MPI reads it until it is done
        self.watchdog.plan = f"plan {digest[:8]}" + (f" of {where}" if where else "")

    def _check_agreement(self) -> None:
        if self._agreement is None:
            return
        request, found, digest, where = self._agreement
        self._agreement = None
        self._wait([request], f"the comparison of plans, before plan {digest[:8]}")
        texts = [bytes(row).decode().strip() for row in found]
        mine = texts[self.rank]
        others = [rank for rank, text in enumerate(texts) if text != mine]
        if others:
            raise DistributedError(
                f"ranks run different programs: rank {self.rank} is about to run plan "
                f"{mine[:8]}, rank {others[0]} plan {texts[others[0]][:8]}"
                + (f" (ranks that differ: {others})" if len(others) > 1 else ""),
                "all ranks must build the same graphs: look for `if rank`, data of other shapes, "
                "or another version of the program",
                where or None,
            )

    def abort(self, code: int = 1) -> None:
        """End every process of the job."""
        self.mpi.COMM_WORLD.Abort(code)
