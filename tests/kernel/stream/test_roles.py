"""Folds: which part every axis plays, how tiles are cut, which blocks are skipped."""

from __future__ import annotations

import pytest

import fulgurite as fg
from fulgurite.graph.ir.affine import axis
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.contract.analysis import Block
from fulgurite.kernel.stream.online import stream
from fulgurite.kernel.stream.roles import ROOM, Fold, cut_fold, find_fold
from fulgurite.kernel.stream.skip import tests as skipped
from fulgurite.kernel.transform.merge_axes import merge_axes
from tests.graph.searching import ATTENTION, INTO_PRODUCTS, lowered, numbers

BLOCK = Block(9, 48, 16, 4)


def fold_of(result: fg.Tensor) -> Fold:
    sink, inputs = lowered(result)
    streaming = stream(merge_axes(lower(sink, inputs)))
    assert streaming is not None
    found = find_fold(streaming)
    assert found is not None
    return found


def attention(name: str, rows: int = 70, keys: int = 90, size: int = 16) -> Fold:
    q, k, v = numbers(1, 4, rows, size), numbers(2, 4, keys, size), numbers(3, 4, keys, size)
    return fold_of(ATTENTION[name](q, k, v))


def test_rows_columns_and_streamed_axes_are_told_apart() -> None:
    fold = attention("plain")
    assert [fold.count(a) for a in (fold.batch, fold.rows, fold.streaming.axes)] == [4, 70, 90]
    assert [fold.count(c) for c in fold.columns] == [16] and len(fold.products) == 1
    assert [s.op for s in fold.scalars] == ["max", "add"] and len(fold.matrices) == 1
    assert fold.levels == 2


def test_queries_that_share_keys_are_rows() -> None:
    fold = attention("grouped queries")
    assert fold.count(fold.batch) == 2 and fold.count(fold.rows) == 2 * 70


def test_one_query_is_one_row_with_an_axis_of_its_own() -> None:
    fold = attention("one query")
    assert fold.count(fold.rows) == 1 and fold.rows[0] >= len(fold.streaming.sizes)


def test_a_bias_along_the_keys_is_turned() -> None:
    assert len(attention("bias").turned) == 1 and not attention("plain").turned


@pytest.mark.parametrize("name", INTO_PRODUCTS)
def test_lanes_run_along_memory(name: str) -> None:
    fold = fold_of(INTO_PRODUCTS[name](numbers(1, 120, 64)))
    cut = cut_fold(fold, BLOCK, 256)
    assert cut is not None
    assert cut.along == ("rows" if "transposed" in name else "streamed")


@pytest.mark.parametrize("rows", [1, 5, 48, 100, 1000])
@pytest.mark.parametrize("size", [3, 64, 700])
def test_tiles_fit_and_do_not_depend_on_threads(rows: int, size: int) -> None:
    fold = attention("plain", rows, 300, size)
    with fg.config(threads=1):
        one = cut_fold(fold, BLOCK, 256)
    assert one is not None and one == cut_fold(fold, BLOCK, 256)
    assert 4 * one.rows * one.columns[0] <= ROOM and one.rows <= max(144, 16)


def test_a_causal_mask_and_a_window_leave_out_blocks() -> None:
    counts = {"plain": 0, "bias": 0, "mask": 0, "causal": 1, "library causal": 1}
    for name, count in (counts | {"sliding window": 2}).items():
        fold = attention(name)
        streamed = frozenset(fold.streaming.axes)
        assert len(skipped(fold.streaming.states, streamed)) == count, name


def test_a_causal_test_is_the_distance_from_key_to_query() -> None:
    fold = attention("causal")
    (test,) = skipped(fold.streaming.states, frozenset(fold.streaming.axes))
    steps = dict(test.index[1])
    assert steps == {fold.rows[0]: 1, fold.streaming.axes[0]: -1} and test.index[0] == 0
    assert axis(fold.rows[0])[1][0][0] in steps


def test_equal_bodies_of_other_sizes_are_other_folds() -> None:
    folds = [attention("plain", rows, 90, 16) for rows in (70, 24, 7)]
    assert [fold.count(fold.rows) for fold in folds] == [70, 24, 7]
    one = [fold_of(fg.softmax(numbers(1, n, 8) @ numbers(2, 5, 8).mT, axis=-1) @ numbers(3, 5, 6))
           for n in (4, 24)]  # fmt: skip
    assert [fold.count(fold.rows) for fold in one] == [4, 24]


@pytest.mark.parametrize(("rows", "keys", "most"), [(1, 5000, 8), (40, 3000, 8), (300, 4000, 3)])
def test_few_tiles_are_split_into_whole_blocks_by_shape_alone(
    rows: int, keys: int, most: int
) -> None:
    q, k, v = numbers(1, 1, rows, 16), numbers(2, 1, keys, 16), numbers(3, 1, keys, 16)
    fold = fold_of(ATTENTION["plain"](q, k, v))
    cut = cut_fold(fold, BLOCK, 256)
    assert cut is not None and 1 < cut.splits <= most
    assert cut.span % cut.steps == 0 and cut.splits == -(-keys // cut.span)
    with fg.config(threads=1):
        assert cut == cut_fold(fold, BLOCK, 256)


def test_blocks_that_may_be_left_out_and_many_tiles_are_not_split() -> None:
    for fold in (attention("causal", 60, 3000), attention("plain", 700, 3000)):
        cut = cut_fold(fold, BLOCK, 256)
        assert cut is not None and cut.splits == 1


def test_many_columns_mean_fewer_rows_not_products_done_again() -> None:
    for size in (64, 512, 1024):
        fold = attention("plain", 700, 300, size)
        cut = cut_fold(fold, BLOCK, 256)
        assert cut is not None and cut.columns[0] >= size and cut.rows >= 48


@pytest.mark.parametrize("rows", [64, 65, 72, 73, 130])
@pytest.mark.parametrize("height", [4, 6, 9, 14])
def test_cutting_rows_along_the_streamed_axis_ends(rows: int, height: int) -> None:
    """Also where whole register blocks are no whole part of the fewest rows."""
    x, w = numbers(1, 1, 1, 4, 33), numbers(2, rows, 1, 1, 3)
    fold = fold_of(fg.relu(fg.conv2d(x, w, padding=((1, 0), (1, 4)))).mean(axis=(2, 3)))
    cut = cut_fold(fold, Block(height, 48, 16, 4), 256)
    assert cut is not None and cut.along == "streamed" and cut.rows % height == 0
