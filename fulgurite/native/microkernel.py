"""Microkernels: the register blocks that all contractions of a target share, as module texts.

In: the dtype that is accumulated in and the target. Out: texts of modules with one function each
that others call, named after a digest of their text, so that the name is the version.
`block` adds rows times one panel of columns to a tile: C[i, j] (+)= Σ_k A[i, k] B[k, j], with k
next to each other in a row of A, columns next to each other in a row of B, and run-time strides.
Whole register blocks first, then lower ones; narrow panels have blocks of their own. `masked` is
the same over memory that ends with the columns, `across` takes a transposed A, `sweep` is for few
rows and streams B by once. `transpose` turns a square of lanes x lanes. Sums run over a block of k
in order in all of them, so bits do not depend on how tiles are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from ..core.dtype import DType
from ..kernel.contract import FEW
from .emitter import scalar_type
from .target import Target

# rows and vectors of columns of a register block; a panel is a whole number of `lanes` columns
SHAPES = {"avx512": (9, 3), "avx2": (6, 2), "sse2": (4, 2), "neon": (8, 2)}
WIDE_SHAPES = SHAPES | {"avx512": (6, 4)}  # of numbers of 64 bits
Let = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Module:
    """A text and the name of its function."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Registers:
    """The register block of a dtype on a target."""

    dtype: DType  # accumulated in
    target: Target
    dot: str = ""  # numbers are four bytes each: the signs of A's and B's, `us`, `su` or `ss`

    @property
    def width(self) -> int:
        """Numbers in one vector register."""
        return self.target.lanes * 32 // self.dtype.bits

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of a block, and its vectors of columns."""
        return (WIDE_SHAPES if self.dtype.bits == 64 else SHAPES)[self.target.vectors]

    @property
    def height(self) -> int:
        """Rows of a block."""
        return self.shape[0]

    @property
    def vectors(self) -> int:
        """Vectors of columns of a block."""
        return self.shape[1]

    @property
    def panel(self) -> int:
        """Columns of a block."""
        return self.width * self.vectors

    @property
    def fused(self) -> bool:
        """Is a product added without rounding it first?"""
        return self.dtype.kind == "f" and self.target.vectors != "sse2"


def _named(stem: str, body: str) -> Module:
    digest = blake2b(body.encode(), digest_size=8).hexdigest()
    name = f"fulgurite_{stem}_{digest}"
    return Module(name, body.replace("@SELF", f"@{name}").replace("@PART", f"@{name}_part"))


@dataclass(frozen=True, slots=True)
class _How:
    """What a register block reads and writes."""

    masked: bool  # B ends with the columns
    across: bool  # A is transposed
    direct: bool  # C ends with the columns

    @property
    def ends(self) -> bool:
        """Does anything end with the columns?"""
        return self.masked or self.direct


@lru_cache(maxsize=32)
def block(
    registers: Registers, masked: bool = False, across: bool = False, direct: bool = False
) -> Module:
    """`void f(ptr A, i64 stride, ptr B, i64 stride, ptr C, i64 stride, i64 depth, i64 rows,
    i64 columns, i1 first)`: rows times at most one panel of columns. `across`: rows of A are next
    to each other, and its stride is that between steps of k."""
    heights = _heights(registers.height)
    how = _How(masked, across, direct)
    parts = [
        _tile(registers, rows, vectors, how)
        for vectors in range(1, registers.vectors + 1)
        for rows in heights
    ]
    text = "\n".join([_driver(registers, heights, how), *parts, *_declared(registers, how)])
    stem = "_".join(["block", *[n for n in ("masked", "across", "direct") if getattr(how, n)]])
    return _named(f"{stem}_{registers.dtype}{registers.dot}", text)


def _heights(most: int) -> list[int]:
    """The heights that have a block: all small ones, so that at most two blocks end a column."""
    return sorted({*range(1, min(8, most) + 1), *range(8, most + 1, 2)} - {0} | {most})


def _declared(registers: Registers, how: _How) -> list[str]:
    kind = _vector(registers)
    suffix = _suffix(registers)
    lines = []
    if registers.dot:
        lines.append(f"declare {kind} @{_dot(registers)}({kind}, {kind}, {kind})")
    if registers.fused:
        lines.append(f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})")
    mask = f"<{registers.width} x i1>"
    if how.ends:
        lines.append(f"declare {kind} @llvm.masked.load.{suffix}.p0(ptr, {mask}, {kind})")
    if how.direct:
        lines.append(f"declare void @llvm.masked.store.{suffix}.p0({kind}, ptr, {mask})")
        lines.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    return lines


def _vector(registers: Registers) -> str:
    return f"<{registers.width} x {scalar_type(registers.dtype)}>"


def _suffix(registers: Registers) -> str:
    inner = scalar_type(registers.dtype)
    return f"v{registers.width}{ {'float': 'f32', 'double': 'f64'}.get(inner, inner) }"


_ARGS = "ptr noalias %A, i64 %as, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %cs, i64 %depth, "


def _tile(registers: Registers, rows: int, vectors: int, how: _How) -> str:
    """One register block over all of the depth; one step of k a turn keeps registers free."""
    masked, across = how.masked, how.across
    inner, kind, width = scalar_type(registers.dtype), _vector(registers), registers.width
    lines: list[str] = []
    count = 0

    def let(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %t{count} = {text}")
        return f"%t{count}"

    cells = [(i, v) for i in range(rows) for v in range(vectors)]
    if how.direct:  # results are far away, and wanted at the end
        ahead = "%C"
        for i in range(rows):
            for v in range(vectors):
                place = let(f"getelementptr {inner}, ptr {ahead}, i64 {v * width}")
                lines.append(f"  call void @llvm.prefetch.p0(ptr {place}, i32 1, i32 3, i32 1)")
            if i + 1 < rows:
                ahead = let(f"getelementptr {inner}, ptr {ahead}, i64 %cs")
    lines += ["  br label %k", "k:"]
    lines.append("  %i = phi i64 [ 0, %entry ], [ %inext, %k ]")
    lines.append("  %a = phi ptr [ %A, %entry ], [ %anext, %k ]")
    lines.append("  %b = phi ptr [ %B, %entry ], [ %bnext, %k ]")
    begin = "%less{v}" if registers.dot == "ss" else "zeroinitializer"
    lines += [
        f"  %c{i}_{v} = phi {kind} [ {begin.format(v=v)}, %entry ], [ %r{i}_{v}, %k ]"
        for i, v in cells
    ]
    columns = []
    for v in range(vectors):
        place = let(f"getelementptr {inner}, ptr %b, i64 {v * width}")
        if masked:
            mask = f"<{width} x i1> %mask{v}"
            name = f"llvm.masked.load.{_suffix(registers)}.p0"
            operands = f"ptr align 1 {place}, {mask}, {kind} zeroinitializer"
            columns.append(let(f"call {kind} @{name}({operands})"))
        else:
            columns.append(let(f"load {kind}, ptr {place}, align 1"))
    row = "%a"
    for i in range(rows):
        number = let(f"load {inner}, ptr {row}, align 1")
        first = let(f"insertelement {kind} poison, {inner} {number}, i64 0")
        spread = let(
            f"shufflevector {kind} {first}, {kind} poison, <{width} x i32> zeroinitializer"
        )
        for v in range(vectors):
            lines.append(f"  %r{i}_{v} = {_add(registers, spread, columns[v], f'%c{i}_{v}', let)}")
        if i + 1 < rows:
            row = let(f"getelementptr {inner}, ptr {row}, i64 {'1' if across else '%as'}")
    lines.append(f"  %anext = getelementptr {inner}, ptr %a, i64 {'%as' if across else '1'}")
    lines.append(f"  %bnext = getelementptr {inner}, ptr %b, i64 %bs")
    lines.append("  %inext = add i64 %i, 1")
    lines.append("  %more = icmp slt i64 %inext, %depth")
    lines.append("  br i1 %more, label %k, label %end")
    lines.append("end:")
    lines.append("  br i1 %first, label %set, label %sum")
    for label in ("set", "sum"):
        lines.append(f"{label}:")
        row = "%C"
        for i in range(rows):
            for v in range(vectors):
                place = let(f"getelementptr {inner}, ptr {row}, i64 {v * width}")
                total = f"%r{i}_{v}"
                where = f"ptr align 1 {place}, <{width} x i1> %mask{v}"
                if label == "sum":
                    read = f"load {kind}, ptr {place}, align 1"
                    if how.direct:
                        read = f"call {kind} @llvm.masked.load.{_suffix(registers)}.p0({where}, "
                        read += f"{kind} zeroinitializer)"
                    add = "fadd" if registers.dtype.kind == "f" else "add"
                    total = let(f"{add} {kind} {let(read)}, {total}")
                if how.direct:
                    name = f"llvm.masked.store.{_suffix(registers)}.p0"
                    lines.append(f"  call void @{name}({kind} {total}, {where})")
                else:
                    lines.append(f"  store {kind} {total}, ptr {place}, align 1")
            if i + 1 < rows:
                row = let(f"getelementptr {inner}, ptr {row}, i64 %cs")
        lines.append("  ret void")
    masks = _given(registers, vectors, how)
    body = "\n".join(lines)
    head = f"define internal void @PART{rows}_{vectors}({_ARGS}{masks}i1 %first)"
    return f"{head} nounwind {{\nentry:\n{body}\n}}"


def _given(registers: Registers, vectors: int, how: _How) -> str:
    """What a register block gets for each vector of columns."""
    width, kind = registers.width, _vector(registers)
    masks = [f"<{width} x i1> %mask{v}, " for v in range(vectors)] if how.ends else []
    less = [f"{kind} %less{v}, " for v in range(vectors)] if registers.dot == "ss" else []
    return "".join([*masks, *less])


def _dot(registers: Registers) -> str:
    """The instruction that adds four products of bytes to each lane."""
    return f"llvm.x86.avx512.vpdpbusd.{registers.width * 32}"


def _surplus(registers: Registers) -> list[str]:
    """A's signed bytes are stored 128 too large: what that adds to the sums of each column."""
    kind, width = _vector(registers), registers.width
    vectors = range(registers.vectors)
    lines = ["  br label %surplus", "surplus:"]
    lines.append("  %si = phi i64 [ 0, %entry ], [ %sn, %surplus ]")
    lines += [f"  %s{v} = phi {kind} [ zeroinitializer, %entry ], [ %sum{v}, %surplus ]"
              for v in vectors]  # fmt: skip
    lines.append("  %soff = mul i64 %si, %bs")
    lines.append("  %sb = getelementptr i32, ptr %B, i64 %soff")
    high = "<" + ", ".join(["i32 -2139062144"] * width) + ">"  # four bytes of 128
    for v in vectors:
        lines += [
            f"  %sp{v} = getelementptr i32, ptr %sb, i64 {v * width}",
            f"  %sv{v} = load {kind}, ptr %sp{v}, align 1",
            f"  %sum{v} = call {kind} @{_dot(registers)}({kind} %s{v}, {kind} {high}, "
            f"{kind} %sv{v})",
        ]
    lines += ["  %sn = add i64 %si, 1", "  %smore = icmp slt i64 %sn, %depth",
              "  br i1 %smore, label %surplus, label %start", "start:"]  # fmt: skip
    return lines + [f"  %less{v} = sub {kind} zeroinitializer, %sum{v}" for v in vectors]


