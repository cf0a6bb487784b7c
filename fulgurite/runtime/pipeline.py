"""The pipeline: every pass from a normalised graph to a plan, in one list, run by one driver.

In: a SINK over PARAMs and a `Context`. Out: a `Plan`, or what the passes up to some other one give.
All clients get their kernels here: `realize`, the bodies of loops and choices, `explain`,
exported schedules, and estimates of what a graph would cost. So what is shown is what runs.
`PIPELINE` reads top to bottom as data flows: graph passes, fusion, memory, lowering, compilation;
`core/passes.py` runs, verifies and logs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import field
from typing import TYPE_CHECKING, Any

from .._lazy import FORK_LOCK
from ..config import Options, current
from ..core.lazy_dataclass import dataclass
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node, toposort
from ..core.ops.collective import COMMUNICATES
from ..core.ops.effect import CONTIGUOUS
from ..core.ops.leaf import IOTA, SINK
from ..core.ops.movement import UNWINDOW
from ..core.passes import (
    TENSOR,
    Level,
    Observe,
    Pass,
    Watch,
    passes_up_to,
    run_passes,
    show,
    verify_index,
)
from ..core.symbolic.sym import choosing
from ..graph.fusion import has_choice, has_views
from ..graph.fusion.build_schedule import (
    Choose,
    Partition,
    Segment,
    Segments,
    build_schedule,
    choose_kernels,
)
from ..graph.fusion.greedy import copy_leaf_roots, fuse
from ..graph.ir.kernel import Kernel, Schedule
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.lower import IndexKernel, lower_schedule
from ..graph.ir.queries import elements
from ..graph.memory.in_place import Donated, InPlace
from ..graph.memory.reorder import reorder
from ..graph.passes.cancel import cancel
from ..graph.passes.drop_empty import drop_empty
from ..graph.passes.expand_zero_points import expand_zero_points
from ..graph.passes.materialize_operands import materialize_operands
from ..graph.passes.overlap import hide_latency, start_and_wait
from ..graph.passes.pack_collectives import pack_collectives
from ..graph.passes.reassociate import (
    factor_sums,
    interchange_sums,
    split_sums,
    widen_row_sums,
)
from ..graph.passes.simplify import simplify
from ..graph.passes.split_concat import split_concat
from ..graph.passes.split_reduce import split_reduce
from ..graph.passes.ungroup_broadcast import ungroup_broadcast
from ..graph.tiny import is_tiny, is_tiny_as_built, whole
from .device import get_device
from .plan import LaidOut, Plan, compile_schedule, lay_out, link_compiled, written_over
from .plan_key import has_patterns, is_searched, may_be_tiny, may_run_as_built

if TYPE_CHECKING:
    from ..graph.fusion.report import RegionReport
    from ..graph.fusion.search import Searcher


@dataclass
class Reports:
    """What was compared on the way, for reports."""

    kernels: list[RegionReport] = field(default_factory=list)  # those of the user
    search: list[RegionReport] = field(default_factory=list)

    @property
    def regions(self) -> tuple[RegionReport, ...]:
        """All of them, in order."""
        return (*self.kernels, *self.search)


class Scratch:
    """What passes of one run share: the order of the graph that is at hand, and donated memory."""

    def __init__(self, donated: Donated) -> None:
        self.in_place = InPlace(donated)
        self.sink: Node | None = None
        self.nodes: list[Node] = []

    def order(self, sink: Node) -> list[Node]:
        """The nodes of a graph, sources first; traversed once for passes that change nothing."""
        if self.sink is not sink:
            self.sink, self.nodes = sink, toposort([sink])
        return self.nodes


class Context(NamedTuple):
    """What passes may know besides the value they are given."""

    options: Options
    device: str
    inputs: int
    donated: Donated = ()
    body: bool = False  # of a loop or a choice: it is called again and again, from given memory
    reports: Reports | None = None  # filled for `explain`; search then looks at all there is
    choose: Choose | None = None  # the kernel chooser in place of the options' searcher
    collectives: bool = False  # are they work of the device, whatever that says?
    scratch: Scratch = Scratch(())
    copies_back: bool = False  # what cannot be written in place, also where no device asks for it
    joins: bool = False  # kernels in one launch, likewise

    def order(self, sink: Node) -> list[Node]:
        """The nodes of a graph, sources first."""
        return self.scratch.order(sink)

    @property
    def in_place(self) -> InPlace:
        """What becomes of donated memory."""
        return self.scratch.in_place

    @property
    def searched(self) -> bool:
        """True if kernels are chosen, which may reassociate sums."""
        return self.options.fuse and (self.choose is not None or is_searched(self.options))

    @property
    def assigns(self) -> bool:
        """True if donated memory is written over by kernels."""
        return self.in_place.assigned is not None


def _verify_schedule(schedule: Schedule, name: str) -> None:
    with FORK_LOCK:
        from ..graph.fusion import check_single_writer
    check_single_writer.verify_schedule(schedule, name)
    for item in schedule.items:
        if isinstance(item.kernel.lowered, IndexKernel):
            verify_index(item.kernel.lowered.body.src, name)


def show_lowered(schedule: Schedule) -> str:
    """The text of a schedule and of its kernels in index notation."""
    kernels = dict.fromkeys([item.kernel for item in schedule.items])
    texts = [
        f"{k.name}\n{show(k.lowered.body)}" for k in kernels if isinstance(k.lowered, IndexKernel)
    ]
    return "\n\n".join([str(schedule), *texts])


PARTITION = Level("partition")
SCHEDULE = Level("schedule", verify=_verify_schedule)
LOWERED = Level("lowered", show_lowered, _verify_schedule)  # a schedule of kernels in index form
LAID_OUT = Level("laid out")
COMPILED = Level("compiled")
PLAN = Level("plan", lambda plan: str(plan.schedule))


def graph_pass(
    name: str, run: Callable[[Node, Context], Node], when: Callable[[Context], bool]
) -> Pass:
    """A pass from graph to graph."""
    return Pass(name, run, TENSOR, TENSOR, when)


def always(context: Context) -> bool:
    """True: a pass that every graph goes through."""
    return True


def searched(context: Context) -> bool:
    """True if sums may be reassociated for kernels that are chosen."""
    return context.searched


def exchanges_itself(context: Context) -> bool:
    """True if collectives are work of the device, in its order."""
    return context.collectives or get_device(context.device).has_collectives


def any_size(run: Callable[..., Any], *args: Any) -> Any:
    """What a pass makes that chooses by costs: it is right for all sizes."""
    with choosing():
        return run(*args)


REASSOCIATION: tuple[Pass, ...] = (
    graph_pass("split_concat", lambda s, c: split_concat(s, c.order(s)), searched),
    graph_pass("split_sums", lambda s, c: split_sums(s, c.order(s)), searched),
    graph_pass("factor_sums", lambda s, c: factor_sums(s, c.order(s)), searched),
    graph_pass("ungroup_broadcast", lambda s, c: ungroup_broadcast(s, c.order(s)), searched),
    graph_pass("cancel", lambda s, c: cancel(s, c.order(s)), searched),
    graph_pass("interchange_sums", lambda s, c: interchange_sums(s, c.order(s)), searched),
    graph_pass("split_reduce", lambda s, c: split_reduce(s, c.order(s)), searched),
    graph_pass("widen_row_sums", lambda s, c: widen_row_sums(s, c.order(s)), searched),
)

PIPELINE: tuple[Pass, ...] = (
    # graph passes
    Pass("tiny_as_built", lambda s, c: as_built(s, c), TENSOR, SCHEDULE,
         lambda c: not c.body and may_run_as_built(c.options, c.device, c.donated)),
    graph_pass("partition", lambda s, c: partition(s, c), always),
    graph_pass(
        "append_in_place", lambda s, c: c.in_place.append(s), lambda c: bool(c.in_place.appends)
    ),
    graph_pass("user_kernels", lambda s, c: user_kernels(s, c), lambda c: has_patterns(c.options)),
    graph_pass("simplify", lambda s, c: simplify(s), lambda c: c.options.simplify),
    graph_pass("unwindow", lambda s, c: unwindow(s, c), lambda c: sums_windows(c.options)),
    graph_pass("distinct_roots", lambda s, c: distinct_roots(s), lambda c: c.body),
    Pass("tiny", lambda s, c: tiny(s, c), TENSOR, SCHEDULE,
         lambda c: may_be_tiny(c.options, c.device)),
    graph_pass("assign_updates", lambda s, c: c.in_place.assign(s), lambda c: bool(c.donated)),
    *REASSOCIATION,
    graph_pass(
        "mask_from_result", lambda s, c: masks(s, c),
        lambda c: c.joins or get_device(c.device).compares_results,
    ),
    graph_pass("drop_empty", lambda s, c: drop_empty(s, c.order(s)), always),
    graph_pass("expand_zero_points", lambda s, c: expand_zero_points(s, c.order(s)), always),
    graph_pass(
        "materialize_operands",
        lambda s, c: operands(s, c),
        always,
    ),
    graph_pass(
        "pack_collectives", lambda s, c: pack_collectives(s, c.order(s)), exchanges_itself
    ),
    graph_pass("start_and_wait", lambda s, c: start_and_wait(s), lambda c: not exchanges_itself(c)),
    graph_pass("copy_leaf_roots", lambda s, c: copy_leaf_roots(s, c.order(s)), always),
    # fusion
    Pass(
        "fuse", lambda s, c: any_size(fuse, s, c.order(s), c.options.fuse), TENSOR, PARTITION
    ),
    Pass("store_views", lambda p, c: any_size(stored_views, p, c), PARTITION, PARTITION, searched),
    Pass("store_as_read", lambda p, c: any_size(as_read, p, c), PARTITION, PARTITION,
         lambda c: c.searched and get_device(c.device).packs_operands),
    Pass(
        "choose_kernels", lambda p, c: any_size(choose, p, c), PARTITION, PARTITION, searched,
        lambda: stream_passes(),  # of every kernel that might be a fold
    ),
    Pass("join_column_sums", lambda p, c: any_size(column_sums, p), PARTITION, PARTITION,
         lambda c: c.searched and (c.joins or get_device(c.device).joins_column_sums)),
    Pass("join_small_maps", lambda p, c: any_size(small_maps, p), PARTITION, PARTITION,
         lambda c: c.options.fuse and (c.joins or get_device(c.device).joins_small_maps)),
    Pass("tile_rows", lambda p, c: any_size(strips, p, c), PARTITION, PARTITION,
         lambda c: in_strips(c)),
    Pass("schedule", lambda p, c: build_schedule(p, c.inputs), PARTITION, SCHEDULE),
    Pass("pick_one_hot", lambda s, c: one_hot(s), SCHEDULE, SCHEDULE, lambda c: c.options.fuse),
    # lowering and memory
    Pass(
        "reorder", lambda s, c: any_size(reorder, s), SCHEDULE, SCHEDULE,
        lambda c: c.options.fuse,
    ),
    Pass(
        "channels_last", lambda s, c: layouts(s), SCHEDULE, SCHEDULE,
        lambda c: lays_out_images(c),
    ),
    Pass("concat_in_place", lambda s, c: in_place(s, c), SCHEDULE, SCHEDULE,
         lambda c: c.searched and (c.joins or get_device(c.device).joins_in_place)),
    Pass("hide_latency", lambda s, c: hide_latency(s), SCHEDULE, SCHEDULE),
    Pass("lower", lambda s, c: lower_schedule(s), SCHEDULE, LOWERED),
    Pass("alias", lambda s, c: c.in_place.alias(s), LOWERED, LOWERED, lambda c: c.assigns),
    Pass("copy_back", lambda s, c: c.in_place.copy_back(s), LOWERED, LOWERED,
         lambda c: c.assigns and (c.copies_back or get_device(c.device).keeps_addresses)),
    Pass("plan_memory", lambda s, c: lay_out(s, c.device), LOWERED, LAID_OUT),
    # code
    Pass(
        "compile", lambda s, c: compile_schedule(s, c.device), LAID_OUT, COMPILED, always,
        lambda: kernel_passes(),  # of every kernel that is new
    ),
    Pass("link", lambda s, c: link_compiled(s, c.device), COMPILED, PLAN),
)  # fmt: skip
SCHEDULING = passes_up_to(PIPELINE, "plan_memory")
BEFORE_COMPILE = passes_up_to(PIPELINE, "compile")  # nothing is compiled
COMPILATION = PIPELINE[len(passes_up_to(PIPELINE, "lower")) :]  # of kernels in their order


def run_pipeline(
    value: Node | Schedule | LaidOut, context: Context, passes: Sequence[Pass] = PIPELINE,
    observe: Observe | None = None, seconds: dict[str, float] | None = None,
) -> Any:  # fmt: skip
    """What the passes make of a graph, or of a schedule that somebody else made or laid out."""
    context = context._replace(scratch=Scratch(context.donated))
    level = TENSOR if isinstance(value, Node) else SCHEDULE
    level = LAID_OUT if isinstance(value, LaidOut) else level
    if context.options.verify:
        level.verify(value, "restore")
    watch = Watch.of(context.options, observe)
    return run_passes(value, context, passes, watch, level, seconds)


Ahead = tuple[LaidOut, dict[str, float]]  # a graph up to its code, and how long each pass took


def planned(
    sink: Node, context: Context, ahead: Ahead | None = None
) -> tuple[Plan, dict[str, float]]:
    """The plan of a graph, of which a part may be made, and how long each pass took."""
    value, seconds = (sink, dict[str, float]()) if ahead is None else ahead
    plan = run_pipeline(value, context, PIPELINE, None, seconds)
    assert isinstance(plan, Plan)
    return plan, seconds


def begun(sink: Node, context: Context) -> Ahead:
    """A graph planned up to its code, which its device has begun to compile."""
    seconds: dict[str, float] = {}
    laid_out = run_pipeline(sink, context, BEFORE_COMPILE, None, seconds)
    assert isinstance(laid_out, LaidOut)
    schedule = laid_out.schedule
    get_device(context.device).compile_ahead(
        [item.kernel for item in schedule.items], written_over(schedule)
    )
    return laid_out, seconds


def compiled(schedule: Schedule, options: Options, device: str) -> Plan:
    """The plan of kernels that are chosen and in order."""
    plan = run_pipeline(schedule, Context(options, device, schedule.inputs), COMPILATION)
    assert isinstance(plan, Plan)
    return plan


def schedule_of(sink: Node, context: Context) -> Schedule:
    """The kernels of a graph, of which nothing is compiled."""
    found = run_pipeline(sink, context, SCHEDULING)
    assert isinstance(found, Schedule)
    return found


def laid_in_order(sink: Node, context: Context) -> Schedule:
    """The kernels of a graph in index notation, of which nothing is laid out."""
    found = run_pipeline(sink, context, passes_up_to(PIPELINE, "plan_memory"))
    assert isinstance(found, Schedule)
    return found


# --- passes --------------------------------------------------------------------------------------


def sums_windows(options: Options) -> bool:
    """True if overlapping windows become contractions: that reassociates, which `exact` forbids."""
    return options.simplify and not options.exact


def partition(sink: Node, context: Context) -> Node:
    """The graph of one rank, where tensors are split over several."""
    if not any([node.op in COMMUNICATES for node in context.order(sink)]):
        return sink
    with FORK_LOCK:
        from ..graph.passes import partition as partition_module
    return partition_module.partition(sink).sink


def unwindow(sink: Node, context: Context) -> Node:
    """The graph with sums of overlapping windows as contractions."""
    if not any([node.op is UNWINDOW for node in context.order(sink)]):
        return sink
    with FORK_LOCK:
        from ..graph.passes import unwindow as unwindow_module
    return unwindow_module.unwindow(sink)


def user_kernels(sink: Node, context: Context) -> Node:
    """The graph with kernels of the user where they are cheaper than what they stand for."""
    with FORK_LOCK:
        from . import user_kernels as user_kernels_module
    found, reports = user_kernels_module.with_kernels(sink, context)
    if context.reports is not None:
        context.reports.kernels = reports
    return found


def stored_views(partition: Partition, context: Context) -> Partition:
    """The partition with values stored that every reader would have to look up."""
    if not has_views(context.order(partition.sink)):
        return partition
    with FORK_LOCK:
        from ..graph.fusion import store_views as store_views_module
    return store_views_module.store_views(partition, get_device(context.device).machine)


def as_read(partition: Partition, context: Context) -> Partition:
    """The partition with products stored in the order in which they are packed."""
    if not has_views(context.order(partition.sink)):
        return partition
    with FORK_LOCK:
        from ..graph.fusion import store_as_read as store_as_read_module
    return store_as_read_module.store_as_read(partition)


def distinct_roots(sink: Node) -> Node:
    """A graph with a value of its own for every root, which the schedule stores."""
    roots: dict[Node, None] = {}
    for number, root in enumerate(sink.src):
        again = root in roots or not root.src
        roots[CONTIGUOUS(root, arg=number) if again else root] = None
    return SINK(*roots)


def lays_out_images(context: Context) -> bool:
    """True if images between kernels have their channels last."""
    asked = context.options.channels_last
    wanted = asked == "on" or (asked == "auto" and get_device(context.device).channels_last)
    return context.options.fuse and wanted


def layouts(schedule: Schedule) -> Schedule:
    """The schedule with images between kernels laid out for tensor cores."""
    with FORK_LOCK:
        from ..kernel.contract import aligned_rows as rows
        from ..kernel.contract import channels_last as images
    return rows.aligned_rows(images.channels_last(schedule))


def as_built(sink: Node, context: Context) -> Schedule | None:
    """The graph as one step of NumPy's, if it has nothing to simplify; see `compile_graph`."""
    return whole(sink, context.inputs) if is_tiny_as_built(sink) else None


