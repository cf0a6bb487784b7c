"""Views that are stored: index arithmetic that readers repeat is paid once where that is cheaper.

In: a `Partition`, kernels as greedy fusion made them. Out: one in which some values that kernels
compute on their way are stored by kernels of their own. Movement costs greedy fusion nothing, and
mostly it is nothing: an address. A concatenation is a choice between its parts for every element,
though, and what is permuted and then reshaped or padded may be numbers read one by one
(`index_cost`). Such a value could be stored: that costs its own kernel, and each kernel that has it
inside saves what it costs more by than one that reads memory (`time_of`). So could a product whose
results would be stored in turns, one by one: a map puts them in order. The value that saves most is
stored first, until none does: a lazy greedy choice (Minoux, 1978), in which what a value saved
before some store is believed until it is the most. To store a value is always legal: kernels are
cut anew, in the order they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from math import inf

from ...core.node import Node, toposort
from ...core.op import Op
from ...core.ops.effect import REMAT
from ...core.ops.movement import EXPAND, PAD, PERMUTE, RESHAPE
from ...core.ops.reduce import REDUCE
from ..ir.kernel import Cut, Extractor
from ..ir.queries import is_contraction
from . import KINDS
from .build_schedule import Partition, Segment
from .index_cost import is_concat, only_chooses
from .machine import CostTable, spill_time, time_of, work_of
from .segments import byte_count, memory_of

WHY = "its readers would look up its elements again and again"
STRIDED = "a product would store its results one by one"


def store_views(partition: Partition, table: CostTable) -> Partition:
    """The partition with values stored that are costly to address."""
    inside = [_views_inside(segment) for segment in partition.segments]
    return _Views(partition, table, inside).stored() if any(inside) else partition


def _views_inside(segment: Segment) -> list[Node]:
    """The values that a kernel computes on its way and that are choices or reordered."""
    _, outputs, cut = segment
    if cut[0].kind not in KINDS:
        return []
    memory, found = memory_of(cut), dict[Node, None]()
    gathers = work_of(cut[0]).gathered > 0
    read_by = {(PAD, n.src[0]) for n in outputs if n.op is PAD}
    seen, stack = set[Node](), [s for n in outputs for s in n.src]
    while stack:
        node = stack.pop()
        if node in seen or node in memory or node.op is REMAT:
            continue
        seen.add(node)
        if is_concat(node):
            found[node] = None
            stack += _parts(node)
            continue
        if gathers and (_is_product(node) or _falls_apart(node, read_by)):
            found[node] = None
        read_by.update([(node.op, s) for s in node.src[:1]])
        stack += node.src
    return list(found)


def _falls_apart(node: Node, read_by: Set[tuple[Op, Node]]) -> bool:
    """True if a value is reordered or repeated and then reshaped, or reordered and then padded: a
    reshape of what is in memory is that memory."""
    if (RESHAPE, node) in read_by:
        return node.op in (PERMUTE, EXPAND)
    return node.op is PERMUTE and (PAD, node) in read_by


def _is_product(node: Node) -> bool:
    """True if a value is what a GEMM computes."""
    return node.op is REDUCE and is_contraction(node)


def _parts(node: Node) -> list[Node]:
    """What is put together, also of parts that were put together first."""
    found: list[Node] = []
    stack = [side.src[0] for side in node.src[1:]]
    while stack:
        part = stack.pop()
        if is_concat(part):
            stack += [side.src[0] for side in part.src[1:]]
        else:
            found.append(part)
    return found


class _Views:
    """A choice of values to store."""

    def __init__(
        self, partition: Partition, table: CostTable, inside: Sequence[Iterable[Node]]
    ) -> None:
        self.partition, self.table = partition, table
        self.extractor = Extractor()
        self.segments: dict[int, Segment] = dict(enumerate(partition.segments))
        self.position = {n: place for place, (_, nodes, _) in self.segments.items() for n in nodes}
        self.users: dict[Node, list[int]] = {}  # of each value that could be stored
        for place, nodes in enumerate(inside):
            for node in nodes:
                self.users.setdefault(node, []).append(place)
        for node in [n for n in self.users if n in self.position]:
            self.users[node].append(self.position[node])  # stored later: it need not be
        self.made: dict[int, list[Segment]] = {}  # kernels that are new, by the place they are at
        self.savings: dict[Node, float] = {}  # of values, when they were last looked at
        self.fresh: set[Node] = set()  # those since whose look none of their kernels changed
        self.shares: dict[int, dict[Node, float]] = {}  # of each kernel, in what a value saves

    def stored(self) -> Partition:
        """The partition with whatever saves time stored."""
        while self.users:
            best = max(self.users, key=lambda node: self.savings.get(node, inf))
            saves = self.savings.get(best, inf) > 0
            if saves and best in self.fresh:
                self.store(best)
                continue
            stale = [best] if saves else [n for n in self.users if n not in self.fresh]
            if not stale:
                break
            for node in stale:
                self.savings[node] = self.saving(node)
            self.fresh.update(stale)
        if not self.made:
            return self.partition
        found: list[Segment] = []
        for place, own in self.segments.items():
            found += self.made.get(place, ())
            found += [own] if own[1] else []
        return self.partition._replace(segments=tuple(found))

    def saving(self, node: Node) -> float:
        """Nanoseconds that are saved if a value is stored."""
        table = self.table
        own = time_of(self.maker(node)[0], table) + spill_time([byte_count(node)], table)
        return self.saved(node) + self.text(node) - own - table.compile_ns

    def text(self, node: Node) -> float:
        """Nanoseconds of compiling: what a kernel computes of a concatenation is written out for
        each part; a kernel that only copies parts has them as numbers of a table."""
        several = max(0, len(_parts(node)) - 2)
        readers = [
            place
            for place in self.users[node]
            if several and not only_chooses(toposort([self.segments[place][2][0].body]))
        ]
        return several * len(readers) * self.table.part_ns

    def saved(self, node: Node) -> float:
        """Nanoseconds that the kernels save that have a value inside, if they read it."""
        return sum([self.share(place, node) for place in self.users[node]])

    def share(self, place: int, node: Node) -> float:
        """Nanoseconds that one kernel saves, found once for as long as the kernel is the same."""
        known = self.shares.setdefault(place, {})
        if node not in known:
            outputs, cut = self.reader(place, node)
            left = time_of(cut[0], self.table) if outputs else 0.0
            known[node] = time_of(self.segments[place][2][0], self.table) - left
        return known[node]

    def maker(self, node: Node) -> Cut:
        """The kernel that stores a value."""
        kind = "contract" if _is_product(node) else "map"
        return self.extractor.cut(kind, [node], self.readable(self.users[node][0]))

    def reader(self, place: int, node: Node) -> tuple[list[Node], Cut]:
        """What a kernel stores that has a value inside, and that kernel, if it reads the value."""
        _, outputs, cut = self.segments[place]
        outputs = [n for n in outputs if n is not node]
        if outputs:
            kind = "map" if _is_product(node) else cut[0].kind
            cut = self.extractor.cut(kind, outputs, self.readable(place) | {node})
        return outputs, cut

    def readable(self, place: int) -> set[Node]:
        """What is in memory when a kernel runs."""
        before = {node for node, other in self.position.items() if other < place}
        new = [n for p, made in self.made.items() if p <= place for _, nodes, _ in made
               for n in nodes]  # fmt: skip
        return before.union(new, self.partition.params)

    def store(self, node: Node) -> None:
        """Store a value, and let its readers read it."""
        cut, users = self.maker(node), self.users[node]
        why, apart = (WHY, "") if not _is_product(node) else (self.segments[users[0]][0], STRIDED)
        for place in users:
            self.segments[place] = apart or self.segments[place][0], *self.reader(place, node)
            self.shares.pop(place, None)
        self.position.pop(node, None)
        self.made.setdefault(users[0], []).append((why, [node], cut))
        del self.users[node]
        self.look_again(users)

    def look_again(self, changed: Sequence[int]) -> None:
        """Forget what is no longer inside of kernels that changed, and doubt what it would save."""
        inside = {place: set(_views_inside(self.segments[place])) for place in changed}
        for node, places in list(self.users.items()):
            if not set(changed).isdisjoint(places):
                self.fresh.discard(node)
                left = [p for p in places if p not in inside or node in inside[p]]
                self.users[node] = left
                if not left:
                    del self.users[node]
