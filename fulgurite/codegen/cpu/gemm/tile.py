"""Shape-generic GEMM tiles over dense operands: library functions, compiled once.

In: the registers. Out: texts of modules. `tile` computes the sums of one tile, over all blocks of
k, with each operand on its route (`ROUTES`); `pack_units` packs an operand into the workspace, and
`pack_launch` is that as a launch by itself. All they know of a kernel is a table of numbers, in the
order of `TABLE`, and the addresses of other functions of the library, which are arguments, since a
module of the library knows no other. A kernel only adds its batch loop and epilogue.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache, reduce
from typing import Protocol

from ....core.dtype import float32, int64
from ....core.lazy_dataclass import dataclass
from ...common.api import FIRST
from ..llvm.convert import store_value
from ..llvm.emitter import Val, scalar_type
from ..loops.function import FunctionBuilder, Numbers
from .microkernel import Module, Registers, library_module
from .pack_dense import pack_dense
from .skinny import SKINNY

# numbers of how an operand reaches the micro-kernel: read in place, packed by its tile or before,
# multiplied along k in place, packed as rows, packed along k, swept over, packed on the way;
# or windows, whose rows are read in place
ROUTES = ("dense", "tile", "shared", "skinny", "rows", "k-major", "direct", "fused", "windows")
MICROKERNEL_TYPES = "ptr, i64, i64, ptr, i64, ptr, i64, i64, i64, i64, i1, ptr"
RUNS_TYPES = f"{MICROKERNEL_TYPES}, i64, i64"  # of a block whose left operand has runs of k
MOVE = "ptr, i64, ptr, i64, i64, i64"  # the types of what packs
TILE = "ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr, ptr, ptr"
PACKED = {"left": "%workspace", "right": "%packed"}  # where each operand is packed
JOIN = "ptr, i64, i64, i64, ptr, i64, i64, i64, i1"
UNITS = "ptr, ptr, ptr, i64, i64, ptr"
_SIDE = (
    "all", "tile", "way", "from own", "from k", "apart", "own", "k", "numbers", "scratch",
    "piece", "pieces", "high", "chunks", "packed", "of a product", "next product",
    "param", "start",
)  # fmt: skip
TABLE: tuple[Hashable, ...] = (
    "blocks", "depth", "steps", "block of k", "deep", "wide", "reach", "tile numbers",
    "before right", "workspace", "packed", "each", "over", "unit",
    *[(name, side) for side in ("left", "right") for name in _SIDE],
)  # fmt: skip


class LibraryTable(Numbers):
    """A kernel's table of numbers, as a function of the library finds them."""

    base = "%numbers"

    def __init__(self, names: tuple[Hashable, ...]) -> None:
        super().__init__([])
        self.names = names

    def place(self, name: Hashable, value: int) -> int:
        """The place of a number in the table."""
        return self.names.index(name)


class DenseOperands:
    """Operands that are matrices in memory: their addresses are arguments."""

    table: tuple[Hashable, ...] = TABLE

    def base(self, t: LibraryFunction, side: str) -> str:
        """Where an operand begins for the product at hand."""
        return f"%{side}"

    def packed(self, t: LibraryFunction, side: str) -> str:
        """Where an operand is packed: the workspace, or memory of a right one that stays."""
        return PACKED[side]

    def pack(self, t: LibraryFunction, move: str, side: str, block: PackedBlock) -> None:
        """Pack a block of an operand."""
        f, source = t.f, t.source(side, block.own, block.k)
        if block.batch != "0":
            product = f.mul(block.batch, f.number(("next product", side)))
            source = f.e.let(f"getelementptr {t.outside}, ptr {source}, i64 {product}")
        apart, stride = f.number(("apart", side)), f.number(("packed", side))
        depth = block.depth
        if t.steps > 1:  # the last pair may be half of one
            left = f.sub(f.number("steps"), t.in_memory(block.k))
            depth = f.least(t.in_memory(depth), left)
        t.invoke(move, MOVE, [source, apart, block.to, stride, block.owned, depth])


