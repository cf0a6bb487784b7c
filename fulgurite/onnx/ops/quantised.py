"""Quantised numbers: to and from, and products of them.

In: a `Call`. Out: lazy values. A number x is kept as round(x / scale) + zero, within the limits of
its kind; scales are for the whole tensor, for each slice of an axis, or for blocks along it.
Products are summed exactly, in int32.
"""

from __future__ import annotations

from typing import Any

import fulgurite as fg

from ...tensor import Tensor
from .. import types as t
from ..table import Call, operator
from ..types import CODED, Kind, kind_of
from ..values import Value
from .casting import LARGEST, decode, encode
from .movement import axis_of
from .nn.convolution import convolved
from .nn.normalization import wide


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
    low, high = limits(kind)
    return fg.clip(whole, low, high).astype(kind.carrier)


@operator("QuantizeLinear")
def quantize_linear(op: Call) -> Value:
    """round(x / scale) + zero."""
    x = op[0]
    if op.has(2):
        kind = op.kind(2)
    else:
        kind = kind_of(op.int("output_dtype", 0) or t.UINT8.number)
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
    made = quantised(wide(real), wide(scale), zero, kind, bool(op.int("saturate", 1)))
    return Value(made, kind)


@operator("DequantizeLinear")
def dequantize_linear(op: Call) -> Tensor:
    """(x - zero) scale."""
    x = op[0]
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
    y = fg.clip(fg.round(x / scale) + zero, 0, 255).astype(fg.uint8)
    return y, scale, zero.astype(fg.uint8)


def centred(x: Tensor, zero: Tensor | None, rows: bool = False) -> Tensor:
    """x - zero in int32; a vector of zeros is by row or by column."""
    whole = x.astype(fg.int32)
    if zero is None:
        return whole
    centre = zero.astype(fg.int32)
    if centre.size == 1:
        return whole - fg.reshape(centre, ())
    if centre.ndim == 1 and rows:
        centre = fg.reshape(centre, (-1, 1))
    return whole - centre


@operator("MatMulInteger")
def mat_mul_integer(op: Call) -> Tensor:
    """Products of whole numbers around their zeros."""
    return fg.matmul(centred(op[0], op.maybe(2), rows=True), centred(op[1], op.maybe(3)))


@operator("ConvInteger")
def conv_integer(op: Call) -> Tensor:
    """A convolution of whole numbers around their zeros."""
    x = centred(op[0], op.maybe(2))
    zero = op.maybe(3)
    if zero is not None and zero.size > 1:
        zero = fg.reshape(zero, (-1, *[1] * (x.ndim - 1)))
    return convolved(op, x, centred(op[1], zero), None).astype(fg.int32)


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
    low, high = limits(kind)
    return fg.clip(whole, low, high).astype(kind.carrier)


@operator("QLinearMatMul")
def q_linear_mat_mul(op: Call) -> Value:
    """A product of quantised matrices."""
    a, b = centred(op[0], op[2], rows=True), centred(op[3], op[5])
    factor = _factor(op[1], rows=True) * _factor(op[4]) / _factor(op[6])
    kind = op.kind(7)
    if kind in CODED or kind in LARGEST:
        total = fg.matmul(decode(op[0], op.kind(0)).astype(fg.float32),
                          decode(op[3], op.kind(3)).astype(fg.float32))  # fmt: skip
        return Value(encode(total * factor, kind), kind)
    return Value(requantised(fg.matmul(a, b), factor, op[7], kind), kind)


@operator("QLinearConv")
def q_linear_conv(op: Call) -> Tensor:
    """A convolution of quantised numbers; the weights' scale may be one for each result."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (op[i] for i in range(8))
    per_result = (-1, *[1] * (x.ndim - 1))
    zero = fg.reshape(w_zero, per_result) if w_zero.size > 1 else w_zero
    total = convolved(op, centred(x, x_zero), centred(w, zero), None).astype(fg.int32)
    bias: Any = op.maybe(8)
    along: Any = (1, -1, *[1] * (x.ndim - 2))
    if bias is not None:
        total = total + fg.reshape(bias, along)
    w_factor = fg.reshape(wide(w_scale), along if w_scale.size > 1 else ())
    factor = _factor(x_scale) * w_factor / _factor(y_scale)
    return requantised(total, factor, y_zero, op.kind(7))
