"""Fourier transforms, windows and scales of sound.

In: a `Call`. Out: lazy tensors. A transform of up to `MATRIX` points is a product with a constant
matrix, native code like any other; a longer one is NumPy's, on the host.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

import fulgurite as fg

from ...core.op import Array
from ...tensor import Tensor
from .. import types as t
from ..errors import ModelError
from ..table import Call, operator
from .movement import axis_of, padded

MATRIX = 2048


@operator("DFT", since=17)
def dft(op: Call) -> Tensor:
    """A Fourier transform along one axis; the last one holds real and imaginary parts."""
    x = op[0]
    length = int(op.number(1)) if op.has(1) else None
    if op.version < 20:
        axis = op.int("axis", 1)
    else:
        axis = int(op.number(2)) if op.has(2) else -2
    axis = axis_of(axis, x.ndim)
    inverse, one_sided = bool(op.int("inverse")), bool(op.int("onesided"))
    moved = fg.moveaxis(x, axis, -2)
    if inverse and one_sided:
        return fg.moveaxis(_real_inverse(op, moved, length), -2, axis)
    return fg.moveaxis(transformed(op, moved, length, inverse, one_sided), -2, axis)


def transformed(op: Call, x: Tensor, length: int | None, inverse: bool, one_sided: bool) -> Tensor:
    """(..., n, 1 or 2) as (..., m, 2)."""
    count = x.shape[-2]
    length = length or count
    widths = [(0, 0)] * (x.ndim - 2) + [(0, length - count), (0, 0)]
    x = padded(x, widths, "constant")
    results = length // 2 + 1 if one_sided else length
    if length > MATRIX:
        return _host(op, x, results, inverse)
    angle = np.outer(np.arange(length), np.arange(results)) % length * (2 * pi / length)
    angle = angle if inverse else -angle
    scale = 1 / length if inverse else 1.0
    cos, sin = (fg.Tensor(f(angle) * scale).astype(x.dtype) for f in (np.cos, np.sin))
    real = x[..., 0]
    if x.shape[-1] == 1:
        return fg.stack([real @ cos, real @ sin], axis=-1)
    imaginary = x[..., 1]
    return fg.stack([real @ cos - imaginary @ sin, real @ sin + imaginary @ cos], axis=-1)


def _real_inverse(op: Call, x: Tensor, length: int | None) -> Tensor:
    """The real signal whose first half of frequencies is given."""
    length = length or 2 * (x.shape[-2] - 1)
    half = length // 2 + 1
    widths = [(0, 0)] * (x.ndim - 2) + [(0, half - x.shape[-2]), (0, 0)]
    x = padded(x, widths, "constant")
    angle = np.outer(np.arange(half), np.arange(length)) % length * (2 * pi / length)
    weight = np.full((half, 1), 2.0)
    weight[0] = 1
    if length % 2 == 0:
        weight[-1] = 1
    cos = fg.Tensor(np.cos(angle) * weight / length).astype(x.dtype)
    sin = fg.Tensor(-np.sin(angle) * weight / length).astype(x.dtype)
    return fg.expand_dims(x[..., 0] @ cos + x[..., 1] @ sin, -1)


def _host(op: Call, x: Tensor, results: int, inverse: bool) -> Tensor:
    op.build.hosts.add("fft")
    shape = (*x.shape[:-2], results, 2)
    found: Tensor = fg.custom(_inverse_fft if inverse else _fft, x, shape=shape, dtype=x.dtype)
    return found


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0] + 0j


def _fft(x: Array) -> Array:
    found = np.fft.fft(_complex(x), axis=-1)
    return np.stack([found.real, found.imag], axis=-1).astype(x.dtype)


def _inverse_fft(x: Array) -> Array:
    found = np.fft.ifft(_complex(x), axis=-1)
    return np.stack([found.real, found.imag], axis=-1).astype(x.dtype)


@operator("STFT", since=17)
def stft(op: Call) -> Tensor:
    """Fourier transforms of overlapping frames."""
    x = op[0]
    step = int(op.number(1))
    window = op.maybe(2)
    length = int(op.number(3)) if op.has(3) else None
    if length is None:
        if window is None:
            raise ModelError("neither a window nor a frame length is given", "invalid model")
        length = window.shape[0]
    if x.ndim == 2:
        x = fg.expand_dims(x, -1)
    if step < 1 or length < 1 or length > x.shape[1]:
        raise ModelError(f"frames of {length} each {step} of {x.shape[1]}", "invalid model")
    frames = fg.unfold(x, 1, length, step)  # (batch, frames, parts, length)
    if window is not None:
        frames = frames * window
    frames = fg.swapaxes(frames, -1, -2)
    return transformed(op, frames, length, False, bool(op.int("onesided", 1)))


def _window(op: Call, weights: tuple[float, ...]) -> Tensor:
    size = int(op.number(0))
    kind = op.kind_attr("output_datatype", t.FLOAT)
    span = size if op.int("periodic", 1) else max(size - 1, 1)
    angle = fg.arange(size, dtype=fg.float64) * (2 * pi / span)
    found: Any = 0.0
    for k, weight in enumerate(weights):
        found = found + (fg.cos(angle * k) * weight if k else weight)
    return fg.astype(found, kind.carrier)


@operator("HannWindow", since=17)
def hann_window(op: Call) -> Tensor:
    """A raised cosine."""
    return _window(op, (0.5, -0.5))


@operator("HammingWindow", since=17)
def hamming_window(op: Call) -> Tensor:
    """A raised cosine on a pedestal."""
    return _window(op, (25 / 46, -21 / 46))


@operator("BlackmanWindow", since=17)
def blackman_window(op: Call) -> Tensor:
    """Two cosines."""
    return _window(op, (0.42, -0.5, 0.08))


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(op: Call) -> Tensor:
    """Triangles over frequencies, at equal distances as people hear."""
    bins, length, rate = (int(op.number(i)) for i in range(3))
    low, high = (float(op.number(i)) for i in (3, 4))
    kind = op.kind_attr("output_datatype", t.FLOAT)
    mel = [2595 * np.log10(1 + f / 700) for f in (low, high)]
    steps = fg.arange(bins + 2, dtype=fg.float64) * ((mel[1] - mel[0]) / (bins + 2)) + mel[0]
    frequency = (fg.pow(10.0, steps / 2595) - 1) * 700
    edge = fg.floor(frequency * ((length + 1) / rate))
    lower, centre, upper = edge[:bins][None], edge[1 : bins + 1][None], edge[2:][None]
    place = fg.arange(length // 2 + 1, dtype=fg.float64)[:, None]
    up = (place - lower) / fg.where(centre == lower, 1, centre - lower)
    down = (upper - place) / fg.where(upper == centre, 1, upper - centre)
    rising = (place >= lower) & (place <= centre) & (centre != lower)
    falling = (place >= centre) & (place < upper) & (upper != centre)
    found = fg.where(rising, up, fg.where(falling, down, 0.0))
    found = fg.where((centre == lower) & (place == centre), 1.0, found)
    return fg.astype(found, kind.carrier)
