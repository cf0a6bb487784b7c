"""Small networks, and twenty steps of training one, with or without a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite import nn, optim


class Block(nn.Module):
    """Attention and two products; without biases whose gradient is zero but for rounding."""

    def __init__(self, width: int, heads: int) -> None:
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.v = nn.Linear(width, width), nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        b, t, d = x.shape
        y = self.before(x)
        q, k, v = [f(y).reshape((b, t, self.heads, d // self.heads)).transpose(1, 2)
                   for f in (self.q, self.k, self.v)]  # fmt: skip
        seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(seen.transpose(1, 2).reshape((b, t, d)))
        return x + self.proj(fg.gelu(self.fc(self.between(x))))


class GPT(nn.Module):
    """A small language model, with dropout."""

    def __init__(self, words: int = 16, width: int = 16, blocks: int = 1, length: int = 8) -> None:
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block(width, 8) for _ in range(blocks)])
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        h = self.drop(self.words(x) + self.places(fg.arange(x.shape[1])))
        for block in self.blocks:
            h = block(h)
        return self.head(self.last(h))


class ResNet(nn.Module):
    """Convolutions with a short cut, and batch statistics."""

    def __init__(self) -> None:
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc2 = nn.Linear(8, 8)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        x = fg.relu(self.b1(self.c1(x)))
        x = fg.relu(x + self.b2(self.c2(x)))
        return self.fc2(x.mean((2, 3)))


def batch(net: str, step: int) -> tuple[Any, Any]:
    """The data of a step: the same on every rank."""
    rng = np.random.default_rng(step)
    if net == "gpt":
        words = rng.integers(0, 16, (8, 9))
        return words[:, :-1], words[:, 1:]
    return rng.standard_normal((8, 3, 6, 6)).astype(np.float32), rng.integers(0, 8, (8,))


def train(
    net: str, mesh: fg.Mesh | None = None, plan: Any = None, split: Mapping[str, int] | None = None,
    steps: int = 20,
) -> dict[str, Any]:  # fmt: skip
    """The weights after training."""
    fg.random.seed(0)
    model = GPT() if net == "gpt" else ResNet()
    if plan is not None:
        model.shard(plan)
    params = model.parameters()
    optimizer = (
        optim.AdamW(params, lr=1e-3, eps=1e-3)
        if net == "gpt"
        else optim.SGD(params, lr=0.02, momentum=0.9)
    )
    for step in range(steps):
        x, y = map(fg.Tensor, batch(net, step))
        if mesh is not None:
            x, y = (fg.shard(a, mesh, {n: d for n, d in (split or {}).items() if d < a.ndim})
                    for a in (x, y))  # fmt: skip
        found = model(x)
        loss = fg.cross_entropy(found.transpose(1, 2) if found.ndim == 3 else found, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}
