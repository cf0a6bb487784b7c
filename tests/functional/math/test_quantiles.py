"""Tests of fulgurite/functional/math/quantiles.py: NumPy is the oracle."""

import warnings
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import check_gradients, raises, tensor

METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]


@pytest.mark.parametrize("method", METHODS)
def test_quantiles_of_numbers_alone_are_numpys(method: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.choice([np.nan, 1.0, 2.0, -3.0, 4.5], (3, 4, 5))
    values[0, 0] = np.nan
    for q, keepdims in ((0.25, False), ([0.0, 0.5, 1.0], True)):
        for axis in (None, -1, (0, 2)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = np.nanquantile(values, q, axis, keepdims=keepdims, method=method)
            got = fg.nanquantile(tensor(values), q, axis, keepdims, method)
            assert got.shape == want.shape
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_percentiles_are_numpys(method: Any) -> None:
    values = np.random.default_rng(0).normal(size=(3, 8))
    holes = np.where(values > 1, np.nan, values)
    for q in (50, [0, 12.5, 100]):
        got = fg.percentile(tensor(values), q, 1, method=method)
        np.testing.assert_allclose(got.numpy(), np.percentile(values, q, 1, method=method))
        got = fg.nanpercentile(tensor(holes), tensor(np.array(q)), 1, method=method)
        np.testing.assert_allclose(got.numpy(), np.nanpercentile(holes, q, 1, method=method))


def test_medians_of_numbers_alone_and_other_names() -> None:
    nan = float("nan")
    x = fg.Tensor([[1.0, nan, 3.0, 9.0], [nan, nan, nan, nan]])
    assert fg.nanmedian(x[0]).item() == 3.0 and np.isnan(x.nanmedian(dim=1).numpy()[1])
    assert fg.quantile(x[0, 2:], 0.5, interpolation="lower").item() == 3.0  # type: ignore[call-arg]
    assert fg.nanquantile(fg.Tensor(2.0), 0.3).item() == 2.0
    assert fg.nanquantile(x, [[0.1], [0.7]], axis=1).shape == (2, 1, 2)  # as quantile
    assert fg.nanmedian(fg.Tensor([1, 4])).item() == 2.5
    assert fg.nanmedian(fg.Tensor([1, 4], dtype="float16")).dtype is fg.float16


@pytest.mark.parametrize("method", METHODS)
def test_an_infinity_is_an_element_like_others(method: Any) -> None:
    inf, nan = float("inf"), float("nan")
    x = fg.Tensor([inf, nan, -inf, 1.0, inf])
    assert fg.nanquantile(x, [0.0, 1 / 3, 1.0], method=method).tolist() == [-inf, 1.0, inf]
    assert fg.nanquantile(x[:2], 0.5, method=method).item() == inf


def test_quantiles_work_under_transforms() -> None:
    values = np.array([[4.0, np.nan, 1.0], [2.0, 8.0, 3.0]])
    want = np.nanmedian(values, 1)
    np.testing.assert_allclose(fg.vmap(fg.nanmedian)(tensor(values)).numpy(), want)
    np.testing.assert_allclose(fg.jit(lambda x: fg.nanmedian(x, 1))(tensor(values)).numpy(), want)
    check_gradients(lambda x: fg.nanquantile(x, [0.3, 0.9], axis=1), [[4.0, 2.0, 1.0], [2, 8, 3]])
    slope = fg.grad(lambda x: fg.nanmedian(x))(tensor(values[0]))
    assert slope.tolist() == [0.5, 0.0, 0.5]


def test_parts_that_are_none_are_errors() -> None:
    with raises(ArgumentError, "q is 101"):
        fg.percentile(fg.ones(3), 101)
    with raises(ArgumentError):
        fg.nanquantile(fg.ones(3), [0.5, -0.1])
    with raises(ArgumentError):
        fg.nanquantile(fg.ones(3), 0.5, method="wild")
    with raises(ShapeError):
        fg.nanmedian(fg.zeros(0))
