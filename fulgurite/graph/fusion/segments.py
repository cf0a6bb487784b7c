"""Segments: the kernels of a greedy schedule, what each reads and makes, and its access relations.

In: segments (why, what is stored, the kernel cut out for it) and the results asked for. Out: a
`SegmentGraph`: who reads what, and one `SegmentInfo` of every segment that may be fused: its kind,
and by which of its axes it reads and writes each value. Per-row statistics of a segment are what it
folds to one number a row: once they are known, each of its elements stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, backward_slice
from ...core.ops.indexing import GATHER
from ...core.ops.movement import SHRINK, WINDOW
from ...core.ops.reduce import REDUCE
from ..ir.kernel import Cut
from ..ir.queries import elements
from . import KINDS
from .access import NO_AXES, Access, KernelAccess, access_of
from .build_schedule import Segment
from .machine import COUNTING

_PICKS = (GATHER, SHRINK, WINDOW)  # ops that choose elements


class SegmentInfo(NamedTuple):
    """What a segment is."""

    kind: str
    size: int  # elements of its largest result
    access: KernelAccess
    reads: dict[Node, tuple[Access, ...]]
    writes: dict[Node, Access]

    @property
    def is_contraction(self) -> bool:
        """True if it is a GEMM."""
        return self.kind == "contract"

    @property
    def is_batched(self) -> bool:
        """True if both factors of a product vary along an axis that is not reduced."""
        batches = [NO_AXES if not r.factors else frozenset.intersection(*r.factors) - r.axes
                   for r in self.access.reductions]  # fmt: skip
        return any(batches)

    @property
    def keeps_elements(self) -> bool:
        """True if a result varies along an axis that is reduced: a second look at each element."""
        written = NO_AXES.union(*[access.axes for access in self.writes.values()])
        return bool(written & self.access.reduced)

    def reduced_extents(self, node: Node) -> set[tuple[tuple[int, int], ...]]:
        """The parts of a value's address that are reduced, for each read of it."""
        return {a.extent(a.reduced) for a in self.reads.get(node, ())}


