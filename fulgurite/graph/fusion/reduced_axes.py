"""Lines: along which dimensions a kernel sums what it reads.

In: a kernel's body. Out: for every param the dimensions that sums above it run over, or None where
that cannot be told. A kernel that streams walks along one line only, so what is summed along one
and has rows along another is never one walk: that is known before anything is cut out or lowered.
"""

from __future__ import annotations

from ...core.node import Node, Shape, toposort
from ...core.ops.leaf import PARAM
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE
from ...core.ops.reduce import REDUCE
from ...core.shape import upper


def summed_lines(body: Node) -> dict[Node, frozenset[int] | None]:
    """For each param that is summed the dimensions that are, all paths together."""
    over: dict[Node, frozenset[int] | None] = {}
    found: dict[Node, frozenset[int] | None] = {}
    for node in reversed(toposort([body])):
        mine = over.get(node, frozenset())
        if node.op is PARAM:
            if mine != frozenset():
                found[node] = mine
            continue
        for source in node.src:
            down = _below(node, source, mine)
            known = over.get(source, frozenset())
            over[source] = None if down is None or known is None else down | known
    return found


def _below(node: Node, source: Node, over: frozenset[int] | None) -> frozenset[int] | None:
    """Dimensions of a source, from those of what is made of it."""
    if node.op is REDUCE:
        return None if over is None else over | frozenset(node.arg[1])
    if not over:
        return over
    if node.op is PERMUTE:
        return frozenset([node.arg[i] for i in over])
    if node.op is RESHAPE:
        return reshaped(node.shape, source.shape, over)
    if node.op is EXPAND or node.op.family == "elementwise":
        alike = len(source.shape) == len(node.shape)
        return frozenset([i for i in over if source.shape[i] != 1]) if alike else None
    return None


def reshaped(shape: Shape, other: Shape, over: frozenset[int]) -> frozenset[int] | None:
    """Dimensions of another shape with as many elements, where runs of them are meant whole."""
    found: set[int] = set()
    for mine, theirs in _runs(shape, other):
        meant = [i in over for i in mine if shape[i] != 1]
        if any(meant):
            if not all(meant):
                return None
            found.update([i for i in theirs if other[i] != 1])
    return frozenset(found)


def _runs(shape: Shape, other: Shape) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions that have as many elements in both shapes."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(other):
        mine: list[int] = []
        theirs: list[int] = []
        a = b = 1
        while not mine or not theirs or a != b:
            if i < len(shape) and (a <= b or j >= len(other)):
                mine.append(i)
                a *= upper(shape[i])
                i += 1
            elif j < len(other):
                theirs.append(j)
                b *= upper(other[j])
                j += 1
            else:
                break
        found.append((mine, theirs))
    return found
