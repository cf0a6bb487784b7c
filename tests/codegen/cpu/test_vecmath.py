"""Tests of codegen/cpu/vecmath: functions, dtypes and widths against oracles of more bits."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu import vecmath
from fulgurite.codegen.cpu.llvm.emitter import Emitter, Val, scalar_type
from fulgurite.codegen.cpu.llvm.maths import EXPANSIONS
from fulgurite.codegen.cpu.target import VECTORS, Target
from fulgurite.codegen.cpu.vecmath import FUNCTIONS as EXPANDED
from fulgurite.codegen.cpu.vecmath import library, tables
from fulgurite.core.dtype import DType, bfloat16, float16, float32, float64
from tests.codegen.cpu import accuracy, fit
from tests.codegen.cpu.accuracy import FUNCTIONS, Array, compiled, measure, measure_small, samples

pytest.importorskip("llvmlite")
if platform.machine() not in ("x86_64", "AMD64"):
    pytest.skip("the oracles and targets are those of x86-64", allow_module_level=True)

from fulgurite.codegen.cpu.llvm.compiler import compile_assembly, compile_object
from fulgurite.codegen.cpu.llvm.loader import load

WIDTHS = accuracy.widths()
NAMES = list(FUNCTIONS)
BOTH = pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
EACH = pytest.mark.parametrize("name", NAMES)


# --- bounds --------------------------------------------------------------------------------------


@EACH
@BOTH
def test_results_are_within_the_bound(name: str, dtype: DType) -> None:
    f = FUNCTIONS[name]
    count = 2_000 if dtype is float64 and f.numpy is None else 20_000
    found = measure(f, dtype, WIDTHS, samples(f, dtype, count))
    for width, one in zip(WIDTHS, found, strict=True):
        assert one.worst <= f.bound, (width, one)


@pytest.mark.slow
@EACH
def test_results_are_within_the_bound_everywhere(name: str) -> None:
    f = FUNCTIONS[name]
    found = []
    for dtype in (float32, float64):
        count = 100_000 if dtype is float64 and f.numpy is None else 2_000_000
        kinds = accuracy.kinds_of(f, dtype)
        found += measure(f, dtype, kinds, samples(f, dtype, count, seed=1))
    if f.arity == 1:
        kinds = accuracy.kinds_of(f, float32)
        found += accuracy.in_chunks(f, kinds, accuracy.strided(509))
    for one in found:
        assert one.worst <= f.bound, one


@EACH
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_small_floats_are_nearest_almost_always_and_never_two_steps_off(
    name: str, dtype: DType
) -> None:
    f = FUNCTIONS[name]
    inputs = [accuracy.every(dtype)] if f.arity == 1 else accuracy.pairs(dtype, 200_000)
    found = measure_small(f, dtype, WIDTHS[-1], inputs)
    assert found.steps <= 1
    assert found.wrong <= found.count // 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pow", "atan2"])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_ten_million_pairs_of_small_floats(name: str, dtype: DType) -> None:
    found = measure_small(FUNCTIONS[name], dtype, WIDTHS[-1], accuracy.pairs(dtype, 10_000_000))
    assert found.steps <= 1
    assert found.wrong <= found.count // 1000


# --- special values ------------------------------------------------------------------------------


def _reference(name: str, dtype: DType, arrays: list[Array]) -> Array:
    """NumPy's own results, and for what it lacks the C library's."""
    f = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        if f.numpy is not None:
            wide = [a.astype(np.float64 if dtype is float32 else np.longdouble) for a in arrays]
            return np.asarray(f.numpy(*wide)).astype(dtype.numpy)
        lifted = np.frompyfunc(accuracy.by_python(name), 1, 1)
        return np.asarray(lifted(arrays[0].astype(np.float64)), np.float64).astype(dtype.numpy)


@EACH
@BOTH
def test_special_values_are_numpys(name: str, dtype: DType) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -3.0], dtype.numpy)
    numbers = np.concatenate([special, accuracy.edges(dtype)])
    if name == "lgamma":  # Python's is 0 at the number before 2, where -9.4e-17 is right
        numbers = numbers[numbers != np.nextafter(dtype.numpy.type(2), dtype.numpy.type(0))]
    arrays = [numbers]
    if FUNCTIONS[name].arity == 2:
        arrays = [a.ravel() for a in np.meshgrid(numbers, numbers)]
    expected = _reference(name, dtype, arrays)
    ends = np.isinf(expected) | (expected == 0)
    for width in WIDTHS:
        got = compiled(name, dtype, width)(*arrays)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(got[ends], expected[ends])
        np.testing.assert_array_equal(np.signbit(got[ends]), np.signbit(expected[ends]))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@BOTH
def test_huge_angles_are_reduced_exactly(name: str, dtype: DType) -> None:
    largest = float(np.finfo(dtype.numpy).max)
    # the second is the float64 nearest to a multiple of pi / 2 beyond 2**20
    listed = [1e22, 6381956970095103.0 * 2.0**797, 1e30, 1e300, 2.0**1000 * 1.1, largest]
    numbers = np.array([v for v in listed if v <= largest], np.float64).astype(dtype.numpy)
    numbers = np.concatenate([numbers, -numbers, np.ones(3, dtype.numpy)])
    with mpmath.workprec(1400):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in numbers]
    for width in WIDTHS:
        got = compiled(name, dtype, width)(numbers)
        for number, ours, right in zip(numbers, got, exact, strict=True):
            unit = float(np.spacing(dtype.numpy.type(abs(float(right)))))
            assert abs(float(mpmath.mpf(float(ours)) - right)) <= 2 * unit, number


@BOTH
def test_denormals_come_in_and_go_out(dtype: DType) -> None:
    least = np.finfo(dtype.numpy).smallest_subnormal
    tiny = np.arange(1, 1000, dtype=dtype.numpy) * least
    low = np.linspace(-103, -88, 1000) if dtype is float32 else np.linspace(-745, -709, 1000)
    for width in WIDTHS:
        for name in ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1",
                     "log1p"):  # fmt: skip
            np.testing.assert_array_equal(compiled(name, dtype, width)(tiny), tiny)
        got = compiled("exp", dtype, width)(low.astype(dtype.numpy))
        assert (got > 0).all() and (got < np.finfo(dtype.numpy).tiny).sum() > 900


# --- code ----------------------------------------------------------------------------------------


@EACH
@BOTH
def test_all_fused_widths_give_the_same_bits(name: str, dtype: DType) -> None:
    arrays = samples(FUNCTIONS[name], dtype, 5_000)
    found = [compiled(name, dtype, width)(*arrays) for width in WIDTHS if width != "sse2"]
    for other in found[1:]:
        if dtype is float32 and name in vecmath.IN_PIECES:  # both are within the bound
            np.testing.assert_array_max_ulp(found[0], other, 3)
        else:
            np.testing.assert_array_equal(found[0], other)


def _scalar_text(name: str, dtype: DType, lanes: int) -> str:
    e = Emitter(lanes)
    values = [Val(a, dtype) for a in ("%a", "%b")[: FUNCTIONS[name].arity]]
    found = EXPANSIONS[name](e, dtype, values)
    kind = scalar_type(dtype)
    head = f"define {kind} @kernel({kind} %a, {kind} %b) {{\nentry:"
    return "\n".join([head, *e.lines, f"ret {kind} {found.text}", "}", *e.declared.values(), ""])


@pytest.mark.parametrize("name", list(EXPANDED))
@BOTH
def test_one_number_gives_the_bits_of_a_vector(name: str, dtype: DType) -> None:
    width = WIDTHS[-1]
    text = _scalar_text(name, dtype, VECTORS[width])
    code = load(compile_object([text, *library(text)], Target("x86_64", width)))
    kind = ctypes.c_float if dtype is float32 else ctypes.c_double
    call = ctypes.CFUNCTYPE(kind, kind, kind)(code["kernel"])
    numbers = np.array([0.3, 1.7, -0.8, 5.5, 1e9, 3e-39, -2.5, np.inf, 25.0], dtype.numpy)
    arrays = [numbers] * FUNCTIONS[name].arity
    expected = compiled(name, dtype, width)(*arrays)
    got = np.array([call(float(v), float(v)) for v in numbers], dtype.numpy)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", sorted(vecmath.IN_PIECES))
def test_pieces_meet_where_they_end(name: str) -> None:
    width = tables.WIDTHS.get(name)
    ends = (np.arange(16) + 0.5) * width if width else 2.0 ** np.arange(4)[:, None] * (
        1 + np.arange(4) / 4) - 1  # fmt: skip
    middle = ends.ravel().astype(np.float32)
    near = middle[:, None] + np.spacing(middle)[:, None] * np.arange(-40, 41, dtype=np.float32)
    numbers = near.ravel()[near.ravel() >= 0]
    for sign in (1, -1):
        (found,) = measure(FUNCTIONS[name], float32, WIDTHS[-1:], [numbers * np.float32(sign)])
        assert found.worst <= FUNCTIONS[name].bound


def test_functions_end_with_1() -> None:
    large = np.array([4.0, 9.05, 9.1, 1e5, 3e38, np.inf], np.float32)
    for width in WIDTHS:
        np.testing.assert_array_equal(compiled("tanh", float32, width)(large)[1:], 1)
        np.testing.assert_array_equal(compiled("erf", float32, width)(-large), -1)
        np.testing.assert_array_equal(compiled("erfc", float32, width)(-large), 2)


@EACH
@BOTH
def test_no_function_calls_the_c_library(name: str, dtype: DType) -> None:
    for width in ("sse2", "avx2", "avx512"):
        text = accuracy.text_of(name, dtype, VECTORS[width])
        for module in (text, *library(text)):
            assembly = compile_assembly(module, Target("x86_64", width))
            called = re.findall(
                r"^\s+(?:callq?|jmp)\s+\"?([A-Za-z_][\w.]*)", assembly, re.MULTILINE
            )
            assert all(symbol.startswith("vecmath.") for symbol in called), (width, called)


def test_a_library_module_stands_alone() -> None:
    text = accuracy.text_of("sin", float64, 16)
    (module,) = library(text)
    assert library(module) == ()
    assert "define internal" in module  # the reduction of huge angles
    assert library(accuracy.text_of("exp", float32, 16)) == ()


def test_a_changed_function_is_another_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    text = accuracy.text_of("tan", float64, 16)
    monkeypatch.setattr(vecmath, "_module", vecmath._module.__wrapped__)
    assert accuracy.text_of("tan", float64, 16) == text
    monkeypatch.setattr(tables, "COS_64", (0.0, *tables.COS_64[1:]))
    assert accuracy.text_of("tan", float64, 16) != text


def test_the_tables_are_what_the_fits_give() -> None:
    assert tables.__file__ is not None
    assert fit.TABLES.read_text(encoding="utf-8") == fit.module()


# --- whole kernels -------------------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    """No kernel of other vectors is left over, before or after."""
    fg.clear_caches()
    yield
    fg.clear_caches()


@pytest.mark.parametrize("vectors", WIDTHS)
def test_kernels_of_tensors_agree_with_numpy(vectors: str, fresh: None) -> None:
    x = np.random.default_rng(0).uniform(0.1, 3, (3, 37))
    with fg.config(device="cpu", tier="native", vectors=vectors):
        for kind, tolerance in ((np.float32, 1e-6), (np.float64, 1e-14)):
            t = fg.Tensor(x.astype(kind))
            wide = x.astype(kind).astype(np.float64)
            got = (fg.sin(t) * fg.exp(t) + fg.tan(t * 0.4), fg.atan2(t, t + 1), t**1.7, fg.erf(t))
            right = (np.sin(wide) * np.exp(wide) + np.tan(wide * 0.4), np.arctan2(wide, wide + 1),
                     wide**1.7, np.vectorize(accuracy.by_python("erf"))(wide))  # fmt: skip
            for ours, theirs in zip(got, right, strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=8 * tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_small_floats_of_tensors_are_rounded_results(name: str) -> None:
    dtype = {"float16": float16, "bfloat16": bfloat16}[name]
    x = np.linspace(-4, 4, 301).astype(np.float32).astype(dtype.numpy)
    with fg.config(device="cpu", tier="native"):
        got = fg.sin(fg.Tensor(x)).numpy()
    expected = compiled("sin", float32, WIDTHS[-1])(x.astype(np.float32)).astype(dtype.numpy)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


@BOTH
def test_sigmoid_is_within_the_bound_everywhere(dtype: DType) -> None:
    rng, wide = np.random.default_rng(0), np.float64 if dtype is float32 else np.longdouble
    ends = [-5.542755, -1000.0, 1000.0, -0.0, 0.0, np.inf, -np.inf, np.nan]
    spans = [(-104, 20), (-8, 8), (-2, 2)] if dtype is float32 else [(-745, 40), (-8, 8), (-2, 2)]
    numbers = np.concatenate([ends, *[rng.uniform(*span, 100_000) for span in spans]])
    x = numbers.astype(dtype.numpy)
    with fg.config(device="cpu", tier="native"):
        got = fg.sigmoid(fg.Tensor(x)).numpy()
    power = np.exp(-np.abs(x.astype(wide)))
    exact = np.where(x < 0, power, 1) / (1 + power)
    off = accuracy.errors(FUNCTIONS["tanh"], dtype, x, got, exact)
    assert off.max() <= 2, x[np.argmax(off)]
