"""Tiles of products whose two factors are memory as it is: library functions for every shape.

In: the registers. Out: texts of modules. `tile` computes the sums of one tile, over all blocks of
k, going the way that each factor goes (plain, packed here, packed before); `pieces` packs a factor
into the workspace, and `packing` is that as a phase by itself. All they know of a kernel is a table
of numbers, in the order of `TABLE`, and what other functions of the library are called: they get
those as arguments, since a module of the library knows no other. So a kernel over plain matrices
has no text but its batch and its epilogue, and is quickly compiled.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from ..core.dtype import int64
from .code import FIRST
from .convert import store_value
from .emitter import Val, scalar_type
from .frame import Frame, Numbers
from .microkernel import MASKS, Module, Registers, named
from .moving import moving
from .narrow import NARROW

WAYS = ("plain", "own", "shared", "narrow")  # numbers of how a factor reaches the microkernel
BLOCK = "ptr, i64, i64, ptr, i64, ptr, i64, i64, i64, i64, i1, ptr"  # types of microkernels
MOVE = "ptr, i64, ptr, i64, i64, i64"  # and of what packs
TILE = "ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr, ptr"
JOIN = "ptr, i64, i64, i64, ptr, i64, i64, i64"
PIECES = "ptr, ptr, ptr, i64, i64, ptr"
_SIDE = (
    "all", "tile", "way", "from own", "from k", "apart", "own", "k", "numbers", "scratch",
    "piece", "pieces", "high", "chunks", "packed", "of a product", "next product",
    "param", "start",
)  # fmt: skip
TABLE: tuple[Hashable, ...] = (
    "blocks", "depth", "block of k", "deep", "wide", "reach", "tile numbers",
    "before right", "workspace",
    *[(name, side) for side in ("left", "right") for name in _SIDE],
)  # fmt: skip


class _Lent(Frame):
    """A function that reads its numbers from a kernel's table."""

    def __init__(self, registers: Registers) -> None:
        lanes, masked = registers.target.lanes, registers.target.vectors in MASKS
        super().__init__("SELF", Numbers([]), [], lanes, masked)
        self.inner = scalar_type(registers.dtype)

    def number(self, name: Hashable, value: int = 0) -> str:
        """A number of the table, read once."""
        if name not in self.read:
            place, found = self.e.name("n"), self.e.name("n")
            at = TABLE.index(name)
            self.entry.append(f"  {place} = getelementptr i64, ptr %numbers, i64 {at}")
            self.entry.append(f"  {found} = load i64, ptr {place}")
            self.read[name] = found
        return self.read[name]

    def at(self, memory: str, place: str) -> str:
        """The address of a place."""
        return self.e.let(f"getelementptr {self.inner}, ptr {memory}, i64 {place}")

    def source(self, side: str, own: str, k: str) -> str:
        """Where a factor has a place in memory as it is."""
        down, along = self.number(("from own", side)), self.number(("from k", side))
        return self.at(f"%{side}", self.add(self.mul(own, down), self.mul(k, along)))

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
        return self.at("%workspace", place)

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
            beyond = self.mul(batch, self.number(("next product", side)))
            source = self.at(self.source(side, own, k), beyond)
            apart, stride = self.number(("apart", side)), self.number(("packed", side))
            self.invoke(move, MOVE, [source, apart, memory, stride, owned, depth])
            return []

        self.e.loop("%first", "%last", 1, [], unit)

    def module(self, stem: str, arguments: str) -> Module:
        """The function as a module."""
        body = "\n".join([*self.entry, *self.e.lines])
        text = f"define void @SELF({arguments}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
        return named(stem, "\n".join([text, *self.e.declared.values()]))


