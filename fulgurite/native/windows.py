"""Packing of factors that are memory seen through windows: library functions for every shape.

In: the registers. Out: the text of a module. Its function is given where a factor's numbers begin
in a kernel's table, and packs a block of the factor the way that `KINDS` numbers: as rows of k, as
panels, or as rows of columns, with lanes along the memory or across it. It is the packer's own text
over one load with an axis and a condition for each slot of a `View`, whose sizes and steps are all
read from the table. Two more functions are the phases that pack a factor into the workspace. So
convolutions have no text but their epilogue.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from ..core.node import make
from ..core.ops.index import LOAD
from ..kernel.contract import Line, Part
from ..kernel.windows import BATCH, SLOTS, View
from .code import FIRST
from .emitter import scalar_type
from .frame import Frame, Numbers
from .lent import TABLE, Lent, Tile
from .microkernel import MASKS, Module, Registers, named, transpose
from .packing import Packer, Side, Span, Target

MOVE = "ptr, ptr, i64, i64, ptr, i64, i64, i64"  # the types of what packs
# how a factor is packed: as what, along which line, and whether neighbours have step 1
KINDS = (
    ("rows", "folded", True), ("rows", "folded", False), ("rows", "own", True),
    ("panels", "own", True), ("panels", "own", False), ("panels", "folded", True),
    ("flat", "own", True),
)  # fmt: skip
_LINES = ("batch", "own", "folded")
SEEN: tuple[Hashable, ...] = (
    "kind", "row",
    *[(line, name, slot) for line in _LINES for name in ("size", "step")
      for slot in range(BATCH if line == "batch" else SLOTS)],
    *[("if", name, slot) for slot in range(SLOTS) for name in ("start", "own", "folded", "below")],
)  # fmt: skip
WINDOWS = (*TABLE, *[(name, side) for side in ("left", "right") for name in SEEN])
_FIRST = 1 << 40  # what stands for the first number of `SEEN`
_NOTHING = Line((), (), frozenset())


def seen_numbers(v: View, kind: tuple[str, str, bool], row: int) -> dict[Hashable, int]:
    """The numbers of a view, by their names in `SEEN`."""
    found: dict[Hashable, int] = {"kind": KINDS.index(kind), "row": row}
    for line, slots in zip(_LINES, (v.batch, v.own, v.folded), strict=True):
        for slot, (size, step) in enumerate(slots):
            found |= {(line, "size", slot): size, (line, "step", slot): step}
    for slot, c in enumerate(v.conditions):
        values = {"start": c.start, "own": c.own, "folded": c.folded, "below": c.below}
        found |= {("if", name, slot): value for name, value in values.items()}
    return found


def _stands(name: Hashable) -> int:
    return _FIRST + SEEN.index(name)


class _View(Frame):
    """A function whose numbers are those of one factor."""

    def number(self, name: Hashable, value: int) -> str:
        """A number of the factor, read once."""
        if value not in self.read:
            place, found = self.e.name("n"), self.e.name("n")
            at = value - _FIRST
            assert 0 <= at < len(SEEN), name
            self.entry.append(f"  {place} = getelementptr i64, ptr %seen, i64 {at}")
            self.entry.append(f"  {found} = load i64, ptr {place}")
            self.read[value] = found
        return self.read[value]

    def pointer(self, number: int) -> str:
        """The memory."""
        return "%from"


_ARGUMENTS = (
    "ptr noalias %seen, ptr noalias %from, i64 %own, i64 %k, ptr noalias %to, i64 %stride, "
    "i64 %owned, i64 %depth"
)


def _packer(registers: Registers, kind: tuple[str, str, bool]) -> tuple[str, dict[str, str]]:
    """The function of one kind, and what it declares."""
    shape, along, near = kind
    name = "left" if shape == "rows" else "right"
    lines = {}
    for line, first in (("own", 0), ("folded", SLOTS)):
        axes = tuple(range(first, first + SLOTS))
        sizes = tuple([_stands((line, "size", slot)) for slot in range(SLOTS)])
        lines[line] = Line(axes, sizes, frozenset({axes[-1]}))
    lanes = lines[along].axes[-1]

    def term(line: str, slot: int, stands: Hashable) -> tuple[int, int]:
        axis = lines[line].axes[slot]
        return axis, 1 if near and axis == lanes else _stands(stands)

    # what changes seldom comes first, so that it is added up before the inner loops
    order = ("own", "folded") if along == "folded" else ("folded", "own")
    terms = tuple([term(x, slot, (x, "step", slot)) for x in order for slot in range(SLOTS)])
    conditions = tuple([
        ((_stands(("if", "start", slot)),
          tuple([term(line, slot, ("if", line, slot)) for line in order])),
         _stands(("if", "below", slot)))
        for slot in range(SLOTS)
    ])  # fmt: skip
    load = make(LOAD, registers.dtype, (), (0, (0, terms), conditions))
    rows, columns = (lines["own"], _NOTHING) if name == "left" else (_NOTHING, lines["own"])
    part = Part((load,), _NOTHING, rows, columns, lines["folded"], frozenset())
    masked = registers.target.vectors == MASKS[0]
    f = _View("PART", Numbers([load]), [registers.dtype], registers.target.lanes, masked)
    f.read["row"] = f.number("row", _stands("row"))
    free = {load: frozenset(range(2 * SLOTS))}
    packer = Packer(f, Side(name, load, part, lines["own"], along), registers, free)
    width = "%stride" if shape == "flat" else ""
    packer.pack(Span("%own", "%owned", "%k", "%depth"), Target("%to", "%stride", "%stride", width))
    body = "\n".join([*f.entry, *f.e.lines])
    symbol = f"@PART{KINDS.index(kind)}"
    text = f"define internal void {symbol}({_ARGUMENTS}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
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


TILE = "ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr"


@lru_cache(maxsize=32)
def tile(registers: Registers) -> Module:
    """`void f(ptr params, ptr numbers, i64 batch, i64 row, i64 column, i64 begin, i64 end,
    ptr sums, i64 width, ptr panel, ptr narrow, ptr move)`: the sums of the tile at a row and column
    of tiles over some blocks of k."""
    f = Seen(registers)
    for side in ("left", "right"):
        f.base(side)  # once, before all loops
    _Tile(f, {"left": "%move", "right": "%move"}).write()
    arguments = (
        "ptr %params, ptr %numbers, i64 %batch, i64 %row, i64 %column, i64 %begin, i64 %end, "
        "ptr %sums, i64 %width, ptr %panel, ptr %narrow, ptr %move"
    )
    return f.module(f"windowed_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def windows(registers: Registers) -> Module:
    """`void f(ptr seen, ptr from, i64 own, i64 k, ptr to, i64 stride, i64 owned, i64 depth)`, and
    the phases of both sides: see `phase`."""
    texts, declared = [], {}
    for kind in KINDS:
        text, names = _packer(registers, kind)
        texts.append(text)
        declared |= names
    lines = [
        "  %kind = load i64, ptr %seen",
        f"  switch i64 %kind, label %done [{' '.join(f'i64 {i}, label %is{i}' for i in range(len(KINDS)))}]",
    ]
    names = ", ".join(f"{part}" for part in _ARGUMENTS.replace(" noalias", "").split(", "))
    for i in range(len(KINDS)):
        lines += [f"is{i}:", f"  call void @PART{i}({names})", "  br label %done"]
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
