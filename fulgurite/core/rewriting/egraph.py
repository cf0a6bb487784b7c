"""An e-graph: many equal terms in one small structure, with congruence and analyses.

In: terms, added bottom up (`add`), and equalities (`union`). Out: classes of equal terms. All of it
lives in an arena of whole numbers: a class is a number, a term is (op, classes of its sources).
Congruence (equal sources make equal terms) is restored by `rebuild`, once for many unions. Ops in
`unordered` take their sources in the order of the classes' digests, which depend on structure alone
and never on history, so no law of commutation is needed. `run` applies rules until nothing changes
or a cap on nodes or rounds is met: the same input gives the same e-graph in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from ..digest import blake2b
from ..lazy_dataclass import dataclass

Term: TypeAlias = tuple[Any, ...]  # (op, class, class, ...)


@dataclass(frozen=True)
class Analysis:
    """What is known of every class: from one of its terms, and joined where classes merge.

    `join` must be commutative, associative and idempotent, or the answer would depend on order.
    """

    make: Callable[[EGraph, Term], Any]
    join: Callable[[Any, Any], Any]


@dataclass
class Report:
    """What a run of rules did."""

    rounds: int = 0
    nodes: int = 0
    fired: dict[str, int] = field(default_factory=dict)  # unions by rule
    stopped: str = "saturated"  # or: nodes, rounds


@dataclass(frozen=True)
class Rewrite:
    """A rule: for a term of a class with one of its `ops`, further classes equal to it."""

    name: str
    find: Callable[[EGraph, int, Term], Iterable[int]]
    ops: Callable[[Any], bool] = lambda op: True


class EGraph:
    """Classes of equal terms."""

    def __init__(
        self, unordered: Collection[Hashable] = (), analyses: dict[str, Analysis] | None = None
    ) -> None:
        self.unordered = frozenset(unordered)
        self.analyses = analyses or {}
        self.terms: dict[int, dict[Term, None]] = {}  # of each class, in the order they came
        self.data: dict[int, dict[str, Any]] = {}
        self._parent: list[int] = []  # union-find
        self._digest: list[bytes] = []
        self._known: dict[Term, int] = {}
        self._uses: dict[int, dict[Term, int]] = {}  # terms that have a class as a source
        self._dirty: list[int] = []
        self._stale: list[int] = []  # classes whose analyses changed

    def __len__(self) -> int:
        return len(self._known)

    def find(self, number: int) -> int:
        """The class that a number stands for by now."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def classes(self) -> list[int]:
        """Every class, oldest first."""
        return list(self.terms)

    def digest(self, number: int) -> bytes:
        """A name of a class that is the same in every process."""
        return self._digest[self.find(number)]

    def get(self, name: str, number: int) -> Any:
        """What an analysis knows of a class."""
        return self.data[self.find(number)][name]

    # --- growing ---------------------------------------------------------------------------------

    def _canonical(self, term: Term) -> Term:
        sources = [self.find(s) for s in term[1:]]
        if term[0] in self.unordered:
            sources.sort(key=self._digest.__getitem__)
        return (term[0], *sources)

    def add(self, op: Hashable, *sources: int) -> int:
        """The class of a term."""
        term = self._canonical((op, *sources))
        known = self._known.get(term)
        if known is not None:
            return self.find(known)
        number = len(self._parent)
        self._parent.append(number)
        text = blake2b(repr(op).encode(), digest_size=12)
        for source in term[1:]:
            text.update(self._digest[source])
        self._digest.append(text.digest())
        self._known[term] = number
        self.terms[number] = {term: None}
        self._uses[number] = {}
        for source in dict.fromkeys(term[1:]):
            self._uses[source][term] = number
        self.data[number] = {n: a.make(self, term) for n, a in self.analyses.items()}
        return number

    def union(self, a: int, b: int) -> bool:
        """Make two classes one; did that change anything? `rebuild` must follow."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        if len(self._uses[a]) < len(self._uses[b]):
            a, b = b, a
        self._parent[b] = a
        self._digest[a] = min(self._digest[a], self._digest[b])
        self._uses[a].update(self._uses.pop(b))
        self.terms[a].update(self.terms.pop(b))
        mine, other = self.data[a], self.data.pop(b)
        for name, analysis in self.analyses.items():
            mine[name] = analysis.join(mine[name], other[name])
        self._dirty.append(a)
        self._stale.append(a)
        return True

    def rebuild(self) -> None:
        """Restore congruence and what analyses know."""
        while self._dirty or self._stale:
            while self._dirty:
                todo = list(dict.fromkeys(map(self.find, self._dirty)))
                self._dirty = []
                for number in todo:
                    self._repair(self.find(number))
            self._refresh()

    def _repair(self, number: int) -> None:
        """Terms over a class that grew: equal ones now are one."""
        uses, self._uses[number] = self._uses[number], {}
        for term, owner in uses.items():
            self._known.pop(term, None)
            fresh, owner = self._canonical(term), self.find(owner)
            if fresh != term:
                terms = self.terms[owner]
                terms.pop(term, None)
                terms[fresh] = None
            known = self._known.get(fresh)
            if known is not None and self.find(known) != owner:
                self.union(known, owner)
                owner = self.find(owner)
            self._known[fresh] = owner
            for source in dict.fromkeys(fresh[1:]):
                self._uses[self.find(source)][fresh] = owner

    def _refresh(self) -> None:
        """Analyses of what is above classes that changed."""
        if not self.analyses:
            self._stale = []
            return
        while self._stale:
            number = self.find(self._stale.pop())
            for term, owner in list(self._uses[number].items()):
                owner = self.find(owner)
                mine, changed = self.data[owner], False
                for name, analysis in self.analyses.items():
                    joined = analysis.join(mine[name], analysis.make(self, self._canonical(term)))
                    changed = changed or joined != mine[name]
                    mine[name] = joined
                if changed:
                    self._stale.append(owner)

    # --- rules -----------------------------------------------------------------------------------

    def run(self, rules: Sequence[Rewrite], nodes: int = 2000, rounds: int = 6) -> Report:
        """Apply rules to all terms, round after round, within caps."""
        report = Report()
        for _ in range(rounds):
            report.rounds += 1
            changed = False
            for rule, owner, made in list(self._matches(rules, nodes)):
                if self.union(owner, made):
                    report.fired[rule] = report.fired.get(rule, 0) + 1
                    changed = True
            self.rebuild()
            report.nodes = len(self)
            if len(self) >= nodes:
                report.stopped = "nodes"
                return report
            if not changed:
                return report
        report.stopped = "rounds"
        return report

    def _matches(self, rules: Sequence[Rewrite], nodes: int) -> Iterator[tuple[str, int, int]]:
        """What the rules find in the terms as they are at the beginning of a round."""
        seen = [(owner, term) for owner, terms in self.terms.items() for term in terms]
        mine: dict[Hashable, list[Rewrite]] = {}
        for owner, term in seen:
            if term[0] not in mine:
                mine[term[0]] = [rule for rule in rules if rule.ops(term[0])]
            for rule in mine[term[0]]:
                for made in rule.find(self, owner, term):
                    yield rule.name, owner, made
                if len(self) >= nodes:
                    return


# --- extraction ----------------------------------------------------------------------------------


def cheapest(
    graph: EGraph, roots: Sequence[int], price: Callable[[Term, int], float | None]
) -> dict[int, Term]:
    """For each class that is needed a term, so that all terms together are cheap.

    Shared terms count once: the cost of a class is that of the set of terms below it, so a chain of
    doublings stays as cheap as it is long. `price` of (term, class) is None for what cannot be had.
    Greedy, to a fixed point: the answer always exists if one exists at all.
    """
    search = _Extraction(graph, price)
    for _ in range(2 * len(search.order) + 8):
        if not search.improve():
            return _needed(graph, roots, {n: best.term for n, best in search.chosen.items()})
    return _needed(graph, roots, search.first)


class _Choice(NamedTuple):
    """A term for a class, with what it costs."""

    cost: float  # of all classes below, and its own
    text: str  # decides between equal costs
    term: Term
    bits: int  # the set of classes at and below it, by place
    own: float  # the price of the term alone


class _Extraction:
    """A term for each class, made better round by round."""

    def __init__(self, graph: EGraph, price: Callable[[Term, int], float | None]) -> None:
        self.order = graph.classes()
        self.place = {number: i for i, number in enumerate(self.order)}
        self.first: dict[int, Term] = {}  # the choices possible first: no cycle is in them
        self.chosen: dict[int, _Choice] = {}
        self._names = {number: graph.digest(number) for number in self.order}
        self._texts: dict[Term, str] = {}
        self._prices: dict[int, float] = {}  # of what is chosen, by place
        self._totals: dict[int, float] = {}  # as long as no price changes
        self._terms = {
            number: [
                (own, [graph.find(s) for s in term[1:]], term)
                for term in graph.terms[number] if (own := price(term, number)) is not None
            ]
            for number in self.order
        }  # fmt: skip

    def improve(self) -> bool:
        """Choose anew for each class, given what the others chose; True if anything changed."""
        changed = False
        for number in self.order:
            best = self._best(number)
            if best is None or best[:4] == self.chosen.get(number, ())[:4]:
                continue
            self.first.setdefault(number, best.term)
            place = self.place[number]
            if self._prices.get(place, best.own) != best.own:
                self._totals.clear()
            self.chosen[number], self._prices[place] = best, best.own
            changed = True
        return changed

    def _best(self, number: int) -> _Choice | None:
        """The cheapest term of a class whose sources have terms and do not need the class."""
        mine, terms = 1 << self.place[number], self._terms[number]
        best: _Choice | None = None
        for own, sources, term in terms:
            if any([s not in self.chosen for s in sources]):
                continue
            bits = 0
            for source in sources:
                bits |= self.chosen[source].bits
            if bits & mine:  # it would need itself
                continue
            if len(terms) == 1:  # what it costs does not matter
                return _Choice(0.0, "", term, bits | mine, own)
            now = _Choice(own + self._total(bits), self._text(term), term, bits | mine, own)
            if best is None or now[:2] < best[:2]:
                best = now
        return best

    def _total(self, bits: int) -> float:
        """What a set of classes costs."""
        if bits not in self._totals:
            found, left = 0.0, bits
            while left:
                low = left & -left
                found += self._prices[low.bit_length() - 1]
                left ^= low
            self._totals[bits] = found
        return self._totals[bits]

    def _text(self, term: Term) -> str:
        """Something to order terms by that no history changes."""
        if term not in self._texts:
            names = [self._names.get(s, b"") for s in term[1:]]
            self._texts[term] = repr((term[0], names))
        return self._texts[term]


def _needed(graph: EGraph, roots: Sequence[int], chosen: dict[int, Term]) -> dict[int, Term]:
    """The part of a choice that some roots use."""
    needed: dict[int, Term] = {}
    stack = [graph.find(root) for root in roots]
    while stack:
        number = stack.pop()
        if number not in needed:
            needed[number] = chosen[number]
            stack.extend(graph.find(s) for s in chosen[number][1:])
    return needed
