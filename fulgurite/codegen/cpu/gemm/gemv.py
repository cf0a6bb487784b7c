"""GEMV: one row times a matrix that streams by once, as dot products or as sums of rows (axpy).

In: the registers. Out: the text of a module whose function adds products to a row of sums.
`gemv_dot` has columns that memory has along k, one after the other, as prefetching likes it best,
or a few at a time where they are so short that their sums would wait, or so long that x leaves L1
meanwhile; lanes run along k and are summed in an order that depends on nothing else. `gemv_axpy`
has rows of k: of a panel of few columns all of k with accumulators in registers, else some rows
at a time and each for as long as it goes, since short pieces of rows are not prefetched. A few
steps of float32 are summed by themselves, and those sums in float64: errors do not grow with the
depth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from ....core.dtype import DType, float32, float64, int64
from ..llvm.convert import load_row, load_value, memory_dtype, store_value
from ..llvm.emitter import Val, scalar_type
from ..loops.function import FunctionBuilder, Numbers
from ..spelling import cast
from ..tiling import GEMM
from .microkernel import (
    Module,
    Registers,
    dot_declared,
    library_module,
    multiplied,
    shuffle,
    vector_of,
)
from .widen import widen

GEMV = "ptr, ptr, i64, ptr, i64, i64, i1"  # types of both functions
_UNROLL, _SUMS_COLUMNS, _CHAIN = GEMM.gemv_unroll, GEMM.gemv_sums_columns, GEMM.gemv_chain_steps
_ROWS, _ROWS_AT_ONCE = GEMM.gemv_chain_rows, GEMM.gemv_rows_at_once


@lru_cache(maxsize=32)
def gemv_dot(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr x, ptr B, i64 stride, ptr C, i64 depth, i64 columns, i1 first)`: one row x times
    columns that memory has along k, `stride` apart. Lanes run along k, so B streams by once."""
    row = _Row(registers, memories)
    f, e, width, kind = row.f, row.f.e, registers.width, vector_of(registers)
    rest = e.let(f"urem i64 %depth, {width}")
    whole, mask = f.sub("%depth", rest), f.tail(rest)

    def some(column: str, count: int, vectors: int) -> list[str]:
        """Some columns, each with so many accumulators along k."""
        starts = [row.at("%B", f.mul(f.add(column, str(j)), "%bs"), 1) for j in range(count)]
        block = vectors * width

        def step(k: str, sums: list[str], masked: bool) -> list[str]:
            def vector(memory: str, which: int) -> str:
                return row.read(row.at(memory, k, which), which, mask if masked else None)

            x = vector("%A", 0)
            found = zip(starts, sums, strict=True)
            return [e.let(multiplied(registers, x, vector(b, 1), c, e.let)) for b, c in found]

        def steps(k: str, sums: list[str]) -> list[str]:
            found = []
            for v in range(vectors):
                found += step(f.add(k, str(v * width)), sums[v * count : (v + 1) * count], False)
            return found

        def piece(k: str, totals: list[str]) -> list[str]:
            end = f.least(f.add(k, str(_CHAIN * block)), blocks)
            return joined(totals, e.loop(k, end, block, zeros * vectors, steps))

        def joined(totals: list[str], sums: list[str]) -> list[str]:
            while len(sums) > count:  # the upper half onto the lower one
                half = len(sums) // 2
                pairs = zip(sums[:half], sums[half:], strict=True)
                sums = [row.added(*pair, kind) for pair in pairs]
            parts = [part for total in sums for part in row.widened(total)]
            return [row.added(*pair) for pair in zip(totals, parts, strict=True)]

        zeros = [(kind, "zeroinitializer")] * count
        blocks = f.sub(whole, e.let(f"urem i64 {whole}, {block}"))
        start = [(row.wide, "zeroinitializer")] * (count * row.parts)
        totals = e.loop("0", blocks, _CHAIN * block, start, piece)

        def rest(k: str, totals: list[str]) -> list[str]:  # once, if there is any
            left = e.loop(k, whole, width, zeros, lambda k, now: step(k, now, False))
            return joined(totals, step(whole, left, True))

        known = [(row.wide, total) for total in totals]
        totals = e.loop(blocks, "%depth", "%depth", known, rest)
        each = [totals[j * row.parts : (j + 1) * row.parts] for j in range(count)]
        row.put_sums(each, row.at("%C", column))
        return []

    def in_turn() -> None:
        e.loop("0", "%columns", 1, [], lambda column, _: some(column, 1, 2))

    def together() -> None:
        many = f.sub("%columns", e.let(f"urem i64 %columns, {_UNROLL}"))
        e.loop("0", many, _UNROLL, [], lambda column, _: some(column, _UNROLL, 1))
        e.loop(many, "%columns", 1, [], lambda column, _: some(column, 1, 1))

    # alone: one stream, columns long enough for it, and x stays in L1 beside them
    bytes_ = sum(memory_dtype(memory).itemsize for memory in memories)
    above = f.sub("%depth", str(_UNROLL * width))
    most = GEMM.l1_bytes // 2 // bytes_ - _UNROLL * width
    alone = e.let(f"icmp ule i64 {above}, {most}")
    alone = e.let(f"and i1 {alone}, {e.let('icmp eq i64 %bs, %depth')}")
    e.branch(alone, in_turn)
    e.branch(e.let(f"xor i1 {alone}, true"), together)
    return row.module("gemv_dot")


