"""Tests of fulgurite/codegen/cpu/irregular/sort.py: the stable order in machine code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, float32, int32, int64
from fulgurite.core.ops.elementwise import NEG
from fulgurite.core.ops.leaf import param, variable

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.tiling import CPU
from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import agree, hostile, results
from tests.properties import program

REAL = [d for d in DTYPES if d.kind != "c"]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_order_is_stable_with_nan_at_its_end(dtype: DType, descending: bool) -> None:
    for shape, axis in (((1,), 0), ((3, 31), 1), ((2, 200), 1), ((70, 3), 0), ((2, 40, 5), 1)):
        x = hostile(dtype, shape, sum(shape))
        agree(build.sort_order(param(0, shape, dtype), axis, descending), [x])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_small_float], ids=str)
def test_every_small_float_has_its_place(dtype: DType) -> None:
    kind = np.uint8 if dtype.bits == 8 else np.uint16
    x = np.random.default_rng(0).permutation(1 << dtype.bits).astype(kind).view(dtype.numpy)
    for descending in (False, True):
        agree(build.sort_order(param(0, x.shape, dtype), 0, descending), [x])


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", [float32, int64, int32], ids=str)
def test_long_rows_are_cut_in_blocks_that_any_thread_may_take(dtype: DType, vectors: str) -> None:
    shape = (2, CPU.sort.long_elements + 77)
    x = hostile(dtype, shape, 1)
    if dtype is int64:
        x = np.random.default_rng(1).integers(*dtype.limits, shape)
    for descending in (False, True):
        root = build.sort_order(param(0, shape, dtype), 1, descending)
        got, meant, rendered = results(root, [x], vectors)
        np.testing.assert_array_equal(got, meant)
        assert len(rendered.launches) > 3


def test_numbers_that_share_digits_need_fewer_moves_and_come_out_right() -> None:
    n = CPU.sort.long_elements
    for x in (np.zeros(n, np.int32), np.arange(n, dtype=np.int32) % 5, np.full(n, -7, np.int32)):
        for descending in (False, True):
            agree(build.sort_order(param(0, (n,), int32), 0, descending), [x])


def test_what_is_sorted_may_be_computed_and_moved() -> None:
    shape = (4, 50, 6)
    x = hostile(float32, shape, 2)
    source = NEG(build.permute(param(0, shape, float32), (2, 0, 1)))
    for axis in range(3):
        root = build.sort_order(source, axis)
        agree(root, [x])
        agree(build.permute(root, (1, 2, 0)), [x])


@program
@given(
    rows=st.integers(1, 4), most=st.integers(1, 90), part=st.floats(0, 1),
    descending=st.booleans(), seed=st.integers(0, 99), vectors=st.sampled_from(VECTORS),
    dtype=st.sampled_from([float32, int64, int32]),
)  # fmt: skip
def test_rows_whose_length_varies_are_sorted_as_far_as_they_go(
    rows: int, most: int, part: float, descending: bool, seed: int, vectors: str, dtype: DType
) -> None:
    size = variable("n", 0, most)
    n = int(part * most)
    x = hostile(dtype, (rows, most), seed)
    root = build.sort_order(param(0, (rows, size), dtype), 1, descending)
    got, meant, _ = results(root, [x], vectors, {"n": n})
    np.testing.assert_array_equal(got.reshape(rows, most)[:, :n], meant.reshape(rows, most)[:, :n])
