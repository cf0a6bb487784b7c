"""Segments of a partition that become one: who needs whom, and the order of what is left.

In: a `Partition`, and which segments are part of which others. Out: the partition with those cut
anew, each kernel behind what it reads. No kernel may need itself by way of others: `depends` tells.
"""

from __future__ import annotations

from math import prod

from ....core.node import Node
from ...ir.kernel import Extractor
from ...ir.queries import walk
from ..build_schedule import Partition, Segment
from ..segments import memory_of


def count(node: Node) -> int:
    """Elements of a value, as far as sizes are fixed."""
    return prod([n for n in node.shape if isinstance(n, int)])


class Joining:
    """A partition, of which some segments become part of others."""

    def __init__(self, partition: Partition) -> None:
        self.partition, self.segments = partition, partition.segments
        self.made = {n: i for i, (_, outputs, _) in enumerate(self.segments) for n in outputs}
        self.memory = [memory_of(cut) for _, _, cut in self.segments]
        self.read = [{self.made[m] for m in some if m in self.made} for some in self.memory]
        self.host: dict[int, int] = {}  # a segment -> the one that it is part of
        self.parts: dict[int, list[int]] = {}

    def join(self, number: int, host: int) -> None:
        """Make a segment a part of another."""
        self.host[number] = host
        self.parts.setdefault(host, []).append(number)

    def members(self, number: int) -> list[int]:
        """A segment and its parts."""
        return [number, *self.parts.get(number, ())]

    def needs(self, number: int) -> set[int]:
        """The segments, or their hosts for them, whose results a segment reads."""
        found = {self.host.get(i, i) for one in self.members(number) for i in self.read[one]}
        return found - {number}

    def depends(self, first: set[int], on: int) -> bool:
        """True if one of some segments is another, or follows from it."""
        return on in walk([self.host.get(one, one) for one in first], self.needs)

    def order(self) -> list[int]:
        """The segments that are left, each behind what it reads, else as they were."""
        left = [i for i in reversed(range(len(self.segments))) if i not in self.host]
        return walk(left, lambda number: sorted(self.needs(number)))

    def joined(self, kind: str) -> Partition:
        """The partition with joined kernels of some kind, cut anew."""
        if not self.host:
            return self.partition
        extractor, readable = Extractor(), set(self.partition.params)
        found: list[Segment] = []
        for number in self.order():
            why, outputs, cut = self.segments[number]
            if number in self.parts:
                outputs = [n for i in self.members(number) for n in self.segments[i][1]]
                cut = extractor.cut(kind, outputs, readable)
            readable.update(outputs)
            found.append((why, outputs, cut))
        return self.partition._replace(segments=tuple(found))
