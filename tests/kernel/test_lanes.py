"""Tests of fulgurite/kernel/lanes.py: which axis becomes lanes."""

import numpy as np

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.graph.body import free_axes
from fulgurite.graph.lower import lower
from fulgurite.kernel.axes import merge_axes
from fulgurite.kernel.lanes import grid_axes, vector_axis


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def chosen(x: fg.Tensor) -> tuple[int | None, list[int]]:
    """The size of the vector axis and those of the grid."""
    (item,) = fg.schedule(x).items
    kernel = merge_axes(lower(item.kernel.body, item.kernel.inputs))
    order = [n for n in toposort([kernel.body]) if n.op.name != "sink"]
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    free = free_axes(order)
    vector = vector_axis(order, free, sizes)
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
