"""The thread pool of native code: the driver in this process, and whom it shares work with.

In: a program and a frame (see codegen/cpu/driver.py). Out: `call`, a builtin that runs the program
with the interpreter's lock released. Workers are started when first wanted, as many as the process
may use (its affinity) or `threads` says; they stop when the interpreter ends, and a forked child,
where no other thread lives, begins with a pool of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Mapping

import numpy as np

from ...codegen.cpu.driver import LIMITS, POOL_BYTES
from ...config import current


class _Method(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


_FASTCALL = 0x80


class Workers:
    """The driver's functions and its pool."""

    def __init__(
        self, functions: Mapping[str, int], pool: Callable[[], Mapping[str, int]],
        prefix: str = "fulgurite",
    ) -> None:  # fmt: skip
        """Take the driver's functions by how their names begin; those of the pool when needed."""
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
        self._method = _Method(b"call", functions[f"{prefix}_call"], _FASTCALL, None)
        self.call: Callable[..., int] = make(ctypes.addressof(self._method), None, None)
        self.plain = self.call  # which nobody times
        self._pool, self._prefix = pool, prefix
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)
        atexit.register(self.stop)

    def _fresh(self) -> None:
        """A pool without workers."""
        self._lock = threading.Lock()
        self.own = own_threads()
        self._left: list[object] = []  # pools without workers, which a call may still read
        self._empty()

    def _empty(self) -> None:
        """Begin with new memory, in which there are no workers."""
        self.count = 1  # threads, with the caller's own
        self._memory = np.zeros(POOL_BYTES + 64, np.uint8)
        start = self._memory.ctypes.data
        self.pool = start + -start % 64

    def ready(self, threads: int = 0) -> int:
        """How many threads a launch may use now; they are started if they are new."""
        threads = threads or current().threads or self.own
        if threads > self.count:
            with self._lock:
                if threads > self.count:
                    self._more(min(threads, LIMITS.workers - 1))
        return min(threads, self.count)

    def _more(self, threads: int) -> None:
        import signal  # whose enumerations take longer to make than a small plan to run

        word, place = ctypes.c_int64, ctypes.c_void_p
        functions = self._pool()
        start = ctypes.CFUNCTYPE(word, place, word, word)(functions[f"{self._prefix}_start"])
        self._stop = ctypes.CFUNCTYPE(None, place, word)(functions[f"{self._prefix}_stop"])
        # signals are for the threads that Python knows
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.count = start(self.pool, self.count, threads)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def stop(self) -> None:
        """End all workers and wait for them."""
        with self._lock:
            if self.count > 1:
                self._stop(self.pool, self.count)
                self._left.append(self._memory)
                self._empty()


def own_threads() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
