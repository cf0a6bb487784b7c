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
from weakref import getweakrefcount

from ..core.dtype import float32
from ..core.extension import compiled
from ..core.ops.effect import TAPE, WATCH, watch
from ..core.ops.leaf import BUFFER, new_buffer
from ..graph.ir.registry import REGISTRY, Entry
from ..runtime.device import get_device
from ..runtime.donation import counts_are_exact as counts_are_exact
from ..tensor import Tensor, wrap

Counts = list[int]  # references of all nodes, of the memory's own nodes, weak ones, of all memory


def are_sole(tensors: tuple[Tensor, ...], alone: Counts) -> bool:
    """Does nothing but each tensor itself hold its node and its memory?

    `alone` is what is counted then (`counts_of_leaves`). Many at a time: a loop of Python's for
    each would cost more than the launch.
    """
    found, memories = counted(tensors)
    return found == alone and all(
        [memory.exported is None or memory.exclusive() for memory in memories]
    )


@compiled
def counted(tensors: tuple[Tensor, ...]) -> tuple[Counts, Sequence[Any]]:
    """How many references tensors' nodes and memory have here, and the memory."""
    nodes = [tensor.entry.node for tensor in tensors]
    bases = [node.src[0] if node.op is WATCH else node for node in nodes]
    memories = [base.memory for base in bases]
    counts = [
        *map(getrefcount, nodes), *map(getrefcount, bases), *map(getweakrefcount, bases),
        *map(getrefcount, memories),
    ]  # fmt: skip
    return counts, memories


def counts_of_leaves(leaves: Sequence[bool]) -> Counts:
    """What is counted at tensors that nobody else holds, of which these require a gradient."""
    rows = [_ALONE[leaf] for leaf in leaves]
    return [row[i] for i in range(4) for row in rows]


def is_sole(entry: Entry) -> bool:
    """Does nothing but an entry hold its memory's node? Others may hold that of a detached one."""
    node = entry.node
    if node.op is WATCH:
        base = node.src[0]
        found = getrefcount(node), getrefcount(base), getweakrefcount(base)
        return base.op is BUFFER and found == _LEAF
    return node.op is BUFFER and (getrefcount(node), getweakrefcount(node), 0) == _PLAIN


_PLAIN, _LEAF = (0, 0, 0), (0, 0, 0)
_ALONE: dict[bool, Counts] = {}  # of one tensor, by whether it requires a gradient


def _measure() -> None:
    """Count the references of tensors that nobody else holds."""
    global _PLAIN, _LEAF
    device = get_device("reference")
    for leaf in (False, True):
        buffer = new_buffer((1,), float32, device.name)
        REGISTRY.attach(buffer, device.allocate((1,), float32))
        tensors = (wrap(buffer),)
        if leaf:
            REGISTRY.rebind(tensors[0].entry, buffer, watch(buffer, TAPE))
        del buffer
        _ALONE[leaf] = counted(tensors)[0]
        node = tensors[0].entry.node
        if leaf:
            base = node.src[0]
            _LEAF = getrefcount(node), getrefcount(base), getweakrefcount(base)
        else:
            _PLAIN = getrefcount(node), getweakrefcount(node), 0
        del node


_measure()
