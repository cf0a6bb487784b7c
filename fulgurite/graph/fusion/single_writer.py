"""One writer: what is compared with something made of it is computed once, and read by all.

In: the parts of a plan (kernels: what each stores and reads) over the nodes of one graph. Out: the
comparisons whose sides come from different computations of one value. Float sums are reassociated:
the same sum has other bits in another kernel, in another loop of the same kernel, or in a fold
that keeps excess precision. Where `x == x.max()` sees x from one and its maximum from another,
nothing is the largest, and a gradient is lost without a word.

The law. A value is unstable if its bits depend on who computes it: sums and products of floats,
and what ops with kernels of their own give; within a fold every float op, since laws rewrite it. An
op that `jumps` (a comparison, a sign, a rounding) is a question if some value reaches it by two
paths. Wherever a question is evaluated, it must see each unstable value from one writer at one
place; and where it compares elements of different places (with the extreme of their row), all who
evaluate it must see the same writer. A walk ends at unstable values: what those are made of may be
computed again, since everybody reads their own bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TypeAlias

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node
from ...core.op import Op
from ...core.ops.elementwise import ABS, CAST, EQ, LE, LT, MAX, MIN, NE, NEG, SUB, WHERE
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import CONST, PARAM
from ...core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    WINDOW,
    pairs,
)
from ...core.ops.reduce import REDUCE
from ..ir.bit_stability import (
    IDENTITY,
    is_unstable,
    stable_sources,
    value_sources,
)
from ..ir.queries import unmoved, walk
from ..ir.sum_product import same_axes

Axis: TypeAlias = "tuple[object, ...]"  # where along an axis: ("axis", i) of what reads it, ...
Place: TypeAlias = "tuple[Axis, ...] | str | None"
Sight: TypeAlias = "tuple[Node, int, Place]"  # an unstable value, its writer, and where
Sights: TypeAlias = "frozenset[Sight]"
_EXACT = (MAX, MIN, WHERE, NEG, ABS)  # float ops that round nothing, whatever laws make of them
_FLAT = "flat"  # element by element, in whatever shape
_MANY: frozenset[Place] = frozenset(["many", "and more"])  # whatever becomes of them
_FIRST: Axis = ()  # along an axis of one step
_NONE: Sights = frozenset()


class Question(NamedTuple):
    """An op that jumps and that some values reach by two paths."""

    node: Node
    values: frozenset[Node]
    apart: bool  # does it compare elements of different places?
    chooses: bool = False  # does it choose what is gathered, with weights that ask the same?


class Conflict(NamedTuple):
    """A question that sees a value from several writers, or from one at several places."""

    question: Node
    value: Node
    writers: tuple[int, ...]  # numbers of parts


class Launch:
    """A kernel that a plan launches, in terms of the nodes of the graph."""

    __slots__ = ("_order", "kind", "outputs", "reads")

    def __init__(self, kind: str, outputs: Iterable[Node], reads: Collection[Node]) -> None:
        self.kind, self.outputs, self.reads = kind, tuple(outputs), reads
        self._order: list[Node] | None = None

    @property
    def order(self) -> list[Node]:
        """What it computes itself, sources first."""
        if self._order is None:
            self._order = walk(self.outputs, value_sources, self.reads)
        return self._order


# --- what is asked -------------------------------------------------------------------------------


def jumps(node: Node) -> bool:
    """True if a rounding error in a source may change the result by much."""
    if node.op is CAST:
        return node.src[0].dtype.is_inexact and not node.dtype.is_inexact
    return node.op.jumps


class _Paths(NamedTuple):
    """By which paths the values of a graph are reached, as bits of a number."""

    ends: list[Node]  # unstable values and values in memory, by number of their bit
    reach: dict[Node, int]  # what a value is made of
    twice: dict[Node, int]  # and of that what it is made of by two paths
    asking: list[Node]  # ops that jump and see something by two


def questions(order: Sequence[Node]) -> list[Question]:
    """The ops of a graph, given sources first, that compare a value with what is made of it."""
    ends, reach, twice, asking = _paths(order)
    bits = 0
    for node in asking:
        bits |= twice[node]
    wanted = {end for i, end in enumerate(ends) if bits >> i & 1} if asking else set()
    seen = _seen_from(asking, order, wanted) if asking else {}
    found: list[Question] = []
    for node in asking:
        values = frozenset([n for n in seen[node] if twice[node] & reach[n]])
        found.append(Question(node, values, any(len(seen[node][n]) > 1 for n in values)))
    return found + _choices(order, ends, reach, set(asking))


def _choices(
    order: Sequence[Node], ends: Sequence[Node], reach: Mapping[Node, int], known: Set[Node]
) -> list[Question]:
    """Roundings of unstable values that choose what is gathered: whoever weighs that rounds too."""
    places = [node.src[1] for node in order if node.op is GATHER]
    if not places:
        return []
    found: list[Question] = []
    for node in walk(places, stable_sources):
        if node in known or not jumps(node) or node.dtype.kind == "b":
            continue
        values = [n for i, n in enumerate(ends) if reach[node] >> i & 1 and n.op is not PARAM]
        if values:
            found.append(Question(node, frozenset(values), True, True))
    return found


def _paths(order: Sequence[Node]) -> _Paths:
    ends, reach, twice, asking = paths = _Paths([], {}, {}, [])
    unstable = 0
    for node in order:
        both = found = 0
        if is_unstable(node) or (node.op is PARAM and node.dtype.is_inexact):
            found = 1 << len(ends)
            unstable |= found if node.op is not PARAM else 0
            ends.append(node)
        else:
            for source in value_sources(node):
                both |= twice[source] | (found & reach[source])
                found |= reach[source]
            if both and jumps(node) and not _is_generic(node, reach, both, found, unstable):
                asking.append(node)
        reach[node], twice[node] = found, both
    return paths


def _is_generic(
    node: Node, reach: Mapping[Node, int], both: int, found: int, unstable: int
) -> bool:
    """True if no tie is made by the program itself: rounding changes an answer by luck alone.

    `w != w` asks for NaN. `exp(s - max(s)) / z > t` with another sum z ties at no element on
    purpose, as `s - max(s) >= 0` does at the largest: there is one side, and z is in it once.
    """
    if len(node.src) == 2 and node.src[0] is node.src[1]:
        return True
    sides = [source for source in value_sources(node) if reach[source] & both]
    return len(sides) == 1 and bool(found & ~both & unstable)


def _seen_from(
    asking: Sequence[Node], order: Sequence[Node], wanted: Collection[Node], most: int = 32
) -> dict[Node, dict[Node, frozenset[Place]]]:
    """At which places nodes read some values, if one loop computed everything.

    Slices and concatenations multiply them: more than `most` are `_MANY`, also behind what would
    make one of them. A question is then thought to compare elements of different places, which only
    asks for more.
    """
    cone = set(walk(asking, stable_sources))
    seen: dict[Node, dict[Node, frozenset[Place]]] = {}
    for node in order:
        if node not in cone:
            continue
        mine: dict[Node, frozenset[Place]] = {}
        if node in wanted:
            mine[node] = frozenset([_FLAT])
        elif not is_unstable(node):
            for number, source in enumerate(value_sources(node)):
                for value, where in seen[source].items():
                    before = mine.get(value, frozenset())
                    if where is _MANY or before is _MANY:
                        mine[value] = _MANY
                        continue
                    found = before.union([_moved(p, value, node, number) for p in where])
                    mine[value] = found if len(found) <= most else _MANY
        seen[node] = mine
    return seen


# --- from plan to plan ---------------------------------------------------------------------------


def held_with(
    roots: Iterable[Node], extremes: Iterable[Node], is_held: Callable[[Node], bool]
) -> list[Node]:
    """Values of which roots are extremes and that somebody holds: known together, they agree.

    A later plan would compute what is held again, in another order. What is only a part of it says
    nothing about the rest, so cuts and picks are not looked through.
    """
    found: dict[Node, list[Node]] = {}
    for extreme in extremes:
        stack, seen = list(extreme.src[:1]), set[Node]()
        while stack:
            node = stack.pop()
            if node in seen or not node.src or node.realized is not None:
                continue
            seen.add(node)
            if is_held(node):
                if any(map(is_unstable, walk([node], stable_sources))):
                    found.setdefault(node, []).append(extreme)
            elif node.op is not SHRINK and node.op is not GATHER:
                stack += stable_sources(node)
    reached = set(walk(roots, stable_sources)) if found else set()
    return [node for node, some in found.items() if not reached.isdisjoint(some)]


# --- who answers ---------------------------------------------------------------------------------


class Law:
    """The law for the plans of one graph."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self.asked = {q.node: q for q in asked}
        self.cone = set(walk(self.asked, stable_sources))
        self.values = {n for q in asked for n in q.values}

    def concerns(self, nodes: Iterable[Node]) -> bool:
        """True if a question sees any of some nodes, or what is between it and them."""
        return any(n in self.cone for n in nodes)

    def conflicts(self, parts: Sequence[Launch]) -> list[Conflict]:
        """Where a plan, given in the order in which it runs, breaks the law."""
        folds = {number for number, part in enumerate(parts) if part.kind == "fold"}
        folded = {n for number in folds for n in parts[number].order if self.is_rewritten(n)}
        stored: dict[Node, Sights] = {}
        answers: dict[Node, list[Sights]] = {}
        for number, part in enumerate(parts):
            seen: dict[Node, Sights] = {}
            for node in filter(self.cone.__contains__, part.order):
                seen[node] = self.seen(node, number, part.kind, seen, stored, folded)
                if node in self.asked:
                    answers.setdefault(node, []).append(seen[node])
            for node in filter(seen.__contains__, part.outputs):  # others are what was read
                stored[node] = frozenset([_at_rest(s, node, number) for s in seen[node]])
        found = [self.conflict(node, sights, folds) for node, sights in answers.items()]
        return [conflict for some in found for conflict in some]

    def is_rewritten(self, node: Node) -> bool:
        """True if laws of folds, or their excess precision, may change the bits of a value."""
        return _rounds(node) and node in self.cone

    def seen(
        self, node: Node, number: int, kind: str, seen: dict[Node, Sights],
        stored: dict[Node, Sights], folded: Collection[Node],
    ) -> Sights:  # fmt: skip
        """What unstable values a node is made of in a part, who writes them, and where."""
        if is_unstable(node):
            at: Place = None if kind == "host" else _FLAT  # that runs node by node
            return frozenset([(node, number, at)]) if node in self.values else _NONE
        found: set[Sight] = set()
        for place, source in enumerate(value_sources(node)):
            known = seen.get(source)
            for sight in stored.get(source, _NONE) if known is None else known:
                value, writer, where = sight
                mine = writer == number and known is not None
                found.add((value, writer, _moved(where, value, node, place)) if mine else sight)
        if node in folded:
            found.add((node, number, _FLAT))
        return frozenset(found)

    def conflict(
        self, node: Node, answers: Sequence[Sights], folds: Collection[int]
    ) -> list[Conflict]:
        """The values of which a question sees too many."""
        found: dict[Node, set[int]] = {}
        for sights in answers:  # each alone
            for value, some in _by_value(sights).items():
                if self.are_several(node, value, some, folds):
                    found.setdefault(value, set()).update([writer for writer, _ in some])
        if self.asked[node].apart:  # and all together
            for value, some in _by_value(frozenset[Sight]().union(*answers)).items():
                writers = {writer for writer, _ in some}
                places = len(some) if self.asked[node].chooses else len(writers)
                if places > 1 and (is_unstable(value) or not writers.isdisjoint(folds)):
                    found.setdefault(value, set()).update(writers)
        return [Conflict(node, value, tuple(sorted(found[value]))) for value in found]

    def are_several(
        self, question: Node, value: Node, sights: Collection[tuple[int, Place]],
        folds: Collection[int],
    ) -> bool:  # fmt: skip
        """True if a question sees a value with different bits."""
        if is_unstable(value):
            return len(sights) > 1
        rewritten = [writer for writer, _ in sights if writer in folds]
        if rewritten and len({writer for writer, _ in sights}) > 1:
            return True  # or it has the same bits wherever it is computed as it is written
        return len(rewritten) > 1 and not is_left_alone(question)


