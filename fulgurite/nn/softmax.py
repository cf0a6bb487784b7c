"""Activations along an axis as modules: softmax and its relatives, and gates.

In: a tensor. Out: what the function of the same name makes of it along an axis, the last one unless
told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..functional.array.movement import concat, expand_dims, reshape
from ..functional.common import as_tensor
from ..functional.math.reduction import argmax
from ..functional.nn import activation, losses
from ..tensor import Tensor, TensorLike
from .activation import Activation
from .containers import ModuleList, Sequential
from .linear import Linear
from .module import Module


class _AlongAxis(Activation):
    settings = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim


class Softmax(_AlongAxis):
    """Positive numbers with sum 1 along an axis, in proportion to exp(x).

    >>> fg.nn.Softmax(dim=-1)(fg.Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """

    function = staticmethod(activation.softmax)


class LogSoftmax(_AlongAxis):
    """The logarithm of softmax.

    >>> fg.nn.LogSoftmax(dim=-1)(fg.Tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """

    function = staticmethod(activation.log_softmax)


class Softmin(_AlongAxis):
    """softmax of -x.

    >>> fg.nn.Softmin(dim=-1)(fg.Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """

    function = staticmethod(activation.softmin)


class Softmax2d(Module):
    """softmax over the channels of (batch, channels, height, width).

    >>> fg.nn.Softmax2d()(fg.ones((1, 2, 1, 1))).tolist()
    [[[[0.5]], [[0.5]]]]
    """

    def forward(self, x: TensorLike) -> Tensor:
        """softmax over channels."""
        tensor = as_tensor(x)
        if tensor.ndim not in (3, 4):
            self.misfit("(batch, channels, height, width), the batch may be left out", tensor)
        return activation.softmax(tensor, -3)


class GLU(_AlongAxis):
    """The first half of an axis times sigmoid of the second.

    >>> fg.nn.GLU()(fg.Tensor([4.0, 0.0])).tolist()
    [2.0]
    """

    function = staticmethod(activation.glu)


class Predicted(NamedTuple):
    """The logarithm of each target's probability, and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """log_softmax over many classes, the rare ones (from each cutoff on) with smaller vectors.

    Classes are numbered from the most to the least frequent. Every cluster is computed for every
    row: sizes are fixed, so a step is one plan.

    >>> layer = fg.nn.AdaptiveLogSoftmaxWithLoss(8, 100, [10, 50])
    >>> found = layer(fg.ones((4, 8)), fg.Tensor([1, 20, 70, 99]))
    >>> found.output.shape, layer.log_prob(fg.ones((4, 8))).shape
    ((4,), (4, 100))
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        rising = list(cutoffs)
        if not rising or rising != sorted(set(rising)) or rising[0] < 1 or rising[-1] >= n_classes:
            raise ArgumentError(
                f"cutoffs are {rising} of {n_classes} classes",
                "give whole numbers that rise from 1 to below the number of classes",
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs, self.div_value = [*rising, n_classes], div_value
        clusters = len(rising)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, rising[0] + clusters, head_bias, **place)
        self.tail = ModuleList()
        for number in range(clusters):
            inner = int(in_features // div_value ** (number + 1))
            count = self.cutoffs[number + 1] - self.cutoffs[number]
            first = Linear(in_features, inner, False, **place)
            self.tail.append(Sequential(first, Linear(inner, count, False, **place)))

    def log_prob(self, x: TensorLike) -> Tensor:
        """The logarithm of every class's probability, for each row."""
        tensor = as_tensor(x)
        if tensor.ndim != 2 or tensor.shape[1] != self.in_features:
            self.misfit(f"(batch, {self.in_features})", tensor)
        head = activation.log_softmax(self.head(tensor), 1)
        common = self.cutoffs[0]
        parts = [head[:, :common]]
        for number, cluster in enumerate(self.tail):
            own = activation.log_softmax(cluster(tensor), 1)
            parts.append(own + head[:, common + number : common + number + 1])
        return concat(parts, 1)

    def forward(self, x: TensorLike, target: TensorLike) -> Predicted:
        """The logarithm of each target's probability, and the loss."""
        tensor, wanted = as_tensor(x), as_tensor(target)
        alone = tensor.ndim == 1
        rows = expand_dims(tensor, 0) if alone else tensor
        found = -losses.nll_loss(self.log_prob(rows), reshape(wanted, (-1,)), reduction="none")
        return Predicted(reshape(found, wanted.shape), -found.mean())

    def predict(self, x: TensorLike) -> Tensor:
        """The likeliest class of each row."""
        return argmax(self.log_prob(x), 1)

    def extra_repr(self) -> str:
        """Sizes and cutoffs."""
        return f"{self.in_features}, {self.n_classes}, cutoffs={self.cutoffs[:-1]}"