class Operands(Protocol):
    """How a function of the library finds its operands."""

    table: tuple[Hashable, ...]

    def base(self, t: LibraryFunction, side: str) -> str: ...

    def packed(self, t: LibraryFunction, side: str) -> str: ...

    def pack(self, t: LibraryFunction, move: str, side: str, block: PackedBlock) -> None: ...


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A block that is packed: places from `own`, k from `k`, of a product of a batch."""

    batch: str
    own: str
    k: str
    to: str
    owned: str
    depth: str


class LibraryFunction:
    """A function of the library that reads its numbers from a kernel's table."""

    def __init__(self, registers: Registers, operands: Operands) -> None:
        lanes, masked = registers.target.lanes, registers.target.has_masks
        self.f = FunctionBuilder("SELF", LibraryTable(operands.table), [], lanes, masked)
        self.inner, self.operands = scalar_type(registers.dtype), operands
        self.outside = "i16" if registers.pairs else self.inner  # a number of an operand's memory
        self.steps = 2 if registers.pairs else 1  # of k, that make one number of a packed block

    def at(self, memory: str, place: str) -> str:
        """The address of a place."""
        return self.f.e.let(f"getelementptr {self.inner}, ptr {memory}, i64 {place}")

    def source(self, side: str, own: str, k: str) -> str:
        """Where a dense operand has a place."""
        f = self.f
        down, along = f.number(("from own", side)), f.number(("from k", side))
        base = self.operands.base(self, side)
        place = f.add(f.mul(own, down), f.mul(self.in_memory(k), along))
        return f.e.let(f"getelementptr {self.outside}, ptr {base}, i64 {place}")

    def in_memory(self, k: str) -> str:
        """Steps of k of packed blocks, as memory counts them."""
        return k if self.steps == 1 else self.f.mul(k, str(self.steps))

    def packed(self, side: str, batch: str, own: str, tile: str, number: str, down: str) -> str:
        """Where a block of a packed operand is: places from `own`, k from `down`."""
        f = self.f
        block = f.add(f.mul(batch, f.number("blocks")), number)
        place = f.mul(block, f.number(("numbers", side)))
        if side == "left":
            place = f.add(place, f.mul(tile, f.number("tile numbers")))
        else:
            place = f.add(place, f.mul(own, f.number("deep")))
            place = f.add(place, f.mul(down, f.number(("k", "right"))))
            place = f.add(place, f.number("before right"))
        return self.at(self.operands.packed(self, side), place)

    def invoke(self, function: str, types: str, operands: list[str]) -> None:
        """Call a function by its address."""
        typed = [f"{t} {o}" for t, o in zip(types.split(", "), operands, strict=True)]
        self.f.e.line(f"call void {function}({', '.join(typed)})")

    def pack_units(self, side: str, move: str) -> None:
        """Pack the units of an operand from %first to %last."""
        f = self.f

        def unit(index: str, _: list[str]) -> list[str]:
            batch, inner = f.divided(index, f.number(("of a product", side)))
            outer, chunk = f.divided(inner, f.number(("chunks", side)))
            place, number = f.divided(outer, f.number("blocks"))
            size, high = f.number(("piece", side)), f.number(("high", side))
            own, down = f.mul(place, size), f.mul(chunk, high)
            k = f.add(f.mul(number, f.number("block of k")), down)
            owned = f.least(size, f.sub(f.number(("all", side)), own))
            depth = f.least(high, f.sub(f.number("depth"), k))
            memory = self.packed(side, batch, own, place, number, down)
            block = PackedBlock(batch, own, k, memory, owned, depth)
            some = f.e.let(f"icmp sgt i64 {depth}, 0")  # the last block of k may be a part of one
            f.e.branch(some, lambda: self.operands.pack(self, move, side, block))
            return []

        f.e.loop("%first", "%last", 1, [], unit)

    def module(self, stem: str, arguments: str) -> Module:
        """The function as a module."""
        return library_module(stem, self.f, arguments)