def _add(registers: Registers, a: str, b: str, c: str, let: Let) -> str:
    kind = _vector(registers)
    if registers.dot:
        first, second = (b, a) if registers.dot == "su" else (a, b)
        return f"call {kind} @{_dot(registers)}({kind} {c}, {kind} {first}, {kind} {second})"
    if registers.fused:
        return f"call {kind} @llvm.fma.{_suffix(registers)}({kind} {a}, {kind} {b}, {kind} {c})"
    letter = "f" if registers.dtype.kind == "f" else ""
    product = let(f"{letter}mul {kind} {a}, {b}")
    return f"{letter}add {kind} {product}, {c}"


def _driver(registers: Registers, heights: list[int], how: _How) -> str:
    """Whole blocks, then the tallest that still fits, until no row is left."""
    inner, width = scalar_type(registers.dtype), registers.width
    lines, before = ["entry:"], "entry"
    if registers.dot == "ss":
        lines, before = [*lines, *_surplus(registers)], "start"
    if how.ends:
        lanes = ", ".join(f"i32 {i}" for i in range(width))
        for v in range(registers.vectors):
            lines += [
                f"  %left{v} = sub i64 %columns, {v * width}",
                f"  %low{v} = icmp slt i64 %left{v}, 0",
                f"  %some{v} = select i1 %low{v}, i64 0, i64 %left{v}",
                f"  %short{v} = trunc i64 %some{v} to i32",
                f"  %one{v} = insertelement <{width} x i32> poison, i32 %short{v}, i64 0",
                f"  %all{v} = shufflevector <{width} x i32> %one{v}, <{width} x i32> poison, "
                f"<{width} x i32> zeroinitializer",
                f"  %mask{v} = icmp ult <{width} x i32> <{lanes}>, %all{v}",
            ]
    sizes = " ".join(f"i64 {v}, label %wide{v}_" for v in range(1, registers.vectors + 1))
    lines += [
        f"  %upper = add i64 %columns, {width - 1}",
        f"  %needed = udiv i64 %upper, {width}",
        f"  %fits = icmp slt i64 %needed, {registers.vectors}",
        f"  %vectors = select i1 %fits, i64 %needed, i64 {registers.vectors}",
        "  br label %head",
        "head:",
        f"  %a = phi ptr [ %A, %{before} ], [ %anext, %next ]",
        f"  %c = phi ptr [ %C, %{before} ], [ %cnext, %next ]",
        f"  %left = phi i64 [ %rows, %{before} ], [ %after, %next ]",
        "  %done = icmp sle i64 %left, 0",
        "  br i1 %done, label %out, label %pick",
        "pick:",
        f"  %whole = icmp sge i64 %left, {heights[-1]}",
        f"  %tall = select i1 %whole, i64 {heights[-1]}, i64 %left",
        f"  switch i64 %vectors, label %out [ {sizes} ]",
    ]
    joins: list[tuple[str, int]] = []
    for vectors in range(1, registers.vectors + 1):
        label = f"wide{vectors}_"
        cases = []
        for most in range(1, heights[-1] + 1):
            rows = max(h for h in heights if h <= most)
            cases.append(f"i64 {most}, label %{label}{rows}")
        lines += [f"{label}:", f"  switch i64 %tall, label %out [ {' '.join(cases)} ]"]
        given = _given(registers, vectors, how)
        for rows in heights:
            name = f"{label}{rows}"
            operands = (
                f"ptr %a, i64 %as, ptr %B, i64 %bs, ptr %c, i64 %cs, i64 %depth, {given}i1 %first"
            )
            lines += [f"{name}:", f"  call void @PART{rows}_{vectors}({operands})",
                      "  br label %next"]  # fmt: skip
            joins.append((name, rows))
    arms = ", ".join(f"[ {rows}, %{name} ]" for name, rows in joins)
    lines += [
        "next:",
        f"  %taken = phi i64 {arms}",
        f"  %aoff = mul i64 %taken, {'1' if how.across else '%as'}",
        f"  %anext = getelementptr {inner}, ptr %a, i64 %aoff",
        "  %coff = mul i64 %taken, %cs",
        f"  %cnext = getelementptr {inner}, ptr %c, i64 %coff",
        "  %after = sub i64 %left, %taken",
        "  br label %head",
        "out:",
        "  ret void",
    ]
    head = f"define void @SELF({_ARGS}i64 %rows, i64 %columns, i1 %first)"
    return f"{head} nounwind {{\n" + "\n".join(lines) + "\n}"


