"""Grouped heads: keys that were repeated for a group of heads keep the axis of the repeats.

In: a graph. Out: one with the same values. Keys are often repeated for a group of heads and the two
axes merged, so that there are as many as queries; a gradient takes them apart again to sum over the
repeats. Where an axis was merged of one that is repeated and another, all that is computed along it
is computed along both, as if it had been written with groups: merged again where something else
needs that, and sums over repeats become one with the sums inside them. Floats are added in another
order then, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Shape, Size, make
from ...core.op import Op
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE, expand, permute, reshape
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import rebuild
from ...core.shape import prod
from ..ir.sum_product import under_views


@dataclass(eq=False, repr=False)
class _Split:
    """A value with one of its axes as two."""

    node: Node
    axis: int
    sizes: tuple[Size, Size]

    def shape(self, whole: Shape) -> Shape:
        """Another shape with the same axis split; one that has a single step has two."""
        pair = self.sizes if whole[self.axis] != 1 else (1, 1)
        return (*whole[: self.axis], *pair, *whole[self.axis + 1 :])

    def reshaped(self, shape: Shape, axis: int) -> _Split:
        """The same value in another shape, where the axis is another one."""
        moved = replace(self, axis=axis)
        return replace(moved, node=reshape(self.node, moved.shape(shape)))


def ungroup_broadcast(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with merged repeats apart."""
    if not any(node.op is RESHAPE and node.src[0].op is EXPAND for node in order):
        return sink
    work = _Ungrouping()
    for node in order:
        found = work.ungrouped(node)
        if isinstance(found, _Split):
            work.split[node] = found
            work.known[node] = reshape(found.node, node.shape)
        elif found is not None:
            work.known[node] = found
        elif any(s in work.known for s in node.src):
            work.known[node] = rebuild(node, tuple([work.known.get(s, s) for s in node.src]))
    return work.known.get(sink, sink)


class _Ungrouping:
    def __init__(self) -> None:
        self.split: dict[Node, _Split] = {}
        self.known: dict[Node, Node] = {}  # the same values as other nodes

    def ungrouped(self, node: Node) -> _Split | Node | None:
        """A node with an axis split, or without the need to, or None if it stays as it is."""
        if node.op is RESHAPE:
            found = _merged_repeats(node, self.known.get(node.src[0], node.src[0]))
            if found is not None:
                return found
        first = next((s for s in node.src if s in self.split), None)
        if first is None:
            summed = node.op is REDUCE and node.src[0] in self.known
            return _one_sum(node, self.known[node.src[0]]) if summed else None
        if not all(isinstance(n, int) for n in node.shape):
            return None
        if node.op.family == "elementwise":
            return self.elementwise(node, self.split[first])
        rule = _CARRIED.get(node.op)
        return None if rule is None else rule(node, self.split[first])

    def elementwise(self, node: Node, old: _Split) -> _Split | None:
        """An op on sources that are split alike, or can be."""
        split = [self.split[s] for s in node.src if s in self.split]
        alike = all((o.axis, o.sizes) == (old.axis, old.sizes) for o in split)
        if not alike or any(s.shape != node.shape for s in node.src):
            return None
        sources = [
            self.split[s].node if s in self.split else _apart(self.known.get(s, s), old)
            for s in node.src
        ]
        return replace(old, node=make(node.op, node.dtype, tuple(sources), node.arg))


def _merged_repeats(node: Node, source: Node) -> _Split | None:
    """A reshape of which one axis is made of two, along one of which its source is repeated."""
    if source.op is not EXPAND:
        return None
    shape, before = source.shape, source.src[0].shape
    if not all(isinstance(n, int) for n in (*shape, *node.shape)):
        return None
    for axis in range(len(shape) - 1):
        sizes = shape[axis], shape[axis + 1]
        whole = (*shape[:axis], prod(sizes), *shape[axis + 2 :])
        repeated = [before[i] == 1 != shape[i] for i in (axis, axis + 1)]
        if 1 in sizes or repeated[0] == repeated[1]:
            continue
        place = _same_axis(whole, node.shape, axis)
        if place is not None:
            return _Split(source, axis, sizes).reshaped(node.shape, place)
    return None


def _same_axis(shape: Shape, other: Shape, axis: int) -> int | None:
    """Which axis of another shape with as many elements is one of this."""
    for place, n in enumerate(other):
        if n == shape[axis] and prod(other[:place]) == prod(shape[:axis]):
            return place
    return None


def _reshaped(node: Node, old: _Split) -> _Split | Node | None:
    """The same split of another shape, or one in which the two axes are apart already."""
    shape = node.src[0].shape
    place = _same_axis(shape, node.shape, old.axis)
    if place is not None:
        return old.reshaped(node.shape, place)
    before = prod(shape[: old.axis])
    starts = [i for i, n in enumerate(node.shape) if prod(node.shape[:i]) == before and n != 1]
    apart = node.shape[starts[0] :][:2] if starts else ()
    return reshape(old.node, node.shape) if apart == old.sizes else None


def _permuted(node: Node, old: _Split) -> _Split:
    order = [[a + (a > old.axis)] if a != old.axis else [a, a + 1] for a in node.arg]
    made = permute(old.node, tuple([i for some in order for i in some]))
    return _Split(made, node.arg.index(old.axis), old.sizes)


def _expanded(node: Node, old: _Split) -> _Split | None:
    same = node.src[0].shape[old.axis] == node.shape[old.axis]
    return replace(old, node=expand(old.node, old.shape(node.shape))) if same else None


def _reduced(node: Node, old: _Split) -> _Split | None:
    name, axes = node.arg
    if old.axis in axes:
        return None
    moved = tuple([a + (a > old.axis) for a in axes])
    return replace(old, node=make(REDUCE, node.dtype, (old.node,), (name, moved)))


_CARRIED: Mapping[Op, Callable[[Node, _Split], _Split | Node | None]] = {
    RESHAPE: _reshaped, PERMUTE: _permuted, EXPAND: _expanded, REDUCE: _reduced,
}  # fmt: skip


def _apart(node: Node, like: _Split) -> Node:
    """A value that is not split yet in the same shape."""
    shape = like.shape(node.shape)
    if node.op is CONST:
        return make(CONST, node.dtype, (), (node.arg[0], shape))
    if node.op is EXPAND:
        return expand(reshape(node.src[0], like.shape(node.src[0].shape)), shape)
    return reshape(node, shape)


def _one_sum(total: Node, view: Node) -> Node | None:
    """A sum over a view of a sum as one sum."""
    found = under_views(view)
    if found is None or found[0].op is not REDUCE or total.arg[0] != "add":
        return None
    inner, axes = found
    if inner.arg[0] != "add":
        return None
    gone = {axes[axis] for axis in total.arg[1] if axis in axes}
    whole = tuple(sorted({*gone, *inner.arg[1]}))
    made = make(REDUCE, total.dtype, inner.src, ("add", whole))
    kept = [old for _, old in sorted(axes.items()) if old not in gone]
    order = (*kept, *[axis for axis in range(made.ndim) if axis not in kept])
    return reshape(permute(made, order), total.shape)
