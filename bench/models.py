"""Every workload of the benchmarks, defined once, with sizes and seeds, for us and for each peer.

A workload is arrays drawn from a seed and a function of them, written against a small namespace of
functions which each system fills with its own best ones (`bench/systems.py`), so that all of them
do the same maths: softmax, layernorm, tanh-gelu with bias and residual, sum, matmul, an MLP, a GPT
(causal, learned positions, untied head, pre-norm, MLP of four times the width; AdamW as plain
arithmetic for training) and a residual block of two convolutions with batch norms in inference
form. `check` compares with the same function run by NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Params = dict[str, Any]
Compute = Callable[[SimpleNamespace, Params], Any]


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
            values[name] = random.standard_normal(shape, np.float32) * np.float32(0.02)
            values[name] += np.float32("gain" in name)
        return values

    def tokens(self, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Inputs and targets drawn from a seed."""
        random = np.random.default_rng(seed)
        x, y = random.integers(0, self.vocabulary, (2, self.batch, self.length))
        return x.astype(np.int32), y.astype(np.int32)

    def logits(self, o: SimpleNamespace, p: Params, x: Any) -> Any:
        """The forward pass."""
        b, t, c, h = self.batch, self.length, self.width, self.heads
        z = o.embedding(p["wte"], x) + p["wpe"]
        for i in range(self.layers):
            q = {k.split(".")[1]: v for k, v in p.items() if k.startswith(f"{i}.")}
            n = o.layer_norm(z, q["gain1"], q["bias1"]) @ q["qkv"] + q["qkv_bias"]
            query, key, value = (
                o.permute(n[:, :, j * c : (j + 1) * c].reshape(b, t, h, c // h), (0, 2, 1, 3))
                for j in range(3)
            )
            mixed = o.permute(o.attention(query, key, value), (0, 2, 1, 3)).reshape(b, t, c)
            z = z + mixed @ q["proj"] + q["proj_bias"]
            n = o.layer_norm(z, q["gain2"], q["bias2"]) @ q["up"] + q["up_bias"]
            z = z + o.gelu(n) @ q["down"] + q["down_bias"]
        return o.layer_norm(z, p["gain"], p["bias"]) @ p["head"]

    def loss(self, o: SimpleNamespace, p: Params, x: Any, y: Any) -> Any:
        """The mean surprise at the targets."""
        count = self.batch * self.length
        logits = self.logits(o, p, x).reshape(count, self.vocabulary)
        return o.cross_entropy(logits, y.reshape(count))


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


@dataclass(frozen=True)
class Workload:
    """Arrays by name, the same for every system, and what is computed from them."""

    title: str
    inputs: Callable[[], dict[str, Array]]
    compute: Compute

    def check(self, got: Array) -> None:
        """Raise unless a result is near the one that NumPy has in float64."""
        from bench.systems import numpy_ops

        wide = {
            name: array.astype(np.float64) if array.dtype.kind == "f" else array
            for name, array in self.inputs().items()
        }
        want = np.asarray(self.compute(numpy_ops(), wide))
        if got.shape != want.shape:
            raise ValueError(f"the result has shape {got.shape} instead of {want.shape}")
        error = float(np.max(np.abs(got - want)) / np.max(np.abs(want)))
        if not error < TOLERANCE:  # nan is wrong too
            raise ValueError(f"the result is wrong by {error:.1e}")


TOLERANCE = 1e-4  # of the largest number; a float32 sum of 1,024 products is near 1e-6


def normal(**shapes: tuple[int, ...]) -> Callable[[], dict[str, Array]]:
    """Arrays of normal numbers."""

    def draw() -> dict[str, Array]:
        random = np.random.default_rng(0)
        return {name: random.standard_normal(size, np.float32) for name, size in shapes.items()}

    return draw


def _scaled(by: float, **shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: array * np.float32(by) for name, array in normal(**shapes)().items()}


MLP_SIZES = (784, 512, 512, 10)
MLP_BATCH = 128
SMALL_GPT = GPT()


def mlp_inputs() -> dict[str, Array]:
    """A batch, and the weights and biases of each layer."""
    values = normal(x=(MLP_BATCH, MLP_SIZES[0]))()
    for i, (rows, columns) in enumerate(pairwise(MLP_SIZES)):
        values |= _scaled(rows**-0.5, **{f"w{i}": (rows, columns), f"b{i}": (columns,)})
    return values


def mlp(o: SimpleNamespace, p: Params) -> Any:
    """Three linear layers with relu between them."""
    h = p["x"]
    for i in range(len(MLP_SIZES) - 1):
        h = (o.relu(h) if i else h) @ p[f"w{i}"] + p[f"b{i}"]
    return h


def conv_inputs() -> dict[str, Array]:
    """Images, two kernels, and two batch norms (variances are positive)."""
    values = normal(x=(8, 64, 32, 32))()
    values |= _scaled(0.05, k1=(64, 64, 3, 3), k2=(64, 64, 3, 3))
    for name in ("mean1", "var1", "gain1", "bias1", "mean2", "var2", "gain2", "bias2"):
        values |= normal(**{name: (64,)})()
    return values | {name: np.abs(values[name]) + np.float32(0.5) for name in ("var1", "var2")}


def conv_block(o: SimpleNamespace, p: Params) -> Any:
    """conv3x3, batch norm, relu, conv3x3, batch norm, add, relu."""
    h = o.batch_norm(o.conv(p["x"], p["k1"]), p["mean1"], p["var1"], p["gain1"], p["bias1"])
    h = o.conv(o.relu(h), p["k2"])
    return o.relu(o.batch_norm(h, p["mean2"], p["var2"], p["gain2"], p["bias2"]) + p["x"])


_ROWS = (4096, 1024)
WORKLOADS = {
    "softmax": Workload("softmax 4096x1024", normal(x=_ROWS), lambda o, p: o.softmax(p["x"])),
    "layernorm": Workload(
        "layernorm 4096x1024", normal(x=_ROWS, gain=(1024,), bias=(1024,)),
        lambda o, p: o.layer_norm(p["x"], p["gain"], p["bias"]),
    ),
    "gelu": Workload(
        "gelu+bias+residual 4M", normal(x=_ROWS, bias=(1024,), residual=_ROWS),
        lambda o, p: o.gelu(p["x"] + p["bias"]) + p["residual"],
    ),
    "sum": Workload("sum 16M", normal(x=(1 << 24,)), lambda o, p: p["x"].sum()),
    "matmul": Workload(
        "matmul 1024", normal(a=(1024, 1024), b=(1024, 1024)), lambda o, p: p["a"] @ p["b"]
    ),
    "mlp": Workload("MLP 784-512-512-10, batch 128: forward", mlp_inputs, mlp),
    "gpt": Workload(
        "GPT 4x256, 4 heads, seq 128, batch 4: forward",
        lambda: {**SMALL_GPT.initial(), "tokens": SMALL_GPT.tokens()[0]},
        lambda o, p: SMALL_GPT.logits(o, p, p["tokens"]),
    ),
    "conv": Workload("conv block 64ch 32x32 batch 8", conv_inputs, conv_block),
}  # fmt: skip