def tiny(sink: Node, context: Context) -> Schedule | None:
    """The graph as one step of NumPy's, if compiling would cost more than it saves."""
    return whole(sink, context.inputs) if is_tiny(sink) else None


def stream_passes() -> tuple[Pass, ...]:
    """The passes that look for an online reduction in a kernel."""
    with FORK_LOCK:
        from ..kernel.stream import online
    return online.PASSES


def kernel_passes() -> Sequence[Pass]:
    """The passes from a kernel in index notation to its text, for the device of now."""
    codegen = get_device(current().device).codegen
    if codegen is not None:
        return codegen.passes
    with FORK_LOCK:  # where kernels are interpreted, those of the CPU
        from ..codegen.cpu import render
    return render.PASSES


def operands(sink: Node, context: Context) -> Node:
    """The graph with operands in memory where the device wants them so."""
    device = get_device(context.device)
    order = context.order(sink)
    return materialize_operands(sink, order, device.operand_reuse, device.keeps_float8)


def one_hot(schedule: Schedule) -> Schedule:
    """The schedule without sums of one-hot rows."""
    sums = {item.kernel for item in schedule.items if item.kernel.kind is KernelKind.REDUCE}
    if not any([n.op is IOTA for n in toposort([kernel.body for kernel in sums])]):
        return schedule
    with FORK_LOCK:
        from ..graph.passes import pick_one_hot as pick_one_hot_module
    return pick_one_hot_module.pick_one_hot(schedule)


