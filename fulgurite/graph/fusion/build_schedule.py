"""Building a schedule: the kernels of a partition get slots for what they read and write.

In: a `Partition`: a graph cut into segments (why, what is stored, the kernel) in the order in which
they run. Out: a `Schedule`: items over numbered slots, the params first. `choose_kernels` may put
other segments in the place of the greedy ones before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cache

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node
from ..ir.kernel import Cut, Item, Memory, Schedule, Slot

Segment = tuple[str, list[Node], Cut]  # why, what is stored, the kernel
Segments = Sequence[Segment]
Choose = Callable[[Segments, Set[Node]], list[Segment]]


class Partition(NamedTuple):
    """A graph cut into the segments that become its kernels."""

    sink: Node
    params: tuple[Node, ...]
    segments: tuple[Segment, ...]
    stored: dict[Node, Node]  # of each root: the value that is stored for it

    def __str__(self) -> str:
        lines = [
            f"{kernel.name}: {why}, stores {', '.join([f'{n.op.name}{n.shape}' for n in nodes])}"
            for why, nodes, (kernel, _, _) in self.segments
        ]
        return "\n".join(lines)


def choose_kernels(partition: Partition, choose: Choose) -> Partition:
    """The partition with the segments that are chosen in the place of the greedy ones."""
    chosen = choose(partition.segments, set(partition.stored.values()))
    return partition._replace(segments=tuple(chosen))


def build_schedule(partition: Partition, inputs: int) -> Schedule:
    """Kernels for every root of the sink, over slots of which the first `inputs` are params."""
    slot = cache(Slot)  # few are distinct
    slots: list[Slot | None] = [None] * inputs
    place: dict[Memory, int] = {}
    for node in partition.params:
        place[node] = node.arg[0]
        slots[node.arg[0]] = slot(node.dtype, node.shape, node.device)
    items = []
    for reason, outputs, (kernel, memory, origins) in partition.segments:
        for scalar in memory:
            if isinstance(scalar, tuple) and scalar not in place:
                place[scalar] = len(slots)
                slots.append(Slot(scalar[1], (), None, scalar[0]))
        reads, first = tuple([place[m] for m in memory]), len(slots)
        for node in outputs:
            place[node] = len(slots)
            slots.append(slot(node.dtype, node.shape, node.device))
        items.append(Item(kernel, reads, tuple(range(first, len(slots))), origins, reason))
    results = tuple([place[partition.stored[root]] for root in partition.sink.src])
    return Schedule(inputs, tuple(slots), tuple(items), results)
