"""AMX register blocks: sixteen rows times up to three tiles of columns, as assembly text.

In: the registers. Out: the texts of a module's function with the arguments of `microkernel.block`,
over operands that are packed as dot-product instructions of AVX-512 read them: numbers of 32 bits,
which are two bfloat16 or four bytes along k. A row of a tile of A is sixteen such numbers, a row of
a tile of B a vector of a panel. Rows, columns and steps that are left over are tiles of fewer rows
and bytes: the shapes of tiles are data (a configuration of 64 bytes), so bits do not depend on how
a product is cut.
"""

from __future__ import annotations

from ..tiling import GEMM
from .avx512_asm import module_assembly

_ROWS, _LINE = GEMM.amx_tile_rows, GEMM.amx_row_bytes
_SAVED = ("%rbx", "%r12", "%r13", "%r14", "%rbp")
_BLOCKS, _ADDS, _APART, _STEPS, _LOW = _SAVED


def amx_block(arguments: str, instruction: str, vectors: int, begin: str) -> list[str]:
    """The functions of a block: `SELF`, what it calls, and the assembly of these.

    `begin` are lines that leave `%fresh`, an i64 that is 0 where sums begin with 0, else 1.
    """
    parts = [f"PART_tiles{v}" for v in range(1, vectors + 1)]
    texts = [_tiles(name, instruction, v, vectors) for v, name in enumerate(parts, start=1)]
    parts.append("PART_twice")
    texts.append(_tiles(parts[-1], instruction, vectors, vectors, twice=True))
    declared = [f"declare dso_local void @{name}({_TILES})" for name in parts]
    return [_driver(arguments, vectors, begin), _run(vectors), module_assembly(texts), *declared]


_TILES = "ptr, i64, ptr, ptr, i64, i64, i64, i64, ptr"


def _tiles(name: str, instruction: str, vectors: int, panel: int, twice: bool = False) -> str:
    """`void f(ptr A, i64 bytes, ptr B, ptr C, i64 bytes, i64 steps, i64 blocks, i64 adds, ptr
    shapes)`: blocks of rows, each over some steps of sixteen numbers along k. One with `twice` the
    rows, of whole panels, reads B from L2 half as often: its sums are all but two of the tiles."""
    places = [f"{_LINE * v}" if v else "" for v in range(vectors)]
    sums = [(f"{at}(%rcx,%r8)", f"%tmm{v}") for v, at in enumerate(places)]
    stack, shift, step = 8 * (1 + len(_SAVED)), 4, _step
    below, low, next_low = list[str](), list[str](), list[str]()
    if twice:
        sums += [(f"{at}(%r11,%r8)", f"%tmm{vectors + v}") for v, at in enumerate(places)]
        shift, step = 5, _step_twice
        below = ["movq %r8, %r11", "shlq $4, %r11", "addq %rcx, %r11"]
        low = [f"movq %rsi, {_LOW}", f"shlq $4, {_LOW}", f"addq %rdi, {_LOW}"]
        next_low = [f"addq ${_LINE}, {_LOW}"]
    lines = [
        f"{name}:",
        *[f"pushq {register}" for register in _SAVED],
        f"movq {stack}(%rsp), {_BLOCKS}",
        f"movq {stack + 8}(%rsp), {_ADDS}",
        f"movq {stack + 16}(%rsp), %rax",
        "ldtilecfg (%rax)",
        f"movq ${_LINE * panel}, {_APART}",
        "1:",
        *below,
        f"testq {_ADDS}, {_ADDS}",
        "je 2f",
        *[f"tileloadd {place}, {tile}" for place, tile in sums],
        "jmp 3f",
        "2:",
        *[f"tilezero {tile}" for _, tile in sums],
        "3:",
        "movq %rdi, %rax",
        "movq %rdx, %r10",
        f"movq %r9, {_STEPS}",
        *low,
        ".p2align 4",
        "4:",
        *step(instruction, places),
        f"addq ${_LINE}, %rax",
        *next_low,
        f"addq ${_ROWS * _LINE * panel}, %r10",
        f"decq {_STEPS}",
        "jg 4b",
        *[f"tilestored {tile}, {place}" for place, tile in sums],
        "movq %rsi, %rax",
        f"shlq ${shift}, %rax",
        "addq %rax, %rdi",
        "movq %r8, %rax",
        f"shlq ${shift}, %rax",
        "addq %rax, %rcx",
        f"decq {_BLOCKS}",
        "jg 1b",
        "tilerelease",
        *[f"popq {register}" for register in reversed(_SAVED)],
        "retq",
        ".p2align 4",
    ]
    return "\n".join(lines)


