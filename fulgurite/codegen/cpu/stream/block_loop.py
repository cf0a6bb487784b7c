"""Block-sparsity skipping in a tile: conditions on indices alone, tested once a tile or a block.

In: the tests of kernel/stream/skip.py, affine indices that must be 0 or more somewhere in a block.
Out: lines that compute from which element to which a tile has to stream, where one axis is
streamed; else the largest value of each index over the rows of a tile and the elements of a block,
and a branch around the block. The last block ends with the last element that is needed, the first
one begins where blocks do: others know blocks by their number. A causal mask skips about half of
all elements, a window most. What is skipped follows from sizes, so the order of all sums does too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....graph.ir.affine import Affine
from ....kernel.contract.analysis import Line
from .tile import Tile


class BlockLoop:
    """The loop over blocks of N, without those that count for nothing."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.problem = tile, tile.problem
        one = len(self.problem.n_axes) == 1
        self.once = self.problem.skips if one else ()  # tested once for a tile
        self.each = () if one else self.problem.skips  # tested for every block

    def emit(self, start: str, end: str, block: Callable[[], None]) -> None:
        """Run `block` for the blocks from start to end."""
        tile, f = self.tile, self.tile.f
        steps = f.number("steps", tile.plan.block_n)

        def turn(k: str) -> None:
            tile.k, tile.deep = k, f.least(steps, f.sub(end, k))
            self.when_needed(lambda: f.scope(block))

        tile.loop(start, end, steps, turn)

    def bounds(self, start: str, end: str) -> tuple[str, str]:
        """From where to where a tile streams: not over what conditions leave out at both ends."""
        f, e = self.tile.f, self.tile.e
        for test in self.once:
            most = self.most(test.index, "0", "0")  # and a step more for each element
            place, step = self.step(test.index)
            some = e.let(f"icmp sge i64 {most}, 0")
            if step < 0:
                past = f.add(e.let(f"udiv i64 {most}, {f.sub('0', place)}"), "1")
                end = f.least(end, e.let(f"select i1 {some}, i64 {past}, i64 0"))
            else:
                before = f.add(f.sub("0", most), f.sub(place, "1"))
                first = e.let(f"udiv i64 {before}, {place}")
                first = e.let(f"select i1 {some}, i64 0, i64 {first}")
                _, inside = f.divided(first, f.number("steps", self.tile.plan.block_n))
                first = f.sub(first, inside)
                start = e.call("i64", "llvm.smax.i64", f"i64 {start}", f"i64 {first}")
        return start, end

    def step(self, index: Affine) -> tuple[str, int]:
        """What an index grows by with each element of the one streamed axis."""
        (axis,) = self.problem.n_axes
        for place, (atom, step) in enumerate(index[1]):
            if atom == axis:
                return self.tile.f.number(("most", index, place), step), step
        raise AssertionError(f"{index} is not about axis {axis}")

    def when_needed(self, body: Callable[[], None]) -> None:
        """A block, unless its indices alone say that it adds nothing."""
        tile, f, e, needed = self.tile, self.tile.f, self.tile.e, ""
        for test in self.each:
            last = f.sub(f.add(tile.k, tile.deep), "1")
            now = e.let(f"icmp sge i64 {self.most(test.index, tile.k, last)}, 0")
            needed = e.let(f"and i1 {needed}, {now}") if needed else now
        if needed:
            e.branch(needed, body)
        else:
            body()

    def most(self, index: Affine, first: str, last: str) -> str:
        """The largest value of an index over the rows of this tile and some streamed elements."""
        tile, f, e, problem = self.tile, self.tile.f, self.tile.e, self.problem
        total = f.number(("most", index, "offset"), index[0]) if index[0] else "0"
        ranges = self.reach(problem.n_axes, first, last)
        end = f.sub(f.add(tile.top, tile.count), "1")
        ranges |= self.reach(problem.m_axes, tile.top, end)
        ranges |= self.reach(problem.batch_axes, tile.at, tile.at)
        for place, (atom, step) in enumerate(index[1]):
            assert isinstance(atom, int)
            whole = "0", f.number(("last", atom), problem.sizes[atom] - 1)  # of a product inside
            low, high = ranges.get(atom, whole)
            each = f.number(("most", index, place), step)
            total = f.add(total, f.mul(high if step > 0 else low, each))
        return total if total.startswith("%") else e.let(f"add i64 {total}, 0")

    def reach(self, axes: Sequence[int], first: str, last: str) -> dict[int, tuple[str, str]]:
        """The least and largest index of every axis between two places of a line."""
        f, e, sizes = self.tile.f, self.tile.e, self.problem.sizes
        if len(axes) == 1:
            return {axes[0]: (first, last)}
        line = Line(tuple(axes), tuple([sizes[a] for a in axes]), frozenset())
        f.part = self.problem.part([], (), ())
        pairs = [f.coordinates(line, first), f.coordinates(line, last)]
        found: dict[int, tuple[str, str]] = {}
        same = "true"
        for axis, low, high in zip(axes, *pairs, strict=True):
            most = f.number(("last", axis), sizes[axis] - 1)
            found[axis] = (
                e.let(f"select i1 {same}, i64 {low}, i64 0"),
                e.let(f"select i1 {same}, i64 {high}, i64 {most}"),
            )
            equal = e.let(f"icmp eq i64 {low}, {high}")
            same = e.let(f"and i1 {same}, {equal}")
        return found
