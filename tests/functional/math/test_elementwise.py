"""Tests of fulgurite/functional/math/elementwise.py and maths.py: NumPy is the oracle."""

import math
import operator
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import dtype_of
from fulgurite.core.node import toposort
from fulgurite.errors import ArgumentError, ConstantError, DataError, DTypeError, ShapeError
from fulgurite.functional.math.elementwise import _simple_power
from fulgurite.functional.template import memo_of
from tests.functional.helpers import (
    HOSTILE,
    WHOLE,
    check_gradients,
    close_bits,
    near,
    raises,
    same_bits,
    tensor,
)

FLOATS = ["float32", "float64"]
SMALL = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]

UNARY: dict[str, Any] = {
    "negative": np.negative, "positive": np.positive, "abs": np.abs, "sign": np.sign,
    "square": np.square, "reciprocal": np.reciprocal, "sqrt": np.sqrt, "cbrt": np.cbrt,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit,
    "logical_not": np.logical_not,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "floor_divide": np.floor_divide, "remainder": np.remainder, "pow": np.power,
    "atan2": np.arctan2, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "copysign": np.copysign, "nextafter": np.nextafter,
}  # fmt: skip
BITS: dict[str, Any] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift,
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "floor_divide": np.floor_divide, "remainder": np.remainder, "maximum": np.maximum,
    "minimum": np.minimum, "less": np.less, "equal": np.equal,
}  # fmt: skip


