"""A layer and the batch norm after it as one layer, for use after training.

In: a convolution or a product, and a batch norm, both in `eval`. Out: a copy of the first that
computes what the two did.
"""

from __future__ import annotations

import copy
from typing import Any

from ...errors import ArgumentError
from ...functional.array.movement import reshape
from ...tensor import no_grad
from ..module.parameter import Parameter


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """The convolution with the batch norm in its weights.

    >>> conv, norm = fg.nn.Conv2d(3, 8, 3).eval(), fg.nn.BatchNorm2d(8).eval()
    >>> x = fg.rand(1, 3, 5, 5)
    >>> fused = fg.nn.utils.fuse_conv_bn_eval(conv, norm)
    >>> abs(fused(x) - norm(conv(x))).max().item() < 1e-4
    True
    """
    return _fused(conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """The product with the batch norm in its weights.

    >>> layer, norm = fg.nn.Linear(3, 8).eval(), fg.nn.BatchNorm1d(8).eval()
    >>> fg.nn.utils.fuse_linear_bn_eval(layer, norm)(fg.ones((2, 3))).shape
    (2, 8)
    """
    return _fused(linear, bn, 0)


def _fused(layer: Any, norm: Any, axis: int) -> Any:
    if layer.training or norm.training or norm.running_mean is None:
        raise ArgumentError(
            "layers are joined for use, not for training", "call eval() on both, with statistics"
        )
    made = copy.deepcopy(layer)
    with no_grad():
        scale = (norm.running_var + norm.eps) ** -0.5
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean * scale
        shift = shift if norm.bias is None else shift + norm.bias
        bias = shift if layer.bias is None else shift + layer.bias * scale
        shape = [-1 if d == axis else 1 for d in range(layer.weight.ndim)]
        made.weight = Parameter(layer.weight * reshape(scale, shape))
        made.bias = Parameter(bias)
    return made
