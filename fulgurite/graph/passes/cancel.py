"""Sums of which nothing is left: what an extreme passes on where only differences from it count.

In: a graph. Out: one with the same values, without summands that are 0 whatever the numbers are.
Weights that are measured from the largest of their row do not depend on which value that was; the
adjoint of that largest one is a sum that cancels, and the pass over a matrix which finds out where
it goes adds nothing but rounding. A value is written as a polynomial of factors and of sums of
factors, whatever the order of sums: Σ_k c e = c Σ_k e where c has no k, and Σ_k Σ_d = Σ_d Σ_k.
Where all its terms cancel it is 0, and NaN or infinity in it is in what it is added to as well.
Floats are added in another order for that, so `exact` leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import TypeAlias

from ...core.dtype import decode
from ...core.node import Node, make
from ...core.ops.elementwise import ADD, CAST, DIV, EQ, EXP, EXP2, MAX, MUL, NEG, SUB, WHERE
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE
from ...core.ops.reduce import REDUCE
from ...core.substitute import substitute
from ..fusion.machine import elements, is_contraction
from .split_reduce import places

Label: TypeAlias = int  # an axis of the value that is written; below 0: one that is summed over
Factor: TypeAlias = tuple[Node, tuple[Label | None, ...]]  # None: an axis of one step
Sum: TypeAlias = frozenset[tuple[Factor, int]]  # of a product with powers; without sums: a factor
Term: TypeAlias = frozenset[tuple[Sum, int]]
Terms: TypeAlias = dict[Term, float]
_MOST = 6  # terms of a value
_DEEP, _NEAR = 32, 10  # ops that are looked through, with products and without
_SUMMED = 4  # axes of one sum
_OPEN = (ADD, SUB, NEG, MUL, DIV, CAST, EXPAND, PERMUTE, RESHAPE, REDUCE)  # looked through
_SHORT = 32  # numbers of a row whose sum is off by as much as one of them
_TINY = 1e-12  # of what was added: a sum that is no more than this is 0


def vanish(sink: Node, order: Sequence[Node]) -> Node:
    """The graph without summands that are 0."""
    known: dict[Node, Node] = {}
    deep, near = _Polynomials(_DEEP, True), _Polynomials(_NEAR, False)
    for node in order:
        if node.op not in (ADD, SUB) or node.dtype.kind != "f":
            continue
        for summand, other in (node.src, node.src[::-1]):
            chosen = summand.op is MUL and any(_is_choice(s) for s in summand.src)
            rows = next(filter(deep.is_zero, summand.src), None) if chosen else summand
            if chosen and rows is not None and _is_short(rows):
                continue
            if _is_shared(summand):  # by an extreme of two values
                zero = not deep.terms(summand, 0)
            else:
                zero = rows is not None and (chosen or near.is_zero_weighed(rows))
            if rows is not None and zero and _read_by(rows, True) <= _read_by(other):
                less = node.op is SUB and summand is node.src[0]
                known[node] = make(NEG, node.dtype, (other,)) if less else other
                break
    return substitute(sink, known) if known else sink


def _is_short(rows: Node) -> bool:
    """Are rows so short that what is left of their sum mends more than a pass over them costs?"""
    return elements(rows.shape) <= _SHORT * elements(rows.src[0].shape)


def _read_by(value: Node, either: bool = False) -> set[Node]:
    """What a value is made of: NaN and infinity there make it NaN, and so what it is added to.

    `either`: what might make it NaN, which of a choice either side does.
    """
    opened = (*_OPEN, MAX, WHERE) if either else (*_OPEN, MAX)
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        sources = node.src[1:] if node.op is WHERE else node.src
        new = [s for s in sources if s not in seen] if node.op in opened else []
        stack += new
        seen.update(new)
    made = [n for n in seen if n.op not in (*opened, CONST)]
    return {n for n in made if n.dtype.kind == "f" and not _is_choice(n)}  # others are finite


def _is_choice(node: Node) -> bool:
    """Is it one of two numbers?"""
    return node.op is WHERE and all(s.op is CONST for s in node.src[1:])


def _is_shared(node: Node) -> bool:
    """Is it chosen where two numbers are equal, as the adjoint of an extreme of two is?"""
    condition = node.src[0] if node.op is WHERE else node
    return condition.op is EQ and condition.src[0].dtype.kind == "f" and not _is_choice(node)


class _Polynomials:
    def __init__(self, most: int, products: bool) -> None:
        self.most, self.products = most, products  # ops, and are products of two sides looked into?
        self.known: dict[Node, Terms] = {}
        self.divisors: dict[Node, Terms] = {}  # what is divided by, where that is a sum

    def is_zero(self, rows: Node) -> bool:
        """Is it a value of each row, and 0?"""
        narrow = rows.op is EXPAND and elements(rows.src[0].shape) < elements(rows.shape)
        return narrow and not self.multiplied(self.terms(rows, 0))

    def multiplied(self, terms: Terms) -> Terms:
        """The same times all that is divided by: (a + b) / (a + b) is 1 only as a sum."""
        for part in {p for term in terms for p, power in term if power < 0}:
            factors = [factor for factor, _ in part]
            if len(factors) != 1 or factors[0][0] not in self.divisors:
                continue
            node, labels = factors[0]
            places = {axis: label for axis, label in enumerate(labels) if label is not None}
            divisor = _renamed(self.divisors[node], places)
            most = max([-dict(term).get(part, 0) for term in terms])
            found: list[tuple[Terms, float]] = []
            for term, number in terms.items():
                left: Terms | None = {term - {(part, dict(term).get(part, 0))}: 1.0}
                for _ in range(most + dict(term).get(part, 0)):
                    left = None if left is None else _product(left, divisor)
                if left is None:
                    return terms
                found.append((left, number))
            whole = _sum(found, _MOST * _MOST)
            if not whole:
                return terms if whole is None else whole
            terms = whole
        return terms

    def is_zero_weighed(self, rows: Node) -> bool:
        """The same of a sum of weights; what is left of other numbers mends their rounding.

        The mean of x - mean(x) is 0, but that of rounded numbers is what their mean was off by.
        """
        if not self.is_zero(rows):
            return False
        stack, seen = [rows], {rows}
        while stack:
            node = stack.pop()
            if node.op in (EXP, EXP2):
                return True
            if node.op in _OPEN:
                stack += [s for s in node.src if s not in seen]
                seen.update(node.src)
        return False

    def terms(self, node: Node, depth: int) -> Terms:
        """A value as a sum of products; what is not known is a factor of its own."""
        if node not in self.known:
            found = self.taken_apart(node, depth + 1) if depth < self.most else None
            self.known[node] = {_alone(node, 1): 1.0} if found is None else found
        return self.known[node]

    def taken_apart(self, node: Node, depth: int) -> Terms | None:
        op = node.op
        if node.dtype.kind != "f":
            return None
        if op is CONST:
            value = decode(node.arg[0], node.dtype)
            assert isinstance(value, float)
            return {frozenset(): value} if value else {}
        if op is EXPAND or (op is CAST and node.src[0].dtype.kind == "f"):
            same = node.ndim == node.src[0].ndim
            return self.terms(node.src[0], depth) if same else None
        if op is PERMUTE:
            order = {old: new for new, old in enumerate(node.arg)}
            return _renamed(self.terms(node.src[0], depth), order)
        if op is RESHAPE:
            place = places(node.src[0].shape, node.shape)
            return None if place is None else _renamed(self.terms(node.src[0], depth), place)
        if op is REDUCE and node.arg[0] == "add":
            looked_into = self.products or not is_contraction(node)
            return self.summed(node, depth) if looked_into else None
        if op is WHERE:  # of two values that are 0
            both = [self.multiplied(self.terms(s, depth)) for s in node.src[1:]]
            return None if any(both) else {}
        if op not in (ADD, SUB, NEG, MUL, DIV):
            return None
        parts = [self.terms(s, depth) for s in node.src]
        if op is NEG:
            return _sum([(parts[0], -1.0)])
        if op in (ADD, SUB):
            return _sum([(parts[0], 1.0), (parts[1], 1.0 if op is ADD else -1.0)])
        if op is DIV:
            parts[1] = self.inverse(parts[1], node.src[1])
        return _product(parts[0], parts[1])

    def inverse(self, terms: Terms, node: Node) -> Terms:
        """One over a polynomial; of one that is no product it is a factor of its own."""
        if len(terms) != 1:
            while node.op is EXPAND and node.ndim == node.src[0].ndim:
                node = node.src[0]
            self.divisors[node] = terms
            return {_alone(node, -1): 1.0}
        ((term, number),) = terms.items()
        return {frozenset([(part, -power) for part, power in term]): 1 / number}

    def summed(self, node: Node, depth: int) -> Terms | None:
        """A sum of products as products of sums, each without what does not change along it."""
        shape = node.src[0].shape
        along = [axis for axis in node.arg[1] if shape[axis] != 1]
        if not all(isinstance(shape[axis], int) for axis in along):
            return None
        found: list[tuple[Terms, float]] = []
        for term, number in self.terms(node.src[0], depth).items():
            inside = [(part, power) for part, power in term if _labels(part) & frozenset(along)]
            if any(power < 0 for _, power in inside):
                return None
            mine = frozenset[Label]().union(*[_labels(part) for part, _ in inside])
            whole = _joined(inside, [axis for axis in along if axis in mine])
            if whole is None:
                return None
            count = elements(tuple([shape[axis] for axis in along if axis not in mine]))
            rest = term - frozenset(inside)
            made = _times(rest, frozenset([(whole, 1)])) if inside else rest
            found.append(({made: 1.0}, number * count))
        return _sum(found)


# --- sums and their names ------------------------------------------------------------------------


def _alone(node: Node, power: int) -> Term:
    """A value as a factor of its own."""
    labels = tuple([axis if n != 1 else None for axis, n in enumerate(node.shape)])
    return frozenset([(frozenset([((node, labels), 1)]), power)])


def _labels(part: Sum) -> frozenset[Label]:
    """The axes that a sum has left."""
    return frozenset([a for (_, labels), _ in part for a in labels if a is not None and a >= 0])


def _relabelled(part: Sum, names: Mapping[Label, Label]) -> Sum:
    found: dict[Factor, int] = {}
    for (node, labels), power in part:
        factor = node, tuple([None if a is None else names.get(a, a) for a in labels])
        found[factor] = found.get(factor, 0) + power
    return frozenset(found.items())


def _renamed(terms: Terms, place: dict[int, int]) -> Terms:
    """The same value with its axes at other places."""
    return {
        frozenset([(_relabelled(part, place), power) for part, power in term]): number
        for term, number in terms.items()
    }


def _joined(parts: Iterable[tuple[Sum, int]], along: Sequence[int]) -> Sum | None:
    """The sum over some axes of a product of sums, named so that equal ones are equal."""
    factors: dict[Factor, int] = {}
    fresh = 0
    for part, times in parts:
        own = sorted({a for (_, labels), _ in part for a in labels if a is not None and a < 0})
        for _ in range(times):
            names = {a: -1 - fresh - i for i, a in enumerate(own)}
            fresh += len(own)
            for factor, power in _relabelled(part, names):
                factors[factor] = factors.get(factor, 0) + power
    names = {axis: -1 - fresh - i for i, axis in enumerate(along)}
    whole = _relabelled(frozenset(factors.items()), names)
    bound = [-1 - i for i in range(fresh + len(along))]
    if len(bound) > _SUMMED:
        return None
    ways = [dict(zip(bound, some, strict=True)) for some in permutations(bound)]
    return min([_relabelled(whole, names) for names in ways], key=_in_order)


def _in_order(part: Sum) -> list[tuple[object, ...]]:
    return sorted([(node.id, repr(labels), power) for (node, labels), power in part])


# --- polynomials ---------------------------------------------------------------------------------


def _sum(parts: Sequence[tuple[Terms, float]], limit: int = _MOST) -> Terms | None:
    """A sum of polynomials, each times a number; None for too many terms."""
    found: Terms = {}
    most: dict[Term, float] = {}
    for terms, scale in parts:
        for term, number in terms.items():
            found[term] = found.get(term, 0.0) + scale * number
            most[term] = max(most.get(term, 0.0), abs(scale * number))
    left = {term: number for term, number in found.items() if abs(number) > _TINY * most[term]}
    return left if len(left) <= limit else None


def _product(first: Terms, second: Terms) -> Terms | None:
    parts = [({_times(a, b): 1.0}, x * y) for a, x in first.items() for b, y in second.items()]
    return _sum(parts) if len(parts) <= 4 * _MOST else None


def _times(first: Term, second: Term) -> Term:
    powers = dict(first)
    for part, power in second:
        powers[part] = powers.get(part, 0) + power
    return frozenset([(part, power) for part, power in powers.items() if power])
