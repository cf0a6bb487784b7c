"""Everyday functions beside NumPy and torch: a sweep that looks for what is unusually slow.

Run `python bench/everyday.py [--only TEXT ...] [--seconds 0.3] [--threads 1] [--save]`, where there
is torch if it can be (else NumPy is the only peer). Every row is one expression as people write
it, not captured: ours is built, looked up and run at each call. Systems take turns in one process;
a figure is the least processor time of many calls, so that others on the machine disturb all alike.
Answers are compared first; a row that differs says so. A ratio is our time over that of the best
peer: above 1 we are slower. The rows at the end, the slowest ones, are what the sweep is for.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

Call = Callable[..., Any]
ROWS = 20  # the slowest ones that are shown
TURNS = 8


@dataclass(frozen=True)
class Row:
    """One expression: its arrays, and how each system says it."""

    group: str
    name: str
    arrays: tuple[np.ndarray, ...]
    ours: Call
    torch: Call | None = None
    numpy: Call | None = None


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Numbers that are the same in every run."""
    rng = np.random.default_rng(sum(shape))
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def elementwise(fg: Any, torch: Any) -> Iterator[Row]:
    """Maps of a million numbers, in several dtypes."""
    x, y = normal(1000, 1000), normal(1000, 1000) + 3
    f = torch.nn.functional if torch else None
    for name in ("exp", "sin", "tanh", "sqrt", "log1p", "floor", "abs", "square"):
        own = "sqrt" if name == "sqrt" else name
        yield Row("plain", name, (abs(x),), lambda a, n=own: getattr(fg, n)(a),
                  torch and (lambda a, n=name: getattr(torch, n)(a)),
                  lambda a, n=name: getattr(np, n)(a))  # fmt: skip
    same: dict[str, Call] = {
        "a * b + a": lambda m, a, b: a * b + a, "a / b": lambda m, a, b: a / b,
        "a ** 2": lambda m, a, b: a**2, "a ** 1.5": lambda m, a, b: abs(a) ** 1.5,
        "a < b": lambda m, a, b: a < b, "-a": lambda m, a, b: -a,
        "where": lambda m, a, b: m.where(a < b, a, b), "maximum": lambda m, a, b: m.maximum(a, b),
        "row + column": lambda m, a, b: a[:, :1] + b[:1], "a.T + b": lambda m, a, b: a.T + b,
    }  # fmt: skip
    for name, call in same.items():
        yield _alike("plain", name, (x, y), call, fg, torch)
    for dtype in ("float64", "int32", "int64", "uint8"):
        each = (normal(1000, 1000, dtype=dtype), normal(1000, 1000, dtype=dtype))
        yield _alike("dtypes", f"a + b {dtype}", each, lambda m, a, b: a + b, fg, torch)
        yield _alike("dtypes", f"a * b {dtype}", each, lambda m, a, b: a * b, fg, torch)
        yield _alike("dtypes", f"sum {dtype}", each[:1], lambda m, a: a.sum(), fg, torch)
        yield _alike("dtypes", f"max of rows {dtype}", each[:1], lambda m, a: m.max(a, 1)
                     if m is not torch else m.amax(a, 1), fg, torch)  # fmt: skip
    for name in ("relu", "gelu", "silu", "sigmoid", "softplus", "hardswish", "relu6", "elu",
                 "leaky_relu", "mish", "hardtanh"):  # fmt: skip
        yield Row("nn", name, (x,), lambda a, n=name: getattr(fg, n)(a),
                  f and (lambda a, n=name: getattr(f, n)(a)))  # fmt: skip
    yield Row("nn", "clip", (x,), lambda a: fg.clip(a, -1, 1), torch and
              (lambda a: torch.clamp(a, -1, 1)), lambda a: np.clip(a, -1, 1))  # fmt: skip


