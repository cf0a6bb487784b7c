"""Tests of fulgurite/functional/array/arrangement.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, ShapeError
from tests.functional.helpers import HOSTILE, check_gradients, raises, same_bits, tensor

SHAPES = [(), (1,), (0,), (5,), (3, 4), (2, 0), (2, 3, 4)]


def numbers(shape: tuple[int, ...]) -> Any:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_rolling_agrees_with_numpy(shape: tuple[int, ...]) -> None:
    values = numbers(shape)
    for shift in (-7, -1, 0, 1, 2, 11):
        same_bits(fg.roll(tensor(values), shift), np.roll(values, shift))
        for axis in range(-len(shape), len(shape)):
            same_bits(fg.roll(tensor(values), shift, axis), np.roll(values, shift, axis))
    if len(shape) == 3:
        got = tensor(values).roll(shifts=(1, -2), dims=(0, 2))  # type: ignore[call-arg]
        same_bits(got, np.roll(values, (1, -2), (0, 2)))
        same_bits(fg.roll(tensor(values), (1, 1), (1, 1)), np.roll(values, (1, 1), (1, 1)))


def test_moving_keeps_every_bit() -> None:
    same_bits(fg.roll(tensor(HOSTILE), 3), np.roll(HOSTILE, 3))
    same_bits(fg.tile(tensor(HOSTILE), 2), np.tile(HOSTILE, 2))
    same_bits(fg.repeat(tensor(HOSTILE), 2), np.repeat(HOSTILE, 2))
    grid = HOSTILE.reshape(2, 11)
    same_bits(fg.rot90(tensor(grid)), np.rot90(grid))
    same_bits(fg.diagonal(tensor(grid)), np.diagonal(grid))


@pytest.mark.parametrize("shape", SHAPES)
def test_repeating_agrees_with_numpy(shape: tuple[int, ...]) -> None:
    values = numbers(shape)
    for count in (0, 1, 3):
        same_bits(fg.repeat(tensor(values), count), np.repeat(values, count))
        for axis in range(len(shape)):
            same_bits(fg.repeat(tensor(values), count, axis), np.repeat(values, count, axis))
            counts = np.arange(shape[axis]) % 3
            got = fg.repeat(tensor(values), tensor(counts), axis)
            same_bits(got, np.repeat(values, counts, axis))
            same_bits(fg.repeat(tensor(values), [2], axis), np.repeat(values, [2], axis))


@given(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_tiling_agrees_with_numpy(shape: list[int], counts: list[int]) -> None:
    values = numbers(tuple(shape))
    same_bits(fg.tile(tensor(values), counts), np.tile(values, counts))
    same_bits(tensor(values).tile(*counts), np.tile(values, counts))
    same_bits(fg.tile(tensor(values), 2), np.tile(values, 2))


def test_windows_slide_along_axes() -> None:
    values = numbers((5, 6))
    view = np.lib.stride_tricks.sliding_window_view
    for step in (1, 2, 3):
        same_bits(fg.unfold(tensor(values), 1, 3, step), view(values, 3, 1)[:, ::step])
        same_bits(tensor(values).unfold(0, 2, step), view(values, 2, 0)[::step])
    same_bits(fg.sliding_window_view(tensor(values), (2, 3)), view(values, (2, 3)))
    got = fg.sliding_window_view(tensor(values), (2, 2), (1, 1))
    same_bits(got, view(values, (2, 2), (1, 1)))
    same_bits(fg.sliding_window_view(tensor(values), 2, axis=-1), view(values, 2, -1))


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 2), (2, 3, 4)])
def test_turning_agrees_with_numpy(shape: tuple[int, ...]) -> None:
    values = numbers(shape)
    for k in range(-5, 6):
        same_bits(fg.rot90(tensor(values), k), np.rot90(values, k))
        same_bits(fg.rot90(tensor(values), k, (-1, 0)), np.rot90(values, k, (-1, 0)))
    same_bits(fg.flipud(tensor(values)), np.flipud(values))
    same_bits(fg.fliplr(tensor(values)), np.fliplr(values))


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 2), (0, 3), (1, 5)])
def test_diagonals_agree_with_numpy(shape: tuple[int, int]) -> None:
    values = numbers(shape)
    for k in range(-6, 7):
        same_bits(fg.diagonal(tensor(values), k), np.diagonal(values, k))
        same_bits(fg.diag(tensor(values), k), np.diag(values, k))
        same_bits(fg.trace(tensor(values), k), np.trace(values, k))
    small = values.astype(np.int8)
    assert fg.trace(tensor(small)).dtype is fg.int32
    assert tensor(small).trace(dtype="float64").dtype is fg.float64


def test_diagonals_of_stacks_agree_with_numpy() -> None:
    values = numbers((2, 3, 4))
    for axis1, axis2 in ((0, 1), (1, 2), (2, 0), (-1, -2)):
        for k in (-1, 0, 2):
            same_bits(
                fg.diagonal(tensor(values), k, axis1, axis2),
                np.diagonal(values, k, axis1, axis2),
            )
            same_bits(fg.trace(tensor(values), k, axis1, axis2), np.trace(values, k, axis1, axis2))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_diagonal_becomes_a_matrix(size: int) -> None:
    values = np.arange(1.0, size + 1) * -1
    for k in (-2, -1, 0, 1, 3):
        same_bits(fg.diag(tensor(values), k), np.diag(values, k))


@given(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 3), max_size=3))
def test_kron_agrees_with_numpy(first: list[int], second: list[int]) -> None:
    a, b = numbers(tuple(first)) + 1, numbers(tuple(second)) + 2
    same_bits(fg.kron(tensor(a), tensor(b)), np.asarray(np.kron(a, b)))


def test_gradients_come_back_to_their_place() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(2,))
    check_gradients(lambda x: fg.roll(x * x, (1, -1), (0, 1)), x)
    check_gradients(lambda x: fg.repeat(x * x, 2, 1), x)
    check_gradients(lambda x: fg.repeat(x * x, [0, 2, 1], 0), x)
    check_gradients(lambda x: fg.tile(x * x, (2, 2)), x)
    check_gradients(lambda x: fg.unfold(x * x, 1, 2), x)
    check_gradients(lambda x: fg.sliding_window_view(x * x, (2, 3)), x)
    check_gradients(lambda x: fg.rot90(x * x), x)
    check_gradients(lambda x: fg.diagonal(x * x, 1), x)
    check_gradients(lambda x: fg.trace(x * x), x)
    check_gradients(lambda y: fg.diag(y * y, -1), y)
    check_gradients(fg.kron, x, y)


def test_moving_is_free() -> None:
    x = tensor(np.random.default_rng(0).normal(size=(4, 6)))
    for moved in (
        fg.roll(x, 2, 1), fg.repeat(x, 2, 0), fg.tile(x, (2, 3)), fg.rot90(x), fg.unfold(x, 1, 3),
        fg.diagonal(x), fg.kron(x, x),
    ):  # fmt: skip
        assert len(fg.schedule(fg.exp(moved) + 1).items) == 1


def test_mistakes_name_the_users_line() -> None:
    x = fg.zeros((2, 3))
    with raises(ArgumentError):
        fg.roll(x, (1, 2))
    with raises(ArgumentError):
        fg.roll(x, (1, 2), 0)
    with raises(AxisError):
        fg.roll(x, 1, 2)
    with raises(ArgumentError):
        fg.repeat(x, [-1, 2], 0)
    with raises(ShapeError):
        fg.repeat(x, [1, 2, 3], 0)
    with raises(ShapeError):
        fg.repeat(x, -1, 0)
    with raises(ShapeError):
        fg.tile(x, (-1, 2))
    with raises(ShapeError):
        fg.unfold(x, 0, 3)
    with raises(ArgumentError):
        fg.sliding_window_view(x, (1, 2), 0)
    with raises(AxisError):
        fg.rot90(x, 1, (0, 0))
    with raises(AxisError):
        fg.diagonal(x, 0, 1, 1)
    with raises(ShapeError):
        fg.diag(fg.zeros((1, 1, 1)))
