"""Spelling a body so that folds show: full precision inside, and what is picked read where it is.

In: the stores of a kernel. Out: stores of the same values. `widened`: float16 and bfloat16 live in
memory only, as float32 does where float64 is summed too; inside a kernel excess precision is kept,
so no rounding stands between folds.
`picked`: a sum over k of what is 0 but where k equals a value e that has no k is its summand at
k = e, or 0 if e is outside; sums of sums are taken apart where that leaves such a one. `settled`:
weights are not measured from logarithms of sums, which move all the way, `measured`: nor from
one that was not measured from an extreme itself. All of them change what is computed, not how it
streams, so they hold whatever else is known of a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from ...core.dtype import DType, bfloat16, bool_, decode, float16, float32, float64, int64
from ...core.node import SOURCES, Node, Source, constant, make, toposort
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
from ...core.ops.index import FOLD, GUARD, INDEX, LOAD, STORE, VALID
from ...core.ops.leaf import CONST
from ...graph.ir.affine import Affine, axes_of, rename
from ...graph.ir.queries import free_axes, indices

_SMALL = (float16, bfloat16)


def spelled(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[Node, ...]:
    """The stores in the spelling that streams best."""
    return settled(measured(picked(numbered(widened(stores)), sizes)))


# --- precision -----------------------------------------------------------------------------------


def widened(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with small floats in memory alone: those below the widest that is summed."""
    order = toposort(stores)
    mixed = {float32, float64} <= {n.dtype for n in order if n.op is FOLD}
    small, wide = ((*_SMALL, float32), float64) if mixed else (_SMALL, float32)
    if not any(n.dtype in small for n in order) or any(n.op is BITCAST for n in order):
        return tuple(stores)
    done: dict[Node, Node] = {}
    for node in order:
        done[node] = _wide(node, [done[s] for s in node.src], small, wide)
    return tuple([done[s] for s in stores])


def _wide(node: Node, sources: list[Node], smaller: Sequence[DType], wide: DType) -> Node:
    small = node.dtype in smaller
    if node.op is STORE:
        value, old = sources[0], node.src[0].dtype
        if value.dtype is not old:
            sources[0] = make(CAST, old, (value,), old)
    elif node.op is LOAD and small:
        return make(CAST, wide, (make(LOAD, node.dtype, tuple(sources), node.arg),), wide)
    elif node.op is CONST and small:
        return constant(decode(node.arg[0], node.dtype), wide)
    dtype = wide if small else node.dtype
    if node.op is CAST and sources[0].dtype is dtype:
        return sources[0]
    arg = dtype if node.op is CAST else node.arg
    return make(node.op, dtype, tuple(sources), arg)


