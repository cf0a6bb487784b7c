"""Tests of models both ways: layers by namesake, exported programs, tensors and state dicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fulgurite as fg
from fulgurite.cli import main
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
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Residual().eval(), (torch.randn(3, 4),)), path)
    assert main(["run", str(path), "--check", "torch", "--time", "2"]) == 0
    shown = capsys.readouterr().out
    assert "output_0: float32[3, 4]" in shown and "fine" in shown


def value_of(x: Any) -> Any:
    return fg.Tensor(x.numpy().copy())


def test_a_layer_at_two_places_is_one_layer_at_both_and_names_stay() -> None:
    shared = torch.nn.ReLU()
    theirs = torch.nn.Sequential(
        OrderedDict(a=torch.nn.Linear(3, 3), b=shared, c=torch.nn.Linear(3, 3), d=shared)
    )
    x = torch.randn(5, 3)
    ours = fg.from_torch(theirs)
    np.testing.assert_allclose(
        ours(value_of(x)).numpy(), theirs(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    assert ours.b is ours.d and ours.state_dict().keys() == theirs.state_dict().keys()
    back = fg.to_torch(ours)
    assert back.b is back.d
    torch.testing.assert_close(back(x), theirs(x))


def test_types_frozen_and_shared_parameters_and_modes_stay() -> None:
    first, last = [torch.nn.Linear(3, 3, bias=False) for _ in range(2)]
    theirs = torch.nn.Sequential(first, torch.nn.BatchNorm1d(3), last).double()
    theirs[2].weight = theirs[0].weight
    theirs[1].requires_grad_(False).eval()
    theirs[1].running_mean.fill_(3.0)
    x = torch.randn(5, 3, dtype=torch.float64)
    ours = fg.from_torch(theirs)
    assert ours[0].weight is ours[2].weight and ours[0].weight.dtype is fg.float64
    assert [p.requires_grad for p in ours.parameters()] == [True, False, False]
    assert ours.training and not ours[1].training
    np.testing.assert_allclose(ours(value_of(x)).numpy(), theirs(x).detach().numpy(), rtol=1e-12)
    back = fg.to_torch(ours)
    assert back[0].weight is back[2].weight and back[0].weight.dtype is torch.float64
    assert not back[1].training and not back[1].weight.requires_grad


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_go_both_ways(name: str) -> None:
    theirs = getattr(torch.nn, name)(3, 4, 2, batch_first=True, bidirectional=True)
    x = torch.randn(2, 5, 3)
    back = fg.to_torch(fg.from_torch(theirs))
    torch.testing.assert_close(back(x)[0], theirs(x)[0])


def test_hooks_and_settings_that_we_lack_are_no_namesakes() -> None:
    hooked = torch.nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, args, result: result * 100)
    for module in (hooked, torch.nn.Embedding(5, 3, max_norm=0.1)):
        with pytest.raises(ArgumentError, match="give inputs to export it with"):
            fg.from_torch(torch.nn.Sequential(module))
    x = torch.randn(2, 3)
    ours = fg.from_torch(hooked, x)
    np.testing.assert_allclose(
        ours(value_of(x)).numpy(), hooked(x).detach().numpy(), rtol=1e-4, atol=1e-4
    )


def test_settings_kept_under_another_name_are_taken_over_and_unreadable_ones_refused() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    ours = fg.from_torch(torch.nn.PairwiseDistance(1.0))
    want = torch.nn.PairwiseDistance(1.0)(a, b)
    np.testing.assert_allclose(ours(value_of(a), value_of(b)).numpy(), want.numpy(), rtol=1e-4)
    torch.testing.assert_close(fg.to_torch(ours)(a, b), want)
    assert fg.to_torch(fg.nn.MSELoss(reduction="sum")).reduction == "sum"
    unlike = fg.nn.Transformer(8, 2, 1, 1, 16, activation="gelu")  # torch's own would have a relu
    with pytest.raises(ArgumentError, match="without a namesake"):
        fg.to_torch(unlike)


class Keywords(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Embedding(7, 3)
        self.out = torch.nn.Linear(3, 7, bias=False).bfloat16()
        self.register_buffer("calls", torch.zeros(()))
        self.lower = torch.arange(3.0)

    def forward(self, x: Any, i: Any, n: int, *, a: Any, b: Any, c: Any = None) -> Any:
        self.calls.add_(1)
        x.add_(1)
        y = (x * n + self.into(i) + self.lower.to(x.dtype)) * a["p"] - a["q"] - b
        return {"y": y, "z": self.out(y.bfloat16()), "calls": self.calls * 1}


def test_arguments_of_a_program_are_taken_by_name_and_checked() -> None:
    theirs, x, i = Keywords(), torch.randn(2, 3), torch.tensor([1, 2])
    named = {"a": {"q": torch.rand(3), "p": torch.rand(3)}, "b": torch.rand(3)}
    ours = fg.from_torch(theirs, x.clone(), i, 2, **named, c=None)
    mine = {"p": value_of(named["a"]["p"]), "q": value_of(named["a"]["q"])}
    ours_x, b = value_of(x), value_of(named["b"])
    found = ours(ours_x, value_of(i), c=None, b=b, a=mine, n=2)
    want = theirs(x, i, 2, **named)
    np.testing.assert_allclose(found["y"].numpy(), want["y"].detach().numpy(), rtol=1e-4)
    torch.testing.assert_close(fg.to_torch(found["z"]), want["z"].detach(), rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(ours_x.numpy(), x.numpy(), rtol=1e-6)  # both wrote to it
    assert ours.calls.item() == 1
    cases: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: ours(ours_x, value_of(i), 3, a=mine, b=b, c=None),
            "n is 3; it was exported",
        ),
        (lambda: ours(ours_x, value_of(i), 2, a=mine, c=None), "not the arguments"),
        (lambda: ours(ours_x, value_of(i), 2, b, a=mine, b=b, c=None), "not the arguments"),
        (lambda: ours(ours_x.astype("float64"), value_of(i), 2, a=mine, b=b, c=None), "is float64"),
        (lambda: ours(ours_x, 1, 2, a=mine, b=b, c=None), "give a tensor"),
    ]
    for wrong, text in cases:
        with pytest.raises(ArgumentError, match=text):
            wrong()


class Tied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Embedding(5, 3)
        self.out = torch.nn.Linear(3, 5, bias=False)
        self.out.weight = self.into.weight

    def forward(self, i: Any, n: int) -> Any:
        return self.out(self.into(i)) * n, i.shape[0] * n


def test_a_program_with_shared_weights_and_numbers_that_vary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, path = Tied(), str(tmp_path / "tied.pt2")
    many = torch.export.Dim.DYNAMIC
    torch.export.save(
        torch.export.export(
            theirs, (torch.tensor([1, 2]), 2), dynamic_shapes={"i": {0: many}, "n": many}
        ),
        path,
    )
    ours, i = fg.from_torch(path), torch.tensor([0, 4, 2])
    assert len(list(ours.parameters())) == 1
    found, size = ours(value_of(i), 4)
    np.testing.assert_allclose(found.numpy(), theirs(i, 4)[0].detach().numpy(), rtol=1e-4)
    assert size == 12
    assert main(["run", path, "--check", "torch", "--input", "n=7", "--input", "i=rand:9"]) == 0
    assert "fine" in capsys.readouterr().out


def test_the_command_tells_of_files_that_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(b"nonsense")
    for path, text in ((bad, "cannot be read"), (tmp_path / "none.pt2", "is no file")):
        assert main(["run", str(path)]) == 1
        assert text in capsys.readouterr().err


def test_tensors_without_values_of_ours_are_refused_and_empty_ones_are_not() -> None:
    for odd in (torch.randn(2, 2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(ArgumentError, match="a tensor of torch is"):
            fg.from_torch(odd)
    negative = torch.randn(3, dtype=torch.complex64).conj().imag
    for x in (torch.zeros(0, 3), negative, torch.tensor(2.0)):
        assert torch.equal(fg.to_torch(fg.from_torch(x)), x)


def test_an_exported_program_reads_the_memory_of_what_a_view_is_of() -> None:
    class Strided(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return (x * 2)[:3, 1:3].unsqueeze(1).as_strided((2, 2), (4, 3)) + 1

    x = torch.randn(6, 8)
    found = fg.from_torch(Strided(), x)(fg.Tensor(x.numpy())).numpy()
    np.testing.assert_allclose(found, Strided()(x).numpy(), rtol=1e-6)


def test_memory_that_an_exported_program_reads_as_other_elements_is_an_error() -> None:
    class Conjugates(torch.nn.Module):  # type: ignore[misc]
        def forward(self, z: Any) -> Any:
            return (z * 2).conj().as_strided((2,), (3,)) + 0

    with pytest.raises(ArgumentError, match="reads memory as other elements"):
        fg.from_torch(Conjugates(), torch.randn(2, 3, dtype=torch.complex64))


def test_an_exported_operator_that_torch_decomposes_wrongly_is_right() -> None:
    class Margins(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, labels: Any) -> Any:
            return torch.nn.functional.multilabel_margin_loss(x, labels, reduction="none")

    x, labels = torch.randn(2, 5), torch.tensor([[1, 3, -1, 0, 0], [3, 0, 1, 2, 4]])
    program = fg.from_torch(torch.export.export(Margins(), (x, labels)))
    found = program(fg.Tensor(x.numpy()), fg.Tensor(labels.numpy())).numpy()
    np.testing.assert_allclose(found, Margins()(x, labels).numpy(), rtol=1e-5)
