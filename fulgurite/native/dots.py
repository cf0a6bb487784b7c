"""One row times a matrix that streams by once: library functions for both ways it can lie.

In: the registers. Out: the text of a module whose function adds products to a row of sums. `dots`
has columns that memory has along k, a few at a time, so that loads and additions overlap; lanes run
along k and are summed in an order that depends on nothing else. `sweep` has rows of k, a few at a
time and each for as long as it goes, since every row is another page of memory.
"""

from __future__ import annotations

from functools import lru_cache

from ..core.dtype import int64
from .convert import load_value, store_value
from .emitter import Val, scalar_type
from .frame import Frame, Numbers
from .microkernel import Module, Registers, multiplied, named, suffix_of, vector_of

DOTS = "ptr, ptr, i64, ptr, i64, i64, i1"  # types of both functions
TOGETHER = 8  # columns whose dot products run at the same time
CHUNK = 1024  # columns whose sums stay in the nearest cache


@lru_cache(maxsize=32)
def dots(registers: Registers) -> Module:
    """`void f(ptr x, ptr B, i64 stride, ptr C, i64 depth, i64 columns, i1 first)`: one row x times
    columns that memory has along k, `stride` apart. Lanes run along k, so B streams by once."""
    parts = [_dotted(registers, TOGETHER), _dotted(registers, 1)]
    inner = scalar_type(registers.dtype)
    lines = [
        "entry:",
        f"  %rest = urem i64 %columns, {TOGETHER}",
        "  %whole = sub i64 %columns, %rest",
        "  br label %head",
        "head:",
        "  %j = phi i64 [ 0, %entry ], [ %jmany, %many ], [ %jone, %one ]",
        "  %offset = mul i64 %j, %bs",
        f"  %b = getelementptr {inner}, ptr %B, i64 %offset",
        f"  %c = getelementptr {inner}, ptr %C, i64 %j",
        "  %some = icmp slt i64 %j, %columns",
        "  br i1 %some, label %pick, label %out",
        "pick:",
        "  %fits = icmp slt i64 %j, %whole",
        "  br i1 %fits, label %many, label %one",
    ]
    for label, count in (("many", TOGETHER), ("one", 1)):
        operands = "ptr %A, ptr %b, i64 %bs, ptr %c, i64 %depth, i1 %first"
        lines += [f"{label}:", f"  call void @PART{count}({operands})",
                  f"  %j{label} = add i64 %j, {count}", "  br label %head"]  # fmt: skip
    lines += ["out:", "  ret void"]
    head = "define void @SELF(ptr noalias %A, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %depth, "
    text = f"{head}i64 %columns, i1 %first) nounwind {{\n" + "\n".join(lines) + "\n}"
    kind, suffix = vector_of(registers), suffix_of(registers)
    mask = f"<{registers.width} x i1>"
    declared = [f"declare {kind} @llvm.masked.load.{suffix}.p0(ptr, {mask}, {kind})"]
    if registers.fused:
        declared.append(f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})")
    return named(f"dots_{registers.dtype}", "\n".join([text, *parts, *declared]))


def _dotted(registers: Registers, count: int) -> str:
    """Some dot products at once over all of the depth."""
    inner, kind, width = scalar_type(registers.dtype), vector_of(registers), registers.width
    lines: list[str] = []
    number = 0

    def let(text: str) -> str:
        nonlocal number
        number += 1
        lines.append(f"  %t{number} = {text}")
        return f"%t{number}"

    starts = ["%B"]
    for _ in range(count - 1):
        starts.append(let(f"getelementptr {inner}, ptr {starts[-1]}, i64 %bs"))
    lines += [
        f"  %rest = urem i64 %depth, {width}",
        "  %whole = sub i64 %depth, %rest",
        "  br label %head",
        "head:",
        "  %k = phi i64 [ 0, %entry ], [ %knext, %k.body ]",
        *[f"  %c{j} = phi {kind} [ zeroinitializer, %entry ], [ %r{j}, %k.body ]"
          for j in range(count)],
        "  %more = icmp slt i64 %k, %whole",
        "  br i1 %more, label %k.body, label %tail",
        "k.body:",
    ]  # fmt: skip
    x = let(f"load {kind}, ptr {let(f'getelementptr {inner}, ptr %A, i64 %k')}, align 1")
    for j in range(count):
        place = let(f"getelementptr {inner}, ptr {starts[j]}, i64 %k")
        y = let(f"load {kind}, ptr {place}, align 1")
        lines.append(f"  %r{j} = {multiplied(registers, x, y, f'%c{j}', let)}")
    lines += [f"  %knext = add i64 %k, {width}", "  br label %head", "tail:"]
    lanes = ", ".join(f"i32 {i}" for i in range(width))
    short = let("trunc i64 %rest to i32")
    one = let(f"insertelement <{width} x i32> poison, i32 {short}, i64 0")
    zeros = f"<{width} x i32> zeroinitializer"
    all_ = let(f"shufflevector <{width} x i32> {one}, <{width} x i32> poison, {zeros}")
    mask = let(f"icmp ult <{width} x i32> <{lanes}>, {all_}")

    def end(base: str) -> str:
        place = let(f"getelementptr {inner}, ptr {base}, i64 %whole")
        operands = f"ptr align 1 {place}, <{width} x i1> {mask}, {kind} zeroinitializer"
        return let(f"call {kind} @llvm.masked.load.{suffix_of(registers)}.p0({operands})")

    x = end("%A")
    letter = "f" if registers.dtype.kind == "f" else ""
    totals = []
    for j in range(count):
        total = let(multiplied(registers, x, end(starts[j]), f"%c{j}", let))
        half = width // 2
        while half:  # the upper half onto the lower one
            picks = [*range(half, 2 * half), *[0] * (width - half)]
            moved = ", ".join(f"i32 {p}" for p in picks)
            other = let(f"shufflevector {kind} {total}, {kind} poison, <{width} x i32> <{moved}>")
            total = let(f"{letter}add {kind} {total}, {other}")
            half //= 2
        totals.append(let(f"extractelement {kind} {total}, i64 0"))
    lines += ["  br i1 %first, label %set, label %sum"]
    for label in ("set", "sum"):
        lines.append(f"{label}:")
        for j, total in enumerate(totals):
            place = let(f"getelementptr {inner}, ptr %C, i64 {j}")
            value = total
            if label == "sum":
                known = let(f"load {inner}, ptr {place}, align 1")
                value = let(f"{letter}add {inner} {known}, {total}")
            lines.append(f"  store {inner} {value}, ptr {place}, align 1")
        lines.append("  ret void")
    args = "ptr noalias %A, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %depth, i1 %first"
    body = "\n".join(lines)
    return f"define internal void @PART{count}({args}) nounwind {{\nentry:\n{body}\n}}"


