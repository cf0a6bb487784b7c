"""Tile choice: which axes of a kernel a program holds in registers, and in what blocks.

In: an `IndexKernel` in normal form. Out: a `Tiling`. The tile's last axis is the one along which
most bytes are contiguous, so that accesses coalesce into 16 bytes a thread; where loads and stores
disagree (a transpose) both axes are in the tile. A folded axis is held whole while it fits, so that
rows are read once. All numbers that decide are in one table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from ...core.dtype import DType
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, toposort
from ...core.ops.index import FOLD, LOAD, STORE
from ...core.ops.leaf import SINK
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes
from ...kernel.contract.problem import product_axes
from ...kernel.transform.tables import VectorTable
from .analysis import dot_factors, fixed_axes, live_roots, parallel_axes, stored_type
from .program import Tiling, Window

_VECTOR = VectorTable(lanes=16, near_steps=4, gather_rows=16, reduce_rows=6)


@dataclass(frozen=True, slots=True)
class GpuTable:
    """What tiles, splits and block lengths are chosen by: one table per machine."""

    processors: int = 132
    capability: int = 90  # the compute capability that forms in Gluon are for
    map_bytes: int = 4096  # of each memory that a program without folds moves: 32 a thread
    map_warps: int = 4
    transpose_block: int = 128  # elements each way of a tile that transposes
    row_block: int = 16384  # elements of a row that a program holds whole
    row_bytes: int = 32  # of a row that a thread holds, at least, before more warps share it
    chunk_elements: int = 4096  # of a tile that loops over a longer row
    row_peel: int = 4  # whole blocks of such a row from which on its end is a loop of its own
    streaming: bool = True  # say of memory that is used once that the L2 cache need not keep it
    short_functions: bool = True  # our own tanh; short exp and quotients before 16 bits
    narrow_tanh: bool = False  # a tanh of few instructions, where results are rounded to 16 bits
    online_lanes: int = 8  # of a long row that share a maximum, where sums follow it; 0: read twice
    one_pass_moments: int = 64  # blocks of columns, at most, whose moments about their mean are in
    # a loop with that: what cancels beside a single large number is as many times an error
    unrolled_fold: int = 16  # elements, not contiguous, that a thread folds without a loop
    small_rows: int = 1024  # elements of short rows that a program takes together
    many_rows: int = 0  # the same where programs are many more than enough; 0: no more than that
    many: int = 8  # times what is enough, that programs are left then
    column_bytes: int = 256  # along memory where the folded axis is not contiguous
    column_elements: int = 4096  # of such a tile
    sector_bytes: int = 32  # that memory is read by: columns of a program have as many, at least
    most_warps: int = 16
    programs: int = 8  # for each processor, that keep memory busy
    split_short: int = 256  # elements of a fold that one program folds as well
    split_elements: int = 1 << 15  # that are worth sharing out
    split_least: int = 1 << 12  # elements of a block of a split fold, at least
    scattered_parts: int = 3  # of K, of a product whose results are far apart in memory
    joined_sums: bool = True  # sums of columns beside the rows that a program has: joined.py
    compared_results: bool = True  # a rectifier's condition is told by its result: less memory
    joined_maps: bool = True  # small ones of a shape, in one launch
    joined_in_place: bool = True  # parts of an array are stored where it has them
    joined_row_products: bool = False  # one row times a matrix computes what the row's sums are
    joined_rows: int = 1  # of its tile
    joined_warps: int = 8
    joined_programs: int = 4  # for each processor
    joined_stages: int = 3  # steps of its loop that are on their way at the same time
    column_programs: int = 4  # for each processor, of a split fold of columns
    column_least: int = 1 << 13  # its elements of a program, at least: warps add up at the end
    vector: VectorTable = _VECTOR  # by which partial results of a split fold are laid out
    dot_rows: int = 128  # of a product in 16 bits; half of it in 32
    dot_side: int = 64  # of the smallest tile of a product in 16 bits; half of it in 32
    dot_depth: int = 64
    dot_precision: str = "ieee"  # of products in 32 bits, as `tl.dot` calls it: ieee or tf32
    operand_reuse: int = 64  # products of an element for which it is rounded once and stored
    channels_last: bool = True  # images between kernels, and rows of matrices aligned
    dot_loop: int = 16  # blocks of a folded axis that make a good loop alone; of fewer, axes merge
    dot_least: int = 8  # the shortest axis of a product for the tensor cores
    gluon: bool = True  # Hopper's own form of large products: gluon/gemm.py
    gluon_tiles: tuple[tuple[float, ...], ...] = (  # see `GluonTile`
        (128, 256, 64, 4, 1.0), (256, 128, 64, 4, 0.98), (128, 128, 64, 6, 0.9),
        (64, 256, 64, 5, 0.85), (64, 128, 64, 8, 0.77), (128, 128, 64, 5, 0.88, 2),
        (128, 64, 64, 8, 0.55, 2), (128, 128, 64, 3, 0.8, 1, 2),
    )  # fmt: skip
    gluon_least: int = 1 << 27  # steps of a product that are worth filling a ring of buffers
    library_steps: tuple[int, int] = 1 << 22, 1 << 26  # of one product in 16 bits; of others
    library_epilogue_rows: int = 32  # up to which an epilogue of its own pays behind cuBLASLt
    library_gains: tuple[tuple[str, float, float, float, float, float, float], ...] = (
        ("8 bits", inf, inf, inf, inf, 8.0, 0), ("float32", inf, inf, inf, inf, 2.4, 0),
        ("tf32", inf, inf, inf, inf, 1.3, 0), ("float64", inf, inf, inf, inf, 4.0, 0),
        ("16 bits", 1, inf, inf, inf, 1.0, 0),
        ("16 bits", 32, 1 << 22, inf, inf, 1.6, 7000), ("16 bits", 32, inf, inf, inf, 1.15, 7000),
        ("16 bits", inf, inf, 131, inf, 1.2, 6000), ("16 bits", inf, inf, inf, 1024, 1.08, 0),
    )  # fmt: skip  # see library_rates.py
    gluon_splits: int = 64  # parts of K, at most
    gluon_rate: float = 6700.0  # operations of a processor in a ns
    streamk_share: float = 0.87  # of a tile's rate, while programs are at different places of K
    result_rate: float = 37.0  # bytes of results that a processor stores in a ns
    partial_rate: float = 13.0  # bytes of partial tiles that it stores, or adds up, in a ns
    flag_ns: float = 1000.0  # until a program knows of another's partial tile
    memory_rate: float = 3000.0  # bytes of the machine in a ns, of a short kernel
    epilogue_rate: float = 24.0  # bytes of a processor in a ns, if an epilogue reads one operand
    epilogue_operations: tuple[float, float, float] = 150.0, 46.0, 25.0  # of it in a ns: by two
    # warpgroups, by one of two programs, by one of two consumers in ping-pong
    launch_ns: float = 8000.0  # until a kernel in a graph moves as much
    gluon_registers: int = 40  # of a thread that copies; those that multiply get what is left
    tma_bytes: int = 16  # what strides and beginnings are multiples of for the copy engine
    tma_rank: int = 5  # axes of a tensor for it, at most
    gluon_epilogue_registers: int = 56  # of a thread, beside sums and what was read a step ahead
    gluon_contracted: bool = False  # FMAs in epilogues whose results are rounded to 16 bits
    gluon_store: bool = True  # results by the copy engine, where they are memory as it is
    gluon_streamk: bool = True  # steps of K shared out between all processors
    flags: int = 1024  # programs of a launch that may wait for each other
    gluon_stream_steps: int = 4  # blocks of K of a program, at least
    shared_bytes: int = 232_448  # of a program that has a processor to itself
    shared_kept: int = 1024  # of each program, that the machine keeps for itself
    gluon_group: int = 8  # rows of tiles that are computed together: they share columns in L2
    stream_rows: int = 128  # of a tile of an online reduction in 16 bits; half of it in 32
    stream_block: int = 64  # streamed elements of a block; fewer where columns are many
    stream_least: int = 64  # streamed elements; of fewer, kernels of their own are as good
    stream_depth: int = 256  # columns, or depth of a product, that a program holds whole
    stream_fast_exp: bool = True  # exp by `ex2.approx` where weights are rounded to 16 bits
    stream_brief_scores: bool = True  # FMAs, distances without conversions, `tanh.approx`
    warpgroup_rows: int = 64  # of scores and sums
    gluon_stream: bool = True  # Hopper's own form: gluon/stream.py
    gluon_edges: bool = True  # masks only in blocks that they cut
    gluon_block: int = 128  # streamed elements of its blocks; half of it beyond 128 columns
    gluon_buffers: int = 2  # blocks of keys, and of values, that are on their way
    gluon_stream_registers: tuple[int, int] = (232, 40)  # of threads that multiply, and that copy
    gluon_scale: bool = True  # a factor of all scores is for their largest, and for exp's argument
    gluon_persistent: bool = True  # a persistent grid: copies of the next tile are on their way
    gluon_uneven: float = 1.2  # processors' time over what is needed, at most, by pairs of tiles
    gluon_sums: bool = True  # that of gradients: gluon/sums.py
    sums_blocks: tuple[int, ...] = (64, 32)  # streamed elements of a block: the longest that fits
    sums_registers: int = 216  # of a thread, for its sums, scores and weights
    sums_threads: tuple[int, int] = (240, 24)  # registers of threads that multiply, and that copy
    sums_buffers: int = 3
    sums_shared: int = 224_000  # bytes of a program's factors
    gluon_one_pass: bool = True  # all in one pass, where order is free: gluon/one_pass.py
    one_pass_slots: int = 2  # blocks of weights that wait for the transposed sum
    one_pass_width: int = 64  # columns of that, at most
    one_pass_registers: int = 176  # of a thread of rows, for its sums, scores and weights
    one_pass_threads: tuple[int, int, int] = (200, 80, 32)  # of rows, that cross, and that copy
    stream_stages: int = 3  # blocks that are on their way at the same time
    scan_block: int = 1024
    scan_chunk: int = 8192  # elements of a line that one program scans where lines are few
    sort_tile: int = 32  # elements that a program ranks at a time
    sort_run: int = 1024  # the longest row that is sorted by counting
    segment_block: int = 256  # sorted steps of a scatter that a program combines

    @property
    def enough(self) -> int:
        """Programs that keep the machine busy."""
        return self.processors * self.programs

    @property
    def many_programs(self) -> int:
        """Programs of which beginning them takes as long as what short ones do."""
        return self.many * self.enough


HOPPER = GpuTable()
TF32 = replace(HOPPER, dot_precision="tf32")


def in_plain_triton(table: GpuTable, shared: int = HOPPER.shared_bytes) -> GpuTable:
    """The table without Hopper's own forms: of other chips, and of Triton's interpreter.

    Where a program has less than half of a Hopper's `shared` memory (GPUs for desks), tiles of
    online reductions are half as long each way: heads of 256 and their gradients are held whole.
    """
    found = replace(table, gluon=False, gluon_stream=False, shared_bytes=shared)
    if 2 * shared >= table.shared_bytes:
        return found
    return replace(found, stream_rows=found.stream_rows // 2, stream_block=found.stream_block // 2)


def choose_tiling(
    kernel: IndexKernel, dtypes: Sequence[DType], table: GpuTable = HOPPER,
    windows: Mapping[int, Window] | None = None, narrow: bool = True,
) -> Tiling:  # fmt: skip
    """The tile of a kernel; columns are not `narrow` where a fold will be split."""
    free = free_axes([n for n in toposort([kernel.body]) if n.op is not SINK])
    roots = live_roots(kernel, free)
    order = toposort(roots)
    whole, windows = fixed_axes(kernel), windows or {}
    width = _width(order, free, whole, dtypes)
    sizes = _within(whole, windows)
    counters = {counter for counter, _ in windows.values()}
    parallel = parallel_axes(roots, free)
    used = frozenset[int]().union(*[free[n] for n in order])
    folded = [a for a in sorted(used) if a not in parallel]
    contiguous = _contiguous(order, free, sizes, dtypes)
    if not folded:
        found = _map_tiling(order, sizes, parallel - counters, contiguous, width, table)
        return replace(
            found, streaming=table.streaming, short=table.short_functions, peeled=table.row_peel,
            narrow_tanh=table.narrow_tanh,
        )  # fmt: skip
    dot = _dot_axes(order, free, sizes, table)
    if dot is not None:
        blocks = prod([sizes[block] for block, _ in windows.values()])
        found = _dot_tiling(dot, order, free, sizes, blocks, table)
        return _in_windows(found, whole, windows)
    apart = _folded_apart(order, free, sizes, folded, table)
    held = sizes, parallel, [a for a in folded if a not in apart], contiguous, width
    short = None if windows else _short_fold(order, *held, table)
    found = short or _fold_tiling(*held, table, narrow, counters)
    found = _beside(found, apart, order, free, sizes)
    return replace(
        found, streaming=table.streaming, short=table.short_functions,
        unrolled=table.unrolled_fold, peeled=table.row_peel, online=table.online_lanes,
        moments=table.one_pass_moments, narrow_tanh=table.narrow_tanh,
    )  # fmt: skip


def _within(whole: Sequence[int], windows: Mapping[int, Window]) -> list[int]:
    """Sizes of a kernel's axes in a program, which has a window of some."""
    sizes = [*whole]
    for axis, (_, steps) in windows.items():
        sizes[axis] = min(sizes[axis], steps)
    return sizes