def is_left_alone(question: Node) -> bool:
    """True if laws of a fold know that both sides of a comparison stay as they are written.

    They know values that are compared (`kernel/stream/bit_stable.py`), and so what is made of such
    a value; not what is between two values that are both made of a third.
    """
    sides = _sides(question)
    if question.op not in (EQ, NE, LE, LT) or any(side.op is CONST for side in sides):
        return False
    for one, other in (sides, sides[::-1]):
        mine = set(walk([one], stable_sources))
        if not any(_rounds(n) and n in mine for n in walk([other], stable_sources, {one})):
            return True
    return False


def _sides(question: Node) -> list[Node]:
    """What a comparison compares: of `a - b == 0` it is a and b."""
    sides = [unmoved(side) for side in question.src]
    apart = [side for side in sides if side.op is SUB]
    if question.op in (EQ, NE) and apart and any(side.op is CONST for side in sides):
        return [unmoved(side) for side in apart[0].src]
    return sides


def _rounds(node: Node) -> bool:
    """True if a fold may compute an elementwise op otherwise than it is written."""
    inexact = node.op.family == "elementwise" and node.dtype.is_inexact
    return inexact and node.op not in _EXACT


def _by_value(sights: Sights) -> dict[Node, set[tuple[int, Place]]]:
    """Writers and places of each value."""
    found: dict[Node, set[tuple[int, Place]]] = {}
    for value, writer, where in sights:
        found.setdefault(value, set()).add((writer, where))
    return found


