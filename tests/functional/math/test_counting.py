"""Tests of fulgurite/functional/math/counting.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, FulguriteError, ShapeError
from tests.functional.helpers import check_gradients, raises, tensor


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "uint64"])
def test_counts_are_numpys(dtype: str) -> None:
    numbers = np.array([0, 1, 1, 5, 1, 7, 0]).astype(dtype)
    weights = np.linspace(-1, 2, 7).astype("float32")
    plain = numbers.astype("int64")
    for least in (0, 20):
        got = fg.bincount(tensor(numbers), minlength=least)
        assert (
            got.dtype is fg.int32 and got.tolist() == np.bincount(plain, minlength=least).tolist()
        )
        sums = fg.bincount(tensor(numbers), tensor(weights), least)
        np.testing.assert_allclose(sums.numpy(), np.bincount(plain, weights, least), rtol=1e-6)
    for length in (0, 4, 300):
        want = np.bincount(plain, minlength=length)[:length]
        assert fg.bincount(tensor(numbers), length=length).tolist() == want.tolist()


def test_nothing_is_counted_in_nothing() -> None:
    assert fg.bincount([]).shape == (0,) and fg.bincount([], minlength=2).tolist() == [0, 0]
    assert fg.bincount(fg.zeros(0, "int32"), fg.zeros(0), length=2).tolist() == [0.0, 0.0]


def test_sums_of_weights_have_the_dtype_of_sums() -> None:
    numbers = fg.Tensor([0, 0, 1])
    for dtype, kind in (("bool", "int32"), ("int8", "int32"), ("int64", "int64"),
                        ("float16", "float16"), ("float64", "float64")):  # fmt: skip
        got = fg.bincount(numbers, fg.ones(3, dtype))
        assert got.dtype.name == kind and got.tolist() == [2, 1]
    many = fg.bincount(fg.zeros(4096, "int32"), fg.ones(4096, "float16"))
    assert many.tolist() == [4096.0]  # half floats would stop at 2048


def test_counting_works_under_transforms() -> None:
    rows = fg.Tensor([[1, 2, 9], [0, 0, 2]])
    want = [[0, 1, 1], [2, 0, 1]]
    assert fg.vmap(lambda row: fg.bincount(row, length=3))(rows).tolist() == want
    assert fg.jit(lambda row: fg.bincount(row, length=3))(rows[0]).tolist() == want[0]
    check_gradients(lambda w: fg.bincount(rows[0], w, length=3), [1.0, 2.0, 3.0])
    for transform in (fg.jit, fg.vmap):
        with pytest.raises(ArgumentError, match=r"length=10"):
            transform(fg.bincount)(rows if transform is fg.vmap else rows[0])


def test_what_cannot_be_counted_is_an_error() -> None:
    with raises(DTypeError):
        fg.bincount(fg.ones(3))
    with raises(ShapeError):
        fg.bincount(fg.zeros((2, 2), "int32"))
    with raises(ShapeError):
        fg.bincount(fg.Tensor([1, 2]), fg.ones(3))
    with raises(ArgumentError, "-1 cannot be counted"):
        fg.bincount(fg.Tensor([2, -1]))
    with raises(ArgumentError):
        fg.bincount(fg.Tensor([2]), minlength=-1)
    with raises(ArgumentError):
        fg.bincount(fg.Tensor([2]), length=-1)
    with pytest.raises(BoundsError):
        fg.bincount(fg.Tensor([2, -1]), length=4).realize()


# --- bins ----------------------------------------------------------------------------------------

DATA: dict[str, Any] = {
    "spread": np.random.default_rng(0).normal(size=200),
    "ties at edges": np.array([0.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0, 2.5]),
    "one value": np.array([3.0, 3.0]),
    "empty": np.array([]),
    "0-d": np.array(2.0),
    "matrix": np.arange(12.0).reshape(3, 4),
    "float32": np.random.default_rng(1).uniform(-1, 1, 100).astype("float32"),
    "whole": np.array([1, 2, 2, 9], "int32"),
}
BINS: list[tuple[Any, Any]] = [
    (10, None), (4, (-1.0, 2.0)), (1, (0, 0)), ([0.0, 1.0, 2.0, 4.0], None),
    (np.array([0.0, 0.0, 2.5]), None), ([0, 2, 3], None),
]  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_histograms_are_numpys(name: str) -> None:
    data = DATA[name]
    weights = np.linspace(-1, 2, data.size).reshape(data.shape).astype("float32")
    for bins, limits in BINS:
        with np.errstate(all="ignore"):
            want, edges = np.histogram(data, bins, limits)
            parts, _ = np.histogram(data, bins, limits, density=True)
            sums, _ = np.histogram(data, bins, limits, weights=weights)
        got = fg.histogram(tensor(data), bins, limits)
        dense = fg.histogram(tensor(data), bins, limits, density=True)
        mine = fg.histogram(tensor(data), bins, limits, weights=tensor(weights))
        fg.realize(*got, *dense, *mine)
        assert got.hist.dtype is fg.int32 and got.hist.tolist() == want.tolist()
        np.testing.assert_allclose(got.bin_edges.numpy(), edges, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(dense.hist.numpy(), parts, rtol=1e-5)
        np.testing.assert_allclose(mine.hist.numpy(), sums, rtol=1e-5, atol=1e-6)


def test_what_lies_in_no_bin_is_left_out() -> None:
    inf, nan = float("inf"), float("nan")
    x = fg.Tensor([nan, inf, -inf, 0.5, 1.0, 1.5])
    assert fg.histogram(x, 2, (0, 1)).hist.tolist() == [0, 2]
    amounts = fg.Tensor([nan, inf, nan, 2.0, 3.0, nan])
    assert fg.histogram(x, 2, (0, 1), weights=amounts).hist.tolist() == [0.0, 5.0]
    edges = fg.Tensor([0.0, 0.75, 1.0])
    assert fg.histogram(x, edges).hist.tolist() == [1, 1]


def test_a_histogram_works_under_transforms() -> None:
    x = fg.Tensor([[1.0, 2.0, 5.0], [0.0, 0.0, 4.0]])
    want = [[2, 1], [2, 1]]
    assert fg.vmap(lambda row: fg.histogram(row, 2).hist)(x).tolist() == want
    assert fg.jit(lambda row: fg.histogram(row, 2).hist)(x[0]).tolist() == want[0]
    check_gradients(lambda w: fg.histogram(x[0], 2, weights=w).hist, [1.0, 2.0, 3.0])


def test_bins_that_are_none_are_errors() -> None:
    x = fg.ones(3)
    for bins in (0, -1, 2.5, "auto", [2.0, 1.0]):
        with raises(ArgumentError):
            fg.histogram(x, bins)
    for limits in ((1, 0), (0, float("nan")), (0,), 3):
        with raises(ArgumentError):
            fg.histogram(x, 2, limits)  # type: ignore[arg-type]
    with raises(ShapeError):
        fg.histogram(x, [1.0])
    with raises(ShapeError):
        fg.histogram(x, 2, weights=fg.ones(2))
    with raises(DTypeError):
        fg.histogram(fg.Tensor([1j]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "uint32"])
def test_numbers_that_are_looked_at_are_counted_as_a_scatter_counts_them(dtype: str) -> None:
    values = np.random.default_rng(3).integers(0, 100, 1000).astype(dtype)
    found = fg.bincount(fg.Tensor(values), minlength=120)
    scattered = fg.bincount(fg.Tensor(values), length=120)
    assert found.dtype == scattered.dtype and found.tolist() == scattered.tolist()
    assert fg.bincount(fg.Tensor(values[:0]), minlength=2).tolist() == [0, 0]
    strided = fg.Tensor(values)[::3]
    assert fg.bincount(strided).tolist() == np.bincount(values[::3]).tolist()


def test_a_number_that_needs_too_many_counts_is_an_error_of_memory() -> None:
    with pytest.raises(FulguriteError):
        fg.bincount(fg.Tensor(np.array([1 << 50]))).realize()
