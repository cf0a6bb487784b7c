"""Graphs across several devices: cut where a value crosses, one part for each device.

In: the roots of a graph. Out: `parts`, each on one device, in an order in which they can run, with
a stand-in buffer for every value that comes from another part; or, for realizing, `bring`: values
that cross are computed on their own device and copied, so that what is left is on one. Each part
has a plan and an arena of its own; nothing else moves between memories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..config import current
from ..core.node import Node
from ..core.ops.effect import COPY
from ..core.ops.leaf import new_buffer
from ..core.origin import places
from ..core.rewriting.substitute import substitute
from ..errors import ShapeError
from .walk import unknown_order

Home = tuple[int, str]  # how many copies come before a part, and its device


def crossings(roots: Sequence[Node]) -> list[Node]:
    """The copies from one device to another that are still to be made, sources first."""
    found = [n for n in unknown_order(roots)
             if n.op is COPY and n.src[0].device not in (None, n.arg)]  # fmt: skip
    for node in found:
        _check(node)
    return found


def _check(node: Node) -> None:
    if not all([isinstance(n, int) for n in node.shape]):
        raise ShapeError(
            "a value of variable size cannot be copied to another device",
            "realize it first, or use fixed sizes",
            places(node.origins),
        )


def bring(roots: Sequence[Node], compute: Callable[[list[Node], list[Node]], None]) -> None:
    """Make every copy that the roots need; `compute(sources, copies)` makes some, on one device."""
    while waiting := crossings(roots):
        above = set(waiting)
        ready = [n for n in waiting if not any([c is not n and c in above for c in crossings([n])])]
        for device in dict.fromkeys(n.src[0].device for n in ready):
            copies = [n for n in ready if n.src[0].device == device]
            compute(list(dict.fromkeys(n.src[0] for n in copies)), copies)


class Part:
    """What one device computes."""

    def __init__(
        self, device: str, roots: list[Node], arrives: dict[Node, tuple[int, int]]
    ) -> None:
        self.device, self.roots = device, roots
        self.arrives = arrives  # stand-in -> part, root


def parts(roots: Sequence[Node]) -> tuple[list[Part], list[tuple[int, int]]]:
    """The parts in order, and where each root is: (part, its number there)."""
    waiting = crossings(roots)
    depth: dict[Node, int] = {}  # how many copies one after the other a value needs

    def needed(node: Node) -> int:
        below = crossings([node]) if waiting else []
        return max([depth[c] for c in below if c is not node], default=0)

    tasks: dict[Home, dict[Node, None]] = {}
    for copy in waiting:
        depth[copy] = 1 + needed(copy)
        tasks.setdefault((depth[copy] - 1, copy.src[0].device or ""), {})[copy.src[0]] = None
    homes = [(needed(root), root.device or current().device) for root in roots]
    for home, root in zip(homes, roots, strict=True):
        tasks.setdefault(home, {})[root] = None
    place = {home: number for number, home in enumerate(sorted(tasks))}
    where = [(place[h], list(tasks[h]).index(r)) for h, r in zip(homes, roots, strict=True)]
    return _linked(tasks, depth), where


def _linked(tasks: Mapping[Home, Iterable[Node]], depth: Mapping[Node, int]) -> list[Part]:
    """The parts of tasks, in which a stand-in is where a copy of an earlier part arrives."""
    made: list[Part] = []
    place = {home: number for number, home in enumerate(sorted(tasks))}
    stands: dict[Node, Node] = {}
    origin: dict[Node, tuple[int, int]] = {}  # of each stand-in
    for home in place:
        for copy in depth:
            if depth[copy] == home[0] and copy not in stands:
                stand = stands[copy] = new_buffer(copy.shape, copy.dtype, copy.arg)  # type: ignore[arg-type]
                source = (depth[copy] - 1, copy.src[0].device or "")
                origin[stand] = (place[source], list(tasks[source]).index(copy.src[0]))
        changed = list(tasks[home])
        if stands:
            changed = [substitute(node, stands, walk=True) for node in changed]
        made.append(Part(home[1], changed, dict(origin)))
    return made
