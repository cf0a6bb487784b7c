"""Memory seen through windows, as functions read it: its numbers, and where it begins.

In: a `View` and how it is to be packed, or the registers. Out: numbers by name, in the order of
`SEEN`; which functions pack memory of which dtype (`lots`); and functions of the library that know
all numbers of a kernel (`Seen`), so that none of them is in their text.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from ....core.dtype import DType, uint8
from ....kernel.contract.im2col import BATCH, SLOTS, View
from ..gemm.microkernel import Registers
from ..gemm.tile import TABLE, Lent
from ..llvm.convert import memory_dtype
from ..llvm.emitter import scalar_type

# lanes next to each other or not, or turned; or memory as it is, straight or turned
WAYS_TO_PACK = ("near", "apart", "turned", "level", "tilted")
SEEN: tuple[Hashable, ...] = (
    "kind", "along", "across", "panel", "unit", "taps", "conditions", "down", "flipped",
    *[("batch", name, slot) for name in ("size", "step") for slot in range(BATCH)],
    *[(line, "size", slot) for line in ("lanes", "outer", "tap") for slot in range(SLOTS)],
    *[(line, "step", slot) for line in ("lanes", "other") for slot in range(SLOTS)],
    *[("if", name, slot) for slot in range(SLOTS)
      for name in ("start", "lanes", "other", "below", "row")],
)  # fmt: skip
MOVE = "ptr, ptr, i64, i64, ptr, i64, i64, i64"  # the types of what packs
WINDOWS = (
    *TABLE,
    "pieces",
    "bytes",
    ("next block", "left"),
    ("next block", "right"),
    ("next tile", "right"),
    *[(name, side) for side in ("left", "right") for name in SEEN],
    "steps",
)
WHOLE = 1 << 30  # wider than any panel


def seen_numbers(
    v: View,
    along: str,
    shape: str,
    near: bool,
    panel: int,
    lanes: int,
    across: int,
    swept: bool,
    lot: int = 0,
    flipped: int = 0,
) -> dict[Hashable, int]:
    """The numbers of a view that is packed with lanes along a line, by their names in `SEEN`.

    It becomes rows of k or columns `across` numbers apart, or panels; `lot` is which of `lots`
    packs it, `flipped` the bits that bytes change.
    """
    turned = (along == "own") == (shape == "rows")
    lines = [size for size, _ in (*v.own[:-1], *v.folded[:-1])]
    level = near and max(lines) == 1 and not any(c.asks for c in v.conditions)
    ways = ("tilted", "level") if level else ("turned", "near" if near else "apart")
    way = ways[0] if turned else ways[1]
    found: dict[Hashable, int] = {
        "kind": lot * len(WAYS_TO_PACK) + WAYS_TO_PACK.index(way),
        "along": int(along == "folded"), "across": across, "flipped": flipped,
        "panel": panel if shape == "panels" else WHOLE,
        "unit": panel if shape == "panels" and not turned and not swept else lanes,
        "down": sum([step for _, step in v.own]),
    }  # fmt: skip
    for slot, (size, step) in enumerate(v.batch):
        found |= {("batch", "size", slot): size, ("batch", "step", slot): step}
    lined, other = (v.own, v.folded) if along == "own" else (v.folded, v.own)
    asked = [slot for slot, c in enumerate(v.conditions) if c.asks]
    moving = [slot for slot in asked if v.conditions[slot].step(along, True)]
    begin = SLOTS if turned else min(moving, default=SLOTS)  # of what conditions depend on
    begin = 0 if swept else begin
    for slot in range(SLOTS):
        size, step = other[slot]
        found |= {
            ("lanes", "size", slot): lined[slot][0], ("lanes", "step", slot): lined[slot][1],
            ("outer", "size", slot): 1 if slot >= begin else size,
            ("tap", "size", slot): size if slot >= begin else 1, ("other", "step", slot): step,
        }  # fmt: skip
    found["taps"] = prod([size for size, _ in other[begin:]])
    found["conditions"] = len(asked)
    for slot, c in enumerate(v.conditions):
        row = asked.index(slot) if c.asks else -1
        values = {
            "start": c.start, "lanes": c.step(along), "other": c.step(along, True),
            "below": c.below, "row": row,
        }  # fmt: skip
        found |= {("if", name, slot): value for name, value in values.items()}
    return found


def lots(registers: Registers, memories: tuple[DType, DType]) -> tuple[DType, ...]:
    """What packers there are: for each dtype in memory; bytes for sums of four are bits."""
    return (uint8,) if registers.dot else tuple(dict.fromkeys(memories))


class Seen(Lent):
    """A function of the library that knows all numbers of a kernel with windows."""

    table = WINDOWS

    def __init__(self, registers: Registers, memories: tuple[DType, DType]) -> None:
        super().__init__(registers)
        self.dot = bool(registers.dot)
        both = [scalar_type(memory_dtype(dtype)) for dtype in memories]
        self.outside = dict(zip(("left", "right"), both, strict=True))

    def memory(self, side: str, batch: str) -> str:
        """Where a factor begins for one product of a batch."""
        place = self.number(("start", side))
        for slot in reversed(range(BATCH)):
            rest = batch
            if slot:
                batch, rest = self.divided(batch, self.number((("batch", "size", slot), side)))
            place = self.add(place, self.mul(rest, self.number((("batch", "step", slot), side))))
        return self.placed(side, self.param(("param", side)), place)

    def placed(self, side: str, memory: str, place: str) -> str:
        """The address of a place of a factor."""
        return self.e.let(f"getelementptr {self.outside[side]}, ptr {memory}, i64 {place}")

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
        if self.dot:  # numbers are four bytes each
            k, stride = self.mul(k, "4"), self.mul(stride, "4")
            depth = self.least(self.mul(depth, "4"), self.sub(self.number("steps"), k))
        self.invoke(move, MOVE, [self.seen(side), source, own, k, to, stride, owned, depth])
