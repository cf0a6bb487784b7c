"""Pictures of exporters (domain com.microsoft): channels last, masked pooling, crops.

In: a `Call`. Out: lazy tensors. Operators with the channels last are the plain ones between two
permutations, which cost nothing.
"""

from __future__ import annotations

import fulgurite as fg

from ....tensor import Tensor
from ...proto import Attribute
from ...table import Call, microsoft
from ..nn.convolution import conv_transpose, convolved
from ..nn.pooling import max_pool
from .epilogues import activated


@microsoft("NhwcConv", "NhwcFusedConv")
def nhwc_conv(op: Call) -> Tensor:
    """A convolution of pictures, and with weights, whose channels come last."""
    x, weight = (fg.moveaxis(op[i], -1, 1) for i in (0, 1))
    y = fg.moveaxis(convolved(op, x, weight, op.maybe(2)), 1, -1)
    return activated(op, y + op[3] if op.has(3) else y)


@microsoft("NhwcMaxPool")
def nhwc_max_pool(op: Call) -> Tensor:
    """The largest of each window, channels last."""
    return fg.moveaxis(max_pool(op.with_inputs(fg.moveaxis(op[0], -1, 1)))[0], 1, -1)


@microsoft("MaxpoolWithMask")
def maxpool_with_mask(op: Call) -> Tensor:
    """The largest of each window among what a mask allows."""
    found: Tensor = max_pool(op.with_inputs(fg.where(op[1] == 0, float("-inf"), op[0])))[0]
    return found


@microsoft("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(op: Call) -> Tensor:
    """A transposed convolution whose paddings are an input."""
    pads = {"pads": Attribute(name="pads", ints=op.ints(2))} if op.has(2) else {}
    found: Tensor = conv_transpose(op.with_inputs(op[0], op[1], op.maybe(3), **pads))
    return found


@microsoft("CropAndResize")
def crop_and_resize(op: Call) -> Tensor:
    """Boxes cut out of pictures, each brought to one size."""
    x, boxes, which = op[0], op[1], op[2].astype(fg.int64)
    height, width = op.ints(3)
    rows, columns = x.shape[2:]
    outside = op.float("extrapolation_value", 0.0)

    def places(low: Tensor, high: Tensor, size: int, count: int) -> Tensor:
        if count == 1:
            return fg.reshape((low + high) * (0.5 * (size - 1)), (-1, 1))
        step = (high - low) * (size - 1) / (count - 1)
        return fg.reshape(low * (size - 1), (-1, 1)) + fg.reshape(step, (-1, 1)) * fg.arange(count)

    y = fg.reshape(places(boxes[:, 0], boxes[:, 2], rows, height), (-1, 1, height, 1))
    z = fg.reshape(places(boxes[:, 1], boxes[:, 3], columns, width), (-1, 1, 1, width))
    mine = fg.reshape(fg.take(x, which, axis=0), (boxes.shape[0], x.shape[1], rows * columns))
    shape = (boxes.shape[0], x.shape[1], height, width)

    def at(row: Tensor, column: Tensor) -> Tensor:
        inner = fg.clip(row, 0, rows - 1) * columns + fg.clip(column, 0, columns - 1)
        flat = fg.broadcast_to(inner.astype(fg.int64), shape)
        flat = fg.reshape(flat, (shape[0], shape[1], height * width))
        return fg.reshape(fg.take_along_axis(mine, flat, axis=-1), shape)

    if op.text("mode", "bilinear") == "nearest":
        found = at(fg.floor(y + 0.5), fg.floor(z + 0.5))
    else:
        top, left = fg.floor(y), fg.floor(z)
        down, right = y - top, z - left
        upper = at(top, left) * (1 - right) + at(top, left + 1) * right
        lower = at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right
        found = upper * (1 - down) + lower * down
    inside = (y >= 0) & (y <= rows - 1) & (z >= 0) & (z <= columns - 1)
    return fg.where(inside, found, outside)
