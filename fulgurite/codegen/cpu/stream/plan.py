"""The plan of a streaming kernel on the CPU: tiles of M, blocks of N, tiles of D, split-KV.

In: a `StreamProblem` and the target. Out: a `StreamPlan`, plain data that the template renders by,
or None where no tile fits; and what a plan costs (`estimate`). All parameters are in
codegen/cpu/tiling.py. A plan follows from sizes alone, never from the number of threads, so the
order of all sums does too.

Kernels whose transposed sums need final states (a softmax's dK) are computed in two passes over
strips of rows. A strip keeps its scores between both passes, in memory that is a small part of the
whole matrix and that the next strip uses again: no product is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....core.lazy_dataclass import dataclass
from ....core.ops.index import FOLD, LOAD
from ....core.symbolic.sym import least, plain, varies
from ....graph.ir.bodies import rename_axes
from ....kernel.contract.analysis import Block, reached
from ....kernel.contract.summation import ORDER
from ....kernel.stream.price import StreamWork, nodes_along_n
from ....kernel.stream.roles import (
    StreamProblem,
    WeightedSum,
    is_along_n,
)
from ..gemm.microkernel import Registers
from ..gemm.tile_sizes import up
from ..target import Target
from ..tiling import CPU, StreamTiling


@dataclass(frozen=True)
class StreamPlan:
    """Sizes of tiles, and what is shared out."""

    tile_m: int  # rows of a tile, or of a strip
    block_n: int  # streamed elements of a block
    tile_d: tuple[int, ...]  # columns of each weighted sum
    resident: tuple[bool, ...]  # are the packed queries of each product kept for all blocks?
    lanes: str = "m"  # the axis that vector lanes run along: m or n
    splits: int = 1  # of N, each with states of its own (split-KV)
    split_n: int = 0  # elements of a split, whole blocks
    m_parts: int = 1  # of M, each with transposed sums of its own
    strips: int = 0  # of M, where rows are traversed twice; 0: one pass

    def m_tiles(self, problem: StreamProblem) -> int:
        """Tiles along M."""
        return -(-problem.m // self.tile_m)

    def d_tiles(self, problem: StreamProblem) -> int:
        """Tiles along D."""
        return -(-problem.weighted[0].width // self.tile_d[0]) if problem.may_tile_d else 1

    def n_blocks(self, problem: StreamProblem) -> int:
        """Blocks of N."""
        return -(-problem.n // self.block_n)


def plan_stream(
    problem: StreamProblem, target: Target, tiling: StreamTiling = CPU.stream
) -> StreamPlan | None:
    """How the template computes a streaming kernel, if it does."""
    registers = Registers(problem.dtype, target)
    size = problem.dtype.itemsize
    return plan_problem(
        problem, Block(registers.height, registers.panel, target.lanes, size), tiling
    )


def plan_problem(
    problem: StreamProblem, block: Block, tiling: StreamTiling = CPU.stream
) -> StreamPlan | None:
    """Tiles for a problem and a register block."""
    planner = _TwoPass if problem.streaming.waits else _OnePass
    if not any(map(varies, (problem.m, problem.n, problem.batch))):
        return planner(problem, block, tiling).plan()
    sizes = plain(problem.batch), plain(problem.m), plain(problem.n)
    near = replace(problem, batch=sizes[0], m=sizes[1], n=sizes[2])
    found = planner(near, block, tiling).plan()
    return None if found is None else _for_all_sizes(found, problem)


def _for_all_sizes(plan: StreamPlan, problem: StreamProblem) -> StreamPlan:
    """A plan for sizes nearby, with as many pieces as there are of each size."""
    changes: dict[str, int] = {"split_n": problem.n}
    if plan.splits > 1:
        changes = {"splits": -(-problem.n // plan.split_n), "split_n": plan.split_n}
    if plan.m_parts > 1:
        changes["m_parts"] = least(plan.m_parts, plan.m_tiles(problem))
    if plan.strips:
        changes["strips"] = plan.m_tiles(problem)
        span = plan.split_n
        changes |= {"splits": -(-problem.n // span), "split_n": span}
    return replace(plan, **changes)  # type: ignore[arg-type]


# --- one pass ------------------------------------------------------------------------------------


class _OnePass:
    """Tiles of one pass: as large as the stack allows, smaller where that keeps threads busy."""

    def __init__(self, problem: StreamProblem, block: Block, tiling: StreamTiling) -> None:
        self.problem, self.block, self.t = problem, block, tiling
        self.lanes = "m"
        if not problem.transposed and not problem.elements:
            self.lanes = lane_axis(problem, tiling)
        self.unit = block.height if self.lanes == "m" else block.panel
        self.contiguous = all([p.has_contiguous_keys for p in problem.products])
        self.busy = tiling.busy_tiles if self.contiguous else tiling.busy_tiles // 2
        self.widths = [w.width for w in problem.weighted]
        self.depths = [p.depth for p in problem.products]

    def plan(self) -> StreamPlan | None:
        """The largest tiles that fit, then enough of them."""
        fitted = self.fitted(self.first_rows(), self.first_block())
        if fitted is None:
            return None
        tall, steps, wide, resident = fitted
        if self.problem.transposed:
            tall, parts = self.row_parts(tall)
            return StreamPlan(
                tall, steps, wide, resident, self.lanes, 1, self.problem.n, m_parts=parts
            )
        tall = self.enough_rows(tall)
        units = self.problem.batch * -(-self.problem.m // tall)
        if self.problem.may_tile_d and not self.problem.products:
            wide, units = self.enough_columns(wide[0], units)
        steps, splits, span = self.split(steps, units)
        return StreamPlan(tall, steps, wide, resident, self.lanes, splits, span)

    def first_block(self) -> int:
        """Elements of a block: nearly equal ones, as a few elements leave units idle."""
        n, t = self.problem.n, self.t
        if self.lanes == "n":
            return min(t.block_n_lanes // self.unit * self.unit, up(n, self.block.lanes))
        blocks = max(1, round(n / t.block_n))
        return min(up(-(-n // blocks), self.unit), n)

    def first_rows(self) -> int:
        """Rows of a tile, before it is known whether that fits."""
        m, panel = self.problem.m, self.block.panel
        most = self.t.tile_m if self.contiguous else self.t.tile_m_packing
        if self.contiguous and self.problem.skips:  # all rows go as far as one of them
            most = 2 * panel if m > 16 * panel else panel
        tall = min(up(m, self.block.lanes), up(most, panel) if m > panel else panel)
        return _even(m, tall, panel) if m > tall else tall

    def fitted(
        self, tall: int, steps: int
    ) -> tuple[int, int, tuple[int, ...], tuple[bool, ...]] | None:
        """Rows, elements of a block, columns, and which queries stay packed, on the stack."""
        panel = self.block.panel
        while True:
            tall, wide = self.columns(tall)
            used, resident = self.stack(tall, steps, wide)
            if used <= self.t.stack_bytes:
                return tall, steps, wide, resident
            if tall > panel:
                tall = up(tall // 2, panel)
            elif steps > self.t.min_block_n:
                steps //= 2
            else:
                return None

    def columns(self, tall: int) -> tuple[int, tuple[int, ...]]:
        """Columns of a tile; fewer rows, before products are computed again for others."""
        panel, size = self.block.panel, self.block.bytes
        wide = [up(width, panel) for width in self.widths]
        if not self.problem.may_tile_d:
            return tall, tuple(wide)
        most = self.t.sums_bytes
        if self.problem.products:
            while tall > panel and tall * wide[0] * size > most:
                tall = up(tall // 2, panel)
            most = self.t.sums_bytes_wide
        if tall * wide[0] * size > most:
            most = max(panel, most // (tall * size) // panel * panel)
            wide = [up(-(-wide[0] // -(-wide[0] // most)), panel)]
        return tall, tuple(wide)

    def stack(self, tall: int, steps: int, wide: tuple[int, ...]) -> tuple[int, tuple[bool, ...]]:
        """Bytes of a tile, and which packed queries find room in it for all blocks."""
        problem, lanes, panel, size = (
            self.problem, self.block.lanes, self.block.panel, self.block.bytes
        )  # fmt: skip
        stored = len(problem.elements)
        tiles = len(problem.loads_along_n) + len(problem.products)
        tiles += len(problem.all_weighted) + stored
        used = tiles * (steps + lanes) * (tall + lanes)
        used += sum([tall * (c + lanes) + steps * c for c in wide])  # sums and packed values
        used += sum([(tall + lanes) * up(w.width, panel) for w in problem.transposed])
        used += (2 * len(problem.states) + 8) * (tall + 2 * lanes)
        used += lanes * (steps + lanes) if stored else 0
        used += sum(
            [(steps + lanes) * (min(d, ORDER.block_steps) + lanes) for d in self.depths]
        )  # keys
        return _with_queries(used * size, self.depths, tall, self.block, self.t.stack_bytes)

    def row_parts(self, tall: int) -> tuple[int, int]:
        """Rows of a tile, and parts of M that have transposed sums of their own."""
        m, batch, busy = self.problem.m, self.problem.batch, self.t.busy_tiles
        while batch * -(-m // tall) < busy // 2 and tall > self.block.panel:
            tall = up(tall // 2, self.block.panel)
        return tall, min(-(-m // tall), -(-busy // (2 * batch)))

    def enough_rows(self, tall: int) -> int:
        """Fewer rows where tiles would be too few, and keys are near enough to be read again."""
        problem, t, height = self.problem, self.t, self.block.height
        m, n, batch = problem.m, problem.n, problem.batch
        if self.contiguous and n * sum(self.depths) * self.block.bytes <= t.near_keys_bytes:
            tall = _even(m, tall, self.block.lanes)
            while batch * -(-m // tall) < self.busy and tall > t.min_tile_m:
                tall = _even(m, max(t.min_tile_m, tall // 2), self.block.lanes)
        if self.lanes == "n" and problem.products and not problem.weighted:
            tall, least = _even(m, tall, height), up(t.max_m_reads_keys, height)
            splits = max(1, n // t.block_n_lanes)
            while batch * -(-m // tall) * splits < self.busy and tall > least:
                tall = _even(m, max(t.max_m_reads_keys, tall // 2), height)
        return tall

    def enough_columns(self, wide: int, units: int) -> tuple[tuple[int, ...], int]:
        """Columns of a tile, and units, where no product would be computed again."""
        width, panel = self.widths[0], self.block.panel
        least = 2 * panel - self.block.lanes  # of which two tiles are about equal
        least = max(least, panel + 1)  # one panel is not cut
        while units * -(-width // wide) < self.busy and min(width, wide) >= least:
            wide = _even(width, max(panel, wide // 2), panel)
        return (wide,), units * -(-width // wide)

    def split(self, steps: int, units: int) -> tuple[int, int, int]:
        """Elements of a block, splits of N (split-KV), and elements of one."""
        n = self.problem.n
        if units >= self.busy or self.problem.skips:
            return steps, 1, n
        least = self.t.min_split_n if self.lanes == "m" else self.t.block_n_lanes
        splits = max(1, min(-(-self.busy // units), n // least))
        splits -= splits > 1 and units * splits % 2  # threads are even in number more often
        share = -(-n // splits)
        steps = min(steps, up(-(-share // -(-share // steps)), self.unit))
        span = -(-share // steps) * steps
        return steps, -(-n // span), span


def lane_axis(problem: StreamProblem, tiling: StreamTiling) -> str:
    """What lanes run along: N for few rows, or where all memory is contiguous along it."""
    roots = [s.body for s in problem.row_states] + [w.weights for w in problem.weighted]
    line = problem.part(roots, problem.computed, problem.n_axes).columns
    if len(line.axes) != 1:
        return "m"
    few = problem.m <= tiling.max_m_dots
    return "n" if few or not any([p.has_contiguous_keys for p in problem.products]) else "m"


# --- two passes ----------------------------------------------------------------------------------


class _TwoPass:
    """Strips of rows that are traversed twice, and parts of N that threads share."""

    def __init__(self, problem: StreamProblem, block: Block, tiling: StreamTiling) -> None:
        self.problem, self.block, self.t = problem, block, tiling

    def plan(self) -> StreamPlan | None:
        """Strips, if scores of enough rows fit the memory that one may have."""
        problem, block, t = self.problem, self.block, self.t
        if problem.skips or not problem.products or not self.sums_in_place():
            return None
        tall = self.strip_rows()
        if not tall or problem.m > t.max_strips * tall:
            return None
        far = any([is_along_n(problem, store) for store in problem.streaming.across])
        whole = all([p.has_contiguous_keys for p in problem.products]) and not far
        blocks = max(1, round(problem.n / (t.strip_block_n if whole else 2 * t.strip_block_n)))
        steps = min(up(-(-problem.n // blocks), block.height), problem.n)
        while True:
            used, resident = self.stack(tall, steps)
            if used <= t.strip_stack_bytes:
                break
            if steps <= t.min_block_n:
                return None
            steps //= 2
        parts = max(1, min(-(-t.strip_splits // problem.batch), problem.n // t.min_strip_split_n))
        span = up(-(-problem.n // parts), steps)
        wide = [up(w.width, block.panel) for w in problem.weighted]
        return StreamPlan(
            tall, steps, tuple(wide), resident, "m", -(-problem.n // span), span,
            strips=-(-problem.m // tall),
        )  # fmt: skip

    def strip_rows(self) -> int:
        """Rows of a strip: whole vectors, as many as memory allows; 0 where that is too few."""
        problem, t, lanes = self.problem, self.t, self.block.lanes
        few = t.min_strip_m
        part = max(problem.m // t.strip_share, few if problem.m >= t.min_strips * few else 0)
        scores = len(problem.products) * problem.batch * problem.n * self.block.bytes
        most = min(t.strip_bytes // scores, part, t.max_strip_m) // lanes * lanes
        return max(few, _even(problem.m, most, lanes)) if most >= few else 0

    def stack(self, tall: int, steps: int) -> tuple[int, tuple[bool, ...]]:
        """Bytes of a block's operands, and which packed queries find room for all blocks."""
        problem, lanes = self.problem, self.block.lanes
        used = (len(problem.loads_along_n) + len(problem.all_weighted)) * (steps + lanes)
        used *= tall + lanes
        for w in packed_values(problem, self.t):
            columns = up(w.width, self.block.panel)
            used += columns * (lanes + (steps if w in problem.weighted else tall))
        for w, store in zip(problem.transposed, problem.streaming.across, strict=True):
            if is_along_n(problem, store):  # sums of a block
                used += (steps + lanes) * (w.width + 2 * lanes)
        for p in problem.products:
            used += (
                0
                if p.has_contiguous_keys
                else (steps + lanes) * (min(p.depth, ORDER.block_steps) + lanes)
            )
        depths = [p.depth for p in problem.products]
        size, most = self.block.bytes, self.t.strip_stack_bytes
        return _with_queries(used * size, depths, tall, self.block, most)

    def sums_in_place(self) -> bool:
        """True if results of transposed sums are memory that these can be added up in."""
        problem = self.problem
        for w, store in zip(problem.transposed, problem.streaming.across, strict=True):
            columns, steps = w.contraction.columns, dict(store.arg[1][1])
            whole = len(columns) == len(problem.n_axes) == 1
            if not whole or not all(isinstance(a, int) for a in steps):
                return False
            straight = steps[columns[0]] == 1 and w.width % self.block.lanes == 0
            if not (straight or is_along_n(problem, store)):
                return False
            inside = reached([store], (w.state.fold,))
            if any(n.op is FOLD and n is not w.state.fold for n in inside):
                return False
            if store.src[0].dtype is not problem.dtype:
                return False
        return True


