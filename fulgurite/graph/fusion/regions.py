"""Regions: the segments of a greedy schedule that could be fused with each other.

In: segments and the results asked for. Out: groups of segments, what each could compute itself
(`inline.closures`), and the kernel that a `FusionCandidate` would be. Cost leaves out what cannot
pay before anything is looked at: to inline a producer saves at most what it moves, and what must
run in any case saves nothing. So only producers count that all their readers could compute, or that
one of these could store on its way. A region's key is its kernels, how they are joined and what
they could inline, so equal regions are one; nothing depends on the order of sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import field, replace
from typing import TypeAlias

from ...core.lazy_dataclass import dataclass
from ...core.node import Node
from ...core.ops.leaf import PARAM
from ..ir.kernel import Cut, Extractor, in_laws
from ..ir.queries import elements, walk
from . import KINDS
from .budget import BUDGET, FusionBudget
from .build_schedule import Segment
from .inline import Closure, Limits, closures
from .machine import CostTable, memory_time, product_work, spill_time, work_of
from .segments import SegmentGraph, byte_count, memory_of

# (segment of the region, number of its output), or below 0: of its statistics
Outputs: TypeAlias = "tuple[tuple[int, int], ...]"


@dataclass(frozen=True)
class FusionCandidate:
    """A kernel that could be run, in terms of the segments of its region."""

    outputs: Outputs
    inlined: tuple[int, ...]  # segments that it computes itself
    statistics: tuple[int, ...] = ()  # segments whose per-row statistics it reads
    kind: str = "fold"
    plan: object = field(default=None, compare=False, repr=False)  # of who proposed it
    body: Node | None = field(default=None, compare=False, repr=False)  # that the plan is for


class Regions:
    """The segments of a schedule and how they could be fused."""

    def __init__(
        self, segments: Sequence[Segment], roots: Set[Node], table: CostTable, total: float = 0.0,
        budget: FusionBudget = BUDGET,
    ) -> None:  # fmt: skip
        self.graph, self.budget, self.table = SegmentGraph(segments, roots), budget, table
        self.stored = frozenset(self.graph.producer_of)
        self.params = {n for nodes in self.graph.reads for n in nodes if n.op is PARAM}
        self.extractor = Extractor()
        self.count = Counter([cut[0] for _, _, cut in segments])  # equal ones are compiled once
        self.equal = [self.count[cut[0]] for _, _, cut in segments]
        self.may_vanish: Set[int] = frozenset()  # segments that need not run
        self.side_outputs: Set[Node] = frozenset()  # values that one stores for others
        self.regions: list[list[int]] = []
        self.closures: dict[int, list[Closure]] = {}
        self._avoidable: dict[Node, int] = {}
        self._visited: dict[int, Set[int]] = {}  # producers that closures were found among
        self.join(self.worth_inlining(budget.min_gain_graph * total / budget.inline_depth))
        if self.regions:
            self.side_outputs = self.stored_on_the_way()
            self.join(self.removable(range(len(segments))))
        while large := [p for r in self.regions if len(r) > budget.region_segments for p in r]:
            gains = {p: self.gain(p) - self.recomputing(p) for p in self.may_vanish & set(large)}
            least = sorted(gains.values())[len(gains) // 4]  # equal ones go together
            self.join(self.may_vanish - {p for p, gain in gains.items() if gain <= least})

    # --- cost ------------------------------------------------------------------------------------

    def worth_inlining(self, floor: float) -> Set[int]:
        """The segments that may be fused and whose absence could save that much."""
        able = [i for i in range(len(self.equal)) if self.graph.kind(i) in KINDS]
        return frozenset([i for i in able if self.gain(i) >= floor])

    def gain(self, place: int) -> float:
        """What it saves at most that a segment does not run, with all that are equal.

        Its arithmetic stays; what goes is a launch, what it reads and writes, and who reads that.
        """
        _, outputs, (kernel, _, _) = self.graph.segments[place]
        table, moved = self.table, work_of(kernel).bytes
        moved += sum([byte_count(n) * len(self.graph.readers.get(n, ())) for n in outputs])
        spill = spill_time(map(byte_count, outputs), table, map(self.avoidable_bytes, outputs))
        each = table.launch_ns + memory_time(moved, table) + spill
        return each * self.equal[place] + table.compile_ns

    def copies(self, places: Iterable[int]) -> int:
        """How often the kernel of some segments may run, each time with segments of its own."""
        parts = Counter([self.graph.segments[place][2][0] for place in places])
        return min([self.count[kernel] // times for kernel, times in parts.items()])

    def recomputing(self, place: int) -> float:
        """What rematerialising a segment adds, where its readers cannot share a pass."""
        readers = {r for n in self.graph.segments[place][1] for r in self.graph.readers.get(n, ())}
        bits = sum([1 << r for r in readers])
        if not any(self.graph.ancestors[r] & bits for r in readers):
            return 0.0
        work, table = work_of(self.graph.segments[place][2][0]), self.table
        again = product_work(work, table) / table.stream_gemm_rate
        again += work.elementwise / table.stream_rate
        return again * self.equal[place]

    def is_quick_again(self, place: int) -> bool:
        """True if a product in blocks may be as quick as one that is kept.

        For one reader it is not computed again: reductions of its rows are epilogues of a GEMM.
        """
        outputs, graph = self.graph.segments[place][1], self.graph
        once = graph.reader_count(place) < 2 and not self.is_between_products(place)
        return once or any(map(self.avoidable_bytes, outputs)) or self.beats_keeping(place)

    def is_between_products(self, place: int) -> bool:
        """True if GEMMs read a product as it is, as the next layer does."""
        return self.graph.is_read_by_products(place) and not self.graph.is_normalised(place)

    def beats_keeping(self, place: int) -> bool:
        """True if a product is computed in blocks in the time to write, keep and read it.

        Reductions of its rows are made for large ones, so it counts as if it were in memory,
        whatever its size. Between products it must not fit into its share of the caches, and for
        one reader it is not computed again, but longer: tiles are small.
        """
        _, outputs, (kernel, _, _) = self.graph.segments[place]
        table, size = self.table, max(map(byte_count, outputs))
        again = product_work(work_of(kernel), table) / table.stream_gemm_rate
        if not self.is_between_products(place):
            spill = max(size * table.spill_ns_per_byte, spill_time([size], table))
            return again <= 2 * size / table.dram_bw + spill
        if self.graph.reader_count(place) < 2:
            again *= table.stream_loss
        spill = spill_time([size], table)
        return spill > 0 and again <= memory_time(2 * size, table) + spill

    def avoidable_bytes(self, node: Node) -> int:
        """Bytes of a value that a stream does without: of products not smaller than their factors.

        They are those of a batch, whose factors stay in caches, and those that are as quick to
        compute again and have row statistics, for which they would be read once more.
        """
        if node not in self._avoidable:
            place, graph = self.graph.producer_of.get(node), self.graph
            makers = () if place is None else (place, *graph.producers(place))
            size = elements(node.shape)
            able = [p for p in makers if graph.is_contraction(p) and graph.size(p) == size]
            spares = bool(able) and self._spares_memory(able[0])
            self._avoidable[node] = byte_count(node) if spares else 0
        return self._avoidable[node]

    def _spares_memory(self, place: int) -> bool:
        info = self.graph.info(place)
        if info is None:
            return False
        again = self.beats_keeping(place) and self.graph.is_normalised(place)
        if not (info.is_batched or again):
            return False
        reads = [a.axes for accesses in info.reads.values() for a in accesses]
        return max(map(info.access.count, reads), default=0) <= info.size

    # --- regions ---------------------------------------------------------------------------------

    def join(self, may_vanish: Set[int]) -> None:
        """Find what each segment could compute itself, and the regions that this makes."""
        gone = self.may_vanish - may_vanish
        self.may_vanish = may_vanish
        recomputed = frozenset([i for i in may_vanish if self.is_quick_again(i)])
        limits = Limits(may_vanish, recomputed, self.budget.inline_depth)
        for place in range(len(self.equal)):
            if place not in self.closures or not gone.isdisjoint(self._visited[place]):
                self.closures[place], self._visited[place] = closures(self.graph, place, limits)
        self.inlines = {
            place: frozenset(self.picked_from(place)).union(*[c.segments for c in found])
            for place, found in self.closures.items()
        }
        self.regions = self.joined()
        self.region_of = {place: set(region) for region in self.regions for place in region}

    def joined(self) -> list[list[int]]:
        """Segments that could be fused with each other, in order (union-find)."""
        first = list(range(len(self.equal)))  # of each segment one that it belongs to

        def find(place: int) -> int:
            while first[place] != place:
                first[place] = first[first[place]]
                place = first[place]
            return place

        for place, inlined in self.inlines.items():
            for other in sorted(inlined):
                a, b = sorted((find(place), find(other)))
                first[b] = a
        found: dict[int, list[int]] = {}
        for place in range(len(first)):
            found.setdefault(find(place), []).append(place)
        return [found[place] for place in sorted(found) if len(found[place]) > 1]

    def alone(self) -> list[list[int]]:
        """Segments of rows in no region that reduce what they reduced: each could be a stream."""
        found = []
        for place in range(len(self.equal)):
            info = self.graph.info(place) if self.graph.is_reduction(place) else None
            if info is not None and info.access.is_nested and place not in self.region_of:
                found.append([place])
        return found

    def largest(self, place: int) -> dict[Node, list[int]]:
        """The largest results of a segment, with those that read them."""
        outputs, most = self.graph.segments[place][1], self.graph.size(place)
        return {n: self.graph.readers.get(n, []) for n in outputs if elements(n.shape) == most}

    def stored_on_the_way(self) -> set[Node]:
        """Values that some readers could compute themselves and others need: one stores them."""
        found: set[Node] = set()
        for place in range(len(self.equal)):
            makers = (place, *self.graph.producers(place))
            whole = self.largest(place) if any(map(self.graph.has_reduction, makers)) else {}
            readers = {r for some in whole.values() for r in some}
            missed = {r for r in readers if place not in self.inlines[r]}
            if readers - missed:
                found.update([n for n, some in whole.items()
                              if n in self.graph.roots or not missed.isdisjoint(some)])  # fmt: skip
        return found

    def removable(self, places: Sequence[int]) -> Set[int]:
        """The segments that need not run: all that read them inline them, or are inlined with them.

        Statistics do not count: others can make them.
        """
        found: set[int] = set()
        wanted = set(self.wanted(places)) - self.side_outputs
        users: dict[int, list[int]] = {place: [] for place in places}
        for place in places:
            for other in self.inlines[place]:
                users[other].append(place)

        def is_computed(place: int, reader: int) -> bool:
            if place in self.inlines[reader]:
                return True
            ends = [u for u in users[reader] if u not in found]
            return reader in found and all(place in self.inlines[u] for u in ends)

        for place in reversed(places):
            whole = self.largest(place)
            if wanted.isdisjoint(whole):
                readers = {r for node in whole.keys() - self.side_outputs for r in whole[node]}
                if all(is_computed(place, r) for r in readers):
                    found.add(place)
        return self.may_vanish & found

    def picked_from(self, place: int) -> list[int]:
        """The producers of which a segment only chooses elements: who computes them can do that."""
        able = self.graph.producers(place) if self.graph.picks(place) else ()
        return [p for p in able if p in self.may_vanish]

    def below(self, place: int) -> list[int]:
        """Segments of the same region whose results one reads, if they may vanish."""
        inside = self.region_of.get(place, set()) & self.may_vanish
        return [p for p in self.graph.producers(place) if p in inside]

    def wanted(self, region: Sequence[int]) -> list[Node]:
        """What of a region is read outside it."""
        inside, graph = set(region), self.graph
        return [
            node for place in region for node in graph.segments[place][1]
            if node in graph.roots or any(r not in inside for r in graph.readers.get(node, ()))
        ]  # fmt: skip

    def key(self, region: Sequence[int]) -> Hashable:
        """What a region is: kernels, how they are joined, what others read, what may be inlined."""
        number: dict[object, int] = {}
        local = {place: i for i, place in enumerate(region)}
        wanted = set(self.wanted(region))
        parts: list[Hashable] = []
        for place in region:
            _, outputs, (kernel, reads, _) = self.graph.segments[place]
            joined = tuple([r if in_laws(r) else number.setdefault(r, len(number)) for r in reads])
            made = tuple([
                (number.setdefault(n, len(number)), n in wanted, n in self.side_outputs,
                 self.avoidable_bytes(n)) for n in outputs
            ])  # fmt: skip
            inlined = tuple([closure.numbered(local) for closure in self.closures[place]])
            vanishes = place in self.may_vanish
            parts.append((kernel.kind, kernel.body, joined, made, inlined, vanishes))
        return tuple(parts)

    def waits_for_itself(
        self, candidate: FusionCandidate, region: Sequence[int], needs: Iterable[Node]
    ) -> bool:
        """True if a kernel reads what segments outside the region compute from its own results."""
        mine = sum({1 << region[i] for i, _ in candidate.outputs})
        makers = {self.graph.producer_of.get(node) for node in needs}
        others = [p for p in makers.difference(region) if p is not None]
        return any(self.graph.ancestors[p] & mine for p in others)

    # --- fusing ----------------------------------------------------------------------------------

    def cut(self, candidate: FusionCandidate, region: Sequence[int]) -> tuple[list[Node], Cut]:
        """What a candidate stores, and its kernel."""
        graph, outputs = self.graph, self.stores(candidate, region)
        inside = {*candidate.inlined, *[i for i, _ in candidate.outputs]}
        gone = {node for i in inside for node in graph.segments[region[i]][1]}
        read = {n for i in candidate.statistics for n in graph.row_statistics(region[i])}
        readable = ((self.stored | self.params) - gone.union(outputs)) | read
        kernel, memory, origins = self.extractor.cut(candidate.kind, outputs, readable)
        return outputs, (replace(kernel, plan=candidate.plan), memory, origins)

    def stores(self, candidate: FusionCandidate, region: Sequence[int]) -> list[Node]:
        """What a candidate stores."""
        return [self.value(region, made) for made in candidate.outputs]

    def value(self, region: Sequence[int], made: tuple[int, int]) -> Node:
        """An output of a segment of a region, or one of its statistics."""
        place, number = region[made[0]], made[1]
        if number >= 0:
            return self.graph.segments[place][1][number]
        return self.graph.row_statistics(place)[-1 - number]

    def assembled(self, made: Iterable[tuple[int, Segment]]) -> list[Segment] | None:
        """The segments that are needed, in an order that works, near where they were.

        None where kernels of several regions wait for each other: each would do alone, not all.
        """
        fused = [_Entry(place, 0, segment) for place, segment in made]
        instead = {node for entry in fused for node in entry.outputs}
        plain = [
            _Entry(place, 1, segment)
            for place, segment in enumerate(self.graph.segments)
            if not segment[1] or not instead.issuperset(segment[1])
        ]
        maker = {node: entry for entry in (*plain, *fused) for node in entry.outputs}
        ends = [maker[node] for node in self.graph.roots if node in maker]
        ends += [entry for entry in plain if not self.graph.has_readers(entry.place)]
        entries = walk(ends, lambda entry: [maker[n] for n in entry.reads if n in maker])
        needed = sorted(entries, key=lambda entry: (entry.place, entry.rank))
        return _ordered(needed, maker)


class _Entry:
    """A kernel of a plan, with the place near which it runs."""

    __slots__ = ("outputs", "place", "rank", "reads", "segment")

    def __init__(self, place: int, rank: int, segment: Segment) -> None:
        self.place, self.rank, self.segment = place, rank, segment
        self.outputs, self.reads = segment[1], memory_of(segment[2])


def _ordered(left: list[_Entry], made: Iterable[Node]) -> list[Segment] | None:
    """Entries in an order in which what each reads is there; None if there is none."""
    missing = set(made)
    out: list[Segment] = []
    while left:
        ready = next((e for e in left if missing.isdisjoint(e.reads)), None)
        if ready is None:
            return None
        left.remove(ready)
        missing.difference_update(ready.outputs)
        out.append(ready.segment)
    return out
