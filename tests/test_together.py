"""Tensors that are asked for together are computed in one plan, wherever the package asks.

One by one, each would compute again what it shares with the others: a forward and backward pass for
every weight of a model. Every way in is counted in plans, with tensors that share their graph.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.data import Arrays, DataLoader
from fulgurite.runtime import realize as module


class Plans:
    """How many graphs were computed, and how many tensors each of them was for."""

    def __init__(self) -> None:
        self.roots: list[int] = []


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    found, plain = Plans(), module.run

    def counted(roots: Any, *rest: Any, **named: Any) -> None:
        found.roots.append(len(roots))
        plain(roots, *rest, **named)

    monkeypatch.setattr(module, "run", counted)
    yield found


def pending(count: int = 4) -> list[fg.Tensor]:
    """Tensors that are not computed yet, and share most of what they are computed from."""
    base = fg.tanh(fg.Tensor(np.eye(3, dtype=np.float32)) @ fg.ones((3, 3)))
    return [base * (i + 1) for i in range(count)]


def model(values: list[fg.Tensor]) -> fg.nn.Module:
    made = fg.nn.Module()
    for i, value in enumerate(values):
        made.register_buffer(f"b{i}", value)
    return made


# --- calls of jitted functions -------------------------------------------------------------------


def test_lazy_arguments_of_a_replay_are_computed_in_one_plan(plans: Plans) -> None:
    total = fg.jit(lambda ws: sum([w.sum() for w in ws], fg.Tensor(0.0)))
    want = total([w.realize() for w in pending()]).item()
    plans.roots.clear()
    for _ in range(2):
        assert total(pending()).item() == want
    assert plans.roots == [4, 4] and total.captured == 1


def test_lazy_arguments_of_a_capture_are_computed_in_one_plan(plans: Plans) -> None:
    total = fg.jit(lambda ws: sum([w.sum() for w in ws], fg.Tensor(0.0)))
    total(pending())
    assert plans.roots == [4] and total.captured == 1


def test_state_that_plain_steps_left_pending_is_computed_in_one_plan(plans: Plans) -> None:
    layers = fg.nn.Sequential(*[fg.nn.Linear(4, 4) for _ in range(3)])
    optimizer = fg.optim.SGD(layers.parameters(), lr=0.1)
    x = fg.ones((2, 4)).realize()

    def step(x: fg.Tensor) -> Any:
        loss = (layers(x) ** 2).mean()
        loss.backward()
        fg.optim.clip_grad_norm_(layers.parameters(), 1.0)
        optimizer.step()
        return loss

    jitted = fg.jit(step)
    for _ in range(2):
        jitted(x)
    plans.roots.clear()
    for _ in range(3):
        step(x)
    assert len(plans.roots) == 3
    plans.roots.clear()
    jitted(x)
    assert plans.roots == [6]  # the gradients, which the clipping made anew, in one


def test_lazy_arguments_that_give_a_variable_two_values_take_a_plan_for_each(plans: Plans) -> None:
    n = fg.Var("n", 1, 8)
    x = fg.arange(8).realize()
    total = fg.jit(lambda *ws: sum([w.sum() for w in ws], fg.Tensor(0)))
    for _ in range(2):
        assert total(*[x[: n.bind(k)] * i for k in (3, 4) for i in (1, 2)]).item() == 3 * (3 + 6)
        assert plans.roots[-2:] == [2, 2]
    assert total.captured == 1


def test_a_lazy_argument_of_a_variable_size_is_looked_at_when_its_size_is_known() -> None:
    n = fg.Var("n", 1, 8)
    x = fg.arange(8).realize()
    total = fg.jit(lambda w: w.sum())
    assert [total(x[: n.bind(3)]).item() for _ in range(3)] == [3, 3, 3]
    assert total.captured == 1


# --- the rest of the package ---------------------------------------------------------------------

WAYS: dict[str, Callable[[list[fg.Tensor], Path], Any]] = {
    "fg.realize": lambda ts, _: fg.realize(*ts),
    "a list of tensors": lambda ts, _: fg.Tensor([t.sum() for t in ts]).realize(),
    "a dataset": lambda ts, _: Arrays(*ts),
    "items of a dataset": lambda ts, _: next(iter(DataLoader(ts, 4))),
    "a NumPy function": lambda ts, _: np.linalg.multi_dot(ts),
    "save": lambda ts, path: fg.save(dict(enumerate_names(ts)), path / "a.safetensors"),
    "save_npz": lambda ts, path: fg.io.save_npz(dict(enumerate_names(ts)), path / "a.npz"),
    "save_tree": lambda ts, path: fg.io.save_tree(path / "a", ts),
    "a deep copy of a module": lambda ts, _: copy.deepcopy(model(ts)),
    "a pickle of a module": lambda ts, _: pickle.dumps(model(ts)),
    "running means of weights": lambda ts, _: fg.optim.EMA(ts),
    "arange": lambda ts, _: ends(fg.arange, ts[:3]),
}


def ends(function: Callable[..., Any], tensors: list[fg.Tensor], *more: Any) -> Any:
    return function(*[t.sum() for t in tensors], *more)


def enumerate_names(tensors: list[fg.Tensor]) -> Iterator[tuple[str, fg.Tensor]]:
    return ((f"t{i}", t) for i, t in enumerate(tensors))


@pytest.mark.parametrize("way", WAYS)
def test_tensors_are_computed_in_one_plan_by(way: str, plans: Plans, tmp_path: Path) -> None:
    WAYS[way](pending(), tmp_path)
    assert len(plans.roots) == 1


def test_a_state_of_pending_tensors_is_loaded_in_one_plan(plans: Plans) -> None:
    weights = [fg.ones((3, 3), dtype=fg.float32).realize() for _ in range(4)]
    optimizer = fg.optim.SGD(weights, lr=0.1, momentum=0.9)
    state = optimizer.state_dict()
    ema = fg.optim.EMA(weights)
    for i, value in enumerate(pending()):
        state["state"][i]["momentum_buffer"] = value
    plans.roots.clear()
    optimizer.load_state_dict(state)
    assert plans.roots == [4]
    ema.load_state_dict({"decay": 0.5, "shadow": pending()})
    assert plans.roots == [4, 4]


def test_what_was_assigned_to_the_inputs_of_a_schedule_is_computed_in_one_plan(
    plans: Plans,
) -> None:
    inputs = [fg.ones((3, 3)).realize() for _ in range(4)]
    schedule = fg.schedule(sum(inputs[1:], inputs[0]) * 2)
    schedule.run()
    for changed_only in (False, False, True):
        for x, value in zip(inputs, pending(), strict=True):
            x.assign(value)
        plans.roots.clear()
        schedule.run(changed_only)
        assert plans.roots == [4]


def test_inputs_of_a_loaded_schedule_are_computed_in_one_plan(plans: Plans, tmp_path: Path) -> None:
    inputs = [fg.ones((3, 3), device="cpu").realize() for _ in range(4)]
    schedule = fg.schedule(inputs[0] + inputs[1] * inputs[2] - inputs[3])
    schedule.save(tmp_path / "s")
    loaded = fg.load_schedule(tmp_path / "s")
    plans.roots.clear()
    loaded.run(*pending())
    assert plans.roots == [4]
