"""Sizes that vary, as ints that remember how they came about: symbolic execution with guards.

In: a `Trace` with a hint for each variable. Out: `Sym`s, ints with the hint's value that carry a
polynomial of variables. Arithmetic gives the polynomial of the result; a comparison is answered by
the hint and noted as a guard, unless bounds settle it. So a compiler that was written for ints
computes a plan for all sizes that pass the guards: every number in it is a polynomial, every
decision a guard. As a key a `Sym` is its polynomial: equal hashes are equal expressions, and an
expression never meets the number that it happens to be. In text it is a register, `%sym.3`.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any, TypeAlias

from .polynomial import (
    OPAQUE,
    Atom,
    Key,
    Polynomial,
    added,
    evaluator,
    is_remainder,
    key_of,
    multiplied,
    quotient,
    reduced,
    rising,
    source_of,
)

Guard: TypeAlias = tuple[Key, str]  # a polynomial and how it compares with 0

LEAST, MOST = 2, (1 << 31) - 1  # of a variable: 0 and 1 stay apart
_serials = itertools.count(1)
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class _Mode(threading.local):
    """How this thread compares sizes: with guards, unless any answer is right.

    It is about traces that are there: an interrupt may leave it as it was amid costs, and a plan
    that is made afterwards, of another trace, must not go without guards.
    """

    before = 0  # traces with a lower serial are compared freely


MODE = _Mode()


@contextmanager
def choosing(free: bool = True) -> Iterator[None]:
    """While costs are compared: whatever is chosen is right for all sizes, so nothing is noted."""
    outside, MODE.before = MODE.before, next(_serials) if free else 0
    try:
        yield
    finally:
        MODE.before = outside


class Trace:
    """One symbolic execution: hints of the variables, and what was decided because of them."""

    def __init__(self, hints: Mapping[str, int], ragged: bool = True) -> None:
        self.ragged = ragged  # are sizes taken as multiples of nothing, whatever the hints?
        self.serial = next(_serials)
        self.hints = dict(hints)
        self.low = dict.fromkeys(hints, LEAST)
        self.high = dict.fromkeys(hints, MOST)
        self.guards: dict[Guard, None] = {}
        self.why: dict[object, str] = {}  # the line of the compiler that decided, for people
        self.sources: dict[str, str] = {}  # how a call of the user's function computes variables
        self.number: Callable[[Any], Any] | None = None  # a size among other numbers of a call
        self.chosen = False  # were costs compared, which hold near the hints only?
        self._values: dict[Atom, int] = {}
        self._choices: dict[tuple[Key, Key | int, str], tuple[bool, bool]] = {}
        self._tokens: dict[Key, int] = {}
        self._keys: list[Key] = []
        _TRACES[self.serial] = self

    def as_constant(self, size: Any, dtype: Any, shape: Any) -> Any:
        """A size as a tensor that a call computes, or the number that is a constant."""
        if dtype.is_integer:
            return size
        return size.pinned() if self.number is None else self.number(size).as_constant(dtype, shape)

    @property
    def is_free(self) -> bool:
        """Are costs compared, so that nothing is noted?"""
        return self.serial < MODE.before

    def variable(self, name: str) -> Any:
        """A variable as an int."""
        return Sym.of(self, {(name,): 1})

    # --- values ----------------------------------------------------------------------------------

    def value(self, polynomial: Polynomial) -> int:
        """A polynomial at the hints."""
        total = 0
        for monomial, factor in polynomial.items():
            for atom in monomial:
                factor *= self.atom(atom)
            total += factor
        return total

    def atom(self, atom: Atom) -> int:
        """An atom at the hints."""
        if isinstance(atom, str):
            return self.hints[atom]
        found = self._values.get(atom)
        if found is None:
            sign, a, b = atom
            found = self._values[atom] = OPAQUE[sign](self.value(dict(a)), self.value(dict(b)))
        return found

    def bounds(self, polynomial: Polynomial) -> tuple[int, int]:
        """Sound bounds over all sizes that pass the guards so far."""
        low = high = 0
        for monomial, factor in polynomial.items():
            least = most = 1
            for atom in monomial:
                ends = [x * y for x in (least, most) for y in self.atom_bounds(atom)]
                least, most = min(ends), max(ends)
            if factor < 0:
                least, most = most, least
            low, high = low + factor * least, high + factor * most
        return low, high

    def atom_bounds(self, atom: Atom) -> tuple[int, int]:
        """Bounds of an atom."""
        if isinstance(atom, str):
            return self.low[atom], self.high[atom]
        sign, a, b = atom
        (low, high), (least, most) = self.bounds(dict(a)), self.bounds(dict(b))
        if sign == "//":
            least, most = max(1, least), max(1, most)
            return min(low // least, low // most), max(high // least, high // most)
        if sign == "min":
            return min(low, least), min(high, most)
        return 0, min(high, most - 1) if low >= 0 else most - 1

    # --- guards ----------------------------------------------------------------------------------

    def decide(self, difference: Polynomial, sign: str) -> bool:
        """How a polynomial compares with 0, noted unless bounds say so."""
        if not any(difference):
            return _COMPARE[sign](difference.get((), 0), 0)
        low, high = self.bounds(reduced(difference))
        signs = range(min(max(low, -1), 1), min(max(high, -1), 1) + 1)
        answers = {_COMPARE[sign](number, 0) for number in signs}
        if len(answers) == 1:
            return answers.pop()
        if self.ragged and sign != "<" and sign != ">=" and is_remainder(difference):
            return sign in ("!=", ">")  # a tail of no elements is a tail
        if (self.is_free or self.ragged) and sign in ("==", "!="):
            return sign == "!="  # equal only where they always are
        holds = _COMPARE[sign](self.value(difference), 0)
        if self.is_free:
            self.chosen = True
        else:
            self.note(difference, sign if holds else _OPPOSITE[sign])
        return holds

    def chose(self, size: Sym, other: Any, sign: str) -> bool:
        """What a comparison gives while costs are compared, which notes nothing: worked out once.

        Searches ask the same again and again, and hints do not change.
        """
        asked = size.key, other.key if type(other) is Sym else int(other), sign
        found = self._choices.get(asked)
        if found is None:
            before, self.chosen = self.chosen, False
            holds = self.decide(added(size.polynomial, _poly(other), -1), sign)
            found = self._choices[asked] = holds, self.chosen
            self.chosen = before
        self.chosen = self.chosen or found[1]
        return found[0]

    def note(self, difference: Polynomial, sign: str) -> None:
        """Keep a guard: as a range of a variable where it is one."""
        name = rising(difference)
        if name is not None and sign not in ("==", "!="):
            self._narrow(name, difference, sign)
            return
        guard = key_of(difference), sign
        if guard not in self.guards:
            self.guards[guard] = None
            self.why[guard] = _place()

    def _narrow(self, name: str, difference: Polynomial, sign: str) -> None:
        """The range of a variable in which a polynomial that rises or falls with it holds."""
        test = _COMPARE[sign]
        run = evaluator([key_of(difference)], [name])
        good, low, high = self.hints[name], self.low[name], self.high[name]
        ends: list[int] = []
        for end in (low, high):
            inside, outside = good, end
            if test(run(end)[0], 0):
                ends.append(end)
                continue
            while abs(outside - inside) > 1:
                middle = (inside + outside) // 2
                if test(run(middle)[0], 0):
                    inside = middle
                else:
                    outside = middle
            ends.append(inside)
        if ends[0] > low:
            self.low[name], self.why[name, "low"] = ends[0], _place()
        if ends[1] < high:
            self.high[name], self.why[name, "high"] = ends[1], _place()

    def pin(self, polynomial: Polynomial) -> int:
        """The value at the hints, which it must have from now on."""
        value = self.value(polynomial)
        if not self.is_free:
            self.note(added(polynomial, {(): value}, -1), "==")
        return value

    # --- text ------------------------------------------------------------------------------------

    def token(self, polynomial: Polynomial) -> str:
        """A polynomial as a register of LLVM's."""
        key = key_of(polynomial)
        number = self._tokens.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return f"%sym.{self.serial}.{number}"

    def sym(self, number: int) -> Any:
        """What a token stands for."""
        return Sym.of(self, dict(self._keys[number]))


