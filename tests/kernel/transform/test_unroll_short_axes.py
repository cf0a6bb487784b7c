"""Tests of kernel/transform/unroll_short_axes.py: short axes written out, values as they were."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.core.node import toposort
from fulgurite.graph.ir.affine import Affine
from fulgurite.graph.ir.kernel import params_of
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.graph.ir.queries import indices
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.unroll_short_axes import unroll_short_axes
from fulgurite.runtime.host.index_interpreter import Runner

LOOPS = CPU.loops


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def pool_gradient(kind: str, shape: tuple[int, ...], *how: int) -> fg.Tensor:
    """The gradient of a pool to its input."""
    pool = getattr(fg, kind)
    weights = ones(*pool(ones(*shape), *how).shape)
    found: fg.Tensor = fg.grad(lambda x: (pool(x, *how) * weights).sum())(ones(*shape))
    return found


def changes(y: fg.Tensor) -> list[tuple[IndexKernel, IndexKernel]]:
    """The kernels of a tensor before and after; both give the same bits."""
    found = []
    for item in fg.schedule(y).items:
        params = params_of(item.kernel)
        try:
            kernel = merge_axes(lower(item.kernel.body, item.kernel.inputs))
        except CannotLower:
            continue
        after = unroll_short_axes(kernel, LOOPS.unroll, LOOPS.vector)
        rng = np.random.default_rng(0)
        sizes = [prod([n for n in p.shape if isinstance(n, int)]) for p in params]
        given = [rng.integers(-3, 4, n).astype(p.dtype.numpy)
                 for n, p in zip(sizes, params, strict=True)]  # fmt: skip
        meant, got = [a.copy() for a in given], [a.copy() for a in given]
        Runner(kernel).run(meant, {})
        Runner(after).run(got, {})
        for a, b in zip(got, meant, strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
        found.append((kernel, after))
    return found


def divisions(kernel: IndexKernel) -> int:
    """How many quotients and remainders its indices have."""

    def count(index: Affine) -> int:
        return sum([1 + count(a[1]) for a, _ in index[1] if isinstance(a, tuple)])

    return sum([count(index) for n in toposort([kernel.body]) for index in indices(n)])


@given(
    kind=st.sampled_from(["max_pool2d", "avg_pool2d"]),
    size=st.tuples(st.integers(5, 11), st.integers(5, 23)),
    window=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 1),
)
def test_gradients_of_pools_mean_the_same(
    kind: str, size: tuple[int, int], window: int, stride: int, padding: int
) -> None:
    padding = min(padding, window // 2)
    assert changes(pool_gradient(kind, (2, *size), window, stride, padding))


def test_the_gradient_of_a_strided_pool_divides_nothing() -> None:
    kernels = changes(pool_gradient("max_pool2d", (2, 8, 40), 3, 4, 1))
    before, after = kernels[-1]
    assert divisions(before) > 0 == divisions(after)
    assert len(after.body.src) == 16 * len(before.body.src)  # four places, both ways
    kernels = changes(pool_gradient("max_pool2d", (2, 8, 40), 3, 2, 1))
    assert [divisions(kernel) for _, kernel in kernels] == [0]


@pytest.mark.parametrize(
    ("y", "copies"),
    [
        (lambda: ones(50, 3) * ones(3), 3),
        (lambda: ones(50, 2, 2) * ones(2, 1), 4),
        (lambda: fg.stack([ones(50), ones(50) * 2], -1), 2),
        (lambda: ones(50, 7) * ones(7), 1),  # too far apart
        (lambda: ones(2, 5, 3) * ones(3), 1),  # too few of them
        (lambda: ones(2, 50) * ones(50), 1),  # lanes run along memory
        (lambda: (ones(50, 3, 40) * 2).sum(2), 1),
    ],
    ids=["three", "two by two", "stack", "seven", "few", "along", "sums"],
)
def test_short_innermost_axes_are_written_out(y: object, copies: int) -> None:
    assert callable(y)
    ((before, after),) = changes(y())
    assert len(after.body.src) == copies * len(before.body.src)
    assert len(after.axes) == len(before.axes) - (copies > 1) - (copies == 4)


def test_copies_are_bounded() -> None:
    for before, after in changes(pool_gradient("max_pool3d", (2, 8, 8, 20), 4, 4, 0)):
        assert len(after.body.src) <= LOOPS.unroll.copies * len(before.body.src)


def test_a_condition_that_never_holds_gives_0() -> None:
    x = fg.pad(ones(30, 1), ((0, 0), (0, 2)), constant_values=7)
    changes(x * ones(3))
