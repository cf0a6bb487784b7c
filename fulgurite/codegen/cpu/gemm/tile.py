"""Tiles of products whose two factors are memory as it is: library functions for every shape.

In: the registers. Out: texts of modules. `tile` computes the sums of one tile, over all blocks of
k, going the way that each factor goes (plain, packed here or on the way, packed before); `pieces`
packs a factor into the workspace, and `packing` is that as a phase by itself. All they know of a
kernel is a table of numbers, in the order of `TABLE`, and what other functions of the library are
called: they get those as arguments, since a module of the library knows no other. So a kernel over
plain matrices has no text but its batch and its epilogue, and is quickly compiled.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache, reduce

from ....core.dtype import float32, int64
from ...common.api import FIRST
from ..llvm.convert import store_value
from ..llvm.emitter import Val, scalar_type
from ..loops.function import Frame, Numbers
from .microkernel import MASKS, Module, Registers, named
from .pack_dense import moving
from .skinny import NARROW

WAYS = (
    "plain",
    "own",
    "shared",
    "narrow",
    "flat",
    "lined",
    "swept",
    "kept",
)  # numbers of how a factor reaches the microkernel
BLOCK = "ptr, i64, i64, ptr, i64, ptr, i64, i64, i64, i64, i1, ptr"  # types of microkernels
MOVE = "ptr, i64, ptr, i64, i64, i64"  # and of what packs
TILE = "ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr, ptr, ptr"
JOIN = "ptr, i64, i64, i64, ptr, i64, i64, i64"
PIECES = "ptr, ptr, ptr, i64, i64, ptr"
_SIDE = (
    "all", "tile", "way", "from own", "from k", "apart", "own", "k", "numbers", "scratch",
    "piece", "pieces", "high", "chunks", "packed", "of a product", "next product",
    "param", "start",
)  # fmt: skip
TABLE: tuple[Hashable, ...] = (
    "blocks", "depth", "block of k", "deep", "wide", "reach", "tile numbers",
    "before right", "workspace", "each", "over", "unit",
    *[(name, side) for side in ("left", "right") for name in _SIDE],
)  # fmt: skip


class Lent(Frame):
    """A function that reads its numbers from a kernel's table."""

    table: tuple[Hashable, ...] = TABLE

    def __init__(self, registers: Registers) -> None:
        lanes, masked = registers.target.lanes, registers.target.vectors in MASKS
        super().__init__("SELF", Numbers([]), [], lanes, masked)
        self.inner = scalar_type(registers.dtype)

    def number(self, name: Hashable, value: int = 0) -> str:
        """A number of the table, read once."""
        if name not in self.read:
            place, found = self.e.name("n"), self.e.name("n")
            at = self.table.index(name)
            self.entry.append(f"  {place} = getelementptr i64, ptr %numbers, i64 {at}")
            self.entry.append(f"  {found} = load i64, ptr {place}")
            self.read[name] = found
        return self.read[name]

    def at(self, memory: str, place: str) -> str:
        """The address of a place."""
        return self.e.let(f"getelementptr {self.inner}, ptr {memory}, i64 {place}")

    def base(self, side: str) -> str:
        """Where a factor begins for the product at hand."""
        return f"%{side}"

    def space(self) -> str:
        """Where the workspace is."""
        return "%workspace"

    def source(self, side: str, own: str, k: str) -> str:
        """Where a factor has a place in memory as it is."""
        down, along = self.number(("from own", side)), self.number(("from k", side))
        return self.at(self.base(side), self.add(self.mul(own, down), self.mul(k, along)))

    def workspace(self, side: str, batch: str, own: str, tile: str, number: str, down: str) -> str:
        """Where in the workspace a block of a factor is: places from `own`, k from `down`."""
        block = self.add(self.mul(batch, self.number("blocks")), number)
        place = self.mul(block, self.number(("numbers", side)))
        if side == "left":
            place = self.add(place, self.mul(tile, self.number("tile numbers")))
        else:
            place = self.add(place, self.mul(own, self.number("deep")))
            place = self.add(place, self.mul(down, self.number(("k", "right"))))
            place = self.add(place, self.number("before right"))
        return self.at(self.space(), place)

    def invoke(self, function: str, types: str, operands: list[str]) -> None:
        """Call a function by its address."""
        typed = [f"{t} {o}" for t, o in zip(types.split(", "), operands, strict=True)]
        self.e.line(f"call void {function}({', '.join(typed)})")

    def pieces(self, side: str, move: str) -> None:
        """Pack the pieces of a factor from %first to %last."""

        def unit(index: str, _: list[str]) -> list[str]:
            batch, inner = self.divided(index, self.number(("of a product", side)))
            outer, chunk = self.divided(inner, self.number(("chunks", side)))
            place, number = self.divided(outer, self.number("blocks"))
            size, high = self.number(("piece", side)), self.number(("high", side))
            own, down = self.mul(place, size), self.mul(chunk, high)
            k = self.add(self.mul(number, self.number("block of k")), down)
            owned = self.least(size, self.sub(self.number(("all", side)), own))
            depth = self.least(high, self.sub(self.number("depth"), k))
            memory = self.workspace(side, batch, own, place, number, down)
            self.pack(move, side, batch, own, k, memory, owned, depth)
            return []

        self.e.loop("%first", "%last", 1, [], unit)

    def pack(
        self, move: str, side: str, batch: str, own: str, k: str, to: str, owned: str, depth: str
    ) -> None:
        """Pack a block of a factor: places from `own`, k from `k`, of a product of a batch."""
        source = self.source(side, own, k)
        if batch != "0":
            source = self.at(source, self.mul(batch, self.number(("next product", side))))
        apart, stride = self.number(("apart", side)), self.number(("packed", side))
        self.invoke(move, MOVE, [source, apart, to, stride, owned, depth])

    def module(self, stem: str, arguments: str) -> Module:
        """The function as a module."""
        body = "\n".join([*self.entry, *self.e.lines])
        text = f"define void @SELF({arguments}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
        return named(stem, "\n".join([text, *self.e.declared.values()]))


