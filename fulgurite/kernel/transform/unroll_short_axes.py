"""Short axes in the way of lanes, written out: a copy of the stores for every step of them.

In: an `IndexKernel`. Out: the same kernel without axes of a few steps that indices divide, or that
are innermost. The first come from gradients of strided windows and from results put together in
turns: an axis of size 2 says which part a result is made of, through quotients, remainders and
conditions on them. At a fixed step these are numbers, conditions are settled or few, and loads that
never count are gone. The second ([*, 3] plus [3]) leave lanes to the long axis around them, whose
rows are then written whole. Values are as they were, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

from ...core.dtype import bool_, encode
from ...core.node import Node, make, toposort
from ...core.ops.elementwise import WHERE
from ...core.ops.index import FOLD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import CONST, SINK
from ...core.symbolic.sym import varies
from ...graph.ir.affine import (
    Affine,
    Atom,
    Bound,
    Condition,
    Domain,
    add,
    axes_of,
    axis,
    divide,
    number,
)
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices, is_scatter
from .tables import UnrollTable, VectorTable
from .vector_axis import Free, grid_axes, vector_axis

Steps = Mapping[int, int]  # the steps at which axes are fixed


def unroll_short_axes(kernel: IndexKernel, table: UnrollTable, vectors: VectorTable) -> IndexKernel:
    """The kernel without short axes that are in the way of lanes, where it has some."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    if len(sizes) < len(kernel.axes) or 0 in sizes or len(sizes) < 2:
        return kernel
    if any(n.op in (RUN, ORDER) or is_scatter(n) for n in order):
        return kernel
    axes = _short_axes(kernel, order, sizes, table, vectors)
    copies = prod([sizes[a] for a in axes])
    if not axes or copies > table.copies or copies * len(order) > table.nodes:
        return kernel
    return _copied(kernel, order, sizes, axes)


def _copied(
    kernel: IndexKernel, order: Sequence[Node], sizes: list[int], axes: Sequence[int]
) -> IndexKernel:
    """The kernel without some axes, its stores once for every step of them."""
    kept = [a for a in range(len(sizes)) if a not in axes]
    places = {a: place for place, a in enumerate(kept)}
    made: list[Node] = []
    for steps in product(*[range(sizes[a]) for a in axes]):
        work = _Fixed(dict(zip(axes, steps, strict=True)), places, sizes)
        made.extend(work.rebuilt(order, kernel.body.src))
    return IndexKernel(tuple([sizes[a] for a in kept]), SINK(*made), kernel.divisions)


def _short_axes(
    kernel: IndexKernel,
    order: Sequence[Node],
    sizes: Sequence[int],
    table: UnrollTable,
    vectors: VectorTable,
) -> list[int]:
    """The short axes of the grid that are divided, or below a long one."""
    free = free_axes(order)
    wanted = _innermost(order, free, sizes, vectors)
    if kernel.divisions:
        wanted |= {a for n in order for index in indices(n) for a in _divided(index)}
    wanted &= frozenset(grid_axes(order, free))
    return [a for a in sorted(wanted) if not varies(sizes[a]) and 1 < sizes[a] <= table.axis_steps]


def _innermost(
    order: Sequence[Node], free: Free, sizes: Sequence[int], vectors: VectorTable
) -> frozenset[int]:
    """Short axes below a long one, if all stores have them: a few neighbours for every lane."""
    stores = [n for n in order if n.op is STORE]
    vector = vector_axis(order, free, sizes, vectors)
    if vector is None or (sizes[vector] >= vectors.lanes and _steps(stores[0]).get(1) == vector):
        return frozenset()
    if any(_steps(s) != _steps(stores[0]) for s in stores):
        return frozenset()
    found: list[int] = []
    together = 1
    for step, atom in sorted(_steps(stores[0]).items()):
        if step != together or together > vectors.near_steps or not isinstance(atom, int):
            break
        if sizes[atom] >= vectors.lanes:
            return frozenset(found)
        found.append(atom)
        together *= sizes[atom]
    return frozenset()