def _step(instruction: str, places: list[str]) -> list[str]:
    """One step: a tile of A times each tile of B."""
    lines = ["tileloadd (%rax,%rsi), %tmm3"]
    for v, at in enumerate(places):
        lines.append(f"tileloadd {at}(%r10,{_APART}), %tmm{4 + v}")
        lines.append(f"{instruction} %tmm{4 + v}, %tmm3, %tmm{v}")
    return lines


def _step_twice(instruction: str, places: list[str]) -> list[str]:
    """One step of two tiles of A: the second takes those of B the other way, the last again."""
    vectors = len(places)
    lines = ["tileloadd (%rax,%rsi), %tmm6"]
    for v, at in enumerate(places):
        lines.append(f"tileloadd {at}(%r10,{_APART}), %tmm7")
        lines.append(f"{instruction} %tmm7, %tmm6, %tmm{v}")
    lines.append(f"tileloadd ({_LOW},%rsi), %tmm6")
    for v, at in reversed(list(enumerate(places))):
        if v + 1 < vectors:
            lines.append(f"tileloadd {at}(%r10,{_APART}), %tmm7")
        lines.append(f"{instruction} %tmm7, %tmm6, %tmm{vectors + v}")
    return lines


def _run(vectors: int) -> str:
    """Blocks of `high` rows over some steps of `deep` numbers: the shapes of tiles, and the call
    for as many vectors as there are columns."""
    lines = [
        "  %shapes = alloca [64 x i8], align 64",
        "  call void @llvm.memset.p0.i64(ptr align 64 %shapes, i8 0, i64 64, i1 false)",
        "  store i8 1, ptr %shapes",  # the palette
        "  %high8 = trunc i64 %high to i8",
        "  %deep8 = trunc i64 %deep to i8",
        "  %bytes = mul i64 %deep, 4",
        "  %bytes16 = trunc i64 %bytes to i16",
    ]

    def shape(tile: int, rows: str, bytes_: str) -> list[str]:
        return [
            f"  %w{tile} = getelementptr i8, ptr %shapes, i64 {16 + 2 * tile}",
            f"  store i16 {bytes_}, ptr %w{tile}",
            f"  %h{tile} = getelementptr i8, ptr %shapes, i64 {48 + tile}",
            f"  store i8 {rows}, ptr %h{tile}",
        ]

    lines += shape(3, "%high8", "%bytes16")
    for v in range(vectors):
        lines += [
            f"  %left{v} = sub i64 %columns, {_ROWS * v}",
            f"  %some{v} = call i64 @llvm.smax.i64(i64 %left{v}, i64 1)",
            f"  %wide{v} = call i64 @llvm.smin.i64(i64 %some{v}, i64 {_ROWS})",
            f"  %line{v} = mul i64 %wide{v}, 4",
            f"  %line16{v} = trunc i64 %line{v} to i16",
            *shape(v, "%high8", f"%line16{v}"),
            *shape(4 + v, "%deep8", f"%line16{v}"),
        ]
    cases = " ".join([f"i64 {v}, label %tiles{v}" for v in range(1, vectors + 1)])
    lines += _run_twice(vectors)
    lines += [
        f"  %upper = add i64 %columns, {_ROWS - 1}",
        f"  %vectors = udiv i64 %upper, {_ROWS}",
        f"  switch i64 %vectors, label %out [ {cases} ]",
    ]
    operands = "ptr %A, i64 %as, ptr %B, ptr %C, i64 %cs, i64 %steps, i64 %blocks, i64 %adds"
    left = "ptr %Aleft, i64 %as, ptr %B, ptr %Cleft, i64 %cs, i64 %steps, i64 %single, i64 %adds"
    for v in range(1, vectors + 1):
        lines += [f"tiles{v}:", f"  call void @PART_tiles{v}({left}, ptr %shapes)",
                  "  br label %out"]  # fmt: skip
    body = "\n".join([*lines, "out:", "  ret void"])
    head = f"define internal void @PART_run({operands}, i64 %high, i64 %deep, i64 %columns)"
    return (
        f"{head} nounwind {{\nentry:\n{body}\n}}\n"
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
        "declare i64 @llvm.smax.i64(i64, i64)\ndeclare i64 @llvm.smin.i64(i64, i64)"
    )


