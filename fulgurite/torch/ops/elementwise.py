"""Elementwise operators: arithmetic in the result's type, comparisons in the arguments' own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

import fulgurite as fg

from ...core.dtype import DType
from ...tensor import Tensor
from ..dtypes import TO_OURS, compute_dtype
from ..table import Refused, Use, aten, cast, tensor


def _enter(names: str, function: Callable[..., Any]) -> None:
    """Enter an operator that computes in the type of its result."""

    def build(use: Use, *args: Any) -> Any:
        return function(*[cast(a, use.dtype) for a in args])

    aten(*names.split())(build)


UNARY: dict[str, Callable[..., Any]] = {
    name: getattr(fg, name)
    for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh",
        "digamma", "erf", "erfc", "exp", "exp2", "expm1", "floor", "lgamma", "log", "log10",
        "log1p", "log2", "mish", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "sinh",
        "sqrt", "square", "tan", "tanh", "trunc",
    )
} | {"neg _neg_view": fg.negative}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "mul.Tensor mul.Scalar": fg.multiply,
    "div.Tensor div.Scalar true_divide.Tensor true_divide.Scalar": fg.divide,
    "maximum": fg.maximum,
    "minimum": fg.minimum,
    "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor": fg.bitwise_and,
    "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor": fg.bitwise_or,
    "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor": fg.bitwise_xor,
    "copysign.Tensor copysign.Scalar": fg.copysign,
    "hypot": fg.hypot,
    "atan2": fg.atan2,
    "logaddexp": fg.logaddexp,
    "nextafter": fg.nextafter,
}
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": fg.equal, "ne": fg.not_equal, "lt": fg.less, "le": fg.less_equal, "gt": fg.greater,
    "ge": fg.greater_equal,
}  # fmt: skip

for _name, _function in (UNARY | BINARY).items():
    _enter(_name, _function)


def common_dtype(use: Use) -> DType:
    """The type to which torch promotes the arguments of a use."""
    values = [a for a in use.fakes if isinstance(a, torch.Tensor | int | float | complex)]
    found = values[0].dtype if isinstance(values[0], torch.Tensor) else None
    for other in values[1:]:
        found = torch.result_type(values[0], other)
    return TO_OURS[found]


def _compare(use: Use, x: Any, y: Any, *, function: Callable[..., Any]) -> Any:
    if not isinstance(y, Tensor) and isinstance(x, Tensor) and not x.dtype.is_inexact:
        low, high = x.dtype.limits
        if isinstance(y, int) and not isinstance(y, bool) and not low <= y <= high:
            raise Refused(f"{use.name} with a number that {x.dtype} does not hold")
    dtype = common_dtype(use)
    return function(cast(x, dtype), cast(y, dtype))


for _name, _function in COMPARE.items():
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(functools.partial(_compare, function=_function))

for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    aten(_name)(functools.partial(lambda use, *args, f: f(*args), f=getattr(fg, _name)))


@aten("add.Tensor", "add.Scalar")
def add(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    """x + alpha y."""
    x, y = cast(x, use.dtype), cast(y, use.dtype)
    if use.dtype.kind == "b":
        return fg.logical_or(x, y) if alpha else x
    return x + (y if alpha == 1 else y * cast(alpha, use.dtype))


@aten("fma")
def fma(use: Use, x: Any, y: Any, z: Any) -> Any:
    """X y + z, which steps of optimisers are made of."""
    return cast(x, use.dtype) * cast(y, use.dtype) + cast(z, use.dtype)


@aten("sub.Tensor", "sub.Scalar")
def sub(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    """x - alpha y."""
    x, y = cast(x, use.dtype), cast(y, use.dtype)
    return x - (y if alpha == 1 else y * cast(alpha, use.dtype))


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    """Y - alpha x."""
    return sub(use, y, x, alpha)


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(use: Use, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """x / y, rounded down or towards zero."""
    x, y = tensor(x, use.dtype), tensor(y, use.dtype)
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        if use.dtype.is_inexact:
            return fg.where(y == 0, x / y, fg.floor_divide(x, y))
        return fg.floor_divide(x, y)
    if use.dtype.is_inexact:
        return fg.trunc(x / y)
    quotient = fg.floor_divide(x, y)
    inexact = (quotient * y != x) & ((x < 0) != (y < 0))
    return quotient + cast(inexact, use.dtype)


@aten("floor_divide")
def floor_divide(use: Use, x: Any, y: Any) -> Any:
    """x / y, rounded down."""
    return div_mode(use, x, y, "floor")


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(use: Use, x: Any, y: Any) -> Any:
    """What is left of x by y, with the sign of y."""
    return fg.remainder(tensor(x, use.dtype), tensor(y, use.dtype))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(use: Use, x: Any, y: Any) -> Any:
    """What is left of x by y, with the sign of x."""
    x, y = tensor(x, use.dtype), tensor(y, use.dtype)
    if use.dtype.kind == "f":
        return fg.copysign(fg.remainder(fg.abs(x), fg.abs(y)), x)
    left = fg.remainder(x, y)  # with the sign of y; the least number has no magnitude
    return fg.where((left != 0) & ((x < 0) != (y < 0)), left - y, left)


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(use: Use, x: Any, y: Any) -> Any:
    """x to the power y."""
    dtype = use.dtype
    if not dtype.is_inexact:
        if not isinstance(y, Tensor) and y < 0:
            raise Refused("a negative power of whole numbers")
        if isinstance(y, Tensor):
            raise Refused("powers of whole numbers by a tensor, which may be negative")
    if not isinstance(y, Tensor) and y == 0.5:
        return fg.sqrt(cast(x, dtype))
    return fg.pow(tensor(x, dtype), cast(y, dtype) if isinstance(y, Tensor) else y)


@aten("abs")
def absolute(use: Use, x: Any) -> Any:
    """The magnitude."""
    return fg.abs(x)


@aten("sign", "sgn")
def sign(use: Use, x: Any) -> Any:
    """-1, 0 or 1; torch has 0 for NaN."""
    if x.dtype.kind == "c":
        size = fg.abs(x)
        return fg.where(size == 0, cast(x * 0, use.dtype), x / cast(size, use.dtype))
    if x.dtype.kind in "bu":
        return cast(x != 0, use.dtype)
    return cast(x > 0, use.dtype) - cast(x < 0, use.dtype)


@aten("signbit")
def signbit(use: Use, x: Any) -> Any:
    """Is the sign negative?"""
    return fg.signbit(x) if x.dtype.kind == "f" else x < 0


@aten("isnan", "isinf")
def is_special(use: Use, x: Any) -> Any:
    """Is it NaN, or infinite?"""
    if not x.dtype.is_inexact:
        return fg.full(use.shape, False)
    return fg.isnan(x) if use.name.startswith("isnan") else fg.isinf(x)


@aten("round")
def rounded(use: Use, x: Any) -> Any:
    """The nearest whole number, halves to even."""
    return fg.round(x) if x.dtype.is_inexact else x


@aten("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor")
@aten("bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar")
@aten("__lshift__.Scalar", "__lshift__.Tensor", "__rshift__.Scalar", "__rshift__.Tensor")
def shift(use: Use, x: Any, y: Any) -> Any:
    """Bits moved; shifts beyond the width are torch's own affair."""
    x, y = tensor(x, use.dtype), tensor(y, use.dtype)
    bits = use.dtype.bits
    inside = (y >= 0) & (y < bits)
    safe = fg.where(inside, y, 0)
    if use.name.startswith(("bitwise_left", "__lshift")):
        return fg.where(inside, fg.bitwise_left_shift(x, safe), 0)
    far = fg.where(x < 0, tensor(-1, use.dtype), 0) if use.dtype.kind == "i" else 0
    return fg.where(inside, fg.bitwise_right_shift(x, safe), far)


