"""Inlining: the producers that one streaming pass of a consumer could compute itself.

In: a segment that reduces, and the access relations of all segments. Out: levels of producers,
nearest first. A pass streams over the axes that its root reduces (S); every value it computes on
its way lives in blocks of the parallel axes of one operand of the root (its side, M) and S. So a
producer is inlinable where the map from the root's axes to its own is known and injective and

- it has no reduction, or one along S (online: `kernel/stream` knows whether it may stream), or
- it reduces across M, but its per-row statistics can be read from memory, or
- it is a contraction over axes of its own, which are gone before the block is used, or
- it reduces what this pass streams along S: a row statistic, or a second sum of the same pass.

What is read along axes of an inlined contraction is no block of this pass and stays in memory.
That is legality; whether it pays is a matter of cost.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import product

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node
from .access import NO_AXES, Access, Axes, relate, renamed
from .segments import SegmentGraph, SegmentInfo


class Closure(NamedTuple):
    """What one pass of a root could compute itself."""

    levels: tuple[tuple[int, ...], ...]  # segments, nearest first
    with_statistics: frozenset[int]  # those of which per-row statistics must be read

    @property
    def segments(self) -> frozenset[int]:
        """All of them."""
        return frozenset([place for level in self.levels for place in level])

    def numbered(self, local: Mapping[int, int]) -> Closure:
        """The same in numbers of a region."""
        levels = [tuple([local[place] for place in level]) for level in self.levels]
        inside = self.with_statistics & self.segments
        return Closure(tuple(levels), frozenset([local[place] for place in inside]))


class Limits(NamedTuple):
    """What cost leaves of the producers that are looked at."""

    vanishing: Set[int]  # segments that need not run
    recomputed: Set[int]  # of these: products that may be computed block by block
    depth: int  # levels


def closures(graph: SegmentGraph, place: int, limits: Limits) -> tuple[list[Closure], Set[int]]:
    """What each pass of a segment could compute itself, and the producers that were looked at.

    A segment without a reduction is the epilogue of one that it reads.
    """
    visited = frozenset(graph.producers(place))
    info = None if visited.isdisjoint(limits.vanishing) else graph.info(place)
    if info is None:
        return [], visited
    if info.access.reduced:
        passes = [_Pass(graph, place, side, limits) for side in _sides(info)]
    else:
        passes = list(_epilogues(graph, place, info, limits))
    found = [p.closure() for p in passes]
    visited = visited.union(*[p.edges for p in passes])
    return list(dict.fromkeys([c for c in found if c.levels])), visited


def _epilogues(
    graph: SegmentGraph, place: int, info: SegmentInfo, limits: Limits
) -> Iterator[_Pass]:
    """The passes of producers of a map, with the map as their end."""
    for other in graph.producers(place):
        root = graph.info(other)
        if root is None or other not in limits.vanishing or not root.access.reduced:
            continue
        names = _epilogue_names(info, root)
        for side in _sides(root) if names is not None else ():
            found = _Pass(graph, other, side, limits)
            found.end_with(place, names or {})
            yield found


def _epilogue_names(info: SegmentInfo, root: SegmentInfo) -> dict[int, Axes] | None:
    """A map's axes in those of a producer that it is the epilogue of; None if it is not.

    It reads a result element by element, or along the axes that were reduced: elements of a row
    that are looked at again with its statistics.
    """
    names: dict[int, Axes] = {}
    for node, write in root.writes.items():
        for access in info.reads.get(node, ())[:1]:
            for axis, axes in relate(write, access).items():
                names[axis] = names.get(axis, NO_AXES) | axes
    written = _axes([*info.writes.values()])
    for node in [n for n in info.reads if n in root.reads]:
        for mine, theirs in product(info.reads[node], root.reads[node]):
            for axis, axes in relate(theirs, mine).items():
                if axis not in names and axes and axes <= root.access.reduced:
                    names[axis] = axes
    return names if written <= names.keys() else None


def _sides(info: SegmentInfo) -> list[Axes]:
    """The parallel axes of the operands of a segment: the largest sets, first read first."""
    streamed = info.access.reduced
    if not info.is_contraction:
        return [frozenset(range(len(info.access.sizes))) - streamed]
    reads = [access.axes for accesses in info.reads.values() for access in accesses]
    met = [axes - streamed for axes in reads if axes & streamed]
    return [one for one in dict.fromkeys(met) if not any(one < other for other in met)]


class _Pass:
    """One pass over the axes that a root reduces."""

    def __init__(self, graph: SegmentGraph, root: int, side: Axes, limits: Limits) -> None:
        info = graph.info(root)
        assert info is not None
        self.graph, self.limits, self.side, self.root = graph, limits, side, root
        self.streamed = info.access.reduced
        self.written = [w.axes for w in info.writes.values()]
        self.keeps_elements = info.keeps_elements
        self.seen: dict[Node, list[Access]] = {}  # reads in axes of the root
        self.edges: dict[int, list[tuple[Node, Access]]] = {}  # by producer
        self.operands: set[Node] = set()  # of products that are inlined: they stay in memory
        self.inside = {root}
        self.with_statistics: set[int] = set()
        self.levels: list[tuple[int, ...]] = []
        self.enter(root, None)

    def end_with(self, epilogue: int, names: dict[int, Axes]) -> None:
        """Let a map that reads the root's results be the end of the pass."""
        info = self.graph.info(epilogue)
        assert info is not None
        self.keeps_elements = any(
            renamed(access.axes, names) & self.streamed for access in info.writes.values()
        )
        self.levels.append((self.root,))
        self.inside.add(epilogue)
        self.enter(epilogue, names)

    def enter(self, place: int, names: dict[int, Axes] | None) -> None:
        """Read what a segment reads that is part of the pass now; the root has its own axes."""
        info = self.graph.info(place)
        assert info is not None
        if names is not None and self.reduces_across(info, names):
            self.with_statistics.add(place)
        for node, accesses in info.reads.items():
            other = self.graph.producer_of.get(node)
            if other is None and len(self.graph.readers[node]) == 1:
                continue  # nobody else could be told by it where it is
            for access in accesses:
                if names is not None and not access.axes <= names.keys():
                    self.operands.add(node)
                    continue
                known = access if names is None else access.renamed(names)
                self.seen.setdefault(node, []).append(known)
                if other is not None:
                    self.edges.setdefault(other, []).append((node, known))

    def closure(self) -> Closure:
        """Inline level by level, until nothing is left that could be."""
        while len(self.levels) < self.limits.depth:
            open_ = [p for p in self.edges if p not in self.inside and p in self.limits.vanishing]
            known = {place: self.names_of(place) for place in open_}
            level = {place: names for place, names in known.items() if names is not None}
            if not level:
                break
            self.levels.append(tuple(level))
            self.inside.update(level)
            for place, names in level.items():
                self.enter(place, names)
        fused = {p for level in self.levels for p in level} - self.with_statistics
        levels = tuple(self.levels) if any(map(self.graph.has_reduction, fused)) else ()
        return Closure(levels, frozenset(self.with_statistics))

    def names_of(self, place: int) -> dict[int, Axes] | None:
        """A producer's axes in those of the root; None if it is not inlinable.

        All reads of it must be at one place: what is read at two would be computed twice.
        """
        info = self.graph.info(place)
        if info is None or not self.operands.isdisjoint(info.writes):
            return None
        edges = self.edges[place]
        legal = [found for node, read in edges
                 if (found := self.names_by(place, info, node, read)) is not None]  # fmt: skip
        names = dict(ChainMap(*legal))  # the first counts
        reads = [relate(read, info.writes[node]) for node, read in edges]
        if not legal or not all(self.is_read_at(names, read) for read in reads):
            return None
        operands = [n for n, reads in info.reads.items() if not _axes(reads) <= names.keys()]
        if any(self.graph.producer_of.get(node) in self.inside for node in operands):
            return None
        return names

    def is_read_at(self, names: Mapping[int, Axes], met: Mapping[int, Axes]) -> bool:
        """True if a read is where the names of a producer's axes say, in each loop of the root.

        An axis without a name is one that no legal read goes along: of another result, say.
        """
        return all(
            axis in names and (axes <= names[axis] or not self.in_one_loop(axes | names[axis]))
            for axis, axes in met.items()
        )

    def in_one_loop(self, axes: Axes) -> bool:
        """True if some axes belong to one result of the root: each may have axes of its own."""
        return any(axes <= written | self.streamed for written in self.written)

    def names_by(
        self, place: int, info: SegmentInfo, node: Node, read: Access
    ) -> dict[int, Axes] | None:
        """The same by one read of it."""
        names = relate(read, info.writes[node])
        streams = bool(read.axes & self.streamed)
        if not read.is_injective or (streams and not self.is_block(read)):
            return None
        self.unify(info, names)
        own = info.access.reduced - names.keys()
        if own and not (place in self.limits.recomputed and self.is_tile(info, own, names)):
            return None
        if self.reduces_across(info, names):
            elementwise = self.graph.has_statistics(place) and not info.is_contraction
            return names if streams and elementwise else None
        return names

    def is_block(self, read: Access) -> bool:
        """True if a value is read at blocks of M and S alone."""
        return read.axes <= self.side | self.streamed

    def reduces_across(self, info: SegmentInfo, names: Mapping[int, Axes]) -> bool:
        """True if a producer reduces along M: then its statistics must be known before."""
        return any(not names[a] <= self.streamed for a in info.access.reduced if a in names)

    def is_tile(self, info: SegmentInfo, own: Axes, names: Mapping[int, Axes]) -> bool:
        """True if reductions along axes of a producer's own are GEMMs of blocks of M and S.

        One factor must not vary along S, or S is a batch axis of the product, and the other must.
        """
        if self.keeps_elements:
            return False
        for axes, factors in info.access.reductions:
            streams = [bool(renamed(f, names) & self.streamed) for f in factors]
            if axes & own and sorted(streams) != [False, True]:
                return False
        return True

    def unify(self, info: SegmentInfo, names: dict[int, Axes]) -> None:
        """Name the axes that a producer reduces on its own where this pass reads the same value."""
        own = info.access.reduced - names.keys()
        along = self.streamed if info.is_contraction else self.streamed | self.side
        pairs = [
            (mine, other) for node, accesses in info.reads.items() if own
            for mine, other in product(accesses, self.seen.get(node, ())) if self.is_block(other)
        ]  # fmt: skip
        for mine, other in pairs:
            found = relate(other, mine)
            alike = all(found[a] <= names[a] for a in found if a in names)
            if alike and all(found.get(a) and found[a] <= along for a in own):
                names.update({a: found[a] for a in own})
                return


def _axes(accesses: Sequence[Access]) -> Axes:
    return NO_AXES.union(*[access.axes for access in accesses])
