"""Depthwise convolution, channels last: sums over a window whose lanes are channels.

In: an `IndexKernel`. Out: a `Depthwise`: its nodes, the one sum of products and its few taps, the
axis of lanes and the rows of places, or None. One factor of the products, the weights, is the same
at all places; the other is read at places that differ from tap to tap by a number. So for a vector
of channels all weights stay in registers while places go by, and a tap is one multiply-add with
memory. Any such sum is one: of windows, dilated or strided ones, with anything computed before the
product and after the sum. What is around an image may be in memory, or zeros that are read nowhere:
then a load asks conditions (`Edge`), each on one axis of the places and one of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ...core.dtype import float32
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, toposort
from ...core.ops.elementwise import MUL
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import SINK
from ...graph.ir.affine import Affine, sources_of
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices, is_scatter
from ..transform.merge_axes import Line


@dataclass(frozen=True, slots=True)
class DepthwiseForm:
    """What such sums are worth it for."""

    most_taps: int = 49  # whose weights are in registers, or in a cache next to them
    least_lanes: int = 8  # channels
    least_rows: int = 4  # places, for which weights are read once


FORM = DepthwiseForm()


class Edge(NamedTuple):
    """Memory is read where 0 <= start + step * place + move * tap < below; elsewhere it is 0."""

    start: int
    axis: int  # of the places; -1: of none
    step: int
    tap: int  # an axis of the window; -1: of none
    move: int
    below: int

    def inside(self, taps: Sequence[int], places: int) -> tuple[int, int]:
        """The first place and the end of those at which all taps are read."""
        moves = [self.start + self.move * tap for tap in taps]
        first = max([-(move // self.step) for move in moves])
        last = min([(self.below - 1 - move) // self.step for move in moves])
        return max(0, first), min(places, last + 1)


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Sums of products over taps, for places and channels."""

    order: tuple[Node, ...]  # sources first
    free: dict[Node, frozenset[int]]
    fold: Node
    stores: tuple[Node, ...]
    rows: Line
    lane: int
    lanes: int  # how many
    taps: tuple[dict[int, int], ...]  # where each is along the folded axes
    groups: frozenset[int]  # axes of the rows, outermost, that weights have too

    @property
    def places(self) -> int:
        """The rows for which a vector of weights is the same."""
        sizes = zip(self.rows.axes, self.rows.sizes, strict=True)
        return prod([size for axis, size in sizes if axis not in self.groups])

    @property
    def channels(self) -> frozenset[int]:
        """The axes that weights may have."""
        return self.folded | self.groups | {self.lane}

    @property
    def folded(self) -> frozenset[int]:
        """The axes of the window."""
        return frozenset(self.fold.arg[1])

    @property
    def inside(self) -> list[Node]:
        """The nodes under the sum, sources first."""
        below = set(toposort([self.fold.src[0]]))
        return [n for n in self.order if n in below]

    def offset(self, load: Node, tap: dict[int, int]) -> int:
        """How far a tap is from the first in the memory of a load."""
        return sum([step * tap.get(atom, 0) for atom, step in _steps(load.arg[1])])

    def edges(self, load: Node) -> list[Edge]:
        """Where an image ends for a load under the sum."""
        found = []
        for (start, terms), below in load.arg[2]:
            steps = dict(terms)
            axes = [
                next((a for a in steps if a in line), -1) for line in (self.rows.axes, self.folded)
            ]
            own, move = [steps.get(a, 0) for a in axes]
            found.append(Edge(start, axes[0], own, axes[1], move, below))
        return found

    def without_taps(self, index: Affine) -> Affine:
        """An index at the first tap."""
        return index[0], tuple([(a, step) for a, step in index[1] if a not in self.folded])


def find_depthwise(kernel: IndexKernel) -> Depthwise | None:
    """A kernel as such sums, if it is that, and of a size that is worth it."""
    sizes = [n for n in kernel.axes if isinstance(n, int) and n]
    if len(sizes) != len(kernel.axes):
        return None
    order = tuple([n for n in toposort([kernel.body]) if n.op is not SINK])
    fold = _sum_of_products(order)
    lane = None if fold is None else _lane(kernel.body.src, order)
    if fold is None or lane is None or not _is_plain(order, lane):
        return None
    steps, free = dict(_steps(kernel.body.src[0].arg[1])), free_axes(order)
    groups = _groups(fold, free, lane)
    rows = sorted(steps.keys() - {lane}, key=lambda axis: (axis not in groups, -steps[axis]))
    line = Line(tuple(rows), tuple([sizes[a] for a in rows]), frozenset(rows[-1:]))
    taps = _taps(fold, sizes)
    stores = tuple(kernel.body.src)
    found = Depthwise(order, free, fold, stores, line, lane, sizes[lane], taps, groups)
    return found if _has_weights(found) and _has_edges(found) and _is_worth_it(found) else None


