"""Graphs without their sizes, and sizes as expressions of a few of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.node import Node
from fulgurite.core.ops.leaf import iota
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.graph.ir.size_key import filled, fit, skeleton_of


def graph(n: int, m: int = 5) -> fg.Tensor:
    x = fg.Tensor(np.zeros((n, m), np.float32))
    return fg.concat([x, x[:1]]).reshape((n + 1) * m).sum(axis=0)


def test_graphs_of_one_skeleton_differ_in_sizes_alone() -> None:
    one, two = [normalize([graph(n).node]).structure for n in (7, 12)]
    (skeleton, sizes), (other, more) = skeleton_of(one), skeleton_of(two)
    assert skeleton == other and sizes != more
    assert filled(skeleton, sizes) == one and filled(skeleton, more) == two


def test_0_and_1_are_no_sizes_that_vary() -> None:
    one, two = [skeleton_of(normalize([graph(n).node]).structure)[0] for n in (1, 7)]
    assert one != two


def loop_result(x: fg.Tensor, number: int) -> Node:
    init = tuple([x + n for n in range(4)])
    carry, _ = fg.scan(lambda c, _: (tuple([a * 2 for a in c]), None), init, length=3)
    return carry[number].node  # type: ignore[no-any-return]


def test_axes_orders_and_numbers_of_results_are_no_sizes() -> None:
    x = fg.Tensor(np.zeros((4, 4, 4, 4), np.float32))
    made: list[Callable[[int], Node]] = [
        lambda k: build.polygamma(k, x.node), lambda k: fg.flip(x, (k,)).node,
        lambda k: fg.sort(x, k).node, lambda k: fg.cumulative_sum(x, axis=k).node,
        lambda k: fg.take(x, fg.Tensor([0, 3]), axis=k).node,
        lambda k: fg.sliding_window_view(x, 3, axis=k).node, lambda k: iota((4, 4, 4, 4), k),
        lambda k: loop_result(x, k),
    ]  # fmt: skip
    for graph in made:
        one, two = [skeleton_of(normalize([graph(k)]).structure)[0] for k in (2, 3)]
        assert one != two


def test_sizes_are_expressions_of_the_fewest() -> None:
    samples = [(n, 4, n + 1, 4 * n, 4 * (n + 1)) for n in (7, 12, 30)]
    found = fit(samples)
    assert found is not None and len(found.variables) == 1
    assert len(set(found.expressions)) == 4
    assert found.holds((9, 4, 10, 36, 40), samples[0])
    assert not found.holds((9, 4, 11, 36, 40), samples[0])
    assert not found.holds((9, 5, 10, 36, 40), samples[0])


def test_a_product_of_two_sizes_is_one_and_a_coincidence_ends() -> None:
    found = fit([(2, 3, 6), (4, 5, 20)])
    assert found is not None and len(found.variables) == 1  # 3 is 2 + 1, as 5 is 4 + 1
    assert not found.holds((6, 3, 18), (2, 3, 6))
    found = fit([(2, 3, 6), (4, 5, 20), (6, 3, 18)])
    assert found is not None and len(found.variables) == 2
    assert found.expressions[2] == ((("s0", "s1"), 1),) and found.holds((7, 9, 63), (2, 3, 6))
    assert not found.holds((7, 9, 64), (2, 3, 6))


def test_nothing_varies_in_equal_sizes() -> None:
    assert fit([(2, 3), (2, 3)]) is None


def test_a_size_that_was_0_at_first_has_multiples_too() -> None:
    found = fit([(0, 0, 6), (3, 6, 6), (5, 10, 6), (0, 0, 6)])
    assert found is not None and len(found.variables) == 1
    assert found.holds((7, 14, 6), (3, 6, 6)) and not found.holds((7, 15, 6), (3, 6, 6))
    assert fit([(0, 3, 0), (2, 0, 0), (0, 0, 1)]) is not None  # products of which are all 0
