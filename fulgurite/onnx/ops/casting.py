"""Conversions between element types, those that tensors do not have included.

In: a `Call`. Out: values of the kind that is asked for. Floats of eight and four bits that are
carried by their bits are encoded and decoded by arithmetic on powers of two, so it is native code
like the rest: with m bits of mantissa and smallest exponent e, the code of a number is
(q - e) 2^m + round(|x| 2^(m - q)), where q is its exponent but at least e. Strings are host work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ...core.op import Array
from ...tensor import Tensor
from .. import types as t
from ..table import Call, operator
from ..types import CODED, STRING, WHOLE, Kind, kind_of_dtype
from ..values import Value

# mantissa bits, exponent of the smallest normal number, largest code, code of NaN
FORMATS = {
    t.FLOAT8E4M3FNUZ: (3, -7, 0x7F, 0x80),
    t.FLOAT8E5M2FNUZ: (2, -15, 0x7F, 0x80),
    t.FLOAT4E2M1: (1, 0, 7, 7),
}
LARGEST = {t.FLOAT8E4M3FN: 448.0, t.FLOAT8E5M2: 57344.0}


@operator("Cast")
def cast(op: Call) -> Any:
    """Another element type."""
    kind = op.kind_attr("to", t.FLOAT)
    return converted(op, op.value(0), kind)


@operator("CastLike")
def cast_like(op: Call) -> Any:
    """The element type of the second input."""
    return converted(op, op.value(0), op.kind(1))


def converted(op: Call, value: Value, kind: Kind) -> Any:
    """A value in another kind."""
    if kind is value.kind:
        return value
    if kind is STRING:
        op.build.hosts.add("strings")
        array = t.shown(op.build.fixed(op.build.read(value)), value.kind)
        return Value(None, STRING, _texts(array))
    if value.is_text:
        op.build.hosts.add("strings")
        return Value(fg.Tensor(_numbers(op.build.read(value), kind), dtype=kind.carrier), kind)
    saturate = bool(op.int("saturate", 1))
    mode = op.text("round_mode", "up")
    return Value(encode(decode(value.tensor, value.kind), kind, saturate, mode), kind)


def _texts(array: Array) -> Array:
    found = np.empty(array.shape, object)
    flat = found.reshape(-1)
    whole = array.dtype.kind in "biu"
    for i, number in enumerate(array.reshape(-1)):
        if whole:
            flat[i] = str(int(number))
        else:
            text = np.format_float_positional(number.astype(np.float32), unique=True, trim="-")
            large = abs(float(number))
            plain = text if large == 0 or 1e-5 <= large < 1e16 else f"{number:.8g}"
            flat[i] = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(plain, plain)
    return found


def _numbers(texts: Array, kind: Kind) -> Array:
    assert kind.carrier is not None
    flat = [float(str(s)) for s in texts.reshape(-1)]
    if kind.carrier.is_integer:
        return np.array([int(x) for x in flat], kind.carrier.numpy).reshape(texts.shape)
    return np.array(flat, np.float64).astype(np.float32).reshape(texts.shape)


def decode(x: Tensor, kind: Kind) -> Tensor:
    """The numbers that a carrier stands for."""
    if kind not in CODED:
        return x
    code = x.astype(fg.int32)
    if kind is t.FLOAT8E8M0:
        power = fg.where(code == 0, fg.bitcast(fg.full((), 1 << 22, fg.int32), fg.float32),
                         fg.bitcast(code << 23, fg.float32))  # fmt: skip
        return fg.where(code == 255, float("nan"), power)
    mantissa, least, _, nan = FORMATS[kind]
    sign_bit = 1 << kind.bits - 1
    magnitude = code & (sign_bit - 1)
    exponent = magnitude >> mantissa
    digits = magnitude & ((1 << mantissa) - 1)
    normal = exponent > 0
    digits = fg.where(normal, digits + (1 << mantissa), digits)
    power = fg.maximum(exponent, 1) - 1 + (least - mantissa)
    value = digits.astype(fg.float32) * _two_to(power)
    value = fg.where((code & sign_bit) != 0, -value, value)
    return fg.where(code == nan, float("nan"), value) if nan == 0x80 else value


def _two_to(power: Tensor) -> Tensor:
    return fg.bitcast((power + 127) << 23, fg.float32)


def encode(x: Tensor, kind: Kind, saturate: bool = True, mode: str = "up") -> Tensor:
    """Numbers as the carrier of a kind holds them."""
    assert kind.carrier is not None
    if kind in LARGEST:
        return _small_float(x, kind, saturate)
    if kind in WHOLE:
        return _few_bits(x, kind)
    if kind not in CODED:
        return x if kind_of_dtype(x.dtype) is kind else fg.astype(x, kind.carrier)
    x = x.astype(fg.float32)
    if kind is t.FLOAT8E8M0:
        return _exponents(x, saturate, mode)
    mantissa, least, largest, nan = FORMATS[kind]
    magnitude = fg.abs(x)
    exponent = (fg.bitcast(magnitude, fg.int32) >> 23) - 127
    power = fg.clip(exponent, least, 100)
    scaled = fg.round(fg.minimum(magnitude, 1e30) * _two_to(mantissa - power))
    whole = fg.minimum(scaled, 1 << 20).astype(fg.int32)
    code = ((power - least) << mantissa) + whole
    over = code > largest
    code = fg.where(over, largest if saturate or nan == 7 else nan, code)
    negative = fg.signbit(x)
    if nan == 0x80:  # one zero, one NaN, no infinity
        signed = fg.where(negative & (code != 0) & (code != nan), code + 128, code)
        signed = fg.where(fg.isnan(x), nan, signed)
        if not saturate:
            signed = fg.where(fg.isinf(x), nan, signed)
    else:
        signed = fg.where(negative, code + (1 << kind.bits - 1), code)
        signed = fg.where(fg.isnan(x), 1 << kind.bits - 1, signed)
    return signed.astype(fg.uint8)


def _small_float(x: Tensor, kind: Kind, saturate: bool) -> Tensor:
    """float8 types that tensors have: beyond the largest, the largest, or what has no number."""
    assert kind.carrier is not None
    top = LARGEST[kind]
    wide = x if x.dtype in (fg.float32, fg.float64) else x.astype(fg.float32)
    if saturate:
        return fg.clip(wide, -top, top).astype(kind.carrier)
    made = wide.astype(kind.carrier)
    if kind is t.FLOAT8E4M3FN:  # there is no infinity
        half_step = 16.0
        return fg.where(
            fg.abs(wide) > top + half_step, fg.full((), float("nan"), kind.carrier), made
        )
    return made


def _few_bits(x: Tensor, kind: Kind) -> Tensor:
    """Whole numbers of two and four bits: the low bits stay."""
    assert kind.carrier is not None
    whole = x.astype(fg.int32)
    low = whole & ((1 << kind.bits) - 1)
    if kind.carrier.kind == "i":
        half = 1 << kind.bits - 1
        low = (low ^ half) - half
    return low.astype(kind.carrier)


def _exponents(x: Tensor, saturate: bool, mode: str) -> Tensor:
    """Powers of two: the exponent, rounded as asked."""
    bits = fg.bitcast(fg.abs(x), fg.int32)
    exponent, rest = bits >> 23, bits & 0x7FFFFF
    if mode == "up":
        code = exponent + fg.astype((rest > 0) & (exponent > 0), fg.int32)
        code = fg.where((exponent == 0) & (rest > 0x400000), 1, code)
    elif mode == "nearest":
        code = exponent + fg.astype((rest >= 0x400000) & (exponent > 0), fg.int32)
        code = fg.where((exponent == 0) & (rest > 0x600000), 1, code)
    else:
        code = exponent
    code = fg.minimum(code, 254) if saturate else fg.minimum(code, 255)
    return fg.where(fg.isnan(x) | (fg.isinf(x) & (not saturate)), 255, code).astype(fg.uint8)


@operator("BitCast")
def bit_cast(op: Call) -> Any:
    """The same bits as another element type."""
    kind, own = op.kind_attr("to", t.FLOAT), op.kind(0)
    if kind.bits != own.bits or kind.carrier is None or kind.bits < 8:
        raise op.unsupported(f"{own} to {kind}")
    x = op[0]
    if own is t.BOOL:
        x = x.astype(fg.uint8)
    if kind is t.BOOL:
        return Value(fg.bitcast(x, fg.uint8) != 0, kind)
    return Value(x if x.dtype is kind.carrier else fg.bitcast(x, kind.carrier), kind)
