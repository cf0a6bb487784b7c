"""The template of folds: one pass over blocks of an axis, with states that are repaired on the way.

In: an `IndexKernel` that streams (kernel/stream/online.py). Out: a `Rendered`, or None. A unit owns
some rows. Its queries are packed once; for every block of the streamed axis the products inside are
computed by the library's microkernels into a tile with the rows side by side, so lanes are rows and
nothing is folded across lanes. The states of a row live in small arrays. States with columns are
sums that a microkernel adds weights times values to; when bases under them moved, their rows are
repaired first. Keys and values are read where they are if they lie well, else packed a block at a
time: there is no memory but that of the tile. Sums over the rows themselves are added up beside
(codegen/cpu/stream/transposed.py), and elements that are asked for are kept
(codegen/cpu/stream/elements.py). Blocks that a condition on indices leaves out whole are skipped.
The order of all sums follows from the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...._lazy import lazy_import
from ....core.dtype import DType, bool_
from ....graph.ir.lower import IndexKernel
from ....kernel.contract.analysis import DEPTH, Block
from ....kernel.stream.online import stream
from ....kernel.stream.roles import Fold, FoldCut, Product, cut_fold, find_fold
from ...common.api import Rendered
from ..gemm.microkernel import Registers, block
from ..gemm.pack import Span, side
from ..gemm.pack import Target as Goal
from ..llvm.emitter import Val
from ..target import Target
from .column_lanes import StreamLanes
from .elements import FoldWhole


def folds(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> Rendered | None:
    """A kernel that streams over an axis."""
    streaming = stream(kernel)
    fold = None if streaming is None else find_fold(streaming)
    if fold is None:
        return None
    registers = Registers(fold.dtype, target)
    shape = Block(registers.height, registers.panel, target.lanes, fold.dtype.itemsize)
    cut = cut_fold(fold, shape, DEPTH)
    if cut is None:
        return None
    template = StreamLanes if cut.along == "streamed" else RowLanes
    if cut.strips:
        template = lazy_import("codegen.cpu.stream.two_pass").StripLanes
    return template(fold, dtypes, registers, cut).render()


class RowLanes(FoldWhole):
    """Tiles with the rows side by side."""

    def __init__(
        self, fold: Fold, dtypes: Sequence[DType], registers: Registers, cut: FoldCut
    ) -> None:
        super().__init__(fold, dtypes, registers, cut)
        self.keys = [side(p.contraction, "left") for p in fold.products]
        self.queries = [side(p.contraction, "right") for p in fold.products]
        self.turned = [c.left for c in fold.turned]
        self.stops |= set(self.turned)

    def tiles_of_products(self) -> None:
        """Products, the queries they need, and what is turned to lie like them."""
        cut = self.cut
        self.stride = self.f.number("stride", cut.rows + self.lanes)
        self.weights_by = ("1", self.stride)
        for number in range(len(self.turned)):
            self.room(f"turned{number}", self.tile_numbers)
        for number, product in enumerate(self.fold.products):
            self.room(f"tile{number}", self.tile_numbers)
            blocks = self.blocks(product) if cut.resident[number] else 1
            self.room(f"queries{number}", blocks * self.query_numbers(product))
            if not self.is_plain(self.keys[number]):
                self.room(f"keys{number}", (cut.steps + self.lanes) * self.deepest(product))

    def ready(self) -> None:
        """Queries are packed once for a unit."""
        super().ready()
        for number in range(len(self.fold.products)):
            if self.cut.resident[number]:
                self.pack_queries(number)

    def query_numbers(self, p: Product) -> int:
        """Numbers of the packed queries of a unit, for one block of the depth."""
        panel = self.registers.panel
        return -(-self.cut.rows // panel) * panel * self.deepest(p)

    def pack_queries(self, number: int, only: str | None = None) -> None:
        """The rows of one unit, for the whole depth or for one block of it."""
        f, product, s = self.f, self.fold.products[number], self.queries[number]
        depth = f.number(("depth", number), self.fold.count(product.contraction.folded))
        each = f.number(("query numbers", number), self.query_numbers(product))
        memory = f.read[f"queries{number}"]

        def pack(b: str, at: str) -> None:
            d = f.mul(b, str(DEPTH))
            span = Span(self.top, self.count, d, f.least(str(DEPTH), f.sub(depth, d)))
            self.open_batch(s)
            f.scope(lambda: self.packer(s).pack(span, self.goal(at, product)))

        if only is not None:
            pack(only, memory)
        elif self.blocks(product) == 1:
            pack("0", memory)
        else:

            def turn(b: str, _: list[str]) -> list[str]:
                pack(b, self.element(memory, f.mul(b, each)))
                return []

            f.e.loop("0", f.number(("blocks", number), self.blocks(product)), 1, [], turn)

    def product(self, number: int) -> None:
        """A block of a product: a row for each streamed element, a column for each row."""
        f, e, product, s = self.f, self.f.e, self.fold.products[number], self.keys[number]
        depth = f.number(("depth", number), self.fold.count(product.contraction.folded))
        plain = self.is_plain(s)
        module = block(self.registers)
        queries, tile = f.read[f"queries{number}"], f.read[f"tile{number}"]
        deep = f.number(("deep", self.deepest(product)), self.deepest(product))

        def turn(b: str, _: list[str]) -> list[str]:
            f.scopes.append({})
            d = f.mul(b, str(DEPTH))
            many = f.least(str(DEPTH), f.sub(depth, d))
            if self.cut.resident[number]:
                each = f.number(("query numbers", number), self.query_numbers(product))
                right = self.element(queries, f.mul(b, each)) if b != "0" else queries
            else:
                self.pack_queries(number, b)
                right = queries
            self.open_batch(s)
            if plain:
                left, stride = self.where(s, self.k, d)
                strides = (stride, "1") if s.straight else ("1", stride)
            else:
                left, strides = f.read[f"keys{number}"], (deep, "1")
                span = Span(self.k, self.deep, d, many)
                goal = self.goal(left, product)
                f.scope(lambda: self.packer(s).pack(span, goal))
            first = "true" if b == "0" else e.let(f"icmp eq i64 {b}, 0")

            def panel(column: str, columns: str) -> None:
                at = self.element(right, f.mul(column, deep))
                wide = str(self.registers.panel)
                self.multiply_inside(
                    product, module, (left, *strides), (at, wide),
                    (self.element(tile, column), self.stride), (many, self.deep, columns), first,
                    ahead=self.element(at, f.mul(deep, wide)),
                )  # fmt: skip

            self.packed_panels(self.count, panel)
            f.scopes.pop()
            return []

        if self.blocks(product) == 1:
            turn("0", [])
        else:
            e.loop("0", f.number(("blocks", number), self.blocks(product)), 1, [], turn)

    def turn_loads(self) -> None:
        """Loads along the streamed axis, as rows of a tile."""
        f = self.f
        for number, c in enumerate(self.fold.turned):
            s = side(c, "left")
            self.open_batch(s)
            span = Span(self.k, self.deep, self.top, self.count)
            goal = Goal(f.read[f"turned{number}"], self.stride, self.stride)
            f.scope(lambda s=s, span=span, goal=goal: self.packer(s).pack(span, goal))  # type: ignore[misc]

    def walk_rows(self) -> None:
        """All states of one number a row, and the weights, lanes along the rows."""
        f = self.f
        part = f.part = self.walked_part()
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        start = f.coordinates(part.rows, self.top)

        def run(offset: str, first: str, last: str) -> None:
            def vector(step: str) -> None:
                self.walk_vector(f.add(offset, step))

            f.lanes(part.rows.axes[-1], first, last, [], vector)

        f.runs(part.rows, start, self.count, run)

    def walk_vector(self, place: str) -> None:
        """One vector of rows."""
        f, e = self.f, self.f.e
        scope = f.scopes[-1]
        memory = {s: f.read[f"state{n}"] for n, s in enumerate(self.states)}
        for state in self.fold.scalars:
            scope[state.old] = self.load(memory[state], place)
        self.rests = {s: self.load(self.rest_of(s), place) for s in self.with_rests}
        scope |= self.whole_olds(lambda name: self.load(f.read[name], place))
        for level in range(self.fold.levels):
            self.walk_level(level, place)
        self.put_coefficients(place, self.put, self.vector)
        for state in self.fold.scalars:
            self.put(memory[state], place, e.splat(scope[state.fold]))
        for state, rest in self.rests.items():
            self.put(self.rest_of(state), place, rest)

    def walk_level(self, level: int, place: str) -> None:
        """One walk over a block: states of a level, and weights that need no later ones."""
        f, e, fold = self.f, self.f.e, self.fold
        scope = f.scopes[-1]
        scalars, weights = self.at_level(level)
        part = f.part
        assert part is not None
        if scalars or weights:
            nodes = fold.part(self.bodies(level), self.stops | self.olds, ()).nodes
            for node in nodes:
                if not fold.free[node] & self.streamed and node not in self.stops:
                    e.pin(f.value(node))

            kept = self.kept(level)

            def step(i: str, sums: list[str]) -> list[str]:
                f.opened(part.columns, f.coordinates(part.columns, f.add(self.k, i)))
                f.scopes.append({})
                line = f.add(f.mul(i, self.stride), place)
                self.known_products(nodes, level, line)
                for number, node in enumerate(self.turned):
                    if node in nodes:
                        found = self.load(f.read[f"turned{number}"], line)
                        f.scopes[-1][node] = self.as_truth(found) if node.dtype is bool_ else found
                out = []
                for state, total in zip(scalars, sums, strict=True):
                    known, value = Val(total, fold.dtype, True), e.splat(f.value(state.body))
                    out.append(self.taken_in(state, known, value))
                if kept is not None:
                    self.put(f.read["tile0"], line, f.value(kept))
                for number, node in weights:
                    self.put(f.read[self.tiles[number]], line, self.weight(number, node))
                f.scopes.pop()
                return out

            sums = self.steps(scalars, step, nodes)
            before = self.before(level, vector=True)
            for state, total in zip(scalars, sums, strict=True):
                known = before.get(state, scope[state.old])
                scope[state.fold] = self.with_block(state, known, Val(total, fold.dtype, True))
