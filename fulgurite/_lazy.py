"""What must not happen while a process forks: loading modules, and work inside LLVM.

A child has only the thread that forked it; locks that others held stay shut for ever. Our own are
opened again by their owners. Those that are not ours (the import system's, the compiler's) are
never held when a fork comes: who takes one holds `FORK_LOCK` meanwhile, and forking waits for it.
A module of ours that is loaded when first needed is imported by a plain statement under it:

    with FORK_LOCK:
        from ..core import text
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

FORK_LOCK = threading.RLock()
os.register_at_fork(
    before=FORK_LOCK.acquire, after_in_parent=FORK_LOCK.release, after_in_child=FORK_LOCK.release
)


class fork_safe_property:
    """A cached property that is worked out under `FORK_LOCK`.

    `functools.cached_property` has a lock of its own up to Python 3.11: a child of a process whose
    other thread held it would wait for ever.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        with FORK_LOCK:
            if self.name not in instance.__dict__:
                instance.__dict__[self.name] = self.function(instance)
            return instance.__dict__[self.name]