def in_place(schedule: Schedule, context: Context) -> Schedule:
    """The schedule with parts of joined arrays where these have them."""
    if len(schedule.items) < 2:
        return schedule
    with FORK_LOCK:
        from ..kernel.contract import concat_in_place as concat_in_place_module
    device = get_device(context.device)

    def plan(kernel: Kernel) -> object:
        sources = [
            s for s in device.sources if s.deterministic or not context.options.deterministic
        ]
        found = [s.propose(kernel, device.machine) for s in sources]
        return next((p.plan for p in found if p is not None and p.kind == kernel.kind), None)

    return concat_in_place_module.concat_in_place(schedule, plan)


def in_strips(context: Context) -> bool:
    """True if matrices between kernels may be made some rows at a time."""
    return context.searched and bool(context.options.strip_bytes)


def masks(sink: Node, context: Context) -> Node:
    """The graph with conditions of rectifiers compared anew."""
    with FORK_LOCK:
        from ..graph.passes import mask_from_result as mask_from_result_module
    return mask_from_result_module.mask_from_result(sink, context.order(sink))


def column_sums(partition: Partition) -> Partition:
    """The partition with sums of columns in kernels of rows."""
    with FORK_LOCK:
        from ..graph.fusion.horizontal import join_column_sums as join_column_sums_module
    return join_column_sums_module.join_column_sums(partition)


