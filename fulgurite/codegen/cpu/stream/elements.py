"""Materialized elements of M x N (dS, a bias's gradient): what blocks are made of, stored as well.

In: a problem some of whose results have M x N. Out: further lines. What a block computes for each
element is in a tile, rows side by side. Where memory runs along M too it is stored from there; else
squares of it are transposed into a strip of rows first. Every block of every tile is written once,
by the unit that owns it.
"""

from __future__ import annotations

from ....core.node import Node
from ....kernel.contract.analysis import Part
from ..gemm.microkernel import transpose
from .outputs import runs_along_rows
from .tile import Tile
from .weights import WeightTiles


class ElementStore:
    """Stores of elements."""

    def __init__(self, tile: Tile, weights: WeightTiles) -> None:
        self.tile, self.problem = tile, tile.problem
        self.names = weights.names[len(tile.problem.all_weighted) :]
        self.strip_stride = tile.plan.block_n + tile.lanes

    def reserve(self) -> None:
        """A strip of rows."""
        self.tile.reserve("strip", self.tile.lanes * self.strip_stride)

    def emit(self) -> None:
        """All elements of a block."""
        for number in range(len(self.names)):
            self.tile.scoped(self.store, number)

    def store(self, number: int) -> None:
        """Store what a block has for each element."""
        tile, f = self.tile, self.tile.f
        store, node = self.problem.streaming.whole[number], self.problem.elements[number]
        part = f.part = self.problem.part([store], {node}, self.problem.n_axes)
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        source = f.read[self.names[number]]
        if runs_along_rows(part, [store]):
            self.store_lines(part, store, node, source)
            return
        strip, width = f.read["strip"], f.number("strip width", self.strip_stride)
        module = transpose(tile.registers)

        def square(r: str, c: str) -> None:
            place = tile.element(source, f.add(f.mul(c, tile.stride), r))
            operands = f"ptr {place}, ptr {tile.element(strip, c)}, i64 {width}"
            tile.invoke(module, "ptr, ptr, i64, i64", f"{operands}, i64 {tile.stride}")

        def row(r: str) -> None:
            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    place = f.add(f.mul(r, width), f.add(offset, step))
                    f.scopes[-1][node] = tile.load(strip, place)
                    f.store(store, f.value(store.src[0]))

                f.lanes(part.columns.axes[-1], first, last, [], vector)

            f.runs(part.columns, f.coordinates(part.columns, tile.k), tile.deep, run)

        def rows(r: str) -> None:
            tile.vectors(tile.deep, lambda c: square(r, c))
            many = f.least(str(tile.lanes), f.sub(tile.count, r))
            f.walk(part.rows, f.coordinates(part.rows, f.add(tile.top, r)), many, row)

        tile.vectors(tile.count, rows)

    def store_lines(self, part: Part, store: Node, node: Node, source: str) -> None:
        """The same where memory lies as the tile does."""
        tile, f = self.tile, self.tile.f

        def step(i: str) -> None:
            def run(offset: str, first: str, last: str) -> None:
                def vector(r: str) -> None:
                    place = f.add(f.mul(i, tile.stride), f.add(offset, r))
                    f.scopes[-1][node] = tile.load(source, place)
                    f.store(store, f.value(store.src[0]))

                f.lanes(part.rows.axes[-1], first, last, [], vector)

            f.runs(part.rows, f.coordinates(part.rows, tile.top), tile.count, run)

        f.walk(part.columns, f.coordinates(part.columns, tile.k), tile.deep, step)
