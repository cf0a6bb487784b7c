"""Random graphs over random meshes in one launch: what ranks compute, against this process alone.

Arguments: the first seed and how many. Every rank builds the same program twice: on plain tensors,
and on tensors that are split at random; values and gradients must agree.
"""

import random
import sys
import time
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.core import ranks

first, count = int(sys.argv[1]), int(sys.argv[2])
N = ranks.world().size
MESHES = [{"a": N}, {"a": N // 2, "b": 2}, {"b": 2, "a": N // 2}, {"a": 2}]


def unary(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    return rng.choice([fg.tanh, fg.sigmoid, lambda v: v * 0.5 + 1, fg.relu])(x)


def binary(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    return x * y + x - y


def product(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    return (x @ y.transpose(0, 1)) @ y * 0.02


def fold(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    axis = rng.randrange(2)
    how = rng.choice(["sum", "max", "mean", "min"])
    return x - getattr(x, how)(axis, keepdims=True) * 0.1


def softmax(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    return fg.softmax(x, axis=rng.randrange(2)) + y * 0.1


def moved(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    return fg.flip(x, [rng.randrange(2)]) + fg.concat([x[4:], y[:4]], axis=0)


def shaped(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    n, m = x.shape
    outer = 4 if n % 4 == 0 else n
    parts = x.reshape((outer, n // outer, m // 4, 4))
    return fg.tanh(parts).transpose(1, 2).transpose(1, 2).reshape((n, m))


def picked(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    rows = fg.arange(x.shape[0]) * 3 % x.shape[0]
    return fg.take(x, rows, axis=0) + fg.cumulative_sum(y, axis=1) * 0.05


def sharded(x: fg.Tensor, y: fg.Tensor, rng: random.Random) -> Any:
    return SPLIT(x, rng)


STEPS = [unary, binary, product, fold, softmax, moved, shaped, picked, sharded]
SPLIT: Any = None


def run(seed: int, leaves: Any) -> Any:
    rng = random.Random(seed)
    values = list(leaves)
    for _ in range(4):
        values.append(rng.choice(STEPS)(rng.choice(values), rng.choice(values), rng))
    return (values[-1] ** 2).mean() + values[-2].sum() * 0.01, values[-1]


def compute(seed: int, arrays: Any, split: Any) -> list[Any]:
    global SPLIT
    rng = random.Random(seed + 1)
    SPLIT = split
    leaves = [split(fg.Tensor(a), rng) for a in arrays]

    def loss(*xs: fg.Tensor) -> Any:
        return run(seed, xs)[0]

    value, grads = fg.value_and_grad(loss, argnums=(0, 1, 2))(*leaves)
    result = run(seed, leaves)[1]
    fg.realize(value, result, *grads)
    return [t.numpy() for t in (value, result, *grads)]


start = time.perf_counter()
bad = []
for seed in range(first, first + count):
    rng = random.Random(seed)
    mesh = fg.Mesh(rng.choice(MESHES))
    numbers = np.random.default_rng(seed)
    shape = rng.choice([(8, 16), (8, 16), (7, 12)])  # meshes divide the first
    arrays = [numbers.standard_normal(shape).astype(np.float32) for _ in range(3)]

    def split(x: fg.Tensor, rng: random.Random, mesh: fg.Mesh = mesh) -> Any:
        found = {}
        for axis in mesh.axes:
            dim = rng.randrange(3)
            if dim < 2:
                found[axis] = dim
        return fg.shard(x, mesh, found)

    def whole(x: fg.Tensor, rng: random.Random, split: Any = split) -> Any:
        split(x, rng)  # which draws the same numbers
        return x

    with fg.config(device="reference"):
        got = compute(seed, arrays, split)
        mine = seed % N == ranks.world().rank  # all have the whole results: one compares
        wanted = compute(seed, arrays, whole) if mine else got
    for a, b in zip(got, wanted, strict=True):
        if not np.allclose(a, b, rtol=2e-5, atol=2e-5):
            bad.append((seed, mesh, float(np.abs(a - b).max())))
            break
every = ranks.world().gather(list(range(N)), np.array(len(bad)), "how many are wrong")
if bad:
    print(f"fuzz: rank {ranks.world().rank} found {bad[:5]}", flush=True)
if ranks.world().rank == 0:
    print(f"fuzz: {count} graphs on {N} ranks, {sum(map(int, every))} wrong, "
          f"{time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
sys.exit(1 if any(every) else 0)
