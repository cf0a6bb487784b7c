"""Kernels of a graph as it is written: the pipeline without simplification."""

from __future__ import annotations

from dataclasses import replace

from fulgurite.config import current
from fulgurite.core.node import Node
from fulgurite.core.passes import passes_up_to
from fulgurite.graph.fusion.build_schedule import Choose
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.memory.in_place import Pair
from fulgurite.runtime.pipeline import REASSOCIATION, Context, run_pipeline
from fulgurite.runtime.pipeline import SCHEDULING as PASSES

SCHEDULING = PASSES[len(passes_up_to(PASSES, "assign_updates")) :]


def schedule(
    sink: Node, inputs: int, fuse: bool = True, choose: Choose | None = None,
    donated: tuple[Pair, ...] = (),
) -> Schedule:  # fmt: skip
    """The kernels of a graph; without `choose` the greedy ones, over donated memory."""
    options = replace(current(), fuse=fuse, search=False, tier="native")
    context = Context(options, "cpu", inputs, donated, choose=choose)
    found = run_pipeline(sink, context, SCHEDULING)
    assert isinstance(found, Schedule)
    return found


def reassociated(sink: Node) -> Node:
    """A graph after the passes that reassociate sums."""
    context = Context(replace(current(), search=True, exact=False), "cpu", 0)
    found = run_pipeline(sink, context, REASSOCIATION)
    assert isinstance(found, Node)
    return found
