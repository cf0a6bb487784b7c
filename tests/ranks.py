"""Ranks as threads of one process: what a graph of one rank means on all of them.

In: a graph that `partition` made, and what each rank's params hold. Out: every rank's results, by
the op table's NumPy meanings, with collectives between the threads. No MPI is needed, so the
default suite compares partitions with the whole graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from fulgurite.core import ranks
from fulgurite.core.node import Node
from fulgurite.core.ranks import Array
from fulgurite.runtime.host.evaluate import evaluate

T = TypeVar("T")
PATIENCE_SECONDS = 60.0


class Threads:
    """What ranks in threads share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.sent: dict[tuple[int, int, int], list[Array]] = {}  # (from, to, number)
        self.failed = False


class ThreadWorld:
    """One rank of several threads: messages by number, each pair's in order."""

    def __init__(self, shared: Threads, rank: int) -> None:
        self.shared, self.rank, self.size = shared, rank, shared.size
        self._counts: dict[tuple[str, int], int] = {}

    def _number(self, way: str, other: int) -> int:
        found = self._counts.get((way, other), 0)
        self._counts[way, other] = found + 1
        return found

    def _send(self, to: int, array: Array) -> None:
        key = self.rank, to, self._number("to", to)
        with self.shared.changed:
            self.shared.sent[key] = [np.array(array)]
            self.shared.changed.notify_all()

    def _receive(self, source: int) -> Array:
        key = source, self.rank, self._number("from", source)
        with self.shared.changed:
            done = self.shared.changed.wait_for(
                lambda: key in self.shared.sent or self.shared.failed, PATIENCE_SECONDS
            )
            assert done and not self.shared.failed, f"nothing came from rank {source}"
            return self.shared.sent.pop(key)[0]

    def exchange(self, group: Sequence[int], parts: Sequence[Array], label: str) -> list[Array]:
        for rank, part in zip(group, parts, strict=True):
            self._send(rank, part)
        return [self._receive(rank) for rank in group]

    def gather(self, group: Sequence[int], part: Array, label: str) -> list[Array]:
        return self.exchange(group, [part] * len(group), label)

    def route(
        self, to: Sequence[int], sources: Sequence[int], array: Array, label: str
    ) -> list[Array]:
        for rank in to:
            self._send(rank, array)
        return [self._receive(rank) for rank in sources]

    def agree(self, digest: str, where: str) -> None:
        pass


def on_ranks(size: int, function: Callable[[int], T]) -> list[T]:
    """What a function gives on each rank."""
    shared = Threads(size)
    found: list[Any] = [None] * size
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        ranks.enter_world(ThreadWorld(shared, rank), thread=True)
        try:
            found[rank] = function(rank)
        except BaseException as problem:
            problems.append(problem)
            with shared.changed:
                shared.failed = True
                shared.changed.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(["Duplicate GPU detected" in str(problem) for problem in problems]):
        pytest.skip("NCCL has no two ranks on one GPU")
    if problems:
        raise problems[0]
    return found


def evaluate_on_ranks(
    size: int, roots: Sequence[Node], arrays: Callable[[int], Mapping[Node, Array]]
) -> list[list[Array]]:
    """The values of a graph of one rank, on each of them."""
    return on_ranks(size, lambda rank: evaluate(roots, arrays(rank), ranks.position_values()))
