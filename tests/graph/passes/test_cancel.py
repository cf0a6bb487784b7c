"""Sums of which nothing is left: what an extreme passes on where only differences from it count."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.elementwise import EQ
from fulgurite.graph.passes.cancel import cancel
from tests.graph.scheduling import reassociated
from tests.graph.searching import lowered, numbers

Weights = Callable[[fg.Tensor], fg.Tensor]


def _most(s: fg.Tensor) -> fg.Tensor:
    return s.max(axis=-1, keepdims=True)


def _total(s: fg.Tensor) -> fg.Tensor:
    return s.sum(axis=-1, keepdims=True)


def _divided(s: fg.Tensor) -> fg.Tensor:
    powers = fg.exp(s - _most(s))
    return powers / _total(powers)


def _of_two(s: fg.Tensor) -> fg.Tensor:
    powers = fg.exp2((s - _most(s)) * log2(e))
    return powers / _total(powers)


def _by_logarithm(s: fg.Tensor) -> fg.Tensor:
    most = _most(s)
    return fg.exp(s - (most + fg.log(_total(fg.exp(s - most)))))


def _from_the_larger(s: fg.Tensor, other: float) -> fg.Tensor:
    most = fg.maximum(_most(s), other)
    powers = fg.exp(s - most)
    return powers / (_total(powers) + fg.exp(other - most))


SAME: dict[str, Weights] = {
    "divided": _divided,
    "one more in the sum": lambda s: (
        fg.exp(s - _most(s)) / (_total(fg.exp(s - _most(s))) + fg.exp(-_most(s)))
    ),
    "from the larger of two": lambda s: _from_the_larger(s, 0.3),
    "powers of two": _of_two,
    "by a logarithm": _by_logarithm,
    "scaled": lambda s: 3 * _divided(s / 7 + 1),
    "from the least": lambda s: (
        fg.exp(s.min(axis=-1, keepdims=True) - s)
        / _total(fg.exp(s.min(axis=-1, keepdims=True) - s))
    ),
}
OTHER: dict[str, Weights] = {
    "a number beside the sum": lambda s: fg.exp(s - _most(s)) / (1 + _total(fg.exp(s - _most(s)))),
    "another number beside it": lambda s: (
        fg.exp(s - _most(s)) / (_total(fg.exp(s - _most(s))) + fg.exp(-2 * _most(s)))
    ),
    "no sum": lambda s: fg.exp(s - _most(s)),
    "two sums": lambda s: _divided(s) * _total(fg.exp(s - _most(s))),
    "another row": lambda s: fg.exp(s - _most(s)) / _total(fg.exp(s - _most(s)))[::-1],
}


def _graph(weigh: Weights, length: int = 33) -> tuple[Node, list[fg.Tensor]]:
    s, g = numbers(1, 5, length), numbers(2, 5, length)
    found = [fg.grad(lambda s: (weigh(s) * g).sum())(s)]
    return lowered(*found)[0], found


def _asks_for_ties(sink: Node) -> bool:
    return any(node.op is EQ for node in toposort([sink]))


@pytest.mark.parametrize("name", SAME)
def test_what_only_measures_gets_no_adjoint(name: str) -> None:
    sink, found = _graph(SAME[name])
    assert _asks_for_ties(sink)
    assert not _asks_for_ties(cancel(sink, toposort([sink])))
    with fg.config(search=False, tier="native", disk_cache=False):
        plain = _graph(SAME[name])[1][0].numpy()
    np.testing.assert_allclose(found[0].numpy(), plain, rtol=1e-5, atol=1e-6)


def test_what_is_left_of_the_sum_of_a_short_row_mends_it() -> None:
    sink, _ = _graph(_divided, 32)
    assert _asks_for_ties(cancel(sink, toposort([sink])))


@pytest.mark.parametrize("name", OTHER)
def test_what_counts_stays(name: str) -> None:
    sink, found = _graph(OTHER[name])
    assert _asks_for_ties(reassociated(sink))
    with fg.config(search=False, disk_cache=False):
        plain = _graph(OTHER[name])[1][0].numpy()
    np.testing.assert_allclose(found[0].numpy(), plain, rtol=1e-4, atol=1e-6)


def test_a_graph_without_extremes_is_the_same_graph() -> None:
    sink = lowered(fg.softmax(numbers(1, 5, 33), axis=-1) + numbers(2, 33))[0]
    assert cancel(sink, toposort([sink])) is sink


@pytest.mark.parametrize("name", ["divided", "one more in the sum", "from the larger of two"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_rows_without_numbers_stay_without(value: float, name: str) -> None:
    s = np.random.default_rng(3).normal(size=(6, 33)).astype(np.float32)
    s[1, 4] = value
    s[2] = value
    g = numbers(2, 6, 33)
    found = []
    for search in (False, True):
        with fg.config(search=search, tier="native"):
            found.append(fg.grad(lambda s: (SAME[name](s) * g).sum())(fg.Tensor(s)).numpy())
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(found[1]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_what_is_made_of_other_numbers_stays() -> None:
    x, w, y = numbers(1, 6, 33), numbers(2, 6, 33), numbers(3, 6, 33)
    rows = _total(x * w) - _total(w * x)
    sink = lowered(y + fg.where(x > y, 1.0, 0.0) * rows)[0]
    assert cancel(sink, toposort([sink])) is sink  # NaN in x would be lost


def test_what_is_divided_by_two_sums_is_told_once_nothing_is_left() -> None:
    def weights(s: fg.Tensor) -> fg.Tensor:
        s = s - _most(s)
        powers = fg.exp(s - _most(s))
        found = powers / (_total(powers) + fg.exp(-_most(s)))
        return found / (_most(fg.abs(found)) + 1.0)

    s, g = numbers(1, 40, 65), numbers(2, 40, 65)
    found = []
    for device in ("reference", "cpu"):
        with fg.config(device=device, tier="native"):
            a, b = fg.Tensor(s.numpy()), fg.Tensor(g.numpy())
            found.append(fg.grad(lambda s, b=b: (weights(s) * b).sum())(a).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-5)
