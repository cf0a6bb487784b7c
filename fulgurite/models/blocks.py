"""Blocks of transformers that are no decoders of text: attention, a network, norms.

In: tensors by the names that Hugging Face's files have. Out: functions of vectors. A `Scope` is the
tensors under a prefix; a `Style` says what the parts of a layer are called there and whether norms
come before or after. What a file lacks is refused by name when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import fulgurite as fg

from ..errors import ArgumentError
from ..io.files import Path, Refusal, path_of, reading
from .config import activation_of
from .decoder import ACTIVATIONS
from .fields import Fields
from .weights import Folder, read_json


class Scope:
    """The tensors whose names begin with a prefix, as float32."""

    def __init__(self, tensors: Mapping[str, fg.Tensor], prefix: str = "") -> None:
        self.tensors, self.prefix = tensors, prefix

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def __getitem__(self, name: str) -> fg.Tensor:
        if name not in self:
            raise Refusal(f"it has no tensor {self.prefix + name!r}")
        return self.tensors[self.prefix + name].astype(fg.float32)

    def get(self, name: str) -> fg.Tensor | None:
        """A tensor, or None if there is none of this name."""
        return self[name] if name in self else None  # noqa: SIM401

    def within(self, prefix: str) -> Scope:
        """Those under a longer prefix."""
        return Scope(self.tensors, self.prefix + prefix)

    def linear(self, name: str, x: fg.Tensor) -> fg.Tensor:
        """x @ weight.T, plus the bias if there is one."""
        found = x @ self[f"{name}.weight"].mT
        return found + self[f"{name}.bias"] if f"{name}.bias" in self else found

    def norm(self, name: str, x: fg.Tensor, eps: float) -> fg.Tensor:
        """Layer norm, with a bias if there is one; nothing where the file has no such norm."""
        if f"{name}.weight" not in self:
            return x
        return fg.layer_norm(
            x, (x.shape[-1],), self[f"{name}.weight"], self.get(f"{name}.bias"), eps
        )


@dataclass(frozen=True)
class Style:
    """What the parts of a layer are called, and where its norms are."""

    q: str
    k: str
    v: str
    o: str
    up: str
    down: str
    norm1: str
    norm2: str
    is_pre: bool = True  # norms before attention and network, else after each sum


BERT = Style(
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "intermediate.dense", "output.dense", "attention.output.LayerNorm", "output.LayerNorm", False,
)  # fmt: skip
VIT = Style(
    "attention.attention.query", "attention.attention.key", "attention.attention.value",
    "attention.output.dense", "intermediate.dense", "output.dense", "layernorm_before",
    "layernorm_after",
)  # fmt: skip
CLIP = Style(
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "mlp.fc1",
    "mlp.fc2", "layer_norm1", "layer_norm2",
)  # fmt: skip
WHISPER = Style(
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2",
    "self_attn_layer_norm", "final_layer_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Numbers of a stack of layers."""

    layers: int
    heads: int
    eps: float
    activation: str

    @staticmethod
    def of(f: Fields, eps: str = "layer_norm_eps", start: str = "") -> Sizes:
        """Those that a configuration has."""
        names = ("num_hidden_layers", "num_attention_heads")
        if start:
            names = (f"{start}_layers", f"{start}_attention_heads")
        layers, heads = (f.whole(name, most=1 << 10) for name in names)
        act = f.first(("hidden_activation", "hidden_act", "activation_function"), "gelu")
        return Sizes(layers, heads, f.number(eps, 1e-5), activation_of(act))


def split_heads(x: fg.Tensor, heads: int) -> fg.Tensor:
    """(batch, length, width) as (batch, heads, length, size)."""
    batch, length, width = x.shape
    if width % heads:
        raise Refusal(f"vectors of {width} cannot be split for {heads} heads")
    return x.reshape(batch, length, heads, width // heads).permute(0, 2, 1, 3)


def attention(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, heads: int, mask: fg.Tensor | None = None
) -> fg.Tensor:
    """Several attentions side by side over (batch, length, width); the mask says who may look."""
    seen = fg.scaled_dot_product_attention(
        split_heads(q, heads), split_heads(k, heads), split_heads(v, heads), attn_mask=mask
    )
    return seen.permute(0, 2, 1, 3).reshape(*q.shape[:2], -1)


def layer(
    w: Scope,
    style: Style,
    sizes: Sizes,
    x: fg.Tensor,
    mask: fg.Tensor | None = None,
    between: Callable[[fg.Tensor], fg.Tensor] = lambda x: x,
) -> fg.Tensor:
    """One layer; `between` is what comes between attention and the network."""
    act, eps = ACTIVATIONS[sizes.activation], sizes.eps

    def attend(x: fg.Tensor) -> fg.Tensor:
        q, k, v = (w.linear(name, x) for name in (style.q, style.k, style.v))
        return w.linear(style.o, attention(q, k, v, sizes.heads, mask))

    def network(x: fg.Tensor) -> fg.Tensor:
        return w.linear(style.down, act(w.linear(style.up, x)))

    if style.is_pre:
        x = between(x + attend(w.norm(style.norm1, x, eps)))
        return x + network(w.norm(style.norm2, x, eps))
    x = between(w.norm(style.norm1, x + attend(x), eps))
    return w.norm(style.norm2, x + network(x), eps)


def patches(image: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor | None) -> fg.Tensor:
    """Images (batch, channels, height, width) in squares, each as a vector: (batch, squares, n)."""
    size = weight.shape[-1]
    if image.ndim != 4 or image.shape[2] % size or image.shape[3] % size:
        raise ArgumentError(
            f"images of {image.shape} cannot be cut into squares of {size}",
            "give (batch, channels, height, width) in whole squares",
        )
    found: fg.Tensor = fg.nn.functional.conv2d(image, weight, bias, stride=size)
    return found.reshape(*found.shape[:2], -1).mT


def opened(path: Path) -> tuple[Fields, Folder]:
    """The configuration and the tensors of a folder."""
    folder = path_of(path)
    name = os.path.join(folder, "config.json")
    data = read_json(name)
    return reading(name, "a config.json", lambda _: Fields(data)), Folder(folder)
