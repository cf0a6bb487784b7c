"""Tests of graph/fusion/proposals.py: which rows make one kernel."""

from dataclasses import replace

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu import machine, providers
from fulgurite.codegen.cuda import tiling
from fulgurite.codegen.cuda.machine import HOPPER
from fulgurite.codegen.cuda.providers import sources_of
from fulgurite.core.node import toposort
from fulgurite.core.ops.reduce import REDUCE

pytestmark = pytest.mark.device("none")


def quantised(x: fg.Tensor) -> fg.Tensor:
    scale = fg.max(fg.abs(x)) / 127
    return fg.round(x / scale).astype(fg.int8).astype(fg.int32)


def folds(result: fg.Tensor) -> list[int]:
    """How many folds each kernel has."""
    with fg.config(tier="native"):
        items = fg.schedule(result).items
    found = [[n for n in toposort([i.kernel.body]) if n.op is REDUCE] for i in items]
    return [len(some) for some in found if some]


def test_a_row_is_not_computed_again_for_each_column_of_a_matrix() -> None:
    rng = np.random.default_rng(0)
    row = fg.Tensor(rng.standard_normal((1, 1024)).astype(np.float32))
    weights = fg.Tensor(rng.integers(-9, 9, (1024, 256)).astype(np.int8))
    product = quantised(row) @ weights.astype(fg.int32)
    assert folds(product) == [1, 1]


def test_a_gpu_may_compute_a_rows_statistics_again_for_each_column_of_a_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    row = fg.Tensor(rng.standard_normal((1, 768)).astype(np.float32))
    weights = fg.Tensor(rng.standard_normal((768, 2304)).astype(np.float32))
    product = fg.layer_norm(row, (768,)) @ weights
    table = replace(tiling.HOPPER, joined_row_products=True)
    for sources, kernels in (
        (sources_of(tiling.HOPPER), [2, 1]),
        (sources_of(table), [3]),
    ):
        monkeypatch.setattr(providers, "SOURCES", sources)
        monkeypatch.setattr(machine, "SHIPPED", HOPPER)
        fg.clear_caches()
        assert folds(product) == kernels


def test_rows_and_their_statistics_are_one_kernel() -> None:
    x = fg.Tensor(np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32))
    apart = x - x.mean(axis=1, keepdims=True)
    assert folds((apart * apart).mean(axis=1)) == [2]
