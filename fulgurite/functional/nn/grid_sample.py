"""Pictures sampled between their elements, and the grids of places to sample at.

In: (batch, channels, *space) and a grid of places whose last axis says where, from -1 to 1, the
last axis of space first. Out: values at those places: weighted sums of their neighbours along each
axis. What lies outside is 0, the border, or a reflection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtype import int32
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike
from ..array.creation import arange, ones
from ..array.indexing import take_along_axis
from ..array.movement import broadcast_to, matrix_transpose, reshape, stack
from ..common import as_tensor, astype, wide
from ..math.elementwise import abs, clip, floor, remainder, round, where
from ..math.products import matmul

_CUBIC = -0.75  # the slope that torch's bicubic uses


def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = False,
) -> Tensor:
    """Values at places given as numbers from -1 to 1.

    >>> x, corner = fg.Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), fg.Tensor([[[[1.0, -1.0]]]])
    >>> fg.nn.functional.grid_sample(x, corner, align_corners=True).item()
    2.0
    """
    tensor = as_tensor(x)
    points = as_tensor(grid, tensor)
    space = tensor.shape[2:]
    count = len(space)
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ArgumentError(f"mode is {mode!r}", 'use "bilinear", "nearest" or "bicubic"')
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(
            f"padding_mode is {padding_mode!r}", 'use "zeros", "border" or "reflection"'
        )
    fits = points.ndim == tensor.ndim and points.shape[-1] == count
    if count < 1 or not fits or points.shape[0] != tensor.shape[0] or 0 in space:
        raise ShapeError(
            f"a grid of shape {points.shape} for pictures of shape {tensor.shape}",
            f"give (batch, *result, {count}) with as many axes as x",
        )
    taps = [
        _taps(wide(points[..., count - 1 - d]), size, mode, padding_mode, bool(align_corners))
        for d, size in enumerate(space)
    ]
    return astype(_sampled(tensor, points.shape[1:-1], taps), tensor.dtype)


def _taps(place: Tensor, size: int, mode: str, around: str, corners: bool) -> list[Any]:
    """The neighbours along one axis of places from -1 to 1: a place that exists, and a weight."""
    place = (place + 1) / 2 * (size - 1) if corners else ((place + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if mode != "bicubic" and around != "zeros":  # cubic neighbours are bounded one by one
        place = place if around == "border" else _reflected(place, low, high)
        place = clip(place, 0, size - 1)
    place = round(place) if mode == "nearest" else place
    return [(_inside(i, size, around, low, high), w) for i, w in _neighbours(place, mode)]


def _sampled(x: Tensor, results: tuple[int, ...], taps: Sequence[Sequence[Any]]) -> Tensor:
    """The sum over all combinations of neighbours along the axes."""
    batch, channels, *space = x.shape
    flat = reshape(wide(x), (batch, channels, math.prod(space)))
    found: Any = 0
    for chosen in np.ndindex(*[len(t) for t in taps]):
        index: Any = 0
        weight: Any = 1
        for d, tap in enumerate(chosen):
            (place, inside), factor = taps[d][tap]
            index = index * space[d] + astype(place, int32)
            weight = weight * (factor if inside is None else where(inside, factor, 0))
        spread = reshape(index, (batch, 1, math.prod(results)))
        spread = broadcast_to(spread, (batch, channels, math.prod(results)))
        values = take_along_axis(flat, spread, axis=-1)
        found = found + values * reshape(weight, (batch, 1, math.prod(results)))
    return reshape(found, (batch, channels, *results))


def _neighbours(place: Tensor, mode: str) -> list[tuple[Tensor, Any]]:
    if mode == "nearest":
        return [(place, ones(place.shape, place.dtype))]
    base = floor(place)
    away = place - base
    if mode == "bilinear":
        return [(base, 1 - away), (base + 1, away)]
    found = []
    for step in (-1, 0, 1, 2):
        x = abs(away - step)
        near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
        far = ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC
        found.append((base + step, near if step in (0, 1) else far))
    return found


def _reflected(place: Tensor, low: float, high: float) -> Tensor:
    span = max(high - low, 1e-9)
    turned = remainder(place - low, 2 * span)
    return where(turned > span, 2 * span - turned, turned) + low


def _inside(index: Tensor, size: int, around: str, low: float, high: float) -> Any:
    """A place that exists, and where the one asked for does not."""
    if around == "reflection":
        return clip(_reflected(index, low, high), 0, size - 1), None
    there = clip(index, 0, size - 1)
    return there, None if around == "border" else (index >= 0) & (index <= size - 1)


def affine_grid(
    theta: TensorLike, size: Sequence[int], align_corners: bool | None = False
) -> Tensor:
    """The places of a picture of a size (batch, channels, *space) after affine maps.

    >>> same = fg.Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> fg.nn.functional.affine_grid(same, (1, 1, 1, 2)).tolist()
    [[[[-0.5, 0.0], [0.5, 0.0]]]]
    """
    maps, space = as_tensor(theta), [int(n) for n in size[2:]]
    if maps.ndim != 3 or maps.shape != (size[0], len(space), len(space) + 1):
        raise ShapeError(
            f"maps of shape {maps.shape} for pictures of size {tuple(size)}",
            f"give ({size[0]}, {len(space)}, {len(space) + 1})",
        )
    lines = []
    for d, n in enumerate(space):
        line = arange(n, dtype="float32")
        line = line * (2 / max(n - 1, 1)) - 1 if align_corners else (line * 2 + 1) / n - 1
        shape = [1] * len(space)
        shape[d] = n
        lines.append(broadcast_to(reshape(line, shape), space))
    places = stack([*lines[::-1], ones(space)], axis=-1)
    flat = reshape(places, (math.prod(space), len(space) + 1))
    found = matmul(astype(flat, maps.dtype), matrix_transpose(maps))
    return reshape(found, (size[0], *space, len(space)))
