"""Operators on the numbers at one place: arithmetic, comparison, logic, bits.

In: a `Call`. Out: lazy tensors of the element type that ONNX promises, which is the inputs' own:
whole numbers divide toward zero, a power keeps its base's type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call, enter, operator


def _one(function: Callable[[Any], Tensor]) -> Callable[[Call], Tensor]:
    return lambda op: function(op[0])


def _two(function: Callable[[Any, Any], Tensor]) -> Callable[[Call], Tensor]:
    return lambda op: function(*operands(op))


def operands(op: Call) -> tuple[Tensor, Tensor]:
    """Both inputs; before version 7 the second is broadcast from an axis on, if asked."""
    a, b = op[0], op[1]
    if op.version < 7 and op.int("broadcast") and op.given("axis"):
        axis = op.int("axis")
        axis += a.ndim if axis < 0 else 0
        b = fg.reshape(b, (*b.shape, *[1] * (a.ndim - axis - b.ndim)))
    return a, b


enter(
    Abs=_one(fg.abs), Acos=_one(fg.acos), Acosh=_one(fg.acosh), Asin=_one(fg.asin),
    Asinh=_one(fg.asinh), Atan=_one(fg.atan), Atanh=_one(fg.atanh), Ceil=_one(fg.ceil),
    Cos=_one(fg.cos), Cosh=_one(fg.cosh), Erf=_one(fg.erf), Exp=_one(fg.exp),
    Floor=_one(fg.floor), IsNaN=_one(fg.isnan), Log=_one(fg.log), Neg=_one(fg.negative),
    Not=_one(fg.logical_not), Reciprocal=_one(fg.reciprocal), Round=_one(fg.round),
    Sign=_one(fg.sign), Sin=_one(fg.sin), Sinh=_one(fg.sinh), Sqrt=_one(fg.sqrt),
    Tan=_one(fg.tan), BitwiseNot=_one(fg.bitwise_invert),
)  # fmt: skip
enter(
    Add=_two(fg.add), Sub=_two(fg.subtract), Mul=_two(fg.multiply), Greater=_two(fg.greater),
    GreaterOrEqual=_two(fg.greater_equal), Less=_two(fg.less), LessOrEqual=_two(fg.less_equal),
    And=_two(fg.logical_and), Or=_two(fg.logical_or), Xor=_two(fg.logical_xor),
    BitwiseAnd=_two(fg.bitwise_and), BitwiseOr=_two(fg.bitwise_or), BitwiseXor=_two(fg.bitwise_xor),
)  # fmt: skip


@operator("Div")
def div(op: Call) -> Tensor:
    """Whole numbers divide toward zero."""
    return divided(*operands(op))


def divided(a: Tensor, b: Tensor) -> Tensor:
    """a / b in the type of a."""
    if a.dtype.is_inexact:
        return fg.divide(a, b)
    down = fg.floor_divide(a, b)
    if a.dtype.kind == "u":
        return down
    low = fg.logical_and(down < 0, down * b != a)
    return fg.where(low, down + 1, down)


@operator("Mod")
def mod(op: Call) -> Tensor:
    """The remainder, with the sign of the divisor or (`fmod`) of the dividend."""
    a, b = op[0], op[1]
    if not op.int("fmod"):
        return fg.remainder(a, b)
    rest = fg.remainder(fg.abs(a), fg.abs(b))
    return fg.where(fg.signbit(a), -rest, rest) if a.dtype.kind != "u" else rest


@operator("Pow")
def power(op: Call) -> Tensor:
    """A power in its base's type."""
    base, exponent = operands(op)
    known = op.constant(1)
    if known is not None and known.size == 1 and known.ndim <= base.ndim and base.dtype.is_float:
        number = float(known.reshape(-1)[0])
        if number in (1.0, 2.0, 3.0, 4.0):
            return fg.pow(base, number)
    if base.dtype is exponent.dtype:
        return fg.pow(base, exponent)
    wide = fg.float64 if "float64" in (base.dtype.name, exponent.dtype.name) else fg.float32
    if base.dtype.is_integer and exponent.dtype.is_integer:
        wide = fg.int64
        return fg.pow(base.astype(wide), exponent.astype(wide)).astype(base.dtype)
    if base.dtype.bits >= 32 and base.dtype.is_integer:
        wide = fg.float64
    return fg.pow(base.astype(wide), exponent.astype(wide)).astype(base.dtype)


@operator("BitShift")
def bit_shift(op: Call) -> Tensor:
    """Bits moved up (LEFT) or down."""
    left = op.text("direction") == "LEFT"
    return (fg.bitwise_left_shift if left else fg.bitwise_right_shift)(op[0], op[1])


@operator("Equal")
def equal(op: Call) -> Any:
    """Are both the same? Strings too."""
    if op.value(0).is_text:
        return np.asarray(op.host(0) == op.host(1)).astype(bool)
    return fg.equal(op[0], op[1])


@operator("Max")
def maximum(op: Call) -> Tensor:
    """The largest of all inputs."""
    return reduce(fg.maximum, op.tensors())


@operator("Min")
def minimum(op: Call) -> Tensor:
    """The smallest of all inputs."""
    return reduce(fg.minimum, op.tensors())


@operator("Sum")
def total(op: Call) -> Tensor:
    """The sum of all inputs."""
    return reduce(fg.add, op.tensors())


@operator("Mean")
def mean(op: Call) -> Tensor:
    """The mean of all inputs."""
    return reduce(fg.add, op.tensors()) / len(op)


@operator("Where")
def where(op: Call) -> Tensor:
    """One or the other."""
    return fg.where(op[0], op[1], op[2])


@operator("Clip")
def clip(op: Call) -> Tensor:
    """Within bounds, which were attributes before version 11."""
    x = op[0]
    if op.version < 11:
        low = op.float("min", None)
        high = op.float("max", None)
        return fg.clip(x, low, high)
    return fg.clip(x, op.maybe(1), op.maybe(2))


@operator("IsInf")
def is_inf(op: Call) -> Tensor:
    """Infinite, of the signs that are asked for."""
    x = op[0]
    if op.int("detect_negative", 1) and op.int("detect_positive", 1):
        return fg.isinf(x)
    if not op.int("detect_negative", 1) and not op.int("detect_positive", 1):
        return fg.zeros(x.shape, fg.bool)
    positive = bool(op.int("detect_positive", 1))
    return fg.logical_and(fg.isinf(x), x > 0 if positive else x < 0)
