"""Tests of fulgurite/functional/math/statistics.py: NumPy is the oracle."""

import warnings
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import DTypeError, ShapeError
from tests.functional.helpers import Array, check_gradients, raises, tensor

RNG = np.random.default_rng(0)
DATA: dict[str, Array] = {
    "matrix": RNG.normal(size=(3, 7)),
    "line": RNG.normal(size=6),
    "number": np.array(2.0),
    "one observation": RNG.normal(size=(2, 1)),
    "none": np.zeros((2, 0)),
    "complex": RNG.normal(size=(3, 5)) + 1j * RNG.normal(size=(3, 5)),
    "level": np.ones((2, 4)),
    "far from 0": RNG.normal(size=(2, 50)) + 1e6,
    "odd": np.array([[1.0, np.nan, 2.0], [1.0, 2.0, np.inf]]),
    "whole": RNG.integers(0, 9, (2, 6)),
}


def alike(got: fg.Tensor, want: Any) -> None:
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-6 if got.dtype is fg.float32 else 1e-11)


@pytest.mark.parametrize("name", DATA)
def test_covariances_and_correlations_are_numpys(name: str) -> None:
    x = DATA[name]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for rowvar in (True, False) if x.ndim == 2 else (True,):
            alike(fg.cov(tensor(x), rowvar=rowvar), np.cov(x, rowvar=rowvar))
            alike(fg.cov(tensor(x), bias=True, rowvar=rowvar), np.cov(x, rowvar=rowvar, bias=True))
            alike(fg.corrcoef(tensor(x), rowvar=rowvar), np.corrcoef(x, rowvar=rowvar))
        alike(fg.cov(tensor(x), tensor(x) * 2), np.cov(x, x * 2))
        alike(fg.cov(tensor(x), ddof=2), np.cov(x, ddof=2))  # type: ignore[call-arg]
        if x.ndim and x.size:
            count = x.shape[-1]
            often, worth = np.arange(1, count + 1), np.linspace(0.5, 2, count)
            for weights in ({"fweights": often}, {"aweights": worth},
                            {"fweights": often, "aweights": worth}):  # fmt: skip
                mine: dict[str, Any] = {name: tensor(w) for name, w in weights.items()}
                alike(fg.cov(tensor(x), **mine), np.cov(x, **weights))
                alike(fg.cov(tensor(x), **mine, correction=0), np.cov(x, **weights, ddof=0))


def test_half_floats_are_computed_in_float32_and_nothing_exceeds_one() -> None:
    x = fg.Tensor(RNG.normal(size=(4, 100)), dtype="float16")
    found = fg.corrcoef(fg.concat([x, x * 2]))
    assert found.dtype is fg.float16 and fg.cov(x).dtype is fg.float16
    assert float(fg.abs(found.astype("float32")).max()) == 1.0


def test_covariances_work_under_transforms() -> None:
    x = RNG.normal(size=(2, 3, 5))
    np.testing.assert_allclose(
        fg.vmap(fg.cov)(tensor(x)).numpy(), np.stack([np.cov(part) for part in x])
    )
    alike(fg.jit(fg.corrcoef)(tensor(x[0])), np.corrcoef(x[0]))
    check_gradients(fg.cov, x[0])
    check_gradients(fg.corrcoef, x[0])
    check_gradients(lambda w: fg.cov(tensor(x[0]), aweights=w), np.linspace(0.5, 2, 5))


def test_observations_that_do_not_fit_are_errors() -> None:
    with raises(ShapeError):
        fg.cov(fg.ones((2, 2, 2)))
    with raises(ShapeError):
        fg.cov(fg.ones((2, 3)), aweights=fg.ones(2))
    with raises(DTypeError):
        fg.cov(fg.ones((2, 3)), fweights=fg.ones(3))
