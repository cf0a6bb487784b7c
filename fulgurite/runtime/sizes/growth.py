"""Amortised growth: a concatenation at the end of memory with room, as a list appends.

In: roots that are to be computed. Out: those that join a value in memory with something behind it,
known. What is there stays where it is, and only what is new is computed and copied; memory without
room is copied once into twice as much (amortised doubling). Bytes that a value has are never
written again: its end must be the end of what is in use, so of two values that grow from one the
second is copied, and whoever holds the old value keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import Any, NamedTuple

from ...core.node import Node, toposort
from ...core.ops.elementwise import LT, WHERE
from ...core.ops.leaf import BUFFER, CONST, IOTA, new_buffer
from ...core.ops.movement import PAD, pairs
from ...graph.ir.registry import REGISTRY
from ..device import Buffer, get_device
from ..views import COPIED_VIEW_BYTES


class Append(NamedTuple):
    """A value in memory, and what comes behind it."""

    memory: Node
    part: Node


def append_of(root: Node, known: Callable[[Node], Node | None]) -> Append | None:
    """The memory that a root begins with and what it goes on with, if it is such a value."""
    if root.op is not WHERE or root.watched or not all([type(n) is int for n in root.shape]):
        return None
    chosen, left, right = root.src
    if [n.op for n in (chosen, left, right)] != [LT, PAD, PAD]:
        return None
    place, limit = chosen.src
    if place.op is not IOTA or place.src or limit.op is not CONST:
        return None
    axis: int = place.arg[0]
    if prod(root.shape[:axis]) != 1 or not _are_joined(axis, limit, left, right):
        return None
    memory = known(left.src[0])
    if memory is None or memory.op is not BUFFER or memory.device != root.device:
        return None
    return Append(memory, right.src[0])


def _are_joined(axis: int, limit: Node, left: Node, right: Node) -> bool:
    """True if padded values lie one behind the other along an axis, and meet at a limit."""
    before, after = left.src[0].shape, right.src[0].shape
    none = [(0, 0)] * len(before)
    return (
        limit.value == before[axis]
        and pairs(left) == [*none[:axis], (0, after[axis]), *none[axis + 1 :]]
        and pairs(right) == [*none[:axis], (before[axis], 0), *none[axis + 1 :]]
    )


def grow(
    roots: Collection[Node], known: Callable[[Node], Node | None], computed: Callable[[Node], Node]
) -> dict[Node, Node]:
    """The roots that could grow where they are, and the buffers that hold them now."""
    found: dict[Node, Node] = {}
    for root in roots:
        append = append_of(root, known)
        if append is None or prod(append.memory.shape) * root.dtype.itemsize < COPIED_VIEW_BYTES:
            continue
        if known(append.part) is None and not _is_apart(append.part, root, roots):
            continue  # others would compute what it is made of again
        buffer = _grown(root, append, computed)
        if buffer is not None:
            found[root] = buffer
    return found


def _grown(root: Node, append: Append, computed: Callable[[Node], Node]) -> Node | None:
    device, memory = get_device(root.device or ""), REGISTRY.memory(append.memory)
    part = computed(append.part)
    shape: Any = root.shape
    behind: Any = REGISTRY.memory(part)
    if memory is None or behind is None:
        return None
    made: Buffer | None = device.extended(memory, behind, shape, root.dtype)  # type: ignore[arg-type]
    if made is None:
        return None
    buffer = new_buffer(shape, root.dtype, root.device or "")
    buffer.origins = root.origins
    REGISTRY.attach(buffer, made)
    return buffer


def _is_apart(part: Node, root: Node, roots: Iterable[Node]) -> bool:
    """True if no other root is made of what a part is made of, but through the grown value."""
    others = [r for r in roots if r is not root]
    if not others:
        return True
    inside = {n for n in toposort([part]) if n.src}
    seen = {root}
    stack = list(others)
    while stack:
        node = stack.pop()
        if node in inside:
            return False
        if node not in seen:
            seen.add(node)
            stack.extend(node.src)
    return True
