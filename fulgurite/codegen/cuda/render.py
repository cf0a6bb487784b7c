"""One kernel as Triton text: the order of passes from an `IndexKernel` to its launches.

In: an `IndexKernel` and the dtypes of its params. Out: a `KernelSource`, or `CannotLower` with the
reason. Complex numbers become pairs, sizes that vary their upper bounds, plain moves of small
floats moves of bits; then scans, sorts and scatters are cut off (`parts.py`), long folds with few
results are split in two launches, and stores that share no axis get launches of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..._lazy import FORK_LOCK
from ...core.dtype import DType, float32
from ...core.node import Node, toposort
from ...core.ops.index import STORE
from ...core.ops.leaf import SINK
from ...core.passes import UNWATCHED, Level, Pass, Watch, run_passes
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes
from ...graph.ir.reshape_groups import CannotLower
from ...kernel.transform.drop_implied_masks import drop_implied_masks
from ...kernel.transform.merge_axes import merge_axes
from ...kernel.transform.passes import INDEX, TRANSFORMS, TypedKernel
from ...kernel.transform.share_axes import share_axes
from ...kernel.transform.split_reduction import Part, split
from ...kernel.transform.tables import SplitTable
from .analysis import fixed_axes, live_roots, parallel_axes
from .gluon.gemm import best_split, part_of, plan_gluon, render_gluon
from .implicit_gemm import implicit_gemm
from .joined import RowsAndColumns, join_rows, with_one_column
from .parts import in_parts
from .program import TileProgram
from .source import KernelSource, Launch, Place, Room, params
from .tiling import HOPPER, GpuTable, choose_tiling

if TYPE_CHECKING:
    from ...kernel.stream.roles import StreamedKernel


class Rendering(NamedTuple):
    """What passes of a kernel may know besides it."""

    table: GpuTable
    places: Sequence[Place]  # of its params
    room: Room  # memory that launches share
    watch: Watch


CODE = Level("code", lambda launches: "\n".join([launch.text for launch in launches]))

STREAM = Level("streamed kernel")

PLAIN: tuple[Pass, ...] = (  # of a kernel without scans, sorts and scatters
    Pass(
        "drop_implied_masks",
        lambda v, c: v.of(merge_axes(drop_implied_masks(v.kernel))),
        INDEX,
        INDEX,
    ),
    Pass("tile", lambda v, c: tile(v, c), INDEX, CODE),
)
PASSES: tuple[Pass, ...] = (
    Pass("stream", lambda v, c: stream(v, c), STREAM, CODE),
    *TRANSFORMS[:-1],
    Pass("drop_dead_roots", lambda v, c: v.of(drop_dead_roots(v.kernel)), INDEX, INDEX),
    TRANSFORMS[-1],  # what nobody stores is in the way of merging axes
    Pass("share_axes", lambda v, c: v.of(share_axes(v.kernel)), INDEX, INDEX),
    Pass("irregular", lambda v, c: irregular(v, c), INDEX, CODE),
    *PLAIN,
)


def render(
    kernel: IndexKernel, dtypes: Sequence[DType], table: GpuTable = HOPPER,
    watch: Watch = UNWATCHED,
) -> KernelSource:  # fmt: skip
    """The kernel as launches."""
    room = Room()
    context = Rendering(table, params(len(dtypes)), room, watch)
    launches = run_passes(TypedKernel(kernel, tuple(dtypes)), context, PASSES, watch, INDEX)
    return KernelSource(tuple(launches), room.used)


def render_fold(plan: object, table: GpuTable = HOPPER, watch: Watch = UNWATCHED) -> KernelSource:
    """A kernel that a search chose as an online reduction, as launches."""
    with FORK_LOCK:
        from ...kernel.stream.roles import StreamedKernel
    if not isinstance(plan, StreamedKernel):
        raise CannotLower("a fold that nobody planned")
    room = Room()
    context = Rendering(table, params(len(plan.dtypes)), room, watch)
    launches = run_passes(plan, context, PASSES, watch, STREAM)
    if not isinstance(launches, list):
        raise CannotLower("no template takes it")
    return KernelSource(tuple(launches), room.used)


def stream(value: StreamedKernel, context: Rendering) -> list[Launch] | None:
    """A kernel that streams over an axis, as its search found it."""
    with FORK_LOCK:
        from . import stream as template
    if value.problem.transposed:
        return _in_one_pass(value, context) or _in_two_passes(value, context)
    found = template.render_stream(value, context.places, context.table)
    return None if found is None else [found]


def _in_one_pass(value: StreamedKernel, context: Rendering) -> list[Launch] | None:
    """Sums of both sides by one loop, with zeros before it and what follows behind it."""
    with FORK_LOCK:
        from .gluon.one_pass import plan_one_pass, render_one_pass, sums_between
    table, places, room, _ = context
    if plan_one_pass(value.problem, table) is None:
        return None
    shared = [(float32, sums_between(value.problem))]
    kinds, where = _with_room(shared, value.dtypes, places, room)
    found = render_one_pass(value, places, where[-1], table)
    if found is None:
        return None
    before, behind = (_launches([Part(k)], kinds, where, table) for k in found.kernels)
    return [*before, found.loop, *behind]


def _in_two_passes(value: StreamedKernel, context: Rendering) -> list[Launch] | None:
    """Sums of each side by a loop of its own."""
    with FORK_LOCK:
        from ...kernel.stream.price import sides_of
        from . import stream as template
    sides = sides_of(value)
    every = [template.render_stream(one, context.places, context.table) for one in sides]
    found = [launch for launch in every if launch is not None]
    return found if len(found) == 2 else None


def drop_dead_roots(kernel: IndexKernel) -> IndexKernel:
    """The kernel without roots that no index reaches."""
    free = free_axes([n for n in toposort([kernel.body]) if n.op is not SINK])
    roots = live_roots(kernel, free)
    same = len(roots) == len(kernel.body.src)
    return kernel if same else kernel._replace(body=SINK(*roots))


def irregular(value: TypedKernel, context: Rendering) -> list[Launch] | None:
    """A kernel with scans, sorts or scatters, cut in parts."""

    def plain(
        kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[Place], room: Room,
        table: GpuTable,
    ) -> list[Launch]:  # fmt: skip
        here = Rendering(table, places, room, context.watch)
        part = TypedKernel(kernel, tuple(dtypes))
        found: list[Launch] = run_passes(part, here, PLAIN, context.watch)
        return found

    table, places, room, _ = context
    return in_parts(value.kernel, value.dtypes, places, room, table, plain)


def tile(value: TypedKernel, context: Rendering) -> list[Launch]:
    """A kernel without scans, sorts and scatters as tiled programs."""
    (kernel, dtypes), (table, places, room, _) = value, context
    kernel = with_one_column(kernel) if table.joined_sums else kernel
    joined = join_rows(kernel, len(dtypes), table)
    if joined is not None:
        kinds, where = _with_room(joined.shared, dtypes, places, room)
        rows = joined.rows
        first = RowsAndColumns(rows.kernel, kinds, where, joined.tiling, rows.windows)
        return [first.launch(), *_launches([joined.columns], kinds, where, table)]
    found: list[Launch] = []
    for group in _groups(kernel, table):
        hopper = _in_gluon(group, context, dtypes)
        if hopper is not None:
            found += hopper
            continue
        group = implicit_gemm(group, table)
        parts, shared = _split(group, dtypes, table)
        kinds, where = _with_room(shared, dtypes, places, room)
        found += _launches(parts, kinds, where, table)
    return found


def _in_gluon(
    kernel: IndexKernel, context: Rendering, dtypes: Sequence[DType]
) -> list[Launch] | None:  # fmt: skip
    """A kernel as Hopper's GEMM, split along K where that is quicker; None if it is none."""
    table, places, room, _ = context
    plan = plan_gluon(kernel, dtypes, table)
    if plan is None:
        return None
    splits = best_split(plan, table)
    if not splits:
        whole = render_gluon(kernel, dtypes, places, plan, table, room)
        return None if whole is None else [whole]
    rules = SplitTable(
        table.vector, enough=2, short=1, long=1, block=1, most=splits, units=1,
        last=plan.problem.columns[0],
    )  # fmt: skip
    (first, *rest), shared = split(kernel, len(dtypes), rules)
    kinds, where = _with_room(shared, dtypes, places, room)
    part = render_gluon(first.kernel, kinds, where, part_of(plan, first), table, room)
    return None if part is None else [part, *_launches(rest, kinds, where, table)]