@aten("clamp", "clamp.Tensor")
def clamp(use: Use, x: Any, least: Any = None, most: Any = None, **named: Any) -> Any:
    """x within bounds; the upper one wins, and NaN stays."""
    least, most = named.get("min", least), named.get("max", most)
    x = cast(x, use.dtype)
    if least is not None:
        x = fg.maximum(x, tensor(least, use.dtype))
    if most is not None:
        x = fg.minimum(x, tensor(most, use.dtype))
    return x


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(use: Use, x: Any, least: Any) -> Any:
    """x, at least so much."""
    return clamp(use, x, least)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(use: Use, x: Any, most: Any) -> Any:
    """x, at most so much."""
    return clamp(use, x, None, most)


@aten("where.self")
def where(use: Use, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    return fg.where(cast(condition, fg.bool), tensor(x, use.dtype), tensor(y, use.dtype))


@aten("_to_copy", "clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous")
@aten("positive", "real", "conj_physical", "_conj", "resolve_conj", "resolve_neg")
@aten("convert_element_type", "_conj_physical")
def copied(use: Use, x: Any, *_: Any, **__: Any) -> Any:
    """The same value, in another type perhaps."""
    if use.name in ("conj_physical.default", "_conj.default", "_conj_physical.default"):
        return fg.conj(x)
    if x.dtype.kind == "c" and use.dtype.kind not in "bc":
        x = fg.real(x)
    if x.dtype.kind == "f" and use.dtype.kind in "iu":
        return cast(cast(x, fg.int64), use.dtype)  # and then wraps around, as in torch
    return cast(x, use.dtype)


@aten("view.dtype")
def view_dtype(use: Use, x: Any, dtype: Any) -> Any:
    """The same bits as another type of the same width."""
    if x.dtype.bits != use.dtype.bits or not {x.dtype.kind, use.dtype.kind} <= set("iuf"):
        raise Refused("the bits of a type as those of one of another width")
    return fg.bitcast(x, use.dtype)


@aten("copy")
def copy(use: Use, x: Any, source: Any, non_blocking: bool = False) -> Any:
    """The source in the shape and type of x."""
    return fg.broadcast_to(copied(use, source), use.shape)


# --- activations ----------------------------------------------------------------------------------


def _wide(use: Use, x: Any) -> Any:
    return cast(x, compute_dtype(use.dtype))


@aten("gelu")
def gelu(use: Use, x: Any, approximate: str = "none") -> Any:
    """x times the normal distribution's weight below it."""
    return cast(fg.gelu(_wide(use, x), approximate=approximate), use.dtype)


@aten("elu")
def elu(use: Use, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    """x where it is positive, else the exponential's way to -alpha."""
    x = _wide(use, x)
    return fg.where(x > 0, x * scale, fg.expm1(x * input_scale) * (alpha * scale))


@aten("hardtanh")
def hardtanh(use: Use, x: Any, least: Any = -1, most: Any = 1) -> Any:
    """x within bounds."""
    return clamp(use, x, least, most)


@aten("leaky_relu")
def leaky_relu(use: Use, x: Any, slope: Any = 0.01) -> Any:
    """x where it is positive, else a multiple of it."""
    return fg.where(x > 0, x, x * slope)


@aten("threshold")
def threshold(use: Use, x: Any, most: Any, value: Any) -> Any:
    """x where it is not up to a number, else another: whole numbers stay whole."""
    return fg.where(x <= cast(most, x.dtype), cast(value, x.dtype), x)


@aten("polygamma")
def polygamma(use: Use, order: int, x: Any) -> Any:
    """Derivatives of digamma."""
    from ...core import build
    from ...tensor import node_of, wrap

    return wrap(build.polygamma(order, node_of(cast(x, use.dtype))))


@aten("complex")
def complex_of(use: Use, real: Any, imag: Any) -> Any:
    """A complex number of two parts."""
    return fg.complex(real, imag)


@aten("angle")
def angle(use: Use, x: Any) -> Any:
    """The angle in the plane; of a real number 0 or pi, and 0 of -0.0."""
    if x.dtype.kind != "c":
        x = cast(x, use.dtype)
        return fg.where(fg.isnan(x), x, fg.where(x < 0, tensor(math.pi, use.dtype), 0.0))
    return fg.angle(cast(x, use.dtype) if use.dtype.bits == x.dtype.bits else x)


@aten("soft_margin_loss_backward")
def soft_margin_loss_backward(use: Use, grad: Any, x: Any, target: Any, reduction: int) -> Any:
    """The gradient of log(1 + exp(-x target)), without the cancellation of a difference from 1."""
    share = fg.sigmoid(-x * target)
    found = -target * share * grad
    return found / x.size if reduction == 1 else found


@aten("fmax", "fmin")
def extreme_but_nan(use: Use, x: Any, y: Any) -> Any:
    """The larger or smaller; NaN only if both are."""
    x, y = cast(x, use.dtype), cast(y, use.dtype)
    found = (fg.maximum if use.name.startswith("fmax") else fg.minimum)(x, y)
    if not use.dtype.is_inexact:
        return found
    return fg.where(fg.isnan(x), y, fg.where(fg.isnan(y), x, found))


@aten("ldexp.Tensor")
def ldexp(use: Use, x: Any, y: Any) -> Any:
    """x times a power of two."""
    return cast(x, use.dtype) * fg.exp2(cast(y, use.dtype))


@aten("round.decimals")
def rounded_to(use: Use, x: Any, *, decimals: int) -> Any:
    """The nearest number with so many decimals."""
    factor = 10.0 ** abs(decimals)
    x = cast(x, use.wide)
    return fg.round(x * factor) / factor if decimals >= 0 else fg.round(x / factor) * factor


@aten("polar")
def polar(use: Use, size: Any, angle: Any) -> Any:
    """A complex number of magnitude and angle."""
    return fg.complex(size * fg.cos(angle), size * fg.sin(angle))
