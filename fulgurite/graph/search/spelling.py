"""Spelling a body so that folds show: full precision inside, and what is picked read where it is.

In: the stores of a kernel. Out: stores of the same values. `widened`: float16 and bfloat16 live in
memory only; inside a kernel excess precision is kept, so no rounding stands between folds.
`picked`: a sum over k of what is 0 but where k equals a value e that has no k is its summand at
k = e, or 0 if e is outside; sums of sums are taken apart where that leaves such a one. `settled`:
weights are not measured from logarithms of sums, which move all the way. All of them change what
is computed, not how it streams, so they hold whatever else is known of a fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.dtype import bfloat16, bool_, decode, float16, float32, int64
from ...core.node import SOURCES, Node, Source, constant, make, toposort
from ...core.ops.elementwise import (
    ADD,
    AND,
    BITCAST,
    CAST,
    EQ,
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
from ..affine import Affine, axes_of, rename
from ..body import free_axes, indices

_SMALL = (float16, bfloat16)


# --- precision -----------------------------------------------------------------------------------


def widened(stores: Sequence[Node]) -> tuple[Node, ...]:
    """The stores with small floats in memory alone."""
    order = toposort(stores)
    if not any(n.dtype in _SMALL for n in order) or any(n.op is BITCAST for n in order):
        return tuple(stores)
    done: dict[Node, Node] = {}
    for node in order:
        done[node] = _wide(node, [done[s] for s in node.src])
    return tuple([done[s] for s in stores])


def _wide(node: Node, sources: list[Node]) -> Node:
    small = node.dtype in _SMALL
    if node.op is STORE:
        value, old = sources[0], node.src[0].dtype
        if value.dtype is not old:
            sources[0] = make(CAST, old, (value,), old)
    elif node.op is LOAD and small:
        return make(CAST, float32, (make(LOAD, node.dtype, tuple(sources), node.arg),), float32)
    elif node.op is CONST and small:
        return constant(decode(node.arg[0], node.dtype), float32)
    dtype = float32 if small else node.dtype
    if node.op is CAST and sources[0].dtype is dtype:
        return sources[0]
    arg = dtype if node.op is CAST else node.arg
    return make(node.op, dtype, tuple(sources), arg)


# --- what is picked ------------------------------------------------------------------------------


def picked(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[Node, ...]:
    """The stores without sums of which one element counts."""
    order = toposort(stores)
    if not any(n.op is EQ and any(_is_axis(s) is not None for s in n.src) for n in order):
        return tuple(stores)
    done: dict[Node, Node] = {}
    for node in order:
        made = make(node.op, node.dtype, tuple([done[s] for s in node.src]), node.arg)
        if node.op is FOLD and node.arg[0] == "add" and node.dtype.kind == "f":
            made = _without(made, sizes)
        done[node] = made
    return tuple([done[s] for s in stores])


def _without(fold: Node, sizes: Sequence[int]) -> Node:
    """A sum without the summands that are picked, and those beside it."""
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
        first = first if picks(first) else [node.src[0]]
        second = second if picks(second) else [node.src[1]]
        found = [make(MUL, dtype, (a, b)) for a in first for b in second]
    else:
        found = [node]
    return found if len(found) > 1 and picks(found) else [node]


def _factors(node: Node) -> list[Node]:
    """What a value is a product of, up to its sign and what divides it."""
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
    """The stores with weighed differences from a logarithm of a sum taken apart.

    Σ w (a - log z) = Σ w a - log z Σ w: z grows with every block, and so would errors of repairs.
    """
    done: dict[Node, Node] = {}
    for node in toposort(stores):
        made = make(node.op, node.dtype, tuple([done[s] for s in node.src]), node.arg)
        if node.op is FOLD and node.arg[0] == "add" and node.dtype.kind == "f":
            made = _apart(made)
        done[node] = made
    return tuple([done[s] for s in stores])


def _apart(fold: Node) -> Node:
    body, axes = fold.src[0], frozenset(fold.arg[1])
    order = toposort([body])
    free = free_axes(order)
    if body.op is not MUL or not any(n.op in (LOG, LOG2) for n in order):
        return fold
    for number, factor in enumerate(body.src):
        weight = body.src[1 - number]
        if factor.op is not SUB or not free[weight] & axes:
            continue
        first, log = factor.src
        if log.op not in (LOG, LOG2) or free[log] & axes or not free[first] & axes:
            continue
        if any(n.op is FOLD for n in toposort([log])):
            whole = make(FOLD, fold.dtype, (make(MUL, body.dtype, (weight, first)),), fold.arg)
            weights = make(FOLD, fold.dtype, (weight,), fold.arg)
            return make(SUB, fold.dtype, (whole, make(MUL, fold.dtype, (log, weights))))
    return fold
