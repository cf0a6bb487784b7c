"""The watchdog: ends a job in which a rank waits too long, and says where every rank is.

In: what the main thread waits for. Out: nothing, unless that takes longer than the timeout: then
all ranks are asked where they are (each has such a thread, which answers while its main thread
computes), the answers are printed, and the job is ended. A rank that does not answer was killed,
stopped or cut off: the message names it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import is_ours
from .launcher import write_last_words

_PERIOD_SECONDS = 0.2  # between two looks
_ANSWER_SECONDS = 3.0  # how long others have to say where they are
_LAST_SECONDS = 2.0  # for MPI to end the job; then this process ends itself
_QUESTION, _ANSWER = 7, 8  # tags
EXIT_HUNG = 75


class Watchdog:
    """One daemon thread of a rank."""

    def __init__(self, mpi: Any, comm: Any, timeout: float) -> None:
        self.mpi, self.comm, self.timeout = mpi, comm, timeout
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.plan = ""
        self._waits: tuple[str, float] | None = None
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._watch, name="fulgurite-watchdog", daemon=True)
        self._ended = threading.Event()
        self._thread.start()
        threading._register_atexit(self.stop)  # type: ignore[attr-defined]  # before MPI ends

    def stop(self) -> None:
        """End the thread: MPI is about to end."""
        self._ended.set()
        self._thread.join(_ANSWER_SECONDS)

    @contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """Within, the main thread waits for others."""
        before, self._waits = self._waits, (label, time.monotonic())
        try:
            yield
        finally:
            self._waits = before

    def where(self) -> str:
        """What this rank is doing."""
        waits = self._waits
        plan = f" ({self.plan})" if self.plan else ""
        if waits is not None:
            return f"waits {time.monotonic() - waits[1]:.1f} s in {waits[0]}{plan}"
        return f"is not waiting: runs {self._line()}{plan}"

    def _line(self) -> str:
        """The line of the user's program where the main thread is."""
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None and is_ours(frame.f_code.co_filename) and frame.f_back is not None:
            frame = frame.f_back
        if frame is None:
            return "nothing (its main thread has ended)"
        code = frame.f_code
        return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"

    def _watch(self) -> None:
        while not self._ended.wait(_PERIOD_SECONDS):
            self._answer()
            waits = self._waits
            if waits is not None and time.monotonic() - waits[1] > self.timeout:
                self._end_job(waits)
                return

    def _answer(self) -> None:
        status = self.mpi.Status()
        while self.comm.Iprobe(self.mpi.ANY_SOURCE, _QUESTION, status):
            source = status.Get_source()
            self.comm.recv(source=source, tag=_QUESTION)
            self.comm.isend(self.where(), dest=source, tag=_ANSWER)

    def _end_job(self, waits: tuple[str, float]) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            self.comm.isend(self.rank, dest=rank, tag=_QUESTION)
        answers: dict[int, str] = {}
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(answers) < len(others) and time.monotonic() < deadline:
            self._answer()
            for rank in others:
                if rank not in answers and self.comm.Iprobe(rank, _ANSWER):
                    answers[rank] = self.comm.recv(source=rank, tag=_ANSWER)
            time.sleep(_PERIOD_SECONDS / 10)
        silent = "does not answer: killed, stopped or cut off"
        lines = [f"fulgurite: rank {self.rank} {self.where()}: longer than {self.timeout:g} s"]
        lines += [f"  rank {rank} {answers.get(rank, silent)}" for rank in others]
        lines.append("  the job is ended (FULGURITE_TIMEOUT sets the seconds)")
        write_last_words("\n".join(lines) + "\n")
        threading.Timer(_LAST_SECONDS, os._exit, [EXIT_HUNG]).start()
        self.mpi.COMM_WORLD.Abort(EXIT_HUNG)
