"""Names of axes: the same axis of several stores and folds has one name, so equal values are one.

In: stores in index notation, whose axes have names of their own, and the sizes of axes. Out: the
same stores with other names. Folds get names that no result has (`apart`), results at the same
places share theirs (`together`), and folds over axes of the same sizes run over the same ones
(`unified`). A name is never bound where it is in use: such a renaming is an error, and not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, INDEX, LOAD, STORE, VALID
from ...graph.ir.affine import Affine, add, axes_of, axis, number, rename
from ...graph.ir.queries import free_axes

_WAYS = 64  # in which axes of two stores may be the same, of those that are tried


def together(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
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
        if first is None or mine is None:
            out.append(store)
            continue
        names = {
            a: b for a, b in zip(mine, first, strict=False)
            if a != b and sizes[a] == sizes[b] and b not in mine
        }  # fmt: skip
        found = [store if set(mine) <= set(first) else _named(store, names)]
        if not known & folds_of(found[0]):
            reads, wanted = innermost(store), innermost(stores[0])
            ways = islice(matches(mine, first, sizes), _WAYS)
            found += [_named(store, way) for way in ways if are_same(reads, wanted, way)]
        out.append(max(found, key=lambda s: len(known & folds_of(s))))
    return out


def like_blocks(
    store: Node, others: Sequence[Node], axes: tuple[int, ...], sizes: Sequence[int]
) -> Node | None:
    """A store of every element that others fold over some axes, with their names."""
    known = {fold for other in others for fold in folds_of(other)}
    mine = _in_order(store)
    if mine is None:
        return None
    for names in islice(matches(mine, [*others[0].arg[3], *axes], sizes), _WAYS):
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


Reads: TypeAlias = frozenset[frozenset[tuple[int, Affine]]]  # of folds: params and indices


def innermost(store: Node) -> Reads:
    """What each fold reads in which there is no other."""
    found = []
    for fold in folds_of(store):
        below = toposort(fold.src)
        if not any(n.op is FOLD for n in below):
            found.append(frozenset([(n.arg[0], n.arg[1]) for n in below if n.op is LOAD]))
    return frozenset(found)


def are_same(reads: Reads, others: Reads, names: dict[int, int]) -> bool:
    """Would a fold read with other names what another does?"""
    return any(
        frozenset([(number, _with_names(index, names)) for number, index in fold]) in others
        for fold in reads
    )


def _named(store: Node, names: dict[int, int]) -> Node:
    """A store with other names for its axes, if that can be."""
    if any(a not in names for a in store.arg[3] if a in names.values()):
        return store
    try:
        value = renamed(store.src[0], names)
    except CaptureError:
        return store
    return make(STORE, store.dtype, (value,), argument(store, names))


def _in_order(store: Node) -> list[int] | None:
    """The axes of a store, outermost first, if its index has nothing else."""
    terms = store.arg[1][1]
    if not all(isinstance(atom, int) for atom, _ in terms):
        return None
    return [atom for atom, _ in sorted(terms, key=lambda term: -term[1])]


def apart(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[tuple[Node, ...], list[int]]:
    """The stores with axes of their own for folds, named by how many folds are inside them.

    Equal sizes may have given one axis to a result and to a fold below it, or to two folds of which
    one is inside the other.
    """
    sizes = list(sizes)
    named: dict[tuple[int, int, int], int] = {}
    done: dict[Node, Node] = {}
    height: dict[Node, int] = {}
    for node in toposort(stores):
        sources = tuple([done[s] for s in node.src])
        arg = node.arg
        height[node] = max([height[s] for s in node.src], default=0)
        if node.op is FOLD:
            height[node] += 1
            fresh = []
            for place, axis in enumerate(arg[1]):
                name = (height[node], sizes[axis], place)
                if name not in named:
                    named[name] = len(sizes)
                    sizes.append(sizes[axis])
                fresh.append(named[name])
            sources = (renamed(sources[0], dict(zip(arg[1], fresh, strict=True))),)
            arg = (arg[0], tuple(fresh))
        done[node] = make(node.op, node.dtype, sources, arg)
    return tuple([done[s] for s in stores]), sizes


class CaptureError(Exception):
    """A renamed axis would be bound by another fold."""


def unified(
    stores: Sequence[Node], axes: tuple[int, ...], sizes: Sequence[int]
) -> tuple[Node, ...]:
    """The stores with every fold over axes of the same sizes running over `axes` itself."""
    lengths = [sizes[a] for a in axes]
    done: dict[Node, Node] = {}
    inside: dict[Node, tuple[Node, tuple[int, ...]]] = {}  # of a fold: its body and axes as named

    def sources(node: Node) -> tuple[Node, ...]:
        """What a node is made of; folds further out are named before those inside them."""
        if node.op is not FOLD:
            return node.src
        if node not in inside:
            body, own = node.src[0], node.arg[1]
            if own != axes and [sizes[a] for a in own] == lengths:
                free = free_axes(toposort([body]))[body]
                if not free & frozenset(axes):
                    with suppress(CaptureError):
                        body, own = renamed(body, dict(zip(own, axes, strict=True))), axes
            inside[node] = body, own
        return (inside[node][0],)

    stack = list(stores)
    while stack:
        node = stack[-1]
        missing = [s for s in sources(node) if s not in done]
        if node in done or not missing:
            stack.pop()
            if node not in done:
                arg = (node.arg[0], inside[node][1]) if node.op is FOLD else node.arg
                found = tuple([done[s] for s in sources(node)])
                done[node] = make(node.op, node.dtype, found, arg)
        else:
            stack.extend(missing)
    return tuple([done[s] for s in stores])


def _with_names(index: Affine, names: dict[int, int]) -> Affine:
    return rename(index, lambda a: names.get(a, a) if isinstance(a, int) else a)


def argument(node: Node, names: dict[int, int]) -> Any:
    """A node's argument with other names for some axes; folds keep theirs."""
    return _moved(node, lambda index: _with_names(index, names), lambda a: names.get(a, a))


