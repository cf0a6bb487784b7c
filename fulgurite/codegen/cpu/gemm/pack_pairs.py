"""Packing of dense bfloat16 operands by pairs along k, as dot-product instructions read them.

In: a side (left or right) and the registers. Out: the text of a module with one function, `void
f(ptr from, i64 step, ptr to, i64 stride, i64 owned, i64 steps)`, in the place of `pack_dense`: two
steps of k make one number of 32 bits of the tile. Steps are counted in numbers of memory, strides
of the tile in pairs; a step that is negative says that memory runs across the packed rows, so that
one text serves all layouts. What is after the last step is 0 on both sides, up to a whole vector of
pairs: 0 times what happens to be there might be NaN.
"""

from __future__ import annotations

from functools import lru_cache

from ....core.dtype import int32
from ..llvm.emitter import Val, ramp
from ..llvm.masked import masked_load
from ..loops.function import FunctionBuilder, Numbers
from .microkernel import Module, Registers, named, transpose

_ARGS = "ptr noalias %from, i64 %given, ptr noalias %to, i64 %stride, i64 %owned, i64 %steps"


@lru_cache(maxsize=32)
def pack_pairs(registers: Registers, name: str) -> Module:
    """The function that packs bfloat16 memory for one side."""
    packer = _PairPacker(registers, name)
    f, left = packer.f, name == "left"
    f.entry.append("  %step = call i64 @llvm.abs.i64(i64 %given, i1 false)")
    f.e.declare("i64 @llvm.abs.i64(i64, i1)", "llvm.abs.i64")
    lies = f.e.let("icmp sge i64 %given, 0")
    f.e.branch(lies, packer.rows if left else packer.panels)
    f.e.branch(f.e.let(f"xor i1 {lies}, true"), lambda: packer.squares(along_k=not left))
    body = "\n".join([*f.entry, *f.e.lines])
    text = f"define void @SELF({_ARGS}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    turn = transpose(registers)
    inside = turn.text.replace("define void", "define internal void")
    text = f"{text}\n{inside}".replace(f"@{turn.name}", "@PARTturn")
    declared = [line for key, line in f.e.declared.items() if key != turn.name]
    return named(f"pack_pairs_{name}", "\n".join([text, *declared]))


