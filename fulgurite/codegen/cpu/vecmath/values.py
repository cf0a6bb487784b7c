"""Arithmetic on vectors, written as formulas: what the functions beside this file are made of.

In: an emitter and values. Out: instructions of that emitter, one for each operator. A `Num` is a
value with Python's operators; numbers mixed in become constants of its dtype. A pair is a sum of
two Nums that is not rounded, the second far below the first. Without fused multiply-add (the four
lanes of SSE2) `fma` rounds twice and exact products are made of halves; no formula relies on more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ....core.dtype import DType, bool_, float32, float64, int32, int64
from ....core.lazy_dataclass import dataclass
from ..llvm.emitter import Emitter, Val, literal, scalar_type


@lru_cache(maxsize=4096)
def _literal(number: float, minus_zero: bool, dtype: DType) -> str:
    """A constant's text; 0.0 and -0.0 are equal, and told apart by the second argument."""
    return literal(number, dtype)


@dataclass(frozen=True, slots=True)
class Num:
    """A value and the emitter its formulas go to."""

    e: Emitter
    val: Val

    @property
    def dtype(self) -> DType:
        """The dtype it computes in."""
        return self.val.dtype

    def const(self, number: float) -> Num:
        """A constant of the same dtype and lanes."""
        dtype, vector = self.val.dtype, self.val.vector
        text = _literal(number, number == 0 and str(number)[0] == "-", dtype)
        if vector:
            text = f"splat ({scalar_type(dtype)} {text})"
        return Num(self.e, Val(text, dtype, vector))

    def make(self, text: str, dtype: DType | None = None) -> Num:
        """The result of an instruction, of this value's lanes."""
        return Num(self.e, Val(self.e.let(text), dtype or self.val.dtype, self.val.vector))

    def _binary(self, real: str, whole: str, other: Num | float) -> Num:
        if not isinstance(other, Num):
            other = self.const(other)
        name = real if self.val.dtype.kind == "f" else whole
        return self.make(f"{name} {self.e.typed(self.val)}, {other.val.text}")

    def __add__(self, other: Num | float) -> Num:
        return self._binary("fadd", "add", other)

    def __radd__(self, other: float) -> Num:
        return self.const(other) + self

    def __sub__(self, other: Num | float) -> Num:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: float) -> Num:
        return self.const(other) - self

    def __mul__(self, other: Num | float) -> Num:
        return self._binary("fmul", "mul", other)

    def __rmul__(self, other: float) -> Num:
        return self.const(other) * self

    def __truediv__(self, other: Num | float) -> Num:
        if self.val.dtype.kind != "f":
            return self._binary("", "sdiv", other)
        by = other if isinstance(other, Num) else self.const(other)
        return Num(self.e, self.e.quotient(self.val, by.val))

    def __rtruediv__(self, other: float) -> Num:
        return self.const(other) / self

    def __neg__(self) -> Num:
        if self.val.dtype.kind != "f":
            return self.const(0) - self
        return self.make(f"fneg {self.e.typed(self.val)}")

    def __and__(self, other: Num | float) -> Num:
        return self._binary("", "and", other)

    def __or__(self, other: Num | float) -> Num:
        return self._binary("", "or", other)

    def __xor__(self, other: Num | float) -> Num:
        return self._binary("", "xor", other)

    def __lshift__(self, other: Num | float) -> Num:
        return self._binary("", "shl", other)

    def __rshift__(self, other: Num | float) -> Num:
        return self._binary("", "ashr" if self.val.dtype.kind == "i" else "lshr", other)

    def _compare(self, code: str, other: Num | float) -> Num:
        if not isinstance(other, Num):
            other = self.const(other)
        if self.val.dtype.kind == "f":
            how = "fcmp une" if code == "ne" else f"fcmp o{code}"
        else:
            how = f"icmp {code}" if code in ("eq", "ne") else f"icmp s{code}"
        return self.make(f"{how} {self.e.typed(self.val)}, {other.val.text}", bool_)

    def __lt__(self, other: Num | float) -> Num:
        return self._compare("lt", other)

    def __gt__(self, other: Num | float) -> Num:
        return self._compare("gt", other)

    def __le__(self, other: Num | float) -> Num:
        return self._compare("le", other)

    def __ge__(self, other: Num | float) -> Num:
        return self._compare("ge", other)

    def equals(self, other: Num | float) -> Num:
        """Where both are the same number."""
        return self._compare("eq", other)

    def differs(self, other: Num | float) -> Num:
        """Where they are not the same number; NaN differs from all."""
        return self._compare("ne", other)

    def unordered(self, other: Num) -> Num:
        """Where either is NaN."""
        return self.make(f"fcmp uno {self.e.typed(self.val)}, {other.val.text}", bool_)

    def __invert__(self) -> Num:
        return self ^ (1 if self.val.dtype is bool_ else -1)

    def bits(self) -> Num:
        """A float's bits as a whole number of the same width."""
        dtype = int32 if self.dtype is float32 else int64
        return self.make(f"bitcast {self.e.typed(self.val)} to {self._type(dtype)}", dtype)

    def real(self) -> Num:
        """Bits as the float they are."""
        dtype = float32 if self.dtype is int32 else float64
        return self.make(f"bitcast {self.e.typed(self.val)} to {self._type(dtype)}", dtype)

    def rounded_to(self, dtype: DType) -> Num:
        """The same number in another dtype."""
        if dtype is self.dtype:
            return self
        if self.dtype.kind == "f" and dtype.kind == "f":
            how = "fpext" if dtype is float64 else "fptrunc"
        elif self.dtype.kind == "f":
            how = "fptosi"
        elif dtype.kind == "f":
            how = "sitofp"
        else:
            how = "trunc" if dtype.bits < self.dtype.bits else "sext"
        return self.make(f"{how} {self.e.typed(self.val)} to {self._type(dtype)}", dtype)

    def call(self, name: str, *more: Num) -> Num:
        """An LLVM intrinsic that takes and gives this type."""
        e, kind = self.e, self._type(self.dtype)
        full = f"llvm.{name}.{e.suffix(self.dtype, self.val.vector)}"
        values = (self, *more)
        if full not in e.declared:
            e.declare(f"{kind} @{full}({', '.join([kind] * len(values))})", full)
        operands = ", ".join([f"{kind} {n.val.text}" for n in values])
        return self.make(f"call {kind} @{full}({operands})")

    def _type(self, dtype: DType) -> str:
        return self.e.type_of(dtype, self.val.vector)

    def magnitude(self) -> Num:
        """Without its sign."""
        return self.call("fabs")

    def with_sign(self, other: Num) -> Num:
        """This magnitude with another number's sign."""
        return self.call("copysign", other)

    def root(self) -> Num:
        """The square root, rounded once."""
        return self.call("sqrt")


