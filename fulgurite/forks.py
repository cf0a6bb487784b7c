"""What must not happen while a process forks: loading modules, and work inside LLVM.

A child has only the thread that forked it; locks that others held stay shut for ever. Our own are
opened again by their owners. Those that are not ours (the import system's, the compiler's) are
never held when a fork comes: who takes one holds `QUIET` meanwhile, and forking waits for it.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import Any

QUIET = threading.RLock()
os.register_at_fork(
    before=QUIET.acquire, after_in_parent=QUIET.release, after_in_child=QUIET.release
)


def late(module: str) -> Any:
    """A module of ours that is loaded when first needed, safe against forks."""
    with QUIET:
        return import_module(f"fulgurite.{module}")
