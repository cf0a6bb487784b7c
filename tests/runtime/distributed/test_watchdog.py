"""The watchdog's judgement: who gets on, who is gone, and when waiting makes no sense any more."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fulgurite.runtime.distributed.watchdog import (
    PATIENCE,
    Watchdog,
    processor_ticks,
    this_place,
)

pytestmark = pytest.mark.device("none")
TIMEOUT = 600.0  # of which no test waits for any


class Answers:
    """A communicator on which one other rank answers what it is told to, or nothing."""

    def __init__(self, *answers: tuple[int, bool, str]) -> None:
        self.waiting = list(answers)
        self.sent: list[Any] = []

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def allgather(self, place: str) -> list[str]:
        return [place, "another machine 1"]

    def Iprobe(self, source: int, tag: int, status: Any = None) -> bool:
        return tag == 8 and bool(self.waiting)

    def recv(self, source: int, tag: int) -> Any:
        return self.waiting.pop(0)

    def isend(self, what: Any, dest: int, tag: int) -> None:
        self.sent.append((what, dest))


def watchdog(*answers: tuple[int, bool, str]) -> Watchdog:
    """One whose thread has ended: tests look themselves."""
    mpi = SimpleNamespace(Status=lambda: None, ANY_SOURCE=-1)
    made = Watchdog(mpi, Answers(*answers), TIMEOUT)
    made.stop()
    assert not made._thread.is_alive()
    return made


@pytest.mark.parametrize(
    ("answers", "waited", "over"),
    [
        ({}, 0.0, True),  # it does not answer
        ({1: (True, "works")}, 2 * TIMEOUT, False),
        ({1: (False, "stands still")}, 2 * TIMEOUT, True),
        ({1: (True, "works")}, (PATIENCE + 1) * TIMEOUT, True),
    ],
)
def test_a_job_is_over_when_a_rank_is_silent_or_nobody_gets_on(
    answers: dict[int, tuple[bool, str]], waited: float, over: bool
) -> None:
    assert watchdog()._is_over(answers, waited) is over


def test_an_answer_to_an_earlier_question_does_not_count() -> None:
    dog = watchdog((1, True, "works"), (2, False, "stands still"))
    dog._questions = 1  # the next is the second
    assert dog._ask() == {1: (False, "stands still")}


def test_who_uses_the_processor_gets_on() -> None:
    dog = watchdog()
    dog._still = (*dog._still[:2], time.monotonic() - 2 * TIMEOUT)
    assert dog._main == threading.main_thread().ident and not dog.gets_on()
    dog._look()  # this test has worked
    assert dog.gets_on() and "is not waiting: runs" in dog.where()
    with dog.waiting("a sum"):
        assert dog.gets_on() and "in a sum" in dog.where()
        dog._waits = "a sum", time.monotonic() - 2 * TIMEOUT
        assert not dog.gets_on()


def test_processes_of_this_machine_are_seen_unless_they_are_gone_or_stopped() -> None:
    assert this_place().endswith(f" {os.getpid()}")
    if not os.path.exists("/proc/self/stat"):
        pytest.skip("there is no /proc")
    assert processor_ticks(os.getpid()) is not None
    other = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(other.pid, signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)  # until it has stopped
        assert processor_ticks(other.pid) is None
    finally:
        other.kill()
        other.wait()
    assert processor_ticks(other.pid) is None
