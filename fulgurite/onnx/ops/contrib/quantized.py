"""Quantised operators of exporters (domain com.microsoft).

In: a `Call`: quantised tensors, each followed by its scale and zero. Out: lazy values. Sums of
products are exact; elementwise operators go through real numbers, as they are defined.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, microsoft
from ...values import Value
from ..movement import axis_of
from ..nn.normalization import normal, wide
from ..nn.pooling import average_pool, global_average_pool
from ..nn.recurrent import lstm_by
from ..quantised import dynamic, factor, q_linear_conv, requantised
from ..whole import Whole, laid_by_fours, product, whole
from .attention import attended


@microsoft("MatMulNBits")
def mat_mul_n_bits(op: Call) -> Tensor:
    """A product with weights of a few bits in blocks along the inner axis."""
    x, packed = op[0], op[1]
    n, k = op.int("N"), op.int("K")
    bits, block = op.int("bits", 4), op.int("block_size", 32)
    if bits not in (2, 4, 8):
        raise op.unsupported(f"{bits} bits")
    blocks = -(-k // block)
    codes = _unpacked(fg.reshape(packed, (n, blocks, -1)), bits)[:, :, :block]
    scale = fg.reshape(wide(op[2]), (n, blocks, 1))
    zero: Any = float(1 << bits - 1)
    if op.has(3):
        given = op[3]
        if given.dtype.is_integer:
            given = _unpacked(fg.reshape(given, (n, -1)), bits)[:, :blocks]
        zero = fg.reshape(wide(given), (n, blocks, 1))
    weight = (codes.astype(fg.float32) - zero) * scale
    weight = fg.reshape(weight, (n, blocks * block))[:, :k]
    if op.value(1).constant and op.value(2).constant:
        op.build.keep(weight)
    y = fg.matmul(wide(x), fg.matrix_transpose(weight)).astype(x.dtype)
    return y + op[5] if op.has(5) else y


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Several numbers in a byte, the first in the lowest bits."""
    each = 8 // bits
    if each == 1:
        return packed
    parts = [(packed >> (bits * i)) & ((1 << bits) - 1) for i in range(each)]
    return fg.reshape(fg.stack(parts, axis=-1), (*packed.shape[:-1], packed.shape[-1] * each))


def _real(op: Call, place: int, axis: int | None = None) -> Tensor:
    """Input, scale and zero at three places as real numbers."""
    x = op[place].astype(fg.float32)
    scale, zero = wide(op[place + 1]), op.maybe(place + 2)
    shape: Any = ()
    if scale.size > 1:
        shape = [1] * x.ndim
        shape[-1 if axis is None else axis] = -1
    centre: Any = 0.0 if zero is None else fg.reshape(zero.astype(fg.float32), shape)
    return fg.multiply(x - centre, fg.reshape(scale, shape))


def _back(op: Call, y: Tensor, place: int, like: int = 0) -> Value:
    """Real numbers quantised by a scale and a zero at two places."""
    kind = op.kind(place + 1) if op.has(place + 1) else op.kind(like)
    zero = op.maybe(place + 1)
    factor = 1 / fg.reshape(wide(op[place]), ())
    return Value(requantised(y, factor, zero, kind), kind)


@microsoft("QLinearAdd")
def q_linear_add(op: Call) -> Value:
    """A sum."""
    return _back(op, _real(op, 0) + _real(op, 3), 6)


@microsoft("QLinearMul")
def q_linear_mul(op: Call) -> Value:
    """A product of elements."""
    return _back(op, _real(op, 0) * _real(op, 3), 6)


def _elementwise(name: str, work: Callable[[Call, Tensor], Tensor]) -> None:
    microsoft(name)(lambda op: _back(op, work(op, _real(op, 0)), 3))


_elementwise("QLinearSigmoid", lambda op, x: fg.sigmoid(x))
_elementwise("QLinearLeakyRelu", lambda op, x: fg.leaky_relu(x, op.float("alpha", 0.01)))
_elementwise("QLinearSoftmax", lambda op, x: _softmax(op, x))
_elementwise(
    "QLinearReduceMean",
    lambda op, x: fg.mean(x, axis=tuple(op.ints_of("axes") or range(x.ndim)),
                          keepdims=bool(op.int("keepdims", 1))),
)  # fmt: skip


def _softmax(op: Call, x: Tensor) -> Tensor:
    """Along an axis; as it was before opset 13, of all axes from one on together."""
    axis = axis_of(op.int("axis", -1), x.ndim)
    if op.int("opset", 13) >= 13:
        return fg.softmax(x, axis=axis)
    flat = fg.reshape(x, (*x.shape[:axis], prod(x.shape[axis:])))
    return fg.reshape(fg.softmax(flat, axis=-1), x.shape)


