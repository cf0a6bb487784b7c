"""Products of bfloat16 by pairs along k: every layout, odd sizes, and numbers that are hostile."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.strategies import plan_gemm
from fulgurite.codegen.cpu.target import Target, target

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import Array, lowered, run

pytestmark = pytest.mark.device("none")
HAS_PAIRS = "avx512_bf16" in target().features
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="needs a processor with AVX512-BF16")
LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


def factors(
    shape: tuple[int, int, int], turned: tuple[bool, bool], seed: int = 0
) -> tuple[Array, Array]:
    m, k, n = shape
    rng = np.random.default_rng(seed)
    sizes = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)]
    left, right = [rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in sizes]
    return left, right


def product(pair: tuple[Array, Array], turned: tuple[bool, bool]) -> fg.Tensor:
    made = [fg.Tensor(a, device="cpu") for a in pair]
    a, b = [t.T if way else t for t, way in zip(made, turned, strict=True)]
    return a @ b


def exact(pair: tuple[Array, Array], turned: tuple[bool, bool]) -> Array:
    a, b = [x.astype(np.float64) for x in pair]
    return (a.T if turned[0] else a) @ (b.T if turned[1] else b)


@needs_pairs
@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 17, 50), (100, 301, 49), (20, 2, 97)])
def test_every_layout_and_odd_size_agrees_with_float64(
    shape: tuple[int, int, int], turned: tuple[bool, bool]
) -> None:
    pair = factors(shape, turned)
    (found,), _ = run(product(pair, turned), seed=3)  # poisoned, at odd addresses
    wanted = exact(pair, turned)
    limit = 2.0**-8 * np.abs(wanted).max()
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2.0**-7, atol=limit)


@needs_pairs
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -0.0, 3e38])
def test_hostile_numbers_reach_their_row_and_column_alone(odd: float) -> None:
    left, right = factors((40, 33, 70), (False, False), seed=1)
    left[5, 32] = odd  # the last step, which has no partner
    found = product((left, right), (False, False)).numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = left.astype(np.float32) @ right.astype(np.float32)
    assert np.array_equal(np.isfinite(found[5]), np.isfinite(wanted[5].astype(ml_dtypes.bfloat16)))
    others = np.arange(40) != 5
    assert np.isfinite(found[others]).all()
    np.testing.assert_allclose(found[others], wanted[others], rtol=2.0**-7, atol=0.2)


def test_pairs_are_multiplied_where_the_processor_can_and_rows_are_many() -> None:
    wide = Target("x86_64", "avx512", frozenset({"avx512_bf16"}))
    for rows, machine, wanted in (
        (64, wide, True), (1, wide, False), (64, Target("x86_64", "avx512"), False),
        (64, Target("x86_64", "avx2", frozenset({"avx512_bf16"})), False),
    ):  # fmt: skip
        tensor = product(factors((rows, 64, 64), (False, False)), (False, False))
        found = plan_gemm(*lowered(tensor), machine)
        assert found is not None and found.registers.pairs == wanted, (rows, machine)
