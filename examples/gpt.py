"""A GPT that is trained on Python's documentation and then writes with a key-value cache.

Run `python examples/gpt.py`. Writing is one captured plan for all positions: the place in the cache
is a variable (`fg.Var`), so token 2 and token 200 are one replay each of the same machine code; the
example counts what was compiled and says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

import fulgurite as fg
from fulgurite.cli.progress import Progress
from fulgurite.data import LETTERS, DataLoader, Windows, decoded, documentation, encoded


class Block(fg.nn.Module):
    """Attention and a small network, each added to what comes in."""

    def __init__(self, size: int, heads: int) -> None:
        self.heads = heads
        self.ln_1 = fg.nn.LayerNorm(size)
        self.attention = fg.nn.Linear(size, 3 * size)
        self.projection = fg.nn.Linear(size, size)
        self.ln_2 = fg.nn.LayerNorm(size)
        self.mlp = fg.nn.Sequential(
            fg.nn.Linear(size, 4 * size), fg.nn.GELU("tanh"), fg.nn.Linear(4 * size, size)
        )

    def forward(self, x: fg.Tensor, cache: fg.Tensor | None = None, at=None) -> fg.Tensor:
        """All places at once; or one place, which looks back into the cache and joins it."""
        batch, length, size = x.shape
        parts = self.attention(self.ln_1(x)).reshape(batch, length, 3, self.heads, -1)
        q, k, v = fg.unstack(parts.permute(2, 0, 3, 1, 4))
        if cache is None:
            seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            cache[0, :, at], cache[1, :, at] = k[0, :, 0], v[0, :, 0]
            mask = fg.arange(cache.shape[2]) <= at
            seen = fg.scaled_dot_product_attention(q, cache[0:1], cache[1:2], attn_mask=mask)
        x = x + self.projection(seen.permute(0, 2, 1, 3).reshape(batch, length, size))
        return x + self.mlp(self.ln_2(x))


class GPT(fg.nn.Module):
    """Letters in, for each of them what may come next out."""

    def __init__(self, size: int, layers: int, heads: int, window: int) -> None:
        self.size, self.heads, self.window = size, heads, window
        self.token = fg.nn.Embedding(len(LETTERS), size)
        self.position = fg.nn.Embedding(window, size)
        self.blocks = fg.nn.ModuleList([Block(size, heads) for _ in range(layers)])
        self.norm = fg.nn.LayerNorm(size)
        self.head = fg.nn.Linear(size, len(LETTERS), bias=False)

    def forward(self, x: fg.Tensor, caches: list[fg.Tensor] | None = None, at=None) -> fg.Tensor:
        """Logits for every place of x."""
        places = self.position.weight[: x.shape[1]] if at is None else self.position.weight[at]
        h = self.token(x) + places
        for number, block in enumerate(self.blocks):
            h = block(h) if caches is None else block(h, caches[number], at)
        return self.head(self.norm(h))

    @fg.jit
    def step(self, letter: np.ndarray, caches: list[fg.Tensor], at) -> fg.Tensor:
        """What may come after a letter: one plan, whose place `at` is given when it runs."""
        with fg.no_grad():
            return self(letter, caches, at)[0, 0]

    def caches(self) -> list[fg.Tensor]:
        """Room for the keys and values of a whole window, for each block."""
        shape = (2, self.heads, self.window, self.size // self.heads)
        return [fg.Tensor(np.zeros(shape, np.float32)) for _ in self.blocks]


def generate(model: GPT, prompt: str, count: int, seed: int, temperature: float = 0.7) -> str:
    """The prompt and so many letters after it."""
    place = fg.Var("place", 0, model.window - 1)
    random, caches = np.random.default_rng(seed), model.caches()
    text = encoded(prompt).tolist()
    for at in range(min(len(text) + count, model.window) - 1):
        logits = model.step(np.array([[text[at]]], np.int32), caches, place.bind(at))
        if at + 1 == len(text):
            scores = logits.numpy().astype(np.float64) / temperature
            chances = np.exp(scores - scores.max())
            text.append(int(random.choice(len(LETTERS), p=chances / chances.sum())))
    return decoded(np.array(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write, and give the number of plans that writing compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--window", type=int, default=272)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    fg.random.seed(options.seed)
    model = GPT(options.size, options.layers, 4, options.window)
    optimizer = fg.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    loader = DataLoader(Windows(encoded(documentation()), 64), 32, shuffle=True, seed=options.seed)

    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        loss = fg.cross_entropy(model(x).reshape(-1, len(LETTERS)), y.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    bar = Progress(range(options.steps), "gpt")
    for _, (x, y) in zip(bar, loader.forever(), strict=False):
        bar.note(f"loss {step(x, y).item():.4f}")
    before = fg.cache_stats()["schedule"]["misses"]
    generate(model, "The ", 1, options.seed)  # which captures and compiles
    start = time.perf_counter()
    print(generate(model, "The ", options.tokens, options.seed))
    rate = options.tokens / (time.perf_counter() - start)
    compiled = fg.cache_stats()["schedule"]["misses"] - before
    print(f"{options.tokens} tokens, {rate:.0f}/s, {compiled} plan compiled for all positions")
    return compiled


if __name__ == "__main__":
    main()
