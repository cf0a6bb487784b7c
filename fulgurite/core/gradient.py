"""Reverse-mode differentiation of a graph: one walk over the op table's gradient rules.

In: results, the nodes to differentiate by, and the gradient of each result. Out: one gradient
node for each of them, None where no result depends on it. Linear in the graph: every node is
visited once, in reverse order, with all that flowed into it already added up; nodes that are the
results of one computation are visited together, at the first of them. Nodes are values: to tell
equal values apart, the caller puts fresh leaves in their place first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set

from ..errors import GradientError
from .node import Node, constant_like, remember, toposort
from .origin import places


def gradient(result: Node, wrt: Sequence[Node], seed: Node | None = None) -> list[Node | None]:
    """The gradient of `result` by each node of `wrt`; `seed` (1 if not given) is its own."""
    if not result.dtype.is_inexact:
        raise GradientError(f"a {result.dtype} result has no gradient", "cast it to a float dtype")
    return gradients([result], wrt, [constant_like(1, result) if seed is None else seed])


def gradients(
    results: Sequence[Node], wrt: Sequence[Node], seeds: Sequence[Node]
) -> list[Node | None]:
    """The gradients of several (inexact) results together, added up."""
    order = toposort(results)
    live, flows = _live(order, wrt)
    families = _families(order, live)
    found: dict[Node, Node] = {}
    for result, seed in zip(results, seeds, strict=True):
        found[result] = found[result] + seed if result in found else seed
    for node in reversed(flows):
        if node.op.siblings is None:
            shares = _rule(node)(found[node], node, *node.src) if node in found else ()
        else:
            shares = _family_shares(node, families[node.op, node.op.siblings(node)], found, live)
        for source, share in zip(node.src, shares, strict=False):
            if share is not None and source in live and source.dtype.is_inexact:
                remember(share, node.origins)
                before = found.get(source)
                found[source] = share if before is None else before + share
    return [found.get(node) if node in live else None for node in wrt]


def _families(order: Iterable[Node], live: Set[Node]) -> dict[Hashable, list[Node]]:
    """The live results of each computation that has several."""
    families: dict[Hashable, list[Node]] = {}
    for node in order:
        if node.op.siblings is not None and node in live:
            families.setdefault((node.op, node.op.siblings(node)), []).append(node)
    return families


def _family_shares(
    node: Node, family: Sequence[Node], found: Mapping[Node, Node], live: Set[Node]
) -> tuple[Node | None, ...]:
    """What flows to the sources from all results of a computation, at the first of them."""
    flows = tuple([found.get(sibling) for sibling in family])
    if node is not family[0] or not any([flow is not None for flow in flows]):
        return ()
    wanted = tuple([s in live and s.dtype.is_inexact for s in node.src])
    return _rule(node)(flows, tuple(family), wanted)


def live_nodes(order: Iterable[Node], wrt: Iterable[Node]) -> set[Node]:
    """The nodes through which gradients flow to `wrt`; `order` has sources first."""
    return _live(order, wrt)[0]


def _live(order: Iterable[Node], wrt: Iterable[Node]) -> tuple[set[Node], list[Node]]:
    """The live nodes, and in order those of them that have live sources."""
    live, flows = set(wrt), []
    for node in order:
        if live.isdisjoint(node.src):
            continue
        if node.dtype.is_inexact and node.op.name != "detach":  # behind it no rule is needed
            live.add(node)
        if node in live:
            flows.append(node)
    return live, flows


def _rule(node: Node) -> Callable[..., tuple[Node | None, ...]]:
    if node.op.grad is None:
        where = places(node.origins)
        raise GradientError(f"{node.op} has no gradient", "detach() its source", where)
    return node.op.grad
