"""Tests of fulgurite/functional/math/distances.py against the formula in NumPy."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import Array, check_gradients, raises, tensor

PS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]


def distances(a: Array, b: Array, p: float) -> Array:
    apart = np.abs(a[..., :, None, :] - b[..., None, :, :])
    if p == 0:
        return np.asarray((apart != 0).sum(-1).astype(a.dtype))
    found: Array = apart.max(-1) if p == np.inf else (apart**p).sum(-1) ** (1 / p)
    return found


@pytest.mark.parametrize("p", PS)
def test_distances_are_p_norms_of_differences(p: float) -> None:
    rng = np.random.default_rng(0)
    for first, second in (((3, 4), (5, 4)), ((2, 1, 3, 4), (5, 2, 4)), ((1, 1), (1, 1))):
        a, b = rng.normal(size=first), rng.normal(size=second)
        np.testing.assert_allclose(fg.cdist(tensor(a), tensor(b), p).numpy(), distances(a, b, p))
    for first, second in (((0, 4), (5, 4)), ((3, 4), (0, 4)), ((3, 0), (5, 0))):
        got = fg.cdist(fg.zeros(first), fg.zeros(second), p)
        assert got.shape == (first[0], second[0]) and not got.numpy().any()


@pytest.mark.parametrize("p", PS)
def test_coinciding_points_have_no_slope(p: float) -> None:
    a = np.array([[1.0, 2.0], [3.0, 5.0]])
    b = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 2.0]])
    slope = fg.grad(lambda a: fg.cdist(a, tensor(b), p).sum())(tensor(a)).numpy()
    assert np.isfinite(slope).all()
    own = fg.grad(lambda a: fg.cdist(a, a, p).trace())(tensor(a)).numpy()
    assert not own.any()


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_gradients_are_those_of_differences(p: float) -> None:
    rng = np.random.default_rng(1)
    check_gradients(
        lambda a, b: fg.cdist(a, b, p), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    )


def test_points_that_lie_close_lose_no_digits() -> None:
    a = np.array([[1e4, 1e4]], np.float32)
    b = a + np.float32(0.0078125)
    want = distances(a.astype(np.float64), b.astype(np.float64), 2)
    np.testing.assert_allclose(fg.cdist(tensor(a), tensor(b)).numpy(), want, rtol=1e-6)
    odd = fg.cdist(fg.Tensor([[float("nan"), 0.0], [float("inf"), 0.0]]), fg.zeros((1, 2)))
    np.testing.assert_array_equal(odd.numpy(), [[np.nan], [np.inf]])


def test_distances_work_under_transforms_and_in_other_dtypes() -> None:
    rows = fg.Tensor([[[0.0, 0.0]], [[3.0, 4.0]]])
    assert fg.vmap(lambda x: fg.cdist(x, rows[0]))(rows).tolist() == [[[0.0]], [[5.0]]]
    assert fg.jit(fg.cdist)(rows[1], rows[0]).tolist() == [[5.0]]
    assert fg.cdist(fg.Tensor([[0, 0]]), fg.Tensor([[3, 4]])).tolist() == [[5.0]]
    assert fg.cdist(rows.astype("float16"), rows.astype("float16")).dtype is fg.float16


def test_points_that_do_not_fit_are_errors() -> None:
    with raises(ShapeError):
        fg.cdist(fg.ones(3), fg.ones((2, 3)))
    with raises(ShapeError):
        fg.cdist(fg.ones((2, 3)), fg.ones((2, 4)))
    with raises(ArgumentError):
        fg.cdist(fg.ones((2, 3)), fg.ones((2, 3)), p=-1)
