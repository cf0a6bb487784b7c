"""Sums of which nothing is left: what an extreme passes on where only differences from it count.

In: a graph. Out: one with the same values, without summands that are 0 whatever the numbers are.
Weights that are measured from the largest of their row do not depend on which value that was; the
adjoint of that largest one is a sum that cancels, and the pass over a matrix which finds out where
it goes adds nothing but rounding. A value is written as a polynomial of factors and of their sums:
Σ_k c e = c Σ_k e where c has no k. Where all its terms cancel it is 0. Floats are added in another
order for that, so `exact` leaves it out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from ..core.dtype import decode
from ..core.node import Node, make
from ..core.ops.elementwise import ADD, CAST, DIV, MUL, NEG, SUB, WHERE
from ..core.ops.leaf import CONST
from ..core.ops.movement import EXPAND
from ..core.ops.reduce import REDUCE
from ..core.substitute import substitute
from .cost import elements

Term: TypeAlias = frozenset[tuple[Hashable, int]]  # factors with their powers
Terms: TypeAlias = dict[Term, float]
_MOST = 12  # terms of a value
_DEEP = 24  # ops that are looked through
_TINY = 1e-12  # of what was added: a sum that is no more than this is 0


def vanish(sink: Node, order: Sequence[Node]) -> Node:
    """The graph without summands that are 0."""
    known: dict[Node, Node] = {}
    found = _Polynomials()
    for node in order:
        if node.op not in (ADD, SUB) or node.dtype.kind != "f":
            continue
        for summand, other in (node.src, node.src[::-1]):
            if found.is_zero(summand):
                less = node.op is SUB and summand is node.src[0]
                known[node] = make(NEG, node.dtype, (other,)) if less else other
                break
    return substitute(sink, known) if known else sink


def _is_choice(node: Node) -> bool:
    """Is it one of two numbers?"""
    return node.op is WHERE and all(s.op is CONST for s in node.src[1:])


class _Polynomials:
    def __init__(self) -> None:
        self.known: dict[Node, Terms] = {}

    def is_zero(self, summand: Node) -> bool:
        """Is it a value of each row that is 0, or a choice times one?"""
        parts = [summand]
        if summand.op is MUL and any(_is_choice(s) for s in summand.src):
            parts = list(summand.src)
        rows = [s for s in parts if s.op is EXPAND and _is_narrow(s)]
        return any(not self.terms(s, 0) for s in rows)

    def terms(self, node: Node, depth: int) -> Terms:
        """A value as a sum of products; what is not known is a factor of its own."""
        if node not in self.known:
            found = self.taken_apart(node, depth + 1) if depth < _DEEP else None
            self.known[node] = {frozenset([(node, 1)]): 1.0} if found is None else found
        return self.known[node]

    def taken_apart(self, node: Node, depth: int) -> Terms | None:
        if node.dtype.kind != "f":
            return None
        if node.op is CONST:
            value = decode(node.arg[0], node.dtype)
            assert isinstance(value, float)
            return {frozenset(): value} if value else {}
        op = node.op
        transparent = op is EXPAND or (op is CAST and node.src[0].dtype.kind == "f")
        if op is REDUCE and node.arg[0] == "add":
            return self.summed(node, depth)
        if not transparent and op not in (ADD, SUB, NEG, MUL, DIV):
            return None
        parts = [self.terms(s, depth) for s in node.src]
        if transparent:
            return parts[0]
        if op is NEG:
            return _sum([({}, 1.0), (parts[0], -1.0)])
        if op in (ADD, SUB):
            return _sum([(parts[0], 1.0), (parts[1], 1.0 if op is ADD else -1.0)])
        if op is DIV:
            parts[1] = _inverse(parts[1], node.src[1])
        return _product(parts[0], parts[1])

    def summed(self, node: Node, depth: int) -> Terms | None:
        """A sum of products as products of sums, each without what does not change along it."""
        along = node.arg[1]
        count = elements(node.src[0].shape) / max(1, elements(node.shape))
        found: list[tuple[Terms, float]] = []
        for term, number in self.terms(node.src[0], depth).items():
            varies = frozenset([f for f in term if _varies(f[0], along)])
            rest = _times(term - varies, frozenset([((varies, along), 1)]) if varies else varies)
            found.append(({rest: 1.0}, number if varies else number * count))
        return _sum(found)


def _is_narrow(node: Node) -> bool:
    return elements(node.src[0].shape) < elements(node.shape)


def _varies(factor: Hashable, along: Sequence[int]) -> bool:
    """Has a factor more than one value along some dimensions?"""
    if isinstance(factor, Node):
        return any(factor.shape[axis] != 1 for axis in along)
    assert isinstance(factor, tuple)
    inside, over = factor
    return any(_varies(f, [a for a in along if a not in over]) for f, _ in inside)


def _sum(parts: Sequence[tuple[Terms, float]]) -> Terms | None:
    """A sum of polynomials, each times a number; None for too many terms."""
    found: Terms = {}
    most: dict[Term, float] = {}
    for terms, scale in parts:
        for term, number in terms.items():
            found[term] = found.get(term, 0.0) + scale * number
            most[term] = max(most.get(term, 0.0), abs(scale * number))
    left = {term: number for term, number in found.items() if abs(number) > _TINY * most[term]}
    return left if len(left) <= _MOST else None


def _product(first: Terms, second: Terms) -> Terms | None:
    parts = [({_times(a, b): 1.0}, x * y) for a, x in first.items() for b, y in second.items()]
    return _sum(parts) if len(parts) <= 4 * _MOST else None


def _times(first: Term, second: Term) -> Term:
    powers = dict(first)
    for factor, power in second:
        powers[factor] = powers.get(factor, 0) + power
    return frozenset([(factor, power) for factor, power in powers.items() if power])


def _inverse(terms: Terms, node: Node) -> Terms:
    """One over a polynomial; of one that is no product it is a factor of its own."""
    if len(terms) != 1:
        return {frozenset([(node, -1)]): 1.0}
    ((term, number),) = terms.items()
    return {frozenset([(factor, -power) for factor, power in term]): 1 / number}
