"""Tests of fulgurite/functional/array/scatter.py against loops over NumPy arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.functional.helpers import Array, check_gradients, raises, same_bits, tensor

FOLDS: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum, "mean": np.add,
}  # fmt: skip


def scattered(
    x: Array, axis: int, index: Array, src: Array, reduce: str | None, include_self: bool = True
) -> Array:
    """What torch documents, one element at a time."""
    out = x.copy()
    met = np.zeros(x.shape, int)
    for at in np.ndindex(*index.shape):
        place = list(at)
        place[axis] = index[at]
        to = tuple(place)
        if reduce is None or (met[to] == 0 and not include_self):
            out[to] = src[at]
        else:
            out[to] = FOLDS[reduce](out[to], src[at])
        met[to] += 1
    if reduce == "mean":
        count = np.maximum(met + include_self, 1)
        mean = out // count if x.dtype.kind in "iu" else out / count
        return np.asarray(mean, x.dtype)
    return out


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, int, Array, Array]:
    """A tensor, an axis, an index that may be smaller, and values that may be larger."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = draw(st.integers(0, len(shape) - 1))
    small = [draw(st.integers(0, 5 if d == axis else n)) for d, n in enumerate(shape)]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    x = rng.integers(-4, 5, shape).astype(draw(st.sampled_from(["int32", "float32", "int8"])))
    index = rng.integers(-shape[axis], shape[axis], small)
    src = rng.integers(-4, 5, [n + int(rng.integers(0, 2)) for n in small]).astype(x.dtype)
    return x, axis, index, src


@given(cases(), st.sampled_from([None, *FOLDS]), st.booleans())
def test_scatter_agrees_with_a_loop(
    case: tuple[Array, int, Array, Array], reduce: str | None, include_self: bool
) -> None:
    x, axis, index, src = case
    want = scattered(x, axis, index, src, reduce, include_self or reduce is None)
    if reduce is None:
        got = fg.scatter(tensor(x), axis, tensor(index), tensor(src))
    else:
        got = fg.scatter_reduce(tensor(x), axis, tensor(index), tensor(src), reduce, include_self)
    assert got.dtype.numpy == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


def test_scatter_adds_and_multiplies() -> None:
    x, index, src = np.ones((2, 3)), np.array([[0, 0], [2, 1]]), np.array([[2.0, 3.0], [4.0, 5.0]])
    added = scattered(x, 1, index, src, "sum")
    same_bits(fg.scatter_add(tensor(x), 1, tensor(index), tensor(src)), added)
    same_bits(fg.scatter(tensor(x), 1, tensor(index), tensor(src), reduce="add"), added)
    same_bits(tensor(x).scatter_add(1, tensor(index), tensor(src)), added)
    product = scattered(x, 1, index, src, "prod")
    same_bits(fg.scatter(tensor(x), 1, tensor(index), tensor(src), reduce="multiply"), product)
    same_bits(fg.scatter(tensor(x), 1, tensor(index), 7), scattered(x, 1, index, src * 0 + 7, None))


def test_half_floats_add_up_in_float32() -> None:
    ones = np.ones(4096, np.float16)
    index = np.zeros(4096, np.int32)
    got = fg.scatter_add(fg.zeros(1, fg.float16), 0, tensor(index), tensor(ones))
    assert got.dtype is fg.float16
    assert got.item() == 4096
    mean = fg.scatter_reduce(fg.zeros(1, fg.float16), 0, tensor(index), tensor(ones), "mean", False)
    assert mean.item() == 1


def test_nan_wins_an_extreme_and_zeros_keep_their_sign() -> None:
    src = np.array([np.nan, 1.0, -0.0])
    got = fg.scatter_reduce(fg.zeros(3, fg.float64), 0, [0, 1, 2], tensor(src), "amax")
    same_bits(got, np.array([np.nan, 1.0, 0.0]))
    got = fg.scatter_reduce(fg.ones(3, fg.float64), 0, [0, 1, 2], tensor(src), "amin")
    same_bits(got, np.array([np.nan, 1.0, -0.0]))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1), st.integers(0, 99))