class _PairPacker:
    """Writes one packing function; lanes are those of float32, so a vector is as many pairs."""

    def __init__(self, registers: Registers, name: str) -> None:
        self.registers, self.name = registers, name
        self.f = FunctionBuilder("SELF", Numbers([]), [], registers.target.lanes, True)
        self.f.e.opaque_steps = False
        self.lanes = self.f.e.lanes
        self.kind = f"<{self.lanes} x i32>"

    # --- the three ways --------------------------------------------------------------------------

    def rows(self) -> None:
        """Rows that memory has along k: pairs lie there as they are wanted."""
        f = self.f

        def row(own: str, _: list[str]) -> list[str]:
            source = self.number("%from", f.mul(own, "%step"))
            goal = self.pair("%to", f.mul(own, "%stride"))

            def vector(k: str, _: list[str]) -> list[str]:
                found = self.along_k(self.number(source, k), f.sub("%steps", k))
                self.put(found, self.pair(goal, f.e.let(f"lshr i64 {k}, 1")))
                return []

            f.e.loop("0", "%steps", 2 * self.lanes, [], vector)
            return []

        f.e.loop("0", "%owned", 1, [], row)

    def panels(self) -> None:
        """Columns as they lie: two rows of memory at a time, a panel after the other."""
        f, wide = self.f, self.registers.panel

        def row(k: str, _: list[str]) -> list[str]:
            source = self.number("%from", f.mul(k, "%step"))
            goal = self.pair("%to", f.mul(f.e.let(f"lshr i64 {k}, 1"), str(wide)))

            def panel(column: str, _: list[str]) -> list[str]:
                begin = self.number(source, column)
                end = self.pair(goal, f.mul(column, "%stride"))
                left = f.sub("%owned", column)
                for v in range(0, wide, self.lanes):
                    found = self.across_k(self.number(begin, str(v)), f.sub(left, str(v)), k)
                    self.put(found, self.pair(end, str(v)))
                return []

            f.e.loop("0", "%owned", wide, [], panel)
            return []

        f.e.loop("0", self.whole("%steps"), 2, [], row)

    def squares(self, along_k: bool) -> None:
        """Memory that runs the other way: squares of pairs are put together, then transposed."""
        f, e, lanes = self.f, self.f.e, self.lanes
        turn = transpose(self.registers)
        e.declare(f"void @{turn.name}(ptr, ptr, i64, i64)", turn.name)
        square = f.scratch("square", "i32", str(lanes * lanes))
        wide = self.registers.panel

        def own_lines(own: str, _: list[str]) -> list[str]:
            e.loop("0", "%steps", 2 * lanes, [], lambda k, _: block(own, k))
            return []

        def block(own: str, k: str) -> list[str]:
            pair, owned = e.let(f"lshr i64 {k}, 1"), f.sub("%owned", own)
            for i in range(lanes):
                if along_k:  # a line of memory is a place of the own line
                    there = f.least(str(i), f.sub(owned, "1"))  # the last again: never read
                    at = f.add(f.mul(f.add(own, there), "%step"), k)
                    found = self.along_k(self.number("%from", at), f.sub("%steps", k))
                else:
                    now = f.add(k, str(2 * i))
                    at = f.add(f.mul(now, "%step"), own)
                    found = self.across_k(self.number("%from", at), owned, now)
                self.put(found, self.pair(square, str(i * lanes)))
            if self.name == "left":
                place, stride = f.add(f.mul(own, "%stride"), pair), "%stride"
            else:
                inside = e.let(f"urem i64 {own}, {wide}")
                first = f.add(f.mul(f.sub(own, inside), "%stride"), inside)
                place, stride = f.add(f.mul(pair, str(wide)), first), str(wide)
            goal = self.pair("%to", place)
            e.line(f"call void @{turn.name}(ptr {square}, ptr {goal}, i64 {stride}, i64 {lanes})")
            return []

        e.loop("0", "%owned", lanes, [], own_lines)

    # --- pieces ----------------------------------------------------------------------------------

    def along_k(self, at: str, left: str) -> str:
        """A vector of pairs of memory that runs along k; 0 after so many numbers."""
        e, count = self.f.e, 2 * self.lanes
        kind = f"<{count} x i16>"
        found = masked_load(e, kind, at, self.first(left, count))
        return e.let(f"bitcast {kind} {found} to {self.kind}")

    def across_k(self, at: str, left: str, k: str) -> str:
        """A vector of pairs of two lines of memory; 0 after so many lanes, and after the steps."""
        e, f = self.f.e, self.f
        parts = []
        for i in range(2):
            there = e.let(f"icmp slt i64 {f.add(k, str(i))}, %steps")
            mask = self.first(e.let(f"select i1 {there}, i64 {left}, i64 0"), self.lanes)
            place = self.number(at, "%step") if i else at
            line = masked_load(e, f"<{self.lanes} x i16>", place, mask)
            parts.append(e.let(f"zext <{self.lanes} x i16> {line} to {self.kind}"))
        high = e.let(f"shl {self.kind} {parts[1]}, {e.const(16, int32, True).text}")
        return e.let(f"or {self.kind} {parts[0]}, {high}")

    def whole(self, steps: str) -> str:
        """Steps up to a whole vector of pairs."""
        e, unit = self.f.e, 2 * self.lanes
        return e.let(f"and i64 {self.f.add(steps, str(unit - 1))}, {-unit}")

    def first(self, count: str, lanes: int) -> str:
        """A mask of the first `count` of some lanes, which may be negative or more."""
        e = self.f.e
        short = self.f.least(count, str(lanes))
        value = Val(e.let(f"trunc i64 {short} to i32"), int32)
        kind = f"<{lanes} x i32>"
        one = e.let(f"insertelement {kind} poison, i32 {value.text}, i64 0")
        every = e.let(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")
        return e.let(f"icmp slt {kind} {ramp(lanes, 1, 'i32')}, {every}")

    def number(self, memory: str, place: str) -> str:
        """The address of a number of memory."""
        return self.f.e.let(f"getelementptr i16, ptr {memory}, i64 {place}")

    def pair(self, memory: str, place: str) -> str:
        """The address of a pair of the tile."""
        return self.f.e.let(f"getelementptr i32, ptr {memory}, i64 {place}")

    def put(self, value: str, at: str) -> None:
        self.f.e.line(f"store {self.kind} {value}, ptr {at}, align 4")
