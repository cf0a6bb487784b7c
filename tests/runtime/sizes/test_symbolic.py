"""Sizes that are variables: work, memory and kernels as if they were fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.runtime.realize import lookup
from fulgurite.runtime.sizes.symbolic import SymbolicExecutor

pytestmark = pytest.mark.device("cpu")
N = fg.Var("n", 0, 4096)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((4096, 32)).astype(np.float32)


@pytest.fixture(autouse=True)
def _native() -> Any:
    with fg.config(device="cpu", tier="native"):
        yield


def causal(x: Any) -> Any:
    place = fg.arange(x.shape[0])
    scores = fg.where(place[:, None] >= place[None, :], x @ x.transpose(0, 1) * 0.1, -fg.inf)
    return fg.softmax(scores, axis=-1) @ x


def backward(x: Any) -> Any:
    return fg.grad(lambda y: (causal(y) ** 2).sum())(x)


def kinds(y: Any) -> list[str]:
    """The kinds of the kernels that compute a value."""
    plan = lookup(normalize([y.node]), "cpu").plan
    return [str(item.kernel.kind) for item in plan.schedule.items]


@pytest.mark.parametrize("function", [causal, backward])
def test_causal_attention_of_a_named_length_has_the_kernels_of_a_fixed_one(
    function: Callable[[Any], Any],
) -> None:
    whole = fg.Tensor(X).realize()
    named = kinds(function(whole[: N.bind(300)]))
    fixed = kinds(function(fg.Tensor(X[:300]).realize()))
    assert named == fixed and "fold" in named
    if function is causal:
        assert named == ["fold"]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 16, 17, 100, 333])
def test_values_of_any_size_agree_with_plans_of_that_size(n: int) -> None:
    whole = fg.Tensor(X).realize()

    def parts(x: Any) -> list[Any]:
        rows, some = x.sum(axis=1) / (x.shape[0] + 1), x[:, :5].transpose(0, 1) @ x
        return [fg.exp(x * 0.1), rows, x @ some.sum(axis=0), fg.concat([x, x * 2]).sum(axis=0)]

    named, fixed = parts(whole[: N.bind(n)]), parts(fg.Tensor(X[:n]))
    for got, want in zip(named, fixed, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


def test_a_size_that_is_a_number_too_has_one_plan() -> None:
    whole = fg.Tensor(X).realize()

    def some(n: int) -> Any:
        x = whole[: N.bind(n)]
        return x.mean(axis=0) * x.shape[0]

    executor = lookup(normalize([some(50).node]), "cpu").plan.executor
    assert isinstance(executor, SymbolicExecutor)
    for n in (50, 51, 200):
        executor.at({"n": n})
        np.testing.assert_allclose(some(n).numpy(), X[:n].sum(axis=0), rtol=1e-4, atol=1e-4)
    assert len(executor.plans[-1,]) == 1


def test_an_empty_axis_and_an_axis_of_one_have_plans_of_their_own() -> None:
    whole = fg.Tensor(X).realize()
    normal = normalize([(fg.exp(whole[: N.bind(50)]) * 3).node])
    executor = lookup(normal, "cpu").plan.executor
    assert isinstance(executor, SymbolicExecutor)
    for n in (50, 51, 1, 700, 1):
        executor.at({"n": n})
    assert {key: len(plans) for key, plans in executor.plans.items()} == {(-1,): 1, (1,): 1}


def test_work_follows_the_size_and_not_the_bound() -> None:
    whole = fg.Tensor(X).realize()
    y = causal(whole[: N.bind(60)])
    executor = lookup(normalize([y.node]), "cpu").plan.executor
    assert isinstance(executor, SymbolicExecutor)
    units = []
    for n in (60, 4000):
        plan, sizes = executor.plan([n])
        assert plan is not None
        kernel = plan.kernels[0]
        launches = kernel.at(sizes, kernel.form(sizes)).launches
        units.append(sum([phase[1] for phase in launches]))
    assert units[0] * 8 < units[1]
