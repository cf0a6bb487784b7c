"""Attention as exporters fuse it (domain com.microsoft).

In: a `Call`. Out: lazy tensors. Projections, caches and masks of the several operators are brought
to (batch, heads, length, size) and one function. Masks are lengths or truths for each key.
"""

from __future__ import annotations

from math import inf
from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, microsoft
from ..nn.attention import heads_of, joined, repeated, rotated, safe_softmax
from ..nn.normalization import wide


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Any, allowed: Any, cap: float = 0.0,
    sink: Any = None,
) -> Tensor:  # fmt: skip
    scores = fg.matmul(wide(q), fg.matrix_transpose(wide(k))) * scale
    if cap:
        scores = fg.tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = fg.where(allowed, scores, -inf)
    weights = safe_softmax(scores) if sink is None else _sinking(scores, sink)
    return fg.matmul(weights, wide(v)).astype(q.dtype)


def _sinking(scores: Tensor, sink: Any) -> Tensor:
    """softmax with one score more, whose weight goes nowhere."""
    top = fg.maximum(fg.max(scores, axis=-1, keepdims=True), sink)
    powers = fg.exp(scores - top)
    return fg.divide(powers, fg.sum(powers, axis=-1, keepdims=True) + fg.exp(sink - top))


def _causal(queries: int, keys: int, past: int) -> Tensor:
    """Keys up to a query's own place, which counts from the keys of a cache."""
    row = fg.reshape(fg.arange(queries), (queries, 1)) + past
    return fg.reshape(fg.arange(keys), (1, keys)) <= row


def _masked_bias(op: Call, bias: Tensor | None, mask: Tensor) -> Tensor:
    """A bias that makes masked keys unlikely, so a query whose keys are all masked sees them."""
    low = fg.where(mask, 0.0, op.float("mask_filter_value", -10000.0))
    return low if bias is None else low + bias


