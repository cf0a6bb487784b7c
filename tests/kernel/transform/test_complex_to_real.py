"""Tests of fulgurite/kernel/transform/complex_to_real.py: complex numbers as pairs of reals."""

import numpy as np
import pytest

from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, bool_, complex64, complex128, float32, int32
from fulgurite.core.node import constant
from fulgurite.core.ops.elementwise import ADD, CAST, DIV, EQ, EXP, MUL, NE, NEG, SUB, WHERE
from fulgurite.core.ops.indexing import gather, scatter
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.reduce import reduce_node, scan_node
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.kernel.transform.complex_to_real import complex_to_real

pytest.importorskip("llvmlite")

from tests.codegen.cpu.parity import Array, agree, hostile, results

BOTH = (complex64, complex128)
SHAPE = (3, 21)


def numbers(dtype: DType, seed: int) -> Array:
    """Complex numbers, some parts of which are 0 or infinite."""
    x = hostile(dtype, SHAPE, seed)
    part = x.view(np.float32 if dtype is complex64 else np.float64)
    rng = np.random.default_rng(seed)
    part[rng.random(part.shape) < 0.2] = 0
    return x


def near(got: Array, meant: Array) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, meant, rtol=3e-6 if got.itemsize == 8 else 1e-14, atol=1e-6)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_sums_and_differences_are_exact_and_products_near(dtype: DType) -> None:
    x, y = param(0, SHAPE, dtype), param(1, SHAPE, dtype)
    inputs = [numbers(dtype, 1), numbers(dtype, 2)]
    for op in (ADD, SUB):
        agree(op(x, y), inputs)
    agree(NEG(x), inputs[:1])
    for op in (MUL, DIV):
        got, meant, _ = results(op(x, y), inputs)
        near(got, meant)


def test_division_does_not_overflow_on_the_way() -> None:
    a = np.array([1e30 + 1e30j, 1 + 0j, 3e38 + 1j, 0j, 1 + 1j], np.complex64)
    b = np.array([1e30 - 1e30j, 1e-30 + 0j, 3e38 - 1j, 0j, 0j], np.complex64)
    got, meant, _ = results(DIV(param(0, (5,), complex64), param(1, (5,), complex64)), [a, b])
    np.testing.assert_allclose(got[:3], meant[:3], rtol=1e-6)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(meant))


@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_comparing_and_choosing(dtype: DType) -> None:
    x, y = param(0, SHAPE, dtype), param(1, SHAPE, dtype)
    a = numbers(dtype, 1)
    b = np.where(np.random.default_rng(0).random(SHAPE) < 0.5, a, numbers(dtype, 2))
    agree(EQ(x, y), [a, b])
    agree(NE(x, y), [a, b])
    agree(WHERE(EQ(x, y), x, NEG(y)), [a, b])
    agree(ADD(x, constant(2 - 3j, dtype, SHAPE)), [a])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_conversion_to_and_from_every_dtype(dtype: DType) -> None:
    for other in BOTH:
        if other is not dtype:
            x = numbers(dtype, 3) if dtype.kind == "c" else hostile(dtype, SHAPE, 3)
            agree(CAST(param(0, SHAPE, dtype), arg=other), [x])
        if dtype.kind != "c":
            agree(CAST(param(0, SHAPE, other), arg=dtype), [numbers(other, 4)])


def test_moving_gathering_summing_and_scattering() -> None:
    x = numbers(complex64, 5)
    root = param(0, SHAPE, complex64)
    agree(build.permute(root, (1, 0)), [x])
    agree(build.pad(root, [(1, 0), (0, 2)]), [x])
    index = np.random.default_rng(1).integers(0, 3, (7, 21)).astype(np.int32)
    agree(gather(root, param(1, (7, 21), int32), 0), [x, index])
    for made in (reduce_node("add", root, (1,)), scan_node("add", root, 1)):
        got, meant, _ = results(made, [x])
        near(got, meant)
    values = np.ones((7, 21), np.complex64) * (1 + 2j)
    places = param(1, (7, 21), int32), param(2, (7, 21), complex64)
    for mode in ("set", "add"):
        got, meant, _ = results(scatter(mode, root, *places, 0), [x, index, values])
        near(got, meant)


def test_what_has_no_form_in_pairs_says_so() -> None:
    x = param(0, SHAPE, complex64)
    for root in (EXP(x), reduce_node("mul", x, (1,))):
        with pytest.raises(CannotLower, match="complex"):
            complex_to_real(lower(SINK(root), 1), [complex64, complex64])


def test_a_kernel_of_real_numbers_is_left_alone() -> None:
    kernel = lower(SINK(NEG(param(0, SHAPE, float32))), 1)
    assert complex_to_real(kernel, [float32, float32]) == (kernel, (float32, float32))
    assert complex_to_real(kernel, [bool_, bool_])[0] is kernel
