"""Laws of index notation for floats: what may be pulled out of a fold, as rules of an e-graph.

In: nodes of a kernel's body. Out: nodes that compute the same with less work inside folds. Products
are flat (`product` of any number of factors, `inverse` for a division), so no law of association is
needed. All rules reassociate, so they touch floats only, and each says whether it holds for every
prefix of a streamed axis (`prefix_ok`): in a fold, sums so far stand for whole sums. What is
extracted is the cheapest set of terms, where a term costs its op once for each element it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

from ...core.dtype import DType, bool_, decode
from ...core.egraph import Analysis, EGraph, Report, Rewrite, Term, cheapest
from ...core.node import Node, constant, make, toposort
from ...core.op import Op
from ...core.ops.elementwise import ADD, DIV, EXP, EXP2, LT, MUL, NEG, POW, SUB, WHERE
from ...core.ops.index import FOLD
from ...core.ops.leaf import CONST
from ...graph.ir.affine import axes_of
from ...graph.ir.queries import indices

NODES, ROUNDS = 2000, 6  # caps of one region
_MOST = 12  # factors of a flat product
_NESTED = 4  # what a fold costs more for every fold that it waits for: another pass over its axis
_PRODUCT, _INVERSE = "product", "inverse"


@dataclass(frozen=True)
class Key:
    """The op of a term: enough to make the node again; ordered by its text."""

    name: str
    dtype: str
    arg: str  # as text: equal arguments have equal texts

    def __repr__(self) -> str:
        return f"{self.name}/{self.dtype}/{self.arg}"


class Terms:
    """Nodes of a body in an e-graph, and back."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.made: dict[Key, tuple[Op, DType, Any]] = {}
        self.dtypes: dict[str, DType] = {}
        self.number: dict[Node, int] = {}
        analysis = Analysis(self._free, frozenset.intersection)
        self.unordered: set[Key] = set()
        folds = Analysis(self._height, min)
        self.graph = EGraph(analyses={"axes": analysis, "height": folds})
        self.axes_in: dict[Key, frozenset[int]] = {}  # that a node's own argument names

    def _free(self, graph: EGraph, term: Term) -> frozenset[int]:
        key: Key = term[0]
        found = self.axes_in.get(key, frozenset[int]())
        found = found.union(*[graph.get("axes", s) for s in term[1:]])
        if key.name == FOLD.name:
            found -= frozenset(self.made[key][2][1])
        return found

    def _height(self, graph: EGraph, term: Term) -> int:
        """How many folds are above each other, at least."""
        below = max([graph.get("height", s) for s in term[1:]], default=0)
        return int(below + (term[0].name == FOLD.name))

    def add(self, roots: Sequence[Node]) -> list[int]:
        """The classes of some nodes."""
        for node in toposort(roots):
            if node not in self.number:
                sources = [self.number[s] for s in node.src]
                self.number[node] = self.graph.add(self.key(node), *sources)
        return [self.number[root] for root in roots]

    def key(self, node: Node) -> Key:
        """The op of a node's term."""
        key = Key(node.op.name, node.dtype.name, repr(node.arg))
        if key not in self.made:
            self.made[key] = (node.op, node.dtype, node.arg)
            self.dtypes[node.dtype.name] = node.dtype
            self.axes_in[key] = frozenset[int]().union(*[axes_of(i) for i in indices(node)])
        return key

    def made_of(self, op: Op, dtype: DType, arg: Any, *sources: int) -> int:
        """The class of an op of some classes."""
        key = Key(op.name, dtype.name, repr(arg))
        self.made.setdefault(key, (op, dtype, arg))
        return self.graph.add(key, *sources)

    def flat(self, name: str, dtype: str) -> Key:
        """The op of a flat product, or of an inverse."""
        key = Key(name, dtype, "")
        if name == _PRODUCT and key not in self.graph.unordered:
            self.graph.unordered |= {key}
        return key

    def axes(self, number: int) -> frozenset[int]:
        """The axes that a class depends on."""
        found: frozenset[int] = self.graph.get("axes", number)
        return found

    def is_constant(self, number: int, value: float) -> bool:
        """Is a class this number?"""
        for term in self.graph.terms[self.graph.find(number)]:
            known = self.made.get(term[0])
            if known is not None and known[0] is CONST:
                return bool(decode(known[2][0], known[1]) == value)
        return False

    # --- back to nodes ---------------------------------------------------------------------------

    def price(self, term: Term, number: int) -> float | None:
        """What a term costs: its op for each of its elements."""
        key: Key = term[0]
        if key.name == FOLD.name:
            inside = self.axes(term[1]) | frozenset(self.made[key][2][1])
            return float(self.count(inside) * (1 + _NESTED * self.graph.get("height", term[1])))
        each = self.count(self.axes(number))
        if key.name == _PRODUCT:
            parts = [(self.axes(s), self.graph.digest(s)) for s in term[1:]]
            return float(sum([self.count(axes) for axes in self.joined(parts)]))
        cost = DIV.cost if key.name == _INVERSE else self.made[key][0].cost
        return float(cost * each)

    def count(self, axes: frozenset[int]) -> int:
        return prod([self.sizes[a] for a in axes])

    def joined(
        self,
        parts: list[tuple[frozenset[int], bytes]],
        join: Callable[[int, int], None] | None = None,
    ) -> Iterator[frozenset[int]]:
        """The axes of every product of two that makes up a product, fewest elements first."""
        parts = list(parts)
        while len(parts) > 1:
            pairs = combinations(range(len(parts)), 2)
            i, j = min(
                pairs,
                key=lambda p: (self.count(parts[p[0]][0] | parts[p[1]][0]), parts[p[0]][1],
                               parts[p[1]][1]),
            )  # fmt: skip
            both = parts[i][0] | parts[j][0], min(parts[i][1], parts[j][1])
            if join is not None:
                join(i, j)
            del parts[j]
            parts[i] = both
            yield both[0]

    def nodes(self, roots: Sequence[int]) -> list[Node]:
        """The cheapest nodes that compute some classes."""
        chosen = cheapest(self.graph, roots, self.price)
        made: dict[int, Node] = {}
        stack = [self.graph.find(r) for r in reversed(roots)]
        while stack:
            number = stack[-1]
            sources = self._below(chosen, number)
            missing = [s for s in sources if s not in made]
            if number in made or not missing:
                stack.pop()
                if number not in made:
                    made[number] = self._node(chosen, number, made)
            else:
                stack.extend(missing)
        return [made[self.graph.find(r)] for r in roots]

    def _below(self, chosen: dict[int, Term], number: int) -> list[int]:
        """The classes that the node of a class is made from: an inverse is part of its product."""
        found = []
        for source in chosen[number][1:]:
            source = self.graph.find(source)
            if chosen[source][0].name == _INVERSE and chosen[number][0].name == _PRODUCT:
                source = self.graph.find(chosen[source][1])
            found.append(source)
        return found

    def _node(self, chosen: dict[int, Term], number: int, made: dict[int, Node]) -> Node:
        key: Key = chosen[number][0]
        if key.name == _PRODUCT:
            return self._product(chosen, number, made)
        below = [made[s] for s in self._below(chosen, number)]
        if key.name == _INVERSE:
            dtype = self.dtypes[key.dtype]
            return make(DIV, dtype, (constant(1, dtype), below[0]))
        op, dtype, arg = self.made[key]
        return make(op, dtype, tuple(below), arg)

    def _product(self, chosen: dict[int, Term], number: int, made: dict[int, Node]) -> Node:
        """Small products first, divisors last: one division."""
        tops, bottoms = [], []
        for source in chosen[number][1:]:
            source = self.graph.find(source)
            if chosen[source][0].name == _INVERSE:
                bottoms.append(self.graph.find(chosen[source][1]))
            else:
                tops.append(source)
        dtype = self.dtypes[chosen[number][0].dtype]

        def multiplied(parts: list[int]) -> Node | None:
            values = [made[part] for part in parts]

            def join(i: int, j: int) -> None:
                values[i] = make(MUL, dtype, (values[i], values.pop(j)))

            known = [(self.axes(part), self.graph.digest(part)) for part in parts]
            for _ in self.joined(known, join):
                pass
            return values[0] if values else None

        above, below = multiplied(tops), multiplied(bottoms)
        if below is None:
            assert above is not None
            return above
        return make(DIV, dtype, (constant(1, dtype) if above is None else above, below))


