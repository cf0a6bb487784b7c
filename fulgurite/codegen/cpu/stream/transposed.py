"""Crossed sums of a fold: results of streamed elements, summed over the rows of all tiles.

In: a fold some of whose sums run over its rows. Out: further lines, and a phase more. A unit owns a
part of the rows of one batch element and walks its tiles one after the other. The weights of every
block, turned, times values of the tile's rows are added to sums in the workspace, which begin as
zeros; the last phase puts the sums of all parts together in order and stores what is computed from
them. How many parts there are follows from sizes, so the order of all sums does too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dtype import DType
from ....kernel.contract.analysis import is_tiny
from ....kernel.contract.analysis import part as part_of
from ....kernel.stream.roles import Fold, FoldCut
from ...common.api import Phase
from ..gemm.microkernel import Registers, block
from ..gemm.pack import Span, side
from ..gemm.pack import Target as Goal
from ..llvm.emitter import Val
from ..spelling import combine
from .inner_reduce import FoldFrame
from .split import FoldSplit

_ROWS = 64  # of results that the last phase makes at a time


class FoldCross(FoldSplit):
    """A fold with sums over its rows, if it has any."""

    def __init__(
        self, fold: Fold, dtypes: Sequence[DType], registers: Registers, cut: FoldCut
    ) -> None:
        super().__init__(fold, dtypes, registers, cut)
        self.crossed = fold.crossed
        self.over = [side(m.contraction, "right") for m in fold.crossed]

    # --- memory ----------------------------------------------------------------------------------

    @property
    def units(self) -> int:
        """Tiles of results, or parts of rows where others are summed over them."""
        return self.batch * self.cut.parts if self.crossed else super().units

    def part_numbers(self) -> int:
        """Numbers of the sums of all parts."""
        if not self.crossed:
            return super().part_numbers()
        return self.units * sum([self.cross_numbers(n) for n in range(len(self.crossed))])

    def cross_columns(self, number: int) -> int:
        return self.fold.count(self.crossed[number].contraction.columns)

    def cross_width(self, number: int) -> int:
        """Numbers from one row of sums to the next: whole vectors."""
        return -(-self.cross_columns(number) // self.lanes) * self.lanes

    def cross_numbers(self, number: int) -> int:
        """Numbers of the sums of one unit."""
        return self.length * self.cross_width(number)

    def cross_sums(self, number: int, unit: str) -> str:
        """Where the sums of a unit are."""
        f = self.f
        before = sum([self.cross_numbers(n) for n in range(number)]) * self.units
        first = f.number(("crossed at", number), self.parts_at() + before)
        each = f.number(("crossed numbers", number), self.cross_numbers(number))
        return self.element(f.pointer(len(self.dtypes)), f.add(first, f.mul(unit, each)))

    def is_close(self, number: int) -> bool:
        """Can microkernels read the values of rows where they are?"""
        return self.lies_near(self.over[number], self.crossed[number].contraction.columns)

    def reserve(self) -> None:
        """Everything a tile needs, and values of its rows that must be packed."""
        super().reserve()
        panel = self.registers.panel
        for number in range(len(self.crossed)):
            if not self.is_close(number):
                columns = -(-self.cross_columns(number) // panel) * panel
                self.room(f"crossed{number}", columns * (self.cut.rows + self.lanes))

    # --- streaming -------------------------------------------------------------------------------

    def each_tile(self, unit: str, tile: Callable[[str], None]) -> None:
        """All tiles of a part of the rows: every so many, so that all parts have as much to do."""
        if not self.crossed:
            super().each_tile(unit, tile)
            return
        f, e = self.f, self.f.e
        tall, parts = f.number("tall", self.tall), f.number("row parts", self.cut.parts)
        part, at = f.divided(unit, f.number("batch", self.batch))
        self.sums = [self.cross_sums(number, unit) for number in range(len(self.crossed))]
        for number, memory in enumerate(self.sums):
            count = f.number(("crossed numbers", number), self.cross_numbers(number))
            self.fill(memory, count, e.const(0, self.fold.dtype, True))
        first = f.mul(at, tall)
        count, _ = f.divided(f.sub(f.add(tall, f.sub(parts, part)), "1"), parts)

        def turn(number: str, _: list[str]) -> list[str]:
            f.scope(lambda: tile(f.add(first, f.add(f.mul(number, parts), part))))
            return []

        e.loop("0", count, 1, [], turn)

    def ready(self) -> None:
        """Values of rows are packed once for a tile."""
        self.pack_crossed()

    def pack_crossed(self) -> None:
        """Values of the rows of a tile, where microkernels do not read them as they are."""
        f = self.f
        for number, s in enumerate(self.over):
            if not self.is_close(number):
                deep = f.number("crossed deep", self.cut.rows + self.lanes)
                columns = f.number(("crossed columns", number), self.cross_columns(number))
                self.open_batch(s)
                span = Span("0", columns, self.top, self.count)
                goal = Goal(f.read[f"crossed{number}"], deep, deep)
                f.scope(lambda s=s, span=span, goal=goal: self.packer(s).pack(span, goal))  # type: ignore[misc]

    def block(self) -> None:
        """A block of the streamed axis, and what it adds to sums over the rows."""
        super().block()
        for number in range(len(self.crossed)):
            self.add_crossed(number)

    def add_crossed(self, number: int) -> None:
        """Turned weights times values of rows, added to the sums of the streamed elements."""
        f = self.f
        width = f.number(("crossed width", number), self.cross_width(number))
        sums = self.element(self.sums[number], f.mul(self.k, width))
        self.multiply_crossed(number, sums, width, "false")

    def multiply_crossed(self, number: int, sums: str, width: str, first: str) -> None:
        """Turned weights times values of rows, into rows of sums so far apart."""
        f, s = self.f, self.over[number]
        columns = f.number(("crossed columns", number), self.cross_columns(number))
        weights = f.read[self.tiles[len(self.fold.matrices) + number]]
        near, module = self.is_close(number), block(self.registers)
        deep = f.number("crossed deep", self.cut.rows + self.lanes)
        right, stride = f.read.get(f"crossed{number}", ""), str(self.registers.panel)
        if near:
            self.open_batch(s)
            right, stride = self.where(s, "0", self.top)

        few = is_tiny(self.length, self.cross_columns(number), self.rows)

        def panel(column: str, many: str) -> None:
            at = self.element(right, column if near else f.mul(column, deep))
            ahead = "" if near else self.element(at, f.mul(deep, stride))
            self.multiply_by_pieces(
                few, module, (weights, self.stride, "1"), (at, stride),
                (self.element(sums, column), width), (self.count, self.deep, many), first,
                plain=near, ahead=ahead,
            )  # fmt: skip

        (self.evenly if near else self.packed_panels)(columns, panel)

    # --- results ---------------------------------------------------------------------------------

    def after(self) -> list[tuple[FoldFrame, Phase]]:
        """The phase that puts sums of parts together and stores results."""
        if not self.crossed:
            return super().after()
        f = self.f = self.new_frame("kernel_crossed")
        self.prepare(lambda: None)
        pieces = -(-self.length // _ROWS)

        def unit(index: str, _: list[str]) -> list[str]:
            self.at, piece = f.divided(index, f.number("crossed pieces", pieces))
            for number in range(len(self.crossed)):
                f.scope(lambda n=number, piece=piece: self.store_crossed(n, piece))  # type: ignore[misc]
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        return [(f, Phase(f.symbol, self.batch * pieces, 2 * self.part_numbers()))]

    def store_crossed(self, number: int, piece: str) -> None:
        """Some rows of results of one sum."""
        f, m, store = self.f, self.crossed[number], self.fold.streaming.across[number]
        c = m.contraction
        part = f.part = part_of(c, [store], m.state.fold)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        top = f.mul(piece, str(_ROWS))
        count = f.least(str(_ROWS), f.sub(f.number("length", self.length), top))
        width = f.number(("crossed width", number), self.cross_width(number))
        columns = f.number(("crossed columns", number), self.cross_columns(number))
        each = f.mul(
            f.number("batch", self.batch),
            f.number(("crossed numbers", number), self.cross_numbers(number)),
        )
        memory = self.cross_sums(number, self.at)
        fixed = self.steady(part, [store], c.columns, [m.state.fold])

        def total(place: str) -> Val:
            def more(number: str, sums: list[str]) -> list[str]:
                found = self.load(memory, f.add(f.mul(number, each), place))
                return [combine(f.e, "add", Val(sums[0], self.fold.dtype, True), found).text]

            first = self.load(memory, place)
            if self.cut.parts == 1:
                return first
            parts = f.number("row parts", self.cut.parts)
            (found,) = f.e.loop("1", parts, 1, [(self.vector, first.text)], more)
            return Val(found, self.fold.dtype, True)

        def row(r: str) -> None:
            line = f.mul(f.add(top, r), width)

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    f.scopes[-1][m.state.fold] = total(f.add(line, f.add(offset, step)))
                    f.store(store, f.value(store.src[0]))

                f.lanes(part.columns.axes[-1], first, last, fixed, vector)

            f.runs(part.columns, f.coordinates(part.columns, "0"), columns, run)

        f.walk(part.rows, f.coordinates(part.rows, top), count, row)