def packed_keys(problem: StreamProblem, w: WeightedSum) -> int | None:
    """The product whose packed keys are the values of a weighted sum too, if there is one."""
    for number, p in enumerate(problem.products):
        one = len(w.contraction.columns) == len(p.contraction.folded) == 1
        if one and not p.has_contiguous_keys and p.depth <= ORDER.block_steps:
            names = dict(zip(w.contraction.columns, p.contraction.folded, strict=True))
            if rename_axes(w.values, names) is p.keys:
                return number
    return None


def packed_values(problem: StreamProblem, tiling: StreamTiling) -> Iterator[WeightedSum]:
    """The weighted sums whose values a block packs."""
    for w in problem.all_weighted:
        columns = w.contraction.columns
        direct = w.values.op is LOAD and (columns[-1], 1) in w.values.arg[1][1]
        direct = direct and w.width * problem.dtype.itemsize <= tiling.direct_row_bytes
        if not direct and packed_keys(problem, w) is None:
            yield w


def _with_queries(
    used: int, depths: list[int], tall: int, block: Block, most: int
) -> tuple[int, tuple[bool, ...]]:
    """Bytes with packed queries, and of which products all of them fit."""
    resident = []
    panels = up(tall, block.panel) * block.bytes
    for depth in depths:
        whole = panels * (up(depth, block.lanes) + block.lanes)
        resident.append(used + whole <= most)
        used += whole if resident[-1] else panels * (min(depth, ORDER.block_steps) + block.lanes)
    return used, tuple(resident)


