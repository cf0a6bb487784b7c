"""Maps that read memory at other places than they write it, with all of the places as numbers.

In: an `IndexKernel` without folds. Out: a `Relaid`: the same nodes over a fixed number of rows'
axes and one axis of lanes, or None. Paddings, crops, slices, phases of a stride put together and
sums of such are these maps. Every index has a step for each axis, 0 where it has none, and every
load that asks conditions asks as many: missing ones ask nothing. So the text of such a map follows
from what it computes and from how lanes lie in memory, and new sizes need no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...core.node import Node, make, toposort
from ...core.ops.elementwise import ADD, MUL
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import CONST, SINK
from ...graph.ir.affine import Affine, Atom, Condition, add, axes_of, axis, number, sources_of
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices, is_scatter
from ..contract.analysis import Line
from .merge_axes import argument
from .vector_axis import LANES, across

ROWS = (4, 8)  # axes of rows: as many as fit
ASKED = (2, 6)  # conditions of a load on rows alone: as many as fit
TURNS = (1, 2, 3, 4)  # steps of lanes that are written as whole rows, by stores that take turns
WHOLE = LANES // 2  # lanes that fill enough of a vector
SHORT = 4  # the same where stores take turns
SMALL = 1 << 16  # results so few that lanes may be few, or lie anywhere
GUARDS = 2  # axes of rows that may be divided
ENDLESS = 1 << 30  # more steps than any index has that asks nothing

_BARE = (LOAD, STORE, CONST, ADD, MUL)  # of maps that do little but move memory

Where = tuple[int, int, object]


@dataclass(frozen=True, slots=True)
class Relaid:
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


def relaid(kernel: IndexKernel, loose: bool = False) -> Relaid | None:
    """A kernel as such a map, if it is one; `loose`: lanes may be few or lie anywhere where there
    are few results, and indices may divide them."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    if len(sizes) != len(kernel.axes) or not all(sizes) or len(sizes) > ROWS[-1] + 1:
        return None
    if any(n.op in (FOLD, RUN, ORDER, GUARD) or is_scatter(n) for n in order):
        return None
    if any(sources_of(index) for n in order for index in indices(n)):
        return None
    free, stores = free_axes(order), kernel.body.src
    lane = _lane(stores)
    everything = frozenset(range(len(sizes)))
    if lane is None or any(free[s] != everything for s in stores) or not _moves(order, free):
        return None
    divisions = _divisions(order)
    if divisions is None or (lane in divisions and not loose):
        return None
    guards: list[Condition] = []
    if divisions.keys() - {lane}:
        kernel, guards = _split(kernel, {a: d for a, d in divisions.items() if a != lane})
        sizes = [n for n in kernel.axes if isinstance(n, int)]
        order = [n for n in toposort([kernel.body]) if n.op is not SINK]
        free, stores, everything = free_axes(order), kernel.body.src, frozenset(range(len(sizes)))
        if len(guards) > GUARDS or len(sizes) > ROWS[-1] + 1:
            return None
    if sizes[lane] > ENDLESS:
        return None
    anyhow = loose and prod(sizes) <= SMALL
    least = WHOLE if len(stores) == 1 else SHORT
    if not anyhow and (sizes[lane] < least or across(order, free, sizes, lane)):
        return None
    steps = dict(stores[0].arg[1][1])
    axes = sorted(everything - {lane}, key=lambda a: -steps.get(a, 0))
    many = next(n for n in ROWS if len(axes) <= n)
    unused = range(len(sizes), len(sizes) + many - len(axes))
    rows = (*unused, *axes)
    lengths = (*[1] * len(unused), *[sizes[a] for a in axes])
    bare = all(n.op in _BARE for n in order)
    loads = [n for n in order if n.op is LOAD]
    anywhere = len(loads) == len(stores) == 1 and lane in free[loads[0]] and prod(sizes) <= SMALL
    literal = not anywhere or dict(loads[0].arg[1][1]).get(lane) == 1
    literal = literal and lane not in divisions
    work = _Steady(rows, lane, divisions.get(lane), bare, literal)
    if not all(work.fits(n) for n in order):
        return None
    made = work.made(order, free)
    return Relaid(
        tuple([made[n] for n in order]), {made[n]: free[n] for n in order},
        tuple([made[s] for s in stores]), Line(rows, lengths, frozenset(rows[-1:])), lane,
        sizes[lane], literal, divisions.get(lane), work.guarded(guards),
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

    def moved(index: Affine) -> Affine:
        out = number(index[0])
        for atom, step in index[1]:
            if isinstance(atom, tuple) and (inner := atom[1][1][0][0]) in rests:
                assert isinstance(inner, int)
                out = add(out, axis(inner if atom[0] == "//" else rests[inner]), step)
            elif isinstance(atom, int) and atom in rests:
                start, by = divisions[atom]
                out = add(out, (-start, ((atom, by), (rests[atom], 1))), step)
            else:
                out = add(out, axis(atom), step)
        return out

    def kept(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([n for a in axes for n in ((a, rests[a]) if a in rests else (a,))])

    done: dict[Node, Node] = {}
    for node in toposort([kernel.body]):
        arg = argument(node, moved, kept)
        done[node] = make(node.op, node.dtype, tuple([done[s] for s in node.src]), arg)
    return IndexKernel(tuple(sizes), done[kernel.body], False), guards


def where(store: Node, turn: int = 0) -> Where:
    """The place of a STORE, or of one that many turns after it: param, offset, what is added."""
    number, (offset, terms) = store.arg[:2]
    return number, offset + turn, terms


def _lane(stores: Sequence[Node]) -> int | None:
    """The axis along which all stores have neighbours, alone or in turns."""
    found = {(a, step) for a, step in stores[0].arg[1][1] if step in TURNS and isinstance(a, int)}
    if not found:
        return None
    lane, step = min(found, key=lambda term: term[1])
    places = {where(s) for s in stores}
    for store in stores:
        number, (offset, terms) = store.arg[:2]
        first = [t for t in range(step) if (number, offset - t, terms) in places]
        turns = [where(store, t - max(first)) in places for t in range(step)]
        if dict(terms).get(lane) != step or not all(turns):
            return None
        if any(isinstance(a, tuple) for a, _ in terms):
            return None
    return lane if len(places) == len(stores) else None


def _moves(order: Sequence[Node], free: dict[Node, frozenset[int]]) -> bool:
    """Is there a load that asks something, or of all axes with steps of its own, or little else?"""
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


class _Steady:
    """Indices with a step for each axis, and loads with as many conditions as others."""

    def __init__(
        self, rows: Sequence[int], lane: int, divided: tuple[int, int] | None, bare: bool,
        literal: bool,
    ) -> None:  # fmt: skip
        self.rows, self.lane, self.divided, self.literal = rows, lane, divided, literal
        self.bare = bare  # is memory only moved? Then every load asks

    def fits(self, node: Node) -> bool:
        """Has a load no more conditions than there is room for?"""
        conditions = node.arg[2] if node.op is LOAD else node.arg if node.op is VALID else ()
        return sum([self.lane not in axes_of(index) for index, _ in conditions]) <= ASKED[-1]

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
        nothing = self.undivided((0, ())), ENDLESS
        found = [(self.undivided(index), size) for index, size in guards]
        return (*[nothing] * (GUARDS - len(found)), *found)

    def asked(
        self, conditions: Sequence[Condition], lanes: bool = False
    ) -> tuple[Condition, ...]:  # fmt: skip
        """Conditions on rows alone, as many as others have, then those on lanes: `lanes`, one at
        least."""
        along = [c for c in conditions if self.lane in axes_of(c[0])]
        alone = [c for c in conditions if c not in along]
        many = next(n for n in ASKED if len(alone) <= n)
        nothing = self.index((0, ())), ENDLESS
        if lanes and not along:
            along = [(self.index((0, ((self.lane, 1),))), ENDLESS)]
        return (*[nothing] * (many - len(alone)), *alone, *along)