STEPS = 8  # rows of the right factor that a sweep takes at a time
ABREAST = 2  # vectors of columns; a row of the tile is a whole number of them


@lru_cache(maxsize=32)
def sweep(registers: Registers) -> Module:
    """As `block` with at most `FEW` rows, for any number of columns: memory is read in long rows.

    Sums stay in the tile, which is small; the right factor streams by once, in order.
    """
    parts = [_swept(registers, rows, steps) for rows in range(1, FEW + 1) for steps in (1, STEPS)]
    lines = ["entry:", "  br i1 %first, label %clear, label %start", "clear:", "  br label %zero"]
    inner, kind, width = scalar_type(registers.dtype), _vector(registers), registers.width
    lines += [
        "zero:",
        "  %i = phi i64 [ 0, %clear ], [ %inext, %zerorow ]",
        "  %offset = mul i64 %i, %cs",
        f"  %row = getelementptr {inner}, ptr %C, i64 %offset",
        "  br label %zerocell",
        "zerocell:",
        "  %j = phi i64 [ 0, %zero ], [ %jnext, %zerocell ]",
        f"  %cell = getelementptr {inner}, ptr %row, i64 %j",
        f"  store {kind} zeroinitializer, ptr %cell, align 1",
        f"  %jnext = add i64 %j, {width}",
        "  %jmore = icmp slt i64 %jnext, %cs",
        "  br i1 %jmore, label %zerocell, label %zerorow",
        "zerorow:",
        "  %inext = add i64 %i, 1",
        "  %imore = icmp slt i64 %inext, %rows",
        "  br i1 %imore, label %zero, label %start",
        "start:",
        f"  %rest = urem i64 %depth, {STEPS}",
        "  %whole = sub i64 %depth, %rest",
        "  br label %head",
        "head:",
        "  %k = phi i64 [ 0, %start ], [ %knext, %next ]",
        f"  %a = getelementptr {inner}, ptr %A, i64 %k",
        "  %down = mul i64 %k, %bs",
        f"  %b = getelementptr {inner}, ptr %B, i64 %down",
        "  %done = icmp sge i64 %k, %depth",
        "  br i1 %done, label %out, label %pick",
        "pick:",
        "  %many = icmp slt i64 %k, %whole",
        "  br i1 %many, label %long, label %short",
    ]
    joins = []
    for label, steps in (("long", STEPS), ("short", 1)):
        cases = " ".join(f"i64 {rows}, label %{label}{rows}" for rows in range(1, FEW + 1))
        lines += [f"{label}:", f"  switch i64 %rows, label %out [ {cases} ]"]
        for rows in range(1, FEW + 1):
            call = "ptr %a, i64 %as, ptr %b, i64 %bs, ptr %C, i64 %cs, i64 %columns"
            lines += [f"{label}{rows}:", f"  call void @PART{rows}_{steps}({call})",
                      "  br label %next"]  # fmt: skip
            joins.append(f"[ {steps}, %{label}{rows} ]")
    lines += [
        "next:",
        f"  %taken = phi i64 {', '.join(joins)}",
        "  %knext = add i64 %k, %taken",
        "  br label %head",
        "out:",
        "  ret void",
    ]
    head = f"define void @SELF({_ARGS}i64 %rows, i64 %columns, i1 %first)"
    text = f"{head} nounwind {{\n" + "\n".join(lines) + "\n}"
    declared = _declared(registers, _How(masked=True, across=False, direct=False))
    declared.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    return _named(f"sweep_{registers.dtype}", "\n".join([text, *parts, *declared]))


