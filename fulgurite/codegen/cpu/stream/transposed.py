"""Transposed accumulators (dK, dV): results of N x D, summed over the rows of all tiles.

In: a problem some of whose sums run over M. Out: further lines, and a function more. A unit owns a
part of the rows of one batch element and streams its tiles one after the other. The weights of
every block, transposed, times values of the tile's rows are added to sums in the workspace, which
begin as zeros; the last launch adds up the sums of all parts in order and stores what is computed
from them. How many parts there are follows from sizes, so the order of all sums does too.
"""

from __future__ import annotations

from collections.abc import Callable

from ....kernel.contract.problem import part as part_of
from ....kernel.contract.summation import is_tiny
from ...common.api import Launch
from ..gemm.pack import Span, side
from ..llvm.emitter import Val
from ..spelling import combine
from .operands import Operands, PanelCall, PanelGemm
from .outputs import column_invariant
from .tile import Launched, Tile
from .weights import WeightTiles


class TransposedProducts:
    """Transposed weights times values of the rows of a tile."""

    def __init__(
        self, tile: Tile, operands: Operands, gemm: PanelGemm, weights: WeightTiles
    ) -> None:
        self.tile, self.operands, self.gemm = tile, operands, gemm
        problem = tile.problem
        self.sums = problem.transposed
        self.names = weights.names[len(problem.weighted) : len(problem.all_weighted)]
        self.values = [side(w.contraction, "right") for w in self.sums]
        self.near = [
            operands.is_near(s, w.width) for s, w in zip(self.values, self.sums, strict=True)
        ]  # can microkernels read the values of rows where they are?

    def width(self, number: int) -> int:
        """Numbers from one row of sums to the next: whole vectors."""
        return -(-self.sums[number].width // self.tile.lanes) * self.tile.lanes

    def columns(self, number: int) -> str:
        """How many columns a sum has."""
        return self.tile.f.number(("crossed columns", number), self.sums[number].width)

    def packed_depth(self) -> str:
        """Rows of a packed panel."""
        return self.tile.f.number("crossed deep", self.tile.plan.tile_m + self.tile.lanes)

    def reserve(self, number: int) -> None:
        """Values of rows that must be packed."""
        if not self.near[number]:
            tile, panel = self.tile, self.tile.registers.panel
            columns = -(-self.sums[number].width // panel) * panel
            tile.reserve(f"crossed{number}", columns * (tile.plan.tile_m + tile.lanes))

    def begin(self) -> None:
        """Values of the rows of a tile are packed, where microkernels do not read them."""
        tile, operands = self.tile, self.operands
        for number, s in enumerate(self.values):
            if not self.near[number]:
                deep, columns = self.packed_depth(), self.columns(number)
                operands.open_batch(s)
                span = Span("0", columns, tile.top, tile.count)
                operands.pack(s, span, tile.f.read[f"crossed{number}"], deep)

    def multiply(self, number: int, sums: str, stride: str, first: str) -> None:
        """Transposed weights times values, into rows of sums so far apart."""
        tile, f, problem, s = self.tile, self.tile.f, self.tile.problem, self.values[number]
        columns, weights = self.columns(number), f.read[self.names[number]]
        near, deep = self.near[number], self.packed_depth()
        right, panel_stride = f.read.get(f"crossed{number}", ""), str(tile.registers.panel)
        if near:
            self.operands.open_batch(s)
            right, panel_stride = self.operands.where(s, "0", tile.top)
        few = is_tiny(problem.n, self.sums[number].width, problem.m)

        def panel(column: str, many: str) -> None:
            at = tile.element(right, column if near else f.mul(column, deep))
            ahead = None if near else tile.element(at, f.mul(deep, panel_stride))
            to = tile.element(sums, column), stride
            call = PanelCall(
                (weights, tile.stride, "1"), (at, panel_stride), to, tile.count, tile.deep, many,
                first, ahead,
            )  # fmt: skip
            self.gemm.multiply_in_pieces(call, few)

        (self.gemm.even_panels if near else self.gemm.packed_panels)(columns, panel)


class TransposedAccumulator:
    """Transposed sums of one pass: every part of M has its own in the workspace."""

    memory: list[str]  # where the sums of this unit are

    def __init__(self, tile: Tile, products: TransposedProducts) -> None:
        self.tile, self.products, self.sums = tile, products, tile.problem.transposed
        self.numbers = range(len(self.sums))
        self.units = tile.problem.batch * tile.plan.m_parts
        for number in self.numbers:
            tile.workspace.allocate(("crossed", number), self.units * self.sum_numbers(number))

    def sum_numbers(self, number: int) -> int:
        """Numbers of the sums of one unit."""
        return self.tile.problem.n * self.products.width(number)

    def sums_of(self, number: int, unit: str) -> str:
        """Where the sums of a unit are."""
        tile, f = self.tile, self.tile.f
        first = f.number(("crossed at", number), tile.workspace.at["crossed", number])
        each = f.number(("crossed numbers", number), self.sum_numbers(number))
        workspace = f.pointer(len(tile.dtypes))
        return tile.element(workspace, f.add(first, f.mul(unit, each)))

    def reserve(self) -> None:
        """Values of rows that must be packed."""
        for number in self.numbers:
            self.products.reserve(number)

    def each_tile(self, unit: str, body: Callable[[str], None]) -> None:
        """All tiles of a part of M: every so many, so that all parts have as much to do."""
        tile, f = self.tile, self.tile.f
        tall, parts = f.number("tall", tile.m_tiles), f.number("row parts", tile.plan.m_parts)
        part, at = f.divided(unit, f.number("batch", tile.problem.batch))
        self.memory = [self.sums_of(number, unit) for number in self.numbers]
        for number, memory in enumerate(self.memory):
            count = f.number(("crossed numbers", number), self.sum_numbers(number))
            tile.fill_zeros(memory, count)
        first = f.mul(at, tall)
        count, _ = f.divided(f.sub(f.add(tall, f.sub(parts, part)), "1"), parts)

        def turn(number: str) -> None:
            f.scope(lambda: body(f.add(first, f.add(f.mul(number, parts), part))))

        tile.loop("0", count, 1, turn)

    def emit(self) -> None:
        """What a block adds."""
        tile, f = self.tile, self.tile.f
        for number in self.numbers:
            width = f.number(("crossed width", number), self.products.width(number))
            sums = tile.element(self.memory[number], f.mul(tile.k, width))
            self.products.multiply(number, sums, width, "false")

    def functions(self) -> list[Launched]:
        """What adds up the sums of parts and stores results."""
        tile, problem = self.tile, self.tile.problem
        f = tile.new_function("kernel_crossed")
        tile.prepare(lambda: None)
        pieces = -(-problem.n // tile.tiling.merge_rows)

        def unit(index: str) -> None:
            tile.at, piece = f.divided(index, f.number("crossed pieces", pieces))
            for number in self.numbers:
                tile.scoped(self.store, number, piece)

        tile.each_unit(unit)
        numbers = self.units * sum([self.sum_numbers(n) for n in self.numbers])
        return [(f, Launch(f.symbol, problem.batch * pieces, 2 * numbers))]

    def store(self, number: int, piece: str) -> None:
        """Some rows of results of one sum."""
        tile, f, w = self.tile, self.tile.f, self.sums[number]
        problem, c = tile.problem, w.contraction
        store, rows = problem.streaming.across[number], str(tile.tiling.merge_rows)
        part = f.part = part_of(c, [store], w.state.fold)
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        top = f.mul(piece, rows)
        count = f.least(rows, f.sub(f.number("length", problem.n), top))
        width = f.number(("crossed width", number), self.products.width(number))
        columns = self.products.columns(number)
        each = f.mul(
            f.number("batch", problem.batch),
            f.number(("crossed numbers", number), self.sum_numbers(number)),
        )
        memory = self.sums_of(number, tile.at)
        fixed = column_invariant(problem, part, [store], c.columns, [w.state.fold])

        def total(place: str) -> Val:
            def more(number: str, sums: list[str]) -> list[str]:
                found = tile.load(memory, f.add(f.mul(number, each), place))
                return [combine(f.e, "add", Val(sums[0], tile.dtype, True), found).text]

            first = tile.load(memory, place)
            if tile.plan.m_parts == 1:
                return first
            parts = f.number("row parts", tile.plan.m_parts)
            (found,) = f.e.loop("1", parts, 1, [(tile.vector, first.text)], more)
            return Val(found, tile.dtype, True)

        def row(r: str) -> None:
            line = f.mul(f.add(top, r), width)

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    f.scopes[-1][w.state.fold] = total(f.add(line, f.add(offset, step)))
                    f.store(store, f.value(store.src[0]))

                f.lanes(part.columns.axes[-1], first, last, fixed, vector)

            f.runs(part.columns, f.coordinates(part.columns, "0"), columns, run)

        f.walk(part.rows, f.coordinates(part.rows, top), count, row)