class SegmentGraph:
    """The segments of a schedule."""

    def __init__(self, segments: Sequence[Segment], roots: Set[Node]) -> None:
        self.segments, self.roots = list(segments), roots
        self.producer_of = {n: i for i, (_, outputs, _) in enumerate(segments) for n in outputs}
        self.readers: dict[Node, list[int]] = {}
        self.reads = [sorted(memory_of(cut), key=lambda n: n.id) for _, _, cut in segments]
        for i, nodes in enumerate(self.reads):
            for node in nodes:
                self.readers.setdefault(node, []).append(i)
        self.ancestors: list[int] = []  # for each segment: bits of all that must have run
        for nodes in self.reads:
            bits = 0
            for node in nodes:
                other = self.producer_of.get(node)
                bits |= 0 if other is None else self.ancestors[other] | 1 << other
            self.ancestors.append(bits)
        made = [[self.producer_of[n] for n in some if n in self.producer_of] for some in self.reads]
        self._producers = [list(dict.fromkeys(some)) for some in made]
        self._accesses: dict[Node, KernelAccess | None] = {}  # equal kernels are looked at once
        self._infos: dict[int, SegmentInfo | None] = {}
        self._statistics: dict[int, tuple[Node, ...]] = {}

    def info(self, place: int) -> SegmentInfo | None:
        """What a segment is; None if it is never fused."""
        if place not in self._infos:
            self._infos[place] = self._info(place)
        return self._infos[place]

    def _info(self, place: int) -> SegmentInfo | None:
        _, outputs, (kernel, memory, _) = self.segments[place]
        if kernel.kind not in KINDS:
            return None
        if kernel.body not in self._accesses:
            self._accesses[kernel.body] = access_of(kernel)
        access = self._accesses[kernel.body]
        if access is None:
            return None
        reads = {m: access.reads[i] for i, m in enumerate(memory) if isinstance(m, Node)}
        writes = dict(zip(outputs, access.writes, strict=True))
        return SegmentInfo(kernel.kind, self.size(place), access, reads, writes)

    def size(self, place: int) -> int:
        """Elements of the largest result of a segment."""
        return max([elements(n.shape) for n in self.segments[place][1]], default=0)

    def peak_bytes(self, segments: Sequence[Segment]) -> int:
        """Bytes of values that are no results, at the time when most of them are there."""
        return max(self.live_bytes(segments))

    def live_bytes(self, segments: Sequence[Segment]) -> list[int]:
        """Bytes of values that are no results, while each segment runs."""
        last = {n: i for i, (_, _, cut) in enumerate(segments) for n in memory_of(cut)}
        change = [0] * (len(segments) + 2)
        for i, (_, outputs, _) in enumerate(segments):
            for node in outputs:
                if node not in self.roots:
                    change[i] += byte_count(node)
                    change[last.get(node, i) + 1] -= byte_count(node)
        return list(accumulate(change))

    def kind(self, place: int) -> str:
        """The kind of a segment's kernel."""
        return self.segments[place][2][0].kind

    def is_contraction(self, place: int) -> bool:
        """True if a segment is a GEMM."""
        return self.kind(place) == "contract"

    def is_reduction(self, place: int) -> bool:
        """True if a segment reduces rows."""
        return self.kind(place) == "reduce"

    def has_reduction(self, place: int) -> bool:
        """True if a segment reduces anything."""
        return self.kind(place) in ("reduce", "contract")

    def is_statistic(self, place: int) -> bool:
        """True if a segment of rows keeps one number a row alone."""
        info = self.info(place)
        return info is not None and self.is_reduction(place) and not info.keeps_elements

    def producers(self, place: int) -> list[int]:
        """The segments whose results one reads."""
        return self._producers[place]

    def has_readers(self, place: int) -> bool:
        """True if anybody read a segment in the greedy schedule: what nobody reads has effects."""
        return any(self.readers.get(node) for node in self.segments[place][1])

    def reader_count(self, place: int) -> int:
        """How many segments read what one stores."""
        return len({r for node in self.segments[place][1] for r in self.readers.get(node, ())})

    def is_read_by_products(self, place: int) -> bool:
        """True if a GEMM reads what a segment stores."""
        readers = [r for node in self.segments[place][1] for r in self.readers.get(node, ())]
        return any(map(self.is_contraction, readers))

    def reduce_across(self, first: int, second: int) -> bool:
        """True if two segments reduce values of one shape along different axes."""
        mine, theirs = self._extents(first), self._extents(second)
        return any(s == t and m != o for s, m in mine for t, o in theirs)

    def _extents(self, place: int) -> list[tuple[object, set[tuple[tuple[int, int], ...]]]]:
        info = self.info(place)
        if info is None:
            return []
        made = [n for n in info.reads if n in self.producer_of]
        found = [(n.shape, info.reduced_extents(n)) for n in made]
        return [(shape, extents) for shape, extents in found if extents - {()}]

    # --- per-row statistics ----------------------------------------------------------------------

    def has_shared_statistics(self, place: int) -> bool:
        """True if several segments read one of rows, which has statistics."""
        shared = self.is_reduction(place) and self.reader_count(place) > 1
        return shared and self.has_statistics(place)

    def has_statistics(self, place: int) -> bool:
        """True if there are statistics as exact as what is computed with them."""
        values = self.row_statistics(place) if self.is_reduction(place) else ()
        return bool(values) and not any(n.dtype.is_small_float for n in values)

    def is_normalised(self, place: int) -> bool:
        """True if statistics of a segment's results are made of them, or read beside its sums."""
        outputs, info = self.segments[place][1], self.info(place)
        readers = [r for node in outputs for r in self.readers.get(node, ())]
        if any(map(self.has_statistics, readers)) or info is None:
            return bool(readers)
        beside = [n for n, some in info.reads.items() if not any(a.reduced for a in some)]
        makers = [self.producer_of[n] for n in beside if n in self.producer_of]
        return any(map(self.is_reduction, makers))

    def picks(self, place: int) -> bool:
        """True if a segment of rows reads a product only to choose elements of it."""
        return self.is_reduction(place) and any(n.op in _PICKS for n in self.row_statistics(place))

    def row_statistics(self, place: int) -> tuple[Node, ...]:
        """What a segment folds to one number a row: with it each element stands alone."""
        if place not in self._statistics:
            _, outputs, cut = self.segments[place]
            stops, most = memory_of(cut), self.size(place)
            found: dict[Node, None] = {}
            seen: set[Node] = set()
            stack = [n for n in reversed(outputs) if self._is_for_elements(n, most)]
            while stack:
                node = stack.pop()
                if node in seen or node in stops:
                    continue
                seen.add(node)
                folded = node.op is REDUCE and elements(node.shape) < most
                if folded or self._is_picked(node):
                    found[node] = None
                else:
                    stack.extend(reversed(node.src))
            self._statistics[place] = tuple(found)
        return self._statistics[place]

    def _is_for_elements(self, node: Node, most: int) -> bool:
        """True if a result belongs to the elements of rows, or who reads it does."""
        readers = [r for r in self.readers.get(node, ()) if self.kind(r) in KINDS]
        return elements(node.shape) == most or any(self.size(r) >= most for r in readers)

    def _is_picked(self, node: Node) -> bool:
        """True if it is a few elements, chosen from a product that is stored for them."""
        if node.op not in _PICKS:
            return False
        if COUNTING.picked_share * elements(node.shape) > elements(node.src[0].shape):
            return False
        made = self.producer_of
        below = backward_slice(node.src[:1], made.__contains__)
        return any(self.is_contraction(made[n]) for n in below if n in made)


def byte_count(node: Node) -> int:
    """Bytes of a value."""
    return elements(node.shape) * node.dtype.itemsize


def memory_of(cut: Cut) -> frozenset[Node]:
    """The values in memory that a kernel reads."""
    return frozenset([m for m in cut[1] if isinstance(m, Node)])