def _moved(
    node: Node, moved: Callable[[Affine], Affine], named: Callable[[int], int] = lambda a: a
) -> Any:
    """A node's argument with other indices."""
    arg = node.arg
    if node.op is LOAD:
        return arg[0], moved(arg[1]), tuple([(moved(i), n) for i, n in arg[2]])
    if node.op is VALID:
        return tuple([(moved(i), n) for i, n in arg])
    if node.op is INDEX:
        return moved(arg)
    if node.op is STORE:
        number, index, mode, axes = arg
        return number, moved(index), mode, tuple(sorted(map(named, axes)))
    return arg


def renamed(root: Node, names: dict[int, int]) -> Node:
    """A value with other names for some of its free axes."""
    return _rebuilt(root, frozenset(names), frozenset(names.values()), lambda n: argument(n, names))


def replaced(root: Node, along: int, place: Affine) -> Node:
    """A value with an index in the place of one of its free axes."""

    def moved(index: Affine) -> Affine:
        out = number(index[0])
        for atom, step in index[1]:
            if isinstance(atom, tuple):
                atom = (atom[0], moved(atom[1]), atom[2])
            out = add(out, place if atom == along else axis(atom), step)
        return out

    return _rebuilt(root, frozenset((along,)), axes_of(place), lambda node: _moved(node, moved))


def _rebuilt(
    root: Node, gone: frozenset[int], fresh: frozenset[int], argument: Callable[[Node], Any]
) -> Node:
    """A value without some free axes, and with others that no fold in it may bind."""
    order = toposort([root])
    free = free_axes(order)
    done: dict[Node, Node] = {}
    for node in order:
        if not free[node] & gone:
            done[node] = node
            continue
        if node.op is FOLD and frozenset(node.arg[1]) & fresh:
            raise CaptureError
        sources = tuple([done[s] for s in node.src])
        done[node] = make(node.op, node.dtype, sources, argument(node))
    return done[root]
