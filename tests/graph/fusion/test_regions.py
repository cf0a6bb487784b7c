"""Regions: which segments need not run, what one stores for others, what memory it takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core.node import Node
from fulgurite.graph.fusion.build_schedule import Segment
from fulgurite.graph.fusion.regions import Regions
from fulgurite.graph.ir.queries import elements
from fulgurite.runtime.pipeline import searcher
from tests.graph.fusion.regions_of import regions_of
from tests.graph.searching import numbers

pytestmark = pytest.mark.device("none")


def _large(regions: Regions) -> list[Node]:
    """Stored values of more than 100 thousand elements."""
    return [n for n in regions.graph.producer_of if elements(n.shape) > 100_000]


def _vanishing(regions: Regions) -> list[Node]:
    """Those of them that nobody need store: who reads them could compute them."""
    made, inlined = regions.graph.producer_of, set[int]().union(*regions.inlines.values())
    return [n for n in _large(regions) if made[n] in inlined & regions.may_vanish]


def _slopes(weigh: Callable[[fg.Tensor], fg.Tensor], *heads: int) -> list[fg.Tensor]:
    q, k, v, g = (numbers(i, *heads, 400, 32) for i in range(4))
    loss = lambda q, k, v: (weigh(q @ k.mT) @ v * g).sum()  # noqa: E731
    found: list[fg.Tensor] = list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))
    return found


@pytest.mark.parametrize("heads", [(), (2,)], ids=str)
def test_matrices_that_are_only_reduced_need_not_be_stored(heads: tuple[int, ...]) -> None:
    regions = regions_of(*_slopes(lambda s: fg.softmax(s, axis=-1), *heads))
    assert _large(regions) and _vanishing(regions) == _large(regions)
    assert not regions.may_vanish & {regions.graph.producer_of[n] for n in regions.graph.roots}


def test_a_matrix_that_is_needed_in_order_is_stored() -> None:
    q, k, v = (numbers(i, 400, 32) for i in range(3))
    assert _vanishing(regions_of(fg.cumsum(fg.relu(q @ k.mT), axis=0) @ v)) == []


@pytest.mark.parametrize("depth", [8, 300])
def test_a_deep_product_is_not_computed_in_blocks_unless_it_is_normalised(depth: int) -> None:
    """It takes longer than to write and read it; statistics would read it once more."""
    x, w = numbers(1, 800, depth), numbers(2, depth, 800)
    readers = numbers(3, 800, 32), numbers(4, 32, 800)
    hidden = fg.relu(x @ w)
    several = regions_of(hidden @ readers[0], readers[1] @ hidden)
    assert bool(_vanishing(several)) is (depth == 8)
    assert bool(_vanishing(regions_of(hidden @ readers[0]))) is (depth == 8)
    assert _vanishing(regions_of(fg.softmax(x @ w, axis=-1) @ readers[0]))


def _random_program(seed: int) -> list[fg.Tensor]:
    rng = np.random.default_rng(seed)
    sizes = [int(rng.choice((8, 16, 33, 64))) for _ in range(3)]
    b, (n, m, d) = int(rng.choice((1, 4))), sizes

    def program(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> list[fg.Tensor]:
        draw = np.random.default_rng(seed + 1000)
        pool, found = [q @ k.mT * 0.1], list[fg.Tensor]()
        for choice in draw.integers(0, 6, 5):
            s = pool[int(draw.integers(len(pool)))]
            if choice < 3:
                pool.append((fg.tanh(s), fg.softmax(s, axis=-1), fg.relu(s) * s)[choice])
            else:
                found.append((s @ v, s.mT @ q, s.sum(axis=-1))[choice - 3])
        return [*found, pool[-1] @ v]

    given = [numbers(seed + i, b, length, d) for i, length in enumerate((n, m, m))]
    if rng.random() < 0.4:
        return program(*given)

    def loss(*given: fg.Tensor) -> fg.Tensor:
        parts = [(x * x).sum() for x in program(*given)]
        return sum(parts[1:], parts[0])

    return list(fg.grad(loss, argnums=(0, 1, 2))(*given))


@pytest.mark.parametrize("seed", range(25))
def test_no_choice_needs_more_memory_at_once(seed: int) -> None:
    def choose(regions: Regions) -> list[Segment]:
        graph = regions.graph
        with fg.config(search=True):
            search = searcher(current())
        assert search is not None
        chosen = search(graph.segments, graph.roots)
        assert graph.peak_bytes(chosen) <= graph.peak_bytes(graph.segments)
        return chosen

    regions_of(*_random_program(seed), then=choose)


@pytest.mark.parametrize("asked", ["all", "some"])
def test_a_matrix_that_is_asked_for_is_stored_by_who_computes_it_on_its_way(asked: str) -> None:
    q, k, v, g = (numbers(i, 4, 200, 32) for i in range(4))

    def loss(q: fg.Tensor, k: fg.Tensor, bias: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT + bias, axis=-1) @ v * g).sum()

    found = list(fg.grad(loss, argnums=(0, 1, 2))(q, k, numbers(9, 4, 200, 200)))
    regions = regions_of(*(found if asked == "all" else found[:2]))
    stored = regions.side_outputs
    assert len(stored) == (asked == "all") and stored <= regions.graph.roots


def test_too_large_a_region_falls_apart_where_least_is_saved() -> None:
    x, w = numbers(1, 2, 64, 16), [numbers(i, 16, 16) for i in range(12)]
    for k in w:
        x = x + fg.softmax(x @ (x @ k).mT, axis=-1) @ (x @ k)
        x = (x - x.mean(axis=-1, keepdims=True)) * fg.rsqrt((x * x).mean(axis=-1, keepdims=True))
    regions = regions_of(x)
    assert 1 < max(map(len, regions.regions)) <= regions.budget.region_segments
