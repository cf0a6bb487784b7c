"""Tests of graph/fusion/candidates.py.

Numbers of rows that are read, and made where others want them.
"""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.fusion.candidates import Candidates
from fulgurite.graph.ir.queries import elements
from tests.graph.fusion.regions_of import regions_of
from tests.graph.searching import kinds, numbers, planned, scarce_memory


def _weights(q: fg.Tensor, k: fg.Tensor) -> fg.Tensor:
    return fg.softmax(q @ k.mT * 0.25, axis=-1)


TWICE = {  # what every element needs of its whole row
    "a difference of weights": lambda q, k: _weights(q, k) - 0.3 * _weights(q * 2, k),
    "weights and a constant": lambda q, k: 0.9 * _weights(q, k) + 0.1 / 90,
    "small weights left out": lambda q, k: fg.where(_weights(q, k) > 0.01, _weights(q, k), 0),
    "no numbers left out": lambda q, k: fg.where(fg.isnan(_weights(q, k)), 0, _weights(q, k)),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_needs_its_whole_row_is_two_folds_without_a_matrix_of_scores(name: str) -> None:
    q, k, v = numbers(1, 4, 70, 16), numbers(2, 4, 90, 16), numbers(3, 4, 90, 16)

    def make() -> fg.Tensor:
        return TWICE[name](q, k) @ v

    with scarce_memory():
        found, _ = planned(make())
        with fg.config(device="cpu", tier="native", search=True):
            got = make().numpy()
    assert kinds(found) == ["fold", "fold"]
    largest = max([elements(s.shape) for s in found.slots[found.inputs :] if s is not None])
    assert largest <= 4 * 70 * 16
    with fg.config(device="reference", search=False):
        np.testing.assert_allclose(got, make().numpy(), rtol=1e-4, atol=1e-5)


def test_numbers_of_rows_that_are_asked_for_come_from_the_same_walk() -> None:
    q, k, v = numbers(1, 4, 70, 16), numbers(2, 4, 90, 16), numbers(3, 4, 90, 16)
    scores = q @ k.mT * 0.25
    most = scores.max(axis=-1, keepdims=True)
    powers = fg.exp(scores - most)
    total = powers.sum(axis=-1, keepdims=True)
    for asked in ([fg.logsumexp(scores, axis=-1)], [most, total], [total]):
        found, _ = planned(powers / total @ v, *asked)
        assert kinds(found) == ["fold"]


def test_no_candidate_stores_a_value_twice() -> None:
    """A statistic has two names where a segment stores what it needs for its elements."""

    def loss(x: fg.Tensor) -> fg.Tensor:
        return fg.group_norm(fg.log_softmax(x, axis=2), 60).sum()

    regions = regions_of(*fg.value_and_grad(loss)(numbers(1, 1, 60, 2)))
    for region in regions.regions:
        candidates = Candidates(regions, region)
        singles = [c for tries in candidates.singles() for some in tries for c in some]
        for candidate in (*singles, *candidates.joint(singles)):
            stored = regions.stores(candidate, region)
            assert len(set(stored)) == len(stored) > 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_of_rows_are_not_rounded_where_the_rest_is_worked_out_again(dtype: str) -> None:
    q, k, v = (numbers(i, 2, n, 16).cast(dtype).realize() for i, n in enumerate((70, 90, 90)))
    powers = fg.exp(q @ k.mT - (q @ k.mT).max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    with scarce_memory():
        found, _ = planned(fg.where(weights > 0.01, weights, 0) @ v)
    assert kinds(found) == ["fold", "fold"]
    between = [found.slots[slot] for slot in found.items[0].writes]
    assert all(slot is not None and slot.dtype is fg.float32 for slot in between)
