"""Tests of fulgurite/torch/foreach.py: operators on lists are compiled one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fulgurite.torch as fgt

pytestmark = pytest.mark.device("cpu")

CALLS: dict[str, Callable[..., Any]] = {
    "unary": lambda a, b, c: [torch._foreach_exp(a), torch._foreach_sqrt(c), torch._foreach_neg(b)],
    "lists": lambda a, b, c: [torch._foreach_add(a, b, alpha=2), torch._foreach_div(a, c),
                              torch._foreach_maximum(a, b), torch._foreach_lerp(a, b, c)],
    "a number": lambda a, b, c: [torch._foreach_mul(a, 2.5), torch._foreach_maximum(a, 0.0),
                                 torch._foreach_pow(c, 2), torch._foreach_lerp(a, b, 0.3)],
    "a list of numbers": lambda a, b, c: [torch._foreach_sub(a, [1.0, 2.0]),
                                          torch._foreach_addcdiv(a, b, c, [0.5, 0.1])],
    "a tensor": lambda a, b, c: torch._foreach_mul(a, c[0][0]),
    "norms": lambda a, b, c: [torch._foreach_norm(a), torch._foreach_norm(b, 1),
                              torch._foreach_norm(a, 2, dtype=torch.float64)],
    "fused": lambda a, b, c: [torch._foreach_addcmul(a, b, c, 0.5),
                              torch._foreach_addcdiv(a, b, c, value=0.5)],
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_lists_of_tensors_are_compiled_and_give_what_torch_gives(call: Callable[..., Any]) -> None:
    a, b = [[torch.randn(3), torch.randn(2, 2)] for _ in range(2)]
    c = [x.abs() + 1 for x in b]
    ours = torch.compile(call, backend="fulgurite")(a, b, c)
    torch.testing.assert_close(ours, call(a, b, c))
    assert not fgt.report().eager


def test_a_compiled_step_that_clips_gradients_leaves_nothing_to_torch() -> None:
    def steps(compile_step: bool) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, foreach=True)

        def step() -> Any:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return norm

        call = torch.compile(step, backend="fulgurite") if compile_step else step
        norms = []
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            norms.append(call())
        return [*norms, *[p.detach() for p in model.parameters()]]

    torch.testing.assert_close(steps(True), steps(False), rtol=1e-4, atol=1e-5)
    assert not fgt.report().eager
