"""The concatenation template: copies of runs from many params, with one text for all of them.

In: an `IndexKernel`. Out: a `KernelText`, or None where `kernel/transform/concat.py` finds no
copies. Every piece is a row of the table of numbers: which param, where it begins, how its rows
lie. A unit is a block of rows of a piece, or a part of one long run. The pieces are traversed in
order, each as far as the units of a call go. The last vector of a run ends where the run does, so
it may be copied twice in part, and no mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dtype import DType
from ...graph.ir.lower import IndexKernel
from ...kernel.transform.concat import FORM, Piece, Row, find_concat
from ..common.api import FIRST, KernelText, Launch
from .llvm.convert import memory_dtype
from .llvm.emitter import Emitter, scalar_type
from .tiling import CPU

_FIELDS = (
    "begin", "end", "param", "source", "result", "chunks", "chunk", "run", "step", "blocks",
    "block", "rows", "source_row", "result_row", "source_outer", "result_outer",
)  # fmt: skip


def concats(kernel: IndexKernel, dtypes: Sequence[DType]) -> KernelText | None:
    """A map that puts parts of params beside each other."""
    pieces = find_concat(kernel)
    if pieces is None or len({dtypes[p.param] for p in pieces} | {dtypes[-1]}) > 1:
        return None
    numbers, units = [len(pieces), len(dtypes) - 1], 0
    for piece in pieces:
        row = _numbers(piece, units)
        units = row[1]
        numbers += row
    text = _text(dtypes[-1])
    elements = sum([p.elements for p in pieces])
    return KernelText(text, (Launch("kernel", units, 2 * elements),), (), tuple(numbers))


def _numbers(piece: Piece, begin: int) -> list[int]:
    """A row of the table."""
    most = CPU.loops.split.unit_elements
    outer, row = (Row(1, 0, 0), Row(1, 0, 0), *piece.rows)[-2:]
    chunk, block = min(piece.run, most), max(1, most // piece.run)
    chunks, blocks = -(-piece.run // chunk), -(-row.steps // block)
    return [
        begin, begin + outer.steps * blocks * chunks, piece.param, piece.source, piece.result,
        chunks, chunk, piece.run, piece.step, blocks, block, row.steps,
        row.source_step, row.result_step, outer.source_step, outer.result_step,
    ]  # fmt: skip


def _text(dtype: DType) -> str:
    raw = memory_dtype(dtype)
    inner, lanes = scalar_type(raw), FORM.vector_bytes // raw.itemsize
    e = Emitter(lanes)

    def number(base: str, place: int) -> str:
        at = e.let(f"getelementptr i64, ptr {base}, i64 {place}")
        return e.let(f"load i64, ptr {at}")

    def pointer(place: str) -> str:
        at = e.let(f"getelementptr ptr, ptr %params, i64 {place}")
        return e.let(f"load ptr, ptr {at}")

    def at(base: str, *terms: tuple[str, str]) -> str:
        for count, step in terms:
            far = e.let(f"mul i64 {count}, {step}")
            base = e.let(f"getelementptr {inner}, ptr {base}, i64 {far}")
        return base

    def least(a: str, b: str) -> str:
        return e.call("i64", "llvm.smin.i64", f"i64 {a}", f"i64 {b}")

    def move(kind: str, source: str, result: str, place: str, step: str = "1") -> None:
        ends = at(source, (place, step)), at(result, (place, "1"))
        value = e.let(f"load {kind}, ptr {ends[0]}, align 1")
        e.line(f"store {kind} {value}, ptr {ends[1]}, align 1")

    def run(source: str, result: str, count: str, step: str) -> None:
        near = e.let(f"icmp eq i64 {step}, 1")

        def each(kind: str, stride: int, stop: str, apart: str) -> None:
            def once(place: str, _: list[str]) -> list[str]:
                move(kind, source, result, place, apart)
                return []

            e.loop("0", stop, stride, [], once)

        def by_vectors(width: int, last: str) -> None:
            kind = f"<{width} x {inner}>"
            each(kind, width, last, "1")
            move(kind, source, result, last)

        def by(width: int) -> None:
            """Vectors of so many elements, or of half of them where the run is shorter."""
            if width < 2 or width * raw.itemsize < FORM.least_vector_bytes:
                each(inner, 1, count, step)
                return
            last = e.let(f"sub i64 {count}, {width}")
            long = e.let(f"icmp sge i64 {last}, 0")
            fits = e.let(f"and i1 {long}, {near}")
            e.either(fits, lambda: by_vectors(width, last), lambda: by(width // 2))

        by(lanes)

    def piece(index: str, _: list[str]) -> list[str]:
        far = e.let(f"mul i64 {index}, {len(_FIELDS)}")
        base = e.let(f"getelementptr i64, ptr %table, i64 {far}")
        n = {name: number(base, place) for place, name in enumerate(_FIELDS)}
        source = at(pointer(n["param"]), (n["source"], "1"))
        result = at(goal, (n["result"], "1"))
        low = e.call("i64", "llvm.smax.i64", "i64 %first", f"i64 {n['begin']}")

        def unit(index: str, _: list[str]) -> list[str]:
            left = e.let(f"sub i64 {index}, {n['begin']}")
            row, chunk = [e.let(f"{how} i64 {left}, {n['chunks']}") for how in ("udiv", "urem")]
            outer, block = [e.let(f"{how} i64 {row}, {n['blocks']}") for how in ("udiv", "urem")]
            top = e.let(f"mul i64 {block}, {n['block']}")
            begin = e.let(f"mul i64 {chunk}, {n['chunk']}")
            rows = least(n["block"], e.let(f"sub i64 {n['rows']}, {top}"))
            count = least(n["chunk"], e.let(f"sub i64 {n['run']}, {begin}"))
            here, there = [
                at(p, (outer, n[f"{side}_outer"]), (top, n[f"{side}_row"]), (begin, step))
                for side, p, step in (("source", source, n["step"]), ("result", result, "1"))
            ]

            def one(row: str, _: list[str]) -> list[str]:
                ends = at(here, (row, n["source_row"])), at(there, (row, n["result_row"]))
                run(*ends, count, n["step"])
                return []

            e.loop("0", rows, 1, [], one)
            return []

        e.loop(low, least("%last", n["end"]), 1, [], unit)
        return []

    e.line(f"%numbers = getelementptr i64, ptr %values, i64 {FIRST}")
    e.line("%table = getelementptr i64, ptr %numbers, i64 2")
    goal = pointer(number("%numbers", 1))
    e.loop("0", number("%numbers", 0), 1, [], piece)
    e.line("ret void")
    args = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
    body = "\n".join(e.lines)
    text = f"define void @kernel({args}) nounwind {{\nentry:\n{body}\n}}"
    return "\n".join([text, *e.declared.values(), ""])
