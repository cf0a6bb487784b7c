"""Tests of fulgurite/functional/nn/basic.py against formulas in float64 and known values."""

import math
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, BoundsError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, near, raises, same_bits, tensor

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


# --- softmax -------------------------------------------------------------------------------------


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


# --- activations ---------------------------------------------------------------------------------


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


# --- normalisation -------------------------------------------------------------------------------


def test_norms_are_their_formulas() -> None:
    x, w, b = numbers(2, 3, 4), numbers(3, 4, seed=1), numbers(3, 4, seed=2)
    for shape, axes, scale in (((4,), (-1,), w[0]), ((3, 4), (-2, -1), w)):
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        want = (x - mean) / np.sqrt(var + 1e-5)
        np.testing.assert_allclose(fg.layer_norm(tensor(x), shape).numpy(), want, rtol=1e-10)
        shift = b[0] if len(shape) == 1 else b
        got = fg.layer_norm(tensor(x), shape, tensor(scale), tensor(shift))
        np.testing.assert_allclose(got.numpy(), want * scale + shift, rtol=1e-10)
        square = np.mean(x * x, axes, keepdims=True)
        got = fg.rms_norm(tensor(x), shape, tensor(scale))
        np.testing.assert_allclose(got.numpy(), x / np.sqrt(square + 1e-6) * scale, rtol=1e-10)


def test_norms_of_half_floats_do_not_overflow() -> None:
    x = fg.Tensor([60000.0, -60000.0], "float16")
    assert fg.layer_norm(x, 2).tolist() == [1, -1]
    assert fg.rms_norm(x, 2).dtype is fg.float16
    assert fg.rms_norm(x, 2, weight=fg.ones(2)).dtype is fg.float32


def test_gradients_of_norms_are_slopes() -> None:
    x, w, b = numbers(2, 3), numbers(3, seed=1), numbers(3, seed=2)
    check_gradients(lambda x, w, b: fg.layer_norm(x, 3, w, b), x, w, b)
    check_gradients(lambda x, w: fg.rms_norm(x, (3,), w), x, w)


# --- losses --------------------------------------------------------------------------------------


def reference_loss(x: Any, target: Any, ignore: int = -100, smoothing: float = 0.0) -> Any:
    """Loss and weight of each row of an (n, classes) problem, one by one."""
    logs = np.log(softmax(x))
    losses, counted = [], []
    for row, t in zip(logs, target, strict=True):
        keep = t != ignore
        counted.append(keep)
        plain = -row[t] if keep else 0.0
        losses.append((1 - smoothing) * plain - smoothing * row.mean() if keep else 0.0)
    return np.array(losses), np.array(counted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_cross_entropy_by_class_is_the_formula(dtype: str, smoothing: float) -> None:
    x, target = numbers(5, 3), np.array([0, 2, -100, 1, -100]).astype(dtype)
    losses, counted = reference_loss(x, target, smoothing=smoothing)
    for how, want in (
        ("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / counted.sum()),
    ):  # fmt: skip
        got = fg.cross_entropy(tensor(x), tensor(target), reduction=how, label_smoothing=smoothing)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_cross_entropy_by_probability_is_the_formula() -> None:
    x, p = numbers(5, 3), softmax(numbers(5, 3, seed=1))
    losses = -(p * np.log(softmax(x))).sum(-1)
    np.testing.assert_allclose(fg.cross_entropy(tensor(x), tensor(p)).item(), losses.mean())
    smooth = p * 0.8 + 0.2 / 3
    got = fg.cross_entropy(tensor(x), tensor(p), label_smoothing=0.2, reduction="sum")
    np.testing.assert_allclose(got.item(), -(smooth * np.log(softmax(x))).sum())


def test_cross_entropy_finds_classes_on_axis_1_or_where_it_is_told() -> None:
    x, target = numbers(2, 3, 4), np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
    rows, flat = x.transpose(0, 2, 1).reshape(8, 3), target.reshape(8)
    want = reference_loss(rows, flat)[0].mean()
    assert fg.cross_entropy(tensor(x), tensor(target)).item() == pytest.approx(want)
    last = tensor(x.transpose(0, 2, 1))
    assert fg.cross_entropy(last, tensor(target), axis=-1).item() == pytest.approx(want)
    one = fg.cross_entropy(tensor(rows[0]), fg.Tensor(0)).item()
    assert one == pytest.approx(reference_loss(rows[:1], flat[:1])[0][0])


def test_cross_entropy_ignores_what_it_is_told_to() -> None:
    x = fg.Tensor([[0.0, 0.0], [5.0, 0.0]])
    assert fg.cross_entropy(x, fg.Tensor([1, 0]), ignore_index=0).item() == pytest.approx(
        math.log(2)
    )
    assert np.isnan(fg.cross_entropy(x, fg.Tensor([-100, -100])).item())
    assert fg.cross_entropy(x, fg.Tensor([1, 1], "uint8"), reduction="sum").item() == pytest.approx(
        5.7, abs=0.01
    )


def test_other_losses_and_one_hot_are_their_formulas() -> None:
    x, y = numbers(2, 3), numbers(3, seed=1)
    for how, want in (
        ("none", (x - y) ** 2),
        ("sum", ((x - y) ** 2).sum()),
        ("mean", ((x - y) ** 2).mean()),
    ):
        np.testing.assert_allclose(fg.mse_loss(tensor(x), tensor(y), how).numpy(), want, rtol=1e-12)
    same_bits(
        fg.one_hot(fg.Tensor([[1], [5]]), 3, "int8"), np.array([[[0, 1, 0]], [[0, 0, 0]]], np.int8)
    )
    many = fg.one_hot(tensor(np.array([3], np.int8)), 300)
    assert many.sum().item() == 1


def test_gradients_of_losses_are_slopes() -> None:
    target, p = tensor(np.array([1, -100, 0])), tensor(softmax(numbers(3, 4)))
    for smoothing in (0.0, 0.3):
        check_gradients(
            lambda x, s=smoothing: fg.cross_entropy(x * x, target, label_smoothing=s), numbers(3, 4)
        )
        check_gradients(
            lambda x, s=smoothing: fg.cross_entropy(x * x, p, label_smoothing=s), numbers(3, 4)
        )
    check_gradients(fg.mse_loss, numbers(2, 3), numbers(3, seed=1))


def test_mistakes_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(AxisError):
        fg.softmax(x, axis=2)
    with raises(AxisError):
        fg.log_softmax(fg.Tensor(1.0), axis=1)
    with raises(ArgumentError):
        fg.gelu(x, approximate="yes")
    with raises(ShapeError):
        fg.layer_norm(x, 4)
    with raises(ShapeError):
        fg.rms_norm(x, (2, 2, 3))
    with raises(ShapeError):
        fg.cross_entropy(x, fg.Tensor([0, 1, 2]))
    with raises(ShapeError):
        fg.cross_entropy(x, fg.ones(2))
    with raises(DTypeError):
        fg.cross_entropy(x, fg.ones(2, bool))
    with raises(ArgumentError):
        fg.cross_entropy(x, fg.Tensor([0, 1]), reduction="median")
    with raises(BoundsError):
        fg.cross_entropy(x, fg.Tensor([0, 3])).numpy()
    with raises(BoundsError):
        fg.cross_entropy(x, fg.Tensor([0, -1])).numpy()
    with raises(DTypeError):
        fg.one_hot(x, 3)
    with raises(ShapeError):
        fg.one_hot(fg.Tensor([1]), -1)
