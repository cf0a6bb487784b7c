"""Reassociation of sums: interchange, Σ_k a Σ_d g b = Σ_d g Σ_k a b, where the inner one is known.

In: a graph. Out: one with the same values. A gradient often sums a factor times its own adjoint:
with c = Σ_k a b, the adjoint of `a` is Σ_d g b, where g is the adjoint of c; so the sum over k of
`a` times that is the sum over d of g times c, and c is known. That is a pass over few numbers in
the place of a product of many. Floats are added in another order, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

from ...core.dtype import float32
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, Shape, make
from ...core.ops.elementwise import ADD, CAST, DIV, MUL, NEG, SUB
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, RESHAPE, reshape
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import rebuild, substitute
from ...core.symbolic.sym import choosing
from ..ir.queries import elements, is_contraction
from ..ir.sum_product import Factor, factors, is_negated, product, summands


def split_sums(sink: Node, order: Sequence[Node]) -> Node:
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


def factor_sums(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with invariant factors outside of sums, Σ c e = c Σ e, where sums become fewer.

    The gradients of a normalisation sum the same products, once times a scale and once without:
    each is then summed once, and none waits for another.
    """
    alike: dict[object, list[Node]] = {}
    for node in order:
        if node.op is REDUCE and node.arg[0] == "add" and node.dtype.kind == "f":
            alike.setdefault((node.src[0].shape, node.arg), []).append(node)
    known: dict[Node, Node] = {}
    for sums in alike.values():
        found = {node: _terms(node) for node in sums} if len(sums) > 2 else {}
        terms = {node: parts for node, parts in found.items() if parts is not None}
        if len({term.inside for parts in terms.values() for term in parts}) < len(terms):
            known |= {node: _summed_apart(node, parts) for node, parts in terms.items()}
    return substitute(sink, known) if known else sink


class _Term(NamedTuple):
    """A summand: what varies along the summed axes, what does not, and whether it is taken off."""

    inside: Node
    outside: tuple[Factor, ...]
    negative: bool


def _terms(total: Node) -> list[_Term] | None:
    """What a sum is a sum of, each with its invariant factors apart; None if one has no others."""
    found: list[_Term] = []
    if is_contraction(total) or not all(isinstance(n, int) for n in total.src[0].shape):
        return None
    for part in summands(total.src[0]):
        parts = factors(part.value, (MUL, DIV, NEG))
        outside = [Factor(_outside(f.value, total), f.power) for f in parts if _stays(f, total)]
        varying = sorted([f for f in parts if not _stays(f, total)], key=lambda f: f.value.id)
        inside = product([f.value for f in varying if f.power > 0])
        if inside is None:
            return None
        for factor in [f for f in varying if f.power < 0]:
            inside = make(DIV, inside.dtype, (inside, factor.value))
        negative = is_negated(part.value) != (part.sign < 0)
        found.append(_Term(inside, tuple(outside), negative))
    return found


def _stays(factor: Factor, total: Node) -> bool:
    """True if a factor does not change along what is summed."""
    value = factor.value
    repeated = value.op is EXPAND and value.src[0].shape == total.shape
    return repeated or value.op is CONST


def _outside(value: Node, total: Node) -> Node:
    """An invariant factor in the shape of the sum."""
    if value.op is CONST:
        return make(CONST, value.dtype, (), (value.arg[0], total.shape))
    return value.src[0]


def _summed_apart(total: Node, terms: Sequence[_Term]) -> Node:
    """A sum as the sum of its terms' sums, each times its invariant factors, divisors last."""
    found: Node | None = None
    for inside, outside, negative in terms:
        part = make(REDUCE, total.dtype, (inside,), total.arg)
        for factor, power in sorted(outside, key=lambda f: -f.power):
            part = make(MUL if power > 0 else DIV, total.dtype, (part, factor))
        if found is None:
            found = make(NEG, total.dtype, (part,)) if negative else part
        else:
            found = make(SUB if negative else ADD, total.dtype, (found, part))
    assert found is not None, "a sum has terms"
    return found


