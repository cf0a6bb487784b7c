"""Convolutions: plain, transposed, causal, deformed, and the sums that undo windows.

In: a `Call`. Out: lazy tensors. A transposed convolution is computed whole, then cut: its paddings
and the wanted shape only say which part of it is the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ....core.ops.indexing import GATHER
from ....core.ops.movement import FLIP, PERMUTE
from ....kernel.contract.depthwise import FORM
from ....runtime.device import get_device
from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, operator
from ...values import Dequantised, Value
from ..movement import padded
from ..whole import FEW_STEPS, MOST_STEPS, Whole, product, scale_of, scaled, whole
from ..windows import Windows, windows
from .normalization import along

CONVOLUTIONS: dict[int, Any] = {1: fg.conv1d, 2: fg.conv2d, 3: fg.conv3d}
MOVED = (PERMUTE, FLIP, GATHER)  # what is computed again for each window, unless it is stored
FEW = 16  # windows, of all pictures together
SMALL, SMALL_EACH = 196, 256  # places of a result whose channels go together
WIDE = 16  # channels that fill a vector
EDGE_TIME = 3  # that a tap at an edge takes more than elsewhere
COPY_TAPS = 9  # that take as long as to copy an element
TRANSPOSED: dict[int, Any] = {
    1: fg.conv_transpose1d,
    2: fg.conv_transpose2d,
    3: fg.conv_transpose3d,
}


@operator("Conv")
def conv(op: Call) -> Tensor | Value:
    """A convolution with padding, strides, dilation and groups."""
    found: Tensor | Value | None = real_convolution(op)
    found = channels_last(op) if found is None else found
    return convolved(op, op[0], op[1], op.maybe(2)) if found is None else found


def channels_last(op: Call) -> Value | None:
    """A convolution of small pictures, whose channels are neighbours in memory from here on.

    Rows of channels fill vectors where rows of a picture are too short to.
    """
    x, weight, given = op[0], op[1], op.value(0).last
    most = None if _is_free(op, weight, given is not None) else SMALL
    found = _windows_of(op, x.node.shape, weight.node.shape, (WIDE, most))
    if found is None or x.dtype is not fg.float32:
        return None
    outer, inner, *size = weight.shape
    space = found.counts(x.shape[2:])
    if given is None:
        rows = _padded_rows(fg.moveaxis(x, 1, -1), found, prod(size) > prod(found.stride))
    else:
        cut = inner == 1 and _has_few_edges(found, x.shape[2:])
        rows = _padded_rows(given, found, found.is_padded and prod(size) > prod(found.stride), cut)
    kernel = _lines_of(weight)
    if op.value(1).constant:
        op.build.keep(kernel)
    if inner == 1:  # depthwise: a plain one has WIDE channels or more
        y = _sums_of_channels(rows, kernel, found)
    else:
        lines = fg.reshape(_lines(rows, found), (-1, prod(size) * inner))
        y = fg.reshape(lines @ kernel, (x.shape[0], *space, outer))
    return Value.channels_last(y + op[2] if op.has(2) else y)


def _padded_rows(rows: Tensor, found: Windows, stored: bool, cut: bool = False) -> Tensor:
    """Pictures with what is around them, `stored` as elements are in many windows: padded once, or
    before, where windows are `cut` at an edge."""
    rows = rows.contiguous() if stored and cut else rows
    if found.is_padded:
        rows = fg.pad(rows, [(0, 0), *found.pads, (0, 0)])
    return rows.contiguous() if stored and not cut else rows


def _has_few_edges(found: Windows, space: Sequence[int]) -> bool:
    """True if a depthwise convolution had better cut windows at the edges of a picture than read
    one that is padded in memory: places at an edge take longer, and so does a copy."""
    places = prod(found.counts(list(space)))
    edges = places - prod(found.inside(space))
    wide = prod([n + low + high for n, (low, high) in zip(space, found.pads, strict=True)])
    return EDGE_TIME * edges * prod(found.size) < COPY_TAPS * wide


def _is_free(op: Call, weight: Tensor, is_last: bool) -> bool:
    """True if channels last cost nothing, however large a picture is: it has them, or a product,
    which may as well turn what it reads, leads to a depthwise convolution."""
    is_product = set(weight.node.shape[2:]) == {1}
    if is_last and (is_product or op.int("group", 1) > 1):
        return True
    return is_product and op.build.program.feeds_depthwise(op.node)


def _lines_of(weight: Tensor) -> Tensor:
    """Weights in the order of windows with their channels at the end."""
    outer, inner, *size = weight.shape
    kernel = fg.permute_dims(weight, (*range(2, weight.ndim), 1, 0))
    return fg.reshape(kernel, (prod(size) * inner, outer))


def _windows_of(
    op: Call, shape: Any, weight: Any, limits: tuple[int, int | None] = (WIDE, SMALL)
) -> Windows | None:
    """The windows of a plain or depthwise convolution with few places in its result.

    Limits are the fewest channels, and the most places, if there is a limit to these.
    """
    if len(shape) < 3 or not all(isinstance(n, int) for n in (*shape, *weight)):
        return None
    outer, inner, *size = weight
    groups, channels = op.int("group", 1), shape[1]
    if op.ints_of("kernel_shape") not in (None, [], size) or len(size) != len(shape) - 2:
        return None
    plain = groups == 1 and inner == channels >= limits[0]
    depthwise = groups == channels == outer and inner == 1 and prod(size) <= FORM.most_taps
    found = windows(op, shape[2:], size)
    space = found.counts(shape[2:])
    most = (SMALL if plain else SMALL_EACH) if limits[1] is not None else prod(space)
    taken = (plain or depthwise) and 0 < prod(space) <= most and min(shape[0], *space) > 0
    return found if taken else None


def _lines(rows: Tensor, found: Windows) -> Tensor:
    """Every window with its channels, in the order of the kernel (im2col)."""
    if prod(found.size) > 1:
        return fg.moveaxis(found.slid(rows, 1), 1 + len(found.size), -1)
    cuts = tuple([slice(None, None, step) for step in found.stride])
    return rows[(slice(None), *cuts)] if max(found.stride) > 1 else rows


def _sums_of_channels(rows: Tensor, kernel: Tensor, found: Windows) -> Tensor:
    """Each channel with a window of its own: sums over windows, all channels of a place at once."""
    count = len(found.size)
    weights = fg.moveaxis(fg.reshape(kernel, (*found.size, -1)), -1, 0)
    return fg.sum(found.slid(rows, 1) * weights, axis=tuple(range(-count, 0)))


def convolved(op: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution by an operator's attributes."""
    count = x.ndim - 2
    if count not in CONVOLUTIONS:
        raise op.unsupported(f"{count} axes")
    size = op.ints_of("kernel_shape") or list(weight.shape[2:])
    if list(weight.shape[2:]) != size:
        raise ModelError(f"kernel_shape is {size}, the weight's {weight.shape}", "invalid model")
    found = windows(op, x.node.shape[2:], size)
    if x.node.op in MOVED and prod(size) > prod(found.stride):
        x = x.contiguous()  # elements are in many windows: found once, not for each
    if found.is_padded:
        x = fg.pad(x, [(0, 0), (0, 0), *found.pads])
    groups = op.int("group", 1)
    made: Tensor | None = None
    if groups == 1 and weight.shape[1] == x.shape[1]:
        made = (_few if prod(size) > 1 else _one)(found, x, weight, bias)
    if made is None:
        made = CONVOLUTIONS[count](x, weight, bias, found.stride, 0, found.dilation, groups)
    return made