def _pooled(op: Call, work: Callable[[Call], Any]) -> Value:
    last = bool(op.int("channels_last"))
    given = None if last else op.value(0).last
    lies = op if given is None else op.with_inputs(Value(given, op.kind(0)), *op.inputs[1:])
    x = _real(lies, 0)
    inside = Value.channels_last(x) if last or given is not None else Value(x)
    y: Tensor = work(op.with_inputs(inside))
    return _back(op, fg.moveaxis(y, 1, -1) if last else y, 3)


@microsoft("QLinearGlobalAveragePool")
def q_linear_global_average_pool(op: Call) -> Value:
    """The mean of each channel."""
    return _pooled(op, global_average_pool)


@microsoft("QLinearAveragePool")
def q_linear_average_pool(op: Call) -> Value:
    """The means of windows."""
    return _pooled(op, average_pool)


@microsoft("QLinearConcat")
def q_linear_concat(op: Call) -> Value:
    """Tensors of different scales, one after the other."""
    parts = [_real(op, place) for place in range(2, len(op), 3)]
    kind = op.kind(1)
    joined = fg.concat(parts, axis=op.int("axis", 0))
    return Value(requantised(joined, 1 / fg.reshape(wide(op[0]), ()), op[1], kind), kind)


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_mat_mul(op: Call) -> Tensor:
    """x quantised by its own range, times quantised weights, as real numbers."""
    x, scale, zero = dynamic(op[0])
    left = Whole(x, zero.astype(fg.int32))
    total = product(op, left, factor(op, 1, 3))
    weight_scale = op[2] if op[2].size > 1 else fg.reshape(op[2], ())
    y = total.astype(fg.float32) * (scale * weight_scale)
    return y + op[4] if op.has(4) else y


@microsoft("MatMulIntegerToFloat")
def mat_mul_integer_to_float(op: Call) -> Tensor:
    """A product of quantised matrices, as real numbers."""
    total = product(op, factor(op, 0, 4), factor(op, 1, 5))
    scale = [part if part.size > 1 else fg.reshape(part, ()) for part in (op[2], op[3])]
    y = total.astype(fg.float32) * (scale[0] * scale[1])
    return y + op[6] if op.has(6) else y


@microsoft("QGemm")
def q_gemm(op: Call) -> Any:
    """alpha A B + C of quantised matrices; the result is quantised if a scale is given for it."""
    transposed = bool(op.int("transB"))
    zero = op.value(5) if op.has(5) else None
    a, b = factor(op, 0, 2), whole(op.value(3), zero, (-1, 1) if transposed else ())
    total = product(op, a.transposed if op.int("transA") else a, b.transposed if transposed else b)
    if op.has(6):
        total = total + op[6]
    parts = [part if part.size > 1 else fg.reshape(part, ()) for part in (op[1], op[4])]
    y = total.astype(fg.float32) * (parts[0] * parts[1] * op.float("alpha", 1.0))
    return _back(op, y, 7) if op.has(7) else y


@microsoft("QLinearWhere")
def q_linear_where(op: Call) -> Value:
    """One or the other of two quantised tensors."""
    return _back(op, fg.where(op[0], _real(op, 1), _real(op, 4)), 7, like=1)


@microsoft("QLinearConv")
def q_linear_conv_last(op: Call) -> Any:
    """The standard's, with the channels last if the model says so."""
    if not op.int("channels_last"):
        return q_linear_conv(op)
    inputs = [Value(fg.moveaxis(op[0], -1, 1), op.kind(0)), *op.inputs[1:]]
    made = q_linear_conv(op.with_inputs(*inputs))
    return Value(fg.moveaxis(made.tensor, 1, -1) if made.last is None else made.last, op.kind(7))


@microsoft("QAttention")
def q_attention(op: Call) -> tuple[Tensor, Tensor | None]:
    """Attention whose projection is a product of quantised numbers."""
    total = product(op, factor(op, 0, 6), factor(op, 1, 7))
    scale = [part if part.size > 1 else fg.reshape(part, ()) for part in (op[3], op[4])]
    projected = total.astype(fg.float32) * (scale[0] * scale[1]) + op[2]
    return attended(op, projected, 5, 8, 10**6)


