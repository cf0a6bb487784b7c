"""Crossed results: some fold over the rows of others, and the others over theirs.

In: stores whose folds need the same products inside, but run over different axes of them. Out: main
stores, and crossed ones with their axes renamed so that what they fold over are the rows of the
main ones, and their own rows what those stream over. Products that both need are then one value,
worked out once for a block: it goes into the states of its rows, and is added to the results that
belong to its streamed elements. Where crossed stores need what the main ones fold to (numbers of
rows that all blocks go into), these are the same values in both. What is computed plays no part:
only the axes of sums do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations, islice, permutations, product
from math import prod
from typing import Any

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, LOAD
from ...graph.ir.affine import add, axis, number
from ...graph.ir.queries import free_axes, nearest
from .axis_names import (
    CaptureError,
    are_same,
    argument,
    innermost,
    matches,
    renamed,
    replaced,
    together,
    unified,
)

_WAYS = 64  # of naming a store that are tried


def crossed(
    stores: Sequence[Node], sizes: Sequence[int]
) -> Iterator[tuple[tuple[Node, ...], tuple[Node, ...]]]:
    """Main stores and those that cross them, named alike: the more are main first."""
    known = [store for store in stores if folded(store) is not None]
    if len(stores) < 2 or not known:
        return
    first, others = [known[0]], list[Node]()
    for store in known[1:]:
        (first if turned(store, known[0], sizes) is None else others).append(store)
    if not others:
        return
    beside = [store for store in stores if store not in known]  # of rows, which others need
    sides = [(others, first), (first, others)]
    for main, across in sides if len(others) > len(first) else reversed(sides):
        named = together([*main, *beside], sizes)
        found = [s for store in across if (s := turned(store, named[0], sizes)) is not None]
        if len(found) == len(across):
            yield tuple(named), tuple(found)


def outermost(root: Node) -> list[Node]:
    """The folds of a value that are in no other."""
    return nearest(root, lambda node: node.op is FOLD)


def folded(store: Node) -> tuple[int, ...] | None:
    """The axes that all sums of a store run over."""
    folds = moving(store)
    if len({fold.arg for fold in folds}) != 1 or folds[0].arg[0] != "add":
        return None
    found: tuple[int, ...] = folds[0].arg[1]
    return found


def moving(store: Node) -> list[Node]:
    """The outermost folds of a store but those that are one number for all of it."""
    folds = outermost(store)
    free = free_axes(toposort(folds)) if len(folds) > 1 else {}
    return [fold for fold in folds if len(folds) == 1 or free[fold]]


def turned(store: Node, main: Node, sizes: Sequence[int]) -> Node | None:
    """A store named so that it shares most with one that folds over its rows."""
    axes = folded(main)
    assert axes is not None
    known = inside(main)
    best, most = None, len(known & inside(unified((main, store), axes, sizes)[1]))
    for found in islice(_turns(store, main, sizes), _WAYS):
        shared, every = known & inside(found), inside(found)
        if len(shared) > most:
            best, most = found, len(shared)
            if shared == every:
                break
    return best


def inside(store: Node) -> set[Node]:
    """The folds within the sums of a store."""
    bodies = [fold.src[0] for fold in outermost(store)]
    return {node for node in toposort(bodies) if node.op is FOLD}


def _turns(store: Node, main: Node, sizes: Sequence[int]) -> Iterator[Node]:
    """A store with its rows and what it folds over exchanged, in every way that sizes allow."""
    mine, theirs = folded(store), folded(main)
    assert mine is not None and theirs is not None
    own = store.arg[3]
    reads, wanted = innermost(store), innermost(main)

    def alike(axes: Sequence[int], wanted: Sequence[int]) -> Iterator[tuple[int, ...]]:
        lengths = [sizes[a] for a in wanted]
        for some in permutations(axes, len(wanted)):
            if [sizes[a] for a in some] == lengths:
                yield some

    for rows, streamed in product(alike(main.arg[3], mine), alike(own, theirs)):
        names = dict(zip((*mine, *streamed), (*rows, *theirs), strict=True))
        rest, others = [[a for a in axes if a not in gone]
                        for axes, gone in ((own, streamed), (main.arg[3], rows))]  # fmt: skip
        for more in matches(rest, others, sizes):
            kept = {a for a in rest if a not in more}
            whole = names | more
            clash = kept & set(whole.values())
            if not clash and are_same(reads, wanted, whole):
                try:
                    yield _exchanged(store, whole)
                except CaptureError:
                    continue


def _exchanged(store: Node, names: dict[int, int]) -> Node:
    """A store with other names, also of what its outermost folds run over."""
    done: dict[Node, Node] = {}
    for fold in moving(store):
        axes = tuple([names[a] for a in fold.arg[1]])
        body = renamed(fold.src[0], names)
        done[fold] = make(FOLD, fold.dtype, (body,), (fold.arg[0], axes))
    return _above(store, done, names)


def _above(store: Node, done: dict[Node, Node], names: dict[int, int]) -> Node:
    """A store with what stands for its folds, and other names above them."""
    stack = [store]
    while stack:
        node = stack[-1]
        missing = [s for s in node.src if s not in done]
        if node in done or not missing:
            stack.pop()
            if node not in done:
                sources = tuple([done[s] for s in node.src])
                done[node] = make(node.op, node.dtype, sources, argument(node, names))
        else:
            stack.extend(missing)
    return done[store]


# --- axes that were merged in some stores only ----------------------------------------------------


def parted(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """The stores with folds over one long axis running over those that others read the same by."""
    loads = {(n.arg[0], n.arg[1][1]) for n in toposort(stores) if n.op is LOAD}
    whole = [fold.arg[1] for store in stores for fold in outermost(store)]
    groups = [axes for axes in whole if len(axes) > 1]
    groups += [two for _, terms in sorted(loads, key=repr) for two in combinations(_axes(terms), 2)]
    out = []
    for store in stores:
        done: dict[Node, Node] = {}
        for fold in outermost(store):
            ways = (
                made for axes in groups if (made := _like(fold, axes, loads, sizes)) is not None
            )
            done[fold] = next(ways, fold)
        out.append(_above(store, done, {}) if any(a is not b for a, b in done.items()) else store)
    return out


def _axes(terms: Sequence[tuple[Any, int]]) -> list[int]:
    """The axes of an index, outermost first."""
    return [atom for atom, _ in sorted(terms, key=lambda t: -t[1]) if isinstance(atom, int)]


def _like(
    fold: Node, axes: tuple[int, ...], loads: set[tuple[int, Any]], sizes: Sequence[int]
) -> Node | None:
    """A fold over one axis as one over several, if those walk memory that it walks."""
    if len(fold.arg[1]) > 1 or prod([sizes[a] for a in axes]) != sizes[fold.arg[1][0]]:
        return None
    (along,) = fold.arg[1]
    for order in permutations(axes):
        place, step = number(0), 1
        for a in reversed(order):
            place, step = add(place, axis(a), step), step * sizes[a]
        for node in toposort(fold.src):
            each = dict(node.arg[1][1]).get(along, 0) if node.op is LOAD else 0
            wanted = {(a, each * by) for a, by in place[1]}
            if each and any(
                param == node.arg[0] and wanted <= set(terms) for param, terms in loads
            ):
                with suppress(CaptureError):
                    body = replaced(fold.src[0], along, place)
                    return make(FOLD, fold.dtype, (body,), (fold.arg[0], axes))
    return None
