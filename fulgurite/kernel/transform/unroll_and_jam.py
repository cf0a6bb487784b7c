"""Unroll-and-jam of short axes of results: folds beside each other read shared memory once.

In: an `IndexKernel`. Out: the same kernel, or one without some short axes of its results: their
steps are written out as folds and stores of their own. Loops then run over all these folds at once,
and a value that none of them moves is one value. The gradient of a depthwise convolution's weights
is the case in point: nine sums over one image, with the same other factor. Where no load is shared,
or lanes are results already, there is nothing to gain and the kernel stays as it is.
"""

from __future__ import annotations

from itertools import chain
from math import prod

from ...core.node import Node, Source, make, toposort
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN
from ...core.ops.leaf import SINK
from ...core.symbolic.sym import varies
from ...graph.ir.affine import Domain, number
from ...graph.ir.bodies import argument_at, transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, is_scatter
from .tables import UnrollTable, VectorTable
from .vector_axis import Free, vector_axis


def unroll_and_jam(kernel: IndexKernel, table: UnrollTable, vectors: VectorTable) -> IndexKernel:
    """The kernel with short axes of its results written out, where that saves reading."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    folds = [n for n in order if n.op is FOLD]
    if len(folds) != 1 or len(sizes) < len(kernel.axes) or not all(sizes):
        return kernel
    if any(n.op in (RUN, ORDER, GUARD) or is_scatter(n) for n in order):
        return kernel
    free = free_axes(order)
    if vector_axis(order, free, sizes, vectors) not in folds[0].arg[1]:
        return kernel
    for short in _short_axes(free, folds[0], sizes, kernel.body.src, table):
        kernel = _written_out(kernel, short, sizes)
    return kernel


def _short_axes(
    free: Free,
    fold: Node,
    sizes: list[int],
    stores: tuple[Node, ...],
    table: UnrollTable,
) -> list[int]:
    """Axes of all results that some loads under the fold do not move along, shortest first."""
    below = fold.slice
    found: list[int] = []
    count = 1
    for short in sorted(_partly_read(free, fold, stores), key=lambda a: (sizes[a], a)):
        if not varies(sizes[short]) and sizes[short] * count <= table.outputs:
            found.append(short)
            count *= sizes[short]
    work: int = prod([sizes[a] for a in fold.arg[1]])
    moved_nodes = sum(not free[n].isdisjoint(found) for n in below)
    is_shared = 2 * (len(below) - moved_nodes) >= moved_nodes  # is much done once for all?
    small = moved_nodes * count <= (table.shared_nodes if is_shared else table.output_nodes)
    return found if small and (is_shared or work >= table.outputs * count) else []


def _partly_read(free: Free, fold: Node, stores: tuple[Node, ...]) -> list[int]:
    """Axes of all results that some loads under a fold move along, and others do not."""
    loads = [n for n in fold.slice if n.op is LOAD]
    results = frozenset.intersection(free[fold], *[free[s] for s in stores])
    return [a for a in results if 0 < sum(a in free[n] for n in loads) < len(loads)]


def _written_out(kernel: IndexKernel, short: int, sizes: list[int]) -> IndexKernel:
    """The kernel with one axis gone and its stores once for every step of it."""
    steps = [_at(kernel.body.src, short, step, sizes) for step in range(sizes[short])]
    return IndexKernel(kernel.axes, SINK(*chain(*steps)), kernel.divisions)


def _at(stores: tuple[Node, ...], short: int, step: int, sizes: list[int]) -> tuple[Node, ...]:
    """Stores at one step of an axis."""

    def bound(atom: int | Source) -> tuple[int, int]:
        return (0, sizes[atom] - 1) if isinstance(atom, int) else (-(1 << 62), 1 << 62)

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        arg = argument_at(node, {short: number(step)}, bound=True)
        if node.op is LOAD:
            arg = (*arg[:2], tuple(Domain(arg[2]).simplify(bound)))
        return make(node.op, node.dtype, sources, arg)

    return transformed(stores, change)
