"""Memory seen through windows, as functions read it: its numbers, and the packing of a block of it.

In: a `View` and how it is to be packed, or the registers. Out: numbers by name, in the order of
`SEEN`, or the lines of a function that reads them and packs a block: lanes along one line of the
view, the other line one step after the other. What is the same for all steps (which runs of memory
a vector of lanes is made of, and what conditions ask of each lane) is found out once; steps whose
conditions are the same follow each other and share their masks. No size is in the text.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from ..core.dtype import DType, bool_, int8, int32, int64, uint32
from ..kernel.contract import Line, Part
from ..kernel.windows import BATCH, SLOTS, View
from .convert import from_memory, memory_dtype
from .emitter import Emitter, Val, ramp, scalar_type
from .frame import Frame, Numbers
from .lent import TABLE, Lent
from .microkernel import Registers, transpose
from .operate import cast

WAYS_TO_PACK = ("near", "apart", "turned")  # lanes next to each other or not, or turned
SEEN: tuple[Hashable, ...] = (
    "kind", "along", "across", "panel", "unit", "taps", "conditions", "down",
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
    *[(name, side) for side in ("left", "right") for name in SEEN],
    "steps",
)
_FIRST = 1 << 40  # what stands for the first number of `SEEN`
_NOTHING = Line((), (), frozenset())
_WHOLE = 1 << 30  # wider than any panel
_PAGE = 4096  # bytes of the smallest pages: what is within one can be read if any of it can


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
) -> dict[Hashable, int]:
    """The numbers of a view that is packed with lanes along a line, by their names in `SEEN`.

    It becomes rows of k or columns `across` numbers apart, or panels; `lot` is which of `lots`
    packs it.
    """
    turned = (along == "own") == (shape == "rows")
    found: dict[Hashable, int] = {
        "kind": lot * len(WAYS_TO_PACK)
        + WAYS_TO_PACK.index("turned" if turned else "near" if near else "apart"),
        "along": int(along == "folded"), "across": across,
        "panel": panel if shape == "panels" else _WHOLE,
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


def lots(registers: Registers, memories: tuple[DType, DType]) -> tuple[tuple[DType, str], ...]:
    """What packers there are: for each dtype in memory, and for each side where it is bytes."""
    sides = ("left", "right") if registers.dot else ("", "")
    return tuple(dict.fromkeys(zip(memories, sides, strict=True)))


def widened(e: Emitter, raw: str, memory: DType, goal: DType) -> str:
    """A vector as memory has it, as numbers that are multiplied."""
    found = from_memory(e, Val(raw, memory_dtype(memory), True), memory)
    return cast(e, found, memory, goal).text


def gathered(e: Emitter, source: str, places: str, memory: DType, live: str) -> str:
    """Lanes at places of their own, as memory has them, and 0 where they are not live.

    The host gathers 32 bits or more: shorter numbers come with what is beside them, before them
    where a page ends after them.
    """
    raw, lanes = memory_dtype(memory), e.lanes
    inner, wide = scalar_type(raw), raw if raw.bits >= 32 else uint32
    kind, pointers = f"<{lanes} x {scalar_type(wide)}>", f"<{lanes} x ptr>"
    at = e.let(f"getelementptr {inner}, ptr {source}, <{lanes} x i32> {places}")
    bits, longs = "", f"<{lanes} x i64>"
    if wide is not raw:
        page, last, before, eight = [
            e.const(n, int64, True).text for n in (_PAGE - 1, _PAGE - 4, raw.itemsize - 4, -8)
        ]
        number = e.let(f"ptrtoint {pointers} {at} to {longs}")
        late = e.let(f"icmp ugt {longs} {e.let(f'and {longs} {number}, {page}')}, {last}")
        back = e.let(f"select <{lanes} x i1> {late}, {longs} {before}, {longs} zeroinitializer")
        bits = e.let(f"trunc {longs} {e.let(f'mul {longs} {back}, {eight}')} to {kind}")
        at = e.let(f"getelementptr i8, {pointers} {at}, {longs} {back}")
    name = f"llvm.masked.gather.v{lanes}{e.suffix(wide, False)}.v{lanes}p0"
    e.declare(f"{kind} @{name}({pointers}, <{lanes} x i1>, {kind})", name)
    operands = f"{pointers} align 4 {at}, <{lanes} x i1> {live}, {kind} zeroinitializer"
    found = e.let(f"call {kind} @{name}({operands})")
    if wide is raw:
        return found
    found = e.let(f"lshr {kind} {found}, {bits}")
    return e.let(f"trunc {kind} {found} to <{lanes} x {inner}>")


def _line(name: str) -> Line:
    """A line of a view: its axes, and what stands for their sizes."""
    first = SLOTS * ("lanes", "outer", "tap").index(name)
    sizes = tuple([_FIRST + SEEN.index((name, "size", slot)) for slot in range(SLOTS)])
    return Line(tuple(range(first, first + SLOTS)), sizes, frozenset({first + SLOTS - 1}))


class Packer(Frame):
    """A function that packs a block of a view: lanes along one line, the other one by one.

    First it finds out where the lanes are: which runs of memory make up each vector, or where each
    lane is, and what conditions ask of them. Then every step of the other line is quickly done.
    """

    def __init__(self, registers: Registers, kind: str, memory: DType, side: str = "") -> None:
        super().__init__("PART", Numbers([]), [registers.dtype], registers.target.lanes, False)
        self.part = Part((), _NOTHING, _NOTHING, _NOTHING, _NOTHING, frozenset())
        self.registers, self.kind, self.memory, self.side = registers, kind, memory, side
        self.outside = scalar_type(memory_dtype(memory))
        self.inner = self.outside if registers.dot else scalar_type(registers.dtype)
        self.vector = f"<{self.e.lanes} x {self.inner}>"
        self.align = 1 if registers.dot else 4
        self.whole = f"<{self.e.lanes} x i32>"
        self.lanes_line, self.outer, self.tap = [_line(x) for x in ("lanes", "outer", "tap")]

    # --- numbers and memory ----------------------------------------------------------------------

    def number(self, name: Hashable, value: int = 0) -> str:
        """A number of the factor, read where it is used: there are more than registers."""
        key = SEEN[value - _FIRST] if value >= _FIRST else name
        return self.get("%seen", str(SEEN.index(key)))

    def at(self, memory: str, place: str, kind: str = "") -> str:
        return self.e.let(f"getelementptr {kind or self.inner}, ptr {memory}, i64 {place}")

    def get(self, memory: str, place: str, kind: str = "i64") -> str:
        return self.e.let(f"load {kind}, ptr {self.at(memory, place, kind)}")

    def put(self, value: str, memory: str, place: str, kind: str = "i64") -> None:
        self.e.line(f"store {kind} {value}, ptr {self.at(memory, place, kind)}")

    def room(self, kind: str, count: str) -> str:
        return self.e.let(f"alloca {kind}, i64 {count}, align 64")

    def spread(self, value: str) -> str:
        """A number of 64 bits as whole numbers of 32 in all lanes."""
        return self.e.splat(Val(self.e.let(f"trunc i64 {value} to i32"), int32)).text

    def below(self, count: str) -> str:
        """The first `count` lanes, of any number of them."""
        least = self.e.call("i64", "llvm.smax.i64", f"i64 {count}", "i64 0")
        return self.tail(least)

    # masks in memory: bits where masks are registers of their own, else whole vectors
    @property
    def mask_kind(self) -> str:
        return f"i{self.e.lanes}" if self.e.lanes == 16 else self.whole

    def put_mask(self, mask: str, memory: str, place: str) -> None:
        how = "bitcast" if self.e.lanes == 16 else "sext"
        bits = self.e.let(f"{how} <{self.e.lanes} x i1> {mask} to {self.mask_kind}")
        self.e.line(f"store {self.mask_kind} {bits}, ptr {self.at(memory, place, self.mask_kind)}")

    def both_masks(self, a: str, b: str) -> str:
        bits = self.e.let(f"and {self.mask_kind} {a}, {b}")
        if self.e.lanes == 16:
            return self.e.let(f"bitcast i16 {bits} to <16 x i1>")
        return self.e.let(f"icmp slt {self.whole} {bits}, zeroinitializer")

    # --- where lanes are -------------------------------------------------------------------------

    def settle_lanes(self) -> None:
        """Tables of the lanes: runs of memory or places, and values of conditions."""
        e, lanes = self.e, str(self.e.lanes)
        folded = e.let(f"icmp ne i64 {self.number('along')}, 0")

        def pick(a: str, b: str) -> str:
            return e.let(f"select i1 {folded}, i64 {a}, i64 {b}")

        begin, self.count = pick("%k", "%own"), pick("%depth", "%owned")
        self.from_, self.many = pick("%own", "%k"), pick("%owned", "%depth")
        unit = self.number("unit")
        units, _ = self.divided(self.add(self.count, self.sub(unit, "1")), unit)
        self.vectors, _ = self.divided(self.mul(units, unit), lanes)
        self.wide = self.add(self.mul(self.vectors, lanes), lanes)
        size = self.number(("lanes", "size", SLOTS - 1))
        runs = self.add(self.divided(self.count, size)[0], "3")  # with a part of one at each end
        most = self.add(self.vectors, runs)
        rows = self.add(self.number("conditions"), "1")
        self.asked = self.room("i32", self.mul(self.wide, rows))
        self.places = self.room("i32", self.wide if self.kind == "apart" else "1")
        self.starts, self.apart = self.room("i64", runs), self.room("i64", runs)
        self.begins = self.room("i64", self.add(self.vectors, "1"))
        self.offsets, self.masks = self.room("i64", most), self.room(self.mask_kind, most)
        far = str(self.kind == "apart").lower()
        tables = [
            self.asked, self.places, self.starts, self.apart, self.begins, self.offsets, self.masks,
        ]  # fmt: skip
        operands = [f"ptr %seen, i64 {begin}, i64 {self.count}, i64 {self.vectors}, i1 {far}"]
        e.line(f"call void @PART_lanes({', '.join([*operands, *[f'ptr {t}' for t in tables]])})")

    # --- one step of the other line --------------------------------------------------------------

    def valid(self, values: str, v: str) -> str:
        """The lanes of a vector whose conditions hold, with what the other line adds to each."""
        e = self.e
        ones = e.splat(Val("true", bool_)).text
        kind = f"<{e.lanes} x i1>"

        def condition(c: str, now: list[str]) -> list[str]:
            place = self.add(self.mul(c, self.wide), self.mul(v, str(e.lanes)))
            own = e.let(f"load {self.whole}, ptr {self.at(self.asked, place, 'i32')}, align 4")
            pair = self.mul(c, "2")
            more = e.splat(Val(self.get(values, pair, "i32"), int32)).text
            limit = e.splat(Val(self.get(values, self.add(pair, "1"), "i32"), int32)).text
            inside = e.let(
                f"icmp ult {self.whole} {e.let(f'add {self.whole} {own}, {more}')}, {limit}"
            )
            return [e.let(f"and {kind} {now[0]}, {inside}")]

        return e.loop("0", self.number("conditions"), 1, [(kind, ones)], condition)[0]

    def others(self, line: Line, values: str) -> str:
        """Where the steps of a line that are open move memory to, and conditions, into `values`."""
        e, place = self.e, "0"
        for slot, axis in enumerate(line.axes):
            now = self.open[axis]
            place = self.add(place, self.mul(now, self.number(("other", "step", slot))))
            row = self.number(("if", "row", slot))

            def fill(slot: int = slot, now: str = now, row: str = row) -> None:
                pair = self.mul(row, "2")
                moved = self.mul(now, self.number(("if", "other", slot)))
                limits = (moved, pair), (self.number(("if", "below", slot)), self.add(pair, "1"))
                for value, at in limits:
                    self.put(e.let(f"trunc i64 {value} to i32"), values, at, "i32")

            if values:
                e.branch(e.let(f"icmp sge i64 {row}, 0"), fill)
        return place

    def loaded(self, source: str, v: str, valid: str) -> str:
        """A vector from memory; `valid` are the lanes that conditions leave, as kept in memory."""
        e, lanes = self.e, self.e.lanes
        kind = f"<{lanes} x {self.outside}>"
        if self.kind == "apart":
            at = e.let(
                f"load {self.whole}, ptr {self.at(self.places, self.mul(v, str(lanes)), 'i32')}"
            )
            live = self.both_masks(valid, valid)
            return self.taken(gathered(e, source, at, self.memory, live))
        name = f"llvm.masked.load.v{lanes}{e.suffix(memory_dtype(self.memory), False)}.p0"
        e.declare(f"{kind} @{name}(ptr, <{lanes} x i1>, {kind})", name)

        def piece(number: str, now: list[str]) -> list[str]:
            live = self.both_masks(self.get(self.masks, number, self.mask_kind), valid)
            place = self.at(source, self.get(self.offsets, number), self.outside)
            operands = f"ptr align 1 {place}, <{lanes} x i1> {live}, {kind} {now[0]}"
            return [e.let(f"call {kind} @{name}({operands})")]

        begin, end = self.get(self.begins, v), self.get(self.begins, self.add(v, "1"))
        return self.taken(e.loop(begin, end, 1, [(kind, "zeroinitializer")], piece)[0])

    def taken(self, raw: str) -> str:
        """A vector of memory as it is packed."""
        dot, e = self.registers.dot, self.e
        if not dot:
            return widened(e, raw, self.memory, self.registers.dtype)
        if dot == "ss" and self.side == "left":  # 128 too large: its bytes have no sign
            return e.let(f"xor {self.vector} {raw}, {e.const(-128, int8, True).text}")
        return raw

    def placed(self, place: str) -> str:
        """Where a place of the packed rows or columns is."""
        panel = self.number("panel")
        number, inside = self.divided(place, panel)
        return self.add(self.mul(self.mul(number, panel), "%stride"), inside)

    # --- the two ways ----------------------------------------------------------------------------

    def straight(self) -> None:
        """Lanes run along the packed rows; steps with the same conditions one after the other."""
        e, lanes = self.e, str(self.e.lanes)
        self.settle_lanes()
        valid, goals = self.room(self.mask_kind, self.vectors), self.room("i64", self.vectors)
        values, taps = self.room("i32", str(2 * SLOTS)), self.number("taps")

        def goal(v: str, _: list[str]) -> list[str]:
            self.put(self.placed(self.mul(v, lanes)), goals, v)
            return []

        def tap(number: str) -> None:
            moved = self.others(self.tap, values)

            def masks(v: str, _: list[str]) -> list[str]:
                inside = self.valid(values, v)
                if self.kind == "apart":
                    left = self.below(self.sub(self.count, self.mul(v, lanes)))
                    inside = e.let(f"and <{lanes} x i1> {inside}, {left}")
                self.put_mask(inside, valid, v)
                return []

            e.loop("0", self.vectors, 1, [], masks)
            up = self.sub(taps, self.add(number, "1"))  # the first step that is not before ours
            begin, _ = self.divided(self.add(self.from_, up), taps)
            end, _ = self.divided(self.add(self.add(self.from_, self.many), up), taps)

            def step(offset: str) -> None:
                at = self.add(moved, self.others(self.outer, ""))
                source = self.at("%from", at, self.outside)
                here = self.sub(
                    self.add(self.mul(self.add(begin, offset), taps), number), self.from_
                )
                to = self.at("%to", self.mul(here, self.number("across")))

                def vector(v: str, _: list[str]) -> list[str]:
                    found = self.loaded(source, v, self.get(valid, v, self.mask_kind))
                    place = self.at(to, self.get(goals, v))
                    e.line(f"store {self.vector} {found}, ptr {place}, align {self.align}")
                    return []

                e.loop("0", self.vectors, 1, [], vector)

            self.walk(self.outer, self.coordinates(self.outer, begin), self.sub(end, begin), step)

        e.loop("0", self.vectors, 1, [], goal)
        self.walk(self.tap, ["0"] * SLOTS, taps, tap)

    def turned(self) -> None:
        """Lanes run across the packed rows: squares are turned by the library."""
        e, lanes = self.e, str(self.e.lanes)
        self.settle_lanes()
        scalar = scalar_type(self.registers.dtype)
        whole, size = f"<{lanes} x {scalar}>", str(self.e.lanes**2)
        square = self.room(scalar, size)
        other = self.room(scalar, size) if self.registers.dot else ""
        for i in range(self.e.lanes):  # what is never filled is 0, so that no odd number slows sums
            place = self.at(square, str(i * self.e.lanes), scalar)
            e.line(f"store {whole} zeroinitializer, ptr {place}, align 64")
        values = self.room("i32", str(2 * SLOTS * self.e.lanes))
        sources, turn = self.room("i64", lanes), transpose(self.registers)
        e.declare(f"void @{turn.name}(ptr, ptr, i64, i64)", turn.name)

        def group(at: str, _: list[str]) -> list[str]:
            many = self.least(self.sub(self.many, at), lanes)

            def one(number: str) -> None:
                asked = self.at(values, self.mul(number, str(2 * SLOTS)), "i32")
                self.put(self.others(self.outer, asked), sources, number)

            self.walk(self.outer, self.coordinates(self.outer, self.add(self.from_, at)), many, one)
            goal = self.placed(at)

            def vector(v: str, _: list[str]) -> list[str]:
                def row(number: str, _: list[str]) -> list[str]:
                    asked = self.at(values, self.mul(number, str(2 * SLOTS)), "i32")
                    how = "bitcast" if self.e.lanes == 16 else "sext"
                    valid = self.valid(asked, v)
                    bits = e.let(f"{how} <{lanes} x i1> {valid} to {self.mask_kind}")
                    source = self.at("%from", self.get(sources, number), self.outside)
                    place = self.at(square, self.mul(number, lanes), scalar)
                    found = self.loaded(source, v, bits)
                    if self.registers.dot:
                        found = e.let(f"zext {self.vector} {found} to {whole}")
                    e.line(f"store {whole} {found}, ptr {place}, align 64")
                    return []

                e.loop("0", many, 1, [], row)
                across = self.number("across")
                to = self.at("%to", self.add(self.mul(self.mul(v, lanes), across), goal))
                place, stride = (other, lanes) if self.registers.dot else (to, across)
                operands = f"ptr {square}, ptr {place}, i64 {stride}, i64 {lanes}"
                e.line(f"call void @{turn.name}({operands})")
                if self.registers.dot:
                    e.loop("0", lanes, 1, [], lambda row, _: shorten(row, to, across))
                return []

            def shorten(row: str, to: str, across: str) -> list[str]:
                place = self.at(other, self.mul(row, lanes), scalar)
                found = e.let(f"load {whole}, ptr {place}, align 64")
                found = e.let(f"trunc {whole} {found} to {self.vector}")
                goal = self.at(to, self.mul(row, across))
                e.line(f"store {self.vector} {found}, ptr {goal}, align 1")
                return []

            e.loop("0", self.vectors, 1, [], vector)
            return []

        e.loop("0", self.many, self.e.lanes, [], group)


_FOURS = "ptr noalias %to, i64 %stride, i64 %owned, i64 %depth"


def fours(registers: Registers) -> tuple[str, dict[str, str]]:
    """The function `PART_fours` that makes panels of bytes panels of numbers of four bytes each.

    Four rows of a panel and its numbers of one step take the same place. What is after the last
    step is 0.
    """
    f = Frame("PART_fours", Numbers([]), [], registers.target.lanes, False)
    e, lanes, panel = f.e, f.e.lanes, registers.panel
    short, kind = f"<{lanes} x i8>", f"<{lanes} x i32>"
    steps = e.let(f"and i64 {f.add('%depth', '3')}, -4")

    def at(memory: str, place: str) -> str:
        return e.let(f"getelementptr i8, ptr {memory}, i64 {place}")

    def columns(first: str, _: list[str]) -> list[str]:
        base = at("%to", f.mul(first, "%stride"))

        def none(k: str, _: list[str]) -> list[str]:
            row = at(base, f.mul(k, str(panel)))
            for v in range(0, panel, lanes):
                e.line(f"store {short} zeroinitializer, ptr {at(row, str(v))}, align 1")
            return []

        def four(k: str, _: list[str]) -> list[str]:
            rows, found = at(base, f.mul(k, str(panel))), []
            for v in range(0, panel, lanes):
                total = ""
                for i in range(4):
                    byte = e.let(f"load {short}, ptr {at(rows, str(i * panel + v))}, align 1")
                    wide = e.let(f"zext {short} {byte} to {kind}")
                    if i:
                        wide = e.let(f"shl {kind} {wide}, {e.const(8 * i, int32, True).text}")
                        wide = e.let(f"or {kind} {total}, {wide}")
                    total = wide
                found.append(total)
            for v, total in enumerate(found):
                e.line(f"store {kind} {total}, ptr {at(rows, str(4 * lanes * v))}, align 1")
            return []

        e.loop("%depth", steps, 1, [], none)
        e.loop("0", steps, 4, [], four)
        return []

    e.loop("0", "%owned", panel, [], columns)
    return defined(f, f"internal void @PART_fours({_FOURS})")


class _Lanes(Packer):
    """Finds out where the lanes of a packer are: the tables that its functions share."""

    def __init__(self, registers: Registers) -> None:
        super().__init__(registers, "near", registers.dtype)
        self.asked, self.places, self.starts, self.apart = "%asked", "%places", "%starts", "%apart"
        self.begins, self.offsets, self.masks = "%begins", "%offsets", "%masks"
        self.count, self.vectors, lanes = "%count", "%vectors", str(self.e.lanes)
        self.wide = self.add(self.mul(self.vectors, lanes), lanes)
        self.runs_ = self.room("i64", "1")
        self.put("0", self.runs_, "0")
        start = self.coordinates(self.lanes_line, "%begin")
        self.runs(self.lanes_line, start, self.count, self.run)
        near = self.e.let("xor i1 %far, true")
        self.e.branch(near, self.cut_runs)

    def run(self, offset: str, first: str, last: str) -> None:
        """One run along the innermost axis of the lanes."""
        e, axes = self.e, self.lanes_line.axes
        self.open[axes[-1]] = first
        place = "0"
        for slot, axis in enumerate(axes):
            place = self.add(place, self.mul(self.open[axis], self.number(("lanes", "step", slot))))
        for slot, axis in enumerate(axes):
            row = self.number(("if", "row", slot))

            def fill(slot: int = slot, axis: int = axis, row: str = row) -> None:
                step = self.number(("if", "lanes", slot))
                value = self.add(
                    self.number(("if", "start", slot)), self.mul(self.open[axis], step)
                )
                goal = self.at(self.asked, self.add(self.mul(row, self.wide), offset), "i32")
                moves = step if slot == SLOTS - 1 else "0"
                self.line_of(goal, value, moves, self.sub(last, first))

            e.branch(e.let(f"icmp sge i64 {row}, 0"), fill)
        step = self.number(("lanes", "step", SLOTS - 1))

        def far() -> None:
            self.line_of(self.at(self.places, offset, "i32"), place, step, self.sub(last, first))

        e.branch("%far", far)
        before = self.mul(offset, step)
        apart, count = self.sub(place, before), self.get(self.runs_, "0")
        before = self.e.call("i64", "llvm.smax.i64", f"i64 {self.sub(count, '1')}", "i64 0")
        known = self.get(self.apart, before)  # of the run before, where there is one
        other = e.let(f"icmp ne i64 {known}, {apart}")
        none = e.let(f"icmp eq i64 {count}, 0")

        def begin() -> None:
            self.put(offset, self.starts, count)
            self.put(apart, self.apart, count)
            self.put(self.add(count, "1"), self.runs_, "0")

        e.branch(e.let(f"select i1 {none}, i1 true, i1 {other}"), begin)

    def line_of(self, goal: str, value: str, step: str, count: str) -> None:
        """Fill some lanes with numbers that are `step` apart; there is room for whole vectors."""
        e = self.e
        each = "zeroinitializer"
        if step != "0":
            each = e.let(f"mul {self.whole} {ramp(e.lanes, 1, 'i32')}, {self.spread(step)}")

        def vector(at: str, _: list[str]) -> list[str]:
            first = self.add(value, self.mul(at, step))
            found = e.let(f"add {self.whole} {self.spread(first)}, {each}")
            e.line(f"store {self.whole} {found}, ptr {self.at(goal, at, 'i32')}, align 4")
            return []

        e.loop("0", count, e.lanes, [], vector)

    def cut_runs(self) -> None:
        """Every vector's pieces of runs: where memory has its first lane, and which lanes."""
        e, lanes = self.e, str(self.e.lanes)
        runs = self.get(self.runs_, "0")
        self.put(self.count, self.starts, runs)  # where the last one ends

        def vector(v: str, now: list[str]) -> list[str]:
            found, run = now
            self.put(found, self.begins, v)
            place = self.mul(v, lanes)
            end = self.least(self.add(place, lanes), self.count)

            def piece(_: str, state: list[str]) -> list[str]:
                found, run = state
                first = self.sub(self.get(self.starts, run), place)
                last = self.sub(self.least(self.get(self.starts, self.add(run, "1")), end), place)
                mask = e.let(f"xor <{lanes} x i1> {self.below(first)}, {self.below(last)}")
                self.put_mask(mask, self.masks, found)
                moved = self.mul(place, self.number(("lanes", "step", SLOTS - 1)))
                self.put(self.add(self.get(self.apart, run), moved), self.offsets, found)
                return [self.add(found, "1"), self.add(run, "1")]

            # runs that begin before the vector's end; the last of them may go on after it
            def counting(at: str, state: list[str]) -> list[str]:
                inside = e.let(f"icmp slt i64 {self.get(self.starts, at)}, {end}")
                return [self.add(state[0], e.let(f"zext i1 {inside} to i64"))]

            reach = self.least(runs, self.add(run, lanes))
            (many,) = e.loop(run, reach, 1, [("i64", "0")], counting)
            found, run = e.loop("0", many, 1, [("i64", found), ("i64", run)], piece)
            over = e.let(f"icmp sgt i64 {self.get(self.starts, run)}, {end}")
            over = e.let(f"select i1 {e.let(f'icmp sgt i64 {many}, 0')}, i1 {over}, i1 false")
            return [found, self.sub(run, e.let(f"zext i1 {over} to i64"))]

        found, _ = e.loop("0", self.vectors, 1, [("i64", "0"), ("i64", "0")], vector)
        self.put(found, self.begins, self.vectors)


_LANES = (
    "ptr noalias %seen, i64 %begin, i64 %count, i64 %vectors, i1 %far, ptr noalias %asked, "
    "ptr noalias %places, ptr noalias %starts, ptr noalias %apart, ptr noalias %begins, "
    "ptr noalias %offsets, ptr noalias %masks"
)


def lanes_function(registers: Registers) -> tuple[str, dict[str, str]]:
    """The function `PART_lanes` that all packers call, and what it declares."""
    return defined(_Lanes(registers), f"internal void @PART_lanes({_LANES})")


def defined(f: Frame, head: str) -> tuple[str, dict[str, str]]:
    """What was written, as a definition, and what it declares."""
    body = "\n".join([*f.entry, *f.e.lines])
    return f"define {head} nounwind {{\nentry:\n{body}\n  ret void\n}}", f.e.declared


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