class Tile:
    """The text of a tile's sums, and the ways that factors go beside plain and shared ones."""

    packs: tuple[str, ...] = ("own",)  # ways of a factor that the tile packs for itself
    along_k = "narrow"  # the way of one that is multiplied with lanes along k
    as_lined: tuple[str, ...] = ("plain",)  # ways of one that lies in rows, with no panel after it
    keeps = True  # may the first rows put columns that lie as they are into panels?

    def __init__(self, f: Lent, moves: dict[str, str]) -> None:
        self.f, self.moves = f, moves
        e = f.e
        for side in ("left", "right"):
            f.scratch(side, f.inner, f.number(("scratch", side)))
        self.begin, self.count = {}, {}
        self.begin["left"] = f.mul("%row", f.number(("tile", "left")))
        rest = f.sub(f.number(("all", "left")), self.begin["left"])
        self.count["left"] = f.least(f.number(("tile", "left")), rest)
        over = [f.number(name) for name in ("each", "over", "unit", ("all", "right"))]
        self.begin["right"], self.count["right"] = f.stretched("%column", *over)
        self.panels = f.panels(self.count["right"], f.number("wide"), f.number("reach"))
        self.lined = self.goes("right", self.along_k)
        self.panels = e.let(f"select i1 {self.lined}, i64 0, i64 {self.panels}")
        self.packed = {side: self.goes(side, *self.packs) for side in ("left", "right")}
        self.plain = {side: self.goes(side, "plain") for side in ("left", "right")}
        self.alone = self.goes("right", *self.as_lined)
        if self.keeps:
            self.kept = self.goes("right", "kept")
            self.plain["right"] = self.goes("right", "plain", "kept")

    def goes(self, side: str, *ways: str) -> str:
        """Does a factor go one of some ways?"""
        e, way = self.f.e, self.f.number(("way", side))
        found = [e.let(f"icmp eq i64 {way}, {WAYS.index(name)}") for name in ways]
        return reduce(lambda a, b: e.let(f"or i1 {a}, {b}"), found)

    def write(self) -> None:
        """All blocks of k from %begin to %end."""
        self.f.e.loop("%begin", "%end", 1, [], lambda number, _: self.deep(number))

    def deep(self, number: str) -> list[str]:
        """One block of k."""
        f, e, begin, count = self.f, self.f.e, self.begin, self.count
        k = f.mul(number, f.number("block of k"))
        depth = f.least(f.number("block of k"), f.sub(f.number("depth"), k))
        first = e.let(f"icmp eq i64 {number}, %begin")
        found = {}
        for side, place in (("left", "%row"), ("right", "%column")):
            memory, scratch = f.source(side, begin[side], k), f.read[side]

            def pack(side: str = side, scratch: str = scratch) -> None:
                f.pack(self.moves[side], side, "0", begin[side], k, scratch, count[side], depth)

            e.branch(self.packed[side], pack)
            shared = f.workspace(side, "%batch", begin[side], place, number, "0")
            known = e.let(f"select i1 {self.packed[side]}, ptr {scratch}, ptr {shared}")
            found[side] = e.let(f"select i1 {self.plain[side]}, ptr {memory}, ptr {known}")
        e.branch(self.lined, lambda: self.narrow(found, k, depth, first))
        wide, across = f.number("wide"), f.number(("own", "right"))

        def turn(panel: str, _: list[str]) -> list[str]:
            column = f.mul(panel, wide)
            at, to = f.at(found["right"], f.mul(column, across)), f.at("%sums", column)
            ahead = f.at(at, f.mul(wide, across))
            ahead, function = e.let(f"select i1 {self.alone}, ptr null, ptr {ahead}"), "%panel"
            if self.keeps:
                panel = f.at(f.read["right"], f.mul(column, f.number("deep")))
                ahead = e.let(f"select i1 {self.kept}, ptr {panel}, ptr {ahead}")
                function = e.let(f"select i1 {self.kept}, ptr %keep, ptr %panel")
            operands = [
                found["left"], f.number(("own", "left")), f.number(("k", "left")), at,
                f.number(("k", "right")), to, "%width", depth, count["left"],
                f.in_panel(f.sub(count["right"], column), wide, f.number("reach")), first, ahead,
            ]  # fmt: skip
            f.invoke(function, BLOCK, operands)
            return []

        e.loop("0", self.panels, 1, [], turn)
        return []

    def narrow(self, found: dict[str, str], k: str, depth: str, first: str) -> None:
        """Products with lanes along k."""
        f = self.f
        f.invoke("%narrow", NARROW, [
            found["left"], f.number(("own", "left")), *self.columns(found, k), "%sums", "%width",
            depth, self.count["left"], self.count["right"], first,
        ])  # fmt: skip

    def columns(self, found: dict[str, str], k: str) -> list[str]:
        """A right factor that is multiplied along k, and its strides."""
        f = self.f
        source = f.source("right", self.begin["right"], k)
        return [source, f.number(("from own", "right")), f.number(("from k", "right"))]


