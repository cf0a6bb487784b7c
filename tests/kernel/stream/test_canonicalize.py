"""Tests of kernel/stream/canonicalize.py: small floats in memory alone, and one-hot sums."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import bfloat16, float16
from fulgurite.core.node import toposort
from fulgurite.core.ops.index import FOLD, LOAD, STORE
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import elements
from fulgurite.kernel.stream.canonicalize import (
    distribute_bases,
    gather_one_hot,
    widen_small_floats,
)
from fulgurite.kernel.transform.merge_axes import merge_axes
from tests.graph.searching import error, kinds, lowered, numbers, one_fold, planned, scarce_memory
from tests.graph.unseen import (
    CLASSES,
    HEADS,
    KEYS,
    QUERIES,
    SIZE,
    UNSEEN,
    labels,
    normal,
    results,
    tensors,
)


# two small products without rows between them are not looked at
@pytest.mark.device("none")
@pytest.mark.parametrize("name", [name for name in UNSEEN if name != "sigmoids"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_programs_nobody_thought_of_are_one_fold_without_a_matrix(name: str, dtype: str) -> None:
    with scarce_memory():
        schedule, _ = planned(*results(name, tensors(dtype)))
    found = kinds(schedule)
    assert found.count("fold") == 1 and not set(found) - {"fold", "map"}
    kept = [schedule.slots[slot] for item in schedule.items for slot in item.writes]
    largest = max([elements(slot.shape) for slot in kept if slot is not None])
    assert largest <= HEADS * max(QUERIES, KEYS) * SIZE


@pytest.mark.parametrize("turned", [False, True])
def test_a_loss_over_many_classes_and_its_gradient_keep_no_scores(turned: bool) -> None:
    rows, classes, size = 256, 32_000, 64
    x = fg.zeros((rows, size)).realize()
    w = fg.zeros((classes, size) if turned else (size, classes)).realize()
    places = fg.zeros((rows,), dtype="int64").realize()

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return fg.cross_entropy(x @ (w.mT if turned else w), places)

    value, slopes = fg.value_and_grad(loss, argnums=(0, 1))(x, w)
    for asked, want in (([loss(x, w)], 1), ([value, slopes[0]], 1), ([value, *slopes], 2)):
        schedule, _ = planned(*asked)
        assert 1 <= kinds(schedule).count("fold") <= want and "contract" not in kinds(schedule)
        kept = [schedule.slots[slot] for item in schedule.items for slot in item.writes]
        assert all(slot is None or elements(slot.shape) < rows * classes for slot in kept)


# --- small floats --------------------------------------------------------------------------------


def _stores(*results: fg.Tensor) -> tuple[tuple[object, ...], list[int]]:
    sink, inputs = lowered(*results)
    kernel = merge_axes(lower(sink, inputs))
    return kernel.body.src, [n for n in kernel.axes if isinstance(n, int)]


def test_small_floats_are_in_memory_alone() -> None:
    x = fg.Tensor(normal(1, 20, 30).astype(np.float16))
    stores, _ = _stores(fg.softmax(x * 3 + 1, axis=-1))
    found = toposort(widen_small_floats(stores))  # type: ignore[arg-type]
    small = [n for n in found if n.dtype in (float16, bfloat16)]
    assert {n.op for n in small} - {LOAD} and all(
        n.op is LOAD or n in [s.src[0] for s in found if s.op is STORE] for n in small
    )


def test_a_number_of_numpy_that_widens_scores_leaves_one_fold() -> None:
    def make(dtype: str = "float32") -> fg.Tensor:
        q, k, v = (numbers(i, 2, n, 16).cast(dtype) for i, n in ((1, 60), (2, 70), (3, 70)))
        return fg.softmax(q @ k.mT / np.sqrt(16), axis=-1) @ v  # float64, as NumPy has it

    assert make().dtype is fg.float64
    with scarce_memory():
        schedule, _ = planned(make())
    assert kinds(schedule) == ["fold"]
    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        np.testing.assert_allclose(got, make("float64").numpy(), rtol=1e-13, atol=1e-15)


def test_what_has_no_small_floats_stays_as_it_is() -> None:
    stores, _ = _stores(fg.softmax(numbers(1, 20, 30), axis=-1))
    assert widen_small_floats(stores) == tuple(stores)  # type: ignore[arg-type]


# --- one-hot sums --------------------------------------------------------------------------------


def _folds(result: fg.Tensor) -> int:
    stores, sizes = _stores(result)
    return sum([n.op is FOLD for n in toposort(gather_one_hot(stores, sizes))])  # type: ignore[arg-type]


def _hit() -> fg.Tensor:
    found: fg.Tensor = fg.arange(CLASSES)[None, :] == labels()[:, None]
    return found


def test_a_sum_of_which_one_element_counts_is_that_element() -> None:
    x = numbers(1, QUERIES, CLASSES)
    assert _folds(fg.where(_hit(), x, 0.0).sum(axis=-1)) == 0
    assert _folds((x * fg.one_hot(labels(), CLASSES)).sum(axis=-1)) == 0
    assert _folds((x + fg.where(_hit(), x, 0.0)).sum(axis=-1)) == 1  # the other summand's
    assert _folds(fg.where(_hit(), x, 1.0).sum(axis=-1)) == 1
    assert _folds(fg.where(_hit(), x, 0.0).max(axis=-1)) == 1


@pytest.mark.parametrize("outside", [-1, CLASSES, 10**6])
def test_a_place_outside_gives_nothing(outside: int) -> None:
    places = np.random.default_rng(5).integers(0, CLASSES, QUERIES)
    places[::3] = outside

    def make() -> fg.Tensor:
        scores = numbers(1, QUERIES, 16) @ numbers(2, 16, CLASSES)
        hit = fg.arange(CLASSES)[None, :] == fg.Tensor(places)[:, None]
        total = fg.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1)
        return fg.where(hit, scores, 0.0).sum(axis=-1) / total

    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        want = make().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    assert not got[::3].any()


def test_a_place_of_a_row_is_not_read_inside_a_sum_over_rows() -> None:
    places = np.random.default_rng(5).integers(0, 48, 48)

    def make() -> fg.Tensor:
        x, w = numbers(1, 48, 48), numbers(2, 48, 48)
        hit = fg.arange(48)[None, :] == fg.Tensor(places)[:, None]
        picked = fg.where(hit, x.sum(axis=0, keepdims=True), 0.0)  # rows and sum share an axis
        return picked.sum(axis=-1) / fg.exp(w - w.max(axis=-1, keepdims=True)).sum(axis=-1)

    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        want = make().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_masked_classes_make_a_smoothed_loss_infinite() -> None:
    def make() -> fg.Tensor:
        scores = numbers(1, 40, 16) @ numbers(2, 16, 900)
        scores = fg.where(fg.arange(900)[None, :] < fg.arange(40)[:, None] * 30, -inf, scores)
        return fg.log_softmax(scores, axis=-1).mean(axis=-1)

    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        want = make().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert np.isneginf(want[1:30]).all() and np.isnan(want[30:]).all()


# --- logarithms of sums --------------------------------------------------------------------------


def test_no_weight_is_measured_from_a_logarithm_that_moves() -> None:
    scores = numbers(1, QUERIES, CLASSES)
    logs = fg.log_softmax(scores, axis=-1)
    for result, more in (((fg.softmax(scores, axis=-1) * logs).sum(axis=-1), 1), (logs.sum(), 0)):
        stores, _ = _stores(result)
        before, after = (
            sum([n.op is FOLD for n in toposort(s)])  # type: ignore[arg-type]
            for s in (stores, distribute_bases(stores))  # type: ignore[arg-type]
        )
        assert after == before + more


def test_an_entropy_is_as_exact_as_the_reference() -> None:
    def make(dtype: str) -> fg.Tensor:
        scores = (numbers(1, 200, 32) @ numbers(2, 333, 32).mT * 0.2).cast(dtype)
        return -(fg.softmax(scores, axis=-1) * fg.log_softmax(scores, axis=-1)).sum(axis=-1)

    with one_fold():
        got = make("float32").numpy()
    with fg.config(device="reference", search=False):
        known, exact = make("float32").numpy(), make("float64").numpy()
    assert error(got, exact) <= 1.5 * error(known, exact)


def test_a_sign_before_logarithms_that_are_weighed_stays() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        scores = (numbers(1, 15, 8) @ numbers(2, 65, 8).mT).cast(dtype)
        weights, values = fg.abs(numbers(3, 15, 65)).cast(dtype), numbers(4, 65, 8).cast(dtype)
        less = -fg.log_softmax(scores, axis=-1)
        return [
            (less * weights).sum(axis=-1),
            (less * weights) @ values,
            (-less * weights) @ values,
        ]

    for number in range(3):
        with fg.config(tier="native", device="cpu"), one_fold():
            got = make("float32")[number].numpy()
        with fg.config(device="reference", search=False):
            exact = make("float64")[number].numpy()
        np.testing.assert_allclose(got, exact, rtol=1e-3, atol=1e-3)
