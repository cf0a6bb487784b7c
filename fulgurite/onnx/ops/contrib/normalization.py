"""Layer, RMS and group norms of sums, as exporters fuse them (domain com.microsoft).

In: a `Call`. Out: lazy tensors: the norm, its statistics and the sum that was normalised.
"""

from __future__ import annotations

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, microsoft, operator
from ..movement import axis_of
from ..nn.normalization import normal, rms, wide


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(op: Call) -> tuple[Tensor, Tensor]:
    """Divided by the root of the mean square (exporters give it the standard domain)."""
    x = op[0]
    axes = tuple(range(axis_of(op.int("axis", -1), x.ndim), x.ndim))
    epsilon = op.float("epsilon", 1e-5)
    square = fg.mean(wide(x) * wide(x), axis=axes, keepdims=True)
    return rms(x, axes, epsilon) * op[1], 1 / fg.sqrt(square + epsilon)


@microsoft("SkipLayerNormalization")
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


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(op: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by the mean square: input, skip, gamma, bias."""
    total = op[0] + op[1]
    if op.has(3):
        total = total + op[3]
    epsilon = op.float("epsilon", 1e-12)
    square = fg.mean(wide(total) * wide(total), axis=-1, keepdims=True)
    y = rms(total, (total.ndim - 1,), epsilon) * op[2]
    return y, fg.zeros(square.shape), 1 / fg.sqrt(square + epsilon), total


@microsoft("EmbedLayerNormalization")
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


@microsoft("GroupNorm")
def group_norm(op: Call) -> Tensor:
    """Groups of channels, which come last here unless the model says otherwise."""
    last = bool(op.int("channels_last", 1))
    x = fg.moveaxis(op[0], -1, 1) if last else op[0]
    y = fg.group_norm(wide(x), op.int("groups", 1), op[1], op[2], op.float("epsilon", 1e-5))
    y = fg.silu(y) if op.int("activation") == 1 else y
    return (fg.moveaxis(y, 1, -1) if last else y).astype(op[0].dtype)


@microsoft("SkipGroupNorm")
def skip_group_norm(op: Call) -> tuple[Tensor, Tensor]:
    """A group norm of a sum, channels last: x, gamma, beta, skip, bias."""
    skip = op[3] if op[3].ndim == 4 else fg.reshape(op[3], (op[3].shape[0], 1, 1, -1))
    total = op[0] + skip
    total = total + op[4] if op.has(4) else total
    return group_norm(op.with_inputs(total, op[1], op[2])), total
