"""Elementwise ops as LLVM: bounds, which are one number in all lanes."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.ops.elementwise import maximum, minimum

pytestmark = pytest.mark.device("cpu")
BOUNDS = (0.0, -0.0, 1.0, -1.0, 6.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45)


def hostile(dtype: str) -> np.ndarray:
    """Zeros of both signs, NaN, infinities, denormals and numbers, more than a few vectors."""
    limits = np.finfo(dtype)
    some = [0.0, -0.0, np.nan, np.inf, -np.inf, limits.tiny / 2, -limits.tiny / 2, 1, -1, 6, 7]
    return np.resize(np.array(some, dtype), 20_011)  # more than graphs of the tiny tier have


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_keep_nan_and_the_signs_of_zeros(bound: float, dtype: str) -> None:
    x = hostile(dtype)
    limit = np.array(bound, dtype)
    made = fg.Tensor(x)
    with fg.config(tier="native"):
        found = [fg.maximum(made, fg.Tensor(limit)), fg.minimum(fg.Tensor(limit), made)]
        arrays = [y.numpy() for y in found]
    for array, meaning in zip(arrays, (maximum, minimum), strict=True):
        with np.errstate(invalid="ignore"):
            wanted = meaning(x, limit)
        np.testing.assert_array_equal(array, wanted)
        np.testing.assert_array_equal(
            np.signbit(array[array == 0]), np.signbit(wanted[wanted == 0])
        )


def test_a_clip_takes_few_instructions() -> None:
    x = fg.Tensor(hostile("float32"))
    text = fg.explain(fg.clip(x, 0, 6), stage="loops")
    assert "llvm.maximum" not in text and "llvm.minimum" not in text
