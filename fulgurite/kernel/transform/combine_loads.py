"""Load combining: neighbouring bytes put together are one load of a wider whole number.

In: the nodes of a kernel. Out: those that are `b0 | b1 << 8 | ...` of bytes that lie beside each
other in memory, with the loads of these, the lowest first. Packed formats are written so, byte by
byte; machines have the lowest byte first in memory. Whoever emits one load for all must see to it
that lanes are as far apart as such numbers are wide, or all at one place.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...core.dtype import uint8
from ...core.node import Node
from ...core.ops.elementwise import CAST, OR, SHL
from ...core.ops.index import LOAD
from ...core.ops.leaf import CONST


def combined_loads(order: Iterable[Node]) -> dict[Node, list[Node]]:
    """Nodes that one wide load may stand for, and the loads of their bytes."""
    numbers = [n for n in order if n.op is OR and n.dtype.kind == "u" and n.dtype.bits > 8]
    found = {node: _bytes(node) for node in numbers}
    return {node: loads for node, loads in found.items() if loads}


def _bytes(node: Node) -> list[Node]:
    """The loads of a number's bytes, if these are neighbours; none if they are not."""
    loads: dict[int, Node] = {}
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op is OR:
            stack.extend(part.src)
            continue
        shift, load = _shifted_byte(part)
        if load is None or shift in loads:
            return []
        loads[shift] = load
    count = node.dtype.itemsize
    if sorted(loads) != [8 * n for n in range(count)]:
        return []
    each = [loads[8 * n] for n in range(count)]
    number, (offset, terms), _ = each[0].arg
    wanted = [(number, (offset + n, terms), ()) for n in range(count)]
    plain = all(isinstance(atom, int) for atom, _ in terms)
    return each if plain and [load.arg for load in each] == wanted else []


def _shifted_byte(node: Node) -> tuple[int, Node | None]:
    """How far up a byte is put, and its load."""
    shift = 0
    if node.op is SHL and node.src[1].op is CONST:
        shift, node = node.src[1].arg[0], node.src[0]
    if node.op is not CAST:
        return shift, None
    load = node.src[0]
    return shift, load if load.op is LOAD and load.dtype is uint8 and not load.src else None
