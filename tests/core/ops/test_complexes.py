"""Tests of fulgurite/core/ops/complexes.py: parts go through untouched, on every device."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg

HOSTILE = [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-45, 3e38]


@pytest.mark.parametrize(("small", "large"), [("float32", "complex64"), ("float64", "complex128")])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_parts_and_pairs_keep_every_bit(small: str, large: str, device: str) -> None:
    re, im = np.meshgrid(np.array(HOSTILE, small), np.array(HOSTILE, small))
    with fg.config(device=device, tier="native"):
        x = fg.complex(fg.Tensor(re), fg.Tensor(im))
        assert str(x.dtype) == large
        parts = [fg.real(x), fg.imag(x), fg.real(fg.conj(x)), fg.imag(fg.conj(x))]
        for got, expected in zip(parts, [re, im, re, -im], strict=True):
            assert str(got.dtype) == small
            assert got.numpy().tobytes() == expected.tobytes()


def test_gradients_of_parts_are_those_of_the_squared_magnitude() -> None:
    def magnitude(re: fg.Tensor, im: fg.Tensor) -> fg.Tensor:
        x = fg.complex(re, im)
        return fg.real(x * fg.conj(x)).sum()

    re, im = fg.Tensor([1.0, -2.0]), fg.Tensor([0.5, 3.0])
    by_re, by_im = fg.grad(magnitude, (0, 1))(re, im)
    np.testing.assert_allclose(by_re.numpy(), [2.0, -4.0])
    np.testing.assert_allclose(by_im.numpy(), [1.0, 6.0])


def test_real_numbers_are_their_own_real_part_and_conjugate() -> None:
    x = fg.Tensor([1.0, -2.0])
    assert fg.real(x).tolist() == fg.conj(x).tolist() == [1.0, -2.0]
    assert fg.imag(x).tolist() == [0.0, 0.0]


def test_magnitude_sign_and_rounding_of_complex_numbers() -> None:
    x = fg.Tensor(np.array([3 + 4j, 0j, -2.5 + 1.5j], np.complex64))
    np.testing.assert_allclose(fg.abs(x).numpy(), [5.0, 0.0, np.hypot(2.5, 1.5)], rtol=1e-6)
    expected = np.array([0.6 + 0.8j, 0, (-2.5 + 1.5j) / np.hypot(2.5, 1.5)])
    np.testing.assert_allclose(fg.sign(x).numpy(), expected, rtol=1e-6)
    assert fg.round(x).tolist() == [3 + 4j, 0j, -2 + 2j]
