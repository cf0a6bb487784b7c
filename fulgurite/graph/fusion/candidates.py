"""Fusion candidates: the kernels that could stand in the place of segments of one region.

In: a region. Out: candidates, as numbers of segments, in an order that no history changes. A
segment may inline its producers, as deep as that goes; per-row statistics may be read instead of
computed again, and then somebody must make them; sums of one pass over the same blocks may come
from one kernel. Nothing is cut out or priced here: that is done for those that may pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ...core.node import Node
from ..ir.queries import elements
from .inline import Closure
from .machine import spill_time
from .regions import FusionCandidate, Outputs, Regions
from .segments import byte_count


class Candidates:
    """What could be tried for one region."""

    def __init__(self, regions: Regions, region: Sequence[int]) -> None:
        self.regions, self.graph, self.region = regions, regions.graph, region
        self.local = {place: i for i, place in enumerate(region)}
        self.wanted = set(regions.wanted(region))

    # --- one segment with what it inlines --------------------------------------------------------

    def singles(self) -> list[list[list[FusionCandidate]]]:
        """For each pass of each segment the candidates of it alone."""
        if len(self.region) == 1:
            return [[[FusionCandidate(self.outputs(place), ())]] for place in self.region]
        found = [list(self.single(place, closure)) for place in self.region
                 for closure in self.regions.closures[place]]  # fmt: skip
        return found + [[[candidate]] for candidate in self.picked()]

    def single(self, place: int, closure: Closure) -> Iterator[list[FusionCandidate]]:
        """One segment with its producers: as many as go, then less."""
        outputs, levels = self.outputs(place), closure.levels
        for count in range(len(levels), 0, -1):
            taken = sorted({p for level in levels[:count] for p in level})
            inlined = tuple([self.local[p] for p in taken])
            if closure.with_statistics.isdisjoint(taken):
                alone = FusionCandidate(outputs, inlined)
                found = [self.with_outputs(alone, self.wanted_statistics(inlined))]
                shared = [p for p in taken if self.graph.has_shared_statistics(p)]
                read = tuple([self.local[p] for p in shared])
            else:
                found, read = [], self.with_statistics(inlined)
            if read:
                found.append(FusionCandidate(outputs, inlined, read))
            if found:
                yield found

    def reading(self, candidate: FusionCandidate) -> list[FusionCandidate]:
        """The same with statistics that are read: those that segments store, then all."""
        taken = candidate.inlined
        lean = tuple([t for t in taken if not self.graph.is_statistic(self.region[t])])
        read = self.with_statistics(lean)
        found = [replace(candidate, inlined=lean)] if lean and lean != taken else []
        return [*found, replace(candidate, inlined=lean, statistics=read)] if read else found

    def picked(self) -> list[FusionCandidate]:
        """Segments that read a product only to choose from it, with what is chosen read instead."""
        places = [place for place in self.region if self.graph.picks(place)]
        return [FusionCandidate(self.outputs(p), (), (self.local[p],)) for p in places]

    # --- several together ------------------------------------------------------------------------

    def joint(self, good: Sequence[FusionCandidate]) -> Iterator[FusionCandidate]:
        """Kernels made of single ones: several in one pass, and who makes their statistics."""
        pairs, crossing = self.one_pass(good)
        yield from crossing
        yield from dict.fromkeys(self.first_passes([*crossing, *good]))
        for candidate in (*good, *crossing):
            stored = self.extra_outputs(candidate)
            if stored:
                yield self.with_outputs(candidate, stored)
        yield from pairs
        for segment in dict.fromkeys([s for c in good for s in c.statistics]):
            yield from self.makers_of_statistics(segment, good)
        for candidate in good:
            if not candidate.statistics:
                yield from self.with_picks(candidate, good)

    def one_pass(
        self, good: Sequence[FusionCandidate]
    ) -> tuple[list[FusionCandidate], list[FusionCandidate]]:
        """Pairs in one pass, and all that need the same blocks, whatever they reduce them along."""
        pairs: list[FusionCandidate] = []
        crossing: dict[FusionCandidate, None] = {}
        for a, b in combinations(good, 2):
            if not self.share_blocks(a, b):
                continue
            if not self.reduce_across(a, b):
                pairs.append(self.merged([a, b]))
            elif not self.depend(a, b):
                both = [a, b]
                for other in good:
                    if all(other is c or (self.share_blocks(other, c) and not self.depend(other, c))
                           for c in both):  # fmt: skip
                        both = [c for c in good if c in both or c is other]
                crossing[self.merged(both)] = None
        return pairs, list(crossing)

    def first_passes(self, candidates: Iterable[FusionCandidate]) -> Iterator[FusionCandidate]:
        """One pass for all statistics that another one reads, of what that one inlines."""
        for candidate in candidates:
            made = [value for i in candidate.statistics for value in self.row_statistics(i)]
            inlined = tuple([i for i in candidate.inlined if i not in candidate.statistics])
            if made and inlined:
                yield self.with_outputs(FusionCandidate((), inlined), made)

    def makers_of_statistics(
        self, segment: int, good: Sequence[FusionCandidate]
    ) -> Iterator[FusionCandidate]:
        """Who could make the statistics of a segment: a kernel of their own, or who has them."""
        below = sorted([self.local[t] for t in self.regions.below(self.region[segment])])
        alone = FusionCandidate((), tuple(below))
        yield self.with_outputs(alone, self.all_statistics(segment))
        for candidate in good:
            if segment in candidate.inlined and not candidate.statistics:
                yield self.with_outputs(candidate, self.statistics_on_the_way(candidate))

    def with_picks(
        self, candidate: FusionCandidate, good: Sequence[FusionCandidate]
    ) -> Iterator[FusionCandidate]:
        """One with what segments choose from it, and with those that read its statistics across."""
        inlined = {self.region[i] for i in candidate.inlined}
        picking = {self.local[p] for p in self.region if self.graph.picks(p)
                   and not inlined.isdisjoint(self.graph.producers(p))}  # fmt: skip
        across = self.across(candidate, good) if self.spills(inlined) else []
        for some in ([candidate] if picking else [], [candidate, *across] if across else []):
            if some:
                whole = self.merged([replace(c, statistics=()) for c in some])
                whole = replace(whole, inlined=tuple(sorted(picking.union(whole.inlined))))
                yield self.with_outputs(whole, self.statistics_on_the_way(whole))

    def spills(self, inlined: Iterable[int]) -> bool:
        """True if a product does not stay in caches: only then is one kernel of strips quicker."""
        products = [p for p in inlined if self.graph.is_contraction(p)]
        sizes = [byte_count(n) for p in products for n in self.graph.segments[p][1]]
        return spill_time(sizes, self.regions.table) > 0

    def across(
        self, candidate: FusionCandidate, good: Sequence[FusionCandidate]
    ) -> list[FusionCandidate]:
        """Those that reduce across what a candidate inlines, and read statistics that it makes."""
        found: list[FusionCandidate] = []
        for other in good:
            used = {*other.statistics, *other.inlined}
            apart = [not self.overlap(other, c) and not self.depend(other, c)
                     for c in (candidate, *found)]  # fmt: skip
            inside = other.statistics and used <= set(candidate.inlined)
            if inside and all(apart) and self.reduce_across(candidate, other):
                found.append(other)
        return found

    def merged(self, candidates: Sequence[FusionCandidate]) -> FusionCandidate:
        """One candidate that makes what several do."""
        inlined = sorted({i for c in candidates for i in c.inlined})
        read = sorted({i for c in candidates for i in c.statistics})
        outputs = [made for c in candidates for made in c.outputs]
        return self.with_outputs(FusionCandidate((), tuple(inlined), tuple(read)), outputs)

    def with_outputs(
        self, candidate: FusionCandidate, outputs: Sequence[tuple[int, int]]
    ) -> FusionCandidate:
        """A candidate that makes more: each value once, whatever it is called."""
        named: dict[Node, tuple[int, int]] = {}
        for made in (*candidate.outputs, *outputs):
            named.setdefault(self.regions.value(self.region, made), made)
        return replace(candidate, outputs=tuple(named.values()))

    def share_blocks(self, a: FusionCandidate, b: FusionCandidate) -> bool:
        """True if one of two candidates is inside the other, or they need the same product."""
        if self.overlap(a, b):
            return False
        less, more = sorted([set(a.inlined), set(b.inlined)], key=len)
        if less <= more:
            return bool(a.statistics) == bool(b.statistics)
        both = [self.region[i] for i in less & more]
        return bool(a.statistics or b.statistics) and any(map(self.graph.is_contraction, both))

    def overlap(self, a: FusionCandidate, b: FusionCandidate) -> bool:
        """True if two candidates make the same value."""
        return not set(a.outputs).isdisjoint(b.outputs)

    def depend(self, a: FusionCandidate, b: FusionCandidate) -> bool:
        """True if what one candidate makes is needed for what the other does."""
        before = self.graph.ancestors
        pairs = [(p, q) for p in self.ends(a) for q in self.ends(b)]
        return any(before[p] >> q & 1 or before[q] >> p & 1 for p, q in pairs)

    def reduce_across(self, a: FusionCandidate, b: FusionCandidate) -> bool:
        """True if two candidates reduce values of one shape along different axes."""
        return any(self.graph.reduce_across(p, q) for p in self.ends(a) for q in self.ends(b))

    # --- what a kernel stores --------------------------------------------------------------------

    def ends(self, candidate: FusionCandidate) -> list[int]:
        """The places of what a candidate makes."""
        return list(dict.fromkeys([self.region[i] for i, _ in candidate.outputs]))

    def outputs(self, place: int) -> Outputs:
        """All that a segment stores."""
        count = len(self.graph.segments[place][1])
        return tuple([(self.local[place], number) for number in range(count)])

    def with_statistics(self, inlined: Sequence[int]) -> tuple[int, ...]:
        """The segments among some that have per-row statistics."""
        return tuple([i for i in inlined if self.graph.has_statistics(self.region[i])])

    def wanted_statistics(self, inlined: Sequence[int]) -> Outputs:
        """The results of inlined segments of rows that others want."""
        found: list[tuple[int, int]] = []
        for i in inlined:
            place = self.region[i]
            if not self.graph.is_reduction(place):
                continue
            rows = list(self.graph.row_statistics(place))
            for number, node in enumerate(self.graph.segments[place][1]):
                if (
                    node in self.wanted and node not in self.regions.side_outputs
                ):  # one name for each
                    found.append((i, -1 - rows.index(node) if node in rows else number))
        return tuple(found)

    def statistics_on_the_way(self, candidate: FusionCandidate) -> Outputs:
        """The statistics that a kernel computes on its way."""
        return tuple([made for i in candidate.inlined for made in self.statistics_of(i)])

    def statistics_of(self, segment: int) -> Outputs:
        """The results of a segment if it is statistics alone, or else its statistics."""
        place = self.region[segment]
        if self.graph.is_statistic(place) and not self.graph.picks(place):
            return self.outputs(place)
        return self.all_statistics(segment)

    def all_statistics(self, segment: int) -> Outputs:
        """All of one number a row that a segment computes or stores."""
        return (*self.row_statistics(segment), *self.stored_statistics(segment))

    def row_statistics(self, segment: int) -> Outputs:
        """All that a segment folds to one number a row."""
        count = len(self.graph.row_statistics(self.region[segment]))
        return tuple([(segment, -1 - number) for number in range(count)])

    def stored_statistics(self, segment: int) -> Outputs:
        """What a segment stores of one number a row, and does not need for its elements."""
        place = self.region[segment]
        outputs, most = self.graph.segments[place][1], self.graph.size(place)
        needed = self.graph.row_statistics(place)
        return tuple([
            (segment, number) for number, n in enumerate(outputs)
            if elements(n.shape) < most and n not in needed
        ])  # fmt: skip

    def extra_outputs(self, candidate: FusionCandidate) -> Outputs:
        """What others than the inlined segments read of these: statistics, and side outputs.

        Elements that wait for the end of their row are not known on the way, unless statistics are.
        """
        inlined = {self.region[i] for i in candidate.inlined}
        found: list[tuple[int, int]] = []
        for made in [m for i in candidate.statistics for m in self.stored_statistics(i)]:
            node = self.graph.segments[self.region[made[0]]][1][made[1]]
            readers = self.graph.readers.get(node, ())
            if node in self.graph.roots or not inlined.issuperset(readers):
                found.append(made)
        for i in candidate.inlined:
            place = self.region[i]
            if i in candidate.statistics or not self.graph.is_reduction(place):
                found += [(i, number) for number, node in enumerate(self.graph.segments[place][1])
                          if node in self.regions.side_outputs]  # fmt: skip
        return tuple(found)
