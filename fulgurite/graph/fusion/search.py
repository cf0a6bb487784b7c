"""Fusion search: regions of the greedy schedule, candidates for them, and the cheapest plan.

In: the segments of a greedy schedule (why, what is stored, the kernel cut out for it). Out: the
same results from other segments where that is cheaper. A segment that reduces what another one
stored may inline that one, so that the value between is never stored: such segments make up a
region. Equal regions are searched once (`REGIONS`): their key is the kernels, how they are joined
and what each could inline. Every candidate has a lower bound from the work of its segments; while
the cheapest plan by these bounds beats what is known, every `Source` is asked for the candidates in
it (best first, as branch and bound does). Budgets are counts, so every process finds the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import field, replace
from heapq import heappop, heappush
from math import floor, inf, log2
from operator import add
from typing import TypeAlias

from ...core.cache import Cache
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, backward_slice
from ...core.ops.elementwise import EXP, EXP2
from ..ir.kernel import Cut, Kernel
from .budget import BUDGET, FusionBudget
from .build_schedule import Segment
from .candidates import Candidates
from .extract import Extraction, Producer, extract
from .machine import NO_WORK, CostTable, Work, spill_time, time_of, work_of
from .proposals import Proposal, Source
from .regions import FusionCandidate, Regions
from .report import Alternative, RegionReport
from .segments import byte_count, memory_of
from .single_writer import Launch
from .single_writer_plans import Writers

Choice: TypeAlias = "tuple[tuple[FusionCandidate, str], ...]"  # with what it is, for people
Fused: TypeAlias = "dict[int, list[tuple[int, Segment]]]"  # by number of the region, with places
Hopes: TypeAlias = "dict[str, tuple[FusionCandidate, Producer]]"  # with their lower bounds


@dataclass
class Known:
    """What is known of a region: enough to choose again by other costs without searching again."""

    proposals: dict[Hashable, list[tuple[str, Proposal]]] = field(default_factory=dict)
    kernels: dict[Hashable, Kernel] = field(default_factory=dict)  # keep streams alive
    chosen: dict[Hashable, tuple[Choice, RegionReport]] = field(default_factory=dict)


REGIONS: Cache[Hashable, Known] = Cache("regions", lambda: BUDGET.cached_regions)


class Searcher:
    """A choice among kernels, for one schedule after the other."""

    def __init__(
        self, sources: Sequence[Source], table: CostTable, budget: FusionBudget = BUDGET
    ) -> None:
        self.sources, self.table, self.budget = tuple(sources), table, budget
        self.reports: list[RegionReport] = []
        self.searched = 0  # regions that were not known

    tag: Hashable = None  # what else the answers depend on
    eager = False  # is everything asked for, also what cannot pay?
    curious = False  # is it asked for afterwards, for the report alone?

    @property
    def least_saving(self) -> float:
        """Of what segments cost as they are: to save less may be an error of the model."""
        return self.budget.min_gain_region

    def price(self, kernel: Kernel) -> float:
        """What a segment costs as it is."""
        return time_of(kernel, self.table)

    def weighed(self, search: RegionSearch, wanted: list[Node], given: set[Node]) -> list[Producer]:
        """The producers of a region, with the costs that count."""
        return search.producers

    def __call__(self, segments: Sequence[Segment], roots: Set[Node]) -> list[Segment]:
        """The segments to run, in order."""
        self.reports = []
        total = sum([self.price(cut[0]) for _, _, cut in segments])
        total = 2.0 ** floor(log2(total)) if total > 0 else 0.0  # about: it is part of the key
        regions = Regions(segments, roots, self.table, total, self.budget)
        writers = Writers(regions.graph)
        fused: Fused = {}
        names = tuple([s.name for s in self.sources])
        every = [*regions.regions, *(regions.alone() if self.eager or self.curious else ())]
        keys = [regions.key(region) for region in every]
        equal = Counter(keys)  # a kernel of all of them is compiled once
        for number, (region, mine) in enumerate(zip(every, keys, strict=True)):
            known = REGIONS.get_or_make((mine, names), Known)
            asked = writers.concern(region)  # by what is anywhere in the graph
            within = (regions.key(range(len(segments))), region[0]) if asked else None
            shared = tuple([regions.equal[place] for place in region])
            key = (
                equal[mine], shared, total, self.table.digest, self.budget, self.tag, self.curious,
                within,
            )  # fmt: skip
            found = None
            if key in known.chosen:
                choice, report = known.chosen[key]
                report, found = replace(report, cached=True), _cut(regions, choice, region)
            if found is None:
                self.searched += 1
                search = RegionSearch(self, regions, region, equal[mine], known, total)
                search.writers = writers if asked else None
                choice, report = known.chosen[key] = search.run()
                found = _cut(regions, choice, region)
            self.reports.append(report)
            if found:
                fused[number] = found
        return self.lawful(regions, writers, self.within_memory(regions, fused), fused)

    def within_memory(self, regions: Regions, fused: Fused) -> list[Segment]:
        """The segments to run, without choices for which more memory would be needed at once."""
        graph = regions.graph
        most = (1 + self.budget.memory_slack) * graph.peak_bytes(graph.segments)

        def assembled(without: int | None) -> list[Segment] | None:
            return regions.assembled([s for i, some in fused.items() if i != without for s in some])

        def need(found: list[Segment] | None) -> tuple[float, float]:
            """Bytes above the limit, over all steps, and bytes at once."""
            live = graph.live_bytes(found) if found is not None else [inf]
            return sum([bytes - most for bytes in live if bytes > most]), max(live)

        # lazily greedy: equal layers exceed it each at its own time, and needs change little
        found, queue = assembled(None), list[tuple[tuple[float, float], int]]()
        while fused and need(found)[0]:
            if found is None or not queue:
                queue = sorted([(need(assembled(i)), i) for i in fused])
            _, worst = heappop(queue)
            without = assembled(worst)
            now = (need(without), worst)
            if queue and now > queue[0]:
                heappush(queue, now)
                continue
            found = without
            del fused[worst]
            self.reports[worst] = replace(self.reports[worst], memory=True)
        return list(graph.segments) if found is None else found

    def lawful(
        self, regions: Regions, writers: Writers, found: list[Segment], fused: Fused
    ) -> list[Segment]:
        """The segments to run, without choices that agree each alone, but not with each other."""
        while fused and not writers.agree(
            [Launch(cut[0].kind, outputs, memory_of(cut)) for _, outputs, cut in found]
        ):
            number = max(fused)
            del fused[number]
            self.reports[number] = replace(self.reports[number], apart=True)
            some = regions.assembled([s for segments in fused.values() for s in segments])
            found = list(regions.graph.segments) if some is None else some
        return found


def _cut(
    regions: Regions, choice: Choice, region: Sequence[int]
) -> list[tuple[int, Segment]] | None:
    """The kernels of a choice; None if one is planned for another body: of other reshapes, say."""
    found = []
    for candidate, what in choice:
        outputs, cut = regions.cut(candidate, region)
        if not _is_planned(candidate, cut[0]):
            return None
        found.append((max([region[i] for i, _ in candidate.outputs]), (what, outputs, cut)))
    return found


def _is_planned(candidate: FusionCandidate, kernel: Kernel) -> bool:
    """True if the plan of a candidate, if it has one, is for the body of a kernel."""
    return candidate.plan is None or candidate.body is kernel.body


def parts_of(candidate: FusionCandidate) -> list[int]:
    """The segments of its region that a candidate makes or inlines."""
    return list(dict.fromkeys([*[i for i, _ in candidate.outputs], *candidate.inlined]))


class RegionSearch:
    """The search of one region."""

    def __init__(
        self, who: Searcher, regions: Regions, region: list[int], equal: int, known: Known,
        total: float,
    ) -> None:  # fmt: skip
        self.who, self.regions, self.region, self.known = who, regions, region, known
        self.segments = [regions.graph.segments[place] for place in region]
        self.equal = equal
        self.least_gain = who.budget.min_gain_graph * total / equal  # of a plan
        self.report = RegionReport(len(region))
        self.candidates = Candidates(regions, region)
        self.singles = self.candidates.singles()
        self.producers: list[Producer] = []
        self.offers: dict[str, tuple[FusionCandidate, str]] = {}  # by name of the producer
        self.tried: dict[FusionCandidate, bool] = {}  # was there a kernel?
        self.bounds: dict[FusionCandidate, Producer | None] = {}
        self.cuts: dict[FusionCandidate, Cut] = {}
        self.recomputed: dict[str, frozenset[Node]] = {}  # of every offer: products it computes
        self.known_best: tuple[int, Extraction] | None = None  # of how many producers
        self.writers: Writers | None = None  # of what is compared, if any of it is computed here
        self.launches: dict[str, Launch] = {}  # of every offer

    def run(self) -> tuple[Choice, RegionReport]:
        """The kernels to run in the place of some segments, and how they were found."""
        report = self.report
        for number, (_, outputs, cut) in enumerate(self.segments):
            cost = self.who.price(cut[0]) + self.overhead([number], outputs)
            report.greedy += cost
            producer = Producer(f"greedy {number}", tuple(outputs), memory_of(cut), cost)
            self.producers.append(producer)
        report.cost = report.greedy
        self.propose_all()
        choice = self.choose() if self.offers else ()
        if self.who.curious:
            for candidate, _ in self.hopes(True).values():
                self.propose(candidate)
            report.untried = 0
        return choice, report

    def choose(self) -> Choice:
        """The cheapest plan of what was found."""
        report, steps = self.report, self.who.budget.plan_steps
        wanted, given = self.ends(self.producers)
        self.producers = self.who.weighed(self, wanted, given)
        chosen = extract(self.producers, wanted, given, steps)
        if not self.agree(chosen.producers):
            plain = [p for p in self.producers if p.name not in self.offers]
            chosen = extract(self.producers, wanted, given, steps, agree=self.agree, start=plain)
        report.steps += chosen.steps
        report.complete = chosen.complete
        names = {p.name for p in chosen.producers}
        cost = chosen.cost + self.compiled_apart(chosen.producers)
        if report.greedy - cost >= self.who.least_saving * report.greedy:
            report.cost = cost
        else:
            names.difference_update(self.offers)
        report.alternatives = [
            replace(a, chosen=name in names)
            for name, a in zip(self.offers, report.alternatives, strict=True)
        ]
        return tuple([offer for name, offer in self.offers.items() if name in names])

    def compiled_apart(self, chosen: Sequence[Producer]) -> float:
        """What chosen kernels cost to compile beyond their shares: fewer are equal than may be."""
        bodies = {p: self.body_of(p) for p in chosen}
        count = Counter(bodies.values())
        known = Counter([cut[0].body for _, _, cut in self.segments])
        extra = 0.0
        for producer, body in bodies.items():
            copies = self.copies(self.parts(producer))
            is_offer = producer.name in self.offers
            outside = 0 if is_offer else copies - known[body] * self.equal
            time = self.who.table.compile_time(
                self.offers[producer.name][0].kind if is_offer else ""
            )
            extra += time / (outside + count[body] * self.equal) - time / copies
        return extra

    def body_of(self, producer: Producer) -> Node:
        """The body of the kernel that a producer would run."""
        if producer.name in self.offers:
            body = self.offers[producer.name][0].body
            assert body is not None
            return body
        return self.kernel_of(producer).body

    def agree(self, chosen: Sequence[Producer]) -> bool:
        """True if no two chosen kernels compute one GEMM under exp() and exchange results.

        Sums in another order differ in the last bits. Powers of large numbers differ by much more
        then, and what should cancel in a gradient does not.
        """
        for one in chosen:
            own = self.recomputed.get(one.name) or frozenset[Node]()
            for other in chosen if own else ():
                apart = other.needs.isdisjoint(one.makes) and one.needs.isdisjoint(other.makes)
                if not apart and not other.needs.isdisjoint(own):
                    return False
        launches = [self.launches[p.name] for p in chosen if p.name in self.launches]
        return self.writers is None or not launches or self.writers.agree(launches)

    def products_in(self, candidate: FusionCandidate) -> frozenset[Node]:
        """The products under powers that a candidate computes itself, and does not store."""
        inlined = [self.segments[i] for i in candidate.inlined]
        products = {n for _, nodes, cut in inlined if cut[0].kind == "contract" for n in nodes}
        made = {n for _, nodes, _ in self.segments for n in nodes} if products else ()
        powers = {n for n in (*made, *self.below(made)) if n.op in (EXP, EXP2)}
        own = products & self.below(powers)
        return frozenset(own.difference(self.regions.stores(candidate, self.region)))

    def below(self, nodes: Iterable[Node]) -> set[Node]:
        """What is reached from some nodes before anything else that is stored, and that."""
        return backward_slice([s for n in nodes for s in n.src], self.regions.stored.__contains__)

    def ends(self, producers: Sequence[Producer]) -> tuple[list[Node], set[Node]]:
        """What the region must make, and what it finds made."""
        made = {node for p in producers for node in p.makes}
        known = self.regions.stored | self.regions.params
        needed = {n for p in producers for n in p.needs if isinstance(n, Node)}
        return self.regions.wanted(self.region), {n for n in needed if n not in made and n in known}

    def kernel_of(self, producer: Producer) -> Kernel:
        """The kernel that a producer would run."""
        if producer.name in self.offers:
            return self.regions.cut(self.offers[producer.name][0], self.region)[1][0]
        (place,) = self.parts(producer)
        return self.segments[place][2][0]

    # --- what may pay ----------------------------------------------------------------------------

    def propose_all(self) -> None:
        """Ask for the candidates of which a cheaper plan could be made, until no such is left.

        A candidate that nobody was asked about yet counts as if it cost the least that it could.
        """
        budget = self.who.budget
        while True:
            hopes = self.hopes(self.who.eager)
            asked = [c for c, _ in hopes.values()] if self.who.eager else self.promising(hopes)
            failed = list(self.tried.values()).count(False)
            spent = len(self.tried) >= budget.proposals or failed > budget.failed_proposals
            if not asked or (spent and not self.who.eager):
                self.report.untried = len(hopes)
                least = sorted([(p.cost, 1 + len(c.inlined)) for c, p in hopes.values()])
                self.report.bounds = least[:3]
                return
            for candidate in asked:
                self.tried[candidate] = self.propose(candidate)

    def hopes(self, every: bool = False) -> Hopes:
        """The candidates that were not tried, each with a producer that costs its lower bound.

        Those that could save the most of what they replace, if as many as are inlined at once could
        save enough together. Who reads statistics lets others go, so it counts in any case.
        """
        budget = self.who.budget
        least = max(budget.min_gain_region * self.report.greedy, self.least_gain)
        found: list[tuple[float, FusionCandidate, Producer]] = []
        for candidate in dict.fromkeys(self.open_candidates()):
            if candidate in self.tried:
                continue
            if candidate not in self.bounds:
                self.bounds[candidate] = self.bound(candidate, f"perhaps {len(self.bounds)}")
            producer = self.bounds[candidate]
            if producer is not None:
                saved = sum([self.producers[i].cost for i in parts_of(candidate)]) - producer.cost
                if every or candidate.statistics or saved > least / budget.inline_depth:
                    found.append((saved, candidate, producer))
        found.sort(key=lambda entry: -entry[0])  # stable: of equal ones the first
        return {p.name: (candidate, p) for _, candidate, p in found[: budget.proposals]}

    def open_candidates(self) -> Iterator[FusionCandidate]:
        """Candidates that may be possible: single ones, and those made of the largest."""
        largest: list[FusionCandidate] = []
        for tries in self.singles:
            able = [[c for one in some for c in self.possible(one)] for some in tries]
            able = [some for some in able if some]
            largest += able[0] if able else []
            yield from [candidate for some in able for candidate in some]
        yield from self.candidates.joint(largest)

    def possible(self, candidate: FusionCandidate) -> list[FusionCandidate]:
        """A candidate, or where that is impossible one that reads its row statistics."""
        if self.tried.get(candidate, True):
            return [candidate]
        others = [] if candidate.statistics else self.candidates.reading(candidate)
        return [other for other in others if self.tried.get(other, True)][:1]

    def promising(self, hopes: Hopes) -> list[FusionCandidate]:
        """The candidates that are in the cheapest plan as far as is known."""
        if not hopes:
            return []
        budget, every = self.who.budget, [*self.producers, *[p for _, p in hopes.values()]]
        if self.known_best is None or self.known_best[0] != len(self.producers):
            start = () if self.known_best is None else self.known_best[1].producers
            ends = self.ends(self.producers)
            best = extract(self.producers, *ends, budget.bound_steps, start=start)
            self.known_best = len(self.producers), best
            self.report.steps += best.steps
        known = self.known_best[1]
        found = extract(every, *self.ends(every), budget.bound_steps, start=known.producers)
        self.report.steps += found.steps
        asked = [hopes[p.name][0] for p in found.producers if p.name in hopes]
        asking = self.who.table.proposal_ns / self.equal * (len(self.tried) + len(asked))
        if known.cost - found.cost <= max(
            asking, budget.min_gain_region * known.cost, self.least_gain
        ):
            return []
        rough = [c for c in asked if c.statistics and c not in self.cuts]
        for candidate in rough:  # whose work was guessed from other segments alone
            self.cut(candidate)
            bound = self.bounds[candidate]
            self.bounds[candidate] = None if bound is None else self.bound(candidate, bound.name)
        return self.promising(self.hopes()) if rough else asked

    def bound(self, candidate: FusionCandidate, name: str) -> Producer | None:
        """A candidate at the least that it could cost, from the work of its segments."""
        outputs = self.regions.stores(candidate, self.region)
        needs, work = self.least_work(candidate, outputs)
        if self.regions.waits_for_itself(candidate, self.region, needs):
            return None
        ends = [self.segments[i][2][0] for i in dict.fromkeys([i for i, _ in candidate.outputs])]
        after = sum([work_of(k).elementwise for k in ends if k.kind == "contract"])
        work = replace(work, after=after)
        table, parts = self.who.table, parts_of(candidate)
        least = [0.0 if s.least is None else s.least(work, table) for s in self.who.sources]
        beside = [self.overhead(parts, outputs, s.kind) for s in self.who.sources]
        costs = list(map(add, least, beside))
        cost = min(costs, default=inf)
        if cost == inf:
            return None
        return Producer(name, tuple(outputs), frozenset(needs.difference(outputs)), cost)

    def least_work(
        self, candidate: FusionCandidate, outputs: Sequence[Node]
    ) -> tuple[set[Node], Work]:
        """What a candidate reads, and its work: counted once it is cut out, or that of its parts.

        Statistics alone may need little of their segments, so they are cut out at once.
        """
        if candidate in self.cuts or all(number < 0 for _, number in candidate.outputs):
            fused = self.cut(candidate)
            return set(memory_of(fused)), work_of(fused[0])
        parts = parts_of(candidate)
        cuts = [self.segments[i][2] for i in parts if i not in candidate.statistics]
        inside = {node for i in parts for node in self.segments[i][1]}
        needs = {node for cut in cuts for node in memory_of(cut)} - inside
        for i in candidate.statistics:
            needs.update(self.regions.graph.row_statistics(self.region[i]))
        moved = sum(map(byte_count, (*needs, *outputs)))
        return needs, replace(sum([work_of(cut[0]) for cut in cuts], NO_WORK), bytes=moved)

    def cut(self, candidate: FusionCandidate) -> Cut:
        """The kernel of a candidate, cut out once."""
        if candidate not in self.cuts:
            self.cuts[candidate] = self.regions.cut(candidate, self.region)[1]
        return self.cuts[candidate]

    def propose(self, candidate: FusionCandidate) -> bool:
        """Ask every source for a kernel; True if there is one."""
        outputs, fused = self.regions.stores(candidate, self.region), self.cut(candidate)
        report, needs = self.report, memory_of(fused)
        if self.regions.waits_for_itself(candidate, self.region, needs):
            return False
        able = [kind for kind in ("fold", "reduce") if self.is_lawful(Launch(kind, outputs, needs))]
        proposals = self.proposals(candidate, fused[0]) if able else []
        proposals = [(source, p) for source, p in proposals if p.kind in able]
        for source, found in proposals:
            report.nodes = max(report.nodes, found.nodes)
            for rule, count in found.rules:
                report.rules[rule] = report.rules.get(rule, 0) + count
            name = f"{source} {len(self.offers)}"
            chosen = replace(candidate, kind=found.kind, plan=found.plan, body=fused[0].body)
            self.offers[name] = chosen, found.what
            self.recomputed[name] = self.products_in(candidate)
            self.launches[name] = Launch(found.kind, outputs, needs)
            cost = found.cost + self.overhead(parts_of(candidate), outputs, found.kind)
            self.producers.append(Producer(name, tuple(outputs), needs, cost))
            report.alternatives.append(Alternative(found.what, cost, False, len(candidate.inlined)))
        return bool(proposals)

    def is_lawful(self, launch: Launch) -> bool:
        """True if a kernel may run beside all the others as they are."""
        return self.writers is None or self.writers.agree([launch])

    def proposals(self, candidate: FusionCandidate, kernel: Kernel) -> list[tuple[str, Proposal]]:
        """What sources have for a candidate; each is asked once by one table."""
        key = (candidate, kernel.body, self.who.table.digest)
        if key not in self.known.proposals:
            self.known.kernels[candidate, kernel.body] = kernel
            asked = [(s.name, s.propose(kernel, self.who.table)) for s in self.who.sources]
            fuses = candidate.inlined or candidate.statistics  # or it is a segment as it was
            found = [(name, p) for name, p in asked if p is not None]
            self.known.proposals[key] = [(n, p) for n, p in found if fuses or p.kind != "reduce"]
            self.report.asked += 1
        return self.known.proposals[key]

    def overhead(self, parts: Iterable[int], outputs: Sequence[Node], kind: str = "") -> float:
        """What a kernel of some segments costs beside its time: memory, and to be compiled."""
        return self.spill(outputs) + self.who.table.compile_time(kind) / self.copies(parts)

    def copies(self, parts: Iterable[int]) -> int:
        """How often a kernel of some segments may run."""
        return self.regions.copies([self.region[i] for i in parts])

    def parts(self, producer: Producer) -> list[int]:
        """The segments that a producer stands for."""
        if producer.name in self.offers:
            return parts_of(self.offers[producer.name][0])
        return [int(producer.name.split()[1])]

    def spill(self, outputs: Sequence[Node]) -> float:
        """What it costs that values stay in memory which are no results."""
        inside = [n for n in outputs if n not in self.regions.graph.roots]
        avoidable = [self.regions.avoidable_bytes(n) for n in inside]
        return spill_time(map(byte_count, inside), self.who.table, avoidable)
