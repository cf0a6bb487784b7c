"""Packing of dense operands: library functions that all such kernels share.

In: a side (left or right), whether memory runs across the packed rows, and the registers. Out: the
text of a module with one function, `void f(ptr from, i64 step, ptr to, i64 stride, i64 owned,
i64 depth)`: elements contiguous along one line and `step` apart along the other go to where a
`Packer` puts them. It is the packer's own text over one load whose step is an argument, so a GEMM
of matrices needs no text of its own to pack them, whatever its shape or epilogue.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

from ....core.dtype import int32
from ....core.node import make
from ....core.ops.index import LOAD
from ....kernel.contract.analysis import Line, Part
from ....kernel.contract.problem import Operand
from ..llvm.emitter import Val
from ..llvm.masked import masked_load
from ..loops.function import FunctionBuilder, Numbers
from .microkernel import Module, Registers, named, transpose
from .pack import Packer, Span, Target

_STEP = 1 << 20  # stands for the argument
_NOTHING = Line((), (), frozenset())


class _Function(FunctionBuilder):
    """A function whose only number is its argument."""

    def number(self, name: Hashable, value: int = 0) -> str:
        """The step of the lines of memory."""
        assert value == _STEP, name
        return "%step"

    def pointer(self, number: int) -> str:
        """The memory."""
        return "%from"


@lru_cache(maxsize=32)
def pack_dense(registers: Registers, name: str, transposed: bool) -> Module:
    """The function that packs memory of the accumulated dtype for one side, or of pairs."""
    if registers.pairs:
        from .pack_pairs import pack_pairs

        return pack_pairs(registers, name)
    own, folded = Line((0,), (_STEP,), frozenset({0})), Line((1,), (_STEP,), frozenset({1}))
    along = "folded" if (name == "left") != transposed else "own"
    terms = ((0, _STEP), (1, 1)) if along == "folded" else ((0, 1), (1, _STEP))
    load = make(LOAD, registers.dtype, (), (0, (0, terms), ()))
    rows, columns = (own, _NOTHING) if name == "left" else (_NOTHING, own)
    part = Part((load,), _NOTHING, rows, columns, folded, frozenset())
    masked = registers.target.vectors == "avx512"
    f = _Function("SELF", Numbers([load]), [registers.dtype], registers.target.lanes, masked)
    f.e.opaque_steps = False
    packer = Packer(f, Operand(name, load, part, own, along), registers, {load: frozenset({0, 1})})
    to = Target("%to", "%stride", "%stride")
    if not transposed and name == "right" and masked:
        _panels(f, packer, to)
    elif not transposed:
        packer.pack(Span("0", "%owned", "0", "%depth"), to)
    else:
        _squares(f, packer, to)
    args = "ptr noalias %from, i64 %step, ptr noalias %to, i64 %stride, i64 %owned, i64 %depth"
    body = "\n".join([*f.entry, *f.e.lines])
    text = f"define void @SELF({args}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    turn = transpose(registers)
    if transposed:
        inside = turn.text.replace("define void", "define internal void")
        text = f"{text}\n{inside}".replace(f"@{turn.name}", "@PARTturn")
    declared = [line for key, line in f.e.declared.items() if key != turn.name]
    stem = f"pack_{name}_{'transposed' if transposed else 'rows'}_{registers.dtype}"
    return named(stem, "\n".join([text, *declared]))


def _panels(f: FunctionBuilder, packer: Packer, to: Target) -> None:
    """Columns as they lie: whole panels of a row at a time, 0 after the last column."""
    e, lanes, wide = f.e, f.e.lanes, packer.registers.panel
    kind, ramps = packer.kind, f"<{lanes} x i32>"

    def row(k: str, _: list[str]) -> list[str]:
        source = packer.at("%from", f.mul(k, "%step"))
        goal = packer.at(to.memory, f.mul(k, str(wide)))

        def panel(column: str, _: list[str]) -> list[str]:
            left = Val(e.let(f"trunc i64 {f.sub('%owned', column)} to i32"), int32)
            count = e.splat(left).text
            begin, end = packer.at(source, column), packer.at(goal, f.mul(column, to.depth))
            for v in range(0, wide, lanes):
                places = ", ".join(f"i32 {v + i}" for i in range(lanes))
                mask = e.let(f"icmp slt {ramps} <{places}>, {count}")
                found = masked_load(e, kind, packer.at(begin, str(v)), mask)
                e.line(f"store {kind} {found}, ptr {packer.at(end, str(v))}, align 4")
            return []

        e.loop("0", "%owned", wide, [], panel)
        return []

    e.loop("0", "%depth", 1, [], row)


def _squares(f: FunctionBuilder, packer: Packer, to: Target) -> None:
    """Whole squares straight from memory; what is left of k, then of the own line, as it comes."""
    lanes, side = f.e.lanes, packer.s
    turn = transpose(packer.registers)
    f.e.declare(f"void @{turn.name}(ptr, ptr, i64, i64)", turn.name)
    left, panel = side.name == "left", packer.registers.panel
    units = (("%owned", lanes if left else panel), ("%depth", lanes))  # a panel begins every strip
    whole = [f.sub(n, f.e.let(f"urem i64 {n}, {unit}")) for n, unit in units]
    along, down = ("%own", "%k") if side.along == "own" else ("%k", "%own")

    def line(outer: str, _: list[str]) -> list[str]:  # along memory: it is fetched ahead there
        if side.along == "own":
            f.e.loop("0", whole[0], lanes, [], lambda own, _: square(own, outer))
        else:
            f.e.loop("0", whole[1], lanes, [], lambda k, _: square(outer, k))
        return []

    def square(own: str, k: str) -> list[str]:
        at = {"%own": own, "%k": k}
        start = packer.at("%from", f.add(at[along], f.mul(at[down], "%step")))
        if left:
            place, stride = f.add(f.mul(own, to.stride), k), to.stride
        else:
            place, stride = f.add(f.mul(k, str(panel)), packer.place(own, to)), str(panel)
        goal = packer.at(to.memory, place)
        f.e.line(f"call void @{turn.name}(ptr {start}, ptr {goal}, i64 {stride}, i64 %step)")
        return []

    f.e.loop("0", whole[1] if side.along == "own" else whole[0], lanes, [], line)
    below = packer.at(to.memory, whole[1] if left else f.mul(whole[1], str(panel)))
    rest = Span("0", whole[0], whole[1], f.sub("%depth", whole[1]))
    packer.pack(rest, replace(to, memory=below))
    beside = packer.at(to.memory, f.mul(whole[0], to.stride))
    rest = Span(whole[0], f.sub("%owned", whole[0]), "0", "%depth")
    packer.pack(rest, replace(to, memory=beside))
