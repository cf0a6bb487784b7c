"""Layers that change the size of space: upsampling, pixel shuffles, windows as columns.

In: x of shape (batch, channels, *space). Out: x with another space. Nothing is learned here; the
functions of `fulgurite.functional` do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..functional.nn.convolution import PerAxis
from ..functional.nn.fold_unfold import channel_shuffle, fold, unfold
from ..functional.nn.resampling import interpolate, pixel_shuffle, pixel_unshuffle
from ..tensor import Tensor, TensorLike
from .linear import whole
from .module import Module


class Upsample(Module):
    """x in another size, by the nearest element or interpolation.

    >>> fg.nn.Upsample(scale_factor=2, mode="bilinear")(fg.ones((1, 3, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool = False,
    ) -> None:
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: TensorLike) -> Tensor:
        """x in the size asked for."""
        settings = (self.size, self.scale_factor, self.mode, self.align_corners)
        return interpolate(x, *settings, self.recompute_scale_factor)

    def extra_repr(self) -> str:
        """Size or factor, and mode."""
        about = (
            f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        )
        return f"{about}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """(batch, channels, height, width) in another size, by the nearest element.

    >>> fg.nn.UpsamplingNearest2d(scale_factor=2)(fg.ones((1, 3, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """(batch, channels, height, width) in another size, interpolated between fixed corners.

    >>> fg.nn.UpsamplingBilinear2d(size=(5, 6))(fg.ones((1, 3, 4, 4))).shape
    (1, 3, 5, 6)
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class PixelShuffle(Module):
    """Channels turned into space.

    >>> fg.nn.PixelShuffle(2)(fg.ones((1, 8, 3, 3))).shape
    (1, 2, 6, 6)
    """

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = whole(upscale_factor, "upscale_factor")

    def forward(self, x: TensorLike) -> Tensor:
        """x with more space and fewer channels."""
        return pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Space turned into channels.

    >>> fg.nn.PixelUnshuffle(2)(fg.ones((1, 2, 6, 6))).shape
    (1, 8, 3, 3)
    """

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = whole(downscale_factor, "downscale_factor")

    def forward(self, x: TensorLike) -> Tensor:
        """x with more channels and less space."""
        return pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels in another order: the first of each group, the second of each, ...

    >>> fg.nn.ChannelShuffle(2)(fg.ones((1, 4, 3, 3))).shape
    (1, 4, 3, 3)
    """

    def __init__(self, groups: int) -> None:
        self.groups = whole(groups, "groups")

    def forward(self, x: TensorLike) -> Tensor:
        """x with its channels shuffled."""
        return channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        """The number of groups."""
        return f"groups={self.groups}"


class Unfold(Module):
    """Every window of a picture as one column.

    >>> fg.nn.Unfold(2)(fg.ones((1, 3, 5, 5))).shape
    (1, 12, 16)
    """

    def __init__(
        self,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, x: TensorLike) -> Tensor:
        """The columns."""
        return unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """Its settings."""
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )


class Fold(Unfold):
    """Columns added up into a picture of a given size: the transpose of Unfold.

    >>> fg.nn.Fold((5, 5), 2)(fg.ones((1, 12, 16))).shape
    (1, 3, 5, 5)
    """

    def __init__(
        self,
        output_size: int | Sequence[int],
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, x: TensorLike) -> Tensor:
        """The picture."""
        settings = (self.kernel_size, self.dilation, self.padding, self.stride)
        return fold(x, self.output_size, *settings)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"output_size={self.output_size}, {super().extra_repr()}"
