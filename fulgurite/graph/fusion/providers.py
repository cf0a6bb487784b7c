"""Providers: who else may run a kernel, and measured times in the place of estimates.

In: sources that have another way to run one kernel as it is (a vendor's library), and a `Measure`
that times kernels. Out: a `Searcher` that asks both. A segment costs what its cheapest kernel
costs, so library calls compete with fused kernels inside regions as well as alone. With a measure,
producers of plans whose costs are within `tie` of the best are timed (ties), or all of them (full),
and the choice is made again from the times. A kernel whose result is wrong is left out before
anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from ...core.node import Node
from ..ir.kernel import Kernel
from ..ir.kernel_kind import KernelKind
from .budget import BUDGET, FusionBudget
from .build_schedule import Segment
from .extract import Extraction, NoPlanError, Producer, extract
from .machine import CostTable, time_of
from .proposals import Proposal, Source
from .report import Alternative, RegionReport
from .search import RegionSearch, Searcher


@dataclass(frozen=True)
class Timing:
    """What a race said of a kernel."""

    nanoseconds: float
    right: bool  # is its result that of the reference?


class Measure(Protocol):
    """Times kernels that were checked."""

    mode: str  # ties or full

    def __call__(self, kernels: Sequence[Kernel], table: CostTable) -> list[Timing | None]:
        """A timing for each kernel; None: it cannot be run alone."""


@dataclass(frozen=True)
class Settled:
    """How a segment is run as it is."""

    kernel: Kernel
    cost: float
    report: RegionReport | None = None  # if there was something to choose


@dataclass
class Entrant:
    """A kernel that a segment could be run by."""

    kernel: Kernel
    cost: float
    what: str
    timing: Timing | None = None

    def timed(self, timing: Timing | None) -> None:
        """Note what a race said; what is wrong keeps its estimate, and is not chosen."""
        self.timing = timing
        if timing is not None:
            self.what += _said(timing)
            self.cost = timing.nanoseconds if timing.right else self.cost

    @property
    def is_right(self) -> bool:
        """True if nobody found it to be wrong."""
        return self.timing is None or self.timing.right


class WideSearcher(Searcher):
    """A searcher that knows other kernels for single segments, and times."""

    def __init__(
        self, sources: Sequence[Source], table: CostTable, alone: Sequence[Source] = (),
        measure: Measure | None = None, budget: FusionBudget = BUDGET,
    ) -> None:  # fmt: skip
        super().__init__(sources, table, budget)
        self.alone, self.measure = tuple(alone), measure
        self.tag = tuple([s.name for s in alone]), None if measure is None else measure.mode
        self.eager = measure is not None and measure.mode == "full"
        self.known: dict[Kernel, Settled] = {}

    def __call__(self, segments: Sequence[Segment], roots: Set[Node]) -> list[Segment]:
        """The segments to run, each by the kernel that is cheapest."""
        self.known.clear()
        found: list[Segment] = []
        for why, outputs, (kernel, memory, origins) in super().__call__(segments, roots):
            settled = self.settled(kernel)
            if settled.report is not None and settled.report not in self.reports:
                self.reports.append(settled.report)
            if settled.kernel != kernel:  # equal ones are settled once, whichever came first
                why = f"{why}; run by {_chosen(settled)}"
            found.append((why, outputs, (settled.kernel, memory, origins)))
        return found

    @property
    def least_saving(self) -> float:
        """Of what segments cost as they are: nothing where times were measured."""
        return super().least_saving if self.measure is None else 0.0

    def price(self, kernel: Kernel) -> float:
        """What the cheapest kernel of a segment costs."""
        return self.settled(kernel).cost

    def settled(self, kernel: Kernel) -> Settled:
        """The cheapest way to run a segment as it is."""
        if not self.alone:
            return Settled(kernel, time_of(kernel, self.table))
        if kernel not in self.known:
            self.known[kernel] = self.settle(kernel)
        return self.known[kernel]

    def settle(self, kernel: Kernel) -> Settled:
        """The same, looked for."""
        own = Proposal(kernel.kind, time_of(kernel, self.table), f"our own {kernel.kind} kernel")
        others = [p for s in self.alone if (p := s.propose(kernel, self.table)) is not None]
        if not others:
            return Settled(kernel, own.cost)
        entrants = [Entrant(kernel, own.cost, own.what)]
        for p in others:
            other = replace(kernel, kind=KernelKind(p.kind), plan=p.plan)
            entrants.append(Entrant(other, p.cost, p.what))
        self.race(entrants)
        able = [e for e in entrants if e is entrants[0] or e.is_right]
        best = min(able, key=lambda e: e.cost)  # of equal ones the first
        report = RegionReport(1, greedy=entrants[0].cost, cost=best.cost)
        report.alternatives += [Alternative(e.what, e.cost, e is best, 0) for e in entrants]
        return Settled(best.kernel, best.cost, report)

    def race(self, entrants: Sequence[Entrant]) -> None:
        """Time the entrants that may be the quickest, if there is somebody to do that."""
        if self.measure is None:
            return
        limit = inf
        if self.measure.mode == "ties":
            limit = self.budget.tie * min([e.cost for e in entrants])
        rivals = [e for e in entrants if e.cost <= limit]
        if len(rivals) > 1:
            times = self.measure([e.kernel for e in rivals], self.table)
            for entrant, timing in zip(rivals, times, strict=True):
                entrant.timed(timing)

    def weighed(self, search: RegionSearch, wanted: list[Node], given: set[Node]) -> list[Producer]:
        """The producers of a region with times where they matter, without those that are wrong."""
        known = search.producers
        if self.measure is None:
            return known
        if self.measure.mode == "full":
            times = self.timings(search, known, self.measure)
        else:
            steps = self.budget.plan_steps
            tied = near_ties(known, lambda some: extract(some, wanted, given, steps))
            times = self.timings(search, tied, self.measure)
        costs = {p.name: self.weigh(search, p, times.get(p.name)) for p in known}
        search.report.alternatives = [
            replace(a, cost=costs[name], what=a.what + _said(times.get(name)))
            for name, a in zip(search.offers, search.report.alternatives, strict=True)
        ]
        wrong = {name for name, timing in times.items() if timing is not None and not timing.right}
        wrong &= search.offers.keys()
        found = [replace(p, cost=costs[p.name]) for p in known if p.name not in wrong]
        search.report.greedy = sum([p.cost for p in found if p.name not in search.offers])
        return found

    def timings(
        self, search: RegionSearch, producers: Sequence[Producer], measure: Measure
    ) -> dict[str, Timing | None]:
        """What a race says of the kernels of some producers."""
        kernels = [search.kernel_of(p) for p in producers]
        kernels = [k if k.kind == "fold" else self.settled(k).kernel for k in kernels]
        return dict(zip([p.name for p in producers], measure(kernels, self.table), strict=True))

    def weigh(self, search: RegionSearch, producer: Producer, timing: Timing | None) -> float:
        """What a producer costs by its time, if that is known."""
        if timing is None or not timing.right:
            return producer.cost
        outputs = [n for n in producer.makes if isinstance(n, Node)]
        kind = search.kernel_of(producer).kind
        return timing.nanoseconds + search.overhead(search.parts(producer), outputs, kind)


def near_ties(
    producers: Sequence[Producer], choose: Callable[[Sequence[Producer]], Extraction]
) -> list[Producer]:
    """The producers in which the best plan differs from plans that cost about the same."""
    best = choose(producers)
    chosen = {p.name for p in best.producers}
    found: set[str] = set()
    for producer in producers:
        if producer.name in chosen:
            continue
        forced = [p for p in producers if p is producer or not set(p.makes) & set(producer.makes)]
        try:
            other = choose(forced)
        except NoPlanError:
            continue
        names = {p.name for p in other.producers}
        if producer.name in names and other.cost <= BUDGET.tie * best.cost:
            found |= names ^ chosen
    return [p for p in producers if p.name in found]


def _said(timing: Timing | None) -> str:
    if timing is None:
        return ""
    return " (measured)" if timing.right else " (its result was wrong: left out)"


def _chosen(settled: Settled) -> str:
    assert settled.report is not None
    return next(a.what for a in settled.report.alternatives if a.chosen)
