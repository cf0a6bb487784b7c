"""REDUCE and SCAN against loops over exact numbers: every reducer, axes, empty axes, zeros."""

from __future__ import annotations

import itertools
import math
from functools import reduce as fold
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import DTYPES, DType, bfloat16, bool_, float8_e4m3fn, float32, float64
from fulgurite.core.node import constant
from fulgurite.core.op import Array
from fulgurite.core.ops.leaf import param, variable
from fulgurite.core.ops.reduce import (
    REDUCE,
    REDUCERS,
    SCAN,
    affine_scan,
    identity_of,
    reduce_node,
    scan_node,
)
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.samples import (
    FLOATS,
    FORMATS,
    apply,
    assert_same,
    hostile,
    leaf,
    numbers,
    on_grid,
    run,
    wrap,
)

KINDS = [
    (name, dtype) for name, op in REDUCERS.items() for dtype in DTYPES if dtype.kind in op.kinds
]
WHOLE_KINDS = [(name, dtype) for name, dtype in KINDS if dtype.is_integer]
REAL_KINDS = [(name, dtype) for name, dtype in KINDS if dtype.kind != "c"]


def _larger(a: float, b: float) -> float:
    return math.nan if a != a or b != b else max((a, b), key=lambda v: (v, math.copysign(1, v)))


FOLDS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": _larger,
    "min": lambda a, b: -_larger(-a, -b),
}
AXES = [axes for n in range(4) for axes in itertools.combinations(range(3), n)]


def sample(dtype: DType, shape: tuple[int, ...] = (2, 3, 4)) -> Array:
    return np.resize(hostile(dtype), math.prod(shape)).reshape(shape)


def lines(x: Array, axes: tuple[int, ...]) -> Array:
    """The array with the reduced axes last, as one."""
    rest = [i for i in range(x.ndim) if i not in axes]
    count = math.prod(x.shape[i] for i in axes)
    return x.transpose(*rest, *axes).reshape(*[x.shape[i] for i in rest], count)


