"""Tensors for einops: `import fulgurite.einops` once, and its functions take them.

In: nothing. Out: a backend that einops finds among its subclasses; nothing of einops is changed.
Without this, `einops.array_api` works as it is. If einops was imported before fulgurite, this is
imported too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from einops._backends import AbstractBackend  # type: ignore[import-not-found,unused-ignore]

from . import arange, concat, einsum, expand_dims, permute_dims, stack, tile
from .core.op import Array
from .tensor import Tensor


class FulguriteBackend(AbstractBackend):  # type: ignore[misc,unused-ignore]
    """What einops asks of a library."""

    framework_name = "fulgurite"

    def is_appropriate_type(self, tensor: object) -> bool:
        """Is it one of ours?"""
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Array) -> Tensor:
        """A tensor of an array; floats have a gradient, as einops' tests of a backend expect."""
        return Tensor(x, requires_grad=np.dtype(x.dtype).kind == "f")

    def to_numpy(self, x: Tensor) -> Array:
        """The value of a tensor."""
        return x.numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        """Whole numbers in order."""
        return arange(start, stop)

    def transpose(self, x: Tensor, axes: Any) -> Tensor:
        """Dimensions in another order."""
        return permute_dims(x, tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        """Tensors of one shape as one."""
        return stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        """A dimension of size 1."""
        return expand_dims(x, new_position)

    def tile(self, x: Tensor, repeats: Any) -> Tensor:
        """Copies side by side."""
        return tile(x, tuple(repeats))

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        """Tensors one after the other."""
        return concat(tensors, axis=axis)

    def is_float_type(self, x: Tensor) -> bool:
        """May a mean be taken?"""
        return x.dtype.is_inexact

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        """A sum of products by labels."""
        return einsum(pattern, *x)