def _steps(store: Node) -> dict[int, Atom]:
    """The axes of a store by their steps."""
    return {step: atom for atom, step in store.arg[1][1]}


def _divided(index: Affine) -> frozenset[int]:
    """The axes inside divisions of an index."""
    return frozenset[int]().union(*[axes_of(a[1]) for a, _ in index[1] if isinstance(a, tuple)])


class _Fixed:
    """One copy: some axes at fixed steps, the others with new numbers."""

    def __init__(self, steps: Steps, places: Mapping[int, int], sizes: list[int]) -> None:
        self.steps, self.places = steps, places
        lengths = {place: sizes[a] for a, place in places.items()}
        self.bound: Bound = lambda atom: (
            (0, lengths[atom] - 1) if isinstance(atom, int) else (-(1 << 62), 1 << 62)
        )
        self.done: dict[Node, Node] = {}

    def rebuilt(self, order: Iterable[Node], roots: Iterable[Node]) -> list[Node]:
        """The roots of this copy."""
        for node in order:
            self.done[node] = self.node(node, tuple([self.done[s] for s in node.src]))
        return [self.done[root] for root in roots]

    def node(self, node: Node, src: tuple[Node, ...]) -> Node:
        """A node whose sources are rebuilt."""
        op, arg = node.op, node.arg
        if op is WHERE:
            return _chosen(*src)
        if op is VALID:
            conditions = self.conditions(arg)
            if not conditions:
                return _truth(conditions is not None)
            return make(op, node.dtype, src, conditions)
        if op is LOAD:
            conditions = self.conditions(arg[2])
            if conditions is None:
                return make(CONST, node.dtype, (), (encode(0, node.dtype), ()))
            return make(op, node.dtype, src, (arg[0], self.index(arg[1]), conditions))
        if op is STORE:
            axes = tuple([self.places[a] for a in arg[3] if a in self.places])
            return make(op, node.dtype, src, (arg[0], self.index(arg[1]), arg[2], axes))
        if op is INDEX:
            return make(op, node.dtype, src, self.index(arg))
        if op is FOLD:
            arg = (arg[0], tuple([self.places[a] for a in arg[1]]))
        return make(op, node.dtype, src, arg)

    def conditions(self, conditions: Iterable[Condition]) -> tuple[Condition, ...] | None:
        """The conditions that are still to be asked; None if one never holds."""
        found = Domain(conditions).map(self.index)
        return None if found.is_empty(self.bound) else tuple(found.simplify(self.bound))

    def index(self, index: Affine) -> Affine:
        """An index of this copy, its divisions done where they can be."""
        total = number(index[0])
        for atom, coefficient in index[1]:
            if isinstance(atom, tuple):
                sign, inner, by = atom
                within = self.index(inner)
                parts = divide(within, by, self.bound)
                part = axis((sign, within, by)) if parts is None else parts[sign == "%"]
            elif isinstance(atom, int):
                fixed = atom in self.steps
                part = number(self.steps[atom]) if fixed else axis(self.places[atom])
            else:
                part = axis(atom)
            total = add(total, part, coefficient)
        return total


def _truth(holds: bool) -> Node:
    return make(CONST, bool_, (), (encode(holds, bool_), ()))


def _chosen(condition: Node, value: Node, other: Node) -> Node:
    """A choice, without questions that are settled or asked again inside it."""
    if condition.op is CONST:
        return value if condition.arg[0] else other
    if value is other:
        return value
    if value.op is WHERE and value.src[2] is other and _follows(value.src[0], condition):
        return value
    return make(WHERE, value.dtype, (condition, value, other))


def _follows(inner: Node, outer: Node) -> bool:
    """True if the inner condition implies the outer one."""
    if inner.op is not VALID or outer.op is not VALID or inner.src or outer.src:
        return inner is outer
    return Domain(inner.arg).implies(outer.arg)
