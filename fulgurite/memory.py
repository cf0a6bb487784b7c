"""Memory as users see it: how much is held, how to give it back, when work is done.

In: nothing, or a device's name. Out: figures of its memory. Memory of values that are gone is kept
for the next ones; `empty_cache` gives it back to the system.
"""

from __future__ import annotations

from .config import current
from .runtime.device import devices_in_use, get_device


def memory_stats(reset_peak: bool = False, device: str | None = None) -> dict[str, int]:
    """Bytes and blocks of a device's memory: of the one where new tensors live, or of another.

    `used` bytes are in values that are alive and in plans' arenas, `peak` is the most that was
    used at once, `idle` is kept for later; `fresh` and `reused` count blocks.

    >>> import fulgurite as fg
    >>> sorted(fg.memory_stats())
    ['fresh', 'idle', 'peak', 'reused', 'used']
    """
    return get_device(device or current().device).memory_stats(reset_peak)


def empty_cache() -> int:
    """Give memory that no value uses back to the system; how many bytes that were.

    >>> import fulgurite as fg
    >>> freed = fg.empty_cache()
    >>> fg.memory_stats()["idle"]
    0
    """
    return sum([device.empty_cache() for device in devices_in_use()])


def synchronize() -> None:
    """Wait until all work that was begun is done, on every device; on the CPU it always is.

    >>> import fulgurite as fg
    >>> fg.synchronize()
    """
    for device in devices_in_use():
        device.synchronize()
