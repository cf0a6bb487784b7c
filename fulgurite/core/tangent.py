"""Forward-mode differentiation of a graph: tangents flow from leaves to results in one walk.

In: results, the nodes to move, and how each of them moves. Out: how each result moves, None where
it does not. Linear in the graph: every node is visited once, sources first. An op's own rule says
how its result moves; without one its gradient rule is transposed: a gradient is linear in what
flows in, so the gradient of that map, seeded with the tangent, is the tangent of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import GradientError
from .gradient import gradient, live_nodes
from .node import Node, constant_like, remember, toposort
from .ops.effect import DETACH, watch
from .ops.leaf import CONST, param
from .ops.transform import OVERRIDE, override_tangent
from .origin import places
from .rewriting.substitute import rebuild, substitute

_SCOPE = -1  # of leaves that exist while one rule is transposed


def tangents(
    results: Sequence[Node], wrt: Sequence[Node], seeds: Sequence[Node]
) -> list[Node | None]:
    """How each result moves when each node of `wrt` moves by its seed."""
    order = toposort(results)
    live = live_nodes(order, wrt)
    asked = _needed_nodes(order, results)
    moving: dict[Node, Node] = dict(zip(wrt, seeds, strict=True))
    for node in order:
        if node in moving or node not in live or node not in asked:
            continue
        sources = tuple([moving.get(s) for s in node.src])
        if any([s is not None for s in sources]):
            found = _tangent_of(node, sources)
            if found is not None:
                moving[node] = remember(found, node.origins)
    return [moving.get(result) for result in results]


def _needed_nodes(order: Sequence[Node], results: Sequence[Node]) -> set[Node]:
    """The nodes whose tangents are needed: not those behind a rule of the user's own."""
    asked = set(results)
    for node in reversed(order):
        if node in asked and node.op is not DETACH:
            own = node.op is OVERRIDE and not node.arg[0].plain
            asked.update(node.src[1:] if own else node.src)
    return asked


def _tangent_of(node: Node, sources: tuple[Node | None, ...]) -> Node | None:
    if node.op.tangent is not None:
        return node.op.tangent(node, sources)
    if node.op is OVERRIDE and node.arg[0].forward is not None:
        return override_tangent(node, sources)
    if node.op is OVERRIDE and node.arg[0].plain:
        return sources[0]
    return _transposed(node, sources)


def _transposed(node: Node, sources: tuple[Node | None, ...]) -> Node | None:
    """The gradient rule run backwards, on leaves, so that the graph below is not visited again."""
    if node.op.grad is None:
        where = places(node.origins)
        raise GradientError(f"{node.op} has no gradient", "detach() its source", where)
    data = len(node.src) if node.op.arity is None else node.op.arity
    leaves = [
        watch(param(i, s.shape, s.dtype, s.device), _SCOPE)  # unlike any param of a body
        if i < data and s.op is not CONST
        else s
        for i, s in enumerate(node.src)
    ]
    here = rebuild(node, tuple(leaves))
    flow = watch(constant_like(0, node), _SCOPE)
    if node.op.siblings is None:
        shares = node.op.grad(flow, here, *leaves)
    else:
        wanted = tuple([s is not None for s in sources])
        shares = node.op.grad((flow,), (here,), wanted)
    total: Node | None = None
    for share, source in zip(shares, sources, strict=False):
        if share is None or source is None:
            continue
        (found,) = gradient(share, [flow], source)
        if found is not None:
            total = found if total is None else total + found
    back = dict(zip(leaves, node.src, strict=True))
    return None if total is None else substitute(total, {**back, here: node}, walk=True)
