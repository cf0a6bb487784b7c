"""Nodes in an order in which every one follows those that make what it reads.

In: the nodes of a graph as a file lists them. Out: the same nodes, each after its sources, else as
they were. The standard wants them so; converters that add casts at the end of a list do not, and
other runtimes sort. Nodes on a circle stay where they are: who reads them finds no value. A name
that two nodes make is an error: its readers would depend on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .errors import ModelError
from .proto import Node


def in_order(nodes: Sequence[Node]) -> Sequence[Node]:
    """Nodes after their sources."""
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if makers.setdefault(name, i) != i:
                raise ModelError(f"two nodes make {name!r}", "the model is not valid ONNX")
    sources = [[makers[name] for name in needed(node) if name in makers] for node in nodes]
    if all([source < i for i, found in enumerate(sources) for source in found]):
        return nodes
    done, order = set[int](), list[Node]()
    begun = set[int]()
    for first in range(len(nodes)):
        stack = [first]
        while stack:
            i = stack[-1]
            left = [s for s in sources[i] if s not in done and s not in begun]
            begun.add(i)
            if left:
                stack += left[::-1]
                continue
            stack.pop()
            if i not in done:
                done.add(i)
                order.append(nodes[i])
    return order


def needed(node: Node) -> Iterator[str]:
    """The names that a node reads, also in its subgraphs."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.g is not None else [])):
            for inner in graph.node:
                yield from needed(inner)
            yield from (info.name for info in graph.output)
