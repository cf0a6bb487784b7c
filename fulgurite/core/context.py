"""The compiler's context: every table that outlives one compilation, with one lock.

In: `TABLE = Table(make)`, declared by the module whose table it is. Out: `TABLE()`, that table in
the context of now, made on first use. A test that must not see what others compiled runs
under `fresh_context()`. A table is safe among threads by itself (`Cache`, `WeakMemo`), or is
changed under `context().lock` only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class CompilerContext:
    """The tables of one compiler."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tables: dict[Table[Any], Any] = {}


class Table(Generic[T]):
    """One table in every context."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __call__(self) -> T:
        """The table of the context of now."""
        here = _now
        found: T | None = here.tables.get(self)
        if found is None:
            with here.lock:
                found = here.tables.get(self)
                if found is None:
                    found = here.tables[self] = self._make()
        return found


class WeakMemo(Generic[K, V]):
    """Values by keys that live elsewhere: an entry goes with its key. Threads may share it."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[K, V] = WeakKeyDictionary()

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key; two threads may make it, and one of theirs stays."""
        with _now.lock:
            if key in self._known:
                return self._known[key]
        made = make()
        with _now.lock:
            return self._known.setdefault(key, made)

    def __len__(self) -> int:
        return len(self._known)


_now = CompilerContext()


def context() -> CompilerContext:
    """The context of now."""
    return _now


@contextmanager
def fresh_context() -> Iterator[CompilerContext]:
    """Compile with empty tables, in all threads: for tests."""
    global _now
    before, _now = _now, CompilerContext()
    try:
        yield _now
    finally:
        _now = before


def _after_fork() -> None:
    """In a child process no other thread lives: a lock that one held is open again."""
    _now.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
