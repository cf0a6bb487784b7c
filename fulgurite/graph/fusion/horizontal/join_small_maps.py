"""Small maps of one shape that nobody waits for, in one kernel.

In: a `Partition`. Out: one in which maps whose few results no other kernel reads (updates of the
scales, shifts and counters of fifty normalisations) are one kernel for each shape. Apart, each is a
launch that takes as long as it takes to begin one. It is always legal: who has no reader is needed
by nobody, and so by none of those it is joined with.
"""

from __future__ import annotations

from ....core.node import Node, Shape
from ...tables import GRAPH
from ..build_schedule import Partition
from .joining import Joining, count


def join_small_maps(partition: Partition) -> Partition:
    """The partition with small maps of equal shapes as one kernel, a bounded number in each."""
    work = Joining(partition)
    wanted = set[int]().union(*work.read)
    last: dict[Shape, tuple[int, int]] = {}  # of a shape: the kernel others join, and its params
    for number, (_, outputs, cut) in enumerate(partition.segments):
        if cut[0].kind != "map" or number in wanted or not _is_small(outputs):
            continue
        shape, params = outputs[0].shape, len(cut[1]) + len(outputs)
        host, held = last.get(shape, (number, 0))
        full = held + params > GRAPH.joined_params or len(work.members(host)) >= GRAPH.joined_maps
        if full or host == number:
            last[shape] = number, params
        else:
            work.join(number, host)
            last[shape] = host, held + params
    return work.joined("map")


def _is_small(outputs: list[Node]) -> bool:
    """True if results have one shape of few elements."""
    alike = len({node.shape for node in outputs}) == 1
    return alike and count(outputs[0]) <= GRAPH.joined_map_elements
