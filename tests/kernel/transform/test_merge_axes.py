"""Tests of fulgurite/kernel/transform/merge_axes.py: loops that walk memory as one become one."""

import numpy as np

import fulgurite as fg
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.merge_axes import merge_axes


def kernel(x: fg.Tensor) -> IndexKernel:
    (item,) = fg.schedule(x).items
    return lower(item.kernel.body, item.kernel.inputs)


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def test_a_contiguous_map_becomes_one_axis() -> None:
    assert merge_axes(kernel(ones(2, 3, 4) * 2)).axes == (24,)


def test_a_row_of_several_dimensions_becomes_one() -> None:
    assert set(merge_axes(kernel((ones(5, 2, 3) * 2).sum(axis=(1, 2)))).axes) == {5, 6}


def test_what_walks_memory_differently_stays_apart() -> None:
    assert len(merge_axes(kernel(ones(2, 3).T + 1 + ones(3, 2))).axes) == 2
    assert len(merge_axes(kernel(ones(2, 3) + ones(3))).axes) == 2
