"""Sums over all of a matrix that is made of a product: rows first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.reduce import REDUCE
from fulgurite.graph.ir.queries import elements, is_contraction
from fulgurite.graph.passes.split_reduce import split_reduce
from tests.graph.searching import kinds, lowered, numbers, planned

Scores = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]
HEADS, ROWS, KEYS, SIZE = 3, 60, 70, 16


def _apart() -> fg.Tensor:
    return fg.abs(fg.arange(ROWS)[:, None] - fg.arange(KEYS)).cast(fg.float32)


LEARNED: dict[str, tuple[tuple[int, ...], Scores]] = {
    "a scale": ((1,), lambda s, t: s * t),
    "a temperature": ((1,), lambda s, t: s / fg.exp(t)),
    "a scale of each head": ((HEADS, 1, 1), lambda s, t: s * t),
    "a slope of each head": ((HEADS, 1, 1), lambda s, t: s - t * _apart()),
    "a bias of each key": ((KEYS,), lambda s, t: s + t),
    "a bias of each head and key": ((HEADS, 1, KEYS), lambda s, t: s + t),
    "a bias of each row": ((ROWS, 1), lambda s, t: fg.tanh(s + t)),
}


def _gradients(name: str, asked: bool = True, dtype: str = "float32") -> list[fg.Tensor]:
    shape, change = LEARNED[name]
    q, k, v, g = (
        numbers(i, 2, HEADS, n, SIZE).cast(dtype)
        for i, n in ((1, ROWS), (2, KEYS), (3, KEYS), (4, ROWS))
    )
    t = numbers(5, *shape).cast(dtype)

    def loss(*given: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        q, k, v, t = given
        found = fg.softmax(change(q @ k.mT * 0.25, t), axis=-1) @ v
        return (found * g).sum(), found

    (_, found), slopes = fg.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, t)
    return [found, *slopes] if asked else list(slopes)


@pytest.mark.device("none")
@pytest.mark.parametrize("name", LEARNED)
def test_what_scores_share_gets_its_adjoint_from_the_walk(name: str) -> None:
    found, _ = planned(*_gradients(name))
    assert kinds(found)[:3] == ["fold", "reduce", "fold"] and len(found.items) <= 4
    made = [s.shape for s in found.slots[found.inputs :] if s is not None]
    assert max(map(elements, made)) <= 2 * HEADS * KEYS * SIZE


@pytest.mark.parametrize("name", LEARNED)
def test_adjoints_are_as_exact_as_plain_ones(name: str) -> None:
    values = []
    for search, dtype in ((True, "float32"), (False, "float64")):
        with fg.config(search=search, tier="native"):
            found = fg.realize(*_gradients(name, dtype=dtype))
            values.append([t.numpy().astype(np.float64) for t in found])
    for a, b in zip(*values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


def _plain_sums(sink: Node) -> list[tuple[int, ...]]:
    found = [n for n in toposort([sink]) if n.op is REDUCE and not is_contraction(n)]
    return [n.arg[1] for n in found]


def test_a_sum_after_factors_is_one_with_the_sum_before_them() -> None:
    q, k, c = numbers(1, 4, 30, 8), numbers(2, 4, 40, 8), numbers(3, 30, 40)
    sink, _ = lowered((fg.exp(q @ k.mT).sum(axis=0) * c).sum())
    assert _plain_sums(sink) == [(0,), (0, 1)]
    assert _plain_sums(split_reduce(sink, toposort([sink]))) == [(2,), (0, 1)]


def test_sums_of_other_values_stay_one() -> None:
    x, w = numbers(1, 64, 30), numbers(2, 30, 8)
    for value in ((x * x).sum(), ((x @ w) ** 2).sum(), (x.sum(axis=0) * w[:, 0]).sum()):
        sink, _ = lowered(value)
        assert split_reduce(sink, toposort([sink])) is sink
