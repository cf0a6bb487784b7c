"""What must not happen while a process forks: loading modules, and work inside LLVM.

A child has only the thread that forked it; locks that others held stay shut for ever. Our own are
opened again by their owners. Those that are not ours (the import system's, the compiler's) are
never held when a fork comes: who takes one holds `FORK_LOCK` meanwhile, and forking waits for it.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import Any

FORK_LOCK = threading.RLock()
os.register_at_fork(
    before=FORK_LOCK.acquire, after_in_parent=FORK_LOCK.release, after_in_child=FORK_LOCK.release
)


def lazy_import(module: str) -> Any:
    """A module of ours that is loaded when first needed, safe against forks."""
    with FORK_LOCK:
        return import_module(f"fulgurite.{module}")
