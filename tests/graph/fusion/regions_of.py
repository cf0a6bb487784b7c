"""The regions of some tensors' greedy schedule, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import fulgurite as fg
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.core.node import Node
from fulgurite.graph.fusion.build_schedule import Segment
from fulgurite.graph.fusion.regions import Regions
from tests.graph.scheduling import schedule
from tests.graph.searching import lowered

Then = Callable[[Regions], list[Segment]]


def regions_of(*asked: fg.Tensor, then: Then | None = None) -> Regions:
    """The regions of some tensors; `then` says what runs."""
    found: list[Regions] = []

    def keep(segments: Sequence[Segment], roots: Set[Node]) -> list[Segment]:
        found.append(Regions(segments, roots, SHIPPED))
        return list(segments) if then is None else then(found[0])

    schedule(*lowered(*asked), True, keep)
    return found[0]
