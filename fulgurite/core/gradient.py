"""Reverse-mode differentiation of a graph: one walk over the op table's gradient rules.

In: a result, the nodes to differentiate by, and the gradient of the result. Out: one gradient
node for each of them, None where the result does not depend on it. Linear in the graph: every
node is visited once, in reverse order, with all that flowed into it already added up. Nodes are
values: to tell equal values apart, the caller puts fresh leaves in their place first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import GradientError
from .node import Node, constant_like, remember, toposort
from .origin import places


def gradient(result: Node, wrt: Sequence[Node], seed: Node | None = None) -> list[Node | None]:
    """The gradient of `result` by each node of `wrt`; `seed` (1 if not given) is its own."""
    order = toposort([result])
    live = set(wrt)
    for node in order:
        passes = node.dtype.is_inexact and node.op.name != "detach"  # behind it no rule is needed
        if passes and any([s in live for s in node.src]):
            live.add(node)
    if not result.dtype.is_inexact:
        raise GradientError(f"a {result.dtype} result has no gradient", "cast it to a float dtype")
    gradients: dict[Node, Node] = {result: constant_like(1, result) if seed is None else seed}
    for node in reversed(order):
        flowing = gradients.get(node)
        if flowing is None or node not in live or not any([s in live for s in node.src]):
            continue
        if node.op.grad is None:
            where = places(node.origins)
            raise GradientError(f"{node.op} has no gradient", "detach() its source", where)
        shares = node.op.grad(flowing, node, *node.src)
        for source, share in zip(node.src, shares, strict=False):
            if share is not None and source in live and source.dtype.is_inexact:
                remember(share, node.origins)
                before = gradients.get(source)
                gradients[source] = share if before is None else before + share
    return [gradients.get(node) if node in live else None for node in wrt]
