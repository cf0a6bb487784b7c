"""Axes of variable size at their upper bound: loops and memory then have sizes that are known.

In: an `IndexKernel` whose axes may be sizes made of variables. Out: the same kernel with fixed
axes. Memory is laid out at the upper bound, so steps beyond an axis's end read and write what is
never looked at. They must do no harm: folds and backward scans see the identity there, checked
indices see 0, loads at places that depend on data touch no memory. A sort takes the size of its
rows as a second source, a scatter takes as its last one whether a step counts. A sum of no
elements is 0.0, as it is where sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.dtype import DType, bool_, encode, int64
from ...core.node import SOURCES, Node, make, toposort
from ...core.ops.elementwise import CAST, EQ, LT, MUL, WHERE
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, VALID
from ...core.ops.leaf import CONST
from ...core.ops.reduce import identity_of
from ...core.shape import upper
from ...graph.ir.affine import Affine, Condition, add, axis, number
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, is_scatter


def pad_dynamic_axes(kernel: IndexKernel) -> IndexKernel:
    """The kernel at the upper bound of its sizes."""
    limits = {a: _value(n) for a, n in enumerate(kernel.axes) if not isinstance(n, int)}
    order = toposort([kernel.body])
    if not limits and not any([n.op is GUARD and len(n.src) > 1 for n in order]):
        return kernel
    sizes = tuple([upper(n) for n in kernel.axes])
    free = free_axes(order)
    work = _Fix(limits, sizes)
    for node in order:
        work.known[node] = work.fixed(node, free[node])
    return IndexKernel(sizes, work.known[kernel.body], kernel.divisions)


def _value(size: Node) -> Node:
    return size if size.dtype is int64 else make(CAST, int64, (size,), int64)


class _Fix:
    def __init__(self, limits: dict[int, Node], sizes: Sequence[int]) -> None:
        self.limits, self.sizes = limits, sizes
        self.known: dict[Node, Node] = {}

    def fixed(self, node: Node, free: frozenset[int]) -> Node:
        """The node in the kernel of fixed sizes."""
        src = tuple([self.known[s] for s in node.src])
        op, arg = node.op, node.arg
        if op is LOAD and src:
            conditions, more = self.inside(free, len(src))
            return make(op, node.dtype, (*src, *more), (*arg[:2], (*arg[2], *conditions)))
        if op is GUARD:
            return self.guard(node, src, free)
        if op is FOLD:
            return self.fold(node, src[0])
        if op is RUN and arg[2]:
            start = 0 if arg[0] == "affine" else identity_of(arg[0], node.dtype)
            src = tuple([self.where(arg[1], s, _constant(start, s.dtype)) for s in src])
        elif op is ORDER and not self.limits.keys().isdisjoint(arg[0]):
            src = (*src, self.row_size(arg[0]))
        elif is_scatter(node):
            conditions, more = self.inside(free, 0)
            if conditions:
                src = (*src, make(VALID, bool_, tuple(more), tuple(conditions)))
        return make(op, node.dtype, src, arg)

    def row_size(self, axes: Iterable[int]) -> Node:
        """How many elements there are along some axes."""
        size = _constant(1, int64)
        for a in axes:
            own = self.limits[a] if a in self.limits else _constant(self.sizes[a], int64)
            size = make(MUL, int64, (size, own))
        return size

    def inside(self, axes: Iterable[int], first: int) -> tuple[list[Condition], list[Node]]:
        """Conditions that axes have not ended; their sizes are sources `first` and up."""
        varying = [a for a in sorted(axes) if a in self.limits]
        conditions: list[Condition] = []
        for place, a in enumerate(varying):
            shifted: Affine = add(axis(a), number(self.sizes[a]))
            shifted = add(shifted, axis(SOURCES[first + place]), -1)
            conditions.append((shifted, self.sizes[a]))
        return conditions, [self.limits[a] for a in varying]

    def where(self, axes: Iterable[int], value: Node, other: Node) -> Node:
        """A value as long as axes have not ended."""
        conditions, sizes = self.inside(axes, 0)
        if not conditions:
            return value
        holds = make(VALID, bool_, tuple(sizes), tuple(conditions))
        return make(WHERE, value.dtype, (holds, value, other))

    def guard(self, node: Node, src: tuple[Node, ...], free: frozenset[int]) -> Node:
        """A checked index; one beyond a size that varies is outside the largest size as well."""
        value = src[0]
        if len(src) > 1:
            wide = value if value.dtype is int64 else make(CAST, int64, (value,), int64)
            beyond = _constant(-1, int64)
            value = make(WHERE, int64, (make(LT, bool_, (wide, _value(src[1]))), wide, beyond))
        value = self.where(free, value, _constant(0, value.dtype))
        return make(GUARD, value.dtype, (value,), node.arg)

    def fold(self, node: Node, value: Node) -> Node:
        name, axes = node.arg
        start = _constant(identity_of(name, node.dtype), node.dtype)
        found = make(FOLD, node.dtype, (self.where(axes, value, start),), node.arg)
        varying = [self.limits[a] for a in axes if a in self.limits]
        if name != "add" or node.dtype.kind != "f":
            return found
        zero = _constant(0, int64)
        for size in varying:
            none = make(EQ, bool_, (size, zero))
            nothing = _constant(0, node.dtype)
            found = make(WHERE, node.dtype, (none, nothing, found))
        return found


def _constant(value: float | int | bool, dtype: DType) -> Node:
    return make(CONST, dtype, (), (encode(value, dtype), ()))
