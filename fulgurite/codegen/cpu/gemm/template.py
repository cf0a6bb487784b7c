"""The GEMM template: Σ of a product as a blocked matrix product in LLVM IR text.

In: a problem and its `GemmPlan`. Out: a `KernelText`. A unit of the last launch computes one tile
of results: for every block of k it has the packed or dense operands multiplied by the library's
micro-kernels into a tile of accumulators, then the epilogue is evaluated from that tile and stored.
An operand that many tiles share is packed by a launch before it, into the workspace. All sizes and
strides are run-time numbers, and so is the route of a dense operand: GEMMs of any shape whose
operands lie alike share one text. Tiles and the order of additions follow from the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....core.dtype import DType
from ....core.lazy_dataclass import dataclass
from ....core.node import Node
from ....core.symbolic.sym import greatest, varies
from ....graph.ir.lower import IndexKernel
from ....kernel.contract.problem import GemmProblem, Operand, find_gemm
from ...common.api import KernelText, Launch, Prepacked
from ..conv.direct import table_launch
from ..conv.tile import pack_launch
from ..conv.view_args import VIEW_TABLE
from ..llvm.convert import round_small
from ..llvm.emitter import Val, scalar_type
from ..llvm.masked import masked_load
from ..loops.function import FunctionBuilder, Numbers
from ..spelling import cast
from ..target import Target
from ..tiling import CORES, GEMM
from .gemv import GEMV, gemv_axpy, gemv_dot
from .geometry import Geometry
from .library_calls import LibraryCalls
from .microkernel import block, transpose
from .pack import BytePacker, Packer, Span
from .pack import Target as Goal
from .pack_dense import pack_dense
from .plan import Gemm, GemmKind, GemmPlan
from .skinny import SKINNY, skinny
from .strategies import choose, prepacked, with_better_rows
from .tile import JOIN, MICROKERNEL_TYPES, MOVE, ROUTES, TABLE, join


def gemms(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> KernelText | None:
    """A kernel that sums a product over axes of both operands."""
    problem = find_gemm(kernel, dtypes)
    return None if problem is None else gemm_text(problem, target)


def gemm_text(problem: GemmProblem, target: Target) -> KernelText | None:
    """A GEMM as text, if some strategy takes it."""
    found = choose(with_better_rows(problem), target)
    return None if found is None else _render(*found)


def _render(gemm: Gemm, plan: GemmPlan) -> KernelText:
    gemm = gemm.as_kind(plan.kind)
    found = _Template(gemm, Geometry(gemm, plan.tiles)).render()
    packed = prepacked(gemm, plan)
    return found if packed is None else replace(found, prepacked=_form(gemm, packed, found))


def _form(gemm: Gemm, plan: GemmPlan, plain: KernelText) -> Prepacked | None:
    """The form of a kernel for a right operand that stays: its text must be that of the kernel."""
    geometry = Geometry(gemm, plan.tiles, prepacked=True)
    template = _Template(gemm, geometry)
    made = template.render()
    if made.text != plain.text or made.variables:
        return None
    table, units, elements = geometry.pack_once()
    names = VIEW_TABLE if gemm.kind.reads_views else TABLE
    numbers = tuple([table.get(name, 0) for name in dict.fromkeys(names)])
    if any(map(varies, numbers)):
        return None
    pack = Launch(template.pack_symbol(gemm.right), units, gemm.depth * gemm.columns * 2)
    return Prepacked(
        gemm.right.root.arg[0], elements * template.size, pack, numbers,
        made.launches, made.numbers, made.workspace,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Extent:
    """Rows or columns: names of how many there are, in a tile, and how many tiles."""

    total: str
    tile: str
    tiles: str


class _Template:
    """Writes the text of one GEMM."""

    def __init__(self, gemm: Gemm, geometry: Geometry) -> None:
        self.gemm, self.geometry, self.tiles = gemm, geometry, geometry.tiles
        self.c, self.above, self.registers = gemm.problem, gemm.epilogue, gemm.registers
        self.inner, self.size = scalar_type(self.registers.dtype), self.registers.dtype.itemsize
        self.numbers = Numbers(self.c.order)
        self.calls = LibraryCalls(geometry, self.numbers)

    # --- the whole kernel ------------------------------------------------------------------------

    def render(self) -> KernelText:
        gemm, geo = self.gemm, self.geometry
        if gemm.kind.in_library:
            table = geo.table()
            for key in VIEW_TABLE if gemm.kind.reads_views else TABLE:
                self.numbers.place(key, table[key])
        frames: list[FunctionBuilder] = []
        launches: list[Launch] = []
        if gemm.kind.is_direct:
            name = table_launch(self.calls.direct)
            symbol = self.calls.view_launch(name, "kernel_tables", frames)
            workspace = geo.direct_tables * geo.direct_table_bytes
            launches.append(Launch(symbol, geo.direct_tables, workspace))
        else:
            workspace = sum(self.pack_launch(s, frames, launches) for s in (gemm.left, gemm.right))
        if gemm.is_vector and gemm.has_panels:
            self.calls.dense_launch(gemm.right)  # packs it, if it stays
        frames.append(self.main())
        workspace += self.sum_launches(launches)
        declared: dict[str, str] = {}
        for f in frames:
            declared |= f.e.declared
        texts = [f.text() for f in frames]
        if self.splits:
            texts.append(self.chunks())
        text = "\n".join([*texts, *declared.values(), ""])
        library = self.calls.library(declared.keys())
        return KernelText(
            text, tuple(launches), tuple(self.numbers.variables), tuple(self.numbers.values),
            workspace, library,
        )  # fmt: skip

    def pack_launch(self, s: Operand, frames: list[FunctionBuilder], launches: list[Launch]) -> int:
        """Write the launch that packs an operand, and launch it if tiles share what it packs; the
        bytes of workspace that it takes."""
        gemm, geo, kind = self.gemm, self.geometry, self.gemm.kind
        shared = geo.packs_before(s)
        symbol = f"kernel_{s.name}"
        if kind.reads_views:
            symbol = self.calls.view_launch(self.pack_symbol(s), symbol, frames)
        elif kind.reads_matrices and not self.numbers.variables and len(s.part.batch.axes) <= 1:
            symbol = self.pack_symbol(s)
        elif kind.reads_matrices:
            frames.append(self.calls.own_dense_launch(s))
        elif shared or (gemm.is_dense(s) and not gemm.is_vector):
            frames.append(self.own_pack_launch(s))
        if not shared:
            return 0
        work = gemm.batch * gemm.depth * geo.size_of(s) * 2
        launches.append(Launch(symbol, gemm.batch * geo.pack_units(s), work * self.passing))
        return gemm.batch * geo.blocks * geo.block_elements(s.name) * self.size

    def pack_symbol(self, s: Operand) -> str:
        """The launch of the library that packs an operand, where there are no variables."""
        if self.gemm.kind.reads_views:
            return pack_launch(self.calls.im2col, s.name)
        return self.calls.dense_launch(s)

    def sum_launches(self, launches: list[Launch]) -> int:
        """Launch the sums, of chunks of k first if it is split; the bytes of workspace for them."""
        gemm, tiles, count = self.gemm, self.tiles, self.geometry.count
        products = gemm.batch * gemm.rows * gemm.columns * gemm.depth
        read = gemm.batch * (gemm.rows + gemm.columns) * gemm.depth  # with few rows or columns
        work, chunks = greatest(read, 3 * products // gemm.target.lanes), tiles.k_chunks
        if chunks == 1:
            launches.append(Launch("kernel", count, work))
            return 0
        launches.append(Launch("kernel_chunks", count * chunks, work))
        work = 2 * gemm.batch * gemm.rows * gemm.columns * chunks
        launches.append(Launch("kernel", count, work * self.passing))
        return count * chunks * tiles.rows * tiles.columns * self.size

    @property
    def passing(self) -> int:
        """How much more than additions it is to write or read what other cores read or wrote."""
        many = self.gemm.target.cores > 1 and not self.gemm.varies
        return CORES.passing if many else 1

    @property
    def splits(self) -> bool:
        """True if the text knows split-K: where the library has the rest it always does, and for
        the sums of rows of a GEMV."""
        kind = self.gemm.kind
        return kind.in_library or kind is GemmKind.GEMV_AXPY or self.tiles.k_chunks > 1

    def chunks(self) -> str:
        """The launch of the sums over chunks of k: the units of the last launch from `tiles` on."""
        f = self.calls.frame("kernel_chunks")
        tiles = f.number("tiles", self.geometry.count)
        operands = f"i64 {f.add('%first', tiles)}, i64 {f.add('%last', tiles)}"
        f.e.line(f"call void @kernel(ptr %params, ptr %values, {operands})")
        return f.text()

    # --- packing ---------------------------------------------------------------------------------

    def pack(self, f: FunctionBuilder, s: Operand, span: Span, to: Goal) -> None:
        """Fill a block; the batch is open. Dense operands have functions in the library."""
        if self.gemm.is_dense(s):
            module = pack_dense(self.registers, s.name, s.is_transposed)
            self.calls.call(f, module, MOVE, [
                *self.calls.source(f, s, span.own, span.k), to.memory,
                to.stride if s.name == "left" else to.depth, span.owned, span.depth,
            ])  # fmt: skip
            return
        if self.registers.dot:
            f.read["steps"] = f.number("steps of k", self.gemm.steps)
            packer: Packer = BytePacker(f, s, self.registers, self.c.free)
        else:
            packer = Packer(f, s, self.registers, self.c.free)
        if s.is_transposed:
            module = transpose(self.registers)
            self.calls.modules[module.name] = module
        f.scope(lambda: packer.pack(span, to))

    def goal(self, f: FunctionBuilder, memory: str) -> Goal:
        k_packed = self.tiles.k_packed
        return Goal(memory, f.number("stride", k_packed), f.number("deep", k_packed))

    def own_pack_launch(self, s: Operand) -> FunctionBuilder:
        """A launch that packs an operand once for all tiles."""
        f, geo = self.calls.frame(f"kernel_{s.name}"), self.geometry
        all_ = f.number(("all", s.name), geo.size_of(s))
        blocks, depth = f.number("blocks", geo.blocks), f.number("depth", self.gemm.depth)
        wide, tall = geo.pack_unit(s)
        f.read["row"] = f.number(("row", s.name), wide + self.gemm.target.lanes)
        tile = f.number(("piece", s.name), wide)
        tiles = f.number(("pieces", s.name), -(-geo.size_of(s) // wide))
        high = f.number(("high", s.name), tall)
        chunks = f.number(("chunks", s.name), geo.pack_chunks(tall))
        steps = f.number("block of k", self.tiles.k_block)
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
        return f

    def shared(
        self,
        f: FunctionBuilder,
        s: Operand,
        batch: str,
        begin: str,
        tile: str,
        number: str,
        down: str,
    ) -> str:
        """Where in the workspace a block of an operand is: places from `begin`, k from `down`."""
        geo = self.geometry
        block_ = f.add(f.mul(batch, f.number("blocks", geo.blocks)), number)
        place = f.mul(block_, f.number(("numbers", s.name), geo.block_elements(s.name)))
        if s.name == "left":
            each = f.number("tile numbers", geo.left_tile_elements)
            place = f.add(place, f.mul(tile, each))
        else:
            place = f.add(place, f.mul(begin, f.number("deep", self.tiles.k_packed)))
            place = f.add(place, f.mul(down, str(self.registers.panel)))
            place = f.add(place, f.number("before right", geo.before_right()))
        base = f.pointer(len(self.c.dtypes))
        return f.e.let(f"getelementptr {self.inner}, ptr {base}, i64 {place}")

    def constants(self, f: FunctionBuilder, nodes: Sequence[Node]) -> None:
        """What depends on no axis, computed once."""
        for node in nodes:
            if not self.c.free[node]:
                f.value(node)

    # --- a tile ----------------------------------------------------------------------------------

    def extent(self, f: FunctionBuilder, name: str) -> _Extent:
        """Places of an operand in all, in a tile, and how many tiles there are."""
        gemm, geo, tiles = self.gemm, self.geometry, self.tiles
        sizes = (
            (gemm.rows, tiles.rows, geo.tall)
            if name == "left"
            else (gemm.columns, tiles.columns, geo.wide)
        )
        names = [f.number((what, name), n) for what, n in zip(("all", "tile", "tiles"), sizes,
                                                              strict=True)]  # fmt: skip
        return _Extent(*names)

    def main(self) -> FunctionBuilder:
        """The last launch: sums of a tile, then the epilogue."""
        f = self.calls.frame("kernel")
        rows, columns = self.extent(f, "left"), self.extent(f, "right")
        f.number("blocks", self.geometry.blocks)
        f.number("depth", self.gemm.depth)
        f.read["row"] = f.number("row", self.tiles.columns + self.gemm.target.lanes)
        scratch = zip(("left", "right", "sums"), self.tiles.scratch(f.e.lanes), strict=True)
        for name, count in scratch:
            if name == "sums" or not self.gemm.kind.in_library:
                f.scratch(name, self.inner, f.number(("scratch", name), count))
        f.part = self.above
        self.constants(f, self.above.nodes)

        def unit(index: str, _: list[str]) -> list[str]:
            _TileText(self, f, rows, columns, index).write()
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        return f

    def sums_in_place_now(self, f: FunctionBuilder) -> str:
        """True if this run keeps accumulators where results go: convolutions share texts."""
        return f.e.let(f"icmp ne i64 {f.number('direct', int(self.tiles.in_place))}, 0")

    @property
    def chooses_place(self) -> bool:
        """True if the text knows both places of accumulators."""
        gemm = self.gemm
        if gemm.kind.reads_matrices:
            return gemm.has_result_rows and not gemm.is_bare
        return gemm.kind.reads_views and gemm.may_sum_in_place

    def results_place(self, f: FunctionBuilder, top: str, start: str) -> tuple[str, str]:
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

    def block_of(
        self, f: FunctionBuilder, s: Operand, batch: str, tile: str, number: str, span: Span
    ) -> tuple[str, str, str]:
        """Where a block of an operand is, and its strides, own and of k; packed now if need be."""
        e, route = f.e, self.geometry.route(s)
        goal = self.goal(f, f.read[s.name])
        if self.geometry.packs_rows and s.name == "right":
            goal = replace(goal, width=f.number(("tile", "right"), self.tiles.columns))
        f.part = s.part
        f.opened(s.part.batch, f.coordinates(s.part.batch, batch))
        if not self.gemm.is_dense(s):
            memory = goal.memory
            if route == "shared":
                memory = self.shared(f, s, batch, span.own, tile, number, "0")
            else:
                self.pack(f, s, span, goal)
            return memory, *self.packed_strides(s, goal)
        memory, step = self.calls.source(f, s, span.own, span.k)
        if self.gemm.is_vector and s.name == "right" and self.gemm.has_panels:
            return self.panels_or_rows(f, s, memory, span)
        if self.gemm.is_vector:
            return (memory, step, "1") if s.along == "folded" else (memory, "1", step)
        kind = f.number(("way", s.name), ROUTES.index(route))
        packed = e.let(f"icmp eq i64 {kind}, {ROUTES.index('tile')}")
        e.branch(packed, lambda: self.pack(f, s, span, goal))
        workspace = self.shared(f, s, batch, span.own, tile, number, "0")
        known = e.let(f"select i1 {packed}, ptr {goal.memory}, ptr {workspace}")
        if s.name == "left" or self.gemm.is_right_readable:
            dense = e.let(f"icmp eq i64 {kind}, {ROUTES.index('dense')}")
            known = e.let(f"select i1 {dense}, ptr {memory}, ptr {known}")
        own, folded = self.geometry.strides(s)
        return known, f.number(("own", s.name), own), f.number(("folded", s.name), folded)

    def packed_strides(self, s: Operand, goal: Goal) -> tuple[str, str]:
        """Strides of a packed block, own and of k."""
        if s.name == "left" or s.k_major:
            return goal.stride, "1"
        panel = goal.width or str(self.registers.panel)
        return "1" if goal.width else goal.depth, panel

    def panels_or_rows(
        self, f: FunctionBuilder, s: Operand, memory: str, span: Span
    ) -> tuple[str, str, str]:
        """Where a block of a GEMV's matrix is, and its strides: memory's rows, or prepacked panels
        of all of k."""
        e, geo = f.e, self.geometry
        self.calls.pack_dense(f, s)  # the launch that packs calls it
        names = zip(("own", "folded"), geo.strides(s), strict=True)
        own, folded = [f.number((name, "right"), stride) for name, stride in names]
        place = f.add(f.mul(span.own, own), f.mul(span.k, folded))
        panels = e.let(f"getelementptr {self.inner}, ptr {self.calls.packed(f, s)}, i64 {place}")
        packed = e.let(f"icmp ne i64 {f.number('prepacked', int(geo.prepacked))}, 0")
        return e.let(f"select i1 {packed}, ptr {panels}, ptr {memory}"), own, folded

    def multiply(
        self, f: FunctionBuilder, a: tuple[str, str, str], b: tuple[str, str, str], sums: str,
        rows: str, columns: str, width: str, depth: str, first: str,
    ) -> None:  # fmt: skip
        """All rows of a tile times one panel after the other."""
        e, r, gemm = f.e, self.registers, self.gemm
        if gemm.is_vector:  # b's rows or columns are read in place
            dotted = gemm.kind is GemmKind.GEMV_DOT
            stride, module = (b[1], gemv_dot) if dotted else (b[2], gemv_axpy)

            all_ = self.tiles.columns  # of a tile: rows of memory are one panel
            wide = f.number("panel", r.panel if self.geometry.prepacked else all_)

            def some(number: str, _: list[str]) -> list[str]:
                column = f.mul(number, wide)
                at = e.let(f"getelementptr {self.inner}, ptr {b[0]}, i64 {f.mul(column, b[1])}")
                to = e.let(f"getelementptr {self.inner}, ptr {sums}, i64 {column}")
                count = f.least(wide, f.sub(columns, column))
                operands = [a[0], at, stride, to, depth, count, first]
                self.calls.call(f, module(r, gemm.memories), GEMV, operands)
                return []

            e.loop("0", f.panels(columns, wide, wide), 1, [], some)
            return
        if gemm.right.k_major:
            operands = [a[0], a[1], *b, sums, width, depth, rows, columns, first]
            self.calls.call(f, skinny(r, True), SKINNY, operands)
            return
        panels = self.geometry.panels()
        wide, reach = [f.number(name, panels[name]) for name in ("wide", "reach")]

        def panel(number: str, _: list[str]) -> list[str]:
            column = f.mul(number, wide)
            place = f.mul(column, b[1])
            at = e.let(f"getelementptr {self.inner}, ptr {b[0]}, i64 {place}")
            to = e.let(f"getelementptr {self.inner}, ptr {sums}, i64 {column}")
            ahead = "null"  # it is dense
            if not self.geometry.packs_rows:
                ahead = e.let(f"getelementptr {self.inner}, ptr {at}, i64 {f.mul(wide, b[1])}")
                if gemm.is_right_readable:
                    kind = f.number(("way", "right"), ROUTES.index(self.tiles.right))
                    dense = e.let(f"icmp eq i64 {kind}, {ROUTES.index('dense')}")
                    ahead = e.let(f"select i1 {dense}, ptr null, ptr {ahead}")
            count = f.in_panel(f.sub(columns, column), wide, reach)
            operands = [*a, at, b[2], to, width, depth, rows, count, first, ahead]
            self.calls.call(f, block(r), MICROKERNEL_TYPES, operands)
            return []

        e.loop("0", f.panels(columns, wide, reach), 1, [], panel)

    # --- the epilogue ----------------------------------------------------------------------------

    def epilogue(
        self,
        f: FunctionBuilder,
        sums: str,
        top: str,
        rows: str,
        start: str,
        columns: str,
        width: str,
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
                axis, wide, begin = above.columns.axes[-1], e.lanes * several, first

                def vector(step: str) -> None:
                    place = f.add(base, f.add(offset, f.add(f.sub(begin, first), step)))
                    where = e.let(f"getelementptr {self.inner}, ptr {sums}, i64 {place}")
                    f.scopes[-1][self.c.fold] = self.rounded(f, self.read_sums(f, where, f.mask))
                    values = [f.value(s.src[0]) for s in self.c.stores]
                    for store, value in zip(self.c.stores, values, strict=True):
                        f.store(store, value)

                for node in fixed:
                    f.value(node)
                if several > 1:  # a mask without lanes would keep what is below it waiting
                    end = f.sub(last, e.let(f"urem i64 {f.sub(last, first)}, {wide}"))
                    e.lanes = wide
                    f.lanes(axis, first, end, (), vector, whole_only=True)
                    e.lanes, begin = wide // several, end
                f.lanes(axis, begin, last, (), vector)

            f.runs(above.columns, at[1], columns, run)

        wide = self.gemm.target.vectors == "avx512" and self.size == 4
        several = GEMM.epilogue_vectors if wide else 1
        f.walk(above.rows, at[0], rows, row)

    def read_sums(self, f: FunctionBuilder, where: str, mask: str | None) -> Val:
        """Sums from their tile: it has room for whole vectors, memory of results has not."""
        e, dtype = f.e, self.registers.dtype
        kind = f"<{e.lanes} x {self.inner}>"
        if mask is None:
            return Val(e.let(f"load {kind}, ptr {where}, align 1"), dtype, True)
        return Val(masked_load(e, kind, where, mask), dtype, True)

    def rounded(self, f: FunctionBuilder, value: Val) -> Val:
        """A sum in its own dtype."""
        dtype = self.c.fold.dtype
        if dtype.is_small_float:
            return round_small(f.e, value, dtype)
        return cast(f.e, value, self.registers.dtype, dtype)


class _TileText:
    """A unit of the last launch: one tile, or one chunk of k of a tile."""

    def __init__(
        self, template: _Template, f: FunctionBuilder, rows: _Extent, columns: _Extent, index: str
    ) -> None:
        self.template, self.f = template, f
        self.all_rows, self.all_columns = rows, columns
        self.chunk = _Chunk(template, f, index) if template.splits else None
        outer, self.column = f.divided(self.chunk.tile if self.chunk else index, columns.tiles)
        self.batch, self.row = f.divided(outer, rows.tiles)  # rows stay while columns go by
        self.top, self.start = f.mul(self.row, rows.tile), f.mul(self.column, columns.tile)
        self.rows = f.least(rows.tile, f.sub(rows.total, self.top))
        self.columns = f.least(columns.tile, f.sub(columns.total, self.start))
        if template.gemm.kind.reads_matrices:
            stretch = template.geometry.stretch()
            each, over, unit = [f.number(name, n) for name, n in stretch.items()]
            found = f.stretched(self.column, each, over, unit, columns.total)
            self.start, self.columns = found

    def write(self) -> None:
        """Everything that the unit does."""
        p, f = self.template, self.f
        sums, width = self.place()
        begin, end = "0", f.number("blocks", p.geometry.blocks)
        if self.chunk:
            sums, width = self.chunk.home(sums, width, self.all_columns.tile)
            begin, end = self.chunk.blocks(end)
        if p.gemm.kind.in_library:
            place = self.batch, self.row, self.column
            p.calls.tile(f, place, (begin, end), sums, width)
        else:
            f.e.loop(begin, end, 1, [], lambda k, _: self.block_of_k(k, begin, sums, width))
        if self.chunk:
            self.chunk.join(sums, width, self.rows, self.columns)
        f.part = p.above
        f.opened(p.above.batch, f.coordinates(p.above.batch, self.batch))
        self.finish(sums, width)

    def place(self) -> tuple[str, str]:
        """Where accumulators are and how far apart their rows: results, or a tile of their own."""
        p, f = self.template, self.f
        apart = f.read["sums"], self.all_columns.tile
        if not (p.tiles.in_place or p.chooses_place):
            return apart
        f.part = p.above
        f.opened(p.above.batch, f.coordinates(p.above.batch, self.batch))
        place = p.results_place(f, self.top, self.start)
        if not p.chooses_place:
            return place
        now = p.sums_in_place_now(f)
        return (
            f.e.let(f"select i1 {now}, ptr {place[0]}, ptr {apart[0]}"),
            f.e.let(f"select i1 {now}, i64 {place[1]}, i64 {apart[1]}"),
        )

    def block_of_k(self, number: str, begin: str, sums: str, width: str) -> list[str]:
        """The products of one block of k."""
        p, f = self.template, self.f
        f.scopes.append({})
        left = self.span(self.top, self.all_rows, number)
        right = self.span(self.start, self.all_columns, number)
        first = f.e.let(f"icmp eq i64 {number}, {begin}")
        a = p.block_of(f, p.gemm.left, self.batch, self.row, number, left)
        b = p.block_of(f, p.gemm.right, self.batch, self.column, number, right)
        p.multiply(f, a, b, sums, self.rows, self.columns, width, left.depth, first)
        f.scopes.pop()
        return []

    def span(self, begin: str, extent: _Extent, number: str) -> Span:
        """A tile's places of an operand and one block of k."""
        p, f = self.template, self.f
        depth, steps = f.number("depth", p.gemm.depth), f.number("block of k", p.tiles.k_block)
        k = f.mul(number, steps)
        owned = f.least(extent.tile, f.sub(extent.total, begin))
        return Span(begin, owned, k, f.least(steps, f.sub(depth, k)))

    def finish(self, sums: str, width: str) -> None:
        """The epilogue, unless sums are where they belong already."""
        p, f = self.template, self.f
        bare, last = p.gemm.is_bare, self.chunk.is_last if self.chunk else ""
        if bare and p.chooses_place:
            last = f.e.let(f"select i1 {p.sums_in_place_now(f)}, i1 false, i1 {last}")
        elif bare and p.tiles.in_place:
            return

        def results() -> None:
            sizes = self.top, self.rows, self.start, self.columns
            f.scope(lambda: p.epilogue(f, sums, *sizes, width))

        f.e.branch(last, results) if last else results()


