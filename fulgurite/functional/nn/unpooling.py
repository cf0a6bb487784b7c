"""Pools that tell where their largest elements were, the way back, and pools by powers.

In: x whose last dimensions are space. Out: values with their places, counted row by row in x's
space as torch counts them; or a tensor with values at such places and 0 elsewhere. The first of
equal elements is told, and gets the gradient. Which elements make up a window is found on the host
as a table of places: a place in the padding stands for another one of the same window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import build
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.indexing import gather, slices_at
from ..array.movement import reshape
from ..array.scatter import scatter
from ..common import as_tensor, floating
from ..math.elementwise import abs, pow, sign
from ..math.reduction import argmax
from .activation import relu
from .convolution import PerAxis, per_axis
from .pooling import avg_pool1d, avg_pool2d, avg_pool3d, overhang, windows_of

Wanted = int | Sequence[int | None] | None


def max_pool_with_indices(
    count: int,
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window of the last `count` axes, and its place."""
    tensor = as_tensor(x)
    window, steps, gaps, pads = windows_of(count, tensor, kernel_size, stride, padding, dilation)
    rows = []
    for d, n in enumerate(tensor.shape[tensor.ndim - count :]):
        reach = (window[d] - 1) * gaps[d] + 1
        low, high = pads[d]
        large = n + low + high + overhang(n, reach, steps[d], pads[d], ceil_mode)
        starts = np.arange((large - reach) // steps[d] + 1) * steps[d] - low
        places = starts[:, None] + np.arange(window[d]) * gaps[d]
        inside = (places >= 0) & (places < n)
        first = np.take_along_axis(places, inside.argmax(1)[:, None], 1)
        rows.append(np.where(inside, places, first))
    return _first_largest(tensor, rows)


def adaptive_max_pool_with_indices(
    count: int, x: TensorLike, output_size: Wanted
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows that make up a result of this size, and their places."""
    tensor = as_tensor(x)
    if tensor.ndim < count:
        raise ShapeError(f"{tensor.ndim} dimensions hold no windows of {count}", "give more")
    many = isinstance(output_size, Sequence)
    wanted = list(output_size) if many else [output_size] * count  # type: ignore[arg-type]
    if len(wanted) != count:
        raise ArgumentError(f"output_size is {output_size!r}", f"give {count} sizes")
    rows = []
    for n, given in zip(tensor.shape[tensor.ndim - count :], wanted, strict=True):
        out = n if given is None else build.as_positive(given, "output_size")
        starts = np.arange(out) * n // out
        ends = -(-(np.arange(out) + 1) * n // out)
        most = int((ends - starts).max(initial=0))
        rows.append(np.minimum(starts[:, None] + np.arange(most), ends[:, None] - 1))
    return _first_largest(tensor, rows)


def _first_largest(x: Tensor, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """For each window its first largest element, by each axis's table of places."""
    count = len(rows)
    outer, space = x.shape[: x.ndim - count], x.shape[x.ndim - count :]
    if 0 in space:
        raise ShapeError(f"windows of nothing: {x.shape}", "pool dimensions that are not empty")
    flat = np.zeros((1, 1), np.int64)
    for row, n in zip(rows, space, strict=True):
        far = flat[:, None, :, None] * n + row[None, :, None, :]
        flat = far.reshape(flat.shape[0] * row.shape[0], -1)
    table = Tensor(flat.astype(np.int32), device=x.device)
    line = reshape(x, (*outer, math.prod(space)))
    values = wrap(slices_at(node_of(line), node_of(table), len(outer)))
    chosen = argmax(values, -1)
    spread = wrap(build.expand(node_of(table), (*outer, *table.shape)))
    places = gather(spread, -1, reshape(chosen, (*chosen.shape, 1)))
    places = reshape(places, chosen.shape)
    shape = (*outer, *[row.shape[0] for row in rows])
    found = gather(line, -1, places)
    return reshape(found, shape), reshape(places, shape).astype("int64")


def max_unpool(
    count: int,
    x: TensorLike,
    indices: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Values put back to the places that a pool told, with 0 elsewhere."""
    tensor = as_tensor(x)
    places = as_tensor(indices, tensor)
    if tensor.shape != places.shape or tensor.ndim not in (count + 1, count + 2):
        raise ShapeError(
            f"values of shape {tensor.shape} for places of shape {places.shape}",
            f"give what max_pool{count}d with return_indices=True gave",
        )
    outer = tensor.shape[: tensor.ndim - count]
    window = per_axis(kernel_size, count, "kernel_size")
    steps = window if stride is None else per_axis(stride, count, "stride")
    pads = per_axis(padding, count, "padding", 0)
    if output_size is None:
        small = tensor.shape[tensor.ndim - count :]
        large = [
            (n - 1) * s - 2 * p + k for n, s, p, k in zip(small, steps, pads, window, strict=True)
        ]
    else:
        large = [int(n) for n in output_size][-count:]
        if len(large) != count:
            raise ArgumentError(f"output_size is {tuple(output_size)}", f"give {count} sizes")
    line = wrap(build.const(0, tensor.dtype, (*outer, math.prod(large))))
    shape = (*outer, math.prod(tensor.shape[tensor.ndim - count :]))
    filled = scatter(line, -1, reshape(places, shape), reshape(tensor, shape))
    return reshape(filled, (*outer, *large))


def lp_pool(
    count: int,
    x: TensorLike,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The p-norm of each window of the last `count` axes, of signed sums as torch has it."""
    pool = (avg_pool1d, avg_pool2d, avg_pool3d)[count - 1]
    mean = pool(pow(floating(x), norm_type), kernel_size, stride, 0, ceil_mode)
    total = sign(mean) * relu(abs(mean)) * math.prod(per_axis(kernel_size, count, "kernel_size"))
    return pow(total, 1.0 / norm_type)
