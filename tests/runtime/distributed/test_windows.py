"""Sums in shared windows: threads stand for ranks, one array for the memory that they share."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fulgurite.core.dtype import float32
from fulgurite.core.ops.collective import ALL_REDUCE, _fold
from fulgurite.core.ops.leaf import param
from fulgurite.runtime.distributed import windows
from fulgurite.runtime.distributed.windows import SharedSums

pytestmark = pytest.mark.device("none")
COUNT = 3
NODE = ALL_REDUCE(param(0, (4,), float32), arg=((("data", COUNT),), ("data",), "add"))


class Machine:
    """What threads that stand for ranks share."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(COUNT, timeout=60)
        self.memory: list[Any] = []

    def world(self, rank: int) -> Any:
        """The world of one rank, as far as windows need it."""
        numbers = iter(range(100))

        def allocate(nbytes: int, unit: int, comm: Any) -> Any:
            number = next(numbers)
            if rank == 0:
                self.memory.append(np.full(nbytes, 0xA5, np.uint8))
            self.barrier.wait()
            return SimpleNamespace(
                Sync=lambda: None, Lock_all=lambda: None,
                Shared_query=lambda _: (self.memory[number], 1),
            )  # fmt: skip

        def wait_until(is_done: Any, label: str) -> float:
            while not is_done():
                assert not self.barrier.broken
            return 0.0

        mpi = SimpleNamespace(MIN=None, Win=SimpleNamespace(Allocate_shared=allocate))
        return SimpleNamespace(
            mpi=mpi, windows=[], trace=deque(), bytes_sent=0, wait_until=wait_until,
            watchdog=SimpleNamespace(waiting=lambda label: nullcontext()),
        )  # fmt: skip

    def comm(self, rank: int) -> Any:
        """The communicator of one rank."""
        return SimpleNamespace(
            Get_rank=lambda: rank, Get_size=lambda: COUNT, Barrier=self.barrier.wait,
            allreduce=lambda value, op: value,
        )  # fmt: skip


def fold(parts: Any, out: Any) -> Any:
    """Add in the order of ranks."""
    return _fold("add", parts, NODE, out)


def on_machine(function: Any) -> list[Any]:
    """What a function of sums and a rank gives on each."""
    machine = Machine()
    found: list[Any] = [None] * COUNT

    def run(rank: int) -> None:
        try:
            found[rank] = function(SharedSums(machine.world(rank), machine.comm(rank)), rank)
        except BaseException:
            machine.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_sums_are_those_of_all_ranks_and_memory_is_used_again() -> None:
    sizes = [5, 1, 1000, 5]
    numbers = np.random.default_rng(0)
    data = [[numbers.standard_normal(n).astype(np.float32) for n in sizes] for _ in range(COUNT)]

    def rounds(sums: Any, rank: int) -> Any:
        found = []
        for number in range(6):
            started = []
            for array in data[rank]:
                slot = sums.slot(array.nbytes)
                started.append(sums.start(slot, array * (number + 1), fold, "a sum"))
            out = np.empty(5, np.float32)
            first = [sums.finish(started[0], "a sum", out)]
            assert first[0] is out
            found.append([*first, *[sums.finish(one, "a sum", None) for one in started[1:]]])
        return found, sum([len(slots) for slots in sums._free.values()])

    for results, slots in on_machine(rounds):
        assert slots == len(sizes)
        for number, round_ in enumerate(results):
            for n, got in enumerate(round_):
                parts = [data[rank][n] * (number + 1) for rank in range(COUNT)]
                np.testing.assert_array_equal(got, (parts[0] + parts[1]) + parts[2])


def test_a_sum_that_finds_no_room_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_free_bytes", lambda: 4 * windows.SLAB_BYTES)

    def room(sums: Any, rank: int) -> Any:
        return sums.slot(windows.SLAB_BYTES), sums.slot(64) is not None, sums.slot(1 << 30)

    assert on_machine(room) == [(None, True, None)] * COUNT
