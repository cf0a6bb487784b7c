"""The template of folds: one pass over blocks of an axis, with states that are repaired on the way.

In: an `IndexKernel` that streams (graph/search/online.py). Out: a `Rendered`, or None. A unit owns
some rows. Its queries are packed once; for every block of the streamed axis the products inside are
computed by the library's microkernels into a tile with the rows side by side, so lanes are rows and
nothing is folded across lanes. The states of a row live in small arrays. States with columns are
sums that a microkernel adds weights times values to; when the bases under them moved, their rows are
repaired first. Keys and values are read where they are if they lie well, else packed a block at a
time: there is no memory but that of the tile. Blocks that a condition on indices leaves out whole
are skipped. The order of all sums follows from the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.dtype import DType, bool_
from ..core.node import Node, toposort
from ..core.ops.index import FOLD, STORE
from ..core.ops.leaf import SINK
from ..graph.affine import Affine
from ..graph.lower import IndexKernel
from ..graph.search.online import State, stream
from ..kernel.contract import DEPTH, NEAR, Block, Line, is_plain
from ..kernel.fold import Fold, FoldCut, Matrix, Product, cut_fold, find_fold
from ..kernel.skip import tests
from .code import Phase, Rendered
from .emitter import Val, scalar_type
from .foldframe import FoldFrame
from .frame import Numbers
from .microkernel import Module, Registers, block, transpose
from .operate import combine, identity
from .packing import Packer, Side, Span, side
from .packing import Target as Goal
from .target import Target

_MASKS = ("avx512", "avx2")  # targets that load part of a vector in one instruction
_LIGHT = 24  # cost of a step that is over before its sum is there
_TURNS = 4  # sums that such a walk keeps at a time
_CLOSE = 2048  # bytes of a row of values that is near enough to be read as it is


def folds(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> Rendered | None:
    """A kernel that streams over an axis."""
    streaming = stream(kernel)
    fold = None if streaming is None else find_fold(streaming)
    if fold is None:
        return None
    registers = Registers(fold.dtype, target)
    shape = Block(registers.height, registers.panel, target.lanes, fold.dtype.itemsize)
    cut = cut_fold(fold, shape, DEPTH)
    return None if cut is None else _Template(fold, dtypes, registers, cut).render()


def _is_memory(s: Side) -> bool:
    """Is a factor memory as it is, next to each other along one line?"""
    return is_plain(s.part, s.root, s.own, s.along)


class _Template:
    def __init__(
        self, fold: Fold, dtypes: Sequence[DType], registers: Registers, cut: FoldCut
    ) -> None:
        self.fold, self.dtypes, self.registers, self.cut = fold, dtypes, registers, cut
        self.target = registers.target
        self.inner = scalar_type(fold.dtype)
        self.lanes = self.target.lanes
        self.vector = f"<{self.lanes} x {self.inner}>"
        self.states = fold.streaming.states
        self.group = {s.fold for s in self.states}
        self.stops = self.group | {p.node for p in fold.products}
        self.streamed = frozenset(fold.streaming.axes)
        self.rows, self.length = fold.count(fold.rows), fold.count(fold.streaming.axes)
        self.batch = fold.count(fold.batch)
        self.modules: dict[str, Module] = {}
        self.numbers = Numbers(fold.order)
        self.tall = -(-self.rows // cut.rows)
        self.wide = 1
        if len(fold.matrices) == 1:
            self.wide = -(-fold.count(fold.columns[0]) // cut.columns[0])
        self.olds = {s.old for s in self.states}
        self.tainted = self._tainted()
        self.keys = [side(p.contraction, "left") for p in fold.products]
        self.queries = [side(p.contraction, "right") for p in fold.products]
        self.values = [side(m.contraction, "right") for m in fold.matrices]
        self.coefficients = self._coefficients()
        self.tests = tests(self.states, self.streamed)

    def _tainted(self) -> set[Node]:
        """Nodes that depend on states."""
        found: set[Node] = set()
        for node in self.fold.order:
            if node in self.group or node in self.olds or any(s in found for s in node.src):
                found.add(node)
        return found

    def _coefficients(self) -> dict[Node, int]:
        """What repairs of states with columns need for each row, numbered."""
        found: dict[Node, int] = {}
        with_columns = {m.state.old for m in self.fold.matrices}
        for m in self.fold.matrices:
            if m.state.repair is None:
                continue
            moving: set[Node] = set()
            for node in toposort([m.state.repair]):
                if node in with_columns or any(s in moving for s in node.src):
                    moving.add(node)
            for node in toposort([m.state.repair]):
                for source in node.src if node in moving else ():
                    if source not in moving and (source in self.tainted or self.fold.free[source]):
                        found.setdefault(source, len(found))
            if m.state.repair not in moving:
                found.setdefault(m.state.repair, len(found))
        return found

    # --- the whole kernel ------------------------------------------------------------------------

    def render(self) -> Rendered:
        f = self.main()
        products = sum([self.fold.count(p.contraction.folded) for p in self.fold.products])
        products += sum([self.fold.count(c) for c in self.fold.columns])
        work = 3 * self.batch * self.rows * self.length * (products + 16) // self.lanes
        text = "\n".join([f.text(), *f.e.declared.values(), ""])
        library = tuple(m.text for n, m in sorted(self.modules.items()) if n in f.e.declared)
        phase = Phase("kernel", self.batch * self.tall * self.wide, work)
        return Rendered(
            text, (phase,), tuple(self.numbers.variables), tuple(self.numbers.values), 0, library
        )

    def main(self) -> FoldFrame:
        masked = self.target.vectors == "avx512"
        f = self.f = FoldFrame("kernel", self.numbers, self.dtypes, self.lanes, masked)
        f.sizes = self.fold.sizes
        e = f.e
        all_rows, tile_rows = f.number("rows", self.rows), f.number("tile rows", self.cut.rows)
        tall, wide = f.number("tall", self.tall), f.number("wide", self.wide)
        length, steps = f.number("length", self.length), f.number("steps", self.cut.steps)
        f.read["row"] = f.number("row", max(self.cut.rows, *self.cut.columns, 0) + self.lanes)
        self.stride = f.number("stride", self.cut.rows + self.lanes)
        self.reserve()
        f.part = self.fold.part([], (), ())
        for node in self.fold.order:
            plain = node not in self.tainted and node.op not in (FOLD, STORE, SINK)
            if plain and not self.fold.free[node]:
                e.pin(f.value(node))

        def unit(index: str, _: list[str]) -> list[str]:
            outer, row = f.divided(index, tall)
            self.at, column = f.divided(outer, wide)
            self.top = f.mul(row, tile_rows)
            self.count = f.least(tile_rows, f.sub(all_rows, self.top))
            self.left: list[tuple[str, str]] = []  # of each matrix: first column, how many
            for number, columns in enumerate(self.fold.columns):
                size = f.number(("columns", number), self.fold.count(columns))
                tile = f.number(("tile columns", number), self.cut.columns[number])
                start = f.mul(column, tile)
                self.left.append((start, f.least(tile, f.sub(size, start))))
            f.scopes.append({})
            for number, _product in enumerate(self.fold.products):
                if self.cut.resident[number]:
                    self.pack_queries(number)
            self.begin()

            def turn(k: str, _: list[str]) -> list[str]:
                self.k, self.deep = k, f.least(steps, f.sub(length, k))
                self.when_possible(lambda: f.scope(self.block))
                return []

            e.loop("0", length, self.cut.steps, [], turn)
            self.finish()
            f.scopes.pop()
            return []

        e.loop("%first", "%last", 1, [], unit)
        return f

    # --- memory of a tile ------------------------------------------------------------------------

    def reserve(self) -> None:
        """Everything a tile needs, on the stack."""
        f, cut = self.f, self.cut
        tile = cut.steps * (cut.rows + self.lanes) + self.lanes
        for number, product in enumerate(self.fold.products):
            self.room(f"tile{number}", tile)
            blocks = self.blocks(product) if cut.resident[number] else 1
            self.room(f"queries{number}", blocks * self.query_numbers(product))
            if not self.is_plain(self.keys[number]):
                self.room(f"keys{number}", (cut.steps + self.lanes) * self.deepest(product))
        self.tiles: list[str] = []  # of each matrix: the name of its weights' tile
        inner = {p.node: number for number, p in enumerate(self.fold.products)}
        for number, m in enumerate(self.fold.matrices):
            if m.weights in inner:
                self.tiles.append(f"tile{inner[m.weights]}")
            elif self.in_place(m):
                self.tiles.append("tile0")
            else:
                self.room(f"weights{number}", tile)
                self.tiles.append(f"weights{number}")
            self.room(f"sums{number}", cut.rows * (cut.columns[number] + self.lanes) + self.lanes)
            if not self.is_near(number):
                self.room(f"values{number}", cut.columns[number] * (cut.steps + self.lanes))
        for number in range(len(self.states)):
            self.room(f"state{number}", cut.rows + 2 * self.lanes)
        for number in range(len(self.coefficients)):
            self.room(f"coefficient{number}", cut.rows + 2 * self.lanes)
        self.room("changed", cut.rows + 2 * self.lanes)
        f.scratch("begun", "i64", "1")

    def room(self, name: str, count: int) -> None:
        self.f.scratch(name, self.inner, self.f.number(("room", name), count))

    def in_place(self, m: Matrix) -> bool:
        """May weights take the place of the product they are made of?"""
        only = len(self.fold.products) == 1 and len(self.fold.matrices) == 1
        product = self.fold.products[0].node if only else None
        later = [s.body for s in self.fold.scalars if s.level > m.state.level]
        return only and product not in toposort(later)

    def blocks(self, p: Product) -> int:
        return -(-self.fold.count(p.contraction.folded) // DEPTH)

    def deepest(self, p: Product) -> int:
        depth = self.fold.count(p.contraction.folded)
        return min(DEPTH, -(-depth // self.lanes) * self.lanes) + self.lanes

    def query_numbers(self, p: Product) -> int:
        panel = self.registers.panel
        return -(-self.cut.rows // panel) * panel * self.deepest(p)

    def is_plain(self, s: Side) -> bool:
        """Can microkernels read keys where they are?"""
        far = self.length * self.fold.dtype.itemsize > NEAR
        if not _is_memory(s) or (far and not s.straight):
            return False
        return self.dtypes[s.root.arg[0]] is self.fold.dtype

    def is_near(self, number: int) -> bool:
        """Can microkernels read values where they are?"""
        s = self.values[number]
        if not (_is_memory(s) and s.straight) or self.target.vectors not in _MASKS:
            return False
        close = self.fold.count(self.fold.columns[number]) * self.fold.dtype.itemsize <= _CLOSE
        return close and self.dtypes[s.root.arg[0]] is self.fold.dtype

    def element(self, memory: str, place: str) -> str:
        return self.f.e.let(f"getelementptr {self.inner}, ptr {memory}, i64 {place}")

    def load(self, memory: str, place: str) -> Val:
        where = self.element(memory, place)
        return Val(self.f.e.let(f"load {self.vector}, ptr {where}, align 4"), self.fold.dtype, True)

    def one(self, memory: str, place: str) -> Val:
        where = self.element(memory, place)
        return Val(self.f.e.let(f"load {self.inner}, ptr {where}, align 4"), self.fold.dtype)

    def put(self, memory: str, place: str, value: Val) -> None:
        """Write the lanes that are in use."""
        f = self.f
        where, text = self.element(memory, place), f.e.splat(value).text
        if f.mask is None:
            f.e.line(f"store {self.vector} {text}, ptr {where}, align 4")
            return
        name = f"llvm.masked.store.{f.e.suffix(self.fold.dtype, True)}.p0"
        mask = f"<{self.lanes} x i1>"
        f.e.declare(f"void @{name}({self.vector}, ptr, {mask})", name)
        f.e.line(
            f"call void @{name}({self.vector} {text}, ptr align 4 {where}, {mask} {f.mask})"
        )

    def begin(self) -> None:
        """States before anything was seen."""
        f, e = self.f, self.f.e
        e.line(f"store i64 0, ptr {f.read['begun']}")
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                start = identity(e, state.op, self.fold.dtype, True)
                self.fill(f.read[f"state{number}"], self.count, start)
        for number, (_, count) in enumerate(self.left):
            width = self.width(number)
            zero = e.const(0, self.fold.dtype, True)
            memory = f.read[f"sums{number}"]

            def row(r: str, _: list[str], memory: str = memory, width: str = width,
                    count: str = count, zero: Val = zero) -> list[str]:  # fmt: skip
                self.fill(self.element(memory, f.mul(r, width)), count, zero)
                return []

            e.loop("0", self.count, 1, [], row)

    def fill(self, memory: str, count: str, value: Val) -> None:
        def step(i: str, _: list[str]) -> list[str]:
            where = self.element(memory, i)
            self.f.e.line(f"store {self.vector} {value.text}, ptr {where}, align 4")
            return []

        self.f.e.loop("0", count, self.lanes, [], step)

    def width(self, number: int) -> str:
        """Numbers from one row of sums to the next."""
        return self.f.number(("width", number), self.cut.columns[number] + self.lanes)

    # --- products --------------------------------------------------------------------------------

    def packer(self, s: Side) -> Packer:
        if not s.straight:
            module = transpose(self.registers)
            self.modules[module.name] = module
        return Packer(self.f, s, self.registers, self.fold.free)

    def open_batch(self, s: Side) -> None:
        self.f.part = s.part
        self.f.opened(s.part.batch, self.f.coordinates(s.part.batch, self.at))

    def goal(self, memory: str, depth: int) -> Goal:
        text = self.f.number(("deep", depth), depth)
        return Goal(memory, text, text)

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
            f.scope(lambda: self.packer(s).pack(span, self.goal(at, self.deepest(product))))

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
                goal = self.goal(left, self.deepest(product))
                f.scope(lambda: self.packer(s).pack(span, goal))
            first = "true" if b == "0" else e.let(f"icmp eq i64 {b}, 0")

            def panel(column: str, _: list[str]) -> list[str]:
                at = self.element(right, f.mul(column, deep))
                to = self.element(tile, column)
                self.multiply(
                    module, (left, *strides), (at, str(self.registers.panel)), (to, self.stride),
                    (many, self.deep, f.sub(self.count, column)), first,
                )  # fmt: skip
                return []

            e.loop("0", self.count, self.registers.panel, [], panel)
            f.scopes.pop()
            return []

        if self.blocks(product) == 1:
            turn("0", [])
        else:
            e.loop("0", f.number(("blocks", number), self.blocks(product)), 1, [], turn)

    def multiply(
        self, module: Module, a: tuple[str, str, str], b: tuple[str, str], c: tuple[str, str],
        sizes: tuple[str, str, str], first: str,
    ) -> None:  # fmt: skip
        """Rows times a panel, by a microkernel: pointers with strides, then depth, rows, columns."""
        self.modules[module.name] = module
        kinds = "ptr, i64, i64, ptr, i64, ptr, i64, i64, i64, i64, i1, ptr"
        self.f.e.declare(f"void @{module.name}({kinds})", module.name)
        depth, rows, columns = sizes
        self.f.e.line(
            f"call void @{module.name}(ptr {a[0]}, i64 {a[1]}, i64 {a[2]}, ptr {b[0]}, i64 {b[1]}, "
            f"ptr {c[0]}, i64 {c[1]}, i64 {depth}, i64 {rows}, i64 {columns}, i1 {first}, "
            f"ptr {b[0]})"
        )

    def where(self, s: Side, own: str, folded: str) -> tuple[str, str]:
        """Where a plain factor begins, and how far apart its rows are."""
        f = self.f
        f.open[s.own.axes[0]], f.open[s.part.folded.axes[0]] = own, folded
        number, index, _ = s.root.arg
        name = ("at", self.numbers.position[s.root])
        place = f.index(index, (), name).text
        rows = s.name == "left" and s.straight
        other = s.own.axes[0] if rows else s.part.folded.axes[0]
        steps = [(p, step) for p, (atom, step) in enumerate(index[1]) if atom == other]
        stride = f.number((name, steps[0][0], "step"), steps[0][1])
        return self.element(f.pointer(number), place), stride

    # --- a block ---------------------------------------------------------------------------------

    def when_possible(self, body: Callable[[], None]) -> None:
        """A block, unless its indices alone say that it adds nothing."""
        e, needed = self.f.e, ""
        for test in self.tests:
            most = self.most(test.index)
            now = e.let(f"icmp sge i64 {most}, 0")
            needed = e.let(f"and i1 {needed}, {now}") if needed else now
        if needed:
            e.branch(needed, body)
        else:
            body()

    def most(self, index: Affine) -> str:
        """The largest value of an index over the rows of this tile and this block."""
        f, e = self.f, self.f.e
        total = f.number(("most", index, "offset"), index[0]) if index[0] else "0"
        last = f.sub(f.add(self.k, self.deep), "1")
        ranges = self.reach(self.fold.streaming.axes, self.k, last)
        end = f.sub(f.add(self.top, self.count), "1")
        ranges |= self.reach(self.fold.rows, self.top, end)
        ranges |= self.reach(self.fold.batch, self.at, self.at)
        for place, (atom, step) in enumerate(index[1]):
            assert isinstance(atom, int)
            low, high = ranges[atom]
            each = f.number(("most", index, place), step)
            total = f.add(total, f.mul(high if step > 0 else low, each))
        return total if total.startswith("%") else e.let(f"add i64 {total}, 0")

    def reach(self, axes: Sequence[int], first: str, last: str) -> dict[int, tuple[str, str]]:
        """The least and largest index of every axis between two places of a line."""
        f, e = self.f, self.f.e
        if len(axes) == 1:
            return {axes[0]: (first, last)}
        line = Line(tuple(axes), tuple([self.fold.sizes[a] for a in axes]), frozenset())
        f.part = self.fold.part([], (), ())
        pairs = [f.coordinates(line, first), f.coordinates(line, last)]
        found: dict[int, tuple[str, str]] = {}
        same = "true"
        for axis, low, high in zip(axes, *pairs, strict=True):
            most = f.number(("last", axis), self.fold.sizes[axis] - 1)
            found[axis] = (
                e.let(f"select i1 {same}, i64 {low}, i64 0"),
                e.let(f"select i1 {same}, i64 {high}, i64 {most}"),
            )
            equal = e.let(f"icmp eq i64 {low}, {high}")
            same = e.let(f"and i1 {same}, {equal}")
        return found

    def block(self) -> None:
        f, e = self.f, self.f.e
        for number in range(len(self.fold.products)):
            self.product(number)
        begun = e.let(f"load i64, ptr {f.read['begun']}")
        self.begun = e.let(f"icmp ne i64 {begun}, 0")
        if self.fold.scalars or any(t.startswith("weights") for t in self.tiles) or (
            "tile0" in self.tiles and self.fold.matrices[0].weights not in self.stops
        ):
            self.walk_rows()
        if self.coefficients:
            e.branch(self.begun, lambda: f.scope(self.repair))
        for number in range(len(self.fold.matrices)):
            self.add(number)
        e.line(f"store i64 1, ptr {f.read['begun']}")

    def bodies(self, level: int) -> list[Node]:
        """What one walk over a block computes."""
        found = [s.body for s in self.fold.scalars if s.level == level]
        return found + [
            m.weights for m in self.fold.matrices
            if m.state.level == level and m.weights not in self.stops
        ]  # fmt: skip

    def walk_rows(self) -> None:
        """All states of one number a row, and the weights, lanes along the rows."""
        f, fold = self.f, self.fold
        every = [b for level in range(fold.levels) for b in self.bodies(level)]
        repairs = [s.repair for s in fold.scalars if s.repair is not None]
        roots = [*every, *repairs, *self.coefficients]
        part = f.part = fold.part(roots, self.stops | self.olds, fold.streaming.axes)
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
        for level in range(self.fold.levels):
            self.walk_level(level, place)
        for node, number in self.coefficients.items():
            self.put(f.read[f"coefficient{number}"], place, self.as_number(f.value(node)))
        if self.coefficients:
            self.put(f.read["changed"], place, self.as_number(self.moved()))
        for state in self.fold.scalars:
            self.put(memory[state], place, e.splat(scope[state.fold]))

    def as_number(self, value: Val) -> Val:
        """A truth as 0 or 1."""
        e = self.f.e
        if value.dtype is not bool_:
            return value
        value = e.splat(value)
        one, zero = (e.const(n, self.fold.dtype, True).text for n in (1, 0))
        kinds = f"<{self.lanes} x i1> {value.text}, {self.vector} {one}, {self.vector} {zero}"
        return Val(e.let(f"select {kinds}"), self.fold.dtype, True)

    def moved(self) -> Val:
        """Which rows have a base that is not what it was."""
        f, e = self.f, self.f.e
        found: str | None = None
        for state in self.fold.scalars:
            pair = [e.splat(f.scopes[-1][n]).text for n in (state.fold, state.old)]
            used = any(state.old in toposort([c]) for c in self.coefficients)
            if used:
                now = e.let(f"fcmp une {self.vector} {pair[0]}, {pair[1]}")
                kind = f"<{self.lanes} x i1>"
                found = now if found is None else e.let(f"or {kind} {found}, {now}")
        if found is None:
            return Val(f"splat (i1 true)", bool_, True)
        return Val(found, bool_, True)

    def walk_level(self, level: int, place: str) -> None:
        """One walk over a block: states of a level, and weights that need no later ones."""
        f, e, fold = self.f, self.f.e, self.fold
        scope = f.scopes[-1]
        scalars = [s for s in fold.scalars if s.level == level]
        weights = [
            (number, m.weights) for number, m in enumerate(fold.matrices)
            if m.state.level == level and m.weights not in self.stops
        ]  # fmt: skip
        part = f.part
        assert part is not None
        if scalars or weights:
            nodes = fold.part(self.bodies(level), self.stops | self.olds, ()).nodes
            for node in nodes:
                if not fold.free[node] & self.streamed and node not in self.stops:
                    e.pin(f.value(node))

            def step(i: str, sums: list[str]) -> list[str]:
                f.opened(part.columns, f.coordinates(part.columns, f.add(self.k, i)))
                f.scopes.append({})
                line = f.add(f.mul(i, self.stride), place)
                for number, product in enumerate(fold.products):
                    if product.node in nodes:
                        f.scopes[-1][product.node] = self.load(f.read[f"tile{number}"], line)
                out = []
                for state, total in zip(scalars, sums, strict=True):
                    known = Val(total, fold.dtype, True)
                    found = combine(e, state.op, known, e.splat(f.value(state.body)))
                    out.append(found.text)
                for number, node in weights:
                    self.put(f.read[self.tiles[number]], line, f.value(node))
                f.scopes.pop()
                return out

            light = sum([n.op.cost for n in nodes]) <= _LIGHT
            sums = self.steps(scalars, step, _TURNS if light else 1)
            for state, total in zip(scalars, sums, strict=True):
                before = scope[state.old]
                if state.repair is not None:
                    before = self.as_before(f.value(state.repair))
                scope[state.fold] = combine(e, state.op, before, Val(total, fold.dtype, True))

    def steps(
        self, states: Sequence[State], step: Callable[[str, list[str]], list[str]], turns: int
    ) -> list[str]:
        """All steps of a block; several sums each where one would wait for itself."""
        f, e = self.f, self.f.e
        starts = [identity(e, s.op, self.fold.dtype, True).text for s in states]
        count = len(states)
        if turns == 1:
            return e.loop("0", self.deep, 1, [(self.vector, s) for s in starts], step)
        rest = e.let(f"urem i64 {self.deep}, {turns}")
        whole = f.sub(self.deep, rest)

        def several(i: str, sums: list[str]) -> list[str]:
            out: list[str] = []
            for turn in range(turns):
                out += step(f.add(i, str(turn)), sums[turn * count : (turn + 1) * count])
            return out

        carried = [(self.vector, s) for _ in range(turns) for s in starts]
        sums = e.loop("0", whole, turns, carried, several)
        last = e.loop(whole, self.deep, 1, [(self.vector, s) for s in sums[:count]], step)
        for turn in range(1, turns):
            for place, state in enumerate(states):
                pair = [Val(t, self.fold.dtype, True)
                        for t in (last[place], sums[turn * count + place])]  # fmt: skip
                last[place] = combine(e, state.op, *pair).text
        return last

    def as_before(self, repaired: Val) -> Val:
        """A repaired sum; 0 if there was nothing before."""
        e = self.f.e
        text, zero = e.splat(repaired).text, e.const(0, self.fold.dtype, True).text
        kinds = f"{self.vector} {text}, {self.vector} {zero}"
        return Val(e.let(f"select i1 {self.begun}, {kinds}"), self.fold.dtype, True)

    # --- states with columns ---------------------------------------------------------------------

    def repair(self) -> None:
        """Rows of sums whose bases moved, as if they had been built on those of now."""
        f, e = self.f, self.f.e

        def row(r: str, _: list[str]) -> list[str]:
            moved = self.one(f.read["changed"], r).text
            yes = e.let(f"fcmp une {self.inner} {moved}, {e.const(0, self.fold.dtype).text}")
            e.branch(yes, lambda: f.scope(lambda: self.repair_row(r)))
            return []

        e.loop("0", self.count, 1, [], row)

    def repair_row(self, r: str) -> None:
        f, e = self.f, self.f.e
        scope = f.scopes[-1]
        for node, number in self.coefficients.items():
            value = self.one(f.read[f"coefficient{number}"], r)
            if node.dtype is bool_:
                zero = e.const(0, self.fold.dtype).text
                value = Val(e.let(f"fcmp une {self.inner} {value.text}, {zero}"), bool_)
            scope[node] = value
            e.pin(value)
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, columns in enumerate(self.fold.columns):
            groups.setdefault(columns, []).append(number)
        for members in groups.values():
            self.repair_columns(r, members)

    def repair_columns(self, r: str, members: list[int]) -> None:
        f = self.f
        found = [(n, self.fold.matrices[n].state) for n in members]

        def step(c: str, _: list[str]) -> list[str]:
            f.scopes.append({})
            places = {n: f.add(f.mul(r, self.width(n)), c) for n in members}
            for n, state in found:
                f.scopes[-1][state.old] = self.load(f.read[f"sums{n}"], places[n])
            made = [(n, f.value(s.repair)) for n, s in found if s.repair is not None]
            for n, value in made:
                where = self.element(f.read[f"sums{n}"], places[n])
                f.e.line(f"store {self.vector} {f.e.splat(value).text}, ptr {where}, align 4")
            f.scopes.pop()
            return []

        f.e.loop("0", self.left[members[0]][1], self.lanes, [], step)

    def add(self, number: int) -> None:
        """Weights times values, added to the sums."""
        f, e, s = self.f, self.f.e, self.values[number]
        start, count = self.left[number]
        near = self.is_near(number)
        module = block(self.registers, near)
        self.open_batch(s)
        panel, deep = self.registers.panel, self.cut.steps + self.lanes
        if near:
            right, stride = self.where(s, start, self.k)
        else:
            right, stride = f.read[f"values{number}"], str(panel)
            span = Span(start, count, self.k, self.deep)
            f.scope(lambda: self.packer(s).pack(span, self.goal(right, deep)))
        weights, sums = f.read[self.tiles[number]], f.read[f"sums{number}"]

        def panel_of(column: str, many: str) -> None:
            place = column if near else f.mul(column, f.number(("deep", deep), deep))
            at, to = self.element(right, place), self.element(sums, column)
            self.multiply(
                module, (weights, "1", self.stride), (at, stride), (to, self.width(number)),
                (self.deep, self.count, many), "false",
            )  # fmt: skip

        if near:
            self.evenly(count, panel_of)
        else:

            def turn(column: str, _: list[str]) -> list[str]:
                panel_of(column, f.sub(count, column))
                return []

            e.loop("0", count, panel, [], turn)

    def evenly(self, columns: str, panel: Callable[[str, str], None]) -> None:
        """Panels of nearly the same number of vectors: one vector alone keeps nobody busy."""
        f, r = self.f, self.registers
        vectors, _ = f.divided(f.add(columns, str(r.width - 1)), str(r.width))
        panels, _ = f.divided(f.add(vectors, str(r.vectors - 1)), str(r.vectors))
        each, more = f.divided(vectors, panels)

        def turn(number: str, _: list[str]) -> list[str]:
            start = f.add(f.mul(number, each), f.least(number, more))
            large = f.e.let(f"icmp slt i64 {number}, {more}")
            count = f.add(each, f.e.let(f"zext i1 {large} to i64"))
            column = f.mul(start, str(r.width))
            panel(column, f.least(f.mul(count, str(r.width)), f.sub(columns, column)))
            return []

        f.e.loop("0", panels, 1, [], turn)

    # --- results ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything that is computed from the states at the end."""
        columns = {frozenset(c): n for n, c in enumerate(self.fold.columns)}
        own = frozenset((*self.fold.batch, *self.fold.rows))
        groups: dict[int, list[Node]] = {}
        for store in self.fold.streaming.stores:
            number = columns.get(self.fold.free[store] - own, -1)
            groups.setdefault(number, []).append(store)
        for number, stores in groups.items():
            if number < 0:
                self.f.scope(lambda stores=stores: self.finish_rows(stores))  # type: ignore[misc]
            else:
                self.f.scope(lambda n=number, s=stores: self.finish_columns(n, s))  # type: ignore[misc]

    def state_at(self, place: str, load: Callable[[str, str], Val]) -> None:
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                value = load(self.f.read[f"state{number}"], place)
                self.f.scopes[-1][state.fold] = value

    def finish_rows(self, stores: Sequence[Node]) -> None:
        f, fold = self.f, self.fold
        part = f.part = fold.part(stores, self.group, ())
        f.opened(part.batch, f.coordinates(part.batch, self.at))

        def run(offset: str, first: str, last: str) -> None:
            def vector(step: str) -> None:
                self.state_at(f.add(offset, step), self.load)
                values = [f.value(s.src[0]) for s in stores]
                for store, value in zip(stores, values, strict=True):
                    f.store(store, value)

            f.lanes(part.rows.axes[-1], first, last, [], vector)

        f.runs(part.rows, f.coordinates(part.rows, self.top), self.count, run)

    def finish_columns(self, number: int, stores: Sequence[Node]) -> None:
        f, fold = self.f, self.fold
        columns = fold.columns[number]
        part = f.part = fold.part(stores, self.group, columns)
        f.opened(part.batch, f.coordinates(part.batch, self.at))
        start, count = self.left[number]
        mine = [n for n, c in enumerate(fold.columns) if c == columns]
        inner = frozenset(columns)
        moving = {m.state.fold for m in fold.matrices}
        for node in part.nodes:
            if any(s in moving for s in node.src):
                moving.add(node)
        fixed = [
            n for n in part.nodes
            if n not in moving and not fold.free[n] & inner and n.op is not STORE
        ]  # fmt: skip
        at = f.coordinates(part.columns, start)

        def row(r: str) -> None:
            self.state_at(r, self.one)

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    place = f.add(offset, step)
                    for n in mine:
                        where = f.add(f.mul(r, self.width(n)), place)
                        f.scopes[-1][fold.matrices[n].state.fold] = self.load(
                            f.read[f"sums{n}"], where
                        )
                    values = [f.value(s.src[0]) for s in stores]
                    for store, value in zip(stores, values, strict=True):
                        f.store(store, value)

                f.lanes(part.columns.axes[-1], first, last, fixed, vector)

            f.runs(part.columns, at, count, run)

        f.walk(part.rows, f.coordinates(part.rows, self.top), self.count, row)


__all__ = ["State", "folds"]
