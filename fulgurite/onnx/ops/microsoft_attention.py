"""Attention as exporters fuse it (domain com.microsoft).

In: a `Call`. Out: lazy tensors. Projections, caches and masks of the several operators are brought
to (batch, heads, length, size) and one function. Masks are lengths or truths for each key.
"""

from __future__ import annotations

from math import inf
from typing import Any

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call
from .attention import heads_of, joined, repeated, rotated, safe_softmax
from .microsoft import ms
from .normalization import wide


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Any, allowed: Any) -> Tensor:
    scores = fg.matmul(wide(q), fg.matrix_transpose(wide(k))) * scale
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = fg.where(allowed, scores, -inf)
    return fg.matmul(safe_softmax(scores), wide(v)).astype(q.dtype)


def _causal(queries: int, keys: int) -> Tensor:
    row = fg.reshape(fg.arange(queries), (queries, 1)) + (keys - queries)
    return fg.reshape(fg.arange(keys), (1, keys)) <= row


def _key_mask(op: Call, mask: Tensor, batch: int, keys: int) -> Tensor:
    """Where a key may be looked at, from lengths or from a mask of any shape."""
    if mask.ndim == 1 and mask.shape[0] == batch:
        return fg.arange(keys, dtype=mask.dtype)[None, None, None] < fg.reshape(mask, (-1, 1, 1, 1))
    if mask.ndim == 2:
        return fg.reshape(mask != 0, (mask.shape[0], 1, 1, mask.shape[1]))
    if mask.ndim == 3:
        return fg.expand_dims(mask != 0, 1)
    raise op.unsupported(f"a mask of shape {mask.shape}")


@ms("Attention")
def attention(op: Call) -> tuple[Tensor, Tensor | None]:
    """One projection to queries, keys and values, then attention over heads."""
    x, heads = op[0], op.int("num_heads", 1)
    projected = fg.matmul(x, op[1])
    if op.has(2):
        projected = projected + op[2]
    sizes = op.ints_of("qkv_hidden_sizes") or [op[1].shape[1] // 3] * 3
    a, b = sizes[0], sizes[0] + sizes[1]
    parts = (projected[..., :a], projected[..., a:b], projected[..., b:])
    q, k, v = (heads_of(part, heads) for part in parts)
    if op.has(4):
        k, v = fg.concat([op[4][0], k], axis=2), fg.concat([op[4][1], v], axis=2)
    present = fg.stack([k, v], axis=0) if op.wants(1) else None
    allowed = _key_mask(op, op[3], x.shape[0], k.shape[2]) if op.has(3) else None
    if op.int("unidirectional"):
        causal = _causal(q.shape[2], k.shape[2])
        allowed = causal if allowed is None else allowed & causal
    scale = op.float("scale", 0.0) or q.shape[-1] ** -0.5
    return joined(_attend(q, k, v, scale, op.maybe(5), allowed)), present


@ms("MultiHeadAttention")
def multi_head_attention(op: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Attention of given queries, keys and values."""
    heads = op.int("num_heads", 1)
    if not op.has(1):
        packed = op[0]  # (batch, length, heads, 3, size)
        q, k, v = (fg.permute_dims(packed[:, :, :, i], (0, 2, 1, 3)) for i in range(3))
    else:
        q_in, k_in = op[0], op[1]
        v_in = op.maybe(2)
        if v_in is None:  # (batch, length, heads, 2, size)
            k, v = (fg.permute_dims(k_in[:, :, :, i], (0, 2, 1, 3)) for i in range(2))
        if op.has(3):
            size = q_in.shape[-1]
            bias = op[3]
            q_in = q_in + bias[:size]
            if v_in is not None and k_in.ndim == 3:
                k_in = k_in + bias[size : size + k_in.shape[-1]]
                v_in = v_in + bias[size + k_in.shape[-1] :]
        q = heads_of(q_in, heads)
        if v_in is not None:
            k = k_in if k_in.ndim == 4 else heads_of(k_in, heads)
            v = v_in if v_in.ndim == 4 else heads_of(v_in, heads)
    if op.has(6) and op.has(7):
        k, v = fg.concat([op[6], k], axis=2), fg.concat([op[7], v], axis=2)
    allowed = _key_mask(op, op[4], q.shape[0], k.shape[2]) if op.has(4) else None
    if op.int("unidirectional"):
        causal = _causal(q.shape[2], k.shape[2])
        allowed = causal if allowed is None else allowed & causal
    scale = op.float("scale", 0.0) or q.shape[-1] ** -0.5
    return joined(_attend(q, k, v, scale, op.maybe(5), allowed)), k, v


@ms("GroupQueryAttention")
def group_query_attention(op: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention with shared heads of keys, a cache, and rotation if asked."""
    heads, shared = op.int("num_heads", 1), op.int("kv_num_heads", 1)
    x = op[0]
    if op.has(1):
        q, k, v = heads_of(x, heads), heads_of(op[1], shared), heads_of(op[2], shared)
    else:
        size = x.shape[-1] // (heads + 2 * shared)
        a, b = heads * size, (heads + shared) * size
        q, k, v = (
            heads_of(x[..., :a], heads),
            heads_of(x[..., a:b], shared),
            heads_of(x[..., b:], shared),
        )
    length = q.shape[2]
    total = int(op.number(6)) if op.has(6) else length
    before = total - length
    lengths = fg.reshape(op[5].astype(fg.int32), (-1, 1, 1, 1)) + 1 if op.has(5) else None
    if op.int("do_rotary"):
        position = fg.arange(before, total, dtype=fg.int64)[None]
        turned = bool(op.int("rotary_interleaved"))
        size = 2 * op[7].shape[-1]
        q, k = (rotated(part, op[7], op[8], position, size, turned) for part in (q, k))
    if op.has(3) and before:
        k = fg.concat([op[3][:, :, :before], k], axis=2)
        v = fg.concat([op[4][:, :, :before], v], axis=2)
    allowed = _causal(length, k.shape[2])
    window = op.int("local_window_size", -1)
    row = fg.reshape(fg.arange(length), (length, 1)) + (k.shape[2] - length)
    column = fg.reshape(fg.arange(k.shape[2]), (1, k.shape[2]))
    if window > 0:
        allowed = allowed & (row - column < window)
    if lengths is not None:
        allowed = allowed & (column < lengths)
    scale = op.float("scale", 0.0) or q.shape[-1] ** -0.5
    times = heads // shared
    y = _attend(q, repeated(k, times), repeated(v, times), scale, None, allowed)
    return joined(y), k, v


@ms("RotaryEmbedding")
def rotary_embedding(op: Call) -> Tensor:
    """Rotation with the position second: one offset, or a place for each element."""
    x, position = op[0], op[1]
    packed = x.ndim == 3
    half = op[2].shape[-1]
    if packed:
        heads = op.int("num_heads", 0) or x.shape[-1] // (2 * half)
        x = heads_of(x, heads)
    if position.ndim < 2 or position.shape != (x.shape[0], x.shape[2]):
        position = fg.reshape(position, (1, 1)) + fg.arange(x.shape[2], dtype=position.dtype)[None]
    size = op.int("rotary_embedding_dim", 0) or 2 * half
    y = rotated(x, op[2], op[3], position, size, bool(op.int("interleaved")))
    return joined(y) if packed else y
