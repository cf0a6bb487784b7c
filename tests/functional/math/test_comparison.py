"""Tests of fulgurite/functional/math/comparison.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from tests.functional.helpers import HOSTILE, Array, same_bits, tensor


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("keywords", [{}, {"equal_nan": True}, {"rtol": 0.0, "atol": 0.0},
                                      {"rtol": 0.5}, {"atol": 2.0, "rtol": 0.0}])  # fmt: skip
def test_closeness_is_numpys_for_every_pair_of_hostile_numbers(
    dtype: str, keywords: dict[str, Any]
) -> None:
    numbers = np.array([*HOSTILE, 1 + 1e-6, 1 + 1e-4, 1e-9])
    with np.errstate(all="ignore"):
        a, b = (x.astype(dtype) for x in np.meshgrid(numbers, numbers))
        if dtype == "complex64":
            a = (a + 1j).astype(dtype)
        want = np.isclose(a, b, **keywords)
    same_bits(fg.isclose(tensor(a), tensor(b), **keywords), want)
    assert bool(fg.allclose(tensor(a), tensor(b), **keywords)) == want.all()


def test_whole_numbers_truths_and_python_numbers_are_compared() -> None:
    near = tensor(np.array([16777217, 5], np.int32)), tensor(np.array([16777216, 5], np.int32))
    assert fg.isclose(*near, rtol=0, atol=0).tolist() == [False, True]
    assert fg.isclose(*near).tolist() == [True, True]
    assert fg.isclose(fg.Tensor([True, False]), True).tolist() == [True, False]
    assert fg.Tensor([1.0]).allclose(1.000001) and not fg.allclose(1.0, 1.1)
    assert fg.isclose(fg.Tensor([1 + 1j]), 1 + 1.000001j).tolist() == [True]
    assert fg.allclose(fg.zeros((0, 3)), fg.zeros(3)).item() is True
    assert fg.isclose(fg.zeros((2, 1)), fg.zeros(3)).shape == (2, 3)
    assert fg.isclose(fg.Tensor([1.0], dtype="bfloat16"), 1.0).tolist() == [True]


def test_an_infinity_is_close_to_itself_alone_whatever_the_tolerance() -> None:
    inf = float("inf")
    assert fg.isclose(fg.Tensor([inf, inf, 3e38]), fg.Tensor([3e38, inf, inf]), 2.0).tolist() == [
        False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "bool"])
@pytest.mark.parametrize("keywords", [{}, {"nan": 7.0, "posinf": 2.0, "neginf": -3.0}])
def test_odd_numbers_become_numpys_numbers(dtype: str, keywords: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        kind = "float64" if dtype == "complex64" else dtype
        whole = np.clip(np.nan_to_num(HOSTILE), -99, 99)
        values: Array = (whole if dtype in ("int8", "bool") else HOSTILE).astype(kind)
        if dtype == "complex64":
            values = (values + 1j * values[::-1]).astype(dtype)
    same_bits(fg.nan_to_num(tensor(values), **keywords), np.nan_to_num(values, **keywords))


def test_a_number_that_was_put_in_has_no_slope() -> None:
    x = fg.Tensor([1.0, float("nan"), float("inf")])
    assert fg.grad(lambda x: (fg.nan_to_num(x) * 2).sum())(x).tolist() == [2.0, 0.0, 0.0]
    assert fg.vmap(fg.nan_to_num)(x).shape == (3,)
    assert fg.jit(lambda x: fg.nan_to_num(x, nan=4.0))(x).tolist()[1] == 4.0