# --- the rules -----------------------------------------------------------------------------------


def rules(terms: Terms) -> list[Rewrite]:
    """The rule book over some terms."""
    graph = terms.graph

    def is_float(key: Key) -> bool:
        return key.dtype in ("float32", "float64")

    def flatten(_: EGraph, owner: int, term: Term) -> Iterator[int]:
        """a * b and a / b as flat products; a product of products is one, signs are outside."""
        key: Key = term[0]
        if key.name == MUL.name:
            yield graph.add(terms.flat(_PRODUCT, key.dtype), *term[1:])
        elif key.name == DIV.name:
            below = graph.add(terms.flat(_INVERSE, key.dtype), term[2])
            yield graph.add(terms.flat(_PRODUCT, key.dtype), term[1], below)
        elif key.name == POW.name and terms.is_constant(term[2], 2.0):
            yield graph.add(terms.flat(_PRODUCT, key.dtype), term[1], term[1])
        elif key.name == _PRODUCT:
            for place, source in enumerate(term[1:], start=1):
                for inner in list(graph.terms[graph.find(source)]):
                    whole = (*term[1:place], *inner[1:], *term[place + 1 :])
                    if inner[0] == key and len(whole) <= _MOST and owner not in whole:
                        yield graph.add(key, *whole)
                    elif inner[0].name == NEG.name and owner not in whole:
                        yield graph.add(inner[0], graph.add(key, *whole))

    def hoist(_: EGraph, owner: int, term: Term) -> Iterator[int]:
        """Σ_k c * y = c * Σ_k y where k is not in c."""
        key: Key = term[0]
        name, folded = terms.made[key][2]
        if name != "add":
            return
        flat = terms.flat(_PRODUCT, key.dtype)
        for inner in list(graph.terms[graph.find(term[1])]):
            if inner[0] != flat:
                continue
            out = [s for s in inner[1:] if not terms.axes(s) & frozenset(folded)]
            left = [s for s in inner[1:] if terms.axes(s) & frozenset(folded)]
            if out and left:
                body = left[0] if len(left) == 1 else graph.add(flat, *left)
                yield graph.add(flat, *out, graph.add(key, body))

    def hoist_where(_: EGraph, owner: int, term: Term) -> Iterator[int]:
        """Σ_k where(b, c * y, 0) * z = where(any_k b, c, 1) * Σ_k where(b, y, 0) * z.

        Only for a c that was folded itself. It is left out where no b holds: it may be no number.
        """
        key: Key = term[0]
        if terms.made[key][2][0] != "add":
            return
        folded, dtype = frozenset(terms.made[key][2][1]), terms.dtypes[key.dtype]
        flat = terms.flat(_PRODUCT, key.dtype)
        whole = [inner[1:] for inner in list(graph.terms[graph.find(term[1])]) if inner[0] == flat]
        for factors in [(term[1],), *whole]:
            for place, factor in enumerate(factors):
                rest = (*factors[:place], *factors[place + 1 :])
                for condition, value, holds in selections(factor):
                    for inner in list(graph.terms[graph.find(value)]):
                        out = [s for s in inner[1:] if not terms.axes(s) & folded]
                        left = [s for s in inner[1:] if terms.axes(s) & folded]
                        moving = any(graph.get("height", s) for s in out)
                        if inner[0] != flat or not moving or not left:
                            continue
                        chosen = selected(condition, graph.add(flat, *left), 0, dtype, holds)
                        body = graph.add(flat, chosen, *rest) if rest else chosen
                        when, either = condition, holds
                        if terms.axes(condition) & folded:
                            when, either = met(condition, key, dtype, holds), True
                        outside = selected(when, graph.add(flat, *out), 1, dtype, either)
                        yield graph.add(flat, outside, graph.add(key, body))

    def selections(factor: int) -> Iterator[tuple[int, int, bool]]:
        """The conditions under which a class is 0: what it is else, and when that is."""
        for term in list(graph.terms[graph.find(factor)]):
            if term[0].name == WHERE.name and terms.is_constant(term[3], 0.0):
                yield term[1], term[2], True
            elif term[0].name == WHERE.name and terms.is_constant(term[2], 0.0):
                yield term[1], term[3], False

    def selected(condition: int, value: int, other: int, dtype: DType, holds: bool) -> int:
        """A class where a condition holds, or does not, and a number elsewhere."""
        instead = terms.add([constant(other, dtype)])[0]
        pair = (value, instead) if holds else (instead, value)
        return terms.made_of(WHERE, dtype, None, condition, *pair)

    def met(condition: int, fold: Key, dtype: DType, holds: bool) -> int:
        """Does a condition hold, or not, anywhere along what is folded?"""
        zero, one = terms.add([constant(0, dtype), constant(1, dtype)])
        marks = (one, zero) if holds else (zero, one)
        mark = terms.made_of(WHERE, dtype, None, condition, *marks)
        most = terms.made_of(FOLD, dtype, ("max", terms.made[fold][2][1]), mark)
        return terms.made_of(LT, bool_, None, zero, most)

    def hoist_max(_: EGraph, owner: int, term: Term) -> Iterator[int]:
        """max_k (c + y) = c + max_k y where k is not in c; the same for min, and for y - c.

        What rises with its operand leaves as well: max_k exp y = exp max_k y, and positive factors.
        """
        key: Key = term[0]
        name, folded = terms.made[key][2]
        if name not in ("max", "min"):
            return
        flat, along = terms.flat(_PRODUCT, key.dtype), frozenset(folded)
        for inner in list(graph.terms[graph.find(term[1])]):
            if inner[0].name in (EXP.name, EXP2.name):
                yield graph.add(inner[0], graph.add(key, inner[1]))
            elif inner[0] == flat:
                out = [s for s in inner[1:] if not terms.axes(s) & along and is_positive(s)]
                left = [s for s in inner[1:] if s not in out]
                if out and left:
                    body = left[0] if len(left) == 1 else graph.add(flat, *left)
                    yield graph.add(flat, *out, graph.add(key, body))
            if inner[0].name not in (ADD.name, SUB.name):
                continue
            first, second = inner[1:]
            if not terms.axes(second) & along:
                yield graph.add(inner[0], graph.add(key, first), second)
            elif inner[0].name == ADD.name and not terms.axes(first) & along:
                yield graph.add(inner[0], first, graph.add(key, second))

    def is_positive(number: int) -> bool:
        """Is a class a sum of powers, or one over it? It is no number where it is not above 0."""
        for term in graph.terms[graph.find(number)]:
            name = term[0].name
            if name == _INVERSE:
                return is_positive(term[1])
            if name == FOLD.name and terms.made[term[0]][2][0] == "add":
                powers = graph.terms[graph.find(term[1])]
                return any(p[0].name in (EXP.name, EXP2.name) for p in powers)
        return False

    def negate(_: EGraph, owner: int, term: Term) -> Iterator[int]:
        """Σ_k -y = -Σ_k y."""
        key: Key = term[0]
        if terms.made[key][2][0] != "add":
            return
        for inner in list(graph.terms[graph.find(term[1])]):
            if inner[0].name == NEG.name:
                yield graph.add(inner[0], graph.add(key, inner[1]))

    def folds(key: Key) -> bool:
        return key.name == FOLD.name and is_float(key)

    def products(key: Key) -> bool:
        return key.name in (MUL.name, DIV.name, POW.name, _PRODUCT) and is_float(key)

    return [
        Rewrite("flatten", flatten, ops=products),
        Rewrite("hoist", hoist, ops=folds),
        Rewrite("hoist-where", hoist_where, ops=folds),
        Rewrite("hoist-extreme", hoist_max, ops=folds),
        Rewrite("hoist-sign", negate, ops=folds),
    ]


def improved(roots: Sequence[Node], sizes: Sequence[int]) -> tuple[list[Node], Report]:
    """The cheapest equal nodes that the rules find, and what they did."""
    terms = Terms(sizes)
    classes = terms.add(roots)
    report = terms.graph.run(rules(terms), NODES, ROUNDS)
    return terms.nodes(classes), report
