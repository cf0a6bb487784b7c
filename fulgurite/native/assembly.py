"""Register blocks of AVX-512 as assembly text, where a compiler would have nothing to choose.

In: the size of a float in bytes, rows and vectors of columns of a block. Out: the text of one
function with the arguments of `microkernel._tile`, which says the same in LLVM's own language for
every other target, and against which this is tested. Which register holds which sum is known
beforehand, and no sum leaves it before the end; so assembling is all there is to do, in a twentieth
of the time of compiling. Bits are the same: everything is added up in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable

_A, _K, _B, _DOWN, _C = "%rdi", "%rdx", "%rcx", "%r8", "%r9"  # as they are called with
_SAVED = ("%rbx", "%r12", "%r13")
_FETCHED, _FURTHER, _LEFT = _SAVED
_APART = {1: "%rax", 3: "%rsi", 5: "%r10", 7: "%r11"}  # bytes to a row, times an odd number
_GIVEN = ("step", "depth", "ahead", "below", "plain", "columns", "old", 1, 3, 5, 7)
_FACTORS = ("%zmm0", "%zmm1")  # by turns


def register_block(name: str, itemsize: int, rows: int, vectors: int) -> str:
    """A function that adds rows of A times vectors of columns of B to C."""
    kind = "s" if itemsize == 4 else "d"
    columns = [f"%zmm{2 + v}" for v in range(vectors)]
    sums = [[f"%zmm{2 + vectors * (1 + i) + v}" for v in range(vectors)] for i in range(rows)]
    lines = [f"{name}:", *[f"pushq {register}" for register in _SAVED]]
    lines += [f"movl {_given('columns')}, %r13d", "movl $64, %ebx", "cmpl %ebx, %r13d"]
    lines += ["cmovgl %ebx, %r13d", "movq $-1, %rbx", "bzhiq %r13, %rbx, %rbx"]  # of 8 bits
    for v in range(vectors):
        lines += [f"kmovw %ebx, %k{1 + v}", f"shrq ${64 // itemsize}, %rbx"]
    lines += [f"movq {_given(odd)}, {register}" for odd, register in _APART.items() if odd < rows]
    lines += [
        f"movq {_given('ahead')}, {_FETCHED}",
        f"movq {_given('below')}, {_FURTHER}",
        f"movq {_given('depth')}, {_LEFT}",
        f"leaq (,{_K},{itemsize}), {_K}",
        f"leaq (,{_DOWN},{itemsize}), {_DOWN}",
        *[f"vpxord {total}, {total}, {total}" for row in sums for total in row],
        f"testb $1, {_given('plain')}",
        "je 2f",
    ]
    for label, plain in ((1, True), (2, False)):  # memory as it is ends with its columns
        lines += [".p2align 4", f"{label}:"]
        for v, column in enumerate(columns):
            mask = f" {{%k{1 + v}}} {{z}}" if plain else ""
            lines.append(f"vmovup{kind} {64 * v}({_B}), {column}{mask}")
        for i, row in enumerate(sums):
            factor = _FACTORS[i % 2]
            lines.append(f"vbroadcasts{kind} {_row(i)}, {factor}")
            lines += [f"vfmadd231p{kind} {column}, {factor}, {total}"
                      for column, total in zip(columns, row, strict=True)]  # fmt: skip
            if i == rows // 2:
                wanted = [f"prefetcht0 {64 * v}({_FETCHED})" for v in range(vectors)]
                lines += wanted if plain else [f"prefetcht1 ({_FETCHED})"]
        lines += [
            f"addq {_K}, {_A}",
            f"addq {_DOWN}, {_B}",
            f"addq {_FURTHER}, {_FETCHED}",
            f"decq {_LEFT}",
            f"jg {label}b",
        ]
        if plain:
            lines.append("jmp 3f")
    lines += [
        "3:",
        f"movq {_given('step')}, {_A}",
        f"leaq (,{_A},{itemsize}), {_A}",
        f"cmpl $0, {_given('old')}",
        "jne 4f",
        *_stored(kind, sums, False),
        "4:",
        *_stored(kind, sums, True),
    ]
    return "\n".join(lines)


def _stored(kind: str, sums: list[list[str]], added: bool) -> list[str]:
    """Put the sums where they belong, or add them to what is there, and return."""
    lines = []
    for row in sums:
        for v, total in enumerate(row):
            place, mask = f"{64 * v}({_C})", f"{{%k{1 + v}}}"
            if added:
                lines.append(f"vaddp{kind} {place}, {total}, {total} {mask}")
            lines.append(f"vmovup{kind} {total}, {place} {mask}")
        lines.append(f"addq {_A}, {_C}")
    return [*lines, *[f"popq {r}" for r in reversed(_SAVED)], "vzeroupper", "retq", ".p2align 4"]


def module_assembly(texts: Iterable[str]) -> str:
    """Assembly as a line of a module."""
    whole = "\n".join(texts).replace("\n", "\\0A")
    return f'module asm "{whole}"'


def _given(name: str | int) -> str:
    """What the caller put on the stack."""
    return f"{8 * (1 + len(_SAVED) + _GIVEN.index(name))}(%rsp)"


def _row(number: int) -> str:
    """A number of a row of A."""
    odd = number
    while odd and not odd % 2:
        odd //= 2
    return f"({_A},{_APART[odd]},{number // odd})" if number else f"({_A})"
