"""Products, convolutions and biases with a fused epilogue (domain com.microsoft).

In: a `Call`. Out: lazy tensors. Each is a composition of what is there already: fusing is the
compiler's work here. Operators that share their name with a standard one and are not listed mean
the standard one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...table import MICROSOFT, Call, enter, microsoft
from ...values import Value
from ..movement import axis_of
from ..nn.convolution import channels_last, convolved
from ..nn.linear import scaled_product


@microsoft("FusedMatMul", "TransposeMatMul")
def fused_mat_mul(op: Call) -> Tensor:
    """alpha A B with either side transposed."""
    a, b = op[0], op[1]
    a = _transposed(a, op.int("transA"), op.int("transBatchA"))
    b = _transposed(b, op.int("transB"), op.int("transBatchB"))
    return scaled_product(a, b, None, op.float("alpha", 1.0), 0.0)


def _transposed(x: Tensor, inner: int, batch: int) -> Tensor:
    if batch and x.ndim > 2:
        x = fg.moveaxis(x, 0, -2)
    return fg.matrix_transpose(x) if inner and x.ndim > 1 else x


@microsoft("FusedGemm")
def fused_gemm(op: Call) -> Tensor:
    """A product, a sum, an activation."""
    a = fg.matrix_transpose(op[0]) if op.int("transA") else op[0]
    b = fg.matrix_transpose(op[1]) if op.int("transB") else op[1]
    y = scaled_product(a, b, op.maybe(2), op.float("alpha", 1.0), op.float("beta", 1.0))
    return activated(op, y)


@microsoft("GemmFastGelu")
def gemm_fast_gelu(op: Call) -> Tensor:
    """A product, a bias, the approximation by tanh."""
    return fg.gelu(scaled_product(op[0], op[1], op.maybe(2), 1.0, 1.0), "tanh")


@microsoft("FusedConv")
def fused_conv(op: Call) -> Tensor | Value:
    """A convolution, a sum, an activation."""
    found = channels_last(op)
    if found is None or found.last is None:
        y = convolved(op, op[0], op[1], op.maybe(2))
        return activated(op, y + op[3] if op.has(3) else y)
    y = found.last
    if op.has(3):
        y = y + (op.value(3).last if op.value(3).last is not None else fg.moveaxis(op[3], 1, -1))
    return Value.channels_last(activated(op, y))


def activated(op: Call, y: Tensor) -> Tensor:
    """What a fused activation makes of a result."""
    name = op.text("activation")
    given = op.floats_of("activation_params") or []
    alpha = given[0] if given else op.float("activation_alpha", 0.01)
    beta = given[1] if len(given) > 1 else op.float("activation_beta", 0.0)
    made: dict[str, Any] = {
        "": lambda: y,
        "Relu": lambda: fg.relu(y),
        "Sigmoid": lambda: fg.sigmoid(y),
        "Tanh": lambda: fg.tanh(y),
        "LeakyRelu": lambda: fg.leaky_relu(y, alpha),
        "Clip": lambda: fg.clip(y, alpha, beta),
        "HardSigmoid": lambda: fg.clip(y * alpha + beta, 0, 1),
        "HardSwish": lambda: y * fg.clip(y / 6 + 0.5, 0, 1),
    }
    if name not in made:
        raise op.unsupported(f"activation {name!r}")
    found: Tensor = made[name]()
    return found


@microsoft("Gelu")
def gelu(op: Call) -> Tensor:
    """The exact one."""
    return fg.gelu(op[0])


@microsoft("BiasGelu")
def bias_gelu(op: Call) -> Tensor:
    """gelu(x + bias)."""
    return fg.gelu(op[0] + op[1])


@microsoft("FastGelu")
def fast_gelu(op: Call) -> Tensor:
    """The approximation by tanh, perhaps with a bias."""
    x = op[0] + op[1] if op.has(1) else op[0]
    return fg.gelu(x, "tanh")


@microsoft("BiasSplitGelu")
def bias_split_gelu(op: Call) -> Tensor:
    """Half of x + bias times the gelu of the other."""
    left, right = fg.chunk(op[0] + op[1], 2, axis=-1)
    return left * fg.gelu(right)


@microsoft("BiasSoftmax")
def bias_softmax(op: Call) -> Tensor:
    """softmax(x + bias) of all axes from one on; a batch of the bias may be repeated inside."""
    x, bias = op[0], op[1]
    axis = axis_of(op.int("axis", 1), x.ndim)
    if bias.ndim < x.ndim:
        bias = fg.reshape(bias, (*bias.shape[:-1], *[1] * (x.ndim - bias.ndim), bias.shape[-1]))
    shape = x.shape
    flat = fg.reshape(x + bias, (*shape[:axis], prod(shape[axis:])))
    return fg.reshape(fg.softmax(flat, axis=-1), shape)


@microsoft("BiasDropout")
def bias_dropout(op: Call) -> tuple[Tensor, Tensor]:
    """x + bias + residual: a finished model drops nothing."""
    y = op[0] + op[1]
    y = y + op[2] if op.has(2) else y
    return y, fg.ones(y.shape, fg.bool)


enter(
    MICROSOFT,
    QuickGelu=lambda op: op[0] * fg.sigmoid(op[0] * op.float("alpha", 1.702)),
    BiasAdd=lambda op: op[0] + op[1] + op[2],
)
