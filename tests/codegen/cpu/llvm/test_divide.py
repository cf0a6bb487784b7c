"""Tests of fulgurite/codegen/cpu/llvm/divide.py: many numbers divided by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg

pytest.importorskip("llvmlite")

from tests.codegen.cpu.machine import Array, run, subject

SIZE = 256
RENDERED = {
    dtype: subject(fg.Tensor(np.ones(SIZE, dtype)) / fg.Tensor(np.ones(1, dtype))).render()
    for dtype in (np.float32, np.float64)
}


def quotients(x: Array, by: float) -> Array:
    """x / by in machine code."""
    dtype = x.dtype.type
    return run(RENDERED[dtype], [x, np.array([by], dtype), np.zeros_like(x)])[-1]


@given(by=st.floats(width=32), seed=st.integers(0, 1000))
def test_the_quotient_is_that_of_a_division(by: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for dtype in (np.float32, np.float64):
        x = (rng.normal(size=SIZE) * 10.0 ** rng.integers(-20, 20, SIZE)).astype(dtype)
        x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.0, by]
        with np.errstate(all="ignore"):
            expected = np.divide(x, np.full(SIZE, by, dtype))
        np.testing.assert_array_equal(quotients(x, by), expected)


@pytest.mark.parametrize("by", [3.0, 0.0, -0.0, np.inf, np.nan, 1e-45, -1e-40, 3e38, 1.1754944e-38])
def test_a_hostile_divisor_divides_as_it_should(by: float) -> None:
    hostile = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1.0, -2.5], np.float32)
    x = np.resize(hostile, SIZE)
    with np.errstate(all="ignore"):
        expected = x / np.float32(by)
    found = quotients(x, by)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[x == 0]), np.signbit(expected[x == 0]))


def test_quotients_near_the_smallest_normal_number_are_within_one_unit() -> None:
    x = (np.random.default_rng(0).normal(size=SIZE) * 1e-37).astype(np.float32)
    for by in (3.0, 7.0, 0.1, 1e3):
        expected = x / np.float32(by)
        assert np.all(np.abs(quotients(x, by) - expected) <= np.abs(np.spacing(expected)))
