"""Transposed consumers: some stores sum over the rows of others, as W v and Wᵀ g of one W do.

In: stores whose folds need the same products inside, but run over different axes of them. Out: main
stores, and transposed ones with their axes renamed so that what they fold over are the rows of the
main ones, and their own rows what those stream over. Products that both need are then one value,
computed once for a block: it goes into the states of its rows, and is added to the results that
belong to its streamed elements. Where transposed stores need what the main ones fold to (per-row
statistics of all blocks), these are the same values in both. What is computed plays no part: only
the axes of sums do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations, islice, permutations, product
from math import prod
from typing import Any

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, LOAD
from ...graph.ir.affine import Affine, add, axis, number
from ...graph.ir.bodies import (
    CaptureError,
    Places,
    argument_at,
    rename_axes,
    substitute_axes,
    transformed,
)
from ...graph.ir.limits import LIMITS
from ...graph.ir.queries import free_axes, nearest
from .axis_names import (
    as_places,
    innermost_reads,
    matches,
    reads_alike,
    share_folded,
    share_rows,
)


def transposed(
    stores: Sequence[Node], sizes: Sequence[int]
) -> Iterator[tuple[tuple[Node, ...], tuple[Node, ...]]]:
    """Main stores and those that are transposed to them, named alike: the more are main first."""
    sums = [store for store in stores if summed_axes(store) is not None]
    if len(stores) < 2 or not sums:
        return
    first, others = [sums[0]], list[Node]()
    for store in sums[1:]:
        (first if transposed_to(store, sums[0], sizes) is None else others).append(store)
    if not others:
        return
    beside = [store for store in stores if store not in sums]  # of rows, which others need
    sides = [(others, first), (first, others)]
    for main, across in sides if len(others) > len(first) else reversed(sides):
        named = share_rows([*main, *beside], sizes)
        found = [s for store in across if (s := transposed_to(store, named[0], sizes)) is not None]
        if len(found) == len(across):
            yield tuple(named), tuple(found)


def outermost_folds(root: Node) -> list[Node]:
    """The folds of a value that are in no other."""
    return nearest(root, lambda node: node.op is FOLD)


def varying_folds(store: Node) -> list[Node]:
    """The outermost folds of a store but those that are one number for all of it."""
    folds = outermost_folds(store)
    free = free_axes(toposort(folds)) if len(folds) > 1 else {}
    return [fold for fold in folds if len(folds) == 1 or free[fold]]


def inner_folds(store: Node) -> set[Node]:
    """The folds within the sums of a store."""
    bodies = [fold.src[0] for fold in outermost_folds(store)]
    return {node for node in toposort(bodies) if node.op is FOLD}


def summed_axes(store: Node) -> tuple[int, ...] | None:
    """The axes that all sums of a store run over."""
    folds = varying_folds(store)
    if len({fold.arg for fold in folds}) != 1 or folds[0].arg[0] != "add":
        return None
    found: tuple[int, ...] = folds[0].arg[1]
    return found


def transposed_to(store: Node, main: Node, sizes: Sequence[int]) -> Node | None:
    """A store named so that it shares most with one that folds over its rows."""
    axes = summed_axes(main)
    assert axes is not None
    known = inner_folds(main)
    best, most = None, len(known & inner_folds(share_folded((main, store), axes, sizes)[1]))
    for found in islice(_transpositions(store, main, sizes), LIMITS.axis_matches):
        every = inner_folds(found)
        if len(known & every) > most:
            best, most = found, len(known & every)
            if every <= known:
                break
    return best


def _transpositions(store: Node, main: Node, sizes: Sequence[int]) -> Iterator[Node]:
    """A store with its rows and what it folds over exchanged, in every way that sizes allow."""
    mine, theirs = summed_axes(store), summed_axes(main)
    assert mine is not None and theirs is not None
    own, rows_of_main = store.arg[3], main.arg[3]
    reads, wanted = innermost_reads(store), innermost_reads(main)
    ways = product(_alike(rows_of_main, mine, sizes), _alike(own, theirs, sizes))
    for rows, streamed in ways:
        names = dict(zip((*mine, *streamed), (*rows, *theirs), strict=True))
        rest = [a for a in own if a not in streamed]
        others = [a for a in rows_of_main if a not in rows]
        for more in matches(rest, others, sizes):
            whole = names | more
            clash = {a for a in rest if a not in more} & set(whole.values())
            if not clash and reads_alike(reads, wanted, whole):
                with suppress(CaptureError):
                    yield _exchanged(store, whole)


def _alike(
    axes: Sequence[int], wanted: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Some of the axes, in every order that has the sizes of those that are wanted."""
    lengths = [sizes[a] for a in wanted]
    for some in permutations(axes, len(wanted)):
        if [sizes[a] for a in some] == lengths:
            yield some


def _exchanged(store: Node, names: dict[int, int]) -> Node:
    """A store with other names, also of what its outermost folds run over."""
    done: dict[Node, Node] = {}
    for fold in varying_folds(store):
        axes = tuple([names[a] for a in fold.arg[1]])
        body = rename_axes(fold.src[0], names)
        done[fold] = make(FOLD, fold.dtype, (body,), (fold.arg[0], axes))
    return _above(store, done, as_places(names))


def _above(store: Node, done: dict[Node, Node], places: Places) -> Node:
    """A store with what stands for its folds, and other names above them."""

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        return make(node.op, node.dtype, sources, argument_at(node, places))

    return transformed([store], change, done)[0]


# --- axes that were merged in some stores only ----------------------------------------------------


def split_merged_axes(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """The stores with folds over one long axis running over those that others read the same by."""
    loads = {(n.arg[0], n.arg[1][1]) for n in toposort(stores) if n.op is LOAD}
    whole = [fold.arg[1] for store in stores for fold in outermost_folds(store)]
    groups = [axes for axes in whole if len(axes) > 1]
    groups += [two for _, terms in sorted(loads, key=repr) for two in combinations(_axes(terms), 2)]

    def split(fold: Node) -> Node:
        ways = (_split(fold, axes, loads, sizes) for axes in groups)
        return next((made for made in ways if made is not None), fold)

    return [_above(s, {fold: split(fold) for fold in outermost_folds(s)}, {}) for s in stores]


def _axes(terms: Sequence[tuple[Any, int]]) -> list[int]:
    """The axes of an index, outermost first."""
    return [atom for atom, _ in sorted(terms, key=lambda t: -t[1]) if isinstance(atom, int)]


def _split(
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
            if node.op is LOAD and _walks_alike(node, along, place, loads):
                with suppress(CaptureError):
                    body = substitute_axes(fold.src[0], {along: place})
                    return make(FOLD, fold.dtype, (body,), (fold.arg[0], axes))
    return None


def _walks_alike(load: Node, along: int, place: Affine, loads: set[tuple[int, Any]]) -> bool:
    """True if memory is read along several axes as a load reads it along one."""
    each = dict(load.arg[1][1]).get(along, 0)
    wanted = {(a, each * by) for a, by in place[1]}
    return bool(each) and any(
        param == load.arg[0] and wanted <= set(terms) for param, terms in loads
    )
