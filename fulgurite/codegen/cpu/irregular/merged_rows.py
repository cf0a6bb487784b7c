"""Rows that are sorted by merges in vector registers (`merge_sort`): keys made, sorted, written.

In: a sorter whose rows ask for values, or for places by keys of at most 32 bits. Out: a
`KernelText`. Values are keys alone, and are made of them again; places are carried below their keys
in one word, so that no two are equal and the order is the stable one. Zeros have one key, and so do
NaNs: a row that has a -0.0 or a NaN gets its own ones back, in their order, when all is written.
Short rows are sorted on a thread's stack. A unit sorts a row; a long row is cut in blocks, which
any thread sorts, and merges in pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ....core.dtype import int32, int64
from ...common.api import KernelText, Launch
from ..llvm.convert import load_value, store_value
from ..llvm.emitter import Val, ramp
from ..target import Target
from ..tiling import CPU
from .merge_sort import keys_per_register, levels_of, merged, module, registers_of

if TYPE_CHECKING:
    from .sort import Rows, Sorter

SORT = CPU.sort


def pays(rows: Rows, target: Target) -> bool:
    """True if a word holds a key, and its place if asked for, and merges are quicker than digits:
    of those there is a pass for each, of merges one for each doubling of the length."""
    table = SORT.merged_values if rows.values else SORT.merged_places
    first, more = table[target.vectors]
    fits = rows.values or rows.bits <= 32
    return fits and rows.n.bit_length() <= first + more * rows.passes


class Room:
    """How the workspace of rows is laid out: two arrays for each, and a flag for each block."""

    def __init__(self, rows: Rows, target: Target) -> None:
        self.bits = 32 if rows.values and rows.bits <= 32 else 64
        self.lanes = keys_per_register(self.bits, target)
        self.nbytes = self.lanes * self.bits // 8
        self.registers = registers_of(rows.n, self.lanes)
        self.array = self.registers * self.nbytes + SORT.apart_bytes
        self.on_stack = not rows.in_blocks and 2 * self.array <= SORT.stack_bytes
        wanted = max(SORT.block_elements // self.lanes, -(-self.registers // SORT.max_blocks))
        self.block = -(-wanted // SORT.block_registers) * SORT.block_registers  # registers
        self.blocks = -(-self.registers // self.block)
        self.first = levels_of(self.block, self.nbytes) % 2  # of its arrays: where a block ends up
        self.flags = SORT.apart_bytes + 2 * self.array * rows.outer  # where they begin
        self.total = 64 if self.on_stack else self.flags + 8 * rows.outer * self.blocks


def merge_rows(sorter: Sorter, target: Target) -> KernelText:
    """The kernel whose units sort a row, or a block of one."""
    return _MergedRows(sorter, target).write()


class _MergedRows:
    """Writes the functions."""

    def __init__(self, sorter: Sorter, target: Target) -> None:
        self.sorter, self.rows, self.op = sorter, sorter.rows, sorter.op
        self.room = Room(self.rows, target)
        self.library = module(self.room.bits, target)
        self.wide = f"<{sorter.lanes} x i{self.room.bits}>"
        self.mends = self.rows.values and self.rows.dtype.kind == "f"
        self.stack = ""

    def write(self) -> KernelText:
        rows, sorter = self.rows, self.sorter
        if rows.in_blocks:
            launches = self.in_blocks()
        else:
            sorter.function("kernel_sorted", self.row, self.take_stack)
            launches = [Launch("kernel_sorted", rows.outer, self.work(rows.outer * rows.n))]
        return sorter.rendered(launches, (self.library.text,))

    def work(self, elements: int) -> int:
        """A guess in additions."""
        return elements * (4 + 2 * self.rows.n.bit_length())

    # --- memory ----------------------------------------------------------------------------------

    def take_stack(self) -> None:
        """A thread's own arrays, if they are short."""
        if self.room.on_stack:
            size = SORT.apart_bytes + 2 * self.room.array
            self.stack = self.sorter.e.let(f"alloca [{size} x i8], align 64")

    def array(self, row: str, which: int) -> str:
        """The address of one of the two arrays of a row."""
        base = self.stack or self.sorter.arrays[0]
        place = str(SORT.apart_bytes + which * self.room.array)
        if not self.stack:
            place = self.op("add", self.op("mul", row, 2 * self.room.array), place)
        return self.sorter.e.let(f"getelementptr i8, ptr {base}, i64 {place}")

    def key_at(self, array: str, index: str) -> str:
        return self.sorter.e.let(f"getelementptr i{self.room.bits}, ptr {array}, i64 {index}")

    def vectors(
        self, start: str, stop: str, body: Callable[[str, str | None, list[str]], list[str]],
        first: list[tuple[str, str]] | None = None, end: str | None = None,
    ) -> list[str]:  # fmt: skip
        """Run over elements a vector at a time; a mask says which are before `stop`, if not all."""
        e, lanes = self.sorter.e, self.sorter.lanes
        carried = first or []
        whole = self.op("add", start, self.op("and", self.op("sub", stop, start), -lanes))

        def some(index: str, values: list[str]) -> list[str]:
            left = e.splat(Val(self.op("sub", stop, index), int64)).text
            mask = e.let(f"icmp slt <{lanes} x i64> {ramp(lanes, 1, 'i64')}, {left}")
            return body(index, mask, values)

        found = e.loop(start, whole, lanes, carried, lambda i, values: body(i, None, values))
        then = [(kind, value) for (kind, _), value in zip(carried, found, strict=True)]
        return e.loop(whole, end or stop, lanes, then, some)

    # --- keys ------------------------------------------------------------------------------------

    def number(self, row: str, index: str, mask: str | None) -> tuple[Val, Val]:
        """The bits of numbers of a row, and their keys."""
        sorter = self.sorter
        place = Val(self.op("add", self.op("mul", row, self.rows.n), index), int64)
        bits = load_value(sorter.e, sorter.source, place, self.rows.word, None, mask, "row")
        return bits, sorter.key(bits)

    def keys(self, row: str, array: str, start: str, stop: str, end: str) -> str:
        """Signed keys of some numbers, and none that is less up to `end`; are any to be mended?"""
        e, lanes, wide = self.sorter.e, self.sorter.lanes, self.wide
        largest = f"splat (i{self.room.bits} {(1 << self.room.bits - 1) - 1})"
        masks = f"<{lanes} x i1>"

        def vector(index: str, mask: str | None, carried: list[str]) -> list[str]:
            bits, key = self.number(row, index, mask)
            words = self.signed(key, index)
            if mask is not None:
                words = e.let(f"select {masks} {mask}, {wide} {words}, {wide} {largest}")
            at = self.key_at(array, self.op("sub", index, start))
            e.line(f"store {wide} {words}, ptr {at}, align {self.room.bits // 8}")
            if not self.mends:
                return []
            kind, top = e.type_of(bits.dtype, True), 1 << self.rows.bits - 1
            magnitude = e.let(f"and {kind} {bits.text}, {e.const(top - 1, bits.dtype, True).text}")
            limit = e.const(self.sorter.largest, bits.dtype, True).text
            nan = e.let(f"icmp ugt {kind} {magnitude}, {limit}")
            minus = e.let(f"icmp eq {kind} {bits.text}, {e.const(top, bits.dtype, True).text}")
            lost = e.let(f"sext {masks} {e.let(f'or {masks} {nan}, {minus}')} to {kind}")
            return [e.let(f"or {kind} {carried[0]}, {lost}")]

        kind = e.type_of(self.rows.word, True)
        first = [(kind, "zeroinitializer")] if self.mends else []
        found = self.vectors(start, stop, vector, first, end)
        if not found:
            return "false"
        name = f"llvm.vector.reduce.or.v{lanes}i{self.rows.bits}"
        one = e.call(f"i{self.rows.bits}", name, f"{kind} {found[0]}")
        return e.let(f"icmp ne i{self.rows.bits} {one}, 0")

    def signed(self, key: Val, index: str) -> str:
        """A word of a merge: a key alone, or with its place below it."""
        e, rows, wide = self.sorter.e, self.rows, self.wide
        words, top = key.text, f"splat (i{self.room.bits} {-1 << self.room.bits - 1})"
        if rows.bits < self.room.bits:
            words = e.let(f"zext {e.typed(key)} to {wide}")
        if not rows.values:
            at = e.splat(Val(index, int64)).text
            at = e.let(f"add {wide} {at}, {ramp(self.sorter.lanes, 1, 'i64')}")
            words = e.let(f"or {wide} {e.let(f'shl {wide} {words}, splat (i64 32)')}, {at}")
        return e.let(f"xor {wide} {words}, {top}") if rows.bits >= 32 else words

    def number_of(self, words: str) -> Val:
        """The bits of the numbers that words of a merge stand for."""
        e, rows, wide = self.sorter.e, self.rows, self.wide
        if rows.bits >= 32:
            words = e.let(f"xor {wide} {words}, splat (i{rows.bits} {-1 << rows.bits - 1})")
        else:
            words = e.let(f"trunc {wide} {words} to {e.type_of(rows.word, True)}")
        return self.sorter.number(Val(words, rows.word, True))

    # --- results ---------------------------------------------------------------------------------

    def results(self, row: str, array: str, start: str, stop: str) -> None:
        """Sorted words, from an array that begins with `start`, as values or places."""
        e, rows, lanes = self.sorter.e, self.rows, self.sorter.lanes
        base = self.op("mul", row, rows.n)

        def vector(index: str, mask: str | None, _: list[str]) -> list[str]:
            at = self.key_at(array, self.op("sub", index, start))
            words = e.let(f"load {self.wide}, ptr {at}, align {self.room.bits // 8}")
            if rows.values:
                value = self.number_of(words)
            else:
                short = e.let(f"trunc {self.wide} {words} to <{lanes} x i32>")
                value = Val(short, int32, True)
            place = Val(self.op("add", base, index), int64)
            store_value(e, self.sorter.result, place, value, value.dtype, mask, "row")
            return []

        self.vectors(start, stop, vector)

    def mend(self, row: str) -> None:
        """The zeros of a row and its NaNs as they are, in their order, in the places they have."""
        e, lanes, dtype = self.sorter.e, self.sorter.lanes, self.rows.word
        kind, masks = e.type_of(dtype, True), f"<{lanes} x i1>"
        zero, nan = (
            self.sorter.key(Val(str(bits), dtype)).text for bits in (0, self.sorter.largest + 1)
        )
        base = self.op("mul", row, self.rows.n)

        def few(mask: str) -> str:
            bits = e.let(f"bitcast {masks} {mask} to i{lanes}")
            count = e.call(f"i{lanes}", f"llvm.ctpop.i{lanes}", f"i{lanes} {bits}")
            return e.let(f"zext i{lanes} {count} to i64")

        def compared(how: str, index: str, mask: str | None, wanted: str) -> tuple[str, Val]:
            bits, key = self.number(row, index, mask)
            found = e.let(f"icmp {how} {kind} {key.text}, {wanted}")
            return found if mask is None else e.let(f"and {masks} {found}, {mask}"), bits

        def one(which: str, _: list[str]) -> list[str]:
            is_zero = e.let(f"icmp eq i64 {which}, 0")
            key = e.let(f"select i1 {is_zero}, i{dtype.bits} {zero}, i{dtype.bits} {nan}")
            wanted = e.splat(Val(key, dtype)).text

            def below(index: str, mask: str | None, carried: list[str]) -> list[str]:
                found, _ = compared("ult", index, mask, wanted)
                return [self.op("add", carried[0], few(found))]

            def put(index: str, mask: str | None, carried: list[str]) -> list[str]:
                found, bits = compared("eq", index, mask, wanted)
                place = f"i{dtype.bits}, ptr {self.sorter.result}, i64 {carried[0]}"
                at = e.let(f"getelementptr {place}")
                name = f"llvm.masked.compressstore.v{lanes}i{dtype.bits}"
                e.declare(f"void @{name}({kind}, ptr, {masks})", name)
                e.line(f"call void @{name}({e.typed(bits)}, ptr {at}, {masks} {found})")
                return [self.op("add", carried[0], few(found))]

            first = self.vectors("0", self.sorter.n, below, [("i64", base)])
            self.vectors("0", self.sorter.n, put, [("i64", first[0])])
            return []

        e.loop("0", "2", 1, [], one)

    # --- a row at a time -------------------------------------------------------------------------

    def sorted(self, array: str, other: str, registers: str) -> str:
        """Where the sorted words of an array are."""
        name = self.library.name
        return self.sorter.e.call("ptr", name, f"ptr {array}", f"ptr {other}", f"i64 {registers}")

    def row(self, row: str) -> None:
        """A unit: a row."""
        array, other = (self.array(row, which) for which in (0, 1))
        registers = str(self.room.registers)
        end = str(self.room.registers * self.room.lanes)
        mended = self.keys(row, array, "0", self.sorter.n, end)
        self.results(row, self.sorted(array, other, registers), "0", self.sorter.n)
        if self.mends:
            self.sorter.e.branch(mended, lambda: self.mend(row))

    # --- long rows -------------------------------------------------------------------------------

    def in_blocks(self) -> list[Launch]:
        """Blocks are sorted; they and their merges are merged in pairs; all is written."""
        rows, room, sorter, op = self.rows, self.room, self.sorter, self.op

        def least(a: str, b: str) -> str:
            return sorter.e.call("i64", "llvm.smin.i64", f"i64 {a}", f"i64 {b}")

        def bounds(unit: str) -> tuple[str, str, str, str]:
            """The row of a block, its first register, and its first and last element."""
            row, block = op("udiv", unit, room.blocks), op("urem", unit, room.blocks)
            low = op("mul", block, room.block)
            start = op("mul", low, room.lanes)
            stop = least(op("add", start, room.block * room.lanes), sorter.n)
            return row, low, start, stop

        def flag(unit: str) -> str:
            at = sorter.e.let(f"getelementptr i8, ptr {sorter.arrays[0]}, i64 {room.flags}")
            return sorter.e.let(f"getelementptr i64, ptr {at}, i64 {unit}")

        def block(unit: str) -> None:
            e = sorter.e
            row, low, start, stop = bounds(unit)
            array, other = (self.key_at(self.array(row, which), start) for which in (0, 1))
            count = least(op("sub", str(room.registers), low), str(room.block))
            end = op("add", start, op("mul", count, room.lanes))
            stop = e.call("i64", "llvm.smax.i64", f"i64 {stop}", f"i64 {start}")
            mended = self.keys(row, array, start, stop, end)
            self.copy(self.sorted(array, other, count), (array, other)[room.first], "0", count)
            if self.mends:
                e.line(f"store i64 {e.let(f'zext i1 {mended} to i64')}, ptr {flag(unit)}")

        def merge(level: int, pairs: int, unit: str) -> None:
            e, run = sorter.e, room.block << level
            row, pair = op("udiv", unit, pairs), op("urem", unit, pairs)
            source, target = (self.array(row, which ^ (level + room.first) & 1) for which in (0, 1))
            low = op("mul", pair, 2 * run)
            middle, high = (
                least(op("add", low, length), str(room.registers)) for length in (run, 2 * run)
            )
            places = [f"ptr {source}", f"ptr {target}", *[f"i64 {n}" for n in (low, middle, high)]]
            name = merged(self.library)
            e.declare(f"void @{name}(ptr, ptr, i64, i64, i64)", name)
            both = e.let(f"icmp slt i64 {middle}, {high}")
            e.branch(both, lambda: e.line(f"call void @{name}({', '.join(places)})"))
            self.copy(source, target, e.let(f"select i1 {both}, i64 {high}, i64 {low}"), high)

        def write(unit: str, level: int) -> None:
            row, _, start, stop = bounds(unit)
            array = self.array(row, (level + room.first) & 1)
            self.results(row, self.key_at(array, start), start, stop)

        def mend(row: str) -> None:
            e = sorter.e

            def one(index: str, carried: list[str]) -> list[str]:
                unit = op("add", op("mul", row, room.blocks), index)
                return [op("or", carried[0], e.let(f"load i64, ptr {flag(unit)}"))]

            (some,) = e.loop("0", str(room.blocks), 1, [("i64", "0")], one)
            e.branch(e.let(f"icmp ne i64 {some}, 0"), lambda: self.mend(row))

        units, elements = rows.outer * room.blocks, rows.outer * rows.n
        sorter.function("kernel_block", block)
        launches = [Launch("kernel_block", units, self.work(elements))]
        level = 0
        while room.block << level < room.registers:
            pairs = -(-room.registers // (2 * room.block << level))
            symbol = f"kernel_merge{level}"
            sorter.function(symbol, partial(merge, level, pairs))
            launches.append(Launch(symbol, rows.outer * pairs, 4 * elements))
            level += 1
        sorter.function("kernel_write", lambda unit: write(unit, level))
        launches.append(Launch("kernel_write", units, 2 * elements))
        if self.mends:
            sorter.function("kernel_mend", mend)
            launches.append(Launch("kernel_mend", rows.outer, elements))
        return launches

    def copy(self, source: str, target: str, low: str, high: str) -> None:
        """Registers of one array to their places in another, if it is another."""
        e, kind = self.sorter.e, f"<{self.room.lanes} x i{self.room.bits}>"
        same = e.let(f"icmp eq ptr {source}, {target}")

        def one(index: str, _: list[str]) -> list[str]:
            at = [e.let(f"getelementptr {kind}, ptr {p}, i64 {index}") for p in (source, target)]
            value = e.let(f"load {kind}, ptr {at[0]}, align {self.room.bits // 8}")
            e.line(f"store {kind} {value}, ptr {at[1]}, align {self.room.bits // 8}")
            return []

        e.loop(low, e.let(f"select i1 {same}, i64 {low}, i64 {high}"), 1, [], one)
