"""Slices that are a piece of a buffer's memory: realized without a copy.

In: a node. Out: a BUFFER node whose memory is part of another's, or None. Consecutive elements of
memory that is ours, or that nobody can write to, are shared: a value never changes, since memory is
written over only if no array shows any of it. Small pieces are copied, which costs no more and does
not keep a large buffer alive.
"""

from __future__ import annotations

import math
from typing import Any

from ..core.node import Node
from ..core.ops.leaf import BUFFER, new_buffer
from ..core.ops.movement import RESHAPE, SHRINK, pairs
from ..graph.ir.registry import REGISTRY
from .device import get_device

COPIED_VIEW_BYTES = 1 << 16  # bytes that are rather copied


def view_of(node: Node) -> Node | None:
    """A buffer over the memory that a node's value is already in."""
    found = piece(node)
    if found is None or math.prod(node.shape) * node.dtype.itemsize < COPIED_VIEW_BYTES:
        return None
    memory, offset = found
    storage: Any = REGISTRY.storage(memory)
    if storage is None:
        return None
    device, shape = memory.device or "", node.shape
    start = offset * node.dtype.itemsize
    shown = get_device(device).snapshot(storage, start, shape, node.dtype)  # type: ignore[arg-type]
    if shown is None:
        return None
    made = new_buffer(shape, node.dtype, device)  # type: ignore[arg-type]
    REGISTRY.attach(made, shown)
    return made


def piece(node: Node) -> tuple[Node, int] | None:
    """The buffer that holds a value as consecutive elements, and where they begin."""
    steps: list[Node] = []
    while node.op in (RESHAPE, SHRINK):
        if not all(isinstance(n, int) for n in node.shape):
            return None
        steps.append(node)
        node = node.src[0]
    if node.op is not BUFFER or not steps:
        return None
    offset = 0
    for step in reversed(steps):
        if step.op is RESHAPE:
            continue
        whole = step.src[0].shape
        spread = False  # has an outer dimension more than one element?
        for (start, stop), n in zip(pairs(step), whole, strict=True):
            if not isinstance(start, int) or not isinstance(stop, int):
                return None  # where it begins is known at run time
            if spread and (start, stop) != (0, n):
                return None
            spread = spread or stop - start != 1
        stride = 1
        for (start, _), n in zip(reversed(pairs(step)), reversed(whole), strict=True):
            assert isinstance(start, int) and isinstance(n, int)
            offset += start * stride
            stride *= n
    return node, offset