def test_put_along_axis_agrees_with_numpy(n: int, m: int, axis: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, (n, m))
    size = x.shape[axis]
    # without repetition: of several values NumPy does not say which one stays
    rows = np.stack([rng.permutation(size) for _ in range(x.shape[1 - axis])])
    index = rows if axis == 1 else rows.T
    index = np.where(rng.random(index.shape) < 0.5, index, index - size)
    values = rng.integers(10, 19, index.shape)
    want = x.copy()
    np.put_along_axis(want, index, values, axis)
    same_bits(fg.put_along_axis(tensor(x), tensor(index), tensor(values), axis), want)
    np.put_along_axis(want, index[:1], 5, axis)
    got = fg.put_along_axis(tensor(x), tensor(index), tensor(values), axis)
    if axis == 0 or n == 1:
        same_bits(fg.put_along_axis(got, tensor(index[:1]), 5, axis), want)


def test_whole_slices_are_added_copied_and_filled() -> None:
    x, index = np.arange(12.0).reshape(3, 4), np.array([2, 0])
    rows = np.array([[1.0] * 4, [2.0] * 4])
    want = x.copy()
    want[index] += 3 * rows
    same_bits(fg.index_add(tensor(x), 0, tensor(index), tensor(rows), alpha=3), want)
    want = x.copy()
    want[index] = rows
    same_bits(tensor(x).index_copy(0, tensor(index), tensor(rows)), want)
    want = x.copy()
    want[:, index] = -1
    same_bits(fg.index_fill(tensor(x), -1, tensor(index), -1), want)
    same_bits(fg.index_fill(tensor(x), 1, fg.Tensor(-4), -1), np.where(x % 4 == 0, -1, x))


def test_gradients_flow_to_both_sides() -> None:
    rng = np.random.default_rng(0)
    x, src = rng.normal(size=(3, 4)), rng.normal(size=(2, 5))
    index = tensor(np.array([[0, 1, 1, 3, 0], [2, 2, 2, 1, -1]]))
    check_gradients(lambda x, s: fg.scatter(x * x, 1, index, s * s), x, src)
    check_gradients(lambda x, s: fg.scatter_add(x * x, 1, index, s * s), x, src)
    for reduce in FOLDS:
        for include in (True, False):
            check_gradients(
                lambda x, s, r=reduce, i=include: fg.scatter_reduce(x * 2, 1, index, s * 3, r, i),
                x, src,
            )  # fmt: skip
    places = tensor(np.array([[1], [0], [3]]))
    values = rng.normal(size=(3, 1))
    check_gradients(lambda x, v: fg.put_along_axis(x * x, places, v * v, 1), x, values)
    check_gradients(lambda x, v: fg.index_add(x * x, 0, [1, 1], v * v), x, rng.normal(size=(2, 4)))
    check_gradients(lambda x, v: fg.index_copy(x * x, 0, [1, 1], v * v), x, rng.normal(size=(2, 4)))


def test_mistakes_name_the_users_line() -> None:
    x, index = fg.zeros((2, 3)), fg.Tensor([[0, 1]])
    with raises(ShapeError):
        fg.scatter(x, 0, fg.Tensor([0]), 1.0)
    with raises(ShapeError):
        fg.scatter(x, 0, fg.Tensor([[0, 1, 0, 1]]), 1.0)
    with raises(ShapeError):
        fg.scatter(x, 1, index, fg.ones((1, 1)))
    with raises(ShapeError):
        fg.put_along_axis(x, fg.Tensor([0]), 1.0, 0)
    with raises(ShapeError):
        fg.index_add(x, 0, index, 1.0)
    with raises(ArgumentError, "median"):
        fg.scatter_reduce(x, 0, index, 1.0, "median")
    with raises(DTypeError):
        fg.scatter(x, 0, fg.Tensor([[0.0]]), 1.0)


def test_a_place_outside_is_an_error_at_the_line_that_used_it() -> None:
    x = tensor(np.ones((2, 3)))
    with raises(BoundsError, "outside"):
        fg.scatter_add(x, 1, fg.Tensor([[0, 3]]), 1.0).numpy()
    with raises(BoundsError, "outside"):
        fg.index_copy(x, 1, fg.Tensor([-4]), 1.0).numpy()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_scattered_changes_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    index = np.zeros(tuple(0 if d == 0 else n for d, n in enumerate(shape)), np.int32)
    same_bits(fg.scatter_add(tensor(x), 0, tensor(index), 1.0), x)