Pair = tuple[Num, Num]


def fused(e: Emitter) -> bool:
    """True if the target has fused multiply-add."""
    return e.lanes > 4


def fma(a: Num, b: Num | float, c: Num | float) -> Num:
    """a * b + c, rounded once where the target can."""
    if not fused(a.e):
        return a * b + c
    b = b if isinstance(b, Num) else a.const(b)
    c = c if isinstance(c, Num) else a.const(c)
    return a.call("fma", b, c)


def where(condition: Num, a: Num | float, b: Num | float) -> Num:
    """a where the condition holds, else b; one of them is a Num."""
    if not isinstance(a, Num):
        assert isinstance(b, Num)
        a = b.const(a)
    b = b if isinstance(b, Num) else a.const(b)
    e = a.e
    return a.make(f"select {e.typed(condition.val)}, {e.typed(a.val)}, {e.typed(b.val)}")


def least(a: Num, top: float) -> Num:
    """a, but at most `top`; NaN stays."""
    return where(a > top, top, a)


def most(a: Num, bottom: float) -> Num:
    """a, but at least `bottom`; NaN stays."""
    return where(a < bottom, bottom, a)


def nearest_whole(a: Num) -> Num:
    """The nearest whole number to a number that is not negative."""
    if fused(a.e):
        return a.call("rint")
    limit = 2.0**23 if a.dtype is float32 else 2.0**52
    return where(a < limit, (a + limit) - limit, a)


