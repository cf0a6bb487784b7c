"""What all folds in native code share: the loop over units and blocks, and the memory of a tile.

In: a `Fold` and its cut. Out: the text of one function; how products, walks and results are written
is left to the classes above this one. A tile's memory is on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ....core.dtype import DType
from ....core.node import Node, toposort
from ....core.ops.elementwise import CAST
from ....core.ops.index import FOLD, STORE
from ....core.ops.leaf import SINK
from ....kernel.contract.analysis import DEPTH, NEAR, is_plain
from ....kernel.stream.roles import Fold, FoldCut, Matrix, Product
from ...common.api import Phase, Rendered
from ..gemm.microkernel import Module, Registers, transpose
from ..gemm.pack import Packer, Side, Span, side
from ..gemm.pack import Target as Goal
from ..llvm.emitter import Val, scalar_type
from ..llvm.masked import masked_store
from ..loops.function import Numbers
from ..spelling import identity
from .bounded_exp import small_powers
from .inner_reduce import FoldFrame

_MASKS = ("avx512", "avx2")  # targets that load part of a vector in one instruction
SHARED = 64 << 20  # bytes of values that are packed once for all units
_CLOSE = 2048  # bytes of a row of values that is near enough to be read as it is


class FoldBase:
    """One fold being written."""

    f: FoldFrame
    stride: str  # between rows of a tile of products
    at: str  # the batch of this unit
    top: str  # its first row, and how many there are
    count: str
    k: str  # the first element of this block, and how many there are
    deep: str

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
        self.whole = [_element(store) for store in fold.streaming.whole]  # what blocks keep
        if len(fold.matrices) == 1 and not fold.crossed and not self.whole:
            self.wide = -(-fold.count(fold.columns[0]) // cut.columns[0])
        self.olds = {s.old for s in self.states}
        self.tainted = self._tainted()
        self.tiles: list[str] = []  # of all that weighs: its weights' tile, "" where they lie
        self.turned: list[Node] = []  # loads that are put into tiles, to lie like products
        self.values = [side(m.contraction, "right") for m in fold.matrices]
        self.lent = [side(m.contraction, "left") for m in fold.matrices]
        self.coefficients = self._coefficients()
        self.ended = self._ended()
        self.tests = fold.skips
        self.powers = small_powers(fold.order, self.states)

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

    def _ended(self) -> dict[Node, int]:
        """Sums over other axes that rows need at their end, numbered."""
        found: dict[Node, int] = {}
        own = frozenset((*self.fold.batch, *self.fold.rows))
        for node in toposort(list(self.fold.streaming.stores)):
            lone = node.op is FOLD and node not in self.stops and not self._has_ended(node)
            lone = lone and self.fold.free[node] <= own  # not inside another one
            if lone and node.dtype is self.fold.dtype and node.arg[0] == "add":
                found[node] = len(found)
        return found

    def _has_ended(self, node: Node) -> bool:
        """Does it need states, or is it inside of what streams?"""
        return node in self.tainted or bool(self.fold.free[node] & self.streamed)

    # --- the whole kernel ------------------------------------------------------------------------

    def render(self) -> Rendered:
        """The text of the function, and of those that pack values for all units before it."""
        before = [self.packing(n) for n in range(len(self.fold.matrices)) if self.is_shared(n)]
        before += self.key_phases()
        f = self.main()
        after = self.after()
        products = sum([self.fold.count(p.contraction.folded) for p in self.fold.products])
        products += sum([self.fold.count(m.contraction.columns) for m in self.fold.weighing])
        read = self.batch * self.length * products  # which is what few rows wait for
        work = max(read, 3 * self.batch * self.rows * self.length * (products + 16) // self.lanes)
        frames = [*[frame for frame, _ in before], f, *[frame for frame, _ in after]]
        declared: dict[str, str] = {}
        for frame in frames:
            declared |= frame.e.declared
        text = "\n".join([*[frame.text() for frame in frames], *declared.values(), ""])
        library = tuple(m.text for n, m in sorted(self.modules.items()) if n in declared)
        phases = [
            *[p for _, p in before],
            Phase("kernel", self.units * self.cut.splits, work),
            *[p for _, p in after],
        ]
        return Rendered(
            text, tuple(phases), tuple(self.numbers.variables), tuple(self.numbers.values),
            (self.parts_at() + self.part_numbers()) * self.fold.dtype.itemsize, library,
        )  # fmt: skip

    # --- values that all units share -------------------------------------------------------------

    def is_shared(self, number: int) -> bool:
        """Are values packed once for all rows? Where several tiles of rows need them in order."""
        numbers = self.shared_numbers(number) * self.fold.dtype.itemsize
        return not self.is_near(number) and self.tall > 1 and numbers <= SHARED

    @property
    def pieces(self) -> int:
        """Blocks of the streamed axis."""
        return -(-self.length // self.cut.steps)

    def value_block(self, number: int) -> int:
        """Numbers of the packed values of one block."""
        panel = self.registers.panel
        columns = -(-self.fold.count(self.fold.columns[number]) // panel) * panel
        return columns * (self.cut.steps + self.lanes)

    def shared_numbers(self, number: int) -> int:
        return self.batch * self.pieces * self.value_block(number)

    def shared_at(self, number: int) -> int:
        """Where in the workspace the values of a matrix begin."""
        return sum([self.shared_numbers(n) for n in range(number) if self.is_shared(n)])

    def keys_at(self, number: int) -> int:
        """Where in the workspace the keys of a product begin, if they are there at all."""
        return self.shared_at(len(self.fold.matrices))

    def key_phases(self) -> list[tuple[FoldFrame, Phase]]:
        """What packs keys for all units."""
        return []

    def shared_block(self, number: int, batch: str, piece: str) -> str:
        """Where the packed values of a block are."""
        f = self.f
        place = f.add(f.mul(batch, f.number("pieces", self.pieces)), piece)
        each = f.number(("value block", number), self.value_block(number))
        place = f.add(f.mul(place, each), f.number(("shared", number), self.shared_at(number)))
        return self.element(f.pointer(len(self.dtypes)), place)

    def packing(self, number: int) -> tuple[FoldFrame, Phase]:
        """A phase that packs values, a block of the streamed axis at a time."""
        f = self.f = self.new_frame(f"kernel_values{number}")
        s, columns = self.values[number], self.fold.count(self.fold.columns[number])
        f.read["row"] = f.number(("row", number), columns + self.lanes)
        length, steps = f.number("length", self.length), f.number("steps", self.cut.steps)
        f.part = s.part
        for node in s.part.nodes:
            if not self.fold.free[node]:
                f.value(node)

        def unit(index: str, _: list[str]) -> list[str]:
            self.at, piece = f.divided(index, f.number("pieces", self.pieces))
            k = f.mul(piece, steps)
            memory = self.shared_block(number, self.at, piece)
            self.open_batch(s)
            own = f.number(("columns", number), columns)
            span = Span("0", own, k, f.least(steps, f.sub(length, k)))
            deep = f.number(("deep", self.cut.steps + self.lanes), self.cut.steps + self.lanes)
            f.scope(lambda: self.packer(s).pack(span, Goal(memory, deep, deep)))
            return []

        f.e.loop("%first", "%last", 1, [], unit)
        work = 2 * self.batch * self.length * columns
        return f, Phase(f.symbol, self.batch * self.pieces, work)

    def new_frame(self, symbol: str) -> FoldFrame:
        masked = self.target.vectors == "avx512"
        f = FoldFrame(symbol, self.numbers, self.dtypes, self.lanes, masked)
        f.sizes = self.fold.sizes
        f.powers = self.powers
        return f

    def main(self) -> FoldFrame:
        """The function that streams."""
        f = self.f = self.new_frame("kernel")
        e = f.e
        steps = f.number("steps", self.cut.steps)
        self.prepare(self.reserve)
        zero = e.const(0, self.fold.dtype, True)
        for number in range(
            len(self.fold.products)
        ):  # lanes that are not in use: nothing odd there
            self.fill(f.read[f"tile{number}"], f.read["room", f"tile{number}"], zero)

        def tile(index: str) -> None:
            start, end = self.needed(*self.open_unit(index))
            f.scopes.append({})
            self.ready()
            self.begin()

            def turn(k: str, _: list[str]) -> list[str]:
                self.k, self.deep = k, f.least(steps, f.sub(end, k))
                self.when_possible(lambda: f.scope(self.block))
                return []

            e.loop(start, end, self.cut.steps, [], turn)
            self.end(index)
            f.scopes.pop()

        def unit(index: str, _: list[str]) -> list[str]:
            self.each_tile(index, tile)
            return []

        e.loop("%first", "%last", 1, [], unit)
        return f

    def each_tile(self, unit: str, tile: Callable[[str], None]) -> None:
        """The tiles of a unit: itself."""
        tile(unit)

    def prepare(self, reserve: Callable[[], None]) -> None:
        """What a function has before its units: memory, and values that are the same for all."""
        f = self.f
        crossed = [self.fold.count(m.contraction.columns) for m in self.fold.crossed]
        longest = max(self.cut.rows, self.cut.steps, *self.cut.columns, *crossed)
        f.read["row"] = f.number("row", longest + self.lanes)
        reserve()
        f.part = self.fold.part([], (), ())
        for node in self.fold.order:
            plain = node not in self.tainted and node.op not in (FOLD, STORE, SINK)
            if plain and not self.fold.free[node]:
                f.e.pin(f.value(node))

    @property
    def units(self) -> int:
        """Tiles of results."""
        return self.batch * self.tall * self.wide

    def open_unit(self, index: str) -> tuple[str, str]:
        """A unit's rows and columns, and from where to where it streams."""
        f = self.f
        all_rows, tile_rows = f.number("rows", self.rows), f.number("tile rows", self.cut.rows)
        tall, wide = f.number("tall", self.tall), f.number("wide", self.wide)
        start, end = "0", f.number("length", self.length)
        if self.cut.splits > 1:
            part, index = f.divided(index, f.number("units", self.units))
            span = f.number("span", self.cut.span)
            start = f.mul(part, span)
            end = f.least(end, f.add(start, span))
        outer, row = f.divided(index, tall)
        self.at, column = f.divided(outer, wide)
        self.top = f.mul(row, tile_rows)
        self.count = f.least(tile_rows, f.sub(all_rows, self.top))
        self.left: list[tuple[str, str]] = []  # of each matrix: first column, how many
        for number, columns in enumerate(self.fold.columns):
            size = f.number(("columns", number), self.fold.count(columns))
            tile = f.number(("tile columns", number), self.cut.columns[number])
            first = f.mul(column, tile)
            self.left.append((first, f.least(tile, f.sub(size, first))))
        return start, end

    # --- left to others --------------------------------------------------------------------------

    def tiles_of_products(self) -> None:
        """Reserve what products need."""
        raise NotImplementedError

    def ready(self) -> None:
        """What is done once for a unit, before the first block."""

    def needed(self, start: str, end: str) -> tuple[str, str]:
        """From where to where a tile streams, if indices alone say that the rest adds nothing."""
        raise NotImplementedError

    def when_possible(self, body: Callable[[], None]) -> None:
        """A block, unless its indices alone say that it adds nothing."""
        raise NotImplementedError

    def block(self) -> None:
        """One block of the streamed axis."""
        raise NotImplementedError

    def end(self, unit: str) -> None:
        """What is done with the states at the end of a unit."""
        raise NotImplementedError

    def after(self) -> list[tuple[FoldFrame, Phase]]:
        """What runs after all units have streamed."""
        return []

    def parts_at(self) -> int:
        """Where in the workspace states of parts begin."""
        return self.keys_at(len(self.fold.products))

    def part_numbers(self) -> int:
        """Numbers of the states of all parts."""
        return 0

    # --- memory of a tile ------------------------------------------------------------------------

    def reserve(self) -> None:
        """Everything a tile needs, on the stack."""
        f, cut = self.f, self.cut
        self.tiles_of_products()
        self.tiles = self.weight_tiles()
        for name in dict.fromkeys(self.tiles):
            if name.startswith(("weights", "whole")):
                self.room(name, self.tile_numbers)
        for number in range(len(self.fold.matrices)):
            if not self.is_near(number) and not self.is_shared(number):
                self.room(f"values{number}", cut.columns[number] * (cut.steps + self.lanes))
        self.reserve_states()
        for number in range(len(self.coefficients)):
            self.room(f"coefficient{number}", cut.rows + 2 * self.lanes)
        self.room("changed", cut.rows + 2 * self.lanes)
        f.scratch("begun", "i64", "1")

    def reserve_states(self) -> None:
        """The states of a tile."""
        for number in range(len(self.fold.matrices)):
            self.room(f"sums{number}", self.sum_numbers(number))
        self.reserve_rows()

    def reserve_rows(self) -> None:
        """States of one number a row, and squares of results that are turned."""
        for number in range(len(self.fold.matrices)):
            self.room(f"square{number}", self.lanes * self.lanes)
        for number in range(len(self.states)):
            self.room(f"state{number}", self.state_numbers)
        for number in self.ended.values():
            self.room(f"ended{number}", self.state_numbers)

    @property
    def state_numbers(self) -> int:
        """Room for a number of each row."""
        return self.cut.rows + 2 * self.lanes

    def sum_numbers(self, number: int) -> int:
        """Room for the rows of columns of a state."""
        return self.cut.rows * (self.cut.columns[number] + self.lanes) + self.lanes

    @property
    def tile_numbers(self) -> int:
        """Numbers of a tile, with room for whole vectors and squares after its end."""
        return (self.cut.steps + self.lanes) * (self.cut.rows + self.lanes)

    def weight_tiles(self) -> list[str]:
        """The tiles of weights: of what they are, or in a product's place, or of their own.

        After them those of elements that are stored: the same as weights, or their own.
        """
        names = {p.node: f"tile{number}" for number, p in enumerate(self.fold.products)}
        weights = dict.fromkeys([m.weights for m in self.fold.weighing])
        free = [name for node, name in names.items() if node not in (*weights, *self.whole)]
        names |= {load: f"turned{number}" for number, load in enumerate(self.turned)}
        crossed = [m.weights for m in self.fold.crossed]
        for m, s in zip(self.fold.matrices, self.lent, strict=True):
            if m.weights not in (*names, *crossed) and s.own.axes and self.is_plain(s):
                names[m.weights] = ""
        for number, m in enumerate(self.fold.weighing):
            if m.weights not in names:
                here = free and self.in_place(m, len(weights))
                names[m.weights] = free.pop(0) if here else f"weights{number}"
        for number, node in enumerate(self.whole):
            if not names.get(node):
                names[node] = f"whole{number}"
        return [names[node] for node in (*[m.weights for m in self.fold.weighing], *self.whole)]

    def in_place(self, m: Matrix, count: int) -> bool:
        """May weights take the place of a product? Where nobody needs that any more."""
        if self.fold.levels == 1:
            return True  # the one walk reads all products of a place before it writes there
        only = len(self.fold.products) == 1 and count == 1
        product = self.fold.products[0].node if only else None
        later = [s.body for s in self.fold.scalars if s.level > m.state.level]
        return only and product not in toposort(later)

    def room(self, name: str, count: int) -> None:
        self.f.scratch(name, self.inner, self.f.number(("room", name), count))

    def blocks(self, p: Product) -> int:
        return -(-self.fold.count(p.contraction.folded) // DEPTH)

    def deepest(self, p: Product) -> int:
        depth = self.fold.count(p.contraction.folded)
        return min(DEPTH, -(-depth // self.lanes) * self.lanes) + self.lanes

    def is_memory(self, s: Side) -> bool:
        """Is a factor memory as it is, next to each other along one line?"""
        return is_plain(s.part, s.root, s.own, s.along)

    def is_plain(self, s: Side) -> bool:
        """Can microkernels read a left factor where it is?"""
        own = self.fold.sizes[s.own.axes[0]] if s.own.axes else 1
        far = own * self.fold.dtype.itemsize > NEAR
        if not self.is_memory(s) or (far and not s.straight):
            return False
        return self.dtypes[s.root.arg[0]] is self.fold.dtype

    def is_near(self, number: int) -> bool:
        """Can microkernels read values where they are?"""
        return self.lies_near(self.values[number], self.fold.columns[number])

    def lies_near(self, s: Side, columns: Sequence[int]) -> bool:
        """Can microkernels read a right factor where it is?"""
        if not (self.is_memory(s) and s.straight) or self.target.vectors not in _MASKS:
            return False
        close = self.fold.count(columns) * self.fold.dtype.itemsize <= _CLOSE
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
        masked_store(f.e, self.vector, text, where, f.mask, align=4)

    def begin(self) -> None:
        """States before anything was seen."""
        f, e = self.f, self.f.e
        e.line(f"store i64 0, ptr {f.read['begun']}")
        for number, state in enumerate(self.states):
            if state in self.fold.scalars:
                start = identity(e, state.op, self.fold.dtype, True)
                self.fill(f.read[f"state{number}"], self.count, start)
        for number, (_, count) in enumerate(self.left):
            if self.tests:  # perhaps no block comes
                self.clear(number, count)
                continue
            _, rest = f.divided(count, str(self.lanes))  # lanes that are not in use: as in tiles
            e.branch(e.let(f"icmp ne i64 {rest}, 0"), partial(self.clear, number, count))

    def clear(self, number: int, count: str) -> None:
        """A matrix's sums begin as zeros."""
        f, memory, width = self.f, self.f.read[f"sums{number}"], self.width(number)
        zero = f.e.const(0, self.fold.dtype, True)

        def row(r: str, _: list[str]) -> list[str]:
            self.fill(self.element(memory, f.mul(r, width)), count, zero)
            return []

        f.e.loop("0", self.count, 1, [], row)

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

    def goal(self, memory: str, product: Product) -> Goal:
        """Where a factor of a product is packed."""
        depth = self.deepest(product)
        text = self.f.number(("deep", depth), depth)
        return Goal(memory, text, text)

    def multiply(
        self, module: Module, a: tuple[str, str, str], b: tuple[str, str], c: tuple[str, str],
        sizes: tuple[str, str, str], first: str, plain: bool = False, ahead: str = "",
    ) -> None:  # fmt: skip
        """Rows times a panel, by a microkernel: pointers and strides; depth, rows, columns.

        The panel at `ahead` is fetched meanwhile; its first columns may be asked for as well.
        """
        kinds = "ptr, i64, i64, ptr, i64, ptr, i64, i64, i64, i64, i1, ptr"
        depth, rows, columns = sizes
        self.invoke(
            module, kinds,
            f"ptr {a[0]}, i64 {a[1]}, i64 {a[2]}, ptr {b[0]}, i64 {b[1]}, ptr {c[0]}, i64 {c[1]}, "
            f"i64 {depth}, i64 {rows}, i64 {columns}, i1 {first}, "
            f"ptr {'null' if plain else ahead or b[0]}",
        )  # fmt: skip

    def invoke(self, module: Module, kinds: str, operands: str) -> None:
        """Call a function of the library."""
        self.modules[module.name] = module
        self.f.e.declare(f"void @{module.name}({kinds})", module.name)
        self.f.e.line(f"call void @{module.name}({operands})")

    def packed_panels(self, columns: str, panel: Callable[[str, str], None]) -> None:
        """Panels that lie one after the other; one vector that is left over joins the last."""
        f, r = self.f, self.registers
        wide, reach = str(r.panel), str(r.most * r.width)

        def turn(number: str, _: list[str]) -> list[str]:
            column = f.mul(number, wide)
            panel(column, f.in_panel(f.sub(columns, column), wide, reach))
            return []

        f.e.loop("0", f.panels(columns, wide, reach), 1, [], turn)

    def where(self, s: Side, own: str, folded: str) -> tuple[str, str]:
        """Where a plain factor begins, and how far apart its rows are."""
        f = self.f
        f.open[s.own.axes[0]], f.open[s.part.folded.axes[0]] = own, folded
        number, index, _ = s.root.arg
        name = ("at", self.numbers.position[s.root])
        place = f.index(index, (), name).text
        apart = s.straight if s.name == "left" else not s.straight  # rows are apart, not steps
        other = s.own.axes[0] if apart else s.part.folded.axes[0]
        steps = [(p, step) for p, (atom, step) in enumerate(index[1]) if atom == other]
        stride = f.number((name, steps[0][0], "step"), steps[0][1]) if steps else "0"
        return self.element(f.pointer(number), place), stride


def _element(store: Node) -> Node:
    """What a store keeps of each element, before it is rounded to what memory holds."""
    value = store.src[0]
    return value.src[0] if value.op is CAST and value.dtype.is_small_float else value
