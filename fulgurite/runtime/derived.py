"""Derived buffers, such as prepacked weights (cpu/prepack.py), and their invalidation.

In: buffers, by whoever derives something from them, and by whoever writes over them. Out: what is
known of a buffer. The invariant: what is not `stale` was derived from what the buffer holds now.
Memory is written over in two places alone (donation.py, jit/replay.py), which say so before they
begin, while no other thread reads. `mark` is another number after each such write that mattered:
who keeps derived values looks at it before each run. Nothing here keeps a buffer alive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref


class Derived:
    """A value that was derived from a buffer; it goes with that."""

    __slots__ = ("__weakref__", "_source", "stale", "value")

    def __init__(self, source: Any, value: Any) -> None:
        self.value, self.stale = value, False
        self._source = ref(source, self._gone)

    def _gone(self, _: Any) -> None:
        self.spoil()

    def spoil(self) -> None:
        """Its source holds something else now, or is gone: let go of the value."""
        self.stale, self.value = True, None
        DERIVED.mark += 1


class DerivedValues:
    """All that is alive, by its buffer and how it was derived."""

    def __init__(self) -> None:
        self.mark = 0
        self._of: WeakKeyDictionary[Any, WeakValueDictionary[Hashable, Derived]]
        self._of = WeakKeyDictionary()
        self._lock = threading.RLock()  # re-entrant: the collector may run in it
        os.register_at_fork(after_in_child=self.after_fork)

    def after_fork(self) -> None:
        """In a child process no other thread lives: a lock it held is open again."""
        self._lock = threading.RLock()

    def get(self, buffer: Any, key: Hashable, make: Callable[[], Any]) -> Derived:
        """What was derived from a buffer in a way; made now if nobody has it."""
        with self._lock:
            known = self._of.get(buffer)
            if known is None:
                known = self._of[buffer] = WeakValueDictionary()
            found = known.get(key)
            if found is None:
                found = known[key] = Derived(buffer, make())
            return found

    @property
    def of_any(self) -> bool:
        """True if anything is derived from some buffer."""
        return bool(self._of.data)  # type: ignore[attr-defined]  # dead ones too: quicker

    def overwritten(self, buffers: Iterable[Any]) -> None:
        """These buffers are about to be written over."""
        with self._lock:
            for buffer in buffers:
                known = self._of.pop(buffer, None)
                for derived in list(known.values()) if known is not None else ():
                    derived.spoil()


DERIVED = DerivedValues()
