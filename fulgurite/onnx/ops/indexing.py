"""Operators that read and write at indexed places.

In: a `Call`. Out: lazy tensors: gathers and scatters along one axis, to which several indexed axes
are flattened. Indices may count from the end. An index that is a constant number is a cut.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ...tensor import Tensor
from ..errors import ModelError
from ..table import Call, operator
from ..types import STRING
from ..values import Value
from .movement import axis_of


@operator("Gather", keeps=True)
def gather(op: Call) -> Tensor:
    """Slices of an axis, by number."""
    x = op[0]
    axis = axis_of(op.int("axis", 0), x.ndim)
    known = op.constant(1)
    if known is not None and known.size == 1 and isinstance(x.shape[axis], int):
        place = int(known.reshape(()))
        place += x.shape[axis] if place < 0 else 0
        if not 0 <= place < x.shape[axis]:
            raise ModelError(f"index {place} of {x.shape[axis]} slices", "the model is not valid")
        cut = x[(*[slice(None)] * axis, slice(place, place + 1))]
        if known.ndim == 1:
            return cut
        shape = cut.node.shape
        return fg.reshape(cut, (*shape[:axis], *known.shape, *shape[axis + 1 :]))
    return fg.take(x, op[1], axis=axis)


@operator("GatherElements", keeps=True)
def gather_elements(op: Call) -> Tensor:
    """An element for each place of the indices."""
    return fg.gather(op[0], op.int("axis", 0), op[1])


@operator("GatherND", keeps=True)
def gather_nd(op: Call) -> Tensor:
    """Slices by several numbers each."""
    x, index, batch = op[0], op[1], op.int("batch_dims", 0)
    width = index.shape[-1]
    if not all(isinstance(n, int) for n in (*x.node.shape, *index.node.shape)):
        return _one_by_one(x, index, batch, width)
    rows = prod(x.shape[:batch])
    inner = x.shape[batch : batch + width]
    rest = x.shape[batch + width :]
    places = flat_places(index, inner, rows * prod(inner))
    count = prod(index.shape[batch:-1])
    places = fg.reshape(places, (rows, count))
    places = places + fg.reshape(fg.arange(rows, dtype=places.dtype), (rows, 1)) * prod(inner)
    flat = fg.reshape(x, (rows * prod(inner), prod(rest)))
    found = fg.take(flat, fg.reshape(places, (rows * count,)), axis=0)
    return fg.reshape(found, (*index.shape[:-1], *rest))


def _one_by_one(x: Tensor, index: Tensor, batch: int, width: int) -> Tensor:
    """The same axis by axis: sizes that vary have no kernel that reads several axes as one."""
    places, shape = index.node.shape[:-1], x.node.shape
    inner = list(shape[batch:])
    spread = (*shape[:batch], *[1] * (len(places) - batch), *inner)
    x = fg.broadcast_to(fg.reshape(x, spread), (*places, *inner))
    for d in reversed(range(width)):
        inner[d] = 1
        line = fg.reshape(index[..., d], (*places, *[1] * len(inner)))
        x = fg.take_along_axis(x, fg.broadcast_to(line, (*places, *inner)), axis=len(places) + d)
    return fg.reshape(x, (*places, *inner[width:]))


def flat_places(index: Tensor, shape: Any, size: int) -> Tensor:
    """Rows of indices into some axes as indices into these axes in one; `size` if one is outside.

    Outside its own axis an index may still be a place of all axes together, the wrong one.
    """
    found = fg.zeros(index.shape[:-1], index.dtype)
    outside: Any = None
    for d, n in enumerate(shape):
        here = index[..., d]
        wrong = (here < -n) | (here >= n)
        outside = wrong if outside is None else outside | wrong
        found = found * n + fg.where(here < 0, here + n, here)
    return found if outside is None else fg.where(outside, size, found)


_REDUCTIONS = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _reduction(op: Call) -> str | None:
    name = op.text("reduction", "none")
    if name not in _REDUCTIONS:
        raise op.unsupported(f"reduction {name!r}")
    return _REDUCTIONS[name]


@operator("ScatterElements", "Scatter", keeps=True)
def scatter_elements(op: Call) -> Tensor:
    """A value put at each place of the indices."""
    return fg.scatter(op[0], op.int("axis", 0), op[1], op[2], _reduction(op))


@operator("ScatterND", keeps=True)
def scatter_nd(op: Call) -> Tensor:
    """Slices put at several numbers each."""
    x, index, updates = op[0], op[1], op[2]
    width = index.shape[-1]
    inner, rest = x.shape[:width], x.shape[width:]
    count = prod(index.shape[:-1])
    if not count or not prod(rest):
        return x
    places = fg.reshape(flat_places(index, inner, prod(inner)), (count, 1))
    flat = fg.reshape(x, (prod(inner), prod(rest)))
    values = fg.reshape(updates, (count, prod(rest)))
    spread = fg.broadcast_to(places, (count, prod(rest)))
    return fg.reshape(fg.scatter(flat, 0, spread, values, _reduction(op)), x.shape)


@operator("TensorScatter", keeps=True)
def tensor_scatter(op: Call) -> Tensor:
    """An update written into a cache from a place of its own for each sample."""
    cache, update = op[0], op[1]
    axis = axis_of(op.int("axis", -2), cache.ndim)
    length, most = update.shape[axis], cache.shape[axis]
    line = [1] * cache.ndim
    line[axis] = length
    places = fg.reshape(fg.arange(length, dtype=fg.int64), line)
    if op.has(2):
        places = places + fg.reshape(op[2].astype(fg.int64), (-1, *[1] * (cache.ndim - 1)))
    if op.text("mode", "linear") == "circular":
        places = places % most
    return fg.scatter(cache, axis, fg.broadcast_to(places, update.shape), update)


@operator("Compress", keeps=True)
def compress(op: Call) -> Tensor:
    """The slices that a row of truths chooses."""
    x = op[0]
    axis = op.int("axis", None)
    if axis is None:
        x, axis = fg.reshape(x, (x.size,)), 0
    return fg.take(x, where_true(op, op[1]), axis=axis)


def where_true(op: Call, truths: Tensor) -> Tensor:
    """The places of a row that hold; how many is read on the host."""
    count = truths.shape[0]
    if not count:
        return fg.zeros((0,), fg.int64)
    passed = fg.cumulative_sum(truths.astype(fg.int32), axis=0)
    total = int(op.build.read(Value(passed[count - 1])))
    wanted = fg.arange(1, total + 1, dtype=fg.int32)
    return fg.searchsorted(passed, wanted).astype(fg.int64)


@operator("NonZero")
def non_zero(op: Call) -> Tensor:
    """The places that are not zero, a row for each axis."""
    x = op[0]
    if x.ndim == 0:
        x = fg.reshape(x, (1,))
    places = where_true(op, fg.reshape(x != 0, (x.size,)))
    rows, size = [], 1
    for n in reversed(x.shape):
        rows.append(fg.remainder(fg.floor_divide(places, size), n))
        size *= n
    found = fg.stack(rows[::-1], axis=0)
    return found if op[0].ndim else found[:0]


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(op: Call) -> Any:
    """Columns by number."""
    if op.kind(0) is STRING:
        return Value(None, STRING, np.take(op.host(0), op.ints(1), axis=-1))
    x, places = op[0], fg.reshape(op[1], (-1,))
    found = fg.take(x, places, axis=-1)
    return fg.reshape(found, (1, -1)) if x.ndim == 1 else found


@operator("MaxUnpool")
def max_unpool(op: Call) -> Tensor:
    """Values back to the places that pooling took them from."""
    x, index = op[0], op[1]
    window = op.ints_of("kernel_shape", [])
    strides = op.ints_of("strides") or [1] * len(window)
    pads = op.ints_of("pads") or [0] * 2 * len(window)
    sizes = [
        (n - 1) * s + k - pads[d] - pads[d + len(window)]
        for d, (n, s, k) in enumerate(zip(x.shape[2:], strides, window, strict=True))
    ]
    shape = op.ints(2) if op.has(2) else [*x.shape[:2], *sizes]
    inferred = [*x.shape[:2], *sizes]
    places = fg.reshape(index, (-1,))
    if shape != inferred:  # indices are those of the inferred shape
        parts, rest = [], places
        for n in reversed(inferred):
            parts.append(rest % n)
            rest = fg.floor_divide(rest, n)
        places = fg.zeros(places.shape, places.dtype)
        for part, n in zip(reversed(parts), shape, strict=True):
            places = places * n + part
    flat = fg.scatter(fg.zeros((prod(shape),), x.dtype), 0, places, fg.reshape(x, (-1,)))
    return fg.reshape(flat, shape)
