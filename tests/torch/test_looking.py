"""Tests of `fulgurite.torch.explain`: kernels with the lines of the user's model."""

from __future__ import annotations

import pytest
import torch

import fulgurite as fg
import fulgurite.torch as fgt
from fulgurite.errors import ArgumentError


def test_the_kernels_of_a_model_name_its_lines() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.weight).sum()  # the line that is named

    found = fgt.explain(Net(), torch.ones(3, 4))
    assert found.segments and not found.eager
    lines = [line for kernel in found.segments[0].kernels for line in kernel.lines]
    assert any("test_looking.py" in line for line in lines), lines
    assert "segment 0" in str(found)


def test_explain_of_ours_names_that_for_models_of_torch() -> None:
    with pytest.raises(ArgumentError, match=r"fulgurite\.torch\.explain\(model"):
        fg.explain(torch.compile(torch.nn.Linear(2, 2), backend="fulgurite"))
