"""Relayout: maps that read memory at other places than they write it, with places as numbers.

In: an `IndexKernel` without reductions. Out: a `Relayout`: the same nodes over a fixed number of
row axes and one vector axis, or None. Paddings, crops, slices, phases of a stride put together and
sums of such are these maps. Every index has a step for each axis, 0 where it has none, and every
load with conditions has as many: missing ones ask nothing. So the text of such a map follows from
what it computes and from how lanes lie in memory, and new sizes need no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from math import prod

from ...core.lazy_dataclass import dataclass
from ...core.node import Node, make, toposort
from ...core.ops.elementwise import ADD, MUL
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import CONST, SINK
from ...graph.ir.affine import Affine, Atom, Condition, add, axes_of, axis, number, sources_of
from ...graph.ir.bodies import argument, transformed
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices, is_scatter
from .merge_axes import Line
from .tables import VectorTable
from .vector_axis import transpose_axis


@dataclass(frozen=True, slots=True)
class RelayoutForm:
    """How many axes and conditions such maps have in their text, and what they are worth it for."""

    row_axes: tuple[int, ...] = (4, 8)  # as many as fit
    row_conditions: tuple[int, ...] = (2, 6)  # of a load on rows alone: as many as fit
    interleaves: tuple[int, ...] = (1, 2, 3, 4)  # steps of lanes that stores interleave
    min_vectors: int = 4  # of a plain row: what its indices come to costs as much as several
    min_interleaved_lanes: int = 4
    small_results: int = 1 << 16  # so few that lanes may be few, or lie anywhere
    divided_rows: int = 2  # axes of rows that may be divided
    unit_elements: int = 1024  # of rows that a task has, at least
    whole_vectors: int = 4  # in a row: of fewer a branch costs more than masks
    endless: int = 1 << 30  # more steps than any index has that asks nothing


FORM = RelayoutForm()
_BARE = (LOAD, STORE, CONST, ADD, MUL)  # of maps that do little but move memory

Place = tuple[int, int, object]


@dataclass(frozen=True, slots=True)
class Relayout:
    """A map over rows and lanes."""

    order: tuple[Node, ...]  # sources first
    free: dict[Node, frozenset[int]]
    stores: tuple[Node, ...]
    rows: Line
    lane: int
    lanes: int  # how many
    literal: bool  # does the text know the steps of lanes?
    divided: tuple[int, int] | None  # what is added to lanes, and the divisor, if indices have it
    guards: tuple[Condition, ...]  # which rows there are


class _Map:
    """A kernel as a map: its sizes, nodes and stores."""

    def __init__(self, kernel: IndexKernel) -> None:
        self.kernel, self.stores = kernel, kernel.body.src
        self.sizes = [n for n in kernel.axes if isinstance(n, int)]
        self.order = [n for n in toposort([kernel.body]) if n.op is not SINK]

    @cached_property
    def free(self) -> dict[Node, frozenset[int]]:
        """The axes that each node varies along."""
        return free_axes(self.order)

    @property
    def has_fixed_axes(self) -> bool:
        """True if all sizes are known, and there is room for the axes."""
        fixed = len(self.sizes) == len(self.kernel.axes) and all(self.sizes)
        return fixed and len(self.sizes) <= FORM.row_axes[-1] + 1

    @property
    def is_pure(self) -> bool:
        """True if nothing is reduced, scattered, checked or read at places that values decide."""
        if any(n.op in (FOLD, RUN, ORDER, GUARD) or is_scatter(n) for n in self.order):
            return False
        return not any(sources_of(index) for n in self.order for index in indices(n))

    @property
    def is_plain(self) -> bool:
        """True if nothing is asked of an index: loops of other sizes have texts as simple."""
        return not any(n.op is VALID or (n.op is LOAD and n.arg[2]) for n in self.order)

    def has_worthy_lanes(self, lane: int, table: VectorTable, loose: bool) -> bool:
        """True if lanes fill vectors and run along memory, or there are too few results to care."""
        if self.sizes[lane] > FORM.endless:
            return False
        if loose and prod(self.sizes) <= FORM.small_results:
            return True
        least = FORM.min_vectors * table.lanes if self.is_plain else table.lanes // 2
        if self.sizes[lane] < (least if len(self.stores) == 1 else FORM.min_interleaved_lanes):
            return False
        return transpose_axis(self.order, self.free, self.sizes, lane, table) is None

    def is_literal(self, lane: int) -> bool:
        """True if the text should know steps of lanes: they are 1, or there are many results."""
        loads = [n for n in self.order if n.op is LOAD]
        if len(loads) != 1 or len(self.stores) != 1 or prod(self.sizes) > FORM.small_results:
            return True
        steps = dict(loads[0].arg[1][1])
        return lane not in self.free[loads[0]] or steps.get(lane) == 1


def find_relayout(kernel: IndexKernel, table: VectorTable, loose: bool = False) -> Relayout | None:
    """A kernel as such a map, if it is one; `loose`: lanes may be few or lie anywhere where there
    are few results, and indices may divide them."""
    m = _Map(kernel)
    if not m.has_fixed_axes or not m.is_pure:
        return None
    lane, every = _lane(m.stores), frozenset(range(len(m.sizes)))
    free = m.free
    if lane is None or any(free[s] != every for s in m.stores) or not _moves(m.order, free):
        return None
    divisions = _divisions(m.order)
    if divisions is None or (lane in divisions and not loose):
        return None
    divided = divisions.pop(lane, None)
    guards: list[Condition] = []
    if divisions:
        kernel, guards = _split(kernel, divisions)
        m = _Map(kernel)
    if len(guards) > FORM.divided_rows or not m.has_fixed_axes:
        return None
    return _fixed(m, lane, divided, guards) if m.has_worthy_lanes(lane, table, loose) else None


def _fixed(
    m: _Map, lane: int, divided: tuple[int, int] | None, guards: Sequence[Condition]
) -> Relayout | None:
    """The map with fixed numbers of axes and conditions, if it has no more."""
    sizes, free, steps = m.sizes, m.free, dict(m.stores[0].arg[1][1])
    axes = sorted({*range(len(sizes))} - {lane}, key=lambda a: -steps.get(a, 0))
    many = next(n for n in FORM.row_axes if len(axes) <= n)
    unused = range(len(sizes), len(sizes) + many - len(axes))
    rows = (*unused, *axes)
    lengths = (*[1] * len(unused), *[sizes[a] for a in axes])
    literal = divided is None and m.is_literal(lane)
    form = _FixedForm(rows, lane, divided, all(n.op in _BARE for n in m.order), literal)
    if not all(form.fits(n) for n in m.order):
        return None
    made = form.made(m.order, free)
    return Relayout(
        tuple(made.values()), {made[n]: free[n] for n in m.order},
        tuple([made[s] for s in m.stores]), Line(rows, lengths, frozenset(rows[-1:])), lane,
        sizes[lane], literal, divided, form.guarded(guards),
    )  # fmt: skip


def _divisions(order: Sequence[Node]) -> dict[int, tuple[int, int]] | None:
    """How each axis that is divided is; None if one is in several ways, or with others."""
    found: dict[int, tuple[int, int]] = {}
    for node in order:
        for index in indices(node):
            for atom, _ in index[1]:
                if not isinstance(atom, tuple):
                    continue
                _, (start, terms), by = atom
                if start < 0 or len(terms) != 1 or terms[0][1] != 1:
                    return None
                if not isinstance(terms[0][0], int):
                    return None
                if found.setdefault(terms[0][0], (start, by)) != (start, by):
                    return None
    return found


def _split(
    kernel: IndexKernel, divisions: Mapping[int, tuple[int, int]]
) -> tuple[IndexKernel, list[Condition]]:
    """The kernel with quotients and remainders of axes as axes, and which of their steps count."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    rests = {axis: len(sizes) + place for place, axis in enumerate(divisions)}
    guards: list[Condition] = []
    for a, (start, by) in divisions.items():
        guards.append(((-start, ((a, by), (rests[a], 1))), sizes[a]))
        sizes[a] = -(-(start + sizes[a]) // by)
        sizes.append(by)

    def new(atom: Atom) -> Affine:
        if isinstance(atom, tuple) and (inner := atom[1][1][0][0]) in rests:
            assert isinstance(inner, int)
            return axis(inner if atom[0] == "//" else rests[inner])
        if isinstance(atom, int) and atom in rests:
            start, by = divisions[atom]
            return -start, ((atom, by), (rests[atom], 1))
        return axis(atom)

    def moved(index: Affine) -> Affine:
        return reduce(lambda out, term: add(out, new(term[0]), term[1]), index[1], number(index[0]))

    def kept(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([n for a in axes for n in ((a, rests[a]) if a in rests else (a,))])

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        return make(node.op, node.dtype, sources, argument(node, moved, kept))

    (body,) = transformed([kernel.body], change)
    return IndexKernel(tuple(sizes), body, False), guards


def place_of(store: Node, turn: int = 0) -> Place:
    """The place of a STORE, or of one that many steps after it: param, offset, what is added."""
    number, (offset, terms) = store.arg[:2]
    return number, offset + turn, terms


def _lane(stores: Sequence[Node]) -> int | None:
    """The axis along which all stores have neighbours, alone or interleaved."""
    found = {
        (a, step)
        for a, step in stores[0].arg[1][1]
        if step in FORM.interleaves and isinstance(a, int)
    }
    if not found:
        return None
    lane, step = min(found, key=lambda term: term[1])
    places = {place_of(s) for s in stores}
    for store in stores:
        number, (offset, terms) = store.arg[:2]
        first = [t for t in range(step) if (number, offset - t, terms) in places]
        interleaved = [place_of(store, t - max(first)) in places for t in range(step)]
        if dict(terms).get(lane) != step or not all(interleaved):
            return None
        if any(isinstance(a, tuple) for a, _ in terms):
            return None
    return lane if len(places) == len(stores) else None


def _moves(order: Sequence[Node], free: dict[Node, frozenset[int]]) -> bool:
    """True if a load has conditions, or all axes with steps of its own, or there is little else."""
    if all(n.op in _BARE for n in order) and any(free[n] for n in order if n.op is LOAD):
        return len(free[order[-1]]) > 1
    stored = [n.arg[1][1] for n in order if n.op is STORE]
    for node in order:
        if node.op is not LOAD or not free[node]:
            continue
        if node.arg[2] or node.arg[1][0]:
            return True
        if node.arg[1][1] not in stored and free[node] == axes_of((0, stored[0])):
            return True
    return False


class _FixedForm:
    """Indices with a step for each axis, and loads with as many conditions as others."""

    def __init__(
        self, rows: Sequence[int], lane: int, divided: tuple[int, int] | None, bare: bool,
        literal: bool,
    ) -> None:  # fmt: skip
        self.rows, self.lane, self.divided, self.literal = rows, lane, divided, literal
        self.bare = bare  # is memory only moved? Then every load asks

    def fits(self, node: Node) -> bool:
        """True if a load has no more conditions than there is room for."""
        conditions = node.arg[2] if node.op is LOAD else node.arg if node.op is VALID else ()
        return (
            sum([self.lane not in axes_of(index) for index, _ in conditions])
            <= FORM.row_conditions[-1]
        )

    def made(self, order: Sequence[Node], free: dict[Node, frozenset[int]]) -> dict[Node, Node]:
        """The nodes, rebuilt."""
        done: dict[Node, Node] = {}
        for node in order:
            arg = node.arg
            if free[node]:
                index = self.undivided if node.op is STORE else self.index
                arg = argument(node, index, lambda names: names)
                if node.op is LOAD and not self.literal and self.divided is None:
                    arg = (arg[0], self.with_lanes(arg[1]), arg[2])
                lanes = self.bare and self.lane in free[node]
                if node.op is LOAD and (arg[2] or lanes):
                    arg = (*arg[:2], self.asked(arg[2], lanes))
                elif node.op is VALID:
                    arg = self.asked(arg)
            done[node] = make(node.op, node.dtype, tuple([done[s] for s in node.src]), arg)
        return done

    def index(self, index: Affine) -> Affine:
        """The same index with all axes of rows in their order, then lanes, if it has any."""
        if self.divided is None or self.lane not in axes_of(index):
            return self.undivided(index)
        steps: dict[Atom, int] = dict(index[1])
        start, by = self.divided
        inner: Affine = (start, ((self.lane, 1),))
        atoms: tuple[Atom, ...] = (*self.rows, self.lane, ("//", inner, by), ("%", inner, by))
        return index[0], tuple([(atom, steps.get(atom, 0)) for atom in atoms])

    def undivided(self, index: Affine) -> Affine:
        """The same for an index without divisions."""
        steps: dict[Atom, int] = dict(index[1])
        along = [(self.lane, steps[self.lane])] if self.lane in steps else []
        return index[0], (*[(a, steps.get(a, 0)) for a in self.rows], *along)

    def with_lanes(self, index: Affine) -> Affine:
        """An index that has a step of lanes, if only 0."""
        has = any(atom == self.lane for atom, _ in index[1] if isinstance(atom, int))
        return index if has else (index[0], (*index[1], (self.lane, 0)))

    def guarded(self, guards: Sequence[Condition]) -> tuple[Condition, ...]:
        """Which rows there are, where that is asked."""
        if not guards and not self.bare:
            return ()
        nothing = self.undivided((0, ())), FORM.endless
        found = [(self.undivided(index), size) for index, size in guards]
        return (*[nothing] * (FORM.divided_rows - len(found)), *found)

    def asked(
        self, conditions: Sequence[Condition], lanes: bool = False
    ) -> tuple[Condition, ...]:  # fmt: skip
        """Conditions on rows alone, as many as others have, then those on lanes: `lanes`, one at
        least."""
        along = [c for c in conditions if self.lane in axes_of(c[0])]
        alone = [c for c in conditions if c not in along]
        many = next(n for n in FORM.row_conditions if len(alone) <= n)
        nothing = self.index((0, ())), FORM.endless
        if lanes and not along:
            along = [(self.index((0, ((self.lane, 1),))), FORM.endless)]
        return (*[nothing] * (many - len(alone)), *alone, *along)
