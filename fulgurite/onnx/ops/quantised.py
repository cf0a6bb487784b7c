"""Quantised numbers: to and from, and products of them.

In: a `Call`. Out: lazy values. A number x is kept as round(x / scale) + zero, within the limits of
its kind; scales are for the whole tensor, for each slice of an axis, or for blocks along it.
Products are summed exactly, in int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ...config import current
from ...tensor import Tensor
from .. import types as t
from ..table import Call, operator
from ..types import CODED, Kind, kind_of
from ..values import Dequantised, Joined, Sums, Value
from .casting import LARGEST, decode, encode
from .movement import axis_of, together
from .nn.convolution import convolved_bytes
from .nn.normalization import wide
from .whole import Whole, product, whole

FEW_BIAS = 1 << 23  # that floats hold exactly, added to sums that they hold


def limits(kind: Kind) -> tuple[int, int]:
    """The smallest and largest whole number of a kind."""
    assert kind.carrier is not None
    if kind.bits == 8 * kind.carrier.itemsize:
        return kind.carrier.limits
    signed = kind.carrier.kind == "i"
    return (
        (-(1 << kind.bits - 1), (1 << kind.bits - 1) - 1) if signed else (0, (1 << kind.bits) - 1)
    )


def spread(part: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Scales or zeros as they stand beside the elements of x."""
    if part.size == 1:
        return fg.reshape(part, ())
    if block:
        wide_part = fg.repeat(part, block, axis=axis)
        cut = (*[slice(None)] * axis, slice(0, x.shape[axis]))
        return wide_part[cut]
    shape = [1] * x.ndim
    shape[axis] = part.shape[0]
    return fg.reshape(part, shape)


def quantised(x: Tensor, scale: Tensor, zero: Tensor | None, kind: Kind, saturate: bool) -> Tensor:
    """Real numbers in a kind; scale and zero fit the shape of x."""
    scaled = x / scale
    if kind in CODED or kind in LARGEST:
        return encode(scaled, kind, saturate)
    whole = fg.round(scaled)
    if zero is not None:
        whole = whole + zero.astype(whole.dtype)
    return clamped(whole, kind)


def clamped(whole: Tensor, kind: Kind) -> Tensor:
    """Rounded floats in a kind, those beyond its limits at them: what a cast does by itself."""
    assert kind.carrier is not None
    if limits(kind) != kind.carrier.limits:
        whole = fg.clip(whole, *limits(kind))
    return whole.astype(kind.carrier)


@operator("QuantizeLinear")
def quantize_linear(op: Call) -> Value:
    """round(x / scale) + zero."""
    if op.has(2):
        kind = op.kind(2)
    else:
        kind = kind_of(op.int("output_dtype", 0) or t.UINT8.number)
    given, centre = op.value(0), op.value(2) if op.has(2) else None
    if isinstance(given, Dequantised) and given.is_made_by(op.value(1), centre, kind):
        return given.whole
    if given.joined is not None and op[1].size == 1:
        return _quantised_parts(op, given.joined, len(given.shape))
    last = given.last if op[1].size == 1 else None
    x = given.tensor if last is None else last
    made = _of_sums(op, given.sums, kind) if given.sums is not None else None
    made = _quantised(op, x, kind) if made is None else made
    return Value(made, kind) if last is None else Value.channels_last(made, kind)


def _quantised_parts(op: Call, joined: Joined, rank: int) -> Value:
    """What is joined, each part quantised by itself: those that are in this scale already are as
    they are, others are stored, so that all are copied into their places."""
    wholes = []
    for part in joined.parts:
        made = quantize_linear(op.with_inputs(part, *op.inputs[1:]))
        is_one = isinstance(part, Dequantised) and made is part.whole
        wholes.append(made if is_one else _stored(made))
    return together(wholes, axis_of(joined.axis, rank))


def _stored(value: Value) -> Value:
    if value.last is not None:
        return Value.channels_last(value.last.contiguous(), value.kind)
    return Value(value.tensor.contiguous(), value.kind)


def number(op: Call, place: int) -> Any:
    """An input that is one constant number, or 0 where there is none; None where it varies."""
    if not op.has(place):
        return np.float32(0)
    value = op.value(place)
    known = None if value.sources else value.known()
    return None if known is None or known.size != 1 else np.float32(known.reshape(()))