def reductions(fg: Any, torch: Any) -> Iterator[Row]:
    """Sums and extremes along each axis, norms, softmax."""
    x, f = normal(1000, 1000), torch.nn.functional if torch else None
    same: dict[str, Call] = {
        "sum": lambda m, a: a.sum(), "sum of rows": lambda m, a: a.sum(1),
        "sum of columns": lambda m, a: a.sum(0), "mean of columns": lambda m, a: a.mean(0),
        "std of rows": lambda m, a: a.std(1) if m is not torch else a.std(1, correction=0),
        "argmax of rows": lambda m, a: m.argmax(a, 1), "cumsum": lambda m, a: m.cumsum(a, 1),
        "argmax of columns": lambda m, a: m.argmax(a, 0), "any": lambda m, a: m.any(a > 9),
        "prod of rows": lambda m, a: m.prod(a, 1), "cumsum of columns": lambda m, a: m.cumsum(a, 0),
    }  # fmt: skip
    for name, call in same.items():
        yield _alike("reductions", name, (x,), call, fg, torch)
    for axis in (-1, 0):
        for name in ("softmax", "log_softmax"):
            yield Row("nn", f"{name} {axis}", (x,),
                      lambda a, n=name, d=axis: getattr(fg, n)(a, axis=d),
                      f and (lambda a, n=name, d=axis: getattr(f, n)(a, d)))  # fmt: skip
    yield Row("nn", "softmax stored transposed", (x,),
              lambda a: fg.softmax(a, axis=-1).mT.contiguous(),
              f and (lambda a: f.softmax(a, -1).mT.contiguous()))  # fmt: skip
    yield Row("nn", "layer_norm", (x,), lambda a: fg.layer_norm(a, (1000,)),
              f and (lambda a: f.layer_norm(a, (1000,))))  # fmt: skip
    yield Row("nn", "rms_norm", (x,), lambda a: fg.rms_norm(a, (1000,)),
              f and (lambda a: f.rms_norm(a, (1000,))))  # fmt: skip
    image = normal(8, 32, 56, 56)
    yield Row("nn", "group_norm", (image,), lambda a: fg.group_norm(a, 8),
              f and (lambda a: f.group_norm(a, 8)))  # fmt: skip
    places = normal(1000, dtype="int64")
    yield Row("nn", "cross_entropy", (x, places), lambda a, b: fg.cross_entropy(a, b),
              f and (lambda a, b: f.cross_entropy(a, b)))  # fmt: skip
    yield Row("nn", "mse_loss", (x, x + 1), lambda a, b: fg.mse_loss(a, b),
              f and (lambda a, b: f.mse_loss(a, b)))  # fmt: skip


def products(fg: Any, torch: Any) -> Iterator[Row]:
    """Matrices, distances, attention."""
    f = torch.nn.functional if torch else None
    for m, k, n in ((512, 512, 512), (1, 1024, 1024), (1000, 64, 1000), (64, 4096, 64)):
        pair = (normal(m, k), normal(k, n))
        yield _alike("products", f"{m}x{k}x{n}", pair, lambda _, a, b: a @ b, fg, torch)
    batch = (normal(32, 64, 64), normal(32, 64, 64))
    yield _alike("products", "batch of 32", batch, lambda _, a, b: a @ b, fg, torch)
    points = (normal(500, 64), normal(400, 64))
    yield Row("products", "cdist", points, lambda a, b: fg.cdist(a, b),
              torch and (lambda a, b: torch.cdist(a, b)))  # fmt: skip
    yield _alike("products", "squared distances", points,
                 lambda _, a, b: ((a[:, None] - b[None]) ** 2).sum(-1), fg, torch)  # fmt: skip
    yield _alike("products", "outer", (normal(1000), normal(1000)),
                 lambda _, a, b: a[:, None] * b, fg, torch)  # fmt: skip
    yield _alike("products", "einsum bij,bkj->bik", batch,
                 lambda m, a, b: m.einsum("bij,bkj->bik", a, b), fg, torch)  # fmt: skip
    q = normal(1, 8, 256, 64)
    yield Row("nn", "attention", (q, q, q), lambda *a: fg.scaled_dot_product_attention(*a),
              f and (lambda *a: f.scaled_dot_product_attention(*a)))  # fmt: skip
    yield Row("nn", "linear", (normal(128, 512), normal(256, 512)), lambda a, b: a @ b.mT,
              f and (lambda a, b: f.linear(a, b)))  # fmt: skip


