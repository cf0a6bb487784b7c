"""Tests of fulgurite/codegen/cpu/gemm/plan.py: what is packed fits the room that is made for it.

Values are checked by test_template.py; the launcher finds writes beyond a workspace.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.target import target

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import run
from tests.properties import kernel


@kernel
@given(
    st.integers(9, 600), st.integers(1, 5000), st.sampled_from(["strided", "relu", "cast"]),
    st.sampled_from([np.float32, np.float64, np.int32]), st.sampled_from(["auto", "avx2", "sse2"]),
    st.integers(0, 99),
)  # fmt: skip
@example(100, 2048, "relu", np.float32, "auto", 0)
@example(11, 2500, "strided", np.float64, "avx2", 0)
def test_a_vector_of_any_length_that_is_packed_fits_its_room(
    n: int, k: int, how: str, dtype: Any, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-9, 9, (k, 3)).astype(dtype), rng.integers(-9, 9, (n, k)).astype(dtype)
    left, right = a[:, 1], b.astype(np.int64)
    x = fg.Tensor(a, device="cpu")[:, 1] if how == "strided" else fg.Tensor(left, device="cpu")
    if how == "relu":
        x, left = fg.relu(x), np.maximum(left, 0)
    elif how == "cast":
        x = fg.Tensor(left.astype(np.int8), device="cpu").astype(x.dtype)
    lazy = (x[None] @ fg.Tensor(b, device="cpu").T)[0]
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    assert np.array_equal(found, right @ left.astype(np.int64))


@pytest.mark.parametrize("columns", [320, 500, 512, 530, 1100])
def test_tiles_that_are_nearly_equal_have_all_columns(columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = [rng.integers(-9, 9, s).astype(np.float32) for s in ((120, 300), (300, columns))]
    c = rng.integers(-9, 9, columns).astype(np.float32)
    x, y, z = [fg.Tensor(array, device="cpu") for array in (a, b, c)]
    for lazy, wanted in ((x @ y, a @ b), (fg.relu(x @ y + z), np.maximum(a @ b + c, 0))):
        (found,), _ = run(lazy, seed=1)
        assert np.array_equal(found, wanted)
    both, _ = run(x @ y + z, (x @ y + z) * 2, seed=1)
    assert np.array_equal(both[1], 2 * both[0]) and np.array_equal(both[0], a @ b + c)


@kernel
@given(st.integers(9, 300), st.integers(40, 700), st.integers(60, 700), st.integers(0, 99))
@example(217, 65, 300, 0)
@example(9, 2000, 600, 0)
@example(75, 500, 257, 0)
def test_columns_that_are_packed_on_the_way_fit_their_room(
    m: int, n: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = [rng.integers(-9, 9, s).astype(np.float32) for s in ((m, k), (k, n))]
    x, y = [fg.Tensor(array, device="cpu") for array in (a, b)]
    (found,), _ = run(x @ y, seed=seed)
    assert np.array_equal(found, a @ b)


@pytest.mark.parametrize(
    "sizes", [(5, 32, 32, 32), (3, 17, 70, 100), (1, 9, 33, 47), (2, 1, 7, 64)]
)
def test_small_products_along_k_are_summed_along_lanes_at_once(sizes: tuple[int, ...]) -> None:
    batch, m, n, k = sizes
    rng = np.random.default_rng(k)
    a, b = [rng.integers(-9, 9, (batch, rows, k)).astype(np.float32) for rows in (m, n)]
    x, y = [fg.Tensor(array, device="cpu") for array in (a, b)]
    for machine in ("auto", "avx2"):
        (found,), (text,) = run(x @ y.mT, seed=k, machine=target(machine))
        assert np.array_equal(found, a @ b.swapaxes(1, 2))
        assert len(text.launches) == 1 or not target(machine).has_masks  # no chunks to join
