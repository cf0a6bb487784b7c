"""Every exact elementwise op on every dtype it takes, on hostile values, against exact numbers.

The oracles are Python's whole numbers with wrap-around and exact fractions rounded once; functions
that no fraction describes are in test_special.py, conversions in test_cast.py.
"""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fulgurite.core.dtype import (
    DTYPES,
    DType,
    bool_,
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int32,
)
from fulgurite.core.node import constant
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import ADD, DIV, EQ, EXP, MAX, MIN, MUL, NE, POW, SUB, WHERE
from tests.core.ops.samples import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    apply,
    assert_same,
    hostile,
    nearest,
    numbers,
    on_grid,
    pairs,
    run,
    wrap,
)
from tests.core.ops.test_special import FUNCTIONS

Oracle = Callable[..., Any]

# --- whole numbers -------------------------------------------------------------------------------


def _floordiv(a: int, b: int, dtype: DType) -> int:
    return a // b if b else 0


def _mod(a: int, b: int, dtype: DType) -> int:
    return a % b if b else 0


def _pow(a: int, b: int, dtype: DType) -> int:
    if b >= 0:
        return pow(a, b, 1 << dtype.bits)
    return 0 if abs(a) != 1 else 1 if a == 1 or b % 2 == 0 else -1  # 1 / a**-b toward 0


def _shl(a: int, b: int, dtype: DType) -> int:
    return a << b if 0 <= b < dtype.bits else 0


def _shr(a: int, b: int, dtype: DType) -> int:
    return a >> b if 0 <= b < dtype.bits else -1 if a < 0 else 0


