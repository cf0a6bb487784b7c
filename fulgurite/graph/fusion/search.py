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

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from math import floor, inf, log2
from typing import TypeAlias

from ...core.cache import Cache
from ...core.node import Node
from ...core.ops.elementwise import EXP, EXP2
from ..ir.kernel import Cut, Kernel
from ..ir.queries import elements
from .candidates import Ways
from .machine import NO_WORK, CostTable, kept_time, time_of, work_of
from .proposals import Proposal, Source
from .regions import Regions, Way
from .report import Alternative, RegionReport
from .segments import Piece
from .select import STEPS, Extraction, Producer, extract
from .single_writer import Part
from .single_writer_plans import Writers

ATTEMPTS = 48  # merged graphs that are tried for one region
LITTLE = 0.05  # of a region's cost: less is not looked for
SMALL = 0.03  # of the whole graph's cost, for equal regions together: nor is less than this
SLACK = 0.01  # of the memory needed at once: numbers of rows are no more
VAIN = 12  # of those for which nobody has a kernel
LOOKS = 4000  # steps to see which of them may pay
_KEPT = 512  # regions whose answer is kept
Choice: TypeAlias = "tuple[tuple[Way, str], ...]"  # with what it is, for people


@dataclass
class Known:
    """What is known of a region: enough to choose again by other costs without searching again."""

    asked: dict[Hashable, list[tuple[str, Proposal]]] = field(default_factory=dict)
    kernels: dict[tuple[Way, Node], Kernel] = field(default_factory=dict)  # with their streams
    chosen: dict[Hashable, tuple[Choice, RegionReport]] = field(default_factory=dict)


REGIONS: Cache[Hashable, Known] = Cache("regions", lambda: _KEPT)


class Searcher:
    """A choice among kernels, for one schedule after the other."""

    def __init__(self, sources: Sequence[Source], table: CostTable, steps: int = STEPS) -> None:
        self.sources, self.table, self.steps = tuple(sources), table, steps
        self.reports: list[RegionReport] = []
        self.searched = 0  # regions that were not known

    tag: Hashable = None  # what else the answers depend on
    eager = False  # is everything asked for, also what cannot pay?
    curious = False  # is it asked for afterwards, for the report alone?

    def price(self, kernel: Kernel) -> float:
        """What a piece costs as it is."""
        return time_of(kernel, self.table)

    def weighed(self, search: RegionSearch, wanted: list[Node], given: set[Node]) -> list[Producer]:
        """The producers of a region, with the costs that count."""
        return search.producers

    def __call__(self, pieces: Sequence[Piece], roots: Set[Node]) -> list[Piece]:
        """The pieces to run, in order."""
        self.reports = []
        work = Regions(pieces, roots)
        writers = Writers(work)
        made: dict[int, list[tuple[int, Piece]]] = {}  # by number of the region
        names = tuple([s.name for s in self.sources])
        regions = [*work.regions, *(work.alone() if self.eager or self.curious else ())]
        whole = [work.key(region) for region in regions]
        equal = Counter(whole)  # a kernel of all of them is compiled once
        total = sum([self.price(cut[0]) for _, _, cut in pieces])
        total = 2.0 ** floor(log2(total)) if total > 0 else 0.0  # about: it is part of the key
        for region, mine in zip(regions, whole, strict=True):
            known = REGIONS.get_or_make((mine, names), Known)
            asked = writers.concern(region)  # by what is anywhere in the graph
            within = work.key(range(len(pieces))) if asked else None
            place = region[0] if asked else None
            key = (
                equal[mine], total, self.table.digest, self.steps, self.tag, self.curious,
                within, place,
            )  # fmt: skip
            found = None
            if key in known.chosen:
                choice, report = known.chosen[key]
                report, found = replace(report, cached=True), _cut(work, choice, region)
            if found is None:
                self.searched += 1
                search = RegionSearch(self, work, region, equal[mine], known, total)
                search.writers = writers if asked else None
                choice, report = known.chosen[key] = search.run()
                found = _cut(work, choice, region)
            self.reports.append(report)
            if found:
                made[len(self.reports) - 1] = found
        return self.lawful(work, writers, self.within(work, made), made)

    def within(self, work: Regions, made: dict[int, list[tuple[int, Piece]]]) -> list[Piece]:
        """The pieces to run, without choices for which more memory would be needed at once."""
        most = (1 + SLACK) * work.most_alive(work.pieces)

        def assembled(without: int | None) -> list[Piece] | None:
            return work.assembled([m for i, some in made.items() if i != without for m in some])

        def alive(found: list[Piece] | None) -> float:
            return inf if found is None else work.most_alive(found)

        found = assembled(None)
        while made and alive(found) > most:
            needs = {i: alive(assembled(i)) for i in made}
            worst = min(made, key=lambda i: (needs[i], i))
            found = assembled(worst)
            del made[worst]
            self.reports[worst] = replace(self.reports[worst], memory=True)
        return list(work.pieces) if found is None else found

    def lawful(
        self, work: Regions, writers: Writers, found: list[Piece],
        made: dict[int, list[tuple[int, Piece]]],
    ) -> list[Piece]:  # fmt: skip
        """The pieces to run, without choices that agree each alone, but not with each other."""
        while made and not writers.agree([_part(work, piece) for piece in found]):
            number = max(made)
            del made[number]
            self.reports[number] = replace(self.reports[number], apart=True)
            some = work.assembled([m for pieces in made.values() for m in pieces])
            found = list(work.pieces) if some is None else some
        return found


