"""Tests of fulgurite/linalg.py against NumPy, with gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError, ShapeError
from fulgurite.functional.template import memo_of
from fulgurite.linalg import LinearAlgebraError


def matrices(*shape: int, dtype: str = "float64", seed: int = 0) -> Array:
    found = np.random.default_rng(seed).normal(size=shape)
    if dtype.startswith("complex"):
        found = found + 1j * np.random.default_rng(seed + 1).normal(size=shape)
    return found.astype(dtype)


def positive(*shape: int, dtype: str = "float64") -> Array:
    a = matrices(*shape, dtype=dtype)
    found: Array = a @ np.swapaxes(a, -1, -2).conj() + 3 * np.eye(shape[-1], dtype=dtype)
    return found


DTYPES = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(3, 3), (2, 4, 4), (2, 0, 3, 3), (0, 0), (1, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "eigvalsh", "cholesky", "svdvals"])
def test_functions_of_square_matrices_are_numpys(
    name: str, shape: tuple[int, ...], dtype: str
) -> None:
    a = positive(*shape, dtype=dtype)
    got = getattr(fg.linalg, name)(fg.Tensor(a))
    expected = getattr(np.linalg, name)(a)
    for mine, other in zip(
        got if isinstance(got, tuple) else [got],
        expected if isinstance(expected, tuple) else [expected],
        strict=True,
    ):
        assert mine.numpy().dtype == np.asarray(other).dtype and mine.shape == np.shape(other)
        tolerance = 1e-3 if dtype in ("float32", "complex64") else 1e-10
        np.testing.assert_allclose(mine.numpy(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_factors_multiply_to_the_matrix(shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(*shape, dtype=dtype)
    x = fg.Tensor(a)
    for mode in ("reduced", "complete"):
        q, r = fg.linalg.qr(x, mode=mode)
        assert (q.shape, r.shape) == tuple(p.shape for p in np.linalg.qr(a, mode))
        np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-5)
    u, s, vh = fg.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose((u * s[..., None, :].astype(u.dtype) @ vh).numpy(), a, atol=1e-5)
    full = fg.linalg.svd(x)
    assert full.U.shape[-1] == shape[-2] and full.Vh.shape[-1] == shape[-1]
    np.testing.assert_allclose(fg.linalg.pinv(x).numpy(), np.linalg.pinv(a), atol=1e-4)


def test_eigenvectors_belong_to_their_values() -> None:
    a = positive(2, 4, 4)
    values, vectors = fg.linalg.eigh(fg.Tensor(a))
    np.testing.assert_allclose(
        (fg.Tensor(a) @ vectors).numpy(), (vectors * values[:, None, :]).numpy(), atol=1e-9
    )
    b = matrices(4, 4)
    some, directions = fg.linalg.eig(fg.Tensor(b))
    assert some.dtype is fg.complex128
    np.testing.assert_allclose(
        b @ directions.numpy(), directions.numpy() * some.numpy()[None], atol=1e-9
    )


@pytest.mark.parametrize("b", [(4,), (4, 2), (3, 4, 2), (1, 4, 1)])
def test_systems_are_solved_for_vectors_and_stacks(b: tuple[int, ...]) -> None:
    a, right = positive(3, 4, 4), matrices(*b)
    got = fg.linalg.solve(fg.Tensor(a), fg.Tensor(right)).numpy()
    columns = right[:, None] if right.ndim == 1 else right
    expected = np.linalg.solve(a, np.broadcast_to(columns, (3, 4, columns.shape[-1])))
    np.testing.assert_allclose(got, expected[..., 0] if right.ndim == 1 else expected, rtol=1e-9)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_of_matrices_are_numpys(ord: Any, keepdims: bool) -> None:
    a = matrices(2, 3, 4)
    got = fg.linalg.matrix_norm(fg.Tensor(a), ord=ord, keepdims=keepdims).numpy()
    expected = np.linalg.norm(a, ord, axis=(-2, -1), keepdims=keepdims)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("ord", [0, 1, 2, 3, 0.5, -1, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 0, (0, 2), -1])
def test_norms_of_vectors_are_numpys(ord: float, axis: Any) -> None:
    a = matrices(2, 3, 4)
    got = fg.linalg.vector_norm(fg.Tensor(a), axis=axis, ord=ord).numpy()
    moved = a.ravel() if axis is None else a
    if axis == (0, 2):
        moved, axis = np.moveaxis(a, 1, 0).reshape(3, -1), -1
    np.testing.assert_allclose(got, np.linalg.norm(moved, ord, axis=axis), rtol=1e-9)


def test_the_rest_are_numpys() -> None:
    a, b = matrices(2, 3), matrices(2, 3, seed=5)
    x, y = fg.Tensor(a), fg.Tensor(b)
    np.testing.assert_allclose(fg.linalg.cross(x, y).numpy(), np.cross(a, b))
    square = matrices(3, 3)
    for n in (0, 1, 2, 5, -3):
        np.testing.assert_allclose(
            fg.linalg.matrix_power(fg.Tensor(square), n).numpy(),
            np.linalg.matrix_power(square, n), rtol=1e-8,
        )  # fmt: skip
    np.testing.assert_allclose(fg.linalg.trace(fg.Tensor(square)).item(), np.trace(square))
    np.testing.assert_allclose(fg.linalg.norm(x).item(), np.linalg.norm(a))
    np.testing.assert_allclose(fg.linalg.norm(x, "nuc").item(), np.linalg.norm(a, "nuc"))
    low = np.outer([1.0, 2, 3], [4.0, 5])
    assert fg.linalg.matrix_rank(fg.Tensor(low)).item() == 1
    assert fg.linalg.matrix_rank(fg.Tensor(np.eye(3) * [1, 1e-3, 1]), rtol=0.1).item() == 2


GRADIENTS: dict[str, Callable[[fg.Tensor], Any]] = {
    "inv": fg.linalg.inv,
    "det": fg.linalg.det,
    "slogdet": lambda a: fg.linalg.slogdet(a).logabsdet,
    "cholesky": lambda a: fg.linalg.cholesky((a + a.mT) * 0.5),
    "solve": lambda a: fg.linalg.solve(a, a[..., :2] * 2 + 1),
    "qr": lambda a: sum(fg.linalg.qr(a)),
    "eigvalsh": lambda a: fg.linalg.eigvalsh((a + a.mT) * 0.5),
    "eigh": lambda a: fg.linalg.eigh((a + a.mT) * 0.5).eigenvectors ** 2,
    "svdvals": fg.linalg.svdvals,
    "svd": lambda a: (fg.linalg.svd(a, False).U ** 2)
    + fg.linalg.svd(a, False).Vh ** 2,
    "tall svd": lambda a: fg.linalg.svd(a[..., :2], False).U ** 2,
    "wide svd": lambda a: fg.linalg.svd(a[..., :2, :], False).Vh ** 2,
    "pinv": lambda a: fg.linalg.pinv(a[..., :2]),
    "norm": lambda a: fg.linalg.matrix_norm(a, ord="nuc"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(GRADIENTS))
def test_gradients_agree_with_finite_differences(name: str) -> None:
    a = positive(2, 3, 3) + matrices(2, 3, 3, seed=9) * 0.3
    weights: dict[int, Array] = {}

    def loss(x: fg.Tensor) -> fg.Tensor:
        y = GRADIENTS[name](x)
        w = weights.setdefault(0, matrices(*y.shape, seed=3))
        total: fg.Tensor = (y * fg.Tensor(w)).sum()
        return total

    got = fg.grad(loss)(fg.Tensor(a)).numpy()
    expected = np.zeros_like(a)
    for place in np.ndindex(a.shape):
        step = np.zeros_like(a)
        step[place] = 1e-6
        up, down = (loss(fg.Tensor(a + s)).item() for s in (step, -step))
        expected[place] = (float(up) - float(down)) / 2e-6  # type: ignore[arg-type]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_mistakes_are_told_with_what_to_do() -> None:
    with pytest.raises(ShapeError, match="square matrices"):
        fg.linalg.inv(fg.ones((2, 3)))
    with pytest.raises(ShapeError, match="2 dimensions"):
        fg.linalg.svd(fg.ones(3))
    with pytest.raises(LinearAlgebraError, match=r"fg\.linalg\.inv: Singular"):
        fg.linalg.inv(fg.zeros((2, 2))).numpy()
    with pytest.raises(LinearAlgebraError, match="NaN and infinities"):
        fg.linalg.svdvals(fg.full((2, 2), fg.nan)).numpy()
    with pytest.raises(LinearAlgebraError, match=r"(?s)cholesky.*eigenvalues are all above 0"):
        fg.linalg.cholesky(-fg.eye(2)).numpy()
    with pytest.raises(ArgumentError, match="reduced"):
        fg.linalg.qr(fg.eye(2), mode="r")
    with pytest.raises(ArgumentError, match="ord is"):
        fg.linalg.matrix_norm(fg.eye(2), ord=7)
    with pytest.raises(ShapeError, match="rows of both"):
        fg.linalg.solve(fg.eye(3), fg.ones((2, 2)))


def test_small_floats_come_back_in_their_dtype() -> None:
    a = fg.Tensor(positive(3, 3), dtype="bfloat16")
    assert fg.linalg.inv(a).dtype is fg.bfloat16
    assert fg.linalg.inv(fg.Tensor([[2, 0], [0, 4]])).tolist() == [[0.5, 0.0], [0.0, 0.25]]


def test_factors_are_computed_once_for_all_results() -> None:
    x = fg.Tensor(positive(3, 3))
    u, s, vh = fg.linalg.svd(x)
    items = fg.schedule(u, s, vh).items
    assert sum(item.kernel.kind == "host" for item in items) == 1


@pytest.mark.parametrize("name", ["solve", "inv", "det", "cholesky"])
def test_steps_of_the_host_are_built_from_memory(name: str) -> None:
    function, a = getattr(fg.linalg, name), positive(4, 4)
    memo = memo_of(function)
    b = (matrices(4),) if name == "solve" else ()
    for number in (1, 2, 3, 4):
        before = memo.made
        found = function(fg.Tensor(a * number), *map(fg.Tensor, b))
        np.testing.assert_allclose(found.numpy(), getattr(np.linalg, name)(a * number, *b))
    assert memo.made == before, "the third and later ones"
    slope = fg.grad(lambda x: function(x, *map(fg.Tensor, b)).sum())(fg.Tensor(a))
    assert np.isfinite(slope.numpy()).all()
    singular = fg.Tensor(np.zeros((4, 4)))
    if name != "det":
        with pytest.raises(LinearAlgebraError, match=name):
            function(singular, *map(fg.Tensor, b)).numpy()
