"""Partitioning (GSPMD's): a graph of whole tensors becomes the graph of one rank, with collectives.

In: a SINK in which UNSHARD (memory in shards), SHARD (a wish) and LOCAL/UNSHARD (a manual region)
name mesh axes. Out: the SINK that every rank runs on its own shards, and how each root is split.
Three walks: forward, every value gets the layout that follows from its sources (of several the one
that moves least); backward, a value that all its readers want in shards is made in shards; forward,
each is emitted once, with an all-gather, slice or all-to-all on an edge whose ends differ. A fold
over a dimension in shards is followed by an all-reduce, or a reduce-scatter if that is what is
wanted. An op without a rule gets whole sources, so every graph has a partition. Parts are equal: of
a dimension that they do not divide the last ones go beyond its end, where values are anything. They
are masked before they are folded or are indices, and cut off when parts are joined; no root is kept
in such parts. The invariant: no rank's number is in the result, only variables for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from ...core.dtype import int64
from ...core.node import Node, Shape, constant_like, remember, toposort
from ...core.ops.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COMMUNICATES,
    LOCAL,
    REDUCE_SCATTER,
    SHARD,
    UNSHARD,
    is_uneven,
    local_shape,
    own_part,
    part_number,
    part_size,
    used_axes,
)
from ...core.ops.elementwise import CAST, LT, WHERE
from ...core.ops.leaf import PARAM, SINK, iota
from ...core.ops.movement import expand, pad, reshape, shrink
from ...core.ranks import Layout, MeshAxes, axes_size
from ...core.rewriting.substitute import rebuild
from ...errors import ArgumentError
from ..ir.queries import elements
from .partition_rules import FREE, MOVES, Axes, Rule, Wants, is_fixed, rule_of, settled, whole


class Natural(NamedTuple):
    """The layout that follows from a value's sources."""

    dims: Layout
    weak: bool = False  # it gives way to others
    manual: bool = False  # a value of one rank: nothing is known of the others'


class Partition(NamedTuple):
    """The graph of one rank, and how each root is split: (mesh, layout, weak); None: it is not."""

    sink: Node
    layouts: tuple[tuple[MeshAxes, Layout, bool] | None, ...]


def communicates(order: Sequence[Node]) -> bool:
    """True if a graph names a mesh."""
    return any([node.op in COMMUNICATES for node in order])


def partition(sink: Node) -> Partition:
    """The graph of one rank."""
    order = toposort([sink])
    if not communicates(order):
        return Partition(sink, (None,) * len(sink.src))
    return Partitioner(sink, order).run()


