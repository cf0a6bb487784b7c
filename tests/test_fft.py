"""Tests of fulgurite/fft.py against NumPy, with gradients against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError, AxisError

NORMS = ["backward", "ortho", "forward"]


def numbers(*shape: int, dtype: str = "complex128", seed: int = 0) -> Array:
    r = np.random.default_rng(seed)
    return (r.normal(size=shape) + 1j * r.normal(size=shape)).astype(dtype)


def data(name: str, *shape: int, single: bool = False) -> Array:
    x = numbers(*shape, dtype="complex64" if single else "complex128")
    return x.real.copy() if name in ("rfft", "ihfft", "rfftn") else x


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize(("n", "axis"), [(None, -1), (3, 0), (7, 1), (8, -1), (1, 0), (2, 1)])
def test_transforms_of_one_axis_are_numpys(name: str, norm: str, n: Any, axis: int) -> None:
    x = data(name, 4, 5)
    got = getattr(fg.fft, name)(fg.Tensor(x), n=n, axis=axis, norm=norm).numpy()
    expected = getattr(np.fft, name)(x, n=n, axis=axis, norm=norm)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize(("s", "axes"), [(None, None), ((3, 4), (0, 2)), ((6, 2), None)])
def test_transforms_of_several_axes_are_numpys(name: str, norm: str, s: Any, axes: Any) -> None:
    x = data(name, 2, 3, 5, single=True)
    got = getattr(fg.fft, name)(fg.Tensor(x), s=s, axes=axes, norm=norm).numpy()
    named = axes or (None if s is None else (1, 2))
    expected = getattr(np.fft, name)(x, s=s, axes=named, norm=norm)
    assert got.dtype in (np.complex64, np.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_frequencies_and_shifts_are_numpys() -> None:
    for n in (1, 4, 7):
        np.testing.assert_allclose(
            fg.fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), rtol=1e-6
        )
        np.testing.assert_allclose(fg.fft.rfftfreq(n).numpy(), np.fft.rfftfreq(n), rtol=1e-6)
    x = np.arange(30).reshape(5, 6)
    for axes in (None, 0, (1,), (0, 1)):
        for name in ("fftshift", "ifftshift"):
            got = getattr(fg.fft, name)(fg.Tensor(x), axes=axes).numpy()
            np.testing.assert_array_equal(got, getattr(np.fft, name)(x, axes=axes))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "rfftn"])
@pytest.mark.parametrize("n", [None, 3, 8])
def test_gradients_agree_with_finite_differences(name: str, n: int | None) -> None:
    real_input = name in ("rfft", "ihfft", "rfftn")
    parts = np.random.default_rng(1).normal(size=(1 if real_input else 2, 5))

    def loss(x: fg.Tensor) -> fg.Tensor:
        whole = x[0] if real_input else fg.complex(x[0], x[1])
        y = getattr(fg.fft, name)(whole, *([] if name == "rfftn" else [n]))
        w = np.random.default_rng(2).normal(size=(2, *y.shape))
        return (fg.real(y) * fg.Tensor(w[0]) + fg.imag(y) * fg.Tensor(w[1])).sum()

    got = fg.grad(loss)(fg.Tensor(parts)).numpy()
    expected = np.zeros_like(parts)
    for place in np.ndindex(parts.shape):
        step = np.zeros_like(parts)
        step[place] = 1e-5
        up, down = (loss(fg.Tensor(parts + s)).item() for s in (step, -step))
        expected[place] = (float(up) - float(down)) / 2e-5  # type: ignore[arg-type]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


def test_mistakes_are_told_with_what_to_do() -> None:
    x = fg.ones((4,))
    with pytest.raises(ArgumentError, match="norm is"):
        fg.fft.fft(x, norm="half")
    with pytest.raises(ArgumentError, match="at least 1"):
        fg.fft.fft(x, n=0)
    with pytest.raises(AxisError, match="axis 2"):
        fg.fft.fft(x, axis=2)
    with pytest.raises(ArgumentError, match="use fft"):
        fg.fft.rfft(fg.complex(x, x))
    with pytest.raises(ArgumentError, match="one for each axis"):
        fg.fft.fftn(fg.ones((2, 2)), s=(2,), axes=(0, 1))
