"""Tests of graph/memory/reorder.py: what frees memory runs early, and every order still works."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.dtype import float32
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.graph.ir.kernel import Item, Kernel, Slot
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.memory.reorder import sooner

pytestmark = pytest.mark.device("none")

KERNEL = Kernel(KernelKind.MAP, SINK(param(0, (), float32)), 1)


def item(reads: list[int], writes: list[int], kind: str = "map") -> Item:
    return Item(Kernel(KernelKind(kind), KERNEL.body, len(reads)), tuple(reads), tuple(writes), ())


def slots(*sizes: int) -> list[Slot | None]:
    return [Slot(float32, (n,), None) for n in sizes]


def test_a_result_that_ends_its_inputs_runs_as_soon_as_it_can() -> None:
    chain = [item([0], [1]), item([1], [2]), item([2], [3]), item([3], [5]), item([1], [4])]
    order = sooner(chain, slots(8, 8, 8, 9, 8, 8), {4, 5})
    assert [i.writes[0] for i in order] == [1, 2, 4, 3, 5]  # what makes 4 is the last to read 1


def test_what_begins_more_than_it_ends_stays_where_it_is() -> None:
    chain = [item([0], [1]), item([1], [2]), item([2], [3]), item([1], [4]), item([4, 3], [5])]
    order = sooner(chain, slots(8, 8, 8, 8, 9, 8), {5})
    assert order == chain


def test_a_few_numbers_that_are_made_of_inputs_come_first() -> None:
    chain = [item([0], [1]), item([1], [2]), item([3], [4]), item([1, 4], [5]), item([2], [6])]
    order = sooner(chain, slots(99, 99, 99, 1, 1, 99, 99), {5, 6})
    assert [i.writes[0] for i in order] == [4, 1, 5, 2, 6]  # and what waits for them need not
    order = sooner(chain, slots(99, 99, 99, 99, 99, 99, 99), {5, 6})
    assert [i.writes[0] for i in order] == [1, 2, 6, 4, 5]


def test_what_has_effects_does_not_move() -> None:
    for kind in ("host", "assign", "loop"):
        chain = [item([0], [1]), item([1], [2]), item([2], [3]), item([1], [4], kind)]
        assert sooner(chain, slots(8, 8, 8, 8, 8), {3, 4}) == chain


@given(st.data())
def test_any_order_it_gives_has_all_items_and_sources_first(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    chain = []
    for number in range(count):
        reads = data.draw(st.lists(st.integers(0, number), min_size=1, max_size=3, unique=True))
        chain.append(item(reads, [number + 1], data.draw(st.sampled_from(["map", "host"]))))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=count + 1, max_size=count + 1))
    results = set(data.draw(st.lists(st.integers(1, count), max_size=3))) | {count}
    order = sooner(chain, slots(*sizes), results)
    assert sorted(i.writes[0] for i in order) == list(range(1, count + 1))
    known = {0}
    for found in order:
        assert set(found.reads) <= known
        known |= set(found.writes)


def test_gradients_of_weights_do_not_wait_for_each_other() -> None:
    random = np.random.default_rng(0)
    weights = [fg.Tensor(random.normal(size=(16, 16)).astype(np.float32)) for _ in range(6)]
    x = fg.Tensor(random.normal(size=(256, 16)).astype(np.float32))

    def loss(weights: list[fg.Tensor]) -> fg.Tensor:
        h = x
        for w in weights:
            h = fg.tanh(h @ w)
        return h.sum()

    grads = fg.grad(loss)(weights)
    fixed = (7 * 16 * 16 + 6 * 16 * 16) * 4 + 256 * 16 * 4  # inputs and results
    kept = fg.explain(*grads).peak_bytes - fixed
    assert kept <= 8.5 * 256 * 16 * 4  # six activations and what is flowing, not six more gradients
