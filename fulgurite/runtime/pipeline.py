"""The pipeline from a graph to a plan: one table of stages, and one function that runs them.

In: a SINK over PARAMs and a `Context`. Out: a `Plan`, or what the stages up to some other one give.
Everybody who needs a schedule gets it here: `realize`, the bodies of loops and choices, `explain`,
and whoever asks what a graph would cost. So what is shown is what runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .._lazy import FORK_LOCK
from ..config import Options
from ..core.node import Node
from ..core.ops.effect import CONTIGUOUS
from ..core.ops.leaf import SINK
from ..graph.fusion import has_choice
from ..graph.fusion.greedy import Choose, Piece, Pieces, schedule
from ..graph.fusion.user_patterns import PATTERNS, version
from ..graph.ir.kernel import Schedule
from ..graph.memory.in_place import Pair, in_place
from ..graph.passes.simplify import simplify
from ..graph.passes.unwindow import unwindow
from ..graph.tiny import is_tiny, whole
from .device import get_device
from .plan import Plan, compile_plan

if TYPE_CHECKING:
    from ..graph.fusion.report import RegionReport
    from ..graph.fusion.search import Searcher


@dataclass
class Reports:
    """What was compared on the way, for people to read."""

    kernels: list[RegionReport] = field(default_factory=list)  # those of the user
    search: list[RegionReport] = field(default_factory=list)

    @property
    def regions(self) -> tuple[RegionReport, ...]:
        """All of them, in order."""
        return (*self.kernels, *self.search)


class Context(NamedTuple):
    """What stages may know besides the value they are given."""

    options: Options
    device: str
    inputs: int
    donated: tuple[Pair, ...] = ()
    body: bool = False  # of a loop or a choice: it is called again and again, from given memory
    reports: Reports | None = None  # filled if somebody asks; search then looks at all there is
    choose: Choose | None = None  # who chooses among kernels in the place of the options' searcher


class Stage(NamedTuple):
    """One step of the pipeline: a function from value to value."""

    name: str
    run: Callable[[Any, Context], Any]
    level: str = ""  # the grammar its output keeps, if it is a graph
    wanted: Callable[[Context], bool] = lambda context: True


def sums_windows(options: Options) -> bool:
    """Are overlapping windows summed as contractions? That reassociates, which `exact` forbids."""
    return options.simplify and not options.exact


STAGES: tuple[Stage, ...] = (
    Stage("kernels", lambda s, c: with_kernels(s, c), "tensor", lambda c: has_patterns(c.options)),
    Stage("simplify", lambda sink, _: simplify(sink), "tensor", lambda c: c.options.simplify),
    Stage("overlap", lambda sink, _: unwindow(sink), "tensor", lambda c: sums_windows(c.options)),
    Stage("distinct", lambda sink, _: distinct(sink), "tensor", lambda c: c.body),
    Stage("schedule", lambda sink, context: scheduled(sink, context)),
    Stage("plan", lambda items, context: compile_plan(items, context.device)),
)
BEFORE_PLAN = STAGES[:-1]  # nothing is compiled


def run_stages(
    sink: Node, context: Context, stages: Sequence[Stage] = STAGES,
    see: Callable[[str, Any], None] = lambda name, value: None,
) -> tuple[Any, dict[str, float]]:  # fmt: skip
    """What the last of the stages gives, and the seconds that each took; `see` looks on."""
    value: Any = sink
    options = context.options
    verify: Callable[..., object] | None = None
    if options.verify:
        with FORK_LOCK:
            from ..core import verify as checks
        verify = checks.verify
        verify(value, "tensor", "restore")
    seconds: dict[str, float] = {}
    for stage in stages:
        if not stage.wanted(context):
            continue
        start = time.perf_counter()
        value = stage.run(value, context)
        seconds[stage.name] = time.perf_counter() - start
        if verify is not None and stage.level:
            verify(value, stage.level, stage.name)
        elif verify is not None and isinstance(value, Schedule):
            with FORK_LOCK:
                from ..graph.fusion import check_single_writer
            check_single_writer.verify_agreement(value)
        if "stages" in options.log:
            print(f"fulgurite: {stage.name} {seconds[stage.name] * 1e3:.2f} ms", file=sys.stderr)
        see(stage.name, value)
    return value, seconds


def planned(sink: Node, context: Context) -> tuple[Plan, dict[str, float]]:
    """The plan of a graph, and how long each stage took."""
    plan, seconds = run_stages(sink, context)
    assert isinstance(plan, Plan)
    return plan, seconds


def schedule_of(sink: Node, context: Context) -> Schedule:
    """The kernels of a graph, of which nothing is compiled."""
    found, _ = run_stages(sink, context, BEFORE_PLAN)
    assert isinstance(found, Schedule)
    return found


def body_context(
    options: Options, device: str, inputs: int, over: tuple[Pair, ...] = ()
) -> Context:
    """How the bodies of loops and choices are made: many steps pay for compiling."""
    return Context(replace(options, tier="native"), device, inputs, over, body=True)


# --- stages --------------------------------------------------------------------------------------


def with_kernels(sink: Node, context: Context) -> Node:
    """The graph with kernels of the user where they are cheaper than what they stand for."""
    with FORK_LOCK:
        from . import user_kernels
    found, reports = user_kernels.with_kernels(sink, context)
    if context.reports is not None:
        context.reports.kernels = reports
    made: Node = found
    return made


def distinct(sink: Node) -> Node:
    """A graph with a value of its own for every root, which the schedule stores."""
    roots: dict[Node, None] = {}
    for number, root in enumerate(sink.src):
        again = root in roots or not root.src
        roots[CONTIGUOUS(root, arg=number) if again else root] = None
    return SINK(*roots)


def scheduled(sink: Node, context: Context) -> Schedule:
    """The tiny tier where there is one and it pays, else kernels."""
    if is_whole(sink, context):
        return whole(sink, context.inputs)
    choose = context.choose or chooser(context.options, context.device, context.reports)
    if context.donated:
        return in_place(sink, context.inputs, context.options.fuse, context.donated, choose)
    return schedule(sink, context.inputs, context.options.fuse, choose)


def is_whole(sink: Node, context: Context) -> bool:
    """True if NumPy runs the whole graph as one step."""
    if not get_device(context.device).has_tiny_tier:
        return False
    return context.options.tier == "auto" and is_tiny(sink)


# --- choices among kernels -----------------------------------------------------------------------


def chooser(options: Options, device: str, reports: Reports | None = None) -> Choose | None:
    """The same as `searcher`, but nothing is loaded for a schedule without a choice."""
    if not is_searched(options):
        return None
    single = not options.deterministic or options.tune != "off"  # one kernel is a choice then

    def choose(pieces: Pieces, roots: Set[Node]) -> list[Piece]:
        if not single and reports is None and not has_choice(pieces):
            return list(pieces)
        found = searcher(options, device)
        assert found is not None
        found.curious = reports is not None
        chosen = found(pieces, roots)
        if reports is not None:
            reports.search = found.reports
        return chosen

    return choose


def is_searched(options: Options) -> bool:
    """Is anything looked for? Folds reassociate, which `exact` forbids."""
    return options.search and options.fuse and not options.exact


def searcher(options: Options, device: str = "") -> Searcher | None:
    """Who chooses among kernels, if anybody does."""
    if not is_searched(options):
        return None
    if options.deterministic and options.tune == "off":
        backend = get_device(device or options.device)
        with FORK_LOCK:
            from ..graph.fusion import search as search_module
        found = search_module.Searcher(backend.sources, backend.machine)
    else:
        with FORK_LOCK:
            from . import user_kernels as user_kernels_module
        found = user_kernels_module.wide_searcher(options, device or options.device)
    return found


def has_patterns(options: Options) -> bool:
    """May kernels of the user stand in for expressions?"""
    return is_searched(options) and bool(PATTERNS)


# --- what a plan depends on ----------------------------------------------------------------------


def cache_key(
    device: str, options: Options, donated: tuple[Pair, ...] = ()
) -> tuple[Hashable, ...]:
    """What a plan depends on besides the graph; most devices have one tier only."""
    tier = options.tier if get_device(device).has_tiny_tier else ""
    if not options.search:
        return device, options.key, tier, donated
    return device, options.key, tier, donated, tuned(options), version()


def tuned(options: Options) -> str:
    """Which table of rates plans are chosen by."""
    if options.tune == "off" or not options.search:
        return ""
    with FORK_LOCK:
        from . import tuning
    found: str = tuning.table_for(options).digest
    return found
