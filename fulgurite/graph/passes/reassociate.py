"""Sums exchanged where the inner one is there already: Σ_k a Σ_d g b = Σ_d g Σ_k a b.

In: a graph. Out: one with the same values. A gradient often sums a factor times its own adjoint:
with c = Σ_k a b, the adjoint of `a` is Σ_d g b, where g is the adjoint of c; so the sum over k of
`a` times that is the sum over d of g times c, and c is known. That is a pass over few numbers in
the place of a product of many. Floats are added in another order, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.dtype import float32
from ...core.node import Node, make, toposort
from ...core.ops.elementwise import ADD, CAST, DIV, MUL, NEG, SUB
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, RESHAPE, reshape
from ...core.ops.reduce import REDUCE
from ...core.substitute import rebuild, substitute
from ..fusion.machine import elements, is_contraction
from .cancel import cancel
from .split_concat import tails
from .split_reduce import by_rows
from .ungroup_broadcast import repeats


@dataclass(eq=False, repr=False)
class _Product:
    """The factors of a product, up to its sign; some values stay whole."""

    whole: frozenset[Node]
    above: list[Node] = field(default_factory=list)
    below: list[Node] = field(default_factory=list)
    negative: bool = False

    def add(self, node: Node, up: bool = True) -> _Product:
        """Take a factor apart."""
        if node in self.whole:
            (self.above if up else self.below).append(node)
        elif node.op is NEG:
            self.negative = not self.negative
            self.add(node.src[0], up)
        elif node.op in (MUL, DIV):
            self.add(node.src[0], up)
            self.add(node.src[1], up if node.op is MUL else not up)
        else:
            (self.above if up else self.below).append(node)
        return self


def exchange(sink: Node) -> Node:
    """The graph with sums in the cheaper order, and without those of which nothing is left."""
    order = toposort([sink])
    for change in (tails, _taken_apart, repeats, cancel, _exchange, by_rows, _wide_rows):
        changed = change(sink, order)
        if changed is not sink:
            sink, order = changed, toposort([changed])
    return sink


def _taken_apart(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with sums of several products as sums of each: Σ (a b + c d) = Σ a b + Σ c d."""
    known: dict[Node, Node] = {}
    for node in order:
        if node.op is REDUCE and node.arg[0] == "add" and node.src[0].op in (ADD, SUB):
            parts = _products(node.src[0], node)
            if parts is not None:
                known[node] = parts
    return substitute(sink, known) if known else sink


def _products(body: Node, total: Node) -> Node | None:
    """A sum of a sum, term by term, if each is a product of two sides."""
    if body.op in (ADD, SUB, NEG):
        parts = [_products(s, total) for s in body.src]
        found = [part for part in parts if part is not None]
        return make(body.op, body.dtype, tuple(found)) if len(found) == len(parts) else None
    part = make(REDUCE, total.dtype, (body,), total.arg)
    return part if body.dtype.kind == "f" and is_contraction(part) else None


def _wide_rows(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with numbers of rows rounded to small floats where they are used, not before.

    What one kernel makes of a row and another reads is then as exact as within one kernel.
    """
    if not any(node.op is REDUCE and node.dtype.is_small_float for node in order):
        return sink
    known: dict[Node, Node] = {}
    for node in order:
        made = rebuild(node, tuple([known[s] for s in node.src]))
        if node.op is REDUCE and node.dtype.is_small_float and not is_contraction(node):
            whole = make(REDUCE, float32, (make(CAST, float32, made.src, float32),), node.arg)
            made = make(CAST, node.dtype, (whole,), node.dtype)
        known[node] = made
    return known[sink]


def _exchange(sink: Node, order: Sequence[Node]) -> Node:
    sums: dict[Node, list[Node]] = {}  # by factor: products that are summed
    for node in order:
        if node.op is REDUCE and node.arg[0] == "add" and node.src[0].op is MUL:
            for factor in node.src[0].src:
                if factor.op is EXPAND:
                    sums.setdefault(factor, []).append(node)
    if not any(len(found) > 1 for found in sums.values()):
        return sink
    views = [factor.src[0] for factor in sums]
    weights = frozenset([v.src[0] if v.op is RESHAPE else v for v in views])
    known = {}
    for node in order:
        if node.op is REDUCE and node.arg[0] == "add":
            found = _exchanged(node, sums, weights)
            if found is not None:
                known[node] = found
    return substitute(sink, known) if known else sink


def _exchanged(total: Node, sums: dict[Node, list[Node]], weights: frozenset[Node]) -> Node | None:
    """A sum over a product with a sum inside, by a sum that is known."""
    if total.dtype.kind != "f" or not all(isinstance(n, int) for n in total.src[0].shape):
        return None
    factors = _Product(weights).add(total.src[0])
    for inner in factors.above:
        dot = inner.src[0] if inner.op is RESHAPE else inner
        if dot.op is not REDUCE or dot.arg[0] != "add" or dot.src[0].op is not MUL:
            continue
        if dot.dtype is not total.dtype:
            continue
        for other in factors.above:
            if other is not inner:
                found = _known_sum(total, inner, dot, other, sums)
                if found is not None:
                    return _with(found, total, factors, (inner, other))
    return None


def _known_sum(
    total: Node, inner: Node, dot: Node, weight: Node, sums: dict[Node, list[Node]]
) -> Node | None:
    """Σ_d g c in the shape of the whole sum, where c = Σ_k weight * b is in the graph."""
    over = frozenset(dot.arg[1])
    left = [axis for axis in range(len(dot.shape)) if axis not in over]
    if tuple([dot.shape[axis] for axis in left]) != inner.shape:
        return None
    across = frozenset([left[axis] for axis in total.arg[1]])  # the summed axes of `total`
    for b, g in (dot.src[0].src, dot.src[0].src[::-1]):
        if not _repeated(g, across):
            continue
        for known in sums.get(b, ()):
            pair = known.src[0].src
            w = pair[1] if pair[0] is b else pair[0]
            if frozenset(known.arg[1]) != across or known.dtype is not total.dtype:
                continue
            if elements(known.shape) > elements(total.src[0].shape):  # it was the cheaper one
                continue
            if _repeated(w, over) and _is_view(w.src[0], weight) and w.src[0].shape == dot.shape:
                product = make(MUL, total.dtype, (g.src[0], known))
                return reshape(make(REDUCE, total.dtype, (product,), dot.arg), total.shape)
    return None


def _repeated(node: Node, axes: frozenset[int]) -> bool:
    """Is it repeated along exactly these axes?"""
    if node.op is not EXPAND:
        return False
    pairs = zip(node.src[0].shape, node.shape, strict=True)
    return frozenset([i for i, (a, b) in enumerate(pairs) if a != b]) == axes


def _is_view(node: Node, value: Node) -> bool:
    """Is it a value in another shape?"""
    return node is value or (node.op is RESHAPE and node.src[0] is value)


def _with(found: Node, total: Node, factors: _Product, gone: Sequence[Node]) -> Node | None:
    """A sum times the factors that do not change along what was summed."""
    axes = frozenset(total.arg[1])
    left = list(factors.above)
    for node in gone:
        left.remove(node)
    for factor, op in [(f, MUL) for f in left] + [(f, DIV) for f in factors.below]:
        if _repeated(factor, axes) and factor.src[0].shape == total.shape:
            value = factor.src[0]
        elif factor.op is CONST:
            value = make(CONST, factor.dtype, (), (factor.arg[0], total.shape))
        else:
            return None
        found = make(op, found.dtype, (found, value))
    return make(NEG, found.dtype, (found,)) if factors.negative else found