def _of_sums(op: Call, sums: Sums, kind: Kind) -> Tensor | None:
    """Sums of bytes in another scale, as a quantised operator has them: both scales are one.

    Rounding keeps order, so bounds are whole numbers; those beyond the limits of a kind are its
    own. None where scales are no plain numbers, or where every step is wanted (`exact`).
    """
    scale, zero = number(op, 1), number(op, 2)
    plain = kind.bits == 8 and op.kind(1) is t.FLOAT and not op.int("precision", 0)
    if scale is None or zero is None or not plain or current().exact:
        return None
    if not 2.0**-100 < scale < 2.0**100:
        return None
    factor = sums.scale / float(scale)
    op.build.keep(factor)
    whole = sums.total.astype(fg.float32) * factor
    if sums.bias is not None:
        bias = sums.bias / float(scale)
        op.build.keep(bias)
        whole = whole + bias
    whole = fg.round(whole) + float(zero)
    low, high = (float(np.rint(np.float32(b) / scale) + zero) for b in (sums.low, sums.high))
    least, most = limits(kind)
    if low > least:
        whole = fg.maximum(whole, low)
    if high < most:
        whole = fg.minimum(whole, high)
    return clamped(whole, kind)


def _quantised(op: Call, x: Tensor, kind: Kind) -> Tensor:
    """An operator's first input, or that with its channels at the end, in a kind."""
    axis = axis_of(op.int("axis", 1), x.ndim) if op[1].size > 1 else 0
    block = op.int("block_size", 0)
    precision = op.int("precision", 0)
    real = x if not x.dtype.is_integer else x.astype(fg.float32)
    if precision:
        real = real.astype(kind_of(precision).carrier)
    scale = spread(decode(op[1], op.kind(1)), x, axis, block)
    scale = scale.astype(real.dtype) if op.kind(1) in CODED else scale
    zero = None
    if op.has(2) and kind not in CODED and kind not in LARGEST:
        zero = spread(op[2].astype(fg.int32), x, axis, block)
    return quantised(wide(real), wide(scale), zero, kind, bool(op.int("saturate", 1)))


@operator("DequantizeLinear")
def dequantize_linear(op: Call) -> Tensor | Value:
    """(x - zero) scale, which bytes keep until real numbers are needed."""
    plain = op[0].dtype in (fg.int8, fg.uint8) and op[1].dtype is fg.float32
    if not plain or op.kind(0).bits != 8 or op.int("block_size", 0) or op.int("output_dtype", 0):
        return _dequantised(op, op[0])
    zero = op.value(2) if op.has(2) else None
    axis = axis_of(op.int("axis", 1), op[0].ndim) if op[1].size > 1 else 0
    return Dequantised(op.value(0), op.value(1), zero, axis, lambda x: _dequantised(op, x))


def _dequantised(op: Call, x: Tensor) -> Tensor:
    """Whole numbers of an operator's first input, or some of them, as real ones."""
    axis = axis_of(op.int("axis", 1), x.ndim) if op[1].size > 1 else 0
    block = op.int("block_size", 0)
    kind = op.kind(0)
    number = op.int("output_dtype", 0)
    wanted = kind_of(number).carrier if number else op[1].dtype
    if op.kind(1) in CODED and not number:
        wanted = fg.float32
    if kind in CODED or x.dtype.is_float:
        values = decode(x, kind).astype(fg.float32)
        if op.has(2):
            zero = decode(op[2], op.kind(2)).astype(fg.float32)
            values = values - spread(zero, x, axis, block)
    else:
        values = x.astype(fg.int32)
        if op.has(2):
            values = values - spread(op[2].astype(fg.int32), x, axis, block)
        values = values.astype(fg.float32)
    scale = spread(wide(decode(op[1], op.kind(1))), x, axis, block)
    return (values * scale).astype(wanted)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: Call) -> tuple[Tensor, Tensor, Tensor]:
    """The whole range of x over 256 steps, zero among them."""
    return dynamic(op[0])


def dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantised numbers, their scale and zero."""
    low, high = fg.minimum(fg.min(x), 0), fg.maximum(fg.max(x), 0)
    scale = (high - low) / 255
    scale = fg.where(scale == 0, 1, scale)  # all zeros: nothing may be divided by 0
    zero = fg.clip(fg.round(-low / scale), 0, 255)
    y = (fg.round(x / scale) + zero).astype(fg.uint8)
    return y, scale, zero.astype(fg.uint8)


@operator("MatMulInteger")
def mat_mul_integer(op: Call) -> Tensor:
    """Products of whole numbers around their zeros."""
    return product(op, left_factor(op, 0, 2), factor(op, 1, 3))


def factor(op: Call, place: int, zero: int) -> Whole:
    """A right factor at a place, its zero at another; zeros are by column."""
    return whole(op.value(place), op.value(zero) if op.has(zero) else None)


def left_factor(op: Call, place: int, zero: int) -> Whole:
    """A left factor at a place, its zero at another; a vector of zeros is by row."""
    centre = op.value(zero) if op.has(zero) else None
    rows = centre is not None and len(centre.shape) == 1
    return whole(op.value(place), centre, (-1, 1) if rows else ())


@operator("ConvInteger")
def conv_integer(op: Call) -> Value:
    """A convolution of whole numbers around their zeros."""
    zero = op.value(2) if op.has(2) else None
    total = convolved_bytes(op, op.value(0), zero, kernel(op, 1, 3))
    if total.last is not None:
        return Value.channels_last(total.last.astype(fg.int32))
    return Value(total.tensor.astype(fg.int32))


def kernel(op: Call, place: int, zero: int) -> Whole:
    """The weights of a convolution at a place, their zero at another; zeros are by result."""
    centre = op.value(zero) if op.has(zero) else None
    return whole(op.value(place), centre, (-1, *[1] * (op[place].ndim - 1)))


def _factor(scale: Tensor, rows: bool = False) -> Tensor:
    if scale.size == 1:
        return fg.reshape(wide(scale), ())
    return fg.reshape(wide(scale), (-1, 1)) if rows and scale.ndim == 1 else wide(scale)


def requantised(total: Tensor, factor: Tensor, zero: Tensor | None, kind: Kind) -> Tensor:
    """Sums of products in another scale."""
    whole = fg.round(total.astype(fg.float32) * factor)
    if zero is not None:
        centre = zero.astype(fg.float32)
        whole = whole + (fg.reshape(centre, ()) if centre.size == 1 else centre)
    return clamped(whole, kind)


@operator("QLinearMatMul")
def q_linear_mat_mul(op: Call) -> Value:
    """A product of quantised matrices."""
    scale = _factor(op[1], rows=True) * _factor(op[4]) / _factor(op[6])
    kind = op.kind(7)
    if kind in CODED or kind in LARGEST:
        total = fg.matmul(decode(op[0], op.kind(0)).astype(fg.float32),
                          decode(op[3], op.kind(3)).astype(fg.float32))  # fmt: skip
        return Value(encode(total * scale, kind), kind)
    total = product(op, left_factor(op, 0, 2), factor(op, 3, 5))
    return Value(requantised(total, scale, op[7], kind), kind)


def _plus(sums: Tensor, bias: Tensor, known: Value) -> Tensor:
    """Exact sums and a bias: in floats where they hold both."""
    if sums.dtype is fg.int32:
        return sums + bias
    array = known.known() if not known.sources else None
    few = array is not None and int(np.abs(array.astype(np.int64)).max(initial=0)) < FEW_BIAS
    return sums + bias.astype(fg.float32) if few else sums.astype(fg.int32) + bias


@operator("QLinearConv")
def q_linear_conv(op: Call) -> Value:
    """A convolution of quantised numbers; the weights' scale may be one for each result."""
    x_scale, w_scale, y_scale = op[1], op[4], op[6]
    given = op.with_inputs(op.value(0), op.value(3))  # as other convolutions have them
    total = convolved_bytes(given, op.value(0), op.value(2), kernel(op, 3, 5))
    last = total.last
    along: Any = (-1,) if last is not None else (1, -1, *[1] * (len(total.shape) - 2))
    sums = total.tensor if last is None else last
    if op.has(8):
        sums = _plus(sums, fg.reshape(op[8], along), op.value(8))
    w_factor = fg.reshape(wide(w_scale), along if w_scale.size > 1 else ())
    scale = _factor(x_scale) * w_factor / _factor(y_scale)
    if all(op.value(place).constant for place in (1, 4, 6)):
        op.build.keep(scale)
    made = requantised(sums, scale, op[7], op.kind(7))
    return Value(made, op.kind(7)) if last is None else Value.channels_last(made, op.kind(7))
