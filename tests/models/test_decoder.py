"""Decoders of every architecture against logits that `transformers` computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from fulgurite.models import load

from .samples import HERE, golden, golden_folder

IDS = np.array([[5, 17, 3, 88, 41, 9, 60, 12, 77, 30, 2, 55]], np.int32)


@pytest.mark.device("reference")
@pytest.mark.parametrize("name", golden())
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = load(golden_folder(golden()[name], tmp_path))
    wanted = np.load(HERE / "golden.npz")[name.replace(" ", "_")]
    with fg.no_grad():
        got = model.decoder(fg.Tensor(IDS))[0, -3:].numpy()
    assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.device("none")
def test_texts_beyond_learned_places_are_errors(tmp_path: Path) -> None:
    model = load(golden_folder(golden()["gpt2"], tmp_path / "gpt2"))
    with pytest.raises(ArgumentError, match="256 places"):
        model.decoder(fg.Tensor(np.zeros((1, 257), np.int32)))
