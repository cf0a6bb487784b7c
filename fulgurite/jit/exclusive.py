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

from ..core.dtype import float32
from ..core.ops.effect import TAPE, WATCH, watch
from ..core.ops.leaf import new_buffer
from ..graph.ir.registry import REGISTRY, Entry
from ..runtime.device import get_device
from ..runtime.donation import counts_are_exact as counts_are_exact
from ..tensor import Tensor, wrap


def are_sole(places: Sequence[int], tensors: Sequence[Tensor], memories: Sequence[Any]) -> bool:
    """Does nothing but the tensor itself hold its node and its memory, at each of the places?

    The memories are weak references.
    """
    for i in places:
        memory = memories[i]()
        if getrefcount(memory) != _MEMORY or not is_sole(tensors[i].entry):
            return False
        if memory.exported is not None and not memory.exclusive():
            return False
    return True


def is_sole(entry: Entry) -> bool:
    """Does nothing but an entry hold its node?"""
    node = entry.node
    if node.op is WATCH:
        base = node.src[0]
        return (getrefcount(node), getrefcount(base), getweakrefcount(base)) == _LEAF
    return (getrefcount(node), getweakrefcount(node), 0) == _PLAIN


_MEMORY, _PLAIN, _LEAF = 0, (0, 0, 0), (0, 0, 0)


def _measure() -> None:
    """Count the references of tensors that nobody else holds."""
    global _MEMORY, _PLAIN, _LEAF
    device = get_device("reference")
    for leaf in (False, True):
        buffer = new_buffer((1,), float32, device.name)
        REGISTRY.attach(buffer, device.allocate((1,), float32))
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
