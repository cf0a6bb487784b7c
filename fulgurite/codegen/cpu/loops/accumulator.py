"""Accumulators: the running value of a fold, how it starts, takes values in, and ends.

In: a FOLD and values, one number or a vector of lanes at a time. Out: the fold's value. A state is
a list of SSA names, one for each of `kinds`. Several states of one fold can run side by side and be
joined, so that no addition waits for the one before.
Float sums go in blocks of their own dtype which end in float64 (float32) or in a pair of the sum
and what rounding took from it (float64): the error does not grow with the length.
Float maxima and minima are folded as whole numbers, because no float instruction keeps NaN and
orders -0.0 below 0.0: the bits' largest signed, least and largest unsigned numbers tell everything.
"""

from __future__ import annotations

from ....core.dtype import DType, bool_, float32, float64, int32, int64
from ....core.node import Node
from ....core.ops.reduce import REDUCERS, identity_of
from ..llvm.emitter import Emitter, Val, computing
from ..llvm.maths import compare, intrinsic, select, two_sum

_EXTREMES = ("smax", "umin", "umax")  # of the bits of floats
_ACROSS = {  # of lanes
    ("add", "f"): "fadd", ("add", "i"): "add", ("add", "u"): "add",
    ("mul", "f"): "fmul", ("mul", "i"): "mul", ("mul", "u"): "mul", ("mul", "b"): "and",
    ("max", "i"): "smax", ("max", "u"): "umax", ("max", "b"): "or",
    ("min", "i"): "smin", ("min", "u"): "umin", ("min", "b"): "and",
}  # fmt: skip
_INFINITY = {float32: 0x7F800000, float64: 0x7FF0000000000000}


