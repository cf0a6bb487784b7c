"""Tests of fulgurite/functional/nn/interpolation.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, DTypeError, ShapeError
from tests.functional.helpers import HOSTILE, check_gradients, raises, tensor

POINTS: dict[str, tuple[list[float], list[Any]]] = {
    "plain": ([0.0, 1.0, 3.0, 4.0], [0.0, 10.0, -30.0, 5.0]),
    "ties": ([0.0, 1.0, 1.0, 2.0], [0.0, 1.0, 5.0, 6.0]),
    "ties at the ends": ([0.0, 0.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]),
    "infinite heights": ([0.0, 1.0, 2.0, 3.0], [0.0, np.inf, np.inf, -np.inf]),
    "complex": ([0.0, 2.0], [1j, 2 + 3j]),
    "two": ([-1.0, 2.5], [3.0, 4.0]),
    "many": (list(np.linspace(-3, 3, 99)), list(np.sin(np.linspace(-3, 3, 99)))),
}


@pytest.mark.parametrize("name", POINTS)
def test_interpolation_is_numpys(name: str) -> None:
    xp, fp = (np.array(part) for part in POINTS[name])
    x = np.concatenate([HOSTILE, xp, np.linspace(-2, 5, 29)])
    for keywords in ({}, {"left": -7.0, "right": 8.0}, {"period": 3.5}):
        if "period" in keywords:
            x = x[np.isfinite(x) & (np.abs(x) < 1e6)]
        with np.errstate(all="ignore"):
            want = np.interp(x, xp, fp, **keywords)
        if "ties" in name and "period" in keywords:
            continue  # the order of equal places is anybody's
        got = fg.interp(tensor(x), tensor(xp), tensor(fp), **keywords)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def test_one_point_is_a_level_line_and_shapes_are_those_of_x() -> None:
    x = fg.Tensor([[0.0, 2.0], [3.0, float("nan")]])
    assert fg.interp(x, [2.0], [5.0], left=1.0, right=9.0).tolist()[0] == [1.0, 5.0]
    assert fg.interp(0.5, [0, 1], [0, 10]).item() == 5.0
    assert fg.interp(fg.zeros((0, 2)), [0.0, 1.0], [0.0, 1.0]).shape == (0, 2)
    assert fg.interp(fg.ones(2, "float16"), fg.ones(2, "float16"), fg.ones(2, "float16")).dtype is (
        fg.float16
    )


def test_slopes_are_those_of_the_lines_at_the_points_too() -> None:
    xp, fp = tensor(np.array([0.0, 1.0, 3.0])), tensor(np.array([0.0, 10.0, 0.0]))
    slope = fg.grad(lambda x: fg.interp(x, xp, fp).sum())
    assert slope(tensor(np.array([-1.0, 0.0, 0.5, 1.0, 3.0, 9.0]))).tolist() == [
        0.0, 10.0, 10.0, -5.0, -5.0, 0.0,
    ]  # fmt: skip
    x = np.array([-1.0, 0.3, 2.2, 9.0])
    check_gradients(lambda x, f: fg.interp(x, xp, f), x, fp.numpy())
    check_gradients(lambda p: fg.interp(tensor(x), p, fp), xp.numpy())
    ties = tensor(np.array([0.0, 1.0, 1.0]))
    assert np.isfinite(fg.grad(lambda x: fg.interp(x, ties, fp).sum())(tensor(x)).numpy()).all()


def test_interpolation_works_under_transforms() -> None:
    xp, fp = fg.Tensor([[0.0, 1.0], [0.0, 2.0]]), fg.Tensor([[0.0, 1.0], [3.0, 5.0]])
    rows = fg.vmap(fg.interp, in_axes=(None, 0, 0))(fg.Tensor([0.5, 1.5]), xp, fp)
    assert rows.tolist() == [[0.5, 1.0], [3.5, 4.5]]
    assert fg.jit(fg.interp)(fg.Tensor([0.5]), xp[0], fp[0]).tolist() == [0.5]


def test_points_that_do_not_fit_are_errors() -> None:
    with raises(ShapeError):
        fg.interp(1.0, [0.0, 1.0], [0.0])
    with raises(ShapeError):
        fg.interp(1.0, fg.zeros(0), fg.zeros(0))
    with raises(ArgumentError):
        fg.interp(1.0, [0.0, 1.0], [0.0, 1.0], period=0)
    with raises(DTypeError):
        fg.interp(1j, [0.0, 1.0], [0.0, 1.0])
