"""Memory of another dtype than sums have: how vectors of it are read, and bytes packed for VNNI.

In: an emitter, an address and the lanes that are live. Out: lines that load a vector, and a vector
of the dtype that is multiplied. Small floats, narrow whole numbers and whole numbers beside floats
are converted where they are read, so what is packed or swept over has one dtype for all of them.
`pack_vnni` is a function of the library: rows of bytes become numbers of four bytes each, as the
instruction wants them that sums products of bytes. Nothing is read that no number is in, but for
bytes of the same page.
"""

from __future__ import annotations

from ....core.dtype import DType, bool_, int32, int64, uint8, uint32
from ..llvm.convert import from_memory, load_row, memory_dtype
from ..llvm.emitter import Emitter, Val, scalar_type
from ..llvm.masked import masked_gather
from ..loops.function import FunctionBuilder, Numbers
from ..spelling import cast
from ..tiling import GEMM
from .microkernel import Registers, defined

GOAL = "ptr %to, i64 %stride, i64 %owned, i64 %depth"  # of what packs


def widen(e: Emitter, raw: str, memory: DType, goal: DType) -> str:
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
            e.const(n, int64, True).text
            for n in (GEMM.page_bytes - 1, GEMM.page_bytes - 4, raw.itemsize - 4, -8)
        ]
        number = e.let(f"ptrtoint {pointers} {at} to {longs}")
        late = e.let(f"icmp ugt {longs} {e.let(f'and {longs} {number}, {page}')}, {last}")
        back = e.let(f"select <{lanes} x i1> {late}, {longs} {before}, {longs} zeroinitializer")
        bits = e.let(f"trunc {longs} {e.let(f'mul {longs} {back}, {eight}')} to {kind}")
        at = e.let(f"getelementptr i8, {pointers} {at}, {longs} {back}")
    found = masked_gather(e, kind, at, live, align=4)
    if wide is raw:
        return found
    found = e.let(f"lshr {kind} {found}, {bits}")
    return e.let(f"trunc {kind} {found} to <{lanes} x {inner}>")


def first_lanes(f: FunctionBuilder, count: str) -> str:
    """The first `count` lanes, of any number of them."""
    return f.tail(f.e.call("i64", "llvm.smax.i64", f"i64 {count}", "i64 0"))


_FOURS = f"ptr %from, i64 %apart, i64 %between, {GOAL}"


def pack_vnni(registers: Registers) -> tuple[str, dict[str, str]]:
    """The function `PART_vnni` that makes bytes panels of numbers of four bytes each.

    Rows of bytes are `apart`, columns `between` from one panel to the next. Four rows of a panel
    and its numbers of one step can be at the same place. What is after the last step is 0.
    """
    f = FunctionBuilder("PART_vnni", Numbers([]), [], registers.target.lanes, False)
    e, lanes, panel = f.e, f.e.lanes, registers.panel
    kind = f"<{lanes} x i32>"
    whole = e.let("and i64 %depth, -4")

    def at(memory: str, place: str) -> str:
        return e.let(f"getelementptr i8, ptr {memory}, i64 {place}")

    def columns(first: str, _: list[str]) -> list[str]:
        source, goal = at("%from", f.mul(first, "%between")), at("%to", f.mul(first, "%stride"))
        vectors = range(0, panel, lanes)
        left = f.sub("%owned", first)
        masks = [first_lanes(f, f.sub(left, str(v))) for v in vectors]

        def four(k: str, rows: str, _: list[str]) -> list[str]:
            row, sums = at(source, f.mul(k, "%apart")), [""] * len(masks)
            for i in range(4):
                for n, (v, mask) in enumerate(zip(vectors, masks, strict=True)):
                    if rows != "4":
                        there = e.splat(Val(e.let(f"icmp sgt i64 {rows}, {i}"), bool_)).text
                        mask = e.let(f"and <{lanes} x i1> {mask}, {there}")
                    byte = load_row(e, at(row, str(v)), uint8, mask)
                    wide = e.let(f"zext <{lanes} x i8> {byte} to {kind}")
                    if i:
                        wide = e.let(f"shl {kind} {wide}, {e.const(8 * i, int32, True).text}")
                        wide = e.let(f"or {kind} {sums[n]}, {wide}")
                    sums[n] = wide
                row = at(row, "%apart")
            to = at(goal, f.mul(k, str(panel)))
            for v, total in zip(vectors, sums, strict=True):
                e.line(f"store {kind} {total}, ptr {at(to, str(4 * v))}, align 1")
            return []

        e.loop("0", whole, 4, [], lambda k, now: four(k, "4", now))
        e.loop(whole, "%depth", 4, [], lambda k, now: four(k, f.sub("%depth", k), now))
        return []

    e.loop("0", "%owned", panel, [], columns)
    return defined(f, f"internal void @PART_vnni({_FOURS})")
