"""Who holds memory: the values that are alive, the largest first, with the lines they are from.

In: the registry. Out: `Holder`s, each with bytes, shape, dtype, device and the user's line. An
error of memory that could not be had names the largest; `fg.memory_report()` shows them all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node
from ..core.origin import Origin
from ..graph.ir.kernel import Schedule
from ..graph.ir.registry import REGISTRY
from ..graph.memory.arena import Layout, slot_bytes

MOST_HOLDERS = 5  # that an error names


class Holder(NamedTuple):
    """One value in memory."""

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    line: str  # of the user; empty if none is known
    module: str  # path of the module, or of named scopes, that made it
    name: str = ""  # of a parameter, a buffer, an optimiser's state or a variable
    key: int = 0  # the same value has the same in every report

    def __str__(self) -> str:
        what = f"{readable(self.nbytes)} {self.dtype}{list(self.shape)}"
        where = f" from {self.line}" if self.line else ""
        inside = f" in {self.module}" if self.module else ""
        return f"{what}{f' {self.name}' if self.name else ''}{where}{inside}"


def readable(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.1f} {unit}"
    return f"{count:.0f} B"


def number_of(count: int, thing: str) -> str:
    """A number of things: "1 kernel", "2 kernels"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def place_of(origins: tuple[Origin, ...]) -> tuple[str, str]:
    """The user's line of a value, and the path of the module it was made in."""
    if not origins:
        return "", ""
    first = origins[0]
    return first.at(first.file), "/".join(first.scopes)


def holder_of(node: Node, nbytes: int) -> Holder:
    """What is known of a buffer."""
    shape = tuple([n for n in node.shape if isinstance(n, int)])
    line, module = place_of(node.origins)
    return Holder(nbytes, shape, str(node.dtype), node.device or "", line, module, key=node.id)


NAMED: list[Callable[[], Sequence[Holder]]] = []  # who knows what values are called


class _Asking(threading.local):
    on = False


_asking = _Asking()


def largest_holders(most: int) -> list[Holder]:
    """The largest values that are alive, with their names if those can be found out now."""
    if NAMED and not _asking.on:
        _asking.on = True  # who knows names may fail for want of memory himself
        try:
            known = [holder for holder in NAMED[0]() if holder.nbytes]
            return sorted(known, key=lambda holder: -holder.nbytes)[:most]
        except Exception:  # without names, then: there is an error to be told
            pass
        finally:
            _asking.on = False
    found = sorted(REGISTRY.holdings(), key=lambda pair: -pair[1].nbytes)
    return [holder_of(node, storage.nbytes) for node, storage in found[:most] if storage.nbytes]


def largest_part(schedule: Schedule, layout: Layout) -> str:
    """What takes most room between kernels, and the line that makes it, for an error."""
    made = {slot: item for item in schedule.items for slot in item.writes}
    known = {slot: kept for slot in layout.offsets if (kept := schedule.slots[slot]) is not None}
    if not known:
        return ""
    largest = max(known, key=lambda slot: slot_bytes(known[slot]))
    item, kept = made.get(largest), known[largest]
    line = place_of(item.origins)[0] if item is not None else ""
    what = f"{readable(slot_bytes(kept))} for {kept.dtype}[{', '.join(map(str, kept.shape))}]"
    return f" between kernels, of which {what}{f' of {line}' if line else ''}"
