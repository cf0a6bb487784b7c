"""Attention with learned projections, and positions that are rotations.

In: queries, keys and values (length, batch, size), or (batch, length, size) with `batch_first`, or
without a batch. Out: for each query a mixture of the values, and the weights of the mixture if
asked for. Masks are torch's: True means "may not look" (the opposite of `fg.scaled_dot_product_
attention`), floats are added to the scores. A query that may look at nothing gets 0, not NaN.
"""

from __future__ import annotations

import math
from typing import Any

from ..core.dtype import bool_
from ..errors import ArgumentError
from ..functional.array.creation import arange, zeros
from ..functional.array.movement import (
    broadcast_to,
    concat,
    expand_dims,
    matrix_transpose,
    pad,
    permute_dims,
    reshape,
    split,
    stack,
    swapaxes,
)
from ..functional.common import as_tensor, floating, wide
from ..functional.math.elementwise import logical_not, where
from ..functional.math.products import matmul
from ..functional.math.reduction import mean
from ..functional.math.special import cos, sin
from ..functional.nn.activation import softmax
from ..functional.nn.attention import scaled_dot_product_attention
from ..random import dropout
from ..tensor import Tensor, TensorLike
from . import init
from .linear import Linear, linear, whole
from .module import Module


class MultiheadAttention(Module):
    """Several attentions side by side, each over its own projection.

    Returns the result and the weights, averaged over heads (None with need_weights=False).

    >>> layer = fg.nn.MultiheadAttention(8, num_heads=2, batch_first=True)
    >>> x = fg.rand(3, 5, 8)
    >>> y, weights = layer(x, x, x)
    >>> y.shape, weights.shape, layer.in_proj_weight.shape
    ((3, 5, 8), (3, 5, 5), (24, 8))
    """

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.embed_dim, self.num_heads = (
            whole(embed_dim, "embed_dim"),
            whole(num_heads, "num_heads"),
        )
        if embed_dim % num_heads:
            raise ArgumentError(
                f"embed_dim {embed_dim} in {num_heads} heads", "num_heads divides embed_dim"
            )
        self.head_dim, self.dropout, self.batch_first = embed_dim // num_heads, dropout, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.add_zero_attn = add_zero_attn
        apart = (self.kdim, self.vdim) != (embed_dim, embed_dim)
        shapes = {
            "in_proj_weight": None if apart else (3 * embed_dim, embed_dim),
            "q_proj_weight": (embed_dim, embed_dim) if apart else None,
            "k_proj_weight": (embed_dim, self.kdim) if apart else None,
            "v_proj_weight": (embed_dim, self.vdim) if apart else None,
        }
        for name, shape in shapes.items():
            bound = 0.0 if shape is None else init.xavier_bound(shape)
            made = None if shape is None else init.uniform(shape, bound, dtype, device)
            self.register_parameter(name, made)
        start = init.constant((3 * embed_dim,), 0.0, dtype, device) if bias else None
        self.register_parameter("in_proj_bias", start)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if bias:
            self.out_proj.bias = init.constant((embed_dim,), 0.0, dtype, device)
        for name in ("bias_k", "bias_v"):
            scale = math.sqrt(2 / (2 * embed_dim))
            drawn = init.normal((1, 1, embed_dim), scale, dtype, device) if add_bias_kv else None
            self.register_parameter(name, drawn)

    def forward(
        self,
        query: TensorLike,
        key: TensorLike,
        value: TensorLike,
        key_padding_mask: TensorLike | None = None,
        need_weights: bool = True,
        attn_mask: TensorLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The mixtures, and their weights if asked for."""
        q, k, v, alone = self._batched(floating(query), floating(key), floating(value))
        batch, queries = q.shape[:2]
        q, k, v = self._projected(q, k, v, k is v and q is k)
        padding = None if key_padding_mask is None else as_tensor(key_padding_mask)
        padding = expand_dims(padding, 0) if padding is not None and alone else padding
        mask = self._mask(attn_mask, padding, batch, queries, k.shape[1], is_causal)
        k, v, mask = self._extended(k, v, mask)
        heads = self._heads(q), self._heads(k), self._heads(v)
        if need_weights or (self.dropout and self.training):
            mixed, weights = self._weighed(*heads, mask)
        else:
            mixed, weights = scaled_dot_product_attention(*heads, mask), None
        out = reshape(permute_dims(mixed, (0, 2, 1, 3)), (batch, queries, self.embed_dim))
        out = linear(out, self.out_proj.weight, self.out_proj.bias)
        if alone:
            out = out[0]
        elif not self.batch_first:
            out = swapaxes(out, 0, 1)
        if not need_weights or weights is None:
            return out, None
        weights = mean(weights, 1) if average_attn_weights else weights
        return out, weights[0] if alone else weights

    def _batched(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Queries, keys and values as (batch, length, size)."""
        axis = 0 if self.batch_first else 1
        sizes = (self.embed_dim, self.kdim, self.vdim)
        ranks = {part.ndim for part in (q, k, v)}
        fits = ranks <= {2, 3} and len(ranks) == 1
        fits = fits and all([p.shape[-1] == n for p, n in zip((q, k, v), sizes, strict=True)])
        fits = fits and k.shape[:-1] == v.shape[:-1]
        if not fits or (q.ndim == 3 and q.shape[axis] != k.shape[axis]):
            order = "batch, length" if self.batch_first else "length, batch"
            takes = f"query ({order}, {sizes[0]}), key (..., {sizes[1]}), value (..., {sizes[2]})"
            self.misfit(takes, q, k, v)
        alone = q.ndim == 2

        def batched(x: Tensor) -> Tensor:
            if alone:
                return expand_dims(x, 0)
            return x if self.batch_first else swapaxes(x, 0, 1)

        first = batched(q)
        second = first if k is q else batched(k)
        third = second if v is k else batched(v)
        return first, second, third, alone

    def _projected(self, q: Tensor, k: Tensor, v: Tensor, same: bool) -> tuple[Tensor, ...]:
        whole_weight, bias = self.in_proj_weight, self.in_proj_bias
        if whole_weight is not None and same:
            return split(linear(q, whole_weight, bias), self.embed_dim, -1)
        if whole_weight is None:
            own = vars(self)
            weights = [own["q_proj_weight"], own["k_proj_weight"], own["v_proj_weight"]]
        else:
            weights = list(split(whole_weight, self.embed_dim, 0))
        biases = [None] * 3 if bias is None else list(split(bias, self.embed_dim, 0))
        rows = zip((q, k, v), weights, biases, strict=True)
        return tuple([linear(x, weight, shift) for x, weight, shift in rows])

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, size) as (batch, heads, length, size of a head)."""
        parts = reshape(x, (*x.shape[:2], self.num_heads, self.head_dim))
        return permute_dims(parts, (0, 2, 1, 3))

    def _mask(
        self,
        attn_mask: TensorLike | None,
        padding: Tensor | None,
        batch: int,
        queries: int,
        keys: int,
        is_causal: bool,
    ) -> Tensor | None:
        """Who may look (bool), or what is added (float), as (batch or 1, heads or 1, q, k)."""
        if attn_mask is None and is_causal:
            places = arange(keys)
            attn_mask = expand_dims(places, 0) > expand_dims(arange(queries), 1)
        masks = []
        if attn_mask is not None:
            given = as_tensor(attn_mask)
            full = (batch * self.num_heads, queries, keys)
            if given.shape == full:
                given = reshape(given, (batch, self.num_heads, queries, keys))
            elif given.shape != full[1:]:
                self.misfit(f"attn_mask {full[1:]} or {full}", given)
            masks.append(given)
        if padding is not None:
            if padding.shape != (batch, keys):
                self.misfit(f"key_padding_mask {(batch, keys)}", padding)
            masks.append(reshape(padding, (batch, 1, 1, keys)))
        if not masks:
            return None
        if all([mask.dtype is bool_ for mask in masks]):
            hidden = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            return logical_not(hidden)
        added = [where(m, -math.inf, 0.0) if m.dtype is bool_ else floating(m) for m in masks]
        return added[0] if len(added) == 1 else added[0] + added[1]

    def _extended(
        self, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One more key and value that is learned, one that is zero; everybody may look there."""
        more = 0
        if self.bias_k is not None and self.bias_v is not None:
            shape = (k.shape[0], 1, self.embed_dim)
            k = concat([k, broadcast_to(self.bias_k, shape)], 1)
            v = concat([v, broadcast_to(self.bias_v, shape)], 1)
            more += 1
        if self.add_zero_attn:
            nothing = zeros((k.shape[0], 1, self.embed_dim), k.dtype, k.device)
            k, v = concat([k, nothing], 1), concat([v, nothing], 1)
            more += 1
        if mask is not None and more:
            visible: Any = mask.dtype is bool_
            pads = [(0, 0)] * (mask.ndim - 1) + [(0, more)]
            mask = pad(mask, pads, constant_values=visible if visible else 0.0)
        return k, v, mask

    def _weighed(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The mixtures with their weights, of which dropout leaves out some."""
        scores = matmul(q * self.head_dim**-0.5, matrix_transpose(k))
        if mask is not None:
            scores = where(mask, scores, -math.inf) if mask.dtype is bool_ else scores + mask
        weights = softmax(scores, -1)
        if mask is not None:  # of a query that may look at nothing
            weights = where(weights == weights, weights, 0)
        weights = dropout(weights, self.dropout, self.training)
        return matmul(weights, v), weights

    def extra_repr(self) -> str:
        """Sizes."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"


class RoPE(Module):
    """Positions as rotations of pairs of numbers, for queries and keys (..., length, dim).

    Element i is paired with i + dim / 2, or with its neighbour if `interleaved`. `offset` is the
    position of the first row; it may be a tensor or a bound variable, and then changes without
    compiling again.

    >>> rope = fg.nn.RoPE(4)
    >>> x = fg.ones((1, 2, 3, 4))
    >>> rope(x).shape, bool((rope(x, offset=2)[0, 0, 0] == rope(x)[0, 0, 2]).all())
    ((1, 2, 3, 4), True)
    """

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        self.dim, self.base, self.interleaved = whole(dim, "dim", 2), base, interleaved
        if dim % 2:
            raise ArgumentError(f"dim is {dim}", "pairs need an even number")

    def forward(self, x: TensorLike, offset: Any = 0) -> Tensor:
        """x with every pair rotated by its position times its frequency."""
        narrow = floating(x)
        tensor = wide(narrow)
        if tensor.ndim < 2 or tensor.node.shape[-1] != self.dim:
            self.misfit(f"(..., length, {self.dim})", tensor)
        half = self.dim // 2
        position = (arange(tensor.shape[-2], device=tensor.device) + offset).astype(tensor.dtype)
        slow = arange(half, device=tensor.device).astype(tensor.dtype) * (-1.0 / half)
        angle = expand_dims(position, -1) * (slow * math.log(self.base)).exp()
        cosine, sine = cos(angle), sin(angle)
        if self.interleaved:
            pairs = reshape(tensor, (*tensor.shape[:-1], half, 2))
            first, second = pairs[..., 0], pairs[..., 1]
        else:
            first, second = tensor[..., :half], tensor[..., half:]
        rotated = first * cosine - second * sine, first * sine + second * cosine
        if self.interleaved:
            out = reshape(stack(rotated, -1), tensor.shape)
        else:
            out = concat(rotated, -1)
        return out.astype(narrow.dtype)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"{self.dim}, base={self.base}, interleaved={self.interleaved}"