def _run_twice(vectors: int) -> list[str]:
    """Blocks of whole panels two at a time, with shapes of their own; what is left of them."""
    whole = f"<8 x i16> <{', '.join([f'i16 {_LINE}'] * 8)}>"
    high = f"<8 x i8> <{', '.join([f'i8 {_ROWS}'] * 8)}>"
    return [
        f"  %full = icmp eq i64 %columns, {_ROWS * vectors}",
        f"  %tall = icmp eq i64 %high, {_ROWS}",
        f"  %long = icmp eq i64 %deep, {_ROWS}",
        "  %both = and i1 %full, %tall",
        "  %plain = and i1 %both, %long",
        "  %half = lshr i64 %blocks, 1",
        "  %pairs = select i1 %plain, i64 %half, i64 0",
        "  %some = icmp sgt i64 %pairs, 0",
        "  %doubled = mul i64 %pairs, 2",
        "  %single = sub i64 %blocks, %doubled",
        f"  %down = mul i64 %doubled, {_ROWS}",
        "  %adown = mul i64 %down, %as",
        "  %cdown = mul i64 %down, %cs",
        "  %Aleft = getelementptr i8, ptr %A, i64 %adown",
        "  %Cleft = getelementptr i8, ptr %C, i64 %cdown",
        "  br i1 %some, label %twice, label %once",
        "twice:",
        "  %square = alloca [64 x i8], align 64",
        "  call void @llvm.memset.p0.i64(ptr align 64 %square, i8 0, i64 64, i1 false)",
        "  store i8 1, ptr %square",
        "  %widths = getelementptr i8, ptr %square, i64 16",
        f"  store {whole}, ptr %widths, align 2",
        "  %heights = getelementptr i8, ptr %square, i64 48",
        f"  store {high}, ptr %heights, align 1",
        "  call void @PART_twice(ptr %A, i64 %as, ptr %B, ptr %C, i64 %cs, i64 %steps, i64 %pairs, "
        "i64 %adds, ptr %square)",
        "  br label %once",
        "once:",
        "  %none = icmp eq i64 %single, 0",
        "  br i1 %none, label %out, label %more",
        "more:",
    ]


def _driver(arguments: str, vectors: int, begin: str) -> str:
    """Whole tiles first, then steps that are left; whole blocks of rows first, then those left."""
    deep = _ROWS * _LINE * vectors  # bytes of a step of a panel
    lines = [
        "entry:",
        begin,
        "  %abytes = mul i64 %as, 4",
        "  %cbytes = mul i64 %cs, 4",
        "  %whole = lshr i64 %depth, 4",
        "  %rest = and i64 %depth, 15",
        "  %aoff = mul i64 %whole, 64",
        f"  %boff = mul i64 %whole, {deep}",
        "  %blocks = lshr i64 %rows, 4",
        "  %last = and i64 %rows, 15",
        "  %many = icmp sgt i64 %blocks, 0",
        "  %few = icmp sgt i64 %last, 0",
        "  %above = and i64 %rows, -16",
        "  %adown = mul i64 %above, %abytes",
        "  %cdown = mul i64 %above, %cbytes",
        "  %Alow = getelementptr i8, ptr %A, i64 %adown",
        "  %Clow = getelementptr i8, ptr %C, i64 %cdown",
        "  %has = icmp sgt i64 %whole, 0",
        "  %odd = icmp sgt i64 %rest, 0",
        "  %again = select i1 %has, i64 1, i64 %fresh",
        "  %Brest = getelementptr i8, ptr %B, i64 %boff",
    ]

    def part(label: str, a: str, c: str, blocks: str, high: str, there: str) -> list[str]:
        found = [f"{label}:"]
        for piece, b, steps, adds, size, when in (
            ("w", "%B", "%whole", "%fresh", "16", "%has"),
            ("r", "%Brest", "1", "%again", "%rest", "%odd"),
        ):
            at = a
            if piece == "r":
                at = f"%{label}a"
                found.append(f"  {at} = getelementptr i8, ptr {a}, i64 %aoff")
            found += [
                f"  %{label}{piece} = and i1 {there}, {when}",
                f"  br i1 %{label}{piece}, label %{label}{piece}do, label %{label}{piece}out",
                f"{label}{piece}do:",
                f"  call void @PART_run(ptr {at}, i64 %abytes, ptr {b}, ptr {c}, i64 %cbytes, "
                f"i64 {steps}, i64 {blocks}, i64 {adds}, i64 {high}, i64 {size}, i64 %columns)",
                f"  br label %{label}{piece}out",
                f"{label}{piece}out:",
            ]
        return found

    lines += ["  br label %top", *part("top", "%A", "%C", "%blocks", "16", "%many")]
    lines += ["  br label %low", *part("low", "%Alow", "%Clow", "1", "%last", "%few")]
    lines.append("  ret void")
    head = f"define void @SELF({arguments}i64 %rows, i64 %columns, i1 %first, ptr %ahead)"
    return f"{head} nounwind {{\n" + "\n".join(lines) + "\n}"
