"""Masks told by results: of y = where(x <= c, c, x) the condition is y <= c.

In: a graph. Out: one with the same values, NaNs and signed zeros among them, in which whoever else
reads such a condition compares the result. The gradient of a rectifier needs its condition much
later, and the next layer its result: with this one of them is kept and not both. Exact: where x is
at most c, y is c; else, or where x is NaN, y is x.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node
from ...core.ops.elementwise import LE, WHERE
from ...core.rewriting.substitute import rebuild


def mask_from_result(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with conditions of rectifiers compared anew, where others read them."""
    results = {n.src[0]: n for n in order if n.op is WHERE and _is_rectifier(n)}
    if not results:
        return sink
    known: dict[Node, Node] = {}
    told: dict[Node, Node] = {}  # a condition -> what says the same
    for node in order:
        mine = results.get(node.src[0]) is node if node.src else False
        given = known if mine else {**known, **told} if told.keys() & set(node.src) else known
        sources = tuple([given.get(s, s) for s in node.src])
        known[node] = node if sources == node.src else rebuild(node, sources)
        if node in results:
            found = rebuild(results[node], (known[node], *[known[s] for s in node.src[::-1]]))
            told[node] = rebuild(node, (found, known[node.src[1]]))
    return known[sink]


def _is_rectifier(node: Node) -> bool:
    """True of where(x <= c, c, x)."""
    condition, low, x = node.src
    return condition.op is LE and condition.src == (x, low)