def widen_row_sums(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with per-row sums rounded to small floats where they are used, not before.

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


def interchange_sums(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with sums in the cheaper order, where the inner one is known."""
    sums = [node for node in order if node.op is REDUCE and node.arg[0] == "add"]
    by_factor = _by_factor(sums)
    if max(map(len, by_factor.values()), default=0) < 2:
        return sink
    weights = frozenset([_exact(factor.src[0]) for factor in by_factor])
    rounded = {_exact(n): n for n in order if n.op is CAST and n.dtype.is_small_float}
    found = {node: _interchanged(node, by_factor, weights, rounded) for node in sums}
    known = {node: other for node, other in found.items() if other is not None}
    return substitute(sink, known) if known else sink


def _by_factor(sums: Sequence[Node]) -> dict[Node, list[Node]]:
    """Products that are summed, by their factors that are repeated."""
    found: dict[Node, list[Node]] = {}
    for node in sums:
        for factor in node.src[0].src if node.src[0].op is MUL else ():
            if factor.op is EXPAND:
                found.setdefault(factor, []).append(node)
    return found


def _exact(view: Node) -> Node:
    """What a value is a reshape of, before it was rounded to a small float and widened again."""
    while view.op is RESHAPE or (view.op is CAST and view.src[0].dtype.kind == "f"):
        if view.op is CAST and not (view.dtype.is_small_float or view.src[0].dtype.is_small_float):
            break
        view = view.src[0]
    return view


def _interchanged(
    total: Node, sums: Mapping[Node, list[Node]], weights: frozenset[Node],
    rounded: Mapping[Node, Node],
) -> Node | None:  # fmt: skip
    """A sum over a product with a sum inside, by a sum that is known.

    Where a graph rounds the known one to 16 bits that is what is read: it is stored, the other is
    not. The sums inside were rounded as well, so nothing is lost that was there.
    """
    if total.dtype.kind != "f" or not all(isinstance(n, int) for n in total.src[0].shape):
        return None
    parts = factors(total.src[0], (MUL, DIV, NEG), weights)
    above = [f.value for f in parts if f.power > 0]
    for inner, weight in permutations(above, 2):
        dot = _exact(inner)
        plain = dot.op is REDUCE and dot.arg[0] == "add" and dot.src[0].op is MUL
        if plain and dot.dtype is total.dtype and inner is not weight:
            found = _by_known_sum(total, inner, dot, weight, sums, rounded)
            if found is not None:
                parts.remove(Factor(inner))
                parts.remove(Factor(weight))
                return _times_invariant(found, total, parts, is_negated(total.src[0], weights))
    return None


def _by_known_sum(
    total: Node, inner: Node, dot: Node, weight: Node, sums: Mapping[Node, list[Node]],
    rounded: Mapping[Node, Node],
) -> Node | None:  # fmt: skip
    """Σ_d g c in the shape of the whole sum, where c = Σ_k weight * b is in the graph."""
    over = frozenset(dot.arg[1])
    left = [axis for axis in range(len(dot.shape)) if axis not in over]
    if tuple([dot.shape[axis] for axis in left]) != inner.shape:
        return None
    across = frozenset([left[axis] for axis in total.arg[1]])  # the summed axes of `total`
    for b, g in (dot.src[0].src, dot.src[0].src[::-1]):
        for known in sums.get(b, ()) if _is_repeated(g, across) else ():
            pair = known.src[0].src
            w = pair[1] if pair[0] is b else pair[0]
            same = frozenset(known.arg[1]) == across and _is_cheaper(known, total)
            if same and _is_repeated(w, over) and _is_view(w.src[0], weight, dot.shape):
                c = known if dot is inner else _as_rounded(known, rounded)
                terms = make(MUL, total.dtype, (g.src[0], c))
                return reshape(make(REDUCE, total.dtype, (terms,), dot.arg), total.shape)
    return None


def _is_cheaper(known: Node, total: Node) -> bool:
    """True if a sum has no more elements than what another sums, in the same dtype."""
    with choosing():
        fewer = elements(known.shape) <= elements(total.src[0].shape)
    return fewer and known.dtype is total.dtype


def _as_rounded(known: Node, rounded: Mapping[Node, Node]) -> Node:
    """A sum as the graph rounds it, if it does: that one is stored."""
    if known not in rounded:
        return known
    return reshape(make(CAST, known.dtype, (rounded[known],), known.dtype), known.shape)


def _is_repeated(node: Node, axes: frozenset[int]) -> bool:
    """True if it is repeated along exactly these axes."""
    if node.op is not EXPAND:
        return False
    pairs = zip(node.src[0].shape, node.shape, strict=True)
    return frozenset([i for i, (a, b) in enumerate(pairs) if a != b]) == axes


def _is_view(node: Node, value: Node, shape: Shape) -> bool:
    """True if it is a value in this shape, rounded or not."""
    return _exact(node) is _exact(value) and node.shape == shape


def _times_invariant(
    found: Node, total: Node, parts: Sequence[Factor], negative: bool
) -> Node | None:
    """A sum times the factors that do not change along what was summed, divisors last."""
    axes = frozenset(total.arg[1])
    for factor, power in sorted(parts, key=lambda f: -f.power):
        if _is_repeated(factor, axes) and factor.src[0].shape == total.shape:
            value = factor.src[0]
        elif factor.op is CONST:
            value = make(CONST, factor.dtype, (), (factor.arg[0], total.shape))
        else:
            return None
        found = make(MUL if power > 0 else DIV, found.dtype, (found, value))
    return make(NEG, found.dtype, (found,)) if negative else found
