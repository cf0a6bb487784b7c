"""Fourier transforms, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ..table import Refused, Use, aten, cast


def _factor(normalization: int, count: int) -> float:
    """torch's normalisation: 0 none, 1 by the root of the count, 2 by the count."""
    return 1.0 if normalization == 0 else count ** (-0.5 if normalization == 1 else -1.0)


@aten("_fft_c2c")
def c2c(use: Use, x: Any, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    """Complex numbers to complex numbers."""
    count = 1
    for d in dims:
        count *= x.shape[d]
        x = fg.fft.fft(x, axis=d % x.ndim) if forward else _back(x, d % x.ndim)
    return cast(x * _factor(normalization, count), use.dtype)


def _back(x: Any, axis: int) -> Any:
    return fg.fft.ifft(x, axis=axis, norm="forward")


@aten("_fft_r2c")
def r2c(use: Use, x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    """Real numbers to complex numbers."""
    *others, last = dims
    count = math.prod([x.shape[d] for d in dims])
    if onesided:
        x = fg.fft.rfft(x, axis=last % x.ndim)
    else:
        x = fg.fft.fft(x, axis=last % x.ndim)
    for d in others:
        x = fg.fft.fft(x, axis=d % x.ndim)
    return cast(x * _factor(normalization, count), use.dtype)


@aten("_fft_c2r")
def c2r(use: Use, x: Any, dims: Sequence[int], normalization: int, last_size: int) -> Any:
    """Complex numbers to real numbers."""
    *others, last = dims
    if last_size < 1:
        raise Refused("a transform of nothing")
    count = math.prod([x.shape[d] for d in others]) * last_size
    for d in others:
        x = _back(x, d % x.ndim)
    x = fg.fft.irfft(x, n=last_size, axis=last % x.ndim, norm="forward")
    return cast(x * _factor(normalization, count), use.dtype)


@aten("view_as_real", "view_as_real_copy")
def view_as_real(use: Use, x: Any) -> Any:
    """Real and imaginary part as a last axis."""
    return fg.stack([fg.real(x), fg.imag(x)], axis=-1)


@aten("view_as_complex", "view_as_complex_copy")
def view_as_complex(use: Use, x: Any) -> Any:
    """A last axis of two as real and imaginary part."""
    return fg.complex(x[..., 0], x[..., 1])