# --- places --------------------------------------------------------------------------------------


def _at_rest(sight: Sight, node: Node, number: int) -> Sight:
    """A sight from outside its kernel, in axes of what was stored: loops of one size are one."""
    value, writer, where = sight
    if writer != number or where is None:
        return sight
    return value, writer, _within(value, node) if where == _FLAT else where


def _moved(where: Place, value: Node, node: Node, number: int) -> Place:
    """The place of a value seen through one more op, of which it is in source `number`."""
    op = node.op
    if where is None or op.family == "elementwise" or op in IDENTITY:
        return where
    if op is RESHAPE and where == _FLAT:
        return _FLAT
    source = node.src[number]
    here = _along(node, source, number)
    if where == _FLAT:
        where = _within(value, source)
    assert isinstance(where, tuple)
    moved = [_put(axis, here) for axis in where] + (_guards(node, here) if op is PAD else [])
    return tuple([axis for axis in moved if axis[:1] != ("inside",) or axis[2] != _FIRST])


def _guards(node: Node, here: Sequence[Axis]) -> list[Axis]:
    """Where a pad looks at its source at all: what is computed there is computed under a guard.

    So it is another loop than one without, even of a number that is the same all along the axis.
    """
    padded = [before != 0 or after != 0 for before, after in pairs(node)]
    sizes = zip(node.src[0].shape, here, padded, strict=True)
    return [("inside", n, axis) for n, axis, some in sizes if some]


