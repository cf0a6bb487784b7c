"""One run of the pipeline, watched: every pass before and after, laws that fired, the schedule.

In: tensors that are not computed yet. Out: an `Inspection`: what each pass was given and gave, the
laws of `simplify` with where they are written, the schedule with its arena, and what the search
compared. It is the pipeline that `realize` runs, without compilation; nothing is computed and no
cache changes.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..aot.explain import Pending, pending_graph
from ..config import Options, current
from ..core.node import Node
from ..core.origin import Origin
from ..core.passes import Pass
from ..core.rewriting.pattern import Law, Rule
from ..core.rewriting.rewrite import rewrite
from ..errors import PACKAGE, ArgumentError
from ..graph.ir.cache_key import Structure, restore
from ..graph.ir.kernel import Schedule
from ..graph.memory.arena import Layout
from ..graph.memory.in_place import Donated
from ..graph.passes.laws import SIMPLIFY
from ..runtime.pipeline import BEFORE_COMPILE, Context, Reports, run_pipeline
from ..runtime.recording import Event
from ..tensor import Tensor


class Firing(NamedTuple):
    """One law or rule that changed a node."""

    law: str
    source: str  # where it is written
    before: str
    after: str
    node: Node  # that was changed


class PassStep(NamedTuple):
    """One pass over a graph or schedule."""

    name: str
    level: str  # of what it gives: tensor, partition, schedule, ...
    before: str
    after: str
    firings: tuple[Firing, ...] = ()

    @property
    def changed(self) -> bool:
        """True if it changed anything that is shown."""
        return self.before != self.after


class Inspection(NamedTuple):
    """What the pipeline made of some tensors."""

    nodes: Sequence[Any]  # of each entry, with its origins
    sink: Node  # the graph as it was given
    device: str
    options: Options
    steps: tuple[PassStep, ...]
    schedule: Schedule
    layout: Layout
    reports: Reports


def inspection_of(tensors: Sequence[Tensor], texts: bool = True) -> Inspection:
    """Run the pipeline on the graph of some tensors, with the `texts` of passes if asked."""
    pending = pending_graph(tensors)
    if not isinstance(pending, Pending):
        raise ArgumentError(pending, "look at a tensor before its value is asked for")
    normal, donated = pending
    graph = Graph(
        normal.structure, normal.constants, normal.nodes, len(normal.buffers), donated,
        tensors[0].device, current(),
    )  # fmt: skip
    return inspect_graph(graph, texts)


class Graph(NamedTuple):
    """A graph that was, or would be, compiled."""

    structure: Structure
    constants: tuple[int, ...]
    nodes: Sequence[Any]  # of each entry, for its origins
    inputs: int
    donated: Donated
    device: str
    options: Options


class _Noted(NamedTuple):
    """What is remembered of a node: the line that made it."""

    origins: tuple[Origin, ...]
    op: None = None


def graph_of(event: Event) -> Graph:
    """The graph that an event of its compilation is about."""
    about = event.about
    entries = zip(about["structure"], about["lines"], strict=False)
    nodes = [_Noted(() if entry[0] == "param" else origins) for entry, origins in entries]
    return Graph(
        about["structure"], about["constants"], nodes, about["inputs"], about["donated"],
        about["device"], about["options"],
    )  # fmt: skip


def inspect_graph(graph: Graph, texts: bool = True) -> Inspection:
    """Run the pipeline on a graph."""
    sink = restore(graph.structure, graph.constants, (), graph.nodes)
    reports = Reports()
    native = replace(graph.options, tier="native")
    context = Context(native, graph.device, graph.inputs, graph.donated, reports=reports)
    steps: list[PassStep] = []

    def see(one: Pass, before: Any, after: Any) -> None:
        if texts:
            fired = _firings(before) if one.name == "simplify" else ()
            a = steps[-1].after if steps else one.level_in.show(before)
            same = one.level_out is one.level_in and after is before
            b = a if same else one.level_out.show(after)
            steps.append(PassStep(one.name, str(one.level_out), a, b, fired))

    schedule, layout = run_pipeline(sink, context, BEFORE_COMPILE, see)
    return Inspection(
        graph.nodes, sink, graph.device, graph.options, tuple(steps), schedule, layout, reports
    )


def _firings(sink: Node) -> tuple[Firing, ...]:
    """The laws and rules that simplify a graph, in the order they fire."""
    found: list[Firing] = []

    def watch(rule: Rule, before: Node, after: Node) -> None:
        found.append(Firing(rule.name, law_source(rule), _shown(before), _shown(after), before))

    rewrite(sink, SIMPLIFY, watch=watch)
    return tuple(found)


def _shown(node: Node) -> str:
    """A node by its op and those of its sources."""
    sources = ", ".join([s.op.name if s.src else _leaf(s) for s in node.src])
    return f"{node.op.name}({sources})" if node.src else _leaf(node)


def _leaf(node: Node) -> str:
    return str(node.value) if node.op.name == "const" else node.op.name


def law_source(rule: Rule) -> str:
    """The file and line, within the package, where a law or rule is written."""
    if not isinstance(rule, Law):
        code = inspect.unwrap(rule.build).__code__
        return f"{_inside(code.co_filename)}:{code.co_firstlineno}"
    file, line = rule.place
    return f"{_inside(file)}:{line}"


def _inside(file: str) -> str:
    return os.path.relpath(file, os.path.dirname(PACKAGE.rstrip(os.sep)))
