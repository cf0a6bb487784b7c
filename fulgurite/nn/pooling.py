"""Pools as modules: the functions of the same names with their settings.

In: x of shape (batch, channels, *space), or without the batch. Out: the largest element, the mean
or the p-norm of each window. Adaptive pools are given the size of the result. With
`return_indices` largest elements come with their places, counted row by row in x's space, which
`MaxUnpool` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..functional.common import as_tensor
from ..functional.nn import pooling, unpooling
from ..functional.nn.convolution import PerAxis
from ..tensor import Tensor, TensorLike
from .module import Module


class _Pool(Module):
    count: ClassVar[int]
    function: ClassVar[Callable[..., Tensor]]

    def _checked(self, x: TensorLike) -> Tensor:
        tensor = as_tensor(x)
        if tensor.ndim not in (self.count + 1, self.count + 2):
            space = ("length", "height, width", "depth, height, width")[self.count - 1]
            self.misfit(f"(batch, channels, {space}), the batch may be left out", tensor)
        return tensor


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        dilation: PerAxis = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode
        self.return_indices = return_indices

    def forward(self, x: TensorLike) -> Any:
        """The largest element of each window; with `return_indices` also its place."""
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        if self.return_indices:
            return unpooling.max_pool_with_indices(self.count, self._checked(x), *settings)
        return type(self).function(self._checked(x), *settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window of length.

    >>> fg.nn.MaxPool1d(2)(fg.Tensor([[1.0, 5.0, 2.0, 4.0]])).tolist()
    [[5.0, 4.0]]
    """

    count, function = 1, staticmethod(pooling.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest element of each window of height and width.

    >>> fg.nn.MaxPool2d(3, stride=2, padding=1)(fg.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    count, function = 2, staticmethod(pooling.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest element of each window of depth, height and width.

    >>> fg.nn.MaxPool3d(2)(fg.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    count, function = 3, staticmethod(pooling.max_pool3d)


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, x: TensorLike) -> Tensor:
        """The mean of each window."""
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        divided = (self.count_include_pad, self.divisor_override)
        return type(self).function(self._checked(x), *settings, *divided)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The mean of each window of length.

    >>> fg.nn.AvgPool1d(2)(fg.Tensor([[1.0, 5.0, 2.0, 4.0]])).tolist()
    [[3.0, 3.0]]
    """

    count, function = 1, staticmethod(pooling.avg_pool1d)


class AvgPool2d(_AvgPool):
    """The mean of each window of height and width.

    >>> fg.nn.AvgPool2d(2)(fg.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    count, function = 2, staticmethod(pooling.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of depth, height and width.

    >>> fg.nn.AvgPool3d(2)(fg.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    count, function = 3, staticmethod(pooling.avg_pool3d)


_OutputSize = int | Sequence[int | None] | None


class _AdaptiveAvgPool(_Pool):
    def __init__(self, output_size: _OutputSize) -> None:
        self.output_size = _as_tuple(output_size)

    def forward(self, x: TensorLike) -> Tensor:
        """A result of the given size."""
        return type(self).function(self._checked(x), self.output_size)

    def extra_repr(self) -> str:
        """The size of the result."""
        return f"output_size={self.output_size}"


def _as_tuple(size: _OutputSize) -> Any:
    return tuple(size) if isinstance(size, Sequence) else size


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of windows that make up a result of a given length.

    >>> fg.nn.AdaptiveAvgPool1d(2)(fg.Tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.5, 2.5]]
    """

    count, function = 1, staticmethod(pooling.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of windows that make up a result of a given height and width.

    >>> fg.nn.AdaptiveAvgPool2d((1, None))(fg.ones((1, 3, 7, 5))).shape
    (1, 3, 1, 5)
    """

    count, function = 2, staticmethod(pooling.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of windows that make up a result of a given depth, height and width.

    >>> fg.nn.AdaptiveAvgPool3d(2)(fg.ones((1, 3, 4, 5, 6))).shape
    (1, 3, 2, 2, 2)
    """

    count, function = 3, staticmethod(pooling.adaptive_avg_pool3d)


class _AdaptiveMaxPool(_Pool):
    def __init__(self, output_size: _OutputSize, return_indices: bool = False) -> None:
        self.output_size, self.return_indices = _as_tuple(output_size), return_indices

    def forward(self, x: TensorLike) -> Any:
        """A result of the given size; with `return_indices` also the places."""
        checked, size = self._checked(x), self.output_size
        if self.return_indices:
            return unpooling.adaptive_max_pool_with_indices(self.count, checked, size)
        return type(self).function(checked, size)

    def extra_repr(self) -> str:
        """The size of the result."""
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of windows that make up a result of a given length.

    >>> fg.nn.AdaptiveMaxPool1d(2)(fg.Tensor([[1.0, 2.0, 3.0]])).tolist()
    [[2.0, 3.0]]
    """

    count, function = 1, staticmethod(pooling.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows that make up a result of a given height and width.

    >>> fg.nn.AdaptiveMaxPool2d(2)(fg.ones((1, 3, 7, 5))).shape
    (1, 3, 2, 2)
    """

    count, function = 2, staticmethod(pooling.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows that make up a result of a given depth, height and width.

    >>> fg.nn.AdaptiveMaxPool3d(2)(fg.ones((1, 3, 4, 5, 6))).shape
    (1, 3, 2, 2, 2)
    """

    count, function = 3, staticmethod(pooling.adaptive_max_pool3d)


class _MaxUnpool(_Pool):
    def __init__(
        self, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0
    ) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding = padding

    def forward(
        self, x: TensorLike, indices: TensorLike, output_size: Sequence[int] | None = None
    ) -> Tensor:
        """The values at their places, 0 elsewhere."""
        settings = (self.kernel_size, self.stride, self.padding, output_size)
        return unpooling.max_unpool(self.count, self._checked(x), indices, *settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """The largest elements of windows of length put back to where they were.

    >>> values, places = fg.nn.MaxPool1d(2, return_indices=True)(fg.Tensor([[1.0, 5.0, 4.0, 2.0]]))
    >>> fg.nn.MaxUnpool1d(2)(values, places).tolist()
    [[0.0, 5.0, 4.0, 0.0]]
    """

    count = 1


class MaxUnpool2d(_MaxUnpool):
    """The largest elements of windows of height and width put back to where they were.

    >>> values, places = fg.nn.MaxPool2d(2, return_indices=True)(fg.rand(1, 3, 4, 4))
    >>> fg.nn.MaxUnpool2d(2)(values, places).shape
    (1, 3, 4, 4)
    """

    count = 2


class MaxUnpool3d(_MaxUnpool):
    """The largest elements of windows of depth, height and width put back to where they were.

    >>> values, places = fg.nn.MaxPool3d(2, return_indices=True)(fg.rand(1, 3, 4, 4, 4))
    >>> fg.nn.MaxUnpool3d(2)(values, places).shape
    (1, 3, 4, 4, 4)
    """

    count = 3


class _LPPool(_Pool):
    def __init__(
        self,
        norm_type: float,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        ceil_mode: bool = False,
    ) -> None:
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, x: TensorLike) -> Tensor:
        """The p-norm of each window."""
        settings = (self.norm_type, self.kernel_size, self.stride, self.ceil_mode)
        return unpooling.lp_pool(self.count, self._checked(x), *settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}"


class LPPool1d(_LPPool):
    """The p-norm of each window of length.

    >>> fg.nn.LPPool1d(2, 2)(fg.Tensor([[3.0, 4.0]])).tolist()
    [[5.0]]
    """

    count = 1


class LPPool2d(_LPPool):
    """The p-norm of each window of height and width.

    >>> fg.nn.LPPool2d(1, 2)(fg.ones((1, 3, 4, 4))).shape
    (1, 3, 2, 2)
    """

    count = 2


class LPPool3d(_LPPool):
    """The p-norm of each window of depth, height and width.

    >>> fg.nn.LPPool3d(2, 2)(fg.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    count = 3
