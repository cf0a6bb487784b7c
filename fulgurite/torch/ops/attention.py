"""Scaled dot-product attention and its gradient: sums that the compiler streams (FlashAttention)."""

from __future__ import annotations

import math
from typing import Any

import fulgurite as fg

from ..dtypes import TO_OURS, compute_dtype
from ..table import Refused, Use, aten, cast


def _scores(
    q: Any, k: Any, mask: Any, causal: bool, scale: float | None, wide: Any
) -> tuple[Any, float]:
    """Queries times keys, scaled, with what is masked at minus infinity."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    scores = (cast(q, wide) @ fg.swapaxes(cast(k, wide), -1, -2)) * factor
    if causal:
        rows = fg.reshape(fg.arange(q.shape[-2], dtype=fg.int32), (-1, 1))
        scores = fg.where(fg.arange(k.shape[-2], dtype=fg.int32) <= rows, scores, -math.inf)
    if mask is not None:
        if mask.dtype.kind == "b":
            scores = fg.where(mask, scores, -math.inf)
        else:
            scores = scores + cast(mask, wide)
    return scores, factor


def _log_sums(scores: Any) -> Any:
    top = fg.max(scores, axis=-1, keepdims=True)
    top = fg.where(top == -math.inf, 0.0, top)
    return fg.squeeze(fg.log(fg.sum(fg.exp(scores - top), axis=-1, keepdims=True)) + top, -1)


@aten("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    use: Use, q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Values weighted by the softmax of queries times keys, and the logarithms of its sums."""
    if dropout:
        raise Refused("attention with dropout inside")
    wide = compute_dtype(q.dtype)
    scores, _ = _scores(q, k, attn_mask, causal, scale, wide)
    dtype = TO_OURS[use.out[0].dtype]
    weights = fg.softmax(scores, axis=-1)
    if attn_mask is not None or (causal and q.shape[-2] > k.shape[-2]):
        none = fg.max(scores, axis=-1, keepdims=True) == -math.inf  # a row of nothing is zeros
        weights = fg.where(none, 0.0, weights)
    out = cast(weights @ cast(v, wide), dtype)
    if 1 not in use.used:
        return out, None
    return out, cast(_log_sums(scores), TO_OURS[use.out[1].dtype])


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    use: Use, grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dropout: float,
    causal: bool, *, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Gradients by queries, keys and values; the weights are computed again from the sums."""
    if dropout:
        raise Refused("attention with dropout inside")
    wide = compute_dtype(q.dtype)
    scores, factor = _scores(q, k, attn_mask, causal, scale, wide)
    weights = fg.exp(scores - fg.expand_dims(cast(sums, wide), -1))
    if attn_mask is not None or (causal and q.shape[-2] > k.shape[-2]):
        weights = fg.where(scores == -math.inf, 0.0, weights)
    grad, out = cast(grad, wide), cast(out, wide)
    by_v = fg.swapaxes(weights, -1, -2) @ grad
    inner = grad @ fg.swapaxes(cast(v, wide), -1, -2)
    along = fg.sum(grad * out, axis=-1, keepdims=True)
    by_scores = weights * (inner - along) * factor
    by_q = by_scores @ cast(k, wide)
    by_k = fg.swapaxes(by_scores, -1, -2) @ cast(q, wide)
    return tuple([cast(g, x.dtype) for g, x in zip((by_q, by_k, by_v), (q, k, v), strict=True)])
