"""Rewriting the bodies of kernels: other nodes, and other indices in the place of axes.

In: values in index notation. Out: the same values over other nodes or axes, sharing kept. An index
that takes the place of a free axis must not use one that a fold inside binds: that is an error
(`CaptureError`), and the caller leaves the value as it is. A fold keeps its own axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ...core.node import Node, make, toposort
from ...core.ops.index import FOLD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from .affine import Affine, add, axes_of, axis, number
from .queries import free_axes

Places: TypeAlias = Mapping[int, Affine]  # what takes the place of axes
Change: TypeAlias = Callable[[Node, tuple[Node, ...]], Node]  # a node and its new sources


class CaptureError(Exception):
    """A fold would bind an axis of what takes the place of another."""


def remade(node: Node, sources: tuple[Node, ...]) -> Node:
    """A node on other sources."""
    return node if sources == node.src else make(node.op, node.dtype, sources, node.arg)


def transformed(
    roots: Sequence[Node],
    change: Change,
    known: Mapping[Node, Node] | None = None,
    below: Callable[[Node], tuple[Node, ...]] = lambda node: node.src,
) -> tuple[Node, ...]:
    """The roots with every node changed, what is `below` it first; what is known is not entered."""
    done = dict(known or {})
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        missing = [s for s in below(node) if s not in done] if node not in done else []
        stack.extend(reversed(missing))
        if not missing:
            stack.pop()
            if node not in done:
                done[node] = change(node, tuple([done[s] for s in below(node)]))
    return tuple([done[root] for root in roots])


def replaced(roots: Sequence[Node], known: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with others in the place of some nodes."""
    return transformed(roots, remade, known)


def each_fold(roots: Sequence[Node], change: Callable[[Node], Node]) -> tuple[Node, ...]:
    """The roots with something else for every fold, inner ones first."""

    def changed(node: Node, sources: tuple[Node, ...]) -> Node:
        made = remade(node, sources)
        return change(made) if node.op is FOLD else made

    return transformed(roots, changed)


# --- axes ----------------------------------------------------------------------------------------


def index_at(index: Affine, places: Places) -> Affine:
    """An index with others in the place of axes, also inside divisions."""
    out = number(index[0])
    for atom, step in index[1]:
        if isinstance(atom, tuple):
            atom = (atom[0], index_at(atom[1], places), atom[2])
        known = places.get(atom) if isinstance(atom, int) else None
        out = add(out, axis(atom) if known is None else known, step)
    return out


def argument(
    node: Node,
    moved: Callable[[Affine], Affine],
    kept: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> Any:
    """A node's argument with other indices, and other axes where it lists them."""
    arg = node.arg
    if node.op is LOAD:
        return arg[0], moved(arg[1]), tuple([(moved(i), size) for i, size in arg[2]])
    if node.op is VALID:
        return tuple([(moved(i), size) for i, size in arg])
    if node.op is INDEX:
        return moved(arg)
    if node.op is STORE:
        return arg[0], moved(arg[1]), arg[2], kept(arg[3])
    if node.op in (FOLD, RUN):
        return arg[0], kept(arg[1]), *arg[2:]
    return (kept(arg[0]), *arg[1:]) if node.op is ORDER else arg


def argument_at(node: Node, places: Places, bound: bool = False) -> Any:
    """A node's argument with indices in the place of axes, of `bound` ones too."""

    def kept(axes: tuple[int, ...]) -> tuple[int, ...]:
        found = [a for own in axes for a in sorted(axes_of(places.get(own, axis(own))))]
        return tuple(found if bound else sorted(found))

    if not bound and node.op is FOLD:
        return node.arg
    return argument(node, lambda index: index_at(index, places), kept)


def substitute_axes(
    root: Node, places: Places, made: Callable[[Node, tuple[Node, ...], Places], Node] | None = None
) -> Node:
    """A value with indices in the place of free axes; `made` makes what depends on them."""
    order = toposort([root])
    free = free_axes(order)
    gone = frozenset(places)
    fresh = frozenset[int]().union(*map(axes_of, places.values()))
    done: dict[Node, Node] = {}
    for node in order:
        sources = tuple([done[s] for s in node.src])
        if not free[node] & gone:
            done[node] = node
        elif node.op is FOLD and fresh.intersection(node.arg[1]):
            raise CaptureError
        elif made is None:
            done[node] = make(node.op, node.dtype, sources, argument_at(node, places))
        else:
            done[node] = made(node, sources, places)
    return done[root]


def rename_axes(root: Node, names: Mapping[int, int]) -> Node:
    """A value with other names for some of its free axes."""
    return substitute_axes(root, {a: axis(b) for a, b in names.items()})
