"""Register blocks of AVX-512 as assembly text, where a compiler would have nothing to choose.

In: the size of a float in bytes, rows and vectors of columns of a block. Out: the text of one
function with the arguments of `microkernel._tile`, which says the same in LLVM's own language for
every other target, and against which this is tested. Which register holds which sum is known
beforehand, and no sum leaves it before the end; so assembling is all there is to do, in a twentieth
of the time of compiling. Bits are the same: everything is added up in the same order. Blocks that
pack what they read of B (fused packing) do so at no price but that of their stores.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....core.lazy_named_tuple import NamedTuple
from ..tiling import GEMM

_A, _K, _B, _DOWN, _C = "%rdi", "%rdx", "%rcx", "%r8", "%r9"  # as they are called with
_SAVED = ("%rbx", "%r12", "%r13", "%r14", "%r15")
_FETCHED, _FURTHER, _LEFT, _BESIDE, _TO = _SAVED
_APART = {1: "%rax", 3: "%rsi", 5: "%r10", 7: "%r11"}  # bytes to a row, times an odd number
_GIVEN = ("step", "depth", "ahead", "below", "plain", "columns", "old", 1, 3, 5, 7, "beside", "to")
_AHEAD = [f"prefetcht1 ({_FETCHED})", f"prefetcht1 64({_FETCHED})"]  # the second for few rows
FETCHED_BYTES = 64 * len(_AHEAD)  # at each step of k
_FACTORS = ("%zmm0", "%zmm1")  # by turns


class _Block(NamedTuple):
    """A register block: its registers, and what it does with them."""

    kind: str  # what instructions of its dtype end with
    columns: list[str]  # registers of a step's columns of B
    sums: list[list[str]]
    panel: int  # vectors of a panel
    packs: bool
    multiply_add: str

    def loop(self, label: int, fetched: list[str], masked: bool) -> list[str]:
        """The steps of k that are left."""
        found = [".p2align 4", f"{label}:"]
        for v, column in enumerate(self.columns):
            mask = f" {{%k{1 + v}}} {{z}}" if masked else ""
            place = f"{64 * v}({_B})" if self.packs else self.place(_B, v)
            found.append(f"vmovup{self.kind} {place}, {column}{mask}")
        for i, row in enumerate(self.sums):
            factor = _FACTORS[i % 2]
            found.append(f"vbroadcasts{self.kind} {_row(i)}, {factor}")
            found += [f"{self.multiply_add} {column}, {factor}, {total}"
                      for column, total in zip(self.columns, row, strict=True)]  # fmt: skip
            if i == len(self.sums) // 2:
                found += fetched
        steps = [(_K, _A), (_DOWN, _B), (_FURTHER, _FETCHED)]
        if self.packs:
            found += [
                f"vmovup{self.kind} {column}, {self.place(_TO, v)}"
                for v, column in enumerate(self.columns)
            ]
            steps.append((f"${64 * self.panel}", _TO))
        return [*found, *[f"addq {by}, {what}" for by, what in steps], f"decq {_LEFT}",
                f"jg {label}b"]  # fmt: skip

    def place(self, panel: str, v: int) -> str:
        """Where a vector of columns is in a panel, or in the one beside it."""
        return f"{64 * v}({panel})" if v < self.panel else f"({panel},{_BESIDE})"


def register_block(
    name: str, itemsize: int, rows: int, vectors: int, panel: int, packs: bool = False,
    instruction: str = "",
) -> str:  # fmt: skip
    """A function that adds rows of A times vectors of columns of B to C; vectors after those of a
    panel are `beside` it. One that `packs` reads dense memory, and puts it `to` such panels (fused
    packing). The `instruction` adds products to a sum, if it is no multiply-add."""
    kind = "s" if itemsize == 4 else "d"
    columns = [f"%zmm{2 + v}" for v in range(vectors)]
    sums = [[f"%zmm{2 + vectors * (1 + i) + v}" for v in range(vectors)] for i in range(rows)]
    block = _Block(kind, columns, sums, panel, packs, instruction or f"vfmadd231p{kind}")
    last = rows + GEMM.fetch_result_steps  # steps, during which lines of C are fetched
    near = [f"prefetcht0 {64 * v}({_FETCHED})" for v in range(vectors)]
    apart = [f"movq {_argument('step')}, {_FURTHER}", f"leaq (,{_FURTHER},{itemsize}), {_FURTHER}"]
    lines = [f"{name}:", *[f"pushq {register}" for register in _SAVED]]
    lines += _masks(vectors, itemsize)
    lines += [
        f"movq {_argument(odd)}, {register}" for odd, register in _APART.items() if odd < rows
    ]
    lines += [
        f"movq {_argument('beside')}, {_BESIDE}",
        *([f"movq {_argument('to')}, {_TO}"] if packs else []),
        f"movq {_argument('ahead')}, {_FETCHED}",
        f"movq {_argument('below')}, {_FURTHER}",
        f"movq {_argument('depth')}, {_LEFT}",
        f"leaq (,{_K},{itemsize}), {_K}",
        f"leaq (,{_DOWN},{itemsize}), {_DOWN}",
        *[f"vpxord {total}, {total}, {total}" for row in sums for total in row],
    ]
    if not packs:
        lines += [f"testb $1, {_argument('plain')}", "jne 3f", f"subq ${last}, {_LEFT}", "jle 2f"]
        lines += block.loop(1, _AHEAD, masked=False)
        lines += ["2:", f"addq ${last}, {_LEFT}", f"movq {_C}, {_FETCHED}", *apart]
    lines += [*block.loop(3, near, masked=True), *apart]  # dense memory ends with its columns
    lines += [f"cmpl $0, {_argument('old')}", "je 4f", *_each(kind, sums, _A, "vaddp")]
    lines += ["4:", *_each(kind, sums, _C, "vmovup")]
    lines += [*[f"popq {r}" for r in reversed(_SAVED)], "vzeroupper", "retq", ".p2align 4"]
    return "\n".join(lines)


def _masks(vectors: int, itemsize: int) -> list[str]:
    """Masks of the columns that there are, from k1 on."""
    lines = [f"movl {_argument('columns')}, %r13d", "movl $64, %ebx", "cmpl %ebx, %r13d"]
    lines += ["cmovgl %ebx, %r13d", "movq $-1, %rbx", "bzhiq %r13, %rbx, %rbx"]  # of 8 bits
    for v in range(vectors):
        lines += [f"kmovw %ebx, %k{1 + v}", f"shrq ${64 // itemsize}, %rbx"]
    return lines


def _each(kind: str, sums: list[list[str]], at: str, what: str) -> list[str]:
    """Add what C has to the sums, or put the sums there: all of one before any of the other, as
    rows that are a power of two apart look alike to a load that follows a store."""
    lines = [] if at == _C else [f"movq {_C}, {at}"]
    for row in sums:
        for v, total in enumerate(row):
            place, mask = f"{64 * v}({at})", f"{{%k{1 + v}}}"
            both = f"{place}, {total}, {total}" if what == "vaddp" else f"{total}, {place}"
            lines.append(f"{what}{kind} {both} {mask}")
        lines.append(f"addq {_FURTHER}, {at}")
    return lines


def fused_packing(
    arguments: str, itemsize: int, panel: int, shapes: list[tuple[int, int]], ahead: int
) -> str:
    """Fused packing: the first rows by a register block that packs what it reads, which is
    prefetched some rows `ahead`, the others by the driver (see `fused_packing_name`)."""
    inner, width = {4: "float", 8: "double"}[itemsize], 64 // itemsize
    (few, some), (fewer, most) = shapes[0], shapes[-1]  # rows and vectors of columns
    lines = [
        f"  %more = icmp sgt i64 %columns, {panel * width}",
        f"  %taken = select i1 %more, i64 {fewer}, i64 {few}",
        f"  %tile = select i1 %more, ptr @PART{fewer}_{most}k, ptr @PART{few}_{some}k",
        "  %count = trunc i64 %columns to i32",
        "  %old = select i1 %first, i32 0, i32 %count",
        *[f"  %as{n} = mul i64 %as, {n * itemsize}" for n in _APART],
        f"  %beside = mul i64 %depth, {64 * panel}",
        "  %ahead = getelementptr i8, ptr %to, i64 %beside",
        f"  %below = mul i64 %bs, {itemsize}",
        f"  %far = icmp sgt i64 %below, {GEMM.far_row_bytes}",
        f"  %early = select i1 %far, i64 {3 * ahead}, i64 {ahead}",
        "  %bytes.down = mul i64 %below, %early",
        "  %down = getelementptr i8, ptr %B, i64 %bytes.down",
        "  call void %tile(ptr %A, i64 %as, i64 %ks, ptr %B, i64 %bs, ptr %C, i64 %cs, i64 %depth, "
        "ptr %down, i64 %below, i1 true, i32 %count, i32 %old"
        f"{''.join(f', i64 %as{n}' for n in _APART)}, i64 %beside, ptr %to)",
        "  %aoff = mul i64 %taken, %as",
        f"  %a = getelementptr {inner}, ptr %A, i64 %aoff",
        "  %coff = mul i64 %taken, %cs",
        f"  %c = getelementptr {inner}, ptr %C, i64 %coff",
        "  %left = sub i64 %rows, %taken",
        f"  call void @SELF(ptr %a, i64 %as, i64 %ks, ptr %to, i64 {panel * width}, ptr %c, "
        "i64 %cs, i64 %depth, i64 %left, i64 %columns, i1 %first, ptr %ahead)",
        "  ret void",
    ]
    head = f"define void @PART_fused({arguments}i64 %rows, i64 %columns, i1 %first, ptr %to)"
    return f"{head} nounwind {{\n" + "\n".join(lines) + "\n}"


def module_assembly(texts: Iterable[str]) -> str:
    """Assembly as a line of a module."""
    whole = "\n".join(texts).replace("\n", "\\0A")
    return f'module asm "{whole}"'


def _argument(name: str | int) -> str:
    """What the caller put on the stack."""
    return f"{8 * (1 + len(_SAVED) + _GIVEN.index(name))}(%rsp)"


def _row(number: int) -> str:
    """A number of a row of A."""
    odd = number
    while odd and not odd % 2:
        odd //= 2
    return f"({_A},{_APART[odd]},{number // odd})" if number else f"({_A})"
