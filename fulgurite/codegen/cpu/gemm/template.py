"""The template of contractions: Σ of a product as a blocked matrix product in LLVM IR text.

In: an `IndexKernel`. Out: a `Rendered`, or None where the kernel is none. A unit of the last phase
computes one tile of results: for every block of k it has the packed or plain factors multiplied by
the library's microkernels into a tile of sums, then everything above the sum is evaluated from that
tile and stored. A factor that many tiles share is packed by a phase before it, into the workspace.
All sizes and strides are run-time numbers, and so is the way of a factor that is memory as it is:
products of any shape whose factors lie alike share one text. Tiles and the order of additions
follow from the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....core.dtype import DType
from ....core.node import Node
from ....graph.ir.lower import IndexKernel
from ....kernel.contract.analysis import find_contraction
from ...common.api import Phase, Rendered
from ..conv.tile import phase, settling, windows
from ..conv.view_args import WINDOWS
from ..llvm.convert import round_small
from ..llvm.emitter import Val
from ..llvm.masked import masked_load
from ..loops.function import Frame
from ..spelling import cast
from ..target import Target
from .gemv import dots, sweep
from .library_calls import Borrower
from .microkernel import Registers, block, transpose
from .pack import BytePacker, Packer, Side, Span
from .pack import Target as Goal
from .pack_dense import moving
from .plan import accumulated, byte_sums
from .skinny import NARROW, narrow
from .tile import BLOCK, JOIN, MOVE, TABLE, WAYS, join

_DOTS = "ptr, ptr, i64, ptr, i64, i64, i1"
SEVERAL = 2  # vectors of results at a time: one alone waits for itself most of the time


def contractions(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> Rendered | None:
    """A kernel that sums a product over axes of both factors."""
    found = find_contraction(kernel)
    if found is None:
        return None
    summed = accumulated(found.fold.dtype)
    template = _Template(found, dtypes, Registers(summed, target, byte_sums(found, target)))
    if not template.sums_bytes:
        template = _Template(found, dtypes, Registers(summed, target))
    takes = found.rows or template.windowed or template.takes_a_vector()
    return template.render() if takes else None


class _Template(Borrower):
    """Writes the text of one contraction."""

    # --- the whole kernel ------------------------------------------------------------------------

    def render(self) -> Rendered:
        if self.in_library:
            table = self.table()
            for key in WINDOWS if self.windowed else TABLE:
                self.numbers.place(key, table[key])
        frames: list[Frame] = []
        phases: list[Phase] = []
        workspace = 0
        for s in (self.left, self.right):
            shared = self.way(s.name) == "shared"
            if self.windowed:
                module = windows(self.registers, self.memories)
                symbol = self.seen_phase(module, phase(module, s.name), f"kernel_{s.name}", frames)
                units = self.batch * self.count_of_pieces(s)
            elif self.lent and not self.numbers.variables and len(s.part.batch.axes) <= 1:
                symbol, units = self.lent_phase(s), self.batch * self.count_of_pieces(s)
            elif shared or (self.as_it_is(s) and self.c.rows):
                frame, units = self.moved(s) if self.lent else self.packing(s)
                frames.append(frame)
                symbol = frame.symbol
            if shared:
                work = self.batch * self.depth * self.count_of(s.name) * 2
                phases.append(Phase(symbol, units, work))
                workspace += self.batch * self.blocks * self.block_numbers(s.name) * self.size
        if self.swept:
            module = windows(self.registers, self.memories)
            symbol = self.seen_phase(module, settling(module), "kernel_right", frames)
            phases.append(Phase(symbol, self.tables, self.tables * self.swept_bytes))
            workspace += self.tables * self.swept_bytes
        frame = self.main()
        frames.append(frame)
        products = self.batch * self.rows * self.columns * self.depth
        read = self.batch * (self.rows + self.columns) * self.depth  # with few rows or columns
        work = max(read, 3 * products // self.target.lanes)
        if self.cut.chunks > 1:
            chunks, work = work, 2 * self.batch * self.rows * self.columns * self.cut.chunks
            phases.append(Phase("kernel_chunks", self.tiles * self.cut.chunks, chunks))
            workspace += self.tiles * self.cut.chunks * self.cut.rows * self.cut.columns * self.size
        phases.append(Phase(frame.symbol, self.tiles, work))
        declared: dict[str, str] = {}
        for f in frames:
            declared |= f.e.declared
        texts = [f.text() for f in frames]
        if self.splits:
            texts.append(self.chunks())
        text = "\n".join([*texts, *declared.values(), ""])
        called = declared.keys() | self.phased
        library = tuple(m.text for n, m in sorted(self.modules.items()) if n in called)
        return Rendered(
            text, tuple(phases), tuple(self.numbers.variables), tuple(self.numbers.values),
            workspace, library,
        )  # fmt: skip

    @property
    def splits(self) -> bool:
        """Does the text know chunks of k? Where the library has the rest, it always does,
        and for a vector that sweeps over a matrix."""
        swept = not self.c.rows and not self.dotted
        return self.in_library or swept or self.cut.chunks > 1

    @property
    def in_library(self) -> bool:
        """Has the library all but the epilogue?"""
        return self.lent or self.windowed

    def chunks(self) -> str:
        """The phase of the sums over chunks of k: the units of the last phase from `tiles` on."""
        f = self.frame("kernel_chunks")
        tiles = f.number("tiles", self.tiles)
        operands = f"i64 {f.add('%first', tiles)}, i64 {f.add('%last', tiles)}"
        f.e.line(f"call void @kernel(ptr %params, ptr %values, {operands})")
        return f.text()

    def geometry(self, f: Frame, name: str) -> tuple[str, str, str]:
        """Places of a factor in all, in a tile, and how many tiles there are."""
        total, tile = (
            (self.rows, self.cut.rows) if name == "left" else (self.columns, self.cut.columns)
        )
        tiles = self.tall if name == "left" else self.wide
        return (
            f.number(("all", name), total),
            f.number(("tile", name), tile),
            f.number(("tiles", name), tiles),
        )

    def pack(self, f: Frame, s: Side, span: Span, to: Goal) -> None:
        """Fill a tile; the batch is open. Memory as it is has functions in the library."""
        if self.as_it_is(s):
            module = moving(self.registers, s.name, s.straight)
            self.call(f, module, MOVE, [
                *self.source(f, s, span.own, span.k), to.memory,
                to.stride if s.name == "left" else to.depth, span.owned, span.depth,
            ])  # fmt: skip
            return
        if self.registers.dot:
            f.read["steps"] = f.number("steps of k", self.steps)
            packer: Packer = BytePacker(f, s, self.registers, self.c.free)
        else:
            packer = Packer(f, s, self.registers, self.c.free)
        if not s.straight:
            module = transpose(self.registers)
            self.modules[module.name] = module
        f.scope(lambda: packer.pack(span, to))

    def goal(self, f: Frame, memory: str) -> Goal:
        return Goal(memory, f.number("stride", self.cut.stride), f.number("deep", self.cut.depth))

    def packing(self, s: Side) -> tuple[Frame, int]:
        """A phase that packs a factor once for all tiles."""
        f = self.frame(f"kernel_{s.name}")
        all_ = f.number(("all", s.name), self.count_of(s.name))
        blocks, depth = f.number("blocks", self.blocks), f.number("depth", self.depth)
        wide, tall = self.pieces(s)
        f.read["row"] = f.number(("row", s.name), wide + self.target.lanes)
        tile = f.number(("piece", s.name), wide)
        tiles = f.number(("pieces", s.name), -(-self.count_of(s.name) // wide))
        high, many = f.number(("high", s.name), tall), self.cut.block // tall
        chunks = f.number(("chunks", s.name), many)
        steps = f.number("block of k", self.cut.block)
        f.part = s.part
        self.constants(f, s.part.nodes)

        def unit(index: str, _: list[str]) -> list[str]:
            outer, chunk = f.divided(index, chunks)
            outer, number = f.divided(outer, blocks)
            batch, place = f.divided(outer, tiles)
            f.part = s.part
            f.opened(s.part.batch, f.coordinates(s.part.batch, batch))
            begin, down = f.mul(place, tile), f.mul(chunk, high)
            k = f.add(f.mul(number, steps), down)
            deep = f.least(high, f.sub(depth, k))
            span = Span(begin, f.least(tile, f.sub(all_, begin)), k, deep)
            memory = self.shared(f, s, batch, begin, place, number, down)
            self.pack(f, s, span, self.goal(f, memory))
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        return f, self.batch * -(-self.count_of(s.name) // wide) * self.blocks * many

    def shared(
        self, f: Frame, s: Side, batch: str, begin: str, tile: str, number: str, down: str
    ) -> str:
        """Where in the workspace a block of a factor is: places from `begin`, k from `down`."""
        block_ = f.add(f.mul(batch, f.number("blocks", self.blocks)), number)
        place = f.mul(block_, f.number(("numbers", s.name), self.block_numbers(s.name)))
        if s.name == "left":
            each = (self.cut.rows + self.target.lanes) * self.cut.stride
            place = f.add(place, f.mul(tile, f.number("tile numbers", each)))
        else:
            place = f.add(place, f.mul(begin, f.number("deep", self.cut.depth)))
            place = f.add(place, f.mul(down, str(self.registers.panel)))
            place = f.add(place, f.number("before right", self.before_right()))
        base = f.pointer(len(self.dtypes))
        return f.e.let(f"getelementptr {self.inner}, ptr {base}, i64 {place}")

    def span(self, f: Frame, begin: str, tile: str, all_: str, number: str, depth: str) -> Span:
        """A tile's places of a factor and one block of k."""
        steps = f.number("block of k", self.cut.block)
        k = f.mul(number, steps)
        return Span(begin, f.least(tile, f.sub(all_, begin)), k, f.least(steps, f.sub(depth, k)))

    def constants(self, f: Frame, nodes: Sequence[Node]) -> None:
        """What depends on no axis, worked out once."""
        for node in nodes:
            if not self.c.free[node]:
                f.value(node)

    def main(self) -> Frame:
        """The last phase: sums of a tile, then what is computed from them."""
        f = self.frame("kernel")
        e = f.e
        all_rows, tile_rows, tall = self.geometry(f, "left")
        all_columns, tile_columns, wide = self.geometry(f, "right")
        blocks, depth = f.number("blocks", self.blocks), f.number("depth", self.depth)
        f.read["row"] = f.number("row", self.cut.columns + self.target.lanes)
        for name, count in zip(("left", "right", "sums"), self.cut.scratch(e.lanes), strict=True):
            if name == "sums" or not self.in_library:
                f.scratch(name, self.inner, f.number(("scratch", name), count))
        f.part = self.above
        self.constants(f, self.above.nodes)

        def unit(index: str, _: list[str]) -> list[str]:
            chunk = _Chunk(self, f, index) if self.splits else None
            tile = chunk.tile if chunk else index
            outer, column = f.divided(tile, wide)  # rows stay near while columns go by
            batch, row = f.divided(outer, tall)
            top, start = f.mul(row, tile_rows), f.mul(column, tile_columns)
            rows = f.least(tile_rows, f.sub(all_rows, top))
            columns = f.least(tile_columns, f.sub(all_columns, start))
            if self.lent:
                each, over, unit = [f.number(*pair) for pair in self.stretch().items()]
                start, columns = f.stretched(column, each, over, unit, all_columns)
            sums, width = f.read["sums"], tile_columns
            if self.direct or (self.windowed and self.can_be_direct):
                f.part = self.above
                f.opened(self.above.batch, f.coordinates(self.above.batch, batch))
                place = self.place(f, top, start)
                sums, width = self.chosen(f, place, (sums, width))
            begin, end = "0", blocks
            if chunk:
                sums, width = chunk.home(sums, width, tile_columns)
                begin, end = chunk.blocks(blocks)

            def deep(number: str, _: list[str]) -> list[str]:
                f.scopes.append({})
                spans = [
                    self.span(f, top, tile_rows, all_rows, number, depth),
                    self.span(f, start, tile_columns, all_columns, number, depth),
                ]
                first = e.let(f"icmp eq i64 {number}, {begin}")
                a = self.factor(f, self.left, batch, row, number, spans[0])
                b = self.factor(f, self.right, batch, column, number, spans[1])
                self.multiply(f, a, b, sums, rows, columns, width, spans[0].depth, first)
                f.scopes.pop()
                return []

            if self.in_library:
                self.lend(f, batch, row, column, begin, end, sums, width)
            else:
                e.loop(begin, end, 1, [], deep)
            if chunk:
                chunk.join(sums, width, rows, columns)
            f.part = self.above
            f.opened(self.above.batch, f.coordinates(self.above.batch, batch))
            bare, last = self.c.stores[0].src[0] is self.c.fold, chunk.is_last if chunk else ""
            if self.windowed and bare and self.can_be_direct:
                last = e.let(f"select i1 {self.is_direct_now(f)}, i1 false, i1 {last}")
            elif self.direct and bare:
                return []

            def results() -> None:
                f.scope(lambda: self.results(f, sums, top, rows, start, columns, width))

            e.branch(last, results) if last else results()
            return []

        e.loop("%first", "%last", 1, [], unit)
        return f

    def is_direct_now(self, f: Frame) -> str:
        """Are sums kept where results go, in the kernel that runs? Windows share texts."""
        return f.e.let(f"icmp ne i64 {f.number('direct', int(self.direct))}, 0")

    def chosen(
        self, f: Frame, place: tuple[str, str], apart: tuple[str, str]
    ) -> tuple[str, str]:  # fmt: skip
        """Sums and how far apart their rows are: where results go, or in a tile of their own."""
        if not self.windowed:
            return place
        now = self.is_direct_now(f)
        return (
            f.e.let(f"select i1 {now}, ptr {place[0]}, ptr {apart[0]}"),
            f.e.let(f"select i1 {now}, i64 {place[1]}, i64 {apart[1]}"),
        )

    def place(self, f: Frame, top: str, start: str) -> tuple[str, str]:
        """Where a tile's results are, and how far apart their rows are."""
        store, row = self.c.stores[0], self.above.rows.axes[-1]
        number, index = store.arg[:2]
        name = ("at", self.numbers.position[store])
        for line, at in ((self.above.rows, top), (self.above.columns, start)):
            f.opened(line, f.coordinates(line, at))
        place = f.index(index, (), name).text
        steps = [(p, step) for p, (atom, step) in enumerate(index[1]) if atom == row]
        stride = f.number((name, steps[0][0], "step"), steps[0][1])
        return f.e.let(f"getelementptr {self.inner}, ptr {f.pointer(number)}, i64 {place}"), stride

    def factor(
        self, f: Frame, s: Side, batch: str, tile: str, number: str, span: Span
    ) -> tuple[str, str, str]:
        """Where a block of a factor is, and its strides, own and of k; packed now if need be."""
        e, way = f.e, self.way(s.name)
        goal = self.goal(f, f.read[s.name])
        if self.flat and s.name == "right":
            goal = replace(goal, width=f.number(("tile", "right"), self.cut.columns))
        f.part = s.part
        f.opened(s.part.batch, f.coordinates(s.part.batch, batch))
        if not self.as_it_is(s):
            if way == "shared":
                memory = self.shared(f, s, batch, span.own, tile, number, "0")
            else:
                self.pack(f, s, span, goal)
                memory = goal.memory
            if s.name == "left" or s.lined:
                return memory, goal.stride, "1"
            return memory, "1" if goal.width else goal.depth, goal.width or self.panel
        memory, step = self.source(f, s, span.own, span.k)
        if not self.c.rows:
            return (memory, step, "1") if s.along == "folded" else (memory, "1", step)
        kind = f.number(("way", s.name), WAYS.index(way))
        packed = e.let(f"icmp eq i64 {kind}, {WAYS.index('own')}")
        e.branch(packed, lambda: self.pack(f, s, span, goal))
        workspace = self.shared(f, s, batch, span.own, tile, number, "0")
        known = e.let(f"select i1 {packed}, ptr {goal.memory}, ptr {workspace}")
        if s.name == "left" or self.readable:
            plain = e.let(f"icmp eq i64 {kind}, {WAYS.index('plain')}")
            known = e.let(f"select i1 {plain}, ptr {memory}, ptr {known}")
        own, folded = self.strides(s)
        return known, f.number(("own", s.name), own), f.number(("folded", s.name), folded)

    @property
    def panel(self) -> str:
        return str(self.registers.panel)

    def multiply(
        self, f: Frame, a: tuple[str, str, str], b: tuple[str, str, str], sums: str, rows: str,
        columns: str, width: str, depth: str, first: str,
    ) -> None:  # fmt: skip
        """All rows of a tile times one panel after the other."""
        e = f.e
        if not self.c.rows:  # b's rows or columns are memory as it is
            stride, module = (b[1], dots) if self.dotted else (b[2], sweep)
            operands = [a[0], b[0], stride, sums, depth, columns, first]
            self.call(f, module(self.registers, self.memories), _DOTS, operands)
            return
        if self.right.lined:
            operands = [a[0], a[1], *b, sums, width, depth, rows, columns, first]
            self.call(f, narrow(self.registers, True), NARROW, operands)
            return
        wide, reach = [f.number(name, self.panels()[name]) for name in ("wide", "reach")]

        def turn(number: str, _: list[str]) -> list[str]:
            column = f.mul(number, wide)
            place = f.mul(column, b[1])
            at = e.let(f"getelementptr {self.inner}, ptr {b[0]}, i64 {place}")
            to = e.let(f"getelementptr {self.inner}, ptr {sums}, i64 {column}")
            ahead = "null"  # it is plain
            if not self.flat and self.c.rows:
                ahead = e.let(f"getelementptr {self.inner}, ptr {at}, i64 {f.mul(wide, b[1])}")
                if self.readable:
                    kind = f.number(("way", "right"), WAYS.index(self.cut.right))
                    plain = e.let(f"icmp eq i64 {kind}, {WAYS.index('plain')}")
                    ahead = e.let(f"select i1 {plain}, ptr null, ptr {ahead}")
            count = f.in_panel(f.sub(columns, column), wide, reach)
            operands = [*a, at, b[2], to, width, depth, rows, count, first, ahead]
            self.call(f, block(self.registers), BLOCK, operands)
            return []

        e.loop("0", f.panels(columns, wide, reach), 1, [], turn)

    # --- what is computed from the sums ----------------------------------------------------------

    def results(
        self, f: Frame, sums: str, top: str, rows: str, start: str, columns: str, width: str
    ) -> None:
        """Evaluate everything above the sum and store it, row by row."""
        e, above = f.e, self.above
        at = f.coordinates(above.rows, top), f.coordinates(above.columns, start)
        fixed = [
            n for n in above.nodes
            if n is not self.c.fold and not self.c.free[n] & above.columns.inner
        ]  # fmt: skip

        def row(number: str) -> None:
            base = f.mul(number, width)

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    place = f.add(base, f.add(offset, step))
                    where = e.let(f"getelementptr {self.inner}, ptr {sums}, i64 {place}")
                    loaded = f.masked_if_need_be(lambda mask: self.read(f, where, mask))
                    assert loaded is not None
                    f.scopes[-1][self.c.fold] = self.summed(f, loaded)
                    values = [f.value(s.src[0]) for s in self.c.stores]
                    for store, value in zip(self.c.stores, values, strict=True):
                        f.store(store, value)

                f.lanes(above.columns.axes[-1], first, last, fixed, vector)

            f.runs(above.columns, at[1], columns, run)

        several = SEVERAL if self.target.vectors == "avx512" and self.size == 4 else 1
        e.lanes *= several
        f.parted = True
        f.walk(above.rows, at[0], rows, row)
        f.parted = False
        e.lanes //= several

    def read(self, f: Frame, where: str, mask: str | None) -> Val:
        """Sums from their tile: it has room for whole vectors, memory of results has not."""
        e, dtype = f.e, self.registers.dtype
        kind = f"<{e.lanes} x {self.inner}>"
        if mask is None:
            return Val(e.let(f"load {kind}, ptr {where}, align 1"), dtype, True)
        return Val(masked_load(e, kind, where, mask), dtype, True)

    def summed(self, f: Frame, value: Val) -> Val:
        """A sum in its own dtype."""
        dtype = self.c.fold.dtype
        if dtype.is_small_float:
            return round_small(f.e, value, dtype)
        return cast(f.e, value, self.registers.dtype, dtype)


