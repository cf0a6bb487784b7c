"""Tests of fulgurite/torch/attention_calls.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from fulgurite.torch.attention_calls import attention, unify_attention


def given(heads: int = 4) -> tuple[Any, Any, Any]:
    q = torch.randn(2, 4, 9, 8, requires_grad=True)
    k, v = (torch.randn(2, heads, 11, 8, requires_grad=True) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal"])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_is_torchs(mask: str, heads: int) -> None:
    q, k, v = given(heads)
    named: dict[str, Any] = {"enable_gqa": heads != 4, "scale": 0.3}
    if mask == "causal":
        named["is_causal"] = True
    elif mask != "none":
        keep = torch.rand(9, 11) > 0.3
        keep[:, 0] = True
        named["attn_mask"] = keep if mask == "bool" else torch.randn(2, 1, 9, 11)
    for ours, theirs in zip(*(
        (*torch.autograd.grad((y := f(q, k, v, **named)).square().sum(), (q, k, v)), y)
        for f in (attention, F.scaled_dot_product_attention)
    ), strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-5)


def test_dropout_and_other_ranks_are_left_to_torch() -> None:
    q, k, v = (x[0] for x in given())
    torch.testing.assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    torch.manual_seed(0)
    q, k, v = given()
    assert attention(q, k, v, dropout_p=0.5).shape == q.shape


def test_calls_of_a_graph_are_put_in_one_form() -> None:
    module = fx.symbolic_trace(
        type("M", (torch.nn.Module,), {
            "forward": lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        })()
    )  # fmt: skip
    unify_attention(module)
    assert [n.target for n in module.graph.nodes if n.op == "call_function"] == [attention]
    q, k, v = given()
    torch.testing.assert_close(
        module(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )
