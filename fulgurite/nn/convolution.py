"""Convolutions in one to three dimensions, and transposed ones.

In: x of shape (batch, channels, *space), or without the batch. Out: the sums over windows that
`fg.conv1d` and its relatives compute. Weights are (out, in / groups, *window), of transposed layers
(in, out / groups, *window); first values are uniform between ±1/√(numbers that go into a result).
Padding modes other than zeros pad first, then convolve without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..functional.array.movement import pad
from ..functional.nn import convolution
from ..functional.nn.convolution import PerAxis, pads_of, per_axis
from ..tensor import Tensor, TensorLike
from . import init
from .linear import whole
from .module import Module

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class _Convolution(Module):
    """What the six layers share: sizes, weights, and the check of an input."""

    count: ClassVar[int]
    transposed: ClassVar[bool] = False
    weight: Tensor
    bias: Tensor | None

    def _set_up(
        self,
        channels: tuple[int, int],
        kernel_size: PerAxis,
        stride: PerAxis,
        dilation: PerAxis,
        groups: int,
        padding_mode: str,
    ) -> None:
        self.in_channels = whole(channels[0], "in_channels")
        self.out_channels = whole(channels[1], "out_channels")
        self.kernel_size = per_axis(kernel_size, self.count, "kernel_size")
        self.stride = per_axis(stride, self.count, "stride")
        self.dilation = per_axis(dilation, self.count, "dilation")
        self.groups = whole(groups, "groups")
        if self.in_channels % groups or self.out_channels % groups:
            raise ArgumentError(
                f"{channels[0]} channels to {channels[1]} in {groups} groups",
                "groups divides both numbers of channels",
            )
        if padding_mode not in _MODES or (self.transposed and padding_mode != "zeros"):
            known = "zeros" if self.transposed else ", ".join(_MODES)
            raise ArgumentError(f"padding_mode is {padding_mode!r}", f"one of {known}")
        self.padding_mode = padding_mode

    def _draw(self, bias: bool, device: str | None, dtype: object) -> None:
        first, second = self.out_channels, self.in_channels // self.groups
        if self.transposed:
            first, second = self.in_channels, self.out_channels // self.groups
        shape = (first, second, *self.kernel_size)
        bound = init.one_over_root(init.fans(shape)[0])
        self.weight = init.uniform(shape, bound, dtype, device)
        self.register_parameter(
            "bias", init.uniform((self.out_channels,), bound, dtype, device) if bias else None
        )

    def _checked(self, x: TensorLike) -> Tensor:
        tensor = self.as_input(x)
        axis = tensor.ndim - self.count - 1
        if axis not in (0, 1) or tensor.node.shape[axis] != self.in_channels:
            space = ", ".join(("depth", "height", "width")[-self.count :])
            space = "length" if self.count == 1 else space
            self.misfit(f"(batch, {self.in_channels}, {space}), the batch may be left out", tensor)
        return tensor

    def extra_repr(self) -> str:
        """Channels, window and what differs from the usual."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}"
        usual: dict[str, Any] = {
            "padding": ((0,) * self.count, 0), "output_padding": ((0,) * self.count,),
            "dilation": ((1,) * self.count,), "groups": (1,), "padding_mode": ("zeros",),
        }  # fmt: skip
        for name, values in usual.items():
            if name in vars(self) and vars(self)[name] not in values:
                text += f", {name}={vars(self)[name]!r}"
        return text + ("" if self.bias is not None else ", bias=False")


class _Conv(_Convolution):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: str | PerAxis = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        channels = in_channels, out_channels
        self._set_up(channels, kernel_size, stride, dilation, groups, padding_mode)
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ArgumentError(f"padding is {padding!r}", 'use numbers, "same" or "valid"')
            if padding == "same" and set(self.stride) != {1}:
                raise ArgumentError('padding "same" with a stride', "use stride=1 or numbers")
            self.padding: str | tuple[int, ...] = padding
        else:
            self.padding = per_axis(padding, self.count, "padding", 0)
        self._draw(bias, device, dtype)

    def forward(self, x: TensorLike) -> Tensor:
        """The sums over windows, plus bias."""
        tensor = self._checked(x)
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            space = tensor.node.shape[-self.count :]
            pads = pads_of(padding, space, self.kernel_size, self.stride, self.dilation)
            outer = [(0, 0)] * (tensor.ndim - self.count)
            tensor = pad(tensor, [*outer, *pads], mode=_MODES[self.padding_mode])
            padding = 0
        settings = (self.stride, padding, self.dilation, self.groups)
        return type(self).function(tensor, self.weight, self.bias, *settings)


class Conv1d(_Conv):
    """Convolution of (batch, channels, length).

    >>> fg.nn.Conv1d(3, 8, 5, padding="same")(fg.ones((2, 3, 20))).shape
    (2, 8, 20)
    """

    count = 1
    function = staticmethod(convolution.conv1d)


class Conv2d(_Conv):
    """Convolution of (batch, channels, height, width).

    >>> fg.nn.Conv2d(3, 8, 3, stride=2, padding=1)(fg.ones((2, 3, 8, 8))).shape
    (2, 8, 4, 4)
    """

    count = 2
    function = staticmethod(convolution.conv2d)


class Conv3d(_Conv):
    """Convolution of (batch, channels, depth, height, width).

    >>> fg.nn.Conv3d(2, 4, (1, 3, 3))(fg.ones((1, 2, 4, 5, 5))).shape
    (1, 4, 4, 3, 3)
    """

    count = 3
    function = staticmethod(convolution.conv3d)


class _ConvTranspose(_Convolution):
    transposed = True
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        output_padding: PerAxis = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: PerAxis = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        channels = in_channels, out_channels
        self._set_up(channels, kernel_size, stride, dilation, groups, padding_mode)
        self.padding = per_axis(padding, self.count, "padding", 0)
        self.output_padding = per_axis(output_padding, self.count, "output_padding", 0)
        self._draw(bias, device, dtype)

    def forward(self, x: TensorLike, output_size: Sequence[int] | None = None) -> Tensor:
        """The transpose of a convolution, plus bias; `output_size` chooses among those possible."""
        tensor = self._checked(x)
        extra = self.output_padding if output_size is None else self._extra(tensor, output_size)
        settings = (self.stride, self.padding, extra, self.groups, self.dilation)
        return type(self).function(tensor, self.weight, self.bias, *settings)

    def _extra(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        wanted = tuple(output_size)[-self.count :]
        rows = zip(
            x.shape[-self.count :], self.kernel_size, self.stride, self.padding, self.dilation,
            strict=True,
        )  # fmt: skip
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in rows]
        extra = [w - n for w, n in zip(wanted, least, strict=False)]
        if len(wanted) != self.count or not all(
            [0 <= e < s for e, s in zip(extra, self.stride, strict=True)]
        ):
            most = [n + s - 1 for n, s in zip(least, self.stride, strict=True)]
            raise ArgumentError(f"output_size is {output_size}", f"it is from {least} to {most}")
        return tuple(extra)


class ConvTranspose1d(_ConvTranspose):
    """The transpose of Conv1d.

    >>> fg.nn.ConvTranspose1d(4, 2, 4, stride=2, padding=1)(fg.ones((1, 4, 10))).shape
    (1, 2, 20)
    """

    count = 1
    function = staticmethod(convolution.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The transpose of Conv2d.

    >>> fg.nn.ConvTranspose2d(4, 2, 2, stride=2)(fg.ones((1, 4, 5, 5))).shape
    (1, 2, 10, 10)
    """

    count = 2
    function = staticmethod(convolution.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The transpose of Conv3d.

    >>> fg.nn.ConvTranspose3d(2, 1, 2, stride=2)(fg.ones((1, 2, 2, 2, 2))).shape
    (1, 1, 4, 4, 4)
    """

    count = 3
    function = staticmethod(convolution.conv_transpose3d)
