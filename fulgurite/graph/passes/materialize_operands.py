"""What the user's native kernels read: memory, in row-major order.

In: a SINK. Out: the same graph, in which every source of a native call is a value that some kernel
stores or a param: what is only moved, a number or a count is laid out in memory first. Host
functions need nothing of the kind: Python moves elements itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, make, remember
from ...core.ops.effect import CALL, CONTIGUOUS
from ...core.ops.leaf import CONST, IOTA, PARAM, VAR, VIEW
from ...core.ops.movement import RESHAPE, UNWINDOW
from ..ir.kernel_kind import KernelKind


def in_memory(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with the sources of native calls laid out."""
    if not any([node.op is CALL for node in order]):
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
    return made[sink]


def _stored(source: Node) -> Node:
    memory = source
    while memory.op is RESHAPE:
        memory = memory.src[0]
    if memory.op is PARAM:
        return source
    moves = memory.op.family == "movement" and memory.op is not UNWINDOW
    return CONTIGUOUS(source) if moves or memory.op in (CONST, IOTA, VAR, VIEW) else source