def small_maps(partition: Partition) -> Partition:
    """The partition with small maps together."""
    with FORK_LOCK:
        from ..graph.fusion.horizontal import join_small_maps as join_small_maps_module
    return join_small_maps_module.join_small_maps(partition)


def strips(partition: Partition, context: Context) -> Partition:
    """The partition with matrices that are too large to be stored in strips of rows."""
    most = context.options.strip_bytes
    stored = [n for _, found, _ in partition.segments for n in found]
    if all([elements(n.shape) * n.dtype.itemsize <= most for n in stored]):
        return partition
    with FORK_LOCK:
        from ..graph.passes import tile_rows as tile_rows_module
    order = toposort([partition.sink])
    sink = tile_rows_module.tile_rows(partition.sink, order, stored, most)
    if sink is partition.sink:
        return partition
    again = stored_views(fuse(sink, toposort([sink]), context.options.fuse), context)
    return choose(again, context)


def choose(partition: Partition, context: Context) -> Partition:
    """The partition with the kernels that a searcher chose."""
    who = context.choose or chooser(context.options, context.device, context.reports, context.body)
    assert who is not None, "somebody chooses"
    return choose_kernels(partition, who)


# --- choices among kernels -----------------------------------------------------------------------


def chooser(
    options: Options, device: str, reports: Reports | None = None, body: bool = False
) -> Choose | None:
    """The same as `searcher`, but nothing is loaded for a schedule without a choice."""
    if not is_searched(options):
        return None
    single = not options.deterministic or options.tune != "off"  # one kernel is a choice then

    def chosen(segments: Segments, roots: Set[Node]) -> list[Segment]:
        alone = single or (
            get_device(device or options.device).asks_library and _has_sums(segments)
        )
        if not alone and reports is None and not has_choice(segments):
            return list(segments)
        found = searcher(options, device)
        assert found is not None
        found.curious = reports is not None
        if body:
            found.table = found.table.in_body()
        segments = found(segments, roots)
        if reports is not None:
            reports.search = found.reports
        return segments

    return chosen


def _has_sums(segments: Segments) -> bool:
    """True if a kernel may be a product, which a library may compute."""
    return any([c[0].kind in (KernelKind.CONTRACT, KernelKind.REDUCE) for _, _, c in segments])


def searcher(options: Options, device: str = "") -> Searcher | None:
    """The kernel chooser, if there is one."""
    if not is_searched(options):
        return None
    backend = get_device(device or options.device)
    if options.deterministic and options.tune == "off" and not backend.asks_library:
        with FORK_LOCK:
            from ..graph.fusion import search as search_module
        sources = [source for source in backend.sources if source.deterministic]
        found = search_module.Searcher(sources, backend.machine)
    else:
        with FORK_LOCK:
            from . import user_kernels as user_kernels_module
        found = user_kernels_module.wide_searcher(options, device or options.device)
    return found
