"""The operators of an expression, said once for nodes, patterns and tensors.

In: Python's `a + b`, `-a`, `a < b`, ... Out: `self._apply(op, (a, b))`, where the class that mixes
this in says what applying means: a node interns, a pattern describes, a tensor promotes and
broadcasts. `==` keeps Python's identity meaning on nodes and patterns; they say `a.eq(b)`.
`OPS` is the registry of every op by name; an `Op` enters itself when it is declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .op import Op

OPS: dict[str, Op] = {}


class Operators:
    """Mix-in: arithmetic, comparison and bit operators in terms of `_apply`."""

    __slots__ = ()

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Self:
        raise NotImplementedError(f"{type(self).__name__} does not say what applying an op means")

    def __add__(self, other: Any) -> Self:
        return self._apply(OPS["add"], (self, other))

    def __radd__(self, other: Any) -> Self:
        return self._apply(OPS["add"], (other, self))

    def __sub__(self, other: Any) -> Self:
        return self._apply(OPS["sub"], (self, other))

    def __rsub__(self, other: Any) -> Self:
        return self._apply(OPS["sub"], (other, self))

    def __mul__(self, other: Any) -> Self:
        return self._apply(OPS["mul"], (self, other))

    def __rmul__(self, other: Any) -> Self:
        return self._apply(OPS["mul"], (other, self))

    def __truediv__(self, other: Any) -> Self:
        return self._apply(OPS["div"], (self, other))

    def __rtruediv__(self, other: Any) -> Self:
        return self._apply(OPS["div"], (other, self))

    def __floordiv__(self, other: Any) -> Self:
        return self._apply(OPS["floordiv"], (self, other))

    def __rfloordiv__(self, other: Any) -> Self:
        return self._apply(OPS["floordiv"], (other, self))

    def __mod__(self, other: Any) -> Self:
        return self._apply(OPS["mod"], (self, other))

    def __rmod__(self, other: Any) -> Self:
        return self._apply(OPS["mod"], (other, self))

    def __pow__(self, other: Any) -> Self:
        return self._apply(OPS["pow"], (self, other))

    def __rpow__(self, other: Any) -> Self:
        return self._apply(OPS["pow"], (other, self))

    def __and__(self, other: Any) -> Self:
        return self._apply(OPS["and"], (self, other))

    def __rand__(self, other: Any) -> Self:
        return self._apply(OPS["and"], (other, self))

    def __or__(self, other: Any) -> Self:
        return self._apply(OPS["or"], (self, other))

    def __ror__(self, other: Any) -> Self:
        return self._apply(OPS["or"], (other, self))

    def __xor__(self, other: Any) -> Self:
        return self._apply(OPS["xor"], (self, other))

    def __rxor__(self, other: Any) -> Self:
        return self._apply(OPS["xor"], (other, self))

    def __lshift__(self, other: Any) -> Self:
        return self._apply(OPS["shl"], (self, other))

    def __rlshift__(self, other: Any) -> Self:
        return self._apply(OPS["shl"], (other, self))

    def __rshift__(self, other: Any) -> Self:
        return self._apply(OPS["shr"], (self, other))

    def __rrshift__(self, other: Any) -> Self:
        return self._apply(OPS["shr"], (other, self))

    def __neg__(self) -> Self:
        return self._apply(OPS["neg"], (self,))

    def __invert__(self) -> Self:
        return self._apply(OPS["not"], (self,))

    def __abs__(self) -> Self:
        return self._apply(OPS["abs"], (self,))

    def __lt__(self, other: Any) -> Self:
        return self._apply(OPS["lt"], (self, other))

    def __le__(self, other: Any) -> Self:
        return self._apply(OPS["le"], (self, other))

    def __gt__(self, other: Any) -> Self:
        return self._apply(OPS["lt"], (other, self))

    def __ge__(self, other: Any) -> Self:
        return self._apply(OPS["le"], (other, self))

    def eq(self, other: Any) -> Self:
        """Elementwise `==`."""
        return self._apply(OPS["eq"], (self, other))

    def ne(self, other: Any) -> Self:
        """Elementwise `!=`."""
        return self._apply(OPS["ne"], (self, other))
