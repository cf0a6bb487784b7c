"""Rewriting a graph by rules until none of them fires.

In: a root and `Rules`. Out: the root with every node in its final form: sources first, and a
replacement is rewritten in turn. One memo and one explicit stack serve the whole walk, so each
distinct node is matched once and depth costs no Python frames. Rules that never come to an end
are stopped by fuel, or at once when a node comes back to itself, with an error that names them.
Origins and metadata follow a node to what replaces it. Sizes are left as they are: `core/shape`
keeps them in a normal form of its own, which shapes are compared by.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from ...errors import RewriteError
from ..node import Node, Source, annotate, remember, toposort
from .pattern import Rule, Rules
from .substitute import rebuild

Watch: TypeAlias = Callable[[Rule, Node, Node], None]  # (rule, before, after) of each firing

FUEL = 10_000  # firings that any graph may use
FUEL_PER_NODE = 100
RECENT = 64  # the last firings, of which an error names the rules


def rewrite(root: Node, rules: Rules, fuel: int | None = None, watch: Watch | None = None) -> Node:
    """The root in which no rule fires any more; `fuel` is how many firings may take that."""
    done: dict[Node, Node] = {}  # its final form, of each node that has one
    becomes: dict[Node, tuple[Rule, Node]] = {}  # the firing whose result a node waits for
    tank = _Tank(root, fuel)
    path: list[Node] = []  # the nodes that wait, each for the next one
    sources: list[tuple[Node, ...]] = []  # theirs
    met: set[Node] = set()
    stack = [iter((root,))]  # what is still to do before each of them
    while True:
        for node in stack[-1]:
            if node not in done:
                if node in met:
                    raise _circle(node, path, becomes)
                met.add(node)
                path.append(node)
                values = node.src if len(node.src) == node.op.arity else _values(node)
                sources.append(values)
                stack.append(iter(values))
                break
        else:
            stack.pop()
            if not path:
                return done[root]
            node = path[-1]
            if node in becomes:
                done[node] = _follow(node, done[becomes[node][1]])
            else:
                values = sources[-1]
                new = tuple([done[s] for s in values])
                current = node if new == values else rebuild(node, new + node.src[len(new) :])
                fired = None if current in done else rules.first(current)
                if fired is not None:
                    tank.burn(fired[0], current)
                    if watch is not None:
                        watch(fired[0], current, fired[1])
                    becomes[node] = fired
                    stack.append(iter((fired[1],)))
                    continue
                final = done.setdefault(current, current)
                done[node] = current if final is current else _follow(node, final)
            path.pop()
            sources.pop()


def _follow(node: Node, final: Node) -> Node:
    """The final form with what rides beside the node that it replaces."""
    if node.meta is not None and final.meta is not node.meta:
        final = annotate(final, node.meta)
    return remember(final, node.origins) if node.origins else final


def _values(node: Node) -> tuple[Node, ...]:
    """The sources that are values; symbolic sizes come after them."""
    count = node.op.arity
    if count is None:
        count = min(_sizes(node.arg), default=len(node.src))
    return node.src[:count]


def _sizes(arg: Any) -> Iterator[int]:
    if isinstance(arg, Source):
        yield arg.index
    elif isinstance(arg, tuple):
        for part in arg:
            yield from _sizes(part)


def _circle(node: Node, path: list[Node], becomes: dict[Node, tuple[Rule, Node]]) -> RewriteError:
    """The error of a node that waits, over the firings on the path, for itself."""
    rules = [becomes[n][0] for n in path[path.index(node) :] if n in becomes]
    return _endless(f"the replacement of {node!r} leads back to it", rules)


def _endless(what: str, rules: Iterable[Rule]) -> RewriteError:
    names = Counter(rule.name for rule in rules)
    listed = ", ".join(f"{name} ({n}x)" for name, n in names.most_common(8))
    return RewriteError(
        f"{what}; the rules that fired last: {listed}",
        "one of them repeats or undoes what another does: let only one direction fire",
    )


class _Tank:
    """Counts firings; where no limit is given, the graph's size sets it."""

    def __init__(self, root: Node, fuel: int | None) -> None:
        self.root, self.counted = root, fuel is not None
        self.limit = FUEL if fuel is None else fuel
        self.spent = 0
        self.recent: deque[Rule] = deque(maxlen=RECENT)

    def burn(self, rule: Rule, node: Node) -> None:
        """Count a firing; an error when there were too many."""
        self.recent.append(rule)
        self.spent += 1
        if self.spent <= self.limit:
            return
        if not self.counted:  # the graph is counted only now: nearly none gets here
            self.counted = True
            self.limit += FUEL_PER_NODE * len(toposort([self.root]))
        else:
            raise _endless(f"rewriting did not end in {self.limit} steps, at {node!r}", self.recent)
