"""Tests of fulgurite/functional/array/sorting.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, DTypeError, ShapeError
from tests.functional.helpers import (
    HOSTILE,
    WHOLE,
    Array,
    check_gradients,
    hostile,
    near,
    raises,
    same_bits,
    tensor,
)

DTYPES = ["bool", "int8", "uint8", "int64", "float16", "bfloat16", "float32", "float64"]


def shuffled(dtype: str, shape: tuple[int, ...] = (4, 11)) -> Array:
    """Hostile numbers, some of them twice, in a random order."""
    rng = np.random.default_rng(0)
    known = WHOLE if dtype.startswith("int") else np.abs(WHOLE)
    values = hostile(dtype) if "float" in dtype else known.astype(dtype)
    return rng.choice(values, shape)


def falling(values: Array, axis: int) -> Array:
    """The stable falling order: NaN first."""
    order = np.argsort(np.flip(values, axis), axis=axis, kind="stable")
    return np.asarray(values.shape[axis] - 1 - np.flip(order, axis))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sorting_is_stable_in_both_directions(dtype: str) -> None:
    values = shuffled(dtype)
    wide = values.astype(np.float64) if "float" in dtype else values
    for axis in (0, 1, -1):
        rising = np.argsort(wide, axis=axis, kind="stable")
        got = fg.argsort(tensor(values), axis=axis)
        assert got.dtype is fg.int32
        np.testing.assert_array_equal(got.numpy(), rising)
        same_bits(fg.sort(tensor(values), axis=axis), np.take_along_axis(values, rising, axis))
        order = falling(wide, axis)
        got = tensor(values).argsort(dim=axis, descending=True)  # type: ignore[call-arg]
        np.testing.assert_array_equal(got.numpy(), order)
        want = np.take_along_axis(values, order, axis)
        same_bits(fg.sort(tensor(values), axis=axis, descending=True), want)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (0, 3), (2, 1, 3)])
def test_sorting_odd_shapes(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    for axis in range(len(shape)):
        same_bits(fg.sort(tensor(values), axis=axis), np.sort(values, axis))
        assert fg.argsort(tensor(values), axis=axis).shape == shape


@given(st.integers(1, 7), st.data())
def test_topk_is_the_start_of_a_sort(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    values = np.random.default_rng(n).choice(HOSTILE, (3, n))
    for largest in (True, False):
        order = falling(values, 1) if largest else np.argsort(values, axis=1, kind="stable")
        got = fg.topk(tensor(values), k, largest=largest)
        np.testing.assert_array_equal(got.indices.numpy(), order[:, :k])
        same_bits(got.values, np.take_along_axis(values, order[:, :k], 1))
        assert got.indices.dtype is fg.int32


def test_kthvalue_counts_from_one() -> None:
    values = np.random.default_rng(0).permutation(12.0 * np.arange(12)).reshape(3, 4)
    for k in (1, 2, 4):
        for keepdims in (True, False):
            value, place = fg.kthvalue(tensor(values), k, keepdims=keepdims)
            order = np.argsort(values, axis=1)[:, k - 1 : k]
            want = np.take_along_axis(values, order, 1)
            same_bits(value, want if keepdims else want[:, 0])
            np.testing.assert_array_equal(place.numpy(), order if keepdims else order[:, 0])


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_agree_with_numpy(method: Any) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    for q in (0.0, 0.25, 0.5, 0.9, 1.0, [0.1, 0.7], [[0.1], [0.7]]):
        for axis in (None, 0, -1, (0, 2)):
            for keepdims in (False, True):
                got = fg.quantile(tensor(values), tensor(np.array(q)), axis, keepdims, method)
                want = np.quantile(values, q, axis, keepdims=keepdims, method=method)
                assert got.shape == want.shape
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-14, atol=1e-15)


def test_the_place_of_a_quantile_is_exact_whatever_the_dtype() -> None:
    values = np.arange(1001, dtype=np.float32)
    assert fg.quantile(tensor(values), 0.9).item() == 900
    assert fg.quantile(tensor(values), [0.1, 0.3]).tolist() == [100, 300]
    assert fg.quantile(tensor(values), 0.9).dtype is fg.float32


def test_medians_agree_with_numpy() -> None:
    for shape in ((5,), (6,), (3, 4), ()):
        values = np.random.default_rng(0).normal(size=shape)
        near(fg.median(tensor(values)), np.median(values))
    inf, nan = np.inf, np.nan
    for row in ([1.0, inf], [inf, inf], [-inf, 1.0, inf], [-inf, -inf, 3.0, 4.0]):
        near(fg.median(tensor(np.array(row))), np.median(row))
    rows = tensor(np.array([[1.0, nan, 2.0], [1.0, 5.0, 2.0]]))
    near(rows.median(axis=1), np.array([nan, 2.0]))
    assert fg.median(fg.Tensor([1, 2])).item() == 1.5
    assert fg.median(fg.Tensor([1, 2], dtype="float16")).dtype is fg.float16


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 100])
def test_searchsorted_agrees_with_numpy(side: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    for dtype in ("int8", "float64"):
        rising = np.sort(rng.integers(-20, 20, size)).astype(dtype)
        for shape in ((), (7,), (2, 3), (0,)):
            wanted = rng.integers(-25, 25, shape).astype(dtype)
            got = fg.searchsorted(tensor(rising), tensor(wanted), side)
            assert got.dtype is fg.int32
            want = np.asarray(np.searchsorted(rising, wanted, side))
            same_bits(got, want.astype(np.int32))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_puts_nan_last(side: Any) -> None:
    rising = np.sort(HOSTILE)
    for row in (rising, np.concatenate([rising, [np.nan]])):
        got = fg.searchsorted(tensor(row), tensor(HOSTILE), side)
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(row, HOSTILE, side))


def test_searchsorted_takes_a_sorter_and_stacks_of_rows() -> None:
    values = np.random.default_rng(0).permutation(9)
    sorter = np.argsort(values)
    got = fg.searchsorted(tensor(values), [3, 8], sorter=tensor(sorter))
    assert got.tolist() == np.searchsorted(values, [3, 8], sorter=sorter).tolist()
    rows = np.sort(np.random.default_rng(0).normal(size=(2, 3, 6)), axis=-1)
    wanted = np.random.default_rng(1).normal(size=(2, 3, 4))
    found = fg.searchsorted(tensor(rows), tensor(wanted)).numpy()
    for at in np.ndindex(2, 3):
        np.testing.assert_array_equal(found[at], np.searchsorted(rows[at], wanted[at]))
    assert fg.searchsorted(tensor(np.arange(5.0)), 2).item() == 2


def test_gradients_follow_the_elements() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    for axis in (0, 1):
        check_gradients(lambda x, a=axis: fg.sort(x * x, axis=a), values)
        check_gradients(lambda x, a=axis: fg.sort(x, axis=a, descending=True), values)
        check_gradients(lambda x, a=axis: fg.topk(x * x, 2, axis=a).values, values)
        check_gradients(lambda x, a=axis: fg.kthvalue(x * x, 2, axis=a).values, values)
        check_gradients(lambda x, a=axis: fg.median(x * x, axis=a), values)
        check_gradients(lambda x, a=axis: fg.quantile(x, 0.3, axis=a), values)


def kinds(*tensors: fg.Tensor) -> list[str]:
    """The kinds of the kernels of a schedule."""
    return [item.kernel.kind for item in fg.schedule(*tensors).items]


def test_sorted_values_are_one_kernel_and_a_search_among_few_is_one() -> None:
    x = tensor(np.random.default_rng(0).normal(size=(4, 8)))
    assert kinds(fg.sort(x)) == ["sort"]
    assert kinds(fg.sort(x) * 2) == ["sort", "map"]
    assert kinds(fg.searchsorted(x[0], x)) == ["reduce"]


def test_places_that_others_read_are_sorted_once() -> None:
    x = tensor(np.random.default_rng(0).normal(size=(4, 8)))
    order = fg.argsort(x)
    assert kinds(fg.take_along_axis(x, order, 1), order) == ["sort", "map"]
    assert kinds(fg.take_along_axis(x * 2, order, 1)) == ["sort", "map"]
    assert kinds(fg.topk(x, 3).values).count("sort") == 1


def test_mistakes_name_the_users_line() -> None:
    x = fg.zeros((2, 3))
    with raises(AxisError):
        fg.sort(fg.zeros(()), axis=1)
    with raises(AxisError):
        fg.argsort(x, axis=2)
    with raises(ArgumentError):
        fg.topk(x, 4)
    with raises(ArgumentError):
        fg.kthvalue(x, 0)
    with raises(ArgumentError):
        fg.quantile(x, 0.5, method="wild")
    with raises(ArgumentError, "q is 1.5"):
        fg.quantile(x, 1.5)
    with raises(ShapeError):
        fg.median(fg.zeros(0))
    with raises(ArgumentError):
        fg.searchsorted(x[0], x, side="middle")
    with raises(ShapeError):
        fg.searchsorted(x, fg.zeros((3, 3)))
    with raises(DTypeError):
        fg.sort(fg.zeros(3, fg.complex64))
    with raises(DTypeError):
        fg.searchsorted(fg.zeros(3, fg.complex64), 1)
