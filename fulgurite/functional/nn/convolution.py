"""Convolution in one to three dimensions, and transposed: sliding windows times weights, summed.

In: x of shape (batch, channels, *space) or without the batch, and weights as torch lays them out.
Out: the sum over channels and window of x's windows times the weights: one contraction, which
bias and activation join. The transposed form is said the way it is thought of: every element times
the weights is a window of the result, and windows add up where they overlap. How that becomes a
contraction, without the zeros between strides, is the business of `graph/passes/unwindow.py`, and
its gradient is a convolution. Half floats add up in float32, rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex, TypeAlias

from ...core import build
from ...core import shape as sizes
from ...core.dtype import DType
from ...core.node import Node, Size
from ...core.ops.elementwise import ADD
from ...core.ops.movement import unwindow
from ...core.symbolic.sym import as_index
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..math.products import contract, operands
from ..template import templated

PerAxis: TypeAlias = int | Sequence[int]
Padding: TypeAlias = str | int | Sequence[int | Sequence[int]]


def conv1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of (batch, channels, length) with weights (out, channels / groups, window).

    Padding is a number for both sides, a (before, after) pair in a sequence with one entry for
    each axis, "same" or "valid".

    >>> x, w = fg.Tensor([[[1.0, 2.0, 3.0, 4.0]]]), fg.Tensor([[[1.0, 10.0]]])
    >>> fg.conv1d(x, w).tolist()
    [[[21.0, 32.0, 43.0]]]
    """
    return _convolve(1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of (batch, channels, height, width) with (out, channels / groups, ...) weights.

    >>> fg.conv2d(fg.ones((1, 3, 8, 8)), fg.ones((4, 3, 3, 3)), padding="same").shape
    (1, 4, 8, 8)
    >>> fg.conv2d(fg.ones((1, 3, 8, 8)), fg.ones((4, 3, 3, 3)), padding=[(0, 1), 1], stride=2).shape
    (1, 4, 4, 4)
    """
    return _convolve(2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of (batch, channels, depth, height, width).

    >>> fg.conv3d(fg.ones((1, 2, 4, 4, 4)), fg.ones((2, 1, 3, 3, 3)), groups=2).shape
    (1, 2, 2, 2, 2)
    """
    return _convolve(3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """The transpose of conv1d: each element adds its multiple of the weights, `stride` apart.

    >>> x, w = fg.Tensor([[[1.0, 2.0]]]), fg.Tensor([[[1.0, 10.0, 100.0]]])
    >>> fg.conv_transpose1d(x, w, stride=2).tolist()
    [[[1.0, 10.0, 102.0, 20.0, 200.0]]]
    """
    return _transposed(1, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """The transpose of conv2d; weights are (channels, out / groups, height, width).

    >>> x, w = fg.ones((1, 4, 8, 8)), fg.ones((4, 3, 4, 4))
    >>> fg.conv_transpose2d(x, w, stride=2, padding=1).shape
    (1, 3, 16, 16)
    """
    return _transposed(2, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """The transpose of conv3d.

    >>> x, w = fg.ones((1, 2, 2, 2, 2)), fg.ones((2, 1, 2, 2, 2))
    >>> fg.conv_transpose3d(x, w, stride=2).shape
    (1, 1, 4, 4, 4)
    """
    return _transposed(3, x, weight, bias, stride, padding, output_padding, groups, dilation)


# --- arguments -----------------------------------------------------------------------------------


def per_axis(value: PerAxis, count: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One whole number for each axis of space."""
    listed = list(value) if isinstance(value, Iterable) else [value]
    row = [as_index(n) if isinstance(n, SupportsIndex) else -1 for n in listed]
    if len(row) == 1:
        row = row * count
    if len(row) != count or min(row, default=-1) < least:
        raise ArgumentError(
            f"{what} is {value!r}", f"give a whole number from {least}, or {count} of them"
        )
    return tuple(row)


def pads_of(
    padding: Padding,
    space: Sequence[Size],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """How much to add before and after each axis of space."""
    if padding == "valid":
        return [(0, 0)] * len(space)
    if padding == "same":
        return [_same(*each) for each in zip(space, window, stride, dilation, strict=True)]
    if isinstance(padding, str):
        raise ArgumentError(f"padding is {padding!r}", 'use numbers, "same" or "valid"')
    rows = list(padding) if isinstance(padding, Iterable) else [padding]
    rows = rows * (len(space) if len(rows) == 1 else 1)
    if len(rows) != len(space):
        raise ArgumentError(
            f"padding is {padding!r}", f"give a number, or {len(space)} numbers or pairs of them"
        )
    return [(p[0], p[1]) for p in (per_axis(row, 2, "padding", 0) for row in rows)]


def _same(size: Size, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """What makes ceil(size / stride) windows fit, the odd one after."""
    if not isinstance(size, int):
        if stride != 1:
            raise ShapeError('padding "same" with a stride needs fixed sizes', "give numbers")
        size = 1
    total = max(0, (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


def _batched(count: int, x: TensorLike, weight: TensorLike) -> tuple[Node, Node, DType, bool]:
    """x with a batch and the weights, in the dtype to compute in; that of the result."""
    (node, kernel), dtype = operands(x, weight)
    if kernel.ndim != count + 2 or node.ndim not in (count + 1, count + 2):
        raise ShapeError(
            f"{sizes.show(node.shape)} with weights {sizes.show(kernel.shape)}",
            f"x has {count + 2} dimensions (or {count + 1}: no batch), the weights {count + 2}",
        )
    alone = node.ndim == count + 1
    return (build.reshape(node, (1, *node.shape)) if alone else node), kernel, dtype, alone


def _window_sizes(kernel: Node) -> list[int]:
    found = [n for n in kernel.shape[2:] if isinstance(n, int) and n > 0]
    if len(found) != kernel.ndim - 2:
        raise ShapeError(f"weights of shape {sizes.show(kernel.shape)}", "use fixed sizes above 0")
    return found


def _divided(what: str, size: Size, groups: int) -> Size:
    if sizes.mod(size, groups) != 0:
        raise ShapeError(
            f"{sizes.size_text(size)} {what} do not divide into {groups} groups",
            "choose groups that divide both numbers of channels",
        )
    return sizes.floordiv(size, groups)


def _finished(out: Node, bias: TensorLike | None, dtype: DType, alone: bool) -> Tensor:
    """The sums with their bias, rounded, and without the batch that was not there."""
    if bias is not None:
        shift = build.cast(node_of(bias), out.dtype)
        if shift.shape != (out.shape[1],):
            raise ShapeError(
                f"a bias of shape {sizes.show(shift.shape)} for "
                f"{sizes.size_text(out.shape[1])} channels",
                "give one number for each channel of the result",
            )
        out = build.apply(ADD, out, build.reshape(shift, (-1, *[1] * (out.ndim - 2))))
    out = build.cast(out, dtype)
    return wrap(build.drop(out, (0,)) if alone else out)


# --- forward -------------------------------------------------------------------------------------


@templated
def _convolve(
    count: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: PerAxis,
    padding: Padding,
    dilation: PerAxis,
    groups: int,
) -> Tensor:
    lifted(x, weight, bias)
    node, kernel, dtype, alone = _batched(count, x, weight)
    window, groups = _window_sizes(kernel), build.as_positive(groups, "groups")
    strides = per_axis(stride, count, "stride")
    dilations = per_axis(dilation, count, "dilation")
    inner = _divided("channels", node.shape[1], groups)
    if not sizes.same(inner, kernel.shape[1]):
        raise ShapeError(
            f"{sizes.size_text(node.shape[1])} channels in {groups} groups for weights "
            f"{sizes.show(kernel.shape)}",
            "the weights' second size is channels / groups",
        )
    outer = _divided("results", kernel.shape[0], groups)
    pads = pads_of(padding, node.shape[2:], window, strides, dilations)
    node = build.pad(node, [(0, 0), (0, 0), *pads])
    for axis, each in enumerate(zip(window, strides, dilations, strict=True), start=2):
        node = build.window(node, axis, *each)
    batch, space = node.shape[0], node.shape[2 : 2 + count]
    node = build.reshape(node, (batch, groups, inner, *space, *window))
    kernel = build.reshape(kernel, (groups, outer, inner, *window))
    at, inside = [("space", d) for d in range(count)], [("window", d) for d in range(count)]
    out = contract(
        node, ["batch", "group", "in", *at, *inside],
        kernel, ["group", "out", "in", *inside],
        ["batch", "group", "out", *at],
    )  # fmt: skip
    out = build.reshape(out, (batch, sizes.mul(groups, outer), *space))
    return _finished(out, bias, dtype, alone)


# --- transposed ----------------------------------------------------------------------------------


@templated
def _transposed(
    count: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: PerAxis,
    padding: PerAxis,
    output_padding: PerAxis,
    groups: int,
    dilation: PerAxis,
) -> Tensor:
    lifted(x, weight, bias)
    node, kernel, dtype, alone = _batched(count, x, weight)
    window, groups = _window_sizes(kernel), build.as_positive(groups, "groups")
    strides = per_axis(stride, count, "stride")
    dilations = per_axis(dilation, count, "dilation")
    cuts = per_axis(padding, count, "padding", 0)
    extras = per_axis(output_padding, count, "output_padding", 0)
    inner, outer = _divided("channels", node.shape[1], groups), kernel.shape[1]
    if not sizes.same(node.shape[1], kernel.shape[0]):
        raise ShapeError(
            f"{sizes.size_text(node.shape[1])} channels for weights {sizes.show(kernel.shape)}",
            "the weights' first size is the number of channels",
        )
    if not all(e < max(s, d) for e, s, d in zip(extras, strides, dilations, strict=True)):
        raise ArgumentError(
            f"output_padding is {output_padding!r}", "it is less than the stride or the dilation"
        )
    space = node.shape[2:]
    at, inside = [("space", d) for d in range(count)], [("window", d) for d in range(count)]
    out = contract(
        build.reshape(node, (node.shape[0], groups, inner, *space)), ["batch", "group", "in", *at],
        build.reshape(kernel, (groups, inner, outer, *window)), ["group", "in", "out", *inside],
        ["batch", "group", "out", *inside, *at],
    )  # fmt: skip
    order = (0, 1, 2, *range(3 + count, 3 + 2 * count), *range(3, 3 + count))
    out = build.permute(out, order)  # places are neighbours in memory, elements of a window are not
    kept: list[tuple[int, int]] = []
    for d in reversed(range(count)):
        size = space[d]
        if not isinstance(size, int):
            raise ShapeError("a transposed convolution of variable size", "use fixed sizes")
        reach = (window[d] - 1) * dilations[d] + 1
        length = (size - 1) * strides[d] - 2 * cuts[d] + reach + extras[d]
        if size == 0 or length < 1:
            raise ShapeError(f"the result would have size {length}", "pad less")
        whole = (size - 1) * strides[d] + reach + extras[d]
        out = build.note(unwindow(out, 3 + d, whole, strides[d], dilations[d]))
        kept.insert(0, (cuts[d], cuts[d] + length))
    out = build.shrink(out, [*[(0, n) for n in out.shape[:3]], *kept])
    out = build.reshape(out, (out.shape[0], sizes.mul(groups, outer), *out.shape[3:]))
    return _finished(out, bias, dtype, alone)
