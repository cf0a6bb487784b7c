"""Tests of fulgurite/codegen/cpu/llvm/emitter.py: instructions whose obvious spelling is wrong."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg

pytest.importorskip("llvmlite")


def picked_sum(x: fg.Tensor) -> fg.Tensor:
    """A sum whose gradient is `where(valid, m * (g / c), 0)` with masked loads of g and c."""
    wrapped = fg.pad(x, ((0, 0), (0, 0), (2, 2)), mode="wrap")
    return fg.max_pool1d(wrapped, 2, stride=1, dilation=2)[1, :, 1::2].sum()


def test_no_quotient_of_masked_lanes_gets_past_the_mask() -> None:
    x = np.random.default_rng(208).standard_normal((2, 1, 15))

    def gradient() -> np.ndarray[Any, Any]:
        value, (found,) = fg.value_and_grad(picked_sum, (0,))(fg.tensor(x))
        fg.realize(value, found)
        return np.asarray(found.numpy())

    with fg.config(device="reference"):
        expected = gradient()
    with fg.config(device="cpu", tier="native", threads=1):
        np.testing.assert_array_equal(gradient(), expected)
