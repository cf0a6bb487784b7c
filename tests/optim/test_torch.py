"""Every optimiser against torch: ten steps, and the same state loaded both ways."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

torch = pytest.importorskip("torch")

SHAPES = [(4, 6), (6,), (6, 3), (3,), (2, 3, 4)]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.05}),
    ("Adam", {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.05, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.05, "amsgrad": True, "weight_decay": 0.3}),
    ("RMSprop", {"lr": 0.02}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {"lr": 0.05}),
    ("Adamax", {"lr": 0.05}),
    ("Adamax", {"lr": 0.05, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.05}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.5}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "weight_decay": 0.1}),
    ("Rprop", {"lr": 0.05}),
    ("Rprop", {"lr": 0.05, "etas": (0.4, 1.5), "step_sizes": (0.01, 0.2)}),
    ("Adafactor", {"lr": 0.05, "weight_decay": 0.1, "d": 1.2}),
    ("ASGD", {"lr": 0.05}),
    ("ASGD", {"lr": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": 2, "weight_decay": 0.1}),
]
KEPT = {"Muon": [(4, 6), (6, 3), (5, 5)]}


def start(name: str) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    shapes = KEPT.get(name, SHAPES)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def gradients(name: str, step: int) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(step + 1)
    return [random.normal(size=a.shape).astype(np.float32) for a in start(name)]


def pair(name: str, options: dict[str, Any]) -> tuple[list[Any], Any, list[Any], Any]:
    ours = [fg.Tensor(a) for a in start(name)]
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in start(name)]
    return (
        ours, getattr(fg.optim, name)(ours, **options),
        theirs, getattr(torch.optim, name)(theirs, **options),
    )  # fmt: skip


def both(name: str, step: int, ours: Any, theirs: list[Any], other: Any) -> None:
    grads = gradients(name, step)
    ours.step([fg.Tensor(g) for g in grads])
    for parameter, grad in zip(theirs, grads, strict=True):
        parameter.grad = torch.tensor(grad)
    other.step()


def distance(ours: list[Any], theirs: list[Any]) -> float:
    return max(
        float(np.abs(a.numpy() - b.detach().numpy()).max())
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("name", "options"), CASES)
def test_ten_steps_are_torchs(name: str, options: dict[str, Any]) -> None:
    ours, optimizer, theirs, other = pair(name, options)
    for step in range(10):
        both(name, step, optimizer, theirs, other)
    assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_state_goes_to_torch_and_back(name: str, options: dict[str, Any]) -> None:
    ours, optimizer, theirs, other = pair(name, options)
    for step in range(3):
        both(name, step, optimizer, theirs, other)
    again = getattr(fg.optim, name)(ours, **{**options, "lr": 0.9})
    again.load_state_dict(other.state_dict())
    assert again.param_groups[0]["lr"] == pytest.approx(options["lr"])
    state = optimizer.state_dict()
    state["state"] = {
        i: {k: torch.tensor(v.numpy()) for k, v in kept.items()}
        for i, kept in state["state"].items()
    }
    fresh = getattr(torch.optim, name)(theirs, **{**options, "lr": 0.9})
    fresh.load_state_dict(state)
    for step in range(3, 6):
        both(name, step, again, theirs, fresh)
    assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize(("name", "options"), CASES)
def test_wide_parameters_are_updated_in_their_own_precision(
    name: str, options: dict[str, Any]
) -> None:
    wide = [a.astype(np.float64) for a in start(name)]
    ours = [fg.Tensor(a) for a in wide]
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in wide]
    optimizer = getattr(fg.optim, name)(ours, **options)
    other = getattr(torch.optim, name)(theirs, **options)
    for step in range(3):
        grads = [g.astype(np.float64) for g in gradients(name, step)]
        optimizer.step([fg.Tensor(g) for g in grads])
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = torch.tensor(grad)
        other.step()
    bound = 1e-7 if name in ("NAdam", "ASGD") else 1e-9  # torch keeps one of its numbers in float32
    assert distance(ours, theirs) < bound


@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_muon_is_torchs_up_to_its_bfloat16(adjust: str | None) -> None:
    options = {"lr": 1e-3, "weight_decay": 0.1, "adjust_lr_fn": adjust}
    ours, optimizer, theirs, other = pair("Muon", options)
    for step in range(10):
        both("Muon", step, optimizer, theirs, other)
    moved = max(
        float(np.abs(a.numpy() - b).max()) for a, b in zip(ours, start("Muon"), strict=True)
    )
    assert distance(ours, theirs) < 0.03 * moved  # theirs iterates with eight bits


def test_schedules_are_torchs() -> None:
    scheduler = torch.optim.lr_scheduler
    weight = torch.nn.Parameter(torch.ones(1))

    def other(make: Any) -> list[float]:
        optimizer = torch.optim.SGD([weight], lr=0.5)
        found, schedule = [], make(optimizer)
        for _ in range(12):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    def ours(shape: Any) -> list[float]:
        optimizer = fg.optim.SGD([fg.ones(1)], lr=0.5)
        schedule, found = fg.optim.Schedule(optimizer, shape), []
        for _ in range(12):
            found.append(schedule.rates()[0])
            schedule.step()
        return found

    pairs = [
        (fg.optim.linear(8, 0.2, 0.9), lambda o: scheduler.LinearLR(o, 0.2, 0.9, 8)),
        (fg.optim.step_decay(3, 0.5), lambda o: scheduler.StepLR(o, 3, 0.5)),
        (
            fg.optim.join([fg.optim.linear(4, 0.25, 1.0), fg.optim.step_decay(2, 0.5)], [4]),
            lambda o: scheduler.SequentialLR(
                o, [scheduler.LinearLR(o, 0.25, 1.0, 4), scheduler.StepLR(o, 2, 0.5)], [4]
            ),
        ),
    ]
    for mine, make in pairs:
        assert ours(mine) == pytest.approx(other(make))
    cosine = other(lambda o: scheduler.CosineAnnealingLR(o, 11, 0.05))
    assert ours(fg.optim.cosine(11, 0.1)) == pytest.approx(cosine)


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, float("inf")])
def test_clipping_is_torchs(kind: float) -> None:
    grads = gradients("SGD", 0)
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in start("SGD")]
    ours = [fg.Tensor(a, requires_grad=True) for a in start("SGD")]
    for a, b, grad in zip(ours, theirs, grads, strict=True):
        a.grad, b.grad = fg.Tensor(grad), torch.tensor(grad)
    norm = torch.nn.utils.clip_grad_norm_(theirs, 1.5, kind)
    assert fg.optim.clip_grad_norm_(ours, 1.5, kind).item() == pytest.approx(norm.item(), rel=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None and np.allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-6)


def rosenbrock(x: Any) -> Any:
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


@pytest.mark.parametrize(
    "options",
    [
        {"line_search_fn": "strong_wolfe"},
        {"line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 7, "lr": 0.5},
        {"line_search_fn": "strong_wolfe", "lr": 0.001, "max_eval": 4},
        {"lr": 0.1},
        {"lr": 0.01, "max_iter": 4, "max_eval": 3},
    ],
)
def test_lbfgs_goes_torchs_way(options: dict[str, Any]) -> None:
    first = np.array([-1.2, 1.0])
    mine = fg.Tensor(first, requires_grad=True)
    theirs = torch.nn.Parameter(torch.tensor(first))
    ours, other = fg.optim.LBFGS([mine], **options), torch.optim.LBFGS([theirs], **options)
    counts = [0, 0]

    def closure(place: int, optimizer: Any, x: Any) -> Any:
        counts[place] += 1
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    for turn in range(4):
        loss = ours.step(partial(closure, 0, ours, mine))
        wanted = other.step(partial(closure, 1, other, theirs))
        np.testing.assert_allclose(loss.item(), wanted.item(), rtol=1e-6)
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-6)
        assert counts[0] == counts[1]
        state = other.state_dict()["state"][0]
        assert [state[name] for name in ("n_iter", "func_evals")] == [
            ours.memory[name] for name in ("n_iter", "func_evals")
        ]
        if turn == 1:  # each goes on from the other's state
            saved = ours.state_dict()
            ours = fg.optim.LBFGS([mine], **options)
            ours.load_state_dict(other.state_dict())
            kept = saved["state"][0]
            for name in ("d", "prev_flat_grad", "old_dirs", "old_stps", "ro"):
                many = isinstance(kept[name], list)
                found = [torch.tensor(v.numpy()) for v in (kept[name] if many else [kept[name]])]
                kept[name] = found if many else found[0]
            other = torch.optim.LBFGS([theirs], **options)
            other.load_state_dict(saved)
