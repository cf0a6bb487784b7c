"""Lanes along M: score tiles with a line for each streamed element and rows side by side.

In: a problem and its plan. Out: lines. Queries are packed once for a tile; for every block of N the
score products are computed by the library's microkernels as S^T = K Q^T, so that vector lanes are
rows and nothing is reduced across lanes. Keys are read where they are if their memory is contiguous
along the depth, else packed a block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.node import Node
from ....kernel.contract.analysis import Part
from ....kernel.contract.problem import Operand
from ....kernel.contract.summation import ORDER
from ....kernel.stream.roles import ScoreProduct
from ..gemm.pack import Span, side
from .block_update import BlockUpdate
from .operands import Operands, PanelCall, PanelGemm
from .tile import Launched, Tile


class RowMajorProducts:
    """Score products S^T, and loads of M x N that are transposed to lie like them."""

    def __init__(
        self, tile: Tile, operands: Operands, gemm: PanelGemm, keys: Sequence[Operand] = ()
    ) -> None:
        self.tile, self.operands, self.gemm = tile, operands, gemm
        self.products = tile.problem.products
        self.keys = list(keys) or [side(p.contraction, "left") for p in self.products]
        self.queries = [side(p.contraction, "right") for p in self.products]
        self.loads: list[Node] = [c.left for c in tile.problem.loads_along_n]
        self.tile_numbers = (tile.plan.block_n + tile.lanes) * (tile.plan.tile_m + tile.lanes)

    def functions(self) -> list[Launched]:
        """What runs before all tiles: nothing."""
        return []

    def reserve(self) -> None:
        """Tiles of products, and their operands."""
        self.set_stride(self.tile.plan.tile_m + self.tile.lanes)
        self.reserve_loads()
        for number in range(len(self.products)):
            self.tile.reserve(f"tile{number}", self.tile_numbers)
            self.reserve_operands(number)

    def set_stride(self, numbers: int) -> None:
        """How far apart the lines of a tile are."""
        self.tile.stride = self.tile.f.number("stride", numbers)
        self.tile.weight_strides = ("1", self.tile.stride)

    def reserve_loads(self) -> None:
        """Tiles of loads."""
        for number in range(len(self.loads)):
            self.tile.reserve(f"load{number}", self.tile_numbers)

    def reserve_operands(self, number: int) -> None:
        """Packed queries and keys."""
        tile, plan, operands, p = self.tile, self.tile.plan, self.operands, self.products[number]
        blocks = operands.depth_blocks(p) if plan.resident[number] else 1
        tile.reserve(f"queries{number}", blocks * self.query_numbers(p))
        if self.keys[number] in operands.packed or not operands.is_plain(self.keys[number]):
            numbers = (plan.block_n + tile.lanes) * operands.packed_numbers(p)
            tile.reserve(f"keys{number}", numbers)

    def query_numbers(self, p: ScoreProduct) -> int:
        """Numbers of the packed queries of a tile, for one block of the depth."""
        panel = self.tile.registers.panel
        return -(-self.tile.plan.tile_m // panel) * panel * self.operands.packed_numbers(p)

    def begin(self) -> None:
        """Queries are packed once for a tile."""
        for number in range(len(self.products)):
            if self.tile.plan.resident[number]:
                self.pack_queries(number)

    def pack_queries(self, number: int, only: str | None = None) -> None:
        """The rows of a tile, for the whole depth or for one block of it."""
        tile, operands, f = self.tile, self.operands, self.tile.f
        p, s, memory = self.products[number], self.queries[number], f.read[f"queries{number}"]
        depth = f.number(("depth", number), p.depth)
        each = f.number(("query numbers", number), self.query_numbers(p))
        blocks = operands.depth_blocks(p)

        def pack(b: str, at: str) -> None:
            d = f.mul(b, str(ORDER.block_steps))
            span = Span(tile.top, tile.count, d, f.least(str(ORDER.block_steps), f.sub(depth, d)))
            operands.open_batch(s)
            operands.pack(s, span, at, operands.packed_depth(p))

        if only is not None or blocks == 1:
            pack(only or "0", memory)
        else:
            count = f.number(("blocks", number), blocks)
            tile.loop("0", count, 1, lambda b: pack(b, tile.element(memory, f.mul(b, each))))

    def emit(self, number: int) -> None:
        """A block of a product: a line for each streamed element, a column for each row."""
        tile, operands, f, e = self.tile, self.operands, self.tile.f, self.tile.e
        p, s = self.products[number], self.keys[number]
        queries, scores = f.read[f"queries{number}"], f.read[f"tile{number}"]

        def depth_block(b: str, d: str, many: str) -> None:
            deep, right = operands.packed_depth(p), queries
            if not tile.plan.resident[number]:
                self.pack_queries(number, b)
            else:
                each = f.number(("query numbers", number), self.query_numbers(p))
                right = tile.element(queries, f.mul(b, each)) if b != "0" else queries
            left = operands.left(s, Span(tile.k, tile.deep, d, many), f"keys{number}", p)
            first = "true" if b == "0" else e.let(f"icmp eq i64 {b}, 0")

            def panel(column: str, columns: str) -> None:
                at = tile.element(right, f.mul(column, deep))
                wide = str(tile.registers.panel)
                to = tile.element(scores, column), tile.stride
                ahead = tile.element(at, f.mul(deep, wide))
                call = PanelCall(left, (at, wide), to, many, tile.deep, columns, first, ahead)
                self.gemm.multiply_scores(p, call)

            self.gemm.packed_panels(tile.count, panel)

        operands.each_depth_block(number, depth_block)

    def emit_all(self) -> None:
        """A block of all products, and of loads."""
        for number in range(len(self.products)):
            self.emit(number)
        self.transpose_loads()

    def transpose_loads(self) -> None:
        """Loads that are contiguous along N, as lines of a tile."""
        tile, operands = self.tile, self.operands
        for number, c in enumerate(tile.problem.loads_along_n):
            s = side(c, "left")
            operands.open_batch(s)
            span = Span(tile.k, tile.deep, tile.top, tile.count)
            operands.pack(s, span, tile.f.read[f"load{number}"], tile.stride)


class RowLanesUpdate(BlockUpdate):
    """A walk down the elements of a block, for a vector of rows at a time."""

    is_vector = True

    def emit(self) -> None:
        """All row states, and the weights."""
        tile, f = self.tile, self.tile.f
        part = f.part = self.part()
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        start = f.coordinates(part.rows, tile.top)

        def run(offset: str, first: str, last: str) -> None:
            axis = part.rows.axes[-1]
            f.lanes(axis, first, last, [], lambda step: self.update_rows(f.add(offset, step)))

        f.runs(part.rows, start, tile.count, run)

    def enter(self, part: Part, i: str) -> None:
        f = self.tile.f
        f.opened(part.columns, f.coordinates(part.columns, f.add(self.tile.k, i)))
