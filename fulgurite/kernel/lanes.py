"""Which axis becomes lanes, and which axes are a grid of independent units.

In: a kernel's body. Out: numbers of axes. The vector axis is the one along which most memory is
read and written with step 1, so that lanes are neighbours; where there is none, the longest axis
of a load. The grid is what all stores share and no fold, scan or sort needs whole.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

from ..core.node import Node
from ..core.ops.index import LOAD, STORE
from ..graph.affine import axes_of
from ..graph.body import whole_axes

Free = Mapping[Node, frozenset[int]]


def vector_axis(
    order: Sequence[Node], free: Free, sizes: Sequence[int], blocks: Container[int] = ()
) -> int | None:
    """The axis with most memory at step 1, by elements; ties go to the stores' own axis.

    Axes that number the blocks of a fold are none: every lane of one would be another range.
    """
    score: dict[int, int] = {}
    for node in order:
        if node.op is not LOAD and node.op is not STORE:
            continue
        weight = prod([sizes[a] for a in free[node]]) * (3 if node.op is STORE else 2)
        for atom, coefficient in node.arg[1][1]:
            if isinstance(atom, int):
                score[atom] = score.get(atom, 0) + (weight if coefficient == 1 else 0)
            elif isinstance(atom, tuple):
                for axis in axes_of(atom[1]):
                    score.setdefault(axis, 0)
    score = {axis: found for axis, found in score.items() if axis not in blocks}
    best = max(score, key=lambda a: (score[a], sizes[a]), default=None)
    return None if best is None or sizes[best] < 2 else best


def grid_axes(order: Sequence[Node], free: Free) -> list[int]:
    """Axes whose steps can be done apart from each other."""
    shared = frozenset.intersection(*[free[s] for s in order if s.op is STORE])
    return sorted(shared - whole_axes(order))
