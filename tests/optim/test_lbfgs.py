"""Tests of fulgurite/optim/lbfgs.py: it finds minima, and goes on from a state."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, FulguriteError, ShapeError
from fulgurite.optim.lbfgs import _Point, cubic_minimum, strong_wolfe
from tests.functional.helpers import raises


def closure_of(optimizer: Any, loss_of: Callable[[], Any]) -> Callable[[], Any]:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    return closure


def valley(params: list[Any]) -> Any:
    """Rosenbrock's, over parameters of several shapes."""
    x = fg.concat([p.flatten() for p in params])
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def start(dtype: str = "float64") -> list[Any]:
    first = [np.array([[0.2, 1.5]]), np.array(0.5), np.array([0.8, 1.1])]
    return [fg.Tensor(a, dtype, requires_grad=True) for a in first]


def test_a_narrow_valley_is_walked_to_its_end() -> None:
    params = start()
    optimizer = fg.optim.LBFGS(params, max_iter=60, line_search_fn="strong_wolfe")
    first = optimizer.step(closure_of(optimizer, lambda: valley(params)))
    assert first.item() > 1
    for param in params:
        np.testing.assert_allclose(param.numpy(), np.ones(param.shape), atol=1e-5)
    assert optimizer.memory["n_iter"] < 60


def test_a_model_is_fitted_and_what_has_no_gradient_stays() -> None:
    fg.random.seed(0)
    layer, idle = fg.nn.Linear(3, 1), fg.Tensor([5.0], requires_grad=True)
    x = fg.random.normal((50, 3))
    wanted = x @ fg.Tensor([[1.0], [-2.0], [0.5]]) + 3.0
    optimizer = fg.optim.LBFGS([*layer.parameters(), idle], line_search_fn="strong_wolfe")
    optimizer.step(closure_of(optimizer, lambda: fg.mse_loss(layer(x), wanted)))
    np.testing.assert_allclose(layer.weight.numpy(), [[1.0, -2.0, 0.5]], atol=1e-3)
    assert idle.tolist() == [5.0]


def test_a_state_is_gone_on_from_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_iter": 5, "history_size": 3, "line_search_fn": "strong_wolfe"}
    params = start("float32")
    optimizer = fg.optim.LBFGS(params, **options)
    fresh = fg.optim.LBFGS(start(), **options)
    fresh.load_state_dict(fresh.state_dict())  # of no steps at all
    for _ in range(2):
        optimizer.step(closure_of(optimizer, lambda: valley(params)))
    assert len(optimizer.memory["ro"]) == 3
    again = start("float32")
    second = fg.optim.LBFGS(again, **{**options, "lr": 0.5})
    fg.io.save_checkpoint(tmp_path / "run.fgc", optimizer=optimizer)
    with fg.no_grad():
        for old, new in zip(params, again, strict=True):
            new.assign(old)
    fg.io.load_checkpoint(tmp_path / "run.fgc", optimizer=second)
    assert second.param_groups[0]["lr"] == 1.0
    optimizer.step(closure_of(optimizer, lambda: valley(params)))
    second.step(closure_of(second, lambda: valley(again)))
    assert [p.tolist() for p in params] == [p.tolist() for p in again]


def test_the_loss_is_evaluated_no_more_often_than_allowed() -> None:
    params = start()
    optimizer = fg.optim.LBFGS(params, lr=1e-3, max_iter=9, max_eval=4)
    seen: list[int] = []

    def loss() -> Any:
        seen.append(1)
        return valley(params)

    optimizer.step(closure_of(optimizer, loss))
    assert len(seen) == 4 == optimizer.memory["func_evals"]
    seen.clear()
    optimizer = fg.optim.LBFGS(params, lr=1e-5, max_eval=4, line_search_fn="strong_wolfe")
    optimizer.step(closure_of(optimizer, loss))
    assert len(seen) == 5 == optimizer.memory["func_evals"]  # torch's: one more ends a search
    flat = fg.Tensor([0.0], requires_grad=True)
    still = fg.optim.LBFGS([flat])
    still.step(closure_of(still, lambda: (flat * flat).sum()))
    assert still.memory["n_iter"] == 0  # a slope of nothing is no way


@pytest.mark.parametrize("slope", [-1.0, -30.0])
def test_a_length_meets_both_conditions(slope: float) -> None:
    gradient = fg.zeros(1)

    def at(t: float) -> _Point:
        loss = math.cos(3 * t) + slope * t * 0.1
        return _Point(t, loss, -3 * math.sin(3 * t) + slope * 0.1, gradient)

    found, used = strong_wolfe(at, at(0.0), 0.1, 1e-9, 25)
    assert found.loss <= at(0.0).loss + 1e-4 * found.length * at(0.0).slope
    assert abs(found.slope) <= 0.9 * abs(at(0.0).slope) and used <= 26


def test_a_length_where_the_loss_is_no_number_is_too_long() -> None:
    gradient = fg.zeros(1)

    def at(t: float) -> _Point:
        loss = (t - 1) ** 2 if t < 2 else math.nan
        return _Point(t, loss, 2 * (t - 1) if t < 2 else math.nan, gradient)

    found, _ = strong_wolfe(at, at(0.0), 5.0, 1e-9, 25)
    assert found.length < 2 and found.loss < 1


def test_a_cubic_is_least_where_its_slope_is_nothing() -> None:
    points = [_Point(t, t**3 - t, 3 * t * t - 1, fg.zeros(1)) for t in (0.0, 1.0)]
    for a, b in (points, points[::-1]):
        assert cubic_minimum(a, b, 0.0, 1.0) == pytest.approx(3**-0.5)
    assert cubic_minimum(points[0], points[0], 0.0, 1.0) == 0.5


def test_mistakes_name_the_users_line() -> None:
    x = fg.Tensor([1.0], requires_grad=True)
    optimizer = fg.optim.LBFGS([x])
    with raises(ArgumentError, "step(closure)"):
        optimizer.step()
    with raises(ArgumentError):
        fg.optim.LBFGS([x], line_search_fn="armijo")
    with raises(ArgumentError):
        fg.optim.LBFGS([{"params": [x]}, {"params": [fg.ones(2)]}])
    with raises(ArgumentError):
        optimizer.load_state_dict({"state": {0: {"n_iter": 2}}, "param_groups": [{"params": [0]}]})
    optimizer.step(closure_of(optimizer, lambda: ((x - 3) ** 2).sum()))
    state = optimizer.state_dict()
    state["state"][0]["d"] = np.ones(7)
    with raises(ShapeError):
        optimizer.load_state_dict(state)
    with pytest.raises(FulguriteError):
        fg.jit(lambda: optimizer.step(closure_of(optimizer, lambda: ((x - 3) ** 2).sum())))()
