"""Empty values as constants: nothing is computed for what has no elements.

In: a SINK and its nodes in order. Out: the same graph in which a value of no elements is a constant
of its shape, a reduction over nothing is the identity of its operation, and what is put into
something else at no place leaves that as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, constant
from ...core.ops.indexing import SCATTER
from ...core.ops.leaf import CONST, PARAM, SINK
from ...core.ops.movement import PAD, UNWINDOW
from ...core.ops.reduce import REDUCE, identity_of
from ...core.rewriting.substitute import substitute
from ..ir.queries import elements


def drop_empty(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with values of no elements, and what is made of nothing else, as constants."""
    if not any([0 in node.shape for node in order]):
        return sink
    known: dict[Node, Node] = {}
    for node in order:
        if node.op is SINK or node.op is CONST or node.op is PARAM:
            continue
        if not elements(node.shape):
            known[node] = constant(0, node.dtype, node.shape)
        elif node.op is REDUCE and not elements(node.src[0].shape):
            name = node.arg[0]
            start = 0 if name == "add" else identity_of(name, node.dtype)
            known[node] = constant(start, node.dtype, node.shape)
        elif node.op is SCATTER and not elements(node.src[1].shape):
            known[node] = node.src[0]
        elif node.op in (PAD, UNWINDOW) and not elements(node.src[0].shape):
            known[node] = constant(0, node.dtype, node.shape)
    return substitute(sink, known)