@microsoft("QEmbedLayerNormalization")
def q_embed_layer_normalization(op: Call) -> tuple[Tensor, Tensor]:
    """Embeddings from quantised tables: ids, segments, three tables, gamma, beta, mask, scales."""

    def real(place: int) -> Tensor:
        zero = op.maybe(place + 11)
        centre: Any = 0 if zero is None else fg.reshape(zero.astype(fg.float32), ())
        return fg.multiply(op[place].astype(fg.float32) - centre, fg.reshape(op[place + 6], ()))

    ids = op[0]
    total = fg.take(real(2), ids, axis=0) + real(3)[: ids.shape[1]][None]
    if op.has(1) and op.has(4):
        total = total + fg.take(real(4), op[1], axis=0)
    y = normal(total, (2,), op.float("epsilon", 1e-12))[0] * real(5) + real(6)
    counted = fg.zeros((ids.shape[0],), fg.int32)
    if op.has(7):
        counted = fg.sum(op[7].astype(fg.int32), axis=1, dtype=fg.int32)
    return y, counted


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)


@microsoft("MatMulBnb4")
def mat_mul_bnb4(op: Call) -> Tensor:
    """A product with weights of four bits, each the place of a number in a table."""
    x, n, k, block = op[0], op.int("N"), op.int("K"), op.int("block_size")
    table = NF4 if op.int("quant_type") else (*FP4, *[-v for v in FP4])
    packed = fg.reshape(op[1], (-1,))
    codes = fg.reshape(fg.stack([packed >> 4, packed & 15], axis=-1), (-1,))[: n * k]
    values = fg.take(fg.Tensor(list(table), dtype=fg.float32), codes.astype(fg.int32), axis=0)
    scale = fg.repeat(fg.reshape(wide(op[2]), (-1,)), block, axis=0)[: n * k]
    weight = fg.reshape(values * scale, (n, k))
    if op.value(1).constant and op.value(2).constant:
        op.build.keep(weight)
    y = fg.matmul(wide(x), fg.matrix_transpose(weight) if op.int("transB", 1) else weight)
    return y.astype(x.dtype)


@microsoft("GatherBlockQuantized")
def gather_block_quantized(op: Call) -> Tensor:
    """Slices of weights of a few bits in blocks, as real numbers: data, indices, scales, zeros."""
    data, bits, block = op[0], op.int("bits", 4), op.int("block_size", 128)
    first = axis_of(op.int("gather_axis", 0), data.ndim)
    axis = axis_of(op.int("quantize_axis", 1), data.ndim)
    if op.kind(0).number in (2,) and bits < 8:  # several in a byte, along the last axis
        data = _unpacked(data, bits)
    zero: Any = float(1 << bits - 1) if op.kind(0).number == 2 else 0.0
    if op.has(3):
        given = op[3]
        if op.kind(3).number == 2 and bits < 8:
            given = _unpacked(given, bits)[..., : op[2].shape[-1]]
        zero = fg.repeat(given.astype(fg.float32), block, axis=axis)
    cut = (*[slice(None)] * axis, slice(0, data.shape[axis]))
    scale = fg.repeat(wide(op[2]), block, axis=axis)[cut]
    zero = zero[cut] if isinstance(zero, Tensor) else zero
    real = (data.astype(fg.float32) - zero) * scale
    return fg.take(real, op[1], axis=first).astype(op[2].dtype)


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(op: Call) -> Any:
    """An LSTM whose inputs and states are quantised by their own range at every step."""
    turned = [Value(fg.matrix_transpose(op[place]), op.kind(place)) for place in (1, 2)]
    call = Call(
        op.build, op.node, [op.inputs[0], *turned, *op.inputs[3:8]], 14, op._attributes, op.scope
    )

    def times(place: int, direction: int) -> Callable[[Tensor], Tensor]:
        weight, factors = _weights_of(op, place, 6 + 2 * place, direction)
        weight = laid_by_fours(op, weight)

        def multiplied(x: Tensor) -> Tensor:
            codes, scale, zero = dynamic(x)
            total = product(op, Whole(codes, zero.astype(fg.int32)), weight)
            return total.astype(fg.float32) * (scale * factors)

        return multiplied

    return lstm_by(call, times)


def _weights_of(op: Call, place: int, scale: int, direction: int) -> tuple[Whole, Tensor]:
    """Weights of a direction (inner, outer), and what their numbers stand for."""

    def part(place: int) -> Value:
        value = op.value(place)
        known = value.known() if value.constant else None
        if known is None:
            return Value(op[place][direction], value.kind)
        return Value(None, value.kind, np.ascontiguousarray(known[direction]), constant=True)

    zero = part(scale + 1) if op.has(scale + 1) else None
    return whole(part(place), zero), part(scale).tensor