def polynomial(x: Num, coefficients: Sequence[float]) -> Num:
    """The value at x, highest power first."""
    value = fma(x, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        value = fma(value, x, c)
    return value


# --- pairs ---------------------------------------------------------------------------------------


def quick_sum(a: Num, b: Num | float) -> Pair:
    """a + b and what rounding lost, for |a| >= |b|."""
    high = a + b
    low = (a - high) + b
    return high, low


def exact_sum(a: Num, b: Num) -> Pair:
    """a + b and what rounding lost."""
    high = a + b
    back = high - a
    return high, (a - (high - back)) + (b - back)


def _halves(a: Num) -> Pair:
    lost = 12 if a.dtype is float32 else 27
    high = (a.bits() & -(1 << lost)).real()
    return high, a - high


def exact_product(a: Num, b: Num) -> Pair:
    """a * b and what rounding lost."""
    high = a * b
    if fused(a.e):
        return high, fma(a, b, -high)
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    return high, (((ah * bh - high) + ah * bl) + al * bh) + al * bl


def product(a: Pair, b: Pair) -> Pair:
    """The product of two pairs, the last term left out."""
    high, low = exact_product(a[0], b[0])
    return quick_sum(high, low + fma(a[0], b[1], a[1] * b[0]))


def quotient(a: Pair, b: Pair) -> Pair:
    """a / b of pairs: by an inverse of b, and what that left over by it again."""
    inverse = 1.0 / b[0]
    first = a[0] * inverse
    high, low = exact_product(first, b[0])
    rest = ((a[0] - high) - low) + (a[1] - first * b[1])
    return first, rest * inverse


def root_pair(a: Pair) -> Pair:
    """The square root of a pair above 0."""
    high = a[0].root()
    square, low = exact_product(high, high)
    rest = ((a[0] - square) - low) + a[1]
    return high, rest / (high + high)


def constant_pair(like: Num, parts: Sequence[float]) -> Pair:
    """A constant of two parts."""
    return like.const(parts[0]), like.const(parts[1])


# --- control -------------------------------------------------------------------------------------


def any_lane(condition: Num) -> str:
    """An i1: does the condition hold anywhere?"""
    e = condition.e
    if not condition.val.vector:
        return condition.val.text
    name = f"llvm.vector.reduce.or.v{e.lanes}i1"
    return e.call("i1", name, e.typed(condition.val))


def rarely(condition: Num, usual: Sequence[Num], slow: Callable[[], Sequence[Num]]) -> list[Num]:
    """`usual`, or what `slow` computes if the condition holds in any lane."""
    e = condition.e
    stem = e.name("r")[1:]
    happens = any_lane(condition)
    e.jump(f"{stem}.test")
    e.label(f"{stem}.test")
    e.line(f"br i1 {happens}, label %{stem}.slow, label %{stem}.done")
    e.label(f"{stem}.slow")
    others = slow()
    e.jump(f"{stem}.end")
    e.label(f"{stem}.end")
    e.jump(f"{stem}.done")
    e.label(f"{stem}.done")
    return [
        a.make(
            f"phi {e.type_of(a.dtype, a.val.vector)} "
            f"[ {a.val.text}, %{stem}.test ], [ {b.val.text}, %{stem}.end ]"
        )
        for a, b in zip(usual, others, strict=True)
    ]


Function = Callable[..., Num]


def pick(like: Num, single: Sequence[float], double: Sequence[float]) -> Sequence[float]:
    """The table for this value's dtype."""
    return single if like.dtype is float32 else double
