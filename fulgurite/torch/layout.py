"""torch's strides as a contiguous buffer seen through a permutation.

In: the sizes and strides of a tensor. Out: a `Layout`: the shape of the dense memory under it, in
the order of addresses, and how to see the tensor in it. Axes of stride 0 are one element wide in
memory. Tensors whose memory has gaps or overlaps are no layout of ours: those are copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import fulgurite as fg

from ..tensor import Tensor


class Layout(NamedTuple):
    """Dense memory under a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...]  # axes by falling stride
    held: tuple[int, ...]  # sizes in memory, in this order
    dense: bool  # else the tensor has to be copied to be one of ours
    conjugate: bool = False  # may its memory hold conjugates or negatives of its values?

    @property
    def plain(self) -> bool:
        """True if memory has the tensor's own shape."""
        return self.order == tuple(range(len(self.size))) and self.held == self.size

    def seen(self, memory: Tensor) -> Tensor:
        """The tensor, in its memory."""
        if self.plain:
            return memory
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return fg.broadcast_to(fg.permute_dims(memory, back), self.size)

    def laid(self, x: Tensor) -> Tensor:
        """A tensor's elements as its memory has them."""
        if self.plain:
            return x
        key = tuple(
            [slice(0, 1) if s == 0 and n > 1 else slice(None)
             for n, s in zip(self.size, self.stride, strict=True)]
        )  # fmt: skip
        return fg.permute_dims(x[key], self.order)


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose elements follow each other."""
    return tuple([math.prod([max(n, 1) for n in size[d + 1 :]]) for d in range(len(size))])


def layout_of(tensor: Any) -> Layout:
    """The layout of a torch tensor, fake or real."""
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    odd = tensor.is_complex() or tensor.is_neg()
    spread = [n > 1 and s == 0 for n, s in zip(size, stride, strict=True)]
    if tensor.numel() == 0 or stride == contiguous(size):
        axes = tuple(range(len(size)))
        return Layout(size, contiguous(size), axes, size, True, odd)
    order = sorted(range(len(size)), key=lambda d: (size[d] != 1 and not spread[d], -stride[d], d))
    held = tuple([1 if spread[d] else size[d] for d in order])
    wanted = contiguous(held)
    dense = all(held[i] == 1 or stride[d] == wanted[i] for i, d in enumerate(order))
    if not dense:
        axes = tuple(range(len(size)))
        return Layout(size, contiguous(size), axes, size, False, odd)
    return Layout(size, stride, tuple(order), held, True, odd)
