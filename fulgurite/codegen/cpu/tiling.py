"""Tiling parameters of the CPU: every number that decides how templates cut their work.

One frozen dataclass for each template; a field's name carries its subject and unit, the comment its
reason. Sizes alone are compared with them, never the number of threads, so results do not depend
on the machine's load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ...core.lazy_dataclass import dataclass
from ...kernel.transform.tables import SplitTable, UnrollTable, VectorTable

VECTOR = VectorTable(lanes=16, near_steps=4, gather_rows=16, reduce_rows=6)
_UNROLL = UnrollTable(axis_steps=4, copies=16, nodes=2000, outputs=16, output_nodes=320,
                      shared_nodes=1600)  # fmt: skip
_SPLIT = SplitTable(VECTOR, enough=16, short=64, long=1 << 15, block=1 << 14, most=64,
                    unit_elements=4096, costly=8, epilogue=1 << 15)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamTiling:
    """Tiles of the streaming (online reduction) template: M rows, N streamed, D columns."""

    tile_m: int = 144  # rows of a tile: whole register blocks both ways
    tile_m_packing: int = 384  # the same where every tile packs its keys anew
    min_tile_m: int = 64  # before N is split
    block_n: int = 128  # streamed elements of a block, lanes along M
    block_n_lanes: int = 384  # the same with lanes along N
    min_block_n: int = 32  # below it a tile does not fit
    stack_bytes: int = 640 << 10  # of one tile: half of the second cache
    sums_bytes: int = 96 << 10  # of a tile's weighted sums
    sums_bytes_wide: int = 256 << 10  # where tiles of D would compute products again
    near_keys_bytes: int = 512 << 10  # keys that many small tiles may read
    max_m_reads_keys: int = 64  # rows up to which keys along N are read where they lie
    max_m_dots: int = 16  # rows multiplied with keys that are contiguous along the depth
    busy_tiles: int = 8  # that keep threads busy
    min_split_n: int = 256  # elements of a split along keys (split-KV)

    strip_bytes: int = 32 << 20  # scores that a strip of the two-pass form holds
    strip_share: int = 5  # a strip is at most this part of all rows
    min_strips: int = 4  # where that part would have few rows
    max_strips: int = 1024  # each has launches of its own
    min_strip_m: int = 64  # with fewer rows all else is read again too often
    max_strip_m: int = 96  # more gain nothing
    strip_stack_bytes: int = 1200 << 10  # packed rows and a block's values, nearly all near
    strip_block_n: int = 128  # streamed elements of a block
    strip_splits: int = 16  # parts of N that keep threads busy
    min_strip_split_n: int = 512  # elements of such a part

    direct_row_bytes: int = 2048  # rows of values that are read where they lie
    shared_pack_bytes: int = 64 << 20  # of an operand that is packed once for all tiles
    merge_rows: int = 64  # of transposed sums that one unit adds up

    exact_products: int = 1_000_000  # multiplications of a score product that is summed in pieces
    exact_steps: int = 16  # of its depth that are summed before they are added
    exact_group: int = 64  # steps whose pieces are summed by themselves
    sum_steps: int = 32  # of N that are summed before they are added: more would lose digits
    sum_steps_compensated: int = 12  # the same of a compensated sum
    sum_group_compensated: int = 144  # steps between compensated additions
    max_n_in_steps: int = 2048  # from which so few at a time would be too many sums in a row
    light_step_cost: int = 24  # of a step that is over before its sum is ready
    light_step_sums: int = 4  # independent sums of such steps
    recompute_cost: int = 4  # of a score above which the next walk reads it back

    priced_height: int = 9  # register block that costs assume, so that plans are the same on all
    priced_panel_bytes: int = 192
    priced_lanes: int = 16
    priced_units: int = 2  # tiles below which threads are idle that the rates of products are of
    wide_values: int = 512  # columns of values that count as packed
    block_overhead_ns: float = 40.0  # of entering a block


@dataclass(frozen=True, slots=True)
class WindowRates:
    """What windows of a convolution cost on a kind of processor, in multiply-adds of a vector that
    it could do meanwhile; by lanes one step apart, two, or further."""

    pack: tuple[float, float, float]  # the pieces of a vector, their places and masks (im2col)
    load: tuple[float, float]  # the same for a register block of a direct convolution
    line: float  # a line of the left operand, which a direct convolution does not pack
    images: float = 5.0  # of packing pixels that follow each other, which no window has twice


WINDOW_RATES = {  # by the vectors of a target, and whether they are halves; measured: decision 0160
    ("avx512", False): WindowRates(pack=(12.5, 40.0, 40.0), load=(0.5, 2.0), line=5.0),
    ("avx512", True): WindowRates(pack=(12.5, 35.0, 35.0), load=(2.5, 6.0), line=30.0),
    ("avx2", False): WindowRates(pack=(8.5, 32.0, 32.0), load=(1.2, 6.5), line=5.0),
}


@dataclass(frozen=True, slots=True)
class GemmTiling:
    """What GEMM and convolution plans are chosen by, and their micro-kernels made of."""

    # the machine
    page_bytes: int = 4096  # the smallest pages: what is within one can be read if any of it can
    cache_line_bytes: int = 64
    l1_bytes: int = 32 << 10  # a right operand that stays there is read in place

    # tiles
    tile_stack_bytes: int = 248 << 10  # of a thread's stack that one tile may take
    tile_sums_bytes: int = 144 << 10  # of accumulators, which stay in L2
    tall_tile_sums_bytes: int = 264 << 10  # where the tile packs its own columns for all rows
    tile_row_bytes: int = 2 << 10  # of one row of accumulators
    shallow_tile_sums: int = 8192  # accumulators of a tile with a short k: they must stay in L1
    tile_products: int = 1 << 18  # multiply-adds that make a tile worth a task
    busy_tiles: int = 8  # that keep threads busy
    even_tiles: int = 24  # so few that threads should have equally many
    two_tile_products: int = 1 << 22  # so few that two tiles had better pack the same columns each
    packed_workspace_bytes: int = 160 << 20  # that packed columns may take
    huge_results: int = 1 << 21  # of a product whose operands come from memory
    huge_k_bytes: int = 8 << 10  # between rows that fall into few sets of L2
    modest_products: int = 1 << 25  # soon done, so that no launch should pack alone
    min_run_elements: int = 8  # contiguous ones that are worth a vector
    pack_fetch_steps: int = 16  # of an image's channels that are prefetched before they are packed
    k_lines_at_once: int = 32  # rows of the right operand that one task packs

    # costs, in vector instructions for a vector of elements
    pack_instructions: float = 2.0  # a load and a store
    transpose_instructions: float = 4.0  # the same through a square of registers
    pack_vnni_instructions: float = 3.5  # bytes of four steps of k side by side
    broadcast_instructions: float = 0.1  # a number of the left operand, beside multiply-adds

    # operands that are read in place
    few_rows: int = 8  # too few to pay for packing the columns
    dense_row_bytes: int = 1024  # between rows that micro-kernels may read in place
    slim_row_bytes: int = 256  # of the right operand, never worth packing
    dense_row_blocks: int = 24  # register blocks of rows that are too few for packing near columns
    ragged_row_blocks: int = 14  # the same where rows end inside a vector, and are long
    packed_left_columns: int = 64  # that pay for packing a transposed left operand
    transposed_left_k_steps: int = 2048  # of k too far apart to be read in place
    swapped_columns: int = 32  # so few that rows become lanes where memory runs along them
    swapped_near_rows: int = 256  # of a left operand that can be read across its lines
    window_rows: int = 4  # side by side that are worth a register block of their own
    image_columns: int = 512  # that make each image of a convolution a product of its own

    # right operands that are packed along k, like left ones
    k_major_rows: int = 32  # so few that transposing the columns does not pay
    k_major_k_steps: int = 512  # of a block of k

    # skinny GEMM: lanes along k
    skinny_columns: int = 12
    skinny_rows: int = 16  # that columns along k need not be transposed for; twice for a long k
    skinny_least_k_steps: int = 64
    skinny_k_steps: int = 1024  # of a block of k: columns stay in L1
    skinny_block: int = 4  # rows and columns of a register block

    # GEMV
    gemv_least_columns: int = 384  # of a tile of a vector times rows of a matrix
    gemv_most_columns: int = 4096
    gemv_packed_k_steps: int = 2048  # of a block of k where the vector is packed
    gemv_busy_columns: int = 64  # that keep threads busy
    gemv_long_products: int = 1 << 20  # from which that matters
    gemv_unroll: int = 8  # rows or columns of the matrix that are under way together
    gemv_sums_columns: int = 1024  # whose accumulators stay in L1
    gemv_vectors: int = 8  # of columns whose accumulators are registers: a quarter, and twice more
    gemv_chain_rows: int = 12  # that are added in float32
    gemv_rows_at_once: int = 6  # read together: of pages apart a set of L1 holds the lines
    gemv_chain_steps: int = 6  # added in float32 before they go to float64: more would lose digits

    # direct convolution
    direct_k_steps: int = 256  # of k that windows are swept over with, whose products are one sum
    direct_byte_rows: int = 4  # for more it pays to pack bytes by fours
    direct_dot_columns: int = 64  # of windows along k that are summed without packing
    direct_dot_tile_columns: int = 16  # of a tile where there are more: it shares one table
    direct_dot_stack_bytes: int = 4 << 20  # of a thread's stack, half of the usual
    direct_pieces: int = 4  # of memory that are swept over together: their masks are loaded at once
    direct_rows: int = 2  # whose accumulators are in registers at a time, in two chains each
    direct_tile_rows: int = 96  # of a tile at most
    direct_table_steps: int = 16  # of k that a table knows, if windows are not larger
    direct_fetch_steps: int = 96  # of k that pieces of memory are prefetched before they are swept
    direct_columns: int = 3  # the same where lanes run along k
    direct_chain_steps: int = 16  # pieces or steps of k in one chain of additions

    # micro-kernels
    fetch_lines_blocks: int = 2  # register blocks at most that prefetch a panel by several lines
    fetch_half_line_blocks: int = 6  # register blocks that prefetch a panel by halves of a line
    near_depth_steps: int = 256  # rows of a dense operand that are not near by chance
    near_row_bytes: int = 1024  # between rows that the host prefetches by itself
    fetch_rows_ahead: int = 8  # of a dense operand: too far apart for the host to guess
    fma_latency_sums: int = 8  # accumulators that must be under way at a time
    avx512_accumulators: int = 30  # registers beside those of the left operand
    amx_tile_rows: int = 16
    amx_row_bytes: int = 64  # of a tile
    fetch_result_steps: int = 7  # of k that a line of C takes to come
    far_row_bytes: int = 2048  # between rows of which few pages have two: fetched 3 times as early
    epilogue_vectors: int = 2  # of results at a time: one alone waits for itself most of the time
    masked_row_vectors: int = 8  # of results so short that waiting for the last one matters


@dataclass(frozen=True, slots=True)
class CoreRates:
    """What a core of many takes, in cycles, to cut a GEMM for all of them (`gemm/spread.py`)."""

    rounds: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)  # of tiles that each core has
    least_rows: int = 8  # of a tile: fewer would read columns for little
    gain: float = 0.95  # of the time that other tiles must take to be chosen
    multiply_adds: float = 1.5  # of vectors in a cycle: two threads may share a core
    latency_cycles: float = 4.0  # of a multiply-add
    broadcast: float = 0.5  # of a multiply-add, for each number of the left operand
    amx_cycles: float = 1.5  # of a tile's product for one of the sixteen steps that it has
    far_bytes: float = 8.0  # that come from the last cache in a cycle
    near_bytes: float = 32.0  # the same from the second, which has all of small operands
    cache_bytes: int = 3 << 19  # of operands that it has
    results_bytes: int = 8 << 20  # that all cores' second caches keep until the next run
    page_cycles: float = 20.0  # of a row of results beyond those, which begins in another page
    apart_cycles: float = 25.0  # of a vector of a view that is packed number by number
    transposed: float = 3.0  # times what a vector is packed in, where it is transposed
    # of a line of the left and of the right operand that is written for other cores, who had it
    passed_cycles: tuple[float, float] = (60.0, 130.0)
    alone_cycles: float = 30.0  # the same where one core writes them all
    launch_cycles: float = (
        10_000.0  # until all cores have begun, and until all are known to be done
    )
    unit_cycles: float = 800.0  # until a unit begins to multiply
    pack_unit_cycles: float = 1500.0  # the same where it packs
    line_cycles: float = 4.0  # of a row of columns that begins elsewhere in memory
    cache_ways: int = 16  # lines of the second cache that share a place
    cache_way_bytes: int = 128 << 10  # of memory until lines share a place again
    conflict_cycles: float = 9.0  # of a line that had no place to stay
    sums_share: int = 2  # of operands, that sums of blocks of k may take at most
    uneven: float = 0.5  # of a unit that the last core ends later, twice that of a long one
    long_unit_cycles: float = 60_000.0
    many_tiles: float = 2.5  # for each core, which are enough
    amx_stack_bytes: int = 768 << 10  # of a tile: AMX needs long sums, and comes with large caches
    shared_work: int = 1 << 17  # additions from which a launch is shared
    passing: int = 16  # times a number that is added takes, if other cores read or wrote it


@dataclass(frozen=True, slots=True)
class LoopTiling:
    """Loop nests of maps and reductions; costs are in additions of a vector."""

    vector: VectorTable = VECTOR
    unroll: UnrollTable = _UNROLL
    split: SplitTable = _SPLIT

    kept_row_elements: int = 1 << 14  # the longest row whose values are kept for the next pass
    kept_cost: int = 6  # of a value that is worth keeping
    cheap_cost: int = 8  # up to which memory and latency are the bound, not the work
    unroll_vectors: tuple[tuple[int, int], ...] = ((8, 4), (48, 2))  # (cost, vectors of a step)

    sum_block_vectors: int = 32  # of a float sum before it goes to float64
    sum_block_vectors_unrolled: int = 16  # the same where several accumulators run side by side
    sum_block_vectors_far: int = 8  # the same of a sum so long that it waits for memory
    sum_far_elements: int = 1 << 18  # of such a sum
    sum_block_steps: int = 16  # where one lane is all of a result: as good as a pairwise sum
    sum_block_row_groups: int = 8  # the same down columns, where a step takes in several rows
    settled_steps: int = 16  # of a fold of truths, after which one looks if it is decided
    column_steps: int = 16  # a shorter reduction stays inside the lanes
    inline_steps: int = 4  # of a reduction that needs no loop
    column_rows: int = 4  # of cheap values that are combined before they meet the accumulators
    column_elements: int = 2048  # whose accumulators are in scratch at once


@dataclass(frozen=True, slots=True)
class ScanTiling:
    """Scans over memory."""

    block_elements: int = 1 << 14  # of a long row that one unit scans
    long_elements: int = 1 << 16  # the shortest row that is cut in blocks
    enough_rows: int = 64  # from which on rows alone make enough units
    column_vectors: int = 4  # of columns that are traversed together


@dataclass(frozen=True, slots=True)
class SortTiling:
    """Merge sort, radix sort, insertion sort and sorting networks."""

    network_elements: int = 16  # the longest row that a network sorts
    insertion_elements: int = 32  # the longest row that is sorted by insertion
    select_elements: int = 64  # the most places that are selected, not sorted (top-k)
    select_share: int = 8  # of so many numbers that one place is wanted: most are left at once
    long_elements: int = 1 << 16  # the shortest row that is cut in blocks
    enough_rows: int = 8  # from which on rows alone make enough units
    block_elements: int = 1 << 15  # of a block, at least
    max_blocks: int = 64  # of a row
    # merges are quicker than digits for rows of so many bits of length, and more for each digit
    merged_values: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {"avx512": (8, 8), "avx2": (14, 0), "sse2": (6, 0), "neon": (6, 0)}
    )
    merged_places: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {"avx512": (7, 2), "avx2": (4, 1), "sse2": (0, 0), "neon": (0, 0)}
    )
    block_registers: int = 8  # that are sorted without a loop
    merge_registers: Mapping[str, int] = field(  # that a merge writes at once from an end, if not 2
        default_factory=lambda: {"avx512": 4}
    )
    merge_chunk_bytes: int = 1 << 17  # that are sorted before they meet others: caches hold them
    apart_bytes: int = 64  # around an array: a merge looks at the keys before and behind it
    stack_bytes: int = 1 << 17  # of a thread's stack that the keys of a row may take
    cached_bytes: int = 1 << 17  # of keys that caches hold well
    prefetch_elements: int = 8  # of a digit that memory is fetched for before they are written
    unroll_elements: int = 4  # of a step


@dataclass(frozen=True, slots=True)
class CpuTable:
    """All tiling parameters of the CPU's templates."""

    stream: StreamTiling = field(default_factory=StreamTiling)
    gemm: GemmTiling = field(default_factory=GemmTiling)
    cores: CoreRates = field(default_factory=CoreRates)
    loops: LoopTiling = field(default_factory=LoopTiling)
    scan: ScanTiling = field(default_factory=ScanTiling)
    sort: SortTiling = field(default_factory=SortTiling)
    scatter_row_vectors: int = 4  # of a row that one unit of a scatter takes


CPU = CpuTable()
GEMM = CPU.gemm
CORES = CPU.cores
