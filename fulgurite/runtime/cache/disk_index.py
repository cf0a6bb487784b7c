"""The SQLite index of a store: which file each key has, in a folder that is ours alone.

In: a folder and work to do on a connection. Out: what the work returns, or None with one warning if
the folder or the index cannot be used. The invariant: no work runs in a folder that others can
write to, and a damaged index is set aside and begun anew rather than believed. A rollback journal
and not WAL, because it also works on network and read-only file systems and holds nothing between
two transactions; forking waits for the transactions of other threads, so a child inherits none and
opens its own connection.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ...errors import CacheWarning

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")

REST = 60.0  # seconds without another try after a failure: it is not paid for again each time
PATIENCE = 5.0  # seconds to wait for another process's transaction
TABLE = """create table if not exists entries
    (kind text, key text, digest text, size integer, primary key (kind, key)) without rowid"""
# SQLite's codes for trouble outside the index: perm, busy, locked, no memory, read-only, I/O,
# full, cannot open, protocol. After any other code the index itself is taken for damaged.
_BUSY, _OUTSIDE = 5, {3, 5, 6, 7, 8, 10, 13, 14, 15}


class Untrusted(Exception):
    """A folder or file that must not be used; the text says why."""


def distrust(status: os.stat_result) -> str:
    """Why a file or folder might hold somebody else's bytes; empty if it cannot."""
    if sys.platform == "win32":  # permissions are not in the mode there
        return ""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    return "others may write to it" if status.st_mode & 0o022 else ""


class Index:
    """One connection for each process, shared by its threads; `data` is the folder of files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.data = os.path.join(folder, "data")
        self.links = os.path.join(folder, "links")
        self._file = os.path.join(folder, "index.sqlite")
        self.damaged = f"{self._file}.damaged"
        self._connection: Connection | None = None
        self._lock = threading.RLock()
        self._warned: set[str] = set()
        self._told: set[str] = set()  # faults that were warned of, in reading or in writing
        self._not_before: dict[str, float] = {}  # doing -> the end of its rest
        with _indexes_lock:
            _indexes.add(self)

    def run(self, doing: str, work: Callable[[Connection], T]) -> T | None:
        """Do work on the index, again on a fresh one if that fails; None if it cannot be done.

        `doing` is "write", which makes the folder, "read", or "drop", which fails silently.
        """
        if time.monotonic() < self._not_before.get(doing, 0.0):
            return None
        if self._connection is None and doing != "write" and not os.path.lexists(self._file):
            return None  # nothing was stored yet: no need of SQLite to know it
        from sqlite3 import Error

        failure: Exception
        for last in (False, True):
            try:
                with self._lock:
                    return work(self._open(make=doing == "write"))
            except (OSError, Untrusted) as error:
                failure = error
                self.close()
            except (Error, UnicodeError) as error:  # a damaged index has such texts too
                failure = error
                self.close()  # which also rolls back
                code = getattr(error, "sqlite_errorcode", 1) & 0xFF
                if code == _BUSY:
                    break
                if code not in _OUTSIDE and not last:
                    self._set_aside(str(error))
            except BaseException:  # Ctrl-C in a transaction must not leave the index locked
                self.close()
                raise
        self._not_before[doing] = time.monotonic() + REST
        if doing != "drop" and str(failure) not in self._told:  # of one fault one warning
            self._told.add(str(failure))
            self.warn(
                doing,
                f"compiled code cannot be {'stored' if doing == 'write' else 'read'} on disk "
                f"({self.folder}: {failure}); repair that, set FULGURITE_CACHE_DIR to another "
                "folder, or switch the disk cache off with FULGURITE_DISK_CACHE=0",
            )
        return None

    @property
    def is_private(self) -> bool:
        """True if the folders are there and nobody else can write to them."""
        try:
            _make_private(self.folder)
            _make_private(self.data)
        except (OSError, Untrusted):
            return False
        return True

    def close(self) -> None:
        """Close the connection; the next work opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def warn(self, topic: str, text: str) -> None:
        """Warn, once for each topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(f"disk cache: {text}", CacheWarning, stacklevel=3)

    def _open(self, make: bool) -> Connection:
        if make or self._connection is None:
            for folder in (self.folder, self.data):
                try:  # each time: somebody may have removed the folder under a running process
                    _make_private(folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    for missing in (os.path.dirname(folder), folder):
                        os.makedirs(missing, 0o700, exist_ok=True)
                    _make_private(folder)
        if self._connection is None:
            for file in (self._file, f"{self._file}-journal"):
                with suppress(FileNotFoundError):
                    status = os.lstat(file)
                    regular = stat.S_ISREG(status.st_mode)
                    if problem := distrust(status) if regular else "not a regular file":
                        self._set_aside(problem)
            from sqlite3 import connect

            self._connection = connect(
                self._file, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("pragma journal_mode = truncate")
            # A killed process loses nothing by this. A power cut may cost the index, never a right
            # answer, and waiting for the disk would be paid at every compile (tens of ms if busy).
            self._connection.execute("pragma synchronous = off")
            self._connection.execute(TABLE)
        return self._connection

    def _set_aside(self, problem: str) -> None:
        for suffix in ("-journal", ""):
            with suppress(OSError):
                os.replace(self._file + suffix, self.damaged + suffix)
        hint = f"It is now {os.path.basename(self.damaged)} and the cache begins anew"
        self.warn("index", f"{self._file} is not trusted: {problem}. {hint}")


def _make_private(folder: str) -> None:
    """Make sure that a folder is ours and nobody else can look into it."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"{folder} is not a folder")
    if problem := distrust(status):
        raise Untrusted(f"{folder} is not trusted: {problem}")
    if status.st_mode & 0o077:
        with suppress(OSError):  # read-only: to be read by others does no harm
            os.chmod(folder, 0o700)


_indexes: weakref.WeakSet[Index] = weakref.WeakSet()
_indexes_lock = threading.RLock()
_held: list[Index] = []
_abandoned: list[object] = []  # a parent's connections, which a child must neither use nor close


def _before_fork() -> None:
    _indexes_lock.acquire()
    _held[:] = list(_indexes)
    for index in _held:
        index._lock.acquire()


def _after_fork() -> None:
    for index in _held:
        index._lock.release()
    _held.clear()
    with suppress(RuntimeError):  # this module was loaded while a fork had begun: nothing is held
        _indexes_lock.release()


def _after_fork_in_child() -> None:
    for index in _held:
        _abandoned.append(index._connection)
        index._connection = None
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
