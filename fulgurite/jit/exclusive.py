"""May a tensor's memory be written over? Only if nothing but that tensor can ever look at it.

In: tensors, their nodes and memory, while no other thread can begin to read (see
`Registry.overwriting`). Out: yes or no for all of them. References are counted: a pending graph, a
copy of the tensor, a schedule, an exported array or another thread's run each hold one more than a
tensor alone has. What a tensor alone has is measured on one made for that, not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount, ref

import numpy as np

from ..core.dtype import float32
from ..core.ops.effect import TAPE, WATCH, watch
from ..core.ops.leaf import new_buffer
from ..graph.ir.registry import REGISTRY, Entry
from ..runtime.cpu.pool import Block, BlockBuffer
from ..runtime.donation import counts_are_exact as counts_are_exact
from ..runtime.host.device import HostBuffer
from ..tensor import Tensor, wrap


def are_sole(places: Sequence[int], tensors: Sequence[Tensor], memories: Sequence[Any]) -> bool:
    """Does nothing but the tensor itself hold its node and its memory, at each of the places?

    The memories are weak references.
    """
    for i in places:
        memory = memories[i]()
        if type(memory) is not BlockBuffer and type(memory) is not HostBuffer:
            return False
        if getrefcount(memory) != _MEMORY or not is_sole(tensors[i].entry):
            return False
        if memory._array is not None and _most_holders(memory) != _LINK:
            return False
    return True


def _most_holders(memory: HostBuffer) -> int:
    """How many hold an array over some memory, or one that it is a view of: the most of any."""
    held: Any = memory._array
    most = 0
    while held is not None:
        count = getrefcount(held)
        if type(held) is np.ndarray:
            if not held.flags.writeable:
                return -1
            held = held.base
        elif type(held) is Block:
            held = None
        else:
            return -1  # it is shown through something else
        most = count if count > most else most
    return most


def is_sole(entry: Entry) -> bool:
    """Does nothing but an entry hold its node?"""
    node = entry.node
    if node.op is WATCH:
        base = node.src[0]
        return (getrefcount(node), getrefcount(base), getweakrefcount(base)) == _LEAF
    return (getrefcount(node), getweakrefcount(node), 0) == _PLAIN


_MEMORY, _LINK, _PLAIN, _LEAF = 0, 0, (0, 0, 0), (0, 0, 0)


def _measure() -> None:
    """Count the references of tensors that nobody else holds."""
    global _MEMORY, _LINK, _PLAIN, _LEAF
    _LINK = _most_holders(HostBuffer(np.zeros(1)))
    for leaf in (False, True):
        buffer = new_buffer((1,), float32, "reference")
        REGISTRY.attach(buffer, HostBuffer(np.zeros(1, np.float32)))
        tensors = [wrap(buffer)]
        if leaf:
            REGISTRY.rebind(tensors[0].entry, buffer, watch(buffer, TAPE))
        memories = [ref(REGISTRY.storage(buffer))]
        del buffer
        memory = memories[0]()
        _MEMORY = getrefcount(memory)
        node = tensors[0].entry.node
        if leaf:
            base = node.src[0]
            _LEAF = getrefcount(node), getrefcount(base), getweakrefcount(base)
        else:
            _PLAIN = getrefcount(node), getweakrefcount(node), 0
        del node


_measure()
