"""Tests of codegen/cpu/loops/accumulator.py.

Running values, and what they do with hostile numbers.
"""

import numpy as np
import pytest

import fulgurite as fg

pytest.importorskip("llvmlite")

from tests.codegen.cpu.machine import VECTORS, run, subject


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("size", [1, 5, 37, 200])
def test_extremes_of_floats_keep_nan_and_the_sign_of_zero(
    name: str, dtype: type, vectors: str, size: int
) -> None:
    what = subject(getattr(fg.Tensor(np.ones(size, dtype)), name)())
    rendered = what.render(vectors)
    rng = np.random.default_rng(size)
    quiet = np.frombuffer(b"\x00\x00\xc0\xff", np.float32)[0]  # a negative NaN
    for values in (
        [-0.0], [0.0], [0.0, -0.0], [np.nan, 1.0], [quiet, 1.0], [-np.inf], [np.inf, -np.inf],
        [-1.0, -2.0, -0.0], [1.0, 2.0, 0.0, -0.0], [1e-45, -1e-45], [-np.inf, np.nan],
    ):  # fmt: skip
        x = rng.choice(np.array(values, dtype), size=size)
        found = run(rendered, [x, np.zeros(1, dtype)], vectors)[1][0]
        if np.isnan(x).any():
            assert np.isnan(found)
            continue
        expected = x.max() if name == "max" else x.min()
        assert found == expected
        if found == 0:
            signs = np.signbit(x[x == 0])
            assert np.signbit(found) == (signs.all() if name == "max" else signs.any())


def test_a_sum_of_negative_zeros_is_a_negative_zero() -> None:
    for size in (1, 20, 5000, 100_000):
        what = subject(fg.Tensor(np.ones(size, np.float32)).sum())
        found = run(what.render(), [np.full(size, -0.0, np.float32), np.ones(1, np.float32)])[1][0]
        assert found == 0 and np.signbit(found)


def test_infinite_sums_stay_infinite() -> None:
    for dtype in (np.float32, np.float64):
        for size in (40, 100_000):
            what = subject(fg.Tensor(np.ones(size, dtype)).sum())
            x = np.ones(size, dtype)
            x[size // 2] = np.inf
            assert run(what.render(), [x, np.zeros(1, dtype)])[1][0] == np.inf
