"""Tests of fulgurite/functional/nn/activation.py against formulas, far out and at the kinks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import check_gradients, raises, tensor

X = np.array([-200.0, -7.0, -3.5, -1.2, -0.4, -0.1, 0.0, 0.2, 0.6, 1.3, 3.7, 8.0, 200.0])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


FORMULAS: list[tuple[Callable[..., fg.Tensor], Callable[[Any], Any]]] = [
    (fg.relu6, lambda x: np.clip(x, 0, 6)),
    (fg.hardtanh, lambda x: np.clip(x, -1, 1)),
    (fg.hardsigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    (fg.hardswish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    (fg.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    (lambda x: fg.celu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x / 1.5))),
    (fg.mish, lambda x: x * np.tanh(np.logaddexp(x, 0))),
    (fg.log_sigmoid, lambda x: -np.logaddexp(-x, 0)),
    (fg.softsign, lambda x: x / (1 + np.abs(x))),
    (fg.tanhshrink, lambda x: x - np.tanh(x)),
    (fg.softshrink, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    (fg.hardshrink, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    (lambda x: fg.threshold(x, 0.5, -2.0), lambda x: np.where(x > 0.5, x, -2.0)),
    (fg.softmin, lambda x: np.exp(-x - (-x).max()) / np.exp(-x - (-x).max()).sum()),
]


@pytest.mark.parametrize("place", range(len(FORMULAS)))
def test_activations_are_their_formulas(place: int) -> None:
    function, formula = FORMULAS[place]
    with np.errstate(all="ignore"):
        want = np.nan_to_num(formula(X), nan=0.0)
    np.testing.assert_allclose(function(tensor(X)).numpy(), want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("place", range(len(FORMULAS)))
def test_slopes_are_those_of_differences_and_finite_far_out(place: int) -> None:
    function, _ = FORMULAS[place]
    check_gradients(function, X[2:11][X[2:11] != 0])
    slope = fg.grad(lambda x: function(x).sum())(tensor(np.array([-1e4, 1e4]))).numpy()
    assert np.isfinite(slope).all()


def test_slopes_at_a_kink_are_those_of_torch() -> None:
    def slope(function: Callable[..., fg.Tensor], *at: float) -> list[float]:
        found: list[float] = fg.grad(lambda x: function(x).sum())(tensor(np.array(at))).tolist()
        return found

    assert slope(fg.relu6, 0.0, 6.0) == [0.0, 0.0]
    assert slope(fg.hardtanh, -1.0, 1.0) == [0.0, 0.0]
    assert slope(fg.hardsigmoid, -3.0, 3.0) == [0.0, 0.0]
    assert slope(fg.hardswish, -3.0, 3.0, -np.inf, np.inf) == [0.0, 1.0, 0.0, 1.0]
    assert slope(fg.softshrink, -0.5, 0.5) == slope(fg.hardshrink, -0.5, 0.5) == [0.0, 0.0]


def test_half_floats_keep_their_dtype_and_nan_passes() -> None:
    for function, _ in FORMULAS[:-1]:
        assert function(fg.ones(2, "float16")).dtype is fg.float16
        assert np.isnan(function(fg.Tensor([math.nan])).numpy()).all()
        assert function(fg.Tensor([1])).dtype is fg.float32


def test_gates_and_learned_slopes() -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    np.testing.assert_allclose(
        fg.glu(tensor(x), 1).numpy(), x[:, :3] * sigmoid(x[:, 3:]), rtol=1e-12
    )
    weight = np.linspace(0.1, 0.6, 6)
    want = np.where(x > 0, x, x * weight[:, None])
    np.testing.assert_allclose(fg.prelu(tensor(x), tensor(weight)).numpy(), want, rtol=1e-12)
    check_gradients(fg.prelu, x[:1, :, :1], weight)
    check_gradients(lambda x: fg.glu(x, -2), x[:1])
    assert fg.prelu(fg.Tensor(-2.0), fg.Tensor([0.5])).item() == -1.0


def test_wrong_arguments_are_errors() -> None:
    with raises(ShapeError, "no two halves"):
        fg.glu(fg.ones(3))
    with raises(ShapeError, "for 3 channels"):
        fg.prelu(fg.ones((2, 3)), fg.ones(2))
    with raises(ArgumentError, "min_val <= max_val"):
        fg.hardtanh(fg.ones(2), 2.0, 1.0)
    with raises(ArgumentError, "lambd is -1"):
        fg.softshrink(fg.ones(2), -1)
    with raises(ArgumentError, "alpha is 0"):
        fg.celu(fg.ones(2), 0)
