"""Memory as users see it: how much is held, how to give it back, when work is done.

In: nothing. Out: figures of the host's pool, which serves the `cpu` device. Memory of values that
are gone is kept for the next ones; `empty_cache` gives it back to the system.
"""

from __future__ import annotations

from dataclasses import asdict


def memory_stats(reset_peak: bool = False) -> dict[str, int]:
    """Bytes and blocks of the host's memory pool.

    `used` bytes are in values that are alive and in plans' arenas, `peak` is the most that was
    used at once, `idle` is kept for later; `fresh` and `reused` count blocks.

    >>> import fulgurite as fg
    >>> sorted(fg.memory_stats())
    ['fresh', 'idle', 'peak', 'reused', 'used']
    """
    from .runtime.cpu.pool import POOL, spared_bytes

    found, spared = asdict(POOL.stats), spared_bytes()
    found["used"], found["idle"] = found["used"] - spared, found["idle"] + spared
    if reset_peak:
        POOL.reset_peak()
    return found


def empty_cache() -> int:
    """Give memory that no value uses back to the system; how many bytes that were.

    >>> import fulgurite as fg
    >>> freed = fg.empty_cache()
    >>> fg.memory_stats()["idle"]
    0
    """
    from .runtime.cpu.pool import POOL, forget_idle

    forget_idle()
    return POOL.empty()


def synchronize() -> None:
    """Wait until all work that was begun is done; on the CPU it always is.

    >>> import fulgurite as fg
    >>> fg.synchronize()
    """
