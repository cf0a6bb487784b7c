"""Merging axes: two loops that walk memory as one become one.

In: an `IndexKernel`. Out: the same kernel with fewer, longer axes. Axes a and b merge if in every
index the step of a is the step of b times b's size (or both are missing), and every fold and
store runs over both or neither. Contiguous maps of any shape become one dimension, rows of several
dimensions become one row. Order of folds is row-major before and after, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from ...graph.ir.affine import Affine, add, axis, number
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import indices


def merge_axes(kernel: IndexKernel) -> IndexKernel:
    """The kernel with every pair of axes merged that can be."""
    while True:
        pair = _mergeable(kernel)
        if pair is None:
            return kernel
        kernel = _merged(kernel, *pair)


def _mergeable(kernel: IndexKernel) -> tuple[int, int] | None:
    order = toposort([kernel.body])
    steps: list[dict[int, int]] = []  # of every index, also inside divisions: axis -> step
    together: list[frozenset[int]] = []  # axes that folds and stores name
    fixed: set[int] = set()
    for node in order:
        for index in indices(node):
            _collect(index, steps)
        if node.op is FOLD:
            together.append(frozenset(node.arg[1]))
        elif node.op is STORE:
            together.append(frozenset(node.arg[3]))
        elif node.op is RUN:
            fixed.update(node.arg[1])
        elif node.op is ORDER:
            fixed.update(node.arg[0])
    count = len(kernel.axes)
    for a in range(count):
        for b in range(count):
            size = kernel.axes[b]
            if a == b or a in fixed or b in fixed or not isinstance(size, int):
                continue
            if not isinstance(kernel.axes[a], int):
                continue
            walks = all(s.get(a, 0) == s.get(b, 0) * size for s in steps)
            if walks and all((a in t) == (b in t) for t in together):
                return a, b
    return None


def _collect(index: Affine, steps: list[dict[int, int]]) -> None:
    steps.append({atom: c for atom, c in index[1] if isinstance(atom, int)})
    for atom, _ in index[1]:
        if isinstance(atom, tuple):
            _collect(atom[1], steps)


def _merged(kernel: IndexKernel, a: int, b: int) -> IndexKernel:
    """Axis b takes over axis a, which goes; later axes move up."""
    sizes = list(kernel.axes)
    outer, inner = sizes[a], sizes[b]
    assert isinstance(outer, int) and isinstance(inner, int)
    sizes[b] = outer * inner
    del sizes[a]

    def place(old: int) -> int:
        return old - (old > a)

    def moved(index: Affine) -> Affine:
        out = number(index[0])
        for atom, coefficient in index[1]:
            if atom == a and isinstance(atom, int):
                continue
            if isinstance(atom, tuple):
                named: Any = (atom[0], moved(atom[1]), atom[2])
            else:
                named = place(atom) if isinstance(atom, int) else atom
            out = add(out, axis(named), coefficient)
        return out

    def kept(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([place(x) for x in axes if x != a])

    done: dict[Node, Node] = {}
    for node in toposort([kernel.body]):
        arg = argument(node, moved, kept)
        done[node] = make(node.op, node.dtype, tuple([done[s] for s in node.src]), arg)
    return IndexKernel(tuple(sizes), done[kernel.body], kernel.divisions)


def argument(
    node: Node,
    moved: Callable[[Affine], Affine],
    kept: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> Any:
    """A node's argument in terms of the new axes."""
    if node.op is LOAD:
        param, index, conditions = node.arg
        return param, moved(index), tuple([(moved(i), size) for i, size in conditions])
    if node.op is VALID:
        return tuple([(moved(i), size) for i, size in node.arg])
    if node.op is STORE:
        param, index, mode, axes = node.arg
        return param, moved(index), mode, kept(axes)
    if node.op is INDEX:
        return moved(node.arg)
    if node.op is FOLD:
        return node.arg[0], kept(node.arg[1])
    if node.op is RUN:
        return node.arg[0], kept(node.arg[1]), node.arg[2]
    if node.op is ORDER:
        return kept(node.arg[0]), node.arg[1]
    return node.arg
