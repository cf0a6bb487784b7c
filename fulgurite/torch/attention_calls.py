"""Attention of a captured graph as one operator on every device.

In: dynamo's graph. torch chooses one of its own kernels for each attention on a GPU, with results
and padding of that kernel; the table has the operator of the host, which is plain attention. Calls
without dropout are put in its form, so that the compiler sees the same graph on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional as F


def attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`F.scaled_dot_product_attention`, by the operator of the host where that says the same."""
    if dropout_p or q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa and k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(
                ~attn_mask, -torch.inf
            )
        attn_mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]


def unify_attention(module: fx.GraphModule) -> None:
    """Put the attention of a captured graph in the form of one operator."""
    found = [
        node
        for node in module.graph.nodes
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention
    ]
    for node in found:
        node.target = attention
    if found:
        module.recompile()
