"""Questions about a kernel's body in index notation: which indices, which axes.

In: nodes of a body, sources first. Out: the affine indices in a node's argument, the axes that each
node depends on, those that folds, scans and sorts need whole, and which stores are scatters.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.node import Node
from ..core.ops.index import FOLD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from .affine import Affine, axes_of


def indices(node: Node) -> list[Affine]:
    """Every affine index in a node's argument."""
    if node.op is LOAD:
        return [node.arg[1], *[index for index, _ in node.arg[2]]]
    if node.op is VALID:
        return [index for index, _ in node.arg]
    if node.op is STORE:
        return [node.arg[1]]
    return [node.arg] if node.op is INDEX else []


def is_scatter(node: Node) -> bool:
    """Is it a store whose place is data or that combines, or one with several steps at a place?"""
    if node.op is not STORE:
        return False
    _, index, mode, axes = node.arg
    return mode != "set" or len(node.src) > 1 or not frozenset(axes) <= axes_of(index)


def free_axes(order: Sequence[Node]) -> dict[Node, frozenset[int]]:
    """The axes that each node depends on."""
    free: dict[Node, frozenset[int]] = {}
    for node in order:
        axes = frozenset[int]().union(*[free[s] for s in node.src])
        for index in indices(node):
            axes |= axes_of(index)
        if node.op is FOLD:
            axes -= frozenset(node.arg[1])
        elif node.op is RUN or node.op is ORDER:
            axes |= frozenset(node.arg[1] if node.op is RUN else node.arg[0])
        elif node.op is STORE:
            axes |= frozenset(node.arg[3])
        free[node] = axes
    return free


def whole_axes(order: Sequence[Node]) -> frozenset[int]:
    """Axes that folds, scans and sorts need whole."""
    found: set[int] = set()
    for node in order:
        if node.op in (FOLD, RUN):
            found.update(node.arg[1])
        elif node.op is ORDER:
            found.update(node.arg[0])
    return frozenset(found)
