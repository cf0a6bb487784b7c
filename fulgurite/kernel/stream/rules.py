"""Equality saturation of a body: the laws of folds as rules of an e-graph, and the cheapest result.

In: nodes of a kernel's body. Out: nodes that compute the same with less work inside folds, and what
was done. A law is matched against every term of the ops at its root; a pattern of a flat product
deals the factors to its variables, each to the first that accepts it, so a law has one match for
every place of the one factor that it looks into. (e-matching as in egg, Willsey et al., 2021.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from ...core.dtype import DType, bool_, float32, float64
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, constant
from ...core.operators import OPS
from ...core.ops.elementwise import LT
from ...core.ops.index import FOLD
from ...core.rewriting.egraph import EGraph, Report, Rewrite, Term
from ...graph.ir.limits import LIMITS
from .laws import LAWS, Law, Pattern
from .terms import INVERSE, PRODUCT, Key, Terms

_FLOATS = {dtype.name: dtype for dtype in (float32, float64)}
Bound: TypeAlias = dict[str, tuple[int, ...]]  # the classes that variables stand for


def saturate(roots: Sequence[Node], sizes: Sequence[int]) -> tuple[list[Node], Report]:
    """The cheapest equal nodes that the laws find, and what they did."""
    terms = Terms(sizes)
    classes = terms.add(roots)
    report = terms.graph.run(rules(terms), LIMITS.egraph_terms, LIMITS.egraph_rounds)
    return terms.nodes(classes), report


def rules(terms: Terms) -> list[Rewrite]:
    """Laws over some terms."""
    return [_rule(terms, law) for law in LAWS]


def _rule(terms: Terms, law: Law) -> Rewrite:
    left, looked_for = law.left, _looked_for(law.left)

    def is_root(key: Key) -> bool:
        return key.dtype in _FLOATS and key.name == left.op and terms.fold(key)[0] == left.fold

    def find(_: EGraph, owner: int, term: Term) -> Iterator[int]:
        if looked_for and not terms.has_any(looked_for, term[1:]):
            return
        match = _Match(terms, _FLOATS[term[0].dtype], terms.fold(term[0])[1])
        for bound in match.term(left, term, {}):
            made = match.made(law.right, bound, owner)
            if made is not None:
                yield made

    return Rewrite(law.name, find, ops=is_root)


def _looked_for(pattern: Pattern) -> tuple[str, ...]:
    """The ops of which a source of what a pattern matches has one; a product may be of one."""
    found = [source.op for source in pattern.src if source.op]
    if found == [PRODUCT]:
        found += _looked_for(pattern.src[0])
    return tuple(found)


@dataclass(eq=False)
class _Match:
    """One term of floats that a law is tried on."""

    terms: Terms
    dtype: DType
    axes: tuple[int, ...]  # that the law is about

    def __post_init__(self) -> None:
        self.along = frozenset(self.axes)

    def term(self, pattern: Pattern, term: Term, bound: Bound) -> Iterator[Bound]:
        """Every way in which a term whose op fits is what a pattern describes."""
        if pattern.op == PRODUCT:
            yield from self.factors(pattern, term[1:], bound)
            return
        found: Iterable[Bound] = [bound]
        for source, number in zip(pattern.src, term[1:], strict=True):
            found = [more for known in found for more in self.value(source, number, known)]
        yield from found

    def value(self, pattern: Pattern, number: int, bound: Bound) -> Iterator[Bound]:
        """Every way in which a class is what a pattern describes."""
        if pattern.number is not None:
            if self.terms.is_constant(number, pattern.number):
                yield bound
        elif not pattern.op:
            if pattern.accepts(self.terms, number, self.along):
                yield {**bound, pattern.name: (number,)}
        else:
            if pattern.op == PRODUCT and not all(part.many for part in pattern.src):
                yield from self.factors(pattern, (number,), bound)  # a product of one
            for term in self.terms.of(number):
                if (term[0].name, term[0].dtype) == (pattern.op, self.dtype.name):
                    yield from self.term(pattern, term, bound)

    def factors(self, pattern: Pattern, factors: tuple[int, ...], bound: Bound) -> Iterator[Bound]:
        """Every way to deal factors to a pattern's variables and the one that is looked into."""
        lists = [part for part in pattern.src if part.many]
        looked_into = [part for part in pattern.src if not part.many]
        if not looked_into:
            yield from self.dealt(lists, factors, bound)
            return
        (inner,) = looked_into
        for place, factor in enumerate(factors):
            rest = (*factors[:place], *factors[place + 1 :])
            for known in self.value(inner, factor, bound):
                yield from self.dealt(lists, rest, known)

    def dealt(
        self, lists: list[Pattern], factors: tuple[int, ...], bound: Bound
    ) -> Iterator[Bound]:
        """Each factor with the first variable that accepts it."""
        dealt: Bound = {part.name: () for part in lists}
        for factor in factors:
            taker = next((p for p in lists if p.accepts(self.terms, factor, self.along)), None)
            if taker is None:
                return
            dealt[taker.name] += (factor,)
        enough = all(len(dealt[part.name]) >= part.least for part in lists)
        folds = [any(map(self.terms.is_folded, dealt[p.name])) for p in lists if p.folded]
        if enough and all(folds):
            yield bound | dealt

    def made(self, pattern: Pattern, bound: Bound, owner: int) -> int | None:
        """The class that a pattern describes; None for a product that is too long, or of itself."""
        terms, dtype = self.terms, self.dtype
        if pattern.number is not None:
            return terms.add([constant(pattern.number, dtype)])[0]
        sources: list[int] = []
        for source in pattern.src:
            if not source.op and source.number is None:
                sources += bound[source.name]
            elif (found := self.made(source, bound, owner)) is not None:
                sources.append(found)
            else:
                return None
        if pattern.op == PRODUCT:
            able = len(sources) <= LIMITS.product_factors and owner not in sources
            return terms.product(dtype, sources) if able else None
        if pattern.op == INVERSE:
            return terms.inverse(dtype, sources[0])
        arg = (pattern.fold, self.axes) if pattern.op == FOLD.name else None
        op = OPS[pattern.op]
        return terms.made_of(op, bool_ if op is LT else dtype, arg, *sources)
