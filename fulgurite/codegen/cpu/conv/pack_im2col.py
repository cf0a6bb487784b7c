"""Im2col packing: library functions that pack a block of any view.

In: the registers, the dtype in memory and a kind of packing. Out: the lines of a function that
reads a view's `DESCRIPTOR` and packs a block of it: lanes along one line of the view, the other
line one step after the other. What is the same for all steps (which runs of memory a vector of
lanes is made of, and what conditions ask of each lane) is found out once; steps whose conditions
are the same follow each other and share their masks. Memory as it is needs none of that. Numbers
are converted when they are read. No size is in the text.
"""

from __future__ import annotations

from collections.abc import Hashable

from ....core.dtype import DType, bool_, int32, uint8
from ....kernel.contract.analysis import Line, Part
from ....kernel.contract.im2col import SLOTS
from ..gemm.microkernel import Registers, defined, transpose
from ..gemm.widen import GOAL, first_lanes, gathered, widen
from ..llvm.convert import load_row, memory_dtype
from ..llvm.emitter import Val, ramp, scalar_type
from ..llvm.masked import masked_load
from ..loops.function import FunctionBuilder, Numbers
from ..tiling import GEMM
from .view_args import DESCRIPTOR, NO_PANEL

_BEGIN = 1 << 40  # what stands for the first number of `DESCRIPTOR`
_NOTHING = Line((), (), frozenset())


def _line(name: str) -> Line:
    """A line of a view: its axes, and what stands for their sizes."""
    first = SLOTS * ("lanes", "outer", "tap").index(name)
    sizes = tuple([_BEGIN + DESCRIPTOR.index((name, "size", slot)) for slot in range(SLOTS)])
    return Line(tuple(range(first, first + SLOTS)), sizes, frozenset({first + SLOTS - 1}))


