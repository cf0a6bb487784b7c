"""Results stored in the order in which they are read: a permutation moves to the producer's store.

In: a `Partition`. Out: one in which a product or sum whose every reader permutes it in one way and
merges axes afterwards (the heads of attention before its projection) is stored permuted. A GEMM
packs such an operand element by element, as it does the windows of a convolution (im2col); stored
in its order it is a plain matrix, and a store takes any strides. The last axis stays last, so
vectors are stored as before. It is legal for any value that nobody else wants.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.node import Node
from ...core.ops.movement import PERMUTE, RESHAPE
from ..ir.kernel import Extractor
from ..ir.queries import walk
from . import KINDS
from .build_schedule import Partition, Segment
from .segments import memory_of

PRODUCERS = ("reduce", "contract")  # their loops have an order of their own; that of a map follows


def store_as_read(partition: Partition) -> Partition:
    """The partition with products and sums stored in the order of their readers."""
    roots = set(partition.stored.values())
    made = {
        outputs[0]
        for _, outputs, cut in partition.segments
        if cut[0].kind in PRODUCERS and len(outputs) == 1 and outputs[0] not in roots
    }
    uses: dict[Node, set[Node | None]] = {}
    for _, outputs, cut in partition.segments if made else ():
        for value in memory_of(cut) & made:
            fused = cut[0].kind in KINDS
            found = _uses(value, outputs, memory_of(cut)) if fused else [None]
            uses.setdefault(value, set()).update(found)
    views = {value: view for value, found in uses.items() if (view := _only(value, found))}
    return _stored(partition, views) if views else partition


def _uses(value: Node, outputs: list[Node], memory: frozenset[Node]) -> Iterator[Node | None]:
    """The permutations of a value of which a kernel merges axes; None: it has another use."""
    order = inside(outputs, memory)
    aliases = {value}  # reshapes: the same memory
    views: set[Node] = set()
    for node in order:
        read = [s for s in node.src if s in aliases or s in views]
        if not read:
            continue
        if node.op is RESHAPE and read[0] in aliases:
            aliases.add(node)
        elif node.op is PERMUTE and read[0] in aliases:
            views.add(node)
        else:
            yield read[0] if node.op is RESHAPE and _merges(node) else None
    yield from [None for node in outputs if node in aliases or node in views]


def inside(outputs: list[Node], memory: frozenset[Node]) -> list[Node]:
    """What a kernel computes, sources first."""
    return walk(outputs, lambda node: node.src, memory)


def _merges(node: Node) -> bool:
    """True if a reshape does more than to write or leave out axes of 1."""
    before, after = [[n for n in s.shape if n != 1] for s in (node.src[0], node)]
    return before != after


def _only(value: Node, uses: set[Node | None]) -> Node | None:
    """The one permutation that all readers want, if the last axis of a value stays its last."""
    if len(uses) != 1 or (view := next(iter(uses))) is None:
        return None
    order = [axis for axis in view.arg if view.src[0].shape[axis] != 1]
    return view if order and order[-1] == max(order) and order != sorted(order) else None


def _stored(partition: Partition, views: dict[Node, Node]) -> Partition:
    """The partition with views stored in the place of values."""
    extractor, readable = Extractor(), set(partition.params)
    found: list[Segment] = []
    for why, outputs, cut in partition.segments:
        stored = [views.get(node, node) for node in outputs]
        if stored != outputs or not memory_of(cut).isdisjoint(views):
            cut = extractor.cut(cut[0].kind, stored, readable)
        readable.update(stored)
        found.append((why, stored, cut))
    return partition._replace(segments=tuple(found))
