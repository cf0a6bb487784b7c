"""Im2col descriptors as functions of the library read them: their numbers, and where they begin.

In: a `View` and how it is to be packed, or the registers. Out: numbers by name, in the order of
`DESCRIPTOR`; which functions pack memory of which dtype (`pack_dtypes`); and how functions of the
library find operands that are views (`ViewOperands`), so that no number is in their text.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from ....core.dtype import DType, uint8
from ....kernel.contract.im2col import BATCH, SLOTS, View
from ..gemm.microkernel import Registers
from ..gemm.tile import TABLE, LibraryFunction, PackedBlock
from ..llvm.convert import memory_dtype
from ..llvm.emitter import scalar_type

# views whose lanes are neighbours or not, or transposed; or dense matrices, straight or transposed
PACK_KINDS = ("near", "apart", "transposed", "dense", "dense transposed")
DESCRIPTOR: tuple[Hashable, ...] = (
    "kind", "along", "across", "panel", "unit", "taps", "next step", "conditions", "down",
    "flipped",
    *[("batch", name, slot) for name in ("size", "step") for slot in range(BATCH)],
    *[(line, "size", slot) for line in ("lanes", "outer", "tap") for slot in range(SLOTS)],
    *[(line, "step", slot) for line in ("lanes", "other") for slot in range(SLOTS)],
    *[("if", name, slot) for slot in range(SLOTS)
      for name in ("start", "lanes", "other", "below", "row")],
)  # fmt: skip
PACK = "ptr, ptr, i64, i64, ptr, i64, i64, i64"  # the types of what packs
VIEW_TABLE = (
    *TABLE,
    "pieces",
    "bytes",
    "alike",
    "last tile",
    ("next block", "left"),
    ("next block", "right"),
    ("next tile", "right"),
    ("next", "left"),
    ("next", "right"),
    *[(name, side) for side in ("left", "right") for name in DESCRIPTOR],
    "run",
    "jump",
)
NO_PANEL = 1 << 30  # wider than any panel


def view_numbers(
    v: View, along: str, shape: str, near: bool, panel: int, lanes: int, across: int, direct: bool,
    dtype: int = 0, flipped: int = 0,
) -> dict[Hashable, int]:  # fmt: skip
    """The numbers of a view that is packed with lanes along a line, by their names in `DESCRIPTOR`.

    It becomes rows of k or columns `across` elements apart, or panels; `dtype` is which of
    `pack_dtypes` it has, `flipped` the bits that bytes change.
    """
    transposed = (along == "own") == (shape == "rows")
    kind = PACK_KINDS.index(_pack_kind(v, near, transposed))
    panels = shape == "panels"
    found: dict[Hashable, int] = {
        "kind": dtype * len(PACK_KINDS) + kind,
        "along": int(along == "folded"), "across": across, "flipped": flipped,
        "panel": panel if panels else NO_PANEL,
        "unit": panel if panels and not transposed and not direct else lanes,
        "down": sum([step for _, step in v.own]),
    }  # fmt: skip
    for slot, (size, step) in enumerate(v.batch):
        found |= {("batch", "size", slot): size, ("batch", "step", slot): step}
    begin = 0 if direct else SLOTS if transposed else _first_tap(v, along)
    return found | _line_numbers(v, along, begin) | _condition_numbers(v, along)


def _pack_kind(v: View, near: bool, transposed: bool) -> str:
    """Which of `PACK_KINDS` a view is packed by."""
    lines = [size for size, _ in (*v.own[:-1], *v.folded[:-1])]
    if near and max(lines) == 1 and not any(c.asks for c in v.conditions):
        return "dense transposed" if transposed else "dense"
    return "transposed" if transposed else "near" if near else "apart"


def _first_tap(v: View, along: str) -> int:
    """The first slot of the other line that conditions depend on."""
    moving = [slot for slot, c in enumerate(v.conditions) if c.asks and c.step(along, True)]
    return min(moving, default=SLOTS)


def _line_numbers(v: View, along: str, begin: int) -> dict[Hashable, int]:
    """Sizes and steps of lanes and of the other line, whose slots from `begin` on are taps."""
    lanes, other = (v.own, v.folded) if along == "own" else (v.folded, v.own)
    steps = [step for size, step in other[:begin] if size > 1]
    found: dict[Hashable, int] = {
        "taps": prod([size for size, _ in other[begin:]]), "next step": steps[-1] if steps else 0,
    }  # fmt: skip
    for slot in range(SLOTS):
        size, step = other[slot]
        found |= {
            ("lanes", "size", slot): lanes[slot][0], ("lanes", "step", slot): lanes[slot][1],
            ("outer", "size", slot): 1 if slot >= begin else size,
            ("tap", "size", slot): size if slot >= begin else 1, ("other", "step", slot): step,
        }  # fmt: skip
    return found


def _condition_numbers(v: View, along: str) -> dict[Hashable, int]:
    """What is asked of lanes and of the other line, slot by slot."""
    asked = [slot for slot, c in enumerate(v.conditions) if c.asks]
    found: dict[Hashable, int] = {"conditions": len(asked)}
    for slot, c in enumerate(v.conditions):
        values = {
            "start": c.start, "lanes": c.step(along), "other": c.step(along, True),
            "below": c.below, "row": asked.index(slot) if c.asks else -1,
        }  # fmt: skip
        found |= {("if", name, slot): value for name, value in values.items()}
    return found


def pack_dtypes(registers: Registers, memories: tuple[DType, DType]) -> tuple[DType, ...]:
    """What packers there are: for each dtype in memory; bytes for sums of four are bits."""
    return (uint8,) if registers.packs_vnni else tuple(dict.fromkeys(memories))


class ViewOperands:
    """Operands that are views: params whose numbers are in the table."""

    table: tuple[Hashable, ...] = VIEW_TABLE

    def __init__(self, registers: Registers, memories: tuple[DType, DType]) -> None:
        self.dot = registers.packs_vnni
        both = [scalar_type(memory_dtype(dtype)) for dtype in memories]
        self.outside = dict(zip(("left", "right"), both, strict=True))

    def product(self, t: LibraryFunction, side: str, batch: str) -> str:
        """Where an operand begins for one product of a batch."""
        f = t.f
        place = f.number(("start", side))
        for slot in reversed(range(BATCH)):
            rest = batch
            if slot:
                batch, rest = f.divided(batch, f.number((("batch", "size", slot), side)))
            place = f.add(place, f.mul(rest, f.number((("batch", "step", slot), side))))
        return self.at(t, side, self.param(t, ("param", side)), place)

    def at(self, t: LibraryFunction, side: str, memory: str, place: str) -> str:
        """The address of a place of an operand."""
        return t.f.e.let(f"getelementptr {self.outside[side]}, ptr {memory}, i64 {place}")

    def param(self, t: LibraryFunction, name: Hashable) -> str:
        """The address of a param whose number is in the table, read once."""
        f = t.f
        if ("at", name) not in f.read:
            number, place, found = f.number(name), f.e.name("p"), f.e.name("p")
            f.entry.append(f"  {place} = getelementptr ptr, ptr %params, i64 {number}")
            f.entry.append(f"  {found} = load ptr, ptr {place}")
            f.read["at", name] = found
        return f.read["at", name]

    def packed(self, t: LibraryFunction, side: str) -> str:
        """Where an operand is packed: the workspace, or memory of a right one that stays."""
        return self.param(t, "workspace" if side == "left" else "packed")

    def base(self, t: LibraryFunction, side: str) -> str:
        """Where an operand begins for the product of a tile."""
        if ("base", side) not in t.f.read:
            t.f.read["base", side] = self.product(t, side, "%batch")
        return t.f.read["base", side]

    def tile_table(self, t: LibraryFunction, tile: str) -> str:
        """Where what is known of a tile of columns is in the workspace."""
        place = t.f.mul(tile, t.f.number("bytes"))
        return t.f.e.let(f"getelementptr i8, ptr {self.packed(t, 'left')}, i64 {place}")

    def descriptor(self, t: LibraryFunction, side: str) -> str:
        """Where the descriptor of an operand begins."""
        at = self.table.index(("kind", side))
        return t.f.e.let(f"getelementptr i64, ptr %numbers, i64 {at}")

    def pack(self, t: LibraryFunction, move: str, side: str, block: PackedBlock) -> None:
        """Pack a block of an operand."""
        f, k, depth = t.f, block.k, block.depth
        source = self.base(t, side) if block.batch == "0" else self.product(t, side, block.batch)
        stride = f.number(("packed", side))
        if self.dot:  # elements are four bytes each
            k, stride = f.mul(k, "4"), f.mul(stride, "4")
            depth = f.least(f.mul(depth, "4"), f.sub(f.number("steps"), k))
        operands = [self.descriptor(t, side), source, block.own, k, block.to, stride, block.owned]
        t.invoke(move, PACK, [*operands, depth])
