"""Tests of fulgurite/codegen/cpu/gemm/gemv.py: one row times a matrix, whichever way it lies."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.gemv import gemv_axpy, gemv_dot
from fulgurite.codegen.cpu.gemm.microkernel import Registers
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.target import target
from fulgurite.codegen.cpu.tiling import GEMM
from fulgurite.core.dtype import float32

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import rendered_kernels, run
from tests.properties import kernel

COLUMNS = GEMM.gemv_sums_columns
ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
             ctypes.c_int64, ctypes.c_bool)  # fmt: skip


@kernel
@given(
    st.one_of(st.integers(1, 400), st.integers(COLUMNS - 3, 2 * COLUMNS + 3)), st.integers(1, 1500),
    st.booleans(), st.sampled_from([np.float32, np.float64, np.int32, np.float16, np.int8]),
    st.sampled_from(["auto", "avx2", "sse2"]), st.integers(0, 99),
)  # fmt: skip
@example(300, 3000, False, np.float32, "auto", 0)  # k in chunks
@example(5000, 300, False, np.int32, "auto", 0)  # and two tiles of columns
@example(19, 2047, True, np.float16, "auto", 0)  # columns one after the other
@example(19, 9001, True, np.float32, "auto", 0)  # too long for that: x would leave L1
def test_a_vector_times_a_matrix_agrees_with_wide_numbers(
    n: int, k: int, turned: bool, dtype: Any, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, k).astype(dtype)
    y = rng.integers(-9, 9, (n, k + 2) if turned else (k, n + 2)).astype(dtype)
    used = y[:, :k].T if turned else y[:, :n]
    beside = {np.int8: 100, np.float16: np.inf}.get(dtype, 10**6)  # what does not matter
    (y[:, k:] if turned else y[:, n:])[...] = beside
    wide = {np.int8: fg.int32, np.float16: fg.float32}.get(dtype)
    a, b = fg.Tensor(x, device="cpu"), fg.Tensor(y, device="cpu").realize()
    b = b[:, :k].T if turned else b[:, :n]
    lazy = a @ b if wide is None else a.astype(wide) @ b.astype(wide)
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    assert np.array_equal(found.reshape(n), x.astype(np.int64) @ used.astype(np.int64))


@pytest.mark.parametrize(("turned", "module"), [(False, gemv_axpy), (True, gemv_dot)])
def test_a_matrix_is_read_along_its_memory(turned: bool, module: Any) -> None:
    if target().vectors == "sse2":
        pytest.skip("plain loops")
    x = fg.ones((300,), device="cpu").realize()
    y = fg.ones((500, 300) if turned else (300, 500), device="cpu").realize()
    (found,) = rendered_kernels(x @ (y.T if turned else y))
    assert module(Registers(float32, target()), (float32, float32)).text in found.library


@pytest.mark.parametrize("depth", [5, 24, 67])
def test_rows_are_added_in_the_order_of_panels(depth: int) -> None:
    rng = np.random.default_rng(0)
    module = gemv_axpy(Registers(float32, target()), (float32, float32))
    call = ctypes.CFUNCTYPE(None, *ARGUMENTS)(load(compile_object([module.text], target()))[
        module.name
    ])  # fmt: skip
    x, y = (rng.standard_normal(s).astype(np.float32) for s in (depth, (depth, 700)))

    def sums(each: int) -> Any:
        found = np.empty(700, np.float32)
        for start in range(0, 700, each):
            call(x.ctypes.data, y.ctypes.data + 4 * start, 700, found.ctypes.data + 4 * start,
                 depth, min(each, 700 - start), True)  # fmt: skip
        return found

    assert np.array_equal(sums(700), sums(target().lanes))  # some rows at a time, or all of a panel
    np.testing.assert_allclose(sums(700), x.astype(np.float64) @ y, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("vectors", ["auto", "avx2", "sse2"])
@pytest.mark.parametrize("depth", [64, 100, 300])
def test_a_column_has_the_same_sum_alone_and_beside_others(vectors: str, depth: int) -> None:
    machine, rng = target(vectors), np.random.default_rng(0)
    module = gemv_dot(Registers(float32, machine), (float32, float32))
    place = load(compile_object([module.text], machine))[module.name]
    call = ctypes.CFUNCTYPE(None, *ARGUMENTS)(place)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in (depth, (19, depth)))

    def sums(matrix: Any) -> Any:
        found = np.ones(len(matrix), np.float32)
        for first in (True, False):  # put there, then added
            call(x.ctypes.data, matrix.ctypes.data, depth, found.ctypes.data, depth, len(matrix),
                 first)  # fmt: skip
        return found

    together = sums(y)
    assert np.array_equal(together, np.concatenate([sums(row[None]) for row in y]))
    np.testing.assert_allclose(together, 2 * (y.astype(np.float64) @ x), rtol=1e-6, atol=1e-5)


def test_lanes_of_several_columns_are_summed_together() -> None:
    if target().lanes < 8:
        pytest.skip("few lanes")
    text = gemv_dot(Registers(float32, target()), (float32, float32)).text
    sums = [line for line in text.splitlines() if line.lstrip().startswith("store")]
    assert len(sums) == 3  # of eight columns, and of one in each of both loops
    assert "store <8 x float>" in sums[1]
