"""A language model of plain layers, whose step is priced on ranks that are not there."""

from __future__ import annotations

from .. import nn
from ..functional.array.creation import arange
from ..functional.nn.activation import gelu
from ..functional.nn.attention import scaled_dot_product_attention
from ..tensor import Tensor


class Block(nn.Module):
    """Attention, then two products."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = [f(y).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v)]
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(seen.transpose(1, 2).reshape((batch, length, width)))
        return x + self.proj(gelu(self.fc(self.norm2(x))))


class GPT(nn.Module):
    """Embeddings, blocks, and a probability for every next character."""

    def __init__(self, words: int, width: int, heads: int, blocks: int, length: int) -> None:
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.words(x) + self.places(arange(x.shape[1])))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))
