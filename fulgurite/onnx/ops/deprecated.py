"""Operators that the standard had before version 1.6, which exporters of that time wrote.

In: a `Call`. Out: lazy tensors.
"""

from __future__ import annotations

import numpy as np

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call, enter, operator
from .nn.normalization import along


@operator("ImageScaler")
def image_scaler(op: Call) -> Tensor:
    """scale x + bias, a bias for each channel."""
    bias = fg.Tensor(np.array(op.floats_of("bias", [0.0]), np.float32))
    return fg.add(op[0] * op.float("scale", 1.0), along(bias, op[0].ndim))


@operator("Crop")
def crop(op: Call) -> Tensor:
    """The inside of a border: left, top, right, bottom; or a part of some size."""
    left, top, right, bottom = op.ints_of("border", [0] * 4)
    height, width = op[0].shape[2:]
    scale = op.ints_of("scale")
    ends = (top + scale[0], left + scale[1]) if scale else (height - bottom, width - right)
    return op[0][:, :, top : ends[0], left : ends[1]]


enter(
    Affine=lambda op: op[0] * op.float("alpha", 1.0) + op.float("beta", 0.0),
    ScaledTanh=lambda op: fg.tanh(op[0] * op.float("beta", 1.0)) * op.float("alpha", 1.0),
    ParametricSoftplus=lambda op: (
        fg.softplus(op[0] * op.float("beta", 1.0)) * op.float("alpha", 1.0)
    ),
)