_HERE = __file__.rsplit("core", 1)[0]
_TRACES: weakref.WeakValueDictionary[int, Trace] = weakref.WeakValueDictionary()


def from_token(serial: int, number: int) -> int:
    """The size that a register stands for."""
    return _TRACES[serial].sym(number)  # type: ignore[no-any-return]


def _place() -> str:
    frame: Any = sys._getframe(2)
    parts: list[str] = []
    while frame is not None and len(parts) < 4:
        name = frame.f_code.co_filename
        if not name.endswith("sym.py"):
            parts.append(f"{name.rsplit('fulgurite/', 1)[-1]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(parts)


def guard_texts(trace: Trace) -> list[str]:
    """What must hold of sizes, as Python."""
    found = []
    for name in trace.hints:
        low, high = trace.low[name], trace.high[name]
        found.append(f"{low} <= {name}" + (f" <= {high}" if high < MOST else ""))
    return found + [f"{source_of(key)} {sign} 0" for key, sign in trace.guards]


# --- ints ----------------------------------------------------------------------------------------


class Sym:
    """An int to whoever asks, which remembers the polynomial of variables that it is.

    It is no subclass: whatever needs a number of C's (`range`, a list's length) asks `__index__`.
    """

    _hash: int

    __slots__ = ("_hash", "key", "polynomial", "trace", "value")
    __array_ufunc__ = None

    trace: Trace
    polynomial: Polynomial
    key: Key
    value: int  # at the hints

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int

    @staticmethod
    def of(trace: Trace, polynomial: Polynomial) -> Any:
        """A polynomial as an int; a plain one if it is a number."""
        if not polynomial:
            return 0
        if len(polynomial) == 1 and () in polynomial:
            return polynomial[()]
        made = object.__new__(Sym)
        made.trace, made.polynomial = trace, polynomial
        made.key, made.value = key_of(polynomial), trace.value(polynomial)
        made._hash = hash((trace.serial, made.key))
        return made

    def __hash__(self) -> int:
        if self.trace.ragged or sys._getframe(1).f_code.co_filename.startswith(_HERE):
            return self._hash
        return hash(self.pinned())  # a key of the user's

    def __repr__(self) -> str:
        return source_of(self.key) if self.trace.ragged else repr(self.pinned())

    def __str__(self) -> str:
        return self.trace.token(self.polynomial) if self.trace.ragged else str(self.pinned())

    def __format__(self, spec: str) -> str:
        if not self.trace.ragged or (spec and spec != "d"):
            return format(self.pinned(), spec)
        return self.trace.token(self.polynomial)

    def as_constant(self, dtype: Any, shape: Any) -> Any:
        """The size as a tensor or as a number; see `core.node.constant`."""
        return self.trace.as_constant(self, dtype, shape)

    @property
    def source(self) -> str:
        """How a call computes it."""
        return source_of(self.key, self.trace.sources)

    def __reduce__(self) -> Any:
        raise TypeError("a size that varies is not pickled")

    def pinned(self) -> int:
        """Its value, which it must have from now on."""
        return self.trace.pin(self.polynomial)

    def __bool__(self) -> bool:
        return self.trace.decide(self.polynomial, "!=")

    def __int__(self) -> int:
        return self.pinned()

    __index__ = __int__

    def __trunc__(self) -> int:
        return self.pinned()

    def __round__(self, digits: Any = None) -> Any:
        return self

    __floor__ = __ceil__ = __pos__ = __round__

    def __float__(self) -> float:
        return float(self.value if self.trace.is_free else self.pinned())

    def bit_length(self) -> int:
        """Of its value, which it must have from now on."""
        return self.pinned().bit_length()

    def __getattr__(self, name: str) -> Any:
        if not hasattr(int, name):  # which is known without looking at its value
            raise AttributeError(f"int has no attribute {name!r}")
        return getattr(self.pinned(), name)

    def __neg__(self: Any) -> Any:
        return Sym.of(self.trace, added({}, self.polynomial, -1))

    def __abs__(self: Any) -> Any:
        return self if self >= 0 else -self

    def __invert__(self) -> int:
        return ~self.pinned()

    def __truediv__(self, other: Any) -> Any:
        if self.trace.number is not None:
            return self.trace.number(self) / other
        return float(self) / _plain(other)

    def __rtruediv__(self, other: Any) -> Any:
        if self.trace.number is not None:
            return other / self.trace.number(self)
        return _plain(other) / float(self)

    def __pow__(self: Any, other: Any, mod: Any = None) -> Any:
        if type(other) is int and 0 <= other <= 4 and mod is None:
            found: Any = 1
            for _ in range(other):
                found = found * self
            return found
        if self.trace.number is not None and mod is None:
            return self.trace.number(self) ** other
        return (float(self) if isinstance(other, float) else self.pinned()) ** other

    def __rpow__(self, other: Any, mod: Any = None) -> Any:
        return other ** self.pinned()

    def __lshift__(self: Any, other: int) -> Any:
        return self * (1 << other)

    def __rshift__(self: Any, other: int) -> Any:
        return self // (1 << other)

    def __rlshift__(self, other: int) -> int:
        return other << self.pinned()

    def __rrshift__(self, other: int) -> int:
        return other >> self.pinned()

    def __and__(self: Any, other: int) -> Any:
        if type(other) is int and other < 0 and (-other) & (-other - 1) == 0:
            return self // -other * -other
        if type(other) is int and other > 0 and other & (other + 1) == 0:
            return self % (other + 1)
        return self.pinned() & other

    __rand__ = __and__

    def __or__(self, other: int) -> int:
        return self.pinned() | other

    __ror__ = __or__

    def __xor__(self, other: int) -> int:
        return self.pinned() ^ other

    __rxor__ = __xor__

    def __divmod__(self: Any, other: int) -> Any:
        return self // other, self % other

    def __rdivmod__(self: Any, other: int) -> Any:
        return other // self, other % self


def _plain(value: Any) -> Any:
    return float(value) if type(value) is Sym else value


def plain(value: Any) -> int:
    """The hint of a size that varies, without a guard: for choices, of which any is right."""
    if type(value) is not Sym:
        return value  # type: ignore[no-any-return]
    value.trace.chosen = True
    return value.value


def at_hints(value: Any) -> int:
    """A size's value at the hints: for what is tried, and noted if it is taken."""
    return value.value if type(value) is Sym else value


def _poly(value: Any) -> Polynomial:
    if type(value) is Sym:
        return value.polynomial
    return {(): value + 0} if value else {}


def _arithmetic(name: str, function: Callable[[Trace, Polynomial, Polynomial], int]) -> None:
    def apply(self: Sym, other: Any) -> Any:
        if type(other) in _WHOLE:
            return function(self.trace, self.polynomial, _poly(other))
        return _numbers(name, self, other) if isinstance(other, int | float) else NotImplemented

    def reflected(self: Sym, other: Any) -> Any:
        if type(other) in _WHOLE:
            return function(self.trace, _poly(other), self.polynomial)
        return _numbers(name, other, self) if isinstance(other, int | float) else NotImplemented

    setattr(Sym, f"__{name}__", apply)
    setattr(Sym, f"__r{name}__", reflected)


_WHOLE = (int, bool, Sym)


def _numbers(name: str, a: Any, b: Any) -> Any:
    """Arithmetic with a float, or with another number of a call."""
    trace = a.trace if type(a) is Sym else b.trace
    if trace.number is not None:
        a, b = [trace.number(x) if type(x) is Sym else x for x in (a, b)]
    elif isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    else:  # an int of a class of its own
        a, b = [x if type(x) is Sym else operator.index(x) for x in (a, b)]
    return getattr(operator, name)(a, b)


def _divided(trace: Trace, a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder, as far as they are polynomials; opaque atoms for the rest."""
    if set(b) == {()} and a and all(c < 0 for m, c in a.items() if m):  # -(-n // 8) rounds up
        up = added(added({}, a, -1), {(): b[()] - 1}, 1)
        whole = added({}, _divided(trace, up, b)[0], -1)
        return whole, added(a, multiplied(whole, b), -1)
    whole, rest = quotient(a, b)
    if not rest:
        return whole, {}
    for left, over in ((whole, rest), ({}, a)):  # n - 1 is less than 2**64, in which -1 is not
        low, high = trace.bounds(over)
        if low >= 0 and high < trace.bounds(b)[0]:
            return left, over
    top, below = key_of(rest), key_of(b)
    return added(whole, {(("//", top, below),): 1}, 1), {(("%", top, below),): 1}


_arithmetic("add", lambda trace, a, b: Sym.of(trace, added(a, b, 1)))
_arithmetic("sub", lambda trace, a, b: Sym.of(trace, added(a, b, -1)))
_arithmetic("mul", lambda trace, a, b: Sym.of(trace, multiplied(a, b)))
_arithmetic("floordiv", lambda trace, a, b: Sym.of(trace, _divided(trace, a, b)[0]))
_arithmetic("mod", lambda trace, a, b: Sym.of(trace, _divided(trace, a, b)[1]))


def _comparison(name: str, sign: str) -> None:
    def apply(self: Sym, other: Any) -> Any:
        if isinstance(other, int):
            other = other if type(other) in _WHOLE else operator.index(other)
            if self.trace.is_free:
                return self.trace.chose(self, other, sign)
            return self.trace.decide(added(self.polynomial, _poly(other), -1), sign)
        if isinstance(other, float):
            if other != other or other in (math.inf, -math.inf):
                return _COMPARE[sign](0.0, other)  # type: ignore[arg-type]
            if sign in ("==", "!=") and other != math.floor(other):
                return sign == "!="
            whole = math.ceil(other) if sign in ("<", ">=") else math.floor(other)
            return self.trace.decide(added(self.polynomial, _poly(whole), -1), sign)
        return NotImplemented

    setattr(Sym, f"__{name}__", apply)


for _name, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"),
                     ("ge", ">=")):  # fmt: skip
    _comparison(_name, _sign)


def least(a: Any, b: Any) -> Any:
    """min(a, b) for all sizes, without a guard."""
    one = a if type(a) is Sym else b
    if type(one) is not Sym:
        return min(a, b)
    low, high = one.trace.bounds(added(_poly(a), _poly(b), -1))
    if low >= 0 or high <= 0:
        return b if low >= 0 else a
    return Sym.of(one.trace, {(("min", key_of(_poly(a)), key_of(_poly(b))),): 1})


def greatest(a: Any, b: Any) -> Any:
    """max(a, b) for all sizes, without a guard."""
    return a + b - least(a, b)


def sized(value: Any, change: Callable[[Sym], int], known: dict[Any, Any]) -> Any:
    """Any value of the compiler's with other numbers in the place of its sizes."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is Sym:
        return change(value)
    if kind is dict:
        return {sized(k, change, known): sized(v, change, known) for k, v in value.items()}
    if kind in _SEVERAL or isinstance(value, tuple):
        return value if ATOMS.issuperset(map(type, value)) else _sized_parts(value, change, known)
    if is_dataclass(value) and not isinstance(value, type):
        if id(value) not in known:
            known[id(value)] = value, _sized_record(value, change, known)
        return known[id(value)][1]
    return known["node"](value) if hasattr(value, "src") else value


def _sized_parts(value: Any, change: Callable[[Sym], int], known: dict[Any, Any]) -> Any:
    """A tuple, list or set with other sizes; itself where there are none."""
    kind = type(value)
    parts = [p if type(p) in ATOMS else sized(p, change, known) for p in value]
    if _are_same(parts, value):
        return value
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _sized_record(value: Any, change: Callable[[Sym], int], known: dict[Any, Any]) -> Any:
    """A dataclass with other sizes; itself where there are none."""
    names = [f.name for f in dataclass_fields(value) if f.init]
    old = [getattr(value, name) for name in names]
    new = [sized(part, change, known) for part in old]
    return value if _are_same(new, old) else type(value)(**dict(zip(names, new, strict=True)))


def _are_same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all([a is b for a, b in zip(new, old, strict=True)])


_SEVERAL = (tuple, list, set, frozenset)
ATOMS: set[type] = {int, str, float, bool, type(None), bytes, complex}  # hold no sizes


def as_index(value: Any) -> int:
    """A whole number, as `operator.index` has it, that may remember how it came about."""
    return value if type(value) is Sym else operator.index(value)  # type: ignore[return-value]


def varies(value: object) -> bool:
    """True of a size that is not one number."""
    return type(value) is Sym
