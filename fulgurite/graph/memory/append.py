"""Appending in place: a concatenation whose first part is memory with room stores the second alone.

In: a SINK over PARAMs and `Append`s: a root that joins a param with something behind it along an
axis, where that memory has room. Out: a SINK in which the param is as long as the root, its axis
the outermost one (so that room behind it is one piece of memory), and the root an UPDATE of what is
new, which `InPlace` makes an assignment. Whoever reads the shorter value reads the beginning of the
longer one: its bytes stay what they are, so nobody need be asked whether he still holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, Shape, toposort
from ...core.ops.elementwise import LT, WHERE
from ...core.ops.leaf import CONST, IOTA, PARAM, SINK, param
from ...core.ops.movement import PAD, pairs, permute, shrink
from ...core.ops.update import update
from ...core.rewriting.substitute import substitute
from ...core.symbolic.sym import Sym
from .in_place import Append


class Joined(NamedTuple):
    """Two values, one behind the other along an axis."""

    first: Node
    second: Node
    axis: int


def joined(root: Node) -> Joined | None:
    """The two values that a root concatenates, if it is such a value."""
    if root.op is not WHERE:
        return None
    chosen, left, right = root.src
    if chosen.op is not LT or left.op is not PAD or right.op is not PAD:
        return None
    place, limit = chosen.src
    if place.op is not IOTA or place.src or limit.op is not CONST:
        return None
    axis: int = place.arg[0]
    first, second = left.src[0], right.src[0]
    before, after = first.shape[axis], second.shape[axis]
    pads: list[Any] = [0] * (4 * len(root.shape) + 1)  # of both, and where the second begins
    pads[2 * axis + 1], pads[2 * len(root.shape) + 2 * axis], pads[-1] = after, before, before
    found = (*left.arg, *right.arg, limit.arg[0])
    if not {*map(type, found)} <= _WHOLE:
        found = tuple([_key(n) for pair in (*pairs(left), *pairs(right)) for n in pair])
        found, pads = (*found, _key(limit.arg[0])), [_key(n) for n in pads]
    return Joined(first, second, axis) if [*found] == pads else None


_WHOLE = {int}


def _key(size: Any) -> Any:
    """A size as what it is for all values of variables: comparing two decides nothing."""
    return size.key if type(size) is Sym else size


def laid_out(shape: Shape, axis: int) -> Shape:
    """A shape with one axis before all others."""
    return (shape[axis], *shape[:axis], *shape[axis + 1 :])


def append_in_place(sink: Node, appends: Sequence[Append]) -> Node:
    """The graph in which roots are updates of longer params, their axis the outermost one."""
    params = {n.arg[0]: n for n in toposort([sink]) if n.op is PARAM}
    replace: dict[Node, Node] = {}
    roots: dict[int, Node] = {}
    for number, place, axis in appends:
        root, short = sink.src[place], params.get(number)
        found = joined(root)
        if found is None or found.first is not short:  # its value is computed again
            continue
        order = (axis, *[d for d in range(root.ndim) if d != axis])
        back = tuple([order.index(d) for d in range(root.ndim)])
        shape = laid_out(root.shape, axis)
        whole = param(number, shape, short.dtype, short.device)
        length = short.shape[axis]
        rest: list[tuple[Any, Any]] = [(0, n) for n in shape[1:]]
        replace[short] = permute(shrink(whole, [(0, length), *rest]), back)
        part = permute(found.second, order)
        roots[place] = update(whole, part, [length, *[0] * len(rest)], [1] * root.ndim)
        replace[root] = permute(roots[place], back)
    whole_sink = SINK(*[roots.get(i, root) for i, root in enumerate(sink.src)])
    return substitute(whole_sink, replace)
