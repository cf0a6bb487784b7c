"""Operators that move elements: reshape, transpose, join, cut, pad.

In: a `Call`. Out: lazy tensors of the same elements, whatever their kind: an int4 tensor is moved
in its carrier. Sizes that are inputs are read on the host, variable ones stay variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ...core import shape as sizes
from ...core.node import Node
from ...tensor import Tensor
from ..errors import ModelError
from ..table import Call, enter, operator
from ..values import Dequantised, Joined, Value

enter(Identity=lambda op: op.any(0))


def axis_of(axis: int, ndim: int) -> int:
    """An axis counted from the front."""
    if not -ndim <= axis < max(ndim, 1):
        raise ModelError(f"there is no axis {axis} in {ndim} dimensions", "the model is not valid")
    return axis + ndim if axis < 0 else axis


@operator("Reshape", keeps=True)
def reshape(op: Call) -> Tensor:
    """The same elements in another shape: 0 keeps a size, one -1 takes the rest."""
    x = op[0]
    wanted = op.sizes(1) if op.version >= 5 else op.ints_of("shape", [])
    return fg.reshape(x, reshaped(x.node.shape, wanted, bool(op.int("allowzero"))))


def reshaped(shape: Any, wanted: list[Any], allow_zero: bool) -> list[Any]:
    """The shape that a request with zeros and -1 means."""
    found = []
    for place, size in enumerate(wanted):
        if isinstance(size, int) and size == 0 and not allow_zero:
            if place >= len(shape):
                raise ModelError(f"there is no size {place} of {sizes.show(shape)} to keep", "")
            found.append(shape[place])
        else:
            found.append(size)
    open_ = [place for place, size in enumerate(found) if isinstance(size, int) and size == -1]
    if len(open_) == 1:
        rest = sizes.prod([size for place, size in enumerate(found) if place != open_[0]])
        whole = sizes.prod(shape)
        if isinstance(rest, int) and rest == 0:
            found[open_[0]] = 0
        else:
            found[open_[0]] = sizes.floordiv(whole, rest)
    return found


@operator("Transpose", keeps=True)
def transpose(op: Call) -> Tensor:
    """Axes in another order; by default backward."""
    x = op[0]
    return fg.permute_dims(x, op.ints_of("perm") or list(range(x.ndim))[::-1])


def axes_input(op: Call, since: int, place: int = 1) -> list[int] | None:
    """Axes: an attribute before a version, an input since."""
    if op.version < since:
        found: list[int] | None = op.ints_of("axes")
        return found
    return op.ints(place) if op.has(place) else None


@operator("Squeeze", keeps=True)
def squeeze(op: Call) -> Tensor:
    """Without axes of size 1."""
    x, axes = op[0], axes_input(op, 13)
    if axes is None:
        axes = [d for d, n in enumerate(x.node.shape) if isinstance(n, int) and n == 1]
    return fg.squeeze(x, tuple(axes)) if axes else x


@operator("Unsqueeze", keeps=True)
def unsqueeze(op: Call) -> Tensor:
    """With more axes of size 1."""
    axes = axes_input(op, 13)
    return fg.expand_dims(op[0], tuple(axes or ())) if axes else op[0]


@operator("Flatten", keeps=True)
def flatten(op: Call) -> Tensor:
    """A matrix: axes before one, and the others."""
    x, axis = op[0], op.int("axis", 1)
    axis += x.ndim if axis < 0 else 0
    shape = x.node.shape
    return fg.reshape(x, (sizes.prod(shape[:axis]), sizes.prod(shape[axis:])))


@operator("Concat", keeps=True)
def concat(op: Call) -> Tensor | Value:
    """One after the other along an axis."""
    parts, axis = [op.value(place) for place in range(len(op))], op.int("axis", 1)
    if len(parts) == 1:
        return parts[0].tensor
    made = together(parts, axis_of(axis, len(parts[0].shape)))
    if all([isinstance(v, Dequantised) for v in parts]):
        made.joined = Joined(parts, axis)
    return made


def together(parts: Sequence[Value], axis: int) -> Value:
    """One after the other, with channels at the end if most elements have them so."""
    kind, rank = parts[0].kind, len(parts[0].shape)
    counts = [v.tensor.size if isinstance(v.tensor.size, int) else 0 for v in parts]
    turned = [n for n, v in zip(counts, parts, strict=True) if v.last is not None]
    if not turned or 2 * sum(turned) < sum(counts):
        return Value(fg.concat([v.tensor for v in parts], axis=axis), kind)
    moved = [fg.moveaxis(v.tensor, 1, -1) if v.last is None else v.last for v in parts]
    order = [0, *range(2, rank), 1]
    return Value.channels_last(fg.concat(moved, axis=order.index(axis)), kind)


@operator("Split")
def split(op: Call) -> tuple[Value, ...]:
    """Parts along an axis: of given sizes, or equal ones of which the last may be smaller."""
    x, axis = op[0], axis_of(op.int("axis", 0), op[0].ndim)
    parts: list[int] | None = op.ints_of("split")
    if op.version >= 13 and op.has(1):
        parts = op.ints(1)
    if parts is None:
        size: Any = x.node.shape[axis]
        if not isinstance(size, int):
            size = op.build.fixed(np.array([size], object))
        count = op.int("num_outputs", 0) or len(op.node.output)
        each = -(-size // count)
        parts = [max(0, min(each, size - i * each)) for i in range(count)]
    found = []
    start = 0
    for n in parts:
        cut = [slice(None)] * axis + [slice(start, start + n)]
        found.append(Value(x[tuple(cut)], op.kind(0)))
        start += n
    if isinstance(x.shape[axis], int) and start != x.shape[axis]:
        raise ModelError(f"parts of {parts} do not make {x.shape[axis]}", "the model is not valid")
    return tuple(found)


@operator("Slice", keeps=True)
def slice_(op: Call) -> Tensor:
    """Cuts of some axes, backward too."""
    x = op[0]
    if op.version < 10:
        starts, ends = op.ints_of("starts", []), op.ints_of("ends", [])
        axes, steps = op.ints_of("axes"), None
    else:
        starts, ends = op.sizes(1), op.sizes(2)
        axes = op.ints(3) if op.has(3) else None
        steps = op.ints(4) if op.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cuts: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis_of(axis, x.ndim)
        cuts[place] = _cut(x.node.shape[place], start, end, step)
    return x[tuple(cuts)]


def cut_of(size: int, start: int, end: int, step: int) -> slice:
    """A cut as ONNX bounds it: a backward one that begins before the front begins there."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        first, last = min(max(start, 0), size), min(max(end, 0), size)
        return slice(first, max(first, last), step)
    first, last = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    if first <= last or not size:
        return slice(0, 0)
    return slice(first, None if last < 0 else last, step)