class Partitioner:
    """The three walks over one graph."""

    weak_share = 0.01  # what moving a weak layout costs, of what a strong one's costs

    def __init__(self, sink: Node, order: list[Node]) -> None:
        self.sink, self.order = sink, [n for n in order if n.op is not SINK]
        meshes = {n.arg[0] for n in order if n.op in COMMUNICATES}
        if len(meshes) > 1:
            raise ArgumentError(
                f"one graph is split over {len(meshes)} meshes: {sorted(meshes)}",
                "use one mesh, with more axes",
            )
        (self.mesh,) = meshes
        self.natural: dict[Node, Natural] = {}
        self.final: dict[Node, Layout] = {}
        self.wants: dict[Node, list[Layout | None]] = {}
        self.local: dict[Node, Node] = {}
        self.moved: dict[tuple[Node, Layout], Node] = {}
        # memory in shards is named by one UNSHARD only: it is no value of the whole view
        self.shards = {n.src[0] for n in order if n.op is UNSHARD and n.src[0].op is PARAM}

    def run(self) -> Partition:
        for node in self.order:
            self.natural[node] = self._follow(node)
        for node in reversed(self.order):
            self._settle(node)
        for node in self.order:
            self.local[node] = remember(self._emit(node), node.origins)
        roots, layouts = [], []
        for root in self.sink.src:
            natural = self.natural[root]
            lay = self._even(root)
            split = not natural.manual and any(lay)
            roots.append(self.local[root] if natural.manual else self.at(root, lay))
            layouts.append((self.mesh, lay, natural.weak) if split else None)
        return Partition(SINK(*roots), tuple(layouts))

    def _even(self, root: Node) -> Layout:
        """The layout of a root, without parts that are not equal."""
        pairs_ = zip(root.shape, self.final[root], strict=True)
        return tuple([() if is_uneven(self.mesh, axes, n) else axes for n, axes in pairs_])

    # --- forward: what follows from the sources --------------------------------------------------

    def _follow(self, node: Node) -> Natural:
        op = node.op
        if op is UNSHARD or op is SHARD:
            return Natural(node.arg[1], node.arg[2])
        sources = [self.natural[s] for s in node.src]
        manual = op is LOCAL or node in self.shards or any([s.manual for s in sources])
        if manual:
            return Natural(whole(node.ndim), manual=True)
        rule = rule_of(op)
        if rule is None or not is_fixed(node):
            return Natural(whole(node.ndim))
        dims = rule.follow(self, node)
        return Natural(self._fitting(node, dims), self._is_weak(node, dims))

    def _is_weak(self, node: Node, dims: Layout) -> bool:
        split = [self.natural[s] for s in node.src if any(settled(self.natural[s].dims))]
        return bool(split) and all([s.weak for s in split])

    def _fitting(self, node: Node, dims: Layout) -> Layout:
        """A layout with every mesh axis once."""
        met: set[str] = set()
        found: list[Axes] = []
        for n, axes in zip(node.shape, dims, strict=True):
            fits = axes is FREE or (isinstance(n, int) and n > 0 and not met & set(axes))
            found.append(axes if fits else ())
            if fits and axes is not FREE:
                met |= set(axes)
        return tuple(found)

    def merged(self, node: Node, layouts: Sequence[tuple[Layout, Node, bool]]) -> Layout:
        """Of the layouts of several sources the one for which least must move."""
        ndim = len(layouts[0][0])
        free = [all([lay[d] is FREE for lay, _, _ in layouts]) for d in range(ndim)]
        found: list[Layout] = []
        for lay, _, _ in layouts:
            found.append(self._joined(node, lay, layouts))
        unique = list(dict.fromkeys(found))
        best = min(unique, key=lambda one: self._cost(node, one, layouts)) if unique else ()
        return tuple([FREE if free[d] else axes for d, axes in enumerate(best)])

    def _joined(
        self, node: Node, first: Layout, layouts: Sequence[tuple[Layout, Node, bool]]
    ) -> Layout:
        """One source's layout, with splits of others where it has none."""
        dims = list(settled(first))
        for lay, _, _ in layouts:
            for d, axes in enumerate(settled(lay)):
                used = {a for other in dims for a in other}
                if axes and not dims[d] and not used & set(axes):
                    dims[d] = axes
        return self._fitting(node, tuple(dims))

    def _cost(
        self, node: Node, want: Layout, layouts: Sequence[tuple[Layout, Node, bool]]
    ) -> tuple[float, int]:
        """Elements that must arrive from other ranks, then elements computed on one."""
        moved = 0.0
        for lay, _, weak in layouts:
            lost = [d for d, a in enumerate(lay) if a is not FREE and a and a != want[d]]
            if lost:
                held = [n for n, a in zip(node.shape, lay, strict=True) if a is not FREE]
                moved += float(prod([n for n in held if isinstance(n, int)])) * (
                    self.weak_share if weak else 1
                )
        return moved, elements(node.shape) // axes_size(self.mesh, used_axes(want))

    # --- backward: what the readers want ---------------------------------------------------------

    def _settle(self, node: Node) -> None:
        natural = self.natural[node]
        wants = self.wants.get(node, [])
        self.final[node] = settled(natural.dims)
        rule = None if natural.manual else rule_of(node.op)
        asked = {w for w in wants if w is not None}
        if rule is not None and len(asked) == 1 and node not in self.sink.src and is_fixed(node):
            (want,) = asked
            fits = all([
                n is FREE or not n or n == w for n, w in zip(natural.dims, want, strict=True)
            ]) and self._fitting(node, want) == want  # fmt: skip
            if fits and rule.takes(self, node, want):
                self.final[node] = want
        given = self._source_wants(node, rule, self.final[node])
        for source, one in zip(node.src, given, strict=True):
            self.wants.setdefault(source, []).append(one)

    def _source_wants(self, node: Node, rule: Rule | None, final: Layout) -> Wants:
        if node.op is UNSHARD:
            return [None]
        if node.op is SHARD or node.op is LOCAL:
            return [node.arg[1]]
        if rule is None or not is_fixed(node):
            manual = [self.natural[s].manual for s in node.src]
            return [None if own else whole(s.ndim) for s, own in zip(node.src, manual, strict=True)]
        return rule.wants(self, node, final)

    # --- forward: the graph of one rank ----------------------------------------------------------

    def _emit(self, node: Node) -> Node:
        op = node.op
        natural, final = self.natural[node], self.final[node]
        if op is UNSHARD:
            source = node.src[0]
            return self.local[source] if self.natural[source].manual else self.at(source, final)
        if op is SHARD or op is LOCAL:
            return self.at(node.src[0], node.arg[1])
        rule = None if natural.manual else rule_of(op)
        if rule is not None and is_fixed(node):
            wants = rule.wants(self, node, final)
            pairs_ = zip(node.src, wants, strict=True)
            return rule.emit(self, node, final, [self.at(s, w) for s, w in pairs_])
        sources = tuple([
            self.local[s] if self.natural[s].manual else self.at(s, whole(s.ndim))
            for s in node.src
        ])  # fmt: skip
        return node if sources == node.src else rebuild(node, sources)

    def at(self, node: Node, want: Layout | None) -> Node:
        """A value of this rank in the layout that a reader wants."""
        if self.natural[node].manual:
            if want is None:
                return self.local[node]
            raise ArgumentError(
                "a value of one rank is used where a whole one is expected",
                "return it from fg.shard_map", None,
            )  # fmt: skip
        have = self.final[node]
        if want is None or want == have:
            return self.local[node]
        key = node, want
        if key not in self.moved:
            made = self._moved_later(node, want)
            if made is None:
                made = self._reshard(self.local[node], have, want, node.shape)
            self.moved[key] = remember(made, node.origins)
        return self.moved[key]

    def _moved_later(self, node: Node, want: Layout) -> Node | None:
        """What only moves is moved after its source is resharded: an expansion is not sent."""
        rule = MOVES.get(node.op) if is_fixed(node) else None
        if rule is None or self._fitting(node, want) != want or not rule.takes(self, node, want):
            return None
        (wanted,) = rule.wants(self, node, want)
        return rule.emit(self, node, want, [self.at(node.src[0], wanted)])

    def _reshard(self, x: Node, have: Layout, want: Layout, shape: Shape) -> Node:
        x, now = self._exchanged(x, have, want, shape)
        for d, axes in enumerate(now):
            if axes and want[d] != axes:
                x = self._cut(ALL_GATHER(x, arg=(self.mesh, axes, d)), d, shape[d])
                now[d] = ()
        for d, axes in enumerate(want):
            if axes and not now[d]:
                x = own_part(self._filled(x, d, axes), self.mesh, axes, d)
        return x

    def _exchanged(
        self, x: Node, have: Layout, want: Layout, shape: Shape
    ) -> tuple[Node, list[Axes]]:
        """What is split along another dimension than wanted, in one exchange."""
        now = list(have)
        for d, axes in enumerate(have):
            free = [e for e, w in enumerate(want) if w == axes and e != d and not now[e]]
            if axes and not want[d] and free:
                x = self._filled(x, free[0], axes)
                x = self._cut(ALL_TO_ALL(x, arg=(self.mesh, axes, free[0], d)), d, shape[d])
                now[d], now[free[0]] = (), axes
        return x, now

    # --- parts that go beyond the end ------------------------------------------------------------

    def _filled(self, x: Node, dim: int, axes: Axes) -> Node:
        """A value with zeros behind it, so that a dimension has equal parts."""
        n = x.shape[dim]
        if not is_uneven(self.mesh, axes, n):
            return x
        more = part_size(self.mesh, axes, n) * axes_size(self.mesh, axes) - n
        return pad(x, [(0, more if d == dim else 0) for d in range(x.ndim)])

    def _cut(self, x: Node, dim: int, n: Any) -> Node:
        """A value without what is beyond the end of a dimension."""
        return shrink(x, [(0, n if d == dim else size) for d, size in enumerate(x.shape)])

    def masked(self, x: Node, shape: Shape, lay: Layout, value: Any) -> Node:
        """A value of this rank, with a number where its part goes beyond the whole shape."""
        for d, (n, axes) in enumerate(zip(shape, lay, strict=True)):
            if axes and isinstance(n, int) and is_uneven(self.mesh, axes, n):
                start = part_number(self.mesh, axes) * x.shape[d]
                place = iota(x.shape, d, int64)
                place = place + expand(reshape(CAST(start, arg=int64), (1,) * x.ndim), x.shape)
                inside = LT(place, constant_like(n, place))
                x = WHERE(inside, x, constant_like(value, x))
        return x

    def shape(self, node: Node, final: Layout) -> Any:
        """The shape of a value on one rank."""
        return local_shape(self.mesh, final, node.shape)

    def summed(self, node: Node, x: Node, axes: Axes, name: str, final: Layout) -> Node:
        """A partial fold, completed over mesh axes."""
        if not axes:
            return x
        for d, wanted in enumerate(final):
            if wanted == axes and name == "add" and x.dtype.kind in "iufc":
                return REDUCE_SCATTER(self._filled(x, d, axes), arg=(self.mesh, axes, d))
        x = ALL_REDUCE(x, arg=(self.mesh, axes, name))
        for d, wanted in enumerate(final):
            if set(wanted) & set(axes):
                x = own_part(self._filled(x, d, wanted), self.mesh, wanted, d)
        return x
