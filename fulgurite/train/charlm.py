"""A character model of Python's documentation: a small GPT, trained in a minute or so.

In: the standard library's own text, paragraph by paragraph, each once. Out: a model that writes
something like it. Every fifth run of paragraphs is held out, so no held-out paragraph is in the
training text; the result is the mean surprise, in nats, over every held-out character, each seen
with at least half a window of text before it. What was chosen (the number of steps) was chosen by
`Rehearsal`, which knows the training text alone: `bench/rehearsal.py`.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..data import LETTERS, DataLoader, Windows, decoded, documentation, encoded
from ..io import save_safetensors
from .tasks import Task

RUN = 10  # paragraphs that stay together
WINDOW, BATCH = 64, 32
SIZE, LAYERS, HEADS = 128, 2, 4


class Block(fg.nn.Module):
    """Attention and a small network, each added to what comes in."""

    def __init__(self, size: int, heads: int) -> None:
        self.heads = heads
        self.before = fg.nn.LayerNorm(size)
        self.qkv = fg.nn.Linear(size, 3 * size, bias=False)
        self.out = fg.nn.Linear(size, size, bias=False)
        self.between = fg.nn.LayerNorm(size)
        self.up = fg.nn.Linear(size, 4 * size)
        self.down = fg.nn.Linear(4 * size, size)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """The same shape, (batch, length, size)."""
        batch, length, size = x.shape
        parts = self.qkv(self.before(x)).reshape(batch, length, 3, self.heads, size // self.heads)
        q, k, v = fg.unstack(parts.permute(2, 0, 3, 1, 4))
        seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.permute(0, 2, 1, 3).reshape(batch, length, size))
        found: fg.Tensor = x + self.down(fg.gelu(self.up(self.between(x)), approximate="tanh"))
        return found


class GPT(fg.nn.Module):
    """Characters in, for each of them what may come next out."""

    def __init__(self, letters: int, size: int, layers: int, heads: int, window: int) -> None:
        self.token = fg.nn.Embedding(letters, size)
        self.place = fg.nn.Embedding(window, size)
        self.blocks = fg.nn.ModuleList([Block(size, heads) for _ in range(layers)])
        self.norm = fg.nn.LayerNorm(size)
        self.head = fg.nn.Linear(size, letters, bias=False)
        with fg.no_grad():
            for table in (self.token, self.place):
                table.weight.assign(table.weight * 0.05)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """Logits, (batch, length, letters)."""
        h = self.token(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        found: fg.Tensor = self.head(self.norm(h))
        return found


def parts(text: str | None = None) -> tuple[str, str]:
    """A text (the documentation) in a training and a held-out part; no paragraph is in both."""
    whole = documentation() if text is None else text
    paragraphs = list(dict.fromkeys(whole.split("\n\n")))
    runs = [paragraphs[i : i + RUN] for i in range(0, len(paragraphs), RUN)]
    train = [p for number, run in enumerate(runs) if number % 5 != 2 for p in run]
    held = [p for number, run in enumerate(runs) if number % 5 == 2 for p in run]
    return "\n\n".join(train), "\n\n".join(held)


class CharLM(Task):
    """Python's own documentation, character by character."""

    name, steps, goal = "charlm", 500, "at most 1.9 nats a character"
    letters = 400  # of the sample

    def __init__(self, seed: int, steps: int) -> None:
        train, held = self.texts()
        self.held = encoded(held)
        self.seed = seed
        windows = Windows(encoded(train), WINDOW)
        self.loader = DataLoader(
            windows, BATCH, shuffle=True, num_workers=1, seed=seed, drop_last=True
        )
        fg.random.seed(seed)
        self.model: Any = GPT(len(LETTERS), SIZE, LAYERS, HEADS, WINDOW)
        self.optimizer = fg.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.05)
        self.schedule = fg.optim.Schedule(
            self.optimizer, fg.optim.warmup(50, fg.optim.cosine(max(1, steps - 50), 0.05))
        )

    def texts(self) -> tuple[str, str]:
        """What it learns, and what it is measured on."""
        return parts()

    @staticmethod
    def loss(model: Any, *batch: fg.Tensor) -> fg.Tensor:
        x, y = batch
        return fg.cross_entropy(model(x).reshape(-1, len(LETTERS)), y.reshape(-1))

    def result(self) -> tuple[float, str]:
        """The mean surprise over the second halves of windows that overlap by half."""
        half = WINDOW // 2
        starts = np.arange(0, len(self.held) - WINDOW - 1, half)
        windows = Windows(self.held, WINDOW)
        model = self.model

        def surprise(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
            with fg.no_grad():
                logits = model(x)[:, half:].reshape(-1, len(LETTERS))
                return fg.cross_entropy(logits, y[:, half:].reshape(-1), reduction="sum")

        measure = fg.jit(surprise)
        total, count = 0.0, 0
        for first in range(0, len(starts) - BATCH + 1, BATCH):
            x, y = windows.take(starts[first : first + BATCH])
            total += float(measure(fg.Tensor(x), fg.Tensor(y)))
            count += BATCH * half
        mean = total / count
        return mean, f"{mean:.3f} nats a character on {count:,} held-out characters"

    def export(self, folder: str) -> None:
        """Write the model as `fulgurite.models.load` reads it: a GPT-2 of characters."""
        exported(self.model, folder)

    def sample(self, temperature: float = 0.7) -> str:
        """Text that the model writes, the same for the same seed and weights."""
        random = np.random.default_rng(self.seed)
        text: list[int] = encoded("\n" * (WINDOW - 1) + "T").tolist()
        model = self.model

        def last(x: fg.Tensor) -> fg.Tensor:
            with fg.no_grad():
                found: fg.Tensor = model(x)[0, -1]
                return found

        logits = fg.jit(last)
        for _ in range(self.letters):
            x = np.array([text[-WINDOW:]], np.int32)
            scores: Array = logits(fg.Tensor(x)).numpy().astype(np.float64) / temperature
            chances = np.exp(scores - scores.max())
            text.append(int(random.choice(len(chances), p=chances / chances.sum())))
        return decoded(np.array(text[WINDOW - 1 :]))


def exported(model: Any, folder: str) -> None:
    """A folder of Hugging Face's layout: `config.json`, `tokenizer.json`, `model.safetensors`."""
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    found = {"wte.weight": weights["token.weight"], "wpe.weight": weights["place.weight"]}
    found["lm_head.weight"] = weights["head.weight"]
    names = {"before": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "between": "ln_2",
             "up": "mlp.c_fc", "down": "mlp.c_proj"}  # fmt: skip
    for name, array in weights.items():
        first, *rest = name.split(".")
        if first == "norm":
            found[f"ln_f.{rest[0]}"] = array
        elif first == "blocks":
            number, part, kind = rest
            transposed = kind == "weight" and array.ndim == 2  # GPT-2 has (inputs, outputs)
            found[f"h.{number}.{names[part]}.{kind}"] = array.T.copy() if transposed else array
    layers, size = len(model.blocks), model.token.weight.shape[1]
    config = {
        "model_type": "gpt2", "vocab_size": len(LETTERS), "n_positions": WINDOW, "n_embd": size,
        "n_layer": layers, "n_head": model.blocks[0].heads, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    }  # fmt: skip
    tokens = {letter: number for number, letter in enumerate(LETTERS)}
    each = {
        "type": "Split",
        "pattern": {"Regex": "[\\s\\S]"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": each, "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "?"},
    }  # fmt: skip
    os.makedirs(folder, exist_ok=True)
    for file, data in (("config.json", config), ("tokenizer.json", tokenizer)):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as target:
            json.dump(data, target)
    save_safetensors(found, os.path.join(folder, "model.safetensors"))


class Rehearsal(CharLM):
    """The training text alone: a fifth of it is measured on, the held-out text never read."""

    def texts(self) -> tuple[str, str]:
        return parts(parts()[0])
