"""Special functions that no library of the machine has: derivatives of log gamma.

In: an emitter, the order and the argument. Out: the value, computed in float64 whatever the
argument's dtype is, and rounded once. Arguments above 0 use the sum of some direct terms and an
asymptotic series; those below are mirrored: the difference is a derivative of pi * cot(pi x).
Poles at -1, -2, ... give NaN, those at ±0 infinities, as the op table's NumPy meaning has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.dtype import float64
from ...core.ops.special import DIGAMMA_COEFFICIENTS, cot_coefficients, zeta_coefficients
from .llvm.emitter import Emitter, Val
from .llvm.maths import EXPANSIONS, compare, intrinsic, select

_DIRECT = range(12)  # terms summed one by one before the series


class _Numbers:
    """Arithmetic on float64 values of one width."""

    def __init__(self, e: Emitter, vector: bool) -> None:
        self.e, self.vector = e, vector

    def number(self, value: float) -> Val:
        return self.e.const(value, float64, self.vector)

    def op(self, how: str, a: Val, b: Val) -> Val:
        return Val(self.e.let(f"{how} {self.e.typed(a)}, {b.text}"), a.dtype, self.vector)

    def add(self, a: Val, b: Val) -> Val:
        return self.op("fadd", a, b)

    def sub(self, a: Val, b: Val) -> Val:
        return self.op("fsub", a, b)

    def mul(self, a: Val, b: Val) -> Val:
        return self.op("fmul", a, b)

    def inverse(self, a: Val) -> Val:
        return self.op("fdiv", self.number(1.0), a)

    def power(self, a: Val, exponent: int) -> Val:
        """A whole power by squaring."""
        result: Val | None = None
        while exponent:
            if exponent & 1:
                result = a if result is None else self.mul(result, a)
            exponent >>= 1
            if exponent:
                a = self.mul(a, a)
        return self.number(1.0) if result is None else result

    def polynomial(self, a: Val, coefficients: Sequence[float]) -> Val:
        """The sum of c[k] * a ** k."""
        total = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.add(self.mul(total, a), self.number(c))
        return total


def polygamma(e: Emitter, order: int, value: Val) -> Val:
    """The derivative number `order` of the digamma function."""
    n = _Numbers(e, value.vector)
    dtype = value.dtype
    x = value
    if dtype is not float64:
        wide = e.type_of(float64, value.vector)
        x = Val(e.let(f"fpext {e.typed(value)} to {wide}"), float64, value.vector)
    zero = n.number(0.0)
    mirrored = compare(e, "fcmp ole", x, zero)
    inside = select(e, mirrored, n.sub(n.number(1.0), x), x)
    slope = select(e, mirrored, _cot_derivative(n, order, x), zero)
    if order == 0:
        found = n.sub(_digamma(n, inside), slope)
    else:
        size = float(math.factorial(order))
        found = n.mul(n.number(size if order % 2 else -size), _zeta(n, order + 1, inside))
        if order % 2:
            found = select(e, mirrored, Val(e.let(f"fneg {e.typed(found)}"), float64, x.vector),
                           found)  # fmt: skip
        found = n.sub(found, slope)
    whole = compare(e, "fcmp oeq", x, intrinsic(e, "llvm.floor", x))
    found = select(e, n.op("and", mirrored, whole), n.number(math.nan), found)
    pole = n.number(math.inf)
    if order % 2 == 0:
        pole = intrinsic(e, "llvm.copysign", pole, Val(e.let(f"fneg {e.typed(x)}"), float64,
                                                       x.vector))  # fmt: skip
    found = select(e, compare(e, "fcmp oeq", x, zero), pole, found)
    end = n.number(math.inf if order == 0 else 0.0)
    found = select(e, compare(e, "fcmp oeq", x, n.number(math.inf)), end, found)
    if dtype is float64:
        return found
    return Val(e.let(f"fptrunc {e.typed(found)} to {e.type_of(dtype, x.vector)}"), dtype, x.vector)


def _zeta(n: _Numbers, s: int, x: Val) -> Val:
    """Hurwitz zeta for x > 0 by Euler-Maclaurin summation after the direct terms."""
    total = n.inverse(n.power(x, s))
    for k in _DIRECT[1:]:
        total = n.add(total, n.inverse(n.power(n.add(x, n.number(float(k))), s)))
    y = n.add(x, n.number(float(len(_DIRECT))))
    step = n.inverse(y)
    before = n.inverse(n.power(y, s - 1))
    last = n.mul(before, step)
    total = n.add(total, n.mul(before, n.number(1 / (s - 1))))
    series = n.polynomial(n.mul(step, step), zeta_coefficients(s))
    inner = n.add(n.number(0.5), n.mul(step, series))
    return n.add(total, n.mul(last, inner))


def _digamma(n: _Numbers, x: Val) -> Val:
    """For x > 0: direct terms, then the asymptotic series."""
    y = n.add(x, n.number(float(len(_DIRECT))))
    step = n.inverse(y)
    square = n.mul(step, step)
    total = n.sub(EXPANSIONS["log"](n.e, float64, [y]), n.mul(n.number(0.5), step))
    total = n.sub(total, n.mul(square, n.polynomial(square, DIGAMMA_COEFFICIENTS)))
    for k in reversed(_DIRECT):
        total = n.sub(total, n.inverse(n.add(x, n.number(float(k)))))
    return total


def _cot_derivative(n: _Numbers, order: int, x: Val) -> Val:
    """Derivative number `order` of pi * cot(pi x), as a polynomial in cot(pi x)."""
    near = n.sub(x, intrinsic(n.e, "llvm.roundeven", x))
    cot = n.inverse(EXPANSIONS["tan"](n.e, float64, [n.mul(near, n.number(math.pi))]))
    return n.mul(n.polynomial(cot, cot_coefficients(order)), n.number(math.pi ** (order + 1)))
