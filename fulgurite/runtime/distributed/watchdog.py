"""The watchdog: ends a job in which a rank waits too long, and says where every rank is.

In: what the main thread waits for. Out: nothing, unless that takes longer than the timeout: then
all ranks are asked where they are (each has such a thread, which answers while its main thread
computes). The job is ended, and the answers are printed, if a rank does not answer (it was killed,
stopped or cut off), or if nobody gets on: every rank waits for others or stands still, which is to
use no processor time (it sleeps, or waits for a lock or a socket). While one of them works, others
are patient: `PATIENCE` times the timeout. A rank of the same machine that does not answer but works
is in a long call that keeps Python's lock: it is waited for as well.
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
from .launcher import has_ended, write_last_words

_PERIOD_SECONDS = 0.2  # between two looks
_ANSWER_SECONDS = 3.0  # how long others have to say where they are
_LAST_SECONDS = 2.0  # for MPI to end the job; then this process ends itself
_QUESTION, _ANSWER = 7, 8  # tags
EXIT_HUNG = 75
PATIENCE = 30  # timeouts that a rank waits for one that works
_SILENT = "does not answer: killed, stopped or cut off"
_IDLE_SHARE = 0.02  # of a core, which threads like this one may use in a rank that stands still


def this_place() -> str:
    """What two ranks have in common that see each other's processes and network."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {' '.join(spaces)} {os.getpid()}"
    except OSError:
        return f"? {os.getpid()}"


def processor_ticks(pid: int) -> int | None:
    """The processor time of a process of this machine; None if it is gone, stopped or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "TtZX" else int(fields[11]) + int(fields[12])


class Watchdog:
    """One daemon thread of a rank."""

    def __init__(self, mpi: Any, comm: Any, timeout: float) -> None:
        self.mpi, self.comm, self.timeout = mpi, comm, timeout
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.plan = ""
        self._waits: tuple[str, float] | None = None
        self._main = threading.main_thread().ident
        self._asked = 0.0  # when all were asked last
        self._questions = 0
        # processor time of the main thread and of the process, and since when it is that
        self._still = 0, 0, time.monotonic()
        self._places: list[str] = comm.allgather(this_place())
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

    def gets_on(self) -> bool:
        """True if the main thread works, or has not waited or stood still for long."""
        since = self._waits[1] if self._waits is not None else self._still[2]
        return time.monotonic() - since < self.timeout

    def _look(self) -> None:
        """Note since when the process has stood still."""
        clock = getattr(time, "pthread_getcpuclockid", None)
        main = time.clock_gettime_ns(clock(self._main)) if clock is not None else 0
        used, now = time.process_time_ns(), time.monotonic()
        before, all_before, since = self._still
        if main != before or used - all_before > _IDLE_SHARE * 1e9 * (now - since):
            self._still = main, used, now

    def where(self) -> str:
        """What this rank is doing."""
        waits = self._waits
        plan = f" ({self.plan})" if self.plan else ""
        if waits is not None:
            return f"waits {time.monotonic() - waits[1]:.1f} s in {waits[0]}{plan}"
        still = time.monotonic() - self._still[2]
        stands = f", still for {still:.1f} s" if still > 2 * _PERIOD_SECONDS else ""
        return f"is not waiting: runs {self._line()}{stands}{plan}"

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
            self._look()
            self._answer()
            waits = self._waits
            if waits is None:
                continue
            now = time.monotonic()
            if now - waits[1] > self.timeout and now - self._asked > self.timeout / 4:
                answers = self._ask()
                self._asked = time.monotonic()
                if self._waits is waits and self._is_over(answers, now - waits[1]):
                    self._end_job(answers)
                    return

    def _answer(self) -> None:
        status = self.mpi.Status()
        while self.comm.Iprobe(self.mpi.ANY_SOURCE, _QUESTION, status):
            source = status.Get_source()
            number = self.comm.recv(source=source, tag=_QUESTION)
            self.comm.isend((number, self.gets_on(), self.where()), dest=source, tag=_ANSWER)

    def _is_over(self, answers: dict[int, tuple[bool, str]], waited: float) -> bool:
        """True if waiting on makes no sense: a rank is silent, or nobody gets on."""
        silent = len(answers) < self.size - 1
        works = any([gets_on for gets_on, _ in answers.values()])
        return silent or not works or waited > PATIENCE * self.timeout

    def _ask(self) -> dict[int, tuple[bool, str]]:
        """Where all others are, of those who answer, or whose work is seen from here."""
        self._questions += 1
        others = [rank for rank in range(self.size) if rank != self.rank]
        before = {rank: self._ticks(rank) for rank in others}
        for rank in others:
            self.comm.isend(self._questions, dest=rank, tag=_QUESTION)
        answers: dict[int, tuple[bool, str]] = {}
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(answers) < len(others) and time.monotonic() < deadline:
            self._answer()
            for rank in others:
                while self.comm.Iprobe(rank, _ANSWER):
                    number, *answer = self.comm.recv(source=rank, tag=_ANSWER)
                    if number == self._questions:  # and none that came too late
                        answers[rank] = answer[0], answer[1]
            time.sleep(_PERIOD_SECONDS / 10)
        # of a rank whose lock is held, threads that wait for it use some
        idle = _IDLE_SHARE * _ANSWER_SECONDS * os.sysconf("SC_CLK_TCK")
        for rank in others:
            then, now = before[rank], self._ticks(rank)
            if rank not in answers and then is not None and now is not None and now - then > idle:
                answers[rank] = True, "does not answer, but works"
        return answers

    def _ticks(self, rank: int) -> int | None:
        """The processor time of a rank of this machine; None if that is not known."""
        mine, _, _ = self._places[self.rank].rpartition(" ")
        place, _, pid = self._places[rank].rpartition(" ")
        return processor_ticks(int(pid)) if place == mine != "?" else None

    def _end_job(self, answers: dict[int, tuple[bool, str]]) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        lines = [f"fulgurite: rank {self.rank} {self.where()}: longer than {self.timeout:g} s"]
        for rank in others:
            silent = "has ended its program" if has_ended(rank) else _SILENT
            lines.append(f"  rank {rank} {answers.get(rank, (False, silent))[1]}")
        lines.append("  the job is ended (FULGURITE_TIMEOUT sets the seconds)")
        write_last_words("\n".join(lines) + "\n")
        threading.Timer(_LAST_SECONDS, os._exit, [EXIT_HUNG]).start()
        self.mpi.COMM_WORLD.Abort(EXIT_HUNG)
