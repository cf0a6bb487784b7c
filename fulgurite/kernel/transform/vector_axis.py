"""Loop order: which axis becomes lanes (is vectorised), and which are a grid of parallel units.

In: a kernel's body. Out: numbers of axes. The vector axis is the one along which most memory is
read and written with step 1, so that lanes are neighbours; where there is none, the longest axis
of a load. If it is too short to fill a vector, another axis may be better though its elements are
a few steps apart: what both would cost is counted. The grid is what all stores share and no fold,
scan or sort needs whole. `transpose_axis` is the one that a map reads across memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

from ...core.node import Node, toposort
from ...core.ops.index import FOLD, LOAD, ORDER, RUN, STORE
from ...graph.ir.affine import axes_of
from ...graph.ir.queries import combined_loads, is_scatter, whole_axes
from .tables import VectorTable

Free = Mapping[Node, frozenset[int]]


def vector_axis(
    order: Sequence[Node],
    free: Free,
    sizes: Sequence[int],
    table: VectorTable,
    blocks: Container[int] = (),
) -> int | None:
    """The axis with most memory at step 1, by elements; ties go to the stores' own axis.

    Axes that number the blocks of a fold are none: every lane of one would be another range.
    """
    score = {a: n for a, n in _contiguous_elements(order, free, sizes).items() if a not in blocks}
    best = max(score, key=lambda a: (score[a], sizes[a]), default=None)
    if best is not None and sizes[best] < table.lanes:
        longer = [a for a in score if sizes[a] > sizes[best]]
        costs = {a: _cost(a, order, free, sizes, table) for a in (best, *longer)}
        other = min(longer, key=costs.__getitem__, default=best)
        best = other if costs[other] * 2 < costs[best] else best
    elif best is not None:
        best = _along_sum(best, score, order, free, sizes, table)
    return None if best is None or sizes[best] < 2 else best


def _contiguous_elements(order: Sequence[Node], free: Free, sizes: Sequence[int]) -> dict[int, int]:
    """For each axis that memory moves along, elements at step 1, weighted for stores."""
    score: dict[int, int] = {}
    wide = {load: len(loads) for loads in combined_loads(order).values() for load in loads}
    for node in order:
        if node.op is not LOAD and node.op is not STORE:
            continue
        near = wide.get(node, 1)  # bytes of one wide number are read at once
        weight = prod([sizes[a] for a in free[node]]) * (3 if node.op is STORE else 2)
        for atom, coefficient in node.arg[1][1]:
            if isinstance(atom, int):
                score[atom] = score.get(atom, 0) + (weight if coefficient == near else 0)
            elif isinstance(atom, tuple):
                for axis in axes_of(atom[1]):
                    score.setdefault(axis, 0)
    return score


def _along_sum(
    best: int, score: Mapping[int, int], order: Sequence[Node], free: Free, sizes: Sequence[int],
    table: VectorTable,
) -> int:  # fmt: skip
    """The axis of a sum in the place of one along which its numbers would be gathered.

    What a sum reads it reads for each of its terms: memory that others share is read again, so it
    weighs more than what is stored once.
    """
    folds = [n for n in order if n.op is FOLD]
    if len(folds) != 1 or best in folds[0].arg[1] or sizes[best] < table.lanes:
        return best
    fold = folds[0]
    others = [a for a in fold.arg[1] if score.get(a, 0) and sizes[a] >= table.lanes]
    costs = {a: _cost_of_terms(a, fold, free, sizes, table) for a in (best, *others)}
    other = min(others, key=costs.__getitem__, default=best)
    return other if costs[other] * 2 < costs[best] else best


def _cost_of_terms(
    axis: int, fold: Node, free: Free, sizes: Sequence[int], table: VectorTable
) -> int:
    """What a sum's terms and the joining of its lanes cost, in rows of memory."""
    body = fold.src[0]
    loads = [n for n in toposort([body]) if n.op is LOAD]
    rows = sum([1 if _is_row(n, axis, table) else table.gather_rows for n in loads])
    joined = prod([sizes[a] for a in free[fold]]) if axis in fold.arg[1] else 0
    return prod([sizes[a] for a in free[body]]) // table.lanes * rows + table.reduce_rows * joined


def _is_row(load: Node, axis: int, table: VectorTable) -> bool:
    """True if lanes along an axis are one number or near each other in memory."""
    steps = dict(load.arg[1][1])
    inside = any(axis in axes_of(a[1]) for a in steps if isinstance(a, tuple))
    return not inside and abs(steps.get(axis, 0)) <= table.near_steps


def _cost(
    axis: int, order: Sequence[Node], free: Free, sizes: Sequence[int], table: VectorTable
) -> int:
    """What memory and the joining of lanes cost, in rows of memory, if this axis becomes lanes."""
    total = 0
    for node in order:
        if node.op is FOLD and axis in node.arg[1]:
            total += table.reduce_rows * prod([sizes[a] for a in free[node]])
        if node.op is not LOAD and node.op is not STORE:
            continue
        count = prod([sizes[a] for a in free[node] if a != axis])
        if axis in free[node]:
            steps = dict(node.arg[1][1])
            inside = any(axis in axes_of(a[1]) for a in steps if isinstance(a, tuple))
            step = abs(steps.get(axis, 0))
            near = 0 < step <= table.near_steps and not inside
            count *= (step if near else table.gather_rows) * -(-sizes[axis] // table.lanes)
        total += count
    return total


def transpose_axis(
    order: Sequence[Node],
    free: Free,
    sizes: Sequence[int],
    vector: int | None,
    table: VectorTable,
) -> tuple[int, list[Node]] | None:
    """The axis along which loads of a map are transposed, as lanes would read far apart; and they.

    Squares of such memory are transposed before the map runs over them.
    """
    grid = grid_axes(order, free)
    if vector not in grid or any(n.op in (FOLD, RUN, ORDER) or is_scatter(n) for n in order):
        return None
    found: dict[int, list[Node]] = {}
    for node in order:
        steps = _plain_steps(node)
        near = [a for a, step in steps.items() if step == 1 and a in grid and a != vector]
        if near and abs(steps.get(vector, 0)) > table.near_steps:
            found.setdefault(near[0], []).append(node)
    axis = max(found, key=lambda a: len(found[a]), default=None)
    if axis is None or min(sizes[axis], sizes[vector]) < table.lanes // 2:
        return None
    return axis, found[axis]


def _plain_steps(node: Node) -> Mapping[int, int]:
    """The step of each axis in the index of an unconditional load; none if it is anything else."""
    if node.op is not LOAD or node.src or node.arg[2]:
        return {}
    steps = {a: step for a, step in node.arg[1][1] if isinstance(a, int)}
    return steps if len(steps) == len(node.arg[1][1]) else {}


def grid_axes(order: Sequence[Node], free: Free) -> list[int]:
    """Axes whose steps can be done apart from each other."""
    shared = frozenset.intersection(*[free[s] for s in order if s.op is STORE])
    return sorted(shared - whole_axes(order))
