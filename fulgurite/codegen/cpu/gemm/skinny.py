"""Skinny GEMM: rows that memory has along k times a few columns, with lanes along k.

In: the registers. Out: the text of a module whose function adds products of rows and at most a few
columns to a tile of sums. A block of columns would leave most lanes empty; here the columns are
transposed into scratch once, four at a time, and four rows at a time go by in whole vectors. Lanes
are summed in an order that depends on nothing else.
"""

from __future__ import annotations

from functools import lru_cache

from ..llvm.emitter import scalar_type
from ..llvm.masked import masked_load, masked_store
from ..loops.function import FunctionBuilder, Numbers
from ..tiling import GEMM
from .microkernel import Module, Registers, dot_declared, library_module, multiplied, shuffle

SKINNY = "ptr, i64, ptr, i64, i64, ptr, i64, i64, i64, i64, i1"  # its types
_SIDE = GEMM.skinny_block
_K_STEPS = GEMM.skinny_k_steps


@lru_cache(maxsize=32)
def skinny(registers: Registers, k_contiguous: bool = False) -> Module:
    """`void f(ptr A, i64 rows', ptr B, i64 columns', i64 steps', ptr C, i64 stride, i64 depth,
    i64 rows, i64 columns, i1 first)`: B's strides are between columns and between steps of k.
    Columns that are contiguous along k are read in place, others are transposed into scratch."""
    inner, width = scalar_type(registers.dtype), registers.width
    f = FunctionBuilder("SELF", Numbers([]), [], width, registers.target.has_masks)
    e = f.e
    e.register = 4 * registers.target.lanes
    kind = f"<{width} x {inner}>"
    scratch = "" if k_contiguous else f.scratch("transposed", inner, str(_SIDE * _K_STEPS))

    def at(memory: str, place: str) -> str:
        return e.let(f"getelementptr {inner}, ptr {memory}, i64 {place}")

    rest = e.let(f"urem i64 %depth, {width}")
    whole, mask = f.sub("%depth", rest), f.tail(rest)

    def columns_at(column: str) -> list[str]:
        end = f.sub("%columns", "1")  # the last one again where there are fewer
        places = [f.least(f.add(column, str(j)), end) for j in range(_SIDE)]
        return [at("%B", f.mul(place, "%bn")) for place in places]

    def group(column: str, _: list[str]) -> list[str]:
        few = f.least(f.sub("%columns", column), str(_SIDE))
        if not k_contiguous:
            sources = columns_at(column)
            e.loop("0", "%depth", 1, [], lambda k, _: transposed(k, sources))
        e.loop("0", "%rows", _SIDE, [], lambda row, _: rows(row, column, few))
        return []

    def transposed(k: str, sources: list[str]) -> list[str]:
        for j, source in enumerate(sources):
            number = e.let(f"load {inner}, ptr {at(source, f.mul(k, '%bk'))}, align 1")
            goal = at(scratch, f.add(k, str(j * _K_STEPS)))
            e.line(f"store {inner} {number}, ptr {goal}, align 1")
        return []

    def rows(row: str, column: str, few: str) -> list[str]:
        last = f.sub("%rows", "1")
        starts = [at("%A", f.mul(f.least(f.add(row, str(r)), last), "%as")) for r in range(_SIDE)]
        if k_contiguous:
            columns = columns_at(column)
        else:
            columns = [at(scratch, str(j * _K_STEPS)) for j in range(_SIDE)]

        def step(k: str, sums: list[str], masked: bool) -> list[str]:
            def vector(memory: str) -> str:
                if masked:
                    return masked_load(e, kind, at(memory, k), mask)
                return e.let(f"load {kind}, ptr {at(memory, k)}, align 1")

            found = [vector(c) for c in columns]
            out = []
            for r in range(_SIDE):
                x = vector(starts[r])
                for j in range(_SIDE):
                    total = multiplied(registers, x, found[j], sums[r * _SIDE + j], e.let)
                    out.append(e.let(total))
            return out

        zeros = [(kind, "zeroinitializer")] * (_SIDE * _SIDE)
        sums = e.loop("0", whole, width, zeros, lambda k, now: step(k, now, False))
        sums = e.loop(whole, "%depth", width, list(zip([kind] * len(sums), sums, strict=True)),
                      lambda k, now: step(k, now, True))  # fmt: skip
        totals = _horizontal_sums(f, sums, registers)
        for r in range(_SIDE):
            inside = e.let(f"icmp slt i64 {f.add(row, str(r))}, %rows")
            count = e.let(f"select i1 {inside}, i64 {few}, i64 0")
            place = f.add(f.mul(f.add(row, str(r)), "%cs"), column)
            _put(f, totals[r], at("%C", place), count, registers)
        return []

    e.loop("0", "%columns", _SIDE, [], group)
    arguments = (
        "ptr noalias %A, i64 %as, ptr noalias %B, i64 %bn, i64 %bk, ptr noalias %C, i64 %cs, "
        "i64 %depth, i64 %rows, i64 %columns, i1 %first"
    )
    stem = f"skinny_{'k_' if k_contiguous else ''}{registers.dtype}"
    return library_module(stem, f, arguments, *dot_declared(registers))


def _horizontal_sums(f: FunctionBuilder, vectors: list[str], registers: Registers) -> list[str]:
    """The sum of each vector's lanes, four of them to a row: halves of two go into one."""
    width, inner = registers.width, scalar_type(registers.dtype)
    kind, add = f"<{width} x {inner}>", "fadd" if registers.dtype.kind == "f" else "add"
    size = width
    while size > 1:
        out = []
        for one, other in zip(vectors[::2], vectors[1::2], strict=True):
            low = [
                base + start + i
                for base in (0, width) for start in range(0, width, size) for i in range(size // 2)
            ]  # fmt: skip
            lower = f.e.let(shuffle(one, other, kind, low))
            upper = f.e.let(shuffle(one, other, kind, [p + size // 2 for p in low]))
            out.append(f.e.let(f"{add} {kind} {lower}, {upper}"))
        vectors, size = out, size // 2
    each = width // _SIDE
    picks = [list(range(r % each * _SIDE, r % each * _SIDE + _SIDE)) for r in range(_SIDE)]
    return [f.e.let(shuffle(vectors[r // each], "poison", kind, picks[r])) for r in range(_SIDE)]


def _put(f: FunctionBuilder, total: str, place: str, count: str, registers: Registers) -> None:
    """Add the first sums of a row to where they go, or put them there."""
    e, inner = f.e, scalar_type(registers.dtype)
    kind, kinds = f"<{_SIDE} x {inner}>", f"<{_SIDE} x i32>"
    is_float = registers.dtype.kind == "f"
    ramp = f"<{', '.join(f'i32 {i}' for i in range(_SIDE))}>"

    def mask(count: str) -> str:
        short = e.let(f"trunc i64 {count} to i32")
        one = e.let(f"insertelement {kinds} poison, i32 {short}, i64 0")
        all_ = e.let(f"shufflevector {kinds} {one}, {kinds} poison, {kinds} zeroinitializer")
        return e.let(f"icmp slt {kinds} {ramp}, {all_}")

    known = mask(e.let(f"select i1 %first, i64 0, i64 {count}"))
    nothing = e.let(f"fneg {kind} zeroinitializer") if is_float else "zeroinitializer"
    old = masked_load(e, kind, place, known, nothing)
    new = e.let(f"{'fadd' if is_float else 'add'} {kind} {old}, {total}")
    masked_store(e, kind, new, place, mask(count))
