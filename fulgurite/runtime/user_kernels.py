"""The searcher with all that may compete, and kernels of the user in the place of expressions.

In: options and a graph. Out: a searcher with the vendor's library (where bits may vary) and races
(where tuning is on); and the graph in which a kernel of the user stands wherever it is cheaper than
the expression that it was registered for. All places whose operands have equal shapes are one
decision, made by the cost of the whole plan with it and without. Its result is
checked against the expression's before it is considered, and a wrong one is left out and reported.
Text of the user's own is taken to run at the speed of memory until tuning times it.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from ..config import Options
from ..core.node import Node, toposort
from ..core.ops.leaf import SINK, param
from ..core.passes import passes_up_to
from ..core.rewriting.substitute import substitute
from ..core.text import show
from ..graph.fusion.budget import BUDGET
from ..graph.fusion.machine import spill_time, time_of
from ..graph.fusion.pattern_matching import Places, Written
from ..graph.fusion.providers import WideSearcher
from ..graph.fusion.report import Alternative, RegionReport
from ..graph.fusion.search import Searcher
from ..graph.fusion.user_patterns import PATTERNS
from ..graph.ir.kernel import Schedule
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.queries import elements
from .cache.disk import store_for
from .cache.plan_cache import LOADED, build_of
from .device import get_device
from .pipeline import SCHEDULING, Context, run_pipeline
from .tuning import Entrant, Race, is_checkable, is_right, prepared, table_for, times_for

PREDICTED = SCHEDULING[1 + len(passes_up_to(SCHEDULING, "user_kernels")) :]  # after who asks


def wide_searcher(options: Options, device: str) -> Searcher:
    """The chooser where not only our own kernels compete."""
    backend = get_device(device)
    alone, sources = (
        [one for one in every if one.deterministic or not options.deterministic]
        for every in (backend.providers, backend.sources)
    )
    table, race = table_for(options, device), race_for(options, device)
    return WideSearcher(sources, table, alone, race)


def race_for(options: Options, device: str) -> Race | None:
    """The timer of kernels, if there is one: times of interpreted kernels say nothing."""
    if options.tune == "off" or get_device(device).codegen is None:
        return None
    store = store_for(options)
    build = "" if store is None else build_of(store) or f"loaded at {LOADED}"
    return Race(options.tune, times_for(options), device=device, build=build)


def with_kernels(sink: Node, context: Context) -> tuple[Node, list[RegionReport]]:
    """The graph with kernels of the user where they are cheaper, and what was compared."""
    reports: list[RegionReport] = []
    for pattern in list(PATTERNS):
        groups: dict[Written, dict[Node, dict[Node, Node]]] = {}
        for place, written, bound in Places(pattern).find(sink):
            groups.setdefault(written, {})[place] = bound
        if len(groups) == 0:
            continue
        decision = _Decision(pattern.name, context)
        for written, places in groups.items():
            other = _put(sink, written, places)
            if other is sink or not decision.pays(sink, other, written, len(places)):
                continue
            sink = other
        reports += decision.reports
    return sink, reports


def _put(sink: Node, written: Written, places: dict[Node, dict[Node, Node]]) -> Node:
    """The graph with a kernel in all its places; those inside operands of others as well."""
    instead: dict[Node, Node] = {}
    for node in toposort([sink]):
        if node in places:
            kernel = substitute(written.kernel, places[node], walk=True)
            instead[node] = substitute(kernel, dict(instead), walk=True)
    return substitute(sink, instead, walk=True)


class _Decision:
    """Whether one kernel pays."""

    def __init__(self, name: str, context: Context) -> None:
        self.name, self.context = name, context
        self.table = table_for(context.options, context.device)
        self.race = race_for(context.options, context.device)
        self.reports: list[RegionReport] = []

    def pays(self, sink: Node, other: Node, written: Written, places: int) -> bool:
        """True if the graph with the kernel is cheaper; what was compared is reported."""
        before, after = self.cost(sink), self.cost(other)
        what, as_it_was = f"kernel {self.name!r} of the user", "the expression it stands for"
        right = self.is_right(written)
        near = max(before, after) <= BUDGET.tie * min(before, after)
        if right and self.race is not None and (near or self.race.mode == "full"):
            plain, mine = self.entrant(written, False), self.entrant(written, True)
            timings = self.race.run([plain, mine], self.table)
            if timings[0] is not None and timings[1] is not None:
                # the rest of the plan as predicted, this part as measured
                before += places * (timings[0].nanoseconds - self.predicted(plain.schedule))
                after += places * (timings[1].nanoseconds - self.predicted(mine.schedule))
                what, as_it_was = what + " (measured)", as_it_was + " (measured)"
        if not right:
            what += " (its result was wrong or could not be checked: left out)"
        chosen = right and after < before
        report = RegionReport(places, greedy=before, cost=after if chosen else before)
        report.alternatives.append(Alternative(as_it_was, before, not chosen, 0))
        report.alternatives.append(Alternative(what, after, chosen, places))
        self.reports.append(report)
        return chosen

    def is_right(self, written: Written) -> bool:
        """True if the kernel gives what the expression gives."""
        entrant = self.entrant(written, True)
        if not is_checkable(SINK(*entrant.expected)):
            return False
        plan, inputs = prepared(entrant, self.context.device)
        if is_right(entrant, plan, inputs):
            return True
        warnings.warn(
            f"kernel {self.name!r} does not give what its pattern gives: it is not used",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return False

    def entrant(self, written: Written, user: bool) -> Entrant:
        """The kernel, or the expression, alone in a plan."""
        own = {
            p: param(i, p.shape, p.dtype, p.device) for i, p in enumerate(written.operands)
        }  # fmt: skip
        expression = substitute(written.expression, own, walk=True)
        sink = SINK(substitute(written.kernel, own, walk=True) if user else expression)
        made = self.scheduled(sink, len(own))
        return Entrant(made, (expression,), f"plan\n{show(sink)}")

    def scheduled(self, sink: Node, inputs: int) -> Schedule:
        """A plan as the passes make it, but for kernels of the user and for timing."""
        context = Context(self.context.options, self.context.device, inputs, choose=self.searcher())
        found: Schedule = run_pipeline(sink, context, PREDICTED)
        return found

    def searcher(self) -> Searcher:
        quick = replace(self.context.options, tune="off")  # what is predicted is not timed
        found = wide_searcher(quick, self.context.device)
        found.table = self.table
        return found

    def cost(self, sink: Node) -> float:
        """Nanoseconds of the plan of a graph."""
        return self.predicted(self.scheduled(sink, self.context.inputs))

    def predicted(self, made: Schedule) -> float:
        """Nanoseconds of a plan, with what its kernels and values between them cost."""
        total, results = 0.0, set(made.outputs)
        for item in made.items:
            guesses = [time_of(item.kernel, self.table)]
            if item.kernel.kind is KernelKind.FOLD:
                sources = get_device(self.context.device).sources
                asked = [s.propose(item.kernel, self.table) for s in sources]
                guesses = [p.cost for p in asked if p is not None] or guesses
            total += min(guesses) + self.table.compile_ns
            for slot in item.writes:
                about = made.slots[slot]
                if about is not None and slot not in results:
                    size = elements(about.shape) * about.dtype.itemsize
                    total += spill_time([size], self.table)
        return total
