"""Pooling: extremes, means and norms of windows.

In: a `Call`. Out: lazy tensors. Every number of axes is built from the same windows; how many
elements a mean is over follows from sizes alone, so it is a constant.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, operator
from ...values import Value
from ..windows import Windows, windows

PAIR = 2  # elements that whoever reads the larger of may compare
SHORT = 8  # elements of a window, along one axis, that are compared one by one


@operator("MaxPool")
def max_pool(op: Call) -> Any:
    """The largest of each window, and where it is."""
    x = op[0]
    found = windows(op, x.node.shape[2:], op.ints_of("kernel_shape", []))
    count = len(found.size)
    last = op.value(0).last
    if not op.wants(1) and last is not None:
        return (Value.channels_last(_largest(last, found, 1), op.kind(0)), None)
    if not op.wants(1):
        return (_largest(x, found), None)
    shape = x.shape
    space = shape[2:]
    order = range(count) if op.int("storage_order") == 0 else reversed(range(count))
    strides, step = [0] * count, 1
    for d in reversed(list(order)):
        strides[d] = step
        step *= space[d]
    places = np.zeros(space, np.int64)
    for d, stride in enumerate(strides):
        line = [1] * count
        line[d] = space[d]
        places = places + (np.arange(space[d], dtype=np.int64) * stride).reshape(line)
    widths = [(0, 0), (0, 0), *found.widths]
    values = found.slid(fg.pad(x, widths, constant_values=_least(x)), 2)
    where = found.slid(fg.pad(fg.Tensor(places), found.widths, constant_values=-1), 0)
    values = _together(values, count)
    where = fg.broadcast_to(_together(where, count), values.shape)
    inside = fg.where(where < 0, 0, 1)  # among equals one that exists comes first
    best = fg.max(values, axis=-1, keepdims=True)
    chosen = fg.argmax(fg.where(values == best, inside, -1), axis=-1, keepdims=True)
    place = fg.take_along_axis(where, chosen, axis=-1)
    base = np.arange(shape[0] * shape[1], dtype=np.int64) * prod(space)
    offset = base.reshape(shape[0], shape[1], *[1] * count)
    return fg.squeeze(best, -1), fg.squeeze(place, -1) + fg.Tensor(offset)


def _together(x: Tensor, count: int) -> Tensor:
    """The axes of windows as one."""
    shape = x.shape
    return fg.reshape(x, (*shape[: len(shape) - count], prod(shape[len(shape) - count :])))


def _least(x: Tensor) -> Any:
    return float("-inf") if x.dtype.is_float else x.dtype.limits[0]


def _largest(x: Tensor, found: Windows, first: int = 2) -> Tensor:
    """The largest of each window; axes of pictures begin with `first`, channels are around them."""
    if found.is_padded:
        widths = [(0, 0)] * first + found.widths + [(0, 0)] * (2 - first)
        x = fg.pad(x, widths, constant_values=_least(x))
    for axis in range(len(found.size)):  # one at a time: a row's maxima serve several windows
        slid = found.slid_along(x, first + axis, axis)
        if found.size[axis] > SHORT or (first == 2 and not slid.dtype.is_float):
            x = fg.max(slid, axis=-1)
            continue
        x = slid[..., 0]
        for tap in range(1, found.size[axis]):  # lanes along results, not along a short window
            x = fg.maximum(x, slid[..., tap])
        if axis + 1 < len(found.size) or found.size[axis] > PAIR:
            x = x.contiguous()  # whoever reads it would compare them again
    return x


def _sums(x: Tensor, found: Windows, first: int = 2) -> Tensor:
    """The sum of each window; axes of pictures begin with `first`, channels are around them."""
    if found.is_padded:
        x = fg.pad(x, [(0, 0)] * first + found.widths + [(0, 0)] * (2 - first))
    axes = tuple(range(x.ndim, x.ndim + len(found.size)))
    return fg.sum(found.slid(x, first), axis=axes, dtype=x.dtype)


@operator("AveragePool")
def average_pool(op: Call) -> Tensor | Value:
    """The mean of each window, with or without the padding in it."""
    x, last = op[0], op.value(0).last
    found = windows(op, x.node.shape[2:], op.ints_of("kernel_shape", []))
    if last is None:
        return _means(op, x, found, 2)
    return Value.channels_last(_means(op, last, found, 1))


def _means(op: Call, x: Tensor, found: Windows, first: int) -> Tensor:
    """The mean of each window; axes of pictures begin with `first`, channels are around them."""
    wide = x.astype(fg.float32) if x.dtype.is_small_float else x
    total = _sums(wide, found, first)
    whole = bool(op.int("count_include_pad"))
    if not any(found.over) and (whole or not found.is_padded):
        return (total / prod(found.size)).astype(x.dtype)
    divisor = np.ones((), np.float32)
    for axis in range(len(found.size)):
        size, results = x.shape[first + axis], total.shape[first + axis]
        each = _counts(found, axis, size, results, whole)
        divisor = divisor[..., None] * each.astype(np.float32)
    divisor = divisor if first == 2 else divisor[..., None]
    return (total / fg.Tensor(divisor).astype(wide.dtype)).astype(x.dtype)


def _counts(found: Windows, axis: int, size: int, results: int, whole: bool) -> Any:
    """How many elements of one axis each window has."""
    low, high = found.pads[axis]
    begins = np.arange(results) * found.stride[axis]
    taps = begins[:, None] + np.arange(found.size[axis]) * found.dilation[axis] - low
    first, last = (-low, size + high) if whole else (0, size)
    return ((taps >= first) & (taps < last)).sum(axis=1)


@operator("LpPool")
def lp_pool(op: Call) -> Tensor:
    """The length of each window."""
    x = op[0]
    p = op.int("p", 2)
    found = windows(op, x.node.shape[2:], op.ints_of("kernel_shape", []))
    return _root(_sums(_power(x, p), found), p)


def _power(x: Tensor, p: int) -> Tensor:
    return fg.abs(x) if p == 1 else x * x if p == 2 else fg.pow(fg.abs(x), float(p))


def _root(x: Tensor, p: int) -> Tensor:
    return x if p == 1 else fg.sqrt(x) if p == 2 else fg.pow(x, 1 / p)


@operator("GlobalAveragePool")
def global_average_pool(op: Call) -> Tensor:
    """The mean of each channel."""
    last = op.value(0).last
    if last is not None:
        return fg.moveaxis(fg.mean(last, axis=tuple(range(1, last.ndim - 1)), keepdims=True), -1, 1)
    return fg.mean(op[0], axis=tuple(range(2, op[0].ndim)), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(op: Call) -> Tensor:
    """The largest of each channel."""
    return fg.max(op[0], axis=tuple(range(2, op[0].ndim)), keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(op: Call) -> Tensor:
    """The length of each channel."""
    p = op.int("p", 2)
    axes = tuple(range(2, op[0].ndim))
    return _root(fg.sum(_power(op[0], p), axis=axes, keepdims=True), p)
