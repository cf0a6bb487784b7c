"""Choosing kernels: regions of the greedy schedule, alternatives for them, and the cheapest set.

In: the pieces of a greedy schedule (why, what is stored, the kernel cut out for it). Out: the same
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
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

from ...core.node import Node, toposort
from ...core.ops.elementwise import ADD, CAST, SUB
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import PARAM
from ...core.ops.reduce import REDUCE
from ..cost import SHIPPED, CostTable, Work, elements, is_contraction, least_time, time_of, work_of
from ..kernel import Cut, Extractor, Kernel
from .extract import STEPS, Producer, extract
from .report import Alternative, RegionReport

Piece: TypeAlias = "tuple[str, list[Node], Cut]"  # why, what it stores, the kernel
_KINDS = ("map", "reduce", "contract")  # pieces that may be merged
DEEP = 4  # pieces that one may take in, one behind the other
ATTEMPTS = 48  # merged graphs that are tried for one region
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
    """Where alternatives come from; `name` is part of every key.

    `least`, if there is one, says from the work of a kernel what no proposal for it goes below:
    where even that does not pay, the source is not asked.
    """

    name: str
    propose: Callable[[Kernel, CostTable], Proposal | None]
    least: Callable[[Work, CostTable], float] | None = None


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


ROWS = Source("rows", propose_rows, least_time)


@dataclass(frozen=True)
class Way:
    """A kernel that could be run, in terms of the pieces of its region."""

    makes: tuple[tuple[int, int], ...]  # (piece, number of its output); below 0: of its row values
    taken: tuple[int, ...]  # pieces that it computes itself
    rows: tuple[int, ...] = ()  # pieces of rows whose row values it reads
    kind: str = "fold"


Choice: TypeAlias = "tuple[tuple[Way, str], ...]"  # with what it is, for people
REGIONS: OrderedDict[Hashable, tuple[Choice, RegionReport]] = OrderedDict()


class Searcher:
    """A choice among kernels, for one schedule after the other."""

    def __init__(
        self, sources: Sequence[Source], table: CostTable = SHIPPED, steps: int = STEPS
    ) -> None:
        self.sources, self.table, self.steps = tuple(sources), table, steps
        self.reports: list[RegionReport] = []
        self.searched = 0  # regions that were not known

    tag: Hashable = None  # what else the answers depend on

    def price(self, kernel: Kernel) -> float:
        """What a piece costs as it is."""
        return time_of(kernel, self.table)

    def weighed(self, search: RegionSearch, wanted: list[Node], given: set[Node]) -> list[Producer]:
        """The producers of a region, with the costs that count."""
        return search.producers

    def __call__(self, pieces: Sequence[Piece], roots: Set[Node]) -> list[Piece]:
        """The pieces to run, in order."""
        self.reports = []
        work = _Work(pieces, roots)
        made: list[tuple[int, Piece]] = []
        for region in work.regions:
            names = tuple([s.name for s in self.sources])
            key = (work.key(region), self.table.digest, names, self.tag)
            found = REGIONS.get(key)
            if found is None:
                self.searched += 1
                found = REGIONS[key] = RegionSearch(self, work, region).run()
                self.reports.append(found[1])
                if len(REGIONS) > _KEPT:
                    REGIONS.popitem(last=False)
            else:
                REGIONS.move_to_end(key)
                self.reports.append(replace(found[1], cached=True))
            for way, what in found[0]:
                place = max([region[piece] for piece, _ in way.makes])
                made.append((place, (what, *work.cut(way, region))))
        return work.assembled(made)


class RegionSearch:
    """The search of one region."""

    def __init__(self, who: Searcher, work: _Work, region: list[int]) -> None:
        self.who, self.work, self.region = who, work, region
        self.report = RegionReport(len(region))
        self.local = {place: i for i, place in enumerate(region)}
        self.producers: list[Producer] = []
        self.ways: dict[str, tuple[Way, str]] = {}
        self.tried: set[Way] = set()
        self.greedy: list[float] = []  # what each piece costs as it is
        self.superfluous = work.superfluous(region)

    def run(self) -> tuple[Choice, RegionReport]:
        work, report = self.work, self.report
        for place in self.region:
            cost = self.who.price(work.pieces[place][2][0])
            cost += self.kept(work.pieces[place][1]) + self.who.table.made
            report.greedy += cost
            self.greedy.append(cost)
            self.producers.append(work.producer(place, f"greedy {self.local[place]}", cost))
        self.propose_all()
        if not self.ways:
            report.cost = report.greedy
            return (), report
        made = {node for p in self.producers for node in p.makes}
        known = work.stored | work.params
        given = {n for p in self.producers for n in p.needs if n not in made and n in known}
        wanted = work.wanted(self.region)
        self.producers = self.who.weighed(self, wanted, given)
        chosen = extract(self.producers, wanted, given, self.who.steps)
        report.steps, report.complete, report.cost = chosen.steps, chosen.complete, chosen.cost
        names = {p.name for p in chosen.producers}
        report.alternatives = [
            replace(a, chosen=name in names)
            for name, a in zip(self.ways, report.alternatives, strict=True)
        ]
        return tuple([way for name, way in self.ways.items() if name in names]), report

    def kernel_of(self, producer: Producer) -> Kernel:
        """The kernel that a producer would run."""
        if producer.name in self.ways:
            return self.work.cut(self.ways[producer.name][0], self.region)[1][0]
        return self.work.pieces[self.region[int(producer.name.split()[1])]][2][0]

    def propose_all(self) -> None:
        """Every piece with what it may take in; then those that belong together."""
        good: list[Way] = []
        for place in self.region:
            makes = self.outputs(place)
            for taken in reversed(list(self.work.tries(place))):  # as much as goes, then less
                before = len(good)
                inside = tuple([self.local[t] for t in taken])
                rows = tuple([self.local[t] for t in taken if self.work.is_read_often(t)])
                plain = Way(makes, inside)
                if self.propose(plain):
                    good.append(plain)
                if rows and self.propose(replace(plain, rows=rows)):
                    good.append(replace(plain, rows=rows))
                if len(good) > before:
                    break
        for place in self.region:
            again = Way(self.outputs(place), (), (self.local[place],))
            if self.work.picks(place) and self.propose(again):
                good.append(again)
        for a, b in combinations(good, 2):  # results of one walk over the same blocks
            less, more = sorted([set(a.taken), set(b.taken)], key=len)
            alike = less <= more and len(a.rows) > 0 and len(b.rows) > 0
            if alike and not set(a.makes) & set(b.makes):
                both = tuple(sorted({*a.rows, *b.rows}))
                self.propose(Way((*a.makes, *b.makes), tuple(sorted(more)), both))
        for piece in dict.fromkeys([r for way in good for r in way.rows]):
            values = self.row_values(piece)
            below = dict.fromkeys(self.work.below(self.region[piece]))
            self.propose(Way(values, tuple([self.local[t] for t in below])))
            for way in good:
                if piece in way.taken and not way.rows:
                    self.propose(replace(way, makes=(*way.makes, *values)))

    def outputs(self, place: int) -> tuple[tuple[int, int], ...]:
        count = len(self.work.pieces[place][1])
        return tuple([(self.local[place], number) for number in range(count)])

    def row_values(self, piece: int) -> tuple[tuple[int, int], ...]:
        count = len(self.work.row_values(self.region[piece]))
        return tuple([(piece, -1 - number) for number in range(count)])

    def propose(self, way: Way) -> bool:
        """Ask every source for a kernel; is there one?"""
        if way in self.tried or len(self.tried) >= ATTEMPTS:
            return False
        self.tried.add(way)
        saved = self.saved(way)
        if not way.rows and not self.may_pay(self.products(way), saved, self.who.sources):
            return False
        outputs, merged = self.work.cut(way, self.region)
        if self.work.waits_for_itself(way, self.region, merged):
            return False
        report, good = self.report, False
        beside = self.kept(outputs) + self.who.table.made
        for source in self.may_pay(work_of(merged[0]), saved - beside, self.who.sources):
            found = source.propose(merged[0], self.who.table)
            if found is None:
                continue
            good = True
            report.nodes = max(report.nodes, found.nodes)
            for rule, count in found.rules:
                report.rules[rule] = report.rules.get(rule, 0) + count
            name = f"{source.name} {len(self.ways)}"
            self.ways[name] = replace(way, kind=found.kind), found.what
            needs = self.work.memory(merged)
            cost = found.cost + beside
            self.producers.append(Producer(name, tuple(outputs), needs, cost))
            report.alternatives.append(Alternative(found.what, cost, False, len(way.taken)))
        return good

    def may_pay(self, work: Work, saved: float, sources: Sequence[Source]) -> list[Source]:
        """The sources that could have a kernel for less than it saves."""
        table = self.who.table
        return [s for s in sources if s.least is None or s.least(work, table) < saved]

    def products(self, way: Way) -> Work:
        """The products of all that a kernel takes in: known before it is cut out."""
        mine = {*[piece for piece, _ in way.makes], *way.taken}
        kernels = [self.work.pieces[self.region[piece]][2][0] for piece in mine]
        return Work(0, sum([work_of(kernel).products for kernel in kernels]), 0, 0)

    def saved(self, way: Way) -> float:
        """The most that a kernel can save: its own pieces, and those below that nobody else needs.

        What must run in any case is not saved by doing it again.
        """
        made = [piece for piece, _ in way.makes]
        mine, stack = dict.fromkeys(made), list(made)
        while stack:
            for place in self.work.makers(self.region[stack.pop()]):
                piece = self.local.get(place)
                if piece is not None and piece not in mine and place in self.superfluous:
                    mine[piece] = None
                    stack.append(piece)
        return sum([self.greedy[piece] for piece in mine])

    def kept(self, outputs: Sequence[Node]) -> float:
        """What it costs that values stay in memory which are no results."""
        inside = [n for n in outputs if n not in self.work.roots]
        return self.who.table.kept * sum([elements(n.shape) * n.dtype.itemsize for n in inside])


class _Work:
    """The pieces of a schedule and how they are joined."""

    def __init__(self, pieces: Sequence[Piece], roots: Set[Node]) -> None:
        self.pieces, self.roots = list(pieces), roots
        self.maker = {node: i for i, (_, outputs, _) in enumerate(pieces) for node in outputs}
        self.readers: dict[Node, list[int]] = {}
        for i, (_, _, cut) in enumerate(pieces):
            for node in sorted(self.memory(cut), key=lambda n: n.id):
                self.readers.setdefault(node, []).append(i)
        self.stored = frozenset(self.maker)
        self.params = {n for _, _, cut in pieces for n in self.memory(cut) if n.op is PARAM}
        self.extractor = Extractor()
        self.before: list[int] = []  # for each piece: bits of all that must have run
        for _, _, cut in pieces:
            bits = 0
            for node in self.memory(cut):
                other = self.maker.get(node)
                bits |= 0 if other is None else self.before[other] | 1 << other
            self.before.append(bits)
        self.levels = {i: self.levels_of(i) for i in range(len(pieces))}
        self.regions = self.joined()
        self.region_of = {place: set(region) for region in self.regions for place in region}
        self.rows: dict[int, tuple[Node, ...]] = {}

    def memory(self, cut: Cut) -> frozenset[Node]:
        """The values in memory that a kernel reads."""
        return frozenset([m for m in cut[1] if isinstance(m, Node)])

    def producer(self, place: int, name: str, cost: float) -> Producer:
        """A piece as it is."""
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
            if kernel.kind == "map":
                fits = most <= size if inner.kind == "reduce" else (
                    4 * most <= size or (only and most == size))  # fmt: skip
            elif kernel.kind == "reduce":
                fits = most < size  # nothing is left of what is streamed
            elif inner.kind == "contract":
                fits = only and most < size and node in self.folded(place)
            else:
                fits = node in self.folded(place) and _top(node).op not in (ADD, SUB)
                fits = fits and (only or self.ends_here(other))
            if fits and inner.kind in _KINDS and _worth(kernel, inner):
                yield other

    def ends_here(self, place: int) -> bool:
        """Does a piece of rows read a product that nothing but rows read?"""
        for node in self.memory(self.pieces[place][2]):
            other = self.maker.get(node)
            if other is not None and self.pieces[other][2][0].kind == "contract":
                kinds = {self.pieces[r][2][0].kind for r in self.readers[node]}
                if kinds == {"reduce"} and node not in self.roots:
                    return True
        return False

    def levels_of(self, place: int) -> list[list[int]]:
        """The pieces that one may take in: nearest first, then what those read, to products."""
        level = list(dict.fromkeys(self.taken_in(place)))
        found: list[list[int]] = []
        if level:  # with the numbers of rows that go with it
            level += [m for m in self.makers(place) if m not in level and self.is_row(m)]
        after = self.pieces[place][2][0].kind == "map" and len(level) == 1
        if after and self.pieces[level[0]][2][0].kind == "contract":
            return [level, *self.levels_of(level[0])]  # a map of a product goes with it
        seen: set[int] = set()
        while level and len(found) < DEEP:
            found.append(level)
            seen.update(level)
            ends = [t for t in level if self.pieces[t][2][0].kind != "contract"]
            level = [m for t in ends for m in self.makers(t)]
            level = [m for m in dict.fromkeys(level) if m not in seen]
        return found

    def is_row(self, place: int) -> bool:
        """Is it a piece of rows?"""
        return self.pieces[place][2][0].kind == "reduce"

    def makers(self, place: int) -> list[int]:
        """The pieces whose results one reads, if they can be merged at all."""
        found: dict[int, None] = {}
        for node in sorted(self.memory(self.pieces[place][2]), key=lambda n: n.id):
            other = self.maker.get(node)
            if other is not None and self.pieces[other][2][0].kind in _KINDS:
                found[other] = None
        return list(found)

    def folded(self, place: int) -> set[object]:
        """What of a piece's reads is inside its sums."""
        kernel, reads, _ = self.pieces[place][2]
        sums = [n for n in toposort([kernel.body]) if n.op is REDUCE]
        return {reads[n.arg[0]] for n in toposort(sums) if n.op is PARAM}

    def joined(self) -> list[list[int]]:
        """Pieces that could be merged with each other, in order."""
        group = {i: {i} for i in range(len(self.pieces))}
        for place, levels in self.levels.items():
            for other in [t for level in levels for t in level]:
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

    def superfluous(self, region: Sequence[int]) -> set[int]:
        """The pieces that need not run if all that read them take them in, or need not run."""
        found: set[int] = set()
        wanted = set(self.wanted(region))
        for place in reversed(region):
            outputs = self.pieces[place][1]
            readers = {r for node in outputs for r in self.readers.get(node, ())}
            if not wanted.intersection(outputs) and all(
                r in found or self.may_take(r, place) for r in readers
            ):
                found.add(place)
        return found

    def may_take(self, place: int, other: int) -> bool:
        """May one piece, or what makes its values of rows, compute another?"""
        if any(other in level for level in self.levels[place]):
            return True
        return self.picks(place) and other in self.below(place)

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
        for number, level in enumerate(self.levels[place]):
            if number == 0 and len(level) > 1 and len(self.region_of[place]) <= 4:
                for one in level:
                    yield [one]
            taken = sorted({*taken, *level})
            yield taken

    def below(self, place: int) -> list[int]:
        """Pieces of the same region whose results one reads."""
        return [m for m in self.makers(place) if m in self.region_of.get(place, ())]

    def waits_for_itself(self, way: Way, region: Sequence[int], merged: Cut) -> bool:
        """Does a kernel read what pieces outside the region compute from its own results?"""
        mine = sum({1 << region[piece] for piece, _ in way.makes})
        for node in self.memory(merged):
            other = self.maker.get(node)
            if other is not None and other not in region and self.before[other] & mine:
                return True
        return False

    # --- rows ------------------------------------------------------------------------------------

    def is_read_often(self, place: int) -> bool:
        """Do several pieces read a piece of rows, which has values of one number a row?"""
        readers = {r for node in self.pieces[place][1] for r in self.readers.get(node, ())}
        rows = self.pieces[place][2][0].kind == "reduce" and len(readers) > 1
        return rows and bool(self.row_values(place))

    def is_picked(self, node: Node) -> bool:
        """Is it a few elements, chosen from a product that is stored for them?"""
        if node.op is not GATHER or 4 * elements(node.shape) > elements(node.src[0].shape):
            return False
        seen: set[Node] = set()
        stack = [node.src[0]]
        while stack:
            below = stack.pop()
            other = self.maker.get(below)
            if other is not None and self.pieces[other][2][0].kind == "contract":
                return True
            if other is None and below not in seen:
                seen.add(below)
                stack.extend(below.src)
        return False

    def picks(self, place: int) -> bool:
        """Does a piece of rows read a product only to pick from it?"""
        return self.is_row(place) and any(n.op is GATHER for n in self.row_values(place))

    def row_values(self, place: int) -> tuple[Node, ...]:
        """What a piece of rows folds to one number a row: with it each element stands alone."""
        if place not in self.rows:
            _, outputs, cut = self.pieces[place]
            stops = self.memory(cut)
            most = max([elements(n.shape) for n in outputs])
            found: dict[Node, None] = {}
            seen: set[Node] = set()
            stack = list(reversed(outputs))
            while stack:
                node = stack.pop()
                if node in seen or node in stops:
                    continue
                seen.add(node)
                if (node.op is REDUCE and elements(node.shape) < most) or self.is_picked(node):
                    found[node] = None
                else:
                    stack.extend(reversed(node.src))
            self.rows[place] = tuple(found)
        return self.rows[place]

    # --- merging ---------------------------------------------------------------------------------

    def cut(self, way: Way, region: Sequence[int]) -> tuple[list[Node], Cut]:
        """What a way stores, and its kernel."""
        outputs = []
        for piece, number in way.makes:
            place = region[piece]
            known = self.pieces[place][1] if number >= 0 else self.row_values(place)
            outputs.append(known[number if number >= 0 else -1 - number])
        gone = {node for t in way.taken for node in self.pieces[region[t]][1]}
        gone.update(outputs)
        gone.update([n for piece, _ in way.makes for n in self.pieces[region[piece]][1]])
        rows = {node for r in way.rows for node in self.row_values(region[r])}
        readable = ((self.stored | self.params) - gone) | rows
        return outputs, self.extractor.cut(way.kind, outputs, readable)

    def assembled(self, made: Sequence[tuple[int, Piece]]) -> list[Piece]:
        """The pieces that are needed, in an order that works, near where they were."""
        instead = {node for _, piece in made for node in piece[1]}
        every = [(place, 0, piece) for place, piece in made]
        for place, piece in enumerate(self.pieces):
            if not piece[1] or not all(node in instead for node in piece[1]):
                every.append((place, 1, piece))
        maker = {node: entry for entry in every for node in entry[2][1]}
        maker |= {node: entry for entry in every if entry[1] == 0 for node in entry[2][1]}
        needed: dict[int, tuple[int, int, Piece]] = {}
        stack = [maker[node] for node in self.roots if node in maker]
        stack += [e for e in every if e[1] == 1 and not self.has_readers(e[0])]
        while stack:
            entry = stack.pop()
            if id(entry) not in needed:
                needed[id(entry)] = entry
                stack.extend([maker[n] for n in self.memory(entry[2][2]) if n in maker])
        left = sorted(needed.values(), key=lambda e: e[:2])
        waits = {id(e): frozenset([n for n in self.memory(e[2][2]) if n in maker]) for e in left}
        made_now: set[Node] = set()
        out: list[Piece] = []
        while left:
            able = (i for i, e in enumerate(left) if waits[id(e)] <= made_now)
            first = next(able, None)
            if first is None:  # regions that wait for each other: each would do alone, not both
                return list(self.pieces)
            entry = left.pop(first)
            made_now.update(entry[2][1])
            out.append(entry[2])
        return out

    def has_readers(self, place: int) -> bool:
        """Did anybody read a piece when the schedule was greedy? What nobody reads has effects."""
        return any(self.readers.get(node) for node in self.pieces[place][1])


def _top(node: Node) -> Node:
    """What a value is below movement and casts."""
    while node.op.family == "movement" or node.op is CAST:
        node = node.src[0]
    return node


def _worth(outer: Kernel, inner: Kernel) -> bool:
    """May merging two kernels pay? A product inside is done again for every tile of columns."""
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
