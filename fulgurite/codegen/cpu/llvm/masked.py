"""Masked loads, stores, gathers and scatters, in the one spelling that every LLVM we support reads.

In: types, addresses and masks as text. Out: calls of LLVM's intrinsics, and their declarations. The
alignment is an operand, as it was up to LLVM 21. From LLVM 22 on it is an attribute of the address,
which older ones refuse; newer ones turn the operand into the attribute while they read.

Loads for AVX2 are that target's own instructions, by name. In masked loads of its own LLVM asks for
the sign alone of each lane of an AVX2 mask, so it may make a lane that is never live a 1; a later
step, which turns loads of constant masks into whole ones, takes every number but 0 for live. Lanes
that are masked out are read then: numbers of another row, or no memory at all. It happens where a
vector is two registers and half of its mask is known to be empty, in LLVM 22 at least, and on AVX2
alone: AVX-512 has masks of single bits, SSE2 has branches.
"""

from __future__ import annotations

from ..target import VECTORS
from .emitter import Emitter

_AVX2 = 4 * VECTORS["avx2"]  # bytes of a register, with masks in vector registers
_OWN = {"float": ("avx", "ps", 4), "double": ("avx", "pd", 8), "i32": ("avx2", "d", 4),
        "i64": ("avx2", "q", 8)}  # fmt: skip


def _parts(kind: str) -> tuple[int, str]:
    """How many lanes a vector has, and of what type."""
    lanes, inner = kind[1:-1].split(" x ")
    return int(lanes), inner


def _intrinsic(how: str, kind: str) -> tuple[str, str, str]:
    """The name of an intrinsic over vectors of a kind, the type of its addresses and its masks."""
    lanes, inner = _parts(kind)
    short = {"float": "f32", "double": "f64"}.get(inner, inner)
    spread = how in ("gather", "scatter")
    name = f"llvm.masked.{how}.v{lanes}{short}.{f'v{lanes}p0' if spread else 'p0'}"
    return name, f"<{lanes} x ptr>" if spread else "ptr", f"<{lanes} x i1>"


def declaration(how: str, kind: str) -> tuple[str, str]:
    """What a text that uses an intrinsic declares, and its name."""
    name, place, mask = _intrinsic(how, kind)
    if how in ("load", "gather"):
        return f"{kind} @{name}({place}, i32, {mask}, {kind})", name
    return f"void @{name}({kind}, {place}, i32, {mask})", name


def reading(
    how: str, kind: str, at: str, mask: str, others: str = "zeroinitializer", align: int = 1
) -> str:
    """The call of a load or a gather; lanes that are masked out are those of `others`."""
    name, place, masks = _intrinsic(how, kind)
    return f"call {kind} @{name}({place} {at}, i32 {align}, {masks} {mask}, {kind} {others})"


def writing(how: str, kind: str, value: str, at: str, mask: str, align: int = 1) -> str:
    """The call of a store or a scatter."""
    name, place, masks = _intrinsic(how, kind)
    return f"call void @{name}({kind} {value}, {place} {at}, i32 {align}, {masks} {mask})"


def masked_load(e: Emitter, kind: str, at: str, mask: str, others: str = "zeroinitializer") -> str:
    """Lanes that follow each other; lanes that are masked out are those of `others`."""
    lanes, inner = _parts(kind)
    if e.register != _AVX2 or inner not in _OWN:
        e.declare(*declaration("load", kind))
        return e.let(reading("load", kind, at, mask, others))
    found = _by_registers(e, lanes, inner, at, mask)
    if others == "zeroinitializer":
        return found
    return e.let(f"select <{lanes} x i1> {mask}, {kind} {found}, {kind} {others}")


def _by_registers(e: Emitter, lanes: int, inner: str, at: str, mask: str) -> str:
    """Lanes that follow each other, a register of AVX2 at a time; 0 where there is none."""
    count = min(lanes, _AVX2 // _OWN[inner][2])
    kind, pieces = f"<{count} x {inner}>", []
    for first in range(0, lanes, count):
        place = e.let(f"getelementptr {inner}, ptr {at}, i64 {first}") if first else at
        if mask in e.first:
            pieces.append(_first(e, count, inner, place, e.first[mask] - first))
            continue
        part = mask
        if count < lanes:
            part = _lanes(e, f"<{lanes} x i1>", mask, "poison", range(first, first + count))
        pieces.append(_own(e, count, inner, place, part))
    while len(pieces) > 1:
        pairs = zip(pieces[::2], pieces[1::2], strict=True)
        pieces = [_lanes(e, kind, low, high, range(2 * count)) for low, high in pairs]
        count *= 2
        kind = f"<{count} x {inner}>"
    return pieces[0]


def _own(e: Emitter, count: int, inner: str, at: str, mask: str) -> str:
    """A register by the instruction of AVX2 for it."""
    family, short, size = _OWN[inner]
    name = f"llvm.x86.{family}.maskload.{short}{'.256' if count * size == _AVX2 else ''}"
    signs = f"<{count} x i{8 * size}>"
    live = e.let(f"sext <{count} x i1> {mask} to {signs}")
    return e.call(f"<{count} x {inner}>", name, f"ptr {at}", f"{signs} {live}")


def _first(e: Emitter, count: int, inner: str, at: str, live: int) -> str:
    """A register of which the first lanes are live: a mask that is written down is understood."""
    kind = f"<{count} x {inner}>"
    if live <= 0:
        return "zeroinitializer"
    if live >= count:
        return e.let(f"load {kind}, ptr {at}, align 1")
    e.declare(*declaration("load", kind))
    mask = "<" + ", ".join([f"i1 {'true' if i < live else 'false'}" for i in range(count)]) + ">"
    return e.let(reading("load", kind, at, mask))


def _lanes(e: Emitter, kind: str, a: str, b: str, lanes: range) -> str:
    """Some lanes of two vectors, numbered through."""
    numbers = ", ".join([f"i32 {n}" for n in lanes])
    return e.let(f"shufflevector {kind} {a}, {kind} {b}, <{len(lanes)} x i32> <{numbers}>")


def masked_gather(e: Emitter, kind: str, at: str, mask: str, align: int = 1) -> str:
    """Lanes from an address each; 0 where there is none."""
    e.declare(*declaration("gather", kind))
    return e.let(reading("gather", kind, at, mask, align=align))


def masked_store(e: Emitter, kind: str, value: str, at: str, mask: str, align: int = 1) -> None:
    """Lanes to places that follow each other."""
    e.declare(*declaration("store", kind))
    e.line(writing("store", kind, value, at, mask, align))


def masked_scatter(e: Emitter, kind: str, value: str, at: str, mask: str) -> None:
    """Lanes to an address each."""
    e.declare(*declaration("scatter", kind))
    e.line(writing("scatter", kind, value, at, mask))
