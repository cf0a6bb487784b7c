"""Which kernels of a CUDA graph wait for which: hazards of memory, transitively reduced.

In: what each item of a plan reads and writes, as spans of memory, in an order that is right. Out:
for each item the earlier ones that it directly comes after. An item waits for whoever wrote what it
touches last, and for whoever read what it writes (RAW, WAW and WAR hazards); one that is reached
through another is left out. The width is bounded: each item is behind the last one of its branch,
so no more than there are branches run side by side, and one branch is a chain. Items that fill the
GPU alone share a branch: side by side they would only take caches from each other.
Sets of items are bits of integers, so a plan of some hundred items takes milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter

Span = tuple[Hashable, int, int]  # whose memory, from where to where
_start, _end = itemgetter(0), itemgetter(1)


class _Accesses:
    """The last writer and the readers since, of each part of one owner's memory."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, int, int]] = []  # from, to, writer, readers; in order

    def note(self, start: int, end: int, item: int, writes: bool) -> int:
        """Note an access; the items that it comes after."""
        first = bisect_right(self.parts, start, key=_end)
        last = bisect_left(self.parts, end, key=_start)
        found, at = 0, start
        made: list[tuple[int, int, int, int]] = []
        for low, high, writer, readers in self.parts[first:last]:
            found |= writer | readers if writes else writer
            if low < start:
                made.append((low, start, writer, readers))
            if not writes:
                if at < low:
                    made.append((at, low, 0, item))
                at = min(high, end)
                made.append((max(low, start), at, writer, readers | item))
            if high > end:
                made.append((end, high, writer, readers))
        if writes:
            made.insert(bool(made) and made[0][0] < start, (start, end, item, 0))
        elif at < end:
            made.append((at, end, 0, item))
        self.parts[first:last] = made
        return found


def hazards(touched: Iterable[tuple[Sequence[Span], Sequence[Span]]]) -> list[int]:
    """For each item the earlier ones that it must come after, as bits; not all, if reached."""
    memory: dict[Hashable, _Accesses] = {}
    found = []
    for number, (reads, writes) in enumerate(touched):
        item, after = 1 << number, 0
        for spans, is_written in ((reads, False), (writes, True)):
            for owner, start, end in spans:
                if start < end:
                    accesses = memory.setdefault(owner, _Accesses())
                    after |= accesses.note(start, end, item, is_written)
        found.append(after & ~item)
    return found


def dependencies(
    touched: Sequence[tuple[Sequence[Span], Sequence[Span]]], branches: int, fills: Sequence[bool]
) -> list[list[int]]:
    """For each item those that it directly comes after, in so many branches."""
    if branches <= 1:
        return [[n - 1] if n else [] for n in range(len(touched))]
    behind: list[int] = []  # all that an item comes after
    tails = [-1]  # the last item of each branch; the first is of those that fill the GPU
    found: list[list[int]] = []
    for number, after in enumerate(hazards(touched)):
        branch = 0 if fills[number] else _branch(tails, _closure(after, behind), branches)
        if tails[branch] >= 0:
            after |= 1 << tails[branch]
        tails[branch] = number
        direct, seen = [], 0
        while after:
            latest = after.bit_length() - 1
            direct.append(latest)
            seen |= behind[latest] | 1 << latest
            after &= ~seen
        found.append(direct)
        behind.append(seen)
    return found


def _closure(after: int, behind: Sequence[int]) -> int:
    """These items and all that they come after."""
    found = 0
    while after & ~found:
        latest = (after & ~found).bit_length() - 1
        found |= behind[latest] | 1 << latest
    return found


def _branch(tails: list[int], after: int, branches: int) -> int:
    """A branch for an item: that of the latest it waits for, else one more, else the oldest."""
    open_ = [branch for branch, tail in enumerate(tails) if tail >= 0 and after >> tail & 1]
    if open_:
        return max(open_, key=tails.__getitem__)
    if len(tails) < branches:
        tails.append(-1)
        return len(tails) - 1
    return min(range(len(tails)), key=tails.__getitem__)
