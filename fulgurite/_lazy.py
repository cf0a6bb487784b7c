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

FORK_LOCK = threading.RLock()
os.register_at_fork(
    before=FORK_LOCK.acquire, after_in_parent=FORK_LOCK.release, after_in_child=FORK_LOCK.release
)
