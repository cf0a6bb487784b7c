"""Inlining: which producers a streaming pass could compute itself, by access relations alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fulgurite as fg
from tests.graph.fusion.regions_of import regions_of
from tests.graph.searching import numbers

pytestmark = pytest.mark.device("none")

Q, K, V, G = (numbers(i, 2, n, 16) for i, n in ((1, 70), (2, 90), (3, 90), (4, 70)))
W = numbers(5, 16, 16)  # on the device of the others


def _inlined(*asked: fg.Tensor) -> dict[int, set[int]]:
    """What each segment could inline, by place."""
    regions = regions_of(*asked)
    return {place: set(found) for place, found in regions.inlines.items() if found}


def _last(*asked: fg.Tensor) -> set[int]:
    found = _inlined(*asked)
    return found[max(found)] if found else set()


def test_a_product_inlines_what_it_reduces_as_deep_as_that_goes() -> None:
    assert _last(fg.softmax(Q @ K.mT, axis=-1) @ V) == {0, 1}


def test_an_operand_of_an_inlined_product_stays_in_memory() -> None:
    keys = fg.relu(K @ W)  # a product in the sum of another
    regions = regions_of(fg.softmax(Q @ keys.mT, axis=-1) @ V)
    assert regions.inlines[3] == {1, 2}


def test_what_is_read_at_two_places_is_not_inlined() -> None:
    x = fg.relu(numbers(1, 1024, 4) @ numbers(2, 4, 1024))
    assert _last(x @ x) == set()
    assert _last(x @ numbers(3, 1024, 8)) == {0}


ACROSS: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "rows": lambda s: fg.softmax(s, axis=-1) @ V,
    "columns": lambda s: fg.softmax(s, axis=-2) @ V,
}


@pytest.mark.parametrize("name", ACROSS)
def test_a_reduction_across_rows_is_inlined_with_statistics_that_are_read(name: str) -> None:
    regions = regions_of(ACROSS[name](Q @ K.mT))
    (closure,) = [c for found in regions.closures.values() for c in found if len(c.levels) > 1]
    assert bool(closure.with_statistics) is (name == "columns")


def test_a_sum_of_the_same_pass_is_inlined_beside_another() -> None:
    powers = fg.exp(Q @ K.mT)
    found = _last(powers @ V / powers.sum(axis=-1, keepdims=True))
    assert len(found) == 2  # the product below, and the sum that divides


def test_a_statistic_of_something_else_is_read() -> None:
    scale = (G * G).sum(axis=-1, keepdims=True)  # along an axis of its own
    regions = regions_of(fg.exp(Q @ K.mT * scale) @ V)
    assert all(not regions.graph.is_statistic(p) for f in regions.inlines.values() for p in f)


def test_a_batch_axis_is_no_axis_of_blocks() -> None:
    """Summed over heads, no factor of a product stays the same along what is streamed."""
    assert _last((Q @ K.mT).sum(axis=0)) == set()


def test_elements_that_need_their_whole_row_inline_no_product() -> None:
    assert _last(fg.softmax(Q @ K.mT, axis=-1)) == set()


def test_results_of_one_producer_may_have_axes_of_their_own() -> None:
    """A batch norm stores statistics in two shapes, each with a loop of its own."""
    x, w, u = numbers(1, 6, 4), numbers(2, 4, 5), numbers(3, 5, 3)
    old = numbers(4, 5), numbers(5, 5)

    def loss(w: fg.Tensor, u: fg.Tensor) -> tuple[fg.Tensor, list[fg.Tensor]]:
        y = x @ w
        mean = y.mean(axis=0, keepdims=True)
        spread = ((y - mean) ** 2).mean(axis=0, keepdims=True)
        kept = [o * 0.9 + s.reshape((5,)) * 0.1 for o, s in zip(old, (mean, spread), strict=True)]
        z = fg.relu((y - mean) * fg.rsqrt(spread + 1e-5)) @ u
        return (z * z).sum(), kept

    (_, kept), slopes = fg.value_and_grad(loss, argnums=(0, 1), has_aux=True)(w, u)
    assert _inlined(*slopes, *kept)
