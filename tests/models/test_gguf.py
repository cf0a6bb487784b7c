"""GGUF files of every architecture: the model of the folder that they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.io.gguf import GgufFile
from fulgurite.models import load
from fulgurite.models.gguf import from_gguf, save_gguf

from .gguf_samples import gguf_from, metadata_of
from .samples import golden, golden_folder

IDS = np.array([[5, 17, 3, 88, 41, 9, 60, 12, 77, 30, 2, 55] * 4], np.int32)
# what a file cannot say is as the models have it that are known
OTHER: dict[str, dict[str, Any]] = {
    "llama yarn": {"mscale": None, "mscale_all_dim": None},
    "gemma2": {"query_pre_attn_scalar": 16}, "gemma3": {"query_pre_attn_scalar": 16},
    "deepseek v3": {"mscale": 0.7, "mscale_all_dim": 0.7},
}  # fmt: skip


@pytest.mark.device("reference")
@pytest.mark.parametrize(
    "name, apart",
    [(name, False) for name in golden() if name != "qwen2 window"]  # files have no such windows
    + [(name, True) for name in golden() if name.startswith("deepseek")],
)
def test_a_file_is_the_model_of_its_folder(name: str, apart: bool, tmp_path: Path) -> None:
    folder = golden_folder(golden()[name], tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    for key, value in OTHER.get(name, {}).items():
        (config["rope_parameters"] if "scale" in key else config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    path = gguf_from(folder, tmp_path / "model.gguf", apart)
    with fg.no_grad():
        wanted, got = (load(one).decoder(fg.Tensor(IDS)).numpy() for one in (folder, path))
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def _file(path: Path, config: dict[str, Any], **other: Any) -> GgufFile:
    """A file with metadata and no layers."""
    embed = np.zeros((10, config["hidden_size"]), np.float32)
    tensors = {"token_embd.weight": (0, embed.shape, embed)}
    save_gguf(path, metadata_of(config, **other), tensors)
    return GgufFile(path)


@pytest.mark.device("none")
@pytest.mark.parametrize("kind, layers", [("gemma2", 46), ("gemma3", 62)])
def test_gemmas_of_27_billion_scale_scores_by_another_size(
    kind: str, layers: int, tmp_path: Path
) -> None:
    config = golden()[kind]["config"] | {"hidden_size": 168, "head_dim": 16}
    for count, size in ((layers, 168 / 4), (layers - 1, 16)):
        file = _file(tmp_path / "x.gguf", config | {"num_hidden_layers": count})
        assert from_gguf(file).scale == pytest.approx(size**-0.5)


@pytest.mark.device("none")
def test_turns_end_with_the_tokens_that_are_named_so(tmp_path: Path) -> None:
    tokens = ["<s>", "a", "<|end|>", "<end_of_turn>", "<|endoftext|>", "b"]
    other = {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 1, 3, 1, 3, 1],
        "tokenizer.ggml.eos_token_id": 4,
    }  # fmt: skip
    file = _file(tmp_path / "x.gguf", golden()["llama"]["config"], **other)
    assert from_gguf(file).eos == (4, 2)  # what is no control token may be in any text
