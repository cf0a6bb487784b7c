"""Graphs inside arguments: the bodies of loops and choices.

In: nodes that a body computes, and those that stand for its inputs. Out: a `Body`: a SINK over
params numbered as the inputs, without buffers, so that equal computations are equal bodies however
they came about. What it needs from around it is found here and becomes further inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from typing import Any

from ..node import Node, forward_slice, make, remember, toposort
from ..op import Array
from ..rewriting.substitute import substitute
from ..symbolic.sym import Sym, sized
from .effect import ASSIGN, CALL, CUSTOM, DETACH, HOSTS, UNWATCH, WATCH, HostFunction
from .elementwise import CAST
from .leaf import CONST, IOTA, PARAM, SINK, param
from .movement import UNWINDOW
from .transform import OVERRIDE


class Body:
    """A graph over numbered params; equal graphs are equal bodies."""

    def __init__(self, sink: Node) -> None:
        assert sink.op is SINK, "a body is a SINK"
        self.sink = sink

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and other.sink is self.sink  # interned: that is structure

    def __hash__(self) -> int:
        return hash(self.sink)

    def __repr__(self) -> str:
        return f"&{self.text!r}"

    @property
    def text(self) -> str:
        """The graph as text: the same in every process."""
        from ..text import show  # which knows bodies itself

        return show(self.sink)

    @property
    def roots(self) -> tuple[Node, ...]:
        """What it computes, in order."""
        return self.sink.src

    @cached_property
    def order(self) -> list[Node]:
        """Its nodes, sources first, without the sink."""
        return toposort(self.sink.src)

    @cached_property
    def params(self) -> dict[int, Node]:
        """The params that it reads, by number."""
        return {n.arg[0]: n for n in self.order if n.op is PARAM}

    @cached_property
    def plain(self) -> Body:
        """The same values without what only gradients look at, at any depth: what a key holds."""
        made: dict[Node, Node] = {}
        for node in self.order:
            src = tuple([made[s] for s in node.src])
            if node.op is DETACH or node.op is OVERRIDE:
                made[node] = src[0]
            elif src == node.src and not bodies_of(node):
                made[node] = node
            else:
                made[node] = remember(make(node.op, node.dtype, src, plain_arg(node)), node.origins)
        return Body(SINK(*[made[root] for root in self.roots]))

    def hosts(self) -> Iterator[HostFunction]:
        """The host functions that it calls, at any depth."""
        for node in self.order:
            if node.op is CUSTOM:
                yield node.arg[0]
            elif node.op is CALL:
                yield node.arg[1]
            for body in bodies_of(node):
                yield from body.hosts()

    def values(self, inputs: Sequence[Array]) -> list[Array]:
        """What each root means for these arrays."""
        from .control import family_values  # whose ops hold bodies

        known: dict[Node, Array] = {}
        for node in self.order:
            if node in known:
                continue
            if node.op is PARAM:
                shape: Any = node.shape
                known[node] = inputs[node.arg[0]].reshape(shape)
            elif node.op.family == "control":
                family = [n for n in self.order if are_siblings(n, node)]
                found = family_values(family, [known[s] for s in node.src])
                known.update(zip(family, found, strict=True))
            else:
                assert node.op.numpy is not None, f"{node!r} cannot be run"
                known[node] = node.op.numpy(node, *[known[s] for s in node.src])
        return [known[root] for root in self.roots]


def bodies_of(node: Node) -> tuple[Body, ...]:
    """The graphs that a node's argument holds."""
    if node.op.family != "control":
        return ()
    return tuple([part for part in node.arg if isinstance(part, Body)])


class _Varies(Exception):
    """There is a size that varies."""


def _refuse(size: Sym) -> int:
    raise _Varies


def sizes_vary(node: Node) -> bool:
    """True if a size inside of a node's bodies, at any depth, is one that varies."""
    known: dict[Any, Any] = {"node": lambda inner: inner}
    for body in bodies_of(node):
        for inner in body.order:
            try:
                sized((inner.shape, inner.arg), _refuse, known)
            except _Varies:
                return True
            if sizes_vary(inner):
                return True
    return False


def are_siblings(a: Node, b: Node) -> bool:
    """True if two nodes are results of one computation."""
    return a.op is b.op and a.src == b.src and a.arg[1:] == b.arg[1:]


def plain_arg(node: Node) -> Any:
    """A node's argument as a key holds it."""
    if node.op.family != "control":
        return node.arg
    return tuple([part.plain if isinstance(part, Body) else part for part in node.arg])


# --- making bodies -------------------------------------------------------------------------------


def numbered(number: int, like: Node) -> Node:
    """The param of a body that stands for a node."""
    return param(number, like.shape, like.dtype, None)


_INSIDE = frozenset({ASSIGN, UNWATCH, WATCH})  # what has ended when a body does


def close(
    roots: Sequence[Node], inputs: Sequence[Node], captured: Callable[[Node], bool]
) -> tuple[Body, list[Node]]:
    """A body that computes the roots from its inputs, and the nodes it takes from outside.

    Of a node that does not depend on the inputs `captured` says whether its value comes from
    outside; if not, the body computes it. What a gradient inside the body watched is watched no
    more, and what was assigned there is its value.
    """
    order = toposort(roots)
    varying = forward_slice(order, inputs)
    taken: dict[Node, None] = {}
    seen: set[Node] = set(inputs)
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            if node not in varying and captured(node):
                taken[node] = None
            else:
                stack.extend(reversed(node.src))
    leaves, sink = [*inputs, *taken], SINK(*roots)
    passed = {n: n.src[n.op is ASSIGN] for n in order if n.op in _INSIDE and n not in set(leaves)}
    if passed:  # first, with leaves that no chain of replacements can take for another
        fresh = [param(-1 - i, n.shape, n.dtype, None) for i, n in enumerate(leaves)]
        sink = substitute(sink, passed | dict(zip(leaves, fresh, strict=True)))
        leaves = fresh
    params = {n: numbered(i, n) for i, n in enumerate(leaves)}
    return Body(substitute(sink, params, walk=True)), list(taken)


def invariant(order: Sequence[Node], own: Set[Node]) -> Callable[[Node], bool]:
    """Loop-invariant code motion, for `close`: does a loop compute a node once, before its steps?

    Not what only moves or widens elements (each step reads through that, and fewer bytes), nor what
    is made of constants, nor what needs one of the body's `own` nodes. What is taken without its
    gradient stays without.
    """
    fixed: set[Node] = set()
    inside = forward_slice(order, own)
    for node in order:
        made = node.src and all([s in fixed for s in node.src])
        if node.op in (CONST, IOTA) or (made and node.op not in HOSTS and node.op is not WATCH):
            fixed.add(node)

    def captured(node: Node) -> bool:
        value = node.src[0] if node.op is DETACH else node
        moves = (value.op.family == "movement" and value.op is not UNWINDOW) or value.op is DETACH
        moves = moves or _is_widened(value)
        return not moves and node not in fixed and node not in inside

    return captured


def _is_widened(node: Node) -> bool:
    """True for whole numbers in a wider type: bytes that are multiplied as they lie in memory."""
    if node.op is not CAST or not (node.dtype.is_integer and node.src[0].dtype.is_integer):
        return False
    return node.dtype.bits > node.src[0].dtype.bits
