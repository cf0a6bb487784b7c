"""Alpha-renaming: the same axis of several stores and folds has one name, so equal values are one.

In: stores in index notation, whose axes have names of their own, and the sizes of axes. Out: the
same stores with other names. Folds get names that no result has (`separate_folds`), results at the
same places share theirs (`share_rows`), and folds over axes of the same sizes run over the same
ones (`share_folded`). A name is never bound where it is in use: such a renaming is not done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, LOAD, STORE
from ...graph.ir.affine import Affine, axis
from ...graph.ir.bodies import (
    CaptureError,
    Places,
    argument_at,
    index_at,
    remade,
    rename_axes,
    transformed,
)
from ...graph.ir.limits import LIMITS
from ...graph.ir.queries import free_axes

Reads: TypeAlias = frozenset[frozenset[tuple[int, Affine]]]  # of folds: params and indices


def as_places(names: Mapping[int, int]) -> Places:
    """Names of axes as what takes their place."""
    return {a: axis(b) for a, b in names.items()}


# --- rows ----------------------------------------------------------------------------------------


def share_rows(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """The stores with axes of the first one where another has as many steps at the same place.

    Each store has its own loops, so its axes may have any names; with equal ones values are shared.
    Where places in memory do not tell which axes are the same, what the folds inside need does.
    """
    if len(stores) < 2:
        return list(stores)
    first, known = _in_order(stores[0]), folds_of(stores[0])
    out = [stores[0]]
    for store in stores[1:]:
        mine = _in_order(store)
        found = [store]
        if first is not None and mine is not None:
            found = _ways(store, mine, stores[0], first, sizes)
        out.append(max(found, key=lambda s: len(known & folds_of(s))))
    return out


def _ways(
    store: Node, mine: list[int], other: Node, first: list[int], sizes: Sequence[int]
) -> list[Node]:
    """A store with names of another's axes: by place, and if nothing is shared by what is read."""
    names = {
        a: b for a, b in zip(mine, first, strict=False)
        if a != b and sizes[a] == sizes[b] and b not in mine
    }  # fmt: skip
    found = [store if set(mine) <= set(first) else _named(store, names)]
    if not folds_of(other) & folds_of(found[0]):
        reads, wanted = innermost_reads(store), innermost_reads(other)
        ways = islice(matches(mine, first, sizes), LIMITS.axis_matches)
        found += [_named(store, way) for way in ways if reads_alike(reads, wanted, way)]
    return found


def name_as_block(
    store: Node, others: Sequence[Node], axes: tuple[int, ...], sizes: Sequence[int]
) -> Node | None:
    """A store of every element that others fold over some axes, with their names."""
    known = {fold for other in others for fold in folds_of(other)}
    mine = _in_order(store)
    if mine is None:
        return None
    for names in islice(matches(mine, [*others[0].arg[3], *axes], sizes), LIMITS.axis_matches):
        found = _named(store, {a: b for a, b in names.items() if a != b})
        if folds_of(found) <= known:
            return found
    return None


def matches(
    axes: Sequence[int], others: Sequence[int], sizes: Sequence[int]
) -> Iterator[dict[int, int]]:
    """Every way in which axes may be others of their sizes, as many as possible first.

    One that is none of them keeps its name, which must not be given to another.
    """
    if not axes:
        yield {}
        return
    first, *rest = axes
    alike = sorted([a for a in others if sizes[a] == sizes[first]], key=lambda a: a != first)
    for other in alike:
        left = [a for a in others if a != other]
        yield from ({first: other, **more} for more in matches(rest, left, sizes))
    for more in matches(rest, others, sizes):
        if first not in more.values():
            yield more


def folds_of(store: Node) -> set[Node]:
    """All folds of a store."""
    return {node for node in toposort([store]) if node.op is FOLD}


def innermost_reads(store: Node) -> Reads:
    """What each fold reads in which there is no other."""
    found = []
    for fold in folds_of(store):
        below = toposort(fold.src)
        if not any(n.op is FOLD for n in below):
            found.append(frozenset([(n.arg[0], n.arg[1]) for n in below if n.op is LOAD]))
    return frozenset(found)


def reads_alike(reads: Reads, others: Reads, names: Mapping[int, int]) -> bool:
    """True if a fold would read with other names what another does."""
    places = as_places(names)
    return any(
        frozenset([(number, index_at(index, places)) for number, index in fold]) in others
        for fold in reads
    )


def _named(store: Node, names: Mapping[int, int]) -> Node:
    """A store with other names for its axes, if that can be."""
    if any(a not in names for a in store.arg[3] if a in names.values()):
        return store
    try:
        value = rename_axes(store.src[0], names)
    except CaptureError:
        return store
    return make(STORE, store.dtype, (value,), argument_at(store, as_places(names)))


def _in_order(store: Node) -> list[int] | None:
    """The axes of a store, outermost first, if its index has nothing else."""
    terms = store.arg[1][1]
    if not all(isinstance(atom, int) for atom, _ in terms):
        return None
    return [atom for atom, _ in sorted(terms, key=lambda term: -term[1])]


# --- folded axes ---------------------------------------------------------------------------------


def separate_folds(
    stores: Sequence[Node], sizes: Sequence[int]
) -> tuple[tuple[Node, ...], list[int]]:
    """The stores with axes of their own for folds, named by how many folds are inside them.

    Equal sizes may have given one axis to a result and to a fold below it, or to two folds of which
    one is inside the other.
    """
    sizes = list(sizes)
    named: dict[tuple[int, int, int], int] = {}  # by height, size and place
    height: dict[Node, int] = {}

    def fresh(key: tuple[int, int, int]) -> int:
        if key not in named:
            named[key] = len(sizes)
            sizes.append(key[1])
        return named[key]

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        height[node] = max([height[s] for s in node.src], default=0) + (node.op is FOLD)
        if node.op is not FOLD:
            return remade(node, sources)
        name, axes = node.arg
        own = tuple([fresh((height[node], sizes[a], place)) for place, a in enumerate(axes)])
        body = rename_axes(sources[0], dict(zip(axes, own, strict=True)))
        return make(FOLD, node.dtype, (body,), (name, own))

    return transformed(stores, change), sizes


def share_folded(
    stores: Sequence[Node], axes: tuple[int, ...], sizes: Sequence[int]
) -> tuple[Node, ...]:
    """The stores with every fold over axes of the same sizes running over `axes` itself."""
    named: dict[Node, Node] = {}  # of a fold: the same over `axes`, where that can be

    def over_axes(fold: Node) -> Node:
        body, own = fold.src[0], fold.arg[1]
        alike = own != axes and [sizes[a] for a in own] == [sizes[a] for a in axes]
        if alike and not free_axes(toposort([body]))[body] & frozenset(axes):
            with suppress(CaptureError):
                body = rename_axes(body, dict(zip(own, axes, strict=True)))
                return make(FOLD, fold.dtype, (body,), (fold.arg[0], axes))
        return fold

    def below(node: Node) -> tuple[Node, ...]:
        """What a node is made of; folds further out are named before those inside them."""
        if node.op is not FOLD:
            return node.src
        if node not in named:
            named[node] = over_axes(node)
        return named[node].src

    return transformed(stores, lambda n, sources: remade(named.get(n, n), sources), None, below)
