"""Tests of fulgurite/functional/math/reduction.py: NumPy is the oracle."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import AxisError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, near, raises, same_bits, tensor

SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((), ()), ((5,), None), ((5,), 0), ((2, 3, 4), None), ((2, 3, 4), 1),
    ((2, 3, 4), -1), ((2, 3, 4), (0, 2)), ((2, 3, 4), (-1, 0, 1)), ((2, 3, 4), ()), ((1, 1), 0),
    ((0, 3), 1), ((0, 3), 0), ((2, 0), None),
]  # fmt: skip
HARD = np.array([[np.nan, 1, 2], [-np.inf, 0.0, -0.0], [np.inf, -np.inf, 3], [-0.0, -0.0, -0.0]])


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "any", "all"])
def test_reductions_are_numpys(name: str, shape: Any, axis: Any, keepdims: bool) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    got = getattr(fg, name)(tensor(values), axis=axis, keepdims=keepdims)
    want = np.asarray(getattr(np, name)(values, axis=axis, keepdims=keepdims))
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-13)
        assert got.shape == want.shape
    else:
        same_bits(got, want)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_are_numpys(name: str, dtype: str, keepdims: bool) -> None:
    values = np.random.default_rng(0).integers(0, 5, (3, 4, 2)).astype(dtype)
    for axis in (None, 0, (1, 2), ()):
        got = getattr(fg, name)(tensor(values), axis=axis, keepdims=keepdims)
        same_bits(got, np.asarray(getattr(np, name)(values, axis=axis, keepdims=keepdims)))
    np.testing.assert_array_equal(
        getattr(fg, name)(tensor(HARD), axis=1).numpy(), getattr(np, name)(HARD, axis=1)
    )


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float32", "float64"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_an_extreme_is_the_first_one(name: str, dtype: str) -> None:
    values = np.random.default_rng(3).integers(0, 3, (4, 5, 3)).astype(dtype)
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            got = getattr(fg, name)(tensor(values), axis=axis, keepdims=keepdims)
            want = getattr(np, name)(values, axis=axis, keepdims=keepdims)
            same_bits(got, np.asarray(want).astype(np.int32))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_nan_counts_as_the_extreme(name: str) -> None:
    want = getattr(np, name)(HARD, axis=1).astype(np.int32)
    same_bits(getattr(fg, name)(tensor(HARD), axis=1), want)
    two = np.array([1.0, np.nan, np.nan, 0.0])
    assert getattr(fg, name)(tensor(two)).item() == 1
    assert getattr(fg, name)(fg.Tensor(3.0)).item() == 0


def test_the_dtype_of_a_sum_is_wide_enough() -> None:
    wanted = {
        "bool": "int32", "int8": "int32", "int16": "int32", "int32": "int32", "int64": "int64",
        "uint8": "uint32", "uint16": "uint32", "uint32": "uint32", "uint64": "uint64",
        "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64",
    }  # fmt: skip
    for dtype, want in wanted.items():
        x = fg.ones(300, dtype)
        assert x.sum().dtype.name == want
        assert x.prod().dtype.name == want
        assert x.sum().item() == 300
    assert fg.sum(fg.ones(3, "int8"), dtype="float64").dtype is fg.float64
    assert fg.sum(fg.ones(300, "uint8"), dtype="uint8").item() == 300 - 256
    for name in ("mean", "var", "std"):
        assert getattr(fg, name)(fg.ones(3, "int64")).dtype is fg.float32
        assert getattr(fg, name)(fg.ones(3, "float16")).dtype is fg.float16
        assert getattr(fg, name)(fg.ones(3, bool)).dtype is fg.float32


def test_half_floats_accumulate_in_float32() -> None:
    many = np.full(5000, 1.001, ml_dtypes.bfloat16)
    assert fg.sum(tensor(many)).item() == float(ml_dtypes.bfloat16(5000.0))
    big = fg.full(100, 60000.0, "float16")
    assert fg.mean(big).item() == 60000.0
    assert fg.var(fg.Tensor([60000.0, -60000.0], "float16")).item() == np.inf
    assert fg.std(fg.Tensor([60000.0, -60000.0], "float16")).item() == 60000.0
    assert fg.logsumexp(fg.zeros(4096, "float16")).item() == float(np.float16(np.log(4096)))


@pytest.mark.parametrize("correction", [0, 1, 0.5, 4])
def test_variance_takes_a_correction(correction: float) -> None:
    values = np.random.default_rng(5).normal(size=(3, 5)) + 1e4
    got = fg.var(tensor(values), axis=1, correction=correction)
    np.testing.assert_allclose(got.numpy(), np.var(values, axis=1, ddof=correction), rtol=1e-9)
    got = fg.std(tensor(values), correction=correction)
    np.testing.assert_allclose(got.numpy(), np.std(values, ddof=correction), rtol=1e-9)


def test_a_variance_without_freedom_is_numpys() -> None:
    assert np.isnan(fg.var(fg.ones(1), correction=1).item())
    assert fg.var(fg.Tensor([1.0, 2.0]), correction=3).item() == np.inf
    assert np.isnan(fg.mean(fg.zeros(0)).item())


def test_logsumexp_is_right_where_powers_overflow_or_vanish() -> None:
    inf = np.inf
    rows = np.array([[1000.0, 999.0], [-inf, -inf], [inf, 0], [inf, -inf], [-2000, -inf]])
    want = np.logaddexp(rows[:, 0], rows[:, 1])
    near(fg.logsumexp(tensor(rows), axis=1), want)
    near(fg.logsumexp(tensor(rows), axis=1, keepdims=True), want[:, None])
    assert np.isnan(fg.logsumexp(fg.Tensor([np.nan, 1.0])).item())
    assert fg.logsumexp(fg.zeros((0, 2)), axis=0).tolist() == [-inf, -inf]


def test_nonzero_elements_are_counted() -> None:
    values = np.array([[0.0, -0.0, np.nan], [1, 2, 0]])
    same_bits(
        fg.count_nonzero(tensor(values), axis=1), np.count_nonzero(values, axis=1).astype(np.int32)
    )
    assert fg.count_nonzero(tensor(values)).item() == 3


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_random_axes_agree_with_numpy(shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    values = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    same_bits(fg.sum(tensor(values), tuple(axes)), np.asarray(np.sum(values, axis=tuple(axes))))


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "max", "min", "logsumexp"])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_the_gradient_of_a_reduction_is_its_slope(name: str, axis: Any) -> None:
    values = np.random.default_rng(4).permutation(12).reshape(2, 3, 2) / 5.0 + 0.1
    check_gradients(lambda x: getattr(fg, name)(x, axis=axis), values)
    check_gradients(lambda x: x * getattr(fg, name)(x, axis=axis, keepdims=True), values)


def test_the_gradient_of_a_product_is_right_with_zeros() -> None:
    check_gradients(lambda x: fg.prod(x, axis=1), np.array([[0.0, 2, 3], [0, 0, 4], [1, 2, 3]]))


def test_mistakes_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(AxisError):
        fg.sum(x, axis=2)
    with raises(AxisError):
        x.mean(axis=(0, 0))
    with raises(AxisError):
        x.argmax(axis=5)
    with raises(AxisError):
        fg.max(x, axis="a")  # type: ignore[arg-type]
    with raises(AxisError):
        fg.argmax(fg.Tensor(1.0), axis=1)
    with raises(ShapeError, "no elements"):
        fg.max(fg.zeros((2, 0)), axis=1)
    with raises(ShapeError, "no elements"):
        fg.min(fg.zeros(0))
    with raises(ShapeError, "no elements"):
        fg.argmin(fg.zeros((0, 2)), axis=0)
    with raises(ShapeError, "no elements"):
        fg.argmax(fg.zeros((0, 2)))
    with raises(DTypeError):
        fg.max(fg.ones(2, "complex64"))


@pytest.mark.parametrize("name", ["var", "std"])
def test_complex_numbers_have_no_variance(name: str) -> None:
    with raises(DTypeError, "no variance of complex64"):
        getattr(fg, name)(fg.Tensor([1 + 2j]))


@pytest.mark.parametrize("correction", [0, 0.5, 1, 2.75, 3, 7])
@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_variable_size_is_corrected_as_a_fixed_one(
    dtype: str, name: str, correction: float
) -> None:
    n = fg.Var("n", 1, 8)
    for count in (1, 3):
        fixed = getattr(fg, name)(fg.arange(count).astype(dtype), correction=correction)
        free = getattr(fg, name)(fg.arange(n.bind(count)).astype(dtype), correction=correction)
        same_bits(free, fixed.numpy())


def test_nothing_over_nothing_is_nan_and_something_inf() -> None:
    n = fg.Var("n", 1, 8).bind(3)
    assert np.isnan(fg.var(fg.ones((n,)), correction=5).item())
    assert fg.var(fg.arange(n).astype("float32"), correction=5).item() == np.inf


ROWS = [[0.0, 0.0, 0.0], [1.0, 2.0, -2.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize("p", [2, 1, 3, 4, 1.5, 0.5, 0, -1, -2, np.inf, -np.inf])
def test_norms_have_a_slope_where_all_is_0(p: float) -> None:
    functions = {
        "vector_norm": lambda x: fg.linalg.vector_norm(x, p, -1),
        "norm": lambda x: fg.linalg.norm(x, p, -1),
        "distance": lambda x: fg.pairwise_distance(x, fg.zeros(3), p, eps=0.0),
        "normalize": lambda x: fg.nn.functional.normalize(x, p, -1),
    }
    for name, function in functions.items():
        found = fg.grad(lambda x, f=function: f(x).sum())(fg.Tensor(ROWS)).numpy()
        assert np.isfinite(found).all(), name
        if name != "normalize":
            assert (found[0] == 0).all() and (
                p != 2 or np.allclose(found[1], [1 / 3, 2 / 3, -2 / 3])
            )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fg.std(x, -1), lambda x: fg.std(x, -1, 1), lambda x: fg.linalg.norm(x * 0),
        lambda x: (x * 0).norm(), lambda x: fg.linalg.matrix_norm(x * 0),
        lambda x: fg.nn.functional.cosine_similarity(x * 0, x * 0, -1),
    ],
)  # fmt: skip
def test_deviations_and_lengths_of_equal_numbers_have_slope_0(function: Any) -> None:
    found = fg.grad(lambda x: function(x).sum())(fg.Tensor(ROWS)).numpy()
    assert (found[[0, 3]] == 0).all() and np.isfinite(found).all()


@pytest.mark.parametrize("name", [
    "sum", "prod", "max", "min", "mean", "std", "var", "any", "all", "argmax", "argmin",
    "count_nonzero", "logsumexp", "median", "sort", "argsort", "cumulative_sum", "cumulative_prod",
    "cumulative_max", "logcumsumexp", "softmax", "log_softmax", "squeeze", "cummax",
])  # fmt: skip
def test_0_dimensions_are_one_element_along_axis_0(name: str) -> None:
    function, line = getattr(fg, name), fg.Tensor([3.0])
    for axis in (0, -1):
        got, expected = function(fg.Tensor(3.0), axis=axis), function(line, axis=0)
        for mine, other in zip(*[
            x if isinstance(x, tuple) else (x,) for x in (got, expected)
        ], strict=True):  # fmt: skip
            assert mine.shape == () and mine.dtype is other.dtype
            assert mine.item() == other.item()
    for axis in (1, -2):
        with raises(AxisError, f"no axis {axis} in 0 dimensions"):
            function(fg.Tensor(3.0), axis=axis)


def test_0_dimensions_have_a_first_element_and_a_slope_and_nothing_to_turn_around() -> None:
    x = fg.Tensor(3.0)
    assert [part.item() for part in fg.topk(x, 1)] == [3.0, 0]
    assert [part.item() for part in fg.kthvalue(x, 1, axis=0, keepdims=True)] == [3.0, 0]
    assert fg.quantile(x, [0.0, 1.0], axis=0).tolist() == [3.0, 3.0]
    assert fg.sum(x, axis=0, keepdims=True).shape == fg.argmax(x, 0, keepdims=True).shape == ()
    assert fg.grad(lambda x: fg.sort(x).sum(axis=0) * 2)(x).item() == 2
    for wrong in (lambda: fg.topk(x, 0), lambda: fg.topk(x, 2), lambda: fg.flip(x, 0),
                  lambda: fg.unstack(x), lambda: fg.concat([x, x])):  # fmt: skip
        with pytest.raises(ValueError, match=r"0-d|elements"):
            wrong()
