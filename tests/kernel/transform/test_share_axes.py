"""Tests of kernel/transform/share_axes.py: one fold where names of axes alone were others."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import float32, void
from fulgurite.core.node import Node, make, toposort
from fulgurite.core.ops.index import FOLD, LOAD, STORE
from fulgurite.core.ops.leaf import SINK
from fulgurite.graph.ir.kernel import Kernel, params_of
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.share_axes import share_axes
from fulgurite.runtime.host.index_interpreter import Runner

Works = dict[str, tuple[Callable[..., tuple[fg.Tensor, ...]], int]]


def _normalised(x: fg.Tensor, b: fg.Tensor) -> tuple[fg.Tensor, ...]:
    total = x.sum(axis=(0, 2), keepdims=True)
    return x - total, b - fg.reshape(x.sum(axis=(0, 2)), (5,))


def _two_sums(x: fg.Tensor, b: fg.Tensor) -> tuple[fg.Tensor, ...]:
    y = (x * x).sum(axis=(0, 2), keepdims=True)
    return x - y, b * fg.reshape((x * x).sum(axis=(0, 2)), (5,)), b + x.sum(axis=(0, 2))


def _other_axes(x: fg.Tensor, b: fg.Tensor) -> tuple[fg.Tensor, ...]:
    return x - x.sum(axis=(1, 2), keepdims=True), b - x.sum(axis=(0, 2))


def _two_of_one_size(x: fg.Tensor, b: fg.Tensor) -> tuple[fg.Tensor, ...]:
    square = x[:, :, :5][0]
    return square - square.sum(axis=0), b - square.sum(axis=1)


WORKS: Works = {
    "a bias beside a norm": (_normalised, 1),
    "two sums": (_two_sums, 2),
    "sums of other axes": (_other_axes, 2),
    "sums both ways of a square": (_two_of_one_size, 2),
}


def ran(kernel: IndexKernel, of: Kernel) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng, found = np.random.default_rng(0), []
    for param in params_of(of):
        n = prod([n for n in param.shape if isinstance(n, int)])
        found.append(rng.standard_normal(n).astype(np.float32))
    found[0][:4] = [np.inf, np.nan, -0.0, 1e-40]
    Runner(kernel).run(found, {})
    return found


@pytest.mark.parametrize("work", WORKS)
def test_values_are_as_they_were_and_equal_folds_are_one(work: str) -> None:
    function, folds = WORKS[work]
    x = fg.Tensor(np.ones((3, 5, 7), np.float32)).realize()
    b = fg.Tensor(np.ones(5, np.float32)).realize()
    found = function(x, b)
    items = [i for i in fg.schedule(*found).items if len(i.writes) == len(found)]
    for item in items:  # a schedule may have a kernel for each
        before = merge_axes(lower(item.kernel.body, item.kernel.inputs))
        after = share_axes(before)
        counted = [n for n in toposort([after.body]) if n.op.name == "fold"]
        assert len(counted) == folds
        for got, meant in zip(ran(after, item.kernel), ran(before, item.kernel), strict=True):
            np.testing.assert_allclose(got, meant, rtol=1e-5, atol=1e-5)  # sums in other orders
    if work == "a bias beside a norm":
        assert items


def test_a_sum_along_an_axis_that_its_values_do_not_depend_on_captures_no_other() -> None:
    def total(axis: int, of: Node) -> Node:
        return make(FOLD, float32, (of,), ("add", (axis,)))

    def store(param: int, axis: int, value: Node) -> Node:
        return make(STORE, void, (value,), (param, (0, ((axis, 1),)), "set", (axis,)))

    def columns(row: int, column: int) -> Node:
        index = (0, ((column, 1), (row, 3)))
        return total(row, make(LOAD, float32, (), (0, index, ())))

    stores = [store(1, 1, columns(0, 1)), store(2, 3, total(1, columns(2, 3)))]
    kernel = IndexKernel((3, 3, 3, 3), SINK(*stores), 0)
    x = np.arange(9, dtype=np.float32)
    arrays = [x, np.zeros(3, np.float32), np.zeros(3, np.float32)]
    Runner(share_axes(kernel)).run(arrays, {})
    np.testing.assert_array_equal(arrays[1], x.reshape(3, 3).sum(0))
    np.testing.assert_array_equal(arrays[2], 3 * x.reshape(3, 3).sum(0))
