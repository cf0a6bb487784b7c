"""How each family of ops is split over a mesh: the rules of `partition`.

In: a node and the layouts of its sources. Out: the layout that follows, which layouts it can be
made in, what it then wants of its sources, and its node on one rank. A dimension that is FREE
(expanded, or of a constant) may be split or whole at no cost. An op that is not in `RULES` is not
split.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...core.node import Node, constant_bits, make
from ...core.op import Op
from ...core.ops.collective import is_uneven, part_number
from ...core.ops.effect import AFTER, CONTIGUOUS, COPY, DETACH, REMAT, UNWATCH, WATCH
from ...core.ops.elementwise import CAST
from ...core.ops.indexing import GATHER, SCATTER, SORT
from ...core.ops.leaf import CONST, IOTA, PARAM, iota
from ...core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    UNWINDOW,
    WINDOW,
    expand,
    pairs,
    reshape,
)
from ...core.ops.random import RANDOM, random_bits
from ...core.ops.reduce import REDUCE, SCAN, identity_of
from ...core.ops.update import UPDATE
from ...core.ranks import Layout, axes_size
from ...core.rewriting.substitute import rebuild
from ..ir.affine import regroup

if TYPE_CHECKING:
    from .partition import Partitioner

Axes: TypeAlias = tuple[str, ...]
FREE: Axes = ("*",)  # of a dimension along which a value may be split or whole at no cost
Wants: TypeAlias = "list[Layout | None]"  # of each source; None: as it comes


def whole(ndim: int) -> Layout:
    """The layout of a value that every rank has all of."""
    return ((),) * ndim


def settled(dims: Layout) -> Layout:
    """A layout in which what is free is whole."""
    return tuple([() if axes is FREE else axes for axes in dims])


def is_fixed(node: Node) -> bool:
    """True if no size of a node or its sources varies."""
    return all([isinstance(n, int) for s in (node, *node.src) for n in s.shape])


class Rule(NamedTuple):
    """How one family of ops is split."""

    follow: Callable[[Partitioner, Node], Layout]  # the layout that its sources give it
    takes: Callable[[Partitioner, Node, Layout], bool]  # can it be made in this layout?
    wants: Callable[[Partitioner, Node, Layout], Wants]  # and what of its sources then?
    emit: Callable[[Partitioner, Node, Layout, list[Node]], Node]


def _dims(p: Partitioner, node: Node) -> Layout:
    return p.natural[node].dims


def _always(p: Partitioner, node: Node, final: Layout) -> bool:
    return True


def _again(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    return rebuild(node, tuple(src)) if tuple(src) != node.src else node


# elementwise


def _map_follow(p: Partitioner, node: Node) -> Layout:
    return p.merged(node, [(_dims(p, s), s, p.natural[s].weak) for s in node.src])


MAP = Rule(_map_follow, _always, lambda p, node, final: [final] * len(node.src), _again)
# those whose first source is their value
PASS = Rule(
    lambda p, node: _dims(p, node.src[0]), _always,
    lambda p, node, final: [final, *[None] * (len(node.src) - 1)], _again,
)  # fmt: skip


# leaves


def _const_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    return constant_bits(node.arg[0], node.dtype, p.shape(node, final))


def _iota_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    axis = node.arg[0]
    shape = p.shape(node, final)
    steps = iota(shape, axis, node.dtype)
    if not final[axis]:
        return steps
    start = part_number(p.mesh, final[axis]) * shape[axis]
    offset = CAST(start, arg=node.dtype)
    return steps + expand(reshape(offset, (1,) * node.ndim), shape)


def _free(p: Partitioner, node: Node) -> Layout:
    return (FREE,) * node.ndim


LEAVES = {
    CONST: Rule(_free, _always, lambda p, node, final: [], _const_emit),
    IOTA: Rule(_free, _always, lambda p, node, final: [], _iota_emit),
}


# movement


def _expand_follow(p: Partitioner, node: Node) -> Layout:
    source = node.src[0]
    trios = zip(_dims(p, source), source.shape, node.shape, strict=True)
    return tuple([FREE if n == 1 and m != 1 else axes for axes, n, m in trios])


def _expand_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    source = node.src[0]
    trios = zip(final, source.shape, node.shape, strict=True)
    return [tuple([() if n == 1 and m != 1 else axes for axes, n, m in trios])]


def _permute_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    found: list[Axes] = [()] * node.ndim
    for place, d in enumerate(node.arg):
        found[d] = final[place]
    return [tuple(found)]


def _through_reshape(p: Partitioner, lay: Layout, old: Any, new: Any) -> Layout | None:
    """A layout after a reshape: the outermost dimension of a run carries it; None if it cannot."""
    found: list[Axes] = [()] * len(new)
    for news, olds in regroup(new, old):
        run = _through_run(
            p, [lay[d] for d in olds], [old[d] for d in olds], [new[d] for d in news]
        )
        if run is None:
            return None
        for d, axes in zip(news, run, strict=True):
            found[d] = axes
    return tuple(found)


def _through_run(
    p: Partitioner, lay: list[Axes], old: list[int], new: list[int]
) -> list[Axes] | None:
    """The same for dimensions of one run, whose sizes have equal products."""
    if all([axes is FREE for axes in lay]):
        return [FREE] * len(new)
    wide = [axes for axes, n in zip(settled(tuple(lay)), old, strict=True) if n != 1]
    split = wide[0] if wide else ()
    outer = next((d for d, n in enumerate(new) if n != 1), None)
    if any(wide[1:]) or (split and not _carries(p, split, old, new)):
        return None
    return [split if d == outer else () for d in range(len(new))]


def _carries(p: Partitioner, split: Axes, old: list[int], new: list[int]) -> bool:
    """True if parts of the outermost dimension stay what they are, or are equal ones."""
    before, after = ([n for n in shape if n != 1] for shape in (old, new))
    if not after:
        return False
    uneven = is_uneven(p.mesh, split, before[0]) or is_uneven(p.mesh, split, after[0])
    return not uneven or before[0] == after[0]


def _reshape_follow(p: Partitioner, node: Node) -> Layout:
    source = node.src[0]
    if 0 in node.shape:
        return whole(node.ndim)
    found = _through_reshape(p, _dims(p, source), source.shape, node.shape)
    if found is None:  # what can be carried through is
        kept = [
            axes
            if _through_reshape(p, _only(source.ndim, d, axes), source.shape, node.shape)
            else ()
            for d, axes in enumerate(settled(_dims(p, source)))
        ]
        found = _through_reshape(p, tuple(kept), source.shape, node.shape)
    return found if found is not None else whole(node.ndim)


def _only(ndim: int, d: int, axes: Axes) -> Layout:
    return tuple([axes if e == d else () for e in range(ndim)])


def _reshape_takes(p: Partitioner, node: Node, final: Layout) -> bool:
    source = node.src[0]
    return 0 not in node.shape and (
        _through_reshape(p, final, node.shape, source.shape) is not None
    )


def _reshape_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    source = node.src[0]
    if 0 in node.shape:
        return [whole(source.ndim)]
    found = _through_reshape(p, final, node.shape, source.shape)
    return [settled(found) if found is not None else whole(source.ndim)]


def _touched(node: Node) -> set[int]:
    """The dimensions along which a movement op mixes elements."""
    if node.op in (PAD, SHRINK):
        shape = node.src[0].shape
        whole = [(0, 0) if node.op is PAD else (0, n) for n in shape]
        return {d for d, (a, b) in enumerate(zip(pairs(node), whole, strict=True)) if a != b}
    return set(node.arg) if node.op is FLIP else {node.arg[0]}


def _apart_follow(p: Partitioner, node: Node) -> Layout:
    source = _dims(p, node.src[0])
    touched = _touched(node)
    kept = [() if d in touched else axes for d, axes in enumerate(source)]
    if node.op is WINDOW:
        return (*kept, ())
    return tuple(kept[:-1] if node.op is UNWINDOW else kept)


def _apart_takes(p: Partitioner, node: Node, final: Layout) -> bool:
    bad = {*_touched(node), *([node.ndim - 1] if node.op is WINDOW else [])}
    return not any([final[d] for d in bad])


def _apart_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    if node.op is WINDOW:
        return [final[:-1]]
    return [(*final, ()) if node.op is UNWINDOW else final]


def _move_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    """The same movement of a shard: sizes in the argument become those of the shard."""
    shape = p.shape(node, final)
    if node.op is RESHAPE:
        return reshape(src[0], shape)
    if node.op is EXPAND:
        return expand(src[0], shape)
    if node.op is SHRINK:
        touched = _touched(node)
        both = enumerate(zip(pairs(node), src[0].shape, strict=True))
        cuts = [cut if d in touched else (0, n) for d, (cut, n) in both]
        flat = tuple([size for pair in cuts for size in pair])
        return make(SHRINK, node.dtype, (src[0],), flat)
    return make(node.op, node.dtype, (src[0],), node.arg)


_APART = Rule(_apart_follow, _apart_takes, _apart_wants, _move_emit)
MOVES = {
    EXPAND: Rule(_expand_follow, _always, _expand_wants, _move_emit),
    PERMUTE: Rule(
        lambda p, node: tuple([_dims(p, node.src[0])[d] for d in node.arg]), _always,
        _permute_wants, _move_emit,
    ),
    RESHAPE: Rule(_reshape_follow, _reshape_takes, _reshape_wants, _move_emit),
    PAD: _APART, SHRINK: _APART, FLIP: _APART, WINDOW: _APART, UNWINDOW: _APART,
}  # fmt: skip


# folds


def _reduce_follow(p: Partitioner, node: Node) -> Layout:
    dims = _dims(p, node.src[0])
    return tuple([() if d in node.arg[1] else axes for d, axes in enumerate(dims)])


def _reduce_takes(p: Partitioner, node: Node, final: Layout) -> bool:
    return not any([final[d] for d in node.arg[1]])


def _folded_axes(p: Partitioner, node: Node) -> Axes:
    dims = settled(_dims(p, node.src[0]))
    return tuple([a for d in node.arg[1] for a in dims[d]])


def _reduce_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    dims, folded = settled(_dims(p, node.src[0])), set(_folded_axes(p, node))
    return [tuple([
        dims[d] if d in node.arg[1] else () if set(axes) & folded else axes
        for d, axes in enumerate(final)
    ])]  # fmt: skip


def _reduce_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    dims = settled(_dims(p, node.src[0]))
    folded = tuple([axes if d in node.arg[1] else () for d, axes in enumerate(dims)])
    empty = identity_of(node.arg[0], node.dtype)
    part = REDUCE(p.masked(src[0], node.src[0].shape, folded, empty), arg=node.arg)
    return p.summed(node, part, _folded_axes(p, node), node.arg[0], final)


# along one axis


def _line_axis(node: Node) -> int:
    return int(node.arg[0] if node.op is SORT else node.arg[1])


def _line_follow(p: Partitioner, node: Node) -> Layout:
    found = _map_follow(p, node)
    return tuple([() if d == _line_axis(node) else axes for d, axes in enumerate(found)])


LINE = Rule(
    _line_follow, lambda p, node, final: not final[_line_axis(node)],
    lambda p, node, final: [final] * len(node.src), _again,
)  # fmt: skip


def _gather_follow(p: Partitioner, node: Node) -> Layout:
    x, index = node.src
    table = tuple([FREE if d == node.arg else axes for d, axes in enumerate(_dims(p, x))])
    return p.merged(node, [(table, x, p.natural[x].weak), (_dims(p, index), index, False)])


def _gather_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    return [tuple([() if d == node.arg else axes for d, axes in enumerate(final)]), final]


def _gather_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    x, index = src
    return GATHER(x, p.masked(index, node.shape, final, 0), arg=node.arg)


def _scatter_axes(p: Partitioner, node: Node) -> Axes:
    """The mesh axes over which rows are added up on their own: into zeros, sums may be split."""
    x, index, values = node.src
    name, axis = node.arg
    zero = x.op is CONST and x.arg[0] == 0
    split = settled(_dims(p, values))[axis] or settled(_dims(p, index))[axis]
    fits = isinstance(values.shape[axis], int) and not values.shape[axis] % axes_size(p.mesh, split)
    return split if zero and name == "add" and fits else ()


def _scatter_follow(p: Partitioner, node: Node) -> Layout:
    x, index, values = node.src
    axis, split = node.arg[1], set(_scatter_axes(p, node))
    off = [
        tuple([FREE if d == axis or split & set(a) else a for d, a in enumerate(_dims(p, s))])
        for s in (x, index, values)
    ]
    found = p.merged(node, list(zip(off, node.src, [False] * 3, strict=True)))
    return tuple([() if d == axis else axes for d, axes in enumerate(found)])


def _scatter_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    axis, split = node.arg[1], _scatter_axes(p, node)
    own = tuple([() if set(axes) & set(split) else axes for axes in final])
    rows = tuple([split if d == axis else axes for d, axes in enumerate(own)])
    return [own, rows, rows]


def _scatter_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    x, index, values = src
    rows = _scatter_wants(p, node, final)[1]
    assert rows is not None
    index = p.masked(index, node.src[1].shape, rows, 0)  # of what is beyond, nothing is known
    part = SCATTER(x, index, values, arg=node.arg)
    return p.summed(node, part, _scatter_axes(p, node), "add", final)


# random numbers: the counter of a part is known


def _random_takes(p: Partitioner, node: Node, final: Layout) -> bool:
    shape = p.shape(node, final)
    even = prod(shape) % 2 == 0
    return node.src[1].ndim == 0 and not any(final[1:]) and even


def _random_emit(p: Partitioner, node: Node, final: Layout, src: list[Node]) -> Node:
    key, counter = src[:2]
    if not any(final):
        return _again(p, node, final, src)
    shape = p.shape(node, final)
    start = part_number(p.mesh, final[0]) * (prod(shape) // 2)
    return random_bits(key, counter + CAST(start, arg=counter.dtype), shape)


# a box put into a value


def _box(node: Node) -> set[int]:
    x, part = node.src[:2]
    return {d for d, (n, m) in enumerate(zip(x.shape, part.shape, strict=True)) if n != m}


def _update_follow(p: Partitioner, node: Node) -> Layout:
    found = p.merged(node, [(_dims(p, s), s, p.natural[s].weak) for s in node.src[:2]])
    return tuple([() if d in _box(node) else axes for d, axes in enumerate(found)])


def _update_wants(p: Partitioner, node: Node, final: Layout) -> Wants:
    return [final, final, *[() for _ in node.src[2:]]]


RULES: dict[Op, Rule] = {
    **LEAVES,
    **MOVES,
    **dict.fromkeys((CONTIGUOUS, DETACH, WATCH, UNWATCH, COPY, REMAT, AFTER), PASS),
    REDUCE: Rule(_reduce_follow, _reduce_takes, _reduce_wants, _reduce_emit),
    SCAN: LINE,
    SORT: LINE,
    GATHER: Rule(_gather_follow, _always, _gather_wants, _gather_emit),
    SCATTER: Rule(
        _scatter_follow, lambda p, node, final: not final[node.arg[1]], _scatter_wants,
        _scatter_emit,
    ),
    RANDOM: Rule(
        lambda p, node: whole(node.ndim), _random_takes,
        lambda p, node, final: [whole(s.ndim) for s in node.src], _random_emit,
    ),
    UPDATE: Rule(
        _update_follow, lambda p, node, final: not any([final[d] for d in _box(node)]),
        _update_wants, _again,
    ),
}  # fmt: skip


def rule_of(op: Op) -> Rule | None:
    """How an op is split; None: it is not."""
    if op is PARAM:
        return None
    return MAP if op.family == "elementwise" else RULES.get(op)
