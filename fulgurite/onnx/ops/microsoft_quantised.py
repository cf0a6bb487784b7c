"""Quantised operators of exporters (domain com.microsoft).

In: a `Call`: quantised tensors, each followed by its scale and zero. Out: lazy values. Sums of
products are exact; elementwise operators go through real numbers, as they are defined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call
from ..values import Value
from .microsoft import ms
from .normalization import wide
from .pooling import average_pool
from .quantised import centred, dynamic, requantised


@ms("MatMulNBits")
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


@ms("QLinearAdd")
def q_linear_add(op: Call) -> Value:
    """A sum."""
    return _back(op, _real(op, 0) + _real(op, 3), 6)


@ms("QLinearMul")
def q_linear_mul(op: Call) -> Value:
    """A product of elements."""
    return _back(op, _real(op, 0) * _real(op, 3), 6)


def _elementwise(name: str, work: Callable[[Call, Tensor], Tensor]) -> None:
    ms(name)(lambda op: _back(op, work(op, _real(op, 0)), 3))


_elementwise("QLinearSigmoid", lambda op, x: fg.sigmoid(x))
_elementwise("QLinearLeakyRelu", lambda op, x: fg.leaky_relu(x, op.float("alpha", 0.01)))
_elementwise("QLinearSoftmax", lambda op, x: fg.softmax(x, axis=op.int("axis", -1)))
_elementwise(
    "QLinearReduceMean",
    lambda op, x: fg.mean(x, axis=tuple(op.ints_of("axes") or range(x.ndim)),
                          keepdims=bool(op.int("keepdims", 1))),
)  # fmt: skip


def _pooled(op: Call, work: Callable[[Tensor], Tensor]) -> Value:
    x = _real(op, 0)
    last = bool(op.int("channels_last"))
    y = work(fg.moveaxis(x, -1, 1) if last else x)
    return _back(op, fg.moveaxis(y, 1, -1) if last else y, 3)


@ms("QLinearGlobalAveragePool")
def q_linear_global_average_pool(op: Call) -> Value:
    """The mean of each channel."""
    return _pooled(op, lambda x: fg.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True))


@ms("QLinearAveragePool")
def q_linear_average_pool(op: Call) -> Value:
    """The means of windows."""

    def work(x: Tensor) -> Tensor:
        inner = Call(op.build, op.node, [Value(x)], op.version, op._attributes, op.scope)
        found: Tensor = average_pool(inner)
        return found

    return _pooled(op, work)


@ms("QLinearConcat")
def q_linear_concat(op: Call) -> Value:
    """Tensors of different scales, one after the other."""
    parts = [_real(op, place) for place in range(2, len(op), 3)]
    kind = op.kind(1)
    joined = fg.concat(parts, axis=op.int("axis", 0))
    return Value(requantised(joined, 1 / fg.reshape(wide(op[0]), ()), op[1], kind), kind)


@ms("DynamicQuantizeMatMul")
def dynamic_quantize_mat_mul(op: Call) -> Tensor:
    """x quantised by its own range, times quantised weights, as real numbers."""
    x, scale, zero = dynamic(op[0])
    total = fg.matmul(centred(x, zero), centred(op[1], op.maybe(3)))
    weight_scale = op[2] if op[2].size > 1 else fg.reshape(op[2], ())
    y = total.astype(fg.float32) * (scale * weight_scale)
    return y + op[4] if op.has(4) else y


@ms("MatMulIntegerToFloat")
def mat_mul_integer_to_float(op: Call) -> Tensor:
    """A product of quantised matrices, as real numbers."""
    total = fg.matmul(centred(op[0], op.maybe(4)), centred(op[1], op.maybe(5)))
    scale = [part if part.size > 1 else fg.reshape(part, ()) for part in (op[2], op[3])]
    y = total.astype(fg.float32) * (scale[0] * scale[1])
    return y + op[6] if op.has(6) else y


@ms("QGemm")
def q_gemm(op: Call) -> Any:
    """alpha A B + C of quantised matrices; the result is quantised if a scale is given for it."""
    a, b = centred(op[0], op.maybe(2)), centred(op[3], op.maybe(5))
    a = fg.matrix_transpose(a) if op.int("transA") else a
    b = fg.matrix_transpose(b) if op.int("transB") else b
    total = fg.matmul(a, b)
    if op.has(6):
        total = total + op[6]
    parts = [part if part.size > 1 else fg.reshape(part, ()) for part in (op[1], op[4])]
    y = total.astype(fg.float32) * (parts[0] * parts[1] * op.float("alpha", 1.0))
    return _back(op, y, 7) if op.has(7) else y