def _key_mask(op: Call, mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """Where a key may be looked at, from lengths or from a mask of any shape."""
    if mask.ndim == 1 and mask.shape[0] in (batch, 2 * batch, 3 * batch + 2):
        place = fg.arange(keys, dtype=mask.dtype)[None, None, None]
        before = place < fg.reshape(mask[:batch], (-1, 1, 1, 1))
        if mask.shape[0] != 2 * batch:
            return before
        return before & (place >= fg.reshape(mask[batch:], (-1, 1, 1, 1)))
    if mask.ndim == 4:
        return fg.not_equal(mask[:, :, keys - queries : keys, :keys], 0)
    if mask.ndim == 2:
        return fg.reshape(mask != 0, (mask.shape[0], 1, 1, mask.shape[1]))
    if mask.ndim == 3:
        return fg.expand_dims(mask != 0, 1)
    raise op.unsupported(f"a mask of shape {mask.shape}")


@microsoft("Attention")
def attention(op: Call) -> tuple[Tensor, Tensor | None]:
    """One projection to queries, keys and values, then attention over heads."""
    if op.int("do_rotary"):
        raise op.unsupported("do_rotary")
    projected = fg.matmul(op[0], op[1])
    if op.has(2):
        projected = projected + op[2]
    return attended(op, projected, 3, 4, 5)


def attended(
    op: Call, projected: Tensor, mask: int, past: int, bias: int
) -> tuple[Tensor, Tensor | None]:
    """Attention of queries, keys and values in one; the others are places of inputs."""
    heads = op.int("num_heads", 1)
    sizes = op.ints_of("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3
    a, b = sizes[0], sizes[0] + sizes[1]
    parts = (projected[..., :a], projected[..., a:b], projected[..., b:])
    q, k, v = (heads_of(part, heads) for part in parts)
    if op.has(past):
        k, v = fg.concat([op[past][0], k], axis=2), fg.concat([op[past][1], v], axis=2)
    present = fg.stack([k, v], axis=0) if op.wants(1) else None
    before = op[past].shape[3] if op.has(past) else 0
    return _masked_attention(op, q, k, v, mask, bias, before), present


def _masked_attention(
    op: Call, q: Tensor, k: Tensor, v: Tensor, mask: int, bias: int, before: int
) -> Tensor:
    """Attention with the mask and the bias at some inputs, causal if the operator says so."""
    added, allowed = op.maybe(bias), None
    if op.has(mask):
        shown = _key_mask(op, op[mask], q.shape[0], q.shape[2], k.shape[2])
        added = _masked_bias(op, added, shown)
    if op.int("unidirectional"):
        allowed = _causal(q.shape[2], k.shape[2], before)
    scale = op.float("scale", 0.0) or q.shape[-1] ** -0.5
    return joined(_attend(q, k, v, scale, added, allowed))


@microsoft("MultiHeadAttention")
def multi_head_attention(op: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Attention of given queries, keys and values."""
    q, k, v = _queries_keys_values(op)
    if op.has(6) and op.has(7):
        k, v = fg.concat([op[6], k], axis=2), fg.concat([op[7], v], axis=2)
    before = op[6].shape[2] if op.has(6) else 0
    return _masked_attention(op, q, k, v, 4, 5, before), k, v


def _queries_keys_values(op: Call) -> tuple[Tensor, ...]:
    """All by heads: packed in one (batch, length, heads, 3, size), in two, or each by itself."""
    heads = op.int("num_heads", 1)
    if op.has(3) and not op.has(2):
        raise op.unsupported("a bias of packed keys and values")
    if not op.has(1):
        return _unpacked(op[0], 3)
    q, k = op[0], op[1]
    if not op.has(2):
        return heads_of(q, heads), *_unpacked(k, 2)
    v, size = op[2], q.shape[-1]
    if op.has(3):
        q = q + op[3][:size]
        if k.ndim == 3:
            bias = op[3][size:]
            k, v = k + bias[: k.shape[-1]], v + bias[k.shape[-1] :]
    return heads_of(q, heads), *[x if x.ndim == 4 else heads_of(x, heads) for x in (k, v)]


def _unpacked(x: Tensor, count: int) -> tuple[Tensor, ...]:
    return tuple(fg.permute_dims(x[:, :, :, i], (0, 2, 1, 3)) for i in range(count))


@microsoft("GroupQueryAttention")
def group_query_attention(op: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention with shared heads of keys, a cache, and rotation if asked."""
    heads, shared = op.int("num_heads", 1), op.int("kv_num_heads", 1)
    parts = (op[0], op[1], op[2]) if op.has(1) else _split(op[0], heads, shared)
    q, k, v = (heads_of(x, n) for x, n in zip(parts, (heads, shared, shared), strict=True))
    length = q.shape[2]
    total = int(op.number(6)) if op.has(6) else length
    begin: Any = total - length  # where each sample's new keys go
    if op.has(5) and begin:
        begin = fg.reshape(op[5].astype(fg.int64), (-1, 1, 1, 1)) + (1 - length)
    if op.int("do_rotary"):
        q, k = _rotated(op, q, begin), _rotated(op, k, begin)
    if op.has(3) and op[3].shape[2]:
        k, v = (_cached(op[place], new, begin, total) for place, new in ((3, k), (4, v)))
    allowed = _group_mask(op, length, k.shape[2], begin)
    scale = op.float("scale", 0.0) or q.shape[-1] ** -0.5
    times = heads // shared
    bias = op.maybe(10)
    sink: Any = 0.0 if op.int("smooth_softmax") == 1 else None
    if bias is not None and bias.shape[-1] < k.shape[2]:
        bias = fg.pad(bias, [(0, 0)] * 3 + [(0, k.shape[2] - bias.shape[-1])])
    if op.has(11):
        sink = fg.reshape(wide(op[11]), (1, -1, 1, 1))
    shown = repeated(k, times), repeated(v, times)
    y = _attend(q, *shown, scale, bias, allowed, op.float("softcap", 0.0), sink)
    return joined(y), k, v


def _split(x: Tensor, heads: int, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values that lie side by side."""
    size = x.shape[-1] // (heads + 2 * shared)
    a, b = heads * size, (heads + shared) * size
    return x[..., :a], x[..., a:b], x[..., b:]


def _rotated(op: Call, x: Tensor, begin: Any) -> Tensor:
    """Rotary embeddings of places that are given, or go on from what the cache holds."""
    position = fg.arange(x.shape[2], dtype=fg.int64)[None] + fg.reshape(fg.asarray(begin), (-1, 1))
    position = op[9] if op.has(9) else position
    interleaved = bool(op.int("rotary_interleaved"))
    return rotated(x, op[7], op[8], position, 2 * op[7].shape[-1], interleaved)


def _group_mask(op: Call, queries: int, keys: int, begin: Any) -> Tensor:
    """Where a query may look: backwards, within a window and a sample's own length."""
    column = fg.reshape(fg.arange(keys, dtype=fg.int64), (1, 1, 1, -1))
    row = fg.reshape(fg.arange(queries, dtype=fg.int64), (1, 1, queries, 1)) + begin
    allowed: Tensor = column <= row
    window = op.int("local_window_size", -1)
    if window > 0:
        allowed = allowed & (row - column < window)
    if op.has(5):
        allowed = allowed & (column <= fg.reshape(op[5].astype(fg.int64), (-1, 1, 1, 1)))
    return allowed


def _cached(past: Tensor, new: Tensor, begin: Any, total: int, keep: bool = False) -> Tensor:
    """A cache with new rows from a place on, which may be another for each sample; then zeros."""
    most = max(past.shape[2], total)
    whole = fg.pad(past, [(0, 0), (0, 0), (0, most - past.shape[2]), (0, 0)])
    rest: Any = whole if keep else 0
    if isinstance(begin, int) and most == begin + new.shape[2]:
        return fg.concat([past[:, :, :begin], new], axis=2)
    place = fg.reshape(fg.arange(most, dtype=fg.int64), (1, 1, most, 1)) - begin
    shape = (*new.shape[:2], most, new.shape[3])
    index = fg.broadcast_to(fg.clip(place, 0, new.shape[2] - 1), shape)
    later = fg.where(place < new.shape[2], fg.take_along_axis(new, index, axis=2), rest)
    return fg.where(place < 0, whole, later)


@microsoft("DecoderMaskedMultiHeadAttention")
def decoder_masked_multi_head_attention(op: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """One query for each sample, with a cache that has room: query, key, value, mask, bias."""
    heads = op.int("num_heads", 1)
    q_in, k_in, v_in = op[0], op.maybe(1), op.maybe(2)
    if op.has(10) and k_in is not None and v_in is not None:
        size = q_in.shape[-1]
        q_in, bias = q_in + op[10][:size], op[10][size:]
        k_in, v_in = k_in + bias[: k_in.shape[-1]], v_in + bias[k_in.shape[-1] :]
    if k_in is None or v_in is None or op.has(9):
        raise op.unsupported("packed or beamed inputs")
    q = heads_of(q_in, heads)
    k, v = (part if part.ndim == 4 else heads_of(part, heads) for part in (k_in, v_in))
    if op.has(5):
        before = int(op.number(7)) if op.has(7) else op[5].shape[2]
        k, v = (_cached(op[at], part, before, before + 1, True) for at, part in ((5, k), (6, v)))
        shown = (k, v)
        k, v = k[:, :, : before + 1], v[:, :, : before + 1]
    else:
        shown = (k, v)
    added = op.maybe(4)
    if op.has(3):
        mask = _key_mask(op, op[3], q.shape[0], 1, op[3].shape[-1])[..., : k.shape[2]]
        added = _masked_bias(op, added, mask)
    scale = op.float("scale", 0.0) or q.shape[-1] ** -0.5
    return joined(_attend(q, k, v, scale, added, None)), *shown


@microsoft("RotaryEmbedding")
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
