"""Tiles of contractions with factors seen through windows: library functions for every shape.

In: the registers. Out: texts of modules. `windows` packs a block of such a factor the way that its
numbers say, as rows of k, as panels or as rows of columns, and has the phases that pack a factor
into the workspace; `tile` computes the sums of a tile, going the way that each factor goes. All
they know of a kernel is its table of numbers, in the order of `WINDOWS`. So convolutions of any
size, window, stride, dilation, padding and groups have no text but their epilogue.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from ..kernel.windows import BATCH, SLOTS
from .code import FIRST
from .lent import TABLE, Lent, Tile
from .microkernel import Module, Registers, named, transpose
from .views import SEEN, WAYS_TO_PACK, Packer

MOVE = "ptr, ptr, i64, i64, ptr, i64, i64, i64"  # the types of what packs
WINDOWS = (
    *TABLE,
    "pieces",
    "bytes",
    *[(name, side) for side in ("left", "right") for name in SEEN],
)


_ARGUMENTS = (
    "ptr noalias %seen, ptr noalias %from, i64 %own, i64 %k, ptr noalias %to, i64 %stride, "
    "i64 %owned, i64 %depth"
)


def _packer(registers: Registers, kind: str) -> tuple[str, dict[str, str]]:
    """The function of one kind, and what it declares."""
    f = Packer(registers, kind)
    f.turned() if kind == "turned" else f.straight()
    body = "\n".join([*f.entry, *f.e.lines])
    symbol = f"@PART{WAYS_TO_PACK.index(kind)}"
    text = (
        f"define internal void {symbol}({_ARGUMENTS}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    )
    return text, f.e.declared


class Seen(Lent):
    """A function of the library that knows all numbers of a kernel with windows."""

    table = WINDOWS

    def memory(self, side: str, batch: str) -> str:
        """Where a factor begins for one product of a batch."""
        place = self.number(("start", side))
        for slot in reversed(range(BATCH)):
            rest = batch
            if slot:
                batch, rest = self.divided(batch, self.number((("batch", "size", slot), side)))
            place = self.add(place, self.mul(rest, self.number((("batch", "step", slot), side))))
        return self.at(self.param(("param", side)), place)

    def param(self, name: Hashable) -> str:
        """The address of a param whose number is in the table, read once."""
        if ("at", name) not in self.read:
            number, place, found = self.number(name), self.e.name("p"), self.e.name("p")
            self.entry.append(f"  {place} = getelementptr ptr, ptr %params, i64 {number}")
            self.entry.append(f"  {found} = load ptr, ptr {place}")
            self.read["at", name] = found
        return self.read["at", name]

    def space(self) -> str:
        """Where the workspace is."""
        return self.param("workspace")

    def base(self, side: str) -> str:
        """Where a factor begins for the product of a tile."""
        if ("base", side) not in self.read:
            self.read["base", side] = self.memory(side, "%batch")
        return self.read["base", side]

    def table_of(self, tile: str) -> str:
        """Where what is known of a tile of columns is in the workspace."""
        place = self.mul(tile, self.number("bytes"))
        return self.e.let(f"getelementptr i8, ptr {self.space()}, i64 {place}")

    def seen(self, side: str) -> str:
        """Where the numbers of a factor begin."""
        at = self.table.index(("kind", side))
        return self.e.let(f"getelementptr i64, ptr %numbers, i64 {at}")

    def pack(
        self, move: str, side: str, batch: str, own: str, k: str, to: str, owned: str, depth: str
    ) -> None:
        """Pack a block of a factor: places from `own`, k from `k`, of a product of a batch."""
        source = self.base(side) if batch == "0" else self.memory(side, batch)
        stride = self.number(("packed", side))
        self.invoke(move, MOVE, [self.seen(side), source, own, k, to, stride, owned, depth])


class _Tile(Tile):
    """Tiles with factors that are seen through windows."""

    packs = ("own", "flat", "lined")
    along_k = "lined"
    as_lined = ("plain", "flat")

    def columns(self, found: dict[str, str], k: str) -> list[str]:
        f = self.f
        return [found["right"], f.number(("own", "right")), f.number(("k", "right"))]

    def write(self) -> None:
        """All blocks of k, or a sweep of a few rows over all of k."""
        f, e = self.f, self.f.e
        assert isinstance(f, Seen)
        swept = self.goes("right", "swept")

        def sweep() -> None:
            left = f.at(f.base("left"), f.mul(self.begin["left"], f.number(("down", "left"))))
            step = f.number((("lanes", "step", SLOTS - 1), "right"))
            along = e.let(f"icmp ne i64 {f.number(('along', 'right'))}, 0")
            rows = e.let(f"select i1 {along}, i64 0, i64 {self.count['left']}")
            steps = e.let(f"select i1 {along}, i64 {self.count['right']}, i64 {f.number('depth')}")
            f.invoke("%sweep", SWEEP, [
                left, f.base("right"), f.table_of("%column"), f.number("pieces"), "%sums", "%width",
                rows, steps, step, f.number(("down", "left")),
            ])  # fmt: skip

        e.branch(swept, sweep)
        end = e.let(f"select i1 {swept}, i64 %begin, i64 %end")
        e.loop("%begin", end, 1, [], lambda number, _: self.deep(number))


TILE = "ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr, ptr"
SWEEP = "ptr, ptr, ptr, i64, ptr, i64, i64, i64, i64, i64"  # types of what sweeps over windows


@lru_cache(maxsize=32)
def tile(registers: Registers) -> Module:
    """`void f(ptr params, ptr numbers, i64 batch, i64 row, i64 column, i64 begin, i64 end,
    ptr sums, i64 width, ptr panel, ptr narrow, ptr move, ptr sweep)`: the sums of the tile at a row
    and column of tiles over some blocks of k."""
    f = Seen(registers)
    for side in ("left", "right"):
        f.base(side)  # once, before all loops
    _Tile(f, {"left": "%move", "right": "%move"}).write()
    arguments = (
        "ptr %params, ptr %numbers, i64 %batch, i64 %row, i64 %column, i64 %begin, i64 %end, "
        "ptr %sums, i64 %width, ptr %panel, ptr %narrow, ptr %move, ptr %sweep"
    )
    return f.module(f"windowed_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def windows(registers: Registers) -> Module:
    """`void f(ptr seen, ptr from, i64 own, i64 k, ptr to, i64 stride, i64 owned, i64 depth)`, and
    the phases of both sides: see `phase`."""
    texts: list[str] = []
    declared: dict[str, str] = {}
    for kind in WAYS_TO_PACK:
        text, names = _packer(registers, kind)
        texts.append(text)
        declared |= names
    cases = " ".join([f"i64 {i}, label %is{i}" for i in range(len(WAYS_TO_PACK))])
    lines = ["  %kind = load i64, ptr %seen", f"  switch i64 %kind, label %done [ {cases} ]"]
    operands = _ARGUMENTS.replace(" noalias", "")
    for i in range(len(WAYS_TO_PACK)):
        lines += [f"is{i}:", f"  call void @PART{i}({operands})", "  br label %done"]
    lines += ["done:", "  ret void"]
    head = f"define void @SELF({_ARGUMENTS}) nounwind {{\nentry:"
    texts.insert(0, "\n".join([head, *lines, "}"]))
    for side in ("left", "right"):
        text, names_ = _phase(registers, side)
        texts.append(text)
        declared |= names_
    turn = transpose(registers)
    inside = turn.text.replace("define void", "define internal void")
    text = "\n".join([*texts, inside]).replace(f"@{turn.name}", "@PARTturn")
    rest = [line for key, line in declared.items() if key != turn.name]
    return named(f"windows_{registers.dtype}", "\n".join([text, *rest]))


def phase(module: Module, side: str) -> str:
    """The name of the function that packs units of a factor into the workspace."""
    return f"{module.name}_part_{side}"


def _phase(registers: Registers, side: str) -> tuple[str, dict[str, str]]:
    """A phase of kernels without variables: a function of params and values."""
    f = Seen(registers)
    f.entry.append(f"  %numbers = getelementptr i64, ptr %values, i64 {FIRST}")
    f.pieces(side, "@SELF")
    body = "\n".join([*f.entry, *f.e.lines])
    arguments = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
    text = f"define void @PART_{side}({arguments}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    return text, f.e.declared
