"""Captured steps: the numbers of the eager ones, and a rate that changes captures nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

NAMES = [
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "Adafactor",
    "Lion",
    "LAMB",
    "Adamax",
    "NAdam",
    "RAdam",
    "Adadelta",
    "Rprop",
]


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Captures are for native code, whatever device the suite's run is for."""
    with fg.config(device="cpu"):
        yield


def data(step: int) -> tuple[fg.Tensor, fg.Tensor]:
    random = np.random.default_rng(step)
    x = random.normal(size=(16, 6)).astype(np.float32)
    return fg.Tensor(x), fg.Tensor((x.sum(1) > 0).astype(np.int32))


def trained(name: str, jit: bool, forget: str = "before") -> tuple[list[Any], int]:
    fg.random.seed(0)
    model = fg.nn.Sequential(
        fg.nn.Linear(6, 8), fg.nn.ReLU(), fg.nn.Dropout(0.1), fg.nn.Linear(8, 2)
    )
    optimizer = getattr(fg.optim, name)(model.parameters(), lr=0.05)
    schedule = fg.optim.Schedule(optimizer, fg.optim.linear(20))

    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        if forget == "before":
            optimizer.zero_grad()
        loss = fg.cross_entropy(model(x), y)
        loss.backward()
        fg.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if forget == "after":
            optimizer.zero_grad()
        return loss

    run: Any = fg.jit(step) if jit else step
    for number in range(8):
        run(*data(number))
        schedule.step()
    captured: int = run.captured if jit else 0
    return [p.numpy() for p in model.parameters()], captured


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_follows_its_schedule_and_is_captured_twice_at_most(name: str) -> None:
    eager, _ = trained(name, jit=False)
    captured, count = trained(name, jit=True)
    for a, b in zip(eager, captured, strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert count <= 2  # before and after there are gradients


def test_a_step_that_leaves_no_gradients_is_captured_once() -> None:
    before, _ = trained("AdamW", jit=True)
    after, count = trained("AdamW", jit=True, forget="after")
    for a, b in zip(before, after, strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert count == 1


def test_gradients_add_up_in_a_captured_step() -> None:
    w = fg.Tensor(np.ones(3, np.float32), requires_grad=True)
    total, optimizer = fg.optim.Accumulator([w]), fg.optim.SGD([w], lr=0.1)

    @fg.jit
    def add(x: fg.Tensor) -> None:
        total.add([x * 2])

    @fg.jit
    def update() -> None:
        optimizer.step(total.take())

    for _ in range(3):
        for scale in (1.0, 2.0, 3.0):
            add(fg.Tensor(np.full(3, scale, np.float32)))
        update()
    assert np.allclose(w.numpy(), 1 - 3 * 0.1 * 4, atol=1e-6)
    assert add.captured <= 3 and update.captured <= 2


def test_a_scaled_loss_is_captured_with_its_scale() -> None:
    w = fg.Tensor(np.ones(4, np.float32))
    policy = fg.optim.Policy("float16", fg.optim.LossScaler(2.0**14, interval=2))
    optimizer = fg.optim.SGD([w], lr=0.01)
    assert policy.scaler is not None

    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        assert policy.scaler is not None
        value, grads = policy.value_and_grad(lambda w, x: (w * x).sum())(w, x)
        policy.scaler.step(optimizer, [grads])
        found: fg.Tensor = value
        return found

    scales = []
    for x in (1.0, 1.0, 60000.0, 1.0, 1.0):
        step(fg.Tensor(np.full(4, x, np.float32)))
        scales.append(policy.scaler.scale.item())
    assert scales == [2.0**14, 2.0**15, 2.0**14, 2.0**14, 2.0**15]
    assert np.allclose(w.numpy(), 1 - 0.04, atol=1e-4) and step.captured == 1


@pytest.mark.parametrize("frozen", ["from the start", "later"])
def test_a_captured_step_leaves_frozen_parameters_alone(frozen: str) -> None:
    def run(jit: bool) -> tuple[list[Any], list[float]]:
        fg.random.seed(0)
        model = fg.nn.Sequential(fg.nn.Linear(6, 8), fg.nn.ReLU(), fg.nn.Linear(8, 2))
        optimizer = fg.optim.Adam(model.parameters(), lr=0.05)

        def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
            loss = fg.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        taken: Any = fg.jit(step) if jit else step
        for number in range(8):
            if number == (0 if frozen == "from the start" else 3):
                model[0].weight.requires_grad = False
            if number == 6:
                model[0].weight.requires_grad = True
            taken(*data(number))
        counts = [float(kept["step"].numpy()) for kept in optimizer.state.values()]
        return [p.numpy() for p in model.parameters()], counts

    (eager, counts), (captured, others) = run(False), run(True)
    assert counts == others == [2.0 if frozen == "from the start" else 5.0, 8.0, 8.0, 8.0]
    for a, b in zip(eager, captured, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_a_schedule_may_move_on_inside_a_captured_step() -> None:
    def run(jit: bool) -> tuple[list[float], list[float], int]:
        w = fg.Tensor([2.0, -1.0], requires_grad=True)
        optimizer = fg.optim.SGD([w], lr=0.25)
        schedule = fg.optim.Schedule(optimizer, fg.optim.step_decay(2, 0.5))

        def step(x: fg.Tensor) -> fg.Tensor:
            loss = (w * w * x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            return loss

        taken: Any = fg.jit(step) if jit else step
        for number in range(7):
            taken(fg.Tensor([1.0, number / 8]))
        found: list[float] = w.tolist()
        return found, schedule.rates(), schedule.count

    assert run(False) == run(True)
    assert run(True)[1:] == ([0.25 / 8], 7)
