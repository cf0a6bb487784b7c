"""Segments: how much memory an order of them needs, and their per-row statistics."""

from __future__ import annotations

import pytest

import fulgurite as fg
from fulgurite.core.ops.indexing import GATHER
from fulgurite.core.ops.reduce import REDUCE
from tests.graph.fusion.regions_of import regions_of
from tests.graph.searching import numbers

pytestmark = pytest.mark.device("none")


def test_a_value_counts_from_when_it_is_made_to_when_it_is_last_read() -> None:
    x = numbers(1, 100, 100)
    y = fg.cumsum(x, axis=0)
    graph = regions_of(fg.cumsum(fg.cumsum(y, axis=1), axis=0) + y).graph
    assert graph.peak_bytes(graph.segments) == 3 * 100 * 100 * 4
    assert graph.peak_bytes(graph.segments[:1]) == 100 * 100 * 4


def test_with_the_statistics_of_its_row_each_element_stands_alone() -> None:
    q, k, v = (numbers(i, 2, 60, 16) for i in range(3))
    graph = regions_of(fg.softmax(q @ k.mT, axis=-1) @ v).graph
    (row,) = [i for i in range(3) if graph.is_reduction(i)]
    largest, total = graph.row_statistics(row)
    assert [n.op for n in (largest, total)] == [REDUCE] * 2 and largest.shape == total.shape
    assert graph.has_statistics(row) and not graph.is_statistic(row)


def test_few_elements_that_are_chosen_from_a_product_are_a_statistic() -> None:
    labels = fg.arange(60) % 7
    loss = fg.cross_entropy(numbers(1, 60, 32) @ numbers(2, 32, 200), labels)
    graph = regions_of(loss).graph
    picking = [i for i in range(len(graph.segments)) if graph.picks(i)]
    assert len(picking) == 1
    assert any(n.op is GATHER for n in graph.row_statistics(picking[0]))
