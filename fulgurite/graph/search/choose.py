"""Choosing kernels: regions of the greedy schedule, alternatives for them, and the cheapest set.

In: the pieces of a greedy schedule (why, what is stored, the kernel that was cut out). Out: the same
results from other pieces where that is cheaper. A piece that reduces what another piece stored may
take that one in, so that the value between is never stored: such pieces make up a region. Equal
regions are searched once (`REGIONS`): their key is the kernels and how they are joined. Every
`Source` is asked whether it has a kernel for the merged graph and at what cost; what it proposes
competes with the greedy pieces in `extract`. Budgets are counts, so the answer is the same in every
process; reports say what was found, what it costs and why it was chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from ...core.node import Node, toposort
from ...core.ops.leaf import PARAM
from ...core.ops.reduce import REDUCE
from ..cost import SHIPPED, CostTable, elements, is_contraction, time_of
from ..kernel import Cut, Extractor, Kernel
from .extract import STEPS, Extraction, Producer, extract

Piece: TypeAlias = "tuple[str, list[Node], Cut]"  # why, what it stores, the kernel
_KINDS = ("map", "reduce", "contract")  # pieces that may be merged
DEEP = 4  # pieces that one may take in, one behind the other
TRIES = 8  # merged graphs that are tried for one piece
_KEPT = 512  # regions whose answer is kept


@dataclass(frozen=True)
class Proposal:
    """A kernel that a source has for a graph."""

    kind: str
    cost: float  # nanoseconds
    what: str  # for people: what it is
    rules: tuple[tuple[str, int], ...] = ()  # that fired on the way
    nodes: int = 0  # of the e-graph that was searched


@dataclass(frozen=True)
class Source:
    """Where alternatives come from; `name` is part of every key."""

    name: str
    propose: Callable[[Kernel, CostTable], Proposal | None]


@dataclass(frozen=True)
class Alternative:
    """One way to compute a piece of a region, for people."""

    what: str
    cost: float
    chosen: bool
    replaces: int  # greedy pieces


@dataclass
class RegionReport:
    """What was found for one region."""

    pieces: int
    alternatives: list[Alternative] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)
    nodes: int = 0  # most of an e-graph
    steps: int = 0  # of branch and bound
    complete: bool = True
    greedy: float = 0.0
    cost: float = 0.0
    cached: bool = False

    def __str__(self) -> str:
        head = f"region of {self.pieces} kernels: {self.greedy / 1e3:.1f} us as they were, "
        head += f"{self.cost / 1e3:.1f} us chosen"
        rules = ", ".join(f"{name} x{count}" for name, count in sorted(self.rules.items()))
        budget = f"{self.nodes} terms, {self.steps} steps"
        how = "all alternatives" if self.complete else "as far as the budget went"
        lines = [head, f"    rules: {rules or 'none'}; {budget}; {how}"]
        if self.cached:
            lines[1] += "; known from an equal region"
        for a in self.alternatives:
            mark = "chosen" if a.chosen else "not chosen"
            lines.append(f"    {a.what}: {a.cost / 1e3:.1f} us, {mark}")
        return "\n".join(lines)


def propose_rows(kernel: Kernel, table: CostTable) -> Proposal | None:
    """Rows that are folded over the same axes, and what is picked from them, as one kernel."""
    folds = [n for n in toposort([kernel.body]) if n.op is REDUCE]
    rows = {(n.src[0].shape, n.arg[1]) for n in folds}
    if len(rows) != 1 or any(map(is_contraction, folds)):
        return None
    if any(elements(root.shape) > elements(folds[0].src[0].shape) for root in kernel.body.src):
        return None
    cost = time_of(Kernel("reduce", kernel.body, kernel.inputs), table)
    return Proposal("reduce", cost, "rows and what is picked from them in one kernel")


ROWS = Source("rows", propose_rows)
Choice: TypeAlias = "tuple[tuple[int, tuple[int, ...], str], ...]"  # anchor, taken in, kind
REGIONS: OrderedDict[Hashable, tuple[Choice, RegionReport]] = OrderedDict()


class Searcher:
    """A choice among kernels, for one schedule after the other."""

    def __init__(
        self, sources: Sequence[Source], table: CostTable = SHIPPED, steps: int = STEPS
    ) -> None:
        self.sources, self.table, self.steps = tuple(sources), table, steps
        self.reports: list[RegionReport] = []
        self.searched = 0  # regions that were not known

    def __call__(self, pieces: Sequence[Piece], roots: Set[Node]) -> list[Piece]:
        """The pieces to run, in order."""
        self.reports = []
        work = _Work(pieces, roots)
        replaced: dict[int, Piece] = {}
        for region in work.regions():
            key = (work.key(region), self.table.digest, tuple([s.name for s in self.sources]))
            found = REGIONS.get(key)
            if found is None:
                self.searched += 1
                found = REGIONS[key] = self.search(work, region)
                self.reports.append(found[1])
                if len(REGIONS) > _KEPT:
                    REGIONS.popitem(last=False)
            else:
                REGIONS.move_to_end(key)
                known = RegionReport(**{**vars(found[1]), "cached": True})
                self.reports.append(known)
            for anchor, taken, kind in found[0]:
                place = region[anchor]
                merged = work.merged(place, [region[t] for t in taken], kind)
                reason = found[1].alternatives[0].what if found[1].alternatives else ""
                reason = next((a.what for a in found[1].alternatives if a.chosen), reason)
                replaced[place] = (reason, list(pieces[place][1]), merged)
        return work.kept(replaced)

    def search(self, work: _Work, region: list[int]) -> tuple[Choice, RegionReport]:
        """The cheapest way to compute what a region stores for others."""
        report = RegionReport(len(region))
        local = {place: i for i, place in enumerate(region)}
        producers: list[Producer] = []
        ways: dict[str, tuple[int, tuple[int, ...], str]] = {}
        for place in region:
            kernel = work.pieces[place][2][0]
            cost = time_of(kernel, self.table)
            report.greedy += cost
            producers.append(work.producer(place, f"greedy {local[place]}", cost))
        for place in region:
            for taken in work.tries(place):
                merged = work.merged(place, taken, "fold")
                for source in self.sources:
                    found = source.propose(merged[0], self.table)
                    if found is None:
                        continue
                    report.nodes = max(report.nodes, found.nodes)
                    for rule, count in found.rules:
                        report.rules[rule] = report.rules.get(rule, 0) + count
                    inside = tuple([local[t] for t in taken])
                    name = f"{source.name} {local[place]} with {list(inside)}"
                    ways[name] = (local[place], inside, found.kind)
                    needs = work.memory(merged)
                    producers.append(
                        Producer(name, tuple(work.pieces[place][1]), needs, found.cost)
                    )
                    report.alternatives.append(
                        Alternative(found.what, found.cost, False, 1 + len(taken))
                    )
        if not ways:
            report.cost = report.greedy
            return (), report
        chosen = self.extracted(work, region, producers)
        report.steps, report.complete, report.cost = chosen.steps, chosen.complete, chosen.cost
        names = {p.name for p in chosen.producers}
        report.alternatives = [
            Alternative(a.what, a.cost, name in names, a.replaces)
            for name, a in zip(ways, report.alternatives, strict=True)
        ]
        return tuple([way for name, way in ways.items() if name in names]), report

    def extracted(
        self, work: _Work, region: list[int], producers: Sequence[Producer]
    ) -> Extraction:
        """The cheapest producers of what others read of a region."""
        made = {node for place in region for node in work.pieces[place][1]}
        given = {n for p in producers for n in p.needs if n not in made}
        return extract(producers, work.wanted(region), given, self.steps)


class _Work:
    """The pieces of a schedule and how they are joined."""

    def __init__(self, pieces: Sequence[Piece], roots: Set[Node]) -> None:
        self.pieces, self.roots = list(pieces), roots
        self.maker = {node: i for i, (_, outputs, _) in enumerate(pieces) for node in outputs}
        self.readers: dict[Node, list[int]] = {}
        for i, (_, _, cut) in enumerate(pieces):
            for node in self.memory(cut):
                self.readers.setdefault(node, []).append(i)
        self.stored = frozenset(self.maker)
        self.params = {n for _, _, cut in pieces for n in self.memory(cut) if n.op is PARAM}
        self.extractor = Extractor()
        self.edges = {i: list(self.taken_in(i)) for i in range(len(pieces))}

    def memory(self, cut: Cut) -> frozenset[Node]:
        """The values in memory that a kernel reads."""
        return frozenset([m for m in cut[1] if isinstance(m, Node)])

    def producer(self, place: int, name: str, cost: float) -> Producer:
        _, outputs, cut = self.pieces[place]
        return Producer(name, tuple(outputs), self.memory(cut), cost)

    # --- regions ---------------------------------------------------------------------------------

    def taken_in(self, place: int) -> Iterator[int]:
        """The pieces whose results this one reduces and could compute itself."""
        kernel = self.pieces[place][2][0]
        if kernel.kind not in _KINDS:
            return
        most = max([elements(n.shape) for n in self.pieces[place][1]])
        for node in sorted(self.memory(self.pieces[place][2]), key=lambda n: n.id):
            other = self.maker.get(node)
            if other is None or node in self.roots:
                continue
            inner = self.pieces[other][2][0]
            size, only = elements(node.shape), self.readers[node] == [place]
            picks = kernel.kind != "map" or (
                most <= size if inner.kind == "reduce" else 4 * most <= size or (
                    only and most == size)
            )  # fmt: skip
            if inner.kind == kernel.kind == "contract" and most >= size:
                continue  # what is between is no larger than the result
            if inner.kind in _KINDS and picks and _worth(kernel, inner):
                yield other

    def regions(self) -> list[list[int]]:
        """Pieces that could be merged with each other, in order."""
        group = {i: {i} for i in range(len(self.pieces))}
        for place, others in self.edges.items():
            for other in others:
                both = group[place] | group[other]
                for member in both:
                    group[member] = both
        found = {min(g): sorted(g) for g in group.values() if len(g) > 1}
        return [found[first] for first in sorted(found)]

    def wanted(self, region: Sequence[int]) -> list[Node]:
        """What of a region is read outside it."""
        inside = set(region)
        return [
            node for place in region for node in self.pieces[place][1]
            if node in self.roots or any(r not in inside for r in self.readers.get(node, ()))
        ]  # fmt: skip

    def key(self, region: Sequence[int]) -> Hashable:
        """What a region is: its kernels, how they are joined, and what others read of it."""
        number: dict[object, int] = {}
        wanted = set(self.wanted(region))
        parts: list[Hashable] = []
        for place in region:
            _, outputs, (kernel, reads, _) = self.pieces[place]
            joined = tuple([number.setdefault(r, len(number)) for r in reads])
            made = tuple([(number.setdefault(n, len(number)), n in wanted) for n in outputs])
            parts.append((kernel.kind, kernel.body, joined, made))
        return tuple(parts)

    def tries(self, place: int) -> Iterator[list[int]]:
        """The sets of pieces that one may take in: nearest first, then what those read."""
        taken: list[int] = []
        edge = self.below(place) if self.edges[place] else []
        tried = 0
        for _ in range(DEEP):
            fresh = [e for e in dict.fromkeys(edge) if e not in taken]
            if not fresh:
                return
            for one in fresh if len(fresh) > 1 else ():
                tried += 1
                if tried > TRIES:
                    return
                yield [*taken, one]
            taken = [*taken, *fresh]
            tried += 1
            if tried > TRIES:
                return
            yield taken
            edge = [e for f in fresh for e in self.below(f)]

    def below(self, place: int) -> list[int]:
        """Pieces whose results one reads, if they can be merged at all."""
        found = []
        for node in sorted(self.memory(self.pieces[place][2]), key=lambda n: n.id):
            other = self.maker.get(node)
            if other is not None and other in self.members(place):
                found.append(other)
        return found

    def members(self, place: int) -> set[int]:
        """The pieces of the region that a piece is in."""
        for region in self._regions:
            if place in region:
                return set(region)
        return set()

    @property
    def _regions(self) -> list[list[int]]:
        if not hasattr(self, "_known"):
            self._known = self.regions()
        return self._known

    # --- merging ---------------------------------------------------------------------------------

    def merged(self, place: int, taken: Sequence[int], kind: str) -> Cut:
        """The kernel that computes a piece together with some it reads from."""
        gone = {node for t in taken for node in self.pieces[t][1]}
        outputs = self.pieces[place][1]
        readable = (self.stored | self.params) - gone - set(outputs)
        return self.extractor.cut(kind, outputs, readable)

    def kept(self, replaced: dict[int, Piece]) -> list[Piece]:
        """The pieces that are still needed, in order."""
        wanted: set[object] = set(self.roots)
        found: list[Piece] = []
        for place in reversed(range(len(self.pieces))):
            piece = replaced.get(place, self.pieces[place])
            if place in replaced or any(node in wanted for node in piece[1]) or (
                not self.readers_of(place)
            ):
                wanted.update(self.memory(piece[2]))
                found.append(piece)
        return found[::-1]

    def readers_of(self, place: int) -> bool:
        """Did anybody read a piece when the schedule was greedy? What nobody reads has effects."""
        return any(self.readers.get(node) for node in self.pieces[place][1])


def _worth(outer: Kernel, inner: Kernel) -> bool:
    """May merging two kernels pay? A product inside is worked out again for every tile of columns."""
    folds = [n for n in toposort([inner.body]) if n.op is REDUCE]
    if outer.kind != "contract" or not folds:
        return bool(folds)
    return not any(map(is_contraction, folds)) or _columns(outer) <= COLUMNS


COLUMNS = 512  # of a contraction, more of which would mean several tiles


def _columns(kernel: Kernel) -> int:
    """The fewer of the two sides of a contraction's results."""
    for node in toposort([kernel.body]):
        if node.op is REDUCE and is_contraction(node):
            whole = elements(node.src[0].shape)
            out = elements(node.shape)
            sides = []
            for factor in node.src[0].src:
                while factor.op.name == "expand":
                    factor = factor.src[0]
                sides.append(whole // max(1, elements(factor.shape)))
            return min(*sides, out)
    return 1
