"""Repeats: heads that share keys keep the axis along which those are repeated.

In: a graph. Out: one with the same values. Keys are often repeated for a group of heads and the two
axes merged, so that there are as many as queries; a gradient takes them apart again to sum over the
repeats. Where an axis was merged of one that is repeated and another, all that is computed along it
is computed along both, as if it had been written with groups: merged again where something else
needs that, and sums over repeats become one with the sums inside them. Floats are added in another
order then, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.node import Node, Shape, Size, make
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE, expand, permute, reshape
from ...core.ops.reduce import REDUCE
from ...core.shape import prod
from ...core.substitute import rebuild
from ..ir.sum_product import same_axes


@dataclass(eq=False, repr=False)
class _Split:
    """A value with one of its axes as two."""

    node: Node
    axis: int
    sizes: tuple[Size, Size]

    def shape(self, whole: Shape) -> Shape:
        """Another shape with the same axis split; one that has a single step has two."""
        pair = self.sizes if whole[self.axis] != 1 else (1, 1)
        return (*whole[: self.axis], *pair, *whole[self.axis + 1 :])


def repeats(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with merged repeats apart."""
    if not any(node.op is RESHAPE and node.src[0].op is EXPAND for node in order):
        return sink
    split: dict[Node, _Split] = {}
    known: dict[Node, Node] = {}
    for node in order:
        found: _Split | Node | None = _merged(node)
        if found is None and any(s in split for s in node.src):
            found = _carried(node, split, known)
        elif found is None and node.op is REDUCE and node.src[0] in known:
            found = _one_sum(node, known[node.src[0]])
        if isinstance(found, _Split):
            split[node] = found
            known[node] = reshape(found.node, node.shape)
        elif found is not None:
            known[node] = found
        elif any(s in known for s in node.src):
            known[node] = rebuild(node, tuple([known.get(s, s) for s in node.src]))
    return known.get(sink, sink)


def _merged(node: Node) -> _Split | None:
    """Is one axis of a reshape made of two, along one of which its source is repeated?"""
    if node.op is not RESHAPE or node.src[0].op is not EXPAND:
        return None
    source = node.src[0]
    shape, before = source.shape, source.src[0].shape
    if not all(isinstance(n, int) for n in (*shape, *node.shape)):
        return None
    for axis in range(len(shape) - 1):
        sizes = shape[axis], shape[axis + 1]
        whole = (*shape[:axis], prod(sizes), *shape[axis + 2 :])
        repeated = [before[i] == 1 != shape[i] for i in (axis, axis + 1)]
        if 1 in sizes or repeated[0] == repeated[1]:
            continue
        place = _same_axis(whole, node.shape, axis)
        if place is not None:
            found = _Split(source, place, sizes)
            return _Split(reshape(source, found.shape(node.shape)), place, found.sizes)
    return None


def _same_axis(shape: Shape, other: Shape, axis: int) -> int | None:
    """Which axis of another shape with as many elements is one of this."""
    for place, n in enumerate(other):
        if n == shape[axis] and prod(other[:place]) == prod(shape[:axis]):
            return place
    return None


def _carried(
    node: Node, split: dict[Node, _Split], known: dict[Node, Node]
) -> _Split | Node | None:
    """A node of a source that is split: split as well, or with the axes apart already, or None."""
    first = next(s for s in node.src if s in split)
    old = split[first]
    if not all(isinstance(n, int) for n in node.shape):
        return None
    if node.op is RESHAPE:
        place = _same_axis(first.shape, node.shape, old.axis)
        if place is None:
            apart = node.shape[_start(node.shape, prod(first.shape[: old.axis])) :][:2]
            return reshape(old.node, node.shape) if apart == old.sizes else None
        made = _Split(old.node, place, old.sizes)
        return _Split(reshape(old.node, made.shape(node.shape)), place, old.sizes)
    if node.op is PERMUTE:
        place = node.arg.index(old.axis)
        order = [[a + (a > old.axis)] if a != old.axis else [a, a + 1] for a in node.arg]
        return _Split(
            permute(old.node, tuple([i for some in order for i in some])), place, old.sizes
        )
    if node.op is EXPAND and first.shape[old.axis] == node.shape[old.axis]:
        return _Split(expand(old.node, old.shape(node.shape)), old.axis, old.sizes)
    if node.op is REDUCE and old.axis not in node.arg[1]:
        axes = tuple([a + (a > old.axis) for a in node.arg[1]])
        made_of = make(REDUCE, node.dtype, (old.node,), (node.arg[0], axes))
        return _Split(made_of, old.axis, old.sizes)
    if node.op.family == "elementwise" and all(s.shape == node.shape for s in node.src):
        if any((o.axis, o.sizes) != (old.axis, old.sizes) for s in node.src if (o := split.get(s))):
            return None
        sources = [split[s].node if s in split else _apart(known.get(s, s), old) for s in node.src]
        return _Split(make(node.op, node.dtype, tuple(sources), node.arg), old.axis, old.sizes)
    return None


def _one_sum(total: Node, view: Node) -> Node | None:
    """A sum over a view of a sum as one sum."""
    name, axes = total.arg
    gone = frozenset([axis for axis in axes if view.shape[axis] != 1])
    moves: list[tuple[Node, frozenset[int]]] = []  # from the outermost, with what is summed of each
    while view.op in (RESHAPE, PERMUTE):
        moves.append((view, gone))
        if view.op is PERMUTE:
            gone = frozenset([view.arg[axis] for axis in gone])
        else:
            place = same_axes(view.shape, view.src[0].shape)
            if place is None:
                return None
            gone = frozenset([place[axis] for axis in gone])
        view = view.src[0]
    if view.op is not REDUCE or view.arg[0] != name or name != "add":
        return None
    whole = tuple(sorted({*gone, *view.arg[1]}))
    found = make(REDUCE, total.dtype, view.src, (name, whole))
    for move, summed in reversed(moves):
        shape = tuple([1 if axis in summed else n for axis, n in enumerate(move.shape)])
        found = permute(found, move.arg) if move.op is PERMUTE else reshape(found, shape)
    return reshape(found, total.shape)


def _start(shape: Shape, before: object) -> int:
    """The first axis before which there are so many elements."""
    places = [i for i in range(len(shape)) if prod(shape[:i]) == before and shape[i] != 1]
    return places[0] if places else len(shape)


def _apart(node: Node, like: _Split) -> Node:
    """A value that is not split yet in the same shape."""
    shape = like.shape(node.shape)
    if node.op is CONST:
        return make(CONST, node.dtype, (), (node.arg[0], shape))
    if node.op is EXPAND:
        return expand(reshape(node.src[0], like.shape(node.src[0].shape)), shape)
    return reshape(node, shape)
