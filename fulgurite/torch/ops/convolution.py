"""Convolutions, plain and transposed, their gradients, and im2col both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fulgurite as fg

from ...nn import functional as F
from ..table import Use, aten, cast

PLAIN: dict[int, Callable[..., Any]] = {1: fg.conv1d, 2: fg.conv2d, 3: fg.conv3d}
TRANSPOSED: dict[int, Callable[..., Any]] = {
    1: fg.conv_transpose1d, 2: fg.conv_transpose2d, 3: fg.conv_transpose3d,
}  # fmt: skip


def _convolve(
    x: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, extra: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    count = weight.ndim - 2
    per = [list(v) * count if len(v) == 1 else list(v) for v in (stride, padding, dilation, extra)]
    stride, padding, dilation, extra = per
    if transposed:
        settings = (stride, padding, extra, groups, dilation)
        return TRANSPOSED[count](x, weight, bias, *settings)
    return PLAIN[count](x, weight, bias, stride, padding, dilation, groups)


@aten("convolution")
def convolution(use: Use, x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """A convolution, plain or transposed, in one to three dimensions."""
    if 0 in use.shape or 0 in x.shape:
        out = fg.full(use.shape, 0.0, dtype=use.dtype)
        return out if bias is None else out + fg.reshape(bias, (-1, *[1] * (weight.ndim - 2)))
    return cast(_convolve(x, weight, bias, *settings), use.dtype)


@aten("convolution_backward")
def convolution_backward(
    use: Use, grad: Any, x: Any, weight: Any, bias_sizes: Any, *rest: Any
) -> Any:
    """Gradients by the input, the weights and the bias, as many as are asked for."""
    *settings, mask = rest
    found: list[Any] = [None, None, None]
    if mask[0]:
        found[0] = fg.vjp(lambda x: _convolve(x, weight, None, *settings), x)[1](grad)[0]
    if mask[1]:
        found[1] = fg.vjp(lambda w: _convolve(x, w, None, *settings), weight)[1](grad)[0]
    if mask[2]:
        others = tuple([d for d in range(grad.ndim) if d != (grad.ndim - weight.ndim + 1)])
        found[2] = fg.sum(grad, axis=others)
    return tuple(found)


@aten("col2im")
def col2im(
    use: Use, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """Columns of windows added up to an image."""
    return F.fold(x, list(size), list(kernel), list(dilation), list(padding), list(stride))


@aten("im2col")
def im2col(use: Use, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """The windows of an image as columns."""
    return F.unfold(x, list(kernel), list(dilation), list(padding), list(stride))
