"""`explain`: what became of a model of torch, graph by graph and kernel by kernel.

In: a function or module and arguments to call it with. Out: an `Explanation`: for every graph that
dynamo captured the report of `fg.explain` on each of its segments, whose kernels name the lines of
the user's own model, and the operators that torch runs between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .backend import fulgurite
from .graph import Graph, Program, watching
from .reporting import shown
from .segment import Segment
from .table import title_of


@dataclass
class Explanation:
    """Reports on the segments of every graph."""

    graphs: list[Graph]
    segments: list[Any] = field(default_factory=list)  # what `fg.explain` says of each
    eager: list[str] = field(default_factory=list)  # operators that torch runs

    def __str__(self) -> str:
        lines = []
        for number, report in enumerate(self.segments):
            lines += [f"--- segment {number} of {len(self.segments)}", str(report)]
        lines += [f"torch runs {shown(name)}" for name in self.eager]
        return "\n".join(lines)


def explain(model: Any, *args: Any, **named: Any) -> Explanation:
    """Compile and run a model once, and tell what was made of it; see `fg.explain`."""
    with watching() as graphs:
        torch._dynamo.reset()
        result = torch.compile(model, backend=fulgurite)(*args, **named)
    del result
    found = Explanation(graphs)
    for program in _programs(graphs):
        for step in program.steps:
            if isinstance(step, Segment):
                found.segments.append(step.explain())
            elif isinstance(step.target, torch._ops.OpOverload):
                found.eager.append(title_of(step.target))
    return found


def _programs(graphs: Sequence[Graph]) -> list[Program]:
    return [program for graph in graphs for program in graph.programs.values()]