class Im2colPacker(FunctionBuilder):
    """A function that packs a block of a view: lanes along one line, the other one by one.

    First it finds out where the lanes are: which runs of memory make up each vector, or where each
    lane is, and what conditions ask of them. Then every step of the other line is quickly done.
    """

    def __init__(self, registers: Registers, kind: str, memory: DType) -> None:
        super().__init__("PART", Numbers([]), [registers.dtype], registers.target.lanes, False)
        self.part = Part((), _NOTHING, _NOTHING, _NOTHING, _NOTHING, frozenset())
        self.registers, self.kind, self.memory = registers, kind, memory
        self.raw = memory_dtype(memory)
        self.outside = scalar_type(self.raw)
        self.inner = self.outside if registers.packs_vnni else scalar_type(registers.dtype)
        self.vector = f"<{self.e.lanes} x {self.inner}>"
        self.align = 1 if registers.packs_vnni else 4
        if registers.packs_vnni:  # on the left bytes with a sign become 128 too large
            bits = self.e.let(f"trunc i64 {self.number('flipped')} to i8")
            self.flipped = self.e.splat(Val(bits, uint8)).text
        self.whole = f"<{self.e.lanes} x i32>"
        self.lanes_line, self.outer, self.tap = [_line(x) for x in ("lanes", "outer", "tap")]

    # --- numbers and memory ----------------------------------------------------------------------

    def number(self, name: Hashable, value: int = 0) -> str:
        """A number of the operand, read where it is used: there are more than registers."""
        key = DESCRIPTOR[value - _BEGIN] if value >= _BEGIN else name
        return self.get("%view", str(DESCRIPTOR.index(key)))

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
        return first_lanes(self, count)

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

    def span(self) -> str:
        """How many lanes and other steps the block has; where the lanes begin."""
        e, lanes = self.e, str(self.e.lanes)
        folded = e.let(f"icmp ne i64 {self.number('along')}, 0")

        def pick(a: str, b: str) -> str:
            return e.let(f"select i1 {folded}, i64 {a}, i64 {b}")

        begin, self.count = pick("%k", "%own"), pick("%depth", "%owned")
        self.from_, self.many = pick("%own", "%k"), pick("%owned", "%depth")
        unit = self.number("unit")
        units, _ = self.divided(self.add(self.count, self.sub(unit, "1")), unit)
        self.vectors, _ = self.divided(self.mul(units, unit), lanes)
        return begin

    def settle_lanes(self) -> None:
        """Tables of the lanes: runs of memory or places, and values of conditions."""
        e, lanes, begin = self.e, str(self.e.lanes), self.span()
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
        operands = [f"ptr %view, i64 {begin}, i64 {self.count}, i64 {self.vectors}, i1 {far}"]
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

    def loaded(self, source: str, v: str, valid: str, later: str = "") -> str:
        """A vector from memory; `valid` are the lanes that conditions leave, as kept in memory.
        What lies `later` from it is prefetched."""
        e, lanes = self.e, self.e.lanes
        kind = f"<{lanes} x {self.outside}>"
        if self.kind == "apart":
            at = e.let(
                f"load {self.whole}, ptr {self.at(self.places, self.mul(v, str(lanes)), 'i32')}"
            )
            live = self.both_masks(valid, valid)
            return self.taken(gathered(e, source, at, self.memory, live))

        def piece(number: str, now: list[str]) -> list[str]:
            live = self.both_masks(self.get(self.masks, number, self.mask_kind), valid)
            place = self.at(source, self.get(self.offsets, number), self.outside)
            if later:
                e.prefetch(self.at(place, later, self.outside))
            return [masked_load(e, kind, place, live, now[0])]

        begin, end = self.get(self.begins, v), self.get(self.begins, self.add(v, "1"))
        return self.taken(e.loop(begin, end, 1, [(kind, "zeroinitializer")], piece)[0])

    def taken(self, raw: str) -> str:
        """A vector of dense memory packed."""
        if not self.registers.packs_vnni:
            return widen(self.e, raw, self.memory, self.registers.dtype)
        return self.e.let(f"xor {self.vector} {raw}, {self.flipped}")

    def placed(self, place: str) -> str:
        """Where a place of the packed rows or columns is."""
        panel = self.number("panel")
        number, inside = self.divided(place, panel)
        return self.add(self.mul(self.mul(number, panel), "%stride"), inside)

    def goals(self) -> str:
        """A table of where each vector of the packed rows is."""
        goals, lanes = self.room("i64", self.vectors), str(self.e.lanes)

        def goal(v: str, _: list[str]) -> list[str]:
            self.put(self.placed(self.mul(v, lanes)), goals, v)
            return []

        self.e.loop("0", self.vectors, 1, [], goal)
        return goals

    # --- the three ways --------------------------------------------------------------------------

    def dense_source(self) -> tuple[str, str]:
        """Where a block of dense memory begins, and how far apart its lines are."""
        begin, step = self.span(), self.number(("other", "step", SLOTS - 1))
        place = self.add(begin, self.mul(self.from_, step))
        return self.at("%from", place, self.outside), step

    def dense(self) -> None:
        """Lanes run along memory and the packed rows, and all of them are there."""
        e, lanes = self.e, self.e.lanes
        memory, step = self.dense_source()
        many = self.many
        if self.registers.packs_vnni:
            self.to_vnni(memory, step, "1")
            many = e.let(f"select i1 {self.in_panels()}, i64 0, i64 {many}")
        across = self.number("across")
        whole = e.let(f"lshr i64 {self.count}, {lanes.bit_length() - 1}")
        rest, goals = self.below(self.sub(self.count, self.mul(whole, str(lanes)))), self.goals()

        def line(number: str, _: list[str]) -> list[str]:
            source = self.at(memory, self.mul(number, step), self.outside)
            to = self.at("%to", self.mul(number, across))

            def vector(v: str, live: str | None) -> list[str]:
                place = self.at(source, self.mul(v, str(lanes)), self.outside)
                found = self.taken(load_row(e, place, self.raw, live))
                goal = self.at(to, self.get(goals, v))
                e.line(f"store {self.vector} {found}, ptr {goal}, align {self.align}")
                return []

            def after(v: str, now: list[str]) -> list[str]:
                vector(v, now[0])
                return ["zeroinitializer"]

            def pair(v: str) -> list[str]:
                vector(v, None)
                return vector(self.add(v, "1"), None)

            even = e.let(f"and i64 {whole}, -2")
            e.loop("0", even, 2, [], lambda v, _: pair(v))
            e.loop(even, whole, 1, [], lambda v, _: vector(v, None))
            e.loop(whole, self.vectors, 1, [(f"<{lanes} x i1>", rest)], after)
            return []

        e.loop("0", many, 1, [], line)

    def straight(self) -> None:
        """Lanes run along the packed rows; steps with the same conditions one after the other."""
        e, lanes = self.e, str(self.e.lanes)
        self.settle_lanes()
        valid, goals = self.room(self.mask_kind, self.vectors), self.goals()
        values, taps = self.room("i32", str(2 * SLOTS)), self.number("taps")
        later = self.mul(self.number("next step"), str(GEMM.pack_fetch_steps))

        # a block of fewer steps than there are taps has some of them, one after the other
        _, first = self.divided(self.from_, taps)
        fits = e.let(f"icmp sle i64 {self.add(first, self.many)}, {taps}")
        first = e.let(f"select i1 {fits}, i64 {first}, i64 0")
        few = e.let(f"select i1 {fits}, i64 {self.many}, i64 {taps}")

        def tap(place: str) -> None:
            number, moved = self.add(first, place), self.others(self.tap, values)

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
                    found = self.loaded(source, v, self.get(valid, v, self.mask_kind), later)
                    place = self.at(to, self.get(goals, v))
                    e.line(f"store {self.vector} {found}, ptr {place}, align {self.align}")
                    return []

                e.loop("0", self.vectors, 1, [], vector)

            self.walk(self.outer, self.coordinates(self.outer, begin), self.sub(end, begin), step)

        self.walk(self.tap, self.coordinates(self.tap, first), few, tap)

    def to_vnni(self, memory: str, apart: str, between: str) -> None:
        """Make bytes numbers of four each, if they go to panels."""
        operands = f"ptr {memory}, i64 {apart}, i64 {between}, {GOAL}"
        call = f"call void @PART_vnni({operands})"
        self.e.branch(self.in_panels(), lambda: self.e.line(call))

    def in_panels(self) -> str:
        """True if it is packed into panels, and not as rows."""
        return self.e.let(f"icmp slt i64 {self.number('panel')}, {NO_PANEL}")

    def transposed(self) -> None:
        """Lanes run across the packed rows: squares are transposed by the library."""
        e, lanes, level = self.e, str(self.e.lanes), self.kind == "dense transposed"
        memory, step = self.dense_source() if level else ("", "")
        if not level:
            self.settle_lanes()
        scalar = scalar_type(self.registers.dtype)
        whole, size = f"<{lanes} x {scalar}>", str(self.e.lanes**2)
        square = self.room(scalar, size)
        other = self.room(scalar, size) if self.registers.packs_vnni else ""
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

            if not level:
                start = self.coordinates(self.outer, self.add(self.from_, at))
                self.walk(self.outer, start, many, one)
            goal = self.placed(at)

            def window(number: str, v: str) -> str:
                asked = self.at(values, self.mul(number, str(2 * SLOTS)), "i32")
                how = "bitcast" if self.e.lanes == 16 else "sext"
                bits = e.let(f"{how} <{lanes} x i1> {self.valid(asked, v)} to {self.mask_kind}")
                source = self.at("%from", self.get(sources, number), self.outside)
                return self.loaded(source, v, bits)

            def vector(v: str, _: list[str]) -> list[str]:
                column = self.mul(v, lanes)
                live = self.below(self.sub(self.count, column)) if level else ""

                def row(number: str, _: list[str]) -> list[str]:
                    place = self.at(square, self.mul(number, lanes), scalar)
                    if level:
                        start = self.add(self.mul(self.add(at, number), step), column)
                        raw = load_row(e, self.at(memory, start, self.outside), self.raw, live)
                        found = self.taken(raw)
                    else:
                        found = window(number, v)
                    if self.registers.packs_vnni:
                        found = e.let(f"zext {self.vector} {found} to {whole}")
                    e.line(f"store {whole} {found}, ptr {place}, align 64")
                    return []

                e.loop("0", many, 1, [], row)
                across = self.number("across")
                to = self.at("%to", self.add(self.mul(column, across), goal))
                place, stride = (other, lanes) if self.registers.packs_vnni else (to, across)
                operands = f"ptr {square}, ptr {place}, i64 {stride}, i64 {lanes}"
                e.line(f"call void @{turn.name}({operands})")
                if self.registers.packs_vnni:
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


class _Lanes(Im2colPacker):
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
    "ptr noalias %view, i64 %begin, i64 %count, i64 %vectors, i1 %far, ptr noalias %asked, "
    "ptr noalias %places, ptr noalias %starts, ptr noalias %apart, ptr noalias %begins, "
    "ptr noalias %offsets, ptr noalias %masks"
)


def lanes_function(registers: Registers) -> tuple[str, dict[str, str]]:
    """The function `PART_lanes` that all packers call, and what it declares."""
    return defined(_Lanes(registers), f"internal void @PART_lanes({_LANES})")
