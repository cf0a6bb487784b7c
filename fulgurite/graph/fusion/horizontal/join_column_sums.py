"""Sums over rows beside a kernel of rows that reads, or makes, the same elements.

In: a `Partition`. Out: one in which a reduction of columns is part of the kernel before it that has
its elements in registers, row by row: the gradients of a normalisation's scale and shift, and of a
bias, beside the gradient that goes on. They were kernels of their own, which read all elements
again. It is legal where whatever else they read does not follow from that kernel. Whether one
launch does both is for the target to say: a kernel whose parts share nothing there is as many
launches as before.
"""

from __future__ import annotations

from ....core.node import Node, Shape
from ....core.ops.reduce import REDUCE
from ...tables import GRAPH
from ..build_schedule import Partition, Segment
from ..segments import memory_of
from ..store_as_read import inside
from .joining import Joining, count


def join_column_sums(partition: Partition) -> Partition:
    """The partition with sums of columns in the kernels that have their elements."""
    work = Joining(partition)
    rows = [_rows_of(one) for one in partition.segments]
    for number, one in enumerate(partition.segments):
        shape = _columns_of(one)
        if shape is not None:
            hosts = [i for i in reversed(range(number)) if rows[i] == shape]
            host = next((i for i in hosts if _may_join(work, number, i)), None)
            if host is not None:
                work.join(number, host)
    return work.joined("reduce")


def _reductions(segment: Segment) -> list[Node]:
    """What a kernel of reductions reduces."""
    _, outputs, cut = segment
    if cut[0].kind != "reduce":
        return []
    return [n for n in inside(outputs, memory_of(cut)) if n.op is REDUCE]


def _rows_of(segment: Segment) -> Shape | None:
    """The shape of a kernel's results, rows last, if it reduces along them."""
    largest = max(segment[1], key=count)
    shape = largest.shape
    found = _reductions(segment)
    along = [n for n in found if n.src[0].shape == shape and n.arg[1] == (len(shape) - 1,)]
    if not along or len(along) < len(found) or not all(type(n) is int for n in shape):
        return None
    least, most = GRAPH.joined_columns
    columns = count(largest) // max(1, count(found[0]))
    fits = least <= columns <= most and count(found[0]) >= GRAPH.joined_rows
    return shape if fits else None


def _columns_of(segment: Segment) -> Shape | None:
    """The shape of what a kernel sums up along all axes but the last, if that is all it does."""
    found = _reductions(segment)
    if not found:
        return None
    shape = found[0].src[0].shape
    leading = "add", tuple(range(len(shape) - 1))
    if any(n.arg != leading or n.src[0].shape != shape for n in found):
        return None
    return shape if all(count(n) == count(found[0]) for n in segment[1]) else None


def _may_join(work: Joining, number: int, host: int) -> bool:
    """True if a segment can be part of another, which has its large operands."""
    stored = work.segments[host][1]
    there = work.memory[host] | set(stored)
    size = max([count(n) for n in stored])
    large = [m for m in work.memory[number] if count(m) >= size]
    others = {work.made[m] for m in work.memory[number] - there if m in work.made}
    return bool(large) and there.issuperset(large) and not work.depends(others, host)