# --- what it costs -------------------------------------------------------------------------------


def estimate(problem: StreamProblem, tiling: StreamTiling = CPU.stream) -> StreamWork | None:
    """What a plan makes the machine do; the register block is the same for all targets."""
    size = problem.dtype.itemsize
    panel = tiling.priced_panel_bytes // size
    block = Block(tiling.priced_height, panel, tiling.priced_lanes, size)
    plan = plan_problem(problem, block, tiling)
    if plan is None:
        return None
    return (_two_pass_work if plan.strips else _one_pass_work)(problem, plan, tiling)


def _one_pass_work(problem: StreamProblem, plan: StreamPlan, t: StreamTiling) -> StreamWork:
    m, n, batch, again = problem.m, problem.n, problem.batch, plan.d_tiles(problem)
    loads = {c.left for c in problem.loads_along_n}
    inside = nodes_along_n(problem, [*problem.walked, *[s.src[0] for s in problem.streaming.whole]])
    rows, along_m = frozenset(problem.m_axes), (problem.m_axes[-1], 1)
    read = [n for n in inside if n.op is LOAD and n not in loads and problem.free[n] & rows]
    walked = 4 * len(loads) + 4 * len(problem.elements) + 2 * len(problem.row_states)
    share = 1.0
    if problem.skips:  # about half of the blocks are left out
        share = (1 + 1 / min(plan.n_blocks(problem), plan.m_tiles(problem))) / 2
    vectors = t.priced_lanes
    sums = batch * n * sum([w.width for w in problem.transposed])
    return StreamWork(
        elements=batch * (up(m, vectors) * n if plan.lanes == "m" else m * up(n, vectors)),
        depths=tuple([p.depth for p in problem.products]),
        widths=tuple([w.width for w in problem.all_weighted]),
        walked=walked + sum([node.op.cost for node in inside]),
        again=again,
        strided=sum([along_m not in node.arg[1][1] for node in read]),
        packed=_one_pass_packed(problem, plan, t),
        moved=3 * plan.m_parts * sums * problem.dtype.itemsize,  # written, read, put together
        overhead=t.block_overhead_ns * batch * plan.m_tiles(problem) * plan.n_blocks(problem),
        phases=1 + bool(problem.transposed),
        share=share,
        idle=max(1.0, t.priced_units / _units(problem, plan)),
        is_plain=not problem.products and not problem.weighted,
    )


