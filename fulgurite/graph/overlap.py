"""Windows that are added up where they overlap: as sums over windows, where that is possible.

In: a graph. Out: one with the same values, in which UNWINDOW is left only where each window has
numbers of its own (a maximum's gradient). UNWINDOW ends a kernel and what it adds up lies in
memory; but the gradient of a convolution adds up products of a factor that is the same all over
a window and one that is the same in all windows. Then Σ over the windows that meet a place is
Σ over the window of mirrored weights: a convolution again, one contraction. A stride makes phases
of the results: neighbours take other weights with the same windows, so that no zeros are stuffed
between. Windows that do not meet are only moved. Sums of floats may be added in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..core import shape as sizes
from ..core.node import Node, Shape, Size, constant, shape_of, toposort
from ..core.ops.elementwise import MUL
from ..core.ops.leaf import CONST
from ..core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    UNWINDOW,
    WINDOW,
    expand,
    flip,
    pad,
    pairs,
    permute,
    reshape,
    shrink,
    window,
)
from ..core.ops.reduce import REDUCE, reduce_node
from ..core.substitute import rebuild, substitute
from .regroup import CannotLower, groups

Step: TypeAlias = Callable[[Node], Node]  # puts an op above the summed windows

DEEP = 24  # ops that are looked through in search of a product, or of what does not vary


class Windows(NamedTuple):
    """Windows at places of one dimension with elements in another, and which sums are wanted."""

    place: int
    inside: int
    stride: int
    dilation: int
    start: int
    length: int

    def at(self, place: int, inside: int) -> Windows:
        """The same for a value whose dimensions are in another order."""
        return self._replace(place=place, inside=inside)


def overlap(sink: Node) -> Node:
    """The graph with its overlapping windows summed as contractions where they can be."""
    known: dict[Node, Node] = {}
    cut: set[Node] = set()
    order = toposort([sink])
    if not any([node.op is UNWINDOW for node in order]):
        return sink
    for node in order:
        if node.op is SHRINK and node.src[0].op is UNWINDOW:
            found = _summed(node.src[0], pairs(node), known)
            if found is not None:
                known[node] = found
        elif node.op is UNWINDOW:
            found = _summed(node, [(0, n) for n in node.shape], known)
            if found is not None:
                known[node] = found
    return substitute(sink, known) if known else sink
