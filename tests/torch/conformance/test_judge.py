"""Tests of the judge: who agrees with whom, and who decides."""

from __future__ import annotations

import math

import pytest
import torch

from fulgurite.torch.conformance.judge import Verdict, compare, distance
from fulgurite.torch.conformance.runner import _again

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


def test_a_difference_counts_if_it_comes_back_with_another_input() -> None:
    first, given = Verdict(False, 1e-2, "off", True), {"": torch.ones(3)}
    verdicts = [Verdict(True, 0.0), Verdict(True, 0.0), Verdict(True, 0.0), Verdict(False, 1.0)]
    assert _again(first, given, lambda other: verdicts.pop(0)).agrees
    assert _again(first, given, lambda other: verdicts.pop(0)) is first
