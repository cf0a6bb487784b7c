"""Nodes of a body as terms of an e-graph over flat products, and the cheapest terms as nodes.

In: nodes in index notation. Out: nodes that compute the same. A `product` has any number of factors
in no order, a division is a product with an `inverse`, so laws need neither association nor
commutation. Analyses keep for every class the axes that it depends on and how many folds lie above
each other in it. A term costs its op once for each element it has; a product is multiplied out
fewest elements first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from math import prod
from typing import Any

from ...core.dtype import DType, decode
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, constant, make, toposort
from ...core.op import Op
from ...core.ops.elementwise import DIV, EXP, EXP2, MUL
from ...core.ops.index import FOLD
from ...core.ops.leaf import CONST
from ...core.rewriting.egraph import Analysis, EGraph, Term, cheapest
from ...core.symbolic.sym import choosing
from ...graph.ir.affine import axes_of
from ...graph.ir.limits import LIMITS
from ...graph.ir.queries import indices

PRODUCT, INVERSE = "product", "inverse"


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
        self.axes_in: dict[Key, frozenset[int]] = {}  # that a node's own argument names
        axes, height = Analysis(self._free, frozenset.intersection), Analysis(self._height, min)
        self.graph = EGraph(analyses={"axes": axes, "height": height})

    def _free(self, graph: EGraph, term: Term) -> frozenset[int]:
        key: Key = term[0]
        found = self.axes_in.get(key, frozenset[int]())
        found = found.union(*[graph.get("axes", s) for s in term[1:]])
        return found - frozenset(self.fold(key)[1])

    def _height(self, graph: EGraph, term: Term) -> int:
        """How many folds are above each other, at least."""
        below = max([graph.get("height", s) for s in term[1:]], default=0)
        return int(below + (term[0].name == FOLD.name))

    # --- from nodes ------------------------------------------------------------------------------

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

    def product(self, dtype: DType, factors: Sequence[int]) -> int:
        """The class of a flat product; of one factor it is that."""
        key = Key(PRODUCT, dtype.name, "")
        if key not in self.graph.unordered:
            self.graph.unordered |= {key}
        return factors[0] if len(factors) == 1 else self.graph.add(key, *factors)

    def inverse(self, dtype: DType, number: int) -> int:
        """The class of one over another."""
        return self.graph.add(Key(INVERSE, dtype.name, ""), number)

    # --- what is known of classes ----------------------------------------------------------------

    def of(self, number: int) -> list[Term]:
        """The terms of a class as they are now."""
        return list(self.graph.terms[self.graph.find(number)])

    def has_any(self, ops: Collection[str], classes: Sequence[int]) -> bool:
        """True if one of some classes has a term of one of some ops."""
        graph = self.graph
        return any([term[0].name in ops for c in classes for term in graph.terms[graph.find(c)]])

    def fold(self, key: Key) -> tuple[str, tuple[int, ...]]:
        """The operation and axes of a fold; of another op, none."""
        found: tuple[str, tuple[int, ...]] = (
            self.made[key][2] if key.name == FOLD.name else ("", ())
        )
        return found

    def axes(self, number: int) -> frozenset[int]:
        """The axes that a class depends on."""
        found: frozenset[int] = self.graph.get("axes", number)
        return found

    def is_folded(self, number: int) -> bool:
        """True if every term of a class has a fold in it."""
        return bool(self.graph.get("height", number))

    def is_constant(self, number: int, value: float) -> bool:
        """True if a class is this number."""
        for term in self.of(number):
            known = self.made.get(term[0])
            if known is not None and known[0] is CONST:
                return bool(decode(known[2][0], known[1]) == value)
        return False

    def is_positive(self, number: int) -> bool:
        """True if a class is a sum of powers, or one over it: above 0, or no number at all."""
        for term in self.of(number):
            if term[0].name == INVERSE:
                return self.is_positive(term[1])
            if self.fold(term[0])[0] == "add":
                return any(power[0].name in (EXP.name, EXP2.name) for power in self.of(term[1]))
        return False

    # --- back to nodes ---------------------------------------------------------------------------

    def price(self, term: Term, number: int) -> float | None:
        """What a term costs: its op for each of its elements."""
        with choosing():
            return self._price(term, number)

    def _price(self, term: Term, number: int) -> float | None:
        key: Key = term[0]
        if key.name == FOLD.name:
            inside = self.axes(term[1]) | frozenset(self.fold(key)[1])
            return float(
                self.count(inside)
                * (1 + LIMITS.nested_fold_cost * self.graph.get("height", term[1]))
            )
        if key.name == PRODUCT:
            return float(sum([self.count(axes) for _, _, axes in self.pairs(term[1:])]))
        cost = DIV.cost if key.name == INVERSE else self.made[key][0].cost
        return float(cost * self.count(self.axes(number)))

    def count(self, axes: frozenset[int]) -> int:
        """How many elements some axes have."""
        return prod([self.sizes[a] for a in axes])

    def pairs(self, factors: Sequence[int]) -> Iterator[tuple[int, int, frozenset[int]]]:
        """The places i < j of what is multiplied next, into i, and the axes of that."""
        parts = [(self.axes(f), self.graph.digest(f)) for f in factors]
        while len(parts) > 1:
            with choosing():
                i, j = min(
                    combinations(range(len(parts)), 2),
                    key=lambda p: (self.count(parts[p[0]][0] | parts[p[1]][0]), parts[p[0]][1],
                                   parts[p[1]][1]),
                )  # fmt: skip
            other, name = parts.pop(j)
            parts[i] = parts[i][0] | other, min(parts[i][1], name)
            yield i, j, parts[i][0]

    def nodes(self, roots: Sequence[int]) -> list[Node]:
        """The cheapest nodes that compute some classes."""
        chosen = cheapest(self.graph, roots, self.price)
        made: dict[int, Node] = {}
        stack = [self.graph.find(r) for r in reversed(roots)]
        while stack:
            number = stack[-1]
            above, below = self._operands(chosen, number)
            missing = [s for s in (*above, *below) if s not in made]
            if number not in made and missing:
                stack.extend(missing)
                continue
            stack.pop()
            if number not in made:
                made[number] = self._node(chosen[number][0], above, below, made)
        return [made[self.graph.find(r)] for r in roots]

    def _operands(self, chosen: dict[int, Term], number: int) -> tuple[list[int], list[int]]:
        """The classes that a node is made of, and those that it divides by."""
        above: list[int] = []
        below: list[int] = []
        for source in chosen[number][1:]:
            source = self.graph.find(source)
            divides = chosen[source][0].name == INVERSE and chosen[number][0].name == PRODUCT
            (below if divides else above).append(
                self.graph.find(chosen[source][1]) if divides else source
            )
        return (below, above) if chosen[number][0].name == INVERSE else (above, below)

    def _node(self, key: Key, above: list[int], below: list[int], made: dict[int, Node]) -> Node:
        if key.name not in (PRODUCT, INVERSE):
            op, dtype, arg = self.made[key]
            return make(op, dtype, tuple([made[s] for s in above]), arg)
        dtype = self.dtypes[key.dtype]
        top = self._multiplied(above, made) if above else constant(1, dtype)
        return make(DIV, dtype, (top, self._multiplied(below, made))) if below else top

    def _multiplied(self, factors: list[int], made: dict[int, Node]) -> Node:
        """Small products first."""
        values = [made[factor] for factor in factors]
        for i, j, _ in self.pairs(factors):
            values[i] = make(MUL, values[i].dtype, (values[i], values.pop(j)))
        return values[0]