def _folded_apart(
    order: Sequence[Node], free: Mapping[Node, frozenset[int]], sizes: Sequence[int],
    folded: Sequence[int], table: GpuTable,
) -> list[int]:  # fmt: skip
    """Folded axes of few elements that no value shares with one of many: a program holds them.

    A row's statistics beside a sum of many columns, along an axis of another name.
    """
    work = {a: max([prod([sizes[b] for b in free[n]]) for n in order if a in free[n]])
            for a in folded}  # fmt: skip
    most = max(work.values())
    large = {a for a in folded if work[a] == most}
    return [
        a for a in folded
        if a not in large and 1 < sizes[a] <= table.chunk_elements
        and not any(a in free[n] and large & free[n] for n in order)
    ]  # fmt: skip


def _beside(
    tiling: Tiling, apart: Sequence[int], order: Sequence[Node],
    free: Mapping[Node, frozenset[int]], sizes: Sequence[int],
) -> Tiling:  # fmt: skip
    """The tile with dimensions for axes that no value shares with its own."""
    if any(free[n] & {*apart} and free[n] & {*tiling.axes} for n in order):
        return tiling
    more = [power(sizes[a]) for a in apart]
    return replace(tiling, axes=(*apart, *tiling.axes), blocks=(*more, *tiling.blocks))


