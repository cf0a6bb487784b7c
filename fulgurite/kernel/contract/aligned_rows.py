"""Padded leading dimensions: rows of matrices between kernels begin at multiples of 16 elements.

In: a `Schedule`. Out: the same schedule in which matrices that products read or write, whose rows
are no multiple of that (50,257 classes in 16 bits), are stored with room behind each row.
Copies of tiles are of 16 bytes then, and the copy engine (TMA) takes them at all. Nobody reads the
room, and nobody writes it.
"""

from __future__ import annotations

from ...core.dtype import float16
from ...core.node import Node, toposort
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.leaf import PARAM, param
from ...core.ops.movement import pad, reshape, shrink
from ...graph.ir.kernel import Item, Schedule, Slot
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import ROOM
from .channels_last import Sizes, laid_out, slots_between

UNIT = 32 // float16.itemsize  # compilers of kernels know strides as multiples of it, or not at all
_LONG = 4 * UNIT  # rows that are worth it


def aligned_rows(schedule: Schedule) -> Schedule:
    """The schedule with room behind rows that products read or write."""
    products = [i for i in schedule.items if i.kernel.kind is KernelKind.CONTRACT]
    used = {place for item in products for place in (*item.reads, *item.writes)}
    wanted = {
        place: shape
        for place in slots_between(schedule) & used
        if (shape := _ragged(schedule.slots[place]))
    }
    for item in schedule.items:
        for place in _viewed(item):
            wanted.pop(place, None)
    return laid_out(schedule, wanted, _room, _read, _written) if wanted else schedule


def _ragged(slot: Slot | None) -> Sizes:
    """The shape of a matrix in 16 bits whose rows are no multiple of the unit; else nothing."""
    if slot is None or slot.bits is not None or slot.dtype.itemsize != 2 or len(slot.shape) < 2:
        return ()
    sizes = tuple([n for n in slot.shape if isinstance(n, int)])
    ragged = len(sizes) == len(slot.shape) and sizes[-1] >= _LONG and sizes[-1] % UNIT
    return sizes if ragged else ()


def _viewed(item: Item) -> set[int]:
    """Slots that an item sees as something else than rows of one length."""
    places = (*item.reads, *item.writes)
    params = [n for n in toposort([item.kernel.body]) if n.op is PARAM]
    views = [(n.arg[0], n) for n in params]
    views += [(item.kernel.inputs + i, root) for i, root in enumerate(item.kernel.body.src)]
    rows: dict[int, set[object]] = {}
    for number, node in views:
        rows.setdefault(places[number], set()).add(node.shape[-1] if node.ndim else 1)
    return {place for place, found in rows.items() if len(found) > 1 or _least(found) < _LONG}


def _least(found: set[object]) -> int:
    return min([n if isinstance(n, int) else 0 for n in found])


def _room(shape: Sizes) -> Sizes:
    """A shape with room behind each row."""
    return (*shape[:-1], -(-shape[-1] // UNIT) * UNIT)


def _read(node: Node, shape: Sizes) -> Node:
    """A param as before, of memory with room."""
    number, _, device = node.arg
    source = param(number, _room(shape), node.dtype, device)
    return reshape(shrink(source, [(0, n) for n in shape]), node.shape)


def _written(root: Node, shape: Sizes) -> Node:
    """A result with room behind its rows."""
    room = _room(shape)[-1] - shape[-1]
    stored = CONTIGUOUS(reshape(root, shape), arg=ROOM)
    return pad(stored, [(0, room if d == len(shape) - 1 else 0) for d in range(len(shape))])
