"""NumPy meanings that NumPy itself does not have, written for exactness rather than speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtype import DType, bfloat16, round_to
from ..op import Array


def _by_element(function: Callable[[float], float]) -> Callable[[Array], Array]:
    lifted = np.frompyfunc(function, 1, 1)

    def apply(a: Array) -> Array:
        return np.asarray(lifted(np.asarray(a, np.float64)), np.float64).astype(a.dtype)

    return apply


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or beyond float64
        return math.inf


erf = _by_element(math.erf)
erfc = _by_element(math.erfc)
lgamma = _by_element(_lgamma)


def rsqrt(a: Array) -> Array:
    """One over the square root, rounded once from float64 where that is wider."""
    wide = a.astype(np.float64)
    return (1 / np.sqrt(wide)).astype(a.dtype)


def power(a: Array, b: Array) -> Array:
    """a ** b; for whole numbers a negative exponent gives the truncated result."""
    if a.dtype.kind != "i":
        if a.dtype.kind != "c" and (b == 0.5).any():  # NumPy may take roots: others at -0 and -inf
            a = np.where((b == 0.5) & ((a == 0) | (a == -np.inf)), np.abs(a), a)
        if a.shape != b.shape or not (a.flags.c_contiguous and b.flags.c_contiguous):
            # in memory of their own: NumPy rounds otherwise where one exponent is shared by all
            a, b = [np.array(x, order="C") for x in np.broadcast_arrays(a, b)]
        return np.asarray(np.power(a, b))
    negative = b < 0
    result = np.power(a, np.where(negative, 0, b))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(negative, inverse, result).astype(a.dtype)


def dot4(a: Array, b: Array, c: Array) -> Array:
    """c plus the products of four bytes, those of a without signs, wrapped around."""
    first, second = (np.ascontiguousarray(x).reshape(*x.shape, 1) for x in (a, b))
    products = first.view(np.uint8).astype(np.int32) * second.view(np.int8)
    return np.asarray(c + products.sum(axis=-1, dtype=np.int32))


def cast(a: Array, source: DType, target: DType) -> Array:
    """The values in another dtype: floats round once, whole numbers wrap or saturate."""
    if target.kind == "b":
        return np.asarray(a != np.zeros((), a.dtype))
    if source.kind == "c" and target.kind != "c":
        a = a.real
    if target.kind in "iu" and source.is_inexact:
        return _saturate(a, target)
    if target is bfloat16 and source.kind in "iu" and source.bits >= 32:
        a = _sticky(a)
    return round_to(a, target)


def _saturate(a: Array, target: DType) -> Array:
    """Toward zero, cut at the limits; NaN gives 0."""
    low, high = target.limits
    wide = np.trunc(a.astype(np.float64))
    over, under = wide >= float(high) + (0.0 if high > 1 << 53 else 1.0), wide < float(low)
    inside = np.where(over | under | np.isnan(wide), 0.0, wide).astype(target.numpy)
    limit = np.where(over, high, low) if target.bits < 64 else _choose(over, high, low, target)
    return np.where(over | under, limit, inside).astype(target.numpy)


def _choose(condition: Array, a: int, b: int, target: DType) -> Array:
    return np.where(condition, np.asarray(a, target.numpy), np.asarray(b, target.numpy))


def _sticky(a: Array) -> Array:
    """Whole numbers as float64 rounded to odd, so that a second rounding is harmless."""
    low = a & np.asarray(0xFFF, a.dtype)
    lowest = -(1 << 30) if a.dtype.kind == "i" else 0
    big = (a > np.asarray(1 << 30, a.dtype)) | (a < np.asarray(lowest, a.dtype))
    odd = (a ^ low) | np.where(low != 0, 0x800, 0).astype(a.dtype)
    return np.where(big, odd, a).astype(np.float64)


def _zeta(s: int, x: Array) -> Array:
    """Hurwitz zeta for x > 0 by Euler-Maclaurin summation after twelve direct terms."""
    total = np.zeros_like(x)
    for k in range(12):
        total += (x + k) ** -float(s)
    y = x + 12
    total += y ** (1.0 - s) / (s - 1) + 0.5 * y ** -float(s)
    power_ = y ** -(s + 1.0)
    for coefficient in zeta_coefficients(s):
        total += coefficient * power_
        power_ = power_ / (y * y)
    return total


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
DIGAMMA_COEFFICIENTS = [b / (2 * k) for k, b in enumerate(_BERNOULLI, start=1)]  # of 1 / y²


def zeta_coefficients(s: int) -> list[float]:
    """The Euler-Maclaurin series of Hurwitz zeta: Σ c[k] / y ** (s + 2 k + 1)."""
    term, found = float(s), []
    for k, bernoulli in enumerate(_BERNOULLI, start=1):
        found.append(bernoulli / math.factorial(2 * k) * term)
        term *= (s + 2 * k - 1) * (s + 2 * k)
    return found


def _digamma(x: Array) -> Array:
    """For x > 0: ten steps up, then the asymptotic series."""
    total = np.zeros_like(x)
    for k in range(10):
        total -= 1 / (x + k)
    y = x + 10
    total += np.log(y) - 0.5 / y
    square = 1 / (y * y)
    power_ = square
    for coefficient in DIGAMMA_COEFFICIENTS:
        total -= coefficient * power_
        power_ = power_ * square
    return total


def polygamma(order: int, x: Array) -> Array:
    """The derivative number `order` of digamma; poles at -1, -2, ... give NaN, those at ±0 ±inf."""
    x = np.asarray(x, np.float64)
    mirrored = x <= 0
    inside = np.where(mirrored, 1 - x, x)
    if order == 0:
        value = _digamma(inside) - np.where(mirrored, _cot_derivative(0, x), 0.0)
    else:
        sign = 1.0 if order % 2 else -1.0
        value = sign * math.factorial(order) * _zeta(order + 1, inside)
        flip = -1.0 if order % 2 else 1.0
        value = np.where(mirrored, flip * value - _cot_derivative(order, x), value)
    value = np.where(mirrored & (x == np.floor(x)), np.nan, value)
    value = np.where(x == 0, np.inf if order % 2 else -np.copysign(np.inf, x), value)
    return np.where(np.isposinf(x), _limit(order), value)


def _limit(order: int) -> float:
    return np.inf if order == 0 else 0.0


def cot_coefficients(order: int) -> list[float]:
    """Derivative number `order` of cot, as a polynomial in cot: d cot = -(1 + cot²) dx."""
    coefficients = [0.0, 1.0]
    for _ in range(order):
        slope = [k * c for k, c in enumerate(coefficients)][1:]
        coefficients = [0.0] * (len(slope) + 2)
        for k, c in enumerate(slope):
            coefficients[k] -= c
            coefficients[k + 2] -= c
    return coefficients


def _cot_derivative(order: int, x: Array) -> Array:
    """Derivative number `order` of pi * cot(pi x), as a polynomial in cot(pi x)."""
    coefficients = cot_coefficients(order)
    cot: Any = 1 / np.tan(np.pi * (x - np.round(x)))
    return np.asarray(np.pi ** (order + 1) * sum(c * cot**k for k, c in enumerate(coefficients)))
