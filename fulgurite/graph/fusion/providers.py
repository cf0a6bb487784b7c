"""Who else may run a kernel, and times in the place of guesses.

In: sources that have another way to run one kernel as it is (a vendor's library), and a `Measure`
that times kernels. Out: a `Searcher` that asks both. A piece costs what its cheapest way costs, so
library calls compete with folds inside regions as well as alone. With a measure, producers of plans
whose costs are within `TIE` of the best are timed (ties), or all of them (full), and the choice is
made again from the times. A kernel whose result is wrong is left out before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from ...core.node import Node
from ..ir.kernel import Kernel
from ..ir.kernel_kind import KernelKind
from .machine import CostTable, time_of
from .proposals import Proposal, Source
from .report import Alternative, RegionReport
from .search import RegionSearch, Searcher
from .segments import Piece
from .select import STEPS, Extraction, NoPlanError, Producer, extract

TIE = 1.15  # costs that differ by less may be in the wrong order


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
    """How a piece is run as it is."""

    kernel: Kernel
    cost: float
    report: RegionReport | None = None  # if there was something to choose


class WideSearcher(Searcher):
    """A searcher that knows other ways to run single kernels, and times."""

    def __init__(
        self, sources: Sequence[Source], table: CostTable, alone: Sequence[Source] = (),
        measure: Measure | None = None, steps: int = STEPS,
    ) -> None:  # fmt: skip
        super().__init__(sources, table, steps)
        self.alone, self.measure = tuple(alone), measure
        self.tag = tuple([s.name for s in alone]), None if measure is None else measure.mode
        self.eager = measure is not None and measure.mode == "full"
        self.known: dict[Kernel, Settled] = {}

    def __call__(self, pieces: Sequence[Piece], roots: Set[Node]) -> list[Piece]:
        """The pieces to run, each in the way that is cheapest."""
        self.known.clear()
        found: list[Piece] = []
        for why, outputs, (kernel, memory, origins) in super().__call__(pieces, roots):
            settled = self.settled(kernel)
            if settled.report is not None and settled.report not in self.reports:
                self.reports.append(settled.report)
            if settled.kernel != kernel:  # equal ones are settled once, whichever came first
                why = f"{why}; run by {_chosen(settled)}"
            found.append((why, outputs, (settled.kernel, memory, origins)))
        return found

    def price(self, kernel: Kernel) -> float:
        """What the cheapest way to run a piece costs."""
        return self.settled(kernel).cost

    def settled(self, kernel: Kernel) -> Settled:
        """The cheapest way to run a piece as it is."""
        if not self.alone:
            return Settled(kernel, time_of(kernel, self.table))
        if kernel not in self.known:
            self.known[kernel] = self.settle(kernel)
        return self.known[kernel]

    def settle(self, kernel: Kernel) -> Settled:
        own = Proposal(kernel.kind, time_of(kernel, self.table), f"our own {kernel.kind} kernel")
        others = [p for s in self.alone if (p := s.propose(kernel, self.table)) is not None]
        if not others:
            return Settled(kernel, own.cost)
        ways = [own, *others]
        kernels = [kernel, *[replace(kernel, kind=KernelKind(p.kind), plan=p.plan) for p in others]]
        costs, about = [p.cost for p in ways], [p.what for p in ways]
        able = [True] * len(ways)
        if self.measure is not None:
            limit = min(costs) * TIE if self.measure.mode == "ties" else float("inf")
            near = [i for i, cost in enumerate(costs) if cost <= limit]
            if len(near) > 1:
                times = self.measure([kernels[i] for i in near], self.table)
                for i, timing in zip(near, times, strict=True):
                    if timing is not None:
                        able[i] = timing.right or i == 0
                        costs[i] = timing.nanoseconds if timing.right else costs[i]
                        about[i] += _said(timing)
        best = min([i for i, good in enumerate(able) if good], key=lambda i: (costs[i], i))
        report = RegionReport(1, greedy=costs[0], cost=costs[best])
        for i, what in enumerate(about):
            report.alternatives.append(Alternative(what, costs[i], i == best, 0))
        return Settled(kernels[best], costs[best], report)

    def weighed(self, search: RegionSearch, wanted: list[Node], given: set[Node]) -> list[Producer]:
        """The producers of a region with times where they matter, without those that are wrong."""
        if self.measure is None:
            return search.producers
        known = search.producers
        todo = known if self.measure.mode == "full" else near_ties(
            known, lambda some: extract(some, wanted, given, self.steps))  # fmt: skip
        kernels = [search.kernel_of(p) for p in todo]
        kernels = [k if k.kind == "fold" else self.settled(k).kernel for k in kernels]
        times = dict(zip([p.name for p in todo], self.measure(kernels, self.table), strict=True))
        found: list[Producer] = []
        costs: dict[str, tuple[float, str]] = {}
        for producer in known:
            timing, cost = times.get(producer.name), producer.cost
            if timing is not None and timing.right:
                outputs = [n for n in producer.makes if isinstance(n, Node)]
                cost = timing.nanoseconds + search.kept(outputs) + search.made
            if timing is None or timing.right or producer.name not in search.ways:
                found.append(replace(producer, cost=cost))
            costs[producer.name] = cost, "" if timing is None else _said(timing)
        search.report.alternatives = [
            replace(a, cost=costs[name][0], what=a.what + costs[name][1])
            for name, a in zip(search.ways, search.report.alternatives, strict=True)
        ]
        greedy = [p.cost for p in found if p.name not in search.ways]
        search.report.greedy = sum(greedy)
        return found


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
        if producer.name in names and other.cost <= TIE * best.cost:
            found |= names ^ chosen
    return [p for p in producers if p.name in found]


def _said(timing: Timing) -> str:
    return " (measured)" if timing.right else " (its result was wrong: left out)"


def _chosen(settled: Settled) -> str:
    assert settled.report is not None
    return next(a.what for a in settled.report.alternatives if a.chosen)
