"""Tests of fulgurite/runtime/cpu/blas.py: NumPy's BLAS, only where bits may vary."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.cpu import blas
from fulgurite.runtime.cpu.blas import BlasGemm

Array = np.ndarray[Any, Any]
carried = pytest.mark.skipif(blas.carried() is None, reason="this NumPy carries no BLAS")


def steps(tensor: fg.Tensor) -> list[bool]:
    """Which kernels of a plan are a library's."""
    return [isinstance(k.code, BlasGemm) for k in fg.schedule(tensor).compile().kernels]


def factors(shape: tuple[int, ...], other: tuple[int, ...], dtype: Any = np.float32) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in (shape, other)]


@carried
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_library_gives_the_same_product(transposed: tuple[bool, bool], dtype: Any) -> None:
    a, b = factors(
        (200, 150) if transposed[0] else (150, 200),
        (130, 200) if transposed[1] else (200, 130),
        dtype,
    )
    x, y = fg.Tensor(a, device="cpu"), fg.Tensor(b, device="cpu")
    with fg.config(deterministic=False, poison=True):
        lazy = (x.T if transposed[0] else x) @ (y.T if transposed[1] else y)
        assert steps(lazy) == [True]
        found = fg.schedule(lazy).run()[0].numpy()
    wide = [
        v.astype(np.float64) for v in (a.T if transposed[0] else a, b.T if transposed[1] else b)
    ]
    limit = 4 * np.finfo(dtype).eps * (np.abs(wide[0]) @ np.abs(wide[1])).max()
    assert np.abs(found - wide[0] @ wide[1]).max() <= limit


@carried
def test_batches_and_parts_of_matrices_are_read_where_they_are() -> None:
    a, b = factors((3, 100, 240), (3, 240, 160))
    x, y = fg.Tensor(a, device="cpu"), fg.Tensor(b, device="cpu")
    with fg.config(deterministic=False):
        lazy = x[:, 10:, :230] @ y[:, 5:235, 8:]
        assert any(steps(lazy))
        found = fg.schedule(lazy).run()[0].numpy()
    np.testing.assert_allclose(found, a[:, 10:, :230] @ b[:, 5:235, 8:], rtol=1e-4, atol=1e-4)


@carried
def test_an_epilogue_keeps_a_product_in_our_own_kernels() -> None:
    a, b = factors((150, 200), (200, 130))
    x, y = fg.Tensor(a, device="cpu"), fg.Tensor(b, device="cpu")
    with fg.config(deterministic=False):
        assert steps(fg.relu(x @ y + 1)) == [False]
        assert steps(x[:20, :20] @ y[:20, :20]) == [False]


def test_the_default_asks_no_library() -> None:
    a, b = factors((150, 200), (200, 130))
    x, y = fg.Tensor(a, device="cpu"), fg.Tensor(b, device="cpu")
    with fg.config(deterministic=False):
        steps(x @ y)
    assert steps(x @ y) == [False]
    with fg.config(deterministic=False, exact=True):
        assert steps(x @ y) == [False]


def test_without_a_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = factors((151, 200), (200, 131))
    x, y = fg.Tensor(a, device="cpu"), fg.Tensor(b, device="cpu")
    monkeypatch.setattr(blas, "function", lambda dtype: None)
    with fg.config(deterministic=False):
        lazy = x @ y
        assert steps(lazy) == [False]
        np.testing.assert_allclose(fg.schedule(lazy).run()[0].numpy(), a @ b, rtol=1e-3, atol=1e-3)


@carried
def test_explain_says_which_kernels_a_library_runs() -> None:
    a, b = factors((150, 200), (200, 130))
    lazy = fg.Tensor(a, device="cpu") @ fg.Tensor(b, device="cpu")
    for search in (True, False):
        with fg.config(deterministic=False, device="cpu", search=search):
            assert fg.explain(lazy).kernels[0].reason.count("BLAS") == 1
    assert "BLAS" not in fg.explain(lazy).kernels[0].reason


@carried
def test_a_schedule_holds_library_products_beside_our_kernels() -> None:
    a, b = factors((150, 200), (200, 130))
    x, y = fg.Tensor(a, device="cpu"), fg.Tensor(b, device="cpu")
    with fg.config(deterministic=False):
        lazy = fg.softmax((x * 2).contiguous() @ y, axis=-1)
        kinds = steps(lazy)
        assert True in kinds and False in kinds
        found = fg.schedule(lazy).run()[0].numpy()
    wide = (a.astype(np.float64) * 2) @ b
    wide = np.exp(wide - wide.max(-1, keepdims=True))
    np.testing.assert_allclose(found, wide / wide.sum(-1, keepdims=True), rtol=1e-3, atol=1e-5)
