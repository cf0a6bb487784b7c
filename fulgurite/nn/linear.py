"""Products with learned matrices, and changes of shape.

In: tensors whose last dimension (or dimensions) a layer was made for; anything before them is a
batch. Out: `x @ weight.T + bias` and its relatives. Weights are (out, in) as torch has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core import build
from ..errors import ArgumentError
from ..functional.array.movement import flatten, matrix_transpose, reshape
from ..functional.autocast import added
from ..functional.common import as_tensor
from ..functional.math.products import einsum, matmul
from ..functional.template import templated
from ..tensor import Tensor, TensorLike
from . import init
from .module import Module


class Identity(Module):
    """Its input, whatever arguments it is made with.

    >>> fg.nn.Identity(54, unused=True)(fg.Tensor([1.0])).tolist()
    [1.0]
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Take anything, for a place where another layer would stand."""

    def forward(self, x: TensorLike) -> Tensor:
        """x."""
        return as_tensor(x)


class Linear(Module):
    """x @ weight.T + bias.

    >>> layer = fg.nn.Linear(3, 2)
    >>> layer(fg.ones((5, 3))).shape, layer.weight.shape
    ((5, 2), (2, 3))
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.in_features = whole(in_features, "in_features", 0)
        self.out_features = whole(out_features, "out_features", 0)
        bound = init.one_over_root(self.in_features)
        self.weight = init.uniform((self.out_features, self.in_features), bound, dtype, device)
        self.register_parameter(
            "bias", init.uniform((self.out_features,), bound, dtype, device) if bias else None
        )

    def forward(self, x: TensorLike) -> Tensor:
        """The product, plus bias."""
        tensor = self.as_input(x)
        if not tensor.ndim or tensor.node.shape[-1] != self.in_features:
            self.misfit(f"(..., {self.in_features})", tensor)
        return linear(tensor, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, and whether there is a bias."""
        has = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has}"


@templated
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias."""
    out = matmul(x, matrix_transpose(weight))
    return out if bias is None else out + added(bias, out)


class Bilinear(Module):
    """Σ over i and j of x1[i] * weight[o, i, j] * x2[j], plus bias.

    >>> fg.nn.Bilinear(3, 4, 2)(fg.ones((5, 3)), fg.ones((5, 4))).shape
    (5, 2)
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.in1_features = whole(in1_features, "in1_features")
        self.in2_features = whole(in2_features, "in2_features")
        self.out_features = whole(out_features, "out_features")
        bound = init.one_over_root(in1_features)
        shape = (out_features, in1_features, in2_features)
        self.weight = init.uniform(shape, bound, dtype, device)
        self.register_parameter(
            "bias", init.uniform((out_features,), bound, dtype, device) if bias else None
        )

    def forward(self, x1: TensorLike, x2: TensorLike) -> Tensor:
        """The form, for each element of the batch."""
        a, b = (self.as_input(x) for x in (x1, x2))
        sizes = self.in1_features, self.in2_features
        fits = a.ndim and a.shape[:-1] == b.shape[:-1] and (a.shape[-1], b.shape[-1]) == sizes
        if not fits:
            self.misfit(f"(..., {sizes[0]}) and (..., {sizes[1]})", a, b)
        out = einsum("...i,oij,...j->...o", a, self.weight, b)
        return out if self.bias is None else out + added(self.bias, out)

    def extra_repr(self) -> str:
        """Sizes, and whether there is a bias."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class Flatten(Module):
    """Several dimensions as one; all but the first unless told otherwise.

    >>> fg.nn.Flatten()(fg.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: TensorLike) -> Tensor:
        """x with fewer dimensions."""
        return flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The first and the last dimension."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension as several.

    >>> fg.nn.Unflatten(1, (3, 4))(fg.ones((2, 12))).shape
    (2, 3, 4)
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: TensorLike) -> Tensor:
        """x with more dimensions."""
        tensor = as_tensor(x)
        place = build.as_axis(self.dim, tensor.ndim)
        shape: list[int] = list(self.unflattened_size)
        known = math.prod([n for n in shape if n != -1])
        if -1 in shape and known:
            shape[shape.index(-1)] = tensor.shape[place] // known
        if math.prod(shape) != tensor.shape[place]:
            wanted = math.prod(self.unflattened_size)
            self.misfit(f"a dimension {self.dim} of size {abs(wanted)}", tensor)
        return reshape(tensor, (*tensor.shape[:place], *shape, *tensor.shape[place + 1 :]))

    def extra_repr(self) -> str:
        """Which dimension, and its sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


def whole(value: object, what: str, least: int = 1) -> int:
    """A whole number that is large enough, or an error that says what it is for."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{what} is {value!r}", f"{what} is a whole number from {least}")
    return value
