"""Functions of the numbers at one place: arithmetic, comparison, choice, bits, conversion.

In: tensors or numbers, broadcast against each other and promoted. Out: tensors of the common
shape. Names are the array API standard's. Functions of one real number are in `maths.py`.
"""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np

from ...core import build
from ...core.dtype import bool_, dtype_of
from ...core.node import Node
from ...core.op import Op as _Op
from ...core.ops.elementwise import (
    ABS,
    ADD,
    AND,
    CEIL,
    DIV,
    EQ,
    EXP,
    FLOOR,
    FLOORDIV,
    LE,
    LOG1P,
    LT,
    MAX,
    MIN,
    MOD,
    MUL,
    NE,
    NEG,
    NOT,
    OR,
    POW,
    ROUND,
    SHL,
    SHR,
    SIGN,
    SQRT,
    SUB,
    TRUNC,
    XOR,
)
from ...core.ops.leaf import BUFFER, CONST
from ...core.ops.transform import Rule, override
from ...errors import ArgumentError, DTypeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..common import apply, as_tensor, common_dtype, common_floats, wide
from ..common import astype as _astype
from ..template import templated
from .complex_numbers import complex, imag, real

# --- arithmetic ----------------------------------------------------------------------------------


def add(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 + x2.

    >>> fg.add(fg.Tensor([1, 2]), 10).tolist()
    [11, 12]
    """
    return apply(ADD, x1, x2)


def subtract(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 - x2.

    >>> fg.subtract(fg.Tensor([1, 2]), 10).tolist()
    [-9, -8]
    """
    return apply(SUB, x1, x2)


def multiply(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 * x2.

    >>> fg.multiply(fg.Tensor([1, 2]), 10).tolist()
    [10, 20]
    """
    return apply(MUL, x1, x2)


def divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 / x2, inexact also for whole numbers.

    >>> fg.divide(fg.Tensor([1, 2]), 4).tolist()
    [0.25, 0.5]
    """
    return apply(DIV, x1, x2)


def floor_divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The whole part of x1 / x2, rounded down; whole numbers divided by 0 give 0.

    >>> fg.floor_divide(fg.Tensor([7, -7]), 2).tolist()
    [3, -4]
    """
    return apply(FLOORDIV, x1, x2)


def remainder(x1: TensorLike, x2: TensorLike) -> Tensor:
    """What rounding x1 / x2 down leaves: it has the sign of x2.

    >>> fg.remainder(fg.Tensor([7, -7]), 3).tolist()
    [1, 2]
    """
    return apply(MOD, x1, x2)


def pow(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 to the power x2; whole numbers have no negative powers, but in a tensor of exponents.

    What such a tensor holds is not known when the expression is built: the whole part of the result
    is taken, 0 or 1 or -1. Squares, cubes and fourth powers by a number are products, -1 is a
    quotient, 0.5 a root.

    >>> fg.pow(fg.Tensor([2, 3]), 3).tolist()
    [8, 27]
    """
    if type(x1) is Tensor and type(x2) in (int, float) and x2 in _SIMPLE_POWERS:
        simple = _simple_power(x1, _SIMPLE_POWERS.index(x2), type(x2) is int)
        if simple is not None:
            return simple
    base, exponent = lifted(x1, x2)
    common = common_dtype(base, exponent)
    whole = type(x2) is not float and common.is_integer
    if whole and _has_negative(x2, exponent):
        raise ArgumentError(
            "whole numbers to a negative power", 'make them floats: x.astype("float32") ** -2'
        )
    return wrap(build.apply(POW, base, exponent))


_SIMPLE_POWERS = (1, 2, 3, 4, -1, 0.5)


@templated
def _simple_power(x: Tensor, place: int, whole: bool) -> Tensor | None:
    """A small power by one or two products, a quotient or a root; each is rounded once."""
    base, exponent = node_of(x), _SIMPLE_POWERS[place]
    if base.dtype.kind not in "iuf" or not (whole or base.dtype.is_float):
        return None
    if exponent == 1:
        return wrap(base)
    products = (2,) if base.dtype.is_small_float else (2, 3, 4)  # 16 bits are rounded once
    if exponent in products:
        square = build.apply(MUL, base, base)
        if exponent == 2:
            return wrap(square)
        return wrap(build.apply(MUL, square, base if exponent == 3 else square))
    if exponent == -1 and base.dtype.is_float:
        return wrap(build.apply(DIV, 1, base))
    if exponent == 0.5 and base.dtype.is_float:  # of -0.0 it is 0.0, and of -inf not a NaN
        root = build.apply(ADD, build.apply(SQRT, base), 0.0)
        return wrap(build.where(build.apply(EQ, base, -math.inf), math.inf, root))
    return None


def _has_negative(given: object, lifted: Any) -> bool:
    """True if a number that is known is below 0."""
    if isinstance(given, Tensor | Node):
        return lifted.op is CONST and lifted.value < 0
    if isinstance(lifted, Node):  # host data, unless a list holds a tensor
        return lifted.op is BUFFER and bool(np.any(np.asarray(given) < 0))
    return bool(lifted < 0)


def negative(x: TensorLike) -> Tensor:
    """-x.

    >>> fg.negative(fg.Tensor([1, -2])).tolist()
    [-1, 2]
    """
    return apply(NEG, x)


def positive(x: TensorLike) -> Tensor:
    """x itself, as a new tensor.

    >>> fg.positive(fg.Tensor([1, -2])).tolist()
    [1, -2]
    """
    return wrap(node_of(x))


def abs(x: TensorLike) -> Tensor:
    """The magnitude of x.

    >>> fg.abs(fg.Tensor([1.5, -2.5])).tolist(), fg.abs(fg.Tensor(3 + 4j)).item()
    ([1.5, 2.5], 5.0)
    """
    tensor = as_tensor(x)
    if tensor.dtype.kind != "c":
        return apply(ABS, tensor)
    return hypot(real(tensor), imag(tensor))


@templated
def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1; NaN stays. Of a complex number the one of magnitude 1 in its direction.

    >>> fg.sign(fg.Tensor([-3, 0, 4])).tolist()
    [-1, 0, 1]
    """
    tensor = as_tensor(x)
    if tensor.dtype.kind != "c":
        return apply(SIGN, tensor)
    size = abs(tensor)
    return where(equal(size, 0), 0, tensor / where(equal(size, 0), 1, size))


@templated
def square(x: TensorLike) -> Tensor:
    """x * x.

    >>> fg.square(fg.Tensor([3, -4])).tolist()
    [9, 16]
    """
    return apply(MUL, x, x)


def reciprocal(x: TensorLike) -> Tensor:
    """1 / x.

    >>> fg.reciprocal(fg.Tensor([2.0, 4.0])).tolist()
    [0.5, 0.25]
    """
    return apply(DIV, 1, x)


@templated
def maximum(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The larger of the two; NaN wins, and 0.0 is above -0.0.

    >>> fg.maximum(fg.Tensor([1, 5]), 3).tolist()
    [3, 5]
    """
    return apply(MAX, x1, x2)


@templated
def minimum(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The smaller of the two; NaN wins, and -0.0 is below 0.0.

    >>> fg.minimum(fg.Tensor([1, 5]), 3).tolist()
    [1, 3]
    """
    return apply(MIN, x1, x2)


@templated
def clip(x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """x, or the bound that it passes; where the bounds cross, `max` wins.

    >>> fg.clip(fg.Tensor([-2, 0, 9]), 0, 5).tolist()
    [0, 0, 5]
    """
    out = as_tensor(x)
    out = out if min is None else maximum(out, min)
    out = out if max is None else minimum(out, max)
    return positive(out) if out is x else out


@templated
def hypot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The length of the vector (x1, x2), also where its square would overflow.

    >>> fg.hypot(3.0, 4.0).item(), fg.isfinite(fg.hypot(3e30, 4e30)).item()
    (5.0, True)
    """
    # choices, not extremes and magnitudes, whose second slopes at ties and at 0 are not its own
    a, b = (where(x < 0, -x, x) + 0.0 for x in common_floats(x1, x2))
    large, small = where(a > b, a, b), where(a > b, b, a)
    infinite, nothing = isinf(a) | isinf(b), (large == 0) & (small == 0)
    ratio = where(infinite, 0, small) / where(infinite | (large == 0), 1, large)
    found = where(nothing, 0, large * apply(SQRT, ratio * ratio + 1))
    return where(infinite, float("inf"), found)


@templated
def logaddexp(x1: TensorLike, x2: TensorLike) -> Tensor:
    """log(exp(x1) + exp(x2)), also where the powers would overflow.

    >>> fg.logaddexp(fg.Tensor([1000.0, float("-inf")]), fg.Tensor([0.0, 2.0])).tolist()
    [1000.0, 2.0]
    """
    narrow, other = common_floats(x1, x2)
    a, b = wide(narrow), wide(other)
    top, low = where(a > b, a, b), where(a > b, b, a)  # not the extremes: see hypot
    apart = where((top == low) & isinf(top), 0, low - top)  # inf - inf would be NaN
    return _astype(top + apply(LOG1P, apply(EXP, apart)), narrow.dtype)


# --- rounding ------------------------------------------------------------------------------------


def _round(op: _Op, x: TensorLike) -> Tensor:
    """Whole numbers are round already."""
    tensor = as_tensor(x)
    if op is ROUND and tensor.dtype.kind == "c":
        return complex(apply(op, real(tensor)), apply(op, imag(tensor)))
    return positive(tensor) if tensor.dtype.is_integer else apply(op, tensor)


def floor(x: TensorLike) -> Tensor:
    """The next whole number at or below x.

    >>> fg.floor(fg.Tensor([1.5, -1.5])).tolist()
    [1.0, -2.0]
    """
    return _round(FLOOR, x)


def ceil(x: TensorLike) -> Tensor:
    """The next whole number at or above x.

    >>> fg.ceil(fg.Tensor([1.5, -1.5])).tolist()
    [2.0, -1.0]
    """
    return _round(CEIL, x)


def trunc(x: TensorLike) -> Tensor:
    """x without its fraction.

    >>> fg.trunc(fg.Tensor([1.5, -1.5])).tolist()
    [1.0, -1.0]
    """
    return _round(TRUNC, x)


def round(x: TensorLike) -> Tensor:
    """The nearest whole number; halves go to the even one.

    >>> fg.round(fg.Tensor([0.5, 1.5, 2.4])).tolist()
    [0.0, 2.0, 2.0]
    """
    return _round(ROUND, x)


# --- comparison and choice -----------------------------------------------------------------------


@templated
def equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 == x2.

    >>> fg.equal(fg.Tensor([1, 2]), 2).tolist()
    [False, True]
    """
    return apply(EQ, x1, x2)


@templated
def not_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 != x2.

    >>> fg.not_equal(fg.Tensor([1, 2]), 2).tolist()
    [True, False]
    """
    return apply(NE, x1, x2)


@templated
def less(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 < x2.

    >>> fg.less(fg.Tensor([1, 2]), 2).tolist()
    [True, False]
    """
    return apply(LT, x1, x2)


@templated
def less_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 <= x2.

    >>> fg.less_equal(fg.Tensor([1, 3]), 2).tolist()
    [True, False]
    """
    return apply(LE, x1, x2)


@templated
def greater(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 > x2.

    >>> fg.greater(fg.Tensor([1, 3]), 2).tolist()
    [False, True]
    """
    return apply(LT, x2, x1)


@templated
def greater_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 >= x2.

    >>> fg.greater_equal(fg.Tensor([1, 2]), 2).tolist()
    [False, True]
    """
    return apply(LE, x2, x1)


@overload
def where(condition: TensorLike, x1: TensorLike, x2: TensorLike) -> Tensor: ...


@overload
def where(condition: TensorLike) -> tuple[Tensor, ...]: ...


def where(
    condition: TensorLike, x1: TensorLike | None = None, x2: TensorLike | None = None
) -> Tensor | tuple[Tensor, ...]:
    """x1 where the condition holds, else x2; of a condition alone the places where it holds.

    The places are those of `nonzero`, a tensor for each dimension; they realize the condition.

    >>> fg.where(fg.Tensor([True, False]), fg.Tensor([1, 2]), 0).tolist()
    [1, 0]
    >>> [places.tolist() for places in fg.where(fg.Tensor([False, True, True]))]
    [[1, 2]]
    """
    if x1 is None and x2 is None:
        from ..array.unique_nonzero import nonzero

        return nonzero(condition)
    if x1 is None or x2 is None:
        raise ArgumentError("where takes both values or none", "fg.where(condition, x1, x2)")
    return _chosen(condition, x1, x2)


@templated
def _chosen(condition: TensorLike, x1: TensorLike, x2: TensorLike) -> Tensor:
    return wrap(build.where(*lifted(condition, x1, x2)))


@templated
def isnan(x: TensorLike) -> Tensor:
    """Is it not a number?

    >>> fg.isnan(fg.Tensor([1.0, float("nan")])).tolist()
    [False, True]
    """
    return apply(NE, x, x)


@templated
def isinf(x: TensorLike) -> Tensor:
    """Is it infinite?

    >>> fg.isinf(fg.Tensor([1.0, float("-inf")])).tolist()
    [False, True]
    """
    return apply(EQ, abs(wide(x)), float("inf"))


@templated
def isfinite(x: TensorLike) -> Tensor:
    """Is it a number, and not infinite?

    >>> fg.isfinite(fg.Tensor([1.0, float("nan"), float("inf")])).tolist()
    [True, False, False]
    """
    return apply(LT, abs(wide(x)), float("inf"))


def signbit(x: TensorLike) -> Tensor:
    """Is the sign a minus, that of -0.0 and of NaN too?

    >>> fg.signbit(fg.Tensor([1.0, -0.0])).tolist()
    [False, True]
    """
    tensor = as_tensor(x)
    if tensor.dtype.is_float:
        tensor = bitcast(tensor, f"int{tensor.dtype.bits}")
    return apply(LT, tensor, 0)


def copysign(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The magnitude of x1 with the sign of x2.

    >>> fg.copysign(fg.Tensor([1.0, 2.0]), -0.0).tolist()
    [-1.0, -2.0]
    """
    a, b = common_floats(x1, x2)
    return where(apply(EQ, signbit(a), signbit(b)), a, -a)


def nextafter(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The number next to x1 in the direction of x2.

    >>> fg.nextafter(fg.Tensor([0.0, 1.0]), 2.0).tolist()
    [1.401298464324817e-45, 1.0000001192092896]
    """
    a, b = common_floats(x1, x2)
    whole = dtype_of(f"int{a.dtype.bits}")
    bits = bitcast(a, whole)
    away = apply(EQ, b > a, a > 0)  # from zero: there the bits grow
    stepped = bitcast(where(away, bits + 1, bits - 1), a.dtype)
    smallest = copysign(bitcast(Tensor(1, whole), a.dtype), b)
    moved = where(a == 0, smallest, stepped)
    found = node_of(where(a == b, b, where(isnan(a) | isnan(b), a + b, moved)))
    # bits have no slope; a neighbour moves as x1 does
    return wrap(override(_AS_FIRST, 0, found, [node_of(a)]) if node_of(a).watched else found)


_AS_FIRST = Rule("nextafter", lambda gradients, x1: [gradients[0]])


# --- truth and bits ------------------------------------------------------------------------------


def _truth(x: TensorLike) -> Tensor:
    return _astype(x, bool_)


@templated
def logical_and(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Are both other than zero?

    >>> fg.logical_and(fg.Tensor([0, 2]), True).tolist()
    [False, True]
    """
    return apply(AND, _truth(x1), _truth(x2))


@templated
def logical_or(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Is at least one other than zero?

    >>> fg.logical_or(fg.Tensor([0, 2]), False).tolist()
    [False, True]
    """
    return apply(OR, _truth(x1), _truth(x2))


@templated
def logical_xor(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Is exactly one other than zero?

    >>> fg.logical_xor(fg.Tensor([0, 2]), True).tolist()
    [True, False]
    """
    return apply(XOR, _truth(x1), _truth(x2))


@templated
def logical_not(x: TensorLike) -> Tensor:
    """Is it zero?

    >>> fg.logical_not(fg.Tensor([0, 2])).tolist()
    [True, False]
    """
    return apply(NOT, _truth(x))


def bitwise_and(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The bits that are set in both.

    >>> fg.bitwise_and(fg.Tensor([6, 5]), 3).tolist()
    [2, 1]
    """
    return apply(AND, x1, x2)


def bitwise_or(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The bits that are set in at least one.

    >>> fg.bitwise_or(fg.Tensor([6, 5]), 3).tolist()
    [7, 7]
    """
    return apply(OR, x1, x2)


def bitwise_xor(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The bits that are set in exactly one.

    >>> fg.bitwise_xor(fg.Tensor([6, 5]), 3).tolist()
    [5, 6]
    """
    return apply(XOR, x1, x2)


def bitwise_invert(x: TensorLike) -> Tensor:
    """Every bit flipped.

    >>> fg.bitwise_invert(fg.Tensor([0, 5])).tolist()
    [-1, -6]
    """
    return apply(NOT, x)


def bitwise_left_shift(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The bits of x1 moved x2 places up.

    >>> fg.bitwise_left_shift(fg.Tensor([1, 5]), 2).tolist()
    [4, 20]
    """
    return apply(SHL, x1, x2)


def bitwise_right_shift(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The bits of x1 moved x2 places down; the sign stays.

    >>> fg.bitwise_right_shift(fg.Tensor([4, -5]), 1).tolist()
    [2, -3]
    """
    return apply(SHR, x1, x2)


# --- conversion ----------------------------------------------------------------------------------


def astype(x: TensorLike, dtype: object, copy: bool = True, device: str | None = None) -> Tensor:
    """The same numbers in another dtype; floats to whole numbers saturate, NaN gives 0.

    Without `copy` a tensor that has the dtype already is returned itself.

    >>> fg.astype(fg.Tensor([1.7, -1.7]), fg.int8).tolist()
    [1, -1]
    """
    wanted, node = dtype_of(dtype), node_of(x)
    if not copy and device is None and isinstance(x, Tensor) and x.dtype is wanted:
        return x
    if node.dtype.kind == "c" and wanted.kind not in "cb":
        raise DTypeError(f"{node.dtype} as {wanted} loses a part", "take fg.real(x) or fg.abs(x)")
    found = wrap(build.cast(node, wanted))
    return found if device is None else found.to(device)


def bitcast(x: TensorLike, dtype: object) -> Tensor:
    """The same bits read as another dtype of the same width.

    >>> fg.bitcast(fg.Tensor([1.0]), fg.int32).tolist()
    [1065353216]
    """
    return wrap(build.bitcast(node_of(x), dtype_of(dtype)))
