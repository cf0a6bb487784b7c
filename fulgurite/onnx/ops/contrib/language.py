"""Language models of exporters (domain com.microsoft): experts, repeated n-grams, position biases.

In: a `Call`. Out: lazy tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, microsoft
from ..nn.normalization import wide


@microsoft("MoE")
def mixture_of_experts(op: Call) -> Tensor:
    """Each row by the few of many small networks that its router likes best.

    All experts are computed, and weighted with 0 where they were not chosen.
    """
    x, router = op[0], op[1]
    rows = fg.reshape(x, (-1, x.shape[-1]))
    count, experts = op.int("k", 1), router.shape[-1]
    router = fg.reshape(router, (-1, experts))
    best, chosen = fg.topk(wide(router), count)
    shares = fg.softmax(wide(router), axis=-1)
    weights = fg.take_along_axis(shares, chosen, axis=-1)
    if op.int("normalize_routing_weights"):
        weights = fg.softmax(best, axis=-1)
    hit = chosen[:, :, None] == fg.arange(experts, dtype=chosen.dtype)
    gate = fg.sum(fg.where(hit, weights[:, :, None], 0.0), axis=1)  # (rows, experts)
    names = {
        "relu": fg.relu, "gelu": lambda t: fg.gelu(t, "tanh"), "silu": fg.silu,
        "identity": lambda t: t,
    }  # fmt: skip
    kind = op.text("activation_type", "relu")
    if kind not in names:
        raise op.unsupported(f"activation {kind!r}")
    work: Any = names[kind]
    first = fg.matmul(rows[None], fg.matrix_transpose(op[2]))  # (experts, rows, inner)
    inner = work(first + op[3][:, None] if op.has(3) else first)
    if op.has(6):
        third = fg.matmul(rows[None], fg.matrix_transpose(op[6]))
        inner = inner * (third + op[7][:, None] if op.has(7) else third)
    last = fg.matmul(inner, fg.matrix_transpose(op[4]))
    last = last + op[5][:, None] if op.has(5) else last
    found = fg.sum(last * fg.matrix_transpose(gate)[:, :, None], axis=0)
    return fg.reshape(found.astype(x.dtype), x.shape)


@microsoft("NGramRepeatBlock")
def n_gram_repeat_block(op: Call) -> Tensor:
    """Scores of words that would repeat a row of words are -inf."""
    words, scores, size = op[0], op[1], op.int("ngram_size", 1)
    length = words.shape[1]
    if size < 1:
        raise ModelError(f"rows of {size} words", "the model is not valid ONNX")
    if length < size:
        return scores
    found = fg.unfold(words, 1, size)  # (batch, places, size)
    last = words[:, length - size + 1 :][:, None]
    same = fg.all(found[..., : size - 1] == last, axis=-1)
    hit = found[..., size - 1, None] == fg.arange(scores.shape[1], dtype=words.dtype)
    return fg.where(fg.any(hit & same[..., None], axis=1), float("-inf"), scores)


@microsoft("RelativePositionBias")
def relative_position_bias(op: Call) -> Tensor:
    """A bias for each head by how far a key is from a query, in buckets."""
    table, queries, keys = op[0], int(op.number(1)), int(op.number(2))
    buckets, both = table.shape[0], bool(op.int("is_bidirectional"))
    most = op.int("max_distance")
    apart = np.arange(queries)[:, None] - np.arange(keys)[None]
    number = np.zeros_like(apart)
    if both:
        buckets //= 2
        number += (apart < 0) * buckets
        apart = np.abs(apart)
    else:
        apart = np.maximum(apart, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        ratio = np.log(np.maximum(apart, 1) / exact) / np.log(most / exact)
    far = np.minimum(exact + (ratio * (buckets - exact)).astype(np.int64), buckets - 1)
    number += np.where(apart < exact, apart, far)
    return fg.permute_dims(fg.take(table, fg.Tensor(number), axis=0), (2, 0, 1))[None]
