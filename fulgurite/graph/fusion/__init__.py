"""Search: alternatives to the greedy kernels, what they cost, and which are chosen.

The package itself only says whether there is anything to choose, so that a schedule without a
choice loads none of its modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.node import Node
from ...core.ops.elementwise import WHERE
from ...core.ops.movement import PAD, PERMUTE, RESHAPE
from ..ir.kernel import Cut

KINDS = ("map", "reduce", "contract")  # of segments that may be merged


def has_choice(segments: Sequence[tuple[str, list[Node], Cut]]) -> bool:
    """Does any segment read what another one folded? Nothing else is ever merged."""
    folded: set[object] = set()
    for _, outputs, (kernel, memory, _) in segments:
        if kernel.kind in KINDS and not folded.isdisjoint(memory):
            return True
        if kernel.kind in ("reduce", "contract"):
            folded.update(outputs)
    return False


def has_views(order: Iterable[Node]) -> bool:
    """True if a graph has what may be costly to address: choices by place, or reordered axes."""
    ops = {node.op for node in order}
    return {PAD, WHERE} <= ops or {PERMUTE, RESHAPE} <= ops or {PERMUTE, PAD} <= ops
