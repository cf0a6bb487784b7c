"""Tests of fulgurite/functional/math/scan.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import dtype_of
from fulgurite.errors import ArgumentError, AxisError
from tests.functional.helpers import HOSTILE, check_gradients, raises, same_bits, tensor

SHAPES = [(5,), (1,), (0,), (3, 4), (2, 0), (0, 2), (2, 3, 4)]
WIDER = {"bool": "int32", "int8": "int32", "int16": "int32", "uint8": "uint32"}


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_running_sums_and_products_agree_with_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 4, shape).astype(dtype)
    kind = WIDER.get(dtype, dtype)
    for axis in range(-len(shape), len(shape)):
        got = fg.cumulative_sum(tensor(values), axis=axis)
        same_bits(got, np.cumsum(values, axis, kind))
        same_bits(fg.cumulative_prod(tensor(values), axis=axis), np.cumprod(values, axis, kind))
        same_bits(tensor(values).cumsum(dim=axis), np.cumsum(values, axis, kind))
        same_bits(
            fg.cumulative_sum(tensor(values), axis=axis, include_initial=True),
            np.cumulative_sum(values, axis=axis, dtype=kind, include_initial=True),
        )
        same_bits(
            fg.cumulative_prod(tensor(values), axis=axis, include_initial=True),
            np.cumulative_prod(values, axis=axis, dtype=kind, include_initial=True),
        )
    same_bits(fg.cumulative_sum(tensor(values)), np.cumsum(values, None, kind))


def test_a_running_sum_of_a_number_has_one_element() -> None:
    same_bits(fg.cumulative_sum(tensor(np.array(3.0))), np.array([3.0]))
    same_bits(fg.cumulative_prod(tensor(np.array(3.0))), np.array([3.0]))


def test_a_running_sum_takes_the_dtype_that_is_asked_for() -> None:
    values = np.array([100, 100], np.int8)
    assert fg.cumulative_sum(tensor(values), dtype="int64").dtype is fg.int64
    assert fg.cumulative_sum(tensor(values), dtype="int8").tolist() == [100, -56]
    assert fg.cumulative_sum(tensor(values), dtype=fg.float32).tolist() == [100.0, 200.0]


def test_half_floats_run_in_float32_and_round_each_result_once() -> None:
    values = np.full(3000, 1.0, np.float16)
    got = fg.cumulative_sum(tensor(values))
    want = np.arange(1, 3001, dtype=np.float32).astype(np.float16)
    same_bits(got, want)
    brain = fg.ones(300, fg.bfloat16)
    same_bits(fg.cumulative_sum(brain), np.arange(1, 301, dtype="f").astype(brain.dtype.numpy))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint64"])
def test_running_extremes_agree_with_numpy(dtype: str) -> None:
    rng = np.random.default_rng(1)
    numpy = dtype_of(dtype).numpy
    with np.errstate(all="ignore"):
        values = rng.permutation(HOSTILE[np.isfinite(HOSTILE)]).astype(numpy)
    if dtype in ("int8", "uint64"):
        values = rng.integers(0, 9, 22).astype(numpy)
    rows = np.stack([values, values[::-1]])
    for axis in (0, 1):
        wide = rows.astype(np.float64) if dtype == "bfloat16" else rows
        for name, fold in (("max", np.maximum), ("min", np.minimum)):
            want = fold.accumulate(wide, axis).astype(numpy)
            got = getattr(fg, f"cumulative_{name}")(tensor(rows), axis=axis)
            np.testing.assert_array_equal(got.numpy().astype(wide.dtype), want.astype(wide.dtype))


def last_places(values: Any, better: Any) -> list[int]:
    """Where the running extreme was met last; NaN is better than anything."""
    best, out = 0, []
    for i, value in enumerate(values):
        known = values[best] == values[best]
        if i == 0 or value != value or (known and better(value, values[best])):
            best = i
        out.append(best)
    return out


def test_cummax_and_cummin_know_the_last_place() -> None:
    nan = float("nan")
    for values in ([1.0, 3.0, 3.0, 2.0, 5.0, 5.0], [2.0, nan, 3.0, nan, 1.0], [0.0, -0.0, 0.0]):
        rows = np.array([values, values[::-1]])
        got = fg.cummax(tensor(rows), axis=1)
        assert got.indices.dtype is fg.int32
        same_bits(got.values, np.maximum.accumulate(rows, 1) + 0.0)
        assert got.indices.tolist() == [last_places(r, lambda a, b: a >= b) for r in rows]
        assert tensor(rows).cummin(axis=1).indices.tolist() == [
            last_places(r, lambda a, b: a <= b) for r in rows
        ]
    assert fg.cummax(fg.zeros((2, 0)), axis=1).indices.shape == (2, 0)


def exact_log(values: Any) -> Any:
    return np.logaddexp.accumulate(np.asarray(values, np.longdouble), axis=-1)


def test_logcumsumexp_is_safe_far_out() -> None:
    inf = float("inf")
    rng = np.random.default_rng(0)
    for values in (
        rng.normal(size=40) * 3,
        rng.normal(size=40) * 500,
        np.linspace(-1000, 1000, 9),
        np.linspace(1000, -1000, 9),
        np.array([-inf, -inf, 1.0, -inf, 2.0]),
        np.array([-inf, -1000.0, -2000.0]),
        np.array([0.0, inf, 1.0, -inf]),
        np.array([-inf]),
    ):
        want = exact_log(values).astype(np.float64)
        got = fg.logcumsumexp(tensor(values), axis=0)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-14, atol=1e-14)
        half = fg.logcumsumexp(tensor(values.astype(np.float16)), axis=0)
        assert half.dtype is fg.float16
    found = fg.logcumsumexp(fg.Tensor([1.0, float("nan"), 2.0]), axis=0).tolist()
    assert found[0] == 1
    assert found[1] != found[1] and found[2] != found[2]
    assert fg.logcumsumexp(fg.zeros((2, 0)), axis=1).shape == (2, 0)
    assert fg.logcumsumexp(fg.Tensor([0, 0]), axis=0).dtype is fg.float32


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float64"])
def test_differences_agree_with_numpy(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 9, (3, 4)).astype(dtype)
    for axis in (0, 1, -1):
        for n in range(6):
            same_bits(fg.diff(tensor(values), axis=axis, n=n), np.diff(values, n, axis))
    for edge in (values[:, :1], values[:, :2]):
        got = fg.diff(tensor(values), prepend=tensor(edge), append=tensor(edge))
        same_bits(got, np.diff(values, prepend=edge, append=edge))
    if dtype == "float64":
        got = fg.diff(tensor(values), axis=0, prepend=0, append=5.0)
        same_bits(got, np.diff(values, axis=0, prepend=0, append=5.0))


def test_gradients_of_running_totals() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4))
    zeros = np.array([[0.5, 0.0, 2.0, 3.0], [0.0, 0.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
    for axis in (0, 1):
        check_gradients(lambda x, a=axis: fg.cumulative_sum(x * x, axis=a), values)
        check_gradients(lambda x, a=axis: fg.cumulative_prod(x, axis=a), values)
        check_gradients(lambda x, a=axis: fg.cumulative_prod(x, axis=a), zeros)
        check_gradients(lambda x, a=axis: fg.cummax(x, axis=a).values, values)
        check_gradients(lambda x, a=axis: fg.cumulative_min(x, axis=a), values)
        check_gradients(lambda x, a=axis: fg.logcumsumexp(x, axis=a), values * 10)
    check_gradients(lambda x: fg.diff(x * x, n=2), values)
    check_gradients(lambda x: fg.cumulative_sum(x * x, axis=1, include_initial=True), values)


def test_a_masked_start_leaves_the_gradient_of_logcumsumexp_finite() -> None:
    x = fg.Tensor([-float("inf"), 0.0, 1.0])
    slope = fg.grad(lambda x: fg.logcumsumexp(x, axis=0)[1:].sum())(x).numpy()
    assert np.isfinite(slope).all()
    assert slope[0] == 0


def test_mistakes_name_the_users_line() -> None:
    with raises(AxisError):
        fg.cumulative_sum(fg.zeros(3), axis=1)
    with raises(AxisError):
        fg.cummax(fg.zeros(()), axis=1)
    with raises(ArgumentError):
        fg.diff(fg.zeros(3), n=-1)
