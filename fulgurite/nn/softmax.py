"""Activations along an axis as modules: softmax and its relatives, and gates.

In: a tensor. Out: what the function of the same name makes of it along an axis, the last one unless
told otherwise.
"""

from __future__ import annotations

from ..functional import activation, nn
from ..functional.common import as_tensor
from ..tensor import Tensor, TensorLike
from .activation import Activation
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

    function = staticmethod(nn.softmax)


class LogSoftmax(_AlongAxis):
    """The logarithm of softmax.

    >>> fg.nn.LogSoftmax(dim=-1)(fg.Tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """

    function = staticmethod(nn.log_softmax)


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
        return nn.softmax(tensor, -3)


class GLU(_AlongAxis):
    """The first half of an axis times sigmoid of the second.

    >>> fg.nn.GLU()(fg.Tensor([4.0, 0.0])).tolist()
    [2.0]
    """

    function = staticmethod(activation.glu)
