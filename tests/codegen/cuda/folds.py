"""Folds for Hopper's own form of an online reduction: masks, scores, statistics, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cuda.tiling import HOPPER

GLUON = replace(HOPPER, gluon_stream=True, gluon_sums=True, stream_fast_exp=True)
Array = np.ndarray[Any, Any]


class Fold(NamedTuple):
    """Attention with a way to change scores, over queries (b, h, m, d) and keys (b, h, n, d)."""

    name: str
    scores: Callable[..., Any]  # of scores, rows and columns, and the module to do it in
    dtype: str = "bfloat16"
    shared: int = 1  # query heads for each head of keys and values
    statistics: bool = False  # is the log-sum-exp of rows a result as well?

    def inputs(
        self, b: int, h: int, m: int, n: int, d: int
    ) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shapes and dtypes of queries, keys and values."""
        if self.shared > 1:
            few = (b, h // self.shared, 1, n, d)
            shapes: list[Any] = [(b, h // self.shared, self.shared, m, d), few, few]
        else:
            shapes = [(b, h, m, d), (b, h, n, d), (b, h, n, d)]
        return tuple([(shape, self.dtype) for shape in shapes])

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        scores = (q @ fg.swapaxes(k, -1, -2)).astype("float32") * q.shape[-1] ** -0.5
        rows, columns = fg.arange(q.shape[-2])[:, None], fg.arange(k.shape[-2])
        scores = self.scores(scores, rows, columns, fg)
        top = scores.max(axis=-1, keepdims=True)
        weights = fg.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        found = (weights / total).astype(self.dtype) @ v
        return (found, top + fg.log(total)) if self.statistics else found

    def exact(self, q: Array, k: Array, v: Array) -> tuple[Array, ...]:
        """The same in float64."""
        q, k, v = (a.astype(np.float64) for a in (q, k, v))
        scores = (q @ np.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
        rows, columns = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
        with np.errstate(all="ignore"):
            scores = self.scores(scores, rows, columns, np)
            top = scores.max(-1, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(-1, keepdims=True)
            found = weights / total @ v
            return (found, top + np.log(total)) if self.statistics else (found,)


LOWEST = -float("inf")


def _unsigned(s: Any, r: Any, c: Any, x: Any) -> Any:
    """A mask and a bias by distances that wrap around."""
    apart = r.astype("uint32") - c.astype("uint32")
    return x.where(apart > 5, s + apart.astype("float32") * 1e-9, LOWEST)


FOLDS = (
    Fold("plain", lambda s, r, c, x: s),
    Fold("causal", lambda s, r, c, x: x.where(c <= r, s, LOWEST)),
    Fold("window", lambda s, r, c, x: x.where((c <= r) & (r < c + 300), s, LOWEST), "float16"),
    Fold("alibi", lambda s, r, c, x: x.where(c <= r, s + (c - r) * 0.0625, LOWEST)),
    Fold("turned", lambda s, r, c, x: x.where(c <= r, s * -3.0, LOWEST)),
    Fold("soft_cap", lambda s, r, c, x: x.tanh(s / 20.0) * 20.0),
    Fold("statistics", lambda s, r, c, x: x.where(c <= r, s, LOWEST), statistics=True),
    Fold("grouped", lambda s, r, c, x: x.where(c <= r, s, LOWEST), shared=4),
    # a number stands for -inf: whole blocks, and rows, have no other score
    Fold("padded", lambda s, r, c, x: x.where((c <= r) & (c >= 140), s, -3.4028234663852886e38)),
    Fold("unsigned", _unsigned),
    Fold("far", lambda s, r, c, x: s + x.where((c <= r) & (c >= 140), 0.0, -1e30)),
)  # fmt: skip


def fold(name: str) -> Fold:
    """One of them by name."""
    return next(f for f in FOLDS if f.name == name)


class Gradient(NamedTuple):
    """Gradients of attention from what its forward pass left: of queries, keys and values."""

    name: str
    scores: Callable[..., Any]
    rows: bool  # of queries
    columns: bool  # of keys and values
    dtype: str = "bfloat16"

    def inputs(
        self, b: int, h: int, m: int, n: int, d: int
    ) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Queries, keys, values, the result's gradient, and a row's maximum, sum and mean."""
        few, many, row = (b, h, m, d), (b, h, n, d), ((b, h, m, 1), "float32")
        return (
            (few, self.dtype),
            (many, self.dtype),
            (many, self.dtype),
            (few, self.dtype),
            *[row] * 3,
        )

    def __call__(self, *given: Any) -> Any:
        return self._of(fg, *given)

    def _of(self, x: Any, q: Any, k: Any, v: Any, g: Any, top: Any, total: Any, mean: Any) -> Any:
        scale = q.shape[-1] ** -0.5
        wide = "float32" if x is fg else "float64"
        rows, columns = x.arange(q.shape[-2])[:, None], x.arange(k.shape[-2])
        scores = (q @ x.swapaxes(k, -1, -2)).astype(wide) * scale
        weights = x.exp(self.scores(scores, rows, columns, x) - top) / (1 + total * total)
        grads = (g @ x.swapaxes(v, -1, -2)).astype(wide)
        scores = (weights * (grads - mean) * scale).astype(q.dtype)
        found = (scores @ k,) if self.rows else ()
        if self.columns:
            weights = x.swapaxes(weights.astype(q.dtype), -1, -2)
            found = *found, x.swapaxes(scores, -1, -2) @ q, weights @ g
        return found

    def exact(self, *given: Array) -> tuple[Array, ...]:
        """The same in float64."""
        with np.errstate(all="ignore"):
            found = self._of(np, *[a.astype(np.float64) for a in given])
        return found if isinstance(found, tuple) else (found,)


GRADIENTS = tuple([
    Gradient(f"{kind}_of_{one.name}", one.scores, kind != "keys", kind != "queries", one.dtype)
    for one in FOLDS if one.name not in ("statistics", "grouped")
    for kind in ("queries", "keys", "all")
])  # fmt: skip
