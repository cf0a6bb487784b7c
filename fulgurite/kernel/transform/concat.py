"""Concatenation: a map that chooses by place between loads is one copy for each of its parts.

In: an `IndexKernel`. Out: its `Piece`s, or None. A choice that asks where an axis is (`where` of
an index below a number, or of conditions of loads) is decided on either side of a place: so axes
are cut there (index-set splitting), and a piece is a box of them in which nothing is left to ask.
Each is a copy of strided rows of runs that lie together on both sides; a few may be gathered. All
of it is numbers: how many parts there are, and of which params, is no part of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from ...core.dtype import decode
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Source
from ...core.ops.elementwise import CAST, LT, WHERE
from ...core.ops.index import INDEX, LOAD, STORE, VALID
from ...core.ops.leaf import CONST
from ...graph.ir.affine import Affine, Atom, Condition, bounds
from ...graph.ir.lower import IndexKernel

Box: TypeAlias = "tuple[tuple[int, int], ...]"  # from and to, of each axis


@dataclass(frozen=True, slots=True)
class ConcatForm:
    """What the text of such copies has room for, and what they are worth it for."""

    pieces: int = 1024  # that a table has, at most
    many: int = 16  # pieces whose text as lanes of a relayout would take long to compile
    few_elements: int = 64  # of each of so many: no time is lost by copying them one by one
    row_axes: int = 2  # of a piece, after neighbours are merged
    least_run: int = 8  # elements: many shorter ones are lanes of a relayout
    short_share: int = 16  # part of all elements that may be in shorter ones
    apart_share: int = 4  # part of all elements that may lie apart, and be copied one by one
    vector_bytes: int = 64  # that are copied at once
    least_vector_bytes: int = 8  # of a run that is shorter


FORM = ConcatForm()


class Row(NamedTuple):
    """An axis of rows: how many, and how far they are apart."""

    steps: int
    source_step: int
    result_step: int


class Piece(NamedTuple):
    """A copy of runs of elements."""

    param: int
    source: int  # where it begins
    result: int
    rows: tuple[Row, ...]  # outermost first
    run: int
    step: int  # between elements of a run, where they come from

    @property
    def elements(self) -> int:
        """How many are copied."""
        return self.run * prod([row.steps for row in self.rows])


class _Undecided(Exception):
    """Something is left to ask."""


def find_concat(kernel: IndexKernel) -> list[Piece] | None:
    """The copies that a kernel is, if it is one of several."""
    (store, *others) = kernel.body.src
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    if others or len(sizes) < len(kernel.axes) or not all(sizes) or not _may_be(store):
        return None
    try:
        loads = _split(store.src[0], tuple([(0, n) for n in sizes]))
        pieces = [_piece(store, box, load) for box, load in loads]
    except _Undecided:
        return None
    return pieces if _pays(pieces) else None


def _pays(pieces: Sequence[Piece]) -> bool:
    """True if there are several, and few elements are copied one by one, or few at all."""
    whole = sum([p.elements for p in pieces])
    if FORM.many < len(pieces) <= FORM.pieces and whole <= FORM.few_elements * len(pieces):
        return True
    apart = FORM.apart_share * sum([p.elements for p in pieces if p.step != 1])
    short = FORM.short_share * sum([p.elements for p in pieces if p.run < FORM.least_run])
    return 1 < len(pieces) <= FORM.pieces and apart <= whole and short <= whole


def _may_be(store: Node) -> bool:
    """True if a result is set, each element once, to what is chosen."""
    return (
        store.op is STORE
        and store.arg[2] == "set"
        and len(store.src) == 1
        and (store.src[0].op is WHERE)
    )


def _split(value: Node, box: Box) -> list[tuple[Box, Node]]:
    """The loads that a value is, each in its part of a box."""
    found: list[tuple[Box, Node]] = []
    waiting = [(value, box)]
    while waiting:
        node, box = waiting.pop()
        if node.op is LOAD and not node.src and all(_holds(c, box) for c in node.arg[2]):
            found.append((box, node))
        elif node.op is WHERE:
            then, otherwise = _sides(_conditions(node.src[0]), box)
            waiting += [(node.src[1], part) for part in then]
            waiting += [(node.src[2], part) for part in otherwise]
        else:
            raise _Undecided
        if len(found) + len(waiting) > FORM.pieces:
            raise _Undecided
    return found


def _conditions(node: Node) -> Sequence[Condition]:
    """What a choice asks, as conditions on indices."""
    if node.op is VALID and not node.src:
        return tuple(node.arg)
    if node.op is LT and node.src[1].op is CONST:
        at, limit = node.src[0], decode(node.src[1].arg[0], node.src[1].dtype)
        at = at.src[0] if at.op is CAST else at
        if at.op is INDEX and not at.src and isinstance(limit, int):
            return (((at.arg), limit),)
    raise _Undecided


def _holds(condition: Condition, box: Box) -> bool:
    low, high = _bounds(condition[0], box)
    return low >= 0 and high < condition[1]


def _bounds(index: Affine, box: Box) -> tuple[int, int]:
    def bound(atom: int | Source) -> tuple[int, int]:
        if isinstance(atom, Source):
            raise _Undecided
        return box[atom][0], box[atom][1] - 1

    return bounds(index, bound)


def _sides(conditions: Sequence[Condition], box: Box) -> tuple[list[Box], list[Box]]:
    """The parts of a box where conditions hold, and where one does not."""
    inside, outside = [box], list[Box]()
    for (start, terms), size in conditions:
        axis, step = _outermost(terms, box)
        if start % step or size % step:
            raise _Undecided
        cuts = [(a, b) for part in inside for a, b in [_cut(part, axis, -start // step)]]
        outside += [below for below, _ in cuts if below is not None]
        cuts = [_cut(above, axis, (size - start) // step) for _, above in cuts if above is not None]
        outside += [above for _, above in cuts if above is not None]
        inside = [below for below, _ in cuts if below is not None]
    return inside, outside


def _outermost(terms: Sequence[tuple[Atom, int]], box: Box) -> tuple[int, int]:
    """The axis that an index goes furthest along, and its step: others stay within one step."""
    if not terms:
        raise _Undecided
    axis, step = max(terms, key=lambda term: term[1])
    low, high = _bounds((0, tuple([term for term in terms if term[0] != axis])), box)
    if not isinstance(axis, int) or low < 0 or high >= step:
        raise _Undecided
    return axis, step


def _cut(box: Box, axis: int, place: int) -> tuple[Box | None, Box | None]:
    """The parts of a box before and from a place along an axis."""
    low, high = box[axis]
    place = min(max(place, low), high)
    sides = (low, place), (place, high)
    below, above = [(*box[:axis], side, *box[axis + 1 :]) for side in sides]
    return below if place > low else None, above if place < high else None


def _piece(store: Node, box: Box, load: Node) -> Piece:
    """The copy of a box."""
    source, result = load.arg[1], store.arg[1]
    steps, goals = dict(source[1]), dict(result[1])
    if any(isinstance(atom, int) is False for atom in (*steps, *goals)):
        raise _Undecided
    begins = [index[0] + sum([step * box[a][0] for a, step in index[1] if isinstance(a, int)])
              for index in (source, result)]  # fmt: skip
    rows = [Row(high - low, steps.get(a, 0), goals.get(a, 0)) for a, (low, high) in enumerate(box)]
    rows = _merged([r for r in rows if r.steps > 1])
    *rows, inner = rows if rows and rows[-1].result_step == 1 else [*rows, Row(1, 1, 1)]
    if len(rows) > FORM.row_axes:
        raise _Undecided
    return Piece(load.arg[0], begins[0], begins[1], tuple(rows), inner.steps, inner.source_step)


def _merged(rows: Sequence[Row]) -> list[Row]:
    """Axes, those that go on where the next one ends as one."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda r: -r.result_step):
        last = found[-1] if found else None
        whole = row.steps * row.source_step, row.steps * row.result_step
        if last is not None and last[1:] == whole:
            found[-1] = Row(last.steps * row.steps, row.source_step, row.result_step)
        else:
            found.append(row)
    return found
