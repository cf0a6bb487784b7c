"""Tests of fulgurite/control/associative.py: folds one by one are the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, ShapeError
from tests.functional.helpers import check_gradients, raises, tensor


def affine(f: Any, g: Any) -> Any:
    """x -> a * x + b, one after the other: associative, not commutative."""
    return {"a": f["a"] * g["a"], "b": g["a"] * f["b"] + g["b"]}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_along_every_axis_are_running_sums(count: int, reverse: bool) -> None:
    for axis, shape in ((0, (count, 2)), (-1, (2, count)), (1, (2, count, 3))):
        values = np.random.default_rng(count).integers(-9, 9, shape)
        got = fg.associative_scan(fg.add, tensor(values), reverse, axis)
        order = np.flip(values, axis) if reverse else values
        want = np.cumsum(order, axis)
        want = np.flip(want, axis) if reverse else want
        again = fg.associative_scan(fg.add, tensor(values), reverse, dim=axis)  # type: ignore[call-arg]
        assert again.tolist() == got.tolist()
        assert got.dtype is fg.int64 and got.numpy().tolist() == want.tolist()


@pytest.mark.parametrize("count", [1, 6, 13])
def test_a_function_of_trees_that_does_not_commute_is_folded_in_order(count: int) -> None:
    rng = np.random.default_rng(count)
    elems = {"a": rng.normal(size=(count, 2)), "b": rng.normal(size=(count, 2))}
    for reverse in (False, True):
        got = fg.associative_scan(affine, {k: tensor(v) for k, v in elems.items()}, reverse)
        rows = [{k: v[i] for k, v in elems.items()} for i in range(count)]
        rows = rows[::-1] if reverse else rows
        totals = [rows[0]]
        for row in rows[1:]:
            totals.append(affine(totals[-1], row))
        want = np.stack([t["b"] for t in (totals[::-1] if reverse else totals)])
        np.testing.assert_allclose(got["b"].numpy(), want, rtol=1e-12)


def test_matrices_are_multiplied_in_order() -> None:
    many = np.random.default_rng(0).normal(size=(7, 2, 2))
    got = fg.associative_scan(fg.matmul, tensor(many)).numpy()
    want = [many[0]]
    for one in many[1:]:
        want.append(want[-1] @ one)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_odd_numbers_stay_where_they_are() -> None:
    values = np.array([1.0, -np.inf, 2.0, np.nan, 3.0])
    got = fg.associative_scan(fg.maximum, tensor(values)).numpy()
    np.testing.assert_array_equal(got, np.maximum.accumulate(values))
    truths = fg.associative_scan(lambda a, b: a | b, fg.Tensor([False, True, False]))
    assert truths.tolist() == [False, True, True]


def test_the_number_of_kernels_grows_with_the_logarithm() -> None:
    counts = []
    for size in (64, 1024):
        x = tensor(np.random.default_rng(0).normal(size=size))
        slope = fg.grad(lambda x: (fg.associative_scan(fg.add, x) ** 2).sum())(x)
        counts.append(len(fg.schedule(slope).items))
    assert counts[1] <= 2 * counts[0]


def test_it_has_derivatives_and_works_under_transforms() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5))
    check_gradients(lambda a, b: fg.associative_scan(affine, {"a": a, "b": b})["b"], a, b)
    rows = tensor(np.arange(12.0).reshape(3, 4))
    want = np.cumsum(rows.numpy(), 1)
    np.testing.assert_array_equal(
        fg.vmap(lambda row: fg.associative_scan(fg.add, row))(rows).numpy(), want
    )
    captured = fg.jit(lambda x: fg.associative_scan(fg.add, x, axis=1))
    np.testing.assert_array_equal(captured(rows).numpy(), want)
    _, moved = fg.jvp(lambda x: fg.associative_scan(fg.multiply, x), (rows[2],), (fg.ones(4),))
    assert moved.tolist()[:2] == [1.0, 17.0]


def test_mistakes_name_the_users_line() -> None:
    with raises(ArgumentError):
        fg.associative_scan(fg.add, [])
    with raises(ShapeError):
        fg.associative_scan(fg.add, (fg.ones(2), fg.ones(3)))
    with raises(ShapeError, "keeps shapes and dtypes"):
        fg.associative_scan(lambda a, b: (a + b).sum(), fg.ones(4))
    with raises(AxisError):
        fg.associative_scan(fg.add, fg.ones(3), axis=1)
    with raises(ArgumentError):
        fg.associative_scan(3, fg.ones(3))  # type: ignore[arg-type]
