"""Fused operators of exporters and optimisers (domain com.microsoft).

In: a `Call`. Out: lazy tensors. Each is a composition of what is there already: fusing is the
compiler's work here. Operators that share their name with a standard one and are not listed mean
the standard one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...table import MICROSOFT, Call, Function, enter, operator
from ...values import Value
from ..movement import axis_of
from ..nn.convolution import channels_last, convolved
from ..nn.linear import scaled_product
from ..nn.normalization import normal, rms, wide


def ms(*names: str) -> Callable[[Function], Function]:
    """An operator of this domain."""
    return operator(*names, domain=MICROSOFT)


@ms("FusedMatMul", "TransposeMatMul")
def fused_mat_mul(op: Call) -> Tensor:
    """alpha A B with either side transposed."""
    a, b = op[0], op[1]
    a = _turned(a, op.int("transA"), op.int("transBatchA"))
    b = _turned(b, op.int("transB"), op.int("transBatchB"))
    return scaled_product(a, b, None, op.float("alpha", 1.0), 0.0)


def _turned(x: Tensor, inner: int, batch: int) -> Tensor:
    if batch and x.ndim > 2:
        x = fg.moveaxis(x, 0, -2)
    return fg.matrix_transpose(x) if inner and x.ndim > 1 else x


@ms("Gelu")
def gelu(op: Call) -> Tensor:
    """The exact one."""
    return fg.gelu(op[0])


@ms("BiasGelu")
def bias_gelu(op: Call) -> Tensor:
    """gelu(x + bias)."""
    return fg.gelu(op[0] + op[1])


@ms("FastGelu")
def fast_gelu(op: Call) -> Tensor:
    """The approximation by tanh, perhaps with a bias."""
    x = op[0] + op[1] if op.has(1) else op[0]
    return fg.gelu(x, "tanh")


enter(
    MICROSOFT,
    QuickGelu=lambda op: op[0] * fg.sigmoid(op[0] * op.float("alpha", 1.702)),
    BiasAdd=lambda op: op[0] + op[1] + op[2],
    Inverse=lambda op: _inverse(op),
)


def _inverse(op: Call) -> Tensor:
    import numpy as np

    op.build.hosts.add("linear algebra")
    found: Tensor = fg.custom(np.linalg.inv, op[0], shape=op[0].shape, dtype=op[0].dtype)
    return found


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


@ms("FusedConv")
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


@ms("FusedGemm")
def fused_gemm(op: Call) -> Tensor:
    """A product, a sum, an activation."""
    a = fg.matrix_transpose(op[0]) if op.int("transA") else op[0]
    b = fg.matrix_transpose(op[1]) if op.int("transB") else op[1]
    y = scaled_product(a, b, op.maybe(2), op.float("alpha", 1.0), op.float("beta", 1.0))
    return activated(op, y)


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(op: Call) -> tuple[Tensor, Tensor]:
    """Divided by the root of the mean square (exporters give it the standard domain)."""
    x = op[0]
    axes = tuple(range(axis_of(op.int("axis", -1), x.ndim), x.ndim))
    epsilon = op.float("epsilon", 1e-5)
    square = fg.mean(wide(x) * wide(x), axis=axes, keepdims=True)
    return rms(x, axes, epsilon) * op[1], 1 / fg.sqrt(square + epsilon)


@ms("SkipLayerNormalization")
def skip_layer_normalization(op: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A layer norm of a sum: input, skip, gamma, beta, bias."""
    total = op[0] + op[1]
    if op.has(4):
        total = total + op[4]
    y, mean, inverse = normal(wide(total), (total.ndim - 1,), op.float("epsilon", 1e-12))
    y = y * wide(op[2])
    if op.has(3):
        y = y + wide(op[3])
    return y.astype(op[0].dtype), mean, inverse, total


@ms("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(op: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by the mean square: input, skip, gamma, bias."""
    total = op[0] + op[1]
    if op.has(3):
        total = total + op[3]
    epsilon = op.float("epsilon", 1e-12)
    square = fg.mean(wide(total) * wide(total), axis=-1, keepdims=True)
    y = rms(total, (total.ndim - 1,), epsilon) * op[2]
    return y, fg.zeros(square.shape), 1 / fg.sqrt(square + epsilon), total


@ms("EmbedLayerNormalization")
def embed_layer_normalization(op: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Word, position and segment embeddings, summed and normalised; a mask as lengths."""
    ids = op[0]
    batch, length = ids.shape
    total = fg.take(op[2], ids, axis=0)
    if op.has(8):
        total = total + fg.take(op[3], op[8], axis=0)
    else:
        total = total + op[3][:length][None]
    if op.has(1) and op.has(4):
        total = total + fg.take(op[4], op[1], axis=0)
    y = normal(wide(total), (2,), op.float("epsilon", 1e-12))[0] * wide(op[5]) + wide(op[6])
    counted = fg.zeros((batch,), fg.int32)
    if op.has(7):
        counted = fg.sum(op[7].astype(fg.int32), axis=1, dtype=fg.int32)
    return y.astype(op[2].dtype), counted, total


@ms("BiasSplitGelu")
def bias_split_gelu(op: Call) -> Tensor:
    """Half of x + bias times the gelu of the other."""
    left, right = fg.chunk(op[0] + op[1], 2, axis=-1)
    return left * fg.gelu(right)


@ms("GroupNorm")
def group_norm(op: Call) -> Tensor:
    """Groups of channels, which come last here unless the model says otherwise."""
    last = bool(op.int("channels_last", 1))
    x = fg.moveaxis(op[0], -1, 1) if last else op[0]
    y = fg.group_norm(wide(x), op.int("groups", 1), op[1], op[2], op.float("epsilon", 1e-5))
    y = fg.silu(y) if op.int("activation") == 1 else y
    return (fg.moveaxis(y, 1, -1) if last else y).astype(op[0].dtype)
