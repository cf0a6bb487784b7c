"""Tile sizes of a GEMM, and the route of each operand to the micro-kernel.

In: a `TileProblem`: sizes, the register block, and what is known of both operands. Out: `Tiles`.
Routes are `dense` (read in place), `tile` (packed by the tile that reads it), `shared` (packed
once for all tiles, by a launch before) and `windows` (rows of windows in place). Tiles keep their
accumulators in L2 and their scratch on a thread's stack; they are as large as leaves enough of them
for up to `busy_tiles` threads. For many cores `spread.py` cuts them anew; nothing depends on how
many threads a run has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import lcm

from ....core.lazy_dataclass import dataclass
from ....core.symbolic.sym import plain, varies
from ....kernel.contract.analysis import Block
from ....kernel.contract.summation import ORDER, in_chunks, k_block, k_block_nearby, k_chunks
from ..tiling import GEMM


@dataclass(frozen=True, slots=True)
class TileProblem:
    """What tile sizes follow from."""

    batch: int
    rows: int
    columns: int
    depth: int
    block: Block
    dense: tuple[bool, bool]  # which operands could be read in place
    in_place: bool = False  # are accumulators kept where results go?
    split: bool = False  # may k be split in chunks?
    k_major: bool = False  # are both operands packed along k?
    left_transposed: bool = False  # is memory of the left operand contiguous along rows?
    fine: bool = True  # are sums of a small product in several chunks?
    prepacked: bool = False  # is the right operand packed before any run?

    @property
    def products(self) -> int:
        """Multiply-adds of one product of the batch."""
        return self.rows * self.columns * self.depth

    def tiles(self, tall: int, wide: int) -> int:
        """How many tiles of a size there are."""
        return self.batch * -(-self.rows // tall) * -(-self.columns // wide)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of tiles and of blocks of k, and both routes."""

    left: str
    right: str
    rows: int
    columns: int
    k_block: int  # steps of k that are summed before they are added to the accumulators
    # stride of a packed block of k, with room for the lanes after the last step; of a direct
    # convolution the steps that its table knows
    k_packed: int
    in_place: bool = False
    k_chunks: int = 1  # split-K: summed apart and joined in order
    column_tiles: int = 0  # nearly equal in vectors, of `columns` at most; 0: all alike
    by_blocks: bool = False  # are chunks single blocks, whose sums are added as if in place?

    @property
    def order(self) -> tuple[int, int]:
        """What bits depend on: steps of a block, and how many sums are joined with more digits."""
        return self.k_block, 1 if self.by_blocks else self.k_chunks

    def scratch(self, lanes: int) -> tuple[int, int, int]:
        """Elements of a tile's own packed left operand, packed right operand and accumulators."""
        left = (self.rows + lanes) * self.k_packed if self.left == "tile" else 0
        right = self.columns * self.k_packed if self.right == "tile" else 0
        outside = self.in_place or self.k_chunks > 1
        return left, right, 0 if outside else self.rows * self.columns + lanes

    def fits(self, block: Block) -> bool:
        """True if a thread's stack has room for the scratch of a tile."""
        return sum(self.scratch(block.lanes)) * block.bytes <= GEMM.tile_stack_bytes


def tile_sizes(p: TileProblem) -> Tiles:
    """Tiles for a GEMM of these sizes."""
    if p.rows == 1 and p.dense[1]:
        return _gemv_tiles(p)
    return _Chooser(p).tiles()


