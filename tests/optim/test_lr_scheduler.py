"""torch's schedulers by name: the same rates, step by step, and a state to go on from."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from tests.functional.helpers import raises

Make = Callable[[Any, Any], Any]
SCHEDULERS: dict[str, Make] = {
    "StepLR": lambda s, o: s.StepLR(o, 3, gamma=0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 5, 5], gamma=0.5),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, gamma=0.9),
    "ConstantLR": lambda s, o: s.ConstantLR(o, factor=0.25, total_iters=4),
    "LinearLR": lambda s, o: s.LinearLR(o, start_factor=0.1, total_iters=6),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, total_iters=7, power=2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, T_max=6, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "LambdaLR of each": lambda s, o: s.LambdaLR(o, [lambda e: 0.9**e, lambda e: 0.5**e]),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, max_lr=0.5, total_steps=12, pct_start=0.25),
    "OneCycleLR linear": lambda s, o: s.OneCycleLR(
        o, 0.5, total_steps=12, anneal_strategy="linear", three_phase=True
    ),
    "OneCycleLR of each": lambda s, o: s.OneCycleLR(o, [0.5, 0.2], None, 3, 4, 0.5),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.1, 0.5, step_size_up=3, step_size_down=2),
    "CyclicLR halved": lambda s, o: s.CyclicLR(o, [0.1, 0.2], [0.5, 0.3], 2, mode="triangular2"),
    "CyclicLR shrinking": lambda s, o: s.CyclicLR(o, 0.1, 0.5, 2, mode="exp_range", gamma=0.9),
    "CyclicLR of one's own": lambda s, o: s.CyclicLR(
        o, 0.1, 0.5, 2, scale_fn=lambda x: 1 / x, scale_mode="cycle", cycle_momentum=False
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=3), s.CosineAnnealingLR(o, 6)], [3]
    ),
}


def ours() -> Any:
    groups = [{"params": [fg.ones(2)]}, {"params": [fg.ones(3)], "lr": 0.2}]
    return fg.optim.SGD(groups, lr=0.1, momentum=0.9)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rates_are_torchs(name: str) -> None:
    import torch

    mine = ours()
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (2, 3)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.2}]
    other = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    schedule = SCHEDULERS[name](fg.optim.lr_scheduler, mine)
    theirs = SCHEDULERS[name](torch.optim.lr_scheduler, other)
    for _ in range(11):
        np.testing.assert_allclose(schedule.get_last_lr(), theirs.get_last_lr(), rtol=1e-6)
        rates = [group["lr"] for group in other.param_groups]
        np.testing.assert_allclose([g["lr"] for g in mine.param_groups], rates, rtol=1e-6)
        if name.startswith("CyclicLR"):
            moments = [group["momentum"] for group in other.param_groups]
            np.testing.assert_allclose([g["momentum"] for g in mine.param_groups], moments)
        schedule.step()
        theirs.step()


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    "settings", [{"patience": 1}, {"mode": "max", "cooldown": 2, "patience": 0}, {"min_lr": 0.05}]
)
def test_a_plateau_is_torchs(settings: dict[str, Any]) -> None:
    import torch

    mine, weight = ours(), torch.nn.Parameter(torch.ones(2))
    other = torch.optim.SGD([weight], lr=0.1)
    plateau = fg.optim.lr_scheduler.ReduceLROnPlateau(mine, **settings)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(other, **settings)
    for figure in (3.0, 2.0, 2.0, 2.0, 1.99999, 2.5, 2.5, 2.5, 1.0, 1.0, 1.0, 1.0, 1.0):
        plateau.step(fg.Tensor(figure))
        theirs.step(figure)
        assert plateau.get_last_lr()[0] == pytest.approx(other.param_groups[0]["lr"])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on_from_its_state(name: str) -> None:
    first, second = ours(), ours()
    schedule = SCHEDULERS[name](fg.optim.lr_scheduler, first)
    for _ in range(4):
        schedule.step()
    assert schedule.last_epoch == 4
    again = SCHEDULERS[name](fg.optim.lr_scheduler, second)
    again.load_state_dict(schedule.state_dict())
    schedule.step()
    again.step()
    assert schedule.get_last_lr() == again.get_last_lr()


def test_a_plateau_goes_on_from_its_state() -> None:
    rates = []
    for stop in (9, 2):
        plateau = fg.optim.lr_scheduler.ReduceLROnPlateau(ours(), patience=2)
        for place, figure in enumerate([1.0] * 5):
            if place == stop:
                state = plateau.state_dict()
                plateau = fg.optim.lr_scheduler.ReduceLROnPlateau(ours(), patience=2)
                plateau.load_state_dict(state)
            plateau.step(figure)
        rates.append(plateau.get_last_lr())
    np.testing.assert_allclose(rates[0], [0.01, 0.02])
    assert rates[0] == rates[1]


def test_a_plateau_ends_at_the_least_rate_of_each_group() -> None:
    optimizer = ours()
    plateau = fg.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.05, 0.001])
    for _ in range(6):
        plateau.step(1.0)
    np.testing.assert_allclose(plateau.get_last_lr(), [0.05, 0.001])
    with raises(ArgumentError, "1 rates"):
        fg.optim.lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=[0.05])


def test_settings_that_mean_nothing_are_refused() -> None:
    names = fg.optim.lr_scheduler
    with raises(ArgumentError, "step_size is 0"):
        names.StepLR(ours(), 0)
    with raises(ArgumentError, "1 functions"):
        names.LambdaLR(ours(), [lambda e: 1.0])
    with raises(ArgumentError, "anneal_strategy is 'sine'"):
        names.OneCycleLR(ours(), 1.0, 10, anneal_strategy="sine")
    with raises(ArgumentError, "1 schedulers and 1 milestones"):
        names.SequentialLR(ours(), [names.ConstantLR(ours())], [3])
    with raises(ArgumentError, "mode 'least'"):
        names.ReduceLROnPlateau(ours(), mode="least")
    with raises(ArgumentError, "no state of a schedule"):
        names.ReduceLROnPlateau(ours()).load_state_dict({})