def _part(work: Regions, piece: Piece) -> Part:
    """A piece as a part of a plan."""
    _, outputs, cut = piece
    return Part(cut[0].kind, outputs, work.memory(cut))


def _cut(work: Regions, choice: Choice, region: Sequence[int]) -> list[tuple[int, Piece]] | None:
    """The kernels of a choice; None if one is planned for another body: of other reshapes, say."""
    found = []
    for way, what in choice:
        outputs, cut = work.cut(way, region)
        if way.plan is not None and way.body is not cut[0].body:
            return None
        found.append((max([region[piece] for piece, _ in way.makes]), (what, outputs, cut)))
    return found


class RegionSearch:
    """The search of one region."""

    def __init__(
        self, who: Searcher, work: Regions, region: list[int], equal: int, known: Known,
        total: float,
    ) -> None:  # fmt: skip
        self.who, self.work, self.region, self.known = who, work, region, known
        self.equal, self.made = equal, who.table.made / equal
        self.total = total  # of the whole graph
        self.report = RegionReport(len(region))
        self.kinds = Ways(work, region)
        self.producers: list[Producer] = []
        self.ways: dict[str, tuple[Way, str]] = {}
        self.single = [list(self.kinds.single(place)) for place in region]
        self.single += [[[way]] for way in self.kinds.picked()]
        self.tried: dict[Way, bool] = {}  # was there a kernel?
        self.bounds: dict[Way, Producer | None] = {}
        self.cuts: dict[Way, Cut] = {}
        self.inside: dict[str, frozenset[Node]] = {}  # of every way: products it works out itself
        self.known_best: tuple[int, Extraction] | None = None  # of how many producers
        self.writers: Writers | None = None  # of what is compared, if any of it is computed here
        self.parts: dict[str, Part] = {}  # of every way

    def run(self) -> tuple[Choice, RegionReport]:
        """The kernels to run in the place of some pieces, and how they were found."""
        work, report = self.work, self.report
        for number, place in enumerate(self.region):
            cost = self.who.price(work.pieces[place][2][0])
            cost += self.kept(work.pieces[place][1]) + self.made
            report.greedy += cost
            self.producers.append(work.producer(place, f"greedy {number}", cost))
        report.cost = report.greedy
        self.propose_all()
        choice = self.choose() if self.ways else ()
        if self.who.curious:
            for way, _ in list(self.hopes().values()):
                self.propose(way)
            report.untried = 0
        return choice, report

    def choose(self) -> Choice:
        """The cheapest plan of what was found."""
        report = self.report
        wanted, given = self.ends(self.producers)
        self.producers = self.who.weighed(self, wanted, given)
        chosen = extract(self.producers, wanted, given, self.who.steps)
        if not self.agree(chosen.producers):
            plain = [p for p in self.producers if p.name not in self.ways]
            agree = self.agree
            chosen = extract(self.producers, wanted, given, self.who.steps, None, agree, plain)
        report.steps += chosen.steps
        report.complete, report.cost = chosen.complete, chosen.cost
        names = {p.name for p in chosen.producers}
        report.alternatives = [
            replace(a, chosen=name in names)
            for name, a in zip(self.ways, report.alternatives, strict=True)
        ]
        return tuple([way for name, way in self.ways.items() if name in names])

    def agree(self, chosen: Sequence[Producer]) -> bool:
        """Does nobody read a product that who made, or reads, other numbers of his worked out?

        Sums in another order differ in the last bits. Powers of large numbers differ by much more
        then, and what should cancel in a gradient does not.
        """
        for one in chosen:
            inside = self.inside.get(one.name)
            for other in chosen if inside else ():
                joined = not (
                    other.needs.isdisjoint(one.makes) and one.needs.isdisjoint(other.makes)
                )
                if joined and not other.needs.isdisjoint(inside or ()):
                    return False
        parts = [self.parts[p.name] for p in chosen if p.name in self.parts]
        return self.writers is None or not parts or self.writers.agree(parts)

    def products_in(self, way: Way) -> frozenset[Node]:
        """The products under powers that a way works out for itself, and does not store."""
        taken = [self.work.pieces[self.region[piece]] for piece in way.taken]
        products = {n for _, nodes, cut in taken if cut[0].kind == "contract" for n in nodes}
        made = {n for place in self.region for n in self.work.pieces[place][1]} if products else ()
        powers = {n for n in (*made, *self.below(made)) if n.op in (EXP, EXP2)}
        own = products & self.below(powers)
        return frozenset(own.difference(self.work.made(way, self.region)))

    def below(self, nodes: Iterable[Node]) -> set[Node]:
        """What is reached from some nodes before anything else that is stored, and that."""
        found, stack = set[Node](), [s for n in nodes for s in n.src]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack.extend(() if node in self.work.stored else node.src)
        return found

    def ends(self, producers: Sequence[Producer]) -> tuple[list[Node], set[Node]]:
        """What the region must make, and what it finds made."""
        made = {node for p in producers for node in p.makes}
        known = self.work.stored | self.work.params
        needed = {n for p in producers for n in p.needs if isinstance(n, Node)}
        return self.work.wanted(self.region), {n for n in needed if n not in made and n in known}

    def kernel_of(self, producer: Producer) -> Kernel:
        """The kernel that a producer would run."""
        if producer.name in self.ways:
            return self.work.cut(self.ways[producer.name][0], self.region)[1][0]
        return self.work.pieces[self.region[int(producer.name.split()[1])]][2][0]

    # --- what may pay ----------------------------------------------------------------------------

    def propose_all(self) -> None:
        """Ask for the ways of which a cheaper plan could be made, until no such plan is left.

        A way that nobody was asked about yet counts as if it cost the least that it could.
        """
        while True:
            hopes = self.hopes()
            asked = [way for way, _ in hopes.values()] if self.who.eager else self.hoped(hopes)
            enough = len(self.tried) >= ATTEMPTS or list(self.tried.values()).count(False) > VAIN
            if not asked or (enough and not self.who.eager):
                self.report.untried = len(hopes)
                least = sorted([(p.cost, 1 + len(way.taken)) for way, p in hopes.values()])
                self.report.bounds = least[:3]
                return
            for way in asked:
                self.tried[way] = self.propose(way)

    def hopes(self) -> dict[str, tuple[Way, Producer]]:
        """The ways that were not tried, each with a producer that costs the least it could cost."""
        found: dict[str, tuple[Way, Producer]] = {}
        for way in dict.fromkeys(self.open_ways()):
            if way not in self.tried and len(found) < ATTEMPTS:
                if way not in self.bounds:
                    self.bounds[way] = self.least(way, f"perhaps {len(self.bounds)}")
                least = self.bounds[way]
                if least is not None:
                    found[least.name] = way, least
        return found

    def open_ways(self) -> Iterator[Way]:
        """Ways that are not known to be impossible: single ones, and those made of the largest."""
        most: list[Way] = []
        for tries in self.single:
            able = [[w for way in ways for w in self.possible(way)] for ways in tries]
            able = [ways for ways in able if ways]
            most += able[0] if able else []
            yield from [way for ways in able for way in ways]
        yield from self.kinds.joint(most)

    def possible(self, way: Way) -> list[Way]:
        """A way, or where that is impossible one that reads the numbers of its rows."""
        if self.tried.get(way, True):
            return [way]
        others = [] if way.rows else self.kinds.reading(way)
        return [other for other in others if self.tried.get(other, True)][:1]

    def hoped(self, hopes: dict[str, tuple[Way, Producer]]) -> list[Way]:
        """The ways that are in the cheapest plan as far as is known."""
        if not hopes:
            return []
        every = [*self.producers, *[producer for _, producer in hopes.values()]]
        if self.known_best is None or self.known_best[0] != len(self.producers):
            start = () if self.known_best is None else self.known_best[1].producers
            best = extract(self.producers, *self.ends(self.producers), LOOKS, start=start)
            self.known_best = len(self.producers), best
            self.report.steps += best.steps
        known = self.known_best[1]
        found = extract(every, *self.ends(every), LOOKS, start=known.producers)
        self.report.steps += found.steps
        asked = [hopes[p.name][0] for p in found.producers if p.name in hopes]
        asking = self.who.table.asked / self.equal * len(asked)
        dear = max(asking, LITTLE * known.cost, SMALL * self.total / self.equal)
        if known.cost - found.cost <= dear:
            return []
        rough = [way for way in asked if way.rows and way not in self.cuts]
        for way in rough:  # whose work was guessed from other pieces alone
            self.cut(way)
            bound = self.bounds[way]
            self.bounds[way] = None if bound is None else self.least(way, bound.name)
        return self.hoped(self.hopes()) if rough else asked

    def least(self, way: Way, name: str) -> Producer | None:
        """A way at the least that it could cost, from the work of its pieces."""
        outputs = self.work.made(way, self.region)
        lone = all(number < 0 for _, number in way.makes)  # numbers of rows may need little
        if lone or way in self.cuts:  # what is left of its pieces is seen when it is cut out
            merged = self.cut(way)
            needs, work = set(self.work.memory(merged)), work_of(merged[0])
        else:
            mine = dict.fromkeys([*[piece for piece, _ in way.makes], *way.taken])
            cuts = [self.work.pieces[self.region[piece]] for piece in mine if piece not in way.rows]
            inside = {node for p in mine for node in self.work.pieces[self.region[p]][1]}
            needs = {node for _, _, cut in cuts for node in self.work.memory(cut)} - inside
            needs.update(
                [n for piece in way.rows for n in self.work.row_values(self.region[piece])]
            )
            moved = sum([elements(n.shape) * n.dtype.itemsize for n in (*needs, *outputs)])
            work = replace(sum([work_of(cut[0]) for _, _, cut in cuts], NO_WORK), bytes=moved)
        ends = [self.work.pieces[place][2][0] for place in self.kinds.ends(way)]
        after = sum([work_of(k).simple for k in ends if k.kind == "contract"])
        work = replace(work, after=after)
        costs = [
            0.0 if s.least is None else s.least(work, self.who.table) for s in self.who.sources
        ]
        if not costs or min(costs) == inf:
            return None
        cost = min(costs) + self.kept(outputs) + self.made
        return Producer(name, tuple(outputs), frozenset(needs.difference(outputs)), cost)

    def cut(self, way: Way) -> Cut:
        """The kernel of a way, cut out once."""
        if way not in self.cuts:
            self.cuts[way] = self.work.cut(way, self.region)[1]
        return self.cuts[way]

    def propose(self, way: Way) -> bool:
        """Ask every source for a kernel; is there one?"""
        outputs, merged = self.work.made(way, self.region), self.cut(way)
        if self.work.waits_for_itself(way, self.region, merged):
            return False
        report, beside = self.report, self.kept(outputs) + self.made
        needs = self.work.memory(merged)
        able = [kind for kind in ("fold", "reduce") if self.agrees(Part(kind, outputs, needs))]
        proposals = self.proposals(way, merged[0]) if able else []
        proposals = [(source, p) for source, p in proposals if p.kind in able]
        for source, found in proposals:
            report.nodes = max(report.nodes, found.nodes)
            for rule, count in found.rules:
                report.rules[rule] = report.rules.get(rule, 0) + count
            name = f"{source} {len(self.ways)}"
            chosen = replace(way, kind=found.kind, plan=found.plan, body=merged[0].body)
            self.ways[name] = chosen, found.what
            self.inside[name] = self.products_in(way)
            self.parts[name] = Part(found.kind, outputs, needs)
            cost = found.cost + beside
            self.producers.append(Producer(name, tuple(outputs), needs, cost))
            report.alternatives.append(Alternative(found.what, cost, False, len(way.taken)))
        return bool(proposals)

    def agrees(self, part: Part) -> bool:
        """True if a kernel may run beside all the others as they are."""
        return self.writers is None or self.writers.agree([part])

    def proposals(self, way: Way, kernel: Kernel) -> list[tuple[str, Proposal]]:
        """What sources have for a way; each is asked once by one table."""
        key = (way, kernel.body, self.who.table.digest)
        if key not in self.known.asked:
            self.known.kernels[way, kernel.body] = kernel
            asked = [(s.name, s.propose(kernel, self.who.table)) for s in self.who.sources]
            other = way.taken or way.rows  # or it is a piece as it was
            found = [(name, p) for name, p in asked if p is not None]
            self.known.asked[key] = [(n, p) for n, p in found if other or p.kind != "reduce"]
            self.report.asked += 1
        return self.known.asked[key]

    def kept(self, outputs: Sequence[Node]) -> float:
        """What it costs that values stay in memory which are no results."""
        inside = [n for n in outputs if n not in self.work.roots]
        sizes = {n: elements(n.shape) * n.dtype.itemsize for n in inside}
        spared = [size for n, size in sizes.items() if self.work.is_spared(n)]
        return kept_time(sizes.values(), self.who.table, spared)
