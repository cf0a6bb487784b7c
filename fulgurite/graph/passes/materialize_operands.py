"""What is read from memory: sources of the user's native kernels, and bytes that are multiplied.

In: a SINK. Out: the same graph, in which every source of a native call is a value that some kernel
stores or a param: what is only moved, a number or a count is laid out in memory first. Host
functions need nothing of the kind: Python moves elements itself. What several values were joined to
is stored where it is reduced: a row kernel reads a row several times, and would choose between the
parts for each element each time. A factor of a contraction that is
bytes made wider is stored as the bytes: they are a quarter of what a kernel reads again and again,
and processors multiply them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, make, remember
from ...core.ops.effect import CALL, CONTIGUOUS
from ...core.ops.elementwise import CAST, LT, WHERE
from ...core.ops.leaf import CONST, IOTA, PARAM, VAR, VIEW
from ...core.ops.movement import PAD, RESHAPE, UNWINDOW
from ...core.ops.reduce import REDUCE
from ..ir.kernel_kind import KernelKind
from ..ir.queries import is_contraction


def in_memory(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with the sources of native calls, and bytes that are multiplied, laid out."""
    stored = _multiplied_bytes(order) | _reduced_joins(order)
    if not stored and not any([node.op is CALL for node in order]):
        return sink
    made: dict[Node, Node] = {}
    for node in order:
        sources = [made[s] for s in node.src]
        if node.op is CALL and node.arg[1].kind == KernelKind.USER:
            count = node.arg[2]
            sources = [*[_stored(s) for s in sources[:count]], *sources[count:]]
        if tuple(sources) == node.src:
            made[node] = node
        else:
            rebuilt = make(node.op, node.dtype, tuple(sources), node.arg)
            made[node] = remember(rebuilt, node.origins)
        if node in stored:
            made[node] = CONTIGUOUS(made[node])
    return made[sink]


def _multiplied_bytes(order: Sequence[Node]) -> set[Node]:
    """Computed bytes of which wider numbers are factors of a contraction."""
    found: set[Node] = set()
    for node in order:
        if node.op is REDUCE and node.dtype.kind in "iu" and is_contraction(node):
            for factor in node.src[0].src:
                wide = _unmoved(factor)
                if wide.op is CAST and wide.src[0].dtype.bits == 8:
                    narrow = _unmoved(wide.src[0])
                    if narrow.op.family == "elementwise":
                        found.add(narrow)
    return found


def _reduced_joins(order: Sequence[Node]) -> set[Node]:
    """Values joined of several (concatenated) that something reduces."""
    if not any([_is_join(node) for node in order]):
        return set()
    stack = [n.src[0] for n in order if n.op is REDUCE and not is_contraction(n)]
    seen, found = set(stack), set[Node]()
    while stack:
        node = stack.pop()
        if _is_join(node):
            found.add(node)
        elif node.op.family in ("movement", "elementwise") and node.op is not UNWINDOW:
            fresh = [s for s in node.src if s not in seen]
            seen.update(fresh)
            stack += fresh
    return found


def _is_join(node: Node) -> bool:
    """True if it is one padded value before some place of an axis and another from there on."""
    if node.op is not WHERE or any(side.op is not PAD for side in node.src[1:]):
        return False
    place = _unmoved(node.src[0])
    return place.op is LT and _unmoved(place.src[0]).op is IOTA


def _unmoved(value: Node) -> Node:
    """What movement ops arrange."""
    while value.op.family == "movement" and value.op is not UNWINDOW:
        value = value.src[0]
    return value


def _stored(source: Node) -> Node:
    memory = source
    while memory.op is RESHAPE:
        memory = memory.src[0]
    if memory.op is PARAM:
        return source
    moves = memory.op.family == "movement" and memory.op is not UNWINDOW
    return CONTIGUOUS(source) if moves or memory.op in (CONST, IOTA, VAR, VIEW) else source
