"""Tests of fulgurite/kernel/transform/vector_axis.py: which axis becomes lanes."""

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cpu.tiling import VECTOR
from fulgurite.core.node import Node, toposort
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import free_axes
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.vector_axis import grid_axes, transpose_axis, vector_axis


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def read(x: fg.Tensor) -> tuple[list[Node], dict[Node, frozenset[int]], list[int]]:
    """The body of the one kernel of a tensor, the axes of its nodes, and their sizes."""
    (item,) = fg.schedule(x).items
    kernel = merge_axes(lower(item.kernel.body, item.kernel.inputs))
    order = [n for n in toposort([kernel.body]) if n.op.name != "sink"]
    return order, free_axes(order), [n for n in kernel.axes if isinstance(n, int)]


def chosen(x: fg.Tensor) -> tuple[int | None, list[int]]:
    """The size of the vector axis and those of the grid."""
    order, free, sizes = read(x)
    vector = vector_axis(order, free, sizes, VECTOR)
    grid = [sizes[a] for a in grid_axes(order, free)]
    return (None if vector is None else sizes[vector]), sorted(grid)


def test_lanes_run_along_memory() -> None:
    assert chosen(ones(30, 50).sum(axis=1)) == (50, [30])
    assert chosen(ones(30, 50).sum(axis=0)) == (50, [50])
    assert chosen(ones(30, 50).T * 2) == (30, [30, 50])


def test_without_neighbours_the_longest_axis_is_taken() -> None:
    assert chosen(ones(300, 50)[:, 0].sum()) == (300, [])


def test_one_number_has_no_lanes() -> None:
    assert chosen(ones(1) + 1) == (None, [])


def test_an_axis_too_short_for_lanes_leaves_them_to_a_longer_one() -> None:
    assert chosen(ones(300, 3).sum(axis=1)) == (300, [300])
    assert chosen(fg.max_pool2d(ones(9, 60, 60), 3, 2)) == (29, [9, 29, 29])
    assert chosen(ones(300, 9).sum(axis=1)) == (9, [300])  # too far apart
    assert chosen(ones(3, 3).sum(axis=1)) == (3, [3])  # no longer one


def test_lanes_run_along_a_sum_whose_terms_would_be_gathered() -> None:
    """Squared distances read rows of both again for every result."""
    a, b = ones(30, 64), ones(40, 64) * 1
    assert chosen(((a[:, None] - b[None]) ** 2).sum(-1)) == (64, [30, 40])
    assert chosen(fg.max(fg.abs(a[:, None] - b[None]), axis=-1)) == (64, [30, 40])
    short = ones(30, 4)
    assert chosen(((short[:, None] - ones(40, 4)[None]) ** 2).sum(-1))[0] == 40
    assert chosen(((a.mT[:, :, None] - ones(64, 40)[:, None]) ** 2).sum(0))[0] == 40  # neighbours


def turned(x: fg.Tensor) -> int | None:
    """The size of the axis that a map reads across, if it does."""
    order, free, sizes = read(x)
    found = transpose_axis(order, free, sizes, vector_axis(order, free, sizes, VECTOR), VECTOR)
    return None if found is None else sizes[found[0]]


def test_a_map_across_memory_is_known() -> None:
    assert turned(ones(30, 50).T * 2) == 50
    assert turned(ones(30, 30).T + ones(30, 30)) == 30
    assert turned(ones(30, 50) * 2) is None
    assert turned(ones(3, 50).T * 2) is None  # too short for a square
    assert turned(ones(30, 50).T.sum(0)) is None  # no map
