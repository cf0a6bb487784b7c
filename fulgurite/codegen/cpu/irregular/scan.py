"""Scans (prefix sums) over memory: rows of numbers become rows of their running folds.

In: where the sources and the result are, as (outer, n, inner) in row-major order, the fold's name
and direction. Out: a `KernelText`. Along contiguous rows a vector's prefixes are made in registers,
by doubling steps, and joined with what came before; a long row is cut in blocks whose folds are
made first, so that blocks run on any thread. Where the axis is not the last, lanes are columns.
Float sums run in float64, whatever the dtype; float products and s = a*s + b go one by one, in
order and in the dtype they compute in, as the reference does. Bits depend on shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.dtype import DType, bool_, float64, int64
from ....core.lazy_dataclass import dataclass
from ...common.api import KernelText, Launch
from ..compose import ARGUMENTS
from ..llvm.convert import load_value, store_value
from ..llvm.emitter import Emitter, Val, computing
from ..llvm.maths import select
from ..spelling import combine, identity
from ..target import Target
from ..tiling import CPU


@dataclass(frozen=True, slots=True)
class Line:
    """What is scanned: the fold, the direction, the dtype and the sizes."""

    name: str
    reverse: bool
    dtype: DType
    outer: int
    n: int
    inner: int

    @property
    def wide(self) -> DType:
        """The dtype in which it runs."""
        dtype = computing(self.dtype)
        return float64 if self.name == "add" and dtype.kind == "f" else dtype

    @property
    def in_order(self) -> bool:
        """True if it must be sequential."""
        return self.name == "affine" or (self.name == "mul" and self.dtype.kind == "f")


def scan(line: Line, target: Target) -> KernelText:
    """Params: the sources (factors and terms of an affine scan), the result, folds of blocks."""
    work = _Scan(line, target.lanes)
    if line.inner > 1:
        return work.columns()
    if line.in_order:
        return work.one_by_one()
    if line.n < CPU.scan.long_elements or line.outer >= CPU.scan.enough_rows:
        return work.rows()
    return work.blocks()


class _Scan:
    def __init__(self, line: Line, lanes: int) -> None:
        self.line, self.lanes = line, lanes
        self.sources = 2 if line.name == "affine" else 1
        self.texts: list[str] = []
        self.declared: dict[str, str] = {}
        self.launches: list[Launch] = []

    # --- functions -------------------------------------------------------------------------------

    def function(self, symbol: str, units: int, work: int, body: Callable[[str], None]) -> None:
        """A launch whose body does one unit."""
        e = self.e = Emitter(self.lanes)
        self.pointers = []
        for number in range(self.sources + 2):
            place = e.let(f"getelementptr ptr, ptr %params, i64 {number}")
            self.pointers.append(e.let(f"load ptr, ptr {place}"))

        def unit(index: str, _: list[str]) -> list[str]:
            body(index)
            return []

        e.loop("%first", "%last", 1, [], unit)
        e.line("ret void")
        text = "\n".join(e.lines)
        self.texts.append(f"define void @{symbol}({ARGUMENTS}) {{\nentry:\n{text}\n}}")
        self.declared |= e.declared
        self.launches.append(Launch(symbol, units, work))

    def rendered(self) -> KernelText:
        text = "\n".join([*self.texts, *self.declared.values()]) + "\n"
        return KernelText(text, tuple(self.launches))

    # --- values ----------------------------------------------------------------------------------

    def load(self, source: int, place: str, mask: str | None, how: str) -> Val:
        """Values in the dtype in which the scan runs."""
        e, line = self.e, self.line
        value = load_value(e, self.pointers[source], Val(place, int64), line.dtype, None, mask, how)
        if value.dtype is line.wide:
            return value
        return Val(e.let(f"fpext {e.typed(value)} to {e.type_of(line.wide, value.vector)}"),
                   line.wide, value.vector)  # fmt: skip

    def store(self, place: str, value: Val, mask: str | None, how: str) -> None:
        e, line = self.e, self.line
        goal = computing(line.dtype)
        if value.dtype is not goal:
            value = Val(e.let(f"fptrunc {e.typed(value)} to {e.type_of(goal, value.vector)}"),
                        goal, value.vector)  # fmt: skip
        store_value(e, self.pointers[self.sources], Val(place, int64), value, line.dtype, mask, how)

    def join(self, a: Val, b: Val) -> Val:
        return combine(self.e, self.line.name, a, b)

    def start(self, vector: bool) -> Val:
        """What a scan begins with."""
        if self.line.name == "affine":
            return self.e.const(0.0 if self.line.wide.kind == "f" else 0, self.line.wide, vector)
        return identity(self.e, self.line.name, self.line.wide, vector)

    def at_end(self, index: str, size: str) -> str:
        """The place of step number `index` in the direction of the scan."""
        if not self.line.reverse:
            return index
        last = self.e.let(f"sub i64 {size}, 1")
        return self.e.let(f"sub i64 {last}, {index}")

    def add(self, a: str, b: str) -> str:
        return self.e.let(f"add i64 {a}, {b}")

    def mul(self, a: str, b: str | int) -> str:
        return self.e.let(f"mul i64 {a}, {b}")

    # --- rows ------------------------------------------------------------------------------------

    def rows(self) -> KernelText:
        """A unit scans a whole row."""
        line = self.line

        def unit(row: str) -> None:
            base = self.mul(row, line.n)
            self.stretch(base, str(line.n), self.start(False))

        self.function("kernel_rows", line.outer, line.outer * line.n * 4, unit)
        return self.rendered()

    def stretch(self, base: str, count: str, before: Val) -> None:
        """Scan `count` numbers from a place on (or down to it), after a value."""
        e, lanes, line = self.e, self.lanes, self.line
        kind = e.type_of(line.wide, False)
        rest = e.let(f"urem i64 {count}, {lanes}")
        whole = e.let(f"sub i64 {count}, {rest}")

        def place(index: str) -> str:
            if not line.reverse:
                return self.add(base, index)
            left = e.let(f"sub i64 {count}, {index}")
            return self.add(base, e.let(f"sub i64 {left}, {lanes}"))

        def vector(index: str, carried: list[str]) -> list[str]:
            at = place(index)
            found = self.prefixes(self.load(0, at, None, "row"))
            carry = Val(carried[0], line.wide)
            self.store(at, self.join(e.splat(carry), found), None, "row")
            return [self.join(carry, self.last_lane(found)).text]

        (carry,) = e.loop("0", whole, lanes, [(kind, before.text)], vector)

        def tail() -> None:
            mask = self.first_lanes(rest)
            at = base if line.reverse else self.add(base, whole)
            value = select(e, Val(mask, bool_, True), self.load(0, at, mask, "row"),
                           self.start(True))  # fmt: skip
            found = self.join(e.splat(Val(carry, line.wide)), self.prefixes(value))
            self.store(at, found, mask, "row")

        e.branch(e.let(f"icmp ne i64 {rest}, 0"), tail)

    def first_lanes(self, count: str) -> str:
        e = self.e
        numbers = ", ".join(f"i64 {i}" for i in range(self.lanes))
        limit = e.splat(Val(count, int64))
        return e.let(f"icmp ult <{self.lanes} x i64> <{numbers}>, {limit.text}")

    def prefixes(self, value: Val) -> Val:
        """Each lane joined with all lanes before it, in the direction of the scan."""
        e, lanes = self.e, self.lanes
        kind = e.type_of(value.dtype, True)
        empty = self.start(True).text
        step = 1
        while step < lanes:
            moved = [i + step if self.line.reverse else i - step for i in range(lanes)]
            picks = ", ".join(f"i32 {i if 0 <= i < lanes else lanes}" for i in moved)
            other = e.let(
                f"shufflevector {kind} {value.text}, {kind} {empty}, <{lanes} x i32> <{picks}>"
            )
            value = self.join(Val(other, value.dtype, True), value)
            step *= 2
        return value

    def last_lane(self, value: Val) -> Val:
        lane = 0 if self.line.reverse else self.lanes - 1
        kind = self.e.type_of(value.dtype, True)
        return Val(self.e.let(f"extractelement {kind} {value.text}, i64 {lane}"), value.dtype)

    # --- long rows -------------------------------------------------------------------------------

    def blocks(self) -> KernelText:
        """Folds of blocks, then their own scan, then every block after the one before."""
        line, length = self.line, CPU.scan.block_elements
        count = -(-line.n // length)
        kind = self.scalar()
        work = line.outer * line.n

        def bounds(unit: str) -> tuple[str, str]:
            e = self.e
            block = e.let(f"urem i64 {unit}, {count}")
            row = e.let(f"udiv i64 {unit}, {count}")
            start = self.mul(block, length)
            left = e.let(f"sub i64 {line.n}, {start}")
            size = e.call("i64", "llvm.smin.i64", f"i64 {left}", f"i64 {length}")
            return self.add(self.mul(row, line.n), start), size

        def folded(unit: str) -> None:
            base, size = bounds(unit)
            at = self.e.let(f"getelementptr {kind}, ptr {self.pointers[-1]}, i64 {unit}")
            self.e.line(f"store {kind} {self.fold(base, size).text}, ptr {at}, align 8")

        def joined(row: str) -> None:
            e, base = self.e, self.mul(row, count)

            def one(index: str, carried: list[str]) -> list[str]:
                place = self.add(base, self.at_end(index, str(count)))
                at = e.let(f"getelementptr {kind}, ptr {self.pointers[-1]}, i64 {place}")
                own = Val(e.let(f"load {kind}, ptr {at}, align 8"), line.wide)
                e.line(f"store {kind} {carried[0]}, ptr {at}, align 8")
                return [self.join(Val(carried[0], line.wide), own).text]

            e.loop("0", str(count), 1, [(self.scalar(), self.start(False).text)], one)

        def scanned(unit: str) -> None:
            base, size = bounds(unit)
            at = self.e.let(f"getelementptr {kind}, ptr {self.pointers[-1]}, i64 {unit}")
            before = Val(self.e.let(f"load {kind}, ptr {at}, align 8"), line.wide)
            self.stretch(base, size, before)

        self.function("kernel_folds", line.outer * count, work, folded)
        self.function("kernel_joined", line.outer, line.outer * count * 4, joined)
        self.function("kernel_scanned", line.outer * count, work * 4, scanned)
        return self.rendered()

    def scalar(self) -> str:
        """The type of a fold; a bool in memory is a byte's lowest bit."""
        return Emitter(self.lanes).type_of(self.line.wide, False)

    def fold(self, base: str, count: str) -> Val:
        """All numbers of a block joined, by lanes."""
        e, lanes, line = self.e, self.lanes, self.line
        kind = e.type_of(line.wide, True)
        rest = e.let(f"urem i64 {count}, {lanes}")
        whole = e.let(f"sub i64 {count}, {rest}")

        def vector(index: str, carried: list[str]) -> list[str]:
            value = self.load(0, self.add(base, index), None, "row")
            return [self.join(Val(carried[0], line.wide, True), value).text]

        (total,) = e.loop("0", whole, lanes, [(kind, self.start(True).text)], vector)

        def last(index: str, carried: list[str]) -> list[str]:
            value = self.load(0, self.add(base, index), None, "one")
            return [self.join(Val(carried[0], line.wide), value).text]

        found = self.last_lane(self.prefixes(Val(total, line.wide, True)))
        (every,) = e.loop(whole, count, 1, [(e.type_of(line.wide, False), found.text)], last)
        return Val(every, line.wide)

    # --- one by one, and columns -----------------------------------------------------------------

    def step(self, state: Val, place: str, mask: str | None, how: str) -> Val:
        """The next state, from the numbers at a place."""
        first = self.load(0, place, mask, how)
        if self.line.name != "affine":
            return self.join(state, first)
        term = self.load(1, place, mask, how)
        return combine(self.e, "add", combine(self.e, "mul", first, state), term)

    def one_by_one(self) -> KernelText:
        """A unit goes along a row, number after number."""
        line = self.line

        def unit(row: str) -> None:
            base = self.mul(row, line.n)
            self.walk(base, 1, None, "one", 1)

        self.function("kernel_line", line.outer, line.outer * line.n * 8, unit)
        return self.rendered()

    def walk(self, base: str, stride: int, mask: str | None, how: str, width: int) -> None:
        """Go along the axis from a place on, `width` vectors of columns (or one number) wide."""
        e, line = self.e, self.line
        vector = how != "one"
        kind = e.type_of(line.wide, vector)

        def step(index: str, carried: list[str]) -> list[str]:
            place = self.add(base, self.mul(self.at_end(index, str(line.n)), stride))
            places = [place] + [self.add(place, str(i * self.lanes)) for i in range(1, width)]
            found = [
                self.step(Val(c, line.wide, vector), p, mask, how)
                for c, p in zip(carried, places, strict=True)
            ]
            for at, value in zip(places, found, strict=True):
                self.store(at, value, mask, how)
            return [value.text for value in found]

        e.loop("0", str(line.n), 1, [(kind, self.start(vector).text)] * width, step)

    def columns(self) -> KernelText:
        """A unit goes along the axis with some columns."""
        line, lanes, vectors = self.line, self.lanes, CPU.scan.column_vectors
        wide = vectors * lanes
        chunks = -(-line.inner // wide)

        def unit(index: str) -> None:
            e = self.e
            chunk = e.let(f"urem i64 {index}, {chunks}")
            row = e.let(f"udiv i64 {index}, {chunks}")
            start = self.mul(chunk, wide)
            base = self.add(self.mul(row, line.n * line.inner), start)
            left = e.let(f"sub i64 {line.inner}, {start}")
            full = e.let(f"icmp sge i64 {left}, {wide}")
            e.branch(full, lambda: self.walk(base, line.inner, None, "row", vectors))

            def part() -> None:
                stop = e.call("i64", "llvm.smin.i64", f"i64 {left}", f"i64 {wide}")

                def some(column: str, _: list[str]) -> list[str]:
                    count = e.let(f"sub i64 {stop}, {column}")
                    mask = self.first_lanes(count)
                    self.walk(self.add(base, column), line.inner, mask, "row", 1)
                    return []

                e.loop("0", stop, lanes, [], some)

            e.branch(e.let(f"icmp slt i64 {left}, {wide}"), part)

        count = line.outer * line.n * line.inner
        self.function("kernel_columns", line.outer * chunks, count * 2, unit)
        return self.rendered()


def block_bytes(line: Line) -> int:
    """Room for the folds of blocks of all rows."""
    return line.outer * -(-line.n // CPU.scan.block_elements) * 8
