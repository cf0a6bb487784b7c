"""Tests of fulgurite/functional/nn/normalization.py against formulas in float64."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import Array, check_gradients, raises, tensor

BATCH_NORM: Any = fg.batch_norm
SHAPES = [(4, 3), (4, 6, 5), (2, 6, 3, 4), (2, 3, 2, 2, 2)]


def values(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape) * 2 + 1


def normal(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> Array:
    spread = np.sqrt(x.var(axes, keepdims=True) + eps)
    return np.asarray((x - x.mean(axes, keepdims=True)) / spread)


def column(part: Array, ndim: int) -> Array:
    return part.reshape(-1, *[1] * (ndim - 2))


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def test_norms_of_the_last_dimensions_are_their_formulas() -> None:
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


def test_gradients_of_norms_of_the_last_dimensions_are_slopes() -> None:
    x, w, b = numbers(2, 3), numbers(3, seed=1), numbers(3, seed=2)
    check_gradients(lambda x, w, b: fg.layer_norm(x, 3, w, b), x, w, b)
    check_gradients(lambda x, w: fg.rms_norm(x, (3,), w), x, w)


def test_sizes_that_do_not_end_the_shape_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(ShapeError):
        fg.layer_norm(x, 4)
    with raises(ShapeError):
        fg.rms_norm(x, (2, 2, 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_is_normalised_by_its_own_statistics_in_training(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    c, axes = shape[1], (0, *range(2, len(shape)))
    mean, var, w, b = values(c), np.abs(values(c)), values(c), values(c)
    got = BATCH_NORM(*map(tensor, (x, mean, var, w, b)), training=True, momentum=0.3)
    want = normal(x, axes) * column(w, x.ndim) + column(b, x.ndim)
    np.testing.assert_allclose(got.output.numpy(), want, rtol=1e-12, atol=1e-12)
    assert got.running_mean is not None and got.running_var is not None
    np.testing.assert_allclose(got.running_mean.numpy(), mean * 0.7 + x.mean(axes) * 0.3)
    np.testing.assert_allclose(got.running_var.numpy(), var * 0.7 + x.var(axes, ddof=1) * 0.3)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_is_normalised_by_running_statistics_otherwise(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    c = shape[1]
    mean, var, w, b = values(c), np.abs(values(c)), values(c), values(c)
    running = tensor(mean)
    got = BATCH_NORM(tensor(x), running, *map(tensor, (var, w, b)), eps=1e-3)
    m, v, w, b = (column(part, x.ndim) for part in (mean, var, w, b))
    want = (x - m) / np.sqrt(v + 1e-3) * w + b
    np.testing.assert_allclose(got.output.numpy(), want, rtol=1e-12, atol=1e-12)
    assert got.running_mean is running


def test_training_needs_no_running_statistics() -> None:
    got = fg.batch_norm(tensor(values(4, 3)), training=True)
    assert got.running_mean is None
    np.testing.assert_allclose(got.output.numpy(), normal(values(4, 3), (0,)), rtol=1e-10)


def test_an_empty_batch_leaves_running_statistics_as_they_were() -> None:
    for jitted in (False, True):
        norm = fg.nn.BatchNorm2d(3)
        step = fg.jit(norm) if jitted else norm
        step(fg.ones((2, 3, 4, 4)))
        before = [norm.state_dict()[name].tolist() for name in ("running_mean", "running_var")]
        assert step(fg.ones((0, 3, 4, 4))).shape == (0, 3, 4, 4)
        after = [norm.state_dict()[name].tolist() for name in ("running_mean", "running_var")]
        assert after == before


def test_running_statistics_carry_no_gradient() -> None:
    def loss(x: fg.Tensor) -> fg.Tensor:
        got = fg.batch_norm(x, fg.zeros(3, "float64"), fg.ones(3, "float64"), training=True)
        assert got.running_mean is not None
        return got.running_mean.sum()

    assert fg.grad(loss)(tensor(values(4, 3))).numpy().any() == np.False_


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_instances_and_groups_are_normalised_apart(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    w, b = values(shape[1]), values(shape[1])
    scale, shift = column(w, x.ndim), column(b, x.ndim)
    got = fg.instance_norm(tensor(x), weight=tensor(w), bias=tensor(b))
    want = normal(x, tuple(range(2, x.ndim))) * scale + shift
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-11, atol=1e-11)
    for groups in (1, 3, shape[1]):
        rows = x.reshape(shape[0], groups, -1)
        want = normal(rows, (2,)).reshape(shape) * scale + shift
        got = fg.group_norm(tensor(x), groups, tensor(w), tensor(b))
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-11, atol=1e-11)


def test_neighbouring_channels_damp_each_other() -> None:
    x = values(2, 5, 3)
    for size in (1, 2, 3, 4, 5, 7):
        wide = np.pad(x * x, [(0, 0), (size // 2, (size - 1) // 2), (0, 0)])
        total = sum(wide[:, i : i + 5] for i in range(size)) / size
        want = x / (total * 0.1 + 2.0) ** 0.75
        got = fg.local_response_norm(tensor(x), size, alpha=0.1, k=2.0)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_normalised_in_float32(dtype: str) -> None:
    x = fg.Tensor(values(8, 2, 400) * 60).astype(dtype)  # squares overflow float16
    wide = x.numpy().astype(np.float64)
    for got, axes in (
        (fg.batch_norm(x, training=True).output, (0, 2)),
        (fg.instance_norm(x), (2,)),
        (fg.group_norm(x, 1), (1, 2)),
    ):
        assert got.dtype.name == dtype
        step = 2.0**-10 if dtype == "float16" else 2.0**-7
        np.testing.assert_allclose(
            got.numpy().astype(np.float64), normal(wide, axes), rtol=step, atol=step * 1e-2
        )


def test_whole_numbers_become_floats() -> None:
    assert fg.instance_norm(fg.Tensor([[[1, 3]]])).dtype is fg.float32


def test_each_normalisation_is_at_most_two_kernels() -> None:
    x = tensor(values(2, 6, 4, 4))
    for y in (fg.instance_norm(x), fg.group_norm(x, 3), fg.batch_norm(x, training=True).output):
        assert len(fg.schedule(fg.relu(y)).items) <= 2


def test_gradients() -> None:
    x, w, b = values(3, 4, 2), values(4), values(4)
    zeros, ones = tensor(np.zeros(4)), tensor(np.ones(4))
    check_gradients(
        lambda x, w, b: fg.batch_norm(x, zeros, ones, w, b, training=True).output, x, w, b
    )
    check_gradients(lambda x, w, b: fg.batch_norm(x, zeros, ones, w, b).output, x, w, b)
    check_gradients(lambda x, w, b: fg.instance_norm(x, weight=w, bias=b), x, w, b)
    check_gradients(lambda x, w, b: fg.group_norm(x, 2, w, b), x, w, b)
    check_gradients(lambda x: fg.local_response_norm(x, 3, alpha=0.5), x)


def test_mistakes_name_the_users_line() -> None:
    x = fg.ones((2, 4, 3))
    with raises(ArgumentError, "running"):
        fg.batch_norm(x)
    with raises(ShapeError, "channels"):
        fg.batch_norm(fg.ones(3), training=True)
    with raises(ShapeError, "channels"):
        fg.instance_norm(x, weight=fg.ones(3))
    with raises(ShapeError, "space"):
        fg.instance_norm(fg.ones((2, 3)))
    with raises(ShapeError, "groups"):
        fg.group_norm(x, 3)
    with raises(ArgumentError):
        fg.group_norm(x, 0)
