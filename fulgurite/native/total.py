"""The running value of a fold: how it starts, takes values in, and ends.

Float sums are kept in short blocks of their own dtype which end in float64 (float32) or in a pair
of the sum and what rounding took from it (float64), so the error does not grow with the length.
Folding lanes together is a fixed tree: bits depend on shapes and vector width alone.
"""

from __future__ import annotations

from ..core.dtype import DType, bool_, float32, float64
from ..core.node import Node
from ..core.ops.reduce import REDUCERS, identity_of
from .emitter import Emitter, Val, computing
from .maths import compare, intrinsic, select


class Total:
    """The running value of one fold: how it starts, takes in, and ends."""

    def __init__(self, e: Emitter, fold: Node, vector: bool) -> None:
        self.e, self.vector = e, vector
        self.name = fold.arg[0]
        self.dtype = computing(fold.dtype)
        self.wide = self.name == "add" and self.dtype.kind == "f"
        self.width = 2 if self.wide and self.dtype is float64 else 1  # a sum and what it lost

    def identity(self, dtype: DType) -> str:
        start = identity_of(self.name, self.dtype)
        if dtype.kind == "f" and isinstance(start, int):
            start = float(start)
        return self.e.const(start, dtype, self.vector).text

    def start(self) -> list[tuple[str, str]]:
        """The running values before anything is taken in."""
        dtype = float64 if self.wide else self.dtype
        kind = self.e.type_of(dtype, self.vector)
        first = [(kind, self.identity(dtype))]
        if self.width == 2:
            first.append((kind, self.e.const(0.0, dtype, self.vector).text))
        return first

    def fresh(self) -> tuple[str, str]:
        """A block's own running value."""
        return self.e.type_of(self.dtype, self.vector), self.identity(self.dtype)

    def add(self, now: str, value: Val, mask: str | None) -> str:
        """Take in a value."""
        e = self.e
        value = e.splat(value) if self.vector else value
        if mask is not None:
            other = e.const(
                _number(identity_of(self.name, self.dtype), self.dtype), self.dtype, True
            )
            value = select(e, Val(mask, bool_, True), value, other)
        return self._join(Val(now, self.dtype, self.vector), value).text

    def _join(self, a: Val, b: Val) -> Val:
        op = REDUCERS[self.name]
        e = self.e
        if self.name in ("max", "min") and a.dtype.kind != "b":
            known = {"f": "imum", "i": "", "u": ""}[a.dtype.kind]
            name = {"f": f"llvm.{self.name}{known}", "i": f"llvm.s{self.name}",
                    "u": f"llvm.u{self.name}"}[a.dtype.kind]  # fmt: skip
            return intrinsic(e, name, a, b)
        text = op.llvm[a.dtype.kind].format(a.text, b.text, T=e.type_of(a.dtype, a.vector))
        return Val(e.let(text), a.dtype, a.vector)

    def combine(self, running: list[str], partial: str) -> list[str]:
        """Add a block's fold to the running one."""
        e = self.e
        part = Val(partial, self.dtype, self.vector)
        if not self.wide:
            return [self._join(Val(running[0], self.dtype, self.vector), part).text]
        kind = e.type_of(float64, self.vector)
        if self.dtype is float32:
            partial = e.let(f"fpext {e.typed(part)} to {kind}")
            return [e.let(f"fadd {kind} {running[0]}, {partial}")]
        # the sum and, exactly, what rounding took from it
        total = e.let(f"fadd {kind} {running[0]}, {partial}")
        back = e.let(f"fsub {kind} {total}, {running[0]}")
        left = e.let(f"fsub {kind} {running[0]}, {e.let(f'fsub {kind} {total}, {back}')}")
        right = e.let(f"fsub {kind} {partial}, {back}")
        lost = e.let(f"fadd {kind} {left}, {right}")
        return [total, e.let(f"fadd {kind} {running[1]}, {lost}")]

    def finish(self, running: list[str], lanes: bool) -> Val:
        """The fold's value: lanes folded together if they were parts of it."""
        e = self.e
        dtype = float64 if self.wide else self.dtype
        total = Val(running[0], dtype, self.vector)
        if self.width == 2:
            kind = e.type_of(dtype, self.vector)
            total = Val(e.let(f"fadd {kind} {running[0]}, {running[1]}"), dtype, self.vector)
            finite = compare(e, "fcmp ord", total, total)
            total = select(e, finite, total, Val(running[0], dtype, self.vector))
        if lanes:
            total = self._across(total)
        if self.wide and self.dtype is float32:
            kind = e.type_of(float32, total.vector)
            total = Val(e.let(f"fptrunc {e.typed(total)} to {kind}"), float32, total.vector)
        return total

    def _across(self, total: Val) -> Val:
        """One number from all lanes: halves are folded together until one is left."""
        e = self.e
        count, kind = e.lanes, e.type_of(total.dtype, True)
        while count > 1:
            count //= 2
            picks = ", ".join(f"i32 {i + count if i < count else 0}" for i in range(e.lanes))
            other = e.let(
                f"shufflevector {kind} {total.text}, {kind} poison, <{e.lanes} x i32> <{picks}>"
            )
            total = self._join(total, Val(other, total.dtype, True))
        inner = e.type_of(total.dtype, False)
        return (
            Val(e.let(f"extractelement {kind} {total.text}, i64 0"), total.dtype)
            if inner
            else total
        )


def _number(value: float | int | bool, dtype: DType) -> float | int:
    return float(value) if dtype.kind == "f" else int(value)
