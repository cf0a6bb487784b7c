"""The models and optimisers of `bench/steps.py` in JAX, as its users write them for a GPU.

Weights have the same names; images and kernels have channels last. Master weights, momenta and
statistics are float32; the stream between layers, weights where they are read and gradients of
activations are bfloat16 (torch's autocast keeps the stream of a GPT in float32). Attention is
cuDNN's (`jax.nn.dot_product_attention`). One jitted step, its state donated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.steps import Size

Weights = dict[str, Any]
HALF = jnp.bfloat16


def linear(p: Weights, name: str, x: Any) -> Any:
    """A product with torch's layout of weights, and a bias."""
    return x @ p[f"{name}.weight"].astype(HALF).T + p[f"{name}.bias"].astype(HALF)


def cross_entropy(logits: Any, y: Any) -> Any:
    """Its mean, in float32."""
    logits = logits.astype(jnp.float32)
    right = jnp.take_along_axis(logits, y[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - right).mean()


# --- ResNet-50 -----------------------------------------------------------------------------------


def convolve(p: Weights, name: str, x: Any, stride: int = 1) -> Any:
    """A convolution of as many places around as its kernel reaches."""
    kernel = p[f"{name}.weight"].astype(HALF)
    around = [(n // 2, n // 2) for n in kernel.shape[:2]]
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(p: Weights, name: str, x: Any, new: Weights) -> Any:
    """Of the batch's own statistics, with `new` running ones."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    var = jnp.maximum((wide * wide).mean((0, 1, 2)) - mean * mean, 0)
    count = x.size // x.shape[-1]
    for key, found in {"running_mean": mean, "running_var": var * (count / (count - 1))}.items():
        new[f"{name}.{key}"] = 0.9 * p[f"{name}.{key}"] + 0.1 * found
    scale = jax.lax.rsqrt(var + 1e-5) * p[f"{name}.weight"]
    return ((wide - mean) * scale + p[f"{name}.bias"]).astype(HALF)


def bottleneck(p: Weights, name: str, x: Any, stride: int, new: Weights) -> Any:
    """1 x 1, 3 x 3 and 1 x 1 convolutions, added to what comes in."""
    same = x
    if f"{name}.downsample.0.weight" in p:
        same = convolve(p, f"{name}.downsample.0", x, stride)
        same = batch_norm(p, f"{name}.downsample.1", same, new)
    h = x
    for number, step in ((1, 1), (2, stride), (3, 1)):
        h = batch_norm(p, f"{name}.bn{number}", convolve(p, f"{name}.conv{number}", h, step), new)
        h = jax.nn.relu(h if number < 3 else h + same)
    return h


def resnet50(p: Weights, x: Any, y: Any, size: Size) -> tuple[Any, Weights]:
    """The loss, and running statistics."""
    new: Weights = {}
    h = jax.nn.relu(batch_norm(p, "bn1", convolve(p, "conv1", x.astype(HALF), 2), new))
    around = ((0, 0), (1, 1), (1, 1), (0, 0))
    h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
    for group, count in enumerate((3, 4, 6, 3)):
        for place in range(min(count, size.layers)):
            stride = 2 if group and not place else 1
            h = bottleneck(p, f"layer{group + 1}.{place}", h, stride, new)
    return cross_entropy(linear(p, "fc", h.mean((1, 2))), y), new


# --- GPT-2 ---------------------------------------------------------------------------------------


def layer_norm(p: Weights, name: str, x: Any) -> Any:
    """Of the last axis, in float32."""
    wide = x.astype(jnp.float32)
    mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    normal = (wide - mean) * jax.lax.rsqrt(var + 1e-5)
    return (normal * p[f"{name}.weight"] + p[f"{name}.bias"]).astype(HALF)


def block(p: Weights, name: str, x: Any) -> Any:
    """Attention and a small network, each added to what comes in."""
    batch, length, width = x.shape
    parts = linear(p, f"{name}.attn", layer_norm(p, f"{name}.ln_1", x))
    q, k, v = jnp.moveaxis(parts.reshape(batch, length, 3, max(1, width // 64), -1), 2, 0)
    how: Any = "cudnn" if jax.default_backend() == "gpu" else "xla"
    seen = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=how)
    x = x + linear(p, f"{name}.proj", seen.reshape(batch, length, width))
    h = jax.nn.gelu(linear(p, f"{name}.fc", layer_norm(p, f"{name}.ln_2", x)), approximate=True)
    return x + linear(p, f"{name}.out", h)


def gpt2(p: Weights, x: Any, y: Any, size: Size) -> tuple[Any, Weights]:
    """The loss; no statistics."""
    table = p["wte.weight"].astype(HALF)
    h = table[x] + p["wpe.weight"][: x.shape[1]].astype(HALF)
    for number in range(size.layers):
        h = block(p, f"blocks.{number}", h)
    return cross_entropy(layer_norm(p, "ln_f", h) @ table.T, y), {}


# --- a step --------------------------------------------------------------------------------------

MODELS: dict[str, Callable[..., tuple[Any, Weights]]] = {"resnet50": resnet50, "gpt2": gpt2}
STATISTICS = ("running_mean", "running_var")


def jax_array(given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A kernel with its channels last, the rest as it is."""
    return given.transpose(2, 3, 1, 0) if given.ndim == 4 else given


def begin(given: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Any, ...]:
    """Weights, statistics, two momenta and the count of steps."""
    named = {k: jnp.asarray(jax_array(v)) for k, v in given.items() if "num_batches" not in k}
    fixed = {k: v for k, v in named.items() if k.endswith(STATISTICS)}
    p = {k: v for k, v in named.items() if k not in fixed}
    first, second = [jax.tree.map(jnp.zeros_like, p) for _ in range(2)]
    return p, fixed, first, second, jnp.zeros((), jnp.int32)


def stepping(name: str, size: Size, rate: float) -> Callable[..., Any]:
    """A jitted step: state and a batch to a new state and the loss."""

    def sgd(p: Any, g: Any, m: Any, v: Any, count: Any) -> tuple[Any, Any, Any]:
        m = 0.9 * m + g + 1e-4 * p
        return p - rate * m, m, v

    def adamw(p: Any, g: Any, m: Any, v: Any, count: Any) -> tuple[Any, Any, Any]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        way = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
        return p * (1 - rate * 0.1) - rate * way, m, v

    update = sgd if name == "resnet50" else adamw

    def step(state: tuple[Any, ...], x: Any, y: Any) -> tuple[tuple[Any, ...], Any]:
        p, fixed, first, second, count = state

        def loss_of(p: Weights) -> tuple[Any, Weights]:
            return MODELS[name](p | fixed, x, y, size)

        (loss, fixed), g = jax.value_and_grad(loss_of, has_aux=True)(p)
        found = {k: update(p[k], g[k], first[k], second[k], count + 1.0) for k in p}
        p, first, second = ({k: parts[i] for k, parts in found.items()} for i in range(3))
        return (p, fixed, first, second, count + 1), loss

    jitted: Callable[..., Any] = jax.jit(step, donate_argnums=0)
    return jitted
