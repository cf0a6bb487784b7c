"""Between memory and registers: loads, stores, and the bits of small floats.

In memory a bool is a byte and a float16, bfloat16 or float8 its own bits; in registers a bool is
one bit and small floats are float32, which holds each of them exactly. Rounding to a small float
is done once, halves to even, from float32 or from a wider number made odd first, so that the
rounding to float32 on the way cannot change the result. Loads where a condition fails give 0 and
touch no memory. Memory is a user's: no load or store assumes that it is aligned.
"""

from __future__ import annotations

from bisect import bisect_right

from ....core.dtype import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    uint8,
    uint16,
    uint32,
)
from ....graph.ir.reshape_groups import CannotLower
from .emitter import Emitter, Val, scalar_type
from .masked import masked_gather, masked_load, masked_scatter, masked_store
from .maths import compare, intrinsic, select


def memory_dtype(dtype: DType) -> DType:
    """The dtype whose bits are in memory."""
    if dtype is bool_:
        return uint8
    if dtype.is_small_float:
        return uint8 if dtype.bits == 8 else uint16
    if dtype.kind == "c":
        raise CannotLower(f"{dtype} is no pair here")
    return dtype


def load_value(
    e: Emitter, pointer: str, place: Val, dtype: DType, holds: Val | None, mask: str | None,
    how: str,
) -> Val:  # fmt: skip
    """One element, a row of lanes from a place, or lanes at places of their own."""
    raw = memory_dtype(dtype)
    inner = scalar_type(raw)
    if how == "one":
        if holds is not None:
            place = select(e, holds, place, e.const(0, place.dtype))
        at = e.let(f"getelementptr {inner}, ptr {pointer}, i64 {place.text}")
        value = Val(e.let(f"load {inner}, ptr {at}, align 1"), raw)
        if holds is not None:
            value = select(e, holds, value, Val("0" if raw.kind != "f" else "0.0", raw))
        return from_memory(e, value, dtype)
    lanes = e.lanes
    kind = f"<{lanes} x {inner}>"
    live = _all(e, holds, mask)
    if how == "row":
        at = e.let(f"getelementptr {inner}, ptr {pointer}, i64 {place.text}")
        return from_memory(e, Val(load_row(e, at, raw, live), raw, True), dtype)
    live = live or "splat (i1 true)"
    at = e.let(f"getelementptr {inner}, ptr {pointer}, {e.typed(place)}")
    return from_memory(e, Val(masked_gather(e, kind, at, live), raw, True), dtype)


def store_value(
    e: Emitter, pointer: str, place: Val, value: Val, dtype: DType, mask: str | None, how: str
) -> None:
    """The other way."""
    value = to_memory(e, value, dtype)
    inner = scalar_type(value.dtype)
    kind = e.type_of(value.dtype, value.vector)
    if how in ("one", "row"):
        at = e.let(f"getelementptr {inner}, ptr {pointer}, i64 {place.text}")
        _put_row(e, at, value, None if how == "one" else mask)
        return
    at = e.let(f"getelementptr {inner}, ptr {pointer}, {e.typed(place)}")
    masked_scatter(e, kind, value.text, at, mask or "splat (i1 true)")


def load_every(
    e: Emitter, pointer: str, place: Val, dtype: DType, holds: Val | None, mask: str | None,
    step: int,
) -> Val:  # fmt: skip
    """Lanes a small step apart, from the place of the first: whole rows, and what they need of it.

    The last row ends with the last lane, so nothing is read beyond it.
    """
    raw, count = memory_dtype(dtype), e.lanes
    live = _all(e, holds, mask)
    last = (count - 1) * abs(step)
    starts = [min(row * count, last + 1 - count) for row in range(abs(step))]
    base = 0 if step > 0 else -last
    offsets = [lane * step - base for lane in range(count)]
    owner = [bisect_right([start + count for start in starts], o) for o in offsets]
    value = ""
    for row, start in enumerate(starts):
        own = {i: offsets[i] - start for i in range(count) if owner[i] == row}  # lane: its place
        whose = {spot: lane for lane, spot in own.items()}
        part = _spread(e, live, [whose.get(j, count) for j in range(count)])
        at = _address(e, raw, pointer, place, base + start)
        found = load_row(e, at, raw, part)
        first = count if row else 0
        lanes = [own[i] + first if i in own else i for i in range(count)]
        value = shuffled(e, raw, value or found, found, lanes)
    return from_memory(e, Val(value, raw, True), dtype)


