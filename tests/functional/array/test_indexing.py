"""Tests of fulgurite/functional/array/indexing.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, BoundsError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, raises, same_bits, tensor

VALUES = np.arange(60).reshape(3, 4, 5)
X = tensor(VALUES)


@st.composite
def shapes_and_indices(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and an index that NumPy would take as a basic one."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    dots = draw(st.none() | st.integers(0, len(shape)))
    parts: list[Any] = []
    used = draw(st.integers(0, len(shape)))
    places = list(range(used))
    if dots is not None:
        dots = min(dots, used)
        places = [d if d < dots else len(shape) - used + d for d in range(used)]
    for i, place in enumerate(places):
        if dots == i:
            parts.append(Ellipsis)
        size = shape[place]
        if size and draw(st.booleans()):
            parts.append(draw(st.integers(-size, size - 1)))
        else:
            bound = st.none() | st.integers(-7, 7)
            step = draw(st.none() | st.integers(-4, 4).filter(bool))
            parts.append(slice(draw(bound), draw(bound), step))
        if draw(st.integers(0, 5)) == 0:
            parts.append(None)
    if dots == used:
        parts.append(Ellipsis)
    return shape, tuple(parts)


@given(shapes_and_indices())
def test_any_basic_index_agrees_with_numpy(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, key = case
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    same_bits(tensor(values)[key], np.asarray(values[key]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float64"])
def test_indexing_keeps_dtype_and_bits(dtype: str) -> None:
    x = X.astype(dtype)
    same_bits(x[::-2, 1, 1:4:2], x.numpy()[::-2, 1, 1:4:2])
    assert fg.Tensor([-0.0])[0].numpy().tobytes() == np.float32(-0.0).tobytes()


def test_an_index_may_be_a_numpy_integer_or_alone() -> None:
    same_bits(X[np.int64(-1)], VALUES[-1])
    same_bits(X[...], VALUES)
    same_bits(X[None], VALUES[None])
    same_bits(X[()], VALUES)
    same_bits(fg.Tensor(3)[()], np.array(3, np.int32))
    same_bits(fg.Tensor(3)[None, ...], np.array([3], np.int32))


@pytest.mark.parametrize(
    "key",
    [
        (np.array([0, 2, -1]),),
        ([[1, 0], [2, 2]],),
        (slice(None), np.array([1, -4, 3])),
        (Ellipsis, np.array([[0], [4]])),
        (slice(1, None), slice(None, None, -1), [1, 1]),
        (None, np.array([], np.int32)),
        (np.array(1),),
    ],
)
def test_one_integer_array_among_slices_agrees_with_numpy(key: tuple[Any, ...]) -> None:
    same_bits(X[key], np.asarray(VALUES[key]))
    lifted = tuple(tensor(k) if isinstance(k, np.ndarray) else k for k in key)
    same_bits(X[lifted], np.asarray(VALUES[key]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_take_agrees_with_numpy(dtype: str) -> None:
    index = np.array([[0, 2], [1, 2]], dtype)
    for axis in (0, 1, -1, None):
        same_bits(fg.take(X, tensor(index), axis), np.take(VALUES, index.astype(int), axis))
    same_bits(X.take(tensor(index), 0), np.take(VALUES, index.astype(int), 0))


def test_a_small_index_dtype_counts_from_the_back_of_a_long_axis() -> None:
    long = tensor(np.arange(1000))
    assert fg.take(long, tensor(np.array([-1, 5, -100], np.int8))).tolist() == [999, 5, 900]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 1), st.data())
def test_take_along_axis_agrees_with_numpy(n: int, m: int, axis: int, data: st.DataObject) -> None:
    values = np.arange(n * m).reshape(n, m)
    size = values.shape[axis]
    rows = [3 if d == axis else s for d, s in enumerate(values.shape)]
    flat = st.lists(
        st.integers(-size, size - 1), min_size=rows[0] * rows[1], max_size=rows[0] * rows[1]
    )
    index = np.array(data.draw(flat)).reshape(rows)
    got = fg.take_along_axis(tensor(values), tensor(index), axis)
    same_bits(got, np.take_along_axis(values, index, axis))


def test_take_along_axis_broadcasts_the_other_dimensions() -> None:
    index = np.array([[[0], [3]]]).reshape(1, 2, 1)
    same_bits(fg.take_along_axis(X, tensor(index), 1), np.take_along_axis(VALUES, index, 1))


def test_gather_may_read_a_corner() -> None:
    index = tensor(np.array([[4, -1, 0]]))
    same_bits(fg.gather(X[0], 1, index), VALUES[0][:1, [4, -1, 0]])
    same_bits(X[0].gather(0, tensor(np.array([[3, 2], [0, 1]]))), np.array([[15, 11], [0, 6]]))


def test_gradients_go_back_to_the_elements_that_were_read() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    check_gradients(lambda x: (x * x)[1], values)
    check_gradients(lambda x: (x * x)[::-2, 1::2], values)
    check_gradients(lambda x: (x * x)[..., None, -1], values)
    check_gradients(lambda x: fg.take(x * x, [0, 2, 2, -1], axis=1), values)
    check_gradients(lambda x: (x * x)[[0, 0, 1]], values)
    index = tensor(np.array([[0, 1], [-1, -1], [2, 2]]))
    check_gradients(lambda x: fg.take_along_axis(x * x, index, 1), values)
    check_gradients(lambda x: fg.gather(x * x, 1, index), values)


def test_mistakes_name_the_users_line() -> None:
    with raises(BoundsError, "index 3"):
        X[3]
    with raises(BoundsError, "index -5"):
        X[0, -5]
    with raises(BoundsError, "4 indices"):
        X[0, 0, 0, 0]
    with raises(BoundsError):
        fg.zeros((0, 2))[0]
    with raises(BoundsError):
        fg.Tensor(1.0)[0]
    with raises(ArgumentError):
        X[..., ...]
    with raises(ArgumentError):
        X[1.5]
    with raises(ArgumentError):
        X["a"]
    with raises(ArgumentError):
        X[0:2:0]
    with raises(DTypeError):
        fg.take(X, fg.Tensor([0.5]))
    with raises(DTypeError, "bool"):
        fg.take(X, fg.Tensor([True]))
    with raises(BoundsError, "size 0"):
        fg.take(fg.zeros((0, 2)), [0], axis=0)
    with raises(AxisError):
        fg.take(X, fg.Tensor([0]), axis=3)
    with raises(ShapeError):
        fg.take_along_axis(X, fg.Tensor([0]), 0)
    with raises(ShapeError):
        fg.gather(X, 0, fg.Tensor([0]))


def test_an_index_that_is_data_is_checked_and_names_the_line_that_used_it() -> None:
    with raises(BoundsError, "outside"):
        fg.take(X, fg.Tensor([0, 3]), axis=0).numpy()
    with raises(BoundsError, "outside"):
        X[[0, -4]].numpy()
