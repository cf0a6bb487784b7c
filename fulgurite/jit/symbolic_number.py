"""Python numbers among the arguments: given at run time where they only meet tensors.

In: an int or a float. Out: something that acts like it and notes what is done with it. Arithmetic
gives another one, which knows how it was computed; where it meets a tensor it becomes a 0-d input
that every replay fills with the number of that call, computed by Python as the function does. Where
its value decides something (a comparison, a size, an index, a key), it is that number from then on,
and the capture holds for this number only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..core.dtype import DType, encode
from ..core.node import Node, Shape, constant
from ..core.ops.leaf import new_buffer
from ..core.ops.movement import expand, reshape
from ..core.symbolic.sym import Sym
from ..errors import user_line


class Numbers:
    """The numbers of one call: which are fixed, and the inputs that the others became."""

    def __init__(self, fixed: dict[str, str], device: str) -> None:
        # fixed: the paths to those that decide something, and the user's line where they do
        self.fixed, self.device = fixed, device
        self.open, self.all_fixed = True, False
        self.begin()

    def begin(self) -> None:
        """Forget what was made: the call is looked at anew."""
        self.inputs: dict[tuple[str, DType], Node] = {}  # source and dtype -> the 0-d input
        self.values: dict[Node, Any] = {}  # what each is in this call
        self.met: list[tuple[str, str, Any]] = []  # path, variable and value of each placeholder
        self.constants: dict[str, Any] = {}
        self.hashed = False  # was the hash of a placeholder asked for?
        self.sizes: dict[str, Sym] = {}  # those that are sizes of arguments
        self.decided: set[str] = set()  # numbers that are fixed from now on
        self.pinned_sizes = False  # did one of these pin a size?

    def of_size(self, size: Sym) -> Number:
        """A size of an argument as a number of the call."""
        path = f"size {size.source}"
        self.sizes[path] = size
        return Number(self, size.value, size.source, frozenset({path}))

    def decide(self, paths: Iterable[str]) -> None:
        """Values of these numbers decide something: they are part of what is checked."""
        paths = [*paths]
        sizes = [self.sizes[path] for path in paths if path in self.sizes]
        for size in sizes:
            size.pinned()
        paths = [path for path in paths if path not in self.sizes]
        new = [path for path in paths if path not in self.fixed]
        self.decided.update(new)
        self.pinned_sizes |= bool(sizes) and not self.decided.isdisjoint(paths)
        if new:
            self.fixed.update(dict.fromkeys(new, user_line()))

    def made(self, value: Any, name: str, path: str) -> Any:
        """What the function is to see of a number: a placeholder, unless it is fixed."""
        if path in self.fixed or self.all_fixed:
            return value
        self.met.append((path, name, value))
        return Number(self, value, name, frozenset({path}))

    def input(self, source: str, value: Any, dtype: DType) -> Node:
        """The 0-d input of a number in a dtype."""
        found = self.inputs.get((source, dtype))
        if found is None:
            encode(value, dtype)  # or it does not fit
            found = self.inputs[source, dtype] = new_buffer((), dtype, self.device)
            self.values[found] = value
        return found


class Number:
    """An int or a float that is given when a replay runs."""

    __slots__ = ("_numbers", "_paths", "_source", "_value")

    def __init__(self, numbers: Numbers, value: Any, source: str, paths: frozenset[str]) -> None:
        self._numbers, self._value, self._source, self._paths = numbers, value, source, paths

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """So that it is an int or a float to whoever asks."""
        return type(self._value)

    def as_constant(self, dtype: DType, shape: Shape) -> Node:
        """The number as a tensor of a shape; see `core.node.constant`."""
        if not self._numbers.open:  # the capture has ended: it is what it was
            return constant(self._value, dtype, shape)
        scalar = self._numbers.input(self._source, self._value, dtype)
        return expand(reshape(scalar, (1,) * len(shape)), shape) if shape else scalar

    def fixed(self) -> Any:
        """The number itself: its value decides something, so it is part of what is checked."""
        self._numbers.decide(self._paths)
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.fixed(), dtype)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(type(self._value), name):  # which is known without looking at its value
            raise AttributeError(f"{type(self._value).__name__} has no attribute {name!r}")
        return getattr(self.fixed(), name)

    def __reduce__(self) -> Any:
        return type(self._value), (self.fixed(),)

    def __repr__(self) -> str:
        return repr(self.fixed())

    def __str__(self) -> str:
        return str(self.fixed())

    def __format__(self, spec: str) -> str:
        return format(self.fixed(), spec)

    def __hash__(self) -> int:
        self._numbers.hashed = True  # it may be in a set or a key now
        return hash(self.fixed())

    def __bool__(self) -> bool:
        return bool(self.fixed())

    def __invert__(self) -> Any:
        return ~self.fixed()

    def __int__(self) -> int:
        return int(self.fixed())

    def __float__(self) -> float:
        return float(self.fixed())

    def __complex__(self) -> complex:
        return complex(self.fixed())

    def __index__(self) -> int:
        return operator.index(self.fixed())

    def __round__(self, digits: Any = None) -> Any:
        return round(self.fixed(), digits)

    def __trunc__(self) -> Any:
        return math.trunc(self.fixed())

    def __floor__(self) -> Any:
        return math.floor(self.fixed())

    def __ceil__(self) -> Any:
        return math.ceil(self.fixed())


def plain(value: Any) -> Any:
    """A number itself; other things as they are."""
    return value.fixed() if type(value) is Number else value


def source_of(value: Any) -> str | None:
    """How a replay computes a number; None for other things."""
    if type(value) is Sym:
        return value.source
    return value._source if type(value) is Number else None


_SIMPLE = (int, float, bool)


class Otherwise(ArithmeticError):
    """A number of this call is of another type than the one that was captured."""


def like(value: Any, kind: type) -> Any:
    """A computed number, whose type may depend on values (`2**-1` is no int)."""
    if type(value) is not kind:
        raise Otherwise(kind.__name__)
    return value


def _written(numbers: Numbers, value: Any) -> str:
    if type(value) is Number:
        return str(value._source)
    name = f"n{len(numbers.constants)}"
    numbers.constants[name] = value
    return name


def _joined(sign: str, function: Callable[[Any, Any], Any], swapped: bool) -> Any:
    def apply(self: Number, other: Any, *modulus: Any) -> Any:
        numbers = self._numbers
        if modulus:  # pow(a, b, m)
            return pow(self.fixed(), *[plain(value) for value in (other, *modulus)])
        if type(other) is not Number and type(other) not in _SIMPLE:
            if type(other).__module__.startswith("fulgurite."):
                return NotImplemented  # a tensor takes it as it is
            own = self.fixed()
            return function(other, own) if swapped else function(own, other)
        value = other._value if type(other) is Number else other
        paths = self._paths | (other._paths if type(other) is Number else frozenset())
        a, b = (other, self) if swapped else (self, other)
        try:
            result = function(value, self._value) if swapped else function(self._value, value)
        except ArithmeticError:  # which the function may catch
            numbers.decide(paths)
            raise
        if type(result) not in (int, float):
            numbers.decide(paths)
            return result
        source = f"({_written(numbers, a)} {sign} {_written(numbers, b)})"
        if sign == "**":
            numbers.constants["like"] = like
            source = f"like({source}, {type(result).__name__})"
        return Number(numbers, result, source, paths)

    return apply


def _alone(sign: str, function: Callable[[Any], Any]) -> Any:
    def apply(self: Number) -> Any:
        return Number(self._numbers, function(self._value), f"{sign}({self._source})", self._paths)

    return apply


def _decided(function: Callable[[Any, Any], Any]) -> Any:
    def apply(self: Number, other: Any) -> Any:
        if type(other) is Number:
            other = other.fixed()
        elif not isinstance(other, int | float | complex | str | bytes | None | np.generic):
            return NotImplemented  # a tensor compares itself with it
        return function(self.fixed(), other)

    return apply


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(b, a)


for _name, _sign, _function in (
    ("add", "+", operator.add), ("sub", "-", operator.sub), ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv), ("floordiv", "//", operator.floordiv),
    ("mod", "%", operator.mod), ("pow", "**", operator.pow),
):  # fmt: skip
    setattr(Number, f"__{_name}__", _joined(_sign, _function, False))
    setattr(Number, f"__r{_name}__", _joined(_sign, _function, True))
for _name, _sign, _one in (("neg", "-", operator.neg), ("pos", "+", operator.pos),
                           ("abs", "abs", abs)):  # fmt: skip
    setattr(Number, f"__{_name}__", _alone(_sign, _one))
for _name, _both in (
    ("eq", operator.eq), ("ne", operator.ne), ("lt", operator.lt), ("le", operator.le),
    ("gt", operator.gt), ("ge", operator.ge), ("and", operator.and_), ("or", operator.or_),
    ("xor", operator.xor), ("lshift", operator.lshift), ("rshift", operator.rshift),
    ("divmod", divmod),
):  # fmt: skip
    setattr(Number, f"__{_name}__", _decided(_both))
for _name, _both in (
    ("and", operator.and_), ("or", operator.or_), ("xor", operator.xor),
    ("lshift", operator.lshift), ("rshift", operator.rshift), ("divmod", divmod),
):  # fmt: skip
    setattr(Number, f"__r{_name}__", _decided(_reflected(_both)))
