"""GEMM strategies: each says whether it can compute a problem, with what tiles, and at what cost.

In: a `Gemm`: a problem on a machine. Out: the cheapest `GemmPlan`, or None: plain loops are better.
A strategy's `applies` is legality and the sizes that it was made for; costs are vector instructions
of the micro-kernel and of packing, over all products of a batch. Of equals the first is chosen:
they are listed from the most special to the most general.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....core.dtype import DType
from ....core.ops.index import LOAD
from ....core.symbolic.sym import choosing, varies
from ....graph.ir.lower import IndexKernel
from ....kernel.contract.im2col import View
from ....kernel.contract.problem import GemmProblem, Operand, find_gemm
from ....kernel.contract.summation import in_chunks, is_tiny, k_block, k_chunks
from ....kernel.contract.vnni import as_vnni
from ..conv.direct import LOADS
from ..target import Target
from ..tiling import CPU, GEMM, WINDOW_RATES, WindowRates
from .microkernel import Registers
from .plan import (
    Gemm,
    GemmKind,
    GemmPlan,
    accumulated,
    bind,
    byte_signs,
    multiplies_pairs,
)
from .spread import spread, spread_windows
from .tile_sizes import (
    Tiles,
    direct_tiles,
    even_columns,
    for_all_sizes,
    pack_twice,
    tile_sizes,
    window_tiles,
)


def plan_gemm(kernel: IndexKernel, dtypes: Sequence[DType], machine: Target) -> GemmPlan | None:
    """The cheapest plan for a kernel that is a GEMM, if it is one and worth a template."""
    problem = cpu_problem(kernel, dtypes)
    found = None if problem is None else choose(problem, machine)
    return None if found is None else found[1]


def choose(problem: GemmProblem, machine: Target) -> tuple[Gemm, GemmPlan] | None:
    """A GEMM on a machine, and the cheapest plan for it."""
    gemms = [bind_to(problem, machine)]
    if multiplies_pairs(problem, machine):
        pairs = bind(problem, Registers(accumulated(problem.fold.dtype), machine, pairs=True))
        gemms += [pairs] if DENSE.applies(pairs) else []
    gemms += vnni_gemms(problem, machine)
    plans = [(gemm, plan) for gemm in gemms if (plan := cheapest(gemm)) is not None]
    best = min(plans, key=lambda found: found[1].cost, default=None)
    return None if best is None else (best[0], for_cores(*best))


def for_cores(gemm: Gemm, plan: GemmPlan) -> GemmPlan:
    """The same plan, cut for the cores of the machine: what is chosen does not depend on them."""
    bound = gemm.as_kind(plan.kind)
    if plan.kind is GemmKind.DIRECT:
        tiles = spread_windows(bound, plan.tiles, sweep)
    else:
        tiles = spread(bound, plan.tiles, lambda s: _pack_weight(bound, s))
    return plan if tiles is plan.tiles else replace(plan, tiles=tiles)


def cheapest(gemm: Gemm) -> GemmPlan | None:
    """The cheapest plan for a GEMM with its registers."""
    plans = [strategy.plan(gemm) for strategy in STRATEGIES]
    return min([p for p in plans if p is not None], key=lambda plan: plan.cost, default=None)


def cpu_problem(kernel: IndexKernel, dtypes: Sequence[DType] = ()) -> GemmProblem | None:
    """The GEMM that a kernel is, its operands swapped where rows make better lanes."""
    found = find_gemm(kernel, dtypes)
    return None if found is None else with_better_rows(found)


def with_better_rows(problem: GemmProblem) -> GemmProblem:
    """A GEMM with its operands swapped where rows make better lanes."""
    return problem.transposed() if _has_better_rows(problem) else problem


def _has_better_rows(c: GemmProblem) -> bool:
    """True if memory is contiguous along many rows, and there are few columns beside them.

    Then rows are better lanes, if k is long enough to pay for results that are scattered.
    """
    if c.left.op is not LOAD or c.right.op is not LOAD or not c.columns:
        return False
    if not c.n <= GEMM.swapped_columns < c.m:
        return False
    pays = c.k >= (6 if c.m <= GEMM.swapped_near_rows else 3) * c.n
    pays = pays or (c.n <= GEMM.few_rows and bool(c.left.arg[2]))
    return pays and any(step == 1 and atom in c.rows for atom, step in c.left.arg[1][1])


def bind_to(problem: GemmProblem, machine: Target) -> Gemm:
    """A GEMM on a machine: of bytes by fours where an instruction sums them and packing can."""
    summed = accumulated(problem.fold.dtype)
    gemm = bind(problem, Registers(summed, machine, byte_signs(problem, machine)))
    if not gemm.registers.dot:
        return gemm
    by_library = any(s.applies(gemm) for s in STRATEGIES if s.kind.reads_views)
    # runs of columns that begin anywhere are packed by fours by the library alone
    whole = not gemm.is_vector and len(gemm.as_kind(GemmKind.BYTES).right.own.axes) == 1
    return gemm if by_library or whole else bind(problem, Registers(summed, machine))


def prepacked(gemm: Gemm, plan: GemmPlan) -> GemmPlan | None:
    """The plan for a right operand that is packed before any run, if that is legal and pays.

    It must sum in the same order.
    """
    if not _may_pack_once(gemm) or not _pays_to_pack_once(gemm):
        return None
    strategy = next(s for s in STRATEGIES if s.kind is plan.kind)
    found = strategy.plan(replace(gemm, prepacked=True))
    if found is None or found.tiles.right != "shared":
        return None
    same = found.tiles.order == plan.tiles.order
    return for_cores(replace(gemm, prepacked=True), found) if same else None


def _may_pack_once(gemm: Gemm) -> bool:
    """True if the right operand is one matrix in memory that is packed in panels."""
    right, view = gemm.right, gemm.right_view
    if not gemm.has_panels or gemm.batch != 1:
        return False
    if gemm.registers.pairs or gemm.registers.words:  # memory has them as they are needed
        return False
    fixed = not varies(gemm.columns) and not varies(gemm.steps) and right.root.op is LOAD
    return fixed and view is not None and not any(c.asks for c in view.conditions)


def _pays_to_pack_once(gemm: Gemm) -> bool:
    """True if the operand is larger than L1, and it is no vector that is multiplied with long rows
    of a matrix. Few rows read it once: from memory a panel comes twice as fast as pieces of rows
    that are far apart. Long rows are as good as a panel."""
    row_bytes = gemm.columns * gemm.problem.dtypes[gemm.right.root.arg[0]].itemsize
    long = gemm.is_vector and row_bytes >= GEMM.page_bytes
    return not long and row_bytes * gemm.steps > GEMM.l1_bytes


def vnni_gemms(problem: GemmProblem, machine: Target) -> list[Gemm]:
    """The GEMM over words of four bytes, if memory has both operands so."""
    signs = byte_signs(problem, machine)
    if signs not in ("us", "su"):  # an instruction multiplies bytes of either kind
        return []
    words = as_vnni(problem)
    registers = Registers(accumulated(problem.fold.dtype), machine, signs, words=True)
    return [] if words is None else [bind(words, registers)]


# --- the strategies ------------------------------------------------------------------------------


class Strategy:
    """A way to compute GEMMs."""

    kind: GemmKind

    def plan(self, gemm: Gemm) -> GemmPlan | None:
        """The plan for a problem on a machine, if this strategy takes it."""
        if not self.applies(gemm):
            return None
        gemm = gemm.as_kind(self.kind)
        if not gemm.varies or self.kind.is_direct:
            tiles = self.tiles(gemm)
            if tiles is None:
                return None
            with choosing():
                cost = self.multiplication(gemm) + packing(gemm, tiles)
            return GemmPlan(self.kind, tiles, gemm.registers, cost)
        near = gemm.at_hints()
        tiles = self.tiles(near)
        if tiles is None:
            return None
        cost = self.multiplication(near) + packing(near, tiles)
        settled = for_all_sizes(tiles, gemm.tile_problem, gemm.is_vector)
        return None if settled is None else GemmPlan(self.kind, settled, gemm.registers, cost)

    def applies(self, gemm: Gemm) -> bool:
        """True if it can compute this GEMM, of a size that it was made for."""
        raise NotImplementedError

    def tiles(self, gemm: Gemm) -> Tiles | None:
        """Tile sizes and routes."""
        found = tile_sizes(gemm.tile_problem)
        small = gemm.batch == 1 and (all(gemm.dense) or bool(gemm.registers.dot))
        return pack_twice(found, gemm.tile_problem) if small else found

    def multiplication(self, gemm: Gemm) -> float:
        """Vector instructions of the micro-kernel: multiply-adds, and a broadcast for each row."""
        vectors = -(-gemm.columns // gemm.registers.width)
        broadcasts = -(-vectors // gemm.registers.vectors) * GEMM.broadcast_instructions
        per_step = vectors + broadcasts
        return gemm.batch * gemm.rows * gemm.depth * per_step


class DirectDot(Strategy):
    """Direct convolution with lanes along k: a vector times windows, contiguous in both operands,
    as in the gradient of a depthwise convolution's weights."""

    kind = GemmKind.DIRECT_DOT

    def applies(self, gemm: Gemm) -> bool:
        left, right = gemm.left_view, gemm.right_view
        if not may_be_direct(gemm) or not gemm.is_vector or left is None or right is None:
            return False
        columns = direct_dot_columns(gemm)
        if columns is None or _lane_tables_bytes(gemm) > GEMM.direct_dot_stack_bytes:
            return False
        run, parts = left.folded[-1][0], [size for size, _ in left.folded if size > 1]
        if left.step("folded") != 1 or run % right.folded[-1][0] or len(parts) > 2:
            return False  # a piece of the right operand would be several of the left one
        # nor may a piece go on where the left operand jumps
        return len(parts) < 2 or right.place(run) - right.place(run - 1) != right.step("folded")

    def tiles(self, gemm: Gemm) -> Tiles | None:
        columns, depth = direct_dot_columns(gemm) or 1, gemm.depth
        return Tiles("dense", "direct", 1, columns, depth, depth, gemm.sums_in_place)

    def multiplication(self, gemm: Gemm) -> float:
        """Pieces of memory end where a window does, and the lanes of each result are added."""
        assert gemm.right_view is not None
        run = gemm.right_view.folded[-1][0]
        pieces = gemm.steps // run * -(-run // gemm.registers.width)
        return gemm.batch * gemm.columns * (pieces + CPU.loops.vector.reduce_rows)


