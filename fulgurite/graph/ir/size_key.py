"""The key of a graph without its sizes, and sizes as expressions of a few variables.

In: a structure (`cache_key`). Out: its skeleton, in which every size from 2 up is blank, and these
sizes in order. Graphs of one skeleton differ in sizes only. Of several of them, `fit` finds which
sizes vary, and writes each as an expression of the fewest variables: equal sizes are one, then
multiples, sums and products that hold in all graphs that were seen. Whether it holds in the next
graph is checked there, size by size: an expression that was a coincidence costs another plan, never
a wrong one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from ...core.dtype import DType
from ...core.symbolic.polynomial import Key, added, evaluator, key_of, multiplied
from ...core.symbolic.sym import Sym, Trace
from .cache_key import Structure

Sizes: TypeAlias = tuple[int, ...]
Expression: TypeAlias = Key  # a polynomial of the variables s0, s1, ...

_BLANK = ("size",)


def skeleton_of(
    structure: Structure, mapped: Callable[[Structure, Any], Structure] | None = None
) -> tuple[Structure, Sizes]:
    """A structure with its sizes taken out, and the sizes; `mapped`: of other parts than those."""
    sizes: list[int] = []
    known: dict[Hashable, Any] = {}  # shapes come again and again

    def blank(value: Any) -> Any:
        kind = type(value)
        if kind is int:
            if value < 2:
                return value
            sizes.append(value)
            return _BLANK
        if kind is not tuple:
            return value
        found = known.get(value)
        if found is None:
            start = len(sizes)
            made = tuple([blank(part) for part in value])
            known[value] = made, tuple(sizes[start:])
            return made
        sizes.extend(found[1])
        return found[0]

    return (mapped or _mapped)(structure, blank), tuple(sizes)


class Skeletons:
    """A number for each entry without its sizes: entries come again and again.

    A number is never given twice, so equal numbers are equal entries.
    """

    most = 1 << 15  # entries that are remembered

    def __init__(self) -> None:
        self._serials = itertools.count()
        self._codes: dict[Hashable, int] = {}  # of entries without sizes
        self._known: dict[Hashable, tuple[int, Sizes]] = {}  # of entries with them
        self._shapes: dict[tuple[int, ...], tuple[tuple[Any, ...], list[int]]] = {}  # and without

    def key(self, structure: Structure) -> tuple[tuple[int, ...], Sizes]:
        """The key of a structure without its sizes, and the sizes."""
        codes: list[int] = []
        sizes: list[int] = []
        known = self._known
        for entry in structure:
            found = known.get(entry)
            if found is None:
                found = known[entry] = self._new(entry)
            codes.append(found[0])
            sizes.extend(found[1])
        return tuple(codes), tuple(sizes)

    def clear(self) -> None:
        """Forget every entry, and what it holds."""
        for table in (self._known, self._codes, self._shapes):
            table.clear()

    def _new(self, entry: Hashable) -> tuple[int, Sizes]:
        sizes: list[int] = []
        shapes = self._shapes

        def blank(value: Any) -> Any:
            if type(value) is tuple and {*map(type, value)} <= _WHOLE:  # as nearly all are
                found = shapes.get(value)
                if found is None:
                    found = shapes[value] = (
                        tuple([n if n < 2 else _BLANK for n in value]),
                        [n for n in value if n >= 2],
                    )
                sizes.extend(found[1])
                return found[0]
            (made,), more = skeleton_of((value,), _whole)
            sizes.extend(more)
            return made

        skeleton = _changed(entry, blank)
        for table in (self._known, self._codes, shapes):
            if len(table) >= self.most:
                table.clear()
        return self._codes.setdefault(skeleton, next(self._serials)), tuple(sizes)


SKELETONS = Skeletons()


def filled(skeleton: Structure, sizes: Sequence[int]) -> Structure:
    """The structure of a skeleton with these sizes."""
    left = iter(sizes)

    def fill(value: Any) -> Any:
        if value is _BLANK:
            return next(left)
        return tuple([fill(part) for part in value]) if type(value) is tuple else value

    return _mapped(skeleton, fill)


def _mapped(structure: Structure, change: Any) -> Structure:
    """A structure with the sizes in shapes and arguments changed, in order."""
    return tuple([_changed(entry, change) for entry in structure])


def _changed(entry: Hashable, change: Any) -> Hashable:
    """An entry with the sizes in its shapes and arguments changed, in order."""
    if not isinstance(entry, tuple):
        return entry
    if isinstance(entry[0], DType):
        return entry[0], change(entry[1])
    if entry[0] == "param":
        return *entry[:3], change(entry[3])
    if entry[0] == "const":
        return "const", (entry[1][0], change(entry[1][1]))
    op, dtype, arg, *sources = entry
    sources = [(s[0], change(s[1])) if isinstance(s, tuple) else s for s in sources]
    return op, dtype, (arg if op.sizes is None else _resized(arg, op.sizes, change)), *sources


def _whole(values: Structure, change: Any) -> Structure:
    return tuple([change(value) for value in values])


_WHOLE = {int}


def _resized(arg: Any, part: slice, change: Any) -> Any:
    """An argument with the sizes in that part of it changed."""
    begin, end, _ = part.indices(len(arg))
    return arg[:begin] + change(arg[begin:end]) + arg[end:]


class Fit:
    """Which sizes of a skeleton vary, and what they are made of."""

    def __init__(
        self, places: Sequence[int], expressions: Sequence[Expression], variables: Sequence[int]
    ) -> None:
        self.places = tuple(places)  # of the sizes that vary
        self.expressions = tuple(expressions)  # one for each
        self.variables = tuple(variables)  # the place of each variable
        self.names = tuple([f"s{i}" for i in range(len(variables))])
        distinct = list(dict.fromkeys(expressions))
        number = {expression: i for i, expression in enumerate(distinct)}
        self._which = [number[expression] for expression in expressions]
        self._evaluate = evaluator(distinct, self.names)

    def is_like(self, other: Fit) -> bool:
        """True if the same sizes vary in the same way."""
        return (self.places, self.expressions) == (other.places, other.expressions)

    def values(self, sizes: Sizes) -> tuple[int, ...]:
        """The variables of a graph with these sizes."""
        return tuple([sizes[place] for place in self.variables])

    def holds(self, sizes: Sizes, seen: Sizes) -> bool:
        """True if sizes are what the expressions say, and elsewhere those that were seen."""
        values = self.values(sizes)
        if min(values) < 2 or len(sizes) != len(seen):
            return False
        known, expected = self._evaluate(*values), list(seen)
        for place, which in zip(self.places, self._which, strict=True):
            expected[place] = known[which]
        return tuple(expected) == sizes

    def symbolic(self, sizes: Sizes, trace: Trace) -> list[int]:
        """The sizes with those that vary as ints that remember it."""
        found: list[int] = list(sizes)
        for place, expression in zip(self.places, self.expressions, strict=True):
            found[place] = Sym.of(trace, dict(expression))
        return found


def fit(samples: Sequence[Sizes]) -> Fit | None:
    """Expressions that hold in all samples; None where nothing varies."""
    columns: dict[tuple[int, ...], list[int]] = {}
    for place, column in enumerate(zip(*samples, strict=True)):
        if min(column) != max(column):
            columns.setdefault(column, []).append(place)
    known: dict[tuple[int, ...], Expression] = {}
    variables: list[int] = []
    found: dict[int, Expression] = {}
    for column in sorted(columns, key=sum):
        expression = expressed(column, known)
        if expression is None:
            expression = (((f"s{len(variables)}",), 1),)
            variables.append(columns[column][0])
        known[column] = expression
        found.update(dict.fromkeys(columns[column], expression))
    if not variables:
        return None
    places = sorted(found)
    return Fit(places, [found[place] for place in places], variables)


Known: TypeAlias = Mapping[tuple[int, ...], Expression]


def expressed(column: tuple[int, ...], known: Known) -> Expression | None:
    """A column as a multiple of known ones or of the product of two, or as a sum with one."""
    return _multiple(column, known) or _product(column, known) or _shifted(column, known)


def _multiple(column: tuple[int, ...], known: Known) -> Expression | None:
    for other, expression in known.items():
        a, b = next((r for r in zip(column, other, strict=True) if r[1]), (0, 1))  # not a size of 0
        factor = a // b
        if factor and all([a == factor * b for a, b in zip(column, other, strict=True)]):
            return key_of(multiplied(dict(expression), {(): factor}))
    return None


def _product(column: tuple[int, ...], known: Known) -> Expression | None:
    for one, left in known.items():
        products = {
            tuple([a * b for a, b in zip(one, two, strict=True)]): key_of(
                multiplied(dict(left), dict(right))
            )
            for two, right in known.items()
        }
        if found := _multiple(column, products):
            return found
    return None


def _shifted(column: tuple[int, ...], known: Known) -> Expression | None:
    for other, expression in known.items():
        a, b = column[0], other[0]
        c, d = next(r for r in zip(column, other, strict=True) if r[1] != b)
        factor, rest = divmod(c - a, d - b)
        addend = a - factor * b
        fits = all([x == factor * y + addend for x, y in zip(column, other, strict=True)])
        if not rest and factor > 0 and fits:
            scaled = multiplied(dict(expression), {(): factor})
            return key_of(added(scaled, {(): addend} if addend else {}, 1))
    return None