def store_every(
    e: Emitter, pointer: str, place: Val, values: list[Val], dtype: DType, mask: str | None
) -> None:
    """Vectors whose lanes take turns in memory, from the place of the first."""
    parts = [to_memory(e, value, dtype) for value in values]
    raw, count, step = parts[0].dtype, e.lanes, len(values)
    for row in range(step):
        turns = range(row * count, row * count + count)
        value = parts[0].text
        for number in range(1, step):
            lanes = [
                (count + t // step if t % step == number else t - row * count if number > 1
                 else t // step) for t in turns
            ]  # fmt: skip
            value = shuffled(e, raw, value, parts[number].text, lanes)
        at = _address(e, raw, pointer, place, row * count)
        live = _spread(e, mask, [t // step for t in turns])
        _put_row(e, at, Val(value, raw, True), live)


def _address(e: Emitter, raw: DType, pointer: str, place: Val, offset: int) -> str:
    """The address of a place, or of one a fixed number of elements further."""
    at = e.let(f"getelementptr {scalar_type(raw)}, ptr {pointer}, i64 {place.text}")
    return e.let(f"getelementptr {scalar_type(raw)}, ptr {at}, i64 {offset}") if offset else at


def _spread(e: Emitter, mask: str | None, lanes: list[int]) -> str | None:
    """A mask whose lanes are those of another; one beyond its end is not live."""
    return mask and shuffled(e, bool_, mask, "zeroinitializer", lanes)


def shuffled(e: Emitter, dtype: DType, a: str, b: str, lanes: list[int]) -> str:
    """Lanes of two vectors, numbered through."""
    kind, numbers = e.type_of(dtype, True), ", ".join([f"i32 {n}" for n in lanes])
    return e.let(f"shufflevector {kind} {a}, {kind} {b}, <{e.lanes} x i32> <{numbers}>")


def load_row(e: Emitter, at: str, raw: DType, live: str | None) -> str:
    """Consecutive lanes from an address."""
    kind = e.type_of(raw, True)
    if live is None:
        return e.let(f"load {kind}, ptr {at}, align 1")
    return masked_load(e, kind, at, live)


def _put_row(e: Emitter, at: str, value: Val, mask: str | None) -> None:
    """One number, or consecutive lanes, to an address."""
    kind = e.type_of(value.dtype, value.vector)
    if mask is None:
        e.line(f"store {kind} {value.text}, ptr {at}, align 1")
        return
    if value.dtype.kind != "f" and value.dtype.bits < 64:
        mask = _unknown(e, mask)
    masked_store(e, kind, value.text, at, mask)


def _unknown(e: Emitter, mask: str) -> str:
    """The mask, made to look as if it were not known when code is made.

    LLVM 22 stores too many bytes where it narrows whole numbers, stores them masked, and knows
    that the mask has a single lane (AVX-512 alone has instructions for that).
    """
    if e.lanes != 16:
        return mask
    all_ones = e.let('call i32 asm "", "=r,0"(i32 -1)')
    lanes = e.let(f"bitcast i16 {e.let(f'trunc i32 {all_ones} to i16')} to <16 x i1>")
    return e.let(f"and <16 x i1> {mask}, {lanes}")


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
    if dtype is float8_e5m2:  # the upper half of a float16
        value = _op(e, "shl", _as(e, "zext", value, uint16), 8)
    if dtype is float16 or dtype is float8_e5m2:
        return _from_half(e, value)
    if dtype is float8_e4m3fn:
        return _from_small(e, value, dtype)
    return value


def _from_half(e: Emitter, bits: Val) -> Val:
    if not has_halves(e):
        return _from_small(e, bits, float16)
    kind = f"<{e.lanes} x half>" if bits.vector else "half"
    half = e.let(f"bitcast {e.typed(bits)} to {kind}")
    wide = e.type_of(float32, bits.vector)
    return Val(e.let(f"fpext {kind} {half} to {wide}"), float32, bits.vector)


def has_halves(e: Emitter) -> bool:
    """True if the processor converts float16 itself (F16C: those with wider vectors)."""
    return e.lanes > 4


def _from_small(e: Emitter, bits: Val, dtype: DType) -> Val:
    """Exponent and fraction put where float32 has them; the product mends the exponent's bias."""
    fraction, bias, beyond, _ = _SMALL[dtype]
    vector, width = bits.vector, dtype.bits - 1
    wide = _as(e, "zext", bits, uint32)
    size = _op(e, "and", wide, (1 << width) - 1)
    placed = _op(e, "shl", size, 23 - fraction)
    factor = e.const(2.0 ** (127 - bias), float32, vector)
    scaled = _as(e, "bitcast", placed, float32)
    scaled = Val(e.let(f"fmul {e.typed(scaled)}, {factor.text}"), float32, vector)
    found = _as(e, "bitcast", scaled, uint32)
    past = compare(e, "icmp uge", size, e.const(beyond, uint32, vector))
    above = _op(e, "or", placed, 0x7FC00000 if dtype is float8_e4m3fn else 0x7F800000)
    found = select(e, past, above, found)
    sign = _op(e, "shl", _op(e, "lshr", wide, width), 31)
    return _as(e, "bitcast", _signed(e, found, sign), float32)


def _signed(e: Emitter, a: Val, sign: Val) -> Val:
    return Val(e.let(f"or {e.typed(a)}, {sign.text}"), a.dtype, a.vector)


def to_memory(e: Emitter, value: Val, dtype: DType) -> Val:
    """A number in registers as bits in memory; a small float is on its grid already."""
    if dtype is bool_:
        return _as(e, "zext", value, uint8)
    if dtype is bfloat16:
        return _as(e, "trunc", _op(e, "lshr", _bf16_bits(e, value), 16), uint16)
    if dtype is float16:
        return _to_half(e, value)
    if dtype.is_small_float:
        return _as(e, "trunc", _small_bits(e, value, dtype), uint8)
    memory_dtype(dtype)
    return value


def _to_half(e: Emitter, value: Val) -> Val:
    if not has_halves(e):
        return _as(e, "trunc", _small_bits(e, value, float16), uint16)
    kind = f"<{e.lanes} x half>" if value.vector else "half"
    half = e.let(f"fptrunc {e.typed(value)} to {kind}")
    raw = e.type_of(uint16, value.vector)
    return Val(e.let(f"bitcast {kind} {half} to {raw}"), uint16, value.vector)


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


# fraction bits, exponent bias, the bits of what is beyond all numbers, and of NaN
_SMALL = {
    float8_e4m3fn: (3, 7, 0x7F, 0x7F), float8_e5m2: (2, 15, 0x7C, 0x7E),
    float16: (10, 15, 0x7C00, 0x7E00),
}  # fmt: skip


def _small_bits(e: Emitter, value: Val, dtype: DType) -> Val:
    """The bits of a float32 rounded to a small float, halves to even, in 32 bits.

    Below the least normal number an addition rounds: its sum has the small float's steps as its
    own.
    """
    fraction, bias, beyond, nan = _SMALL[dtype]
    vector, spare = value.vector, 23 - fraction
    bits = _as(e, "bitcast", value, uint32)
    sign = _op(e, "shl", _op(e, "lshr", bits, 31), dtype.bits - 1)
    size = _op(e, "and", bits, 0x7FFFFFFF)
    odd = _op(e, "and", _op(e, "lshr", size, spare), 1)
    near = _op(e, "add", size, (1 << spare - 1) - 1)
    near = Val(e.let(f"add {e.typed(near)}, {odd.text}"), uint32, vector)
    near = _op(e, "sub", _op(e, "lshr", near, spare), (127 - bias) << fraction)
    over = compare(e, "icmp ugt", size, e.const((254 << 23) - 1, uint32, vector))
    limit = e.const(beyond, uint32, vector)
    past = compare(e, "icmp ugt", near, limit)
    either = Val(e.let(f"or {e.typed(over)}, {past.text}"), bool_, vector)
    near = select(e, either, limit, near)
    step = e.const(2.0 ** (24 - bias - fraction), float32, vector)
    magnitude = _as(e, "bitcast", size, float32)
    rounded = Val(e.let(f"fadd {e.typed(magnitude)}, {step.text}"), float32, vector)
    start = (127 + 24 - bias - fraction) << 23
    small = _op(e, "sub", _as(e, "bitcast", rounded, uint32), start)
    tiny = compare(e, "icmp ult", size, e.const((128 - bias) << 23, uint32, vector))
    near = select(e, tiny, small, near)
    none = compare(e, "fcmp uno", value, value)
    return _signed(e, select(e, none, e.const(nan, uint32, vector), near), sign)


def round_small(e: Emitter, value: Val, dtype: DType) -> Val:
    """A float32 on a small float's grid."""
    if dtype is bfloat16:
        return _as(e, "bitcast", _bf16_bits(e, value), float32)
    return from_memory(e, to_memory(e, value, dtype), dtype)


def odd_float32(e: Emitter, value: Val) -> Val:
    """A float64 as float32, rounded to odd: a later rounding to fewer bits is then exact."""
    near = _as(e, "fptrunc", value, float32)
    wide = _as(e, "fpext", near, float64)
    bits = _as(e, "bitcast", near, uint32)
    past = compare(e, "fcmp ogt", intrinsic(e, "llvm.fabs", wide), intrinsic(e, "llvm.fabs", value))
    truncated = select(e, past, _op(e, "sub", bits, 1), bits)
    inexact = compare(e, "fcmp one", wide, value)  # an infinite number equals itself
    found = select(e, inexact, _op(e, "or", truncated, 1), bits)
    return _as(e, "bitcast", found, float32)


def odd_float64(e: Emitter, value: Val) -> Val:
    """A whole number of 64 bits as float64, rounded to odd where it is too large to be exact."""
    kind = value.dtype.kind
    low = _op(e, "and", value, 0xFFF)
    some = compare(e, "icmp ne", low, e.const(0, value.dtype, value.vector))
    cleared = Val(e.let(f"xor {e.typed(value)}, {low.text}"), value.dtype, value.vector)
    odd = select(e, some, _op(e, "or", cleared, 0x800), cleared)
    size = value
    if kind == "i":
        full = f"llvm.abs.{e.suffix(value.dtype, value.vector)}"
        size = Val(e.call(e.type_of(value.dtype, value.vector), full, e.typed(value), "i1 false"),
                   value.dtype, value.vector)  # fmt: skip
    big = compare(e, "icmp ugt", size, e.const(1 << 52, value.dtype, value.vector))
    return _as(e, "sitofp" if kind == "i" else "uitofp", select(e, big, odd, value), float64)


def saturated(e: Emitter, value: Val, goal: DType) -> Val:
    """A float as a whole number: clamped, then converted; NaN is 0.

    LLVM's own saturating conversion goes lane by lane. Bounds are numbers of the float's grid, so
    that what is beyond the last of them is put in afterwards.
    """
    have, vector = value.dtype, value.vector
    low, high = goal.limits
    steps = max(high.bit_length() - (53 if have is float64 else 24), 0)
    top = (high >> steps) << steps  # the largest float that is no larger
    least, most = e.const(float(low), have, vector), e.const(float(top), have, vector)
    x = value
    if low:  # else the lower bound takes the place of NaN
        number = compare(e, "fcmp ord", value, value)
        x = select(e, number, value, e.const(0.0, have, vector))
    x = select(e, compare(e, "fcmp ogt", x, least), x, least)
    x = select(e, compare(e, "fcmp olt", x, most), x, most)
    wide = goal if goal.bits >= 32 else int32
    found = _as(e, "fptosi" if wide.kind == "i" else "fptoui", x, wide)
    if top != high:
        beyond = compare(e, "fcmp ogt", value, most)
        found = select(e, beyond, e.const(high, goal, vector), found)
    if wide is goal:
        return found
    found = _as(e, "trunc", found, goal)
    e.clamped[found.text] = x
    return found


def unsaturated(e: Emitter, value: Val, goal: DType) -> Val | None:
    """A small whole number as a float, where it was one: that without its fraction.

    A number that goes through a byte on its way (a quantised sum) stays in its lanes.
    """
    x = e.clamped.get(value.text)
    if x is None or x.dtype is not goal or x.vector is not value.vector:
        return None
    kind = e.type_of(goal, x.vector)
    name = f"llvm.trunc.{e.suffix(goal, x.vector)}"
    whole = e.call(kind, name, e.typed(x))
    zero = e.const(0.0, goal, x.vector)  # of which no whole number is the negative one
    return Val(e.let(f"fadd {kind} {whole}, {zero.text}"), goal, x.vector)
