"""Programs that no rule was written for, each of which should be one fold.

In: how numbers become tensors (`given`), so that a program can be had in any dtype. Out: results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import fulgurite as fg
from fulgurite.core.dtype import bfloat16
from fulgurite.core.op import Array

HEADS, QUERIES, KEYS, SIZE, CLASSES = 2, 70, 333, 32, 1000
Given = Callable[[Array], fg.Tensor]
Program = Callable[[Given], fg.Tensor | list[fg.Tensor]]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def labels(count: int = QUERIES) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(5).integers(0, CLASSES, count))


def _qkv(given: Given) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
    shapes = ((QUERIES, SIZE), (KEYS, SIZE), (KEYS, SIZE))
    q, k, v = (given(normal(i, HEADS, *shape)) for i, shape in enumerate(shapes))
    return q, k, v


def _attention(weigh: Callable[[fg.Tensor, Given], fg.Tensor]) -> Program:
    def program(given: Given) -> fg.Tensor:
        q, k, v = _qkv(given)
        return weigh(q @ k.mT * SIZE**-0.5, given) @ v

    return program


def _softmax(scores: fg.Tensor) -> fg.Tensor:
    return fg.softmax(scores, axis=-1)


def _distance() -> fg.Tensor:
    return fg.abs(fg.arange(QUERIES)[:, None] - fg.arange(KEYS)[None, :])


def _two_values(given: Given) -> list[fg.Tensor]:
    q, k, v = _qkv(given)
    p = _softmax(q @ k.mT)
    return [p @ v, p @ given(normal(7, HEADS, KEYS, SIZE))]


def _spread(given: Given) -> fg.Tensor:
    q, k, v = _qkv(given)
    p = _softmax(q @ k.mT * 0.2)
    return p @ (v * v) - (p @ v) ** 2


def _turned(given: Given) -> fg.Tensor:
    q, k, v = (given(normal(i, HEADS, SIZE, n)) for i, n in enumerate((QUERIES, KEYS, KEYS)))
    return v @ fg.softmax(k.mT @ q * 0.17, axis=-2)


def _einsum(given: Given) -> fg.Tensor:
    q, k, v = (given(normal(i, 1, n, HEADS, SIZE)) for i, n in enumerate((QUERIES, KEYS, KEYS)))
    p = _softmax(fg.einsum("bqhd,bkhd->bhqk", q, k) * 0.17)
    return fg.einsum("bhqk,bkhd->bqhd", p, v)


def _classes(given: Given) -> fg.Tensor:
    return given(normal(1, QUERIES, 64)) @ given(normal(2, 64, CLASSES) * 0.2)


def _entropy(given: Given) -> fg.Tensor:
    scores = _classes(given)
    return -(_softmax(scores) * fg.log_softmax(scores, axis=-1)).sum(axis=-1)


def _divergence(given: Given) -> fg.Tensor:
    q, k, other = _qkv(given)
    logs = [fg.log_softmax(q @ x.mT * 0.25, axis=-1) for x in (k, other)]
    return (fg.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1)


def _contrastive(given: Given) -> fg.Tensor:
    a, b = given(normal(1, 256, 32)), given(normal(2, 256, 32))
    return fg.cross_entropy(a @ b.mT / 5, fg.arange(256), reduction="none")


def _kept() -> fg.Tensor:
    kept = normal(9, HEADS, QUERIES, KEYS) > -1
    kept[:, ::5] = False
    return fg.Tensor(kept)


def _table(given: Given) -> fg.Tensor:
    apart = fg.arange(QUERIES)[:, None] - fg.arange(KEYS)[None, :] + KEYS
    return given(normal(7, HEADS, QUERIES + KEYS))[:, apart]


def _with_an_end(scores: fg.Tensor, given: Given) -> fg.Tensor:
    end = given(normal(7, HEADS, 1, 1)).expand((HEADS, QUERIES, 1))
    return _softmax(fg.concatenate([scores, end], axis=-1))[..., :-1]


def _divided_last(given: Given) -> fg.Tensor:
    q, k, v = _qkv(given)
    powers = fg.exp(q @ k.mT * SIZE**-0.5)
    return powers @ v / powers.sum(axis=-1, keepdims=True)


def _with_their_logarithm(given: Given) -> list[fg.Tensor]:
    q, k, v = _qkv(given)
    scores = q @ k.mT * SIZE**-0.5
    return [_softmax(scores) @ v, fg.logsumexp(scores, axis=-1)]


def _pictures(given: Given) -> fg.Tensor:
    q = given(normal(0, HEADS, QUERIES, 9))
    k, v = (given(normal(i, HEADS, 9, 37, n)) for i, n in ((1, 9), (2, SIZE)))
    scores = fg.einsum("bld,bhwd->blhw", q, k)
    powers = fg.exp(scores - scores.max(axis=(-2, -1), keepdims=True))
    return fg.einsum("blhw,bhwd->bld", powers / powers.sum(axis=(-2, -1), keepdims=True), v)


def _soft_labels(given: Given) -> fg.Tensor:
    wanted = given(np.abs(normal(7, QUERIES, CLASSES)) / CLASSES)
    return -(wanted * fg.log_softmax(_classes(given), axis=-1)).sum(axis=-1)


UNSEEN: dict[str, Program] = {
    "learned temperature": _attention(
        lambda s, given: _softmax(s / given(np.abs(normal(5, HEADS, 1, 1)) + 0.5))
    ),
    "distances as a bias": _attention(lambda s, given: _softmax(s - _distance() * 0.1)),
    "noise added": _attention(
        lambda s, given: _softmax((s + given(normal(6, HEADS, QUERIES, KEYS))) / 0.7)
    ),
    "a term beside the sum": _attention(
        lambda s, given: (
            fg.exp(s - s.max(axis=-1, keepdims=True))
            / (fg.exp(s - s.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True) + 0.5)
        )
    ),
    "sigmoids": _attention(lambda s, given: fg.sigmoid(s)),
    "large numbers for a mask": _attention(
        lambda s, given: _softmax(fg.where(_distance() < 40, s, -1e9))
    ),
    "weights dropped": _attention(
        lambda s, given: _softmax(s) * given((normal(9, HEADS, QUERIES, KEYS) > -1) * 1.0)
    ),
    "two values": _two_values,
    "weighted spread": _spread,
    "transposed": _turned,
    "einsum": _einsum,
    "pooling": lambda given: fg.logsumexp(_qkv(given)[0] @ _qkv(given)[1].mT, axis=-1),
    "smoothed labels": lambda given: fg.cross_entropy(
        _classes(given), labels(), label_smoothing=0.1, reduction="none"
    ),
    "one-hot labels": lambda given: (
        -(fg.log_softmax(_classes(given), axis=-1) * fg.one_hot(labels(), CLASSES)).sum(axis=-1)
    ),
    "entropy of classes": _entropy,
    "contrastive": _contrastive,
    "weights kept where a condition holds": _attention(
        lambda s, given: fg.where(_kept(), _softmax(s) / 0.7, 0)
    ),
    "distances in a table": _attention(lambda s, given: _softmax(s + _table(given))),
    "a number at the end of every row": _attention(_with_an_end),
    "powers less the logarithm of their sum": _attention(
        lambda s, given: fg.exp(s - fg.log(fg.exp(s).sum(axis=-1, keepdims=True)))
    ),
    "divided last": _divided_last,
    "with their logarithm": _with_their_logarithm,
    "soft labels": _soft_labels,
    "divergence": _divergence,
    "largest weight": lambda given: _softmax(_classes(given)).max(axis=-1),
    "rows of two axes": _pictures,
}


def results(name: str, given: Given) -> list[fg.Tensor]:
    found = UNSEEN[name](given)
    return found if isinstance(found, list) else [found]


def tensors(dtype: str) -> Given:
    if dtype == "bfloat16":
        return lambda a: fg.Tensor(a.astype(np.float32)).cast(bfloat16)
    return lambda a: fg.Tensor(a.astype(dtype))


def rounded(dtype: str) -> Given:
    """The numbers that a dtype has, in float64."""
    return lambda a: (
        tensors(dtype)(a).cast(fg.float32 if dtype == "bfloat16" else dtype).cast("float64")
    )