class _Chunk:
    """Split-K: a unit of the last launch where k may be cut in chunks.

    Units below `tiles` have all of k: they compute it, or join what was computed before. Those
    from there on compute the sums of one chunk, into the workspace.
    """

    def __init__(self, template: _Template, f: FunctionBuilder, index: str) -> None:
        self.template, self.f = template, f
        self.tiles = f.number("tiles", template.geometry.count)
        self.count = f.number("chunks", template.tiles.k_chunks)
        self.is_last = f.e.let(f"icmp slt i64 {index}, {self.tiles}")
        beyond = f.sub(index, self.tiles)
        self.number = f.e.let(f"select i1 {self.is_last}, i64 {index}, i64 {beyond}")
        self.chunk, self.tile = f.divided(self.number, self.tiles)
        several = f.e.let(f"icmp sgt i64 {self.count}, 1")
        self.joins = f.e.let(f"and i1 {several}, {self.is_last}")
        self.apart = f.e.let(f"xor i1 {self.is_last}, true")
        if template.chooses_place:
            now = template.sums_in_place_now(f)
            self.apart = f.e.let(f"select i1 {now}, i1 {self.apart}, i1 {several}")
        elif not template.tiles.in_place:
            self.apart = several

    def home(self, sums: str, width: str, columns: str) -> tuple[str, str]:
        """Where the sums are, and how far apart their rows: results, or the workspace."""
        p, f = self.template, self.f
        each = f.number("numbers of a tile", p.tiles.rows * p.tiles.columns)
        self.step, self.width = f.mul(self.tiles, each), columns
        before = f.number("before sums", p.geometry.before_sums())
        base, place = f.pointer(len(p.c.dtypes)), f.add(before, f.mul(self.number, each))
        self.memory = f.e.let(f"getelementptr {p.inner}, ptr {base}, i64 {place}")
        return (
            f.e.let(f"select i1 {self.apart}, ptr {self.memory}, ptr {sums}"),
            f.e.let(f"select i1 {self.apart}, i64 {columns}, i64 {width}"),
        )

    def blocks(self, all_: str) -> tuple[str, str]:
        """The blocks of k that this unit computes: none where it joins."""
        f = self.f
        share = f.number("share", self.template.geometry.chunk_blocks)
        begin = f.mul(self.chunk, share)
        end = f.least(all_, f.add(begin, share))
        return begin, f.e.let(f"select i1 {self.joins}, i64 {begin}, i64 {end}")

    def join(self, sums: str, width: str, rows: str, columns: str) -> None:
        """Add up the sums of all chunks, in order."""
        p, f = self.template, self.f
        by_blocks = f.number("by blocks", int(p.tiles.by_blocks))
        rounds = f.e.let(f"icmp ne i64 {by_blocks}, 0")
        operands = [self.memory, self.step, self.count, self.width, sums, width, rows, columns,
                    rounds]  # fmt: skip
        f.e.branch(self.joins, lambda: p.calls.call(f, join(p.registers), JOIN, operands))
