"""A bounded cache in which each value is made once, however many threads ask.

In: a key and a function that makes its value. Out: the value, from the cache or made now. The
first thread to miss leads; the others wait for it. A leader that fails (an error, Ctrl-C) wakes
them and the next one leads: nobody waits for ever and nobody is handed another's failure. The
least recently used entries go first. Statistics are kept for `fg.cache_stats()`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from .lazy_dataclass import dataclass

_caches: weakref.WeakSet[Any] = weakref.WeakSet()
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(eq=False, repr=False)
class Stats:
    """What happened at a cache."""

    hits: int = 0
    misses: int = 0
    waits: int = 0
    evictions: int = 0
    failures: int = 0
    size: int = 0


class _Flight:
    """The lock of one key while its value is being made; dropped with its last waiter."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()


class Cache(Generic[K, V]):
    """Bounded, least recently used first out, single flight."""

    def __init__(self, name: str, most: Callable[[], int]) -> None:
        self.name, self._most = name, most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._flights: weakref.WeakValueDictionary[K, _Flight] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self.stats = Stats()
        _caches.add(self)

    def after_fork(self) -> None:
        """In a child process no other thread lives: locks they held are open again."""
        self._lock = threading.RLock()
        self._flights = weakref.WeakValueDictionary()

    def get(self, key: K) -> V | None:
        """The value, if it is there; counted as a hit or nothing."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
                self.stats.hits += 1
            return value

    def peek(self, key: K) -> V | None:
        """The value, if it is there; counts as nothing and keeps the order."""
        return self._values.get(key)

    def keys(self) -> list[K]:
        """The keys, least recently used first."""
        with self._lock:
            return list(self._values)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of the key; made by exactly one of the threads that miss."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = _Flight()
            else:
                self.stats.waits += 1
        with flight.lock:  # left however `make` ends: nobody waits for one who is gone
            found = self.get(key)
            if found is not None:
                return found
            with self._lock:
                self.stats.misses += 1
            try:
                value = make()
            except BaseException:
                self.stats.failures += 1
                raise
            self._put(key, value)
            return value

    def _put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            while len(self._values) > max(1, self._most()):
                self._values.popitem(last=False)
                self.stats.evictions += 1
            self.stats.size = len(self._values)

    def discard(self, key: K) -> None:
        """Forget one entry, if it is there."""
        with self._lock:
            self._values.pop(key, None)
            self.stats.size = len(self._values)

    def clear(self) -> None:
        """Forget every entry; statistics stay."""
        with self._lock:
            self._values.clear()
            self.stats.size = 0

    def __len__(self) -> int:
        return len(self._values)


class WeakCache(Generic[K, V]):
    """Single flight like `Cache`, but an entry lives only as long as its value is referenced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: weakref.WeakValueDictionary[K, V] = weakref.WeakValueDictionary()
        self._making: Cache[K, V] = Cache(name, lambda: 1)
        self.stats = Stats()

    def get(self, key: K) -> V | None:
        """The value, if it is referenced; counted as a hit or nothing."""
        found = self._values.get(key)
        if found is not None:
            self.stats.hits += 1
        return found

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of the key; made by exactly one of the threads that miss."""
        found = self.get(key)
        if found is not None:
            return found

        def once() -> V:
            value = self._values.get(key)
            if value is None:
                value = self._values[key] = make()
                self.stats.misses += 1
            return value

        try:
            return self._making.get_or_make(key, once)
        finally:
            self._making.discard(key)
            self.stats.size = len(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _after_fork() -> None:
    for cache in list(_caches):
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)
