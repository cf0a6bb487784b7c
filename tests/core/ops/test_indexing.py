"""GATHER, SCATTER and SORT against loops: duplicates, bounds, empty sizes, NaN, stability."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import DTYPES, DType, bfloat16, bool_, float32, float64, int32
from fulgurite.core.node import constant
from fulgurite.core.op import Array
from fulgurite.core.ops.indexing import (
    GATHER,
    SCATTER,
    SCATTERS,
    SORT,
    gather,
    scatter,
    sort_order,
)
from fulgurite.core.ops.movement import expand, permute, reshape
from fulgurite.errors import BoundsError
from tests.core.ops.samples import (
    FLOATS,
    INTEGERS,
    assert_same,
    hostile,
    numbers,
    on_grid,
    run,
    wrap,
)

RANDOM = np.random.default_rng(11)
COMBINE: dict[str, Any] = {
    "set": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": lambda a, b: a if (a, math.copysign(1, a)) >= (b, math.copysign(1, b)) else b,
    "min": lambda a, b: a if (a, math.copysign(1, a)) <= (b, math.copysign(1, b)) else b,
}


def at(place: tuple[int, ...], axis: int, index: int) -> tuple[int, ...]:
    return (*place[:axis], index, *place[axis + 1 :])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_gather_reads_each_indexed_place(axis: int, kind: Any) -> None:
    x = RANDOM.normal(size=(3, 4, 2))
    shape = at(x.shape, axis, 5)
    index = RANDOM.integers(0, x.shape[axis], shape).astype(kind)
    expected = np.empty(shape)
    for place in np.ndindex(*shape):
        expected[place] = x[at(place, axis, int(index[place]))]
    np.testing.assert_array_equal(run(lambda s, i: gather(s, i, axis), x, index), expected)


def test_gather_with_one_index_for_all_rows_is_an_embedding() -> None:
    table, index = RANDOM.normal(size=(5, 3)), np.array([[4], [0], [4], [2]])
    value = run(lambda t, i: gather(t, expand(i, (4, 3)), 0), table, index)
    np.testing.assert_array_equal(value, table[[4, 0, 4, 2]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_and_scatter_set_move_every_dtype_bit_for_bit(dtype: DType) -> None:
    x = hostile(dtype)
    places = np.arange(len(x))[::-1].copy()
    assert_same(run(lambda s, i: gather(s, i, 0), x, places), x[::-1])
    moved = run(lambda s, i, v: scatter("set", s, i, v, 0), np.zeros_like(x), places, x)
    assert_same(moved, x[::-1])


def scatter_by_loop(name: str, x: Array, index: Array, values: Array, axis: int) -> Array:
    out = np.empty(x.shape, object)
    out[...] = np.array(numbers(x), object).reshape(x.shape)
    given_ = np.array(numbers(values), object).reshape(values.shape)
    for place in np.ndindex(*index.shape):
        target = at(place, axis, int(index[place]))
        out[target] = COMBINE[name](out[target], given_[place])
    return out


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_scatter_combines_duplicates_in_row_major_order(name: str, axis: int, dtype: DType) -> None:
    pool = on_grid([0.0, 1.0, 2.0, 1.0, 0.5, 2.0, -1.0, -0.0], dtype) if dtype.is_float else (
        hostile(dtype))  # fmt: skip
    x = np.resize(pool, (3, 4))
    index = RANDOM.integers(0, x.shape[axis], at(x.shape, axis, 6))
    values = np.resize(pool[::-1], index.shape)
    out = scatter_by_loop(name, x, index, values, axis)
    exact = [wrap(int(v), dtype) if dtype.is_integer else v for v in out.ravel()]
    actual = run(lambda s, i, v: scatter(name, s, i, v, axis), x, index, values)
    assert_same(actual, on_grid(exact, dtype).reshape(x.shape))


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter_works_on_moved_and_expanded_sources(name: str) -> None:
    x, index, values = np.arange(6.0).reshape(2, 3), np.array([[0, 1]] * 3), np.ones((3, 2))
    expected = scatter_by_loop(name, x.T, index, values, 1).astype(float)
    actual = run(lambda s, i, v: scatter(name, permute(s, (1, 0)), i, v, 1), x, index, values)
    np.testing.assert_array_equal(actual, expected)
    ones = run(
        lambda i, v: scatter(name, expand(constant(2.0, float64, (1, 1)), (3, 2)), i, v, 1),
        index, values,
    )  # fmt: skip
    expected = scatter_by_loop(name, np.full((3, 2), 2.0), index, values, 1).astype(float)
    np.testing.assert_array_equal(ones, expected)


@pytest.mark.parametrize("name", ["max", "min"])
def test_scatter_max_and_min_let_nan_win_and_order_the_zeros(name: str) -> None:
    x = np.array([0.0, -0.0, 0.0, -0.0, 1.0, np.nan])
    values = np.array([-0.0, 0.0, 0.0, -0.0, np.nan, 1.0])
    expected = [0.0, 0.0, 0.0, -0.0] if name == "max" else [-0.0, -0.0, 0.0, -0.0]
    actual = run(lambda s, i, v: scatter(name, s, i, v, 0), x, np.arange(6), values)
    assert_same(actual, np.array([*expected, np.nan, np.nan]))


def test_scatter_add_of_small_floats_adds_in_float32() -> None:
    x, values = on_grid([1.0], bfloat16), on_grid([2.0**-9] * 64, bfloat16)
    index = np.zeros(64, np.int32)
    total = run(lambda s, i, v: scatter("add", s, i, v, 0), x, index, values)
    assert float(total[0]) == 1 + 64 * 2.0**-9


@pytest.mark.parametrize("bad", [-1, 3, 2**40])
@pytest.mark.parametrize("name", ["gather", *SCATTERS])
def test_an_index_out_of_range_raises(name: str, bad: int) -> None:
    x, index = np.zeros(3), np.array([0, bad, 1])
    with pytest.raises(BoundsError, match=f"index {bad} is outside an axis of size 3"):
        if name == "gather":
            run(lambda s, i: gather(s, i, 0), x, index)
        else:
            run(lambda s, i, v: scatter(name, s, i, v, 0), x, index, np.zeros(3))


def test_any_index_into_an_empty_axis_raises_but_no_index_is_fine() -> None:
    empty = np.zeros((0, 2))
    with pytest.raises(BoundsError):
        run(lambda s, i: gather(s, i, 0), empty, np.zeros((1, 2), int))
    assert run(lambda s, i: gather(s, i, 0), empty, np.zeros((0, 2), int)).shape == (0, 2)
    for name in SCATTERS:
        value = run(
            lambda s, i, v, name=name: scatter(name, s, i, v, 0),
            np.ones((3, 2)), np.zeros((0, 2), int), np.zeros((0, 2)),
        )  # fmt: skip
        np.testing.assert_array_equal(value, np.ones((3, 2)))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda x, i, v: GATHER(x, i, arg=2), "no axis"),
        (lambda x, i, v: GATHER(x, v, arg=1), "whole number"),
        (lambda x, i, v: GATHER(x, i, arg=0), "differ off axis"),
        (lambda x, i, v: GATHER(x, reshape(i, (10,)), arg=0), "no axis"),
        (lambda x, i, v: SCATTER(x, i, v, arg=("sub", 1)), "no scatter"),
        (lambda x, i, v: SCATTER(x, i, i, arg=("add", 1)), "do not fit"),
        (lambda x, i, v: SCATTER(x, i, v, arg=("add", 0)), "differ off axis"),
        (lambda x, i, v: SORT(x, arg=(2, False)), "bad sort"),
        (lambda x, i, v: SORT(x, arg=(0, 1)), "bad sort"),
    ],
)
def test_wrong_sources_do_not_pass_the_check(make: Any, part: str) -> None:
    x, i = constant(1.0, float32, (2, 3)), constant(0, int32, (2, 5))
    node = make(x, i, constant(1.0, float32, (2, 5)))
    assert part in node.op.check(node)


# --- sort ----------------------------------------------------------------------------------------

SORTABLE = [d for d in DTYPES if d.kind in "biuf"]


@pytest.mark.parametrize("descending", [False, True], ids=["rising", "falling"])
@pytest.mark.parametrize("dtype", SORTABLE, ids=str)
def test_sort_is_stable_and_puts_nan_last_rising_and_first_falling(
    dtype: DType, descending: bool
) -> None:
    x = np.tile(hostile(dtype), 2)  # every value twice, so stability shows
    places = sorted(
        range(len(x)),
        key=lambda i: (numbers(x)[i] != numbers(x)[i], 0 if (v := numbers(x)[i]) != v else v),
        reverse=descending,
    )  # Python's sort is stable in reverse too
    assert run(lambda s: sort_order(s, 0, descending), x).tolist() == places


@given(st.lists(st.integers(-3, 3), max_size=12), st.booleans())
def test_sort_sorts_each_line_of_any_axis(line: list[int], descending: bool) -> None:
    x = np.array([line, line[::-1]], np.int32)
    rows = [sorted(range(len(line)), key=list(r).__getitem__, reverse=descending) for r in x]
    assert run(lambda s: sort_order(s, 1, descending), x).tolist() == rows
    turned = run(lambda s: sort_order(s, 0, descending), np.ascontiguousarray(x.T))
    assert turned.T.tolist() == rows


def test_sorted_values_are_a_gather_of_the_places() -> None:
    x = RANDOM.normal(size=(4, 6))
    value = run(lambda s: gather(s, sort_order(s, 1), 1), x)
    np.testing.assert_array_equal(value, np.sort(x, 1))


def test_sort_gives_int32_places_and_their_bounds() -> None:
    node = sort_order(constant(True, bool_, (7, 2)), 0)
    assert node.dtype is int32 and node.bounds == (0, 6)
