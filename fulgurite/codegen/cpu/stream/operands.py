"""Operands of a tile's products: read where they lie, or packed, and handed to GEMM microkernels.

In: factors (`Operand`s of contractions) and pieces of them. Out: lines that pack a factor, or find
where it is in memory, and calls of the library's register blocks, panel by panel. Products so small
that the reference sums them along lanes are summed a few steps at a time, which loses no more
digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ....core.lazy_dataclass import dataclass
from ....kernel.contract.problem import Operand
from ....kernel.contract.summation import ORDER
from ....kernel.stream.roles import ScoreProduct
from ...common.api import Launch
from ..gemm.microkernel import block, transpose
from ..gemm.pack import Packer, Span, Target
from ..tiling import GEMM
from .tile import Launched, Tile

Left = tuple[str, str, str]  # address, strides between rows and between steps of the depth


class Operands:
    """Factors of products, as memory or packed.

    `packed` names factors that a block packs before all else, each with its product: they are read
    from there.
    """

    def __init__(
        self, tile: Tile, packed: Mapping[Operand, tuple[int, Operand]] | None = None
    ) -> None:
        self.tile, self.packed = tile, packed or {}

    def is_plain(self, s: Operand) -> bool:
        """True if microkernels can read a left factor where it is."""
        if s in self.packed:
            return True
        problem = self.tile.problem
        own = problem.sizes[s.own.axes[0]] if s.own.axes else 1
        far = own * problem.dtype.itemsize > GEMM.dense_row_bytes
        return s.is_dense and (not s.is_transposed or not far) and self.has_dtype(s)

    def is_near(self, s: Operand, width: int) -> bool:
        """True if microkernels can read the rows of a right factor where they are."""
        if s in self.packed:
            return True
        row_bytes = width * self.tile.dtype.itemsize
        return self.is_panel(s) and row_bytes <= self.tile.tiling.direct_row_bytes

    def is_panel(self, s: Operand) -> bool:
        """True if a right factor is memory with contiguous columns, any number of them."""
        return s.is_dense and not s.is_transposed and self.tile.has_masks and self.has_dtype(s)

    def has_dtype(self, s: Operand) -> bool:
        """True if the memory of a factor has the dtype of the sums."""
        return self.tile.dtypes[s.root.arg[0]] is self.tile.dtype

    def open_batch(self, s: Operand) -> None:
        """Go to a factor in the batch element of this tile."""
        f = self.tile.f
        f.part = s.part
        f.opened(s.part.batch, f.coordinates(s.part.batch, self.tile.at))

    def where(self, s: Operand, own: str, folded: str) -> tuple[str, str]:
        """Where a plain factor begins, and how far apart its rows are."""
        tile, f = self.tile, self.tile.f
        if s in self.packed:
            number, _ = self.packed[s]
            return f.read[f"keys{number}"], self.packed_depth(tile.problem.products[number])
        f.open[s.own.axes[0]], f.open[s.part.folded.axes[0]] = own, folded
        number, index, _ = s.root.arg
        name = ("at", tile.numbers.position[s.root])
        place = f.index(index, (), name).text
        apart = s.is_transposed != (s.name == "left")  # rows are apart, not steps
        other = s.own.axes[0] if apart else s.part.folded.axes[0]
        steps = [(p, step) for p, (atom, step) in enumerate(index[1]) if atom == other]
        stride = f.number((name, steps[0][0], "step"), steps[0][1]) if steps else "0"
        return tile.element(f.pointer(number), place), stride

    def plain_left(self, s: Operand, own: str, folded: str) -> Left:
        """A left factor as memory: address, strides between rows and between steps."""
        place, stride = self.where(s, own, folded)
        return (place, "1", stride) if s.is_transposed else (place, stride, "1")

    def left(self, s: Operand, span: Span, buffer: str, product: ScoreProduct) -> Left:
        """A left factor of a product, read where it is or packed into a buffer."""
        self.open_batch(s)
        if self.is_plain(s):
            return self.plain_left(s, span.own, span.k)
        memory, deep = self.tile.f.read[buffer], self.packed_depth(product)
        self.pack(s, span, memory, deep)
        return memory, deep, "1"

    def pack(self, s: Operand, span: Span, memory: str, depth: str) -> None:
        """Evaluate a factor into the layout that microkernels read; its batch is open."""
        tile = self.tile
        if s.is_transposed:
            module = transpose(tile.registers)
            tile.modules[module.name] = module
        packer = Packer(tile.f, s, tile.registers, tile.problem.free)
        tile.scoped(packer.pack, span, Target(memory, depth, depth))

    # --- blocks of the depth ---------------------------------------------------------------------

    @staticmethod
    def depth_blocks(p: ScoreProduct) -> int:
        """Blocks of a product's depth, which are packed and summed one after the other."""
        return -(-p.depth // ORDER.block_steps)

    def packed_numbers(self, p: ScoreProduct) -> int:
        """Numbers of one packed row of a block of the depth, with room for a vector."""
        lanes = self.tile.lanes
        return min(ORDER.block_steps, -(-p.depth // lanes) * lanes) + lanes

    def packed_depth(self, p: ScoreProduct) -> str:
        """The same, as it is read at run time."""
        return self.tile.f.number(("deep", self.packed_numbers(p)), self.packed_numbers(p))

    def each_depth_block(self, number: int, body: Callable[[str, str, str], None]) -> None:
        """Run `body(block, its first step, how many steps)` for the blocks of a depth."""
        tile, f = self.tile, self.tile.f
        p = tile.problem.products[number]
        depth, _ = f.number(("depth", number), p.depth), self.packed_depth(p)
        blocks = self.depth_blocks(p)

        def turn(b: str) -> None:
            f.scopes.append({})
            d = f.mul(b, str(ORDER.block_steps))
            body(b, d, f.least(str(ORDER.block_steps), f.sub(depth, d)))
            f.scopes.pop()

        if blocks == 1:
            turn("0")
        else:
            tile.loop("0", f.number(("blocks", number), blocks), 1, turn)


class SharedOperand:
    """An operand that is packed once for all tiles, into the workspace: a block of N at a time."""

    def __init__(
        self, operands: Operands, s: Operand, name: str, number: int, numbers: int,
        depth_blocks: int = 0,
    ) -> None:  # fmt: skip
        self.tile, self.operands, self.s = operands.tile, operands, s
        self.name, self.number, self.numbers = name, number, numbers  # of one packed block
        self.depth_blocks = depth_blocks  # of the depth of each block; 0: it has none
        tile = operands.tile
        self.blocks = tile.problem.batch * tile.n_blocks * max(1, depth_blocks)
        size = self.blocks * numbers * tile.dtype.itemsize
        self.fits = size <= tile.tiling.shared_pack_bytes

    def allocate(self) -> SharedOperand:
        """Take memory for it."""
        name = self.name, self.number
        self.tile.workspace.allocate(name, self.blocks * self.numbers)
        return self

    def at(self, piece: str, b: str = "0") -> str:
        """Where the packed numbers of a block of N, and of a block of the depth, are."""
        tile, f, number = self.tile, self.tile.f, self.number
        place = f.add(f.mul(tile.at, f.number("pieces", tile.n_blocks)), piece)
        if self.depth_blocks:
            place = f.add(f.mul(place, f.number(("blocks", number), self.depth_blocks)), b)
        place = f.mul(place, f.number((self.name, "block", number), self.numbers))
        first = f.number((self.name, "at", number), tile.workspace.at[self.name, number])
        return tile.shared(f.add(place, first))

    def function(
        self, row: int, work: int, span: Callable[[str, str, Callable[[], str]], tuple[Span, str]]
    ) -> Launched:
        """The function that packs it; `span(first of N, first of the depth, count of N)`."""
        tile, problem, operands = self.tile, self.tile.problem, self.operands
        f = tile.new_function(f"kernel_{self.name}{self.number}")
        f.read["row"] = f.number((self.name, "row", self.number), row + tile.lanes)
        length, steps = f.number("length", problem.n), f.number("steps", tile.plan.block_n)
        f.part = self.s.part
        for node in self.s.part.nodes:
            if not problem.free[node]:
                f.value(node)

        def unit(index: str) -> None:
            b = "0"
            if self.depth_blocks:
                index, b = f.divided(index, f.number(("blocks", self.number), self.depth_blocks))
            tile.at, piece = f.divided(index, f.number("pieces", tile.n_blocks))
            k, d = f.mul(piece, steps), f.mul(b, str(ORDER.block_steps))
            memory = self.at(piece, b)
            operands.open_batch(self.s)
            found, depth = span(k, d, lambda: f.least(steps, f.sub(length, k)))
            operands.pack(self.s, found, memory, depth)

        tile.each_unit(unit)
        return f, Launch(f.symbol, self.blocks, 2 * problem.batch * problem.n * work)


@dataclass(frozen=True, slots=True)
class PanelCall:
    """Rows times a panel of columns: the operands of one call of a microkernel."""

    a: Left
    b: tuple[str, str]  # address, stride between steps of the depth
    c: tuple[str, str]  # address, stride between rows
    depth: str
    rows: str
    columns: str
    first: str  # is the sum's old value ignored?
    ahead: str | None  # what is fetched meanwhile, and may be read: the next panel, if there is one


class PanelGemm:
    """Calls of the library's GEMM microkernel."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.group_stride = tile.registers.most * tile.registers.width + tile.lanes

    def multiply(self, p: PanelCall) -> None:
        """Rows times a panel."""
        kinds = "ptr, i64, i64, ptr, i64, ptr, i64, i64, i64, i64, i1, ptr"
        self.tile.invoke(
            block(self.tile.registers), kinds,
            f"ptr {p.a[0]}, i64 {p.a[1]}, i64 {p.a[2]}, ptr {p.b[0]}, i64 {p.b[1]}, ptr {p.c[0]}, "
            f"i64 {p.c[1]}, i64 {p.depth}, i64 {p.rows}, i64 {p.columns}, i1 {p.first}, "
            f"ptr {p.ahead or 'null'}",
        )  # fmt: skip

    def packed_panels(self, columns: str, panel: Callable[[str, str], None]) -> None:
        """Panels that lie one after the other; one vector that is left over joins the last."""
        f, r = self.tile.f, self.tile.registers
        wide, reach = str(r.panel), str(r.most * r.width)

        def turn(number: str) -> None:
            column = f.mul(number, wide)
            panel(column, f.in_panel(f.sub(columns, column), wide, reach))

        self.tile.loop("0", f.panels(columns, wide, reach), 1, turn)

    def even_panels(self, columns: str, panel: Callable[[str, str], None]) -> None:
        """Panels of nearly the same number of vectors: one vector alone leaves units idle."""
        f, r = self.tile.f, self.tile.registers
        vectors, _ = f.divided(f.add(columns, str(r.width - 1)), str(r.width))
        panels = f.panels(vectors, str(r.vectors), str(r.most))
        each, more = f.divided(vectors, panels)

        def turn(number: str) -> None:
            start = f.add(f.mul(number, each), f.least(number, more))
            large = f.e.let(f"icmp slt i64 {number}, {more}")
            count = f.add(each, f.e.let(f"zext i1 {large} to i64"))
            column = f.mul(start, str(r.width))
            panel(column, f.least(f.mul(count, str(r.width)), f.sub(columns, column)))

        self.tile.loop("0", panels, 1, turn)

    # --- products that lose no digits ------------------------------------------------------------

    def is_small(self, product: ScoreProduct) -> bool:
        """True if a score product is summed in pieces."""
        problem, t = self.tile.problem, self.tile.tiling
        steps = problem.m * problem.n * product.depth
        return product.depth > t.exact_steps and steps <= t.exact_products

    def is_deep(self, product: ScoreProduct) -> bool:
        """True if pieces would be too many to be added in a row."""
        return self.is_small(product) and product.depth > self.tile.tiling.exact_group + 32

    def reserve(self) -> None:
        """The sums of a group, for as many rows as a microkernel may have; nothing odd there."""
        tile, plan, problem = self.tile, self.tile.plan, self.tile.problem
        if any(map(self.is_deep, problem.products)):
            rows = min(max(plan.tile_m, plan.block_n), max(problem.m, problem.n)) + tile.lanes
            tile.reserve("group", rows * self.group_stride)
            tile.fill_zeros(tile.f.read["group"], tile.f.read["room", "group"])

    def multiply_scores(self, product: ScoreProduct, p: PanelCall) -> None:
        """Rows times a panel; a small product in pieces, a deep one in groups of them."""
        if self.is_deep(product):
            self.multiply_in_groups(p)
        else:
            self.multiply_in_pieces(p, self.is_small(product))

    def multiply_in_pieces(self, p: PanelCall, pieces: bool = True) -> None:
        """A few steps of the depth at a time, if they are to be summed by themselves."""
        steps = self.tile.tiling.exact_steps
        if not pieces:
            self.multiply(p)
            return
        self.tile.loop(
            "0", p.depth, steps, lambda k: self.multiply(self.advanced(p, k, steps, False))
        )

    def multiply_in_groups(self, p: PanelCall) -> None:
        """Groups of pieces, each in a sum of its own that is added to the others."""
        tile, f, e, kind = self.tile, self.tile.f, self.tile.e, self.tile.vector
        group, apart, steps = f.read["group"], str(self.group_stride), tile.tiling.exact_group

        def turn(k: str) -> None:
            part = self.advanced(p, k, steps, True)
            self.multiply_in_pieces(replace(part, c=(group, apart)))
            begins = self.begins(k, p.first)
            tile.loop("0", p.rows, 1, lambda r: row(r, begins))

        def row(r: str, begins: str) -> None:
            def step(i: str) -> None:
                where = tile.element(p.c[0], f.add(f.mul(r, p.c[1]), i))
                known = e.let(f"load {kind}, ptr {where}, align 4")
                found = tile.load(group, f.add(f.mul(r, apart), i)).text
                both = e.let(f"fadd {kind} {known}, {found}")
                total = e.let(f"select i1 {begins}, {kind} {found}, {kind} {both}")
                e.line(f"store {kind} {total}, ptr {where}, align 4")

            tile.vectors(p.columns, step)

        tile.loop("0", p.depth, steps, turn)

    def advanced(self, p: PanelCall, k: str, steps: int, restarts: bool) -> PanelCall:
        """Some steps of the depth from k on; a sum that restarts ignores what was there."""
        f, element = self.tile.f, self.tile.element
        a = element(p.a[0], f.mul(k, p.a[2])), p.a[1], p.a[2]
        b = element(p.b[0], f.mul(k, p.b[1])), p.b[1]
        depth = f.least(str(steps), f.sub(p.depth, k))
        first = "true" if restarts else self.begins(k, p.first)
        ahead = element(p.ahead, f.mul(k, p.b[1])) if p.ahead else p.ahead
        return replace(p, a=a, b=b, depth=depth, first=first, ahead=ahead)

    def begins(self, k: str, first: str) -> str:
        """True if it is the first step of a first block."""
        begins = self.tile.e.let(f"icmp eq i64 {k}, 0")
        return self.tile.e.let(f"and i1 {begins}, {first}")
