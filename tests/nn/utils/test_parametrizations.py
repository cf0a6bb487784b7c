"""Weights by length and direction, and weights whose largest singular value is 1.

Names, values and gradients beside torch's: `tests/nn/table.py`.
"""

from __future__ import annotations

import numpy as np

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError
from fulgurite.nn.utils import spectral_norm, weight_norm
from tests.functional.helpers import raises


def test_weight_norm_keeps_the_weight_and_learns_length_and_direction() -> None:
    layer = nn.Linear(4, 3)
    before = layer.weight.numpy()
    weight_norm(layer)
    np.testing.assert_allclose(layer.weight.numpy(), before, rtol=1e-5)
    with fg.no_grad():
        layer.parametrizations.weight.original0.assign(fg.ones((3, 1)))
    np.testing.assert_allclose(np.linalg.norm(layer.weight.numpy(), axis=1), 1, rtol=1e-5)


def test_spectral_norm_brings_the_largest_singular_value_to_1() -> None:
    fg.random.seed(0)
    layer = spectral_norm(nn.Conv2d(3, 8, 3))
    x = fg.rand(1, 3, 5, 5)
    for _ in range(20):
        layer(x).numpy()
    weight = layer.eval().weight.numpy()
    assert abs(np.linalg.svd(weight.reshape(8, -1))[1][0] - 1) < 1e-3
    np.testing.assert_array_equal(layer.weight.numpy(), weight)  # in use nothing moves


def test_what_has_no_such_weight_is_one_clear_error() -> None:
    with raises(ArgumentError, "ReLU has no 'weight'"):
        spectral_norm(nn.ReLU())
    with raises(ArgumentError, "n_power_iterations is 0"):
        spectral_norm(nn.Linear(2, 2), n_power_iterations=0)
