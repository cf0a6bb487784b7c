"""Compiling in processes of their own: as many texts at a time as there are cores.

In: launches, from any thread. Out: cubins. A tenth of compiling a text is Python (Triton reads the
syntax tree), and Triton's import is: in threads all of it waits for one interpreter's lock, which
planning wants too. Workers are forks of a process that has loaded Triton (`server`); this
process never does. Where workers cannot be had, or one is lost, texts are compiled here.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...._lazy import FORK_LOCK
from .server import receive, send
from .tables import MOST_COMPILERS

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..source import Launch
    from .compiler import Cubin

SERVER = Path(__file__).with_name("server.py")


class CompilePool:
    """Workers, each behind a socket; those that nobody talks to wait in a queue."""

    def __init__(self, count: int) -> None:
        pairs = [socket.socketpair() for _ in range(count)]
        numbers = [theirs.fileno() for _, theirs in pairs]
        about = json.dumps([str(SERVER.parents[3]), sys.path, numbers])
        nothing = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SERVER), about], pass_fds=numbers,
                stdin=nothing, stdout=nothing, stderr=nothing,
            )  # fmt: skip
        finally:
            for _, theirs in pairs:
                theirs.close()
        self.count = count
        self.lines = [mine for mine, _ in pairs]
        self.idle: SimpleQueue[socket.socket] = SimpleQueue()
        for line in self.lines:
            self.idle.put(line)
        atexit.register(self.close)

    def compile(self, launch: Launch, capability: int) -> Cubin | None:
        """A launch's cubin; None if a worker could not make one."""
        line = self.idle.get()
        try:
            send(line, (launch, capability))
            found: Cubin | None = receive(line)
            return found
        except (OSError, EOFError, pickle.UnpicklingError):  # the worker is gone
            line.close()
            return None
        except BaseException:  # interrupted: what it answers is not for who asks next
            line.close()
            raise
        finally:
            self.idle.put(line)

    def hang_up(self) -> None:
        """Let the workers go; those of a parent stay with it."""
        for line in self.lines:
            line.close()

    def close(self) -> None:
        """Let the workers go, and see the server out."""
        self.hang_up()
        self.process.terminate()
        self.process.wait()


def width() -> int:
    """How many texts are compiled at the same time."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, MOST_COMPILERS)


@cache
def _pool() -> CompilePool | None:
    is_python = Path(sys.executable or "").name.startswith("python")
    if width() < 2 or sys.platform != "linux" or not is_python or not SERVER.is_file():
        return None
    try:
        return CompilePool(width())
    except OSError:
        return None


_starting = threading.Lock()


def _after_fork() -> None:
    """Let go of the parent's workers: a child that compiles starts its own."""
    global _starting
    _starting = threading.Lock()
    _begun.clear()
    if _pool.cache_info().currsize:
        pool = _pool()
        _pool.cache_clear()
        if pool is not None:
            pool.hang_up()


os.register_at_fork(after_in_child=_after_fork)


def start() -> CompilePool | None:
    """The workers of this process, which get ready; None where there are none to be had."""
    with _starting:
        return _pool()


_begun: dict[tuple[object, int], Future[Cubin]] = {}  # of whom somebody will ask


def begin(launches: Sequence[Launch], capability: int) -> None:
    """Have launches compiled for whoever asks for them next, the most laborious first."""
    with FORK_LOCK:
        from concurrent.futures import ThreadPoolExecutor
    threads = ThreadPoolExecutor(width())
    for launch in sorted(launches, key=lambda launch: launch.effort, reverse=True):
        if (key := (launch.key, capability)) not in _begun:
            _begun[key] = threads.submit(_compiled, launch, capability)
    threads.shutdown(wait=False)


def compile_launch(launch: Launch, capability: int) -> Cubin:
    """A launch's cubin, by a worker or here, or begun before; errors are raised as here."""
    begun = _begun.pop((launch.key, capability), None)
    if begun is not None and begun.exception() is None:
        return begun.result()
    return _compiled(launch, capability)


def _compiled(launch: Launch, capability: int) -> Cubin:
    pool = start()
    found = pool.compile(launch, capability) if pool is not None else None
    if found is None:
        with FORK_LOCK:
            from . import compiler
        found = compiler.compile_launch(launch, capability)
    return found