@lru_cache(maxsize=32)
def tile(registers: Registers) -> Module:
    """`void f(ptr numbers, ptr left, ptr right, ptr workspace, i64 batch, i64 row, i64 column,
    i64 begin, i64 end, ptr sums, i64 width, ptr panel, ptr narrow, ptr move_left, ptr move_right)`:
    the sums of the tile at a row and column of tiles over some blocks of k; `panel` is a block,
    `narrow` is for few columns."""
    f = _Lent(registers)
    e = f.e
    for side in ("left", "right"):
        f.scratch(side, f.inner, f.number(("scratch", side)))
    begin, count = {}, {}
    for side, at in (("left", "%row"), ("right", "%column")):
        begin[side] = f.mul(at, f.number(("tile", side)))
        rest = f.sub(f.number(("all", side)), begin[side])
        count[side] = f.least(f.number(("tile", side)), rest)
    wide, across = f.number("wide"), f.number(("own", "right"))
    panels = f.panels(count["right"], wide, f.number("reach"))
    is_way = {
        (side, way): e.let(f"icmp eq i64 {f.number(('way', side))}, {WAYS.index(way)}")
        for side in ("left", "right") for way in ("plain", "own", "narrow")
    }  # fmt: skip
    panels = e.let(f"select i1 {is_way['right', 'narrow']}, i64 0, i64 {panels}")

    def deep(number: str, _: list[str]) -> list[str]:
        k = f.mul(number, f.number("block of k"))
        depth = f.least(f.number("block of k"), f.sub(f.number("depth"), k))
        first = e.let(f"icmp eq i64 {number}, %begin")
        found = {}
        for side, place in (("left", "%row"), ("right", "%column")):
            memory, scratch = f.source(side, begin[side], k), f.read[side]

            def pack(side: str = side, memory: str = memory, scratch: str = scratch) -> None:
                apart, stride = f.number(("apart", side)), f.number(("packed", side))
                operands = [memory, apart, scratch, stride, count[side], depth]
                f.invoke(f"%move_{side}", MOVE, operands)

            e.branch(is_way[side, "own"], pack)
            shared = f.workspace(side, "%batch", begin[side], place, number, "0")
            known = e.let(f"select i1 {is_way[side, 'own']}, ptr {scratch}, ptr {shared}")
            found[side] = e.let(f"select i1 {is_way[side, 'plain']}, ptr {memory}, ptr {known}")

        def turn(panel: str, _: list[str]) -> list[str]:
            column = f.mul(panel, wide)
            at, to = f.at(found["right"], f.mul(column, across)), f.at("%sums", column)
            ahead = f.at(at, f.mul(wide, across))
            operands = [
                found["left"], f.number(("own", "left")), f.number(("k", "left")), at,
                f.number(("k", "right")), to, "%width", depth, count["left"],
                f.in_panel(f.sub(count["right"], column), wide, f.number("reach")), first,
                e.let(f"select i1 {is_way['right', 'plain']}, ptr null, ptr {ahead}"),
            ]  # fmt: skip
            f.invoke("%panel", BLOCK, operands)
            return []

        operands = [
            found["left"], f.number(("own", "left")), f.source("right", begin["right"], k),
            f.number(("from own", "right")), f.number(("from k", "right")), "%sums", "%width",
            depth, count["left"], count["right"], first,
        ]  # fmt: skip
        e.branch(is_way["right", "narrow"], lambda: f.invoke("%narrow", NARROW, operands))
        e.loop("0", panels, 1, [], turn)
        return []

    e.loop("%begin", "%end", 1, [], deep)
    arguments = (
        "ptr %numbers, ptr %left, ptr %right, ptr %workspace, i64 %batch, i64 %row, i64 %column, "
        "i64 %begin, i64 %end, ptr %sums, i64 %width, ptr %panel, ptr %narrow, ptr %move_left, "
        "ptr %move_right"
    )
    return f.module(f"tile_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def join(registers: Registers) -> Module:
    """`void f(ptr parts, i64 apart, i64 count, i64 stride, ptr sums, i64 width, i64 rows,
    i64 columns)`: adds up the sums of chunks of k, in order; parts begin `apart` numbers apart."""
    f = _Lent(registers)
    e, kind = f.e, f"<{registers.target.lanes} x {f.inner}>"
    add = "fadd" if registers.dtype.kind == "f" else "add"

    def row(number: str, _: list[str]) -> list[str]:
        source = f.at("%parts", f.mul(number, "%stride"))  # with room for whole vectors
        goal = f.at("%sums", f.mul(number, "%width"))

        def vector(step: str) -> None:
            def more(part: str, now: list[str]) -> list[str]:
                place = f.at(source, f.add(f.mul(part, "%apart"), step))
                found = e.let(f"load {kind}, ptr {place}, align 4")
                return [e.let(f"{add} {kind} {now[0]}, {found}")]

            first = e.let(f"load {kind}, ptr {f.at(source, step)}, align 4")
            (total,) = e.loop("1", "%count", 1, [(kind, first)], more)
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
    f = _Lent(registers)
    f.pieces(side, "%move")
    arguments = f"ptr %numbers, ptr %{side}, ptr %workspace, i64 %first, i64 %last, ptr %move"
    return f.module(f"pieces_{side}_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def packing(registers: Registers, side: str, straight: bool) -> Module:
    """The phase that packs a factor, for kernels without variables and with a plain batch: like any
    phase a function of params and values, but one for all such kernels."""
    f = _Lent(registers)
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
