"""Which sizes a graph came in, by the structure that is left when sizes are taken out.

In: the sizes and constants of a graph. Out: the `Shapes` of its skeleton: the samples that were
seen, and the plans that serve more than one of them (`automatic.py`, which is loaded when there is
something to vary).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from ...core.cache import Cache, Stats
from ...core.context import Table
from ...core.lazy_named_tuple import NamedTuple
from ...graph.ir.size_key import Sizes

if TYPE_CHECKING:
    from .automatic import Member

MOST_REFUSED = 8  # sizes of which it is remembered
SEEN = 2  # sizes that have plans of their own, before what varies is given at run time


class Sample(NamedTuple):
    """What is left of a graph besides its skeleton."""

    sizes: Sizes
    constants: tuple[int, ...]


class Shapes:
    """All graphs of one skeleton."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.members: list[Member] = []
        self.is_loaded = False  # was the disk looked at?
        self.lock = threading.RLock()
        self.reasons: list[str] = []  # why sizes were compiled for by themselves
        self.refused: dict[Sizes, list[str]] = {}  # why plans that were there were not for sizes

    def refuse(self, sizes: Sizes, why: list[str]) -> None:
        """Note why the plans that are there are not for sizes, for people."""
        while len(self.refused) >= MOST_REFUSED:
            self.refused.pop(next(iter(self.refused)))
        self.refused[sizes] = why

    @property
    def varies(self) -> bool:
        """True if sizes have changed often enough to be given at run time."""
        return len({sample.sizes for sample in self.samples}) > SEEN


STATS = Table(Stats)  # of compiled graphs, whoever compiles them
SHAPES: Table[Cache[tuple[Hashable, ...], Shapes]] = Table(lambda: Cache("shapes", lambda: 1024))