def _cut(size: Any, start: Any, end: Any, step: int) -> slice:
    """A cut within bounds; where sizes are variable only plain ones are known to be."""
    if step == 0:
        raise ModelError("a slice has step 0", "the model is not valid ONNX")
    if all(isinstance(n, int) for n in (size, start, end)):
        return cut_of(size, start, end, step)
    big = 2**31 - 1
    if isinstance(end, int) and end >= big:
        end = None
    elif isinstance(end, int) and end < 0:
        end = sizes.add(size, end)
    elif isinstance(end, Node) and sizes.same(end, size):
        end = None
    if isinstance(start, int) and start < 0:
        start = sizes.add(size, start)
    return slice(start, end, step)


@operator("Pad", keeps=True)
def pad(op: Call) -> Tensor | Value:
    """More elements around, or fewer where a number is negative."""
    x, last = op[0], op.value(0).last
    value: Any = op.float("value", 0.0)
    if op.version < 11:
        pads = op.ints_of("pads") or op.ints_of("paddings", [])
    else:
        pads = op.ints(1)
        if op.has(2):
            value = op[2].reshape(()) if op.constant(2) is None else op.number(2)
    if isinstance(value, float) and x.dtype.is_integer:
        value = int(value)
    axes = op.ints(3) if op.has(3) else list(range(x.ndim))
    half = len(pads) // 2
    if len(pads) % 2 or half != len(axes):
        raise ModelError(f"{len(pads)} pads for {len(axes)} axes", "the model is not valid ONNX")
    widths = [(0, 0)] * x.ndim
    for low, high, axis in zip(pads[:half], pads[half:], axes, strict=True):
        widths[axis_of(axis, x.ndim)] = (low, high)
    if last is None:
        return padded(x, widths, op.text("mode", "constant"), value)
    widths.append(widths.pop(1))
    return Value.channels_last(padded(last, widths, op.text("mode", "constant"), value), op.kind(0))


