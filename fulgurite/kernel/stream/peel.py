"""Ends: a fold of which few elements differ from all others is a fold of those, and the few.

In: stores whose folds have axes of their own, and the sizes of axes. Out: stores of the same
values, and more sizes. Where conditions on a folded axis alone (a comparison with a number, what a
pad leaves out) hold for all but one or two elements at its ends, these are worked out by themselves
and joined with the fold of the others, in which nothing is left of the conditions. So a row with a
number put at its end is a fold over the row, and streams with all that folds over rows. A fold that
has few elements at all is written out where it is inside another, and no product of two sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ...core.dtype import bool_
from ...core.node import Node, constant, make, toposort
from ...core.ops.elementwise import ADD, EQ, LE, LT, MAX, MIN, MUL, WHERE
from ...core.ops.index import FOLD, INDEX, LOAD, VALID
from ...core.ops.leaf import CONST
from ...graph.ir.affine import Affine, Condition, add, axes_of, axis, bounds, number
from ...graph.ir.queries import affine_value, free_axes, indices

_JOIN = {"add": ADD, "max": MAX, "min": MIN}
_ALONE = 2  # elements that are worked out by themselves
_FEW = 8  # elements of a fold that is written out


def ended(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[tuple[Node, ...], list[int]]:
    """The stores with folds cut off where few elements differ."""
    order = toposort(stores)
    work = _Cut(list(sizes))
    inside = set(toposort([n.src[0] for n in order if n.op is FOLD]))
    few = [n for n in inside if n.op is FOLD and work.is_written_out(n)]
    wide = any(n.op is FOLD and len(n.arg[1]) > 1 for n in order)
    if not few and not wide and not any(map(work.lines, order)):
        return tuple(stores), work.sizes
    done: dict[Node, Node] = {}
    for node in order:
        made = make(node.op, node.dtype, tuple([done[s] for s in node.src]), node.arg)
        while made.op is FOLD and (other := work.in_line(made)) is not None:
            made = other
        if node in few:
            made = work.written_out(made)
        elif node.op is FOLD and node.arg[0] in _JOIN and len(node.arg[1]) == 1:
            made = work.cut(made)
        done[node] = made
    return tuple([done[s] for s in stores]), work.sizes


class _Cut:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.named: dict[tuple[int, int, int], int] = {}  # an axis and a part of it: its own axis

    def bound(self, atom: object) -> tuple[int, int]:
        """What an axis runs over."""
        assert isinstance(atom, int)
        return 0, self.sizes[atom] - 1

    def lines(self, node: Node) -> list[tuple[int, int]]:
        """Where conditions that a node has on one axis alone begin or end to hold."""
        found: list[tuple[int, int]] = []
        for index, size in _conditions(node):
            if len(index[1]) == 1 and isinstance(index[1][0][0], int) and index[1][0][1] == 1:
                found += [(index[1][0][0], place - index[0]) for place in (0, size)]
        less = self.difference(node)
        if less is not None and len(less[1]) == 1:
            atom, step = less[1][0]
            if isinstance(atom, int) and abs(step) == 1:
                place = -less[0] * step  # where both sides are equal
                after = {LT: [step < 0], LE: [step > 0], EQ: [False, True]}[node.op]
                found += [(atom, place + beyond) for beyond in after]
        return found

    def difference(self, node: Node) -> Affine | None:
        """The first less the second side of a comparison, if both are whole numbers of axes."""
        if node.op not in (LT, LE, EQ) or node.src[0].dtype.kind not in "iu":
            return None
        sides = [affine_value(s, self.bound) for s in node.src]
        return None if sides[0] is None or sides[1] is None else add(sides[0], sides[1], -1)

    def cut(self, fold: Node) -> Node:
        """A fold of what is alike along its axis, joined with the others."""
        name, (along,) = fold.arg
        size = self.sizes[along]
        order = toposort([fold.src[0]])
        inside = [line for node in order for line in self.lines(node)]
        ends = sorted({0, size, *[at for a, at in inside if a == along and 0 < at < size]})
        parts = list(pairwise(ends))
        long = [(low, high) for low, high in parts if high - low > 1]
        if len(parts) > 1 + _ALONE or len(long) != 1 or not any(a == along for a, _ in inside):
            return fold
        if any(_is_divided(index, along) for node in order for index in indices(node)):
            return fold
        value: Node | None = None
        for low, high in parts:
            place = number(low)
            if high - low == size:
                axes, place = along, axis(along)
            elif high - low > 1:
                axes = self.named.setdefault((along, low, high), len(self.sizes))
                if axes == len(self.sizes):
                    self.sizes.append(high - low)
                place = add(place, axis(axes))
            made = self.at(fold.src[0], {along: place})
            if high - low > 1:
                made = make(FOLD, fold.dtype, (made,), (name, (axes,)))
            value = made if value is None else make(_JOIN[name], fold.dtype, (value, made))
        assert value is not None
        return value

    def in_line(self, fold: Node) -> Node | None:
        """A fold over two axes that follow each other everywhere as one over their line."""
        name, axes = fold.arg
        every = [i for node in toposort([fold.src[0]]) for i in indices(node)]
        for outer, inner in pairwise(axes):
            size = self.sizes[inner]
            steps = [(dict(i[1]).get(outer, 0), dict(i[1]).get(inner, 0)) for i in every]
            apart = any(_is_divided(i, outer) or _is_divided(i, inner) for i in every)
            if apart or any(a != b * size for a, b in steps):
                continue
            line = self.named.setdefault((outer, inner, -1), len(self.sizes))
            if line == len(self.sizes):
                self.sizes.append(self.sizes[outer] * size)
            body = self.at(fold.src[0], {outer: number(0), inner: axis(line)})
            left = tuple([line if a == inner else a for a in axes if a != outer])
            return make(FOLD, fold.dtype, (body,), (name, left))
        return None

    def is_written_out(self, fold: Node) -> bool:
        """Has it few elements, each worked out from values that do not have all its axes?"""
        along = frozenset(fold.arg[1])
        if fold.arg[0] not in _JOIN or len(along) != 1 or self.sizes[fold.arg[1][0]] > _FEW:
            return False
        order = toposort([fold.src[0]])
        if any(n.op is FOLD or any(_is_divided(i, *along) for i in indices(n)) for n in order):
            return False
        free = free_axes(order)
        for factor in _factors(fold.src[0]):
            axes = [free[n] - along for n in toposort([factor]) if n.op is LOAD]
            if any(a - b and b - a for a in axes for b in axes):
                return True
        return False

    def written_out(self, fold: Node) -> Node:
        """The elements of a fold, one by one."""
        name, (along,) = fold.arg
        value = self.at(fold.src[0], {along: number(0)})
        for place in range(1, self.sizes[along]):
            other = self.at(fold.src[0], {along: number(place)})
            value = make(_JOIN[name], fold.dtype, (value, other))
        return value

    def at(self, root: Node, places: dict[int, Affine]) -> Node:
        """A value with indices in the place of axes, and without what that settles."""
        order = toposort([root])
        free = free_axes(order)
        done: dict[Node, Node] = {}
        for node in order:
            done[node] = node
            if free[node] & frozenset(places):
                done[node] = self.settled(node, [done[s] for s in node.src], places)
        return done[root]

    def settled(self, node: Node, sources: list[Node], places: dict[int, Affine]) -> Node:
        def moved(index: Affine) -> Affine:
            found = number(index[0])
            for atom, step in index[1]:
                known = places.get(atom) if isinstance(atom, int) else None
                found = add(found, axis(atom) if known is None else known, step)
            return found

        arg, op = node.arg, node.op
        if op in (LOAD, VALID):
            checks = [(moved(i), n) for i, n in _conditions(node)]
            known = [self.holds(check) for check in checks]
            left = tuple([c for c, k in zip(checks, known, strict=True) if k is None])
            if False in known:
                return constant(False if op is VALID else 0, node.dtype)
            if op is VALID and not left:
                return constant(True, bool_)
            arg = left if op is VALID else (arg[0], moved(arg[1]), left)
        elif op is INDEX:
            arg = moved(arg)
        elif op is WHERE and sources[0].op is CONST:
            return sources[1] if sources[0].arg[0] else sources[2]
        made = make(op, node.dtype, tuple(sources), arg)
        less = self.difference(made)
        if less is not None:
            low, high = bounds(less, self.bound)
            for holds, certain in ((True, _always(op, low, high)), (False, _never(op, low, high))):
                if certain:
                    return constant(holds, bool_)
        return made

    def holds(self, check: Condition) -> bool | None:
        """Does an index stay inside, or never get there?"""
        if any(not isinstance(atom, int) for atom, _ in check[0][1]):
            return None
        low, high = bounds(check[0], self.bound)
        if high < 0 or low >= check[1]:
            return False
        return True if low >= 0 and high < check[1] else None


def _factors(node: Node) -> list[Node]:
    """What a value is a product of."""
    return [f for s in node.src for f in _factors(s)] if node.op is MUL else [node]


def _is_divided(index: Affine, along: int) -> bool:
    """Is an axis part of a division?"""
    return any(isinstance(atom, tuple) and along in axes_of(atom[1]) for atom, _ in index[1])


def _always(op: object, low: int, high: int) -> bool:
    return high < 0 if op is LT else high <= 0 if op is LE else low == high == 0


def _never(op: object, low: int, high: int) -> bool:
    return low >= 0 if op is LT else low > 0 if op is LE else low > 0 or high < 0


def _conditions(node: Node) -> Iterable[Condition]:
    """Under which conditions there is something at a node's index."""
    found: Iterable[Condition] = node.arg[2] if node.op is LOAD else ()
    return node.arg if node.op is VALID else found
