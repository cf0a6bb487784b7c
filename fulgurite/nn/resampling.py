"""Layers that change the size of space: upsampling, pixel shuffles and padding.

In: x of shape (batch, channels, *space). Out: x with another space. Nothing is learned here; the
functions of `fulgurite.functional` do the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as as_index
from typing import Any, ClassVar, SupportsIndex

from ..errors import ArgumentError
from ..functional.common import as_tensor
from ..functional.convolution import PerAxis
from ..functional.movement import pad
from ..functional.resampling import interpolate, pixel_shuffle, pixel_unshuffle
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


# --- padding -------------------------------------------------------------------------------------


class _Pad(Module):
    """Elements added around space: (left, right, top, bottom, ...), the last axis first."""

    count: ClassVar[int]
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: PerAxis) -> None:
        self.padding = _signed(padding, 2 * self.count)

    def forward(self, x: TensorLike) -> Tensor:
        """x with more space."""
        tensor = as_tensor(x)
        if tensor.ndim not in (self.count + 1, self.count + 2):
            self.misfit(f"{self.count + 2} dimensions, the batch may be left out", tensor)
        pairs = [(self.padding[2 * d], self.padding[2 * d + 1]) for d in range(self.count)]
        sizes = tensor.shape[-self.count :][::-1]
        if self.mode == "reflect" and any(
            [max(pair) >= n for pair, n in zip(pairs, sizes, strict=True)]
        ):
            self.misfit("more space than it reflects", tensor)
        if any([n + low + high < 0 for (low, high), n in zip(pairs, sizes, strict=True)]):
            self.misfit("at least as much space as it takes away", tensor)
        whole_pads = [(0, 0)] * (tensor.ndim - self.count) + pairs[::-1]
        if self.mode == "wrap":  # what is taken away does not come around again
            tensor = _cut(tensor, whole_pads)
        more = [(max(low, 0), max(high, 0)) for low, high in whole_pads]
        found = pad(tensor, more, self.mode, constant_values=vars(self).get("value", 0))
        return found if self.mode == "wrap" else _cut(found, whole_pads)

    def extra_repr(self) -> str:
        """How much is added."""
        return str(self.padding)


def _cut(x: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """x without what paddings below 0 take away."""
    if min([min(pair) for pair in pads]) >= 0:
        return x
    ends = [n + min(high, 0) for n, (_, high) in zip(x.shape, pads, strict=True)]
    starts = [max(-low, 0) for low, _ in pads]
    return x[tuple([slice(a, b) for a, b in zip(starts, ends, strict=True)])]


def _signed(padding: PerAxis, count: int) -> tuple[int, ...]:
    """One whole number for each side; what is below 0 is taken away."""
    row = list(padding) if isinstance(padding, Iterable) else [padding]
    if not all([isinstance(n, SupportsIndex) for n in row]) or len(row) not in (1, count):
        raise ArgumentError(f"padding is {padding!r}", f"give a whole number, or {count} of them")
    return tuple([as_index(n) for n in row] * (count // len(row)))


class ConstantPad1d(_Pad):
    """A number added around (batch, channels, length).

    >>> fg.nn.ConstantPad1d((1, 2), 9.0)(fg.Tensor([[1.0]])).tolist()
    [[9.0, 1.0, 9.0, 9.0]]
    """

    count = 1

    def __init__(self, padding: PerAxis, value: float = 0.0) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad2d(ConstantPad1d):
    """A number added around (batch, channels, height, width).

    >>> fg.nn.ConstantPad2d((1, 0, 2, 0), 9.0)(fg.ones((1, 3, 3))).shape
    (1, 5, 4)
    """

    count = 2


class ConstantPad3d(ConstantPad1d):
    """A number added around (batch, channels, depth, height, width).

    >>> fg.nn.ConstantPad3d(1, 9.0)(fg.ones((1, 2, 2, 2))).shape
    (1, 4, 4, 4)
    """

    count = 3


class ZeroPad1d(_Pad):
    """Zeros added around (batch, channels, length).

    >>> fg.nn.ZeroPad1d(1)(fg.Tensor([[1.0]])).tolist()
    [[0.0, 1.0, 0.0]]
    """

    count = 1


class ZeroPad2d(_Pad):
    """Zeros added around (batch, channels, height, width).

    >>> fg.nn.ZeroPad2d(1)(fg.ones((1, 3, 3))).shape
    (1, 5, 5)
    """

    count = 2


class ReflectionPad1d(_Pad):
    """Length mirrored at its ends, which are not doubled.

    >>> fg.nn.ReflectionPad1d(2)(fg.Tensor([[1.0, 2.0, 3.0]])).tolist()
    [[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]]
    """

    count, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Height and width mirrored at their ends, which are not doubled.

    >>> fg.nn.ReflectionPad2d(1)(fg.ones((1, 3, 3))).shape
    (1, 5, 5)
    """

    count, mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of length repeated.

    >>> fg.nn.ReplicationPad1d(1)(fg.Tensor([[1.0, 2.0]])).tolist()
    [[1.0, 1.0, 2.0, 2.0]]
    """

    count, mode = 1, "edge"


class ReplicationPad2d(_Pad):
    """The ends of height and width repeated.

    >>> fg.nn.ReplicationPad2d(1)(fg.ones((1, 3, 3))).shape
    (1, 5, 5)
    """

    count, mode = 2, "edge"


class CircularPad1d(_Pad):
    """Length continued at its other end.

    >>> fg.nn.CircularPad1d(1)(fg.Tensor([[1.0, 2.0, 3.0]])).tolist()
    [[3.0, 1.0, 2.0, 3.0, 1.0]]
    """

    count, mode = 1, "wrap"


class CircularPad2d(_Pad):
    """Height and width continued at their other ends.

    >>> fg.nn.CircularPad2d(1)(fg.ones((1, 3, 3))).shape
    (1, 5, 5)
    """

    count, mode = 2, "wrap"