def padded(x: Tensor, widths: list[tuple[int, int]], mode: str, value: Any = 0) -> Tensor:
    """Cut where a width is negative, pad where it is positive."""
    cuts = []
    for (low, high), size in zip(widths, x.node.shape, strict=True):
        plain = low >= 0 and high >= 0
        cuts.append(slice(None) if plain else slice(max(-low, 0), size + min(high, 0)))
    if any(cut != slice(None) for cut in cuts):
        x = x[tuple(cuts)]
    widths = [(max(low, 0), max(high, 0)) for low, high in widths]
    if not any(low or high for low, high in widths):
        return x
    return fg.pad(x, widths, mode, value)


@operator("Tile", keeps=True)
def tile(op: Call) -> Tensor:
    """Laid side by side."""
    return fg.tile(op[0], op.sizes(1))


@operator("Expand", keeps=True)
def expand(op: Call) -> Tensor:
    """Broadcast to a shape, which may have fewer or smaller sizes than x has."""
    x, wanted = op[0], tuple(op.sizes(1))
    return fg.broadcast_to(x, sizes.broadcast(x.node.shape, wanted))


@operator("DepthToSpace", keeps=True)
def depth_to_space(op: Call) -> Tensor:
    """Channels into blocks of a picture."""
    x, block = op[0], op.int("blocksize", 1)
    n, c, h, w = x.node.shape
    inner = c // (block * block)
    if op.text("mode", "DCR") == "DCR":
        y = fg.permute_dims(fg.reshape(x, (n, block, block, inner, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = fg.permute_dims(fg.reshape(x, (n, inner, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return fg.reshape(y, (n, inner, h * block, w * block))


@operator("SpaceToDepth", keeps=True)
def space_to_depth(op: Call) -> Tensor:
    """Blocks of a picture into channels."""
    x, block = op[0], op.int("blocksize", 1)
    n, c, h, w = x.node.shape
    y = fg.reshape(x, (n, c, h // block, block, w // block, block))
    if op.text("mode", "DCR") == "CRD":
        y = fg.permute_dims(y, (0, 1, 3, 5, 2, 4))
    else:
        y = fg.permute_dims(y, (0, 3, 5, 1, 2, 4))
    return fg.reshape(y, (n, c * block * block, h // block, w // block))


@operator("CenterCropPad", keeps=True)
def center_crop_pad(op: Call) -> Tensor:
    """The middle of each axis, or zeros around it."""
    x, wanted = op[0], op.ints(1)
    axes = op.ints_of("axes", list(range(x.ndim)))
    for axis, size in zip(axes, wanted, strict=True):
        place = axis_of(axis, x.ndim)
        more = size - x.shape[place]
        if more < 0:
            start = -more // 2
            cut = [slice(None)] * place + [slice(start, start + size)]
            x = x[tuple(cut)]
        elif more:
            widths = [(0, 0)] * x.ndim
            widths[place] = (more // 2, more - more // 2)
            x = fg.pad(x, widths)
    return x


@operator("ReverseSequence", keeps=True)
def reverse_sequence(op: Call) -> Tensor:
    """The first elements of each row backward."""
    x, lengths = op[0], op[1].astype(fg.int32)
    batch, time = op.int("batch_axis", 1), op.int("time_axis", 0)
    steps = _line(fg.arange(x.shape[time]), time, x.ndim)
    counts = _line(lengths, batch, x.ndim)
    places = fg.where(steps < counts, counts - 1 - steps, steps)
    return fg.take_along_axis(x, fg.broadcast_to(places, x.shape), axis=time)


def _line(x: Tensor, axis: int, ndim: int) -> Tensor:
    shape = [1] * ndim
    shape[axis] = x.shape[0]
    return fg.reshape(x, shape)


@operator("Trilu", keeps=True)
def trilu(op: Call) -> Tensor:
    """One triangle of a matrix."""
    k = int(op.number(1)) if op.has(1) else 0
    return (fg.triu if op.int("upper", 1) else fg.tril)(op[0], k)


def flat_rows(x: Tensor, axis: int) -> Tensor:
    """A matrix of the axes before one and the rest."""
    shape = x.shape
    return fg.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))
