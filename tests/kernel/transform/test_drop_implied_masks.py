"""Tests of kernel/transform/drop_implied_masks.py.

Numbers read without conditions that are asked anyway.
"""

from collections.abc import Callable
from math import prod

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.graph.ir.affine import ZERO
from fulgurite.graph.ir.kernel import params_of
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.drop_implied_masks import drop_implied_masks
from fulgurite.runtime.host.index_interpreter import Runner

WORKS: dict[str, tuple[Callable[[fg.Tensor], fg.Tensor], int]] = {  # and what is left
    "padded": (lambda x: fg.pad(x / 3.0 + 0.7, ((1, 2), (0, 1))), 0),
    "chosen twice": (
        lambda x: fg.pad(fg.pad(x * 0.3, ((1, 0), (0, 0))) - 0.1, ((0, 1), (1, 1))),
        0,
    ),
    "windows": (lambda x: fg.avg_pool2d(x / 7.0, 3, 1, 1), 0),
    "padded alone": (lambda x: fg.pad(fg.full((1, 1), 0.3) + 0 * x[:1, :1], ((1, 1), (2, 2))), 0),
    "a window's gradient": (
        lambda x: fg.vjp(lambda x: fg.max_pool2d(fg.relu(x * 0.3)[None, None], 3, 2, 1), x)[1](
            fg.ones((1, 1, 3, 5))
        )[0],
        0,
    ),
    "rows that are padded": (lambda x: fg.pad((x - x[0]) * x[1], ((2, 1), (0, 0))), 0),
    "both that are padded": (lambda x: fg.pad((x - x[0]) * x[1], ((2, 1), (1, 0))), 0),
    "nothing padded": (lambda x: x / 3.0, 0),
}


def numbers(kernel: IndexKernel) -> int:
    """Conditional loads of scalars."""
    loads = [n for n in toposort([kernel.body]) if n.op.name == "load"]
    return sum(n.arg[1] == ZERO and bool(n.arg[2]) for n in loads)


@pytest.mark.parametrize("work", WORKS)
def test_values_are_as_they_were_and_scalars_are_read_at_once(work: str) -> None:
    function, left = WORKS[work]
    y = function(fg.Tensor(np.ones((6, 9), np.float32)))
    for item in fg.schedule(y).items:
        kernel = lower(item.kernel.body, item.kernel.inputs)
        after = drop_implied_masks(kernel)
        params = params_of(item.kernel)
        sizes = [prod([n for n in p.shape if isinstance(n, int)]) for p in params]
        rng = np.random.default_rng(0)
        given = [rng.standard_normal(n).astype(p.dtype.numpy)
                 for n, p in zip(sizes, params, strict=True)]  # fmt: skip
        meant, got = [a.copy() for a in given], [a.copy() for a in given]
        Runner(kernel).run(meant, {})
        Runner(after).run(got, {})
        for a, b in zip(got, meant, strict=True):
            np.testing.assert_array_equal(a, b)
        assert numbers(after) <= left


def test_a_condition_that_nobody_asks_around_it_stays() -> None:
    ones = fg.pad(fg.full((4,), 0.3), ((2, 2),))
    y = fg.Tensor(np.ones(8, np.float32)) * ones  # 0 where the padding is
    (item,) = fg.schedule(y).items
    kernel = lower(item.kernel.body, item.kernel.inputs)
    assert numbers(drop_implied_masks(kernel)) == numbers(kernel)


def test_what_is_read_with_and_without_padding_is_read_once() -> None:
    x = fg.Tensor(np.ones((1, 2, 8, 8), np.float32))
    y, pull = fg.vjp(lambda x: fg.max_pool2d(fg.relu(x), 3, 2, 1), x)
    (dx,) = pull(fg.ones(y.shape))
    item = fg.schedule(dx).items[-1]
    kernel = drop_implied_masks(lower(item.kernel.body, item.kernel.inputs))
    loads = [n for n in toposort([kernel.body]) if n.op.name == "load"]
    sizes = [prod([n for n in p.shape if isinstance(n, int)]) for p in params_of(item.kernel)]
    folded = {n for fold in toposort([kernel.body]) if fold.op.name == "fold" for n in fold.slice}
    images = [n for n in loads if sizes[n.arg[0]] == 128 and n not in folded]
    assert len(images) == 1 and not images[0].arg[2]


def test_a_number_of_columns_is_read_whatever_rows_are_padding() -> None:
    def f(x: fg.Tensor, v: fg.Tensor, rows: int, columns: int) -> int:
        y = fg.pad(x * v, ((rows, 1), (columns, 0)))
        (item,) = fg.schedule(y).items
        after = drop_implied_masks(lower(item.kernel.body, item.kernel.inputs))
        return sum(n.op.name == "load" and bool(n.arg[2]) for n in toposort([after.body]))

    x, v = fg.Tensor(np.ones((6, 9), np.float32)), fg.Tensor(np.ones(9, np.float32))
    assert f(x, v, 1, 0) == 1  # the matrix
    assert f(x, v, 1, 2) == 2