def _groups(fold: Node, free: dict[Node, frozenset[int]], lane: int) -> frozenset[int]:
    """What channels are numbered by beside the lanes: heads. They are axes of both factors, of one
    of which places are axes too."""
    inner, outer = sorted([free[factor] for factor in fold.src[0].src], key=len)
    found = inner - frozenset(fold.arg[1]) - {lane}
    return found if inner < outer else frozenset()


def _taps(fold: Node, sizes: Sequence[int]) -> tuple[dict[int, int], ...]:
    """The places of a window, none if they are too many: sizes that vary are not written out."""
    lengths = [sizes[a] for a in fold.arg[1]]
    if prod(lengths) > FORM.most_taps:
        return ()
    window = product(*[range(n) for n in lengths])
    return tuple([dict(zip(fold.arg[1], tap, strict=True)) for tap in window])


def _sum_of_products(order: Sequence[Node]) -> Node | None:
    """The one sum of a kernel, if it adds up floats that are products of two."""
    folds = [n for n in order if n.op is FOLD]
    fold = folds[0] if len(folds) == 1 else None
    if fold is None or fold.arg[0] != "add" or fold.dtype is not float32:
        return None
    return fold if fold.src[0].op is MUL else None


def _has_weights(m: Depthwise) -> bool:
    """True if both factors have lanes, and one, the weights, is the same at all places."""
    results = frozenset((*m.rows.axes, m.lane))
    if any(m.free[s] != results for s in m.stores) or m.free[m.fold] != results:
        return False
    factors = [m.free[f] for f in m.fold.src[0].src]
    still = [axes <= m.channels for axes in factors]
    return still.count(True) == 1 and all(m.lane in axes for axes in factors)


def _has_edges(m: Depthwise) -> bool:
    """True if conditions are of loads under the sum that move with the places, each on one axis of
    these, along which it goes forward, and one of the window."""
    asked = [n for n in m.order if n.op is LOAD and n.arg[2]]
    if any(m.free[n] <= m.channels for n in asked) or not set(asked) <= set(m.inside):
        return False
    return all([_is_edge(m, index) for load in asked for index, _ in load.arg[2]])


def _is_edge(m: Depthwise, index: Affine) -> bool:
    """True if a condition is on one axis of the places, along which it goes forward, and one of the
    window, or on one of them."""
    places, taps = [[step for a, step in index[1] if a in line] for line in (m.rows.axes, m.folded)]
    alone = len(places) <= 1 and len(taps) <= 1 and len(places) + len(taps) == len(index[1])
    return alone and min(places, default=1) > 0


def _is_worth_it(m: Depthwise) -> bool:
    """True if there are channels for a vector, places for weights that are read once, and no more
    taps than registers."""
    enough = m.lanes >= FORM.least_lanes and m.places >= FORM.least_rows
    return enough and bool(m.taps)


def _lane(stores: Sequence[Node], order: Sequence[Node]) -> int | None:
    """The axis along which all results are neighbours, if places in memory are all there is.

    Results that are stored in another order (channels first) have the lanes of what is read.
    """
    if not all(s.op is STORE for s in stores):
        return None
    written = set.intersection(*[set(dict(_steps(s.arg[1]))) for s in stores])
    loads = [n for n in order if n.op is LOAD and len(n.arg[1][1]) > 1]
    found = [*_near(stores), *_near(loads)] if loads else []
    return next((axis for axis in found if axis in written and _is_near(axis, loads)), None)


def _near(nodes: Sequence[Node]) -> list[int]:
    """The axes along which all of some loads or stores go from neighbour to neighbour."""
    each = [{a for a, step in _steps(n.arg[1]) if step == 1} for n in nodes]
    return sorted(set.intersection(*each))


def _is_near(axis: int, loads: Sequence[Node]) -> bool:
    """True if loads read neighbours along an axis, or one number."""
    return all([dict(_steps(n.arg[1])).get(axis, 1) == 1 for n in loads])


def _is_plain(order: Sequence[Node], lane: int) -> bool:
    """True if memory is read and written at places that axes alone decide, neighbours along lanes,
    and nothing is checked or scattered."""
    if any(n.op in (RUN, ORDER, GUARD, VALID) or is_scatter(n) for n in order):
        return False
    for node in order:
        for index in indices(node):
            if sources_of(index) or not all(isinstance(atom, int) for atom, _ in index[1]):
                return False
        if node.op is LOAD and dict(_steps(node.arg[1])).get(lane, 1) != 1:
            return False
    return all(set(dict(_steps(n.arg[1]))) == set(n.arg[3]) for n in order if n.op is STORE)


def _steps(index: Affine) -> list[tuple[int, int]]:
    """The axes of an index, and its step along each."""
    return [(atom, step) for atom, step in index[1] if isinstance(atom, int)]
