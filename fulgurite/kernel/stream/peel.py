"""Loop peeling: a fold of which few elements differ from the others is a fold of those and the few.

In: stores whose folds have axes of their own, and the sizes of axes. Out: stores of the same
values, and more sizes. Where conditions on a folded axis alone (a comparison with a number, what a
pad leaves out) hold for all but one or two elements at its ends, these are computed by themselves
and joined with the fold of the others, in which nothing is left of the conditions. So a row with a
number put at its end is a fold over the row, and streams with all that folds over rows. A fold that
has few elements at all is unrolled where it is inside another, and no product of two sides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

from ...core.dtype import bool_
from ...core.node import Node, constant, make, toposort
from ...core.ops.elementwise import ADD, EQ, LE, LT, MAX, MIN, WHERE
from ...core.ops.index import FOLD, LOAD, VALID
from ...core.ops.leaf import CONST
from ...core.symbolic.sym import varies
from ...graph.ir.affine import Affine, Condition, add, axes_of, axis, bounds, number
from ...graph.ir.bodies import Places, argument_at, remade, substitute_axes, transformed
from ...graph.ir.limits import LIMITS
from ...graph.ir.queries import affine_value, free_axes, indices
from ...graph.ir.sum_product import factors

_JOIN = {"add": ADD, "max": MAX, "min": MIN}
# of (first - second) between bounds: when does a comparison hold for all, and for none?
_ALWAYS = {LT: lambda a, b: b < 0, LE: lambda a, b: b <= 0, EQ: lambda a, b: a == b == 0}
_NEVER = {LT: lambda a, b: a >= 0, LE: lambda a, b: a > 0, EQ: lambda a, b: a > 0 or b < 0}


def peel(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[tuple[Node, ...], list[int]]:
    """The stores with folds cut off where few elements differ."""
    order = toposort(stores)
    work = _Peeler(stores, list(sizes))
    wide = any(len(n.arg[1]) > 1 for n in order if n.op is FOLD)
    if not work.short and not wide and not any(map(work.boundaries, order)):
        return tuple(stores), work.sizes
    return transformed(stores, work.changed), work.sizes


class _Peeler:
    def __init__(self, stores: Sequence[Node], sizes: list[int]) -> None:
        self.sizes = sizes
        self.named: dict[Hashable, int] = {}  # parts and lines of axes: an axis of their own
        folds = [n for n in toposort(stores) if n.op is FOLD]
        inside = set(toposort([n.src[0] for n in folds]))
        self.short = {n for n in folds if n in inside and self.is_unrolled(n)}

    def changed(self, node: Node, sources: tuple[Node, ...]) -> Node:
        """A node on other sources; a fold without what differs at its ends."""
        made = remade(node, sources)
        if node.op is not FOLD:
            return made
        while (other := self.merged(made)) is not None:
            made = other
        if node in self.short:
            return self.unrolled(made)
        return self.peeled(made) if node.arg[0] in _JOIN and len(node.arg[1]) == 1 else made

    def axis_of(self, key: Hashable, size: int) -> int:
        """An axis of some size, the same for the same key."""
        found = self.named.setdefault(key, len(self.sizes))
        if found == len(self.sizes):
            self.sizes.append(size)
        return found

    def bound(self, atom: object) -> tuple[int, int]:
        """What an axis runs over."""
        assert isinstance(atom, int)
        return 0, self.sizes[atom] - 1

    # --- where elements differ -------------------------------------------------------------------

    def boundaries(self, node: Node) -> list[tuple[int, int]]:
        """Axes and places where conditions that a node has on one axis alone change."""
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
        if node.op not in _ALWAYS or node.src[0].dtype.kind not in "iu":
            return None
        first, second = [affine_value(s, self.bound) for s in node.src]
        return None if first is None or second is None else add(first, second, -1)

    # --- folds -----------------------------------------------------------------------------------

    def peeled(self, fold: Node) -> Node:
        """A fold of what is alike along its axis, joined with the others."""
        (along,) = fold.arg[1]
        parts = self.parts(fold, along)
        if parts is None:
            return fold
        values = [self.part(fold, along, low, high) for low, high in parts]
        return _combine(fold, values)

    def parts(self, fold: Node, along: int) -> list[tuple[int, int]] | None:
        """One long run of elements that are alike, and few others, if it is so."""
        size, order = self.sizes[along], toposort([fold.src[0]])
        mine = [at for node in order for a, at in self.boundaries(node) if a == along]
        ends = sorted({0, size, *[at for at in mine if 0 < at < size]})
        parts = list(pairwise(ends))
        long = [part for part in parts if part[1] - part[0] > 1]
        if len(parts) > 1 + LIMITS.peeled_elements or len(long) != 1 or not mine:
            return None
        divided = any(_is_divided(index, along) for node in order for index in indices(node))
        return None if divided else parts

    def part(self, fold: Node, along: int, low: int, high: int) -> Node:
        """A fold from one element to another, or one element."""
        if high - low == 1:
            return self.at(fold.src[0], {along: number(low)})
        own, place = along, axis(along)
        if high - low < self.sizes[along]:
            own = self.axis_of((along, low, high), high - low)
            place = add(number(low), axis(own))
        body = self.at(fold.src[0], {along: place})
        return make(FOLD, fold.dtype, (body,), (fold.arg[0], (own,)))

    def merged(self, fold: Node) -> Node | None:
        """A fold over two axes that follow each other everywhere as one over their line."""
        name, axes = fold.arg
        every = [i for node in toposort([fold.src[0]]) for i in indices(node)]
        for outer, inner in pairwise(axes):
            size = self.sizes[inner]
            steps = [(dict(i[1]).get(outer, 0), dict(i[1]).get(inner, 0)) for i in every]
            apart = any(_is_divided(i, outer) or _is_divided(i, inner) for i in every)
            if apart or any(a != b * size for a, b in steps):
                continue
            line = self.axis_of((outer, inner, -1), self.sizes[outer] * size)
            body = self.at(fold.src[0], {outer: number(0), inner: axis(line)})
            left = tuple([line if a == inner else a for a in axes if a != outer])
            return make(FOLD, fold.dtype, (body,), (name, left))
        return None

    def is_unrolled(self, fold: Node) -> bool:
        """True if it has few elements, each made from values that do not have all its axes."""
        along = frozenset(fold.arg[1])
        if not self.is_short(fold):
            return False
        order = toposort([fold.src[0]])
        if any(n.op is FOLD or any(_is_divided(i, *along) for i in indices(n)) for n in order):
            return False
        free = free_axes(order)
        for factor in factors(fold.src[0]):
            axes = [free[n] - along for n in toposort([factor.value]) if n.op is LOAD]
            if any(a - b and b - a for a in axes for b in axes):
                return True
        return False

    def is_short(self, fold: Node) -> bool:
        """True if it is over one axis of a few elements, which can be joined one by one."""
        name, axes = fold.arg
        if name not in _JOIN or len(axes) != 1:
            return False
        size = self.sizes[axes[0]]
        return not varies(size) and size <= LIMITS.unrolled_elements

    def unrolled(self, fold: Node) -> Node:
        """The elements of a fold, one by one."""
        (along,) = fold.arg[1]
        places = range(self.sizes[along])
        return _combine(fold, [self.at(fold.src[0], {along: number(place)}) for place in places])

    # --- indices in the place of axes ------------------------------------------------------------

    def at(self, root: Node, places: Places) -> Node:
        """A value with indices in the place of axes, and without what that decides."""
        return substitute_axes(root, places, self.decided)

    def decided(self, node: Node, sources: tuple[Node, ...], places: Places) -> Node:
        """A node on other sources and indices, or what is left of it."""
        arg, op = argument_at(node, places), node.op
        if op is WHERE and sources[0].op is CONST:
            return sources[1] if sources[0].arg[0] else sources[2]
        if op is LOAD or op is VALID:
            known = {check: self.holds(check) for check in (arg[2] if op is LOAD else arg)}
            left = tuple([check for check, holds in known.items() if holds is None])
            if False in known.values():
                return constant(0, node.dtype)
            if op is VALID and not left:
                return constant(1, bool_)
            arg = left if op is VALID else (*arg[:2], left)
        made = make(op, node.dtype, sources, arg)
        truth = self.truth(made)
        return made if truth is None else constant(truth, bool_)

    def truth(self, node: Node) -> bool | None:
        """What a comparison always says, if it does."""
        less = self.difference(node)
        if less is None:
            return None
        ends = bounds(less, self.bound)
        if _ALWAYS[node.op](*ends):
            return True
        return False if _NEVER[node.op](*ends) else None

    def holds(self, check: Condition) -> bool | None:
        """True if an index stays inside, False if it never gets there."""
        if any(not isinstance(atom, int) for atom, _ in check[0][1]):
            return None
        low, high = bounds(check[0], self.bound)
        if high < 0 or low >= check[1]:
            return False
        return True if low >= 0 and high < check[1] else None


def _combine(fold: Node, values: Sequence[Node]) -> Node:
    """Parts of a fold as one."""
    found = values[0]
    for value in values[1:]:
        found = make(_JOIN[fold.arg[0]], fold.dtype, (found, value))
    return found


def _is_divided(index: Affine, along: int) -> bool:
    """True if an axis is part of a division."""
    return any(isinstance(atom, tuple) and along in axes_of(atom[1]) for atom, _ in index[1])


def _conditions(node: Node) -> Iterable[Condition]:
    """Under which conditions there is something at a node's index."""
    found: Iterable[Condition] = node.arg[2] if node.op is LOAD else ()
    return node.arg if node.op is VALID else found