def pairs(values: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Every value with every other, by broadcasting."""
    return values[:, None], values[None, :]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_number_is_numpys_on_hostile_values(name: str, dtype: str) -> None:
    values = HOSTILE.astype(dtype)
    close_bits(getattr(fg, name)(tensor(values)), UNARY[name](values))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_numbers_is_numpys_on_hostile_values(name: str, dtype: str) -> None:
    a, b = pairs(HOSTILE.astype(dtype))
    close_bits(getattr(fg, name)(tensor(a), tensor(b)), BINARY[name](a, b))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("name", BITS)
def test_whole_numbers_wrap_around_as_in_numpy(name: str, dtype: str) -> None:
    a, b = pairs(WHOLE.astype(np.int64).astype(dtype))
    b = np.abs(b) % 7 if "shift" in name else b
    same_bits(getattr(fg, name)(tensor(a), tensor(b)), BITS[name](a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_maximum_minimum_and_clip_let_nan_win(dtype: str) -> None:
    a, b = pairs(HOSTILE.astype(dtype))
    assert np.array_equal(
        fg.maximum(tensor(a), tensor(b)).numpy(), np.maximum(a, b), equal_nan=True
    )
    assert np.array_equal(
        fg.minimum(tensor(a), tensor(b)).numpy(), np.minimum(a, b), equal_nan=True
    )
    assert np.signbit(fg.maximum(-0.0, fg.Tensor(-0.0)).numpy())
    assert not np.signbit(fg.maximum(-0.0, fg.Tensor(0.0)).numpy())
    x = tensor(HOSTILE.astype(dtype))
    np.testing.assert_array_equal(fg.clip(x, -1, 2).numpy(), np.clip(HOSTILE.astype(dtype), -1, 2))
    np.testing.assert_array_equal(fg.clip(x, max=2).numpy(), np.minimum(HOSTILE.astype(dtype), 2))
    assert fg.clip(x, 5, -5).numpy()[0] == -5
    assert np.array_equal(fg.clip(x).numpy(), HOSTILE.astype(dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logaddexp_is_right_at_infinities(dtype: str) -> None:
    a, b = pairs(HOSTILE.astype(dtype))
    near(fg.logaddexp(tensor(a), tensor(b)), np.logaddexp(a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_hypot_neither_overflows_nor_loses_infinities(dtype: str) -> None:
    a, b = pairs(HOSTILE.astype(dtype))
    near(fg.hypot(tensor(a), tensor(b)), np.hypot(a, b))


@pytest.mark.parametrize("name", ["erf", "erfc", "lgamma", "digamma"])
def test_special_functions_are_right_to_a_few_units(name: str) -> None:
    exact = {"erf": mpmath.erf, "erfc": mpmath.erfc, "digamma": mpmath.digamma}
    values = np.array([0.25, 0.5, 1.25, 3.0, 7.5, 20.0])
    oracle: Callable[[float], Any] = exact.get(name, lambda v: mpmath.log(mpmath.gamma(v)))
    want = np.array([float(oracle(float(v))) for v in values])
    near(getattr(fg, name)(tensor(values)), want, ulps=64)
    near(getattr(fg, name)(tensor(values.astype(np.float32))), want.astype(np.float32), ulps=4)


def test_rsqrt_is_right() -> None:
    values = np.array([0.0, 4.0, 1e-40, 1e30, np.inf, -1.0, np.nan])
    with np.errstate(all="ignore"):
        near(fg.rsqrt(tensor(values)), 1 / np.sqrt(values))


@pytest.mark.parametrize("dtype", SMALL)
def test_nextafter_signbit_and_copysign_work_on_every_small_float(dtype: str) -> None:
    kind = dtype_of(dtype)
    bits = np.arange(0, 1 << kind.bits, 1 if kind.bits == 8 else 97, dtype=f"uint{kind.bits}")
    values = bits.view(kind.numpy)
    x = tensor(values)
    for toward in (values[::-1].copy(), np.full_like(values, 0.0), np.full_like(values, -1.0)):
        want = np.nextafter(values, toward)
        got = fg.nextafter(x, tensor(toward)).numpy()
        number = ~np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(got[number].view(bits.dtype), want[number].view(bits.dtype))
        assert np.isnan(got[~number].astype(np.float32)).all()
        copied = fg.copysign(x, tensor(toward)).numpy().view(bits.dtype)
        top = 1 << (kind.bits - 1)
        want_bits = (bits & (top - 1)) | (toward.view(bits.dtype) & top)
        number = ~np.isnan(values.astype(np.float32))  # of NaN only the sign is promised
        np.testing.assert_array_equal(copied[number], want_bits[number])
        np.testing.assert_array_equal(copied & top, want_bits & top)
    np.testing.assert_array_equal(fg.signbit(x).numpy(), bits >> (kind.bits - 1) == 1)
    wide = values.astype(np.float32)
    np.testing.assert_array_equal(fg.isfinite(x).numpy(), np.isfinite(wide))
    np.testing.assert_array_equal(fg.isinf(x).numpy(), np.isinf(wide))
    np.testing.assert_array_equal(fg.isnan(x).numpy(), np.isnan(wide))


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64"])
def test_rounding_leaves_whole_numbers_alone(name: str, dtype: str) -> None:
    same_bits(getattr(fg, name)(fg.ones(3, dtype)), np.ones(3, dtype))


def test_questions_about_whole_numbers_have_answers() -> None:
    x = tensor(np.array([0, -3, 5], np.int8))
    assert fg.isnan(x).tolist() == [False] * 3
    assert fg.isinf(x).tolist() == [False] * 3
    assert fg.isfinite(x).tolist() == [True] * 3
    assert fg.signbit(x).tolist() == [False, True, False]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (3, 1, 2)])
def test_odd_shapes_pass_through(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    near(fg.exp(tensor(values)), np.exp(values))
    near(fg.logaddexp(tensor(values), 1.0), np.logaddexp(values, 1.0))
    same_bits(fg.where(tensor(values) > 0, tensor(values), 0), np.where(values > 0, values, 0))


def test_python_numbers_are_weak_and_numpy_scalars_strong() -> None:
    half = fg.ones(2, "float16")
    assert fg.add(half, 1.5).dtype is fg.float16
    assert fg.hypot(half, 2).dtype is fg.float16
    assert fg.add(half, np.float64(1)).dtype is fg.float64
    assert fg.maximum(fg.ones(2, "int8"), 3).dtype is fg.int8
    assert fg.divide(fg.ones(2, "int64"), 2).dtype is fg.float32
    assert fg.exp(3).dtype is fg.float32
    assert fg.where(True, 1, 2.5).dtype is fg.float32


def test_where_of_a_condition_alone_tells_places() -> None:
    for values in (np.array([[0, 3], [4, 0]]), np.array([True, False]), np.zeros((0, 2))):
        found = fg.where(tensor(values))
        assert [part.tolist() for part in found] == [part.tolist() for part in np.where(values)]
    with raises(ShapeError):
        fg.where(tensor(True))
    with raises(ArgumentError, "both values or none"):
        fg.where(tensor([True]), 1)  # type: ignore[call-overload]


def test_lists_and_arrays_are_operands() -> None:
    assert fg.add([1, 2], np.array([3, 4], np.int8)).tolist() == [4, 6]
    assert (fg.Tensor([1, 2]) * [3, 2]).tolist() == [3, 4]
    assert (np.array([3, 4]) - fg.Tensor([1, 2])).tolist() == [2, 2]


def test_casts_saturate_round_once_and_keep_bits() -> None:
    x = tensor(np.array([1e10, -1e10, np.nan, 2.9]))
    assert fg.astype(x, "int8").tolist() == [127, -128, 0, 2]
    assert fg.astype(x, bool).tolist() == [True] * 4
    assert fg.bitcast(fg.Tensor([-0.0]), "uint32").tolist() == [1 << 31]


GRADIENTS: dict[str, tuple[float, float]] = {
    "negative": (-2, 2), "positive": (-2, 2), "abs": (0.2, 2), "square": (-2, 2),
    "reciprocal": (0.5, 2), "sqrt": (0.2, 4), "rsqrt": (0.2, 4), "cbrt": (0.2, 4),
    "exp": (-2, 2), "exp2": (-2, 2), "expm1": (-2, 2), "log": (0.2, 4), "log2": (0.2, 4),
    "log10": (0.2, 4), "log1p": (-0.5, 4), "sin": (-3, 3), "cos": (-3, 3), "tan": (-1, 1),
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atan": (-2, 2), "sinh": (-2, 2), "cosh": (-2, 2),
    "tanh": (-2, 2), "asinh": (-2, 2), "acosh": (1.2, 3), "atanh": (-0.9, 0.9), "erf": (-2, 2),
    "erfc": (-2, 2), "lgamma": (0.5, 4), "digamma": (0.5, 4), "floor": (0.1, 0.9),
    "sign": (0.1, 0.9),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_a_function_of_one_number_is_its_slope(name: str) -> None:
    values = np.random.default_rng(1).uniform(*GRADIENTS[name], (2, 3))
    check_gradients(getattr(fg, name), values)


@pytest.mark.parametrize(
    "name",
    [
        "add", "subtract", "multiply", "divide", "pow", "atan2", "maximum", "minimum", "hypot",
        "logaddexp", "copysign", "remainder",
    ],
)  # fmt: skip
def test_the_gradient_of_a_function_of_two_numbers_sums_over_broadcasting(name: str) -> None:
    random = np.random.default_rng(2)
    a, b = random.uniform(0.5, 2, (3, 1)), random.uniform(2.5, 4, (2, 1, 4))
    check_gradients(getattr(fg, name), a, b)
    check_gradients(lambda x: getattr(fg, name)(x * x, x + 3), random.uniform(0.5, 1.5, 3))


def test_the_gradient_of_a_choice_goes_to_what_was_chosen() -> None:
    values = np.array([-1.0, 2.0, 3.0])
    check_gradients(lambda x, y: fg.where(x > 0, x * y, y), values, np.array(2.0))
    check_gradients(lambda x: fg.clip(x, 0, 2.5), values)
    check_gradients(lambda x: fg.astype(fg.astype(x, "float64"), "float64") * 2, values)


def test_logaddexp_and_hypot_have_finite_gradients_at_special_points() -> None:
    def slope(f: Callable[..., fg.Tensor], a: float, b: float) -> tuple[float, float]:
        x, y = fg.grad(f, argnums=(0, 1))(fg.Tensor(a), fg.Tensor(b))
        return x.item(), y.item()

    assert slope(fg.logaddexp, 2.0, 2.0) == (0.5, 0.5)
    assert slope(fg.logaddexp, math.inf, 2.0) == (1.0, 0.0)
    assert slope(fg.hypot, 0.0, 0.0) == (0.0, 0.0)
    assert slope(fg.hypot, 0.0, 2.0) == (0.0, 1.0)


def test_mistakes_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(ShapeError, "do not broadcast"):
        fg.add(x, fg.ones(4))
    with raises(ShapeError, "do not broadcast"):
        x * fg.ones(4)
    with raises(DTypeError):
        fg.bitwise_and(x, x)
    with raises(DTypeError):
        fg.subtract(fg.ones(2, bool), fg.ones(2, bool))
    with raises(DTypeError):
        fg.bitcast(x, "int8")
    with raises(DataError, "not numeric"):
        fg.exp("x")
    with raises(DataError, "not numeric"):
        x + "y"
    with raises(ConstantError):
        fg.add(fg.ones(2, "int8"), 1000)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("number", [-(10**30), -(2**63) - 1, -1, 256, 2**32, 10**10, 2**64])
def test_a_whole_number_beyond_the_dtype_compares_as_in_mathematics(
    dtype: str, number: int
) -> None:
    values = [0, 1] if dtype == "bool" else [0, 1, 100]
    x = fg.Tensor(np.array(values), dtype)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        assert compare(x, number).tolist() == [compare(v, number) for v in values]
        assert compare(number, x).tolist() == [compare(number, v) for v in values]
        assert compare(x, number).dtype is fg.bool
    assert fg.less(number, x).tolist() == [number < v for v in values]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_logaddexp_of_small_floats_rounds_once(dtype: str) -> None:
    numbers = fg.Tensor([-400.0, -2.0, 0.0, 0.5, 3.0, 448.0], dtype=dtype)
    a, b = numbers.reshape(-1, 1), numbers
    wide = fg.logaddexp(a.astype("float32"), b.astype("float32")).astype(dtype)
    same_bits(fg.logaddexp(a, b), wide.numpy())


def test_logaddexp_survives_a_difference_beyond_the_dtype() -> None:
    a, b = (fg.Tensor(v, dtype="float8_e4m3fn") for v in (448.0, -448.0))
    assert fg.logaddexp(a, b).item() == 448.0


@pytest.mark.parametrize(
    "exponent", [-2, np.int32(-1), np.array(-1), np.array([1, 1, -1]), [1, -1, 1], fg.Tensor(-1)]
)
def test_whole_numbers_have_no_negative_powers_that_are_known(exponent: Any) -> None:
    x = fg.Tensor([1, 2, -1])
    for call in (lambda: x**exponent, lambda: fg.pow(x, exponent), lambda: x.pow(exponent)):
        with pytest.raises(ValueError, match="negative power") as caught:
            call()
        assert caught.value.where.startswith(__file__)  # type: ignore[attr-defined]
    assert (x.astype("float32") ** -2).tolist() == [1.0, 0.25, 1.0]
    assert (x**-2.0).tolist() == [1.0, 0.25, 1.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "int64"])
@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 2.0, 3.0])
def test_small_powers_by_a_number_are_products(dtype: str, exponent: Any) -> None:
    small = dtype == "float16" and exponent > 2
    mixed = type(exponent) is float and "int" in dtype
    data = np.array(WHOLE if "int" in dtype else HOSTILE).astype(dtype)
    y = tensor(data, dtype) ** exponent
    ops = {n.op.name for n in toposort([y.entry.node])}
    assert ("pow" in ops) == (small or mixed)
    with np.errstate(all="ignore"):
        want = data**exponent
    got = y.numpy()
    assert got.dtype == dtype_of(dtype).numpy or mixed
    assert np.allclose(got, want, rtol=2e-3 if dtype == "float16" else 1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("exponent", [-1, 0.5, -1.0])
def test_quotients_and_roots_are_powers_of_hostile_numbers(dtype: str, exponent: Any) -> None:
    data = np.array(HOSTILE).astype(dtype)
    y = fg.pow(tensor(data, dtype), exponent)
    assert "pow" not in {n.op.name for n in toposort([y.entry.node])}
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64)  # exponents in an array: NumPy takes a root for a single one
        want = np.power(wide, np.full_like(wide, exponent)).astype(data.dtype)
    got = y.numpy()
    assert np.allclose(got, want, rtol=2e-3 if dtype == "float16" else 1e-6, equal_nan=True)
    zeros = want == 0
    assert (np.signbit(got[zeros]) == np.signbit(want[zeros])).all()


def test_of_negative_powers_in_a_tensor_the_whole_part_is_taken() -> None:
    x, y = fg.Tensor([1, 2, -1, 0]), fg.Tensor([-2, -2, -3, -1])
    assert (x**y).tolist() == (x ** [n for n in y]).tolist() == [1, 0, -1, 0]


def test_slopes_of_powers_and_angles_at_0() -> None:
    y = fg.Tensor([-1.0, -0.5, 0.0, 2.0, float("nan")])
    slopes = fg.grad(lambda y: (0.0**y).sum())(y).tolist()
    assert slopes[:4] == [-math.inf, -math.inf, 0.0, 0.0] and math.isnan(slopes[4])
    points = fg.Tensor([0.0, 0.0, -0.0, 3.0]), fg.Tensor([0.0, 2.0, -0.0, 4.0])
    a, b = fg.grad(lambda a, b: fg.atan2(a, b).sum(), (0, 1))(*points)
    assert np.allclose(a.numpy(), [0, 0.5, 0, 0.16]) and np.allclose(b.numpy(), [0, 0, 0, -0.12])
    assert fg.grad(lambda z: fg.angle(z).sum())(fg.Tensor([0j])).tolist() == [0j]


def test_a_neighbour_moves_as_its_number_does() -> None:
    x = fg.Tensor([0.0, 1.0, -2.0])
    assert fg.grad(lambda x: fg.nextafter(x, 5.0).sum())(x).tolist() == [1.0, 1.0, 1.0]
    assert fg.grad(lambda y: fg.nextafter(x, y).sum())(x + 1).tolist() == [0.0, 0.0, 0.0]
    _, moved = fg.jvp(lambda x: fg.nextafter(x, 5.0), (x,), (fg.Tensor([1.0, 2.0, 3.0]),))
    assert moved.tolist() == [1.0, 2.0, 3.0]


def test_smooth_functions_have_their_second_slope_where_branches_meet() -> None:
    def second(function: Callable[[Any], Any], at: float) -> float:
        slope = fg.grad(lambda x: function(x).sum())
        return float(fg.grad(lambda x: slope(x).sum())(fg.Tensor([at])).sum())

    assert second(fg.softplus, 0.0) == 0.25 and second(fg.log_sigmoid, 0.0) == -0.25
    assert second(lambda x: fg.logaddexp(x, 1.0), 1.0) == 0.25
    assert second(lambda x: fg.hypot(x, 2.0), 0.0) == 0.5
    assert second(lambda x: fg.hypot(x, 2.0), 2.0) == pytest.approx(8**-0.5 / 2)
    assert [second(lambda x, n=n: x**n, 0.0) for n in range(4)] == [0, 0, 2, 0]  # type: ignore[misc]
    target = fg.Tensor([1.0])
    loss = fg.nn.functional.binary_cross_entropy_with_logits
    assert second(lambda x: loss(x, target), 0.0) == 0.25  # of a logistic regression at 0


def test_small_powers_are_built_from_memory_and_exponents_keep_their_kind() -> None:
    x, whole = fg.Tensor([1.5, -2.0, 0.0]), fg.Tensor([3, -2, 0])
    memo = memo_of(_simple_power)
    for _ in range(4):
        for power in (2, 2.0, 3, 4, -1, 0.5, 1):
            with np.errstate(all="ignore"):
                same_bits(x**power, x.numpy() ** np.float32(power) + np.float32(0))
        assert (whole**2).dtype is whole.dtype and (whole**2.0).dtype is fg.float32
    before = memo.made
    assert (x**2).node is (x * x).node and (x**0.5 + whole**2).shape == (3,)
    assert memo.made == before
