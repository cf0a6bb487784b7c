"""Whose time a kernel's is: its work divided among the user's lines and modules, and its limit.

In: an item of a schedule, and the rates of a machine. Out: an `ItemFacts`: bytes, operations, the
least time they could take (a roofline), and the share of each user line and module path in its
work. A kernel fuses many lines: each gets the part of its time that its ops are of the kernel's
work. Equal kernels share one body, so lines are matched by file and line, modules by the scopes
of the item's own origins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from ..aot.explain import flops_of
from ..core.node import Node, toposort
from ..core.ops.leaf import PARAM
from ..core.ops.reduce import REDUCE, SCAN
from ..core.origin import Origin
from ..graph.fusion.machine import MachineModel, memory_time, product_work, work_of
from ..graph.ir.kernel import Item, Schedule
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.queries import elements
from ..graph.memory.arena import bytes_moved

UNKNOWN = "no line known"
OUTSIDE = "(outside of modules)"


class ItemFacts(NamedTuple):
    """What is known of a kernel before it runs."""

    name: str
    kind: str
    bytes: int  # read and written, each value once
    flops: int  # scalar operations
    least: float  # nanoseconds: no machine with these rates takes less
    bound: str  # memory or arithmetic: what its limit is made of
    lines: Mapping[str, float]  # of the user: the part of the work
    modules: Mapping[str, float]  # paths: the part of the work
    stacks: Mapping[tuple[str, ...], float]  # module path in pieces, then the line
    reason: str  # why it is a kernel of its own


def facts_of(schedule: Schedule, item: Item, rates: MachineModel) -> ItemFacts:
    """What is known of an item of a schedule."""
    kernel = item.kernel
    moved = 0 if kernel.kind.is_control else bytes_moved(schedule, item)
    work = work_of(kernel)
    memory = memory_time(moved, rates)
    fold = kernel.kind is KernelKind.FOLD
    rate = rates.stream_gemm_rate if fold else rates.gemm_rate
    arithmetic = product_work(work, rates) / rate
    arithmetic += work.elementwise / (rates.stream_rate if fold else rates.elementwise_rate)
    shares = _shares(item, _common(schedule, item))
    lines: dict[str, float] = {}
    modules: dict[str, float] = {}
    stacks: dict[tuple[str, ...], float] = {}
    for origin, share in shares.items():
        line = UNKNOWN if origin is None else line_of(origin)
        scopes = () if origin is None else origin.scopes
        path = "/".join(scopes) or OUTSIDE
        lines[line] = lines.get(line, 0.0) + share
        modules[path] = modules.get(path, 0.0) + share
        stacks[*scopes, line] = stacks.get((*scopes, line), 0.0) + share
    bound = "memory" if memory >= arithmetic else "arithmetic"
    return ItemFacts(
        kernel.name, str(kernel.kind), moved, flops_of(kernel.body), max(memory, arithmetic),
        bound, lines, modules, stacks, item.reason,
    )  # fmt: skip


def line_of(origin: Origin) -> str:
    """A user line, with its file as seen from here if it is below."""
    file = origin.file
    if os.path.isabs(file):
        near = os.path.relpath(file)
        file = file if near.startswith("..") else near
    return origin.at(file)


def _place(origin: Origin) -> tuple[str, int]:
    return origin.file, origin.line


def _common(schedule: Schedule, item: Item) -> set[Origin]:
    """The origins of an item that another one of the same kernel has too: of what they share."""
    others = [i for i in schedule.items if i is not item and i.kernel.body is item.kernel.body]
    known = {origin for other in others for origin in other.origins}
    return {origin for origin in item.origins if origin in known}


def _shares(item: Item, common: set[Origin]) -> dict[Origin | None, float]:
    """The part of a kernel's work that each of its origins has.

    Equal layers share what is equal in them, which has the lines of the first: of a line in several
    modules the one that is this kernel's own counts.
    """
    own = {_place(origin) for origin in item.origins if origin not in common}
    origins = [o for o in item.origins if o not in common or _place(o) not in own]
    if not origins:
        return {None: 1.0}
    weights: dict[tuple[str, int], float] = {}
    for node in toposort([item.kernel.body]):
        weight = _weight(node)
        for place in {_place(origin) for origin in node.origins}:
            weights[place] = weights.get(place, 0.0) + weight
    found: dict[Origin | None, float] = {}
    same: dict[tuple[str, int], int] = {}
    for origin in origins:
        same[_place(origin)] = same.get(_place(origin), 0) + 1
    for origin in origins:
        found[origin] = weights.get(_place(origin), 0.0) / same[_place(origin)]
    total = sum(found.values())
    if not total:
        return dict.fromkeys(found, 1.0 / len(found))
    return {origin: weight / total for origin, weight in found.items()}


def _weight(node: Node) -> float:
    """What a node costs beside others of its kernel, in additions."""
    if node.op in (REDUCE, SCAN):
        return float(elements(node.src[0].shape))
    if node.op.family == "elementwise" and node.op is not PARAM:
        return float(elements(node.shape) * node.op.cost)
    return 0.0
