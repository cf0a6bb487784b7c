"""Microkernels: the register blocks that all GEMMs of a target share, as module texts.

In: the dtype that is accumulated in and the target. Out: texts of modules with one function each
that others call, named after a digest of their text, so that the name is the version.
`block` adds rows times one panel of columns to a tile: C[i, j] (+)= Σ_k A[i, k] B[k, j], with
columns next to each other in a row of B, and run-time strides for everything else. Whole register
blocks first, then lower ones; narrow panels have blocks of their own. B is a packed panel, or
dense memory; rows of A may be windows, whose steps of k are several runs of memory (`in_runs`).
`transpose` turns a square of lanes x lanes. A block sums over its depth in
registers and adds that to the tile once, so errors grow with the depth of a block, and bits do not
depend on how tiles are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ....core.digest import blake2b
from ....core.dtype import DType
from ....core.lazy_dataclass import dataclass
from ..llvm.emitter import scalar_type
from ..llvm.masked import declaration, reading, writing
from ..loops.function import FunctionBuilder
from ..target import Target
from ..tiling import GEMM
from .avx512_asm import FETCHED_BYTES, fused_packing, module_assembly, register_block

# rows and vectors of columns of a register block; a panel is a whole number of `lanes` columns
SHAPES = {"avx512": (9, 3), "avx2": (6, 2), "sse2": (4, 2), "neon": (8, 2)}
WIDE_SHAPES = SHAPES | {"avx512": (6, 4)}  # of numbers of 64 bits
# rows and vectors of columns of a direct convolution of float32, by how far apart lanes are: a
# number that is broadcast serves two vectors; a load for each takes longer than their products
DIRECT_BLOCKS = {
    ("avx512", "near"): ((12, 2), (8, 2), (4, 4)), ("avx512", "two"): ((12, 2), (8, 2), (4, 4)),
    ("avx2", "near"): ((6, 2), (4, 2)), ("avx2", "two"): ((8, 1), (4, 2)),
}  # fmt: skip
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
    pairs: bool = False  # are numbers two bfloat16 each, whose products are added to a float32?
    words: bool = False  # are four bytes one number in memory already?

    @property
    def width(self) -> int:
        """Numbers in one vector register."""
        return self.target.lanes * 32 // self.dtype.bits

    @property
    def packs_vnni(self) -> bool:
        """True if bytes that lie one by one are packed by fours (VNNI)."""
        return bool(self.dot) and not self.words

    @property
    def has_tiles(self) -> bool:
        """True if blocks are products of AMX tiles."""
        wanted = {"amx_bf16"} if self.pairs else {"amx_int8"} if self.packs_vnni else {"none"}
        return wanted | {"amx_tile"} <= self.target.features

    @property
    def flips(self) -> bool:
        """True if signed bytes of A are packed 128 too large: VNNI multiplies them by signed ones
        as if they had no sign, AMX has an instruction for both."""
        return self.dot == "ss" and not self.has_tiles

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of a block, and its vectors of columns."""
        if self.has_tiles:
            return GEMM.amx_tile_rows, SHAPES["avx512"][1]
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

    def direct_blocks(self, load: str) -> tuple[tuple[int, int], ...]:
        """Rows and vectors of columns of a direct convolution whose accumulators are registers, the
        highest first: it loads the fewest windows."""
        found = DIRECT_BLOCKS.get((self.target.vectors, load), ())
        each = self.dtype.bits // 32  # registers of a vector
        return tuple([(r // each, v) for r, v in found if r // each > GEMM.direct_rows])

    @property
    def most(self) -> int:
        """Vectors of columns that a block takes: one more than a panel has, where a lower block of
        so many is as quick as others."""
        return self.vectors + (self.assembled and self.vectors == 3)

    @property
    def assembled(self) -> bool:
        """True if register blocks are written in assembly."""
        return self.fused and self.target.vectors == "avx512" and not self.has_tiles

    @property
    def fused(self) -> bool:
        """True if a product is added without rounding it first."""
        return self.dtype.kind == "f" and self.target.vectors != "sse2"


def named(stem: str, body: str) -> Module:
    """A module whose function is called SELF in its text, and other functions PART."""
    digest = blake2b(body.encode(), digest_size=8).hexdigest()
    name = f"fulgurite_{stem}_{digest}"
    return Module(name, body.replace("@SELF", f"@{name}").replace("PART", f"{name}_part"))


def defined(f: FunctionBuilder, head: str) -> tuple[str, dict[str, str]]:
    """A function that was written, as a definition, and what it declares."""
    body = "\n".join([*f.entry, *f.e.lines])
    return f"define {head} nounwind {{\nentry:\n{body}\n  ret void\n}}", f.e.declared


def library_module(stem: str, f: FunctionBuilder, arguments: str, *more: str) -> Module:
    """A function that was written as a module, with `more` functions of its own."""
    text, declared = defined(f, f"void @SELF({arguments})")
    return named(stem, "\n".join([text, *more, *declared.values()]))


@lru_cache(maxsize=32)
def block(registers: Registers, in_runs: bool = False) -> Module:
    """`void f(ptr A, i64 rows', i64 steps', ptr B, i64 stride, ptr C, i64 stride, i64 depth,
    i64 rows, i64 columns, i1 first, ptr ahead)`: rows times at most one panel of columns, with A's
    strides between rows and between steps of k. What is at `ahead` is fetched, as much as a panel;
    if it is null, B is dense memory, which is not read beyond its columns. Where `most` is more
    than a panel, the first columns of the panel at `ahead` may be prefetched as well.

    `in_runs` adds `i64 run, i64 jump`: after each run of k, A moves on by a jump, not by a step, so
    that rows of windows are read where they lie."""
    stem = "bfloat16" if registers.pairs else f"{registers.dtype}{registers.dot}"
    if in_runs:
        shapes = block_shapes(registers)
        parts = [_tile(registers, rows, vectors, True) for rows, vectors in shapes]
        text = "\n".join([_driver(registers, True), *parts, *_declared(registers)])
        return named(f"block_runs_{stem}", text)
    if registers.has_tiles:
        return named(f"tiles_{stem}", "\n".join(_by_tiles(registers)))
    shapes = block_shapes(registers)
    if registers.assembled:
        size, panel = registers.dtype.itemsize, registers.vectors
        instruction = "vdpbf16ps" if registers.pairs else ""
        blocks = [register_block(f"PART{r}_{v}", size, r, v, panel, instruction=instruction)
                  for r, v in shapes]  # fmt: skip
        parts = [f"declare dso_local void @PART{r}_{v}()" for r, v in shapes]
        fused = [(_heights(registers, v)[-1], v) for v in range(panel, registers.most + 1)]
        blocks += [register_block(f"PART{r}_{v}k", size, r, v, panel, packs=True) for r, v in fused]
        parts += [f"declare dso_local void @PART{r}_{v}k()" for r, v in fused]
        parts = [
            module_assembly(blocks),
            *parts,
            fused_packing(_ARGS, size, panel, fused, GEMM.fetch_rows_ahead),
        ]
    else:
        parts = [_tile(registers, rows, vectors) for rows, vectors in shapes]
    text = "\n".join([_driver(registers), *parts, *_declared(registers)])
    return named(f"block_{stem}", text)


def _by_tiles(registers: Registers) -> list[str]:
    """A block of AMX tiles: an instruction for each pair of signs."""
    from .amx import amx_block  # which few machines load

    instruction = f"tdpb{registers.dot}d" if registers.dot else "tdpbf16ps"
    begin = "  %fresh = select i1 %first, i64 0, i64 1"
    return amx_block(_ARGS, instruction, registers.vectors, begin)


def block_shapes(registers: Registers) -> list[tuple[int, int]]:
    """Rows and vectors of columns of every register block."""
    vectors = range(1, registers.most + 1)
    return [(rows, v) for v in vectors for rows in _heights(registers, v)]


def _heights(registers: Registers, vectors: int) -> list[int]:
    """The heights that have a block: all where columns may stream by once, a few of narrow ones."""
    most = registers.height
    if vectors > registers.vectors:
        most = GEMM.avx512_accumulators // vectors - 1
    every = vectors >= registers.vectors or most < 8
    return [h for h in range(1, most + 1) if every or h in (1, 2, 3, 4, 8, most)]


def _shares(heights: list[int], vectors: int) -> list[int]:
    """How tall the block is that comes first where so many rows are left, up to a few blocks.

    A block takes as long as its sums, but at least as long as one sum takes to be added to.
    """
    best = [(0, 0, 0, 0)]  # cost, blocks, the tallest of them, the first
    for rows in range(1, 4 * heights[-1]):
        found = []
        for h in heights:
            if h <= rows:
                cost, blocks, tallest, _ = best[rows - h]
                cost += max(h * vectors, GEMM.fma_latency_sums) + 1
                found.append((cost, blocks + 1, max(h, tallest), h))
        best.append(min(found))
    return [first for *_, first in best]


def _masked(registers: Registers) -> bool:
    """True if results end with the columns; else a tile of sums has room for whole vectors."""
    return registers.target.has_masks


def _declared(registers: Registers) -> list[str]:
    kind = vector_of(registers)
    suffix = suffix_of(registers)
    lines = ["declare void @llvm.prefetch.p0(ptr, i32, i32, i32)", *dot_declared(registers)]
    if registers.fused:
        lines.append(f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})")
    if _masked(registers):
        lines += [f"declare {declaration(how, kind)[0]}" for how in ("load", "store")]
    return lines


def vector_of(registers: Registers) -> str:
    """The type of a vector register."""
    return f"<{registers.width} x {scalar_type(registers.dtype)}>"


def suffix_of(registers: Registers) -> str:
    """What LLVM's functions of such vectors end with."""
    inner = scalar_type(registers.dtype)
    return f"v{registers.width}{ {'float': 'f32', 'double': 'f64'}.get(inner, inner) }"


_ARGS = (
    "ptr noalias %A, i64 %as, i64 %ks, ptr noalias %B, i64 %bs, ptr noalias %C, i64 %cs, "
    "i64 %depth, "
)


_RUNS = ", i64 %run, i64 %jump"  # the arguments of a block whose A has runs of k


def _tile(registers: Registers, rows: int, vectors: int, in_runs: bool = False) -> str:
    """One register block over all of the depth; one step of k a turn keeps registers free.

    `assembly.register_block` is the same for floats on AVX-512: change both.
    """
    plain = _masked(registers) and not registers.packs_vnni  # which are always packed
    ways = ("p", "m") if plain else ("p",)  # packed, or dense memory
    block = _Block(registers, rows, vectors, in_runs)
    block.lines.append("  br i1 %plain, label %m, label %p" if plain else "  br label %p")
    for way in ways:
        block.products(way)
    block.add_to_results(ways)
    lines = [*block.lines, "  ret void"]
    if _masked(registers):
        lines = [*_masks(registers, vectors, "columns", "mask"),
                 *_masks(registers, vectors, "old", "old"), *lines]  # fmt: skip
    body = "\n".join(lines)
    more = _RUNS * in_runs
    head = f"define internal void @PART{rows}_{vectors}({_ARGS}{_arguments(registers)}{more})"
    return f"{head} nounwind {{\nentry:\n{body}\n}}"


class _Block:
    """Writes a register block: loops of products, then the sums added to C."""

    def __init__(self, registers: Registers, rows: int, vectors: int, in_runs: bool) -> None:
        self.registers, self.rows, self.vectors = registers, rows, vectors
        self.in_runs = in_runs
        self.inner, self.kind = scalar_type(registers.dtype), vector_of(registers)
        self.cells = [(i, v) for i in range(rows) for v in range(vectors)]
        self.lines: list[str] = []
        self.count = 0

    def let(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %t{self.count} = {text}")
        return f"%t{self.count}"

    def products(self, w: str) -> None:
        """The loop over k, its values called after a way: packed, or dense memory."""
        registers, lines, let, inner, kind = (
            self.registers, self.lines, self.let, self.inner, self.kind,
        )  # fmt: skip
        lines += [
            f"{w}:",
            f"  %{w}i = phi i64 [ 0, %entry ], [ %{w}inext, %{w} ]",
            f"  %{w}a = phi ptr [ %A, %entry ], [ %{w}anext, %{w} ]",
            f"  %{w}b = phi ptr [ %B, %entry ], [ %{w}bnext, %{w} ]",
            f"  %{w}p = phi ptr [ %ahead, %entry ], [ %{w}pnext, %{w} ]",
        ]
        if self.in_runs:
            lines.append(f"  %{w}left = phi i64 [ %run, %entry ], [ %{w}leftnext, %{w} ]")
        begin = "%less{v}" if registers.flips else "zeroinitializer"
        lines += [
            f"  %{w}c{i}_{v} = phi {kind} [ {begin.format(v=v)}, %entry ], [ %{w}r{i}_{v}, %{w} ]"
            for i, v in self.cells
        ]
        columns = [self.column(w, v) for v in range(self.vectors)]
        if w == "p":
            lines.append(f"  call void @llvm.prefetch.p0(ptr %{w}p, i32 0, i32 2, i32 1)")
        for i in range(self.rows):
            number = let(f"load {inner}, ptr {_row(f'%{w}a', i, let)}, align 1")
            first = let(f"insertelement {kind} poison, {inner} {number}, i64 0")
            lanes = f"<{registers.width} x i32> zeroinitializer"
            spread = let(f"shufflevector {kind} {first}, {kind} poison, {lanes}")
            for v, column in enumerate(columns):
                total = multiplied(registers, spread, column, f"%{w}c{i}_{v}", let)
                lines.append(f"  %{w}r{i}_{v} = {total}")
        step = self.step_of_a(w) if self.in_runs else "%ks"
        lines += [
            f"  %{w}anext = getelementptr {inner}, ptr %{w}a, i64 {step}",
            f"  %{w}bnext = getelementptr {inner}, ptr %{w}b, i64 %bs",
            f"  %{w}pnext = getelementptr i8, ptr %{w}p, i64 %below",
            f"  %{w}inext = add i64 %{w}i, 1",
            f"  %{w}more = icmp slt i64 %{w}inext, %depth",
            f"  br i1 %{w}more, label %{w}, label %end",
        ]

    def step_of_a(self, w: str) -> str:
        """How far A moves: by a jump at the end of a run."""
        rest = self.let(f"add i64 %{w}left, -1")
        ends = self.let(f"icmp eq i64 {rest}, 0")
        self.lines.append(f"  %{w}leftnext = select i1 {ends}, i64 %run, i64 {rest}")
        return self.let(f"select i1 {ends}, i64 %jump, i64 %ks")

    def column(self, w: str, v: int) -> str:
        """A vector of columns of B; dense memory is prefetched."""
        let, step = self.let, v * self.registers.width
        place = let(f"getelementptr {self.inner}, ptr %{w}b, i64 {step}")
        if v == self.registers.vectors:
            place = let(f"getelementptr i8, ptr %{w}b, i64 %beside")
        if w == "p":
            return let(f"load {self.kind}, ptr {place}, align 1")
        below = let(f"getelementptr {self.inner}, ptr %{w}p, i64 {step}")
        self.lines.append(f"  call void @llvm.prefetch.p0(ptr {below}, i32 0, i32 3, i32 1)")
        return let(reading("load", self.kind, place, f"%mask{v}"))

    def add_to_results(self, ways: Sequence[str]) -> None:
        """Add the sums of the loop that ran to C, or put them there."""
        lines, let, kind = self.lines, self.let, self.kind
        lines.append("end:")
        for i, v in self.cells:
            arms = ", ".join(f"[ %{w}r{i}_{v}, %{w} ]" for w in ways)
            lines.append(f"  %r{i}_{v} = phi {kind} {arms}")
        nothing, row = "zeroinitializer", "%C"
        if self.registers.dtype.kind == "f":  # only -0 adds nothing, not even a sign
            nothing = let(f"fneg {kind} zeroinitializer")
        for i, v in self.cells:
            if i and not v:
                row = let(f"getelementptr {self.inner}, ptr {row}, i64 %cs")
            self.add_to_result(row, i, v, nothing)

    def add_to_result(self, row: str, i: int, v: int, nothing: str) -> None:
        """The same of one vector."""
        let, kind, add = self.let, self.kind, "fadd" if self.registers.dtype.kind == "f" else "add"
        place = let(f"getelementptr {self.inner}, ptr {row}, i64 {v * self.registers.width}")
        if _masked(self.registers):
            before = let(reading("load", kind, place, f"%old{v}", nothing))
            total = let(f"{add} {kind} {before}, %r{i}_{v}")
            self.lines.append(f"  {writing('store', kind, total, place, f'%mask{v}')}")
            return
        before = let(f"load {kind}, ptr {place}, align 1")
        fresh = let("icmp eq i32 %old, 0")
        before = let(f"select i1 {fresh}, {kind} {nothing}, {kind} {before}")
        total = let(f"{add} {kind} {before}, %r{i}_{v}")
        self.lines.append(f"  store {kind} {total}, ptr {place}, align 1")


_ODD = (1, 3, 5, 7)


def _row(start: str, number: int, let: Let) -> str:
    """The address of a row, as one address of the host: no row waits for the one before."""
    if not number:
        return start
    odd = number
    while not odd % 2:
        odd //= 2
    offset = f"%as{odd}"
    if odd != number:
        offset = let(f"mul i64 {offset}, {number // odd}")
    return let(f"getelementptr i8, ptr {start}, i64 {offset}")


def _arguments(registers: Registers) -> str:
    """What a register block gets besides: what is fetched, how many columns, how many hold sums,
    and bytes between rows (as arguments: the compiler would add them up one after the other)."""
    less = [f"{vector_of(registers)} %less{v}, " for v in range(registers.vectors)]
    return (
        f"{''.join(less) if registers.dot == 'ss' else ''}ptr %ahead, i64 %below, i1 %plain, "
        f"i32 %columns, i32 %old{''.join(f', i64 %as{n}' for n in _ODD)}, i64 %beside"
    )


def _masks(registers: Registers, vectors: int, count: str, name: str) -> list[str]:
    """The lanes of each vector that are among so many columns."""
    width = registers.width
    kind = f"<{width} x i32>"
    lines = [
        f"  %{name}.one = insertelement {kind} poison, i32 %{count}, i64 0",
        f"  %{name}.all = shufflevector {kind} %{name}.one, {kind} poison, {kind} zeroinitializer",
    ]
    for v in range(vectors):
        lanes = ", ".join(f"i32 {v * width + i}" for i in range(width))
        lines.append(f"  %{name}{v} = icmp slt {kind} <{lanes}>, %{name}.all")
    return lines


def dot_declared(registers: Registers) -> list[str]:
    """The declaration of the instruction that multiplies bytes, if they are multiplied."""
    kind = vector_of(registers)
    return [f"declare {kind} @{_dot(registers)}({kind}, {kind}, {kind})"] * bool(registers.dot)


def _dot(registers: Registers) -> str:
    """The instruction that adds four products of bytes to each lane."""
    return f"llvm.x86.avx512.vpdpbusd.{registers.width * 32}"


def _surplus(registers: Registers) -> list[str]:
    """A's signed bytes are stored 128 too large: what that adds to the sums of each column."""
    kind, width = vector_of(registers), registers.width
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


def multiplied(registers: Registers, a: str, b: str, c: str, let: Let) -> str:
    """A product added to a sum."""
    kind = vector_of(registers)
    if registers.dot:
        first, second = (b, a) if registers.dot == "su" else (a, b)
        return f"call {kind} @{_dot(registers)}({kind} {c}, {kind} {first}, {kind} {second})"
    if registers.fused:
        return f"call {kind} @llvm.fma.{suffix_of(registers)}({kind} {a}, {kind} {b}, {kind} {c})"
    letter = "f" if registers.dtype.kind == "f" else ""
    product = let(f"{letter}mul {kind} {a}, {b}")
    return f"{letter}add {kind} {product}, {c}"


def _driver(registers: Registers, in_runs: bool = False) -> str:
    """Whole blocks, then what is best for the rows that are left."""
    inner, width, tall = scalar_type(registers.dtype), registers.width, registers.height
    lines, before = ["entry:"], "entry"
    assembled, more = registers.assembled and not in_runs, _RUNS * in_runs
    lines_bytes = FETCHED_BYTES if assembled else GEMM.cache_line_bytes
    if registers.flips:
        lines, before = [*lines, *_surplus(registers)], "start"
    widths = range(1, registers.most + 1)
    sizes = " ".join(f"i64 {v}, label %wide{v}_" for v in widths)
    lines += [
        f"  %upper = add i64 %columns, {width - 1}",
        f"  %needed = udiv i64 %upper, {width}",
        f"  %fits = icmp slt i64 %needed, {registers.most}",
        f"  %vectors = select i1 %fits, i64 %needed, i64 {registers.most}",
        f"  %many = icmp sge i64 %rows, {GEMM.fetch_half_line_blocks * tall}",
        f"  %one = select i1 %many, i64 {GEMM.cache_line_bytes // 2}, i64 {GEMM.cache_line_bytes}",
        f"  %few = icmp sle i64 %rows, {GEMM.fetch_lines_blocks * tall}",
        f"  %more.than = icmp sgt i64 %rows, {tall}",  # one block reads memory itself
        "  %two = and i1 %few, %more.than",
        f"  %stride = select i1 %two, i64 {lines_bytes}, i64 %one",
        "  %fetched = mul i64 %depth, %stride",  # by one block
        "  %count = trunc i64 %columns to i32",
        *[f"  %as{n} = mul i64 %as, {n * registers.dtype.itemsize}" for n in _ODD],
        "  %old = select i1 %first, i32 0, i32 %count",
        f"  %bytes = mul i64 %depth, {registers.panel * registers.dtype.itemsize}",
        "  %fetch = getelementptr i8, ptr %ahead, i64 %bytes",
        "  %plain = icmp eq ptr %ahead, null",
        f"  %edge = urem i64 %columns, {width}",
        "  %ragged = icmp ne i64 %edge, 0",
        f"  %apart = mul i64 %bs, {registers.dtype.itemsize}",
        f"  %wide = icmp sgt i64 %apart, {GEMM.near_row_bytes}",  # all of it is fetched
        f"  %long = icmp sge i64 %depth, {GEMM.near_depth_steps}",
        "  %far.away = or i1 %wide, %long",
        "  %slow = or i1 %ragged, %far.away",
        "  %masked = and i1 %plain, %slow",
        "  %below = select i1 %plain, i64 %apart, i64 %stride",
        "  %to.ahead = ptrtoint ptr %ahead to i64",
        "  %to.here = ptrtoint ptr %B to i64",
        "  %panels = sub i64 %to.ahead, %to.here",
        f"  %beside = select i1 %plain, i64 {registers.panel * registers.dtype.itemsize}, "
        "i64 %panels",
        f"  %rows.down = mul i64 %bs, {GEMM.fetch_rows_ahead}",
        f"  %down = getelementptr {inner}, ptr %B, i64 %rows.down",
        "  %begin = select i1 %plain, ptr %down, ptr %ahead",
        "  br label %head",
        "head:",
        f"  %p = phi ptr [ %begin, %{before} ], [ %pnext, %next ]",
        f"  %a = phi ptr [ %A, %{before} ], [ %anext, %next ]",
        f"  %c = phi ptr [ %C, %{before} ], [ %cnext, %next ]",
        f"  %left = phi i64 [ %rows, %{before} ], [ %after, %next ]",
        "  %done = icmp sle i64 %left, 0",
        "  br i1 %done, label %out, label %far",
    ]
    lines += _far(registers, assembled)
    lines += [
        "pick:",
        f"  switch i64 %vectors, label %out [ {sizes} ]",
    ]
    joins: list[tuple[str, str, int]] = []
    for vectors in widths:
        label = f"wide{vectors}_"
        heights = _heights(registers, vectors)
        shares = _shares(heights, vectors)
        cases = [f"i64 {left}, label %{label}{rows}" for left, rows in enumerate(shares) if left]
        lines += [
            f"{label}:",
            f"  switch i64 %left, label %{label}{heights[-1]} [ {' '.join(cases)} ]",
        ]
        for rows in heights:
            name = f"{label}{rows}"
            lines += [f"{name}:", "  br label %next"]
            joins.append((name, f"@PART{rows}_{vectors}", rows))
    less = [f"{vector_of(registers)} %less{v}, " for v in range(registers.vectors)]
    lines += [
        "next:",
        "  %taken = phi i64 " + ", ".join(f"[ {rows}, %{name} ]" for name, _, rows in joins),
        "  %tile = phi ptr " + ", ".join(f"[ {tile}, %{name} ]" for name, tile, _ in joins),
        "  call void %tile(ptr %a, i64 %as, i64 %ks, ptr %B, i64 %bs, ptr %c, i64 %cs, i64 %depth, "
        f"{''.join(less) if registers.dot == 'ss' else ''}ptr %p, i64 %below, i1 %masked, "
        f"i32 %count, i32 %old{''.join(f', i64 %as{n}' for n in _ODD)}, i64 %beside{more})",
        "  %pmore = getelementptr i8, ptr %p, i64 %fetched",
        "  %inside = icmp ult ptr %pmore, %fetch",
        "  %pback = select i1 %inside, ptr %pmore, ptr %ahead",
        "  %pnext = select i1 %plain, ptr %down, ptr %pback",
        "  %aoff = mul i64 %taken, %as",
        f"  %anext = getelementptr {inner}, ptr %a, i64 %aoff",
        "  %coff = mul i64 %taken, %cs",
        f"  %cnext = getelementptr {inner}, ptr %c, i64 %coff",
        "  %after = sub i64 %left, %taken",
        "  br label %head",
        "out:",
        "  ret void",
    ]
    head = f"define void @SELF({_ARGS}i64 %rows, i64 %columns, i1 %first, ptr %ahead{more})"
    return f"{head} nounwind {{\n" + "\n".join(lines) + "\n}"


def fused_packing_name(module: Module) -> str:
    """The name of the block with fused packing, where register blocks are assembled.

    Its last argument is memory for a panel, and one more where there are more columns. The first
    rows, of which there are `height` at least, read B as it lies and put it there on their way; it
    is there that all others find it.
    """
    return f"{module.name}_part_fused"


def _far(registers: Registers, assembled: bool) -> list[str]:
    """Ask for the lines of results, which are far away and wanted at the end of a block: blocks of
    assembly do so themselves."""
    if assembled:
        return ["far:", "  br label %pick"]
    inner, width, tall = scalar_type(registers.dtype), registers.width, registers.height
    lines = [
        "far:",
        "  %line = phi i64 [ 0, %head ], [ %linenext, %far ]",
        "  %place = phi ptr [ %c, %head ], [ %placenext, %far ]",
    ]
    for v in range(registers.vectors):
        lines += [
            f"  %far{v} = getelementptr {inner}, ptr %place, i64 {v * width}",
            f"  call void @llvm.prefetch.p0(ptr %far{v}, i32 1, i32 3, i32 1)",
        ]
    lines += [
        f"  %placenext = getelementptr {inner}, ptr %place, i64 %cs",
        "  %linenext = add i64 %line, 1",
        f"  %high = icmp slt i64 %linenext, {tall}",
        "  %some = icmp slt i64 %linenext, %left",
        "  %again = and i1 %high, %some",
        "  br i1 %again, label %far, label %pick",
    ]
    return lines


@lru_cache(maxsize=32)
def transpose(registers: Registers) -> Module:
    """`void f(ptr from, ptr to, i64 stride, i64 step)`: a square of lanes x lanes, rows become
    columns; rows are `step` numbers apart, and their columns `stride`."""
    inner, kind, width = scalar_type(registers.dtype), vector_of(registers), registers.width
    lanes, few = registers.target.lanes, 16 // registers.dtype.itemsize  # of 128 bits
    lines = [
        "  br label %group",
        "group:",  # of a few columns
        "  %left = phi i64 [ 0, %entry ], [ %next, %group ]",
        f"  %from.left = getelementptr {inner}, ptr %from, i64 %left",
        "  %down = mul i64 %left, %stride",
        f"  %to.left = getelementptr {inner}, ptr %to, i64 %down",
    ]
    count = 0

    def let(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %t{count} = {text}")
        return f"%t{count}"

    start = "%from.left"
    for top in range(0, lanes, width):
        pieces = []
        for _ in range(width):
            pieces.append(let(f"load <{few} x {inner}>, ptr {start}, align 1"))
            start = let(f"getelementptr {inner}, ptr {start}, i64 %step")
        rows = [_together(pieces[i::few], few, inner, let) for i in range(few)]
        half = few
        while half > 1:
            pairs = zip(rows[: few // 2], rows[few // 2 :], strict=True)
            rows = [row for one, other in pairs for row in _mixed(one, other, kind, few, let)]
            half //= 2
        goal = let(f"getelementptr {inner}, ptr %to.left, i64 {top}")
        for row in rows:
            lines.append(f"  store {kind} {row}, ptr {goal}, align 1")
            goal = let(f"getelementptr {inner}, ptr {goal}, i64 %stride")
    lines += [
        f"  %next = add i64 %left, {few}",
        f"  %more = icmp slt i64 %next, {lanes}",
        "  br i1 %more, label %group, label %out",
        "out:",
    ]
    body = "\n".join(lines)
    text = (
        "define void @SELF(ptr noalias %from, ptr noalias %to, i64 %stride, i64 %step) nounwind {\n"
        f"entry:\n{body}\n  ret void\n}}"
    )
    return named(f"transpose_{registers.dtype}", text)


def shuffle(one: str, other: str, kind: str, picks: list[int]) -> str:
    """Lanes of two vectors in a new order."""
    places = f"<{len(picks)} x i32> <{', '.join(f'i32 {p}' for p in picks)}>"
    return f"shufflevector {kind} {one}, {kind} {other}, {places}"


def _together(pieces: list[str], size: int, inner: str, let: Let) -> str:
    """Pieces of a vector one after the other, two at a time."""
    while len(pieces) > 1:
        kind, all_ = f"<{size} x {inner}>", list(range(2 * size))
        pairs = zip(pieces[::2], pieces[1::2], strict=True)
        pieces = [let(shuffle(a, b, kind, all_)) for a, b in pairs]
        size *= 2
    return pieces[0]


def _mixed(one: str, other: str, kind: str, few: int, let: Let) -> list[str]:
    """Numbers of two vectors by turns: of the lower halves of all 128 bits, and of the upper."""
    width = int(kind[1:].split()[0])
    found = []
    for start in (0, few // 2):
        places = [b + start + i for b in range(0, width, few) for i in range(few // 2)]
        picks = [p for place in places for p in (place, width + place)]
        found.append(let(shuffle(one, other, kind, picks)))
    return found
