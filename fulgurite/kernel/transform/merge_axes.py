"""Merging axes: two loops that walk memory as one become one.

In: an `IndexKernel`. Out: the same kernel with fewer, longer axes. Axes a and b merge if in every
index the step of a is the step of b times b's size (or both are missing), and every fold and
store runs over both or neither. Contiguous maps of any shape become one dimension, rows of several
dimensions become one row. Order of folds is row-major before and after, so no bit changes.
"""

from __future__ import annotations

from itertools import permutations

from ...core.lazy_dataclass import dataclass
from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, ORDER, RUN, STORE
from ...graph.ir.affine import ZERO, Affine, axis
from ...graph.ir.bodies import argument_at, transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import indices


@dataclass(frozen=True, slots=True)
class Line:
    """Axes that one part of a kernel walks as one index, outermost first."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    inner: frozenset[int]  # the kernel's axes that the innermost one stands for


def merge_axes(kernel: IndexKernel) -> IndexKernel:
    """The kernel with every pair of axes merged that can be."""
    while True:
        pair = _mergeable(kernel)
        if pair is None:
            return kernel
        kernel = _merge_pair(kernel, *pair)


def _mergeable(kernel: IndexKernel) -> tuple[int, int] | None:
    order = toposort([kernel.body])
    steps: list[dict[int, int]] = []  # of every index, also inside divisions: axis -> step
    together: list[frozenset[int]] = []  # axes that folds and stores name
    fixed: set[int] = set()
    for node in order:
        for index in indices(node):
            collect(index, steps)
        if node.op is FOLD:
            together.append(frozenset(node.arg[1]))
        elif node.op is STORE:
            together.append(frozenset(node.arg[3]))
        elif node.op is RUN:
            fixed.update(node.arg[1])
        elif node.op is ORDER:
            fixed.update(node.arg[0])
    sizes = {a: n for a, n in enumerate(kernel.axes) if isinstance(n, int) and a not in fixed}
    for a, b in permutations(sizes, 2):
        walks = all(s.get(a, 0) == s.get(b, 0) * sizes[b] for s in steps)
        if walks and all((a in t) == (b in t) for t in together):
            return a, b
    return None


def collect(index: Affine, steps: list[dict[int, int]]) -> None:
    """The steps of the axes of an index, and of those that it divides."""
    steps.append({atom: c for atom, c in index[1] if isinstance(atom, int)})
    for atom, _ in index[1]:
        if isinstance(atom, tuple):
            collect(atom[1], steps)


def _merge_pair(kernel: IndexKernel, a: int, b: int) -> IndexKernel:
    """Axis b takes over axis a, which goes; later axes move up."""
    sizes = list(kernel.axes)
    outer, inner = sizes[a], sizes[b]
    assert isinstance(outer, int) and isinstance(inner, int)
    sizes[b] = outer * inner
    del sizes[a]

    places = {old: axis(old - (old > a)) for old in range(len(kernel.axes)) if old != a}
    places[a] = ZERO

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        return make(node.op, node.dtype, sources, argument_at(node, places, bound=True))

    (body,) = transformed([kernel.body], change)
    return IndexKernel(tuple(sizes), body, kernel.divisions)
