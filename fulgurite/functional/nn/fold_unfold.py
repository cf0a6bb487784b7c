"""Windows of pictures as columns, columns added up into pictures, and channels shuffled.

In: (batch, channels, height, width), or columns (batch, channels * window, places); the batch may
be left out. Out: the other of the two. `fold` adds up what overlaps: it is the transpose of
`unfold`, and each is the other's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core import build
from ...core.ops.movement import unwindow
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.movement import expand_dims, flatten, permute_dims, reshape, squeeze
from ..common import as_tensor, astype, floating, wide
from ..template import templated
from .convolution import PerAxis, per_axis


@templated
def unfold(
    x: TensorLike,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Every window of a picture as one column.

    >>> fg.nn.functional.unfold(fg.ones((1, 3, 5, 5)), 2).shape
    (1, 12, 16)
    """
    tensor, alone = _batched(as_tensor(x), 4, "(batch, channels, height, width)")
    plan = _plan(tensor.shape[2:], kernel_size, dilation, padding, stride)
    node = build.pad(node_of(tensor), [(0, 0), (0, 0), *[(p, p) for p in plan.padding]])
    for d in range(2):
        node = build.window(node, 2 + d, plan.window[d], plan.stride[d], plan.dilation[d])
    columns = permute_dims(wrap(node), (0, 1, 4, 5, 2, 3))
    found = flatten(flatten(columns, 4, 5), 1, 3)
    return squeeze(found, 0) if alone else found


@templated
def fold(
    x: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Columns added up into a picture of this size, each where `unfold` takes it from.

    >>> fg.nn.functional.fold(fg.ones((1, 4, 4)), (3, 3), 2).tolist()[0][0][1]
    [2.0, 4.0, 2.0]
    """
    tensor, alone = _batched(as_tensor(x), 3, "(batch, channels * window, places)")
    size = per_axis(output_size, 2, "output_size")
    plan = _plan(size, kernel_size, dilation, padding, stride)
    window, places = math.prod(plan.window), math.prod(plan.places)
    if tensor.shape[1] % window or tensor.shape[2] != places:
        raise ShapeError(
            f"columns of shape {tensor.shape} for windows of {plan.window} in {size}",
            f"give (batch, channels * {window}, {places})",
        )
    channels = tensor.shape[1] // window
    parts = reshape(wide(tensor), (tensor.shape[0], channels, *plan.window, *plan.places))
    node = node_of(permute_dims(parts, (0, 1, 4, 5, 2, 3)))
    for d in (1, 0):
        large = size[d] + 2 * plan.padding[d]
        node = build.note(unwindow(node, 2 + d, large, plan.stride[d], plan.dilation[d]))
    cuts = [(p, n + p) for n, p in zip(size, plan.padding, strict=True)]
    found = wrap(build.shrink(node, [(0, tensor.shape[0]), (0, channels), *cuts]))
    found = astype(found, floating(tensor).dtype)
    return squeeze(found, 0) if alone else found


@templated
def channel_shuffle(x: TensorLike, groups: int) -> Tensor:
    """Channels (axis 1) in another order: the first of each group, the second of each, ...

    >>> x = fg.Tensor([[[1.0], [2.0], [3.0], [4.0]]])
    >>> fg.nn.functional.channel_shuffle(x, 2).flatten().tolist()
    [1.0, 3.0, 2.0, 4.0]
    """
    tensor = as_tensor(x)
    if tensor.ndim < 3 or groups < 1 or tensor.shape[1] % groups:
        raise ShapeError(
            f"{groups} groups of channels in shape {tensor.shape}",
            "give (batch, channels, ...) with a whole number of channels in each group",
        )
    batch, channels, *space = tensor.shape
    parts = reshape(tensor, (batch, groups, channels // groups, *space))
    permuted = permute_dims(parts, (0, 2, 1, *range(3, parts.ndim)))
    return reshape(permuted, tensor.shape)


class _Plan:
    """Window, step, gap and padding of both axes, and how many windows there are."""

    def __init__(self, size: Sequence[int], rows: Sequence[tuple[int, ...]]) -> None:
        self.window, self.dilation, self.padding, self.stride = rows
        self.places = [
            (n + 2 * p - (k - 1) * d - 1) // s + 1
            for n, k, d, p, s in zip(size, *rows, strict=True)
        ]


def _plan(
    size: Sequence[int], kernel_size: PerAxis, dilation: PerAxis, padding: PerAxis, stride: PerAxis
) -> _Plan:
    rows = [
        per_axis(value, 2, what, least)
        for value, what, least in (
            (kernel_size, "kernel_size", 1), (dilation, "dilation", 1), (padding, "padding", 0),
            (stride, "stride", 1),
        )
    ]  # fmt: skip
    plan = _Plan(size, rows)
    if min(plan.places) < 1:
        raise ArgumentError(
            f"windows of {plan.window} do not fit a picture of {tuple(size)}",
            "use a smaller kernel_size or dilation, or more padding",
        )
    return plan


def _batched(x: Tensor, ndim: int, takes: str) -> tuple[Tensor, bool]:
    """With a batch, and whether it had none."""
    if x.ndim not in (ndim - 1, ndim):
        raise ShapeError(f"shape {x.shape}", f"give {takes}, the batch may be left out")
    return (expand_dims(x, 0), True) if x.ndim == ndim - 1 else (x, False)