@lru_cache(maxsize=32)
def sweep(registers: Registers) -> Module:
    """`void f(ptr x, ptr B, i64 stride, ptr C, i64 depth, i64 columns, i1 first)`: one row x times
    rows of B, `stride` apart, that are added up in scratch first."""
    inner, kind, dtype = scalar_type(registers.dtype), vector_of(registers), registers.dtype
    f = Frame("SELF", Numbers([]), [], registers.width, False)
    e, zero = f.e, Val("zeroinitializer", dtype, True)
    sums = f.scratch("sums", inner, str(CHUNK))
    rest = e.let(f"urem i64 %depth, {TOGETHER}")
    whole = f.sub("%depth", rest)

    def at(memory: str, place: str) -> str:
        return e.let(f"getelementptr {inner}, ptr {memory}, i64 {place}")

    def load(memory: str, step: str) -> str:
        place = Val(step, int64)
        return load_value(e, memory, place, dtype, None, f.mask, "row").text

    def store(memory: str, step: str, text: str) -> None:
        store_value(e, memory, Val(step, int64), Val(text, dtype, True), dtype, f.mask, "row")

    def chunk(column: str, _: list[str]) -> list[str]:
        count = f.least(f.sub("%columns", column), str(CHUNK))
        goal = at("%C", column)

        def rows(k: str, many: int) -> list[str]:
            steps = [f.add(k, str(i)) for i in range(many)]
            numbers = [e.let(f"load {inner}, ptr {at('%A', step)}, align 1") for step in steps]
            spread = [e.splat(Val(number, dtype)).text for number in numbers]
            sources = [at("%B", f.add(column, f.mul(step, "%bs"))) for step in steps]

            def vector(step: str) -> None:
                total = load(sums, step)
                for x, source in zip(spread, sources, strict=True):
                    total = e.let(multiplied(registers, x, load(source, step), total, e.let))
                store(sums, step, total)

            f.lanes(0, "0", count, [], vector)
            return []

        def finish(step: str) -> None:
            total = load(sums, step)
            e.branch("%first", lambda: store(goal, step, total))
            e.branch(again, lambda: store(goal, step, added(step, total)))

        def added(step: str, total: str) -> str:
            how = "fadd" if dtype.kind == "f" else "add"
            return e.let(f"{how} {kind} {load(goal, step)}, {total}")

        f.lanes(0, "0", count, [], lambda step: store(sums, step, zero.text))
        e.loop("0", whole, TOGETHER, [], lambda k, _: rows(k, TOGETHER))
        e.loop(whole, "%depth", 1, [], lambda k, _: rows(k, 1))
        f.lanes(0, "0", count, [], finish)
        return []

    again = e.let("xor i1 %first, true")
    e.loop("0", "%columns", CHUNK, [], chunk)
    arguments = (
        "ptr noalias %A, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %depth, i64 %columns, "
        "i1 %first"
    )
    body = "\n".join([*f.entry, *e.lines])
    text = f"define void @SELF({arguments}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    return named(f"sweep_{dtype}", "\n".join([text, *e.declared.values()]))