def _within(value: Node, frame: Node) -> tuple[Axis, ...]:
    """The place of a value in a reshape of it, axis by axis."""
    place = same_axes(value.shape, frame.shape)
    if place is not None:
        return tuple([("axis", place[i]) if i in place else _FIRST for i in range(value.ndim)])
    every = tuple([("axis", i) for i in range(frame.ndim)])
    return tuple([("part", i, value.shape, frame.shape, *every) for i in range(value.ndim)])


def _along(node: Node, source: Node, number: int) -> list[Axis]:
    """For each axis of a source where it is read, in the axes of the node."""
    same: list[Axis] = [("axis", i) if n != 1 else _FIRST for i, n in enumerate(node.shape)]
    if node.op is GATHER and number == 1:
        return same
    moves = _MOVES.get(node.op)
    if moves is None:
        return [("somewhere", node, number, i) for i in range(source.ndim)]
    return moves(node, source, same)


def _expanded(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    return [_FIRST if n == 1 else a for n, a in zip(source.shape, same, strict=True)]


def _permuted(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    return [same[node.arg.index(i)] for i in range(source.ndim)]


def _reshaped(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    place = same_axes(source.shape, node.shape)
    if place is not None:
        return [same[place[i]] if i in place else _FIRST for i in range(source.ndim)]
    return [("part", i, source.shape, node.shape, *same) for i in range(source.ndim)]


def _cut_or_padded(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    found: list[Axis] = []
    for axis, (start, _) in zip(same, pairs(node), strict=True):
        if isinstance(start, int):
            found.append(_shifted(axis, start if node.op is SHRINK else -start))
        else:
            found.append(("from", node.op, start, axis))
    return found


def _flipped(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    return [("back", a) if i in node.arg else a for i, a in enumerate(same)]


def _windowed(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    axis, _, stride, dilation = node.arg
    slides: Axis = ("window", stride, dilation, same[axis], same[-1])
    return [slides if i == axis else same[i] for i in range(source.ndim)]


def _folded(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    """The loop of one element: lowering names it by the axes in use there."""
    return [("all", node, i, *same) if i in node.arg[1] else a for i, a in enumerate(same)]


def _gathered(node: Node, source: Node, same: list[Axis]) -> list[Axis]:
    picked: Axis = ("picked", node.src[1], *same)
    return [picked if i == node.arg else a for i, a in enumerate(same)]


_MOVES: dict[Op, Callable[[Node, Node, list[Axis]], list[Axis]]] = {
    EXPAND: _expanded, PERMUTE: _permuted, RESHAPE: _reshaped, PAD: _cut_or_padded,
    SHRINK: _cut_or_padded, FLIP: _flipped, WINDOW: _windowed, REDUCE: _folded, GATHER: _gathered,
}  # fmt: skip


def _shifted(axis: object, steps: object) -> Axis:
    """A place so many steps further on."""
    assert isinstance(axis, tuple) and isinstance(steps, int)
    if axis[:1] == ("plus",):
        return _shifted(axis[2], axis[1] + steps)
    return ("plus", steps, axis) if steps and axis != _FIRST else axis


def _put(axis: object, here: Sequence[Axis]) -> Axis:
    """A place with those of the axes it is written in."""
    assert isinstance(axis, tuple)
    if axis[:1] == ("axis",):
        return here[axis[1]]
    if axis[:1] == ("part",):
        return (*axis[:4], *[_put(a, here) for a in axis[4:]])
    if axis[:1] == ("all",):
        return (*axis[:3], *[_outer(_put(a, here)) for a in axis[3:]])
    found = tuple([_put(a, here) if isinstance(a, tuple) else a for a in axis])
    return _shifted(found[2], found[1]) if found[:1] == ("plus",) else found


def _outer(axis: Axis) -> Axis:
    """An axis in use around a loop, without those around itself: loops in loops stay few."""
    return axis if axis == _FIRST or axis[0] in ("axis", "of") else ("of", *axis[:2])
