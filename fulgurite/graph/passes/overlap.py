"""Overlap of communication and compute: sums over ranks are begun early and waited for late.

In: the graph of one rank, then its schedule. Out: every ALL_REDUCE as a start and a wait; in the
schedule each start right behind what makes its operand, each wait right before its first reader.
Between the two other kernels run: the rest of the backward pass while gradients travel. Starts that
follow each other share messages (the world's buckets). All ranks have one schedule, so all begin
and wait in one order; starts keep theirs.
"""

from __future__ import annotations

from ...core.node import Node, toposort
from ...core.ops.collective import ALL_REDUCE, START, WAIT, started
from ...core.rewriting.substitute import substitute
from ..ir.kernel import Item, Schedule


def start_and_wait(sink: Node) -> Node:
    """The graph with every sum over ranks in two steps."""
    sums = {n: started(n) for n in toposort([sink]) if n.op is ALL_REDUCE}
    if not sums:
        return sink
    # sources first: an operand of one sum may hold another
    done: dict[Node, Node] = {}
    for node in sums:
        operand = substitute(node.src[0], done, walk=True)
        done[node] = started(ALL_REDUCE(operand, arg=node.arg))
    return substitute(sink, done, walk=True)


def hide_latency(schedule: Schedule) -> Schedule:
    """Latency hiding: the schedule with starts as early and waits as late as they can be."""
    kinds = [_kind(item) for item in schedule.items]
    if "wait" not in kinds:
        return schedule
    return schedule._replace(items=tuple(_late(_early(list(schedule.items)))))


def _kind(item: Item) -> str:
    ops = {root.op for root in item.kernel.body.src}
    return "start" if ops == {START} else "wait" if ops == {WAIT} else ""


def _early(items: list[Item]) -> list[Item]:
    """Starts right behind the items that write what they read, in their order."""
    found: list[Item] = []
    last = 0  # no start passes another
    for item in items:
        if _kind(item) != "start":
            found.append(item)
            continue
        reads = set(item.reads)
        behind = [n + 1 for n, other in enumerate(found) if reads & set(other.writes)]
        place = max([last, *behind])
        found.insert(place, item)
        last = place + 1
    return found


def _late(items: list[Item]) -> list[Item]:
    """Waits right before the first item that reads what they write."""
    found: list[Item] = []
    held: list[Item] = []
    for item in items:
        reads = set(item.reads)
        needed = [wait for wait in held if reads & set(wait.writes)]
        found += needed
        held = [wait for wait in held if wait not in needed]
        (held if _kind(item) == "wait" else found).append(item)
    return found + held
