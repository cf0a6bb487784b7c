"""Elements of a fold that are stored: what blocks are made of, kept beside what is folded.

In: a fold some of whose results have its rows and its streamed elements (the gradient of a bias of
every score). Out: further lines. What a block works out for each element is in a tile, rows side by
side. Where memory runs along the rows too it is stored from there; else squares of it are turned
into a strip of rows first. Every block of every tile is written once, by the unit that owns it.
"""

from __future__ import annotations

from ....core.node import Node
from ....kernel.contract.analysis import Part
from ..gemm.microkernel import transpose
from .transposed import FoldCross


class FoldWhole(FoldCross):
    """A fold that keeps elements, if it is asked for some."""

    @property
    def strip_width(self) -> int:
        """Numbers from one row of the strip to the next."""
        return self.cut.steps + self.lanes

    def reserve(self) -> None:
        """Everything a tile needs, and a strip of rows."""
        super().reserve()
        if self.whole:
            self.room("strip", self.lanes * self.strip_width)

    def block(self) -> None:
        """A block of the streamed axis, and its elements."""
        super().block()
        for number in range(len(self.whole)):
            self.f.scope(lambda n=number: self.keep(n))  # type: ignore[misc]

    def keep(self, number: int) -> None:
        """Store what a block has for each element."""
        f, e = self.f, self.f.e
        store, node = self.fold.streaming.whole[number], self.whole[number]
        part = f.part = self.fold.part([store], {node}, self.fold.streaming.axes)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        tile = f.read[self.tiles[len(self.fold.weighing) + number]]
        if self.along_rows(part, [store]):
            self.keep_straight(part, store, node, tile)
            return
        strip, width = f.read["strip"], f.number("strip width", self.strip_width)
        turn = transpose(self.registers)

        def square(r: str, c: str) -> list[str]:
            source = self.element(tile, f.add(f.mul(c, self.stride), r))
            operands = f"ptr {source}, ptr {self.element(strip, c)}, i64 {width}"
            self.invoke(turn, "ptr, ptr, i64, i64", f"{operands}, i64 {self.stride}")
            return []

        def row(r: str) -> None:
            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    place = f.add(f.mul(r, width), f.add(offset, step))
                    f.scopes[-1][node] = self.load(strip, place)
                    f.store(store, f.value(store.src[0]))

                f.lanes(part.columns.axes[-1], first, last, [], vector)

            f.runs(part.columns, f.coordinates(part.columns, self.k), self.deep, run)

        def rows(r: str, _: list[str]) -> list[str]:
            e.loop("0", self.deep, self.lanes, [], lambda c, _: square(r, c))
            many = f.least(str(self.lanes), f.sub(self.count, r))
            f.walk(part.rows, f.coordinates(part.rows, f.add(self.top, r)), many, row)
            return []

        e.loop("0", self.count, self.lanes, [], rows)

    def keep_straight(self, part: Part, store: Node, node: Node, tile: str) -> None:
        """The same where memory lies as the tile does."""
        f = self.f

        def step(i: str) -> None:
            def run(offset: str, first: str, last: str) -> None:
                def vector(r: str) -> None:
                    place = f.add(f.mul(i, self.stride), f.add(offset, r))
                    f.scopes[-1][node] = self.load(tile, place)
                    f.store(store, f.value(store.src[0]))

                f.lanes(part.rows.axes[-1], first, last, [], vector)

            f.runs(part.rows, f.coordinates(part.rows, self.top), self.count, run)

        f.walk(part.columns, f.coordinates(part.columns, self.k), self.deep, step)
