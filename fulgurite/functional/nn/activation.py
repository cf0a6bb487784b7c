"""Activations: rectified, smooth, clipped and gated units; softmax along an axis.

In: tensors; whole numbers become float32. Out: tensors of the same shape (`glu` halves an axis).
Half floats are computed in float32 and rounded once. Choices are written with `where`, so slopes
are finite on both sides, and at a kink they are what torch takes. The maximum that keeps softmax's
powers small is detached here and not by the caller.
"""

from __future__ import annotations

from ...core import build
from ...core.node import Node
from ...core.ops.elementwise import DIV, ERFC, EXP, EXPM1, LOG, SUB, TANH
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.movement import chunk, reshape
from ..autocast import wide_result
from ..common import apply, as_tensor, astype, floating, wide
from ..math.elementwise import abs, logaddexp, sign, where
from ..template import templated


def _below_top(x: Node, axis: int) -> Node:
    """x moved so that its largest element is 0; the move has no gradient."""
    if x.ndim and x.shape[build.as_axis(axis, x.ndim)] == 0:
        return x
    return build.apply(SUB, x, build.detach(build.fold("max", x, axis, keepdims=True)))


@templated
def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Positive numbers with sum 1 along an axis, in proportion to exp(x).

    >>> fg.softmax(fg.Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    powers = build.apply(EXP, _below_top(node_of(wide(x)), axis))
    total = build.fold("add", powers, axis, keepdims=True)
    return astype(wrap(build.apply(DIV, powers, total)), wide_result(x))


@templated
def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """The logarithm of softmax, exact where that is tiny.

    >>> fg.log_softmax(fg.Tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    moved = _below_top(node_of(wide(x)), axis)
    total = build.fold("add", build.apply(EXP, moved), axis, keepdims=True)
    return astype(wrap(build.apply(SUB, moved, build.apply(LOG, total))), wide_result(x))


@templated
def relu(x: TensorLike) -> Tensor:
    """x where it is positive, else 0.

    >>> fg.relu(fg.Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    tensor = as_tensor(x)
    return where(tensor <= 0, 0, tensor)


@templated
def leaky_relu(x: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, else a small part of it.

    >>> fg.leaky_relu(fg.Tensor([-1.0, 2.0]), 0.5).tolist()
    [-0.5, 2.0]
    """
    tensor = floating(x)
    return where(tensor > 0, tensor, tensor * negative_slope)


@templated
def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha * (exp(x) - 1).

    >>> fg.elu(fg.Tensor([float("-inf"), 2.0])).tolist()
    [-1.0, 2.0]
    """
    tensor = floating(x)
    below = apply(EXPM1, where(tensor > 0, 0, tensor))  # a large x must not overflow here
    return where(tensor > 0, tensor, below * alpha)


@templated
def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x)), exact far out on both sides.

    >>> fg.sigmoid(fg.Tensor([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    tensor = wide(x)
    positive = tensor >= 0
    power = apply(EXP, where(positive, -tensor, tensor))  # at most 1
    whole = where(positive, 1, power)
    # whole / (power + 1), but what rounding does to the quotient counts for less
    return astype(whole - whole * (power / (power + 1)), floating(x).dtype)


@templated
def silu(x: TensorLike) -> Tensor:
    """x * sigmoid(x).

    >>> fg.silu(fg.Tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return astype(wide(x) * sigmoid(wide(x)), floating(x).dtype)


@templated
def softplus(x: TensorLike, beta: float = 1.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta: a smooth relu.

    >>> fg.softplus(fg.Tensor([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return astype(logaddexp(wide(x) * beta, 0.0) / beta, floating(x).dtype)


@templated
def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """x times the chance that a normal number is below it; "tanh" is the quicker formula.

    >>> fg.gelu(fg.Tensor([0.0, 100.0])).tolist(), fg.gelu(100.0, approximate="tanh").item()
    ([0.0, 100.0], 100.0)
    """
    tensor = wide(x)
    if approximate == "none":
        chance = apply(ERFC, tensor * -(0.5**0.5)) * 0.5  # erfc is exact far below 0
    elif approximate == "tanh":
        inner = (tensor + tensor * tensor * tensor * 0.044715) * 0.7978845608028654  # √(2/π)
        chance = (apply(TANH, inner) + 1) * 0.5
    else:
        raise ArgumentError(f"approximate is {approximate!r}", 'use "none" or "tanh"')
    return astype(tensor * chance, floating(x).dtype)


@templated
def relu6(x: TensorLike) -> Tensor:
    """x between 0 and 6.

    >>> fg.relu6(fg.Tensor([-1.0, 2.0, 9.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return hardtanh(x, 0.0, 6.0)


@templated
def hardtanh(x: TensorLike, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between two bounds, where its slope is 0 too.

    >>> fg.hardtanh(fg.Tensor([-3.0, 0.5, 3.0])).tolist()
    [-1.0, 0.5, 1.0]
    """
    if not min_val <= max_val:
        raise ArgumentError(f"bounds {min_val} and {max_val}", "give min_val <= max_val")
    tensor = floating(x)
    return where(tensor <= min_val, min_val, where(tensor >= max_val, max_val, tensor))


@templated
def hardsigmoid(x: TensorLike) -> Tensor:
    """x / 6 + 1 / 2 between 0 and 1.

    >>> fg.hardsigmoid(fg.Tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    tensor = wide(x)
    line = where(tensor <= -3, 0, where(tensor >= 3, 1, tensor * (1 / 6) + 0.5))
    return astype(line, floating(x).dtype)


@templated
def hardswish(x: TensorLike) -> Tensor:
    """x times hardsigmoid(x).

    >>> fg.hardswish(fg.Tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.0, 4.0]
    """
    tensor = wide(x)
    middle = where(abs(tensor) >= 3, 0, tensor)  # so that no slope is infinite times 0
    bend = middle * (middle + 3) * (1 / 6)
    return astype(where(tensor <= -3, 0, where(tensor >= 3, tensor, bend)), floating(x).dtype)


@templated
def selu(x: TensorLike) -> Tensor:
    """elu with the scale and alpha that keep mean 0 and variance 1.

    >>> round(fg.selu(fg.Tensor(1.0)).item(), 4)
    1.0507
    """
    scaled = elu(wide(x), 1.6732632423543772) * 1.0507009873554805
    return astype(scaled, floating(x).dtype)


@templated
def celu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha * (exp(x / alpha) - 1).

    >>> fg.celu(fg.Tensor([float("-inf"), 3.0]), 2.0).tolist()
    [-2.0, 3.0]
    """
    if alpha == 0:
        raise ArgumentError("alpha is 0", "give another number")
    tensor = wide(x)
    below = apply(EXPM1, where(tensor > 0, 0, tensor) / alpha) * alpha
    return astype(where(tensor > 0, tensor, below), floating(x).dtype)


@templated
def mish(x: TensorLike) -> Tensor:
    """x * tanh(softplus(x)).

    >>> fg.mish(fg.Tensor([0.0, 50.0])).tolist()
    [0.0, 50.0]
    """
    tensor = wide(x)
    return astype(tensor * apply(TANH, softplus(tensor)), floating(x).dtype)


@templated
def log_sigmoid(x: TensorLike) -> Tensor:
    """The logarithm of sigmoid, exact where that is tiny.

    >>> fg.log_sigmoid(fg.Tensor([-1000.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    return astype(0 - softplus(0 - wide(x)), floating(x).dtype)


@templated
def softsign(x: TensorLike) -> Tensor:
    """x / (1 + |x|).

    >>> fg.softsign(fg.Tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    tensor = wide(x)
    return astype(tensor / (abs(tensor) + 1), floating(x).dtype)


@templated
def tanhshrink(x: TensorLike) -> Tensor:
    """x - tanh(x).

    >>> fg.tanhshrink(fg.Tensor([0.0, 100.0])).tolist()
    [0.0, 99.0]
    """
    tensor = wide(x)
    return astype(tensor - apply(TANH, tensor), floating(x).dtype)


@templated
def softshrink(x: TensorLike, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by `lambd`, and 0 where that is passed.

    >>> fg.softshrink(fg.Tensor([-2.0, 0.25, 2.0])).tolist()
    [-1.5, 0.0, 1.5]
    """
    if lambd < 0:
        raise ArgumentError(f"lambd is {lambd}", "give 0 or more")
    tensor = floating(x)
    return where(abs(tensor) > lambd, tensor - sign(tensor) * lambd, tensor * 0)


@templated
def hardshrink(x: TensorLike, lambd: float = 0.5) -> Tensor:
    """x, and 0 where it is within `lambd` of 0.

    >>> fg.hardshrink(fg.Tensor([-2.0, 0.25, 2.0])).tolist()
    [-2.0, 0.0, 2.0]
    """
    tensor = floating(x)
    return where(abs(tensor) <= lambd, 0, tensor)


@templated
def threshold(x: TensorLike, threshold: float, value: float) -> Tensor:
    """x above the threshold, else the value.

    >>> fg.threshold(fg.Tensor([1.0, 3.0]), 2.0, 9.0).tolist()
    [9.0, 3.0]
    """
    tensor = floating(x)
    return where(tensor <= threshold, value, tensor)


@templated
def softmin(x: TensorLike, axis: int = -1) -> Tensor:
    """softmax of -x: the smallest gets most.

    >>> fg.softmin(fg.Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return softmax(0 - floating(x), axis)


@templated
def prelu(x: TensorLike, weight: TensorLike) -> Tensor:
    """x where it is positive, else x times a weight: one for all, or one for each channel.

    >>> fg.prelu(fg.Tensor([[-2.0, -2.0]]), fg.Tensor([0.5, 0.25])).tolist()
    [[-1.0, -0.5]]
    """
    tensor = floating(x)
    slope = as_tensor(weight, tensor)
    if slope.size != 1:
        channels = tensor.shape[1] if tensor.ndim > 1 else 1
        if slope.shape != (channels,):
            raise ShapeError(
                f"weights of shape {slope.shape} for {channels} channels",
                "give one weight, or one for each channel (axis 1)",
            )
        slope = reshape(slope, (channels, *[1] * (tensor.ndim - 2)))
    elif slope.ndim > tensor.ndim:
        slope = reshape(slope, ())
    return where(tensor > 0, tensor, tensor * slope)


@templated
def glu(x: TensorLike, axis: int = -1) -> Tensor:
    """The first half of an axis times sigmoid of the second.

    >>> fg.glu(fg.Tensor([4.0, 0.0])).tolist()
    [2.0]
    """
    tensor = floating(x)
    size = tensor.node.shape[build.as_axis(axis, tensor.ndim)]
    if not isinstance(size, int) or size % 2 or not size:
        raise ShapeError(f"axis {axis} of size {size} has no two halves", "use an even size")
    first, second = chunk(tensor, 2, axis)
    return first * sigmoid(second)
