"""Slices that are a piece of a buffer's memory: realized without a copy, or read where they are.

In: a node. Out: a BUFFER node whose memory is part of another's, or None. Consecutive elements of
memory that is ours, or that nobody can write to, are shared: a value never changes, since memory is
written over only if no array shows any of it. Small pieces are copied, which costs no more and does
not keep a large buffer alive. A tiny graph reads parts of known memory as inputs of their own:
where they begin is data then, so `a[k]` in a loop is one plan for every k.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from ..config import current
from ..core.node import Node
from ..core.op import Array
from ..core.ops.leaf import BUFFER, new_buffer
from ..core.ops.movement import FLIP, PERMUTE, RESHAPE, SHRINK, pairs
from ..graph.ir.cache_key import Normal
from ..graph.ir.registry import REGISTRY
from .device import get_device
from .plan_key import may_be_tiny

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
    offsets = [_offset(step) for step in steps if step.op is SHRINK]
    known = [offset for offset in offsets if offset is not None]
    return (node, sum(known)) if len(known) == len(offsets) else None


def _offset(shrink: Node) -> int | None:
    """Where the elements that a SHRINK leaves begin in row-major order; None if not contiguous."""
    spread = False  # has an outer dimension more than one element?
    offset = 0
    for (start, stop), n in zip(pairs(shrink), shrink.src[0].shape, strict=True):
        if not (isinstance(start, int) and isinstance(stop, int) and isinstance(n, int)):
            return None  # where it begins is known at run time
        if spread and (start, stop) != (0, n):
            return None
        spread = spread or stop - start != 1
        offset = offset * n + start
    return offset


# --- parts that a tiny graph reads ---------------------------------------------------------------

_OP = attrgetter("op")
_TURNED = frozenset({FLIP, PERMUTE, RESHAPE, SHRINK})  # NumPy gives a view


def is_cut(normal: Normal, device: str) -> bool:
    """True if a graph cuts something and may be tiny."""
    return SHRINK in map(_OP, normal.nodes) and may_be_tiny(current(), device)


def parts_of(normal: Normal, device: str, known: Callable[[Node], Node | None]) -> list[Node]:
    """BUFFERs over what a graph cuts out of known memory.

    While they live their SHRINKs are known by them, so that a key has no place of a cut.
    """
    found: list[Node] = []
    for node in normal.nodes:
        if node.op is SHRINK and (array := _shown(node, known)) is not None:
            part = new_buffer(array.shape, node.dtype, device)
            REGISTRY.attach(part, get_device(device).from_host(array, share=True))
            node.realized = weakref.ref(part)
            found.append(part)
    return found


def _shown(node: Node, known: Callable[[Node], Node | None]) -> Array | None:
    """The memory of what cuts and turns leave of a known value; None if it is not known."""
    memory = known(node)
    if memory is not None and memory.op is BUFFER:
        storage: Any = REGISTRY.memory(memory)
        shape: Any = memory.shape
        device = get_device(memory.device or "")
        return None if storage is None else device.to_host(storage, shape, memory.dtype)
    if node.op not in _TURNED or len(node.src) > 1:  # or where it begins is a variable's value
        return None
    whole = _shown(node.src[0], known)
    assert node.op.numpy is not None
    return None if whole is None else node.op.numpy(node, whole)
