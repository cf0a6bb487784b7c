"""Decoding with a key-value cache, token by token, beside torch eager.

Run `python bench/decode.py [--peers PYTHON]`. A work is a GPT that is given so many tokens one
after the other, each of which joins the caches and looks back; what is timed is all of them, and
the value of each token's logits is taken to the host as sampling does. Ours in three ways: the
place in the caches as a bound variable under `fg.jit`, as an array under `fg.jit`, and as a bound
variable in plain lazy code. The logits of the last token are compared with NumPy's forward pass in
float64.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.harness import Load, Work, run_works
from bench.models import GPT, Array, Params
from bench.systems import numpy_ops

TOKENS = 128
MODELS = {
    "small": GPT(layers=2, width=128, heads=4, length=272, batch=1, vocabulary=97),
    "middle": GPT(layers=6, width=384, heads=6, length=272, batch=1, vocabulary=97),
}
TITLES = {name: f"GPT {m.layers}x{m.width}, window {m.length}: {TOKENS} tokens"
          for name, m in MODELS.items()}  # fmt: skip
GOALS: dict[str, float | None] = {"small": 1.0, "middle": 1.0}
Decode = Callable[[], Any]


def tokens(model: GPT) -> list[int]:
    """What is given, drawn from a seed."""
    return [int(t) for t in model.tokens()[0][0][:TOKENS]]


def weights(model: GPT) -> Params:
    """Parameters, and those of each layer by their own names."""
    p = model.initial()
    layers = [{k.split(".")[1]: v for k, v in p.items() if k.startswith(f"{i}.")}
              for i in range(model.layers)]  # fmt: skip
    return {**{k: v for k, v in p.items() if "." not in k}, "layers": layers}


def check(model: GPT) -> Callable[[Any], None]:
    """A comparison of the last logits with those of a whole pass."""

    def compare(got: Any) -> None:
        short = GPT(model.layers, model.width, model.heads, TOKENS, 1, model.vocabulary)
        p = {name: value.astype(np.float64) for name, value in model.initial().items()}
        p["wpe"] = p["wpe"][:TOKENS]
        want = short.logits(numpy_ops(), p, np.array([tokens(model)]))[0, -1]
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-3, atol=1e-4)

    return compare


def our_step(model: GPT, p: Params, caches: list[Any], token: Any, at: Any) -> Any:
    """Logits after one token, by our functions."""
    import fulgurite as fg

    heads, size = model.heads, model.width
    z = p["wte"][token] + p["wpe"][at]
    mask = fg.arange(model.length) <= at
    for q, cache in zip(p["layers"], caches, strict=True):
        n = fg.layer_norm(z, (size,), q["gain1"], q["bias1"]) @ q["qkv"] + q["qkv_bias"]
        query, key, value = fg.unstack(n.reshape(3, heads, -1))
        cache[0, :, at], cache[1, :, at] = key, value
        seen = fg.scaled_dot_product_attention(query[:, None], cache[0], cache[1], attn_mask=mask)
        z = z + seen.reshape(size) @ q["proj"] + q["proj_bias"]
        n = fg.layer_norm(z, (size,), q["gain2"], q["bias2"]) @ q["up"] + q["up_bias"]
        z = z + fg.gelu(n, approximate="tanh") @ q["down"] + q["down_bias"]
    return fg.layer_norm(z, (size,), p["gain"], p["bias"]) @ p["head"]


def ours(how: str) -> Load:
    """Ours: the place is a variable ("variable", "lazy") or an array ("array")."""

    def load() -> Callable[[str], Work]:
        os.environ["FULGURITE_DEVICE"] = "cpu"
        import fulgurite as fg

        def prepare(name: str) -> Work:
            model = MODELS[name]
            p = fg.tree.map(fg.Tensor, weights(model))
            place = fg.Var("place", 0, model.length - 1)
            shape = (2, model.heads, model.length, model.width // model.heads)
            caches = [fg.Tensor(np.zeros(shape, np.float32)) for _ in range(model.layers)]
            given = tokens(model)

            def step(p: Params, caches: list[Any], token: Any, at: Any) -> Any:
                return our_step(model, p, caches, token, at)

            run = step if how == "lazy" else fg.jit(step)

            def decode() -> Any:
                for i, token in enumerate(given):
                    at = np.array(i, np.int32) if how == "array" else place.bind(i)
                    if how == "lazy":
                        logits = run(p, caches, fg.Tensor(np.array(token, np.int32)), at)
                        fg.realize(logits, *caches)
                    else:
                        logits = run(p, caches, np.array(token, np.int32), at)
                    found = logits.numpy()
                return found

            return Work(decode, check(model))

        return prepare

    return load


def torch_load() -> Callable[[str], Work]:
    """torch, op by op."""
    import torch
    from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: tensors(v) for k, v in value.items()}
        return [tensors(v) for v in value] if isinstance(value, list) else torch.tensor(value)

    def prepare(name: str) -> Work:
        model = MODELS[name]
        p, size, heads = tensors(weights(model)), model.width, model.heads
        shape = (2, heads, model.length, size // heads)
        caches = [torch.zeros(shape) for _ in range(model.layers)]
        given = tokens(model)

        def step(token: int, at: int) -> Any:
            z = p["wte"][token] + p["wpe"][at]
            for q, cache in zip(p["layers"], caches, strict=True):
                n = layer_norm(z, (size,), q["gain1"], q["bias1"]) @ q["qkv"] + q["qkv_bias"]
                query, key, value = n.view(3, heads, -1).unbind()
                cache[0, :, at], cache[1, :, at] = key, value
                now = cache[:, :, : at + 1]
                seen = scaled_dot_product_attention(query[:, None], now[0], now[1])
                z = z + seen.reshape(size) @ q["proj"] + q["proj_bias"]
                n = layer_norm(z, (size,), q["gain2"], q["bias2"]) @ q["up"] + q["up_bias"]
                z = z + gelu(n, approximate="tanh") @ q["down"] + q["down_bias"]
            return layer_norm(z, (size,), p["gain"], p["bias"]) @ p["head"]

        def decode() -> Array:
            with torch.inference_mode():
                for at, token in enumerate(given):
                    found: Array = step(token, at).numpy()
            return found

        return Work(decode, check(model))

    return prepare


if __name__ == "__main__":
    systems: dict[str, Load] = {
        "ours": ours("variable"), "ours, array": ours("array"), "ours, lazy": ours("lazy"),
        "torch": torch_load,
    }  # fmt: skip
    run_works(__doc__, __file__, systems, TITLES, GOALS)
