"""Lowering of what puts a part into a whole: UPDATE as a choice, ASSIGN as a store of the part.

In: a node, and the lowering that asks. Out: for UPDATE, which makes a copy, the value at an index:
the new part where the index is in the box, else the old value, so it fuses like any map. For
ASSIGN, which is the only output of its kernel, the stores: the part at its places, nothing else.
Starts were checked when the node was made, and the index of an ASSIGN by a kernel before; they are
kept inside here as well, so that no access depends on a number that was not proved.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from ...core.node import Node, Size, constant, make
from ...core.ops.elementwise import MAX, MIN, WHERE
from ...core.ops.leaf import CONST
from ...core.shape import upper
from .affine import Affine, Condition, Domain, add, number

if TYPE_CHECKING:
    from .lower import Index, Lowering, Request, _Lower


def updated(lower: _Lower, node: Node, index: Index, valid: Domain) -> Lowering:
    """The part where the index is in the box, the old value elsewhere."""
    old, part, *starts = node.src
    inside: list[Affine] = []
    checks: list[Condition] = []
    for d, (place, start, step) in enumerate(zip(index, starts, node.arg, strict=True)):
        n = part.shape[d]
        begin = yield from _start(lower, start, _limit(node.shape[d], n, step))
        at = add(place, begin, -1)
        if step > 1:
            at, left = lower.divided(at, step)
            checks.append((left, 1))
        checks.append((at, upper(n)))
        if Domain(checks[-1:]).is_empty(lower.bound):
            return (yield old, index, valid)
        if not isinstance(n, int):  # sizes of conditions are fixed, so shift the varying end there
            checks.append((add(add(at, number(upper(n))), lower.size_value(n), -1), upper(n)))
        inside.append(at)
    box = Domain(checks).simplify(lower.bound)
    new: Node = yield part, tuple(inside), valid.intersect(box)
    if not box:
        return new
    before: Node = yield old, index, valid
    return make(WHERE, node.dtype, (lower.holds(box), new, before))


def _limit(whole: Size, n: Size, step: int) -> int:
    """The last start at which a box is inside."""
    span = (n - 1) * step if isinstance(n, int) else 0
    return max(0, upper(whole) - 1 - span)


def _start(lower: _Lower, start: Node, limit: int) -> Generator[Request, Node, Affine]:
    """The place where a box begins, as an index."""
    if start.op is CONST:
        return number(start.value)  # type: ignore[arg-type]
    value: Node = yield start, (), ()
    low, high = start.bounds or (-1, limit + 1)
    if low < 0 or high > limit:
        value, low, high = _kept_inside(value, limit), 0, limit
    return lower.atom(value, (low, high))


def _kept_inside(value: Node, limit: int) -> Node:
    zero, last = constant(0, value.dtype), constant(limit, value.dtype)
    return make(MIN, value.dtype, (make(MAX, value.dtype, (value, zero)), last))


def assigned(lower: _Lower, root: Node) -> list[Node]:
    """The store of what is assigned, at its places in the target's memory."""
    _, value, *rest = root.src
    at = tuple([lower.axis((d, n, 0), n) for d, n in enumerate(value.shape)])
    found = lower.value(value, at)
    if root.arg is None:
        return [lower.store(root, found, at)]
    how, *more = root.arg
    if how == "at":
        (axis,), (chosen,) = more, rest
        limit = max(0, upper(root.shape[axis]) - 1)
        row = lower.atom(_kept_inside(lower.value(chosen, at), limit), (0, limit))
        return [lower.store(root, found, (*at[:axis], row, *at[axis + 1 :]), "set", at)]
    places = []
    for d, (start, step) in enumerate(zip(rest, more, strict=True)):
        limit = _limit(root.shape[d], value.shape[d], step)
        places.append(add(_now(lower, _start(lower, start, limit)), at[d], step))
    return [lower.store(root, found, tuple(places), "set", at)]


def _now(lower: _Lower, asking: Generator[Request, Node, Affine]) -> Affine:
    """What a generator gives once its questions are answered."""
    answer: Node | None = None
    while True:
        try:
            node, index, _ = asking.send(answer)  # type: ignore[arg-type]
        except StopIteration as done:
            found: Affine = done.value
            return found
        answer = lower.value(node, index)
