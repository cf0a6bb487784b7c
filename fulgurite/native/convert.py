"""Between memory and registers: loads, stores, and the bits of small floats.

In memory a bool is a byte and a float16, bfloat16 or float8 its own bits; in registers a bool is
one bit and small floats are float32. Loads where a condition fails give 0 and touch no memory.
"""

from __future__ import annotations

from ..core.dtype import DType, bfloat16, bool_, float16, float32, uint8, uint16, uint32
from ..graph.regroup import CannotLower
from .emitter import Emitter, Val, scalar_type
from .maths import compare, select


def memory_dtype(dtype: DType) -> DType:
    """The dtype whose bits are in memory."""
    if dtype is bool_:
        return uint8
    if dtype.is_small_float:
        if dtype.bits == 8:
            raise CannotLower("float8 has no native form yet")
        return uint16
    if dtype.kind == "c":
        raise CannotLower("complex numbers are computed by NumPy")
    return dtype


def load_value(
    e: Emitter, pointer: str, place: Val, dtype: DType, holds: Val | None, mask: str | None,
    how: str,
) -> Val:  # fmt: skip
    """One element, a row of lanes from a place, or lanes at places of their own."""
    raw = memory_dtype(dtype)
    inner = scalar_type(raw)
    size = raw.itemsize
    if how == "one":
        if holds is not None:
            place = select(e, holds, place, e.const(0, place.dtype))
        at = e.let(f"getelementptr {inner}, ptr {pointer}, i64 {place.text}")
        value = Val(e.let(f"load {inner}, ptr {at}, align {size}"), raw)
        if holds is not None:
            value = select(e, holds, value, Val("0" if raw.kind != "f" else "0.0", raw))
        return from_memory(e, value, dtype)
    lanes = e.lanes
    kind = f"<{lanes} x {inner}>"
    live = _all(e, holds, mask)
    if how == "row":
        at = e.let(f"getelementptr {inner}, ptr {pointer}, i64 {place.text}")
        if live is None:
            return from_memory(
                e, Val(e.let(f"load {kind}, ptr {at}, align {size}"), raw, True), dtype
            )
        name = f"llvm.masked.load.v{lanes}{e.suffix(raw, False)}.p0"
        e.declare(f"{kind} @{name}(ptr, <{lanes} x i1>, {kind})", name)
        where = f"ptr align {size} {at}, <{lanes} x i1> {live}"
        text = f"call {kind} @{name}({where}, {kind} zeroinitializer)"
        return from_memory(e, Val(e.let(text), raw, True), dtype)
    live = live or "splat (i1 true)"
    at = e.let(f"getelementptr {inner}, ptr {pointer}, <{lanes} x i64> {place.text}")
    name = f"llvm.masked.gather.v{lanes}{e.suffix(raw, False)}.v{lanes}p0"
    e.declare(f"{kind} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {kind})", name)
    text = (
        f"call {kind} @{name}(<{lanes} x ptr> align {size} {at}, <{lanes} x i1> {live}, "
        f"{kind} zeroinitializer)"
    )
    return from_memory(e, Val(e.let(text), raw, True), dtype)


def store_value(
    e: Emitter, pointer: str, place: Val, value: Val, dtype: DType, mask: str | None, how: str
) -> None:
    """The other way."""
    value = to_memory(e, value, dtype)
    inner, size, lanes = scalar_type(value.dtype), value.dtype.itemsize, e.lanes
    kind = e.type_of(value.dtype, value.vector)
    if how in ("one", "row"):
        at = e.let(f"getelementptr {inner}, ptr {pointer}, i64 {place.text}")
        if how == "one" or mask is None:
            e.line(f"store {kind} {value.text}, ptr {at}, align {size}")
            return
        name = f"llvm.masked.store.v{lanes}{e.suffix(value.dtype, False)}.p0"
        e.declare(f"void @{name}({kind}, ptr, <{lanes} x i1>)", name)
        e.line(
            f"call void @{name}({kind} {value.text}, ptr align {size} {at}, <{lanes} x i1> {mask})"
        )
        return
    at = e.let(f"getelementptr {inner}, ptr {pointer}, <{lanes} x i64> {place.text}")
    name = f"llvm.masked.scatter.v{lanes}{e.suffix(value.dtype, False)}.v{lanes}p0"
    e.declare(f"void @{name}({kind}, <{lanes} x ptr>, <{lanes} x i1>)", name)
    live = mask or "splat (i1 true)"
    e.line(
        f"call void @{name}({kind} {value.text}, <{lanes} x ptr> align {size} {at}, "
        f"<{lanes} x i1> {live})"
    )


