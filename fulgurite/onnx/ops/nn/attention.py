"""Attention of every kind, and the rotation of positions.

In: a `Call`. Out: lazy tensors. Heads are unpacked to (batch, head, length, size); queries may
share heads of keys; caches are joined to the keys and values. Scores are kept in float32 at least,
and a query that may look nowhere gives zeros.
"""

from __future__ import annotations

from math import inf
from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, operator
from ...types import kind_of
from .normalization import wide


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads size) as (batch, heads, length, size)."""
    batch, length, hidden = x.node.shape
    split = fg.reshape(x, (batch, length, heads, hidden // heads))
    return fg.permute_dims(split, (0, 2, 1, 3))


def joined(x: Tensor) -> Tensor:
    """(batch, heads, length, size) as (batch, length, heads size)."""
    batch, heads, length, size = x.node.shape
    return fg.reshape(fg.permute_dims(x, (0, 2, 1, 3)), (batch, length, heads * size))


def repeated(x: Tensor, times: int) -> Tensor:
    """Each head so many times in a row."""
    return x if times == 1 else fg.repeat(x, times, axis=1)


@operator("Attention", since=23)
def attention(op: Call) -> tuple[Tensor | None, ...]:
    """softmax(Q K' scale + bias) V with caches, masks, windows and soft caps."""
    q, k, v = op[0], op[1], op[2]
    packed = q.ndim == 3
    if packed:
        q = heads_of(q, op.int("q_num_heads"))
        k, v = (heads_of(x, op.int("kv_num_heads")) for x in (k, v))
    past = 0
    if op.has(4) and op.has(5):
        past = op[4].shape[2]
        k, v = fg.concat([op[4], k], axis=2), fg.concat([op[5], v], axis=2)
    present = (k, v)
    shared = q.shape[1] // k.shape[1]
    k, v = repeated(k, shared), repeated(v, shared)
    scale = op.float("scale", None) if op.given("scale") else q.shape[-1] ** -0.5
    root = scale**0.5
    scores = fg.matmul(q * root, fg.matrix_transpose(k * root))
    cap = op.float("softcap", 0.0)
    if cap:
        scores = fg.tanh(scores / cap) * cap
    capped = scores
    bias, allowed = _bias(op, q, k, past)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = fg.where(allowed, scores, -inf)
    biased = scores
    number = op.int("softmax_precision", 0)
    dtype = kind_of(number).carrier if number else None
    inside = scores if dtype is None else scores.astype(dtype)
    weights = safe_softmax(wide(inside)).astype(q.dtype)
    y = fg.matmul(weights, v).astype(q.dtype)
    mode = op.int("qk_matmul_output_mode", 0)
    shown = (capped, capped, biased, weights)[mode]
    return joined(y) if packed else y, *present, shown.astype(q.dtype)


def safe_softmax(scores: Tensor) -> Tensor:
    """softmax along the last axis; where nothing is allowed the weights are 0."""
    top = fg.max(scores, axis=-1, keepdims=True)
    powers = fg.exp(scores - fg.where(top == -inf, 0, top))
    total = fg.sum(powers, axis=-1, keepdims=True)
    return powers / fg.where(total == 0, 1, total)


def _bias(op: Call, q: Tensor, k: Tensor, past: int) -> tuple[Tensor | None, Tensor | None]:
    """What is added to scores, and where a query may look at all."""
    queries, keys = q.shape[2], k.shape[2]
    bias: Tensor | None = None
    allowed: Tensor | None = None
    if op.has(3):
        mask = op[3]
        short = keys - mask.shape[-1]
        if short > 0:
            widths = [(0, 0)] * (mask.ndim - 1) + [(0, short)]
            outside: Any = False if mask.dtype is fg.bool else -inf
            mask = fg.pad(mask, widths, constant_values=outside)
        if mask.dtype is fg.bool:
            allowed = mask
        else:
            bias = mask
    lengths = None
    if op.has(6):
        lengths = fg.reshape(op[6].astype(fg.int32), (-1, 1, 1, 1))
    row = fg.reshape(fg.arange(queries), (queries, 1))
    column = fg.reshape(fg.arange(keys), (1, keys))
    offset: Any = past if op.has(4) or lengths is None else lengths - queries
    place = row + offset
    left, right = op.int("left_window_size", -1), op.int("right_window_size", -1)
    for asked, rule in (
        (op.int("is_causal"), lambda: column <= place),
        (left >= 0, lambda: place - column <= left),
        (right >= 0, lambda: column - place <= right),
        (lengths is not None, lambda: column < lengths),
    ):
        if asked:
            here = rule()
            allowed = here if allowed is None else allowed & here
    return bias, allowed


@operator("RotaryEmbedding", since=23)
def rotary_embedding(op: Call) -> Tensor:
    """Pairs of numbers rotated by an angle that grows with the position."""
    x = op[0]
    packed = x.ndim == 3
    if packed:
        x = heads_of(x, op.int("num_heads"))
    position = op.maybe(3)
    size = op.int("rotary_embedding_dim", 0)
    y = rotated(x, op[1], op[2], position, size, bool(op.int("interleaved")))
    return joined(y) if packed else y


def rotated(
    x: Tensor, cos: Tensor, sin: Tensor, position: Tensor | None, size: int, interleaved: bool
) -> Tensor:
    """(batch, heads, length, size) rotated; caches are by position, or by batch and place."""
    if position is not None:
        cos, sin = fg.take(cos, position, axis=0), fg.take(sin, position, axis=0)
    size = size or x.shape[-1]
    rotated, rest = x[..., :size], x[..., size:]
    cos, sin = (fg.expand_dims(part, 1) for part in (cos, sin))
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
    else:
        a, b = rotated[..., : size // 2], rotated[..., size // 2 :]
    real, imaginary = a * cos - b * sin, a * sin + b * cos
    if interleaved:
        made = fg.reshape(fg.stack([real, imaginary], axis=-1), rotated.shape)
    else:
        made = fg.concat([real, imaginary], axis=-1)
    made = made.astype(x.dtype)
    return made if rest.shape[-1] == 0 else fg.concat([made, rest], axis=-1)


@operator("LinearAttention", since=27)
def linear_attention(op: Call) -> tuple[Tensor, Tensor]:
    """A state of keys times values that each step decays, corrects and adds to."""
    rule = op.text("update_rule", "gated_delta")
    q_heads, heads = op.int("q_num_heads"), op.int("kv_num_heads")
    q, k = (heads_of(op[i], n).astype(fg.float32) for i, n in ((0, q_heads), (1, heads)))
    v = heads_of(op[2], heads).astype(fg.float32)
    batch, size = q.shape[0], q.shape[-1]
    scale = op.float("scale", 0.0) or size**-0.5
    shared = q_heads // heads
    if op.has(3):
        state, kind = op[3].astype(fg.float32), op[3].dtype
    else:
        state, kind = fg.zeros((batch, heads, size, v.shape[-1])), op[0].dtype
    rows = {"q": q, "k": k, "v": v}
    if rule in ("gated", "gated_delta"):
        decay = op[4]
        per_head = decay.shape[-1] == heads
        rows["g"] = fg.exp(heads_of(decay, heads).astype(fg.float32)) if not per_head else (
            fg.exp(fg.expand_dims(fg.permute_dims(decay, (0, 2, 1)), -1).astype(fg.float32))
        )  # fmt: skip
    if rule in ("delta", "gated_delta"):
        beta = fg.permute_dims(op[5], (0, 2, 1)).astype(fg.float32)
        rows["b"] = fg.expand_dims(beta, -1)

    def step(before: Tensor, row: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        now = before
        if "g" in row:
            now = now * fg.expand_dims(row["g"], -1)
        value = row["v"]
        if "b" in row:
            held = fg.sum(now * fg.expand_dims(row["k"], -1), axis=2)
            value = row["b"] * (value - held)
        now = now + fg.expand_dims(row["k"], -1) * fg.expand_dims(value, -2)
        read = repeated(now, shared)
        return now, fg.sum(read * fg.expand_dims(row["q"], -1), axis=2) * scale

    by_step = {name: fg.moveaxis(x, 2, 0) for name, x in rows.items()}
    last, outputs = fg.scan(step, state, by_step)
    y = joined(fg.moveaxis(outputs, 0, 2))
    return y.astype(op[0].dtype), last.astype(kind)


@operator("FlexAttention", domain="ai.onnx.preview")
def flex_attention(op: Call) -> Tensor:
    """Attention whose scores and weights pass through graphs of the model."""
    q, k, v = op[0], op[1], op[2]
    shared = q.shape[1] // k.shape[1]
    k, v = repeated(k, shared), repeated(v, shared)
    number = op.int("softmax_precision", 0)
    dtype = kind_of(number).carrier if number else None
    dtype = dtype or (fg.float64 if q.dtype is fg.float64 else fg.float32)
    scale = op.float("scale", None) if op.given("scale") else q.shape[-1] ** -0.5
    scores = (fg.matmul(q.astype(dtype), fg.matrix_transpose(k.astype(dtype))) * scale).astype(
        dtype
    )
    scores = _through(op, "score_mod", scores)
    weights = fg.softmax(scores, axis=-1)
    weights = _through(op, "prob_mod", weights)
    return fg.matmul(weights, v.astype(dtype)).astype(q.dtype)


def _through(op: Call, name: str, x: Tensor) -> Tensor:
    from ...values import Value

    if not op.given(name):
        return x
    (found,) = op.build.graph(op.graph(name), [Value(x)], op.scope)
    made: Tensor = found.tensor
    return made
