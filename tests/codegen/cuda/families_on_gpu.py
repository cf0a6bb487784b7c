"""Random shapes of every family of kernels against float64: `families_on_gpu.py [names]`.

`python tests/codegen/cuda/families_on_gpu.py [names] [shapes=50] [seconds=300] [seed=0]
[device=cuda] [workers=8]`, from the repository's root. Each case is a function of tensors, sizes
and a dtype by chance, and the same in NumPy's float64 of what was rounded to that dtype; both are
written here, so neither knows the other. Prints a line for each family: how many shapes, how many
wrong, the largest error by norms; and a line for each that is wrong, with the seed that repeats it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("FULGURITE_DISK_CACHE", "0")

import numpy as np  # noqa: E402 (the path comes first: this is a script)

import fulgurite as fg  # noqa: E402
from fulgurite.core.dtype import dtype_of  # noqa: E402

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
LIMITS = {"float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}  # of a norm
CHUNK = 10  # shapes of a task


class Case(NamedTuple):
    """Inputs, a function of them as tensors, and the same of arrays of float64."""

    what: str
    dtype: str  # the least exact one that its kernels round to
    inputs: list[Array]
    ours: Callable[..., Sequence[Any]]
    exact: Callable[..., Sequence[Array]]


def size(rng: Rng, most: int = 700) -> int:
    """One that is odd, one that tiles divide, or any."""
    n = int(rng.integers(1, most))
    return max(1, n // 16 * 16) if rng.random() < 0.3 else n


def numbers(rng: Rng, shape: Sequence[int], dtype: str, mean: float = 0.0) -> Array:
    """Normal numbers about a mean, rounded."""
    plain = rng.standard_normal(tuple(shape)) + mean
    return plain.astype(np.float32).astype(dtype_of(dtype).numpy)


def narrow(rng: Rng) -> str:
    """The dtype of a case."""
    return str(rng.choice(["float32", "bfloat16", "float16"]))


def softmax(x: Array) -> Array:
    """Along the last axis."""
    weights: Array = np.exp(x - x.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


# --- families ------------------------------------------------------------------------------------


def maps(rng: Rng) -> Case:
    """A few functions of elements, a row that is spread."""
    a, b, dtype = size(rng), size(rng), narrow(rng)
    x, y, row = numbers(rng, (a, b), dtype), numbers(rng, (a, b), dtype), numbers(rng, (b,), dtype)
    return Case(
        f"{a}x{b}", dtype, [x, y, row],
        lambda x, y, r: [fg.tanh(x * y + r), fg.where(x > y, fg.exp(-x * x), fg.sigmoid(r))],
        lambda x, y, r: [np.tanh(x * y + r),
                         np.where(x > y, np.exp(-x * x), 1 / (1 + np.exp(-r)))],
    )  # fmt: skip


def transposes(rng: Rng) -> Case:
    """Axes in another order, flipped and padded."""
    shape, dtype = [size(rng, 60) for _ in range(3)], narrow(rng)
    order = [int(n) for n in rng.permutation(3)]
    x = numbers(rng, shape, dtype)
    return Case(
        f"{shape} {order}", dtype, [x],
        lambda x: [x.permute(*order) * 2.0, fg.flip(x, 1), fg.pad(x, ((0, 0), (0, 3), (1, 2)))],
        lambda x: [x.transpose(order) * 2.0, x[:, ::-1], np.pad(x, ((0, 0), (0, 3), (1, 2)))],
    )  # fmt: skip


def rows(rng: Rng) -> Case:
    """Softmax and logarithms of sums, of short rows and of long ones."""
    a, b, dtype = size(rng, 40), size(rng, int(rng.choice([300, 40000]))), narrow(rng)
    x = numbers(rng, (a, b), dtype) * np.float32(3).astype(dtype_of(dtype).numpy)
    return Case(
        f"{a}x{b}", dtype, [x],
        lambda x: [fg.softmax(x, axis=-1), fg.logsumexp(x.astype("float32"), axis=-1)],
        lambda x: [softmax(x), np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)],
    )  # fmt: skip


def norms(rng: Rng) -> Case:
    """Layer norm and RMS norm with weights."""
    a, b, dtype = size(rng, 300), 1 + size(rng, 5000), narrow(rng)
    x, w, c = numbers(rng, (a, b), dtype, 3.0), *[numbers(rng, (b,), dtype) for _ in range(2)]

    def exact(x: Array, w: Array, c: Array) -> list[Array]:
        apart = x - x.mean(-1, keepdims=True)
        spread = (apart * apart).mean(-1, keepdims=True)
        square = (x * x).mean(-1, keepdims=True)
        return [apart / np.sqrt(spread + 1e-5) * w + c, x / np.sqrt(square + 1e-5) * w]

    return Case(
        f"{a}x{b}", dtype, [x, w, c],
        lambda x, w, c: [fg.layer_norm(x, (b,), w, c), fg.rms_norm(x, (b,), w, eps=1e-5)], exact,
    )  # fmt: skip


def moments(rng: Rng) -> Case:
    """Means and variances of columns, with channels last and in the middle, far from 0 too."""
    n, c, s = size(rng, 40), size(rng, 300), size(rng, 90)
    x = numbers(rng, (n, c, s), "float32", float(rng.choice([0.0, 1.0, 30.0])))
    y = numbers(rng, (size(rng, 40000), c), "float32")
    return Case(
        f"{n}x{c}x{s}, {len(y)}", "float32", [x, y],
        lambda x, y: [x.mean(axis=(0, 2)), fg.var(x, axis=(0, 2)), y.sum(axis=0),
                      fg.var(y, axis=0)],
        lambda x, y: [x.mean((0, 2)), x.var((0, 2)), y.sum(0), y.var(0)],
    )  # fmt: skip


def sums(rng: Rng) -> Case:
    """Sums, extremes and their places along each axis of three."""
    shape = [size(rng, 120) for _ in range(3)]
    axis, dtype = int(rng.integers(3)), narrow(rng)
    x = numbers(rng, shape, dtype)
    return Case(
        f"{shape} {axis}", dtype, [x],
        lambda x: [x.astype("float32").sum(axis=axis), x.max(axis=axis), fg.argmin(x, axis=axis),
                   (x * x).astype("float32").sum()],
        lambda x: [x.sum(axis), x.max(axis), x.argmin(axis), (x * x).sum()],
    )  # fmt: skip


def scans(rng: Rng) -> Case:
    """Running sums and extremes, from both ends."""
    shape, axis = [size(rng, 90), size(rng, 3000)], int(rng.integers(2))
    x = numbers(rng, shape, "float32")
    return Case(
        f"{shape} {axis}", "float32", [x],
        lambda x: [fg.cumulative_sum(x, axis=axis), fg.cumulative_max(x, axis=axis),
                   fg.flip(fg.cumulative_sum(fg.flip(x, axis), axis=axis), axis)],
        lambda x: [x.cumsum(axis), np.maximum.accumulate(x, axis),
                   np.flip(np.flip(x, axis).cumsum(axis), axis)],
    )  # fmt: skip


def sorts(rng: Rng) -> Case:
    """Values in order, and their places, of which equal ones keep theirs."""
    shape, axis = [size(rng, 40), size(rng, 3000)], int(rng.integers(2))
    x = np.round(numbers(rng, shape, "float32") * 20)
    return Case(
        f"{shape} {axis}", "float32", [x],
        lambda x: [fg.sort(x, axis=axis), fg.argsort(x, axis=axis)],
        lambda x: [np.sort(x, axis), np.argsort(x, axis, kind="stable")],
    )  # fmt: skip


def places(rng: Rng) -> Case:
    """Rows of a table, and sums at places that come again: the gradient of an embedding."""
    n, m, c = size(rng, 500), size(rng, 3000), size(rng, 200)
    at = rng.integers(0, n if rng.random() < 0.5 else max(1, n // 50), m)
    table, more = numbers(rng, (n, c), "float32"), numbers(rng, (m, c), "float32")

    def exact(table: Array, more: Array, at: Array) -> list[Array]:
        found = table.copy()
        np.add.at(found, at, more)
        return [table[at], found]

    return Case(
        f"{m} of {n}x{c}", "float32", [table, more, at],
        lambda t, g, i: [fg.take(t, i, 0),
                         fg.scatter_add(t, 0, fg.broadcast_to(i[:, None], g.shape), g)],
        exact,
    )  # fmt: skip


def products(rng: Rng) -> Case:
    """Matrices as they lie, with a bias and a rectifier behind."""
    dtype = narrow(rng)
    m, n, k = (size(rng, 1500) for _ in range(3))
    batch = () if rng.random() < 0.7 else (int(rng.integers(1, 5)),)
    a, b, c = (numbers(rng, s, dtype) for s in ((*batch, m, k), (*batch, n, k), (n,)))
    turned = rng.random() < 0.5
    b = b if turned else np.ascontiguousarray(b.swapaxes(-1, -2))
    return Case(
        f"{batch}{m}x{n}x{k} {'nt' if turned else 'nn'}", dtype, [a, b, c],
        lambda a, b, c: [fg.relu(a @ (b.mT if turned else b) + c)],
        lambda a, b, c: [np.maximum(a @ (b.swapaxes(-1, -2) if turned else b) + c, 0)],
    )  # fmt: skip


def convolutions(rng: Rng) -> Case:
    """Forward and both gradients, with strides, groups and dilation."""
    dtype, groups = narrow(rng), int(rng.choice([1, 1, 2, 4]))
    n, c, o = int(rng.integers(1, 5)), groups * size(rng, 40), groups * size(rng, 40)
    kernel, stride, apart = (int(rng.integers(1, most)) for most in (4, 3, 3))
    pad = int(rng.integers(0, kernel))
    side = [int(rng.integers(apart * (kernel - 1) + 1, 30)) for _ in range(2)]
    x, w = numbers(rng, (n, c, *side), dtype), numbers(rng, (o, c // groups, *[kernel] * 2), dtype)
    out = [(s + 2 * pad - apart * (kernel - 1) - 1) // stride + 1 for s in side]
    g = numbers(rng, (n, o, *out), dtype)

    def ours(x: Any, w: Any, g: Any) -> list[Any]:
        y, pull = fg.vjp(
            lambda x, w: fg.conv2d(
                x, w, stride=stride, padding=pad, dilation=apart, groups=groups
            ), x, w,
        )  # fmt: skip
        return [y, *pull(g)]

    def exact(x: Array, w: Array, g: Array) -> list[Array]:
        wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        y, dx, dw = np.zeros_like(g), np.zeros_like(wide), np.zeros_like(w)
        for i in range(kernel):
            for j in range(kernel):
                at = [slice(p * apart, p * apart + stride * (m - 1) + 1, stride)
                      for p, m in zip((i, j), out, strict=True)]  # fmt: skip
                part = wide[:, :, at[0], at[1]].reshape(n, groups, -1, *out)
                given = g.reshape(n, groups, -1, *out)
                tap = w[:, :, i, j].reshape(groups, -1, c // groups)
                y += np.einsum("ngcyx,goc->ngoyx", part, tap).reshape(y.shape)
                dw[:, :, i, j] = np.einsum("ngcyx,ngoyx->goc", part, given).reshape(o, -1)
                back = np.einsum("ngoyx,goc->ngcyx", given, tap).reshape(n, c, *out)
                dx[:, :, at[0], at[1]] += back
        return [y, dx[:, :, pad : pad + side[0], pad : pad + side[1]], dw]

    what = f"{n}x{c}x{side} to {o}, {kernel} /{stride} +{pad} *{apart} groups {groups}"
    return Case(what, dtype, [x, w, g], ours, exact)


def attention(rng: Rng) -> Case:
    """Forward and gradients, under masks of several kinds."""
    dtype, d = str(rng.choice(["bfloat16", "float16"])), int(rng.choice([16, 32, 64, 80, 128]))
    b, h, n = int(rng.integers(1, 3)), int(rng.integers(1, 4)), size(rng, 900)
    m = n if rng.random() < 0.6 else size(rng, 900)
    mask = str(rng.choice(["plain", "causal", "window", "alibi", "cap", "added"]))
    q, g = (numbers(rng, (b, h, m, d), dtype) for _ in range(2))
    k, v = (numbers(rng, (b, h, n, d), dtype) for _ in range(2))
    scale = d**-0.5

    def changed(s: Any, of: Any) -> Any:
        r, c = of.arange(m)[:, None], of.arange(n)
        if mask == "added":
            return s + of.where(c <= r, 0.0, -1e30)
        if mask == "cap":
            return of.where(c <= r, of.tanh(s / 20.0) * 20.0, -1e30)
        s = s + (c - r) * 0.0625 if mask == "alibi" else s
        seen = (c <= r) if mask in ("causal", "alibi") else (c <= r) & (r < c + 100)
        seen = seen | (c == 0)  # no row is without a key
        return s if mask == "plain" else of.where(seen, s, -float("inf"))

    def ours(q: Any, k: Any, v: Any, g: Any) -> list[Any]:
        def forward(q: Any, k: Any, v: Any) -> Any:
            s = changed((q @ k.mT).astype("float32") * scale, fg)
            return fg.softmax(s, axis=-1).astype(dtype) @ v

        y, pull = fg.vjp(forward, q, k, v)
        return [y, *pull(g)]

    def exact(q: Array, k: Array, v: Array, g: Array) -> list[Array]:
        s = q @ k.swapaxes(-1, -2) * scale
        p = softmax(changed(s, np))
        dp = g @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True))
        ds = ds * (1 - np.tanh(s / 20.0) ** 2) * scale if mask == "cap" else ds * scale
        return [p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g]

    return Case(f"{b}x{h}x{m}x{n}x{d} {mask}", dtype, [q, k, v, g], ours, exact)


def losses(rng: Rng) -> Case:
    """Cross-entropy over odd counts of classes behind a linear layer, with gradients.

    Of several rows: where one is nearly certain, what is left is rounding.
    """
    n, c, d = 8 + size(rng, 300), 8 + size(rng, int(rng.choice([40, 12000]))), size(rng, 100)
    x, w, y = (
        numbers(rng, (n, d), "float32"),
        numbers(rng, (c, d), "float32"),
        rng.integers(0, c, n),
    )

    def ours(x: Any, w: Any, y: Any) -> list[Any]:
        value, pull = fg.vjp(lambda x, w: fg.cross_entropy(x @ w.mT, y), x, w)
        return [value, *pull(fg.ones(()))]

    def exact(x: Array, w: Array, y: Array) -> list[Array]:
        p = softmax(x @ w.T)
        value = -np.log(p[np.arange(n), y]).mean()
        p[np.arange(n), y] -= 1
        return [value, p @ w / n, p.T @ x / n]

    return Case(f"{n}x{d} into {c}", "float32", [x, w, y], ours, exact)


FAMILIES: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (maps, transposes, rows, norms, moments, sums, scans, sorts, places, products,
              convolutions, attention, losses)
}  # fmt: skip


# --- running -------------------------------------------------------------------------------------


def error(got: Array, want: Array) -> float:
    """How far two arrays are apart by norms; whole numbers are equal or not."""
    if got.shape != want.shape:
        return np.inf
    if want.dtype.kind in "iu":
        return 0.0 if np.array_equal(got, want) else np.inf
    a, b = got.astype(np.float64), want
    if not np.isfinite(a).all():
        return np.inf
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-6 * b.size**0.5, 1e-30))


def checked(name: str, seed: int, device: str) -> tuple[str, str, float, str]:
    """A case's family, what it is, its error, and why it is wrong, if it is."""
    rng = np.random.default_rng((crc32(name.encode()), seed))
    case = FAMILIES[name](rng)
    try:
        with fg.config(device=device, tier="native", poison=True):
            found = [y.numpy() for y in case.ours(*[fg.Tensor(x) for x in case.inputs])]
        given = [x if x.dtype.kind == "i" else x.astype(np.float64) for x in case.inputs]
        want = [np.asarray(y) for y in case.exact(*given)]
        worst = max([error(a, b) for a, b in zip(found, want, strict=True)])
    except Exception as problem:
        return name, case.what, np.inf, f"{type(problem).__name__}: {str(problem)[:300]}"
    wrong = "" if worst <= LIMITS[case.dtype] else f"off by {worst:.1e}"
    return name, f"{case.what} {case.dtype}", worst, wrong