class Tile:
    """The text of a tile's sums, and the routes of operands beside dense and shared ones."""

    packs: tuple[str, ...] = ("tile",)  # routes of an operand that the tile packs for itself
    along_k = "skinny"  # the route of one that is multiplied with lanes along k
    in_rows: tuple[str, ...] = ("dense",)  # routes of one that lies in rows, with no panel after it
    fuses_packing = True  # may the first rows pack dense columns on their way?

    def __init__(self, t: LibraryFunction, moves: dict[str, str]) -> None:
        self.t, self.f, self.moves = t, t.f, moves
        f, e = t.f, t.f.e
        for side in ("left", "right"):
            f.scratch(side, t.inner, f.number(("scratch", side)))
        self.begin, self.count = {}, {}
        self.begin["left"] = f.mul("%row", f.number(("tile", "left")))
        rest = f.sub(f.number(("all", "left")), self.begin["left"])
        self.count["left"] = f.least(f.number(("tile", "left")), rest)
        over = [f.number(name) for name in ("each", "over", "unit", ("all", "right"))]
        self.begin["right"], self.count["right"] = f.stretched("%column", *over)
        self.panels = f.panels(self.count["right"], f.number("wide"), f.number("reach"))
        self.by_k = self.goes("right", self.along_k)
        self.panels = e.let(f"select i1 {self.by_k}, i64 0, i64 {self.panels}")
        self.packed = {side: self.goes(side, *self.packs) for side in ("left", "right")}
        self.dense = {side: self.goes(side, "dense") for side in ("left", "right")}
        self.alone = self.goes("right", *self.in_rows)
        if self.fuses_packing:
            self.fused = self.goes("right", "fused")
            self.dense["right"] = self.goes("right", "dense", "fused")

    def goes(self, side: str, *routes: str) -> str:
        """True if an operand has one of some routes."""
        e, route = self.f.e, self.f.number(("way", side))
        found = [e.let(f"icmp eq i64 {route}, {ROUTES.index(name)}") for name in routes]
        return reduce(lambda a, b: e.let(f"or i1 {a}, {b}"), found)

    def write(self) -> None:
        """All blocks of k from %begin to %end."""
        self.f.e.loop("%begin", "%end", 1, [], lambda number, _: self.deep(number))

    def deep(self, number: str) -> list[str]:
        """One block of k."""
        t, f, e, begin, count = self.t, self.f, self.f.e, self.begin, self.count
        k = f.mul(number, f.number("block of k"))
        depth = f.least(f.number("block of k"), f.sub(f.number("depth"), k))
        first = e.let(f"icmp eq i64 {number}, %begin")
        found = {}
        for side, place in (("left", "%row"), ("right", "%column")):
            memory, scratch = t.source(side, begin[side], k), f.read[side]

            def pack(side: str = side, scratch: str = scratch) -> None:
                block = PackedBlock("0", begin[side], k, scratch, count[side], depth)
                t.operands.pack(t, self.moves[side], side, block)

            e.branch(self.packed[side], pack)
            shared = t.packed(side, "%batch", begin[side], place, number, "0")
            known = e.let(f"select i1 {self.packed[side]}, ptr {scratch}, ptr {shared}")
            found[side] = e.let(f"select i1 {self.dense[side]}, ptr {memory}, ptr {known}")
        e.branch(self.by_k, lambda: self.multiply_along_k(found, k, depth, first))
        wide, across = f.number("wide"), f.number(("own", "right"))

        def multiply(panel: str, _: list[str]) -> list[str]:
            column = f.mul(panel, wide)
            at, to = t.at(found["right"], f.mul(column, across)), t.at("%sums", column)
            ahead = t.at(at, f.mul(wide, across))
            ahead, function = e.let(f"select i1 {self.alone}, ptr null, ptr {ahead}"), "%panel"
            if self.fuses_packing:
                panel = t.at(f.read["right"], f.mul(column, f.number("deep")))
                ahead = e.let(f"select i1 {self.fused}, ptr {panel}, ptr {ahead}")
                function = e.let(f"select i1 {self.fused}, ptr %fused, ptr %panel")
            operands = [
                found["left"], f.number(("own", "left")), f.number(("k", "left")), at,
                f.number(("k", "right")), to, "%width", depth, count["left"],
                f.in_panel(f.sub(count["right"], column), wide, f.number("reach")), first, ahead,
            ]  # fmt: skip
            self.multiply_panel(function, operands)
            return []

        e.loop("0", self.panels, 1, [], multiply)
        return []

    def multiply_panel(self, function: str, operands: list[str]) -> None:
        """All rows of the tile times one panel."""
        self.t.invoke(function, MICROKERNEL_TYPES, operands)

    def multiply_along_k(self, found: dict[str, str], k: str, depth: str, first: str) -> None:
        """Products with lanes along k."""
        f = self.f
        self.t.invoke("%skinny", SKINNY, [
            found["left"], f.number(("own", "left")), *self.columns(found, k), "%sums", "%width",
            depth, self.count["left"], self.count["right"], first,
        ])  # fmt: skip

    def columns(self, found: dict[str, str], k: str) -> list[str]:
        """A right operand that is multiplied along k, and its strides."""
        f = self.f
        source = self.t.source("right", self.begin["right"], k)
        return [source, f.number(("from own", "right")), f.number(("from k", "right"))]


