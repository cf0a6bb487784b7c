"""The stable order along rows of memory: which sort takes them, and the radix sort.

In: rows of numbers of one dtype. Out: a `KernelText` that writes for each row the places of its
numbers in order, as int32, or the numbers. These become unsigned keys whose order is theirs (-0.0
equals 0.0, any NaN is above all; flipped where the order falls). Tiny rows are sorted as many as
there are lanes at once by a network of comparisons, others by merges where those are quicker. Here
keys, kept with their places, are moved digit after digit from the lowest. Moves keep the order of
equal digits, so equal numbers stay in order. Digits that are the same everywhere are passed over.
Short rows are sorted by insertion. A unit sorts a row; a long row is cut in blocks that count and
move on any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial

from ....core.dtype import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ....core.lazy_dataclass import dataclass
from ...common.api import KernelText, Launch
from ..compose import ARGUMENTS
from ..llvm.convert import load_value
from ..llvm.emitter import Emitter, Val
from ..llvm.masked import masked_store
from ..llvm.maths import compare, select
from ..target import Target
from ..tiling import CPU
from . import merged_rows
from . import select as selection
from .sorting_network import pays as side_by_side_pays
from .sorting_network import side_by_side

SORT = CPU.sort
_UNSIGNED = {8: uint8, 16: uint16, 32: uint32, 64: uint64}
_LARGEST = {  # the bits of the largest value that is a number
    float16: 0x7C00, bfloat16: 0x7F80, float8_e5m2: 0x7C, float8_e4m3fn: 0x7E,
    float32: 0x7F800000, float64: 0x7FF0000000000000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """What is sorted."""

    dtype: DType
    descending: bool
    outer: int
    n: int
    partly: bool = False  # only so many numbers of each row count, as is known when it runs
    first: int = 0  # places of each row that are read, if not all
    values: bool = False  # are the numbers themselves the result, not their places?

    @property
    def bits(self) -> int:
        """The width of a key."""
        return max(8, self.dtype.bits)

    @property
    def word(self) -> DType:
        """The dtype of a key."""
        return _UNSIGNED[self.bits]

    @property
    def words(self) -> int:
        """Words of 64 bits of a key with its place: key above place, or a word for each."""
        return 2 if self.bits == 64 else 1

    @property
    def digit(self) -> int:
        """Bits that one move sorts by."""
        most = 8 if self.n < 1 << 14 else 11
        return -(-self.bits // self.passes_of(most))

    def passes_of(self, digit: int) -> int:
        """How many digits a key has."""
        return -(-self.bits // digit)

    @property
    def passes(self) -> int:
        """How many times keys are moved."""
        return self.passes_of(self.digit)

    @property
    def in_blocks(self) -> bool:
        """True if a row is split."""
        return self.n >= SORT.long_elements and self.outer < SORT.enough_rows

    @property
    def block(self) -> int:
        """Elements of a block."""
        return max(SORT.block_elements, -(-self.n // (SORT.max_blocks * 64)) * 64)

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.n // self.block)

    @property
    def keys_bytes(self) -> int:
        """Bytes of all keys with their places."""
        return -(-self.outer * self.n * self.words * 8 // 64) * 64


class State(IntEnum):
    """Words of a row that is cut: how far it is sorted."""

    DONE = 0  # digits
    CURRENT = 1  # of the two arrays
    MOVED = 2  # has it just moved?


def writes_values(rows: Rows, target: Target) -> bool:
    """True if a sort whose values are asked for writes them itself, without places."""
    return side_by_side_pays(rows) or merged_rows.pays(rows, target)


def sort_bytes(rows: Rows, target: Target) -> int:
    """Room for keys, twice, and for counts and states of rows that are cut."""
    if selection.pays(rows):
        return 64  # which nobody uses
    if not side_by_side_pays(rows) and merged_rows.pays(rows, target):
        return merged_rows.Room(rows, target).total
    counts = rows.outer * (rows.blocks + 1) * (1 << rows.digit) * 4 if rows.in_blocks else 0
    return 2 * rows.keys_bytes + counts + rows.outer * len(State) * 8


def sort(rows: Rows, target: Target) -> KernelText:
    """Params: the numbers, the places, room, and how long rows are if that varies."""
    work = Sorter(rows, target)
    if selection.pays(rows):
        return selection.first_few(work)
    if side_by_side_pays(rows):
        return side_by_side(work)
    if merged_rows.pays(rows, target):
        return merged_rows.merge_rows(work, target)
    return work.cut() if rows.in_blocks else work.whole()


class Sorter:
    """Writes the functions that sort."""

    def __init__(self, rows: Rows, target: Target) -> None:
        self.rows, self.lanes = rows, target.lanes
        self.end = sort_bytes(rows, target)
        self.size = 1 << rows.digit  # different digits
        self.chosen = "", ""  # keys and places of a selection
        self.texts: list[str] = []
        self.declared: dict[str, str] = {}

    # --- text ------------------------------------------------------------------------------------

    def function(
        self, symbol: str, body: Callable[[str], None], before: Callable[[], None] | None = None
    ) -> None:
        """A function whose body does one unit."""
        e = self.e = Emitter(self.lanes)
        self.source, self.result, room = (
            e.let(f"load ptr, ptr {e.let(f'getelementptr ptr, ptr %params, i64 {i}')}")
            for i in range(3)
        )
        step = self.rows.keys_bytes
        self.arrays = room, e.let(f"getelementptr i8, ptr {room}, i64 {step}")
        self.counts = e.let(f"getelementptr i8, ptr {room}, i64 {2 * step}")
        end = self.end - self.rows.outer * len(State) * 8
        self.states = e.let(f"getelementptr i8, ptr {room}, i64 {end}")
        self.n = str(self.rows.n)
        if self.rows.partly:
            size = e.let(f"load ptr, ptr {e.let('getelementptr ptr, ptr %params, i64 3')}")
            self.n = e.let(f"load i64, ptr {size}, align 1")
        if before is not None:
            before()

        def unit(index: str, _: list[str]) -> list[str]:
            body(index)
            return []

        e.loop("%first", "%last", 1, [], unit)
        e.line("ret void")
        text = "\n".join(e.lines)
        self.texts.append(f"define void @{symbol}({ARGUMENTS}) {{\nentry:\n{text}\n}}")
        self.declared |= e.declared

    def rendered(self, launches: list[Launch], library: tuple[str, ...] = ()) -> KernelText:
        text = "\n".join([*self.texts, *self.declared.values()]) + "\n"
        return KernelText(text, tuple(launches), library=library)

    def op(self, how: str, a: str, b: str | int) -> str:
        return self.e.let(f"{how} i64 {a}, {b}")

    def each(self, start: str, stop: str, body: Callable[[str], None]) -> None:
        """Run every index, some at a time."""
        left = self.op("srem", self.op("sub", stop, start), SORT.unroll_elements)
        whole = self.op("sub", stop, left)

        def some(index: str, _: list[str]) -> list[str]:
            body(index)
            for more in range(1, SORT.unroll_elements):
                body(self.op("add", index, more))
            return []

        def one(index: str, _: list[str]) -> list[str]:
            body(index)
            return []

        self.e.loop(start, whole, SORT.unroll_elements, [], some)
        self.e.loop(whole, stop, 1, [], one)

    def word(self, array: str, place: str, which: int = 0) -> str:
        """The address of a word of an element."""
        words = self.rows.words
        if words == 2:
            place = self.op("mul", place, 2)
            if which:
                place = self.op("add", place, 1)
        return self.e.let(f"getelementptr i64, ptr {array}, i64 {place}")

    def element(self, array: str, place: str) -> list[str]:
        """The words of an element."""
        e = self.e
        return [e.let(f"load i64, ptr {self.word(array, place, w)}, align 8")
                for w in range(self.rows.words)]  # fmt: skip

    def put(self, array: str, place: str, words: list[str]) -> None:
        for w, word in enumerate(words):
            self.e.line(f"store i64 {word}, ptr {self.word(array, place, w)}, align 8")

    def digit(self, key: str, shift: str) -> str:
        """A digit of a key, `shift` bits up."""
        return self.op("and", self.op("lshr", key, shift), self.size - 1)

    def row_of(self, array: str, row: str) -> str:
        """The address of a row's elements."""
        start = self.op("mul", row, self.rows.n * self.rows.words)
        return self.e.let(f"getelementptr i64, ptr {array}, i64 {start}")

    @property
    def largest(self) -> int:
        """The bits of the largest float that is a number."""
        return _LARGEST[self.rows.dtype]

    # --- keys ------------------------------------------------------------------------------------

    def keys(self, row: str, target: str, start: str, stop: str) -> None:
        """Keys with their places, for some numbers of a row."""
        e = self.e
        dtype = self.rows.word
        base = self.op("mul", row, self.rows.n)

        def vector(index: str, _: list[str]) -> list[str]:
            left = self.op("sub", stop, index)
            numbers = ", ".join(f"i64 {i}" for i in range(self.lanes))
            kind = f"<{self.lanes} x i64>"
            lanes = e.let(f"icmp ult {kind} <{numbers}>, {e.splat(Val(left, int64)).text}")
            place = Val(self.op("add", base, index), int64)
            bits = load_value(e, self.source, place, dtype, None, lanes, "row")
            key = self.key(bits)
            at = e.let(f"add {kind} {e.splat(Val(index, int64)).text}, <{numbers}>")
            if self.rows.words == 1:
                wide = e.let(f"zext {e.typed(key)} to {kind}")
                high = e.let(f"shl {kind} {wide}, {e.splat(Val('32', int64)).text}")
                self.put_row(target, index, e.let(f"or {kind} {high}, {at}"), lanes)
            else:
                self.put_pairs(target, index, key.text, at, left)
            return []

        e.loop(start, stop, self.lanes, [], vector)

    def put_row(self, target: str, index: str, words: str, lanes: str) -> None:
        at = self.e.let(f"getelementptr i64, ptr {target}, i64 {index}")
        masked_store(self.e, f"<{self.lanes} x i64>", words, at, lanes, align=8)

    def put_pairs(self, target: str, index: str, keys: str, places: str, left: str) -> None:
        """Keys and places side by side, as far as there are elements."""
        e, count = self.e, self.lanes
        kind, pair = f"<{count} x i64>", f"<{2 * count} x i64>"
        order = ", ".join(f"i32 {i}, i32 {i + count}" for i in range(count))
        both = e.let(f"shufflevector {kind} {keys}, {kind} {places}, <{2 * count} x i32> <{order}>")
        at = e.let(f"getelementptr i64, ptr {target}, i64 {self.op('mul', index, 2)}")
        numbers = ", ".join(f"i64 {i // 2}" for i in range(2 * count))
        first = e.let(f"insertelement {pair} poison, i64 {left}, i64 0")
        limit = e.let(
            f"shufflevector {pair} {first}, {pair} poison, <{2 * count} x i32> zeroinitializer"
        )
        live = e.let(f"icmp ult {pair} <{numbers}>, {limit}")
        masked_store(e, pair, both, at, live, align=8)

    def key(self, value: Val) -> Val:
        """An unsigned number whose order is that of the numbers these are the bits of."""
        e, dtype = self.e, self.rows.dtype
        top = 1 << self.rows.bits - 1
        most = 2 * top - 1

        def op(how: str, a: Val, number: int) -> Val:
            other = e.const(number, a.dtype, a.vector)
            return Val(e.let(f"{how} {e.typed(a)}, {other.text}"), a.dtype, a.vector)

        if dtype.kind == "i":
            value = op("xor", value, top)
        elif dtype.kind == "f":
            magnitude = op("and", value, top - 1)
            zero = e.const(0, value.dtype, value.vector)
            value = select(e, compare(e, "icmp eq", magnitude, zero), zero, value)
            negative = compare(e, "icmp uge", value, e.const(top, value.dtype, value.vector))
            mapped = select(e, negative, op("xor", value, most), op("or", value, top))
            largest = e.const(self.largest, value.dtype, value.vector)
            nan = compare(e, "icmp ugt", magnitude, largest)
            value = select(e, nan, e.const(most, value.dtype, value.vector), mapped)
        return op("xor", value, most) if self.rows.descending else value

    def number(self, key: Val) -> Val:
        """The bits of the number that has a key; of zeros and of NaNs the one without a sign."""
        e, dtype = self.e, self.rows.dtype
        top = 1 << self.rows.bits - 1
        most = 2 * top - 1

        def flipped(value: Val, bits: int) -> Val:
            other = e.const(bits, value.dtype, value.vector)
            return Val(e.let(f"xor {e.typed(value)}, {other.text}"), value.dtype, value.vector)

        key = flipped(key, most) if self.rows.descending else key
        if dtype.kind == "i":
            return flipped(key, top)
        if dtype.kind != "f":
            return key
        positive = compare(e, "icmp uge", key, e.const(top, key.dtype, key.vector))
        return select(e, positive, flipped(key, top), flipped(key, most))

    # --- a row at a time -------------------------------------------------------------------------

    def whole(self) -> KernelText:
        """A unit sorts a row."""
        rows = self.rows

        def unit(row: str) -> None:
            array = self.row_of(self.arrays[0], row)
            self.keys(row, array, "0", self.n)
            if rows.n <= SORT.insertion_elements:
                self.insertion(array)
            else:
                array = self.by_digits(array, self.row_of(self.arrays[1], row))
            self.places(row, array, "0", self.n)

        def table() -> None:
            self.table = self.e.let(f"alloca [{self.size} x i32], align 64")

        self.function("kernel_sorted", unit, table)
        work = rows.outer * rows.n * (6 * rows.passes + 4)
        return self.rendered([Launch("kernel_sorted", rows.outer, work)])

    def insertion(self, array: str) -> None:
        """Take one element after the other and move those above it up."""

        def take(index: str, _: list[str]) -> list[str]:
            load, store = partial(self.element, array), partial(self.put, array)
            self.insert(self.element(array, index), index, load, store)
            return []

        self.e.loop("1", self.n, 1, [], take)

    def insert(
        self, words: list[str], top: str, load: Callable[[str], list[str]],
        store: Callable[[str, list[str]], None],
    ) -> None:  # fmt: skip
        """Put an element, its key first, where it belongs; those above it move up, to `top`."""
        e = self.e
        stem = e.name("insert")[1:]
        before, head, look, shift, done = (f"{stem}_{part}" for part in "abcde")
        e.jump(before)
        e.label(before)
        e.jump(head)
        e.label(head)
        place, lower = e.name("j"), e.name("j")
        e.line(f"{place} = phi i64 [ {top}, %{before} ], [ {lower}, %{shift} ]")
        some = e.let(f"icmp sgt i64 {place}, 0")
        e.line(f"br i1 {some}, label %{look}, label %{done}")
        e.label(look)
        e.line(f"{lower} = sub i64 {place}, 1")
        other = load(lower)
        above = e.let(f"icmp ugt i64 {other[0]}, {words[0]}")
        e.line(f"br i1 {above}, label %{shift}, label %{done}")
        e.label(shift)
        store(place, other)
        e.jump(head)
        e.label(done)
        store(place, words)

    def by_digits(self, array: str, other: str) -> str:
        """Move all elements between two arrays, digit by digit; where they end up."""
        e, rows = self.e, self.rows
        n, low = self.n, 0 if rows.words == 2 else 32

        def sorted_by(number: str, carried: list[str]) -> list[str]:
            source, target = carried
            shift = self.op("add", self.op("mul", number, rows.digit), low)
            self.clear(self.table)
            self.count(source, "0", n, shift, self.table)
            first = self.digit(self.element(source, "0")[0], shift)
            at = e.let(f"getelementptr i32, ptr {self.table}, i64 {first}")
            alone = self.is_all(e.let(f"load i32, ptr {at}"))

            def move() -> None:
                self.sums(self.table)
                self.move(source, target, "0", n, shift, self.table)

            e.branch(e.let(f"xor i1 {alone}, true"), move)
            return [e.let(f"select i1 {alone}, ptr {a}, ptr {b}")
                    for a, b in ((source, target), (target, source))]  # fmt: skip

        first = [("ptr", array), ("ptr", other)]
        return e.loop("0", str(rows.passes), 1, first, sorted_by)[0]

    def is_all(self, count: str) -> str:
        """True if a count is that of all numbers of a row."""
        wide = self.e.let(f"zext i32 {count} to i64")
        return self.e.let(f"icmp eq i64 {wide}, {self.n}")

    def clear(self, table: str) -> None:
        e, lanes = self.e, min(16, self.size)

        def zero(index: str, _: list[str]) -> list[str]:
            at = e.let(f"getelementptr i32, ptr {table}, i64 {index}")
            e.line(f"store <{lanes} x i32> zeroinitializer, ptr {at}, align 4")
            return []

        e.loop("0", str(self.size), lanes, [], zero)

    def count(self, source: str, start: str, stop: str, shift: str, table: str) -> None:
        """How often each digit occurs."""
        e = self.e

        def one(index: str) -> None:
            key = e.let(f"load i64, ptr {self.word(source, index)}, align 8")
            at = e.let(f"getelementptr i32, ptr {table}, i64 {self.digit(key, shift)}")
            more = e.let(f"add i32 {e.let(f'load i32, ptr {at}')}, 1")
            e.line(f"store i32 {more}, ptr {at}")

        self.each(start, stop, one)

    def sums(self, table: str) -> None:
        """Counts become the places where each digit begins."""
        e = self.e

        def one(index: str, carried: list[str]) -> list[str]:
            at = e.let(f"getelementptr i32, ptr {table}, i64 {index}")
            own = e.let(f"load i32, ptr {at}")
            e.line(f"store i32 {carried[0]}, ptr {at}")
            return [e.let(f"add i32 {carried[0]}, {own}")]

        e.loop("0", str(self.size), 1, [("i32", "0")], one)

    def move(
        self, source: str, target: str, start: str, stop: str, shift: str, table: str,
        last: bool = False,
    ) -> None:  # fmt: skip
        """Each element to the next place of its digit; the last time only its own place."""
        e, rows = self.e, self.rows

        def one(index: str) -> None:
            words = self.element(source, index)
            at = e.let(f"getelementptr i32, ptr {table}, i64 {self.digit(words[0], shift)}")
            place = e.let(f"load i32, ptr {at}")
            e.line(f"store i32 {e.let(f'add i32 {place}, 1')}, ptr {at}")
            to = e.let(f"zext i32 {place} to i64")
            if last:
                at = e.let(f"getelementptr i32, ptr {target}, i64 {to}")
                e.line(f"store i32 {e.let(f'trunc i64 {words[-1]} to i32')}, ptr {at}, align 1")
            else:
                self.put(target, to, words)
            if (
                rows.n * rows.words * 8 > SORT.cached_bytes
            ):  # stores to so many places miss all caches
                further = self.op("add", to, SORT.prefetch_elements * (2 if last else 1))
                ahead = self.word(target, further)
                if last:
                    ahead = e.let(f"getelementptr i32, ptr {target}, i64 {further}")
                e.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)", "llvm.prefetch.p0")
                e.line(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 1, i32 3, i32 1)")

        self.each(start, stop, one)

    def places(self, row: str, array: str, start: str, stop: str) -> None:
        """The places alone, as the result."""
        e = self.e
        base = self.op("mul", row, self.rows.n)

        def one(index: str) -> None:
            place = self.element(array, index)[-1]
            at = e.let(f"getelementptr i32, ptr {self.result}, i64 {self.op('add', base, index)}")
            e.line(f"store i32 {e.let(f'trunc i64 {place} to i32')}, ptr {at}, align 1")

        self.each(start, stop, one)

    # --- long rows -------------------------------------------------------------------------------

    def cut(self) -> KernelText:
        """Keys; then for every digit counts of blocks, where they begin, and moves."""
        rows = self.rows
        low = 0 if rows.words == 2 else 32

        def bounds(unit: str) -> tuple[str, str, str, str]:
            e = self.e
            block = self.op("urem", unit, rows.blocks)
            start = self.op("mul", block, rows.block)
            end = self.op("add", start, rows.block)
            stop = e.call("i64", "llvm.smin.i64", f"i64 {end}", f"i64 {self.n}")
            return self.op("udiv", unit, rows.blocks), block, start, stop

        def state(row: str, which: State) -> str:
            place = self.op("add", self.op("mul", row, len(State)), which)
            return self.e.let(f"getelementptr i64, ptr {self.states}, i64 {place}")

        def known(row: str, which: State) -> str:
            return self.e.let(f"load i64, ptr {state(row, which)}")

        def table(row: str, block: str) -> str:
            place = self.op("add", self.op("mul", row, rows.blocks + 1), block)
            place = self.op("mul", place, self.size)
            return self.e.let(f"getelementptr i32, ptr {self.counts}, i64 {place}")

        def array(row: str, which: str) -> str:
            odd = self.e.let(f"icmp ne i64 {which}, 0")
            chosen = self.e.let(f"select i1 {odd}, ptr {self.arrays[1]}, ptr {self.arrays[0]}")
            return self.row_of(chosen, row)

        def shift(done: str) -> str:
            return self.op("add", self.op("mul", done, rows.digit), low)

        def keys(unit: str) -> None:
            row, block, start, stop = bounds(unit)
            self.keys(row, self.row_of(self.arrays[0], row), start, stop)

            def first() -> None:
                for which in State:
                    self.e.line(f"store i64 0, ptr {state(row, which)}")

            self.e.branch(self.e.let(f"icmp eq i64 {block}, 0"), first)

        def count(unit: str) -> None:
            row, block, start, stop = bounds(unit)
            mine = table(row, block)
            self.clear(mine)
            source = array(row, known(row, State.CURRENT))
            self.count(source, start, stop, shift(known(row, State.DONE)), mine)

        def begin(row: str) -> None:
            e = self.e
            alone = self.begins(table(row, "0"))
            moved = self.op("xor", alone, 1)
            which = self.op("xor", known(row, State.CURRENT), moved)
            done = self.op("add", known(row, State.DONE), 1)
            for place, word in zip(State, (done, which, moved), strict=True):
                e.line(f"store i64 {word}, ptr {state(row, place)}")

        def moved(unit: str, last: bool) -> None:
            row, block, start, stop = bounds(unit)
            moves = self.e.let(f"icmp ne i64 {known(row, State.MOVED)}, 0")
            now = known(row, State.CURRENT)

            def all_of_them() -> None:
                before = array(row, self.op("xor", now, 1))
                by = shift(self.op("sub", known(row, State.DONE), 1))
                target = array(row, now)
                if last:
                    first = self.op("mul", row, rows.n)
                    target = self.e.let(f"getelementptr i32, ptr {self.result}, i64 {first}")
                self.move(before, target, start, stop, by, table(row, block), last)

            self.e.branch(moves, all_of_them)
            if last:
                stay = self.e.let(f"xor i1 {moves}, true")
                self.e.branch(stay, lambda: self.places(row, array(row, now), start, stop))

        self.function("kernel_keys", keys)
        self.function("kernel_count", count)
        self.function("kernel_begin", begin)
        self.function("kernel_move", lambda unit: moved(unit, False))
        self.function("kernel_last", lambda unit: moved(unit, True))
        units, all_ = rows.outer * rows.blocks, rows.outer * rows.n
        launches = [Launch("kernel_keys", units, 2 * all_)]
        for number in range(rows.passes):
            launches += [
                Launch("kernel_count", units, 2 * all_),
                Launch("kernel_begin", rows.outer, rows.outer * self.size * rows.blocks // 4),
                Launch(
                    f"kernel_{'last' if number == rows.passes - 1 else 'move'}", units, 4 * all_
                ),
            ]
        return self.rendered(launches)

    def begins(self, tables: str) -> str:
        """Counts of all blocks become the places where each block's digits begin.

        The result is 1 if one digit has every element: then nothing needs to move.
        """
        e, rows, lanes = self.e, self.rows, 16
        kind = f"<{lanes} x i32>"
        total = e.let(f"getelementptr i32, ptr {tables}, i64 {rows.blocks * self.size}")

        def of_block(block: str, index: str) -> str:
            place = self.op("add", self.op("mul", block, self.size), index)
            return e.let(f"getelementptr i32, ptr {tables}, i64 {place}")

        def add_up(index: str, _: list[str]) -> list[str]:
            def one(block: str, carried: list[str]) -> list[str]:
                own = e.let(f"load {kind}, ptr {of_block(block, index)}, align 4")
                return [e.let(f"add {kind} {carried[0]}, {own}")]

            (found,) = e.loop("0", str(rows.blocks), 1, [(kind, "zeroinitializer")], one)
            at = e.let(f"getelementptr i32, ptr {total}, i64 {index}")
            e.line(f"store {kind} {found}, ptr {at}, align 4")
            return []

        def running(index: str, carried: list[str]) -> list[str]:
            at = e.let(f"getelementptr i32, ptr {total}, i64 {index}")
            own = e.let(f"load i32, ptr {at}")
            e.line(f"store i32 {carried[0]}, ptr {at}")
            every = e.let(f"zext i1 {self.is_all(own)} to i64")
            return [e.let(f"add i32 {carried[0]}, {own}"), self.op("or", carried[1], every)]

        def spread(index: str, _: list[str]) -> list[str]:
            def one(block: str, carried: list[str]) -> list[str]:
                at = of_block(block, index)
                own = e.let(f"load {kind}, ptr {at}, align 4")
                e.line(f"store {kind} {carried[0]}, ptr {at}, align 4")
                return [e.let(f"add {kind} {carried[0]}, {own}")]

            at = e.let(f"getelementptr i32, ptr {total}, i64 {index}")
            first = e.let(f"load {kind}, ptr {at}, align 4")
            e.loop("0", str(rows.blocks), 1, [(kind, first)], one)
            return []

        e.loop("0", str(self.size), lanes, [], add_up)
        _, alone = e.loop("0", str(self.size), 1, [("i32", "0"), ("i64", "0")], running)
        e.loop("0", str(self.size), lanes, [], spread)
        return alone
