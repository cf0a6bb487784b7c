"""Attention, written plainly: scores, softmax, weighted sum. The compiler does the fusing.

In: queries (..., heads, length, size), keys and values (..., heads, other length, size). Out: for
each query the mean of the values, weighted by softmax of its products with the keys. Half floats
are computed in float32 and rounded once. A query that may look at nothing gets 0.
"""

from __future__ import annotations

from math import inf

from ...core import build
from ...core import shape as sizes
from ...core.dtype import bool_
from ...core.node import Size
from ...core.ops.elementwise import EQ, EXP, LE
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, wrap
from ..array.movement import matrix_transpose, reshape
from ..autocast import product_dtype, wide_products
from ..common import apply, as_tensor, astype, common_floats, wide
from ..math.elementwise import where
from ..math.products import matmul
from ..math.reduction import max, sum
from ..template import templated


def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.mT * scale + mask) @ value; a boolean mask says who may look.

    With `enable_gqa` several heads of queries share one head of keys and values. Of the weights
    `dropout_p` are left out, whether anything is in training or not.

    >>> q, k, v = fg.ones((1, 2, 3, 4)), fg.ones((1, 2, 5, 4)), fg.ones((1, 2, 5, 6))
    >>> fg.scaled_dot_product_attention(q, k, v).shape
    (1, 2, 3, 6)
    >>> fg.scaled_dot_product_attention(fg.ones((2, 1)), fg.ones((2, 1)),
    ...     fg.Tensor([[1.0], [3.0]]), is_causal=True).tolist()
    [[1.0], [2.0]]
    """
    options = dropout_p, is_causal, scale, enable_gqa
    if dropout_p == 0:  # what draws numbers is another graph every time
        return _plainly_attended(query, key, value, attn_mask, *options)
    return _attended(query, key, value, attn_mask, *options)


def _attended(
    query: TensorLike, key: TensorLike, value: TensorLike, attn_mask: TensorLike | None,
    dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    lifted(query, key, value, attn_mask)
    parts = common_floats(query, key, value)
    low = product_dtype(parts[0].dtype)
    parts = [astype(part, low) for part in parts]
    q, k, v = (wide(part) for part in parts)
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ShapeError("attention needs (length, size) at least", "give two or more dimensions")
    _check_options(attn_mask is not None and is_causal, dropout_p, scale)
    mask = None if attn_mask is None else as_tensor(attn_mask, q)
    if enable_gqa:
        heads = _shared_heads(q, k, v)
        q, k, v = (_grouped(part, heads) for part in (q, k, v))
        mask = _grouped(mask, heads) if mask is not None and mask.ndim > 2 else mask
    with wide_products():  # its operands are rounded, the scores are not
        products = matmul(q, matrix_transpose(k))
    scores = products * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = _weights(_masked(scores, mask, is_causal))
    if dropout_p != 0:
        from ...random import dropout

        weights = dropout(weights, dropout_p)
    out = matmul(weights, v)
    if enable_gqa:
        shape = out.node.shape
        out = reshape(out, (*shape[:-4], sizes.mul(shape[-4], shape[-3]), *shape[-2:]))
    return astype(out, parts[0].dtype)


_plainly_attended = templated(_attended)


def _check_options(has_two_masks: bool, dropout_p: float, scale: float | None) -> None:
    if has_two_masks:
        raise ArgumentError("a mask and is_causal exclude each other", "put both into the mask")
    if isinstance(dropout_p, bool) or isinstance(scale, bool):
        raise ArgumentError(
            f"dropout_p is {dropout_p!r}, scale is {scale!r}",
            "give numbers; is_causal and enable_gqa by name",
        )


def _masked(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """The scores, -inf where a query may not look."""
    if is_causal:
        query, key = (wrap(build.iota(scores.node.shape[-2:], axis)) for axis in (0, 1))
        return where(apply(LE, key, query), scores, -inf)
    if mask is None:
        return scores
    return where(mask, scores, -inf) if mask.dtype is bool_ else scores + wide(mask)


def _weights(scores: Tensor) -> Tensor:
    """softmax along the last axis; where all is masked the weights are 0."""
    if scores.node.shape[-1] == 0:
        return scores
    top = max(scores, -1, keepdims=True).detach()
    powers = apply(EXP, scores - where(apply(EQ, top, -inf), 0, top))
    total = sum(powers, -1, keepdims=True)
    return powers / where(apply(EQ, total, 0), 1, total)


def _shared_heads(q: Tensor, k: Tensor, v: Tensor) -> int:
    """How many heads of keys and values there are, which must divide those of the queries."""
    if min(q.ndim, k.ndim, v.ndim) < 3:
        raise ShapeError("grouped queries need heads", "give (..., heads, length, size)")
    queries, keys, values = (part.node.shape[-3] for part in (q, k, v))
    if not isinstance(keys, int) or keys != values or keys == 0 or sizes.mod(queries, keys) != 0:
        raise ShapeError(
            f"{sizes.size_text(queries)} heads of queries cannot share "
            f"{sizes.size_text(keys)} of keys and {sizes.size_text(values)} of values",
            "keys and values have equal numbers of heads, which divide the queries'",
        )
    return keys


def _grouped(x: Tensor, heads: int) -> Tensor:
    """The heads as (heads of keys, queries for each): both 1 where x has one head for all."""
    shape: tuple[Size, ...] = x.node.shape
    outer = 1 if shape[-3] == 1 else heads
    return reshape(x, (*shape[:-3], outer, sizes.floordiv(shape[-3], outer), *shape[-2:]))
