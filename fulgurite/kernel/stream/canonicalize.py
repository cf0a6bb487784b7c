"""One form of a body in which folds show: full precision inside, gathers for one-hot sums.

In: the stores of a kernel. Out: stores of the same values. All steps change what is computed, not
how it streams, so they hold whatever else is known of a fold:

- `widen_small_floats`: float16 and bfloat16 live in memory only, as float32 does where float64 is
  summed too; excess precision is kept inside a kernel, so no rounding stands between folds.
- `fold_conditions_as_floats`: any and all are extremes of 0 and 1.
- `gather_one_hot`: a sum over k of what is 0 but where k equals a value e that has no k is its
  summand at k = e, or 0 if e is outside; sums are taken apart where that leaves such a one.
- `stabilize_logsumexp`: log Σ exp a = m + log Σ exp(a - m), m = max a, so no prefix overflows.
- `distribute_bases`: Σ w (a - log z) = Σ w a - log z Σ w, so no weighed difference is measured
  from what changes with every block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from ...core.dtype import DType, bfloat16, bool_, decode, float16, float32, float64, int64
from ...core.node import SOURCES, Node, constant, make, toposort
from ...core.ops.elementwise import (
    ABS,
    ADD,
    AND,
    BITCAST,
    CAST,
    EQ,
    EXP,
    EXP2,
    LE,
    LOG,
    LOG2,
    LT,
    MUL,
    NEG,
    SUB,
    WHERE,
)
from ...core.ops.index import FOLD, GUARD, INDEX, LOAD, STORE
from ...core.ops.leaf import CONST
from ...graph.ir.affine import axes_of, axis
from ...graph.ir.bodies import (
    CaptureError,
    Places,
    argument_at,
    each_fold,
    remade,
    replaced,
    substitute_axes,
    transformed,
)
from ...graph.ir.queries import free_axes, indices
from ...graph.ir.sum_product import (
    Summand,
    factors,
    is_number,
    replace_summands,
    summands,
    total,
    without_factor,
)

_SMALL = (float16, bfloat16)
_SIGNS = {ADD: (1, 1), SUB: (1, -1), NEG: (-1,)}


# --- precision -----------------------------------------------------------------------------------


def widen_small_floats(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with small floats in memory alone: those below the widest that is summed."""
    order = toposort(stores)
    mixed = {float32, float64} <= {n.dtype for n in order if n.op is FOLD}
    small, wide = ((*_SMALL, float32), float64) if mixed else (_SMALL, float32)
    if not any(n.dtype in small for n in order) or any(n.op is BITCAST for n in order):
        return tuple(stores)
    return transformed(stores, lambda node, sources: _widen(node, sources, small, wide))


def _widen(node: Node, sources: tuple[Node, ...], smaller: Sequence[DType], wide: DType) -> Node:
    small = node.dtype in smaller
    if node.op is STORE and sources[0].dtype is not node.src[0].dtype:
        old = node.src[0].dtype
        sources = (make(CAST, old, sources[:1], old), *sources[1:])
    elif node.op is LOAD and small:
        return make(CAST, wide, (make(LOAD, node.dtype, sources, node.arg),), wide)
    elif node.op is CONST and small:
        return constant(decode(node.arg[0], node.dtype), wide)
    dtype = wide if small else node.dtype
    if node.op is CAST and sources[0].dtype is dtype:
        return sources[0]
    return make(node.op, dtype, sources, dtype if node.op is CAST else node.arg)


