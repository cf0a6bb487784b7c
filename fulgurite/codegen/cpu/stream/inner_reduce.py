"""Inner reductions: those over axes that the template has no role for, as plain loops.

In: a FOLD whose value is wanted where we are. Out: lines that walk its axes one inside the other
and combine, in order. Lanes that are live stay live: each lane reduces for itself. Where none is,
the lanes of a sum run along its last axis and are combined at the end. Such reductions are few and
small (one for each row in the epilogue), so loops are all they need. Sums of float32 are kept in
float64: in one long chain they would lose more digits than the rest together.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dtype import bool_
from ....core.node import Node
from ....core.ops.index import FOLD
from ..llvm.emitter import Val
from ..llvm.maths import select
from ..loops.accumulator import Accumulator
from ..loops.function import FunctionBuilder
from .bounded_exp import emit_bounded_exp


class StreamBuilder(FunctionBuilder):
    """A function whose values may be reductions."""

    sizes: Sequence[int]
    bounded_exps: frozenset[Node] = frozenset()  # whose exponent is never above 0

    def is_whole(self, node: Node) -> bool:
        """A fold's body is computed inside its loops."""
        return node.op is FOLD

    def compute(self, node: Node) -> Val:
        """A node's value from its sources'; a fold's by its loops."""
        if node.op is FOLD:
            return self.folded(node, list(node.arg[1]))
        if node in self.bounded_exps:
            exponent = self.known(node.src[0])
            assert exponent is not None
            return emit_bounded_exp(self.e, node, exponent)
        return super().compute(node)

    def folded(self, node: Node, axes: list[int]) -> Val:
        """A fold over the axes that are left, traversed in order; sums are wide."""
        e = self.e
        along = axes[-1] if self.lane is None and node.arg[0] == "add" else None
        vector = self.lane is not None or along is not None
        total = Accumulator(e, node, vector, whole=False)

        def walk(left: list[int], state: list[tuple[str, str]]) -> list[str]:
            axis, *rest = left
            size = self.number(("fold", axis), self.sizes[axis])

            def step(index: str, now: list[str]) -> list[str]:
                self.open[axis] = index
                self.scopes.append({})
                if axis == along:
                    self.lane, self.mask = axis, self.tail(self.sub(size, index))
                if rest:
                    out = walk(rest, [(kind, n) for (kind, _), n in zip(state, now, strict=True)])
                else:
                    value = self.value(node.src[0])
                    value = e.splat(value) if vector else value
                    if axis == along:
                        assert self.mask is not None
                        value = select(e, Val(self.mask, bool_, True), value, total.identity())
                        self.lane = self.mask = None
                    out = total.flush(now, [value.text])
                self.scopes.pop()
                return out

            found = e.loop("0", size, e.lanes if axis == along else 1, state, step)
            del self.open[axis]
            return found

        return total.finish_wide(walk(axes, total.start_wide()), lanes=along is not None)
