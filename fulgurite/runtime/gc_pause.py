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

MOST_TO_STAY = 16  # times: each delays a collection of all that is old
MOST_IMMORTAL = 4096  # objects that a collection of Python 3.12 on counts as frozen: some hundreds
_lock = threading.Lock()
_stayed = 0
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


def made_to_stay() -> None:
    """Let what was made in a hold be old at once, so that no collection walks it when that ends.

    For what a process finds on disk and keeps, which is a few things and no cycles. What the user
    froze stays frozen.
    """
    global _stayed
    with _lock:
        if _stayed < MOST_TO_STAY and gc.get_freeze_count() < MOST_IMMORTAL:
            _stayed += 1
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
