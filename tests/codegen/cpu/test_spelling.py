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


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numbers_that_go_through_small_ones_are_those_they_were(kind: str, dtype: str) -> None:
    """Beyond limits, between whole numbers, zeros of both signs, NaN."""
    some = [
        0.0,
        -0.0,
        -0.3,
        0.7,
        -0.9,
        1.5,
        -1.5,
        126.9,
        127.2,
        -128.4,
        -129,
        254.6,
        255.5,
        300,
        -300,
    ]
    some += [32767.6, 65535.5, 1e6, -1e6, np.nan, np.inf, -np.inf]
    with np.errstate(over="ignore"):
        x = np.resize(np.array(some).astype(dtype), 20_011)
    found = []
    for device in ("cpu", "reference"):
        with fg.config(device=device, tier="native"):
            made = fg.Tensor(x).astype(kind).astype(dtype)
            found.append((1 / (made * 2)).numpy())  # whose sign is that of a zero
    np.testing.assert_array_equal(found[0], found[1])
