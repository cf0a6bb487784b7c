"""Packed matrices: one kernel for a row, which reads packed bytes once; rows, splits, experts."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.models import Matrix
from fulgurite.models.quantize import BY_NAME, ENCODERS, packed


def made(kind: str, shape: tuple[int, ...] = (64, 512)) -> tuple[Matrix, np.ndarray]:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return Matrix(fg.Tensor(packed(values, kind)), BY_NAME[kind]), values


@pytest.mark.device("none")
@pytest.mark.parametrize("kind", ENCODERS)
def test_a_row_times_a_packed_matrix_is_one_kernel_that_reads_its_bytes_once(kind: str) -> None:
    with fg.config(device="cpu"):
        matrix, _ = made(kind)
        x = fg.Tensor(np.ones((1, 512), np.float32))
        kernels = fg.explain(matrix(x)).kernels
    size = matrix.data.size
    large = [kernel for kernel in kernels if kernel.bytes >= size]
    assert len(large) == 1 and large[0].bytes <= size + 4 * (512 + 64 + 128)
    assert all(kernel.bytes <= 3 * 4 * 512 for kernel in kernels if kernel is not large[0])


@pytest.mark.device("first")
def test_rows_splits_and_experts_of_a_packed_matrix_are_its_values() -> None:
    matrix, values = made("Q8_0", (4, 16, 64))
    assert matrix.shape == (4, 16, 64)
    whole = matrix.values().numpy()
    assert np.abs(whole - values).max() < 0.02
    one = Matrix(matrix.data[1], matrix.quant)
    ids = fg.Tensor(np.array([[3, 0]], np.int32))
    assert np.array_equal(one.rows(ids).numpy(), whole[1][[[3, 0]]])
    assert np.array_equal(one.split([10, 6])[1].values().numpy(), whole[1, 10:])
    x = np.random.default_rng(1).normal(size=(4, 1, 64)).astype(np.float32)
    got = matrix(fg.Tensor(x)).numpy()  # a row for each expert
    assert np.allclose(got, x @ whole.swapaxes(1, 2), atol=1e-4)
    assert np.allclose(one(fg.Tensor(x)).numpy(), x @ whole[1].T, atol=1e-4)
