"""Replacing nodes in a graph: one memo, one stack, whatever the depth.

In: a root and a map of nodes to nodes. Out: the root with every key replaced, sharing kept.
Normally a replacement is substituted in turn, so chains resolve; with `walk` it is taken as it is,
which is what a replacement that contains its own key needs. Origins follow: what replaces a node
remembers the user's lines of both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ...errors import RewriteError
from ..node import SOURCES, Node, Source, annotate, make, remember
from ..shape import normal


def rebuild(node: Node, src: tuple[Node, ...]) -> Node:
    """The node on other sources; sizes that have become constants move into the argument."""
    op = node.op
    if op.arity is not None and len(src) == op.arity:
        made = make(op, _dtype(node, src), src, node.arg, node.tag)
    else:
        src, arg = _settle(src, node.arg)
        made = make(op, _dtype(node, src), src, arg, node.tag)
    if made is not node:
        if node.meta is not None:
            made = annotate(made, node.meta)
        if node.origins:
            remember(made, node.origins)
    return made


def _dtype(node: Node, src: tuple[Node, ...]) -> Any:
    return node.dtype if node.op.dtype is None else node.op.dtype(src, node.arg)


def _settle(src: tuple[Node, ...], arg: Hashable) -> tuple[tuple[Node, ...], Hashable]:
    """Sizes in normal form, as if made anew: ints in the argument, equal ones one source."""
    named = _named(arg)
    if not named:
        return src, arg
    place: dict[int | Node, int | Source] = {}
    kept: list[Node] = []
    for i, source in enumerate(src):
        size = normal(source) if i in named else source
        if isinstance(size, int):
            place[i] = size
        elif i in named and size in place:
            place[i] = place[size]
        else:
            place[i] = SOURCES[len(kept)]
            kept.append(size)
            if i in named:
                place[size] = place[i]
    return tuple(kept), _renumber(arg, place)


def _named(arg: Any) -> set[int]:
    if isinstance(arg, Source):
        return {arg.index}
    return set().union(*map(_named, arg)) if isinstance(arg, tuple) else set()


def _renumber(arg: Any, place: Mapping[int | Node, int | Source]) -> Any:
    if isinstance(arg, Source):
        return place[arg.index]
    return tuple([_renumber(a, place) for a in arg]) if isinstance(arg, tuple) else arg


def substitute(root: Node, replace: Mapping[Node, Node], walk: bool = False) -> Node:
    """The root with every key of the map replaced; `walk` leaves replacements as they are."""
    done: dict[Node, Node] = {}
    waiting: set[Node] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        target = replace.get(node)
        if target is not None and target is not node:
            if walk or target in done:
                done[node] = remember(target if walk else done[target], node.origins)
                stack.pop()
            elif node in waiting:
                raise RewriteError(
                    f"the replacement of {node!r} contains it",
                    "substitute(..., walk=True) takes replacements as they are",
                )
            else:
                waiting.add(node)
                stack.append(target)
        elif pending := [s for s in node.src if s not in done]:
            stack.extend(pending)
        else:
            src = tuple([done[s] for s in node.src])
            done[node] = node if src == node.src else rebuild(node, src)
            stack.pop()
    return done[root]
