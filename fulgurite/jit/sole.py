"""May a tensor's memory be written over? Only if nothing but that tensor can ever look at it.

In: tensors, their nodes and memory, while no other thread can begin to read (see
`Registry.overwriting`). Out: yes or no for all of them. References are counted: a pending graph, a
copy of the tensor, a schedule, an exported array or another thread's run each hold one more than a
tensor alone has. What a tensor alone has is measured on one made for that, not assumed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cache
from sys import getrefcount
from typing import Any

import numpy as np

from ..core.dtype import float32
from ..core.node import Node
from ..core.ops.effect import TAPE, WATCH, watch
from ..core.ops.leaf import new_buffer
from ..graph.registry import REGISTRY
from ..runtime.donation import counts_are_exact as counts_are_exact
from ..runtime.donation import is_shown_nowhere
from ..runtime.interpreter import HostBuffer
from ..runtime.memory import BlockBuffer
from ..tensor import Tensor, wrap



def are_sole(
    places: Sequence[int], tensors: Sequence[Tensor], nodes: Sequence[Node], memories: Sequence[Any]
) -> bool:
    """Does nothing but the tensor itself hold its node and its memory, at each of the places?

    `nodes` holds each node once more, `memories` are weak references.
    """
    alone, leaf = _alone()
    for i in places:
        node = nodes[i]
        if tensors[i].entry.node is not node:
            return False
        if _counts(node, memories[i]) != (leaf if node.op is WATCH else alone):
            return False
    return True


def _counts(node: Node, reference: Any) -> tuple[int, ...] | None:
    """How many references there are to a tensor's node, its buffer and its memory."""
    base = node.src[0] if node.op is WATCH else node
    memory = reference()
    if type(memory) is not BlockBuffer and type(memory) is not HostBuffer:
        return None
    if memory._array is not None and not is_shown_nowhere(memory):
        return None
    return getrefcount(node), getrefcount(base), weakref.getweakrefcount(base), getrefcount(memory)


@cache
def _alone() -> tuple[Any, Any]:
    """The counts of a tensor that nobody else holds, plain and as a leaf of the tape."""
    return _measured(False), _measured(True)


def _measured(leaf: bool) -> Any:
    buffer = new_buffer((1,), float32, "reference")
    REGISTRY.attach(buffer, HostBuffer(np.zeros(1, np.float32)))
    tensor = wrap(watch(buffer, TAPE) if leaf else buffer)
    memory = weakref.ref(REGISTRY.storage(buffer))  # type: ignore[arg-type]
    del buffer
    nodes = [t.entry.node for t in [tensor]]  # as a replay holds them
    for i in (0,):
        node = nodes[i]
        found = _counts(node, memory)
    return found
