"""Tests of fulgurite/codegen/cpu/irregular/scan.py: running folds in machine code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, float32, float64, int32
from fulgurite.core.node import Node
from fulgurite.core.ops.elementwise import NEG
from fulgurite.core.ops.leaf import param

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.tiling import CPU
from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import Array, agree, hostile, results
from tests.properties import program

REAL = [d for d in DTYPES if d.kind in "iuf"]
SHAPES = [((1,), 0), ((), 0), ((17,), 0), ((3, 64), 1), ((5, 33), 1), ((33, 5), 0), ((4, 7, 70), 1)]


def scan(name: str, x: Node, axis: int, reverse: bool) -> Node:
    if x.ndim == 0:
        x = build.reshape(x, (1,))
    return build.scan(name, x, axis, reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_extremes_and_whole_numbers_have_the_bits_of_the_reference(
    dtype: DType, reverse: bool
) -> None:
    names = ("max", "min", "add", "mul") if dtype.kind in "iu" else ("max", "min", "mul")
    for seed, (shape, axis) in enumerate(SHAPES):
        for name in names:
            root = scan(name, param(0, shape, dtype), axis, reverse)
            agree(root, [hostile(dtype, shape, seed)])


@pytest.mark.parametrize("name", ["max", "min"])
def test_truths_are_scanned(name: str) -> None:
    truth = next(d for d in DTYPES if d.kind == "b")
    for seed in range(5):
        root = scan(name, param(0, (3, 37), truth), 1, bool(seed % 2))
        agree(root, [hostile(truth, (3, 37), seed)])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind == "f"], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_affine_scans_have_the_bits_of_the_reference(dtype: DType, reverse: bool) -> None:
    for shape, axis in SHAPES[2:]:
        a, b = param(0, shape, dtype), param(1, shape, dtype)
        root = build.affine_scan(a, b, axis, reverse)
        agree(root, [hostile(dtype, shape, 1), hostile(dtype, shape, 2)])


def sums(x: Array, axis: int, reverse: bool) -> tuple[Array, Array]:
    """Running sums in float64, and those of magnitudes."""
    wide = x.astype(np.float64)
    if reverse:
        wide = np.flip(wide, axis)
    with np.errstate(all="ignore"):
        found = np.add.accumulate(wide, axis=axis), np.add.accumulate(np.abs(wide), axis=axis)
    return (np.flip(found[0], axis), np.flip(found[1], axis)) if reverse else found


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind == "f"], ids=str)
def test_float_sums_lose_no_more_than_one_rounding(dtype: DType, vectors: str) -> None:
    eps = {"float64": 1e-14, "float32": 7e-8, "bfloat16": 4e-3, "float16": 5e-4}.get(dtype.name, 1)
    for seed, (shape, axis) in enumerate(SHAPES[2:]):
        x = np.random.default_rng(seed).normal(size=shape).astype(dtype.numpy)
        for reverse in (False, True):
            root = scan("add", param(0, shape, dtype), axis, reverse)
            got, _, _ = results(root, [x], vectors)
            want, size = sums(x, axis, reverse)
            error = np.abs(got.astype(np.float64).reshape(shape) - want)
            assert np.all(error <= eps * np.abs(want) + 1e-13 * size + 1e-30)


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_with_infinities_and_nan_have_them_from_there_on(reverse: bool) -> None:
    for at, value in ((0, np.inf), (20, -np.inf), (39, np.nan)):
        x = np.ones((2, 40), np.float32)
        x[1, at] = value
        got, meant, _ = results(scan("add", param(0, (2, 40), float32), 1, reverse), [x])
        np.testing.assert_array_equal(got, meant)


def test_a_sum_of_negative_zeros_stays_negative() -> None:
    x = np.full((2, 40), -0.0, np.float32)
    got, _, _ = results(scan("add", param(0, (2, 40), float32), 1, False), [x])
    assert np.all(np.signbit(got))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("extra", [0, 1, 4097])
def test_long_rows_are_cut_in_blocks_that_any_thread_may_take(extra: int, reverse: bool) -> None:
    shape = (2, CPU.scan.long_elements + extra)
    x = hostile(int32, shape, 3)
    root = scan("add", param(0, shape, int32), 1, reverse)
    got, meant, rendered = results(root, [x])
    np.testing.assert_array_equal(got, meant)
    assert [p.symbol.rpartition("_")[2] for p in rendered.launches] == [
        "folds",
        "joined",
        "scanned",
    ]
    y = np.random.default_rng(1).normal(size=shape)
    found, _, _ = results(scan("add", param(0, shape, float64), 1, reverse), [y])
    want, size = sums(y, 1, reverse)
    assert np.all(np.abs(found.reshape(shape) - want) <= 1e-14 * size)
    top = hostile(float32, shape, 4)
    agree(scan("max", param(0, shape, float32), 1, reverse), [top])


def test_what_is_read_may_be_computed_and_moved() -> None:
    shape = (4, 5, 6)
    x = hostile(float32, shape, 5)
    for axis in range(3):
        moved = build.permute(param(0, shape, float32), (2, 0, 1))
        root = scan("max", NEG(moved), axis, False)
        agree(root, [x])
        agree(build.permute(scan("min", param(0, shape, float32), axis, True), (1, 2, 0)), [x])
        agree(build.flip(scan("min", param(0, shape, float32), axis, True), ((axis + 1) % 3,)), [x])


@program
@given(
    rows=st.integers(1, 3), n=st.integers(1, 200), inner=st.sampled_from([1, 1, 3, 16, 65]),
    reverse=st.booleans(), seed=st.integers(0, 99), vectors=st.sampled_from(VECTORS),
)  # fmt: skip
def test_any_size_agrees(
    rows: int, n: int, inner: int, reverse: bool, seed: int, vectors: str
) -> None:
    shape = (rows, n, inner)
    agree(scan("add", param(0, shape, int32), 1, reverse), [hostile(int32, shape, seed)], vectors)
    agree(
        scan("max", param(0, shape, float32), 1, reverse), [hostile(float32, shape, seed)], vectors
    )
