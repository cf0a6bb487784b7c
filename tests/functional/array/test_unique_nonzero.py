"""Tests of fulgurite/functional/array/unique_nonzero.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ShapeError
from fulgurite.functional.array import unique_nonzero
from tests.functional.helpers import HOSTILE, check_gradients, raises, same_bits, tensor

SHAPES = [(0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 2)]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nonzero_and_argwhere_agree_with_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 3, shape).astype(dtype)
    found = fg.nonzero(tensor(values))
    assert len(found) == len(shape)
    for got, want in zip(found, np.nonzero(values), strict=True):
        same_bits(got, want.astype(np.int32))
    same_bits(fg.argwhere(tensor(values)), np.argwhere(values).astype(np.int32))


def test_nan_and_negative_zero_count_as_numpy_counts_them() -> None:
    assert fg.nonzero(tensor(HOSTILE))[0].tolist() == np.nonzero(HOSTILE)[0].tolist()


def test_argwhere_of_a_number_has_no_columns() -> None:
    for number in (0.0, 2.0):
        same_bits(fg.argwhere(fg.Tensor(number)), np.argwhere(number).astype(np.int32))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(), *SHAPES])
def test_unique_agrees_with_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    x = fg.Tensor(np.random.default_rng(0).integers(0, 4, shape)).astype(dtype)
    values = x.numpy().astype(np.float64 if "float" in dtype else x.dtype.numpy)
    want = np.unique_all(values)
    got = fg.unique_all(x)
    same_bits(got.values, want.values.astype(x.dtype.numpy))
    same_bits(got.indices, want.indices.astype(np.int32))
    same_bits(got.inverse_indices, want.inverse_indices.astype(np.int32))
    same_bits(got.counts, want.counts.astype(np.int32))
    assert fg.unique_values(x).tolist() == got.values.tolist()
    assert fg.unique_counts(x).counts.tolist() == got.counts.tolist()
    assert fg.unique_inverse(x).inverse_indices.tolist() == got.inverse_indices.tolist()


def test_every_nan_is_a_value_and_zeros_are_one() -> None:
    values = np.array([np.nan, 0.0, np.nan, -0.0, np.inf, -np.inf])
    got = fg.unique_counts(tensor(values))
    assert got.counts.tolist() == [1, 2, 1, 1, 1]
    np.testing.assert_array_equal(got.values.numpy(), np.unique_values(values))


def test_unique_returns_what_is_asked_for() -> None:
    values = np.array([[3, 1], [3, 2]])
    x = tensor(values)
    alone = fg.unique(x)
    assert isinstance(alone, fg.Tensor)
    assert alone.tolist() == [1, 2, 3]
    for flags in ({"return_counts": True}, {"return_inverse": True, "return_counts": True},
                  {"return_index": True}):  # fmt: skip
        got = fg.unique(x, **flags)
        assert isinstance(got, tuple)
        for mine, theirs in zip(got, np.unique(values, **flags), strict=True):  # type: ignore[call-overload]
            np.testing.assert_array_equal(mine.numpy(), theirs)


def test_the_values_stay_lazy_and_carry_a_gradient() -> None:
    x = fg.Tensor([3.0, 1.0, 3.0, 2.0])
    assert not fg.unique_values(x * 2).is_realized
    check_gradients(lambda x: fg.unique_values(x * x), np.array([3.0, 1.0, 2.0]))


def test_mistakes_name_the_users_line() -> None:
    with raises(ShapeError):
        fg.nonzero(fg.Tensor(1.0))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_values_are_ordered_by_their_parts(dtype: str) -> None:
    a = np.array([[1 + 2j, 1 - 1j, 0j], [1 + 2j, -1 + 5j, complex(-0.0, -0.0)]], dtype)
    found = fg.unique_all(tensor(a))
    expected = np.unique_all(a)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    assert found.values.numpy().dtype == dtype
    again = found.values.numpy()[found.inverse_indices.numpy()]
    np.testing.assert_array_equal(again, a)
    np.testing.assert_array_equal(
        fg.isin(tensor(a), [1 + 2j, 0.0]).numpy(), np.isin(a, [1 + 2j, 0])
    )
    unknown = tensor(np.array([complex(0, np.nan), complex(np.nan, 0), 1j, 1j], dtype))
    assert fg.unique_counts(unknown).counts.tolist() == [2, 1, 1]
    assert fg.isin(unknown, unknown).tolist() == [False, False, True, True]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64"])
def test_whole_numbers_are_found_as_the_sorted_graph_finds_them(dtype: str) -> None:
    values = np.random.default_rng(5).integers(0, 50, (7, 11)).astype(dtype)
    for array in (values, values[:0], values[0, 0]):
        x = fg.Tensor(array)
        every = fg.unique_all(x)
        found: Any
        for found in (fg.unique_values(x), fg.unique(x), fg.unique_counts(x).values):
            assert found.dtype == every.values.dtype and found.tolist() == every.values.tolist()
        counts = fg.unique_counts(x).counts
        assert counts.dtype == every.counts.dtype and counts.tolist() == every.counts.tolist()


def test_values_alone_are_made_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nobody asked which element is which value")

    monkeypatch.setattr(unique_nonzero, "_ranks", refuse)
    assert fg.unique_values(fg.Tensor([2.5, 1.0, 2.5])).tolist() == [1.0, 2.5]
    assert fg.unique_values(fg.Tensor(np.ones((0, 3), np.float32))).shape == (0,)
