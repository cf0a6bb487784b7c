"""Activations: functions of one number, and those that weigh a whole axis.

In: a `Call`. Out: lazy tensors. Softmax and its kin worked on a flattened matrix before version 13.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, enter, operator

ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # of Selu

enter(
    Relu=lambda op: fg.relu(op[0]),
    Sigmoid=lambda op: fg.sigmoid(op[0]),
    Tanh=lambda op: fg.tanh(op[0]),
    Softplus=lambda op: fg.logaddexp(op[0], 0),
    Softsign=lambda op: op[0] / (fg.abs(op[0]) + 1),
    LeakyRelu=lambda op: fg.leaky_relu(op[0], op.float("alpha", 0.01)),
    Elu=lambda op: fg.elu(op[0], op.float("alpha", 1.0)),
    HardSwish=lambda op: op[0] * fg.clip(op[0] / 6 + 0.5, 0, 1),
)


@operator("Selu")
def selu(op: Call) -> Tensor:
    """Scaled exponential linear."""
    x, alpha = op[0], op.float("alpha", ALPHA)
    y = fg.where(x > 0, x, fg.expm1(fg.minimum(x, 0)) * alpha)
    return y * float(op.float("gamma", GAMMA))


@operator("Celu")
def celu(op: Call) -> Tensor:
    """Continuously differentiable exponential linear."""
    x, alpha = op[0], op.float("alpha", 1.0)
    return fg.maximum(x, 0) + fg.minimum(alpha * fg.expm1(x / alpha), 0)


@operator("Gelu")
def gelu(op: Call) -> Tensor:
    """x times the normal distribution function of x."""
    return fg.gelu(op[0], op.text("approximate", "none"))


@operator("HardSigmoid")
def hard_sigmoid(op: Call) -> Tensor:
    """A line between 0 and 1."""
    return fg.clip(op[0] * op.float("alpha", 0.2) + op.float("beta", 0.5), 0, 1)


@operator("Mish")
def mish(op: Call) -> Tensor:
    """x tanh(softplus(x))."""
    return op[0] * fg.tanh(fg.logaddexp(op[0], 0))


@operator("Swish")
def swish(op: Call) -> Tensor:
    """x sigmoid(alpha x)."""
    return op[0] * fg.sigmoid(op[0] * op.float("alpha", 1.0))


@operator("ThresholdedRelu")
def thresholded_relu(op: Call) -> Tensor:
    """x above a threshold, else 0."""
    return fg.where(op[0] > op.float("alpha", 1.0), op[0], 0)


@operator("Shrink")
def shrink(op: Call) -> Tensor:
    """0 near zero, else x moved toward it."""
    x, threshold, bias = op[0], op.float("lambd", 0.5), op.float("bias", 0.0)
    if x.dtype.is_float:
        return fg.where(x < -threshold, x + bias, fg.where(x > threshold, x - bias, 0))
    wide = x.astype(fg.float32)
    moved = fg.where(wide < -threshold, wide + bias, fg.where(wide > threshold, wide - bias, 0))
    return moved.astype(x.dtype)


@operator("PRelu")
def prelu(op: Call) -> Tensor:
    """A slope of its own for each channel below 0; they were along axis 1 before version 7."""
    x, slope = op[0], op[1]
    if op.version < 7 and slope.size > 1:
        slope = fg.reshape(slope, (-1, *[1] * (x.ndim - 2)))
    return fg.where(x < 0, x * slope, x)


@operator("SwiGLU")
def swiglu(op: Call) -> Tensor:
    """The swish of a gate times the other input."""
    return op[0] * fg.sigmoid(op[0] * op.float("alpha", 1.0)) * op[1]


def _along(op: Call, function: Callable[..., Tensor]) -> Tensor:
    """Along an axis; before version 13 over all axes from one on together."""
    x = op[0]
    if op.version >= 13:
        return function(x, axis=op.int("axis", -1))
    axis = op.int("axis", 1)
    axis += x.ndim if axis < 0 else 0
    shape: Any = x.shape
    rows = prod(shape[:axis])
    return fg.reshape(function(fg.reshape(x, (rows, prod(shape[axis:]))), axis=-1), shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    places = fg.argmax(x, axis=axis, keepdims=True)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    line = fg.reshape(fg.arange(x.shape[axis], dtype=places.dtype), shape)
    return fg.astype(line == places, x.dtype)


enter(
    Softmax=lambda op: _along(op, fg.softmax),
    LogSoftmax=lambda op: _along(op, fg.log_softmax),
    Hardmax=lambda op: _along(op, _hardmax),
)
