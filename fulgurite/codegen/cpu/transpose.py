"""Transpose of a square of memory, by vectors, for maps that read across memory.

In: a dtype in memory and the lanes of a vector. Out: the text of a library module with one
function, `void f(ptr from, i64 step, ptr to, i64 across, i64 down)`: `down` rows of `across`
numbers, `step` numbers apart, go to the columns of a dense square of lanes x lanes. Nothing outside
of them is read, so squares at the edge of memory need no text of their own. Reading whole rows and
mixing them in registers takes a quarter of the time of lanes that are each read from far apart.
"""

from __future__ import annotations

from functools import lru_cache

from ...core.dtype import DType, int32
from .gemm.microkernel import Module, named
from .llvm.convert import load_row, shuffled
from .llvm.emitter import Emitter, Val, ramp

TRANSPOSE = "ptr, i64, ptr, i64, i64"


@lru_cache(maxsize=32)
def transpose_square(raw: DType, lanes: int) -> Module:
    """The function for numbers of a dtype as they are in memory."""
    e = Emitter(lanes)
    inner, kind = e.type_of(raw, False), e.type_of(raw, True)
    count = Val(e.let("trunc i64 %across to i32"), int32)
    mask = e.let(f"icmp slt <{lanes} x i32> {ramp(lanes, 1, 'i32')}, {e.splat(count).text}")
    rows: list[str] = []
    at = "%from"
    for number in range(lanes):
        is_there = e.let(f"icmp sgt i64 %down, {number}")
        live = e.let(f"select i1 {is_there}, <{lanes} x i1> {mask}, <{lanes} x i1> zeroinitializer")
        rows.append(load_row(e, at, raw, live))
        at = e.let(f"getelementptr {inner}, ptr {at}, i64 %step")
    half = lanes // 2
    low = [place for i in range(half) for place in (i, lanes + i)]
    high = [place + half for place in low]
    for _ in range(half.bit_length()):  # every round puts numbers of two rows by turns
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [shuffled(e, raw, a, b, lane) for a, b in pairs for lane in (low, high)]
    for number, value in enumerate(rows):
        to = e.let(f"getelementptr {inner}, ptr %to, i64 {number * lanes}")
        e.line(f"store {kind} {value}, ptr {to}, align 64")
    arguments = "ptr noalias %from, i64 %step, ptr noalias %to, i64 %across, i64 %down"
    body = "\n".join(e.lines)
    text = f"define void @SELF({arguments}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    return named(f"transpose_square_{raw}_{lanes}", "\n".join([text, *e.declared.values()]))
