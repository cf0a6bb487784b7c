"""Polynomials of sizes in one normal form: what a size that varies is made of.

In: variables by name, and ints. Out: sums of products of atoms, as dicts from monomials to factors.
An atom is a variable, or a division, a remainder or a minimum of polynomials, which nothing takes
apart again. Equal sizes have equal keys; `evaluator` makes one Python function of many, `filler`
one of tuples that they stand in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Atom: TypeAlias = "str | tuple[str, Key, Key]"  # a variable, or `//`, `%`, min of polynomials
Monomial: TypeAlias = tuple[Atom, ...]
Polynomial: TypeAlias = dict[Monomial, int]
Key: TypeAlias = tuple[tuple[Monomial, int], ...]


def _order(atom: Atom) -> str:
    return atom if isinstance(atom, str) else repr(atom)


def key_of(polynomial: Polynomial) -> Key:
    """A polynomial that can be compared and hashed."""
    if len(polynomial) == 1:
        return tuple(polynomial.items())
    return tuple(sorted(polynomial.items(), key=lambda term: [*map(_order, term[0])]))


def added(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    """a + sign * b."""
    out = dict(a)
    for monomial, factor in b.items():
        new = out.get(monomial, 0) + sign * factor
        if new:
            out[monomial] = new
        else:
            out.pop(monomial, None)
    return out


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    """a * b."""
    out: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted((*m, *n), key=_order)) if m and n else m or n
            out[key] = out.get(key, 0) + c * d
    return {m: c for m, c in out.items() if c}


def quotient(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """a as b * quotient + rest, for b of one term; the rest are terms that b does not divide."""
    if len(b) != 1:
        return ({(): 1}, {}) if a == b else ({}, a)
    ((divisor, factor),) = b.items()
    whole: Polynomial = {}
    rest: Polynomial = {}
    for monomial, c in a.items():
        left = list(monomial)
        for atom in divisor:
            if atom not in left:
                break
            left.remove(atom)
        else:
            if c // factor:
                whole[tuple(left)] = c // factor
            if c % factor:
                rest[monomial] = c % factor
            continue
        rest[monomial] = c
    return whole, rest


def reduced(polynomial: Polynomial) -> Polynomial:
    """A polynomial of the same sign, without the variables that all terms have."""
    first, *others = polynomial
    common = [atom for atom in dict.fromkeys(first) if isinstance(atom, str)]
    common = [atom for atom in common if all(atom in m for m in others)]
    while common:
        reduced: Polynomial = {}
        for monomial, factor in polynomial.items():
            left = list(monomial)
            for atom in common:
                left.remove(atom)
            reduced[tuple(left)] = factor
        polynomial = reduced
        common = [atom for atom in common if all(atom in m for m in polynomial)]
    return polynomial


def rising(polynomial: Polynomial) -> str | None:
    """The variable that a polynomial of no other rises or falls with."""
    found: set[str] = set()
    signs: set[bool] = set()
    for monomial, factor in polynomial.items():
        if monomial:
            signs.add(factor > 0)
        for atom in monomial:
            name = _rising_atom(atom)
            if name is None:
                return None
            found.add(name)
    return found.pop() if len(found) == 1 and len(signs) == 1 else None


def _rising_atom(atom: Atom) -> str | None:
    if isinstance(atom, str):
        return atom
    sign, a, b = atom
    constant = all(not monomial for monomial, _ in b)
    if sign == "%" or not constant or any(c < 0 for _, c in (*a, *b)):
        return None
    return rising(dict(a))


def is_remainder(polynomial: Polynomial) -> bool:
    """True of multiples of one remainder: that it is not 0 excludes only a shorter tail."""
    if len(polynomial) != 1:
        return False
    ((monomial, factor),) = polynomial.items()
    return factor > 0 and any(not isinstance(atom, str) and atom[0] == "%" for atom in monomial)


OPAQUE: dict[str, Callable[[int, int], int]] = {
    "//": operator.floordiv, "%": operator.mod, "min": min,
}  # fmt: skip


def source_of(key: Key, sources: Mapping[str, str] | None = None) -> str:
    """A polynomial as Python."""
    terms = []
    for monomial, factor in key:
        parts = [_atom_source(atom, sources) for atom in monomial]
        if factor != 1 or not parts:
            parts.insert(0, str(factor))
        terms.append("*".join(parts))
    return f"({' + '.join(terms) or '0'})"


def _atom_source(atom: Atom, sources: Mapping[str, str] | None) -> str:
    if isinstance(atom, str):
        return sources[atom] if sources else atom
    sign, a, b = atom
    if sign == "min":
        return f"min({source_of(a, sources)}, {source_of(b, sources)})"
    return f"({source_of(a, sources)} {sign} {source_of(b, sources)})"


def evaluator(keys: Sequence[Key], names: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function from the values of variables to those of polynomials."""
    inside = "".join([f"{source_of(key)}, " for key in keys])
    found: Callable[..., tuple[int, ...]] = eval(f"lambda {', '.join(names)}: ({inside})", {})
    return found


class Named(NamedTuple):
    """A number that follows from variables, among others in a tuple."""

    expression: Key


def has_names(value: Any) -> bool:
    """True if a number in a value follows from variables."""
    return type(value) is Named or (type(value) is tuple and any(map(has_names, value)))


def filler(values: Sequence[Any], names: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    """A function from variables to these values, with numbers for what is named in them.

    Tuples with names, as shapes, come again and again: each is made once.
    """
    known: dict[str, Any] = {"min": min}
    inside: dict[Any, str] = {}
    texts = "".join([f"{_source(value, known, inside)}, " for value in values])
    found: Callable[..., tuple[Any, ...]] = eval(f"lambda {', '.join(names)}: ({texts})", known)
    return found


def _source(value: Any, known: dict[str, Any], inside: dict[Any, str]) -> str:
    """A value as Python: numbers that follow by their sources, other things by a name."""
    if type(value) is Named:
        return source_of(value.expression)
    if type(value) is int:
        return repr(value)
    if not has_names(value):
        name = f"v{id(value)}"
        known[name] = value
        return name
    if value in inside:
        return inside[value]
    text = f"({''.join([f'{_source(part, known, inside)}, ' for part in value])})"
    inside[value] = f"t{len(inside)}"
    return f"({inside[value]} := {text})"