@pytest.mark.parametrize(("name", "dtype"), WHOLE_KINDS, ids=str)
def test_a_reduction_of_whole_numbers_is_exact_and_wraps(name: str, dtype: DType) -> None:
    x = sample(dtype)
    for axes in AXES:
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        rows = lines(x, axes).reshape(-1, math.prod(x.shape[i] for i in axes))
        expected = [wrap(int(fold(FOLDS[name], numbers(row))), dtype) for row in rows]
        actual = run(lambda s, axes=axes: REDUCE(s, arg=(name, axes)), x)
        assert_same(actual, on_grid(expected, dtype).reshape(kept))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_largest_or_smallest_float_knows_nan_and_signed_zeros(name: str, dtype: DType) -> None:
    zeros = [on_grid(c, dtype) for c in itertools.product([0.0, -0.0, -1.0, 1.0], repeat=3)]
    with_nan = [on_grid([math.nan, 1.0, -0.0], dtype), on_grid([2.0, 0.0, math.nan], dtype)]
    x = np.array([*zeros, *with_nan])
    expected = [fold(FOLDS[name], numbers(row)) for row in x]
    actual = run(lambda s: reduce_node(name, s, (1,)), x)
    assert_same(actual, on_grid(expected, dtype)[:, None])


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
@pytest.mark.parametrize("name", ["add", "mul"])
def test_a_reduction_of_floats_is_within_rounding_of_the_exact_one(name: str, dtype: DType) -> None:
    x = np.random.default_rng(5).uniform(0.5, 2, (3, 40, 5)).astype(dtype.numpy)
    for axes in AXES[1:]:
        rows = lines(x, axes).astype(np.float64)
        exact = np.apply_along_axis(math.fsum if name == "add" else math.prod, -1, rows)
        actual = run(lambda s, axes=axes: reduce_node(name, s, axes), x)
        close = 1e-4 if dtype is float32 else 1e-12
        np.testing.assert_allclose(actual.ravel(), exact.ravel(), rtol=close)


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.is_small_float], ids=str)
def test_small_floats_add_in_float32_and_round_once(dtype: DType) -> None:
    half_step = 2.0 ** -FORMATS[dtype].precision
    x = on_grid([1.0, *[half_step] * 64], dtype)  # on the dtype's grid each addend would be lost
    total = run(lambda s: reduce_node("add", s, (0,)), x)
    wide = math.fsum(numbers(x))
    assert_same(total, np.array([np.float32(wide)]).astype(dtype.numpy))
    running = run(lambda s: scan_node("add", s, 0), x)
    assert_same(running[-1:], np.array([np.float32(wide)]).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_sum_of_negative_zeros_is_negative_and_of_nothing_positive(dtype: DType) -> None:
    minus = on_grid([-0.0, -0.0], dtype)
    assert_same(run(lambda s: reduce_node("add", s, (0,)), minus), minus[:1])
    mixed = on_grid([-0.0, 0.0], dtype)
    assert_same(run(lambda s: reduce_node("add", s, (0,)), mixed), on_grid([0.0], dtype))
    assert_same(run(lambda s: reduce_node("add", s, (0,)), minus[:0]), on_grid([0.0], dtype))


@pytest.mark.parametrize(("name", "dtype"), KINDS, ids=str)
def test_an_empty_reduction_gives_the_identity(name: str, dtype: DType) -> None:
    x = np.zeros((2, 0, 3), dtype.numpy)
    identity = identity_of(name, dtype)
    expected = np.full((2, 1, 3), 0 if name == "add" else identity).astype(dtype.numpy)
    assert_same(run(lambda s: reduce_node(name, s, (1,)), x), expected)
    assert run(lambda s: reduce_node(name, s, (0,)), x).shape == (1, 0, 3)
    if dtype is float8_e4m3fn:
        assert not np.isnan(expected.astype(np.float32)).any()


def test_reducing_over_no_axis_makes_no_node() -> None:
    x = leaf(np.ones((2, 3)))
    assert reduce_node("add", x, ()) is x
    assert reduce_node("add", x, (1, 0)) is reduce_node("add", x, (0, 1))


def test_a_reduction_takes_a_symbolic_axis() -> None:
    n = variable("n", 0, 9)
    x = param(0, (n, 2), float32)
    array = np.ones((5, 2), np.float32)
    node = reduce_node("add", x, (0,))
    assert node.shape == (1, 2)
    (value,) = evaluate([node], {x: array}, {"n": 5})
    assert value.tolist() == [[5.0, 5.0]]


# --- scans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("name", "dtype"), REAL_KINDS, ids=str)
def test_a_scan_is_the_running_fold(name: str, dtype: DType, reverse: bool) -> None:
    if dtype.is_float:
        pool = [0.0, -0.0, 1.0, -0.0, 2.0, -1.0, 0.5, 0.0, -2.0]  # exact in every float
        x = on_grid(pool, dtype) if name != "add" else on_grid([1.0, -0.0, 2.0, -4.0], dtype)
    else:
        x = hostile(dtype)
    order = x[::-1] if reverse else x
    running = list(itertools.accumulate(numbers(order), FOLDS[name]))
    if dtype.is_integer:
        running = [wrap(int(v), dtype) for v in running]
    expected = on_grid(running[::-1] if reverse else running, dtype)
    both = np.stack([x, x])
    actual = run(lambda s: scan_node(name, s, 1, reverse), both)
    assert_same(actual, np.stack([expected, expected]))
    turned = run(lambda s: scan_node(name, s, 0, reverse), np.ascontiguousarray(both.T))
    assert_same(turned, np.stack([expected, expected], axis=1))


def test_a_running_extreme_keeps_nan() -> None:
    x = np.array([1.0, np.nan, 5.0])
    assert_same(apply(SCAN, x, arg=("max", 0, False)), np.array([1.0, np.nan, np.nan]))
    assert_same(apply(SCAN, x, arg=("min", 0, True)), np.array([np.nan, np.nan, 5.0]))


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=9), st.booleans())
def test_an_affine_scan_runs_s_to_a_times_s_plus_b(
    steps: list[tuple[int, int]], reverse: bool
) -> None:
    state, states = 0, []
    for a, b in reversed(steps) if reverse else steps:
        state = a * state + b
        states.append(state)
    expected = np.array(states[::-1] if reverse else states, np.int64)
    columns = np.array(steps, np.int64).reshape(-1, 2).T
    actual = run(lambda a, b: affine_scan(a, b, 0, reverse), columns[0], columns[1])
    np.testing.assert_array_equal(actual, expected)


def test_an_affine_scan_of_small_floats_keeps_its_state_in_float32() -> None:
    a = np.ones(65).astype(bfloat16.numpy)
    b = on_grid([1.0, *[2.0**-9] * 64], bfloat16)
    assert float(run(lambda x, y: affine_scan(x, y, 0), a, b)[-1]) == 1 + 64 * 2.0**-9


@pytest.mark.parametrize("name", [*REDUCERS, "affine"])
def test_a_scan_of_nothing_is_nothing(name: str) -> None:
    empty = np.zeros((3, 0))
    sources = [empty, empty] if name == "affine" else [empty]
    assert apply(SCAN, *sources, arg=(name, 1, False)).shape == (3, 0)
    assert apply(SCAN, *sources, arg=(name, 0, True)).shape == (3, 0)


@pytest.mark.parametrize(
    ("op", "arg", "count", "dtype"),
    [
        (REDUCE, ("sub", (0,)), 1, float32), (REDUCE, ("add", (2,)), 1, float32),
        (REDUCE, ("add", (0,)), 1, bool_), (SCAN, ("sub", 0, False), 1, float32),
        (SCAN, ("add", 2, False), 1, float32), (SCAN, ("add", 0, 1), 1, float32),
        (SCAN, ("affine", 0, False), 1, float32), (SCAN, ("add", 0, False), 2, float32),
        (SCAN, ("add", 0, False), 1, bool_),
    ],
)  # fmt: skip
def test_a_wrong_fold_does_not_pass_the_check(op: Any, arg: Any, count: int, dtype: DType) -> None:
    x = constant(1, dtype, (2, 3))
    assert op.check(op(*[x] * count, arg=arg))


def test_the_parts_of_an_affine_scan_must_agree() -> None:
    node = affine_scan(constant(1, float32, (2,)), constant(1, float32, (3,)), 0)
    assert "affine" in (SCAN.check(node) or "")
