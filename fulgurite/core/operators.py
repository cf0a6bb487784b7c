"""The operators of an expression, said once for nodes, patterns and tensors.

In: Python's `a + b`, `-a`, `a < b`, ... Out: `self._apply(op, (a, b))`, where the class that mixes
this in says what applying means: a node interns, a pattern describes, a tensor promotes and
broadcasts. `==` keeps Python's identity meaning on nodes and patterns; they say `a.eq(b)`.
`OPS` is the registry of every op by name; an `Op` enters itself when it is declared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from .op import Op

OPS: dict[str, Op] = {}
S = TypeVar("S", bound="Operators")


def _both(name: str, swapped: bool = False) -> Callable[[S, Any], S]:
    """The method of an operator of two operands."""

    def applied(self: S, other: Any) -> S:
        return self._apply(OPS[name], (self, other))

    def reflected(self: S, other: Any) -> S:
        return self._apply(OPS[name], (other, self))

    return reflected if swapped else applied


def _alone(name: str) -> Callable[[S], S]:
    """The method of an operator of one operand."""
    return lambda self: self._apply(OPS[name], (self,))


class Operators:
    """Mix-in: arithmetic, comparison and bit operators in terms of `_apply`."""

    __slots__ = ()

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Self:
        raise NotImplementedError(f"{type(self).__name__} does not say what applying an op means")

    __add__, __radd__ = _both("add"), _both("add", swapped=True)
    __sub__, __rsub__ = _both("sub"), _both("sub", swapped=True)
    __mul__, __rmul__ = _both("mul"), _both("mul", swapped=True)
    __truediv__, __rtruediv__ = _both("div"), _both("div", swapped=True)
    __floordiv__, __rfloordiv__ = _both("floordiv"), _both("floordiv", swapped=True)
    __mod__, __rmod__ = _both("mod"), _both("mod", swapped=True)
    __pow__, __rpow__ = _both("pow"), _both("pow", swapped=True)
    __and__, __rand__ = _both("and"), _both("and", swapped=True)
    __or__, __ror__ = _both("or"), _both("or", swapped=True)
    __xor__, __rxor__ = _both("xor"), _both("xor", swapped=True)
    __lshift__, __rlshift__ = _both("shl"), _both("shl", swapped=True)
    __rshift__, __rrshift__ = _both("shr"), _both("shr", swapped=True)
    __lt__, __gt__ = _both("lt"), _both("lt", swapped=True)
    __le__, __ge__ = _both("le"), _both("le", swapped=True)
    __neg__, __invert__, __abs__ = _alone("neg"), _alone("not"), _alone("abs")

    def eq(self, other: Any) -> Self:
        """Elementwise `==`."""
        return self._apply(OPS["eq"], (self, other))

    def ne(self, other: Any) -> Self:
        """Elementwise `!=`."""
        return self._apply(OPS["ne"], (self, other))
