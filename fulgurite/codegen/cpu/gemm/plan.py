"""A contraction in numbers: how it is cut, which way each factor goes, and what is where.

In: a `Contraction`, the dtypes of its params, the registers. Out: a `Product`: both sides, the cut,
and every number that the text of the kernel and the functions of the library read when they run.
Nothing here writes text. What a property says of a factor as memory (`as_it_is`, `readable`,
`dotted`, `lent`) decides the text; sizes decide numbers alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import gcd, prod

from ....core.dtype import DType, float32, float64, int8, int32, int64, uint8
from ....core.ops.elementwise import CAST
from ....core.ops.index import LOAD
from ....kernel.contract.analysis import (
    FEW,
    LANED,
    LINED,
    NEAR,
    SWEPT_DEPTH,
    Block,
    Contraction,
    Cut,
    chunks_of_k,
    cut,
    doubled,
    evened,
    in_chunks,
    is_tiny,
    outer_columns_as_batch,
    part,
    swept_windows,
)
from ....kernel.contract.im2col import View, steady, view
from ..conv.direct import most_pieces, table_bytes
from ..conv.view_args import lots, seen_numbers
from ..llvm.emitter import scalar_type
from ..loops.function import Numbers
from ..target import Target
from .microkernel import MASKS, Registers
from .pack import Side, read, side
from .skinny import DEPTH as NARROW_DEPTH
from .skinny import MOST
from .tile import WAYS

FEW_STEPS = 64  # of k that are worth lanes of their own
LINED_ROWS = 32  # rows that do not pay for turning what they are multiplied with
FEW_LINES = 16  # rows that columns along k need not be turned for
MANY_STEPS = 2048  # of k that lie apart
FEW_DOTS = 64  # columns of a vector's product that keep threads busy
FEW_SUMS = 64  # columns of windows along k that are summed without packing
SOME_SUMS = 16  # of a tile where there are more: little is to be known, and it serves all tiles
LONG_SUMS = 1 << 24  # masks of their lanes that are not worth keeping
NEXT_BLOCK = (("next block", "left"), ("next block", "right"))  # names of numbers
NEXT_TILE = ("next tile", "right")
FEW_BYTES = 4  # rows that sweep over windows of bytes: for more it pays to put them into fours
LONG_DOTS = 1 << 20  # products of numbers from which that matters


def byte_sums(c: Contraction, target: Target) -> str:
    """The signs of the factors (u or s) where an instruction sums products of bytes, or nothing."""
    if {"avx512": "avx512_vnni", "avx2": "avx_vnni"}.get(target.vectors) not in target.features:
        return ""
    if accumulated(c.fold.dtype) is not int32 or not all(r.op is CAST for r in (c.left, c.right)):
        return ""
    signs = "".join([{int8: "s", uint8: "u"}.get(r.src[0].dtype, "?") for r in (c.left, c.right)])
    return signs if signs in ("us", "su", "ss") else ""


def accumulated(dtype: DType) -> DType:
    """The dtype that sums are kept in; whole numbers wrap, so wider ones are as good."""
    if dtype.kind == "f":
        return float64 if dtype is float64 else float32
    return int64 if dtype.bits == 64 else int32


def is_low(c: Contraction) -> bool:
    """Is there one row, or a few of few steps of k, so that nothing is worth packing?"""
    return c.count(c.rows) <= FEW and (not c.rows or c.count(c.folded) <= SWEPT_DEPTH)


def is_view(c: Contraction) -> bool:
    """Is each factor a load, and the right one more than memory as it is?"""
    both = [read(c, root).op is LOAD for root in (c.left, c.right)]
    return all(both) and not side(c, "right").memory


class Product:
    """The numbers of one contraction."""

    def __init__(self, c: Contraction, dtypes: Sequence[DType], registers: Registers) -> None:
        self.dtypes, self.registers, self.target = dtypes, registers, registers.target
        self.inner = scalar_type(registers.dtype)
        self.size, self.is_vector = registers.dtype.itemsize, not c.rows
        left, whole = side(c, "left"), c
        if (self.as_it_is(left) and left.straight) or (is_view(c) and is_low(c)):
            c = outer_columns_as_batch(c)
        self.c, self.images = c, c is not whole  # are there several, each a product of its own?
        self.left, self.right = side(c, "left"), side(c, "right")
        self.right = replace(self.right, lined=self.can_line(c))
        self.views = {s.name: view(s.part, s.root, s.own) for s in (self.left, self.right)}
        self.swept = self.is_swept()
        self.windowed = self.swept or (bool(c.rows) and self.is_windowed())
        self.dot = bool(registers.dot) and not self.swept
        if self.dot and not self.windowed:
            self.left, self.right = side(c, "left", True), side(c, "right", True)
        if self.swept:
            self.left = replace(self.left, along="folded")
            self.right = replace(self.right, along="folded" if self.sums_lanes else "own")
        elif self.windowed:
            self.left, self.right = self.straightened(self.left), self.straightened(self.right)
        self.above = part(c, c.stores, c.fold)
        self.runs = len(self.above.columns.axes)  # of results that lie apart, if more than 1
        if self.windowed:
            self.c, self.above = steady(c, self.above)
            c = self.c
        self.numbers = Numbers(c.order)
        self.batch, self.rows = c.count(c.batch), c.count(c.rows)
        self.columns, self.steps = c.count(c.columns), c.count(c.folded)
        self.depth = -(-self.steps // 4) if self.dot else self.steps
        self.direct = self.is_direct()
        self.cut = self.choose()

    def choose(self) -> Cut:
        r = self.registers
        if self.swept and self.sums_lanes:
            sizes = self.swept_columns or 1, self.depth, self.depth, self.depth
            return Cut("plain", "swept", 1, *sizes, self.direct)
        if self.swept:
            steps = self.swept_steps or 1
            return swept_windows(self.batch, self.rows, self.columns, steps, self.direct)
        left, right = [self.as_it_is(s) for s in (self.left, self.right)]
        if not self.left.straight and (self.rows * self.size > NEAR or self.depth >= MANY_STEPS):
            left = False  # steps of k are too far apart, or too many share places of a cache
        right = right and self.readable
        few = FEW_LINES if self.depth < NARROW_DEPTH else 2 * FEW_LINES
        narrow = self.columns <= MOST < self.rows or (self.columns_along_k and self.rows <= few)
        narrow = (narrow and self.depth >= FEW_STEPS) or self.along_lanes
        narrow = narrow and self.rows_along_k
        shape = Block(r.height, r.panel, self.target.lanes, self.size)
        found = cut(
            self.batch,
            self.rows,
            self.columns,
            self.depth,
            shape,
            (left, right),
            self.direct,
            not self.dotted,
            self.right.lined,
            self.as_it_is(self.left) and not self.left.straight,
            self.fine,
        )
        both = self.as_it_is(self.left) and self.as_it_is(self.right)
        if self.batch == 1 and (both or r.dot):
            found = doubled(found, self.rows, self.columns, self.depth, shape)
        if self.dotted:  # a vector that is packed is packed in longer blocks than rows are
            steps = -(-self.depth // shape.lanes) * shape.lanes
            steps = steps if found.left == "plain" else min(LANED, steps)
            deep = steps + shape.lanes
            found = replace(found, right="plain", rows=1, block=steps, depth=deep, stride=deep)
        if narrow and found.left == "plain":
            chunks = 1
            if found.chunks > 1:
                sizes = self.batch, self.rows, self.columns, self.depth
                chunks = chunks_of_k(*sizes, NARROW_DEPTH)
            found = replace(found, right="narrow", block=NARROW_DEPTH, chunks=chunks)
        elif self.lent and self.fine and is_tiny(self.rows, self.columns, self.depth):
            chunks = in_chunks(-(-self.depth // found.block), 2)
            found = replace(found, chunks=max(chunks, found.chunks))
        if self.lent and self.batch == 1 and self.target.lanes == r.width and r.most > r.vectors:
            found = evened(found, self.columns, shape, r.most)
        return found

    @property
    def fine(self) -> bool:
        """Are a small product's sums in several chunks: alone, or where libraries sum along k?

        In a batch each chunk costs as much as the product, and libraries have one chain as well.
        """
        return self.batch == 1 or self.left.along == self.right.along == "folded"

    @property
    def along_lanes(self) -> bool:
        """Is it a small product that is summed along lanes of k, as libraries do?"""
        return self.columns_along_k and is_tiny(self.rows, self.columns, self.depth)

    @property
    def readable(self) -> bool:
        """Can a microkernel read the right factor where it is, if its size allows?"""
        lies = self.right.straight and self.target.vectors in MASKS
        return lies and self.as_it_is(self.right)

    @property
    def rows_along_k(self) -> bool:
        """Could lanes run along k, if the columns are few?"""
        return self.lent and self.left.straight and self.target.vectors in MASKS

    @property
    def columns_along_k(self) -> bool:
        """Does memory have the columns along k as well?"""
        return self.right.along == "folded" and self.as_it_is(self.right)

    @property
    def dotted(self) -> bool:
        """Is it a vector times columns that lie along k?"""
        return not self.c.rows and not self.right.straight

    def can_line(self, c: Contraction) -> bool:
        """Can both factors be rows of k, where few rows do not pay for turning the columns?"""
        if self.registers.dot or self.target.vectors not in MASKS or not c.rows:
            return False
        lies = self.left.straight and self.right.along == "folded"
        few = c.count(c.rows) <= LINED_ROWS and c.count(c.folded) >= LINED
        return lies and few and not self.as_it_is(self.right)

    @property
    def sums_bytes(self) -> bool:
        """Can bytes be packed by fours, where they are? Runs of columns that begin anywhere cannot,
        but for the library."""
        whole = bool(self.c.rows) and len(self.right.own.axes) == 1
        return self.windowed or whole or not self.registers.dot

    def takes_a_vector(self) -> bool:
        """Is a vector's product worth tiles: memory as it is, and enough columns?"""
        if self.target.vectors not in MASKS or not self.as_it_is(self.right):
            return False
        if self.batch * self.columns < FEW_DOTS and self.columns * self.steps >= LONG_DOTS:
            return False
        return self.left.along == "folded" and self.left.straight

    def is_direct(self) -> bool:
        """Can sums be kept where results go: is it one piece of memory with rows in it?"""
        above = self.above
        if not self.can_be_direct or len(above.rows.axes) != 1 or self.runs != 1:
            return False
        return above.rows.axes[0] in dict(self.c.stores[0].arg[1][1])

    @property
    def can_be_direct(self) -> bool:
        """Are results memory of the sums' own kind, next to each other, and read by nobody?"""
        store, above = self.c.stores[0], self.above
        number, index = store.arg[:2]
        if len(self.c.stores) > 1 or self.target.vectors not in MASKS or not above.columns.axes:
            return False
        if self.dtypes[number] is not self.registers.dtype or self.c.fold.dtype.is_small_float:
            return False
        if not all(isinstance(atom, int) for atom, _ in index[1]):
            return False
        # results may take the place of an operand that is read where they are written
        read = [n for n in above.nodes if n.op is LOAD and n.arg[1] == index]
        return not read and dict(index[1]).get(above.columns.axes[-1]) == 1

    def as_it_is(self, s: Side) -> bool:
        """Is a factor memory that is multiplied where it lies: of what is accumulated in, but for
        the functions of vectors, which convert what they read?"""
        if self.registers.dot or not s.memory:
            return False
        dtype = self.dtypes[s.root.arg[0]]
        return self.is_own(dtype) or (self.is_vector and dtype.kind in "iuf")

    @property
    def memories(self) -> tuple[DType, DType]:
        """The dtypes of both factors as functions of the library read them."""
        return self.memory_of(self.left), self.memory_of(self.right)

    def memory_of(self, s: Side) -> DType:
        """The dtype of a factor's memory if it is read there, else what it is packed in."""
        if not self.windowed and not self.as_it_is(s):
            return self.registers.dtype
        dtype = self.dtypes[s.root.arg[0]]
        return self.registers.dtype if self.is_own(dtype) else dtype

    def is_own(self, dtype: DType) -> bool:
        """Is memory of a dtype what is accumulated in?"""
        same = dtype.bits == self.registers.dtype.bits and not dtype.is_small_float
        return same and dtype.kind in "fiu" and scalar_type(dtype) == self.inner

    # --- windows ---------------------------------------------------------------------------------

    def is_windowed(self) -> bool:
        """Is a factor seen through windows, and are both memory that the library can pack?"""
        both = all(self.as_it_is(s) for s in (self.left, self.right))
        if (both and not self.images) or None in self.views.values():
            return False
        roots = [s.root for s in (self.left, self.right)]
        return all(self.dtypes[root.arg[0]].kind in "iuf" for root in roots)

    def is_swept(self) -> bool:
        """Do a few rows sweep over windows of memory?"""
        left = self.views["left"]
        if left is None or not self.is_windowed() or any(c.asks for c in left.conditions):
            return False
        if self.registers.dot and (self.c.count(self.c.rows) > FEW_BYTES or self.right.memory):
            return False
        if self.sums_lanes:
            return True
        rows = [step for size, step in left.own if size > 1]
        wide = self.c.count(self.c.columns) >= self.target.lanes
        return len(rows) <= 1 and is_low(self.c) and wide and self.swept_steps is not None

    @property
    def sums_lanes(self) -> bool:
        """Is it a vector times windows along k that memory has next to each other in both, of which
        no piece of the right one is several of the left one?"""
        left, right = self.views["left"], self.views["right"]
        if self.c.rows or left is None or right is None:
            return False
        columns, depth = self.swept_columns, self.c.count(self.c.folded)
        if columns is None or depth * columns > LONG_SUMS:
            return False
        run, parts = left.folded[-1][0], [size for size, _ in left.folded if size > 1]
        if left.step("folded") != 1 or run % right.folded[-1][0] or len(parts) > 2:
            return False
        return len(parts) < 2 or right.place(run) != run * right.step("folded")

    @property
    def swept_columns(self) -> int | None:
        """Columns of a tile where lanes run along k: tiles share what is known of them."""
        right, columns = self.views["right"], self.c.count(self.c.columns)
        if right is None or columns <= FEW_SUMS:
            return None if right is None else columns
        return right.block("own", SOME_SUMS) or right.block("own", FEW_SUMS)

    @property
    def swept_steps(self) -> int | None:
        """Steps of k that are swept over at once: their products are one sum, and what is known of
        them is known of all such blocks."""
        left, right = self.views["left"], self.views["right"]
        found = None if right is None else right.block("folded", SWEPT_DEPTH)
        if left is None or found is None or found == self.c.count(self.c.folded):
            return found
        several = [size for size, _ in left.folded if size > 1]
        return found if found % prod(several[1:]) == 0 else None

    def near(self, s: Side, along: str) -> bool:
        """Are neighbours along a line of a view neighbours in memory?"""
        found = self.views[s.name]
        return found is not None and found.step(along) == 1

    def straightened(self, s: Side) -> Side:
        """A side that is not turned where that would not read neighbours."""
        if s.straight or self.near(s, s.along):
            return s
        return replace(s, along="own" if s.along == "folded" else "folded")

    def seen(self, s: Side, v: View) -> dict[Hashable, int]:
        """The numbers of a factor that is seen through windows."""
        shape = "rows" if s.name == "left" or s.lined else "flat" if self.flat else "panels"
        bytes_ = 4 if self.dot else 1  # of a number that is packed, where places are bytes
        across = self.registers.panel if shape == "panels" else self.apart(s) * bytes_
        near, lanes = self.near(s, s.along), self.target.lanes
        panel = self.registers.panel
        memory = self.memories[s.name == "right"]
        kinds = lots(self.registers, self.memories)
        lot = 0 if self.registers.dot else kinds.index(memory)
        flipped = 128 if self.registers.dot == "ss" and s.name == "left" else 0
        sizes = near, panel, lanes, across
        return seen_numbers(v, s.along, shape, *sizes, self.swept, lot, flipped)

    @property
    def swept_pieces(self) -> int:
        """Pieces of memory that a tile of columns is at most, where windows are swept over it."""
        found = self.views["right"]
        if not self.swept or found is None:
            return 0
        if self.sums_lanes:
            return most_pieces(self.depth, found.folded[-1][0], self.target.lanes)
        return most_pieces(self.cut.columns, found.own[-1][0], self.target.lanes)

    @property
    def swept_bytes(self) -> int:
        """Bytes of what is known of each of these tiles."""
        steps = self.cut.columns if self.sums_lanes else self.cut.block
        return table_bytes(self.swept_pieces, steps) if self.swept else 0

    # --- numbers ---------------------------------------------------------------------------------

    @property
    def tall(self) -> int:
        return -(-self.rows // self.cut.rows)

    @property
    def wide(self) -> int:
        return self.cut.tiles or -(-self.columns // self.cut.columns)

    def stretch(self) -> dict[Hashable, int]:
        """Where the tiles of columns begin: `each` of a `unit` after the other, `over` a number."""
        if not self.cut.tiles:
            return {"each": self.cut.columns, "over": 1, "unit": 1}
        lanes = self.target.lanes
        return {"each": -(-self.columns // lanes), "over": self.cut.tiles, "unit": lanes}

    @property
    def blocks(self) -> int:
        return -(-self.depth // self.cut.block)

    @property
    def share(self) -> int:
        """Blocks of k in one chunk."""
        return -(-self.blocks // self.cut.chunks)

    @property
    def tiles(self) -> int:
        """Tiles of all results."""
        return self.batch * self.tall * self.wide

    @property
    def flat(self) -> bool:
        """Is the right factor packed as rows? Few rows of the left one do not pay for panels."""
        straight = self.right.straight and not self.registers.dot
        few = self.rows <= FEW and self.target.vectors in MASKS
        if self.as_it_is(self.right) or self.right.lined:
            return False
        few = few and (not self.windowed or self.near(self.right, "own"))
        return self.cut.right == "own" and straight and few

    @property
    def kept(self) -> bool:
        """Can the first rows of a tile pack its columns while they are multiplied?"""
        last = self.rows - (self.tall - 1) * self.cut.rows  # rows of the lowest tile
        lies = self.lent and self.right.straight and self.registers.assembled
        return lies and last >= self.registers.height

    @property
    def lent(self) -> bool:
        """Are both factors memory as it is, so that the library has all but the epilogue?"""
        both = self.as_it_is(self.left) and self.as_it_is(self.right)
        return bool(self.c.rows) and both and not self.images

    def way(self, name: str) -> str:
        return self.cut.left if name == "left" else self.cut.right

    def count_of(self, name: str) -> int:
        return self.rows if name == "left" else self.columns

    def table(self) -> dict[Hashable, int]:
        """The numbers that functions of the library read."""
        cut_ = self.cut
        found: dict[Hashable, int] = {
            "blocks": self.blocks, "depth": self.depth, "block of k": cut_.block,
            "deep": cut_.depth, "tile numbers": (cut_.rows + self.target.lanes) * cut_.stride,
            "before right": self.before_right(), "workspace": len(self.dtypes), "steps": self.steps,
            "pieces": self.swept_pieces, "bytes": self.swept_bytes if self.tables > 1 else 0,
            **self.next_ones(), **self.panels(),
            **self.stretch(),
        }  # fmt: skip
        scratch = cut_.scratch(self.target.lanes)
        for number, s in enumerate((self.left, self.right)):
            steps = dict(s.root.arg[1][1])
            own, k = self.lies(s)
            wide, tall = self.pieces(s)
            used = self.strides(s)
            batch = s.part.batch.axes
            values = {
                "all": self.count_of(s.name), "tile": (cut_.rows, cut_.columns)[number],
                "way": WAYS.index(self.road(s)), "from own": own, "from k": k,
                "apart": own if s.along == "folded" else k, "own": used[0], "k": used[1],
                "numbers": self.block_numbers(s.name), "scratch": scratch[number], "piece": wide,
                "pieces": -(-self.count_of(s.name) // wide), "high": tall,
                "chunks": cut_.block // tall, "packed": self.apart(s),
                "of a product": self.count_of_pieces(s),
                "next product": steps.get(batch[0], 0) if len(batch) == 1 else 0,
                "param": s.root.arg[0], "start": s.root.arg[1][0],
            }  # fmt: skip
            found |= {(name, s.name): value for name, value in values.items()}
            seen = self.views[s.name]
            if self.windowed and seen is not None:
                found |= {(name, s.name): value for name, value in self.seen(s, seen).items()}
        return found

    @property
    def tables(self) -> int:
        """How many tables of what is known of a tile there are, where windows are swept over."""
        return 0 if not self.swept else 1 if self.sums_lanes else self.wide

    def next_ones(self) -> dict[Hashable, int]:
        """How far factors move from one block of k, or from one tile of columns, to the next."""
        left, right = self.views["left"], self.views["right"]
        if not self.swept or left is None or right is None:
            return dict.fromkeys((*NEXT_BLOCK, NEXT_TILE), 0)
        block = 0 if self.sums_lanes else self.cut.block
        tile = right.place(self.cut.columns, "own") if self.sums_lanes else 0
        moves = [v.place(block) for v in (left, right)]
        return dict(zip((*NEXT_BLOCK, NEXT_TILE), (*moves, tile), strict=True))

    def road(self, s: Side) -> str:
        """The way of a factor as the library tells them apart."""
        if s.name == "right" and self.way("right") == "own":
            return "lined" if s.lined else "flat" if self.flat else "kept" if self.kept else "own"
        return self.way(s.name)

    def apart(self, s: Side) -> int:
        """The stride that a factor is packed with: of rows of k or of columns, or of panels."""
        if self.road(s) == "flat":
            return self.cut.columns
        return self.cut.stride if s.name == "left" or s.lined else self.cut.depth

    def pieces(self, s: Side) -> tuple[int, int]:
        """What one unit packs: how many of a factor's own places, and how much of k."""
        if s.name == "left":
            return self.cut.rows, self.cut.block
        if s.straight and not self.windowed:  # along whole rows of memory, a few at a time
            panels = -(-self.columns // self.registers.panel)
            return panels * self.registers.panel, gcd(32, self.cut.block)
        return self.cut.columns, self.cut.block

    def count_of_pieces(self, s: Side) -> int:
        """How many pieces one product's factor is packed in."""
        wide, tall = self.pieces(s)
        return -(-self.count_of(s.name) // wide) * self.blocks * (self.cut.block // tall)

    def before_right(self) -> int:
        """Numbers in the workspace before those of the right factor."""
        if self.cut.left != "shared":
            return 0
        return self.batch * self.blocks * self.block_numbers("left")

    def before_sums(self) -> int:
        """Numbers in the workspace before the sums of chunks."""
        shared = self.cut.right == "shared"
        right = self.batch * self.blocks * self.block_numbers("right") if shared else 0
        return self.before_right() + right

    def block_numbers(self, name: str) -> int:
        """How many numbers one block of k of a whole shared factor has."""
        if name == "left":
            return self.tall * (self.cut.rows + self.target.lanes) * self.cut.stride
        panel = self.registers.panel
        return -(-self.columns // panel) * panel * self.cut.depth

    def strides(self, s: Side) -> tuple[int, int]:
        """The strides of a factor that is memory as it is, on the way that it goes."""
        road = self.road(s)
        if road not in ("plain", "kept"):
            if s.name == "left" or road == "lined":
                return self.cut.stride, 1
            if road == "flat":
                return 1, self.cut.columns
            return self.cut.depth, self.registers.panel
        return self.lies(s)

    def lies(self, s: Side) -> tuple[int, int]:
        """The steps of memory as it is along both lines; 0 where there is nothing of the kind."""
        steps = dict(s.root.arg[1][1])
        if not self.as_it_is(s):
            return 0, 0
        own, folded = [steps[line.axes[0]] if line.axes else 0 for line in (s.own, s.part.folded)]
        return own, folded

    def panels(self) -> dict[Hashable, int]:
        """Columns of a panel, and of the last one at most: nearly equal where nothing is packed."""
        r = self.registers
        most = r.most if self.rows <= r.height * 2 // 3 or self.rows > r.height else r.vectors
        if not self.flat and self.cut.right != "plain":
            return {"wide": r.panel, "reach": most * r.width}
        vectors = -(-min(self.columns, self.cut.columns) // r.width)
        each = -(-vectors // -(-vectors // most))
        if vectors > most > r.vectors and vectors % most not in (0, r.vectors):
            each = r.vectors
        return {"wide": each * r.width, "reach": most * r.width}
