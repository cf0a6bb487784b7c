"""Normalization over channels, layers, groups and neighbours.

In: a `Call`. Out: lazy tensors of the inputs' element type; means and variances are taken in
float32 at least. Parameters of a finished model become one factor and one summand for each channel,
computed once.
"""

from __future__ import annotations

from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, operator
from ...values import Value
from ..movement import axis_of
from ..windows import MOST_PLACES


def along(part: Tensor, ndim: int, axis: int = 1) -> Tensor:
    """A vector along one axis of many."""
    shape = [1] * ndim
    shape[axis] = -1
    return fg.reshape(part, shape)


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x if x.dtype in (fg.float32, fg.float64) else x.astype(fg.float32)


@operator("BatchNormalization")
def batch_normalization(op: Call) -> Any:
    """Each channel with known means and variances, or (training) its own."""
    x, scale, bias, mean, var = (op[i] for i in range(5))
    epsilon = op.float("epsilon", 1e-5)
    if op.version >= 14 and op.int("training_mode"):
        momentum = op.float("momentum", 0.9)
        axes = (0, *range(2, x.ndim))
        own = fg.mean(wide(x), axis=axes)
        own_var = fg.var(wide(x), axis=axes)
        running = [
            (old * momentum + new * (1 - momentum)).astype(old.dtype)
            for old, new in ((mean, own), (var, own_var))
        ]
        return _scaled(x, own, own_var, scale, bias, epsilon), *running
    if x.ndim > 1 and scale.ndim > 1:  # not spatial: parameters for each element
        y = (x - mean) / fg.sqrt(var + epsilon) * scale + bias
        return (y, *[None] * 4)
    factor = wide(scale) / fg.sqrt(wide(var) + epsilon)
    summand = wide(bias) - wide(mean) * factor
    if all(op.value(i).constant for i in range(1, 5)):
        op.build.keep(factor, summand)
    last = op.value(0).last
    if last is not None:
        return (Value.channels_last((wide(last) * factor + summand).astype(x.dtype)), *[None] * 4)
    y = wide(x) * along(factor, x.ndim) + along(summand, x.ndim)
    return (y.astype(x.dtype), *[None] * 4)


def _scaled(
    x: Tensor, mean: Tensor, var: Tensor, scale: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    n = x.ndim
    factor = along(wide(scale) / fg.sqrt(wide(var) + epsilon), n)
    return ((wide(x) - along(mean, n)) * factor + along(wide(bias), n)).astype(x.dtype)


@operator("InstanceNormalization")
def instance_normalization(op: Call) -> Tensor:
    """Each channel of each sample."""
    x = op[0]
    y = normal(wide(x), tuple(range(2, x.ndim)), op.float("epsilon", 1e-5))[0]
    return (y * along(wide(op[1]), x.ndim) + along(wide(op[2]), x.ndim)).astype(x.dtype)


def normal(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean 0 and variance 1; the mean and one over the deviation."""
    mean = fg.mean(x, axis=axes, keepdims=True)
    apart = x - mean
    inverse = 1 / fg.sqrt(fg.mean(apart * apart, axis=axes, keepdims=True) + epsilon)
    return apart * inverse, mean, inverse


@operator("LayerNormalization")
def layer_normalization(op: Call) -> tuple[Tensor, Tensor, Tensor]:
    """All axes from one on together."""
    x = op[0]
    axis = axis_of(op.int("axis", -1), x.ndim)
    y, mean, inverse = normal(wide(x), tuple(range(axis, x.ndim)), op.float("epsilon", 1e-5))
    y = y.astype(x.dtype) * op[1]
    if op.has(2):
        y = y + op[2]
    return y.astype(x.dtype), mean, inverse


@operator("RMSNormalization")
def rms_normalization(op: Call) -> Tensor:
    """Divided by the root of the mean square."""
    x = op[0]
    axis = axis_of(op.int("axis", -1), x.ndim)
    return rms(x, tuple(range(axis, x.ndim)), op.float("epsilon", 1e-5)) * op[1]


def rms(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """x over the root of its mean square."""
    full = wide(x)
    square = fg.mean(full * full, axis=axes, keepdims=True)
    return (full / fg.sqrt(square + epsilon)).astype(x.dtype)


@operator("GroupNormalization", since=18)
def group_normalization(op: Call) -> Tensor:
    """Groups of channels; scale and bias were for groups before version 21."""
    x, groups = op[0], op.int("num_groups", 1)
    n, channels, *rest = x.node.shape
    parts = fg.reshape(wide(x), (n, groups, channels // groups, *rest))
    y = normal(parts, tuple(range(2, parts.ndim)), op.float("epsilon", 1e-5))[0]
    scale, bias = wide(op[1]), wide(op[2])
    if op.version < 21:
        y = y * along(scale, parts.ndim) + along(bias, parts.ndim)
        return fg.reshape(y, x.shape).astype(x.dtype)
    y = fg.reshape(y, x.shape)
    return (y * along(scale, x.ndim) + along(bias, x.ndim)).astype(x.dtype)


@operator("LRN")
def lrn(op: Call) -> Tensor:
    """Divided by the squares of neighbouring channels."""
    x, size = op[0], op.int("size", 1)
    if not 1 <= size <= MOST_PLACES:
        raise ModelError(f"{size} neighbours", "the model is not valid ONNX")
    low, high = (size - 1) // 2, size // 2
    widths = [(0, 0), (low, high)] + [(0, 0)] * (x.ndim - 2)
    squares = fg.sum(fg.unfold(fg.pad(x * x, widths), 1, size), axis=-1)
    base = op.float("bias", 1.0) + op.float("alpha", 1e-4) / size * squares
    return x / fg.pow(base, op.float("beta", 0.75))


@operator("LpNormalization")
def lp_normalization(op: Call) -> Tensor:
    """Divided by the length along an axis."""
    x, axis = op[0], op.int("axis", -1)
    if op.int("p", 2) == 1:
        length = fg.sum(fg.abs(x), axis=axis, keepdims=True)
    else:
        length = fg.sqrt(fg.sum(x * x, axis=axis, keepdims=True))
    return fg.where(length == 0, 0, x / length)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(op: Call) -> Tensor:
    """Mean 0 and deviation 1."""
    x, axes = op[0], tuple(op.ints_of("axes", [0, 2, 3]))
    mean = fg.mean(x, axis=axes, keepdims=True)
    square = fg.mean(x * x, axis=axes, keepdims=True)
    return (x - mean) / (fg.sqrt(square - mean * mean) + 1e-9)