def fold_conditions_as_floats(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with whether any, or all, of some conditions hold as extremes of 0 and 1."""

    def number(fold: Node) -> Node:
        if fold.dtype is not bool_ or fold.arg[0] not in ("max", "min"):
            return fold
        marks = constant(1, float32), constant(0, float32)
        body = make(WHERE, float32, (fold.src[0], *marks))
        return make(LT, bool_, (marks[1], make(FOLD, float32, (body,), fold.arg)))

    return each_fold(stores, number)


# --- one-hot sums --------------------------------------------------------------------------------


def gather_one_hot(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[Node, ...]:
    """The stores without sums of which one element counts."""
    order = toposort(stores)
    if not any(n.op is EQ and any(_axis_of(s) is not None for s in n.src) for n in order):
        return tuple(stores)
    return each_fold(stores, lambda fold: _gathered(fold, sizes))


def _gathered(fold: Node, sizes: Sequence[int]) -> Node:
    """A sum without the summands that are gathered, and those beside it."""
    if fold.arg[0] != "add" or fold.dtype.kind != "f":
        return fold
    one_hot = _OneHot(fold)
    rest: list[Node] = []
    chosen: list[Node] = []
    for term in one_hot.terms(fold.src[0]):
        found = one_hot.gathered(term, sizes)
        (rest if found is None else chosen).append(term if found is None else found)
    if not chosen:
        return fold
    body = total(rest)
    if body is not None:
        chosen.append(make(FOLD, fold.dtype, (body,), fold.arg))
    value = total(chosen)
    assert value is not None
    return value


class _Hit(NamedTuple):
    """A factor that is 0 but where an axis equals a place."""

    factor: Node
    axis: int
    place: Node
    value: Node  # there


class _OneHot:
    """The one-hot factors of a sum."""

    def __init__(self, fold: Node) -> None:
        self.axes: tuple[int, ...] = fold.arg[1]
        self.free = free_axes(toposort([fold.src[0]]))

    def hit(self, factor: Node) -> _Hit | None:
        """Where a factor counts, if it is 0 but where an axis equals a value that lacks it."""
        condition, value = factor, constant(1, factor.dtype)
        if factor.op is WHERE and is_number(factor.src[2], 0.0):
            condition, value = factor.src[:2]
        elif factor.op is CAST:
            condition = factor.src[0]
        if condition is factor or condition.op is not EQ:
            return None
        for side, other in (condition.src, condition.src[::-1]):
            number = _axis_of(side)
            if number is not None and number in self.axes and number not in self.free[other]:
                return _Hit(factor, number, other, value)
        return None

    def hits(self, term: Node) -> list[_Hit]:
        """The one-hot factors of a product."""
        found = [self.hit(f.value) for f in factors(term, (MUL, NEG))]
        return [hit for hit in found if hit is not None]

    def terms(self, node: Node) -> list[Node]:
        """What a value is the sum of, taken apart only where that leaves something one-hot."""
        if node.op in _SIGNS:
            signs = zip(node.src, _SIGNS[node.op], strict=True)
            found = [
                term if sign > 0 else make(NEG, node.dtype, (term,))
                for source, sign in signs for term in self.terms(source)
            ]  # fmt: skip
        elif node.op is MUL:
            first, second = map(self.distributed, node.src)
            found = [make(MUL, node.dtype, (a, b)) for a in first for b in second]
        else:
            return [node]
        return found if len(found) > 1 and any(map(self.hits, found)) else [node]

    def distributed(self, node: Node) -> list[Node]:
        """The terms of a factor, each to be multiplied alone.

        A number less something is a mask: what it takes out may be all but nothing of a sum.
        """
        terms = self.terms(node)
        mask = any(t.op is CONST for t in terms) and any(t.op is NEG for t in terms)
        return terms if any(map(self.hits, terms)) and not mask else [node]

    def gathered(self, term: Node, sizes: Sequence[int]) -> Node | None:
        """A summand where it counts, summed over the axes that are left."""
        hit = next(iter(self.hits(term)), None)
        if hit is None:
            return None
        place, inside = _within(hit.place, sizes[hit.axis])
        (body,) = replaced([term], {hit.factor: hit.value})
        try:
            found = _at(body, hit.axis, place)
        except CaptureError:
            return None
        left = tuple([a for a in self.axes if a != hit.axis])
        if left:
            found = make(FOLD, term.dtype, (found,), ("add", left))
        if inside is not None:
            found = make(WHERE, term.dtype, (inside, found, constant(0, term.dtype)))
        return found


def _axis_of(node: Node) -> int | None:
    """The axis that a value is the index of."""
    while node.op is CAST and node.dtype.kind == "i" and node.dtype.bits >= 32:
        node = node.src[0]
    if node.op is not INDEX or node.arg[0] or len(node.arg[1]) != 1:
        return None
    atom, step = node.arg[1][0]
    return atom if isinstance(atom, int) and step == 1 else None


def _within(place: Node, size: int) -> tuple[Node, Node | None]:
    """A place as an index that is inside, and the condition that it was, if that is not known."""
    if place.op is INDEX and place.arg[0] == 0 and len(place.arg[1]) == 1:
        atom, step = place.arg[1][0]
        if step == 1 and not isinstance(atom, (int, tuple)):
            place = place.src[atom.index]  # a value as it is
    inside: Node | None = None
    if not (place.op is GUARD and len(place.src) == 1 and place.arg <= size):
        limits = constant(0, place.dtype), constant(size, place.dtype)
        pair = make(LE, bool_, (limits[0], place)), make(LT, bool_, (place, limits[1]))
        inside = make(AND, bool_, pair)
        place = make(WHERE, place.dtype, (inside, place, limits[0]))
    return (place if place.dtype is int64 else make(CAST, int64, (place,), int64)), inside


def _at(root: Node, number: int, place: Node) -> Node:
    """A value with an axis at a place that is data."""
    bound = free_axes(toposort([place]))[place]

    def made(node: Node, sources: tuple[Node, ...], places: Places) -> Node:
        if node.op is FOLD and bound.intersection(node.arg[1]):
            raise CaptureError
        if not any(number in axes_of(i) for i in indices(node)):
            return remade(node, sources)
        arg = argument_at(node, {number: axis(SOURCES[len(sources)])})
        return make(node.op, node.dtype, (*sources, place), arg)

    return substitute_axes(root, {number: axis(SOURCES[0])}, made)


# --- logarithms of sums --------------------------------------------------------------------------


def distribute_bases(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with weighed differences from logarithms of sums and from extremes taken apart.

    Σ w (a - log z) = Σ w a - log z Σ w: z grows with every block, and so would errors of repairs.
    Σ w (a - m) = Σ w (a - n) - (m - n) Σ w, where n is 0 for an m that is infinite, and m else: so
    nothing is measured from what is infinite only so far.
    """
    return each_fold(stores, _distributed)


def _distributed(fold: Node) -> Node:
    body = fold.src[0]
    if fold.arg[0] != "add" or fold.dtype.kind != "f" or body.op is not MUL:
        return fold
    free = free_axes(toposort([body]))
    for factor in factors(body, (MUL, NEG)):
        weight = without_factor(body, factor.value)
        if factor.value.op in (ADD, SUB) and weight is not None:
            found = _without_bases(fold, factor.value, weight, free)
            if found is not None:
                return found
    return fold


def _without_bases(
    fold: Node, factor: Node, weight: Node, free: Mapping[Node, frozenset[int]]
) -> Node | None:
    """Σ weight * factor with the logarithm of a sum in the factor, and extremes, outside."""
    dtype, axes = fold.dtype, frozenset(fold.arg[1])
    bases = [s for s in summands(factor) if not free[s.value] & axes and _is_folded(s.value)]
    logs = [s for s in bases if s.value.op in (LOG, LOG2)]
    if len(logs) != 1:  # none: as large as what it is measured from; two: small as they are
        return None
    known: dict[Node, Node | None] = {logs[0].value: None}
    infinite: list[tuple[Node, Summand]] = []  # when an extreme is finite, and what it is else
    for s in bases if not _is_folded(weight) else ():
        if s.value.op is FOLD and s.value.arg[0] != "add":
            finite, part = _finite_part(s.value)
            known[s.value] = part
            infinite.append((finite, Summand(make(SUB, dtype, (s.value, part)), s.sign)))
    rest = replace_summands(factor, known)
    if rest is None:
        return None
    found = make(FOLD, dtype, (make(MUL, dtype, (weight, rest)),), fold.arg)
    weights = make(FOLD, dtype, (weight,), fold.arg)

    def plus(value: Node, s: Summand) -> Node:
        part = make(MUL, dtype, (s.value, weights))
        return make(ADD if s.sign > 0 else SUB, dtype, (value, part))

    found = plus(found, logs[0])
    for finite, s in infinite:
        found = make(WHERE, dtype, (finite, found, plus(found, s)))
    return found


def _finite_part(value: Node) -> tuple[Node, Node]:
    """Whether a value is finite, and it where it is, 0 elsewhere."""
    dtype = value.dtype
    finite = make(LT, bool_, (make(ABS, dtype, (value,)), constant(inf, dtype)))
    return finite, make(WHERE, dtype, (finite, value, constant(0, dtype)))


def is_finite_part(node: Node, base: Node) -> bool:
    """True if it is a value where that is finite, and a number elsewhere."""
    if node.op is not WHERE or node.src[1] is not base or node.src[2].op is not CONST:
        return False
    holds = node.src[0]
    return holds.op is LT and holds.src[0].op is ABS and holds.src[0].src[0] is base


def _is_folded(node: Node) -> bool:
    """True if it is computed from a fold."""
    return any(n.op is FOLD for n in toposort([node]))


def stabilize_logsumexp(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with logarithms of sums of powers, inside powers, measured from the largest."""
    order = toposort(stores)
    inside = set(toposort([n.src[0] for n in order if n.op in (EXP, EXP2)]))
    logs = {n for n in order if n in inside and _power(n) is not None}
    if not logs:
        return tuple(stores)

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        made, dtype = remade(node, sources), node.dtype
        power = _power(made) if node in logs else None
        if power is None:
            return made
        fold = made.src[0]
        most = make(FOLD, dtype, power.src, ("max", fold.arg[1]))
        less = make(SUB, dtype, (power.src[0], most))
        sum_ = make(FOLD, dtype, (make(power.op, dtype, (less,)),), fold.arg)
        return make(ADD, dtype, (most, make(node.op, dtype, (sum_,))))

    return transformed(stores, change)


def _power(log: Node) -> Node | None:
    """The power that a logarithm sums, if nothing in it is measured from an extreme."""
    kind = {LOG: EXP, LOG2: EXP2}.get(log.op)
    fold = log.src[0] if kind is not None else log
    if fold.op is not FOLD or fold.arg[0] != "add" or fold.src[0].op is not kind:
        return None
    known = any(n.op is FOLD and n.arg[0] != "add" for n in toposort([fold.src[0]]))
    return None if known else fold.src[0]
