"""Scaled dot-product attention and its gradient: what the compiler streams (FlashAttention)."""

from __future__ import annotations

import math
from typing import Any

import torch

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


def _for_queries(x: Any, q: Any) -> Any:
    """Keys or values with a head for each head of queries: a head may serve several of them."""
    if x.shape[:-2] == q.shape[:-2]:
        return x
    *batch, heads, length, width = x.shape
    groups = q.shape[-3] // heads
    many = fg.broadcast_to(fg.expand_dims(x, -3), (*batch, heads, groups, length, width))
    return fg.reshape(many, (*batch, q.shape[-3], length, width))


def _of_heads(grad: Any, x: Any) -> Any:
    """The gradient by keys or values, summed over the queries' heads that each serves."""
    if grad.shape == x.shape:
        return grad
    *batch, heads, length, width = x.shape
    return fg.sum(fg.reshape(grad, (*batch, heads, -1, length, width)), axis=-3)


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
    k, v = _for_queries(k, q), _for_queries(v, q)
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
    wide, given = compute_dtype(q.dtype), (q, k, v)
    k, v = _for_queries(k, q), _for_queries(v, q)
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
    found = zip((by_q, by_k, by_v), given, strict=True)
    return tuple([cast(_of_heads(g, x), x.dtype) for g, x in found])


# --- torch's fused layers of inference ------------------------------------------------------------


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return x @ fg.swapaxes(weight, 0, 1) + bias


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return fg.layer_norm(x, x.shape[-1:], weight, bias, eps=eps)


def _heads(x: Any, heads: int) -> Any:
    return fg.swapaxes(fg.reshape(x, (*x.shape[:2], heads, -1)), 1, 2)


def _multi_head(
    q: Any, k: Any, v: Any, heads: int, weights: tuple[Any, Any, Any, Any], mask: Any, kind: Any
) -> tuple[Any, Any]:
    """Attention of several heads with its projections; the result, and the weights."""
    if mask is not None and kind not in (0, 1):
        raise Refused("a mask of a kind that torch keeps to itself")
    width = q.shape[-1]
    into, shift, out, last = weights
    parts = [
        _heads(_linear(x, into[i * width : (i + 1) * width], shift[i * width : (i + 1) * width]),
               heads)
        for i, x in enumerate((q, k, v))
    ]  # fmt: skip
    if mask is not None:  # True is left out: for all queries (1), or by query and key (0)
        mask = fg.logical_not(mask) if mask.dtype.kind == "b" else mask
        mask = fg.reshape(mask, (mask.shape[0], 1, 1, mask.shape[1])) if kind == 1 else mask
    scores, _ = _scores(parts[0], parts[1], mask, False, None, q.dtype)
    shares = fg.softmax(scores, axis=-1)
    found = fg.swapaxes(shares @ parts[2], 1, 2)
    return _linear(fg.reshape(found, q.shape), out, last), shares


@aten("_native_multi_head_attention")
def native_multi_head_attention(
    use: Use, q: Any, k: Any, v: Any, width: int, heads: int, into: Any, shift: Any, out: Any,
    last: Any, mask: Any = None, need_weights: bool = True, average: bool = True,
    mask_type: Any = None,
) -> Any:  # fmt: skip
    """The fused multi-head attention of inference."""
    found, shares = _multi_head(q, k, v, heads, (into, shift, out, last), mask, mask_type)
    if not need_weights or use.out[1] is None:
        return found, None
    return found, fg.mean(shares, axis=1) if average else shares


@aten("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    use: Use, x: Any, width: int, heads: int, into: Any, shift: Any, out: Any, last: Any,
    use_gelu: bool, norm_first: bool, eps: float, *rest: Any,
) -> Any:  # fmt: skip
    """The fused encoder layer of inference."""
    norm1, norm2, up, down = [(rest[i], rest[i + 1]) for i in (0, 2, 4, 6)]
    mask, kind = [*rest[8:], None, None][:2]

    def attended(x: Any) -> Any:
        return _multi_head(x, x, x, heads, (into, shift, out, last), mask, kind)[0]

    def fed(x: Any) -> Any:
        hidden = _linear(x, *up)
        return _linear(fg.gelu(hidden) if use_gelu else fg.relu(hidden), *down)

    if norm_first:
        x = x + attended(_layer_norm(x, *norm1, eps))
        return x + fed(_layer_norm(x, *norm2, eps))
    x = _layer_norm(x + attended(x), *norm1, eps)
    return _layer_norm(x + fed(x), *norm2, eps)


def give_sizes_to_encoder_layer() -> None:
    """Tell torch's fake tensors what the fused encoder layer gives, where torch does not say.

    torch 2.11 has no meta kernel of it, so dynamo breaks the graph there when sizes are symbols.
    """
    name = "aten::_transformer_encoder_layer_fwd"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
        _LIBRARY.impl(name, lambda src, *_: src.new_empty(src.shape), "Meta")


_LIBRARY = torch.library.Library("aten", "IMPL")  # its kernels live as long as it does
give_sizes_to_encoder_layer()