@lru_cache(maxsize=32)
def tile(registers: Registers) -> Module:
    """`void f(ptr numbers, ptr left, ptr right, ptr workspace, i64 batch, i64 row, i64 column,
    i64 begin, i64 end, ptr sums, i64 width, ptr panel, ptr narrow, ptr move_left, ptr move_right,
    ptr keep)`: the sums of the tile at a row and column of tiles over some blocks of k; `panel` is
    a block, `keep` its keeper, `narrow` is for few columns."""
    f = Lent(registers)
    Tile(f, {"left": "%move_left", "right": "%move_right"}).write()
    arguments = (
        "ptr %numbers, ptr %left, ptr %right, ptr %workspace, i64 %batch, i64 %row, i64 %column, "
        "i64 %begin, i64 %end, ptr %sums, i64 %width, ptr %panel, ptr %narrow, ptr %move_left, "
        "ptr %move_right, ptr %keep"
    )
    return f.module(f"tile_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def join(registers: Registers) -> Module:
    """`void f(ptr parts, i64 apart, i64 count, i64 stride, ptr sums, i64 width, i64 rows,
    i64 columns)`: adds up the sums of chunks of k, in order, those of float32 in float64; parts
    begin `apart` numbers apart."""
    f = Lent(registers)
    e, kind = f.e, f"<{registers.target.lanes} x {f.inner}>"
    add = "fadd" if registers.dtype.kind == "f" else "add"
    wide = f"<{registers.target.lanes} x double>" if registers.dtype is float32 else kind

    def load(place: str) -> str:
        found = e.let(f"load {kind}, ptr {place}, align 4")
        return found if wide == kind else e.let(f"fpext {kind} {found} to {wide}")

    def row(number: str, _: list[str]) -> list[str]:
        source = f.at("%parts", f.mul(number, "%stride"))  # with room for whole vectors
        goal = f.at("%sums", f.mul(number, "%width"))

        def vector(step: str) -> None:
            def more(part: str, now: list[str]) -> list[str]:
                place = f.at(source, f.add(f.mul(part, "%apart"), step))
                return [e.let(f"{add} {wide} {now[0]}, {load(place)}")]

            (total,) = e.loop("1", "%count", 1, [(wide, load(f.at(source, step)))], more)
            if wide != kind:
                total = e.let(f"fptrunc {wide} {total} to {kind}")
            value, place = Val(total, registers.dtype, True), Val(step, int64)
            store_value(e, goal, place, value, registers.dtype, f.mask, "row")

        f.lanes(0, "0", "%columns", [], vector)
        return []

    e.loop("0", "%rows", 1, [], row)
    arguments = (
        "ptr %parts, i64 %apart, i64 %count, i64 %stride, ptr %sums, i64 %width, "
        "i64 %rows, i64 %columns"
    )
    return f.module(f"join_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def pieces(registers: Registers, side: str) -> Module:
    """`void f(ptr numbers, ptr factor, ptr workspace, i64 first, i64 last, ptr move)`: packs some
    pieces of a factor, numbered through all products of a batch."""
    f = Lent(registers)
    f.pieces(side, "%move")
    arguments = f"ptr %numbers, ptr %{side}, ptr %workspace, i64 %first, i64 %last, ptr %move"
    return f.module(f"pieces_{side}_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def packing(registers: Registers, side: str, straight: bool) -> Module:
    """The phase that packs a factor, for kernels without variables and with a plain batch: like any
    phase a function of params and values, but one for all such kernels."""
    f = Lent(registers)
    f.entry.append(f"  %numbers = getelementptr i64, ptr %values, i64 {FIRST}")
    for name, number in ((f"%{side}.0", ("param", side)), ("%workspace", "workspace")):
        place = f.number(number)
        f.entry.append(f"  {name}.at = getelementptr ptr, ptr %params, i64 {place}")
        f.entry.append(f"  {name} = load ptr, ptr {name}.at")
    start = f.number(("start", side))
    f.entry.append(f"  %{side} = getelementptr {f.inner}, ptr %{side}.0, i64 {start}")
    move = moving(registers, side, straight)  # which such kernels name as well
    f.e.declare(f"void @{move.name}({MOVE})", move.name)
    f.pieces(side, f"@{move.name}")
    arguments = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
    return f.module(f"packing_{side}_{registers.dtype}", arguments)
