"""Pools over windows, with the places of largest elements as torch counts them.

Windows are views (no im2col table): the largest element of each is a fold over them, its place the
least place that holds it, and the gradient puts every window's gradient where its place says and
adds up windows that overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ...core import build
from ...core.ops.movement import unwindow
from ...core.ops.reduce import identity_of
from ...functional.nn.pooling import overhang
from ...functional.nn.unpooling import adaptive_max_pool_with_indices
from ...tensor import Tensor, node_of, wrap
from ..table import Use, aten, cast


def _per_axis(value: Sequence[int], count: int) -> list[int]:
    return list(value) * count if len(value) == 1 else list(value)


class _Windows:
    """The windows of the last axes of a tensor, as max pools of torch lay them."""

    def __init__(
        self, space: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
        padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
    ) -> None:  # fmt: skip
        count = self.count = len(space)
        self.space = list(space)
        self.kernel = _per_axis(kernel, count)
        self.stride = _per_axis(stride, count) if stride else self.kernel
        self.dilation = _per_axis(dilation, count)
        pads = _per_axis(padding, count)
        self.pads = []
        for n, k, s, p, d in zip(space, self.kernel, self.stride, pads, self.dilation, strict=True):
            more = overhang(n, (k - 1) * d + 1, s, (p, p), ceil_mode)
            assert isinstance(more, int)
            self.pads.append((p, p + more))

    def of(self, x: Tensor, filler: Any) -> Tensor:
        """Windows as further axes, wherever they overhang filled with a number."""
        first = x.ndim - self.count
        if any(low or high for low, high in self.pads):
            x = fg.pad(x, [(0, 0)] * first + self.pads, constant_values=filler)
        node = node_of(x)
        for d, each in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            node = build.window(node, first + d, *each)
        return wrap(node)

    def places(self) -> Tensor:
        """For each element its place in the space, row by row."""
        whole = fg.arange(math.prod(self.space), dtype=fg.int32)
        return fg.reshape(whole, self.space)

    def added(self, windows: Tensor) -> Tensor:
        """Windows added up where they overlap, in the space."""
        node = node_of(windows)
        first = node.ndim - 2 * self.count
        kept = [(0, n) for n in node.shape[:first]]
        for d in reversed(range(self.count)):
            low, high = self.pads[d]
            whole = self.space[d] + low + high
            node = build.note(unwindow(node, first + d, whole, self.stride[d], self.dilation[d]))
        kept += [(low, low + n) for (low, _), n in zip(self.pads, self.space, strict=True)]
        return wrap(build.shrink(node, kept))


def _max_pool(count: int, use: Use, x: Any, windows: _Windows) -> Any:
    lowest = identity_of("max", x.dtype)
    seen = windows.of(x, lowest)
    axes = tuple(range(seen.ndim - count, seen.ndim))
    value = fg.max(seen, axis=axes)
    if 1 not in use.used:
        return value, None
    best = fg.max(seen, axis=axes, keepdims=True)
    holds = seen == best
    if x.dtype.is_inexact:
        holds = holds | fg.isnan(seen)
    far = math.prod(windows.space)
    places = windows.of(windows.places(), far)
    place = fg.min(fg.where(holds, places, far), axis=axes)
    return value, cast(place, fg.int64)


@aten("max_pool2d_with_indices")
def max_pool2d(
    use: Use, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The largest elements of windows, and their places."""
    return _max_pool(
        2, use, x, _Windows(x.shape[-2:], kernel, stride, padding, dilation, ceil_mode)
    )


@aten("max_pool3d_with_indices")
def max_pool3d(
    use: Use, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The largest elements of windows, and their places."""
    return _max_pool(
        3, use, x, _Windows(x.shape[-3:], kernel, stride, padding, dilation, ceil_mode)
    )


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    use: Use, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, indices: Any,
) -> Any:  # fmt: skip
    """Every window's gradient at the place of its largest element."""
    count = int(use.name[8])
    windows = _Windows(x.shape[-count:], kernel, stride, padding, dilation, ceil_mode)
    places = windows.of(windows.places(), math.prod(windows.space))
    ones = (*indices.shape, *[1] * count)
    here = fg.reshape(cast(indices, fg.int32), ones) == places
    return windows.added(fg.where(here, fg.reshape(grad, ones), cast(0, grad.dtype)))


@aten("avg_pool2d", "avg_pool3d", "avg_pool1d")
def avg_pool(use: Use, x: Any, *settings: Any, **named: Any) -> Any:
    """Means of windows."""
    return cast(_avg_pool(int(use.name[8]), x, *settings, **named), use.dtype)


def _avg_pool(
    count: int, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Any:  # fmt: skip
    function: Any = {1: fg.avg_pool1d, 2: fg.avg_pool2d, 3: fg.avg_pool3d}[count]
    sizes = [_per_axis(v, count) if v else None for v in (kernel, stride, padding)]
    settings = (ceil_mode, count_include_pad, divisor_override)
    named = {"divisor_override": divisor_override} if count > 1 else {}
    del settings
    return function(
        x, sizes[0], sizes[1], sizes[2], ceil_mode=ceil_mode, count_include_pad=count_include_pad,
        **named,
    )  # fmt: skip


@aten("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(use: Use, grad: Any, x: Any, *settings: Any) -> Any:
    """The gradient of means of windows."""
    count = int(use.name[8])
    return fg.vjp(lambda x: _avg_pool(count, x, *settings), x)[1](grad)[0]


ADAPTIVE: dict[int, Any] = {
    1: fg.adaptive_avg_pool1d, 2: fg.adaptive_avg_pool2d, 3: fg.adaptive_avg_pool3d,
}  # fmt: skip


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(use: Use, x: Any, size: Any) -> Any:
    """Means of windows that make up a result of a size."""
    if 0 in use.shape:
        return fg.full(use.shape, 0.0, dtype=use.dtype)
    count = len(size)
    return cast(ADAPTIVE[count](x, list(size)), use.dtype)


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(use: Use, grad: Any, x: Any) -> Any:
    """The gradient of such means."""
    count = int(use.name[18])
    if 0 in grad.shape:
        return fg.full(use.shape, 0.0, dtype=use.dtype)
    size = list(grad.shape[-count:])
    return fg.vjp(lambda x: ADAPTIVE[count](x, size), x)[1](grad)[0]


@aten("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(use: Use, x: Any, size: Any) -> Any:
    """The largest elements of windows that make up a result of a size, and their places."""
    return adaptive_max_pool_with_indices(len(size), x, list(size))


@aten("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(use: Use, grad: Any, x: Any, indices: Any) -> Any:
    """Gradients at the places of largest elements."""
    count = int(use.name[17])
    outer = grad.shape[: grad.ndim - count]
    flat = fg.full((*outer, math.prod(x.shape[-count:])), 0.0, dtype=grad.dtype)
    line = (*outer, -1)
    total = fg.scatter_add(flat, -1, fg.reshape(indices, line), fg.reshape(grad, line))
    return fg.reshape(total, x.shape)


@aten("max_unpool2d", "max_unpool3d")
def max_unpool(use: Use, x: Any, indices: Any, *_: Any) -> Any:
    """Values put back to their places."""
    count = int(use.name[10])
    outer = x.shape[: x.ndim - count]
    flat = fg.full((*outer, math.prod(use.shape[-count:])), cast(0, x.dtype), dtype=x.dtype)
    line = (*outer, -1)
    out = fg.scatter(flat, -1, fg.reshape(indices, line), fg.reshape(x, line))
    return fg.reshape(out, use.shape)
