"""A bounded cache in which each value is made once, however many threads ask.

In: a key and a function that makes its value. Out: the value, from the cache or made now. The
first thread to miss leads; the others wait for it. A leader that fails (an error, Ctrl-C) wakes
them and the next one leads: nobody waits for ever and nobody is handed another's failure. The
least recently used entries go first. Statistics are kept for `fg.cache_stats()`.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class Stats:
    """What happened at a cache."""

    hits: int = 0
    misses: int = 0
    waits: int = 0
    evictions: int = 0
    failures: int = 0
    size: int = 0


class Cache(Generic[K, V]):
    """Bounded, least recently used first out, single flight."""

    def __init__(self, name: str, most: Callable[[], int]) -> None:
        self.name, self._most = name, most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._flying: dict[K, threading.Event] = {}
        self._lock = threading.RLock()
        self.stats = Stats()

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
        while True:
            with self._lock:
                value = self._values.get(key)
                if value is not None:
                    self._values.move_to_end(key)
                    self.stats.hits += 1
                    return value
                landed = self._flying.get(key)
                if landed is None:
                    landed = self._flying[key] = threading.Event()
                    self.stats.misses += 1
                    break
                self.stats.waits += 1
            landed.wait()
        try:
            value = make()
        except BaseException:
            with self._lock:
                self.stats.failures += 1
            raise
        else:
            self._put(key, value)
            return value
        finally:
            with self._lock:
                del self._flying[key]
            landed.set()

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
    """Single flight like `Cache`, but an entry lives only as long as somebody uses its value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: weakref.WeakValueDictionary[K, V] = weakref.WeakValueDictionary()
        self._making: Cache[K, V] = Cache(name, lambda: 1)
        self.stats = Stats()

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of the key; made by exactly one of the threads that miss."""
        found = self._values.get(key)
        if found is not None:
            self.stats.hits += 1
            return found

        def once() -> V:
            value = self._values.get(key)
            if value is None:
                self.stats.misses += 1
                value = self._values[key] = make()
            return value

        try:
            return self._making.get_or_make(key, once)
        finally:
            self._making.discard(key)
            self.stats.size = len(self._values)

    def __len__(self) -> int:
        return len(self._values)
