"""Sums of one-hot rows picked: the sum over k of where(k == place, value, 0) is the value.

In: a `Schedule`. Out: the same schedule, in which kernels of sums do not walk rows that are 0 but
at one place, as in the gradient of a log-softmax's choice: the row has all classes, and the sum
reads no memory, so that it costs arithmetic alone. Exact: a zero is added, as the sum does, and a
place outside of the row picks nothing. Kernels that a search chose as online reductions have a law
of their own for that (`gather_one_hot`), and are chosen by what the sum is: this runs behind them.
"""

from __future__ import annotations

from ...core.node import Node, constant_like, toposort
from ...core.ops.elementwise import ADD, AND, CAST, EQ, LE, LT, NEG, WHERE
from ...core.ops.leaf import IOTA, PARAM, SINK
from ...core.ops.movement import EXPAND, RESHAPE, expand
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import substitute
from ..ir.kernel import Item, Kernel, Schedule
from ..ir.kernel_kind import KernelKind

Made = dict[tuple[Kernel, frozenset[int]], Kernel]


def pick_one_hot(schedule: Schedule) -> Schedule:
    """The schedule without sums of which one element counts."""
    made: Made = {}
    items = tuple([_picked(item, schedule, made) for item in schedule.items])
    return schedule if items == schedule.items else schedule._replace(items=items)


def _picked(item: Item, schedule: Schedule, made: Made) -> Item:
    kernel = item.kernel
    if kernel.kind is not KernelKind.REDUCE or kernel.plan is not None:
        return item
    slots = [schedule.slots[place] for place in item.reads]
    zeros = frozenset([n for n, slot in enumerate(slots) if slot and slot.bits == 0])
    if (kernel, zeros) not in made:
        made[kernel, zeros] = _without_sums(kernel, zeros)
    return item._replace(kernel=made[kernel, zeros])


def _without_sums(kernel: Kernel, zeros: frozenset[int]) -> Kernel:
    """A kernel without sums of one-hot rows; which params are zeros is given."""
    folds = [n for n in toposort([kernel.body]) if n.op is REDUCE]
    found = {n: value for n in folds if (value := _value(n, zeros)) is not None}
    if not found:
        return kernel
    body = substitute(kernel.body, found, walk=True)
    left = toposort([body])
    if len({n.arg[0] for n in left if n.op is PARAM}) < kernel.inputs:
        return kernel  # its params are numbered without gaps
    kind = KernelKind.REDUCE if any([n.op is REDUCE for n in left]) else KernelKind.MAP
    return Kernel(kind, SINK(*body.src), kernel.inputs)


def _value(fold: Node, zeros: frozenset[int]) -> Node | None:
    """What a sum of a one-hot row is, if that is what it is."""
    name, axes = fold.arg
    if name != "add" or len(axes) != 1 or not fold.dtype.is_float:
        return None
    axis, row = axes[0], fold.src[0]
    signs = 0
    while row.op is NEG:
        signs, row = signs + 1, row.src[0]
    count = row.shape[axis]
    if row.op is not WHERE or not isinstance(count, int) or count < 2:
        return None
    condition, hit, miss = row.src
    place = _place(condition, axis)
    value, zero = _once(hit, axis), _once(miss, axis)
    if place is None or value is None or zero is None or not _is_zero(zero, zeros):
        return None
    low, high = constant_like(0, place), constant_like(count, place)
    found = WHERE(AND(LE(low, place), LT(place, high)), value, zero)
    for _ in range(signs):
        found, zero = NEG(found), NEG(zero)
    return ADD(found, zero)


def _place(condition: Node, axis: int) -> Node | None:
    """What an axis' number is compared with, once for each row."""
    if condition.op is not EQ:
        return None
    for number, place in (condition.src, condition.src[::-1]):
        if _counts(number, axis):
            return _once(place, axis)
    return None


def _counts(number: Node, axis: int) -> bool:
    """True of the number of each element along an axis, of a dtype that has the axis' size too."""
    count = number.shape[axis]
    while isinstance(count, int) and number.dtype.kind == "i" and count <= number.dtype.limits[1]:
        if number.op is IOTA:
            return bool(number.arg[0] == axis)
        if number.op is RESHAPE:  # of one axis
            long = [d for d, n in enumerate(number.src[0].shape) if n != 1]
            axis = long[0] if len(long) == 1 else axis
        elif number.op is not CAST and number.op is not EXPAND:
            break
        number = number.src[0]
        if number.shape[axis] != count:
            break
    return False


def _once(value: Node, axis: int) -> Node | None:
    """A value that is the same along an axis, with that axis of size 1."""
    if value.op is not EXPAND or value.src[0].shape[axis] != 1:
        return None
    return expand(value.src[0], tuple([1 if d == axis else n for d, n in enumerate(value.shape)]))


def _is_zero(value: Node, zeros: frozenset[int]) -> bool:
    """True of a param that is known to be zero, repeated or not."""
    while value.op is EXPAND:
        value = value.src[0]
    return value.op is PARAM and value.arg[0] in zeros
