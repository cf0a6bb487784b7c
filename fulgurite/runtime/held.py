"""Results of folds that somebody holds: known together with what reads them, not computed again.

In: the roots of a graph, its nodes, the folds among them, and who is held. Out: tensors to compute as well. A
lazy program reads one value in several plans: `l = argmin(d, 1)` in each `x[l == k]`, a total in
what is printed of it. Each plan would fold all of d again. Nothing larger than what was asked for
is kept: what somebody holds and never looks at costs no more memory than what they look at, and a
distance matrix that only its smallest elements are wanted of is still never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..core.node import Node, parents_of
from ..core.ops.reduce import REDUCE
from ..graph.ir.queries import elements

FOLDED = 4  # elements for each result, from which on reading it is less than folding again
NEAR = 4  # ops between a fold and the tensor that is made of it alone: a cast, a quotient
ONE: frozenset[str] = frozenset({"elementwise", "movement"})


def held_folds(
    roots: Sequence[Node], nodes: Iterable[Node], folds: Iterable[Node],
    is_held: Callable[[Node], bool],
) -> list[Node]:  # fmt: skip
    """Held tensors that are made of one fold each, and together are no larger than the roots."""
    asked, on_the_way, found = set(roots), set(nodes), dict[Node, None]()
    room = sum([elements(root.shape) for root in roots])
    for fold in folds:
        node: Node | None = fold if fold.op is REDUCE else None
        for _ in range(NEAR):
            if node is None or node in asked or node in found or node not in on_the_way:
                break
            if is_held(node):
                size = elements(node.shape)
                if size <= room and elements(fold.src[0].shape) >= FOLDED * size:
                    found[node] = None
                    room -= size
                break
            node = _only_reader(node)
    return list(found)


def _only_reader(node: Node) -> Node | None:
    """The one op that reads a value, if it gives one element for each."""
    readers = parents_of(node)
    return readers[0] if len(readers) == 1 and readers[0].op.family in ONE else None
