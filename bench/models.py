"""Every workload of the benchmarks, defined once, with its sizes, for us and for each peer.

GPT: causal, learned positions, untied head, pre-norm, MLP of four times the width with tanh-gelu,
plain cross-entropy, AdamW as plain arithmetic. The code is written against a small namespace of
functions (`Ops`), which each system fills with its own, so that all of them build the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

Params = dict[str, Any]


@dataclass(frozen=True)
class GPT:
    """Sizes of a GPT."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    length: int = 128
    batch: int = 4
    vocabulary: int = 1024

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter."""
        c, v = self.width, self.vocabulary
        found: dict[str, tuple[int, ...]] = {
            "wte": (v, c), "wpe": (self.length, c), "gain": (c,), "bias": (c,), "head": (c, v),
        }  # fmt: skip
        for i in range(self.layers):
            found |= {
                f"{i}.gain1": (c,), f"{i}.bias1": (c,), f"{i}.qkv": (c, 3 * c),
                f"{i}.qkv_bias": (3 * c,), f"{i}.proj": (c, c), f"{i}.proj_bias": (c,),
                f"{i}.gain2": (c,), f"{i}.bias2": (c,), f"{i}.up": (c, 4 * c),
                f"{i}.up_bias": (4 * c,), f"{i}.down": (4 * c, c), f"{i}.down_bias": (c,),
            }  # fmt: skip
        return found

    def initial(self, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """Parameters drawn from a seed."""
        random = np.random.default_rng(seed)
        values = {}
        for name, shape in self.shapes().items():
            if "bias" in name:
                value = np.zeros(shape)
            elif "gain" in name:
                value = np.ones(shape)
            else:
                value = random.normal(0, 0.02, shape)
            values[name] = value.astype(np.float32)
        return values

    def tokens(self, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Inputs and targets drawn from a seed."""
        random = np.random.default_rng(seed)
        x, y = random.integers(0, self.vocabulary, (2, self.batch, self.length))
        return x.astype(np.int32), y.astype(np.int32)

    def loss(self, o: SimpleNamespace, p: Params, x: Any, y: Any) -> Any:
        """The mean surprise at the targets."""
        b, t, c, h = self.batch, self.length, self.width, self.heads
        z = o.embedding(p["wte"], x) + p["wpe"]
        keep = o.causal(t)
        for i in range(self.layers):
            q = {k.split(".")[1]: v for k, v in p.items() if k.startswith(f"{i}.")}
            n = o.layer_norm(z, q["gain1"], q["bias1"]) @ q["qkv"] + q["qkv_bias"]
            query, key, value = (
                n[:, :, j * c : (j + 1) * c].reshape(b, t, h, c // h).permute(0, 2, 1, 3)
                for j in range(3)
            )
            scores = (query @ key.permute(0, 1, 3, 2)) * (c // h) ** -0.5
            mixed = o.softmax(o.where(keep, scores, -1e9)) @ value
            z = z + mixed.permute(0, 2, 1, 3).reshape(b, t, c) @ q["proj"] + q["proj_bias"]
            n = o.layer_norm(z, q["gain2"], q["bias2"]) @ q["up"] + q["up_bias"]
            z = z + o.gelu(n) @ q["down"] + q["down_bias"]
        logits = o.layer_norm(z, p["gain"], p["bias"]) @ p["head"]
        return o.cross_entropy(logits.reshape(b * t, self.vocabulary), y.reshape(b * t))


def adamw(p: Params, g: Params, m: Params, v: Params, step: int) -> tuple[Params, Params, Params]:
    """One step of AdamW as plain arithmetic."""
    b1, b2, rate, decay = 0.9, 0.95, 3e-4, 0.01
    m = {k: m[k] * b1 + g[k] * (1 - b1) for k in p}
    v = {k: v[k] * b2 + g[k] * g[k] * (1 - b2) for k in p}
    c1, c2 = 1 / (1 - b1**step), 1 / (1 - b2**step)
    new = {}
    for k in p:
        move = m[k] * c1 / ((v[k] * c2) ** 0.5 + 1e-8) + p[k] * decay
        new[k] = p[k] - move * rate
    return new, m, v


def our_ops() -> SimpleNamespace:
    """Fulgurite's functions."""
    import fulgurite as fg

    def causal(length: int) -> fg.Tensor:
        places = fg.arange(length)
        return places.reshape(length, 1) >= places.reshape(1, length)

    return SimpleNamespace(
        embedding=lambda table, ids: fg.take(table, ids, axis=0),
        layer_norm=lambda x, gain, bias: fg.layer_norm(x, (x.shape[-1],), gain, bias),
        softmax=lambda x: fg.softmax(x, axis=-1),
        gelu=lambda x: fg.gelu(x, approximate="tanh"),
        where=fg.where, causal=causal, cross_entropy=fg.cross_entropy,
    )  # fmt: skip


def our_step(model: GPT) -> Callable[[], list[Any]]:
    """A function that builds (and does not run) one whole training step."""
    import fulgurite as fg

    ops = our_ops()
    p = {k: fg.Tensor(v) for k, v in model.initial().items()}
    m = {k: fg.Tensor(np.zeros_like(v)) for k, v in model.initial().items()}
    v = {k: fg.Tensor(np.zeros_like(w)) for k, w in model.initial().items()}
    x, y = (fg.Tensor(a) for a in model.tokens())

    def build() -> list[Any]:
        value, g = fg.value_and_grad(lambda p: model.loss(ops, p, x, y))(p)
        new, m1, v1 = adamw(p, g, m, v, 1)
        return [value, *new.values(), *m1.values(), *v1.values()]

    return build


def tinygrad_step(model: GPT) -> Callable[[], list[Any]]:
    """The same for tinygrad."""
    from tinygrad import Tensor

    def causal(length: int) -> Tensor:
        places = Tensor.arange(length)
        return places.reshape(length, 1) >= places.reshape(1, length)

    ops = SimpleNamespace(
        embedding=lambda table, ids: table[ids],
        layer_norm=lambda x, gain, bias: x.layernorm() * gain + bias,
        softmax=lambda x: x.softmax(-1), gelu=lambda x: x.gelu(),
        where=lambda c, a, b: c.where(a, b), causal=causal,
        cross_entropy=lambda a, b: a.cross_entropy(b),
    )  # fmt: skip
    p = {k: Tensor(v).realize() for k, v in model.initial().items()}
    m = {k: Tensor.zeros(*v.shape).contiguous().realize() for k, v in p.items()}
    v = {k: Tensor.zeros(*w.shape).contiguous().realize() for k, w in p.items()}
    x, y = (Tensor(a).realize() for a in model.tokens())

    def build() -> list[Any]:
        value = model.loss(ops, p, x, y)
        g = dict(zip(p, value.gradient(*p.values()), strict=True))
        new, m1, v1 = adamw(p, g, m, v, 1)
        return [value, *new.values(), *m1.values(), *v1.values()]

    return build