def _with_room(
    shared: Sequence[tuple[DType, int]], dtypes: Sequence[DType], places: Sequence[Place],
    room: Room,
) -> tuple[list[DType], list[Place]]:  # fmt: skip
    """Params with those that parts of a kernel share."""
    taken = [room.take(count * dtype.itemsize) for dtype, count in shared]
    return [*dtypes, *[dtype for dtype, _ in shared]], [*places, *taken]


def _launches(
    parts: Sequence[Part], dtypes: Sequence[DType], places: Sequence[Place], table: GpuTable
) -> list[Launch]:
    found: list[Launch] = []
    for part in parts:
        if part.windows or len(parts) == 1:
            found.append(_launch(part, dtypes, places, table))
        else:
            for piece in _groups(part.kernel, table):
                found.append(_launch(Part(piece), dtypes, places, table))
    return found


def _launch(
    part: Part, dtypes: Sequence[DType], places: Sequence[Place], table: GpuTable
) -> Launch:
    tiling = choose_tiling(part.kernel, dtypes, table, part.windows)
    return TileProgram(part.kernel, dtypes, places, tiling, part.windows).launch()


def _split(
    kernel: IndexKernel, dtypes: Sequence[DType], table: GpuTable
) -> tuple[list[Part], list[tuple[DType, int]]]:
    """Long folds with few results as blocks: as many as keep the machine busy."""
    tiling = choose_tiling(kernel, dtypes, table, narrow=False)
    sizes = fixed_axes(kernel)
    free = free_axes([n for n in toposort([kernel.body]) if n.op is not SINK])
    roots = live_roots(kernel, free)
    block = dict(zip(tiling.axes, tiling.blocks, strict=True))
    parallel = parallel_axes(roots, free)
    grid = prod([-(-sizes[a] // block.get(a, 1)) for a in parallel])
    enough = table.processors if tiling.dot else table.enough
    apart = tiling.dot is not None and _is_scattered(roots, tiling.dot)
    if not all(sizes) or (grid * 2 > enough and not apart):
        return [Part(kernel)], []
    least, most = table.split_least, -(-enough // max(grid, 1))
    if tiling.dot:  # one round of programs, as many as a processor has room for
        enough *= table.most_warps // (2 * tiling.warps)
        most = enough // max(grid, 1)
        if apart and most < 2:
            most = table.scattered_parts
            enough = grid * most
    if not tiling.dot and len(tiling.axes) == 2 and tiling.axes[1] in parallel:  # columns
        enough, least = table.processors * table.column_programs, grid * table.column_least
        most = -(-enough // max(grid, 1))
    rules = SplitTable(
        table.vector, units=grid, enough=enough, short=table.split_short,
        long=table.split_elements, block=least, most=most, hoist=True,
    )  # fmt: skip
    return split(kernel, len(dtypes), rules)


def _is_scattered(roots: Sequence[Node], dot: tuple[int, int, int]) -> bool:
    """True if a product's results are stored along neither axis of its tiles.

    Weights of a convolution, whose window is contiguous: the sums are better stored along the tile,
    and the epilogue is a kernel of its own that reads and writes whole rows.
    """
    stores = [n for n in roots if n.op is STORE]
    return bool(stores) and all(
        not any(atom in dot[:2] and abs(step) == 1 for atom, step in n.arg[1][1]) for n in stores
    )


def _groups(kernel: IndexKernel, table: GpuTable) -> list[IndexKernel]:
    """The kernel, cut by its roots where one launch for all would leave the machine idle."""
    free = free_axes([n for n in toposort([kernel.body]) if n.op is not SINK])
    roots = live_roots(kernel, free)
    if not roots:
        return []
    sizes = fixed_axes(kernel)

    def programs(some: Sequence[Node]) -> int:
        return prod([sizes[a] for a in parallel_axes(some, free)])

    alone = max([programs([root]) for root in roots])
    # stores of the same axes may write over what others of them read: one program does them all
    alike = len({r.arg[3] if r.op is STORE else free[r] for r in roots}) == 1
    if alike or programs(roots) >= min(alone, table.enough):
        return [kernel._replace(body=SINK(*roots))]
    return [kernel._replace(body=SINK(*group)) for group in _by_axes(roots, free)]


def _by_axes(roots: Sequence[Node], free: Mapping[Node, frozenset[int]]) -> list[list[Node]]:
    """Roots over the same axes together; several stores to one param keep their order."""
    written = [r.arg[0] for r in roots if r.op is STORE]
    if len(set(written)) < len(written):
        return [[root] for root in roots]
    groups: dict[frozenset[int], list[Node]] = {}
    for root in roots:
        groups.setdefault(parallel_axes([root], free), []).append(root)
    return list(groups.values())