def several(name: str, seeds: range, device: str, until: float) -> list[Any]:
    """Cases of one family, in a process that may have more of them."""
    found = [(*checked(name, seed, device), seed) for seed in seeds if time.time() < until]
    fg.clear_caches()
    return found


def keep_to_cores(number: Any, workers: int) -> None:
    """Give this process its share of the cores: it compiles on as many as it has."""
    with number.get_lock():
        mine, number.value = number.value, number.value + 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[mine % workers :: workers] or cores)


def main(arguments: Sequence[str]) -> int:
    """All families, or those that are named; 1 if anything is wrong."""
    given = dict([word.split("=") for word in arguments if "=" in word])
    names = [word for word in arguments if "=" not in word] or list(FAMILIES)
    shapes, seed = int(given.get("shapes", 50)), int(given.get("seed", 0))
    until = time.time() + float(given.get("seconds", 300))
    device, workers = given.get("device", "cuda"), int(given.get("workers", 8))
    chunks = [range(first, min(first + CHUNK, seed + shapes))
              for first in range(seed, seed + shapes, CHUNK)]  # fmt: skip
    bad, ran = 0, {name: list[float]() for name in names}
    context = get_context("spawn")
    shares = context.Value("i", 0), workers
    with ProcessPoolExecutor(workers, context, keep_to_cores, shares) as pool:
        asked = [pool.submit(several, name, chunk, device, until)
                 for chunk in chunks for name in names]  # fmt: skip
        for answer in asked:
            for name, what, worst, wrong, at in answer.result():
                ran[name].append(worst)
                if wrong:
                    bad += 1
                    print(f"WRONG {name} {what}: {wrong} (shapes=1 seed={at})", flush=True)
    for name, found in ran.items():
        worst = max(found, default=0.0)
        print(f"{name}: {len(found)} of {shapes} shapes, largest error {worst:.1e}")
    print(f"{sum(map(len, ran.values()))} shapes, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
