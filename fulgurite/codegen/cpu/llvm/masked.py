"""Masked loads, stores, gathers and scatters, in the one spelling that every LLVM we support reads.

In: types, addresses and masks as text. Out: calls of LLVM's intrinsics, and their declarations. The
alignment is an operand, as it was up to LLVM 21. From LLVM 22 on it is an attribute of the address,
which older ones refuse; newer ones turn the operand into the attribute while they read.
"""

from __future__ import annotations

from .emitter import Emitter


def _intrinsic(how: str, kind: str) -> tuple[str, str, str]:
    """The name of an intrinsic over vectors of a kind, the type of its addresses and its masks."""
    lanes, inner = kind[1:-1].split(" x ")
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


def masked_load(
    e: Emitter, kind: str, at: str, mask: str, others: str = "zeroinitializer", align: int = 1
) -> str:
    """Lanes that follow each other."""
    e.declare(*declaration("load", kind))
    return e.let(reading("load", kind, at, mask, others, align))


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
