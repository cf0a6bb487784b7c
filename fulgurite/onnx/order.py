"""Nodes in an order in which every one follows those that make what it reads.

In: the nodes of a graph as a file lists them. Out: the same nodes, each after its sources, else as
they were. The standard wants them so; converters that add casts at the end of a list do not, and
other runtimes sort. Nodes on a circle stay where they are: who reads them finds no value. A name
that two nodes make, or a node and the graph's inputs, is an error: its readers would depend on the
order.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import ModelError
from .proto import Graph, Node


def in_order(graph: Graph) -> list[Node]:
    """Nodes after their sources."""
    nodes, makers = list(graph.node), _makers(graph)
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


def _makers(graph: Graph) -> dict[str, int]:
    """Which node makes each name."""
    given, makers = set(given_names(graph)), dict[str, int]()
    for i, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in given:
                raise ModelError(
                    f"a node makes {name!r}, which is given", "the model is not valid ONNX"
                )
            if makers.setdefault(name, i) != i:
                raise ModelError(f"two nodes make {name!r}", "the model is not valid ONNX")
    return makers


def given_names(graph: Graph) -> Iterator[str]:
    """The names that a graph has before any node runs: its inputs and weights."""
    yield from (info.name for info in graph.input)
    yield from (weight.name for weight in graph.initializer)
    yield from (w.values.name for w in graph.sparse_initializer if w.values is not None)


def needed(node: Node) -> Iterator[str]:
    """The names that a node reads, also those that its subgraphs capture."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.g is not None else [])):
            yield from _captured(graph)


def _captured(graph: Graph) -> Iterator[str]:
    """The names that a subgraph reads and does not make before."""
    own = set(given_names(graph))
    for inner in graph.node:
        yield from (name for name in needed(inner) if name not in own)
        own.update(inner.output)
    yield from (info.name for info in graph.output if info.name not in own)
