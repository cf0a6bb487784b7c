"""Loads that need no condition: of what can always be read, where a choice asks the same already.

In: an `IndexKernel`. Out: the same kernel in which the first element of a param, as a scalar always
is, what is read without conditions elsewhere, and what has no axis that a condition names (numbers
of channels, where space is padded) are read without conditions wherever `where` has asked them
around it. Padding what was computed puts conditions on all of its loads, also on its
constants; without them a constant is one number again, not one for each lane, a division by it is
prepared once, and what is computed with and without padding is a common subexpression. What is
chosen stays the same.
"""

from __future__ import annotations

from ...core.node import Node, make, toposort
from ...core.ops.elementwise import WHERE
from ...core.ops.index import LOAD, VALID
from ...graph.ir.affine import ZERO, Domain, axes_of
from ...graph.ir.lower import IndexKernel

State = tuple[Node, Domain]  # a node, and the places where it counts


def drop_implied_masks(kernel: IndexKernel) -> IndexKernel:
    """The kernel that reads without conditions that are asked around what can be read."""
    masked = _masked(kernel)
    if not masked:
        return kernel
    root: State = (kernel.body, Domain())
    done: dict[State, Node] = {}
    waiting = [root]
    while waiting:
        state = waiting[-1]
        sources = _sources(state)
        more = [s for s in sources if s not in done]
        waiting.extend(more)
        if not more:
            done[waiting.pop()] = _rebuilt(state, tuple([done[s] for s in sources]), masked)
    return IndexKernel(kernel.axes, done[root], kernel.divisions)


def _masked(kernel: IndexKernel) -> frozenset[Node]:
    """Loads under conditions of what can always be read."""
    loads = [n for n in toposort([kernel.body]) if n.op is LOAD and not n.src]
    plain = {n.arg[:2] for n in loads if not n.arg[2]}
    return frozenset([n for n in loads if n.arg[2] and (_is_independent(n) or n.arg[:2] in plain)])


def _is_independent(load: Node) -> bool:
    """True if a place is read whatever the conditions say of other axes."""
    _, index, conditions = load.arg
    asked = frozenset[int]().union(*[axes_of(i) for i, _ in conditions])
    return index == ZERO or (not asked & axes_of(index) and asked != frozenset())


def _sources(state: State) -> list[State]:
    """The sources of a node: a choice asks about one of them, a fold begins anew."""
    node, asked = state
    if node.op.family != "elementwise":
        return [(s, Domain()) for s in node.src]
    found = [(s, asked) for s in node.src]
    if node.op is WHERE and node.src[0].op is VALID and not node.src[0].src:
        found[1] = node.src[1], asked.intersect(node.src[0].arg)
    return found


def _rebuilt(state: State, src: tuple[Node, ...], masked: frozenset[Node]) -> Node:
    node, asked = state
    arg = node.arg
    if node in masked and asked.implies(arg[2]):
        arg = (*arg[:2], ())
    return make(node.op, node.dtype, src, arg)