class _Chunk:
    """A unit of the last phase where k may be cut in chunks.

    Units below `tiles` have all of k: they compute it, or join what was computed before. Those
    from there on compute the sums of one chunk, into the workspace.
    """

    def __init__(self, product: _Template, f: Frame, index: str) -> None:
        self.product, self.f = product, f
        self.tiles = f.number("tiles", product.tiles)
        self.count = f.number("chunks", product.cut.chunks)
        self.is_last = f.e.let(f"icmp slt i64 {index}, {self.tiles}")
        beyond = f.sub(index, self.tiles)
        self.number = f.e.let(f"select i1 {self.is_last}, i64 {index}, i64 {beyond}")
        self.chunk, self.tile = f.divided(self.number, self.tiles)
        several = f.e.let(f"icmp sgt i64 {self.count}, 1")
        self.joins = f.e.let(f"and i1 {several}, {self.is_last}")
        self.apart = f.e.let(f"xor i1 {self.is_last}, true")
        if product.windowed and product.can_be_direct:
            now = product.is_direct_now(f)
            self.apart = f.e.let(f"select i1 {now}, i1 {self.apart}, i1 {several}")
        elif not product.direct:
            self.apart = several

    def home(self, sums: str, width: str, columns: str) -> tuple[str, str]:
        """Where the sums are, and how far apart their rows: results, or the workspace."""
        p, f = self.product, self.f
        each = f.number("numbers of a tile", p.cut.rows * p.cut.columns)
        self.step, self.width = f.mul(self.tiles, each), columns
        before = f.number("before sums", p.before_sums())
        base, place = f.pointer(len(p.dtypes)), f.add(before, f.mul(self.number, each))
        self.memory = f.e.let(f"getelementptr {p.inner}, ptr {base}, i64 {place}")
        return (
            f.e.let(f"select i1 {self.apart}, ptr {self.memory}, ptr {sums}"),
            f.e.let(f"select i1 {self.apart}, i64 {columns}, i64 {width}"),
        )

    def blocks(self, all_: str) -> tuple[str, str]:
        """The blocks of k that this unit computes: none where it joins."""
        f = self.f
        share = f.number("share", self.product.share)
        begin = f.mul(self.chunk, share)
        end = f.least(all_, f.add(begin, share))
        return begin, f.e.let(f"select i1 {self.joins}, i64 {begin}, i64 {end}")

    def join(self, sums: str, width: str, rows: str, columns: str) -> None:
        """Add up the sums of all chunks, in order."""
        p, f = self.product, self.f
        operands = [self.memory, self.step, self.count, self.width, sums, width, rows, columns]
        f.e.branch(self.joins, lambda: p.call(f, join(p.registers), JOIN, operands))
