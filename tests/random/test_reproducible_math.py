"""Tests of random/reproducible_math.py.

Accurate enough to sample with, and the same bits everywhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import DType
from fulgurite.core.node import Node
from fulgurite.core.op import Array
from fulgurite.random import reproducible_math
from fulgurite.tensor import wrap

KINDS = pytest.mark.parametrize("dtype", [fg.float32, fg.float64], ids=str)


def run(function: Callable[[Node], Node], x: Array) -> Array:
    """The value, which must have the same bits on every device."""
    found = []
    for options in ({"device": "reference"}, {"device": "cpu", "tier": "native"}):
        with fg.config(**options):
            found.append(wrap(function(fg.Tensor(x).node)).numpy())
    assert found[0].tobytes() == found[1].tobytes()
    return found[0].astype(np.longdouble)


def units(dtype: DType) -> np.longdouble:
    return np.longdouble(np.finfo(dtype.numpy).eps)


@KINDS
def test_the_logarithm_is_right_to_two_units_far_away_and_near_one(dtype: DType) -> None:
    random = np.random.default_rng(0)
    span = 85 if dtype is fg.float32 else 700
    far = np.exp(random.uniform(-span, span, 20000))
    near = 1 + random.uniform(-0.3, 0.3, 20000) ** 3
    x = np.concatenate([far, near, [1.0, 2.0, 0.5, np.finfo(dtype.numpy).tiny]])
    x = x.astype(dtype.numpy)
    want = np.log(x.astype(np.longdouble))
    found = run(reproducible_math.log, x)
    assert found[-4] == 0
    some = want != 0
    assert np.max(np.abs((found - want)[some] / want[some])) < 2 * units(dtype)


@KINDS
def test_the_exponential_is_right_to_two_units_and_ends_in_zero(dtype: DType) -> None:
    limit = 85 if dtype is fg.float32 else 700
    x = np.random.default_rng(1).uniform(-limit, limit, 20000).astype(dtype.numpy)
    want = np.exp(x.astype(np.longdouble))
    assert np.max(np.abs(run(reproducible_math.exp, x) / want - 1)) < 2 * units(dtype)
    ends = np.array([0.0, -1e4, -np.inf, -1e30], dtype.numpy)
    assert run(reproducible_math.exp, ends).tolist() == [1.0, 0.0, 0.0, 0.0]


@KINDS
def test_quantiles_are_those_of_the_normal_distribution(dtype: DType) -> None:
    random = np.random.default_rng(2)
    least = math.log(2.0**-32 if dtype is fg.float32 else 2.0**-64)
    p = np.concatenate([random.uniform(0.001, 0.5, 500), np.exp(random.uniform(least, -0.7, 500))])
    p = np.concatenate([p, [0.5, 0.075, 0.0749, math.exp(-25)]]).astype(dtype.numpy)
    want = [-statistics.NormalDist().inv_cdf(float(q)) for q in p]
    close = 2e-6 if dtype is fg.float32 else 4e-15
    np.testing.assert_allclose(
        run(reproducible_math.upper_quantile, p).astype(float), want, atol=close
    )
