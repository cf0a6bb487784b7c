"""Models for the judge: none is asleep, and each has pictures that it takes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from fulgurite.torch.conformance import models


def test_weights_that_are_all_zero_get_numbers_and_biases_stay() -> None:
    head, norm = nn.Linear(4, 3), nn.BatchNorm2d(2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)
    kept = nn.Linear(3, 3)
    before = kept.weight.detach().clone()
    models.awake(nn.Sequential(head, norm, kept))
    assert bool(head.weight.all()) and bool(norm.weight.all())
    assert not bool(head.bias.any()) and not bool(norm.bias.any())
    assert torch.equal(kept.weight, before)


@pytest.mark.parametrize("problem", [RuntimeError, AssertionError, ValueError])
def test_a_size_that_windows_do_not_divide_is_not_taken(problem: type[Exception]) -> None:
    class Windows(nn.Module):  # type: ignore[misc]  # torch has no types for it
        def forward(self, x: Any) -> Any:
            if x.shape[-1] % 7:
                raise problem("windows")
            return x

    assert models._takes(Windows(), 14) and not models._takes(Windows(), 16)
