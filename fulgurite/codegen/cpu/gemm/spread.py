"""Tiles for many cores: the same sums, cut so that every core has as much to do.

In: a GEMM and the tiles that its strategy chose, which keep up to `busy_tiles` threads busy. Out:
tiles and routes with the least time of the last core to end, by a rough model of one core: register
blocks, packing, memory that comes from another core, and the hand-over of each launch. Blocks of k
may be summed by different cores, into memory of their own, if they are added one after the other as
one core would. The order of sums stays as it is: bits do not depend on the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from math import gcd

from ....kernel.contract.problem import Operand
from ....kernel.contract.summation import ORDER
from ..tiling import CORES, GEMM
from .geometry import Geometry
from .plan import Gemm, GemmKind
from .tile_sizes import Tiles, is_read_in_place, up

Weight = Callable[[Operand], float]  # instructions of a vector of an operand that is packed
Sweep = Callable[[Gemm, int, int], float]  # instructions of some rows of it and columns
_FIXED = (GemmKind.DIRECT, GemmKind.DIRECT_DOT)  # tiles that stay


def spread(gemm: Gemm, found: Tiles, weight: Weight) -> Tiles:
    """Tiles for the cores of the target; those that were found if these are as good."""
    if not may_spread(gemm, found):
        return found
    model = Model(gemm, found, weight, gemm.target.cores)
    if model.is_small or model.is_huge or model.has_enough:
        return found
    most = CORES.gain * model.time(found)
    best = min(model.candidates(), key=model.time, default=found)
    return best if model.time(best) < most else found


def spread_windows(gemm: Gemm, found: Tiles, sweep: Sweep) -> Tiles:
    """Tiles of a direct convolution for the cores of the target: of fewer rows, as columns are what
    a register block goes on along."""
    if gemm.target.cores <= GEMM.busy_tiles or gemm.varies:
        return found
    best = min(lower(gemm, found), key=lambda tiles: sweep_time(gemm, tiles, sweep))
    most = CORES.gain * sweep_time(gemm, found, sweep)
    return best if sweep_time(gemm, best, sweep) < most else found


def lower(gemm: Gemm, found: Tiles) -> list[Tiles]:
    """The same tiles of a direct convolution, and ones of fewer rows, in whole register blocks."""
    blocks = gemm.registers.direct_blocks("near")
    step = blocks[0][0] if blocks else found.rows
    parts = range(2, -(-gemm.rows // step) + 1) if gemm.rows > GEMM.few_rows else ()
    rows = {min(found.rows, up(-(-gemm.rows // count), step)) for count in parts}
    return [found, *[replace(found, rows=tall) for tall in sorted(rows, reverse=True)]]


def sweep_time(gemm: Gemm, tiles: Tiles, sweep: Sweep) -> float:
    """Cycles of a direct convolution in tiles."""
    p = gemm.tile_problem
    rows, columns = min(tiles.rows, p.rows), min(tiles.columns, p.columns)
    read = (columns / tiles.k_packed + rows) * p.depth * p.block.bytes  # pixels and weights
    unit = sweep(gemm, rows, columns) / CORES.multiply_adds + read / CORES.far_bytes
    return launched(unit, p.tiles(tiles.rows, tiles.columns), gemm.target.cores)


def launched(unit: float, units: int, cores: int) -> float:
    """Cycles of a launch of so many units; cores are not equally fast."""
    if units == 1:
        return unit
    unit += CORES.unit_cycles
    uneven = CORES.uneven * (1 + min(1.0, unit / CORES.long_unit_cycles))
    return CORES.launch_cycles + max(-(-units // cores), units / cores + uneven) * unit


def may_spread(gemm: Gemm, found: Tiles) -> bool:
    """True if there are many cores, and the tiles of this GEMM may be others."""
    stays = gemm.kind in _FIXED or found.left == "windows"
    return gemm.target.cores > GEMM.busy_tiles and not stays and not gemm.varies


class Model:
    """What tiles of one GEMM take, in cycles."""

    def __init__(self, gemm: Gemm, found: Tiles, weight: Weight, cores: int) -> None:
        self.gemm, self.found, self.cores = gemm, found, cores
        self.p, self.registers = gemm.tile_problem, gemm.registers
        self.weights = [self.weight(s, weight(s)) for s in (gemm.left, gemm.right)]
        self.bytes = self.registers.dtype.itemsize
        read = self.p.batch * (self.p.rows + self.p.columns) * self.p.depth * self.bytes
        self.reach = CORES.near_bytes if read <= CORES.cache_bytes else CORES.far_bytes
        results = self.p.batch * self.p.rows * self.p.columns * self.bytes
        self.are_results_far = results > CORES.results_bytes

    def weight(self, s: Operand, packed: float) -> float:
        """Cycles of a vector that is packed, in instructions of a strategy's own account."""
        if self.gemm.kind.reads_views and not self.gemm.is_near(s, s.along):
            return max(packed, CORES.apart_cycles)
        return packed * (CORES.transposed if s.is_transposed else 1)

    @property
    def is_small(self) -> bool:
        """True if one thread does it all."""
        p = self.p
        read = p.batch * (p.rows + p.columns) * p.depth
        return max(read, 3 * p.batch * p.products // p.block.lanes) < CORES.shared_work

    @property
    def is_huge(self) -> bool:
        """True if operands come from memory: tiles that read them least are best as they are."""
        huge = self.p.rows * self.p.columns >= GEMM.huge_results
        return huge and not (self.is_shallow or self.registers.has_tiles)

    @property
    def has_enough(self) -> bool:
        """True if cores have several tiles each already, and none reads what another packed."""
        found = self.found
        count = found.k_chunks * self.p.tiles(found.rows, self.width(found))
        passed = "shared" in (found.left, found.right) and not self.p.prepacked
        return count >= CORES.many_tiles * self.cores and not (passed or self.registers.has_tiles)

    @property
    def is_shallow(self) -> bool:
        """True if k is so short that accumulators must stay near."""
        return self.p.depth <= ORDER.block_steps // 4

    # --- candidates ------------------------------------------------------------------------------

    def candidates(self) -> Iterator[Tiles]:
        """Grids of tiles that give every core one or a few."""
        p, grids = self.p, set[tuple[int, int, int]]()
        for chunks in self.chunks:
            for rounds in self.rounds:
                wanted = max(1, rounds * self.cores // (p.batch * chunks))
                for down in (1 << n for n in range(wanted.bit_length())):
                    tall, wide = self.size(down, -(-wanted // down))
                    if (tall, wide, chunks) not in grids:
                        grids.add((tall, wide, chunks))
                        yield from self.routed(tall, wide, chunks)

    @cached_property
    def rounds(self) -> list[int]:
        """How many tiles a core may have: with a short k as many as keep accumulators near."""
        p, found = self.p, list(CORES.rounds)
        if self.is_shallow:
            tiles = -(-p.batch * p.rows * p.columns // (2 * GEMM.shallow_tile_sums))
            found += [n for n in (-(-tiles // self.cores), -(-2 * tiles // self.cores))
                      if n > max(found)]  # fmt: skip
        return found

    @cached_property
    def chunks(self) -> list[int]:
        """Into how many chunks k may be cut: as it is, or block by block, each with a core's sums,
        where those are few. AMX goes on with the sums that it has."""
        found, p, gemm = self.found, self.p, self.gemm
        blocks = -(-p.depth // found.k_block)
        reads = gemm.kind in (GemmKind.DENSE, GemmKind.IMPLICIT) and not self.registers.has_tiles
        sums = p.batch * p.rows * p.columns * blocks
        few = sums * CORES.sums_share <= p.batch * (p.rows + p.columns) * p.depth
        if found.k_chunks > 1 or blocks == 1 or not (reads and few):
            return [found.k_chunks]
        return [1, blocks]

    def size(self, down: int, across: int) -> tuple[int, int]:
        """Rows and columns of a tile of a grid."""
        p, step = self.p, self.registers.height if self.registers.has_tiles else 1
        tall = up(-(-p.rows // down), step)
        return max(tall, min(p.rows, CORES.least_rows)), up(-(-p.columns // across), self.step)

    @cached_property
    def step(self) -> int:
        """What widths of tiles are multiples of."""
        if self.gemm.kind is GemmKind.GEMV_DOT or self.gemm.kind is GemmKind.SKINNY:
            return GEMM.gemv_unroll
        if self.gemm.kind is GemmKind.GEMV_AXPY:
            return up(GEMM.gemv_least_columns, self.registers.panel)
        return self.registers.width if self.is_stretched else self.registers.panel

    @cached_property
    def is_stretched(self) -> bool:
        """True if tiles of columns may begin at any vector."""
        return self.gemm.kind.reads_matrices and not self.gemm.right.k_major

    def routed(self, tall: int, wide: int, chunks: int) -> Iterator[Tiles]:
        """Tiles of a size, with operands on all routes that they may take."""
        found = self.found
        for right in self.rights(tall):
            for left in self.lefts:
                columns = up(wide, self.registers.panel) if right == "shared" else wide
                tiles = replace(found, left=left, right=right, rows=tall, columns=columns,
                                column_tiles=0, k_chunks=chunks,
                                by_blocks=chunks > found.k_chunks)  # fmt: skip
                if right == "tile":  # scratch has whole panels
                    tiles = self.stretched(tiles)
                if self.fits(tiles):
                    yield tiles

    def fits(self, tiles: Tiles) -> bool:
        """True if a thread's stack and its second cache have room for a tile."""
        sums = min(self.p.rows, tiles.rows) * self.width(tiles)
        if self.is_shallow and sums > 2 * GEMM.shallow_tile_sums:
            return False
        if not self.registers.has_tiles:
            return tiles.fits(self.p.block)
        return sum(tiles.scratch(self.p.block.lanes)) * self.bytes <= CORES.amx_stack_bytes

    def stretched(self, tiles: Tiles) -> Tiles:
        """The same with columns that are nearly equal in vectors."""
        count, panel = -(-self.p.columns // tiles.columns), self.registers.panel
        even = self.is_stretched and tiles.columns % panel and count > 1
        whole = replace(tiles, columns=up(tiles.columns, panel))
        return replace(whole, column_tiles=count) if even else whole

    @cached_property
    def lefts(self) -> list[str]:
        """Routes of the left operand."""
        few = (GemmKind.SKINNY, GemmKind.GEMV_DOT, GemmKind.GEMV_AXPY)
        if self.gemm.kind in few or self.found.k_chunks > 1:
            return [self.found.left]
        return ["dense"] if self.found.left == "dense" else ["tile", "shared"]

    def rights(self, tall: int) -> list[str]:
        """Routes of the right operand for tiles of so many rows."""
        found = self.found.right
        in_place = found == "dense" and self.gemm.kind is not GemmKind.DENSE
        if in_place or found == "skinny" or self.p.prepacked or self.found.k_chunks > 1:
            return [found]
        if self.p.k_major:
            return ["tile"]
        dense = self.p.dense[1] and is_read_in_place(replace(self.p, rows=tall))
        return ["dense", "tile", "shared"] if dense else ["tile", "shared"]

    # --- time ------------------------------------------------------------------------------------

    def time(self, tiles: Tiles) -> float:
        """Cycles until the last core ends."""
        p, count = self.p, self.p.tiles(tiles.rows, self.width(tiles))
        found = self.launch(self.tile(tiles), count * tiles.k_chunks)
        if tiles.k_chunks > 1:
            found += self.joining(tiles.k_chunks, count)
        if "shared" in (tiles.left, tiles.right):
            geometry = Geometry(self.gemm, tiles, p.prepacked)
            for side, s in enumerate((self.gemm.left, self.gemm.right)):
                if geometry.packs_before(s):
                    found += self.packing(side, p.batch * geometry.pack_units(s))
        return found

    def width(self, tiles: Tiles) -> int:
        """Columns of a tile."""
        count = tiles.column_tiles
        return up(-(-self.p.columns // count), self.registers.width) if count else tiles.columns

    def launch(self, unit: float, units: int) -> float:
        """Cycles of a launch of so many units."""
        return launched(unit, units, self.cores)

    def packing(self, side: int, units: int) -> float:
        """Cycles of a launch that packs an operand."""
        p = self.p
        size = (p.rows, p.columns)[side]
        vectors = p.batch * size * p.depth / self.registers.width
        if 2 * p.batch * size * p.depth * CORES.passing < CORES.shared_work:  # by one core
            return vectors * (self.weights[side] + CORES.alone_cycles)
        cycles = vectors * (self.weights[side] + CORES.passed_cycles[side])
        return self.launch(cycles / units, units)

    def joining(self, chunks: int, units: int) -> float:
        """Cycles of a launch that adds up the sums of chunks, which other cores wrote."""
        numbers = self.p.batch * self.p.rows * self.p.columns * chunks
        vectors = numbers / self.registers.width
        if 2 * numbers * CORES.passing < CORES.shared_work or units == 1:
            return vectors * CORES.alone_cycles
        return self.launch(vectors * CORES.passed_cycles[0] / units, units)

    def tile(self, tiles: Tiles) -> float:
        """Cycles of one tile, or of one chunk of k of it."""
        rows, columns = min(tiles.rows, self.p.rows), min(self.width(tiles), self.p.columns)
        width, depth = self.registers.width, -(-self.p.depth // tiles.k_chunks)
        found = depth * self.block(rows, -(-columns // width))
        found += (rows + columns) * depth * self.bytes / self.reach
        write = CORES.far_bytes if self.are_results_far else self.reach
        found += 2 * rows * columns * self.bytes / write + depth * self.line(tiles, columns)
        found += rows * CORES.page_cycles * self.are_results_far
        if "tile" in (tiles.left, tiles.right):
            found += CORES.pack_unit_cycles
        if tiles.left == "tile":
            found += rows * depth / width * self.weights[0]
        if tiles.right == "tile":
            found += -(-columns // width) * depth * self.weights[1]
        if tiles.right == "skinny" and not self.gemm.has_k_contiguous_columns:
            found += columns * depth  # each tile turns them for itself
        return found

    def line(self, tiles: Tiles, columns: int) -> float:
        """Cycles for a row of a tile's columns to come from where it begins in memory: longer where
        rows are so far apart that the second cache has too few sets for all that a tile reads."""
        depth, right = -(-self.p.depth // tiles.k_chunks), self.gemm.right
        row, way = self.p.columns * self.bytes, CORES.cache_way_bytes
        held = CORES.cache_ways * way // gcd(row, way)
        if right.is_transposed or not self.p.dense[1] or tiles.right == "shared" or depth <= held:
            return CORES.line_cycles
        lines = -(-columns * self.bytes // GEMM.cache_line_bytes)
        return CORES.line_cycles + lines * CORES.conflict_cycles

    def block(self, rows: int, vectors: int) -> float:
        """Cycles of a step of k: two multiply-adds a cycle, none of them before it is ready."""
        r = self.registers
        if r.has_tiles:
            return -(-rows // r.height) * vectors * CORES.amx_cycles
        if self.gemm.kind in (GemmKind.SKINNY, GemmKind.GEMV_DOT, GemmKind.GEMV_AXPY):
            return rows * vectors / CORES.multiply_adds
        high, rest = divmod(rows, r.height)
        whole, narrow = divmod(vectors, r.vectors)
        found = 0.0
        for count, wide in ((whole, r.vectors), (1, narrow)):
            if count and wide:
                each = (wide + CORES.broadcast) / CORES.multiply_adds
                found += count * high * max(r.height * each, CORES.latency_cycles)
                found += count * max(rest * each, CORES.latency_cycles) if rest else 0.0
        return found
