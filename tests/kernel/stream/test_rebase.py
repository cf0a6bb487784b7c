"""What has no factor or shift that holds on every prefix gives the numbers of the plain plan.

In: programs in which a sum or an extreme over a long axis is used once more over that axis, and
keys whose first half is unlike their second: what has been seen so far says little of the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

import fulgurite as fg
from tests.graph.searching import computed, same_kind

KEYS = 512
Weights: TypeAlias = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]


def _largest(s: fg.Tensor) -> fg.Tensor:
    return s.max(axis=-1, keepdims=True)


def _sum(s: fg.Tensor) -> fg.Tensor:
    return s.sum(axis=-1, keepdims=True)


def _spread(s: fg.Tensor, late: fg.Tensor) -> fg.Tensor:
    return late * (s - _sum(s * late) / _sum(late)) ** 2


def _weighed(s: fg.Tensor, late: fg.Tensor) -> fg.Tensor:
    p = fg.softmax(s * late, axis=-1)
    return fg.exp(s - _sum(p * s))


UNSETTLED: dict[str, Weights] = {
    "a share of a sum, some left out": lambda s, late: fg.where(
        late > 0, fg.relu(s) / _sum(fg.relu(s)), 0
    ),
    "a share of powers, some left out": lambda s, late: fg.where(
        late > 0, fg.exp(s) / _sum(fg.exp(s)), 0
    ),
    "a share of a share": lambda s, late: fg.relu(s) * fg.where(late > 0, 1 / _sum(fg.relu(s)), 2),
    "powers from the mean": lambda s, late: fg.exp((s - s.mean(axis=-1, keepdims=True)) / 9),
    "powers to the mean": lambda s, late: fg.exp((s.mean(axis=-1, keepdims=True) - s) / 9),
    "powers from a weighed mean": _weighed,
    "a term beside the distance": lambda s, late: fg.exp(s - _largest(s) + (1 - late) * 150),
    "twice the largest": lambda s, late: fg.exp(s - 2 * _largest(s)),
    "the largest without its sign": lambda s, late: fg.exp(s - fg.abs(_largest(s))),
    "the largest squared": lambda s, late: fg.exp(s - _largest(s) ** 2),
    "logarithms of a share": lambda s, late: fg.log(fg.relu(s) + 1e-9) - fg.log(_sum(fg.relu(s))),
    "powers of logarithms": lambda s, late: fg.exp(
        fg.log(fg.relu(s) + 1e-9) - fg.log(_sum(fg.relu(s)))
    ),
    "spread of what is left": _spread,
}


@pytest.mark.parametrize("first", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("name", UNSETTLED)
def test_what_is_not_settled_before_the_end_is_what_the_plain_plan_gives(
    name: str, first: float
) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, n, 16)).astype(np.float32) / 4 for n in (20, KEYS, KEYS))
    late = np.where(np.arange(KEYS) < KEYS // 2, 0, np.arange(KEYS) % 3 > 0).astype(np.float32)
    q[..., 0], k[:, : KEYS // 2, 0] = 1, first

    def make() -> fg.Tensor:
        scores = fg.Tensor(q) @ fg.Tensor(k).mT
        return UNSETTLED[name](scores, fg.Tensor(late)) @ fg.Tensor(v)

    plain, chosen = computed(make)
    assert same_kind(plain, chosen)
    known = np.isfinite(plain)
    size = np.abs(plain[known]).max(initial=1e-30)
    np.testing.assert_allclose(chosen[known], plain[known], rtol=1e-3, atol=1e-4 * size)
