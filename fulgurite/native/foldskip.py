"""Blocks that a fold skips: conditions on indices alone, asked once for a tile and a block.

In: the tests of kernel/skip.py, affine indices that must be 0 or more somewhere in a block. Out:
lines that work out the largest value of each over the rows of a tile and the elements of a block,
and a branch around the block. A causal mask skips about half of all blocks, a window most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..graph.affine import Affine
from ..kernel.contract import Line
from .foldbase import FoldBase


class FoldSkip(FoldBase):
    """Blocks that count for nothing."""

    def when_possible(self, body: Callable[[], None]) -> None:
        """A block, unless its indices alone say that it adds nothing."""
        e, needed = self.f.e, ""
        for test in self.tests:
            most = self.most(test.index)
            now = e.let(f"icmp sge i64 {most}, 0")
            needed = e.let(f"and i1 {needed}, {now}") if needed else now
        if needed:
            e.branch(needed, body)
        else:
            body()

    def most(self, index: Affine) -> str:
        """The largest value of an index over the rows of this tile and this block."""
        f, e = self.f, self.f.e
        total = f.number(("most", index, "offset"), index[0]) if index[0] else "0"
        last = f.sub(f.add(self.k, self.deep), "1")
        ranges = self.reach(self.fold.streaming.axes, self.k, last)
        end = f.sub(f.add(self.top, self.count), "1")
        ranges |= self.reach(self.fold.rows, self.top, end)
        ranges |= self.reach(self.fold.batch, self.at, self.at)
        for place, (atom, step) in enumerate(index[1]):
            assert isinstance(atom, int)
            whole = "0", f.number(("last", atom), self.fold.sizes[atom] - 1)  # of a product inside
            low, high = ranges.get(atom, whole)
            each = f.number(("most", index, place), step)
            total = f.add(total, f.mul(high if step > 0 else low, each))
        return total if total.startswith("%") else e.let(f"add i64 {total}, 0")

    def reach(self, axes: Sequence[int], first: str, last: str) -> dict[int, tuple[str, str]]:
        """The least and largest index of every axis between two places of a line."""
        f, e = self.f, self.f.e
        if len(axes) == 1:
            return {axes[0]: (first, last)}
        line = Line(tuple(axes), tuple([self.fold.sizes[a] for a in axes]), frozenset())
        f.part = self.fold.part([], (), ())
        pairs = [f.coordinates(line, first), f.coordinates(line, last)]
        found: dict[int, tuple[str, str]] = {}
        same = "true"
        for axis, low, high in zip(axes, *pairs, strict=True):
            most = f.number(("last", axis), self.fold.sizes[axis] - 1)
            found[axis] = (
                e.let(f"select i1 {same}, i64 {low}, i64 0"),
                e.let(f"select i1 {same}, i64 {high}, i64 {most}"),
            )
            equal = e.let(f"icmp eq i64 {low}, {high}")
            same = e.let(f"and i1 {same}, {equal}")
        return found
