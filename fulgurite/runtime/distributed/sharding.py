"""Values in shards: how a node's memory is split, and all of it on every rank.

In: a node whose value is known. Out: its layout, or the memory of the whole value, gathered. All
ranks must ask together: gathering is a collective.
"""

from __future__ import annotations

from ...core.node import Node
from ...core.ops.collective import SHARD, UNSHARD
from ...core.ranks import Layout, MeshAxes
from ...graph.ir.registry import REGISTRY
from ..realize import realize, value_node


def sharding_of(node: Node) -> tuple[MeshAxes, Layout, bool] | None:
    """How the memory of a node is split: mesh, layout and whether that is weak; None if whole."""
    found = value_node(node)
    if found is None and node.op is SHARD:
        found = node
    if found is None or found.op not in (UNSHARD, SHARD):
        return None
    split: tuple[MeshAxes, Layout, bool] = found.arg
    return split


def gathered(node: Node) -> Node:
    """The BUFFER of the whole value of memory in shards."""
    mesh, layout, _ = node.arg
    entry = REGISTRY.enter(SHARD(node, arg=(mesh, ((),) * len(layout), False)))
    realize([entry])
    found = value_node(entry.node)
    assert found is not None and found.op is not UNSHARD, f"{node!r} was gathered"
    return found
