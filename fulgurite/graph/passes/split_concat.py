"""Concatenation of a long part and a short tail: ops are pushed through to each part.

In: a graph. Out: one with the same values. A number that is put beside the elements of every row (a
logit that nothing belongs to) makes rows of one more element, of which a part is taken again later;
a gradient goes back the same way. Where an axis is joined of a long part and a few elements, all
that is computed along it is computed for each part alone: an extreme or a sum of both is that of
the two, and a part that is taken is there already. So rows are as long as what they are made of,
and nothing is copied. Floats are added in another order then, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Shape, constant, make
from ...core.ops.elementwise import ADD, LT, MAX, MIN, WHERE
from ...core.ops.leaf import CONST, IOTA
from ...core.ops.movement import EXPAND, PAD, SHRINK, expand, pairs
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import rebuild
from ...core.symbolic.sym import choosing
from ..ir.limits import LIMITS
from .split_reduce import contraction_under

_JOIN = {"add": ADD, "max": MAX, "min": MIN}


@dataclass(frozen=True)
class _Parts:
    """A value along one axis, before and from some place on."""

    axis: int
    place: int
    both: tuple[Node, Node]


def split_concat(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with rows and what was put at their ends apart."""
    joined = [(node, found) for node in order if (found := _concat_place(node)) is not None]
    if not joined:
        return sink
    work = _Splitting({(axis, _length(node, axis), place) for node, (axis, place) in joined})
    for node in order:
        work.visit(node)
    return work.known.get(sink, sink)


class _Splitting:
    def __init__(self, joints: set[tuple[int, int, int]]) -> None:
        self.joints = sorted(joints)  # an axis, its size, and a place along it
        self.parts: dict[Node, _Parts] = {}
        self.known: dict[Node, Node] = {}  # what is the same value, where it is another node

    def visit(self, node: Node) -> None:
        """Find the parts of a node, or what takes its place."""
        found = self.apart(node)
        if found is not None:
            self.parts[node] = found
        other = self.whole(node)
        if other is None and any(s in self.known for s in node.src):
            other = rebuild(node, tuple([self.known.get(s, s) for s in node.src]))
        if other is not None:
            self.known[node] = other

    def apart(self, node: Node) -> _Parts | None:
        """The parts of a value that is joined, or computed from one that is."""
        if (place := _concat_place(node)) is not None:
            first, second = (self.known.get(s.src[0], s.src[0]) for s in node.src[1:])
            return _Parts(*place, (first, second))
        if node.op is PAD:
            return self.padded(node)
        known = next((self.parts[s] for s in node.src if s in self.parts), None)
        if known is None or node.op.family != "elementwise":
            return None
        both: list[Node] = []
        for side in (0, 1):
            sources = [self.part(s, known.axis, known.place, side) for s in node.src]
            left = [s for s in sources if s is not None]
            if len(left) < len(sources):
                return None
            both.append(_with_sources(node, left))
        return _Parts(known.axis, known.place, (both[0], both[1]))

    def padded(self, node: Node) -> _Parts | None:
        """The parts of a gradient that comes back to one of two parts."""
        for axis, size, place in self.joints:
            if axis >= node.ndim or node.shape[axis] != size or node.dtype.kind != "f":
                continue
            if not all(isinstance(n, int) for n in node.shape):
                continue
            inner = self.known.get(node.src[0], node.src[0])
            rest = (*node.shape[:axis], size - _length(inner, axis), *node.shape[axis + 1 :])
            if _ends(node, axis) == (0, size - place):
                return _Parts(axis, place, (inner, _number(0, node, rest)))
            if _ends(node, axis) == (place, 0):
                return _Parts(axis, place, (_number(0, node, rest), inner))
        return None

    def part(self, node: Node, axis: int, place: int, side: int) -> Node | None:
        """One part of a value, if it can be had without the other."""
        known = self.parts.get(node)
        if known is not None:
            return known.both[side] if (known.axis, known.place) == (axis, place) else None
        length = (place, _length(node, axis) - place)[side]
        shape = (*node.shape[:axis], length, *node.shape[axis + 1 :])
        if node.op is CONST:
            return make(CONST, node.dtype, (), (node.arg[0], shape))
        if node.op is EXPAND and node.src[0].shape[axis] == 1:
            return expand(self.known.get(node.src[0], node.src[0]), shape)
        if _is_by_place(node) and (node.src[0].arg[0], node.src[1].arg[0]) == (axis, place):
            return _number(side == 0, node, shape)
        return None

    def whole(self, node: Node) -> Node | None:
        """A fold of both parts, or one of them."""
        known = self.parts.get(node.src[0]) if node.op in (REDUCE, SHRINK) else None
        if known is None:
            return None
        if node.op is SHRINK:
            whole = node.src[0].shape
            cuts = list(zip([0] * len(whole), whole, strict=True))
            places = 0, known.place, _length(node.src[0], known.axis)
            for part, ends in zip(known.both, pairwise(places), strict=True):
                cuts[known.axis] = ends
                if pairs(node) == cuts:
                    return part
            return None
        name, axes = node.arg
        if known.axis not in axes or name not in _JOIN:
            return None
        folds = [_reduce_part(part, node) for part in known.both]
        return make(_JOIN[name], node.dtype, tuple(folds))


def _concat_place(node: Node) -> tuple[int, int] | None:
    """The axis and place where a choice by place goes from one padded value to another."""
    if node.op is not WHERE or node.dtype.kind != "f":
        return None
    condition, *sides = node.src
    if not _is_by_place(condition) or any(s.op is not PAD for s in sides):
        return None
    if not all(isinstance(n, int) for n in node.shape):
        return None
    axis, place = condition.src[0].arg[0], condition.src[1].arg[0]
    size, first = _length(node, axis), _length(sides[0].src[0], axis)
    ends = [_ends(side, axis) for side in sides]
    if place != first or ends != [(0, size - first), (first, 0)]:
        return None
    with choosing():  # whether it pays: rows that are no product are as quick whole
        long = sides[0] if 2 * first > size else sides[1]
        short = min(first, size - first) <= LIMITS.tail_elements
    return (axis, first) if short and contraction_under(long.src[0]) is not None else None


def _length(node: Node, axis: int) -> int:
    """The size of an axis; where a value is joined, all sizes are numbers."""
    size = node.shape[axis]
    assert isinstance(size, int)
    return size


def _reduce_part(part: Node, like: Node) -> Node:
    """A part folded as both were; of one element there is nothing to fold."""
    alone = all(part.shape[axis] == 1 for axis in like.arg[1])
    return part if alone else make(REDUCE, like.dtype, (part,), like.arg)


def _ends(node: Node, axis: int) -> tuple[object, object]:
    """What a pad puts before and after, if it does that along one axis alone."""
    found = pairs(node)
    return found[axis] if all(p == (0, 0) for i, p in enumerate(found) if i != axis) else (-1, -1)


def _is_by_place(node: Node) -> bool:
    """True if a condition holds before a place along an axis, and not from there on."""
    return node.op is LT and node.src[0].op is IOTA and node.src[1].op is CONST


def _with_sources(node: Node, sources: list[Node]) -> Node:
    """A node of other sources; a choice that is settled is what was chosen."""
    if node.op is WHERE and sources[0].op is CONST:
        return sources[1] if sources[0].arg[0] else sources[2]
    return make(node.op, node.dtype, tuple(sources), node.arg)


def _number(value: float, node: Node, shape: Shape) -> Node:
    """A constant of a node's dtype in some shape."""
    return make(CONST, node.dtype, (), (constant(value, node.dtype).arg[0], shape))