WHOLE: dict[str, Oracle] = {
    "add": lambda a, b, d: a + b,
    "sub": lambda a, b, d: a - b,
    "mul": lambda a, b, d: a * b,
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "neg": lambda a, d: -a,
    "abs": lambda a, d: abs(a),
    "sign": lambda a, d: (a > 0) - (a < 0),
    "max": lambda a, b, d: max(a, b),
    "min": lambda a, b, d: min(a, b),
    "and": lambda a, b, d: a & b,
    "or": lambda a, b, d: a | b,
    "xor": lambda a, b, d: a ^ b,
    "not": lambda a, d: ~a if d is not bool_ else not a,
    "shl": _shl,
    "shr": _shr,
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def takes(oracles: dict[str, Any], dtypes: tuple[DType, ...]) -> list[Any]:
    """A test parameter for each op of a table of oracles and each dtype that the op takes."""
    return [
        pytest.param(OPS[name], dtype, id=f"{name}-{dtype}")
        for name in oracles
        for dtype in dtypes
        if dtype.kind in OPS[name].kinds
    ]


def operands(op: Op, dtype: DType) -> tuple[Array, ...]:
    return pairs(dtype) if op.arity == 2 else (hostile(dtype),)


@pytest.mark.parametrize(("op", "dtype"), takes(WHOLE, (bool_, *INTEGERS)))
def test_whole_numbers_are_exact_and_wrap_around(op: Op, dtype: DType) -> None:
    arrays = operands(op, dtype)
    oracle = WHOLE[op.name]
    expected = [
        wrap(int(oracle(*row, dtype)), dtype) for row in zip(*map(numbers, arrays), strict=True)
    ]
    assert_same(apply(op, *arrays), on_grid(expected, dtype), *arrays)


@pytest.mark.parametrize(("op", "dtype"), takes(COMPARISONS, DTYPES))
def test_comparisons_agree_with_python(op: Op, dtype: DType) -> None:
    a, b = pairs(dtype)
    compare = COMPARISONS[op.name]
    expected = [compare(x, y) for x, y in zip(numbers(a), numbers(b), strict=True)]
    assert_same(apply(op, a, b), np.array(expected), a, b)


def test_dividing_the_least_int_by_minus_one_wraps_and_by_zero_gives_zero() -> None:
    a, b = np.array([-128, -128, 5, -5], np.int8), np.array([-1, 0, 0, 0], np.int8)
    assert apply(OPS["floordiv"], a, b).tolist() == [-128, 0, 0, 0]
    assert apply(OPS["mod"], a, b).tolist() == [0, 0, 0, 0]


def test_four_bytes_without_signs_times_four_with_them_are_added_and_wrap_around() -> None:
    a, b = (x.ravel() for x in np.meshgrid(hostile(int32), hostile(int32)))
    c = np.resize(hostile(int32), a.shape)
    expected = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        bytes_ = [v.to_bytes(4, "little", signed=True) for v in (x, y)]
        products = [m * (n - 256 * (n > 127)) for m, n in zip(*bytes_, strict=True)]
        expected.append(wrap(z + sum(products), int32))
    assert_same(apply(OPS["dot4"], a, b, c), on_grid(expected, int32), a, b, c)


def test_a_negative_power_of_a_whole_number_is_the_truncated_inverse() -> None:
    a, b = np.array([1, -1, -1, 2, 0, -128], np.int8), np.array([-3, -3, -4, -1, -1, -128], np.int8)
    assert apply(POW, a, b).tolist() == [1, -1, 1, 0, 0, 0]


# --- floats --------------------------------------------------------------------------------------


def _exact(function: Callable[..., Fraction]) -> Oracle:
    """A function of finite numbers by fractions; others, and zeros, by Python's own floats."""

    def oracle(*values: float) -> Fraction | float:
        exact = function(*map(Fraction, values)) if all(map(math.isfinite, values)) else 0
        return exact if exact else float(function(*values))

    return oracle


def _divide(a: float, b: float) -> Fraction | float:
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or a == b == 0:
        return math.nan
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    if b == 0 or math.isinf(a):
        return sign * math.inf
    if a == 0 or math.isinf(b):
        return sign * 0.0
    return Fraction(a) / Fraction(b)


def _larger(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    return max((a, b), key=lambda v: (v, math.copysign(1.0, v)))


def _smaller(a: float, b: float) -> float:
    return -_larger(-a, -b)


def _whole_part(rounding: Callable[[Fraction], int]) -> Oracle:
    def oracle(a: float) -> float:
        if not math.isfinite(a) or a == 0:
            return a
        return math.copysign(float(rounding(Fraction(a))), a)

    return oracle


REAL: dict[str, Oracle] = {
    "add": _exact(lambda a, b: a + b),
    "sub": _exact(lambda a, b: a - b),
    "mul": _exact(lambda a, b: a * b),
    "div": _divide,
    "neg": lambda a: math.copysign(a, -math.copysign(1.0, a)),
    "abs": math.fabs,
    "sign": lambda a: a if math.isnan(a) else float((a > 0) - (a < 0)),
    "max": _larger,
    "min": _smaller,
    "floor": _whole_part(math.floor),
    "ceil": _whole_part(math.ceil),
    "trunc": _whole_part(math.trunc),
    "round": _whole_part(round),
}


@pytest.mark.parametrize(("op", "dtype"), takes(REAL, FLOATS))
def test_floats_round_once_and_small_ones_compute_in_float32(op: Op, dtype: DType) -> None:
    arrays = operands(op, dtype)
    oracle = REAL[op.name]
    wide = float32 if dtype.is_small_float else dtype
    expected = [
        nearest(nearest(oracle(*row), wide), dtype)
        for row in zip(*map(numbers, arrays), strict=True)
    ]
    assert_same(apply(op, *arrays), on_grid(expected, dtype), *arrays)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floordiv_and_mod_of_floats_round_down(dtype: DType) -> None:
    a, b = pairs(dtype)
    quotients, rests = numbers(apply(OPS["floordiv"], a, b)), numbers(apply(OPS["mod"], a, b))
    wide = float32 if dtype.is_small_float else dtype
    for x, y, quotient, rest in zip(numbers(a), numbers(b), quotients, rests, strict=True):
        if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
            assert math.isnan(rest)
        elif math.isinf(y):
            assert rest == nearest(x if x == 0 or (x < 0) == (y < 0) else y, dtype) or rest != rest
        else:
            exact = Fraction(x) / Fraction(y)
            whole = math.floor(exact)
            expected = nearest(nearest(Fraction(x) - whole * Fraction(y), wide), dtype)
            assert rest == expected or math.isclose(rest, expected, rel_tol=1e-6)
            top = nearest(nearest(Fraction(whole), wide), dtype)
            near = abs(quotient - top) <= abs(top) * 2.0**-22 if math.isfinite(top) else True
            assert near or quotient == top


@pytest.mark.parametrize(
    ("a", "b", "quotient"),
    [
        (1.0, 0.0, math.inf), (-1.0, 0.0, -math.inf), (0.0, 0.0, math.nan),
        (math.inf, 2.0, math.nan), (-1.0, math.inf, -1.0), (1.0, math.inf, 0.0),
        (1.0, 0.1, 9.0), (-0.0, 3.0, -0.0), (7.5, -2.0, -4.0),
    ],
)  # fmt: skip
def test_floordiv_of_a_float_is_pinned_at(a: float, b: float, quotient: float) -> None:
    assert_same(apply(OPS["floordiv"], np.array([a]), np.array([b])), np.array([quotient]))


@pytest.mark.parametrize("op", [MAX, MIN], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_and_min_let_nan_win_and_order_the_zeros(op: Op, dtype: DType) -> None:
    zero = on_grid([0.0, -0.0, 0.0, -0.0], dtype)
    other = on_grid([-0.0, 0.0, 0.0, -0.0], dtype)
    top = op is MAX
    expected = on_grid([0.0, 0.0, 0.0, -0.0] if top else [-0.0, -0.0, 0.0, -0.0], dtype)
    assert_same(apply(op, zero, other), expected)
    nan = on_grid([math.nan] * 4, dtype)
    assert np.isnan(apply(op, nan, other).astype(np.float64)).all()
    assert np.isnan(apply(op, other, nan).astype(np.float64)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_where_chooses_without_touching_a_bit(dtype: DType) -> None:
    a, b = pairs(dtype)
    condition = np.arange(len(a)) % 3 == 0
    expected = np.array([x if c else y for c, x, y in zip(condition, a, b, strict=True)], a.dtype)
    assert_same(apply(WHERE, condition, a, b), expected, a, b)


# --- complex numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize(
    ("op", "python"),
    [(ADD, operator.add), (SUB, operator.sub), (MUL, operator.mul)],
    ids=["add", "sub", "mul"],
)
def test_complex_arithmetic_agrees_with_python(op: Op, python: Oracle, dtype: DType) -> None:
    a, b = pairs(dtype)
    expected = [python(x, y) for x, y in zip(numbers(a), numbers(b), strict=True)]
    np.testing.assert_array_equal(apply(op, a, b), np.array(expected, dtype.numpy))


@pytest.mark.parametrize("dtype", [complex64, complex128], ids=str)
def test_complex_division_and_functions_agree_with_python(dtype: DType) -> None:
    a = np.array([1 + 2j, -0.5 + 0.25j, 3 - 1j], dtype.numpy)
    close = 1e-6 if dtype is complex64 else 1e-14
    np.testing.assert_allclose(apply(DIV, a, a[::-1]), a / a[::-1], rtol=close)
    names = ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos",
             "atan", "asinh", "acosh", "atanh")  # fmt: skip
    for name in names:
        assert "c" in OPS[name].kinds
        expected = [getattr(cmath, name)(x) for x in numbers(a)]
        np.testing.assert_allclose(apply(OPS[name], a), expected, rtol=close, err_msg=name)
    np.testing.assert_allclose(apply(POW, a, a), [x**x for x in numbers(a)], rtol=close)


# --- traits --------------------------------------------------------------------------------------

ELEMENTWISE = [op for op in OPS.values() if op.family == "elementwise"]


def with_trait(trait: str, dtypes: tuple[DType, ...]) -> list[Any]:
    return [
        pytest.param(op, dtype, id=f"{op}-{dtype}")
        for op in OPS.values()
        if getattr(op, trait)
        for dtype in dtypes
        if dtype.kind in op.kinds
    ]


@pytest.mark.parametrize(("op", "dtype"), with_trait("commutative", DTYPES))
def test_a_commutative_op_gives_the_same_bits_either_way(op: Op, dtype: DType) -> None:
    a, b = pairs(dtype)
    assert_same(apply(op, a, b), apply(op, b, a), a, b)


@pytest.mark.parametrize(("op", "dtype"), with_trait("associative", (bool_, *INTEGERS)))
def test_an_associative_op_is_exactly_so_for_whole_numbers(op: Op, dtype: DType) -> None:
    check_associative(op, dtype)


@pytest.mark.parametrize("op", [MAX, MIN], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_and_min_are_exactly_associative_for_floats_too(op: Op, dtype: DType) -> None:
    check_associative(op, dtype)


def check_associative(op: Op, dtype: DType) -> None:
    a, b = pairs(dtype)
    c = np.resize(hostile(dtype)[::-1], a.shape)
    left = run(lambda x, y, z: op(op(x, y), z), a, b, c)
    assert_same(left, run(lambda x, y, z: op(x, op(y, z)), a, b, c), a, b, c)


@pytest.mark.parametrize(("op", "dtype"), with_trait("absorbing", (bool_, *INTEGERS, *FLOATS)))
def test_nothing_changes_what_an_op_absorbs(op: Op, dtype: DType) -> None:
    assert op.absorbing is not None
    number, a = op.absorbing(dtype), hostile(dtype)
    assert (number is None) == dtype.is_inexact
    if number is not None:
        absorbing = on_grid([number] * len(a), dtype)
        assert_same(apply(op, a, absorbing), absorbing, a)
        assert_same(apply(op, absorbing, a), absorbing, a)


@pytest.mark.parametrize(("op", "dtype"), with_trait("identity", (bool_, *INTEGERS, *FLOATS)))
def test_the_identity_of_an_op_changes_no_bit(op: Op, dtype: DType) -> None:
    assert op.identity is not None
    a = hostile(dtype)
    identity = on_grid([op.identity(dtype)] * len(a), dtype)
    assert_same(apply(op, a, identity), a, a)
    if op.commutative:
        assert_same(apply(op, identity, a), a, a)


@pytest.mark.parametrize(("op", "dtype"), with_trait("monotone", (float64, float32)))
def test_a_monotone_op_is_so_in_its_first_source(op: Op, dtype: DType) -> None:
    low, high = op.domain
    a = np.linspace(low, high, 500).astype(dtype.numpy)
    rest = [np.full_like(a, (low + high) / 2 + 0.1)] * ((op.arity or 1) - 1)
    steps = np.diff(apply(op, a, *rest)) * op.monotone
    assert (steps >= 0).all()


def test_not_is_falling_as_its_trait_says() -> None:
    assert OPS["not"].monotone == -1
    for dtype in (bool_, *INTEGERS):
        a = np.sort(hostile(dtype))
        values = [int(v) for v in apply(OPS["not"], a)]
        assert values == sorted(values, reverse=True)


# --- completeness and checks ---------------------------------------------------------------------


def test_every_elementwise_op_has_an_oracle_in_these_tests() -> None:
    elsewhere = {"real", "imag", "pair"}  # test_complexes.py
    elsewhere |= {"where", "cast", "bitcast", "dot4"}
    oracles = {*WHOLE, *REAL, *COMPARISONS, *FUNCTIONS, *elsewhere}
    missing = {op.name for op in ELEMENTWISE} - oracles
    assert not missing, f"write an oracle for {missing}"


@pytest.mark.parametrize("op", ELEMENTWISE, ids=str)
def test_an_elementwise_op_takes_numbers_without_dimensions_and_empty_ones(op: Op) -> None:
    kind = "f" if "f" in op.kinds else "i" if "i" in op.kinds else "b"
    dtype = {"f": float32, "i": int32, "b": bool_}[kind]
    arg = dtype if op.name in ("cast", "bitcast") else 0 if op.name == "polygamma" else None
    for shape in [(), (0,), (2, 0, 3), (1, 1)]:
        value = apply(op, *[np.ones(shape, dtype.numpy)] * (op.arity or 1), arg=arg)
        assert value.shape == shape


def test_the_check_of_an_elementwise_op_names_shapes_and_dtypes_that_differ() -> None:
    wide, narrow = constant(1, int32, (3,)), constant(1, int32, (2,))
    assert "shapes" in (ADD.check(ADD(wide, narrow)) or "")
    assert "dtypes" in (ADD.check(ADD(wide, constant(1, int8, (3,)))) or "")
    condition = constant(True, bool_, (3,))
    assert WHERE.check(WHERE(condition, wide, wide)) is None
    assert "not bool" in (WHERE.check(WHERE(wide, wide, wide)) or "")
    assert "shapes" in (WHERE.check(WHERE(condition, narrow, narrow)) or "")
    assert "dtypes" in (WHERE.check(WHERE(condition, wide, constant(1, int8, (3,)))) or "")


def test_comparisons_of_complex_numbers_see_both_parts() -> None:
    a, b = np.array([1 + 1j, 1 + 1j]), np.array([1 + 1j, 1 - 1j])
    assert apply(EQ, a, b).tolist() == [True, False]
    assert apply(NE, a, b).tolist() == [False, True]
    assert apply(EXP, np.array([0j])).tolist() == [1]