def _units(problem: StreamProblem, plan: StreamPlan) -> float:
    """Tiles that threads share out, in whole ones: the last may be small."""
    tiles = -(-plan.m_tiles(problem) // plan.m_parts) if problem.transposed else 1  # of a unit
    rows = problem.m / min(problem.m, tiles * plan.tile_m)
    return problem.batch * rows * plan.d_tiles(problem) * plan.splits


def _one_pass_packed(problem: StreamProblem, plan: StreamPlan, t: StreamTiling) -> int:
    """Numbers that are put in order for microkernels: queries, keys, values."""
    m, n, batch = problem.m, problem.n, problem.batch
    found = sum([batch * m * p.depth for p in problem.products])
    for p in problem.products:
        if p.has_contiguous_keys and (m <= t.max_m_dots or plan.lanes == "m"):
            continue
        along_n = p.keys.op is LOAD and (problem.n_axes[-1], 1) in p.keys.arg[1][1]
        if not along_n or min(plan.tile_m, m) > t.max_m_reads_keys:
            tiles = plan.m_tiles(problem) * plan.d_tiles(problem)
            found += batch * tiles * n * p.depth // (3 if along_n else 1)
    for w in problem.weighted:
        if w.width > t.wide_values or w.values.op is not LOAD:
            found += batch * n * w.width
    found += sum(
        [batch * m * w.width for w in packed_values(problem, t) if w in problem.transposed]
    )
    return found


def _two_pass_work(problem: StreamProblem, plan: StreamPlan, t: StreamTiling) -> StreamWork:
    n, batch, size = problem.n, problem.batch, problem.dtype.itemsize
    vectors = t.priced_lanes
    elements = batch * up(problem.m, vectors) * n
    walked = 8 * len(problem.loads_along_n) + 2 * len(problem.row_states)
    rows = len(problem.row_states)
    for roots in (problem.walked[:rows], problem.walked[rows:]):
        inside = nodes_along_n(problem, roots, problem.constants)
        walked += sum([node.op.cost for node in inside])
    packed = sum([p.depth for p in problem.products if not p.has_contiguous_keys])
    packed += sum([w.width for w in packed_values(problem, t) if w in problem.weighted])
    pairs = zip(problem.transposed, problem.streaming.across, strict=True)
    packed += sum([2 * w.width for w, store in pairs if is_along_n(problem, store)])
    again = sum([p.depth for p in problem.products])
    again += sum([2 * w.width for w in problem.transposed])
    moved = (plan.strips - 1) * batch * n * again + 2 * len(problem.products) * elements
    return StreamWork(
        elements=elements,
        depths=tuple([p.depth for p in problem.products]),
        widths=tuple([w.width for w in problem.all_weighted]),
        walked=walked,
        packed=plan.strips * batch * n * packed,
        moved=moved * size,
        held=strip_bytes(problem, plan, t),
        overhead=t.block_overhead_ns * batch * plan.strips * plan.n_blocks(problem),
        note=f"; {plan.strips} strips of rows",
    )


def strip_bytes(problem: StreamProblem, plan: StreamPlan, tiling: StreamTiling = CPU.stream) -> int:
    """Bytes of the scores of a strip."""
    scores = len(problem.products) * problem.batch * problem.n
    return scores * up(plan.tile_m, tiling.priced_lanes) * problem.dtype.itemsize


def _even(size: int, most: int, step: int) -> int:
    """Sizes of tiles that are as good as equal: none is left with few."""
    return up(-(-size // -(-size // most)), step)
