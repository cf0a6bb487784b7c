"""Results of a plan that nobody has looked at yet: memory, and a node once somebody does.

In: memory that a plan has just written, and what it holds. Out: an entry of the registry for a
tensor. Its BUFFER node is made, and given the memory, when the entry is first read; from
then on the entry is like any other. A replay whose results are only read again by the next one, or
dropped, makes no node at all. The invariant: nothing but its tensor knows such an entry, so no
graph and no `becomes` can miss it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ..core.dtype import DType
from ..core.extension import give
from ..core.node import Node
from ..core.ops.leaf import new_buffer
from ..core.origin import Origin
from ..graph.ir.registry import REGISTRY, Entry, EntryFields
from .device import Buffer


class About(tuple[tuple[int, ...], DType, str]):
    """A result's shape, dtype and device; beside them the user's lines it is from."""

    origins: tuple[Origin, ...] = ()

    @classmethod
    def of(cls, shape: tuple[int, ...], root: Node, device: str) -> About:
        """What becomes of a root."""
        made = cls((shape, root.dtype, device))
        made.origins = root.origins
        return made


_NODE: Any = EntryFields.__dict__["node"]  # the place that `Fresh.node` hides
_ids = REGISTRY.ids
_lock = threading.RLock()


class Fresh(Entry):
    """An entry that is memory so far."""

    __slots__ = ()

    def __init__(self, memory: Buffer, about: About) -> None:
        self.id = next(_ids)
        self.key = -self.id
        self.value = (memory, about)  # type: ignore[assignment]

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The BUFFER node of its memory, made now."""
        with _lock:  # of two threads that look at once one makes it
            if type(self) is Fresh:
                memory, (shape, dtype, device) = self.value  # type: ignore[misc]
                made = new_buffer(shape, dtype, device)
                made.origins = self.value[1].origins  # type: ignore[index]
                REGISTRY.attach(made, memory)
                self.value = None
                _NODE.__set__(self, made)
                REGISTRY.admit(self, made)
                self.__class__ = Entry  # type: ignore[assignment]
        return self.node


give(Fresh=Fresh)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