def _one(found: Windows, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """One result of each place alone: a sum, and no product of matrices."""
    if weight.shape[0] != 1 or prod(found.stride) != 1 or x.dtype is not fg.float32:
        return None
    y = fg.sum(x * weight, axis=1, keepdims=True)
    return y if bias is None else y + bias


def _few(found: Windows, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """So few windows that they are written out, and weights go by once, as they lie."""
    slid = found.slid(x, 2)
    places = [slid.shape[0], *slid.shape[2 : x.ndim]]
    if not all(isinstance(n, int) for n in slid.node.shape) or not 0 < prod(places) <= FEW:
        return None
    outer, inner, count = weight.shape[0], prod(weight.shape[1:]), len(places) - 1
    last = [1, *range(2 + count, 2 + 2 * count)]
    lines = fg.permute_dims(slid, (0, *range(2, 2 + count), *last))
    lines = fg.reshape(lines, (prod(places), inner)).contiguous()
    y = lines @ fg.reshape(weight, (outer, inner)).mT
    y = y if bias is None else y + bias
    return fg.permute_dims(fg.reshape(y, (*places, outer)), (0, count + 1, *range(1, count + 1)))


def convolution(op: Call, x: Whole, w: Whole) -> Tensor:
    """A convolution, exact in int32, or in floats that are; what is around a picture is its zero.

    Windows of few numbers go in floats, which lanes multiply and add at once.
    """
    alone = x.is_bytes and w.is_bytes and (x.zero is None or not x.zero.ndim)
    if alone and op.int("group", 1) > 1 and prod(w.tensor.shape[1:]) <= FEW_STEPS:
        weight = w.centred.astype(fg.float32)
        if w.constant:
            op.build.keep(weight)
        bytes_ = Whole(x.tensor.contiguous(), x.zero)  # which each window reads again
        return convolved(op, bytes_.centred.astype(fg.float32).contiguous(), weight, None)
    if not alone or w.zero is not None or op.int("group", 1) > 1:
        return convolved(op, x.centred, w.centred, None).astype(fg.int32)
    total = convolved(op, x.wide, w.wide, None).astype(fg.int32)
    if x.zero is None:
        return total
    ones = fg.ones((1, 1, *x.tensor.shape[2:]), fg.int32)
    inside = convolved(op, ones, fg.sum(w.wide, axis=1, keepdims=True), None).astype(fg.int32)
    if w.constant:
        op.build.keep(inside)
    return total - x.zero * inside


def real_convolution(op: Call) -> Tensor | Value | None:
    """A convolution of dequantised pictures and weights by their bytes; None if they are none."""
    x, w = op.value(0), op.value(1)
    if not (isinstance(x, Dequantised) and isinstance(w, Dequantised) and x.is_uniform):
        return None
    if not (w.is_uniform or w.axis == 0) or not all(isinstance(n, int) for n in x.shape):
        return None
    if prod(w.shape[1:]) > MOST_STEPS:
        return None
    weight = whole(w.whole, w.zero, (-1, *[1] * (len(w.shape) - 1)))
    total = convolved_bytes(op, x.whole, x.zero, weight)
    last, along = total.last, (-1, *[1] * (len(x.shape) - 2))
    sums, shape = (total.tensor, along) if last is None else (last, (-1,))
    bias = fg.reshape(op[2], shape) if op.has(2) else None
    known = not op.has(2) or op.value(2).constant
    return scaled(sums, scale_of(op, x, w, shape), bias, last is not None, x, w, known)


def convolved_bytes(op: Call, x: Value, zero: Value | None, w: Whole) -> Value:
    """The exact sums of a convolution of bytes, its channels at the end where that is quicker.

    They are int32, or whole numbers in floats where these hold them.
    """
    total = _rows_of_bytes(op, x, zero, w)
    if total is not None:
        return Value.channels_last(total)
    return Value(convolution(op, whole(x, zero), w).astype(fg.int32))


def _rows_of_bytes(op: Call, x: Value, zero: Value | None, w: Whole) -> Tensor | None:
    """The sums of a convolution whose pictures have, or get, their channels at the end.

    Channels are neighbours, four to a word where a device multiplies words; some are added, with
    no weight, where they are no multiple of four. What is around a picture is its zero.
    """
    inner, words = w.tensor.shape[1], get_device(w.tensor.device).vnni_layout and w.constant
    found = _byte_windows(op, x.shape, w.tensor.shape, words)
    centre = np.zeros(1) if zero is None else None if zero.sources else zero.known()
    plain = w.has_one_zero and w.is_bytes and not x.constant
    if found is None or centre is None or not plain or centre.size != 1:
        return None
    given = whole(x, zero)
    if not given.is_bytes:
        return None
    given = replace(given, tensor=fg.moveaxis(x.tensor, 1, -1) if x.last is None else x.last)
    around = int(centre.reshape(()))
    if words and given.tensor.dtype is fg.int8:
        given, around = given.unsigned, around + 128
    alone = op.int("group", 1) > 1  # each channel has a window of its own
    widths = [(0, 0), *found.pads, (0, -inner % 4 if words and not alone else 0)]
    given = replace(given, tensor=_around(given.tensor, widths, around))
    if alone:
        return _depthwise_rows(op, given, w, found)
    return _plain_rows(op, given, w, found, found.counts(x.shape[2:]))


def _around(rows: Tensor, widths: list[tuple[int, int]], value: int) -> Tensor:
    """A picture and what is around it, in memory: windows read it again and again."""
    if any(width != (0, 0) for width in widths):
        rows = fg.pad(rows, widths, constant_values=value)
    return rows.contiguous()


def _plain_rows(op: Call, x: Whole, w: Whole, found: Windows, space: list[int]) -> Tensor:
    """Sums over windows with all of their channels, which may be more than have weights."""
    more = x.tensor.shape[-1] - w.tensor.shape[1]
    w = w.signed
    widths = [(0, 0), (0, more), *[(0, 0)] * len(space)]
    if w.zero is None or not more:
        kernel = _lines_of(fg.pad(w.tensor, widths))
    else:  # weights of what has none are zero
        kernel = _lines_of((fg.pad(w.centred, widths) + w.zero).astype(fg.int8))
    if w.constant:
        op.build.keep(kernel)
    lines = fg.reshape(_lines(x.tensor, found), (-1, kernel.shape[0]))
    total = product(op, replace(x, tensor=lines), replace(w, tensor=kernel), True)
    return fg.reshape(total, (x.tensor.shape[0], *space, kernel.shape[1]))


def _depthwise_rows(op: Call, x: Whole, w: Whole, found: Windows) -> Tensor:
    """Sums of a depthwise convolution in floats, which are exact for so few places: of bytes as
    they are, less what their zero adds to each."""
    kernel = _lines_of(w.centred).astype(fg.float32)
    total = _sums_of_channels(x.tensor.astype(fg.float32), kernel, found)
    if w.constant:
        op.build.keep(kernel)
    if x.zero is not None:
        surplus = x.zero.astype(fg.float32) * fg.sum(kernel, axis=0)
        if w.constant and x.fixed:
            op.build.keep(surplus)
        total = total - surplus
    return total


def _byte_windows(op: Call, shape: Any, weight: Any, words: bool) -> Windows | None:
    """The windows of a convolution of bytes with its channels at the end, if they should be."""
    wide = len(shape) > 2 and isinstance(weight[0], int) and weight[0] >= WIDE
    return _windows_of(op, shape, weight, (0, None) if words and wide else (WIDE, SMALL))


@operator("ConvTranspose")
def conv_transpose(op: Call) -> Tensor | Value:
    """Every element spreads a window over the result; bytes keep their channels at the end."""
    x, weight = op[0], op[1]
    count = x.ndim - 2
    if count not in TRANSPOSED:
        raise op.unsupported(f"{count} axes")
    default = {"kernel_shape": weight.shape[2:], "strides": [1] * count, "dilations": [1] * count,
               "output_padding": [0] * count, "pads": [0] * 2 * count}  # fmt: skip
    size, strides, dilations, more, pads = (
        np.array(op.ints_of(name) or usual, np.int64) for name, usual in default.items()
    )
    wanted = op.ints_of("output_shape")
    auto = op.text("auto_pad", "NOTSET")
    space = op.build.fixed(np.array(list(x.node.shape[2:]), object)).astype(np.int64)
    low, high = pads[:count], pads[count:]
    if wanted is None and auto.startswith("SAME"):
        wanted = space * strides
    if wanted is not None:
        whole = (space - 1) * strides + (size - 1) * dilations + 1
        kept = np.array(wanted[-count:], np.int64)
        more = np.maximum(more, kept - whole)
        total = np.maximum(whole + more - kept, 0)
        less, rest = total // 2, total - total // 2
        low, high = (less, rest) if auto == "SAME_UPPER" else (rest, less)
    widths = list(zip((-low).tolist(), (more - high).tolist(), strict=True))
    last = op.value(0).last if isinstance(op.value(0), Dequantised) else None
    apart = bool((size == strides).all() and (dilations == 1).all())
    if last is not None and apart and op.int("group", 1) == 1:
        y = padded(_tiles(op, last, weight), [(0, 0), *widths, (0, 0)], "constant")
        return Value.channels_last(y + op[2] if op.has(2) else y)
    y = TRANSPOSED[count](
        x, weight, None, strides.tolist(), 0, 0, op.int("group", 1), dilations.tolist()
    )
    y = padded(y, [(0, 0), (0, 0), *widths], "constant")
    return y + along(op[2], y.ndim) if op.has(2) else y


def _tiles(op: Call, rows: Tensor, weight: Tensor) -> Tensor:
    """Windows that lie side by side: a product, whose columns are places of a window."""
    inner, outer, *size = weight.shape
    count, (n, *space, _) = len(size), rows.shape
    kernel = fg.reshape(fg.moveaxis(weight, 1, -1), (inner, prod(size) * outer))
    if op.value(1).constant:
        op.build.keep(kernel)
    y = fg.reshape(fg.reshape(rows, (-1, inner)) @ kernel, (n, *space, *size, outer))
    order = [place for axis in range(count) for place in (1 + axis, 1 + count + axis)]
    y = fg.permute_dims(y, (0, *order, 2 * count + 1))
    return fg.reshape(y, (n, *[a * b for a, b in zip(space, size, strict=True)], outer))


@operator("CausalConvWithState")
def causal_conv_with_state(op: Call) -> tuple[Tensor, Tensor]:
    """Each channel with a window of its own over what came before, carried from call to call."""
    x, weight = op[0], op[1]
    before = weight.shape[2] - 1
    past = op.maybe(3)
    if past is None:
        past = fg.zeros((x.shape[0], x.shape[1], before), x.dtype)
    padded_x = fg.concat([past, x], axis=2)
    y = fg.conv1d(padded_x, weight, op.maybe(2), groups=x.shape[1])
    if op.text("activation", "none") in ("silu", "swish"):
        y = fg.silu(y)
    return y.astype(x.dtype), padded_x[:, :, padded_x.shape[2] - before :]


@operator("Col2Im")
def col2im(op: Call) -> Tensor:
    """Columns of windows added up into pictures."""
    x, image, block = op[0], op.ints(1), op.ints(2)
    count = len(image)
    strides = op.ints_of("strides") or [1] * count
    dilations = op.ints_of("dilations") or [1] * count
    flat = op.ints_of("pads") or [0] * 2 * count
    pads = list(zip(flat[:count], flat[count:], strict=True))
    large = [n + low + high for n, (low, high) in zip(image, pads, strict=True)]
    places = np.zeros((), np.int64)
    results = []
    for n, k, s, d in zip(large, block, strides, dilations, strict=True):
        steps = (n - (k - 1) * d - 1) // s + 1
        results.append(steps)
        line = np.arange(k)[:, None] * d + np.arange(steps)[None] * s
        places = places[..., None, None] * n + line
    order = [2 * d for d in range(count)] + [2 * d + 1 for d in range(count)]
    flat_places = places.transpose(order).reshape(-1)
    batch = x.shape[0]
    channels = x.shape[1] // prod(block)
    values = fg.reshape(x, (batch * channels, flat_places.size))
    index = fg.broadcast_to(fg.Tensor(flat_places)[None], values.shape)
    sums = fg.scatter_add(fg.zeros((batch * channels, prod(large)), x.dtype), 1, index, values)
    found = fg.reshape(sums, (batch, channels, *large))
    return padded(found, [(0, 0), (0, 0), *[(-low, -high) for low, high in pads]], "constant")


@operator("DeformConv")
def deform_conv(op: Call) -> Tensor:
    """A convolution whose windows are moved by offsets, between elements if need be."""
    x, weight, offset = op[0], op[1], op[2]
    if x.ndim != 4:
        raise op.unsupported(f"{x.ndim - 2} axes")
    groups, parts = op.int("group", 1), op.int("offset_group", 1)
    found = windows(op, x.shape[2:], op.ints_of("kernel_shape") or list(weight.shape[2:]))
    n, c, h, w = x.shape
    kh, kw = found.size
    oh, ow = offset.shape[2:]
    moved = fg.reshape(offset, (n, parts, kh * kw, 2, oh, ow))
    rows, columns = (
        np.arange(m)[None, :] * found.stride[d] - found.pads[d][0]
        + np.arange(found.size[d])[:, None] * found.dilation[d]
        for d, m in enumerate((oh, ow))
    )  # fmt: skip
    base = [
        np.broadcast_to(rows[:, None, :, None], (kh, kw, oh, ow)).reshape(kh * kw, oh, ow),
        np.broadcast_to(columns[None, :, None, :], (kh, kw, oh, ow)).reshape(kh * kw, oh, ow),
    ]
    y, z = (moved[:, :, :, d] + fg.Tensor(base[d].astype(np.float32)) for d in (0, 1))
    taken = sampled(fg.reshape(x, (n, parts, c // parts, h * w)), y, z, h, w)
    if op.has(4):
        mask = fg.reshape(op[4], (n, parts, 1, kh * kw, oh, ow))
        taken = taken * mask
    columns_of = fg.reshape(taken, (n, groups, c // groups * kh * kw, oh * ow))
    kernels = fg.reshape(weight, (groups, weight.shape[0] // groups, c // groups * kh * kw))
    out = fg.reshape(fg.matmul(kernels, columns_of), (n, weight.shape[0], oh, ow))
    return (out + along(op[3], 4) if op.has(3) else out).astype(x.dtype)


def sampled(x: Tensor, y: Tensor, z: Tensor, height: int, width: int) -> Tensor:
    """Values of (n, g, c, h w) between elements at rows y and columns z, both (n, g, ...).

    Outside is zero; between two elements the value is linear.
    """
    n, g, c, _ = x.shape
    inner = y.shape[2:]
    top, left = fg.floor(y), fg.floor(z)
    found: Any = 0
    for down in (0, 1):
        for right in (0, 1):
            row, column = top + down, left + right
            weight = (1 - fg.abs(y - row)) * (1 - fg.abs(z - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = fg.clip(row, 0, height - 1) * width + fg.clip(column, 0, width - 1)
            index = fg.reshape(place.astype(fg.int32), (n, g, 1, prod(inner)))
            index = fg.broadcast_to(index, (n, g, c, prod(inner)))
            values = fg.reshape(fg.take_along_axis(x, index, axis=-1), (n, g, c, *inner))
            factor = fg.where(inside, weight, 0)
            found = found + values * fg.expand_dims(factor, 2)
    made: Tensor = found
    return made