def numbered(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with whether any, or all, of some conditions hold as extremes of 0 and 1."""

    def number(fold: Node) -> Node:
        if fold.dtype is not bool_ or fold.arg[0] not in ("max", "min"):
            return fold
        marks = constant(1, float32), constant(0, float32)
        body = make(WHERE, float32, (fold.src[0], *marks))
        return make(LT, bool_, (marks[1], make(FOLD, float32, (body,), fold.arg)))

    return _each_fold(stores, number)


# --- what is picked ------------------------------------------------------------------------------


def picked(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[Node, ...]:
    """The stores without sums of which one element counts."""
    order = toposort(stores)
    if not any(n.op is EQ and any(_is_axis(s) is not None for s in n.src) for n in order):
        return tuple(stores)
    return _each_fold(stores, lambda fold: _without(fold, sizes))


def _each_fold(stores: Sequence[Node], change: Callable[[Node], Node]) -> tuple[Node, ...]:
    """The stores with something else for every fold."""
    order = toposort(stores)
    done: dict[Node, Node] = {}
    for node in order:
        made = make(node.op, node.dtype, tuple([done[s] for s in node.src]), node.arg)
        done[node] = change(made) if node.op is FOLD else made
    return tuple([done[s] for s in stores])


def _without(fold: Node, sizes: Sequence[int]) -> Node:
    """A sum without the summands that are picked, and those beside it."""
    if fold.arg[0] != "add" or fold.dtype.kind != "f":
        return fold
    axes: tuple[int, ...] = fold.arg[1]
    free = free_axes(toposort([fold.src[0]]))
    rest: list[Node] = []
    chosen: list[Node] = []
    for term in _summands(fold.src[0], frozenset(axes), free):
        for factor in _factors(term):
            hit = _hit(factor, frozenset(axes), free)
            if hit is not None:
                left = tuple([a for a in axes if a != hit[0]])
                chosen.append(_at(term, factor, hit, left, sizes))
                break
        else:
            rest.append(term)
    if not chosen:
        return fold
    if rest:
        body = rest[0]
        for term in rest[1:]:
            body = make(ADD, body.dtype, (body, term))
        chosen.append(make(FOLD, fold.dtype, (body,), fold.arg))
    value = chosen[0]
    for other in chosen[1:]:
        value = make(ADD, fold.dtype, (value, other))
    return value


_Hit = tuple[int, Node, Node | None]  # an axis, what it equals, the value there (None: 1)


def _hit(factor: Node, axes: frozenset[int], free: Mapping[Node, frozenset[int]]) -> _Hit | None:
    """Is a factor 0 but where an axis equals a value that does not have it?"""
    value: Node | None = None
    condition = factor
    if factor.op is WHERE and _is_zero(factor.src[2]):
        condition, value = factor.src[:2]
    elif factor.op is CAST:
        condition = factor.src[0]
    if condition is factor or condition.op is not EQ:
        return None
    for place, other in (condition.src, condition.src[::-1]):
        number = _is_axis(place)
        if number in axes and number not in free[other]:
            assert number is not None
            return number, other, value
    return None


def _is_axis(node: Node) -> int | None:
    """The axis that a value is the index of."""
    while node.op is CAST and node.dtype.kind == "i" and node.dtype.bits >= 32:
        node = node.src[0]
    if node.op is not INDEX or node.arg[0] or len(node.arg[1]) != 1:
        return None
    atom, step = node.arg[1][0]
    return atom if isinstance(atom, int) and step == 1 else None


def _is_zero(node: Node) -> bool:
    return node.op is CONST and node.dtype.kind == "f" and decode(node.arg[0], node.dtype) == 0


def _summands(
    node: Node, axes: frozenset[int], free: Mapping[Node, frozenset[int]]
) -> list[Node]:  # fmt: skip
    """What a value is the sum of, products taken apart only where that leaves something picked."""
    op, dtype = node.op, node.dtype

    def parts(source: Node) -> list[Node]:
        return _summands(source, axes, free)

    def picks(terms: list[Node]) -> bool:
        return any(_hit(f, axes, free) is not None for t in terms for f in _factors(t))

    if op in (ADD, SUB):
        first, second = map(parts, node.src)
        if op is SUB:
            second = [make(NEG, dtype, (term,)) for term in second]
        found = [*first, *second]
    elif op is NEG:
        found = [make(NEG, dtype, (term,)) for term in parts(node.src[0])]
    elif op is MUL:
        first, second = map(parts, node.src)
        first = first if picks(first) and not _is_mask(first) else [node.src[0]]
        second = second if picks(second) and not _is_mask(second) else [node.src[1]]
        found = [make(MUL, dtype, (a, b)) for a in first for b in second]
    else:
        found = [node]
    return found if len(found) > 1 and picks(found) else [node]


def _is_mask(terms: list[Node]) -> bool:
    """Is a number less something? What that takes out may be all but nothing of a sum."""
    return any(t.op is CONST for t in terms) and any(t.op is NEG for t in terms)


def _factors(node: Node) -> list[Node]:
    """What a value is a product of, up to its sign."""
    if node.op is MUL:
        return [f for s in node.src for f in _factors(s)]
    return _factors(node.src[0]) if node.op is NEG else [node]


def _at(
    term: Node, factor: Node, hit: _Hit, left: tuple[int, ...], sizes: Sequence[int]
) -> Node:  # fmt: skip
    """A summand where it counts, summed over the axes that are left."""
    number, place, value = hit
    one = constant(1, factor.dtype) if value is None else value
    body = _replaced(term, {factor: one})
    if place.op is INDEX and place.arg[0] == 0 and len(place.arg[1]) == 1:
        atom, step = place.arg[1][0]
        if step == 1 and not isinstance(atom, (int, tuple)):
            place = place.src[atom.index]  # a value as it is
    inside: Node | None = None
    if not (place.op is GUARD and len(place.src) == 1 and place.arg <= sizes[number]):
        limits = constant(0, place.dtype), constant(sizes[number], place.dtype)
        pair = make(LE, bool_, (limits[0], place)), make(LT, bool_, (place, limits[1]))
        inside = make(AND, bool_, pair)
        place = make(WHERE, place.dtype, (inside, place, limits[0]))
    if place.dtype is not int64:
        place = make(CAST, int64, (place,), int64)
    found = _fixed(body, number, place)
    if left:
        found = make(FOLD, term.dtype, (found,), ("add", left))
    if inside is not None:
        found = make(WHERE, term.dtype, (inside, found, constant(0, term.dtype)))
    return found


def _replaced(root: Node, known: dict[Node, Node]) -> Node:
    """A value with others in the place of some nodes."""
    done = dict(known)
    for node in toposort([root]):
        if node not in done:
            sources = tuple([done[s] for s in node.src])
            done[node] = (
                node if sources == node.src else make(node.op, node.dtype, sources, node.arg)
            )
    return done[root]


def _fixed(root: Node, number: int, place: Node) -> Node:
    """A value with an axis at a place."""
    order = toposort([root])
    free = free_axes(order)
    done: dict[Node, Node] = {}
    for node in order:
        if number not in free[node]:
            done[node] = node
            continue
        sources, arg = [done[s] for s in node.src], node.arg
        if any(number in axes_of(i) for i in indices(node)):
            atom = SOURCES[len(sources)]
            sources.append(place)

            def index(i: Affine, atom: Source = atom) -> Affine:
                return rename(i, lambda a: atom if a == number else a)

            if node.op is LOAD:
                arg = (arg[0], index(arg[1]), tuple([(index(i), n) for i, n in arg[2]]))
            elif node.op is VALID:
                arg = tuple([(index(i), n) for i, n in arg])
            else:
                arg = index(arg)
        done[node] = make(node.op, node.dtype, tuple(sources), arg)
    return done[root]


# --- logarithms of sums --------------------------------------------------------------------------


def settled(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with weighed differences from logarithms of sums and from extremes taken apart.

    Σ w (a - log z) = Σ w a - log z Σ w: z grows with every block, and so would errors of repairs.
    Σ w (a - m) = Σ w (a - n) - (m - n) Σ w, where n is 0 for an m that is infinite, and m else: so
    nothing is measured from what is infinite only so far.
    """
    return _each_fold(stores, _apart)


def _apart(fold: Node) -> Node:
    body, axes, dtype = fold.src[0], frozenset(fold.arg[1]), fold.dtype
    if fold.arg[0] != "add" or dtype.kind != "f" or body.op is not MUL:
        return fold
    order = toposort([body])
    free = free_axes(order)
    for factor in _factors(body):
        weight = _less(body, factor)
        if factor.op not in (ADD, SUB) or weight is None:
            continue
        fixed = [t for t in _terms(factor, 1) if not free[t[0]] & axes and _is_folded(t[0])]
        plain = not any(_is_folded(n) for n in toposort([weight]))
        logs = [t for t in fixed if t[0].op in (LOG, LOG2)]
        most = [t for t in fixed if t[0].op is FOLD and t[0].arg[0] != "add" and plain]
        if len(logs) != 1:  # none: as large as what it is measured from; two: small as they are
            continue
        known: dict[Node, Node | None] = dict.fromkeys([t for t, _ in logs])
        odd: list[tuple[Node, Node, int]] = []
        for term, sign in most:
            finite = make(LT, bool_, (make(ABS, dtype, (term,)), constant(inf, dtype)))
            bounded = make(WHERE, dtype, (finite, term, constant(0, dtype)))
            known[term] = bounded
            odd.append((finite, make(SUB, dtype, (term, bounded)), sign))
        rest = _put(factor, known)
        if rest is None:
            continue
        body = make(MUL, dtype, (weight, rest))
        found = make(FOLD, dtype, (body,), fold.arg)
        weights = make(FOLD, dtype, (weight,), fold.arg)
        for log, sign in logs:
            part = make(MUL, dtype, (log, weights))
            found = make(ADD if sign > 0 else SUB, dtype, (found, part))
        for finite, less, sign in odd:
            part = make(ADD if sign > 0 else SUB, dtype, (found, make(MUL, dtype, (less, weights))))
            found = make(WHERE, dtype, (finite, found, part))
        return found
    return fold


def _put(node: Node, known: Mapping[Node, Node | None]) -> Node | None:
    """A sum with others in the place of some summands, or without them."""
    if node in known or node.op not in (ADD, SUB, NEG):
        return known.get(node, node)
    parts = [_put(s, known) for s in node.src]
    left = [p for p in parts if p is not None]
    if len(left) == len(parts):
        return make(node.op, node.dtype, tuple(left))
    if node.op is SUB and left and parts[0] is None:
        return make(NEG, node.dtype, tuple(left))
    return left[0] if left else None


def is_bounded(node: Node, base: Node) -> bool:
    """Is it a value where that is finite, and a number elsewhere?"""
    if node.op is not WHERE or node.src[1] is not base or node.src[2].op is not CONST:
        return False
    holds = node.src[0]
    return holds.op is LT and holds.src[0].op is ABS and holds.src[0].src[0] is base


def _terms(node: Node, sign: int) -> list[tuple[Node, int]]:
    """What a value is a sum of, with signs."""
    if node.op is NEG:
        return _terms(node.src[0], -sign)
    if node.op not in (ADD, SUB):
        return [(node, sign)]
    return _terms(node.src[0], sign) + _terms(node.src[1], -sign if node.op is SUB else sign)


def _less(body: Node, factor: Node) -> Node | None:
    """A product without one of its factors; None if nothing is left, not even a sign."""
    if body is factor:
        return None
    if body.op is NEG:
        left = _less(body.src[0], factor)
        one = constant(1, body.dtype)
        return make(NEG, body.dtype, (one if left is None else left,))
    place = 0 if factor in _factors(body.src[0]) else 1
    left, other = _less(body.src[place], factor), body.src[1 - place]
    return other if left is None else make(MUL, body.dtype, (left, other))


def _is_folded(node: Node) -> bool:
    """Is it worked out from a fold?"""
    return any(n.op is FOLD for n in toposort([node]))


def measured(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with logarithms of sums of powers measured from the largest, inside weights.

    log Σ exp a = m + log Σ exp(a - m), with m the largest a: then no prefix is out of range.
    """
    order = toposort(stores)
    inside = set(toposort([n.src[0] for n in order if n.op in (EXP, EXP2)]))
    logs = [n for n in order if n in inside and _power(n) is not None]
    if not logs:
        return tuple(stores)
    done: dict[Node, Node] = {}
    for node in order:
        made = make(node.op, node.dtype, tuple([done[s] for s in node.src]), node.arg)
        power = _power(made) if node in logs else None
        if power is not None:
            fold, dtype = made.src[0], made.dtype
            most = make(FOLD, dtype, power.src, ("max", fold.arg[1]))
            less = make(SUB, dtype, (power.src[0], most))
            total = make(FOLD, dtype, (make(power.op, dtype, (less,)),), fold.arg)
            made = make(ADD, dtype, (most, make(node.op, dtype, (total,))))
        done[node] = made
    return tuple([done[s] for s in stores])


def _power(log: Node) -> Node | None:
    """The power that a logarithm sums, if nothing in it is measured from an extreme."""
    kind = {LOG: EXP, LOG2: EXP2}.get(log.op)
    fold = log.src[0] if kind is not None else log
    if fold.op is not FOLD or fold.arg[0] != "add" or fold.src[0].op is not kind:
        return None
    known = any(n.op is FOLD and n.arg[0] != "add" for n in toposort([fold.src[0]]))
    return None if known else fold.src[0]
