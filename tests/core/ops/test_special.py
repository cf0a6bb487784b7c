"""Functions that no fraction describes, against mpmath at 60 digits, within a bound in ulps.

Infinities, zeros and arguments outside the domain follow IEEE 754 and C's Annex F, written out
here as a table; small floats compute in float32, so they are within one ulp of their own grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from fulgurite.core.dtype import DType, float32, float64
from fulgurite.core.op import Array
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import ATAN2, POLYGAMMA, POW
from fulgurite.core.ops.special import power as numpy_power
from tests.core.ops.samples import (
    FLOATS,
    apply,
    assert_same,
    hostile,
    leaf,
    nearest,
    numbers,
    on_grid,
    ulp,
)

mp = mpmath.mp.clone()  # its own precision, whatever other tests set
mp.dps = 60
INF, NAN = math.inf, math.nan
_HALF_PI = math.pi / 2


def _cbrt(x: Any) -> Any:
    return mp.sign(x) * mp.cbrt(abs(x))


def _lgamma(x: Any) -> Any:
    return mp.re(mp.loggamma(x)) if x > 0 else mp.log(abs(mp.gamma(x)))


# The function at high precision, and its domain: outside, the result is NaN.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    "sqrt": (mp.sqrt, (0, INF)),
    "rsqrt": (lambda x: 1 / mp.sqrt(x), (0, INF)),
    "cbrt": (_cbrt, (-INF, INF)),
    "exp": (mp.exp, (-INF, INF)),
    "exp2": (lambda x: mp.power(2, x), (-INF, INF)),
    "expm1": (mp.expm1, (-INF, INF)),
    "log": (mp.log, (0, INF)),
    "log2": (lambda x: mp.log(x, 2), (0, INF)),
    "log10": (mp.log10, (0, INF)),
    "log1p": (mp.log1p, (-1, INF)),
    "sin": (mp.sin, (-INF, INF)),
    "cos": (mp.cos, (-INF, INF)),
    "tan": (mp.tan, (-INF, INF)),
    "asin": (mp.asin, (-1, 1)),
    "acos": (mp.acos, (-1, 1)),
    "atan": (mp.atan, (-INF, INF)),
    "sinh": (mp.sinh, (-INF, INF)),
    "cosh": (mp.cosh, (-INF, INF)),
    "tanh": (mp.tanh, (-INF, INF)),
    "asinh": (mp.asinh, (-INF, INF)),
    "acosh": (mp.acosh, (1, INF)),
    "atanh": (mp.atanh, (-1, 1)),
    "erf": (mp.erf, (-INF, INF)),
    "erfc": (lambda x: mp.erfc(min(x, 1000)), (-INF, INF)),  # beyond, mpmath overflows
    "lgamma": (_lgamma, (-INF, INF)),
    "polygamma": (lambda x: mp.psi(0, x), (-INF, INF)),
    "atan2": (mp.atan2, (-INF, INF)),
}
UNARY = [name for name in FUNCTIONS if name not in ("atan2", "polygamma")]
KEEPS_ZERO = {
    "sqrt", "cbrt", "expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh",
    "atanh", "erf",
}  # fmt: skip
AT_INFINITY: dict[str, tuple[float, float]] = {  # at -inf, at inf
    "sqrt": (NAN, INF), "rsqrt": (NAN, 0.0), "cbrt": (-INF, INF), "exp": (0.0, INF),
    "exp2": (0.0, INF), "expm1": (-1.0, INF), "log": (NAN, INF), "log2": (NAN, INF),
    "log10": (NAN, INF), "log1p": (NAN, INF), "sin": (NAN, NAN), "cos": (NAN, NAN),
    "tan": (NAN, NAN), "asin": (NAN, NAN), "acos": (NAN, NAN), "atan": (-_HALF_PI, _HALF_PI),
    "sinh": (-INF, INF), "cosh": (INF, INF), "tanh": (-1.0, 1.0), "asinh": (-INF, INF),
    "acosh": (NAN, INF), "atanh": (NAN, NAN), "erf": (-1.0, 1.0), "erfc": (2.0, 0.0),
    "lgamma": (INF, INF),
}  # fmt: skip
POLES: dict[str, dict[float, float]] = {
    "log": {0.0: -INF}, "log2": {0.0: -INF}, "log10": {0.0: -INF},
    "log1p": {-1.0: -INF}, "atanh": {1.0: INF, -1.0: -INF}, "lgamma": {0.0: INF, -1.0: INF},
}  # fmt: skip
ULPS = {"lgamma": 8.0}  # others: 4, what NumPy promises of its vectorised functions
COARSE = {"lgamma": Fraction(1, 2**50)}  # near its zeros at 1 and 2 C's is exact only absolutely


def special(name: str, x: float) -> float | None:
    """The result where mpmath is not asked: NaN, infinities, poles, outside of the domain."""
    low, high = FUNCTIONS[name][1]
    if math.isnan(x):
        return x
    if math.isinf(x):
        return AT_INFINITY[name][x > 0]
    if name == "rsqrt" and x == 0:
        return math.copysign(INF, x)
    if x in POLES.get(name, {}):
        return POLES[name][x]
    if x == 0 and name in KEEPS_ZERO:
        return x
    if name == "lgamma" and x < 0 and x == math.floor(x):
        return INF
    return None if low <= x <= high else NAN


def fraction_of(value: Any) -> Fraction:
    """An mpmath number as an exact fraction."""
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction(int(-mantissa if sign else mantissa)) * Fraction(2) ** int(exponent)


def assert_within(
    actual: float, exact: Any, dtype: DType, ulps: float, what: str, slack: Fraction = Fraction(0)
) -> None:
    """Within so many ulps of the exact value; overflow and underflow are judged by rounding."""
    if mp.isinf(exact) or mp.isnan(exact) or abs(exact) > mp.mpf(2) ** 1030:
        assert actual == nearest(float(exact), dtype) or actual != actual, what
        return
    if abs(exact) < mp.mpf(2) ** -1100:
        assert abs(actual) <= float(ulp(Fraction(0), dtype)), what
        return
    fraction = fraction_of(exact)
    rounded = nearest(fraction, dtype)
    if actual == rounded or (math.isnan(actual) and math.isnan(rounded)):
        return
    assert math.isfinite(actual) and math.isfinite(rounded), f"{what}: {actual}, not {rounded}"
    distance = (abs(Fraction(actual) - fraction) - slack) / ulp(fraction, dtype)
    assert distance <= ulps, f"{what}: {actual} is {float(distance):.1f} ulp from {rounded}"


def arguments(name: str, dtype: DType) -> Array:
    """Hostile values, and some from where the function is interesting."""
    low, high = OPS[name].domain
    inside = np.linspace(low, high, 23)
    with np.errstate(all="ignore"):
        return np.concatenate([hostile(dtype), inside.astype(dtype.numpy)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_a_function_is_within_its_ulps_of_mpmath(name: str, dtype: DType) -> None:
    a = arguments(name, dtype)
    ulps = 1.0 if dtype.is_small_float else ULPS.get(name, 4.0)
    for x, y in zip(numbers(a), numbers(apply(OPS[name], a)), strict=True):
        fixed = special(name, x)
        if fixed is not None:
            expected = nearest(nearest(fixed, float32 if dtype.is_small_float else dtype), dtype)
            assert_same(on_grid([y], dtype), on_grid([expected], dtype), on_grid([x], dtype))
        else:
            exact, slack = FUNCTIONS[name][0](mp.mpf(x)), COARSE.get(name, Fraction(0))
            assert_within(y, exact, dtype, ulps, f"{name}({x})", slack)


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_polygamma_is_close_to_mpmath_for_negative_arguments_too(order: int, dtype: DType) -> None:
    values = [1e-8, 1e-3, 0.1, 0.5, 1.0, 1.4616, 2.0, 3.7, 9.99, 12.0, 50.0, 1e4, 1e8,
              -1e-6, -0.3, -0.5, -0.999, -1.5, -2.25, -7.75, -20.5, -100.25]  # fmt: skip
    a = np.array(values, dtype.numpy)
    for x, y in zip(numbers(a), numbers(apply(POLYGAMMA, a, arg=order)), strict=True):
        exact = float(mp.psi(order, mp.mpf(x)))
        slope = abs(float(mp.psi(order + 1, mp.mpf(x))) * x)  # the condition of the argument
        eps = 2.0**-52 if dtype is float64 else 2.0**-23
        assert abs(y - exact) <= 20 * eps * max(abs(exact), min(slope, 1e300), 1.0e-300), (x, exact)


@pytest.mark.parametrize(
    ("order", "at_zero", "at_minus_zero", "at_infinity"),
    [(0, -INF, INF, INF), (1, INF, INF, 0.0), (2, -INF, INF, 0.0), (3, INF, INF, 0.0)],
)
def test_polygamma_has_limits_at_zero_and_infinity_and_nan_at_other_poles(
    order: int, at_zero: float, at_minus_zero: float, at_infinity: float
) -> None:
    a = np.array([0.0, -0.0, INF, -INF, -1.0, -7.0, NAN])
    value = apply(POLYGAMMA, a, arg=order)
    assert value[:3].tolist() == [at_zero, at_minus_zero, at_infinity]
    assert np.isnan(value[3:]).all()


def test_polygamma_checks_its_order() -> None:
    x = leaf(np.ones(1))
    assert POLYGAMMA.check(POLYGAMMA(x, arg=0)) is None
    assert POLYGAMMA.check(POLYGAMMA(x, arg=-1))
    assert POLYGAMMA.check(POLYGAMMA(x, arg=None))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_atan2_covers_all_quadrants_and_special_points(dtype: DType) -> None:
    values = hostile(dtype)
    a, b = (m.ravel() for m in np.meshgrid(values, values))
    wide = float32 if dtype.is_small_float else dtype
    ulps = 1.0 if dtype.is_small_float else 4.0
    for y, x, angle in zip(numbers(a), numbers(b), numbers(apply(ATAN2, a, b)), strict=True):
        exact = math.atan2(y, x)  # C's, with Annex F's signs; mpmath lacks -0.0
        if math.isnan(exact):
            assert math.isnan(angle)
        elif y == 0 or math.isinf(y) or math.isinf(x):
            expected = nearest(nearest(exact, wide), dtype)
            assert abs(Fraction(angle) - Fraction(expected)) <= ulp(Fraction(expected), dtype)
            assert math.copysign(1, angle) == math.copysign(1, expected)
        else:
            assert_within(angle, mp.atan2(mp.mpf(y), mp.mpf(x)), dtype, ulps, f"atan2({y}, {x})")


POWERS = [
    (4.0, 0.5, 2.0), (0.0, 0.0, 1.0), (NAN, 0.0, 1.0), (1.0, NAN, 1.0), (NAN, 1.0, NAN),
    (0.0, -1.0, INF), (-0.0, -1.0, -INF), (-0.0, -2.0, INF), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0),
    (-8.0, 1 / 3, NAN), (-2.0, 3.0, -8.0), (-1.0, INF, 1.0), (-1.0, -INF, 1.0), (0.5, INF, 0.0),
    (0.5, -INF, INF), (2.0, INF, INF), (INF, -1.0, 0.0), (-INF, 3.0, -INF), (-INF, 2.0, INF),
    (-INF, -1.0, -0.0), (1.0, INF, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pow_of_floats_follows_annex_f(dtype: DType) -> None:
    wide = float32 if dtype.is_small_float else dtype
    for x, y, z in POWERS:
        if dtype.name == "float8_e4m3fn" and (math.isinf(x) or math.isinf(y)):
            continue  # has no infinity
        base, power = on_grid([x], dtype), on_grid([y], dtype)
        expected = on_grid([nearest(nearest(z, wide), dtype)], dtype)
        assert_same(apply(POW, base, power), expected, base, power)


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_one_exponent_for_many_numbers_gives_what_many_exponents_give(dtype: DType) -> None:
    base, many = on_grid([-INF, -0.0, 4.0], dtype), on_grid([0.5] * 3, dtype)
    for power in (many, many[:1], many[0], np.broadcast_to(many[0], 3)):
        expected = on_grid([INF, 0.0, 2.0], dtype)
        assert_same(numpy_power(base, np.asarray(power)), expected, base, many)


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_pow_of_floats_is_within_four_ulps_of_mpmath(dtype: DType) -> None:
    random = np.random.default_rng(7)
    a = random.uniform(0.01, 20, 200).astype(dtype.numpy)
    b = random.uniform(-9, 9, 200).astype(dtype.numpy)
    for x, y, z in zip(numbers(a), numbers(b), numbers(apply(POW, a, b)), strict=True):
        assert_within(z, mp.power(mp.mpf(x), mp.mpf(y)), dtype, 4.0, f"{x} ** {y}")


@pytest.mark.parametrize("name", ["exp", "expm1", "cbrt", "log1p", "asin", "exp2", "pow"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_meaning_has_the_same_bits_however_its_memory_lies(name: str, dtype: DType) -> None:
    op = OPS[name]
    assert op.numpy is not None
    values = np.linspace(0.01, 0.99, 999).astype(dtype.numpy)
    shared = [np.full((), 1.7, dtype.numpy)][: (op.arity or 1) - 1]
    whole = [np.full(999, s) for s in shared]
    node = op(leaf(values), *map(leaf, whole))
    want = op.numpy(node, values, *whole)
    assert op.numpy(node, values[::-1], *shared)[::-1].tobytes() == want.tobytes()
    assert op.numpy(node, values.repeat(3)[::3], *shared).tobytes() == want.tobytes()
    alone = op.numpy(node, values[7], *shared)
    assert alone.shape == () and alone.tobytes() == want[7].tobytes()
