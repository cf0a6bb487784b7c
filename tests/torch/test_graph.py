"""Tests of graphs: segments, torch's operators between them, and what leaves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fulgurite.torch as fgt
from fulgurite.torch.graph import watching
from fulgurite.torch.lower import LoweringError
from fulgurite.torch.segment import Segment
from fulgurite.torch.table import TABLE


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


@torch.library.custom_op("fulgurite_tests::turned", mutates_args=())  # type: ignore[untyped-decorator]
def turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().contiguous().t()


@turned.register_fake  # type: ignore[untyped-decorator]
def _turned(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("fulgurite_tests::longer", mutates_args=())  # type: ignore[untyped-decorator]
def longer(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone()


@longer.register_fake  # type: ignore[untyped-decorator]
def _longer(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_result_of_torchs_in_other_memory_than_promised_is_read_as_it_is() -> None:
    x, add = torch.randn(4, 6), torch.arange(24.0).reshape(4, 6)
    with pytest.warns(fgt.FallbackWarning, match=r"fulgurite_tests::turned\.default"):
        found = compiled(lambda x: turned(x) + add)(x)
    assert torch.equal(found, x * 2 + add)
    assert "torch ran fulgurite_tests::turned.default (1)" in str(fgt.report())


@pytest.mark.filterwarnings("ignore::fulgurite.torch.FallbackWarning")
def test_a_result_of_another_shape_than_promised_is_an_error_that_names_the_operator() -> None:
    with pytest.raises(LoweringError, match="fulgurite_tests::longer"):
        compiled(lambda x: longer(x) + 1)(torch.randn(4, 6))


def divided(use: Any, x: Any) -> Any:
    return x * (1 // 0)


def shortened(use: Any, x: Any) -> Any:
    return x[:1]


@pytest.mark.parametrize("wrong", [divided, shortened])
def test_an_operator_whose_lowering_is_at_fault_is_torchs_with_a_warning(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLE, "sinh.default", wrong)
    x = torch.randn(4, 6)
    with pytest.warns(fgt.FallbackWarning, match=r"sinh\.default .*its lowering failed"):
        found = compiled(lambda x: x.sinh() * 3)(x)
    torch.testing.assert_close(found, x.sinh() * 3)


def scaled(x: Any, n: Any) -> Any:
    k = n.item()
    return x * k + k, torch.zeros(k, 3) + x[:k, :3]


def chosen(x: Any, n: Any) -> Any:
    return (x[x > 0] * 2).exp().sum() + x.sin(), torch.nonzero(x > n) * 2


def spread(x: Any, n: Any) -> Any:
    return torch.repeat_interleave(x, torch.stack([n, n * 0, n, n]), dim=0).exp() * x.sum()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [scaled, chosen, spread])
@pytest.mark.filterwarnings("ignore::fulgurite.torch.FallbackWarning")
def test_sizes_and_numbers_that_the_data_decide_are_torchs(function: Any, dynamic: Any) -> None:
    x = torch.randn(4, 6)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        call = torch.compile(function, backend="fulgurite", dynamic=dynamic, fullgraph=True)
        for n in (3, 2, 4):
            ours, right = call(mine, torch.tensor(n)), function(theirs, torch.tensor(n))
            ours, right = [r if isinstance(r, tuple) else (r,) for r in (ours, right)]
            for a, b in zip(ours, right, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            (ours[0].sum() * n).backward()
            (right[0].sum() * n).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_a_higher_order_operator_that_torch_runs_is_told_of() -> None:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    with pytest.warns(fgt.FallbackWarning, match="higher_order::cond"):
        assert torch.equal(compiled(function)(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore::fulgurite.torch.FallbackWarning")
def test_tensors_without_memory_are_torchs() -> None:
    for size in ((), (3,)):
        found = compiled(lambda x: (x + 1).sum() * x)(torch.ones(size, device="meta"))
        assert found.is_meta and found.shape == size
    assert fgt.report().eager["add.Tensor"] == 2


def parts(x: Any) -> Any:
    b, t, _ = x.shape
    return x[:, 1:], x[:, t // 2 :].transpose(0, 1), x * 2, x.view(b, -1).split(t, 1)[1]


def parts_of_a_result(x: Any) -> Any:
    y, (b, t, _) = x.exp(), x.shape
    return y[:, 1:], y.view(b, -1).split(t, 1)[1], y.detach(), y.permute(2, 0, 1)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("function", [parts, parts_of_a_result])
def test_results_that_are_views_are_views_of_the_same_memory(
    function: Any, learned: bool, dynamic: bool
) -> None:
    call = torch.compile(function, backend="fulgurite", dynamic=dynamic)
    for size in ((2, 4, 6), (3, 5, 6), (4, 6, 2)):
        mine = torch.randn(size, requires_grad=learned)
        theirs = mine.detach().clone().requires_grad_(learned)
        ours, right = call(mine), function(theirs)
        for a, b in zip(ours, right, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
        if learned:
            sum([(r * r).sum() for r in ours if r.requires_grad]).backward()
            sum([(r * r).sum() for r in right if r.requires_grad]).backward()
            torch.testing.assert_close(mine.grad, theirs.grad)
    if not learned:
        ours[0].zero_()
        right[0].zero_()
        for a, b in zip(ours, right, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_view_that_is_written_to_is_given_as_it_is_beside_another_of_its_tensor(
    dynamic: bool,
) -> None:
    def function(a: Any, b: Any) -> Any:
        return a.mul_(2), b + 1, a

    call = torch.compile(function, backend="fulgurite", dynamic=dynamic)
    for rows in (8, 10, 12):
        found = []
        for run in (call, function):
            whole = torch.arange(rows * 9.0).view(rows, 9)
            first, *rest = run(whole[::2, 1:4], whole[0].expand(3, 9))
            first.add_(100)  # in the memory of the whole
            found.append([first, *rest, whole])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride()
            assert ours.storage_offset() == theirs.storage_offset()


def test_random_numbers_of_an_empty_tensor_are_none() -> None:
    def function(x: Any) -> Any:
        return torch.bernoulli(x), torch.randint_like(x, 10), torch.rand_like(x), x + 1

    found = compiled(function)(torch.ones(0, 3))
    assert [tuple(f.shape) for f in found] == [(0, 3)] * 4
