"""Tests of fulgurite/functional/nn/activation.py against formulas, far out and at the kinks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, ShapeError
from tests.functional.helpers import check_gradients, near, raises, same_bits, tensor

pytestmark = pytest.mark.device("reference")

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


FAR = np.array(
    [-1000.0, -100.0, -30.0, -5.0, -1.0, -1e-8, 0.0, 1e-8, 1.0, 5.0, 30.0, 100.0, 1000.0]
)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_and_its_logarithm_are_the_formula(axis: int) -> None:
    x = numbers(3, 4, 2) * 10
    near(fg.softmax(tensor(x), axis), softmax(x, axis), ulps=16)
    np.testing.assert_allclose(
        fg.log_softmax(tensor(x), axis).numpy(), np.log(softmax(x, axis)), rtol=1e-12, atol=1e-15
    )


def test_softmax_survives_large_numbers_and_minus_infinity() -> None:
    x = fg.Tensor([[1e30, 1e30], [-math.inf, 0.0], [1000.0, -1000.0]])
    assert fg.softmax(x).tolist() == [[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]]
    assert fg.log_softmax(x[1:]).tolist() == [[-math.inf, 0.0], [0.0, -2000.0]]
    assert fg.softmax(fg.zeros((2, 0))).shape == (2, 0)
    assert fg.softmax(fg.Tensor([1, 1])).tolist() == [0.5, 0.5]


def test_half_floats_add_up_in_float32() -> None:
    x = fg.zeros(4096, "float16")
    assert fg.softmax(x).dtype is fg.float16
    assert fg.softmax(x)[0].item() == 1 / 4096
    assert fg.log_softmax(x)[0].item() == float(np.float16(-math.log(4096)))


def test_activations_are_their_formulas_far_out() -> None:
    x = tensor(FAR)
    power = np.exp(-np.abs(FAR))
    near(fg.sigmoid(x), np.where(FAR >= 0, 1, power) / (1 + power))
    near(fg.softplus(x), np.logaddexp(FAR, 0))
    near(fg.silu(x), FAR * fg.sigmoid(x).numpy())
    near(fg.elu(x, 2.0), np.where(FAR > 0, FAR, 2 * np.expm1(np.minimum(FAR, 0))))
    same_bits(fg.leaky_relu(x), np.where(FAR > 0, FAR, FAR * 0.01))
    same_bits(fg.relu(x), np.maximum(FAR, 0))
    chance = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in FAR])
    near(fg.gelu(x), FAR * chance, ulps=2000)  # exp(-x²/2) magnifies one rounding of x/√2
    inner = math.sqrt(2 / math.pi) * (FAR + 0.044715 * FAR**3)
    np.testing.assert_allclose(
        fg.gelu(x, approximate="tanh").numpy(), 0.5 * FAR * (1 + np.tanh(inner)), atol=1e-13
    )


def test_activations_pass_nan_on_and_take_whole_numbers() -> None:
    for name in ("relu", "leaky_relu", "elu", "sigmoid", "silu", "softplus", "gelu", "tanh"):
        function = getattr(fg, name)
        assert np.isnan(function(fg.Tensor(math.nan)).item()), name
        whole = function(fg.Tensor([2]))
        assert whole.dtype is (fg.int32 if name == "relu" else fg.float32), name
        assert function(fg.Tensor([2.0], "bfloat16")).dtype is fg.bfloat16, name
    assert not np.signbit(fg.relu(fg.Tensor(-0.0)).item())


@pytest.mark.parametrize(
    "name", ["relu", "leaky_relu", "elu", "sigmoid", "silu", "softplus", "gelu", "tanh"]
)
def test_slopes_of_activations_are_right_and_finite(name: str) -> None:
    function = getattr(fg, name)
    check_gradients(function, np.array([-3.0, -0.5, 0.7, 2.0]))
    slopes = fg.grad(lambda x: function(x).sum())(tensor(FAR)).numpy()
    assert np.isfinite(slopes).all()
    at_zero = {"relu": 0.0, "leaky_relu": 0.01, "elu": 1, "sigmoid": 0.25, "tanh": 1}
    zero = fg.grad(function)(fg.Tensor(0.0)).item()
    assert zero == pytest.approx(at_zero.get(name, 0.5))


def test_gradients_of_softmax_are_slopes() -> None:
    for axis in (0, -1):
        check_gradients(lambda x, axis=axis: fg.softmax(x * x, axis), numbers(2, 3))
        check_gradients(lambda x, axis=axis: fg.log_softmax(x * x, axis), numbers(2, 3))
    check_gradients(lambda x: fg.gelu(x, "tanh"), numbers(4))
    check_gradients(lambda x: fg.softplus(x, 2.0), numbers(4))


def test_wrong_axes_and_formulas_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(AxisError):
        fg.softmax(x, axis=2)
    with raises(AxisError):
        fg.log_softmax(fg.Tensor(1.0), axis=1)
    with raises(ArgumentError):
        fg.gelu(x, approximate="yes")


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
