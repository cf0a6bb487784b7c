"""Early rejection: folds that no law makes stream, told before any law is tried.

In: folds over some axes as they are written. Out: whether they may become one pass over blocks.
Laws pull factors out of sums and summands out of extremes, and nothing else. So what is left inside
must change by a factor or by a shift in any case, op by op, when what it is built on moves: a sum
of weights of which each has its own divisor, say, never does. What is said to be possible here
may still turn out not to be; what is said to be impossible never is anything else.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...core.node import Node
from ...core.ops.elementwise import ADD, CAST, DIV, EXP, EXP2, LOG, LOG2, MUL, NEG, POW, SUB, WHERE
from ...core.ops.index import FOLD
from .rebase import Rebase

# ops of which a result changes by a factor, or by a shift, if what they are made of does
_KEEPS = {"factor": (MUL, DIV, NEG, CAST, POW), "shift": (ADD, SUB, NEG, MUL, DIV)}
_TURNS = {"factor": (EXP, EXP2), "shift": (LOG, LOG2)}  # or if that changes in the other way


def may_stream(folds: Iterable[Node], rebase: Rebase) -> bool:
    """True if all of some folds may be states of one pass."""
    screen = _Screen(rebase)
    return all(screen.may_be_state(fold) for fold in folds)


class _Screen:
    def __init__(self, rebase: Rebase) -> None:
        self.rebase = rebase
        self.known: dict[tuple[Node, str], bool] = {}

    def may_be_state(self, fold: Node) -> bool:
        """True if what a fold has so far may be corrected when its bases move."""
        body = fold.src[0]
        if fold.arg[0] == "add":
            return all(any(self.changes(f, by) for by in _KEEPS) for f in self.factors(body))
        return not any(self.rebase.moves(t) for t in self.summands(body))

    def factors(self, node: Node) -> list[Node]:
        """What stays inside a sum when laws are done."""
        if self.rebase.is_fixed(node):
            return []
        if node.op in (MUL, DIV, NEG, POW):
            return [f for s in node.src for f in self.factors(s)]
        if node.op is WHERE and not self.rebase.moves(node.src[0]):
            return [f for s in node.src[1:] for f in self.factors(s)]
        return [node]

    def summands(self, node: Node) -> list[Node]:
        """What stays inside an extreme when laws are done."""
        if self.rebase.is_fixed(node):
            return []
        opened = node.op in (ADD, SUB, EXP, EXP2, MUL, DIV)
        return [t for s in node.src for t in self.summands(s)] if opened else [node]

    def changes(self, node: Node, by: str) -> bool:
        """True if a value may change by a factor, or by a shift."""
        if (node, by) not in self.known:
            fixed = not self.rebase.moves(node) or self.rebase.is_fixed(node)
            self.known[node, by] = fixed or self._changes(node, by)
        return self.known[node, by]

    def _changes(self, node: Node, by: str) -> bool:
        op, sources = node.op, node.src
        if op in _TURNS[by]:
            return self.changes(sources[0], "shift" if by == "factor" else "factor")
        if op is WHERE:
            held = not self.rebase.moves(sources[0])
            return held and all(self.changes(s, by) for s in sources[1:])
        summed = by == "factor" and op is FOLD and node.arg[0] == "add"
        return (summed or op in _KEEPS[by]) and all(self.changes(s, by) for s in sources)
