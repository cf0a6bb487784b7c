"""Tests of kernel/transform/split_reduction.py: few results of many elements become many blocks."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.core.node import toposort
from fulgurite.core.ops.index import FOLD
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.graph.ir.queries import free_axes
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.split_reduction import split, units

SPLIT = CPU.loops.split


def kernel(x: fg.Tensor) -> IndexKernel:
    (item,) = fg.schedule(x).items
    return merge_axes(lower(item.kernel.body, item.kernel.inputs))


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def folds(k: IndexKernel) -> int:
    return sum(n.op is FOLD for n in toposort([k.body]))


def units_of(k: IndexKernel) -> int:
    order = [n for n in toposort([k.body]) if n.op.name != "sink"]
    return units(order, free_axes(order), [n for n in k.axes if isinstance(n, int)], SPLIT)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ones(1 << 20).sum(),
        lambda: ones(100_000, 8).sum(axis=0),
        lambda: ones(3, 400_000).max(axis=1),
        lambda: ones(700, 700).mean(),
    ],
)
def test_a_long_fold_is_blocks_and_then_their_fold(make: object) -> None:
    assert callable(make)
    parts, shared = split(kernel(make()), 2, SPLIT)
    assert len(parts) == 2 and len(shared) == 1
    assert units_of(parts[0].kernel) >= SPLIT.enough and parts[0].windows
    assert not parts[1].windows


def test_what_has_enough_rows_or_is_small_stays_as_it_is() -> None:
    for y in (ones(4096, 1024).sum(axis=1), ones(100, 3).sum(), ones(5000) * 2):
        whole = kernel(y)
        parts, shared = split(whole, 2, SPLIT)
        assert [p.kernel for p in parts] == [whole] and not shared


def test_folds_that_need_each_other_are_split_in_order() -> None:
    parts, shared = split(kernel(fg.softmax(ones(1 << 18), axis=0)), 2, SPLIT)
    assert len(parts) == 5 and len(shared) == 4
    assert folds(parts[-1].kernel) == 0  # a map: every element by itself
    assert units_of(parts[-1].kernel) >= SPLIT.enough


def test_blocks_cover_the_axis_and_depend_on_sizes_alone() -> None:
    for size in (40_000, 99_999, 1 << 20, 3_000_001):
        first = split(kernel(ones(size).sum()), 2, SPLIT)[0][0]
        ((_, steps),) = first.windows.values()
        count = first.kernel.axes[-1]
        assert isinstance(count, int) and (count - 1) * steps < size <= count * steps
