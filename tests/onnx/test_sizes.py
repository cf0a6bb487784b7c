"""When one plan for all sizes pays: what a run at upper bounds wastes, by the cost model."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

import fulgurite as fg
from fulgurite.aot.schedule import TensorSchedule
from fulgurite.onnx.sizes import MAKING_NS, patience, price


def made(size: int, most: int | None) -> TensorSchedule:
    """The schedule of a product of so many rows, or of so many out of more."""
    x, w = fg.ones((most or size, 64)).contiguous(), fg.ones((64, 128)).contiguous()
    fg.realize(x, w)
    rows: Any = slice(0, fg.Var("n", 1, most).bind(size)) if most else slice(None)
    return fg.schedule(fg.relu(x[rows] @ w))


def test_kernels_cost_at_a_size_what_those_for_the_size_do() -> None:
    with fg.config(device="cpu"):
        found, fixed = made(3, 512), made(3, None)
        assert price(found, {"n": 3}) == pytest.approx(price(fixed, {}), rel=1e-3)
        assert price(found, {}) > 2 * price(found, {"n": 3})
        assert patience(found, {"n": 3}, fixed) > 1e6


def test_patience_is_what_a_plan_costs_over_what_is_wasted() -> None:
    with fg.config(device="cpu"):
        found = made(3, 512)
    waste = price(found, {}) - price(found, {"n": 100})
    assert patience(found, {"n": 100}) == pytest.approx(MAKING_NS / waste)
    assert patience(found, {"n": 3}) < patience(found, {"n": 100}) < patience(found, {"n": 512})
    assert patience(found, {"n": 512}) == inf


def test_the_reference_wastes_nothing() -> None:
    with fg.config(device="reference"):
        assert patience(made(3, 512), {"n": 3}) == inf
