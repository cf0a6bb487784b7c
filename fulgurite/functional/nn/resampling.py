"""Resampling of space: interpolation to another size, and channels traded for space.

In: x of shape (batch, channels, *space), and the size wanted or a factor. Out: x with another
space. Each axis is resampled on its own: every place of the result is a weighted sum of one, two or
four neighbours, found on the host as torch finds them; where a whole number of copies
makes up the result nothing is gathered at all. Half floats are computed in float32, rounded once.
uint8 stays uint8, as in torch: the last axis comes first, weights are whole numbers over a power of
two, and what each axis gives is rounded, halves up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import build
from ...core.dtype import float64, int32, uint8
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.indexing import slices_at
from ..array.movement import permute_dims, reshape
from ..common import as_tensor, astype, floating, wide
from ..math.elementwise import clip, positive
from ..template import templated
from .pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

_MODES = {  # how many axes of space each is for
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,),
    "bilinear": (2,), "bicubic": (2,), "trilinear": (3,),
}  # fmt: skip
_AREA = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}
_CUBIC = -0.75  # the slope that torch's bicubic uses


@templated
def interpolate(
    x: TensorLike,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool = False,
) -> Tensor:
    """x with its space (the axes after batch and channels) in another size.

    Modes are nearest, nearest-exact, linear, bilinear, trilinear, bicubic and area. With
    `align_corners` the first and the last place stay where they are.

    >>> fg.interpolate(fg.Tensor([[[1.0, 3.0]]]), scale_factor=2).tolist()
    [[[1.0, 1.0, 3.0, 3.0]]]
    >>> fg.interpolate(fg.Tensor([[[1.0, 3.0]]]), 3, mode="linear", align_corners=True).tolist()
    [[[1.0, 2.0, 3.0]]]
    """
    tensor = as_tensor(x)
    space = _space(tensor, mode, align_corners)
    wanted, factors = _wanted(space, size, scale_factor, recompute_scale_factor)
    if mode == "area":
        return _AREA[len(space)](tensor, wanted)
    axes = list(zip(range(2, tensor.ndim), space, wanted, factors, strict=True))
    if mode in ("nearest", "nearest-exact"):
        for axis, _, new, factor in axes:
            tensor = _nearest(tensor, axis, new, factor, mode == "nearest-exact")
        return positive(tensor)  # of its own
    pixels, dtype = tensor.dtype is uint8, floating(tensor).dtype
    tensor = tensor if pixels else wide(tensor)
    real = np.float64 if pixels or tensor.dtype is float64 else np.float32
    taps = _cubic if mode == "bicubic" else _linear
    weighted = _weighted_pixels if pixels else _weighted
    for axis, old, new, factor in reversed(axes) if pixels else axes:
        if old != new or (factor is not None and not align_corners):
            source = _source(old, new, factor, bool(align_corners), real)
            tensor = weighted(tensor, axis, *taps(source, old))
    return positive(tensor if pixels else astype(tensor, dtype))


def _space(x: Tensor, mode: str, align_corners: bool | None) -> list[int]:
    """The sizes of the space that a mode resamples."""
    if mode not in _MODES:
        raise ArgumentError(f"there is no mode {mode!r}", f"one of {', '.join(_MODES)}")
    counts = _MODES[mode]
    if x.ndim - 2 not in counts:
        given = counts[0] if len(counts) == 1 else "1 to 3"
        raise ShapeError(
            f"{mode} interpolation of shape {x.shape}",
            f"give (batch, channels, ...) with {given} dimensions of space",
        )
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ArgumentError(f"align_corners means nothing for {mode}", "leave it out")
    space = [n for n in x.node.shape[2:] if isinstance(n, int)]
    if len(space) != x.ndim - 2:
        raise ShapeError("interpolation needs fixed sizes", "give numbers")
    return space


def _wanted(
    space: Sequence[int], size: Any, scale_factor: Any, recompute: bool
) -> tuple[list[int], list[float | None]]:
    """The sizes of the result, and the factors that the places are found with."""
    if (size is None) == (scale_factor is None):
        raise ArgumentError("give either a size or a scale_factor", "one of the two, not both")
    given = size if scale_factor is None else scale_factor
    row = list(given) if isinstance(given, Sequence) else [given] * len(space)
    if len(row) != len(space):
        raise ArgumentError(f"{given!r} for {len(space)} dimensions", "give one number for each")
    if scale_factor is None:
        if not all([isinstance(n, int) and n > 0 for n in row]):
            raise ArgumentError(f"size is {size!r}", "give whole numbers from 1")
        return row, [None] * len(row)
    sizes = [math.floor(n * float(factor)) for n, factor in zip(space, row, strict=True)]
    if min(sizes, default=0) < 1:
        raise ArgumentError(f"scale_factor {scale_factor!r} leaves nothing", "use a larger one")
    return sizes, [None if recompute else float(factor) for factor in row]


def _step(old: int, new: int, factor: float | None, real: Any) -> Any:
    """How far apart in x neighbours of the result are."""
    return real(1 / factor) if factor else real(old) / real(new)


def _nearest(x: Tensor, axis: int, new: int, factor: float | None, exact: bool) -> Tensor:
    shape = x.node.shape
    old = shape[axis]
    assert isinstance(old, int)
    if new == old and (factor is None or factor == 1):
        return wrap(node_of(x))
    if new % old == 0 and (factor is None or factor == new // old):
        copies = new // old
        node = build.reshape(node_of(x), (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        node = build.expand(node, (*shape[: axis + 1], copies, *shape[axis + 1 :]))
        return wrap(build.reshape(node, (*shape[:axis], new, *shape[axis + 1 :])))
    number = np.arange(new, dtype=np.float32) + np.float32(0.5 if exact else 0)
    places = np.floor(number * _step(old, new, factor, np.float32)).astype(np.int32)
    index = Tensor(np.minimum(places, old - 1), device=x.device)
    return wrap(slices_at(node_of(x), node_of(index), axis))


def _source(old: int, new: int, factor: float | None, corners: bool, real: Any) -> Any:
    """Where in x each place of the result lies."""
    number = np.arange(new, dtype=real)
    if corners:
        return number * (real(old - 1) / real(new - 1) if new > 1 else real(0))
    return (number + real(0.5)) * _step(old, new, factor, real) - real(0.5)


def _linear(source: Any, old: int) -> tuple[Any, Any]:
    source = np.maximum(source, 0)
    low = np.minimum(source.astype(np.int32), old - 1)
    share = np.clip(source - low.astype(source.dtype), 0, 1)
    return np.stack([low, np.minimum(low + 1, old - 1)]), np.stack([1 - share, share])


def _cubic(source: Any, old: int) -> tuple[Any, Any]:
    low = np.floor(source)
    t = source - low
    places = np.stack([low + k for k in (-1, 0, 1, 2)]).astype(np.int32)
    return np.clip(places, 0, old - 1), np.stack(
        [_far(t + 1), _close(t), _close(1 - t), _far(2 - t)]
    )


def _close(t: Any) -> Any:
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def _far(t: Any) -> Any:
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def _weighted(x: Tensor, axis: int, places: Any, weights: Any) -> Tensor:
    """Σ over taps of the slices at their places, times their weights."""
    total: Tensor | None = None
    for place, weight in zip(places, weights, strict=True):
        index = node_of(Tensor(np.ascontiguousarray(place), device=x.device))
        rows = wrap(slices_at(node_of(x), index, axis))
        scale = reshape(Tensor(weight, x.dtype, x.device), (-1, *[1] * (x.ndim - axis - 1)))
        total = rows * scale if total is None else total + rows * scale
    assert total is not None
    return total


def _weighted_pixels(x: Tensor, axis: int, places: Any, weights: Any) -> Tensor:
    """Σ over taps in fixed point: weights below 2**15, the sum rounded and cut to 0..255."""
    for late, early in itertools.combinations(reversed(range(len(places))), 2):
        same = places[late] == places[early]  # beyond an edge: one tap with both weights
        weights[early] += np.where(same, weights[late], 0)
        weights[late] = np.where(same, 0, weights[late])
    largest = float(np.max(weights))
    bits = next(n for n in range(23) if n == 22 or int(0.5 + largest * 2 ** (n + 1)) >= 1 << 15)
    whole = np.trunc(weights * (1 << bits) + np.copysign(0.5, weights)).astype(np.int32)
    total = _weighted(astype(x, int32), axis, places, whole) + (1 << bits >> 1)
    return astype(clip(total >> bits, 0, 255), uint8)


# --- channels and space --------------------------------------------------------------------------


@templated
def pixel_shuffle(x: TensorLike, upscale_factor: int) -> Tensor:
    """Channels turned into space: (..., c * r * r, h, w) becomes (..., c, h * r, w * r).

    >>> fg.pixel_shuffle(fg.Tensor([[[1.0]], [[2.0]], [[3.0]], [[4.0]]]), 2).tolist()
    [[[1.0, 2.0], [3.0, 4.0]]]
    """
    tensor, r = as_tensor(x), build.as_positive(upscale_factor, "upscale_factor")
    if tensor.ndim < 3 or tensor.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle by {r} of shape {tensor.shape}",
            f"give (..., channels, height, width) with channels divisible by {r * r}",
        )
    *batch, c, h, w = tensor.shape
    n = len(batch)
    split = reshape(tensor, (*batch, c // (r * r), r, r, h, w))
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return reshape(permute_dims(split, order), (*batch, c // (r * r), h * r, w * r))


@templated
def pixel_unshuffle(x: TensorLike, downscale_factor: int) -> Tensor:
    """Space turned into channels: the inverse of `pixel_shuffle`.

    >>> fg.pixel_unshuffle(fg.Tensor([[[1.0, 2.0], [3.0, 4.0]]]), 2).shape
    (4, 1, 1)
    """
    tensor, r = as_tensor(x), build.as_positive(downscale_factor, "downscale_factor")
    if tensor.ndim < 3 or tensor.shape[-2] % r or tensor.shape[-1] % r:
        raise ShapeError(
            f"pixel_unshuffle by {r} of shape {tensor.shape}",
            f"give (..., channels, height, width) with both divisible by {r}",
        )
    *batch, c, h, w = tensor.shape
    n = len(batch)
    split = reshape(tensor, (*batch, c, h // r, r, w // r, r))
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return reshape(permute_dims(split, order), (*batch, c * r * r, h // r, w // r))
