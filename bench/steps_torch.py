"""The models of `bench/steps.py` in torch, with the same names of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.steps import Size


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, added to what comes in."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inner != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, 4 * width, 1, stride=stride, bias=False),
                nn.BatchNorm2d(4 * width),
            )

    def forward(self, x: Any) -> Any:
        """The features after the block."""
        same = x if self.downsample is None else self.downsample(x)
        h = functional.relu(self.bn1(self.conv1(x)))
        h = functional.relu(self.bn2(self.conv2(h)))
        return functional.relu(self.bn3(self.conv3(h)) + same)


class ResNet50(nn.Module):
    """Bottlenecks in four groups."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, size.width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(size.width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inner = size.width
        for number, count in enumerate((3, 4, 6, 3)):
            width, blocks = size.width << number, []
            for place in range(min(count, size.layers)):
                blocks.append(Bottleneck(inner, width, 2 if number and not place else 1))
                inner = 4 * width
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inner, size.classes)

    def forward(self, x: Any) -> Any:
        """Logits of the classes."""
        h = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            h = getattr(self, f"layer{number}")(h)
        return self.fc(h.mean((2, 3)))


class Block(nn.Module):
    """Attention and a small network, each added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """The stream after the block."""
        batch, length, width = x.shape
        parts = self.attn(self.ln_1(x)).reshape(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.permute(0, 2, 1, 3).reshape(batch, length, width))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2 with its output matrix tied to the embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wte = nn.Embedding(size.classes, size.width)
        self.wpe = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList([Block(size.width) for _ in range(size.layers)])
        self.ln_f = nn.LayerNorm(size.width)

    def forward(self, x: Any) -> Any:
        """Logits for every place."""
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return functional.linear(self.ln_f(h), self.wte.weight)


def torch_model(name: str, size: Size) -> torch.nn.Module:
    """A model by its name."""
    return ResNet50(size) if name == "resnet50" else GPT2(size)
