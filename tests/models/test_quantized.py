"""Packed matrices: one kernel for a row, which reads packed bytes once; rows, splits, experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.models import Matrix
from fulgurite.models.finetune import Lora
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
    assert len(large) == 1 and large[0].bytes <= size + 4 * (2 * 512 + 64 + 128)
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


WORDS = [kind for kind in ENCODERS if BY_NAME[kind].words is not None]


@pytest.mark.device("first")
@pytest.mark.parametrize("kind", WORDS)
def test_products_of_whole_numbers_are_as_good_as_those_of_float32(kind: str) -> None:
    matrix, _ = made(kind, (24, 768))
    x = np.random.default_rng(2).normal(size=(3, 768)).astype(np.float32)
    x[1] *= np.exp(np.random.default_rng(3).normal(size=768) * 3)  # some far larger than others
    x[2, :512] = 0
    exact = matrix.values().numpy().astype(np.float64)
    wanted, size = x @ exact.T, np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    for count, bound in ((3, 1e-7), (2, 3e-5), (1, 8e-3)):
        found = replace(matrix, activation_bytes=count)
        many = found(fg.Tensor(x)).numpy()
        assert (np.abs(many - wanted) <= bound * size).all()
        for row in range(3):  # one alone has the bits that it has among others
            alone = found(fg.Tensor(x[row : row + 1])).numpy()
            assert np.array_equal(alone, many[row : row + 1])
    many = replace(matrix, activation_bytes=1)(fg.Tensor(np.resize(x, (18, 768)))).numpy()
    assert (np.abs(many[:3] - wanted) <= 4e-3 * size).all()  # in bfloat16


@pytest.mark.device("first")
@pytest.mark.parametrize("kind", WORDS)
def test_errors_of_one_byte_are_those_of_the_rows_times_the_values(kind: str) -> None:
    """Not times numbers that minima are taken from, which are far larger: sums are of what was
    rounded."""
    random = np.random.default_rng(5)
    matrix, _ = made(kind, (64, 1024))
    exact = matrix.values().numpy().astype(np.float64)
    x = random.normal(size=(8, 1024)).astype(np.float32)
    blocks = x.reshape(8, -1, BY_NAME[kind].count).astype(np.float64)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    rounded = (np.rint(blocks / scale) * scale).reshape(8, -1)
    found = replace(matrix, activation_bytes=1)(fg.Tensor(x)).numpy()
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    assert (np.abs(found - rounded @ exact.T) <= 2e-4 * size).all()  # but for ties of rounding
    error = np.sqrt(((found - x @ exact.T) ** 2).mean())
    assert error < 1.2 * np.sqrt(((rounded @ exact.T - x @ exact.T) ** 2).mean())


@pytest.mark.device("first")
@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_many_rows_meet_bfloat16_weights_as_bfloat16_if_one_byte_is_asked_for(rows: int) -> None:
    random = np.random.default_rng(6)
    weights = fg.Tensor(random.normal(size=(24, 96)).astype(np.float32)).astype(fg.bfloat16)
    x = random.normal(size=(rows, 96)).astype(np.float32)
    exact = weights.astype(fg.float32).numpy().astype(np.float64)
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    error = {
        count: (np.abs(Matrix(weights, activation_bytes=count)(fg.Tensor(x)).numpy()
                       - x @ exact.T) / size).max()
        for count in (3, 1)
    }  # fmt: skip
    assert error[3] < 1e-6 and error[1] < 2**-8
    assert (error[1] > 1e-5) == (rows > 16)  # few have the numbers that each has alone


@pytest.mark.device("first")
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("count", [1, 3])
def test_what_is_not_finite_stays_so_and_tiny_numbers_count(count: int, rows: int) -> None:
    matrix = replace(made("Q4_K", (8, 512))[0], activation_bytes=count)
    exact = matrix.values().numpy()
    x = np.full((rows, 512), 1e-30, np.float32)
    size = 512**0.5 * 1e-30 * np.linalg.norm(exact, axis=1)
    bound = size * (1e-5 if count == 3 else 8e-3)  # scales of so little are subnormal
    assert (np.abs(matrix(fg.Tensor(x)).numpy() - x @ exact.T) <= bound).all()
    for bad in (np.inf, np.nan):
        x[0, 3] = bad
        found = matrix(fg.Tensor(x)).numpy()
        assert not np.isfinite(found[0]).any() and np.isfinite(found[1:]).all()


@pytest.mark.device("first")
def test_a_row_times_a_packed_matrix_has_the_gradient_of_its_values() -> None:
    matrix, _ = made("Q4_K", (16, 256))
    for rows in (1, 4):
        x = fg.Tensor(np.random.default_rng(4).normal(size=(rows, 256)).astype(np.float32))
        got = fg.grad(lambda x: (matrix(x) ** 2).sum())(x).numpy()
        wanted = fg.grad(lambda x: ((x @ matrix.values().mT) ** 2).sum())(x).numpy()
        assert np.allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.device("first")
@pytest.mark.parametrize("count", [1, 3])
def test_a_large_matrix_is_unpacked_in_pieces_for_many_rows(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = made("Q4_K", (200, 256))
    bias = fg.Tensor(np.arange(200, dtype=np.float32))
    matrix = replace(whole, bias=bias, activation_bytes=count)
    random = np.random.default_rng(3)
    x = fg.Tensor(random.standard_normal((2, 20, 256)).astype(np.float32))
    expected = matrix(x).numpy()
    monkeypatch.setattr("fulgurite.models.quantized.PIECE", 64 * 256)
    assert [piece.shape[0] for piece in matrix.pieces(x)] == [64, 64, 64, 8]
    assert len(matrix.pieces(x[:1, :1])) == 1  # a row reads the bytes as they are
    found = matrix(x).numpy()
    assert found.shape == (2, 20, 200) and np.abs(found - expected).max() < 1e-4
    lora = Lora(matrix, fg.ones((2, 256)), fg.Tensor(np.arange(400).reshape(200, 2)), 0.5)
    parts = fg.concat([piece(x) for piece in lora.pieces(x)], axis=-1).numpy()
    assert np.abs(parts - lora(x).numpy()).max() <= 1e-5 * np.abs(parts).max()
