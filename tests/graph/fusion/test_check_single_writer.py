"""Tests of graph/fusion/check_single_writer.py: verify=True finds a comparison with two writers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import VerifyError
from fulgurite.graph.fusion import greedy
from fulgurite.graph.fusion.search import REGIONS
from fulgurite.graph.fusion.single_writer_plans import Writers
from fulgurite.runtime.realize import clear_caches


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing is known of plans, before and after one that is wrong on purpose."""
    clear_caches()
    REGIONS.clear()
    with fg.config(device="cpu", tier="native", verify=True, disk_cache=False):
        yield
    clear_caches()
    REGIONS.clear()


def _pools() -> fg.Tensor:
    x = fg.Tensor(np.random.default_rng(0).standard_normal((4, 3, 9, 9)).astype("float32"))
    found: fg.Tensor = fg.grad(lambda x: fg.max_pool2d(fg.avg_pool2d(x, 3, 2), 3, 1, 1).sum())(x)
    return found


def _variances() -> fg.Tensor:
    x = fg.Tensor(np.random.default_rng(0).standard_normal((4, 4, 4)).astype("float32"))

    def loss(x: fg.Tensor) -> fg.Tensor:
        return fg.pad(x, ((2, 2), (2, 2), (2, 2))).var(axis=-1).max(axis=-1).sum()

    found: fg.Tensor = fg.grad(loss)(x)
    return found


def _turned() -> fg.Tensor:
    x = fg.Tensor(np.random.default_rng(0).standard_normal((45, 37)).astype("float32"))
    product = x @ x[::-1].mT
    return fg.sum(product == product.mT)


def test_a_plan_with_one_writer_for_each_value_passes() -> None:
    assert _pools().sum().item() == pytest.approx(192)
    assert int(_turned().numpy()) >= 45


def test_a_search_that_does_not_know_the_law_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writers, "agree", lambda self, chosen: True)
    with pytest.raises(VerifyError, match=r"eq compares reduce .* in reduce:mul") as got:
        _variances().numpy()
    assert "test_check_single_writer.py" in str(got.value) and "single_writer" in str(got.value)


def test_a_greedy_pass_that_does_not_know_it_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "questions", lambda order: [])
    monkeypatch.setattr(greedy, "_permutation", lambda node: ())
    with pytest.raises(VerifyError, match=r"contract:.* and again at another place in it"):
        _turned().numpy()


def test_both_kernels_that_compute_a_value_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writers, "agree", lambda self, chosen: True)
    with pytest.raises(VerifyError, match=r"\(kernel 0\) and .*\(kernel \d\)"):
        _variances().numpy()
