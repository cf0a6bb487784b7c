"""Writers: do the kernels that are chosen keep the law of one writer?

In: the segments of a greedy schedule, which keep it, and kernels that could stand for some of them.
Out: whether the plan with them does. A kernel that takes in a sum whose largest element another
kernel asks for computes that sum in an order of its own: it is not offered, however cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.node import toposort
from .segments import SegmentGraph, memory_of
from .single_writer import Launch, Law, questions


class Writers:
    """The law for the plans of one schedule."""

    def __init__(self, work: SegmentGraph) -> None:
        self.work = work
        made = [node for _, outputs, _ in work.segments for node in outputs]
        asked = questions(toposort(made))
        self.law = Law(asked) if asked else None
        self.greedy: list[Launch] = []
        if self.law is not None:
            self.greedy = [
                Launch(cut[0].kind, outputs, memory_of(cut)) for _, outputs, cut in work.segments
            ]

    def concern(self, region: Iterable[int]) -> bool:
        """True if some question sees what a region computes."""
        law = self.law
        return law is not None and any(law.concerns(self.greedy[place].order) for place in region)

    def agree(self, chosen: Sequence[Launch]) -> bool:
        """True if the plan keeps the law when some kernels run in the place of segments."""
        return self.law is None or not self.law.conflicts(self.plan(chosen))

    def plan(self, chosen: Sequence[Launch]) -> list[Launch]:
        """What runs if some kernels do, in an order that works."""
        maker = {node: part for part in (*self.greedy, *chosen) for node in part.outputs}
        asked = [maker[node] for node in self.work.roots if node in maker]
        for place, part in enumerate(self.greedy):
            if not self.work.has_readers(place) and any(maker[n] is part for n in part.outputs):
                asked.append(part)
        order: list[Launch] = []
        seen: set[int] = set()
        stack = [(part, False) for part in asked]
        while stack:
            part, done = stack.pop()
            if done:
                order.append(part)
            elif id(part) not in seen:
                seen.add(id(part))
                stack.append((part, True))
                stack.extend([(maker[n], False) for n in part.reads if n in maker])
        return order