def pictures(fg: Any, torch: Any) -> Iterator[Row]:
    """Convolutions and pools."""
    f = torch.nn.functional if torch else None
    cases = {
        "3x3": ((1, 64, 56, 56), (64, 64, 3, 3), 1, 1),
        "1x1": ((1, 64, 56, 56), (128, 64, 1, 1), 1, 1),
        "7x7 stride 2": ((1, 3, 224, 224), (64, 3, 7, 7), 2, 1),
        "3x3 stride 2": ((1, 32, 112, 112), (64, 32, 3, 3), 2, 1),
        "depthwise 3x3": ((1, 96, 56, 56), (96, 1, 3, 3), 1, 96),
        "depthwise 5x5 stride 2": ((1, 96, 56, 56), (96, 1, 5, 5), 2, 96),
        "4 groups": ((1, 64, 28, 28), (64, 16, 3, 3), 1, 4),
    }  # fmt: skip
    for name, (image, window, stride, groups) in cases.items():
        some: dict[str, Any] = {"stride": stride, "padding": window[-1] // 2, "groups": groups}
        yield Row("pictures", f"conv {name}", (normal(*image), normal(*window)),
                  lambda a, b, o=some: fg.conv2d(a, b, **o),
                  f and (lambda a, b, o=some: f.conv2d(a, b, **o)))  # fmt: skip
    x = normal(1, 64, 56, 56)
    yield Row("pictures", "conv_transpose", (x, normal(64, 32, 2, 2)),
              lambda a, b: fg.conv_transpose2d(a, b, stride=2),
              f and (lambda a, b: f.conv_transpose2d(a, b, stride=2)))  # fmt: skip
    for name in ("max_pool2d", "avg_pool2d"):
        yield Row("pictures", name, (x,), lambda a, n=name: getattr(fg, n)(a, 2),
                  f and (lambda a, n=name: getattr(f, n)(a, 2)))  # fmt: skip
    yield Row("pictures", "interpolate", (x,),
              lambda a: fg.interpolate(a, scale_factor=2, mode="bilinear"),
              f and (lambda a: f.interpolate(a, scale_factor=2, mode="bilinear")))  # fmt: skip
    yield Row("pictures", "pad", (x,), lambda a: fg.pad(a, [(0, 0), (0, 0), (2, 2), (2, 2)]),
              f and (lambda a: f.pad(a, (2, 2, 2, 2))),
              lambda a: np.pad(a, [(0, 0), (0, 0), (2, 2), (2, 2)]))  # fmt: skip
    slope = np.full(64, 0.25, np.float32)
    yield Row("pictures", "prelu", (x, slope), lambda a, b: fg.prelu(a, b),
              f and (lambda a, b: f.prelu(a, b)))  # fmt: skip


def places(fg: Any, torch: Any) -> Iterator[Row]:
    """Indexing, sorting, joining and moving."""
    x, index = normal(1000, 1000), normal(5000, dtype="int64")
    same: dict[str, Call] = {
        "x[::2]": lambda m, a: a[::2] + 0, "x[:, ::2]": lambda m, a: a[:, ::2] + 0,
        "x[x > 0]": lambda m, a: a[a > 0], "transposed": lambda m, a: _whole(m, a.T),
        "concat": lambda m, a: m.concatenate([a, a], 1) if m is np else m.concat([a, a], 1),
        "stack": lambda m, a: m.stack([a, a]), "roll": lambda m, a: m.roll(a, 3, 1),
        "flip": lambda m, a: (m.flip(a, (0,)) if m is torch else m.flip(a, 0)) + 0,
        "triu": lambda m, a: m.triu(a), "tile": lambda m, a: m.tile(a, (2, 1)),
        "nonzero": lambda m, a: m.nonzero(a > 1, **({"as_tuple": True} if m is torch else {}))[0],
    }  # fmt: skip
    for name, call in same.items():
        yield _alike("places", name, (x,), call, fg, torch)
    yield _alike("places", "x[index]", (x, index), lambda m, a, i: a[i], fg, torch)
    yield _alike("places", "x[:, index]", (x, index[:500]), lambda m, a, i: a[:, i], fg, torch)
    yield Row("places", "one_hot", (index,), lambda i: fg.one_hot(i, 100),
              torch and (lambda i: torch.nn.functional.one_hot(i, 100)))  # fmt: skip
    yield Row("places", "bincount", (index,), lambda i: fg.bincount(i),
              torch and (lambda i: torch.bincount(i)), lambda i: np.bincount(i))  # fmt: skip
    yield Row("places", "embedding", (index, x), lambda i, a: fg.take(a, i, axis=0),
              torch and (lambda i, a: torch.nn.functional.embedding(i, a)))  # fmt: skip
    line = normal(100_000)
    for name, array, axis in (("a long row", line, 0), ("rows", x, 1), ("columns", x, 0)):
        yield Row("sorting", f"sort {name}", (array,), lambda a, d=axis: fg.sort(a, axis=d),
                  torch and (lambda a, d=axis: torch.sort(a, d)[0]),
                  lambda a, d=axis: np.sort(a, d))  # fmt: skip
    for dtype, names in (("float32", "sort"), ("int32", "sort"), ("float64", "sort"),
                         ("float32", "argsort"), ("int64", "argsort")):  # fmt: skip
        for length in (16, 100, 1000, 10_000, 1_000_000):
            rows = (normal(max(1, 200_000 // length), length) * 1e6).astype(dtype)
            yield _sorts(fg, torch, names, rows)
    yield Row("sorting", "argsort rows", (x,), lambda a: fg.argsort(a, axis=1),
              torch and (lambda a: torch.sort(a, dim=1, stable=True)[1]),
              lambda a: np.argsort(a, 1, kind="stable"))  # fmt: skip
    for count, short in ((5, x), (100, x), (5, x[:1])):
        yield Row("sorting", f"topk {len(short)} x 1000 by {count}", (short,),
                  lambda a, k=count: fg.topk(a, k)[0],
                  torch and (lambda a, k=count: torch.topk(a, k)[0]))  # fmt: skip
    yield Row("sorting", "unique", (index,), lambda i: fg.unique_values(i),
              torch and (lambda i: torch.unique(i)), lambda i: np.unique(i))  # fmt: skip
    yield Row("sorting", "searchsorted", (np.sort(line), line[:10_000]),
              lambda a, b: fg.searchsorted(a, b),
              torch and (lambda a, b: torch.searchsorted(a, b)),
              lambda a, b: np.searchsorted(a, b))  # fmt: skip


def _sorts(fg: Any, torch: Any, name: str, rows: np.ndarray) -> Row:
    """Rows of some length in order, or their places: stable, so that all give the same."""
    label = f"{name} {rows.dtype} {rows.shape[0]} x {rows.shape[1]}"
    if name == "sort":
        return Row("sorting", label, (rows,), lambda a: fg.sort(a, axis=1),
                   torch and (lambda a: torch.sort(a, 1)[0]),
                   lambda a: np.sort(a, 1))  # fmt: skip
    return Row("sorting", label, (rows,), lambda a: fg.argsort(a, axis=1),
               torch and (lambda a: torch.argsort(a, dim=1, stable=True)),
               lambda a: np.argsort(a, 1, kind="stable"))  # fmt: skip


def lines(fg: Any, torch: Any) -> Iterator[Row]:
    """What is done to few numbers and to some: the host's cost, and kernels that end soon."""
    for label, count in (("1K", 1000), ("100K", 100_000)):
        x, y = normal(count), normal(count) + 3
        same: dict[str, Call] = {
            "a + b": lambda m, a, b: a + b, "2 * a": lambda m, a, b: 2 * a,
            "a > 0": lambda m, a, b: a > 0, "a[a > 0]": lambda m, a, b: a[a > 0],
            "where chain": lambda m, a, b: m.where(a < 0, a * 2, m.where(a < 1, b, a + b)),
            "clip": lambda m, a, b: a.clip(-0.5, 0.5), "max": lambda m, a, b: a.max(),
            "argmax": lambda m, a, b: a.argmax(), "cumsum": lambda m, a, b: m.cumsum(a, 0),
            "norm": lambda m, a, b: (a * a).sum() ** 0.5, "roll": lambda m, a, b: m.roll(a, 1, 0),
            "log1p": lambda m, a, b: m.log1p(abs(a)), "a ** b": lambda m, a, b: abs(a) ** b,
        }  # fmt: skip
        for name, call in same.items():
            yield _alike(label, name, (x, y), call, fg, torch)
        for name in ("any", "all"):
            yield _alike(label, name, (x > -9,), lambda m, a, n=name: getattr(a, n)(), fg, torch)
        yield Row(
            label,
            "var",
            (x,),
            lambda a: fg.var(a),
            torch and (lambda a: torch.var(a, correction=0)),
            lambda a: np.var(a),
        )
        yield Row(label, "median", (x,), lambda a: fg.median(a),
                  torch and (lambda a: torch.quantile(a, 0.5)), lambda a: np.median(a))  # fmt: skip
        yield Row(label, "histogram", (x,), lambda a: fg.histogram(a, 50, (-3.0, 3.0)).hist,
                  torch and (lambda a: torch.histc(a, 50, -3, 3)))  # fmt: skip
        yield Row(label, "sort", (x,), lambda a: fg.sort(a),
                  torch and (lambda a: torch.sort(a)[0]), lambda a: np.sort(a))  # fmt: skip
        yield Row(label, "unique", (np.round(x * 50),), lambda a: fg.unique_values(a),
                  torch and (lambda a: torch.unique(a)), lambda a: np.unique(a))  # fmt: skip
    bits = np.ones((10_000, 1000), bool)
    for name in ("any", "all"):
        yield _alike("10M", name, (bits,), lambda m, a, n=name: getattr(a, n)(), fg, torch)
    yield _alike("10M", "a & b", (bits, bits), lambda m, a, b: a & b, fg, torch)


def layers(fg: Any, torch: Any) -> Iterator[Row]:
    """Layers and losses of small networks."""
    f = torch.nn.functional if torch else None
    image, rows, x = normal(8, 16, 28, 28), normal(32, 64), normal(100, 1000)
    classes, scale = normal(256, dtype="int64") % 10, normal(64)

    def row(name: str, arrays: tuple[np.ndarray, ...], call: Call, theirs: Call) -> Row:
        """The same of fulgurite and of torch's functions."""
        return Row("layers", name, arrays, call, f and theirs)

    for shape, axis in (((33, 7), 0), ((33, 7), 1), ((1003, 97), 0), ((10_000, 10), 1)):
        yield row(
            f"softmax {axis} of {shape}",
            (normal(*shape),),
            lambda a, d=axis: fg.softmax(a, d),
            lambda a, d=axis: f.softmax(a, d),
        )
    yield row("layer_norm 32x64", (rows, scale, scale), lambda a, b, c: fg.layer_norm(a, 64, b, c),
              lambda a, b, c: f.layer_norm(a, (64,), b, c))  # fmt: skip
    yield row("batch_norm in training", (image,),
              lambda a: fg.batch_norm(a, training=True)[0],
              lambda a: f.batch_norm(a, None, None, training=True))  # fmt: skip
    for name, more in (("instance_norm", ()), ("group_norm", (4,))):
        yield row(name, (image,), lambda a, n=name, o=more: getattr(fg, n)(a, *o),
                  lambda a, n=name, o=more: getattr(f, n)(a, *o))  # fmt: skip
    pools: dict[str, tuple[Any, ...]] = {
        "max_pool2d": (3, 2, 1), "avg_pool2d": (3, 1), "adaptive_avg_pool2d": (7,),
        "adaptive_max_pool2d": (5,),
    }  # fmt: skip
    for name, more in pools.items():
        yield row(f"{name} {more}", (image,), lambda a, n=name, o=more: getattr(fg, n)(a, *o),
                  lambda a, n=name, o=more: getattr(f, n)(a, *o))  # fmt: skip
    for mode in ("bilinear", "nearest"):
        yield row(f"interpolate {mode}", (image,),
                  lambda a, m=mode: fg.interpolate(a, scale_factor=2, mode=m),
                  lambda a, m=mode: f.interpolate(a, scale_factor=2, mode=m))  # fmt: skip
    for mode, theirs in (("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")):
        yield row(f"pad {mode}", (image,),
                  lambda a, m=mode: fg.pad(a, [(0, 0), (0, 0), (2, 2), (2, 2)], mode=m),
                  lambda a, m=theirs: f.pad(a, (2, 2, 2, 2), mode=m))  # fmt: skip
    convs: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
        "conv1d": ((8, 16, 200), (32, 16, 5), 1),
        "conv3d": ((2, 4, 12, 16, 16), (8, 4, 3, 3, 3), 1),
        "conv2d": ((8, 16, 28, 28), (32, 16, 3, 3), 1),
        "conv2d depthwise": ((8, 16, 28, 28), (16, 1, 3, 3), 16),
    }  # fmt: skip
    for name, (shape, window, groups) in convs.items():
        yield row(f"small {name}", (normal(*shape), normal(*window)),
                  lambda a, b, n=name[:6], g=groups: getattr(fg, n)(a, b, groups=g),
                  lambda a, b, n=name[:6], g=groups: getattr(f, n)(a, b, groups=g))  # fmt: skip
    yield row("log_softmax, nll_loss", (normal(256, 10), classes),
              lambda a, b: fg.nll_loss(fg.log_softmax(a, 1), b),
              lambda a, b: f.nll_loss(f.log_softmax(a, 1), b))  # fmt: skip
    for name in ("binary_cross_entropy_with_logits", "huber_loss", "cosine_similarity"):
        yield row(name, (x, np.abs(x) / 9), lambda a, b, n=name: getattr(fg, n)(a, b),
                  lambda a, b, n=name: getattr(f, n)(a, b))  # fmt: skip
    yield row("sum of embeddings", (normal(32, 20, dtype="int64"), x),
              lambda i, a: a[i].sum(1), lambda i, a: f.embedding(i, a).sum(1))  # fmt: skip
    yield row("small attention", (normal(4, 4, 32, 16),) * 3,
              lambda q, k, v: fg.scaled_dot_product_attention(q, k, v),
              lambda q, k, v: f.scaled_dot_product_attention(q, k, v))  # fmt: skip


def algebra(fg: Any, torch: Any) -> Iterator[Row]:
    """Small matrices: stacks of products, einsum, decompositions, distances."""
    for n in (4, 16):
        yield _alike("algebra", f"1000 products {n}x{n}", (normal(1000, n, n),) * 2,
                     lambda m, a, b: a @ b, fg, torch)  # fmt: skip
    for n in (10, 64):
        yield _alike("algebra", f"{n}x{n}x{n}", (normal(n, n),) * 2, lambda m, a, b: a @ b, fg,
                     torch)  # fmt: skip
    yield _alike("algebra", "a.T @ a of 10000x10", (normal(10_000, 10),), lambda m, a: a.T @ a,
                 fg, torch)  # fmt: skip
    yield _alike("algebra", "einsum bij,bjk", (normal(32, 20, 30), normal(32, 30, 20)),
                 lambda m, a, b: m.einsum("bij,bjk->bik", a, b), fg, torch)  # fmt: skip
    yield _alike("algebra", "einsum ii", (normal(300, 300),), lambda m, a: m.einsum("ii->", a),
                 fg, torch)  # fmt: skip
    yield _alike("algebra", "distances by hand", (normal(200, 3), normal(300, 3)),
                 lambda m, a, b: ((a[:, None] - b[None]) ** 2).sum(-1), fg, torch)  # fmt: skip
    square = normal(20, 20)
    positive = square @ square.T + 20 * np.eye(20, dtype=np.float32)
    yield _alike("algebra", "solve 20", (positive, normal(20)),
                 lambda m, a, b: m.linalg.solve(a, b), fg, torch)  # fmt: skip
    for name in ("cholesky", "inv", "det"):
        yield _alike("algebra", f"{name} 20", (positive / 20,),
                     lambda m, a, n=name: getattr(m.linalg, n)(a), fg, torch)  # fmt: skip
    for name in ("outer", "kron"):
        part = normal(300) if name == "outer" else normal(20, 20)
        yield _alike("algebra", f"small {name}", (part, part),
                     lambda m, a, b, n=name: getattr(m, n)(a, b), fg, torch)  # fmt: skip
    yield _alike("algebra", "tril 300", (normal(300, 300),), lambda m, a: m.tril(a), fg, torch)


def numbers(fg: Any, torch: Any) -> Iterator[Row]:
    """Other dtypes: halves, doubles, bytes, casts."""
    wide, half = normal(100, 1000, dtype="float64"), normal(100, 1000).astype(np.float16)
    same: dict[str, Call] = {
        "exp": lambda m, a: m.exp(a), "tanh": lambda m, a: m.tanh(a),
        "sum 1": lambda m, a: a.sum(1),
        "a * a + a": lambda m, a: a * a + a, "log": lambda m, a: m.log(abs(a)),
    }  # fmt: skip
    for kind, array in (("float64", wide), ("float16", half)):
        for name, call in same.items():
            yield _alike("numbers", f"{kind} {name}", (array,), call, fg, torch)
    for dtype in ("float16", "int32", "float64", "bool"):
        yield Row("numbers", f"float32 to {dtype}", (normal(100, 1000),),
                  lambda a, d=dtype: a.astype(d),
                  torch and (lambda a, d=dtype: a.to(getattr(torch, d))),
                  lambda a, d=dtype: a.astype(d))  # fmt: skip
    picture = normal(3, 224, 224, dtype="uint8")
    yield _alike("numbers", "uint8 // 2", (picture,), lambda m, a: a // 2, fg, torch)
    yield _alike("numbers", "uint8 > 50", (picture,), lambda m, a: a > 50, fg, torch)
    yield Row("numbers", "uint8 to a normal float", (picture, normal(3, 1, 1)),
              lambda a, b: a.astype("float32") / 255 - b,
              torch and (lambda a, b: a.float() / 255 - b),
              lambda a, b: a.astype(np.float32) / np.float32(255) - b)  # fmt: skip


def moves(fg: Any, torch: Any) -> Iterator[Row]:
    """Places, scatters, and copies in another order, of 100,000 numbers or so."""
    x, index, image = normal(100, 1000), normal(1000, dtype="int64"), normal(8, 16, 28, 28)
    parts = tuple(normal(100, 200) for _ in range(5))
    same: dict[str, Call] = {
        "a[i]": lambda m, a, i: a[i],
        "a[i, j]": lambda m, a, i: a[i, i],
        "diff": lambda m, a, i: m.diff(a),
        "isin": lambda m, a, i: m.isin(i, i[:50]),
    }
    for name, call in same.items():
        yield _alike("moves", name, (x, index), call, fg, torch)
    for order in ((0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)):
        yield _alike("moves", f"permute {order}", (image,), lambda m, a, o=order: _whole(
            m, a.transpose(o) if m is np else m.permute(a, o)), fg, torch)  # fmt: skip
    yield _alike("moves", "concat of 5", parts,
                 lambda m, *a: m.concatenate(a, 1) if m is np else m.concat(a, 1), fg,
                 torch)  # fmt: skip
    yield _alike("moves", "stack of 5", parts, lambda m, *a: m.stack(a, -1), fg, torch)
    yield Row(
        "moves",
        "repeat",
        (normal(1000),),
        lambda a: fg.repeat(a, 10),
        torch and (lambda a: torch.repeat_interleave(a, 10)),
        lambda a: np.repeat(a, 10),
    )
    yield Row("moves", "take_along_axis", (x, np.argsort(x, 1)),
              lambda a, i: fg.take_along_axis(a, i, 1),
              torch and (lambda a, i: torch.take_along_dim(a, i, 1)),
              lambda a, i: np.take_along_axis(a, i, 1))  # fmt: skip
    yield Row("moves", "index_add", (normal(100, 64), index, normal(1000, 64)),
              lambda a, i, b: fg.index_add(a, 0, i, b),
              torch and (lambda a, i, b: a.index_add(0, i, b)))  # fmt: skip
    yield Row("moves", "scatter_add", (normal(100), normal(10_000, dtype="int64"), normal(10_000)),
              lambda a, i, b: fg.scatter_add(a, 0, i, b),
              torch and (lambda a, i, b: a.scatter_add(0, i, b)))  # fmt: skip


def programs(fg: Any, torch: Any) -> Iterator[Row]:
    """Loops as people write them, in which Python looks at what was computed."""
    x = normal(1000, 64)

    def zeros(m: Any, *shape: int) -> Any:
        return np.zeros(shape, np.float32) if m is np else m.zeros(shape)

    def running(m: Any, a: Any) -> Any:
        total = zeros(m, 64)
        for k in range(50):
            total = total + a[k]
        return total

    def looking(m: Any, a: Any) -> Any:
        total = 0.0
        for k in range(20):
            total += float(a[k].sum())
        return a[0] * 0 + total

    def rows(m: Any, a: Any) -> Any:
        out = zeros(m, 20, 64)
        for k in range(20):
            out[k] = a[k] * 2
        return out

    def masked(m: Any, a: Any) -> Any:
        out = a + 0
        out[out < 0] = 0
        out[:, 3] += 1
        out[::2, 1:5] = -1
        return out

    def kmeans(m: Any, a: Any) -> Any:
        centres = a[:5]
        for _ in range(5):
            labels = m.argmin(((a[:, None] - centres[None]) ** 2).sum(-1), 1)
            centres = m.stack([a[labels == k].mean(0) for k in range(5)])
        return centres

    def principal(m: Any, a: Any) -> Any:
        centred, way = a - a.mean(0), zeros(m, 64) + 1
        for _ in range(20):
            way = centred.T @ (centred @ way)
            way = way / (way * way).sum() ** 0.5
        return abs(way)

    for call in (running, looking, rows, masked, kmeans, principal):
        yield _alike("programs", call.__name__, (x,), call, fg, torch)


def _whole(module: Any, array: Any) -> Any:
    """A view in memory of its own."""
    return np.ascontiguousarray(array) if module is np else array.contiguous()


def _alike(
    group: str, name: str, arrays: tuple[np.ndarray, ...], call: Call, fg: Any, torch: Any
) -> Row:
    """A row that all systems say alike; a function of the system's module and its arrays."""
    return Row(group, name, arrays, lambda *a: call(fg, *a),
               torch and (lambda *a: call(torch, *a)), lambda *a: call(np, *a))  # fmt: skip


GROUPS = (
    elementwise, reductions, products, pictures, places, lines, layers, algebra, numbers, moves,
    programs,
)  # fmt: skip


def sweep(asked: argparse.Namespace) -> list[tuple[str, str, float, dict[str, float], str]]:
    """Every row: group, name, our seconds, those of peers, and what is wrong with it."""
    import fulgurite as fg

    try:
        import torch
    except ImportError:
        torch = None
    if torch:
        torch.set_num_threads(asked.threads)
        torch.set_grad_enabled(False)
    made = []
    for rows in GROUPS:
        for row in rows(fg, torch):
            text = f"{row.group} {row.name}"
            if asked.only and not any(o.lower() in text.lower() for o in asked.only):
                continue
            made.append((row.group, row.name, *measured(row, fg, torch, asked.seconds)))
            group, name, ours, peers, wrong = made[-1]
            best = min(peers.values(), default=math.nan)
            print(f"{group:11s} {name:28s} {ours * 1e6:9.1f} us, ratio {ours / best:5.2f} {wrong}",
                  file=sys.stderr, flush=True)  # fmt: skip
    return made


def measured(row: Row, fg: Any, torch: Any, seconds: float) -> tuple[float, dict[str, float], str]:
    """Least processor times of a row, and what is wrong with our answer."""
    mine = [fg.Tensor(a).realize() for a in row.arrays]
    calls: dict[str, Call] = {"ours": lambda: row.ours(*mine).realize()}
    if row.torch is not None:
        theirs, said = [torch.from_numpy(a) for a in row.arrays], row.torch
        calls["torch"] = lambda: said(*theirs)
    if row.numpy is not None:
        plain = row.numpy
        calls["numpy"] = lambda: plain(*row.arrays)
    try:
        found = np.asarray(calls["ours"]())
        others = [np.asarray(calls[n]()) for n in calls if n != "ours"]
    except Exception as problem:
        return math.nan, {}, f"failed: {type(problem).__name__}: {str(problem)[:60]}"
    wrong = "" if all(_is_near(found, other) for other in others) else "DIFFERS"
    least = dict.fromkeys(calls, math.inf)
    for call in (*calls.values(), *calls.values()):
        call()
    for _ in range(TURNS):
        for name, call in calls.items():
            end = time.perf_counter() + seconds / TURNS / len(calls)
            while True:
                start = time.process_time()
                call()
                took = time.process_time() - start
                least[name] = min(least[name], took or math.inf)  # the clock may stand still
                if time.perf_counter() > end:
                    break
    ours = least.pop("ours")
    return ours, least, wrong


def _is_near(found: np.ndarray, other: np.ndarray) -> bool:
    """True if two answers are the same but for rounding."""
    if found.shape != other.shape:
        return False
    scale = float(np.abs(other.astype(np.float64)).max(initial=1.0)) if other.size else 1.0
    return bool(np.allclose(found, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))


def report(rows: list[tuple[str, str, float, dict[str, float], str]]) -> str:
    """Means of groups, then the slowest rows."""
    ratios = {
        (g, n): ours / min(peers.values()) for g, n, ours, peers, _ in rows if peers and ours > 0
    }
    lines = ["| group | rows | mean ratio | largest |", "| --- | --- | --- | --- |"]
    for group in dict.fromkeys(g for g, *_ in rows):
        each = [r for (g, _), r in ratios.items() if g == group]
        if each:
            mean = math.exp(sum(map(math.log, each)) / len(each))
            lines.append(f"| {group} | {len(each)} | {mean:.2f} | {max(each):.2f} |")
    lines += ["", "| slowest rows | ours us | best peer us | ratio |", "| --- | --- | --- | --- |"]
    times = {(g, n): (ours, min(peers.values())) for g, n, ours, peers, _ in rows if peers}
    for key in sorted(ratios, key=lambda k: -ratios[k])[:ROWS]:
        ours, best = times[key]
        lines.append(
            f"| {' '.join(key)} | {ours * 1e6:.1f} | {best * 1e6:.1f} | {ratios[key]:.2f} |"
        )
    faults = [f"- {g} {n}: {wrong}" for g, n, _, _, wrong in rows if wrong]
    return "\n".join([*lines, "", *faults])


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing, a row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write bench/results/everyday-DATE.md")
    asked = parser.parse_args()
    os.environ["FULGURITE_THREADS"] = str(asked.threads)
    from bench.report import RESULTS, machine

    text = report(sweep(asked))
    about = machine(sys.executable, asked.threads)
    head = f"# Everyday functions beside NumPy and torch, {date.today()}\n\n{about['cpu']}, "
    head += (
        f"{about['vectors']}, {asked.threads} threads; commit {about['commit']}. Processor time; a "
    )
    head += "ratio is our time over the best peer's: below 1 we are faster.\n\n"
    print(head + text)
    if asked.save:
        (RESULTS / f"everyday-{date.today()}.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