class _Chooser:
    """The tiles of one GEMM, a question at a time."""

    def __init__(self, p: TileProblem) -> None:
        self.p, self.block = p, p.block

    def tiles(self) -> Tiles:
        """The answer: the largest tiles, halved until there are enough."""
        p, block = self.p, self.block
        tall, wide = self.even_size
        parts = self.row_parts
        if self.owns_rows and wide >= p.columns and 2 * parts * block.height <= p.rows:
            tall = min(tall, -(-p.rows // parts))
        else:
            least = block.panel if self.right == "tile" else 2 * block.panel
            while wide > least and self.wants_smaller(tall, wide):
                wide = up(wide // 2, block.panel)
            packs_again = self.right == "tile" and not p.k_major
            while not packs_again and tall > 2 * block.height and self.wants_smaller(tall, wide):
                tall = up(tall // 2, block.height)
        left = self.left
        if left == "tile" and wide < p.columns:  # several tiles would pack the same rows
            left = "dense" if p.dense[0] else "shared"
        return Tiles(
            left, self.right, tall, wide, self.k_block, self.k_packed, p.in_place, self.k_chunks
        )

    @property
    def enough(self) -> int:
        """Tiles that keep threads busy, if they do not share k."""
        return 1 if self.k_chunks > 1 else GEMM.busy_tiles

    def wants_smaller(self, tall: int, wide: int) -> bool:
        """True if tiles are too few, and large enough to be halved."""
        large = tall * wide * self.p.depth >= 2 * GEMM.tile_products
        return large and self.p.tiles(tall, wide) < self.enough

    # --- k ---------------------------------------------------------------------------------------

    @cached_property
    def k_block(self) -> int:
        p, block = self.p, self.block
        if p.k_major:
            return GEMM.k_major_k_steps
        room = GEMM.tile_stack_bytes // block.bytes - block.height * block.panel - block.lanes
        most = room // (block.height + block.lanes + block.panel) - block.lanes  # both packed
        return min(k_block(p.rows, p.columns, p.depth, p.fine), most)

    @property
    def k_packed(self) -> int:
        return min(self.k_block, up(self.p.depth, self.block.lanes)) + self.block.lanes

    @cached_property
    def k_chunks(self) -> int:
        p, chunks = self.p, 1
        if p.split:
            steps = max(self.k_block, ORDER.small_block_steps)
            chunks = k_chunks(p.batch, p.rows, p.columns, p.depth, steps)
        blocks = -(-p.depth // self.k_block)  # maybe more than were counted: no chunk is empty
        return in_chunks(blocks, -(-blocks // chunks))

    # --- routes ----------------------------------------------------------------------------------

    @property
    def is_huge(self) -> bool:
        """True if operands come from memory, rows of them into few sets of L2."""
        many = self.p.rows * self.p.columns >= GEMM.huge_results
        return many and self.p.depth * self.block.bytes >= GEMM.huge_k_bytes

    @cached_property
    def left(self) -> str:
        """The route of the left operand, if each tile has all columns."""
        if self.is_huge:
            return "shared"
        used = GEMM.packed_left_columns, GEMM.tile_row_bytes // self.block.bytes
        packs = self.p.left_transposed and used[0] <= self.p.columns <= used[1]
        return "dense" if self.p.dense[0] and not packs else "tile"

    @cached_property
    def right(self) -> str:
        """The route of the right operand."""
        p, block = self.p, self.block
        if p.prepacked:
            return "shared"
        if p.dense[1] and is_read_in_place(p):
            return "dense"
        packed = p.batch * up(p.columns, block.panel) * up(p.depth, block.lanes) * block.bytes
        if self.is_for_one_tile or packed > GEMM.packed_workspace_bytes or p.k_major:
            return "tile"
        return "shared"

    @property
    def is_for_one_tile(self) -> bool:
        """True if a tile has all rows, so that no other needs its columns, and tiles are enough."""
        p = self.p
        if self.is_huge or p.rows > self.largest("tile")[0]:
            return False
        panels = -(-p.columns // self.block.panel)
        if p.batch * panels >= self.enough or p.products < 2 * GEMM.tile_products:
            return True
        return panels > 1 and self.left == "dense" and p.products < GEMM.modest_products

    # --- sizes -----------------------------------------------------------------------------------

    def largest(self, right: str) -> tuple[int, int]:
        """The largest tile: its accumulators stay in L2, its scratch fits."""
        p, block, k_packed = self.p, self.block, self.k_packed
        outside = p.in_place or self.k_chunks > 1  # are accumulators elsewhere?
        room = GEMM.tile_stack_bytes // block.bytes - 2 * block.lanes * k_packed
        sums = GEMM.tile_sums_bytes // block.bytes
        row = GEMM.tile_row_bytes // block.bytes // block.panel * block.panel
        wide = min(row, up(p.columns, block.panel))
        if right == "tile":
            most = room if outside and self.left != "tile" else room * 3 // 5
            wide = min(wide, max(block.panel, most // k_packed // block.panel * block.panel))
            room -= wide * k_packed
            sums = GEMM.tall_tile_sums_bytes // block.bytes if outside else room
        each = (0 if outside else wide) + (k_packed if self.left == "tile" else 0)
        tall = min(room // max(each, 1), sums // wide) // block.height * block.height
        return max(block.height, tall), wide

    @cached_property
    def has_whole_rows(self) -> bool:
        """True if a tile packs its rows, and has all columns of them."""
        packs = self.left == "tile" and self.right != "tile"
        return packs and self.p.columns <= self.largest(self.right)[1]

    @property
    def owns_rows(self) -> bool:
        """True if what tiles of whole rows pack and write is no other thread's."""
        return self.k_chunks == 1 and (self.has_whole_rows or self.right == "dense")

    @property
    def even_size(self) -> tuple[int, int]:
        """Rows and columns of nearly equal tiles."""
        p, block = self.p, self.block
        tall, wide = self.largest(self.right)
        if p.depth <= ORDER.block_steps // 4 and not self.has_whole_rows:
            sums = GEMM.shallow_tile_sums * (2 if self.right == "tile" else 1)
            whole = self.right == "tile" or p.rows * p.columns <= GEMM.shallow_tile_sums
            high = sums // up(p.columns, block.panel) // block.height * block.height
            tall = tall if whole else min(tall, max(2 * block.height, high))
            room = sums // min(p.rows, tall) // block.panel * block.panel
            wide = min(wide, max(block.panel, room))
        return _even(p.rows, tall, block.height), _even(p.columns, wide, block.panel)

    @property
    def row_parts(self) -> int:
        """How many tiles of whole rows keep threads busy: even numbers of them, each worth it."""
        parts = 1
        while self.p.batch * parts < GEMM.busy_tiles:
            if self.p.products < 3 * parts * GEMM.tile_products:
                break
            parts *= 2
        return parts


def is_read_in_place(p: TileProblem) -> bool:
    """True if packing dense columns would not pay: few rows, or short rows of memory."""
    block, row_bytes = p.block, p.columns * p.block.bytes
    if p.rows <= GEMM.few_rows:
        return True
    if row_bytes <= GEMM.page_bytes and p.rows <= 4 * block.height:
        return True
    ragged = p.columns % block.lanes > 0 and 2 * row_bytes > GEMM.dense_row_bytes
    blocks = GEMM.ragged_row_blocks if ragged else GEMM.dense_row_blocks
    few = p.rows <= blocks * block.height or row_bytes <= GEMM.slim_row_bytes
    return row_bytes <= GEMM.dense_row_bytes and (few or row_bytes * p.depth <= GEMM.l1_bytes)


def pack_twice(found: Tiles, p: TileProblem) -> Tiles:
    """The same with two tiles that pack both operands, where that beats reading what others packed.

    A line that another thread wrote takes longer to come than to be packed again.
    """
    twice = replace(found, right="tile", rows=-(-p.rows // 2))
    small = 3 * GEMM.tile_products <= p.products <= GEMM.two_tile_products
    whole = (found.left, found.right) == ("tile", "shared") and found.columns >= p.columns
    whole = whole and not p.prepacked
    fits = found.in_place and twice.fits(p.block) and 4 * p.block.height <= p.rows
    return twice if small and whole and fits and found.k_chunks == 1 else found


def even_columns(found: Tiles, p: TileProblem, most: int) -> Tiles:
    """The same with an even number of tiles of columns, of a panel or up to `most` vectors each,
    where tiles of one panel are so few that one more or less would keep others waiting."""
    block = p.block
    vectors, panel = -(-p.columns // block.lanes), block.panel // block.lanes
    tiles = vectors // panel // 2 * 2
    few = found.columns == block.panel and 2 <= tiles <= GEMM.even_tiles
    if found.right != "tile" or found.k_chunks > 1 or not few:
        return found
    even = replace(found, columns=2 * block.panel, column_tiles=tiles)  # a panel and one beside it
    return even if even.fits(block) and tiles * panel < vectors <= tiles * most else found


def for_all_sizes(found: Tiles, p: TileProblem, is_vector: bool = False) -> Tiles | None:
    """Tiles that were chosen for sizes nearby, smaller ones where these do not fit the stack."""
    changes: dict[str, int] = {}
    if not is_vector:  # a GEMV sums in float64, and reads memory once if k is whole
        hints = plain(p.rows), plain(p.columns), plain(p.depth)
        found = replace(found, k_block=k_block_nearby(*hints, found.k_block))
    if varies(p.columns):
        changes["column_tiles"] = 0
    if varies(p.depth):
        changes["k_packed"] = up(found.k_block, p.block.lanes) + p.block.lanes
        if found.k_chunks > 1:
            blocks = -(-p.depth // found.k_block)
            changes["k_chunks"] = in_chunks(blocks, -(-blocks // found.k_chunks))
    settled = replace(found, **changes)  # type: ignore[arg-type]
    while not settled.fits(p.block):  # blocks of k are whole ones, longer than k was nearby
        if settled.columns > p.block.panel:
            less = settled.columns - 1
            settled = replace(settled, columns=less - less % p.block.panel, column_tiles=0)
        elif settled.rows > p.block.height:
            less = settled.rows - 1
            settled = replace(settled, rows=less - less % p.block.height)
        else:
            return None
    return settled


def _gemv_tiles(p: TileProblem) -> Tiles:
    """Tiles for a vector times a matrix that is read in place: whole rows, and chunks of k.

    Rows that are cut in short ones are not prefetched.
    """
    block = p.block
    small = p.columns * p.depth <= ORDER.small_products
    each = ORDER.small_block_steps if small else ORDER.block_steps
    chunks = k_chunks(p.batch, 1, p.columns, p.depth, each) if p.split else 1
    steps = up(-(-p.depth // chunks), each)  # accumulators in float64 have no need of blocks
    if not p.dense[0]:
        steps = min(steps, GEMM.gemv_packed_k_steps)
        blocks = -(-p.depth // steps)
        chunks = in_chunks(blocks, -(-blocks // chunks))
    packed = min(steps, up(p.depth, block.lanes)) + block.lanes
    step = lcm(block.panel, GEMM.gemv_vectors * block.lanes)  # whole blocks of accumulators
    wide = _even(p.columns, GEMM.gemv_most_columns, block.panel)
    while wide > GEMM.gemv_least_columns and wide * p.depth >= 2 * ORDER.gemv_chunk_products:
        if chunks * p.tiles(1, wide) >= GEMM.busy_tiles // 2:
            break
        wide = up(wide // 2, step)
    left = "dense" if p.dense[0] else "tile" if wide >= p.columns else "shared"
    right = "shared" if p.prepacked else "dense"
    found = Tiles(left, right, 1, wide, steps, packed, p.in_place, chunks)
    return found if found.fits(block) else replace(found, left="shared")


def direct_tiles(p: TileProblem, steps: int, k_block: int, height: int, run: int) -> Tiles:
    """Tiles of a direct convolution: all of a few rows and many columns; or accumulators that stay
    near, in whole register blocks. Columns are whole runs of windows, so that tiles are alike."""
    columns = p.block.lanes * GEMM.direct_pieces
    if p.rows <= GEMM.few_rows:
        vectors = 2 * GEMM.min_run_elements
        most = GEMM.gemv_most_columns if p.in_place else GEMM.gemv_most_columns // 4
        wide = _even(p.columns, most, vectors)
        while wide > GEMM.gemv_least_columns and p.tiles(p.rows, wide) < GEMM.busy_tiles:
            wide = up(wide // 2, vectors)
        wide = wide if varies(p.columns) else _whole_runs(wide, run)
        return Tiles("dense", "direct", p.rows, wide, k_block, steps, p.in_place)
    tall = min(p.rows, _even(p.rows, GEMM.direct_tile_rows, height))
    sums = max(columns, 2 * GEMM.shallow_tile_sums // tall // columns * columns)
    wide = _even(p.columns, sums, columns)

    def halve() -> bool:
        large = tall * wide * p.depth >= 2 * GEMM.tile_products
        return large and p.tiles(tall, wide) < GEMM.busy_tiles

    while wide > columns and halve():
        wide = up(wide // 2, columns)
    while tall > 2 * height and halve():
        tall = up(tall // 2, height)
    wide = _full_columns(p, tall, wide, run)
    return Tiles("dense", "direct", tall, wide, k_block, steps, p.in_place)


def window_tiles(p: TileProblem, run: int) -> Tiles | None:
    """Tiles whose rows are windows that are read in place: whole rows of an image, as many as keep
    accumulators near, and all of k at once."""
    found = tile_sizes(replace(p, dense=(True, p.dense[1]), left_transposed=False))
    if found.left != "dense" or found.k_chunks > 1:
        return None
    rows = min(found.rows, GEMM.shallow_tile_sums // found.columns) // run * run
    deep = up(p.depth, p.block.lanes)
    tiles = replace(found, left="windows", rows=max(run, rows), k_block=deep,
                    k_packed=deep + p.block.lanes)  # fmt: skip
    return tiles if tiles.fits(p.block) else None


def _full_columns(p: TileProblem, tall: int, wide: int, run: int) -> int:
    """About as many columns, in whole runs of windows, with the fewest idle lanes in the last
    register block, which is two vectors wide."""
    best, block = _whole_runs(wide, run), 2 * p.block.lanes
    for columns in range(run, wide + wide // 3 + 1, run):
        enough = columns <= wide or p.tiles(tall, columns) >= GEMM.busy_tiles
        fewer = up(columns, block) * best < up(best, block) * columns
        if columns > wide // 2 and enough and fewer:
            best = columns
    return best


def _whole_runs(columns: int, run: int) -> int:
    """Columns that are whole runs of windows, if there are such."""
    return columns // run * run or columns


def _even(size: int, most: int, step: int) -> int:
    """The size of tiles that are nearly equal."""
    if size <= most:
        return up(size, step)
    return up(-(-size // -(-size // most)), step)


def up(size: int, step: int) -> int:
    """A size in whole steps."""
    return -(-size // step) * step
