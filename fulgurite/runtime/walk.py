"""The one walk over what is still to be computed.

In: roots. Out: every node below them, sources first, each once; a node whose value is known counts
as the BUFFER that holds it, and nothing below it is met.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..core.extension import compiled
from ..core.node import Node
from ..graph.ir.cache_key import realized_node


@compiled
def unknown_order(roots: Iterable[Node]) -> list[Node]:
    """Every node that has to be looked at to compute the roots, sources first."""
    order: list[Node] = []
    seen: set[Node] = set()
    path: list[Node] = []
    stack = [iter(roots)]
    while stack:
        for node in stack[-1]:
            if node.realized is not None:
                node = realized_node(node)
            if node not in seen:
                seen.add(node)
                path.append(node)
                stack.append(iter(node.src))
                break
        else:
            stack.pop()
            if path:
                order.append(path.pop())
    return order