class Accumulator:
    """The running value of one fold."""

    def __init__(self, e: Emitter, fold: Node, vector: bool, whole: bool = True) -> None:
        self.e, self.vector = e, vector
        self.name: str = fold.arg[0]
        self.dtype = computing(fold.dtype)
        floats = self.dtype.kind == "f"
        self.is_sum = self.name == "add" and floats
        self.by_bits = whole and self.name in ("max", "min") and floats  # three names a state
        self.bits = int32 if self.dtype is float32 else int64

    # --- states ----------------------------------------------------------------------------------

    @property
    def inner(self) -> DType:
        """The dtype of a state's parts."""
        return self.bits if self.by_bits else self.dtype

    def start(self) -> list[tuple[str, str]]:
        """A state before anything is taken in, with its types."""
        kind = self.e.type_of(self.inner, self.vector)
        first = self.identity()
        return [(kind, self._as_bits(first) if self.by_bits else first.text)] * self.width

    @property
    def width(self) -> int:
        """How many names a state has."""
        return 3 if self.by_bits else 1

    def identity(self) -> Val:
        """What changes no fold."""
        return self.e.const(_number(identity_of(self.name, self.dtype), self.dtype),
                            self.dtype, self.vector)  # fmt: skip

    def _as_bits(self, value: Val) -> str:
        sort = self.e.type_of(self.bits, value.vector)
        if not value.text.startswith("%"):  # an infinity: the identity of max or min
            negative = self.name == "max"
            number = _INFINITY[self.dtype] - (1 << self.bits.bits - 1 if negative else 0)
            return self.e.const(number, self.bits, value.vector).text
        return self.e.let(f"bitcast {self.e.typed(value)} to {sort}")

    def take(self, state: list[str], value: Val, mask: str | None) -> list[str]:
        """Take in a value; lanes that are masked off count as the identity."""
        e = self.e
        value = e.splat(value) if self.vector else value
        if mask is not None:
            value = select(e, Val(mask, bool_, True), value, self.identity())
        text = value.text
        if self.by_bits:
            sort = e.type_of(self.bits, value.vector)
            text = e.let(f"bitcast {e.typed(value)} to {sort}")
        return self.join(state, [text] * self.width)

    def join(self, a: list[str], b: list[str]) -> list[str]:
        """Two states as one."""
        if not self.by_bits:
            return [self.combine(self._val(a[0]), self._val(b[0])).text]
        out: list[str] = []
        for name, x, y in zip(_EXTREMES, a, b, strict=True):
            left, right = Val(x, self.bits, self.vector), Val(y, self.bits, self.vector)
            out.append(intrinsic(self.e, f"llvm.{name}", left, right).text)
        return out

    def _val(self, text: str) -> Val:
        return Val(text, self.dtype, self.vector)

    def combine(self, a: Val, b: Val) -> Val:
        """The fold's own op on two values."""
        e = self.e
        if self.name in ("max", "min") and a.dtype.kind != "b":
            kind = {"f": f"{self.name}imum", "i": f"s{self.name}", "u": f"u{self.name}"}
            return intrinsic(e, f"llvm.{kind[a.dtype.kind]}", a, b)
        spelling = REDUCERS[self.name].llvm[a.dtype.kind]
        text = spelling.format(a.text, b.text, T=e.type_of(a.dtype, a.vector))
        return Val(e.let(text), a.dtype, a.vector)

    @property
    def may_settle(self) -> bool:
        """True if a value in two is one that nothing changes (absorbing): a fold of truths."""
        absorbing = REDUCERS[self.name].absorbing
        return self.dtype is bool_ and absorbing is not None and absorbing(bool_) is not None

    def is_settled(self, state: list[str]) -> str:
        """True if a lane of a state is what nothing changes; lanes are parts of one fold."""
        e, absorbing = self.e, REDUCERS[self.name].absorbing
        number = absorbing(self.dtype) if absorbing is not None else None
        assert number is not None, f"{self.name} has no absorbing {self.dtype}"
        last = e.const(number, self.dtype, self.vector)
        met = compare(e, "icmp eq", self._val(state[0]), last)
        return e.call("i1", f"llvm.vector.reduce.or.{e.suffix(bool_, True)}", e.typed(met))

    # --- long sums -------------------------------------------------------------------------------

    def start_wide(self) -> list[tuple[str, str]]:
        """What blocks are added to; a fold that is no float sum needs no blocks."""
        if not self.is_sum:
            return self.start()
        kind = self.e.type_of(float64, self.vector)
        first = [(kind, self.e.const(-0.0, float64, self.vector).text)]
        if self.dtype is float64:
            first.append((kind, self.e.const(0.0, float64, self.vector).text))
        return first

    def flush(self, wide: list[str], block: list[str]) -> list[str]:
        """Add a block's state to the wide one."""
        e = self.e
        if not self.is_sum:
            return self.join(wide, block)
        kind = e.type_of(float64, self.vector)
        if self.dtype is float32:
            part = e.let(f"fpext {e.typed(self._val(block[0]))} to {kind}")
            return [e.let(f"fadd {kind} {wide[0]}, {part}")]
        total, lost = two_sum(e, *[Val(x, float64, self.vector) for x in (wide[0], block[0])])
        return [total.text, e.let(f"fadd {kind} {wide[1]}, {lost.text}")]

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, state: list[str], lanes: bool) -> Val:
        """The value of a state; lanes are folded together if they were parts of one fold."""
        if self.by_bits:
            found = [Val(name, self.bits, self.vector) for name in state]
            if lanes:
                found = [self._across(v, how) for v, how in zip(found, _EXTREMES, strict=True)]
            return self._extreme(*found)
        total = self._val(state[0])
        return self._across(total, None) if lanes else total

    def finish_wide(self, wide: list[str], lanes: bool) -> Val:
        """The value of a wide state."""
        if not self.is_sum:
            return self.finish(wide, lanes)
        e = self.e
        total = Val(wide[0], float64, self.vector)
        if len(wide) == 2:
            kind = e.type_of(float64, self.vector)
            total = Val(e.let(f"fadd {kind} {wide[0]}, {wide[1]}"), float64, self.vector)
            known = compare(e, "fcmp ord", total, total)  # an infinite sum has lost NaN
            total = select(e, known, total, Val(wide[0], float64, self.vector))
        if lanes:
            total = self._across(total, None)
        if self.dtype is float32:
            kind = e.type_of(float32, total.vector)
            total = Val(e.let(f"fptrunc {e.typed(total)} to {kind}"), float32, total.vector)
        return total

    def _across(self, total: Val, name: str | None) -> Val:
        """One number from all lanes, by a tree of halves."""
        e, kind, dtype = self.e, self.e.type_of(total.dtype, False), total.dtype
        full = f"llvm.vector.reduce.{name or _ACROSS[self.name, dtype.kind]}"
        full += f".{e.suffix(dtype, True)}"
        vector = e.type_of(dtype, True)
        if dtype.kind != "f":
            return Val(e.call(kind, full, e.typed(total)), dtype)
        e.declare(f"{kind} @{full}({kind}, {vector})", full)
        first = e.const(-0.0 if self.name == "add" else 1.0, dtype)
        return Val(e.let(f"call reassoc {kind} @{full}({e.typed(first)}, {e.typed(total)})"), dtype)

    def _extreme(self, most: Val, least_unsigned: Val, most_unsigned: Val) -> Val:
        """The extreme float from those of its bits; NaN if there was one."""
        e = self.e
        zero = e.const(0, self.bits, most.vector)
        infinity = _INFINITY[self.dtype]
        if self.name == "max":  # the largest of the positive ones, else the negative nearest to 0
            found = select(e, compare(e, "icmp sge", most, zero), most, least_unsigned)
        else:
            negative = compare(e, "icmp slt", most_unsigned, zero)
            found = select(e, negative, most_unsigned, least_unsigned)
        top = e.const(infinity, self.bits, most.vector)
        bottom = e.const(infinity - (1 << self.bits.bits - 1), self.bits, most.vector)
        nan = compare(e, "icmp sgt", most, top)
        other = compare(e, "icmp ugt", most_unsigned, bottom)
        either = Val(e.let(f"or {e.typed(nan)}, {other.text}"), bool_, most.vector)
        kind = e.type_of(self.dtype, most.vector)
        number = Val(e.let(f"bitcast {e.typed(found)} to {kind}"), self.dtype, most.vector)
        unknown = Val("0x7FF8000000000000", self.dtype)
        return select(e, either, unknown, number)


def empty(e: Emitter, fold: Node) -> Val:
    """The fold of no elements: the identity, but 0.0 for a sum."""
    dtype = computing(fold.dtype)
    return e.const(
        0 if fold.arg[0] == "add" else _number(identity_of(fold.arg[0], dtype), dtype), dtype
    )


def _number(value: float | int | bool, dtype: DType) -> float | int:
    return float(value) if dtype.kind == "f" else int(value)