def _in_windows(tiling: Tiling, sizes: Sequence[int], windows: Mapping[int, Window]) -> Tiling:
    """A product's tile, not pipelined where the end of a block of split-K masks its loads.

    Those would be copied 4 bytes at a time.
    """
    block = tiling.blocks[2]
    masked = [a for a, (_, steps) in windows.items() if sizes[a] % block or steps % block]
    return replace(tiling, stages=1) if masked else tiling


def _short_fold(
    order: Sequence[Node], sizes: Sequence[int], parallel: frozenset[int], folded: Sequence[int],
    contiguous: Mapping[int, int], width: int, table: GpuTable,
) -> Tiling | None:  # fmt: skip
    """A map's tile for many results of few elements: every thread folds its own, unrolled."""
    axes = {a for n in order if n.op is FOLD for a in n.arg[1]}
    few = prod([sizes[a] for a in folded]) <= table.unrolled_fold
    if not few or axes != {*folded} or any(contiguous.get(a) for a in folded):
        return None
    half = replace(table, map_bytes=table.map_bytes // 2)  # registers hold what is folded
    found = _map_tiling(order, sizes, parallel, contiguous, width, half)
    block = dict(zip(found.axes, found.blocks, strict=True))
    tiles = prod([-(-sizes[a] // block.get(a, 1)) for a in parallel])
    return found if tiles >= table.processors else None


def _contiguous(
    order: Sequence[Node], free: Mapping[Node, frozenset[int]], sizes: Sequence[int],
    dtypes: Sequence[DType],
) -> dict[int, int]:  # fmt: skip
    """Bytes of all accesses that are contiguous along each axis."""
    found: dict[int, int] = {}
    for node in order:
        if node.op not in (LOAD, STORE):
            continue
        param, index = node.arg[0], node.arg[1]
        for atom, step in index[1]:
            if isinstance(atom, int) and abs(step) == 1:
                count = prod([sizes[a] for a in free[node]]) * dtypes[param].itemsize
                found[atom] = found.get(atom, 0) + count
    return found


def _width(
    order: Sequence[Node], free: Mapping[Node, frozenset[int]], sizes: Sequence[int],
    dtypes: Sequence[DType],
) -> int:  # fmt: skip
    """Bytes of an element of the memory that most accesses go to."""
    moved: dict[int, int] = {}
    for node in order:
        if node.op in (LOAD, STORE):
            width = dtypes[node.arg[0]].itemsize
            count = prod([sizes[a] for a in free[node]])
            moved[width] = moved.get(width, 0) + count * width
    return max(moved, key=lambda width: moved[width], default=4)


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


def _map_tiling(
    order: Sequence[Node], sizes: Sequence[int], parallel: frozenset[int],
    contiguous: Mapping[int, int], width: int, table: GpuTable,
) -> Tiling:  # fmt: skip
    """Blocks along memory; of a transpose along both memories."""
    if not parallel:
        return Tiling((), (), 1)
    stored = _store_order(order, parallel, sizes)
    last = stored[-1]
    others = [a for a in parallel if a != last and contiguous.get(a, 0) and sizes[a] >= 8]
    if others and sizes[last] >= 8:
        other = max(others, key=lambda a: contiguous[a])
        if contiguous[other] * 4 >= contiguous.get(last, 1):
            side = table.transpose_block
            blocks = min(side, power(sizes[other])), min(side, power(sizes[last]))
            return Tiling((other, last), blocks, _warps(prod(blocks), 16, table.map_warps))
    block = max(16, table.map_bytes // width)
    axes, blocks_ = [last], [min(block, power(sizes[last]))]
    for axis in reversed(stored[:-1]):
        room = block // prod(blocks_)
        if room < 2 or len(axes) == 3:
            break
        axes.insert(0, axis)
        blocks_.insert(0, min(room, power(sizes[axis])))
    elements = prod(blocks_)
    return Tiling(tuple(axes), tuple(blocks_), _warps(elements, 16 // width, table.map_warps))


def _warps(elements: int, each: int, most: int) -> int:
    """Warps that hold a tile with so many elements for each thread."""
    return min(most, max(1, power(elements // (32 * max(each, 1)))))


def _store_order(
    order: Sequence[Node], parallel: frozenset[int], sizes: Sequence[int]
) -> list[int]:
    """Parallel axes by how far apart their steps are in the memory of the last result."""
    steps: dict[int, int] = {}
    for store in [n for n in order if n.op is STORE][-1:]:
        steps = {a: abs(step) for a, step in store.arg[1][1] if isinstance(a, int)}
    far = 1 << 62
    return sorted(parallel, key=lambda a: (-steps.get(a, far), sizes[a] > 1, a))


def _fold_tiling(
    sizes: Sequence[int], parallel: frozenset[int], folded: Sequence[int],
    contiguous: Mapping[int, int], width: int, table: GpuTable, narrow: bool,
    counters: set[int],
) -> Tiling:  # fmt: skip
    """A row at a time where the folded axis is contiguous, else columns side by side.

    What counts the blocks of a split fold is one number of a program, never a column.
    """
    axis = max(folded, key=lambda a: (contiguous.get(a, 0), sizes[a]))
    beside = max(parallel - counters, key=lambda a: (contiguous.get(a, 0), sizes[a]), default=None)
    if beside is None or contiguous.get(axis, 0) >= contiguous.get(beside, 0):
        block, half = power(sizes[axis]), max(1, table.row_bytes // width // 2)
        each = 4 * half
        if block > table.row_block:
            block, each = table.chunk_elements, 2 * half
        if beside is None:
            return Tiling((axis,), (block,), _warps(block, half, table.most_warps))
        programs = prod([sizes[a] for a in parallel])
        rows = _rows_together(block, sizes[beside], programs, table)
        warps = _warps(rows * block, each, table.most_warps)
        if rows == 1:
            return Tiling((axis,), (block,), warps)
        return Tiling((beside, axis), (rows, block), warps)
    rows = power(sizes[axis])
    short = table.map_bytes // width // rows  # a few rows are read like a map
    columns = min(power(sizes[beside]), max(16, table.column_bytes // width, short))
    others = prod([sizes[a] for a in parallel if a != beside])
    while narrow and columns * width > table.sector_bytes:  # few programs leave processors idle
        if others * -(-sizes[beside] // columns) >= table.processors:
            break
        columns //= 2
    block = min(rows, max(1, table.column_elements // columns))
    return Tiling((axis, beside), (block, columns), _warps(block * columns, 16, 8))


def _rows_together(block: int, count: int, programs: int, table: GpuTable) -> int:
    """How many rows, of so many, a program takes: few while programs are few."""
    rows = min(power(count), max(1, table.small_rows // block))
    while rows > 1 and programs // rows < table.enough:
        rows //= 2
    while 2 * rows * block <= table.many_rows and programs >= 2 * rows * table.many_programs:
        rows *= 2
    return rows


def _dot_axes(
    order: Sequence[Node], free: Mapping[Node, frozenset[int]], sizes: Sequence[int],
    table: GpuTable,
) -> tuple[int, int, int] | None:  # fmt: skip
    """Axes m, n, k of the sum of products that all folds of the kernel are."""
    folds = [n for n in order if n.op is FOLD]
    if not folds or len({f.arg[1] for f in folds}) > 1:
        return None
    axes = product_axes(folds[0], free)
    if axes is None or not axes.left or not axes.right:
        return None
    shared = [a for a in folds[0].arg[1] if a in axes.shared]
    roles = sorted(axes.left), sorted(axes.right), shared
    m, n, k = (max(found, key=sizes.__getitem__) for found in roles)
    if min(sizes[m], sizes[n], sizes[k]) < table.dot_least:
        return None
    return (m, n, k) if all(dot_factors(f, free, (m, n, k)) for f in folds) else None


def _dot_tiling(
    dot: tuple[int, int, int], order: Sequence[Node], free: Mapping[Node, frozenset[int]],
    sizes: Sequence[int], blocks: int, table: GpuTable,
) -> Tiling:  # fmt: skip
    """The tile of a product, of which there are so many for the blocks of K."""
    m, n, k = dot
    folds = [f for f in order if f.op is FOLD]
    small = all(stored_type(s).is_small_float for f in folds for s in f.src[0].src)
    side = table.dot_rows if small else table.dot_rows // 2
    rows = max(16, min(side, power(sizes[m])))
    columns = max(16, min(side, power(sizes[n])))
    block = max(16, min(table.dot_depth if small else table.dot_depth // 2, power(sizes[k])))
    apart = frozenset.intersection(*[free[f] for f in folds]) - {m, n}
    batch = blocks * prod([sizes[a] for a in apart])
    least = table.dot_side if small else table.dot_side // 2
    parts = sizes[k] // (table.dot_loop * block)  # of K, that are worth a program each
    while max(rows, columns) > least:  # few programs leave processors idle
        tiles = batch * -(-sizes[m] // rows) * -(-sizes[n] // columns)
        if _are_enough(tiles, parts, blocks, table):
            break
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    warps = 8 if rows * columns >= 128 * 128 else 4
    return Tiling((m, n, k), (rows, columns, block), warps, 3, dot, table.dot_precision)


def _are_enough(tiles: int, parts: int, blocks: int, table: GpuTable) -> bool:
    """True if tiles keep the processors busy: as they are, or when K is split; or if it was."""
    few = 2 * tiles <= table.processors
    return tiles >= table.processors or (parts * tiles >= table.processors if few else blocks > 1)
