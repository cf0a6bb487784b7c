"""Space made larger or smaller at its ends: by a number, a mirror, the edge or the other end.

In: (batch, channels, *space), or without the batch, and how much to add on each side, the last axis
first as torch counts; below 0 it is taken away. Out: x with another space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, SupportsIndex

from ..core.symbolic.sym import as_index
from ..errors import ArgumentError, ShapeError
from ..functional.array.movement import pad
from ..functional.common import as_tensor
from ..functional.nn.convolution import PerAxis
from ..tensor import Tensor, TensorLike
from .module import Module

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def padded(x: Tensor, padding: Sequence[int], mode: str = "constant", value: float = 0) -> Tensor:
    """x with elements added around its last axes: (left, right, top, bottom, ...)."""
    count = len(padding) // 2
    if mode not in MODES:
        raise ArgumentError(f"mode is {mode!r}", f"one of {', '.join(MODES)}")
    if len(padding) % 2 or count > x.ndim:
        raise ArgumentError(
            f"padding {tuple(padding)} for shape {x.shape}", "give two numbers for each last axis"
        )
    missing = _missing(x.shape, padding, mode)
    if missing:
        raise ShapeError(
            f"padding {tuple(padding)} by {mode} takes {missing}, got {x.shape}", "pad less"
        )
    pairs = _pairs(padding)
    whole_pads = [(0, 0)] * (x.ndim - count) + pairs[::-1]
    if mode == "circular":  # what is taken away does not come around again
        x = _cut(x, whole_pads)
    more = [(max(low, 0), max(high, 0)) for low, high in whole_pads]
    found = pad(x, more, MODES[mode], constant_values=value)
    return found if mode == "circular" else _cut(found, whole_pads)


def _pairs(padding: Sequence[int]) -> list[tuple[int, int]]:
    return [(int(low), int(high)) for low, high in zip(padding[::2], padding[1::2], strict=True)]


def _missing(shape: tuple[int, ...], padding: Sequence[int], mode: str) -> str | None:
    """What x would need to be padded so, if it lacks that."""
    ends = list(zip(_pairs(padding), shape[::-1], strict=False))
    if mode == "reflect" and any([max(pair) >= n for pair, n in ends]):
        return "more space than it reflects"
    if mode == "circular" and any([max(pair) > n for pair, n in ends]):
        return "as much space as goes around"
    if any([n + low + high < 0 for (low, high), n in ends]):
        return "at least as much space as it takes away"
    return None


def _cut(x: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """x without what paddings below 0 take away."""
    if min([min(pair) for pair in pads]) >= 0:
        return x
    ends = [n + min(high, 0) for n, (_, high) in zip(x.shape, pads, strict=True)]
    starts = [max(-low, 0) for low, _ in pads]
    return x[tuple([slice(a, b) for a, b in zip(starts, ends, strict=True)])]


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
        missing = _missing(tensor.shape, self.padding, self.mode)
        if missing:
            self.misfit(missing, tensor)
        return padded(tensor, self.padding, self.mode, vars(self).get("value", 0))

    def extra_repr(self) -> str:
        """How much is added."""
        return str(self.padding)


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

    count, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The ends of height and width repeated.

    >>> fg.nn.ReplicationPad2d(1)(fg.ones((1, 3, 3))).shape
    (1, 5, 5)
    """

    count, mode = 2, "replicate"


class CircularPad1d(_Pad):
    """Length continued at its other end.

    >>> fg.nn.CircularPad1d(1)(fg.Tensor([[1.0, 2.0, 3.0]])).tolist()
    [[3.0, 1.0, 2.0, 3.0, 1.0]]
    """

    count, mode = 1, "circular"


class CircularPad2d(_Pad):
    """Height and width continued at their other ends.

    >>> fg.nn.CircularPad2d(1)(fg.ones((1, 3, 3))).shape
    (1, 5, 5)
    """

    count, mode = 2, "circular"


class ZeroPad3d(_Pad):
    """Zeros added around (batch, channels, depth, height, width).

    >>> fg.nn.ZeroPad3d(1)(fg.ones((1, 2, 2, 2))).shape
    (1, 4, 4, 4)
    """

    count = 3


class ReflectionPad3d(_Pad):
    """Depth, height and width mirrored at their ends, which are not doubled.

    >>> fg.nn.ReflectionPad3d(1)(fg.ones((1, 2, 2, 2))).shape
    (1, 4, 4, 4)
    """

    count, mode = 3, "reflect"


class ReplicationPad3d(_Pad):
    """The ends of depth, height and width repeated.

    >>> fg.nn.ReplicationPad3d(1)(fg.ones((1, 2, 2, 2))).shape
    (1, 4, 4, 4)
    """

    count, mode = 3, "replicate"


class CircularPad3d(_Pad):
    """Depth, height and width continued at their other ends.

    >>> fg.nn.CircularPad3d(1)(fg.ones((1, 2, 2, 2))).shape
    (1, 4, 4, 4)
    """

    count, mode = 3, "circular"
