"""Packing: collectives along the leading axis of memory, the only form that NCCL has.

In: a graph of one rank. Out: the same values; every all-gather, reduce-scatter and all-to-all works
on whole blocks that follow each other, one for each rank, and what it sends is in memory. Where
another dimension was meant, the blocks are moved there before or after by ordinary movement ops,
which fuse with whoever reads or writes them. Devices whose collectives run on the host need none
of it: NumPy splits and joins where it likes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, make, remember
from ...core.ops.collective import ALL_GATHER, ALL_TO_ALL, EXCHANGES, REDUCE_SCATTER
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.leaf import CONST, IOTA, VAR
from ...core.ops.movement import RESHAPE, permute, reshape
from ...core.ranks import axes_size
from ...core.shape import floordiv, mul


def pack_collectives(sink: Node, order: Sequence[Node]) -> Node:
    """The graph with collectives over blocks."""
    if not any([node.op in EXCHANGES for node in order]):
        return sink
    made: dict[Node, Node] = {}
    for node in order:
        sources = tuple([made[s] for s in node.src])
        if node.op in EXCHANGES:
            found = _packed(node, sources[0])
        elif sources == node.src:
            found = node
        else:
            found = make(node.op, node.dtype, sources, node.arg)
        made[node] = remember(found, node.origins)
    return made[sink]


def _packed(node: Node, x: Node) -> Node:
    if node.op is ALL_GATHER:
        return _gather(node, x)
    if node.op is REDUCE_SCATTER:
        return _scatter(node, x)
    if node.op is ALL_TO_ALL:
        return _exchange(node, x)
    return node.op(_stored(x), arg=node.arg)


def _stored(x: Node) -> Node:
    """A value that is in memory as it is."""
    below = x
    while below.op is RESHAPE:
        below = below.src[0]
    moved = below.op.family == "movement" or below.op in (CONST, IOTA, VAR)
    return CONTIGUOUS(x) if moved else x


def _to_front(x: Node, dim: int, count: int) -> Node:
    """Blocks of a dimension as a leading axis."""
    size = floordiv(x.shape[dim], count)
    blocks = reshape(x, (*x.shape[:dim], count, size, *x.shape[dim + 1 :]))
    return permute(blocks, (dim, *range(dim), *range(dim + 1, blocks.ndim)))


def _from_front(blocks: Node, dim: int) -> Node:
    """Blocks along the leading axis joined along a dimension."""
    count, *shape = blocks.shape
    back = permute(blocks, (*range(1, dim + 1), 0, *range(dim + 1, blocks.ndim)))
    return reshape(back, (*shape[:dim], mul(count, shape[dim]), *shape[dim + 1 :]))


def _gather(node: Node, x: Node) -> Node:
    mesh, axes, dim = node.arg
    if dim == 0:
        return ALL_GATHER(_stored(x), arg=node.arg)
    one = reshape(x, (1, *x.shape))
    return _from_front(ALL_GATHER(_stored(one), arg=(mesh, axes, 0)), dim)


def _scatter(node: Node, x: Node) -> Node:
    mesh, axes, dim = node.arg
    if dim == 0:
        return REDUCE_SCATTER(_stored(x), arg=node.arg)
    blocks = _to_front(x, dim, axes_size(mesh, axes))
    found = REDUCE_SCATTER(_stored(blocks), arg=(mesh, axes, 0))
    return reshape(found, found.shape[1:])


def _exchange(node: Node, x: Node) -> Node:
    mesh, axes, split, join = node.arg
    blocks = _to_front(x, split, axes_size(mesh, axes))
    found = ALL_TO_ALL(_stored(blocks), arg=(mesh, axes, 0, 0))
    return _from_front(found, join)
