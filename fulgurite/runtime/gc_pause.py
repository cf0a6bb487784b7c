"""The garbage collector, held back while a graph is compiled.

Compiling makes thousands of nodes, tuples and dicts and almost no cycles; the collector would walk
all of them again and again and free nothing (it doubles the cost of making nodes). Nested and
concurrent holds count; the last one to end lets it run again, if it ran before.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holds = 0
_ran = False


@contextmanager
def held_back() -> Iterator[None]:
    """No collection starts by itself inside the block, in any thread."""
    global _holds, _ran
    with _lock:
        if _holds == 0:
            _ran = gc.isenabled()
            gc.disable()
        _holds += 1
    try:
        yield
    finally:
        with _lock:
            _holds -= 1
            if _holds == 0 and _ran:
                gc.enable()
