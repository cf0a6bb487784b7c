"""Graphs across several devices: cut where a value crosses, one part for each device.

In: the roots of a graph. Out: `parts`, each on one device, in an order in which they can run, with
a stand-in buffer for every value that comes from another part; or, for realizing, `bring`: values
that cross are computed on their own device and copied, so that what is left is on one. Each part
has a plan and an arena of its own; nothing else moves between memories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..config import current
from ..core.node import Node
from ..core.ops.effect import COPY
from ..core.ops.leaf import new_buffer
from ..core.origin import places
from ..core.substitute import substitute
from ..errors import ShapeError
from ..graph.normalize import known


def crossings(roots: Sequence[Node]) -> list[Node]:
    """The copies from one device to another that are still to be made, sources first."""
    found: list[Node] = []
    seen: set[Node] = set()
    path: list[Node] = []
    stack = [iter(roots)]
    while stack:
        for node in stack[-1]:
            node = known(node)
            if node not in seen:
                seen.add(node)
                path.append(node)
                stack.append(iter(node.src))
                break
        else:
            stack.pop()
            if path:
                node = path.pop()
                if node.op is COPY and node.src[0].device not in (None, node.arg):
                    _check(node)
                    found.append(node)
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


@dataclass(eq=False)
class Part:
    """What one device computes."""

    device: str
    roots: list[Node]
    arrives: dict[Node, tuple[int, int]] = field(default_factory=dict)  # stand-in -> part, root


def parts(roots: Sequence[Node]) -> tuple[list[Part], list[tuple[int, int]]]:
    """The parts in order, and where each root is: (part, its number there)."""
    made: list[Part] = []
    stands: dict[Node, Node] = {}
    origin: dict[Node, tuple[int, int]] = {}  # of each stand-in
    levels: dict[Node, int] = {}
    waiting = crossings(roots)
    for node in waiting:
        below = [levels[c] for c in crossings([node]) if c is not node]
        levels[node] = 1 + max(below, default=0)

    def add(device: str, nodes: list[Node]) -> int:
        changed = [substitute(n, stands, walk=True) for n in nodes]
        made.append(Part(device, changed, dict(origin)))
        return len(made) - 1

    for level in sorted(set(levels.values())):
        now = [n for n in waiting if levels[n] == level]
        fresh: dict[Node, Node] = {}
        for device in dict.fromkeys(n.src[0].device for n in now):
            copies = [n for n in now if n.src[0].device == device]
            sources = list(dict.fromkeys(n.src[0] for n in copies))
            number = add(device or "", sources)
            for n in copies:
                fresh[n] = new_buffer(n.shape, n.dtype, n.arg)  # type: ignore[arg-type]
                origin[fresh[n]] = (number, sources.index(n.src[0]))
        stands.update(fresh)
    where: dict[int, tuple[int, int]] = {}
    devices = [root.device or current().device for root in roots]
    for device in dict.fromkeys(devices):
        mine = [i for i, d in enumerate(devices) if d == device]
        number = add(device, [roots[i] for i in mine])
        where.update({i: (number, place) for place, i in enumerate(mine)})
    return made, [where[i] for i in range(len(roots))]
