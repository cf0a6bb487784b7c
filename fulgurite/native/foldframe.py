"""A frame that can fold: sums over axes that no template has a part for, as plain loops.

In: a FOLD whose value is wanted where we are. Out: lines that walk its axes one inside the other
and combine, in order. Lanes that are live stay live: each lane folds for itself. Such folds are few
and small (one for each row at the end of a streaming kernel), so loops are all they need.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.node import Node
from ..core.ops.index import FOLD
from .emitter import Val, computing
from .foldpowers import small_power
from .frame import Frame
from .operate import combine, identity


class FoldFrame(Frame):
    """A frame whose values may be folds."""

    sizes: Sequence[int]
    powers: frozenset[Node] = frozenset()  # whose exponent is never above 0

    def is_whole(self, node: Node) -> bool:
        """A fold's body is worked out inside its loops."""
        return node.op is FOLD

    def compute(self, node: Node) -> Val:
        """A node's value from its sources'; a fold's by its loops."""
        if node.op is FOLD:
            return self.folded(node, list(node.arg[1]))
        if node in self.powers:
            exponent = self.known(node.src[0])
            assert exponent is not None
            return small_power(self.e, node, exponent)
        return super().compute(node)

    def folded(self, node: Node, axes: list[int]) -> Val:
        """A fold over the axes that are left, walked in order."""
        e, dtype = self.e, computing(node.dtype)
        vector = self.lane is not None
        kind = e.type_of(dtype, vector)

        def walk(left: list[int], total: str) -> str:
            axis, *rest = left

            def step(index: str, sums: list[str]) -> list[str]:
                self.open[axis] = index
                self.scopes.append({})
                if rest:
                    out = walk(rest, sums[0])
                else:
                    value = self.value(node.src[0])
                    value = e.splat(value) if vector else value
                    out = combine(e, node.arg[0], Val(sums[0], dtype, vector), value).text
                self.scopes.pop()
                return [out]

            size = self.number(("fold", axis), self.sizes[axis])
            found = e.loop("0", size, 1, [(kind, total)], step)[0]
            del self.open[axis]
            return found

        return Val(walk(axes, identity(e, node.arg[0], dtype, vector).text), dtype, vector)
