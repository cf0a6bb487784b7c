"""Bit stability: which values have bits that depend on the kernel that computes them.

In: nodes of a graph. Out: which of them are unstable (float sums are reassociated, and ops with
kernels of their own round in their own order), and what was chosen by size (max, min, sort) from
such values. Plans and cache keys both ask: an extreme of a value and that value must come from one
computation, or nothing equals its own maximum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.node import Node
from ...core.ops.effect import AFTER, CONTIGUOUS, COPY, DETACH, REMAT, UNWATCH, WATCH
from ...core.ops.indexing import GATHER, SORT
from ...core.ops.leaf import VIEW
from ...core.ops.movement import UNWINDOW
from ...core.ops.random import RANDOM
from ...core.ops.reduce import REDUCE, SCAN
from ...core.ops.update import UPDATE
from .queries import is_contraction, walk

IDENTITY = (CONTIGUOUS, AFTER, REMAT, VIEW, WATCH, UNWATCH, DETACH, COPY)  # the value of a source
EXTREMES = ("max", "min")  # the reductions and scans that choose
ROUNDLESS = (*IDENTITY, GATHER, UPDATE, SORT, RANDOM)  # none of them rounds


def is_unstable(node: Node) -> bool:
    """True if the bits of a value depend on the kernel that computes it.

    Products of whole numbers count, though they are exact: a network of them would be one value
    from end to end, and what is asked of its result has no more to do with its input than in one
    of floats.
    """
    op = node.op
    if op.family in ("elementwise", "leaf") or op in ROUNDLESS:
        return False
    if op.family == "movement" and op is not UNWINDOW:
        return False
    if op is REDUCE and node.shape == node.src[0].shape:
        return False
    if op is REDUCE and not node.dtype.is_inexact:
        return is_contraction(node)
    if op in (REDUCE, SCAN, UNWINDOW):
        return node.dtype.is_inexact and (op is UNWINDOW or node.arg[0] not in EXTREMES)
    return True


def value_sources(node: Node) -> tuple[Node, ...]:
    """What a value is made of: to wait for something is not to be made of it."""
    return node.src[:1] if node.op is REMAT else node.src


def stable_sources(node: Node) -> tuple[Node, ...]:
    """The same, where a value's own bits do not depend on who computes it."""
    return () if is_unstable(node) else value_sources(node)


def is_extreme(node: Node) -> bool:
    """True if a value is one of many that it was chosen from, by their size."""
    return node.op is SORT or (node.op in (REDUCE, SCAN) and node.arg[0] in EXTREMES)


def chosen_from(nodes: Sequence[Node], values: Collection[Node]) -> set[Node]:
    """Of nodes made of an extreme of unstable values in a set: they, and what is between."""
    above: set[Node] = set()  # what is made of them
    chosen: set[Node] = set()  # and of an extreme of them
    for node in walk(nodes, stable_sources):
        sources = stable_sources(node)
        if node in values if is_unstable(node) else any(s in above for s in sources):
            above.add(node)
            if is_extreme(node) or any(s in chosen for s in sources):
                chosen.add(node)
    between = walk([n for n in nodes if n in chosen], stable_sources)
    return {n for n in between if n in above and not is_unstable(n)}
