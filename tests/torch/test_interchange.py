"""Tests of models both ways: layers by namesake, exported programs, tensors and state dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fulgurite as fg
from fulgurite.errors import ArgumentError


class Residual(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.inner(x))


def test_layers_of_torch_become_layers_of_ours_with_their_weights() -> None:
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(16, 2), torch.nn.LayerNorm(2),
    ).eval()  # fmt: skip
    ours = fg.from_torch(theirs)
    assert isinstance(ours, fg.nn.Sequential) and isinstance(ours[0], fg.nn.Conv2d)
    x = torch.randn(2, 3, 4, 4)
    want = theirs(x).detach().numpy()
    np.testing.assert_allclose(ours(fg.Tensor(x.numpy())).numpy(), want, rtol=1e-4, atol=1e-5)
    back = fg.to_torch(ours)
    assert isinstance(back[5], torch.nn.Linear)
    torch.testing.assert_close(back(x), theirs(x))


def test_a_module_of_the_users_own_is_exported_and_can_be_trained() -> None:
    theirs = Residual().eval()
    x = torch.randn(3, 4)
    ours = fg.from_torch(theirs, x)
    np.testing.assert_allclose(
        ours(fg.Tensor(x.numpy())).numpy(), theirs(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    assert dict(ours.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    optimizer = fg.optim.SGD(ours.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = (ours(fg.Tensor(x.numpy())) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_an_exported_file_is_run_with_sizes_that_vary(tmp_path: Path) -> None:
    theirs = Residual().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        theirs, (torch.randn(3, 4),), dynamic_shapes=({0: batch},), strict=False
    )
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    ours = fg.from_torch(path)
    for size in (2, 5):
        x = torch.randn(size, 4)
        np.testing.assert_allclose(
            ours(fg.Tensor(x.numpy())).numpy(), theirs(x).detach().numpy(), rtol=1e-4, atol=1e-5
        )
    with pytest.raises(ArgumentError, match="exported with"):
        ours(fg.ones((3, 5)))


def test_a_module_without_namesakes_asks_for_inputs() -> None:
    with pytest.raises(ArgumentError, match="give inputs to export it with"):
        fg.from_torch(Residual())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_keep_their_values_and_dtypes(dtype: str) -> None:
    theirs = torch.tensor([[1, 0], [3, 4]]).to(getattr(torch, dtype))
    ours = fg.from_torch(theirs)
    assert ours.dtype.name == dtype and ours.shape == (2, 2)
    assert torch.equal(fg.to_torch(ours), theirs)


def test_state_dicts_go_both_ways() -> None:
    ours, theirs = fg.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(fg.to_torch(ours.state_dict()))
    assert np.array_equal(ours.weight.numpy(), theirs.weight.detach().numpy())
    other = fg.nn.Linear(3, 2)
    other.load_state_dict(theirs.state_dict())
    assert np.array_equal(other.weight.numpy(), ours.weight.numpy())


def test_the_command_runs_an_exported_program_and_checks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fulgurite.cli import main

    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Residual().eval(), (torch.randn(3, 4),)), path)
    assert main(["run", str(path), "--check", "torch", "--time", "2"]) == 0
    shown = capsys.readouterr().out
    assert "output_0: float32[3, 4]" in shown and "fine" in shown
