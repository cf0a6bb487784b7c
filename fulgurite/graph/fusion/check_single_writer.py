"""The check of a finished schedule: no comparison sees two computations of one value.

In: a `Schedule`. Out: nothing, or a `VerifyError` that names the comparison, the value and the
kernels that compute it. Kernels are put together again to the graph that they were cut from, so
nothing is believed of what a scheduler had in mind: the law of `single_writer` holds of what
will run.
"""

from __future__ import annotations

from ...core.node import Node, constant_bits, make, remember, toposort
from ...core.ops.leaf import CONST, PARAM, param
from ...core.ops.movement import EXPAND, RESHAPE, reshape
from ...errors import VerifyError
from ..ir.kernel import Item, Schedule
from .single_writer import Launch, Law, questions


def verify_schedule(schedule: Schedule, name: str) -> None:
    """Raise a VerifyError if an item reads what is not there yet, or a comparison two writers."""
    known = set(range(schedule.inputs))
    known |= {n for n, slot in enumerate(schedule.slots) if slot and slot.bits is not None}
    for item in schedule.items:
        missing = [slot for slot in item.reads if slot not in known]
        if missing or known.intersection(item.writes):
            raise VerifyError(
                f"after {name}: {item.kernel.name} reads slots {missing} before they are written, "
                f"or writes one of {list(item.writes)} again",
                f"report this as a bug in {name}",
                ", ".join(item.lines[:3]),
            )
        known.update(item.writes)
    verify_agreement(schedule)


def verify_agreement(schedule: Schedule) -> None:
    """Raise a VerifyError at the first comparison of a value with another computation of it."""
    parts = parts_of(schedule)
    order = toposort(dict.fromkeys([node for part in parts for node in part.outputs]))
    for found in Law(questions(order)).conflicts(parts):
        names = [f"{schedule.items[i].kernel.name} (kernel {i})" for i in found.writers]
        places = names if len(names) > 1 else [*names, "again at another place in it"]
        raise VerifyError(
            f"after schedule: {found.question.op} compares {found.value.op} {found.value.shape} "
            f"with what was made of it, but computes it in {' and '.join(places)}: "
            "sums in two orders differ in their last bits",
            "report this as a bug in the scheduler (graph/fusion/single_writer.py has the law)",
            ", ".join([str(o) for o in (*found.question.origins, *found.value.origins)]),
        )


def parts_of(schedule: Schedule) -> list[Launch]:
    """The kernels of a schedule in terms of one graph over its inputs."""
    known: dict[int, Node] = {}  # by slot
    for number, slot in enumerate(schedule.slots):
        if slot is None:
            continue
        if slot.bits is not None:
            known[number] = constant_bits(slot.bits, slot.dtype)
        elif number < schedule.inputs:
            known[number] = param(number, slot.shape, slot.dtype, slot.device)
    found: list[Launch] = []
    for item in schedule.items:
        outputs = _outputs(item, known)
        reads = {known[slot] for slot in item.reads}
        found.append(Launch(item.kernel.kind, outputs, reads.difference(outputs)))
        known.update(zip(item.writes, outputs, strict=True))
    return found


def _outputs(item: Item, known: dict[int, Node]) -> list[Node]:
    """What a kernel stores, in terms of the graph."""
    made: dict[Node, Node] = {}
    for node in toposort([item.kernel.body])[:-1]:
        if node.op is PARAM:
            read = known[item.reads[node.arg[0]]]
            constant = read.op is CONST
            made[node] = _filled(read, node) if constant else reshape(read, node.shape)
            continue
        sources = tuple([made[s] for s in node.src])
        if node.op in (EXPAND, RESHAPE) and sources[0].op is CONST:
            made[node] = _filled(sources[0], node)
        else:
            made[node] = remember(make(node.op, node.dtype, sources, node.arg), node.origins)
    return [made[root] for root in item.kernel.body.src]


def _filled(number: Node, like: Node) -> Node:
    """A constant in the shape of another node."""
    return constant_bits(number.arg[0], number.dtype, like.shape)
