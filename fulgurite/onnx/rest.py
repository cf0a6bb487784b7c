"""A graph in two parts where results decide shapes: one scheduled once, one built at every call.

In: a model, values of its inputs in memory, and which nodes read results while the graph was built.
Out: `Rest`. Nodes that follow from what was read are late; all others are the early part, whose
results that anybody else needs are computed by one schedule. Every call runs that, and builds the
late nodes on its results: of a detector little more than the boxes that it suppresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import fulgurite as fg

from .graph import Build
from .order import needed
from .proto import Graph
from .types import STRING
from .values import Value

if TYPE_CHECKING:
    from .model import Model


class Unsplit(Exception):
    """The early part has results that no tensor holds."""


class Rest:
    """What a call builds, and a schedule for what it does not."""

    def __init__(
        self,
        model: Model,
        given: Mapping[str, Value],
        read: AbstractSet[int],
        floats: frozenset[str],
    ) -> None:
        self.program, self.floats = model.program, floats
        graph = self.program.graph
        late, names = _late(graph, read)
        build = self.build()
        scope = build.scope(graph, dict(given))
        with build.deeper():
            build.run([n for i, n in enumerate(graph.node) if i not in late], scope)
        if build.dynamic:
            raise Unsplit
        self.nodes = [graph.node[i] for i in sorted(late)]
        self.known: dict[str, Value | None] = {}
        self.names: list[str] = []
        found: list[Value] = []
        for name in sorted(names & scope.values.keys()):
            value = scope.values[name]
            if _is_fixed(value):
                self.known[name] = value
                continue
            self.names.append(name)
            found.append(value)
        self.kinds = [value.kind for value in found]
        self.schedule = fg.schedule(*[value.tensor.contiguous() for value in found])
        self.schedule.compile(any_size=True)
        self.schedule.own()

    def build(self) -> Build:
        """One pass over a part of the graph."""
        made = Build(self.program)
        made.floats = self.floats
        return made

    def outputs(self) -> list[Any]:
        """The outputs for what is in the inputs' memory now."""
        fresh = self.schedule.run()
        build, graph = self.build(), self.program.graph
        scope = build.scope(graph, dict(self.known))
        results = zip(self.names, fresh, self.kinds, strict=True)
        scope.values |= {name: Value(tensor, kind) for name, tensor, kind in results}
        with build.deeper():
            build.run(self.nodes, scope)
        return build.outputs(graph, scope)


def _is_fixed(value: Any) -> bool:
    """True if a value is the same at every call."""
    if value is not None and type(value) is not Value:
        raise Unsplit
    if value is None or value.constant or value.kind is STRING:
        return True
    return not value.sources and value.known() is not None


def _late(graph: Graph, read: AbstractSet[int]) -> tuple[set[int], set[str]]:
    """The nodes that follow from those that read results, and the names that they and the
    outputs need."""
    late, made = set[int](), set[str]()
    names = {info.name for info in graph.output}
    for number, node in enumerate(graph.node):
        sources = set(needed(node))
        if number in read or not made.isdisjoint(sources):
            late.add(number)
            made |= set(node.output)
            names |= sources
    return late, names - made