def _swept(registers: Registers, rows: int, steps: int) -> str:
    """Some rows times a few steps of k, over all columns."""
    inner, kind, width = scalar_type(registers.dtype), _vector(registers), registers.width
    lines: list[str] = []
    count = 0

    def let(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %t{count} = {text}")
        return f"%t{count}"

    ahead = let(f"mul i64 %bs, {steps}")
    places = []
    for u in range(steps):
        offset = let(f"mul i64 %bs, {u}")
        places.append(let(f"getelementptr {inner}, ptr %B, i64 {offset}"))
    starts = []
    for i in range(rows):
        offset = let(f"mul i64 %as, {i}")
        starts.append(let(f"getelementptr {inner}, ptr %A, i64 {offset}"))
    sums = []
    for i in range(rows):
        offset = let(f"mul i64 %cs, {i}")
        sums.append(let(f"getelementptr {inner}, ptr %C, i64 {offset}"))
    lines += ["  br label %j", "j:", "  %at = phi i64 [ 0, %entry ], [ %after, %j ]"]
    lanes = ", ".join(f"i32 {i}" for i in range(width))
    zeros = f"<{width} x i32> zeroinitializer"
    masks = []
    for v in range(ABREAST):
        left = let(f"sub i64 %columns, {let(f'add i64 %at, {v * width}')}")
        full = let(f"icmp sgt i64 {left}, {width}")
        some = let(f"select i1 {full}, i64 {width}, i64 {left}")
        none = let(f"icmp slt i64 {some}, 0")
        short = let(f"trunc i64 {let(f'select i1 {none}, i64 0, i64 {some}')} to i32")
        one = let(f"insertelement <{width} x i32> poison, i32 {short}, i64 0")
        all_ = let(f"shufflevector <{width} x i32> {one}, <{width} x i32> poison, {zeros}")
        masks.append(let(f"icmp ult <{width} x i32> <{lanes}>, {all_}"))
    cells: dict[tuple[int, int], str] = {}
    for i in range(rows):
        for v in range(ABREAST):
            place = let(f"getelementptr {inner}, ptr {sums[i]}, i64 %at")
            cells[i, v] = let(f"getelementptr {inner}, ptr {place}, i64 {v * width}")
    totals = {key: let(f"load {kind}, ptr {cell}, align 1") for key, cell in cells.items()}
    name = f"llvm.masked.load.{_suffix(registers)}.p0"
    for u in range(steps):
        columns = []
        for v in range(ABREAST):
            place = let(f"getelementptr {inner}, ptr {places[u]}, i64 %at")
            place = let(f"getelementptr {inner}, ptr {place}, i64 {v * width}")
            operands = f"ptr align 1 {place}, <{width} x i1> {masks[v]}, {kind} zeroinitializer"
            columns.append(let(f"call {kind} @{name}({operands})"))
            if steps > 1:  # the same columns of the rows after these: too far for prefetchers
                next_ = let(f"getelementptr {inner}, ptr {place}, i64 {ahead}")
                lines.append(f"  call void @llvm.prefetch.p0(ptr {next_}, i32 0, i32 3, i32 1)")
        for i in range(rows):
            number = let(f"getelementptr {inner}, ptr {starts[i]}, i64 {u}")
            number = let(f"load {inner}, ptr {number}, align 1")
            first = let(f"insertelement {kind} poison, {inner} {number}, i64 0")
            spread = let(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
            for v in range(ABREAST):
                totals[i, v] = let(_add(registers, spread, columns[v], totals[i, v], let))
    for key, cell in cells.items():
        lines.append(f"  store {kind} {totals[key]}, ptr {cell}, align 1")
    lines += [
        f"  %after = add i64 %at, {ABREAST * width}",
        "  %more = icmp slt i64 %after, %columns",
        "  br i1 %more, label %j, label %end",
        "end:",
        "  ret void",
    ]
    args = "ptr noalias %A, i64 %as, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %cs, i64 %columns"
    body = "\n".join(lines)
    head = f"define internal void @PART{rows}_{steps}({args})"
    return f"{head} nounwind {{\nentry:\n{body}\n}}"


@lru_cache(maxsize=32)
def transpose(registers: Registers) -> Module:
    """`void f(ptr from, ptr to, i64 stride)`: a square of lanes x lanes, rows become columns."""
    inner, kind, width = scalar_type(registers.dtype), _vector(registers), registers.width
    lanes = registers.target.lanes
    lines: list[str] = []
    count = 0

    def let(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %t{count} = {text}")
        return f"%t{count}"

    for top in range(0, lanes, width):
        for left in range(0, lanes, width):
            rows = []
            for i in range(width):
                place = let(f"getelementptr {inner}, ptr %from, i64 {(top + i) * lanes + left}")
                rows.append(let(f"load {kind}, ptr {place}, align 1"))
            half = 1
            while half < width:
                rows = _exchange(rows, half, kind, width, let)
                half *= 2
            for i, row in enumerate(rows):
                offset = let(f"mul i64 %stride, {left + i}")
                line = let(f"getelementptr {inner}, ptr %to, i64 {offset}")
                place = let(f"getelementptr {inner}, ptr {line}, i64 {top}")
                lines.append(f"  store {kind} {row}, ptr {place}, align 1")
    body = "\n".join(lines)
    text = (
        f"define void @SELF(ptr noalias %from, ptr noalias %to, i64 %stride) nounwind {{\n"
        f"entry:\n{body}\n  ret void\n}}"
    )
    return _named(f"transpose_{registers.dtype}", text)


def _exchange(rows: list[str], half: int, kind: str, width: int, let: Let) -> list[str]:
    """Swap the off-diagonal squares of side `half` in every square of side 2 * half."""
    out = list(rows)
    for i in range(width):
        if i & half:
            continue
        upper, lower = rows[i], rows[i + half]
        first = [p if not p & half else width + (p ^ half) for p in range(width)]
        second = [p ^ half if not p & half else width + p for p in range(width)]
        for place, picks in ((i, first), (i + half, second)):
            mask = ", ".join(f"i32 {p}" for p in picks)
            out[place] = let(
                f"shufflevector {kind} {upper}, {kind} {lower}, <{width} x i32> <{mask}>"
            )
    return out