@lru_cache(maxsize=32)
def tile(registers: Registers) -> Module:
    """`void f(ptr numbers, ptr left, ptr right, ptr workspace, ptr packed, i64 batch, i64 row,
    i64 column, i64 begin, i64 end, ptr sums, i64 width, ptr panel, ptr skinny, ptr move_left,
    ptr move_right, ptr fused)`: the sums of the tile at a row and column of tiles over some blocks
    of k; `panel` is a block, `fused` the one with fused packing, `skinny` is for few columns."""
    t = LibraryFunction(registers, DenseOperands())
    Tile(t, {"left": "%move_left", "right": "%move_right"}).write()
    arguments = (
        "ptr %numbers, ptr %left, ptr %right, ptr %workspace, ptr %packed, i64 %batch, i64 %row, "
        "i64 %column, i64 %begin, i64 %end, ptr %sums, i64 %width, ptr %panel, ptr %skinny, "
        "ptr %move_left, ptr %move_right, ptr %fused"
    )
    return t.module(f"tile_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def join(registers: Registers) -> Module:
    """`void f(ptr parts, i64 apart, i64 count, i64 stride, ptr sums, i64 width, i64 rows,
    i64 columns, i1 rounds)`: adds up the sums of chunks of k, in order, those of float32 in
    float64; parts begin `apart` numbers apart. If it `rounds`, each sum of two is rounded to
    float32, as it would be if the parts were added in place one after the other."""
    t = LibraryFunction(registers, DenseOperands())
    f, e, kind = t.f, t.f.e, f"<{registers.target.lanes} x {t.inner}>"
    truths = f"<{registers.target.lanes} x i1>"
    add = "fadd" if registers.dtype.kind == "f" else "add"
    wide = f"<{registers.target.lanes} x double>" if registers.dtype is float32 else kind

    def load(place: str) -> str:
        found = e.let(f"load {kind}, ptr {place}, align 4")
        return found if wide == kind else e.let(f"fpext {kind} {found} to {wide}")

    def row(number: str, _: list[str]) -> list[str]:
        source = t.at("%parts", f.mul(number, "%stride"))  # with room for whole vectors
        goal = t.at("%sums", f.mul(number, "%width"))

        def vector(step: str) -> None:
            def more(part: str, now: list[str]) -> list[str]:
                part_sum = load(t.at(source, f.add(f.mul(part, "%apart"), step)))
                sum_ = e.let(f"{add} {wide} {now[0]}, {part_sum}")
                if registers.assembled:  # such blocks keep their own NaN, not that of sums before
                    is_nan = e.let(f"fcmp uno {wide} {part_sum}, {part_sum}")
                    sum_ = e.let(f"select {truths} {is_nan}, {wide} {part_sum}, {wide} {sum_}")
                if wide == kind:
                    return [sum_]
                short = e.let(f"fptrunc {wide} {sum_} to {kind}")
                again = e.let(f"fpext {kind} {short} to {wide}")
                return [e.let(f"select i1 %rounds, {wide} {again}, {wide} {sum_}")]

            (total,) = e.loop("1", "%count", 1, [(wide, load(t.at(source, step)))], more)
            if wide != kind:
                total = e.let(f"fptrunc {wide} {total} to {kind}")
            value, place = Val(total, registers.dtype, True), Val(step, int64)
            store_value(e, goal, place, value, registers.dtype, f.mask, "row")

        f.lanes(0, "0", "%columns", [], vector)
        return []

    e.loop("0", "%rows", 1, [], row)
    arguments = (
        "ptr %parts, i64 %apart, i64 %count, i64 %stride, ptr %sums, i64 %width, "
        "i64 %rows, i64 %columns, i1 %rounds"
    )
    return t.module(f"join_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def pack_units(registers: Registers, side: str) -> Module:
    """`void f(ptr numbers, ptr operand, ptr memory, i64 first, i64 last, ptr move)`: packs some
    units of an operand, numbered through all products of a batch."""
    t = LibraryFunction(registers, DenseOperands())
    t.pack_units(side, "%move")
    arguments = f"ptr %numbers, ptr %{side}, ptr {PACKED[side]}, i64 %first, i64 %last, ptr %move"
    return t.module(f"pack_units_{side}_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def pack_launch(registers: Registers, side: str, transposed: bool) -> Module:
    """The launch that packs an operand, for kernels without variables and with a plain batch: like
    any launch a function of params and values, but one for all such kernels."""
    t = LibraryFunction(registers, DenseOperands())
    f = t.f
    f.entry.append(f"  %numbers = getelementptr i64, ptr %values, i64 {FIRST}")
    where = PACKED[side]
    for name, number in ((f"%{side}.0", ("param", side)), (where, where.removeprefix("%"))):
        place = f.number(number)
        f.entry.append(f"  {name}.at = getelementptr ptr, ptr %params, i64 {place}")
        f.entry.append(f"  {name} = load ptr, ptr {name}.at")
    start = f.number(("start", side))
    f.entry.append(f"  %{side} = getelementptr {t.outside}, ptr %{side}.0, i64 {start}")
    move = pack_dense(registers, side, transposed)  # which such kernels name as well
    f.e.declare(f"void @{move.name}({MOVE})", move.name)
    t.pack_units(side, f"@{move.name}")
    arguments = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
    return t.module(f"pack_phase_{side}_{registers.dtype}", arguments)
