"""Tests of the judge: who agrees with whom, and who decides."""

from __future__ import annotations

import math

import pytest
import torch

from fulgurite.torch.conformance.judge import Trial, compare, distance, together, weigh
from fulgurite.torch.conformance.wide import widened

pytestmark = pytest.mark.device("none")


def test_a_distance_is_relative_to_the_largest_element_and_knows_nan_and_infinity() -> None:
    x = torch.tensor([1.0, 100.0])
    assert distance(x + torch.tensor([0.01, 0.0]), x) == pytest.approx(1e-4, rel=1e-2)
    odd = torch.tensor([math.nan, math.inf])
    assert distance(odd, odd.clone()) == 0
    assert distance(torch.tensor([1.0, math.inf]), odd) == math.inf
    assert distance(torch.ones(2), torch.ones(3)) == math.inf
    assert distance(torch.zeros(0), torch.zeros(0)) == 0


def test_float64_decides_where_float32_differs() -> None:
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torchs = truth.float() + 1e-3
    assert compare([truth.float()], [torchs], lambda: [truth]).judged
    assert compare([truth.float() - 2e-3], [torchs], lambda: [truth]).agrees
    far = compare([truth.float() + 1e-1], [torchs], lambda: [truth])
    assert not far.agrees and "off float64" in far.why
    assert not compare([truth.float() + 1e-1], [truth.float()], None).agrees


def test_another_dtype_shape_or_number_of_results_is_no_agreement() -> None:
    x = torch.ones(2)
    assert not compare([x.double()], [x], None).agrees
    assert not compare([x], [x, x], None).agrees


def test_one_far_element_among_many_that_are_as_close_as_torchs_is_agreed() -> None:
    truth = torch.linspace(1, 2, 1000, dtype=torch.float64)
    torchs = truth.float() + 1e-3
    ours = truth.float() - 1e-3
    ours[7] += 1e-2
    assert compare([ours], [torchs], lambda: [truth]).agrees
    assert not compare([ours - 2e-3], [torchs], lambda: [truth]).agrees


def trial(mine: float, torchs: float) -> Trial:
    """Results that are so far off float64."""
    truth = torch.linspace(1, 2, 10, dtype=torch.float64)
    ours, theirs = truth.clone(), truth.clone()
    ours[3] += mine
    theirs[3] += torchs
    return Trial([ours], [theirs], [truth])


def test_over_several_roundings_our_least_is_held_against_torchs_largest() -> None:
    chance = [trial(1e-2, 1e-6), trial(1e-2, 1e-6), trial(1e-2, 1e-2)]
    assert weigh(chance).agrees and not weigh(chance[:2]).agrees
    assert weigh([trial(1e-2, 1e-6), trial(1e-6, 1e-6)]).agrees
    wrong = [trial(1e-3, 1e-6), trial(2e-3, 2e-6), trial(1e-3, 3e-6)]
    assert not weigh(wrong).agrees and "of 3 roundings" in weigh(wrong).why


def test_to_be_as_close_as_torch_says_little_where_torch_is_far_off() -> None:
    assert not weigh([trial(1e-3, 1e-3)]).weak
    assert weigh([trial(3e-2, 1e-2)]).weak and weigh([trial(1e-1, math.nan)]).weak
    small = Trial([torch.tensor([1e-8]), torch.ones(1)], [torch.tensor([3e-8]), torch.ones(1)],
                  [torch.zeros(1, dtype=torch.float64), torch.ones(1)])  # fmt: skip
    assert weigh([small]).agrees and not weigh([small]).weak  # a gradient that is nothing


def test_results_in_float64_are_together_but_for_what_is_nothing_beside_the_largest() -> None:
    large, small = torch.ones(2).double(), torch.full((2,), 1e-18).double()
    assert together([large, -small], [large, small]) < 1e-15
    assert together([large, small], [large * 1.5, small]) > 0.1
    assert together([large * math.nan], [large]) == math.inf
    assert together([torch.zeros(0)], [torch.zeros(0)]) == 0


class Narrow(torch.nn.Module):  # type: ignore[misc]
    """A model with parts that are float32 by name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4, 8))
        self.held = torch.rand(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(x, -1, dtype=torch.float32) * self.held
        x = x + torch.full((4,), 1 / 3, dtype=torch.float32) + torch.zeros(4)
        offs = torch.tensor([2, 2, 6], dtype=torch.int32)
        found: torch.Tensor = torch.ops.aten._grouped_mm(x, self.weight, offs)
        return found


def test_a_model_that_says_float32_is_computed_in_float64_with_its_gradients() -> None:
    model = Narrow().double()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    with widened():
        found = model(x)
        found.sum().backward()
    assert torch.get_default_dtype() is torch.float32
    held = (torch.softmax(x, -1) * model.held.double() + 1 / 3).detach()
    spans = ((0, 2), (2, 2), (2, 6))
    rows = [held[a:b] @ model.weight[i] for i, (a, b) in enumerate(spans)]
    torch.testing.assert_close(found, torch.cat(rows), rtol=1e-14, atol=1e-14)
    ones = torch.ones(8, dtype=torch.float64)
    wants = torch.stack([held[a:b].sum(0)[:, None] * ones for a, b in spans])
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad, wants, rtol=1e-14, atol=1e-14)