class Direct(Strategy):
    """Direct convolution: rows sweep over windows of memory, of which nothing is packed."""

    kind = GemmKind.DIRECT

    def applies(self, gemm: Gemm) -> bool:
        if not may_be_direct(gemm) or gemm.left_view is None:
            return False
        strided_rows = [step for size, step in gemm.left_view.own if size > 1]
        wide = gemm.columns >= gemm.target.lanes
        if len(strided_rows) > 1 or not wide or direct_steps(gemm) is None:
            return False
        return gemm.is_low or self.may_be_tall(gemm)

    def may_be_tall(self, gemm: Gemm) -> bool:
        """True if many rows may sweep: there are registers, and lanes are rows of memory that are
        in many windows; a matrix is packed in panels at less."""
        right = gemm.right_view
        if gemm.varies or gemm.is_vector or right is None:
            return False
        if not gemm.registers.direct_blocks("near") or not has_windows(right):
            return False
        dtype = gemm.registers.dtype
        same = gemm.as_kind(self.kind).memories == (dtype, dtype)  # else numbers are converted
        return dtype.kind == "f" and same and right.step("own") in (1, 2)

    def tiles(self, gemm: Gemm) -> Tiles | None:
        assert gemm.right_view is not None
        steps = block = direct_steps(gemm) or 1
        if gemm.rows > GEMM.few_rows:
            block = max(1, k_block(gemm.rows, gemm.columns, gemm.depth) // steps) * steps
        (height, _), *_ = *gemm.registers.direct_blocks("near"), (1, 1)
        own = gemm.right_view.own
        run = own[-1][0] if own[:-2] == ((1, 0),) * (len(own) - 2) else 1  # else none are alike
        return direct_tiles(gemm.tile_problem, steps, block, height, run)

    def multiplication(self, gemm: Gemm) -> float:
        return gemm.batch * sweep(gemm, gemm.rows, gemm.columns)


class Gemv(Strategy):
    """A vector times a dense matrix, in place, if there are columns enough for threads."""

    def applies(self, gemm: Gemm) -> bool:
        if not gemm.is_vector or not gemm.has_masks or not gemm.is_dense(gemm.right):
            return False
        if gemm.registers.words and not gemm.is_dense(gemm.left):
            return False  # a kernel's own text knows no words
        few = gemm.batch * gemm.columns < GEMM.gemv_busy_columns
        if few and gemm.columns * gemm.steps >= GEMM.gemv_long_products:
            return False
        dotted = self.kind is GemmKind.GEMV_DOT
        return not gemm.left.is_transposed and gemm.right.is_transposed == dotted


class GemvAxpy(Gemv):
    """GEMV by sums of rows: memory is contiguous along the columns."""

    kind = GemmKind.GEMV_AXPY


class GemvDot(Gemv):
    """GEMV by dot products: memory is contiguous along k."""

    kind = GemmKind.GEMV_DOT

    def tiles(self, gemm: Gemm) -> Tiles | None:
        found = tile_sizes(gemm.tile_problem)
        lanes = gemm.target.lanes
        steps = -(-gemm.depth // lanes) * lanes
        if found.left != "dense":  # a vector is packed in longer blocks than rows are
            steps = min(GEMM.gemv_packed_k_steps, steps)
        return replace(found, right="dense", rows=1, k_block=steps, k_packed=steps + lanes)


class Dense(Strategy):
    """Library tiles over two dense matrices, each read in place or packed."""

    kind = GemmKind.DENSE

    def applies(self, gemm: Gemm) -> bool:
        return not gemm.is_vector and all(gemm.dense) and not gemm.has_images

    def tiles(self, gemm: Gemm) -> Tiles | None:
        found = super().tiles(gemm)
        assert found is not None
        if gemm.is_fine and is_tiny(gemm.rows, gemm.columns, gemm.depth):
            chunks = in_chunks(-(-gemm.depth // found.k_block), 2)
            found = replace(found, k_chunks=max(chunks, found.k_chunks))
        r = gemm.registers
        if gemm.batch == 1 and gemm.target.lanes == r.width and r.most > r.vectors:
            found = even_columns(found, gemm.tile_problem, r.most)
        return found


class Skinny(Dense):
    """Lanes along k: rows that memory has along k times few columns, or few such rows."""

    kind = GemmKind.SKINNY

    def applies(self, gemm: Gemm) -> bool:
        if not super().applies(gemm) or gemm.left.is_transposed or not gemm.has_masks:
            return False
        if gemm.registers.pairs:
            return False
        sizes = gemm.rows, gemm.columns, gemm.depth
        if gemm.has_k_contiguous_columns and is_tiny(*sizes):
            return True  # libraries sum these along lanes, which is more exact
        rows = GEMM.skinny_rows * (1 if gemm.depth < GEMM.skinny_k_steps else 2)
        few = gemm.columns <= GEMM.skinny_columns < gemm.rows
        few = few or (gemm.has_k_contiguous_columns and gemm.rows <= rows)
        return few and gemm.depth >= GEMM.skinny_least_k_steps

    def tiles(self, gemm: Gemm) -> Tiles | None:
        found = tile_sizes(gemm.tile_problem)
        if found.left != "dense":
            return None
        sizes, steps = (gemm.batch, gemm.rows, gemm.columns, gemm.depth), GEMM.skinny_k_steps
        chunks = k_chunks(*sizes, steps) if found.k_chunks > 1 else 1
        return replace(found, right="skinny", k_block=steps, k_chunks=chunks)

    def multiplication(self, gemm: Gemm) -> float:
        vectors = -(-gemm.depth // gemm.registers.width)
        return gemm.batch * gemm.rows * gemm.columns * vectors


class Implicit(Strategy):
    """Implicit GEMM: an operand is an im2col view, which the library packs block by block, or reads
    in place where rows are windows of neighbours."""

    kind = GemmKind.IMPLICIT

    def applies(self, gemm: Gemm) -> bool:
        return not gemm.is_vector and has_views(gemm)

    def tiles(self, gemm: Gemm) -> Tiles | None:
        found = None
        if has_window_rows(gemm) and gemm.left_view is not None:
            found = window_tiles(gemm.tile_problem, gemm.left_view.own[-1][0])
        return super().tiles(gemm) if found is None else found


class Packed(Strategy):
    """Operands of any expression that no library function reads, evaluated into packed blocks by
    this kernel's own text."""

    kind = GemmKind.PACKED

    def applies(self, gemm: Gemm) -> bool:
        is_vnni = self.kind is GemmKind.BYTES
        takes = gemm.registers.packs_vnni if is_vnni else not gemm.registers.dot
        if gemm.is_vector or not takes:
            return False
        return not DENSE.applies(gemm) and not has_views(gemm)


class Bytes(Packed):
    """The same for bytes, packed by fours for an instruction that sums their products."""

    kind = GemmKind.BYTES


DIRECT_DOT, DENSE = DirectDot(), Dense()
STRATEGIES: tuple[Strategy, ...] = (
    DIRECT_DOT, Direct(), GemvDot(), GemvAxpy(), Skinny(), DENSE, Implicit(), Bytes(), Packed(),
)  # fmt: skip


# --- what they ask -------------------------------------------------------------------------------


def has_views(gemm: Gemm) -> bool:
    """True if the library can read both operands, one of them as an im2col view."""
    if (all(gemm.dense) and not gemm.has_images) or None in (gemm.left_view, gemm.right_view):
        return False
    roots = [s.root for s in (gemm.left, gemm.right)]
    return all(gemm.problem.dtypes[root.arg[0]].kind in "iuf" for root in roots)


def has_window_rows(gemm: Gemm) -> bool:
    """True if a micro-kernel can read rows of windows in place (an indirect convolution): no
    condition masks them, their steps of k are runs of memory equally far apart, and there are
    several windows side by side. Sums of whole numbers are exact in any blocks of k."""
    left = gemm.left_view
    if left is None or not gemm.registers.words or gemm.varies or gemm.left.along != "folded":
        return False
    whole = max([size for size, _ in left.folded[:-2]]) == 1
    asked = any(c.asks for c in left.conditions)
    return whole and not asked and left.own[-1][0] >= GEMM.window_rows


def may_be_direct(gemm: Gemm) -> bool:
    """True if nothing need be packed: no condition masks the left operand, and no fours pay."""
    left = gemm.left_view
    if left is None or not has_views(gemm) or any(c.asks for c in left.conditions):
        return False
    if gemm.registers.words:
        return False
    fours = gemm.rows > GEMM.direct_byte_rows or gemm.right.is_dense
    return not (gemm.registers.dot and fours)


def _lane_tables_bytes(gemm: Gemm) -> int:
    """What a thread's stack holds while the lanes of all steps of k are looked up: of each lane the
    values of its conditions, of each run of memory its begin, and of each vector its pieces."""
    right = gemm.right_view
    assert right is not None
    runs = gemm.steps // right.folded[-1][0] + 3
    vectors = gemm.steps // gemm.target.lanes + 2
    rows = 1 + len([c for c in right.conditions if c.asks])
    return 4 * gemm.steps * rows + 16 * runs + 8 * vectors + 16 * (runs + vectors)


def direct_dot_columns(gemm: Gemm) -> int | None:
    """Columns of a tile where lanes run along k: tiles share what is known of them."""
    right = gemm.right_view
    if right is None or gemm.columns <= GEMM.direct_dot_columns:
        return None if right is None else gemm.columns
    sizes = GEMM.direct_dot_tile_columns, GEMM.direct_dot_columns
    return right.block("own", sizes[0]) or right.block("own", sizes[1])


def direct_steps(gemm: Gemm) -> int | None:
    """Steps of k that are swept over at once: what is known of them is known of all such blocks.
    Of many rows those of a window are enough: a register block goes over them many times."""
    left, right = gemm.left_view, gemm.right_view
    if left is None or right is None:
        return None
    sizes = [GEMM.direct_k_steps]
    if gemm.rows > GEMM.few_rows:
        window = prod([size for size, _ in right.folded if size > 1][1:])
        sizes = [GEMM.direct_table_steps, min(window, *sizes), *sizes]
    found = next(filter(None, [right.block("folded", most) for most in sizes]), None)
    if found is None or found == gemm.steps:
        return found
    several = [size for size, _ in left.folded if size > 1]
    return found if found % prod(several[1:]) == 0 else None


def has_windows(view: View) -> bool:
    """True if it is no matrix: conditions mask it, its columns are several axes, or steps of k
    within a row of them read the same memory again."""
    several = [(size, step) for size, step in view.own if size > 1]
    reach = max([size * abs(step) for size, step in several], default=0)
    again = any(abs(step) < reach for size, step in view.folded if size > 1)
    return len(several) > 1 or again or any(c.asks for c in view.conditions)


def reads_once(view: View) -> bool:
    """True if neighbours are neighbours in memory, none is in two windows, and none is masked: the
    pixels of several images."""
    reach = 1
    axes = [(abs(step), size) for size, step in (*view.own, *view.folded) if size > 1]
    for step, size in sorted(axes):
        if step < reach:
            return False
        reach = step * size
    return abs(view.step("own")) == 1 and not any(c.asks for c in view.conditions)


def window_pieces(view: View, columns: int, lanes: int) -> int:
    """Pieces of memory that vectors of columns are: two where a row of windows, or an image whose
    rows follow each other in memory, ends inside."""
    (rows, down), (run, step) = view.own[-2:]
    run = run * rows if down == run * step else run
    return -(-columns // lanes) + (0 if run % lanes == 0 else columns // run)


def sweep(gemm: Gemm, rows: int, columns: int) -> float:
    """Vector instructions of so many rows of a direct convolution over so many columns."""
    assert gemm.right_view is not None
    pieces = window_pieces(gemm.right_view, columns, gemm.registers.width)
    if gemm.rows <= GEMM.few_rows:
        return rows * gemm.depth * pieces
    rates, step = window_rates(gemm), gemm.right_view.step("own")
    height, vectors = gemm.registers.direct_blocks(LOADS[step - 1])[0]
    pieces, sweeps = -(-pieces // vectors) * vectors, -(-rows // height)
    lines = rates.line * rows / gemm.registers.width
    return gemm.depth * (pieces * (rows + rates.load[step - 1] * sweeps) + lines)


def window_rates(gemm: Gemm) -> WindowRates:
    """What windows cost on the machine; on one without masks as with those that are narrow."""
    found = WINDOW_RATES.get((gemm.target.vectors, gemm.target.halves))
    return WINDOW_RATES["avx2", False] if found is None else found


def packing(gemm: Gemm, tiles: Tiles) -> float:
    """Vector instructions of packing both operands, with all that their expressions compute."""
    found = 0.0
    shares = {"left": -(-gemm.columns // tiles.columns), "right": -(-gemm.rows // tiles.rows)}
    for s, own in ((gemm.left, gemm.rows), (gemm.right, gemm.columns)):
        route = tiles.left if s.name == "left" else tiles.right
        if route in ("tile", "shared"):
            times = shares[s.name] if route == "tile" else 1
            elements = times * gemm.batch * own * gemm.steps
            found += _pack_weight(gemm, s) * elements / gemm.registers.width
    return found


def _pack_weight(gemm: Gemm, s: Operand) -> float:
    """Instructions for a vector that is packed: load and store, more if it is transposed, put into
    fours or computed."""
    weight = GEMM.transpose_instructions if s.is_transposed else GEMM.pack_instructions
    weight = GEMM.pack_vnni_instructions if gemm.uses_vnni else weight
    view = gemm.view(s)
    if gemm.kind is GemmKind.IMPLICIT and not s.is_dense and view and has_windows(view):
        apart, rates = abs(view.step("own")), window_rates(gemm)
        rate = rates.images if reads_once(view) else rates.pack[min(max(apart, 1), 3) - 1]
        weight = max(weight, rate)
    return weight if gemm.kind.in_library else weight + len(s.part.nodes)
