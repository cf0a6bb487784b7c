"""`fg.load` and `fg.save` choose by the extension, and say what they cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError

from .samples import gguf_sample, torch_sample


def test_the_extension_says_what_a_file_is(tmp_path: Path) -> None:
    tensors = {"w": fg.ones((2, 2)), "b": fg.zeros(3)}
    for name in ("x.safetensors", "x.npz", "X.NPZ"):
        fg.save(tensors, tmp_path / name)
        found = fg.load(tmp_path / name)
        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in tensors.items()
        }
    (tmp_path / "x.pth").write_bytes(torch_sample())
    (tmp_path / "x.gguf").write_bytes(gguf_sample())
    assert fg.load(tmp_path / "x.pth")["w"].shape == (3, 4)
    assert fg.load(str(tmp_path / "x.gguf"))["plain"].shape == (2, 3)


def test_tensors_are_made_on_the_device_that_is_asked_for(tmp_path: Path) -> None:
    fg.save({"w": fg.ones(2)}, tmp_path / "x.safetensors")
    assert fg.load(tmp_path / "x.safetensors", device="reference")["w"].device == "reference"


def test_unknown_extensions_and_swapped_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no extension"):
        fg.load(tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match="can be written"):
        fg.save({}, tmp_path / "x.pt")
    with pytest.raises(ArgumentError, match="second"):
        fg.save(str(tmp_path / "x.npz"), {})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no path"):
        fg.load(3)  # type: ignore[arg-type]


def test_a_module_is_saved_by_its_state(tmp_path: Path) -> None:
    class Module:
        def state_dict(self) -> dict[str, fg.Tensor]:
            return {"w": fg.ones(2)}

    fg.save(Module(), tmp_path / "x.safetensors")
    assert list(fg.load(tmp_path / "x.safetensors")) == ["w"]
