"""Affine indices: a constant plus whole multiples of atoms, with sound bounds.

In: sums of RANGE axes, written `(constant, ((atom, coefficient), ...))`. Out: the same, in one
normal form: atoms ordered, none with coefficient 0. An atom is an axis number; a `Source`, the
numbered value of a node (a dynamic index); or `("//", index, n)` and `("%", index, n)`, for what
no axis can be split for. Everything a kernel reads or writes is at such an index, so bounds,
coefficients and the axes used are read off, never searched for. All of it is plain tuples: part
of a node's argument, printed and parsed like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from ...core.node import Shape, Size, Source
from ...core.symbolic.sym import at_hints, varies

Affine: TypeAlias = "tuple[int, tuple[tuple[Atom, int], ...]]"
Atom: TypeAlias = "int | Source | tuple[str, Affine, int]"
Condition: TypeAlias = "tuple[Affine, int]"  # 0 <= index < size
Bound: TypeAlias = Callable[["int | Source"], tuple[int, int]]

ZERO: Affine = (0, ())


def _rank(term: tuple[Atom, int]) -> tuple[int, object]:
    """A fixed order of atoms: axes by number, then the others by what they are made of."""
    atom = term[0]
    if isinstance(atom, int):
        return 0, atom
    if isinstance(atom, Source):
        return 1, atom.index
    return 2, repr(atom)


def number(value: int) -> Affine:
    """A constant index."""
    return value, ()


def axis(atom: Atom) -> Affine:
    """An atom by itself."""
    return 0, ((atom, 1),)


def add(a: Affine, b: Affine, factor: int = 1) -> Affine:
    """a + factor * b."""
    if factor == 0 or b == ZERO:
        return a
    if a == ZERO and factor == 1:
        return b
    terms = dict(a[1])
    for atom, coefficient in b[1]:
        terms[atom] = terms.get(atom, 0) + coefficient * factor
    return _sum(a[0] + b[0] * factor, terms)


def _sum(start: int, terms: dict[Atom, int]) -> Affine:
    """A sum of atoms; where it has both digits of a number, it has the number."""
    found = start, _ordered(terms)
    for atom, coefficient in found[1]:
        if isinstance(atom, tuple) and atom[0] == "%":
            quotient = _quotient_beside(atom, coefficient, terms)
            if quotient is not None:
                del terms[atom], terms[quotient]
                return add((start, _ordered(terms)), atom[1], coefficient)
    return found


def _quotient_beside(
    remainder: tuple[str, Affine, int], coefficient: int, terms: Mapping[Atom, int]
) -> Atom | None:
    """The quotient whose digit a remainder is, as n * (e // n) + e % n is e, if it is a term."""
    _, inner, by = remainder
    ways: list[Atom] = [("//", inner, by)]
    if inner[0] == 0 and len(inner[1]) == 1:
        ((atom, one),) = inner[1]
        if one == 1 and isinstance(atom, tuple) and atom[0] == "//":
            ways.append(("//", atom[1], atom[2] * by))  # (e // m) // n is e // (m * n)
    return next((q for q in ways if q in terms and _is_same(terms[q], coefficient * by)), None)


def _is_same(a: int, b: int) -> bool:
    """True if two numbers are one whatever the sizes are, so that no guard is needed for it."""
    difference = a - b
    return not varies(difference) and difference == 0


def _ordered(terms: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    left = [(atom, c) for atom, c in terms.items() if c]
    if len(left) > 1:
        left.sort(key=_rank)
    return tuple(left)


def scale(a: Affine, factor: int) -> Affine:
    """factor * a."""
    return add(ZERO, a, factor)


def axes_of(index: Affine) -> frozenset[int]:
    """The RANGE axes an index uses itself (not those of its dynamic atoms)."""
    found: set[int] = set()
    for atom, _ in index[1]:
        if isinstance(atom, int):
            found.add(atom)
        elif isinstance(atom, tuple):
            found |= axes_of(atom[1])
    return frozenset(found)


def sources_of(index: Affine) -> list[Source]:
    """The dynamic atoms of an index, each once, in order."""
    found: dict[Source, None] = {}
    for atom, _ in index[1]:
        if isinstance(atom, Source):
            found[atom] = None
        elif isinstance(atom, tuple):
            found.update(dict.fromkeys(sources_of(atom[1])))
    return list(found)


def rename(index: Affine, new: Callable[[int | Source], int | Source]) -> Affine:
    """The index with every axis and dynamic atom renamed, also inside divisions."""
    out = number(index[0])
    for atom, coefficient in index[1]:
        named: Atom
        if isinstance(atom, tuple):
            named = (atom[0], rename(atom[1], new), atom[2])
        else:
            named = new(atom)
        out = add(out, axis(named), coefficient)
    return out


def bounds(index: Affine, bound: Bound) -> tuple[int, int]:
    """Sound bounds: the least and largest value over all values of the atoms."""
    low = high = index[0]
    for atom, coefficient in index[1]:
        least, most = atom_bounds(atom, bound)
        if coefficient > 0:
            low, high = low + coefficient * least, high + coefficient * most
        else:
            low, high = low + coefficient * most, high + coefficient * least
    return low, high


def atom_bounds(atom: Atom, bound: Bound) -> tuple[int, int]:
    """Sound bounds of one atom."""
    if not isinstance(atom, tuple):
        return bound(atom)
    sign, index, by = atom
    if sign == "%":
        return 0, by - 1
    low, high = bounds(index, bound)
    return low // by, high // by


def divide(index: Affine, by: int, bound: Bound) -> tuple[Affine, Affine] | None:
    """Quotient and remainder as affine indices, where they are; None where a division is left.

    It is too small to divide; or every coefficient that does not divide belongs to a remainder
    that stays below `by`; or the same with coefficients reduced modulo `by`, which is how sliding
    windows come out: (k*(n+1) + i) // n = k while k + i < n; or reduced to the nearest multiple,
    as a shift of rows against each other does: (k*(n-1) + i) // n = k while 0 <= i - k.
    """
    if _is_within(bounds(index, bound), by):
        return ZERO, index
    for way in (_exact, _floor, _nearest):
        terms = [(a, way(c, by)) for a, c in index[1]]
        rest = (index[0] % by, tuple([(a, r) for a, (_, r) in terms if r]))
        if _is_within(bounds(rest, bound), by):
            return (index[0] // by, tuple([(a, q) for a, (q, _) in terms if q])), rest
    return None


def _exact(coefficient: int, by: int) -> tuple[int, int]:
    return (coefficient // by, 0) if coefficient % by == 0 else (0, coefficient)


def _floor(coefficient: int, by: int) -> tuple[int, int]:
    return coefficient // by, coefficient % by


def _nearest(coefficient: int, by: int) -> tuple[int, int]:
    if varies(coefficient) or varies(by):  # where it is near for every size: n - 1 over n
        over = coefficient - by
        return _floor(coefficient, by) if varies(over) else (1, over)
    q = (coefficient + by // 2) // by
    return q, coefficient - q * by


def _is_within(ends: tuple[int, int], by: int) -> bool:
    """True if all values are remainders; that they are not is no guard, as no way must be taken."""
    low, high = ends
    if not (at_hints(low) >= 0 and at_hints(high) < at_hints(by)):
        return False
    return low >= 0 and high < by


@lru_cache(maxsize=4096)
def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major steps; 0 for a dimension of size 1, which adds nothing to an index."""
    out: list[int] = []
    step = 1
    for size in reversed(shape):
        out.append(step if size > 1 else 0)
        step *= size
    return tuple(reversed(out))


def flat(index: Sequence[Affine], shape: tuple[int, ...]) -> Affine:
    """The position in row-major memory."""
    constant = 0
    terms: dict[Atom, int] = {}
    for (start, part), step in zip(index, strides(shape), strict=True):
        constant += start * step
        for atom, coefficient in part:
            terms[atom] = terms.get(atom, 0) + coefficient * step
    return _sum(constant, terms)


@lru_cache(maxsize=4096)
def regroup(
    new: tuple[int, ...], old: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The smallest runs of dimensions of two shapes with equal products, in order."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(new) or j < len(old):
        first_new, first_old, p, q = i, j, 1, 1
        if i < len(new):
            p, i = new[i], i + 1
        if j < len(old):
            q, j = old[j], j + 1
        while p != q:
            if p < q:
                p, i = p * new[i], i + 1
            else:
                q, j = q * old[j], j + 1
        groups.append((tuple(range(first_new, i)), tuple(range(first_old, j))))
    return tuple(groups)


def is_bijection(
    index: Sequence[Affine], shape: Shape, sizes: Sequence[Size] | Mapping[int, Size]
) -> bool:
    """True if the index is a bijection from its axes to the elements of a shape.

    Each dimension must be a mixed-radix number of axes of its own: coefficients 1, n0, n0*n1, ...
    """
    seen: set[Atom] = set()
    for part, size in zip(index, shape, strict=True):
        if part[0] or not isinstance(size, int):
            return False
        step = 1
        for atom, coefficient in sorted(part[1], key=lambda term: abs(term[1])):
            length = sizes[atom] if isinstance(atom, int) else None
            if not isinstance(length, int) or coefficient != step or atom in seen:
                return False
            seen.add(atom)
            step *= length
        if step != size:
            return False
    return True


class Domain(tuple[Condition, ...]):
    """The places where all of some conditions hold: plain tuples in arguments of nodes."""

    __slots__ = ()

    def intersect(self, other: Iterable[Condition]) -> Domain:
        """The places in both: every condition once."""
        return Domain(dict.fromkeys((*self, *other)))

    def implies(self, other: Iterable[Condition]) -> bool:
        """True if all conditions of another domain are among these."""
        return set(self).issuperset(other)

    def map(self, change: Callable[[Affine], Affine]) -> Domain:
        """The domain in terms of other indices."""
        return Domain([(change(index), size) for index, size in self])

    def is_empty(self, bound: Bound) -> bool:
        """True if bounds say that some condition never holds."""
        for index, size in self:
            low, high = bounds(index, bound)
            if high < 0 or low >= size:
                return True
        return False

    def simplify(self, bound: Bound) -> Domain:
        """The conditions that bounds do not settle; those on the same sum of axes are one."""
        ranges: dict[tuple[tuple[Atom, int], ...], tuple[int, int]] = {}
        for (start, terms), size in self:
            first, last = ranges.get(terms, (-start, size - start))
            ranges[terms] = max(first, -start), min(last, size - start)
        left: list[Condition] = []
        for terms, (first, last) in ranges.items():
            low, high = bounds((0, terms), bound)
            if low < first or high >= last:
                left.append(((-first, terms), max(0, last - first)))
        return Domain(left)

    def without(self, known: Iterable[Condition], bound: Bound) -> Domain:
        """The conditions that do not follow from one that holds already."""
        asked = [c for c in self if not any(_follows(c, other, bound) for other in known)]
        return Domain(asked)


def _follows(condition: Condition, other: Condition, bound: Bound) -> bool:
    """True if a condition on a quotient follows from that on what is divided: rows of a part that
    ends with a row are those of its elements."""
    (start, terms), size = condition
    whole = dict(other[0][1])
    by = whole.get(terms[0][0], 0) // terms[0][1] if terms else 0
    found = divide(other[0], by, bound) if by > 1 else None
    if found is None or found[0][1] != terms:
        return False
    first = start - found[0][0]
    return first >= 0 and first + (other[1] - 1) // by < size