@lru_cache(maxsize=32)
def gemv_axpy(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr x, ptr B, i64 stride, ptr C, i64 depth, i64 columns, i1 first)`: one row x times
    rows of B, `stride` apart. Panels of few columns have their accumulators in registers; both
    forms add in the same order, so that packing the matrix changes no bit."""
    row = _Row(registers, memories)
    e, most = row.f.e, registers.width * _panel_vectors(registers)[0]
    narrow = e.let(f"icmp ule i64 %columns, {most}")
    e.branch(narrow, lambda: _by_columns(row))
    e.branch(e.let(f"xor i1 {narrow}, true"), lambda: _by_rows(row))
    return row.module("gemv_axpy")


def _by_rows(row: _Row) -> None:
    """Sums of some rows at a time, each for as long as it goes, with totals in scratch."""
    f, e, registers = row.f, row.f.e, row.registers
    totals = f.scratch("totals", scalar_type(row.long), str(_SUMS_COLUMNS))
    partials = f.scratch("partials", row.inner, str(_SUMS_COLUMNS))
    zero, kind = "zeroinitializer", vector_of(registers)

    def places(step: str) -> list[str]:
        parts = [f.add(step, str(p * registers.width // row.parts)) for p in range(row.parts)]
        long = scalar_type(row.long)
        return [e.let(f"getelementptr {long}, ptr {totals}, i64 {p}") for p in parts]

    def known(step: str) -> list[str]:
        return [e.let(f"load {row.wide}, ptr {place}") for place in places(step)]

    def keep(step: str, parts: list[str]) -> None:
        for part, place in zip(parts, places(step), strict=True):
            e.line(f"store {row.wide} {part}, ptr {place}")

    def flush(step: str, total: str) -> None:
        pairs = zip(known(step), row.widened(total), strict=True)
        keep(step, [row.added(*pair) for pair in pairs])

    def chunk(column: str, _: list[str]) -> list[str]:
        count = f.least(f.sub("%columns", column), str(_SUMS_COLUMNS))
        goal = row.at("%C", column)

        def product(x: str, source: str, step: str, total: str) -> str:
            here = row.read(row.at(source, step, 1), 1, f.mask)
            return e.let(multiplied(registers, x, here, total, e.let))

        def source(k: str) -> str:
            return row.at("%B", f.add(column, f.mul(k, "%bs")), 1)

        def rows(k: str, _: list[str]) -> list[str]:
            for first in range(0, _ROWS, _ROWS_AT_ONCE):
                group(k, range(first, min(first + _ROWS_AT_ONCE, _ROWS)))
            return []

        def group(k: str, which: range) -> None:
            steps = [f.add(k, str(i)) for i in which]
            spread = [row.spread(step) for step in steps]
            sources = [source(step) for step in steps]

            def vector(step: str) -> None:
                partial = e.let(f"getelementptr {row.inner}, ptr {partials}, i64 {step}")
                total = e.let(f"load {kind}, ptr {partial}") if which.start else zero
                for x, memory in zip(spread, sources, strict=True):
                    total = product(x, memory, step, total)
                if which.stop == _ROWS:
                    flush(step, total)
                else:
                    e.line(f"store {kind} {total}, ptr {partial}")

            f.lanes(0, "0", count, [], vector)

        def rest(step: str) -> None:
            def one(k: str, now: list[str]) -> list[str]:
                return [product(row.spread(k), source(k), step, now[0])]

            flush(step, *e.loop(last, "%depth", 1, [(kind, zero)], one))

        def finish(step: str) -> None:
            row.put_row(row.narrowed(known(step)), row.at(goal, step))

        last = f.sub("%depth", e.let(f"urem i64 %depth, {_ROWS}"))
        f.lanes(0, "0", count, [], lambda step: keep(step, [zero] * row.parts))
        e.loop("0", last, _ROWS, [], rows)
        some = e.let(f"icmp ult i64 {last}, %depth")
        e.branch(some, lambda: f.lanes(0, "0", count, [], rest))
        f.lanes(0, "0", count, [], finish)
        return []

    e.loop("0", "%columns", _SUMS_COLUMNS, [], chunk)


def _panel_vectors(registers: Registers) -> list[int]:
    """Vectors of columns whose accumulators registers hold, the most first: a panel's among them,
    so that all of it streams by once."""
    most = min(GEMM.gemv_vectors, registers.target.lanes // 2)
    powers = [1 << n for n in range(1, most.bit_length())]
    return sorted({most, *powers, min(most, registers.vectors)} - {1}, reverse=True)


def _by_columns(row: _Row) -> None:
    """Sums of rows with accumulators in registers: blocks of several vectors, and what is left."""
    f, e, width = row.f, row.f.e, row.registers.width
    kind = vector_of(row.registers)

    def block(column: str, vectors: int) -> None:
        starts = [str(v * width) for v in range(vectors)]

        def step(k: str, sums: list[str]) -> list[str]:
            x = row.spread(k)
            source = row.at("%B", f.add(column, f.mul(k, "%bs")), 1)
            here = [row.read(row.at(source, start, 1), 1, f.mask) for start in starts]
            return [e.let(multiplied(row.registers, x, b, c, e.let))
                    for b, c in zip(here, sums, strict=True)]  # fmt: skip

        def piece(k: str, totals: list[str]) -> list[str]:
            end = f.least(f.add(k, str(_ROWS)), "%depth")
            zeros = [(kind, "zeroinitializer")] * vectors
            sums = e.loop(k, end, 1, zeros, step)
            parts = [part for total in sums for part in row.widened(total)]
            return [row.added(*pair) for pair in zip(totals, parts, strict=True)]

        nothing = [(row.wide, "zeroinitializer")] * (vectors * row.parts)
        totals = e.loop("0", "%depth", _ROWS, nothing, piece)
        for v, start in enumerate(starts):
            total = row.narrowed(totals[v * row.parts : (v + 1) * row.parts])
            row.put_row(total, row.at("%C", f.add(column, start)))

    done = "0"
    for vectors in _panel_vectors(row.registers):
        left = f.sub("%columns", done)
        end = f.sub("%columns", e.let(f"urem i64 {left}, {vectors * width}"))
        e.loop(done, end, vectors * width, [], partial(_nothing, block, vectors))
        done = end
    f.lanes(0, done, "%columns", [], lambda offset: block(f.add(done, offset), 1))


def _nothing(block: Callable[[str, int], None], vectors: int, at: str, _: list[str]) -> list[str]:
    block(at, vectors)
    return []


class _Row:
    """What both share: a function of one row, and sums of many numbers that lose no digits.

    Sums of floats are added up in float64; `wide` is the type of such a vector, and `parts` how
    many of them the lanes of one take.
    """

    def __init__(self, registers: Registers, memories: tuple[DType, DType]) -> None:
        self.registers, self.inner = registers, scalar_type(registers.dtype)
        self.memories = memories
        self.f = FunctionBuilder("SELF", Numbers([]), [], registers.width, False)
        is_short = registers.dtype is float32
        self.long, self.parts = (float64, 2) if is_short else (registers.dtype, 1)
        self.lanes = registers.width // self.parts
        self.wide = f"<{self.lanes} x {scalar_type(self.long)}>"

    def at(self, memory: str, place: str, which: int | None = None) -> str:
        """The address of a sum, or of a number of one of the operands."""
        kind = self.inner
        if which is not None:
            kind = scalar_type(memory_dtype(self.memories[which]))
        return self.f.e.let(f"getelementptr {kind}, ptr {memory}, i64 {place}")

    def read(self, place: str, which: int, mask: str | None) -> str:
        """A vector of an operand, as numbers that are multiplied."""
        memory, e = self.memories[which], self.f.e
        return widen(e, load_row(e, place, memory_dtype(memory), mask), memory, self.dtype)

    def number(self, place: str) -> Val:
        """A number of the left operand."""
        memory, e = self.memories[0], self.f.e
        found = load_value(e, place, Val("0", int64), memory, None, None, "one")
        return cast(e, found, memory, self.dtype)

    def spread(self, step: str) -> str:
        """A number of the left operand in all lanes."""
        return self.f.e.splat(self.number(self.at("%A", step, 0))).text

    @property
    def dtype(self) -> DType:
        """What is accumulated in."""
        return self.registers.dtype

    def added(self, a: str, b: str, kind: str = "") -> str:
        """a + b."""
        how = "fadd" if self.registers.dtype.kind == "f" else "add"
        return self.f.e.let(f"{how} {kind or self.wide} {a}, {b}")

    def widened(self, vector: str) -> list[str]:
        """A vector of sums as wide ones."""
        if self.parts == 1:
            return [vector]
        e, kind = self.f.e, vector_of(self.registers)
        found = []
        for part in range(self.parts):
            picks = list(range(part * self.lanes, (part + 1) * self.lanes))
            half = e.let(shuffle(vector, "poison", kind, picks))
            found.append(e.let(f"fpext <{self.lanes} x {self.inner}> {half} to {self.wide}"))
        return found

    def narrowed(self, parts: list[str]) -> str:
        """Wide sums as one vector."""
        if self.parts == 1:
            return parts[0]
        e, kind = self.f.e, f"<{self.lanes} x {self.inner}>"
        halves = [e.let(f"fptrunc {self.wide} {part} to {kind}") for part in parts]
        return e.let(shuffle(halves[0], halves[1], kind, list(range(self.registers.width))))

    def put_row(self, total: str, goal: str) -> None:
        """A vector of sums, put at a place or added to what is there."""
        e, f, dtype, zero = self.f.e, self.f, self.registers.dtype, Val("0", int64)

        def store(text: str) -> None:
            store_value(e, goal, zero, Val(text, dtype, True), dtype, f.mask, "row")

        def added() -> str:
            known = load_value(e, goal, zero, dtype, None, f.mask, "row").text
            return self.added(known, total, vector_of(self.registers))

        e.branch("%first", lambda: store(total))
        e.branch(e.let("xor i1 %first, true"), lambda: store(added()))

    def put_sums(self, columns: list[list[str]], goal: str) -> None:
        """The sums of all lanes of columns beside each other, put at a place or added to it."""
        e, size, each, dtype = self.f.e, self.lanes, self.lanes, scalar_type(self.long)
        totals = [parts[0] if self.parts == 1 else self.added(*parts) for parts in columns]
        while each > 1:  # of a column: the upper half onto the lower one, of two vectors at once
            kind = f"<{size} x {dtype}>"
            pairs = [totals[n : n + 2] for n in range(0, len(totals), 2)]
            reach, half = size * len(pairs[0]), each // 2
            lower = [lane for lane in range(reach) if lane % each < half]
            size, totals = len(lower), []
            for pair in pairs:
                one, other = pair[0], pair[1] if pair[1:] else "poison"
                parts = [e.let(shuffle(one, other, kind, [lane + more for lane in lower]))
                         for more in (0, half)]  # fmt: skip
                totals.append(self.added(parts[0], parts[1], f"<{size} x {dtype}>"))
            each = half
        for n, total in enumerate(totals):
            self.put_columns(total, size, self.at(goal, str(n * size)))

    def put_columns(self, total: str, count: int, goal: str) -> None:
        """The sums of some columns."""
        e, kind = self.f.e, f"<{count} x {self.inner}>"
        if self.parts > 1:
            total = e.let(f"fptrunc <{count} x double> {total} to {kind}")
        known = e.let(f"load {kind}, ptr {goal}, align 1")
        found = e.let(f"select i1 %first, {kind} {total}, {kind} {self.added(known, total, kind)}")
        e.line(f"store {kind} {found}, ptr {goal}, align 1")

    def module(self, stem: str) -> Module:
        """The function as a module."""
        arguments = (
            "ptr noalias %A, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %depth, i64 %columns, "
            "i1 %first"
        )
        stem = f"{stem}_{self.registers.dtype}"
        return library_module(stem, self.f, arguments, *dot_declared(self.registers))
