"""Packing: an operand of a GEMM, evaluated into the layout that micro-kernels read.

In: an operand's part of the kernel and a block of it (some of its own places, some of k). Out:
lines that fill a tile: the left operand as rows of k, `stride` apart; the right one as panels of
[k][columns of a register block], `depth` rows each. The operand's whole expression is evaluated, so
casts, pads, gathers and maps cost no pass of their own, and a convolution's image is never unfolded
in memory. Lanes run along the memory; where that is not the way the tile is laid out, squares are
transposed by the library.
"""

from __future__ import annotations

from ....core.dtype import int32
from ....core.lazy_dataclass import dataclass
from ....core.node import Node
from ....core.ops.index import LOAD
from ....kernel.contract.analysis import Line
from ....kernel.contract.problem import GemmProblem, Operand, operand
from ..llvm.emitter import Val, scalar_type
from ..loops.function import FunctionBuilder
from ..spelling import cast
from ..tiling import GEMM
from .microkernel import Registers, transpose


def side(c: GemmProblem, name: str, as_bytes: bool = False) -> Operand:
    """One of the two operands of a GEMM, as vectors of this machine would read it."""
    return operand(c, name, GEMM.min_run_elements, as_bytes)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a packed tile goes: names of values."""

    memory: str
    stride: str  # between rows of the left operand
    depth: str  # rows of a panel of the right operand
    width: str = ""  # of rows of the right operand where it is not put into panels


@dataclass(frozen=True, slots=True)
class Span:
    """A block of an operand: names of where it begins and how long it is, own and k."""

    own: str
    owned: str
    k: str
    depth: str


class Packer:
    """Writes an operand's packing into a frame."""

    def __init__(
        self, f: FunctionBuilder, s: Operand, registers: Registers, free: dict[Node, frozenset[int]]
    ):
        self.f, self.s, self.registers, self.free = f, s, registers, free
        self.inner = scalar_type(registers.dtype)
        self.kind = f"<{f.e.lanes} x {self.inner}>"

    def pack(self, span: Span, to: Target) -> None:
        """Fill a tile; the batch is open."""
        f = self.f
        f.part = self.s.part
        before, f.e.opaque_steps = f.e.opaque_steps, False  # addresses are most of the work here
        if self.s.is_transposed:
            self.transposed(span, to)
        elif self.s.name == "left" or self.s.k_major:
            self.rows(span, to)
        else:
            self.panels(span, to)
        f.e.opaque_steps = before

    # --- the three ways --------------------------------------------------------------------------

    def rows(self, span: Span, to: Target) -> None:
        """The left operand, lanes along k."""
        f, own, folded = self.f, self.s.own, self.s.part.folded
        starts = f.coordinates(own, span.own), f.coordinates(folded, span.k)

        def row(offset: str) -> None:
            base = f.mul(offset, to.stride)

            def run(at: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    self.put(to.memory, f.add(base, f.add(at, step)))

                f.lanes(folded.axes[-1], first, last, self.fixed(folded), vector, self.loads())

            f.runs(folded, starts[1], span.depth, run)

        f.walk(own, starts[0], span.owned, row)

    def panels(self, span: Span, to: Target) -> None:
        """The right operand, lanes along columns; pieces of a row are put together first."""
        f, own, folded = self.f, self.s.own, self.s.part.folded
        starts = f.coordinates(own, span.own), f.coordinates(folded, span.k)
        whole = len(own.axes) == 1 or bool(to.width)
        wide = self.registers.panel

        def row(k: str) -> None:
            line = f.mul(k, to.width or str(wide))

            def run(at: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    if to.width:
                        self.put(to.memory, f.add(line, f.add(at, step)))
                    elif whole:
                        self.put(to.memory, f.add(line, self.place(step, to)))
                    else:
                        self.put(self.pieces(), f.add(at, step))

                f.lanes(own.axes[-1], first, last, self.fixed(own), vector, self.loads())

            f.runs(own, starts[0], span.owned, run)
            if not whole:
                rest = self.at(self.pieces(), span.owned)
                for column in range(0, wide, f.e.lanes):  # 0: no odd number slows sums
                    place = self.at(rest, str(column))
                    f.e.line(f"store {self.kind} zeroinitializer, ptr {place}, align 4")
                f.e.loop("0", span.owned, wide, [], lambda step, _: copy(step, line))

        def copy(step: str, line: str) -> list[str]:
            source = self.at(self.pieces(), step)  # which ends with a whole panel
            goal = self.at(to.memory, f.add(line, f.mul(step, to.depth)))
            for column in range(0, wide, f.e.lanes):
                found = f.e.let(f"load {self.kind}, ptr {self.at(source, str(column))}, align 4")
                f.e.line(f"store {self.kind} {found}, ptr {self.at(goal, str(column))}, align 4")
            return []

        f.walk(folded, starts[1], span.depth, row)

    def transposed(self, span: Span, to: Target) -> None:
        """Lanes along the other way: squares go through scratch and are transposed."""
        f, own, folded = self.f, self.s.own, self.s.part.folded
        left = self.s.name == "left"
        lined, stepped = (own, folded) if left else (folded, own)
        begin = (span.own, span.k) if left else (span.k, span.own)
        count = (span.owned, span.depth) if left else (span.depth, span.owned)
        starts = f.coordinates(lined, begin[0])
        lanes, wide = f.e.lanes, self.registers.panel
        turn = transpose(self.registers)
        f.e.declare(f"void @{turn.name}(ptr, ptr, i64, i64)", turn.name)
        square = self.square()

        def group(at: str, _: list[str]) -> list[str]:
            many = f.least(f.sub(count[1], at), str(lanes))
            inside = f.coordinates(stepped, f.add(begin[1], at))

            def run(offset: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    def line(number: str) -> None:
                        self.put(square, f.mul(number, str(lanes)))

                    f.walk(stepped, inside, many, line)
                    along = f.add(offset, step)
                    if left:
                        place, stride = f.add(f.mul(along, to.stride), at), to.stride
                    else:
                        place = f.add(f.mul(along, str(wide)), self.place(at, to))
                        stride = str(wide)
                    goal = self.at(to.memory, place)
                    operands = f"ptr {square}, ptr {goal}, i64 {stride}, i64 {lanes}"
                    f.e.line(f"call void @{turn.name}({operands})")

                f.lanes(lined.axes[-1], first, last, self.fixed(lined, stepped), vector)

            f.runs(lined, starts, count[0], run)
            return []

        f.e.loop("0", count[1], lanes, [], group)

    # --- pieces ----------------------------------------------------------------------------------

    def fixed(self, *lines: Line) -> list[Node]:
        """What does not change along the innermost axes of some lines (all axes of later ones)."""
        moving = set(lines[0].inner)
        for line in lines[1:]:
            moving |= set(line.axes) | line.inner | self.s.part.absorbed
        return [n for n in self.s.part.nodes if not self.free[n] & moving]

    def loads(self) -> list[Node]:
        """What it reads at places that no value decides."""
        return [n for n in self.s.part.nodes if n.op is LOAD and not n.src]

    def place(self, column: str, to: Target) -> str:
        """Where a column is in the panels."""
        f = self.f
        inside = f.e.let(f"urem i64 {column}, {self.registers.panel}")
        return f.add(f.mul(f.sub(column, inside), to.depth), inside)

    def at(self, memory: str, place: str) -> str:
        return self.f.e.let(f"getelementptr {self.inner}, ptr {memory}, i64 {place}")

    def put(self, memory: str, place: str) -> None:
        """Evaluate the operand here and put its lanes into a tile."""
        e = self.f.e
        value = cast(e, self.f.value(self.s.root), self.s.root.dtype, self.registers.dtype)
        value = e.splat(value)
        e.line(f"store {self.kind} {value.text}, ptr {self.at(memory, place)}, align 4")

    def pieces(self) -> str:
        """Scratch for one row of the right operand that memory has in pieces, in whole panels."""
        f = self.f
        if "a row in pieces" not in f.read:
            count = f.e.name("n")
            f.entry.append(f"  {count} = add i64 {f.read['row']}, {self.registers.panel}")
            return f.scratch("a row in pieces", self.inner, count)
        return f.read["a row in pieces"]

    def square(self) -> str:
        """Scratch for one square; what is never filled is 0, so that no odd number slows sums."""
        f, lanes = self.f, self.f.e.lanes
        known = "square" in f.read
        found = f.scratch("square", self.inner, str(lanes * lanes))
        if not known:
            for i in range(lanes):
                place = f.e.name("z")
                f.entry.append(
                    f"  {place} = getelementptr {self.inner}, ptr {found}, i64 {i * lanes}"
                )
                f.entry.append(f"  store {self.kind} zeroinitializer, ptr {place}, align 64")
        return found


class BytePacker(Packer):
    """Packs bytes for sums of four products: four steps of k make one number of the tile.

    Rows of the left operand are bytes as they come, signed ones maybe 128 too large
    (`flips`). Panels of the right operand take one step of k at a time; what is after the last step
    is 0.
    """

    def pack(self, span: Span, to: Target) -> None:
        """Fill a tile; the batch is open. Spans and targets count in fours."""
        f, total = self.f, self.f.read["steps"]
        k = f.mul(span.k, "4")
        depth = f.least(f.mul(span.depth, "4"), f.sub(total, k))
        super().pack(Span(span.own, span.owned, k, depth), to)

    def rows(self, span: Span, to: Target) -> None:
        """The left operand, lanes along k."""
        self.inner, self.kind = "i8", f"<{self.f.e.lanes} x i8>"
        super().rows(span, Target(to.memory, self.f.mul(to.stride, "4"), to.depth))

    def panels(self, span: Span, to: Target) -> None:
        """The right operand, lanes along columns."""
        f, own, folded = self.f, self.s.own, self.s.part.folded
        starts = f.coordinates(own, span.own), f.coordinates(folded, span.k)

        def row(k: str) -> None:
            four, byte = f.divided(k, "4")
            line = f.mul(four, str(self.registers.panel))
            bits = f.e.let(f"trunc i64 {f.mul(byte, '8')} to i32")
            new = f.e.let(f"icmp eq i64 {byte}, 0")

            def run(at: str, first: str, last: str) -> None:
                def vector(step: str) -> None:
                    self.join(self.at(to.memory, f.add(line, self.place(f.add(at, step), to))),
                              bits, new)  # fmt: skip

                f.lanes(own.axes[-1], first, last, self.fixed(own), vector)

            f.runs(own, starts[0], span.owned, run)

        f.walk(folded, starts[1], span.depth, row)

    def join(self, place: str, bits: str, new: str) -> None:
        """Put a byte of each lane beside those that are there."""
        e = self.f.e
        value = e.splat(self.f.value(self.s.root)).text
        wide = e.let(f"zext <{e.lanes} x i8> {value} to {self.kind}")
        amount = e.splat(Val(bits, int32)).text
        moved = e.let(f"shl {self.kind} {wide}, {amount}")
        known = e.let(f"load {self.kind}, ptr {place}, align 4")
        none = e.let(f"select i1 {new}, {self.kind} zeroinitializer, {self.kind} {known}")
        if self.f.mask is not None:  # other columns are there already, or never read
            mask = f"<{e.lanes} x i1> {self.f.mask}"
            moved = e.let(f"select {mask}, {self.kind} {moved}, {self.kind} zeroinitializer")
            none = e.let(f"select {mask}, {self.kind} {none}, {self.kind} {known}")
        e.line(
            f"store {self.kind} {e.let(f'or {self.kind} {none}, {moved}')}, ptr {place}, align 4"
        )

    def put(self, memory: str, place: str) -> None:
        """Bytes of the left operand."""
        e = self.f.e
        value = e.splat(self.f.value(self.s.root)).text
        if self.registers.flips:
            high = "<" + ", ".join(["i8 -128"] * e.lanes) + ">"
            value = e.let(f"xor {self.kind} {value}, {high}")
        e.line(f"store {self.kind} {value}, ptr {self.at(memory, place)}, align 1")
