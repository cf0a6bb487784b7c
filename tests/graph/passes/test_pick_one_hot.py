"""Sums of one-hot rows are picked: no row is walked, and every bit is that of the sum."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import float64, int8
from fulgurite.core.node import toposort
from fulgurite.core.ops.elementwise import NEG, WHERE
from fulgurite.core.ops.leaf import iota
from fulgurite.core.ops.reduce import REDUCE
from fulgurite.tensor import wrap

VALUES = np.array([1.5, -0.0, 0.0, np.inf, -np.inf, np.nan, -3.0, 1e-45], np.float32)


def sums(kind: str, places: list[int], count: int) -> fg.Tensor:
    """Sums of rows that are 0 but at one place, which may be outside."""
    values = fg.Tensor(VALUES[: len(places)])[:, None]
    hit = fg.arange(count)[None, :] == fg.Tensor(np.array(places))[:, None]
    rows = fg.where(hit, values, 0.0)
    return {"plain": rows, "negative": -rows}[kind].sum(axis=1)


def folds(y: fg.Tensor) -> int:
    with fg.config(tier="native"):
        items = fg.schedule(y).items
    return sum([n.op is REDUCE for i in items for n in toposort([i.kernel.body])])


@pytest.mark.parametrize("kind", ["plain", "negative"])
@pytest.mark.parametrize("count", [2, 7, 33])
def test_a_picked_value_has_the_bits_of_the_sum(kind: str, count: int) -> None:
    places = [0, 1, count - 1, 0, 1, count - 1, count, -1]
    found = sums(kind, places, count)
    assert folds(found) == 0
    values = found.numpy()
    rows = np.where(np.arange(count) == np.array(places)[:, None], VALUES[:, None], np.float32(0))
    wanted = (-rows if kind == "negative" else rows).sum(axis=1, dtype=np.float32)
    np.testing.assert_array_equal(values, wanted)
    if kind == "plain":  # whether a sum of negative zeros is one, NumPy and our kernels say apart
        np.testing.assert_array_equal(np.signbit(values), np.signbit(wanted))


def test_the_gradient_of_a_cross_entropy_sums_no_row_that_is_not_read() -> None:
    x = fg.Tensor(np.random.default_rng(0).standard_normal((40, 3000)).astype(np.float32))
    y = fg.Tensor(np.arange(40) * 7)
    grad = fg.grad(lambda x: fg.cross_entropy(x, y))(x)
    with fg.config(tier="native"):
        bodies = [i.kernel.body for i in fg.schedule(grad).items]
    rows = [n for n in toposort(bodies) if n.op is REDUCE and n.src[0].shape == (40, 3000)]
    assert rows
    assert not any([n.src[0].op is WHERE or n.src[0].op is NEG for n in rows])
    p = np.exp(x.numpy() - x.numpy().max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(40), np.arange(40) * 7] -= 1
    np.testing.assert_allclose(grad.numpy(), p / 40, rtol=1e-4, atol=1e-7)


def test_other_sums_are_left_alone() -> None:
    x = fg.Tensor(np.ones((3, 5), np.float32))
    hit = fg.arange(5)[None, :] == fg.Tensor(np.arange(3))[:, None]
    assert folds(fg.where(hit, x, 0.0).sum(axis=1)) == 1  # a gather: values vary along the row
    assert folds(fg.where(hit, x[:, :1], 1.0).sum(axis=1)) == 1  # the others count
    assert folds(fg.where(hit, x[:, :1], 0.0).max(axis=1)) == 1


@pytest.mark.parametrize("count", [128, 300])
def test_numbers_of_a_dtype_that_ends_before_the_row_are_left_alone(count: int) -> None:
    number = wrap(iota((1, count), 1, int8))
    hit = number == fg.Tensor(np.array([1, 44, -1, 127], np.int8))[:, None]
    found = fg.where(hit, fg.Tensor(VALUES[:4])[:, None], 0.0).sum(axis=1)
    assert folds(found) == 1
    numbers = np.arange(count).astype(np.int8)
    rows = np.where(numbers == np.array([1, 44, -1, 127])[:, None], VALUES[:4, None], 0)
    np.testing.assert_array_equal(found.numpy(), rows.sum(axis=1, dtype=np.float32))


def test_a_fraction_is_the_number_of_no_element() -> None:
    hit = wrap(iota((1, 7), 1, float64)) == fg.Tensor(np.array([[1.5], [2.0]]))
    values = fg.where(hit, fg.Tensor(np.array([[3], [4]], np.float32)), 0.0).sum(axis=1)
    assert folds(values) == 1
    np.testing.assert_array_equal(values.numpy(), [0, 4])
