"""The partition of a joint graph: equal values are one before torch cuts it in two.

In: the joint graph of AOTAutograd. Out: torch's own forward and backward graphs, by its minimal
cut. Common subexpressions are eliminated here: torch's own pass takes two draws of random numbers
for one (`randn_like`, `uniform`), takes -0.0 for 0.0, and imports most of inductor, a tenth of a
first call. The graph is functional but for what it writes at its end.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch._functorch import config as settings
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef


def partition(joint: fx.GraphModule, inputs: Any, **named: Any) -> Any:
    """Forward and backward of a joint graph, by torch's minimal cut."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    share_equal_nodes(joint.graph)
    with settings.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **named)


def share_equal_nodes(graph: fx.Graph) -> None:
    """Eliminate common subexpressions. What shares memory with a result stays: two results are
    two tensors, also where their values are the same."""
    (last,) = graph.find_nodes(op="output")
    given = {memory for node in last.all_input_nodes if (memory := _memory(node)) is not None}
    known: dict[Hashable, fx.Node] = {}
    writes = 0  # into inputs, so far: what is read before is not what is read behind
    for node in graph.nodes:
        writes += _is_write(node)
        if not _is_value(node) or _memory(node) in given:
            continue
        key = (writes, node.target, _key(node.args), _key(node.kwargs))
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _is_write(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_value(node: fx.Node) -> bool:
    """True if a node is the same for the same arguments, and its size no data decide."""
    target: Any = node.target
    if node.op != "call_function" or _is_write(node):
        return False
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in ("aten", "prims"):
            return False
        if torch.Tag.nondeterministic_seeded in target.tags or "empty" in target._schema.name:
            return False
    elif getattr(target, "__module__", "") != "_operator":
        return False
    val = node.meta.get("val")
    is_open = isinstance(val, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
    return not (is_open and free_unbacked_symbols(val))


def _memory(node: fx.Node) -> Any:
    """The memory that a node's tensor is in; None if it says none."""
    val = node.meta.get("val")
    try:
        return StorageWeakRef(val.untyped_storage()) if isinstance(val, torch.Tensor) else None
    except NotImplementedError:
        return None


def _key(x: Any) -> Hashable:
    """An argument as what equals it alone: 1 is neither 1.0 nor True, and 0.0 is not -0.0."""
    if isinstance(x, fx.Node):
        return "node", x
    if isinstance(x, list | tuple):
        return isinstance(x, list), tuple([_key(each) for each in x])
    if isinstance(x, dict):
        return tuple([(name, _key(each)) for name, each in x.items()])
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return "symbol", x.node
    return type(x), repr(x)
