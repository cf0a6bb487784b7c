"""Tests of graph/fusion/horizontal/join_small_maps.py: which maps become one kernel."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.tables import GRAPH
from tests.graph.fusion.horizontal.test_join_column_sums import computed, numbers

pytestmark = pytest.mark.device("none")


def test_updates_of_one_shape_are_one_kernel_up_to_a_number() -> None:
    many = GRAPH.joined_maps + 3
    roots = [numbers(i, 10) * float(i) for i in range(many)] + [numbers(99, 7) + 1.0]
    found, values = computed(roots, joins=True)
    assert sorted([len(item.writes) for item in found.items]) == [1, 3, GRAPH.joined_maps]
    for got, root in zip(values, roots, strict=True):
        np.testing.assert_array_equal(got, root.numpy())


def test_large_maps_and_those_that_others_read_stay_apart() -> None:
    large = [numbers(i, 5000) + 1.0 for i in range(2)]
    read = (numbers(2, 40) + 1.0).contiguous()
    follows = fg.cumulative_sum(read, axis=0)
    roots = [*large, read, numbers(3, 40) + 2.0, follows]
    found, values = computed(roots, joins=True)
    assert all(len(item.writes) == 1 for item in found.items if item.kernel.kind == "map")
    for got, root in zip(values, roots, strict=True):
        np.testing.assert_allclose(got, root.numpy(), rtol=1e-6)


def test_arguments_of_a_kernel_are_bounded() -> None:
    each = 40
    roots = [sum([numbers(50 * i + k, 6) for k in range(each)], numbers(i, 6)) for i in range(12)]
    found, values = computed(roots, joins=True)
    sizes = [len(item.reads) + len(item.writes) for item in found.items]
    assert max(sizes) <= GRAPH.joined_params and len(sizes) == 2
    for got, root in zip(values, roots, strict=True):
        np.testing.assert_allclose(got, root.numpy(), rtol=1e-5)
