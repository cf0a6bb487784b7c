"""Tests of graphs: segments, torch's operators between them, and what leaves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fulgurite.torch as fgt
from fulgurite.torch.graph import watching
from fulgurite.torch.segment import Segment


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="fulgurite")


def test_one_value_in_two_layouts_is_two_tensors() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return y, y.t().clone(memory_format=torch.preserve_format), y.clone()

    x = torch.arange(6.0).reshape(2, 3)
    ours, theirs = compiled(function)(x), function(x)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
    ours[0].zero_()
    assert torch.equal(ours[2], theirs[2])


def test_results_that_are_inputs_or_constants_are_given_as_they_are() -> None:
    def function(x: Any, y: Any) -> Any:
        return x, torch.zeros(2), y + 1, torch.full((3,), 7)

    x, y = torch.ones(2), torch.ones(2)
    for a, b in zip(compiled(function)(x, y), function(x, y), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype


def test_torchs_operators_cut_a_graph_into_as_few_segments_as_they_must() -> None:
    def function(x: Any) -> Any:
        a = torch.linalg.qr(x * 2)[1]
        b = torch.linalg.qr(x * 3)[1]
        return (a + b) * x.sum(), x.exp()

    x = torch.randn(3, 3)
    with watching() as graphs, pytest.warns(fgt.FallbackWarning):
        ours = compiled(function)(x)
    for a, b in zip(ours, function(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    (program,) = graphs[0].programs.values()
    assert len([step for step in program.steps if isinstance(step, Segment)]) == 2


def test_complex_numbers_and_their_conjugates_pass_through() -> None:
    def function(x: Any) -> Any:
        return torch.fft.ifft(torch.fft.fft(x).conj()).abs() + x.conj().imag

    x = torch.randn(8, dtype=torch.complex64)
    ours = compiled(function)(x)
    torch.testing.assert_close(ours, function(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled(lambda x: x * 2)(x.conj()), x.conj() * 2)


def test_a_call_without_random_numbers_or_gaps_is_one_launch() -> None:
    with watching() as graphs:
        compiled(lambda x, w: torch.relu(x @ w.t()))(torch.ones(2, 3), torch.ones(4, 3))
    (program,) = graphs[0].programs.values()
    assert program.steps[0].run.__name__ == "run"  # not the slow one
