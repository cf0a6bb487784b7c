"""Tests of kernel/transform/split_reduction.py: few results of many elements become many blocks."""

from dataclasses import replace

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.core.node import toposort
from fulgurite.core.ops.index import FOLD, LOAD
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.graph.ir.queries import free_axes
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.split_reduction import Part, split, units
from fulgurite.kernel.transform.tables import SplitTable

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


def standardized(x: fg.Tensor) -> list[fg.Tensor]:
    """Columns less their mean, over their deviation; and these two."""
    mean = x.mean(axis=0)
    spread = ((x - mean) ** 2).mean(axis=0)
    return [(x - mean) * fg.rsqrt(spread + 1e-5), mean, spread]


def test_moments_about_a_mean_need_no_second_pass_over_memory() -> None:
    def parts_of(rows: int, build: object = standardized, **changes: object) -> list[Part]:
        assert callable(build)
        (item,) = fg.schedule(*build(ones(rows, 8))).items
        whole = merge_axes(lower(item.kernel.body, item.kernel.inputs))
        table = SplitTable(SPLIT.vector, 64, 64, 1 << 10, 1 << 8, 64, units=1, hoist=True)
        return split(whole, 8, replace(table, **changes))[0]  # type: ignore[arg-type]

    def passes(parts: list[Part]) -> list[bool]:
        """Which parts read the input."""
        bodies = [toposort([p.kernel.body]) for p in parts]
        return [any(n.op is LOAD and n.arg[0] == 0 and n.arg[1][1] for n in b) for b in bodies]

    assert passes(parts_of(4096)) == [True, False, True]
    assert passes(parts_of(4096, hoist=False)) == [True, False, True, False, True]
    assert passes(parts_of(4099)) == [True, False, True, False, True], "blocks are not even"

    def cubes(x: fg.Tensor) -> list[fg.Tensor]:
        apart = x - x.mean(axis=0)
        return [apart * (apart * apart * apart).sum(axis=0)]

    assert passes(parts_of(4096, cubes)) == [True, False, True, False, True]


def test_a_costly_epilogue_of_many_folds_is_a_map_of_its_own() -> None:
    x = ones(4096, 1024)
    parts, shared = split(kernel(fg.silu(x.sum(axis=1)) * x.max(axis=1)), 2, SPLIT)
    assert [folds(p.kernel) for p in parts] == [2, 0] and [n for _, n in shared] == [4096] * 2
    for y in (
        fg.silu(ones(64, 1024).sum(axis=1)),  # a launch costs more
        fg.softmax(x, axis=1),  # along the rows
        x.sum(axis=1) * 2,  # cheap
        fg.exp(ones(16, 1 << 17).sum(axis=0)),  # lanes are results already
    ):
        whole = kernel(y)
        assert [p.kernel for p in split(whole, 2, SPLIT)[0]] == [whole]


@pytest.mark.parametrize("rows", [1500, 4099])
def test_an_epilogue_apart_has_the_values_of_the_reference(rows: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 65)).astype(np.float32)
    x[0], x[1, 3], x[2, 64], x[3], x[4, 0], x[5] = 0, np.inf, np.nan, -0.0, -np.inf, 1e-42

    def f(a: fg.Tensor) -> list[fg.Tensor]:
        mean = a.mean(axis=1)
        spread = ((a - mean[:, None]) ** 2).mean(axis=1)  # a fold of a fold, and both are used
        y = fg.tanh(mean) / fg.sqrt(spread) * fg.exp(a.max(axis=1))
        half = a.astype(fg.float16).max(axis=1)  # exact, whatever it is kept as
        return [y, fg.silu(a[:, :64].sum(axis=1)) * y + mean, fg.exp(half).astype(fg.float32)]

    with fg.config(device="reference"):
        want = [y.numpy() for y in f(fg.Tensor(x))]
    with fg.config(device="cpu", tier="native", poison=True):
        got = [y.numpy() for y in f(fg.Tensor(x))]
    for a, b in zip(got, want, strict=True):
        assert np.allclose(a, b, rtol=2e-5 if a is not got[2] else 1e-3, atol=1e-5, equal_nan=True)


def test_blocks_cover_the_axis_and_depend_on_sizes_alone() -> None:
    for size in (40_000, 99_999, 1 << 20, 3_000_001):
        first = split(kernel(ones(size).sum()), 2, SPLIT)[0][0]
        ((_, steps),) = first.windows.values()
        count = first.kernel.axes[-1]
        assert isinstance(count, int) and (count - 1) * steps < size <= count * steps


def depthwise_and_its_mean(channels: int, size: int) -> list[fg.Tensor]:
    """A depthwise convolution with channels last, which is a result, and its mean over pixels."""
    x, total = ones(size + 4, size + 4, channels), None
    w = ones(25, channels)
    for tap in range(25):
        term = x[tap // 5 : tap // 5 + size, tap % 5 : tap % 5 + size] * w[tap]
        total = term if total is None else total + term
    assert total is not None
    return [total, total.mean(axis=(0, 1))]


def test_costly_values_that_are_results_too_are_computed_once_in_short_units() -> None:
    for channels in (96, 240, 250):
        (item,) = fg.schedule(*depthwise_and_its_mean(channels, 14)).items
        whole = merge_axes(lower(item.kernel.body, item.kernel.inputs))
        parts, shared = split(whole, 4, SPLIT)
        assert [p.kernel for p in parts] == [whole] and not shared
        assert units_of(whole) >= channels // 32


def test_cheap_columns_stay_whole_rows_of_memory() -> None:
    assert units_of(kernel(ones(40, 96).sum(axis=0))) == 1
    assert units_of(kernel((ones(40, 96) * 2 + 1).max(axis=0))) == 1


def test_short_folds_below_a_window_are_of_the_whole_axis() -> None:
    weights = fg.softmax(ones(2, 1000), axis=1)
    whole = kernel((weights[:, :, None] * ones(2, 1000, 64)).sum(axis=1))
    (first, last), _ = split(whole, 8, SPLIT)
    ((axis, (block, _)),) = first.windows.items()
    below = [n for n in toposort([first.kernel.body]) if n.op is FOLD]
    assert [n.arg[1] for n in below].count((axis,)) == 1, "its maximum and sum are not of a window"
    assert first.kernel.axes[block + 1] == 1000 and not last.windows
