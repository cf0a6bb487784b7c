"""Windows that slide over axes, as pooling and convolution place them.

In: the attributes `auto_pad`, `pads`, `strides`, `dilations`, `kernel_shape`, `ceil_mode` of an
operator and the sizes it works on. Out: `Windows`, with everything explicit. Padding that `SAME`
means depends on sizes, which must then be fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...core import build
from ...core.lazy_dataclass import dataclass
from ...tensor import Tensor, node_of, wrap
from ..errors import ModelError
from ..table import Call

MOST_PLACES = 1 << 24  # of a window: more would be a loop that does not end


@dataclass
class Windows:
    """One entry for each axis."""

    size: list[int]
    stride: list[int]
    dilation: list[int]
    pads: list[tuple[int, int]]
    over: list[int]  # more elements after an axis, so that a last window that is cut off counts

    def reach(self, axis: int) -> int:
        """From the first to the last element of a window."""
        return (self.size[axis] - 1) * self.dilation[axis] + 1

    def counts(self, space: Sequence[int]) -> list[int]:
        """How many windows there are along each axis."""
        return [
            (n + low + high - self.reach(axis)) // self.stride[axis] + 1
            for axis, (n, (low, high)) in enumerate(zip(space, self.pads, strict=True))
        ]

    def inside(self, space: Sequence[int]) -> list[int]:
        """How many windows there are along each axis that meet nothing around."""
        found = []
        for axis, (n, (low, _)) in enumerate(zip(space, self.pads, strict=True)):
            step = self.stride[axis]
            last = (n + low - self.reach(axis)) // step
            found.append(max(0, last + 1 + -low // step))
        return found

    def slid(self, x: Tensor, first: int) -> Tensor:
        """Windows as further axes at the end; x is padded already."""
        for axis in range(len(self.size)):
            x = self.slid_along(x, first + axis, axis)
        return x

    def slid_along(self, x: Tensor, place: int, axis: int) -> Tensor:
        """The windows of one axis, which stands at a place of x, as a further axis at the end."""
        each = self.size[axis], self.stride[axis], self.dilation[axis]
        return wrap(build.window(node_of(x), place, *each))

    @property
    def is_padded(self) -> bool:
        """Is there anything around?"""
        return any(self.over) or any(p != (0, 0) for p in self.pads)

    @property
    def widths(self) -> list[tuple[int, int]]:
        """What to pad each axis by."""
        return [(low, high + o) for (low, high), o in zip(self.pads, self.over, strict=True)]


def windows(op: Call, space: Any, size: list[int]) -> Windows:
    """The windows that an operator's attributes mean."""
    count = len(space)
    stride = op.ints_of("strides") or [1] * count
    dilation = op.ints_of("dilations") or [1] * count
    flat = op.ints_of("pads") or [0] * 2 * count
    auto = op.text("auto_pad", "NOTSET")
    if not len(size) == len(stride) == len(dilation) == len(flat) // 2 == count:
        raise ModelError(f"a window of {size} for {count} axes", "the model is not valid ONNX")
    if any(n < 1 for n in (*size, *stride, *dilation)):
        raise ModelError(f"a window of {size}, stride {stride}", "the model is not valid ONNX")
    if prod(size) > MOST_PLACES:
        raise ModelError(f"a window of {size}", "no model needs that: the file is damaged")
    pads = list(zip(flat[:count], flat[count:], strict=True))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        fixed = op.build.fixed(np.array(list(space), object))
        pads = [
            _same(int(n), (k - 1) * d + 1, s, auto == "SAME_UPPER")
            for n, k, s, d in zip(fixed, size, stride, dilation, strict=True)
        ]
    elif auto == "VALID":
        pads = [(0, 0)] * count
    found = Windows(list(size), stride, dilation, pads, [0] * count)
    if op.int("ceil_mode") and not auto.startswith("SAME"):
        fixed = op.build.fixed(np.array(list(space), object))
        found.over = [_over(found, axis, int(n)) for axis, n in enumerate(fixed)]
    return found


def _same(size: int, reach: int, stride: int, upper: bool) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def _over(found: Windows, axis: int, size: int) -> int:
    low, high = found.pads[axis]
    stride = found.stride[axis]
    room = size + low + high - found.reach(axis)
    count = -(-room // stride) + 1
    if (count - 1) * stride >= size + low:
        count -= 1  # a window must begin inside, or in the padding before
    return max(0, (count - 1) * stride - room)
