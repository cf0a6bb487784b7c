"""Small maps of one shape that nobody waits for, in one kernel.

In: a `Partition`. Out: one in which maps whose few results no other kernel reads (updates of the
scales, shifts and counters of fifty normalisations) are one kernel for each shape. Apart, each is a
launch that takes as long as it takes to begin one. It is always legal: who has no reader is needed
by nobody, and so by none of those it is joined with.
"""

from __future__ import annotations

from ...core.node import Shape
from ..tables import GRAPH
from .build_schedule import Partition
from .joining import Joining, count


def join_small_maps(partition: Partition) -> Partition:
    """The partition with small maps of equal shapes as one kernel, a bounded number in each."""
    work = Joining(partition)
    wanted = set[int]().union(*work.read)
    last: dict[Shape, int] = {}  # the kernel that others of a shape become part of
    for number, (_, outputs, cut) in enumerate(partition.segments):
        shapes = {node.shape for node in outputs}
        if cut[0].kind != "map" or number in wanted or len(shapes) > 1:
            continue
        if count(outputs[0]) > GRAPH.joined_map_elements:
            continue
        host = last.setdefault(outputs[0].shape, number)
        if host != number:
            work.join(number, host)
            if len(work.members(host)) >= GRAPH.joined_maps:
                del last[outputs[0].shape]
    return work.joined("map")