def _all(e: Emitter, holds: Val | None, mask: str | None) -> str | None:
    """Lanes that exist and whose condition holds; None: all of them."""
    if holds is None:
        return mask
    vector = e.splat(holds).text
    if mask is None:
        return vector
    return e.let(f"and <{e.lanes} x i1> {vector}, {mask}")


# --- bits ----------------------------------------------------------------------------------------


def _op(e: Emitter, text: str, a: Val, number: int) -> Val:
    other = e.const(number, a.dtype, a.vector)
    return Val(e.let(f"{text} {e.typed(a)}, {other.text}"), a.dtype, a.vector)


def _as(e: Emitter, how: str, a: Val, dtype: DType) -> Val:
    return Val(e.let(f"{how} {e.typed(a)} to {e.type_of(dtype, a.vector)}"), dtype, a.vector)


def from_memory(e: Emitter, value: Val, dtype: DType) -> Val:
    """Bits in memory as a number in registers."""
    if dtype is bool_:
        return compare(e, "icmp ne", value, e.const(0, uint8, value.vector))
    if dtype is bfloat16:
        wide = _op(e, "shl", _as(e, "zext", value, uint32), 16)
        return _as(e, "bitcast", wide, float32)
    if dtype is float16:
        kind = f"<{e.lanes} x half>" if value.vector else "half"
        half = e.let(f"bitcast {e.typed(value)} to {kind}")
        return Val(
            e.let(f"fpext {kind} {half} to {e.type_of(float32, value.vector)}"),
            float32,
            value.vector,
        )
    return value


def to_memory(e: Emitter, value: Val, dtype: DType) -> Val:
    """A number in registers as bits in memory."""
    if dtype is bool_:
        return _as(e, "zext", value, uint8)
    if dtype is bfloat16:
        return _as(e, "trunc", _op(e, "lshr", _bf16_bits(e, value), 16), uint16)
    if dtype is float16:
        kind = f"<{e.lanes} x half>" if value.vector else "half"
        half = e.let(f"fptrunc {e.typed(value)} to {kind}")
        raw = e.type_of(uint16, value.vector)
        return Val(e.let(f"bitcast {kind} {half} to {raw}"), uint16, value.vector)
    memory_dtype(dtype)
    return value


def _bf16_bits(e: Emitter, value: Val) -> Val:
    """The bits of a float32 rounded to bfloat16, halves to even; NaN stays NaN."""
    bits = _as(e, "bitcast", value, uint32)
    odd = _op(e, "and", _op(e, "lshr", bits, 16), 1)
    near = Val(
        e.let(f"add {e.typed(_op(e, 'add', bits, 0x7FFF))}, {odd.text}"), uint32, bits.vector
    )
    quiet = _op(e, "or", bits, 0x400000)
    nan = compare(e, "fcmp uno", value, value)
    return _op(e, "and", select(e, nan, quiet, near), 0xFFFF0000)


def round_small(e: Emitter, value: Val, dtype: DType) -> Val:
    """A float32 on a small float's grid."""
    if dtype is bfloat16:
        return _as(e, "bitcast", _bf16_bits(e, value), float32)
    if dtype is float16:
        kind = f"<{e.lanes} x half>" if value.vector else "half"
        half = e.let(f"fptrunc {e.typed(value)} to {kind}")
        return Val(
            e.let(f"fpext {kind} {half} to {e.type_of(float32, value.vector)}"),
            float32,
            value.vector,
        )
    raise CannotLower("float8 has no native form yet")
