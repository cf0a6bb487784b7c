"""Clipping, accumulation, running means and schedules."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError


def test_small_gradients_are_not_clipped() -> None:
    grads = {"a": fg.Tensor([0.3]), "b": fg.Tensor([0.4])}
    clipped, norm = fg.optim.clip_by_norm(grads, 10.0)
    assert norm.item() == pytest.approx(0.5) and clipped["a"].item() == pytest.approx(0.3)
    assert fg.optim.clip_by_value(grads, 0.35)["b"].item() == pytest.approx(0.35)


def test_clipping_keeps_the_dtype_and_takes_none() -> None:
    clipped, _ = fg.optim.clip_by_norm([fg.ones(4, "bfloat16"), None], 1.0)
    assert clipped[0].dtype is fg.bfloat16 and clipped[1] is None
    for wrong in (lambda: fg.optim.clip_by_norm([], 1.0), lambda: fg.optim.clip_by_value([], -1.0)):
        with pytest.raises(ArgumentError):
            wrong()


def test_small_batches_add_up_to_a_large_one() -> None:
    data = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)

    def loss(w: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
        return ((x @ w) ** 2).mean()

    whole = fg.grad(loss)(fg.ones(3), fg.Tensor(data))
    w = fg.ones(3)
    total = fg.optim.Accumulator([w])
    for part in np.split(data, 4):
        total.add([fg.grad(loss)(w, fg.Tensor(part))])
    assert np.allclose(total.take()[0].numpy(), whole.numpy(), rtol=1e-5)
    with pytest.raises(ArgumentError, match="nothing"):
        total.take()


def test_accumulating_what_backward_left_forgets_it() -> None:
    w = fg.Tensor([2.0], requires_grad=True)
    total = fg.optim.Accumulator([w])
    for factor in (1.0, 2.0):
        (w * factor).sum().backward()
        total.add()
        assert w.grad is None
    fg.optim.SGD([w], lr=1.0).step(total.take())
    assert w.tolist() == [0.5]


def test_a_running_mean_follows_and_the_weights_come_back() -> None:
    w = fg.Tensor([1.0], requires_grad=True)
    ema = fg.optim.EMA([w], decay=0.75)
    with fg.no_grad():
        w.assign([5.0])
    ema.update()
    with ema.swapped():
        assert w.tolist() == [2.0]
    assert w.tolist() == [5.0] and w.requires_grad
    other = fg.optim.EMA([w])
    other.load_state_dict(ema.state_dict())
    assert other.shadow[0].tolist() == [2.0] and other.decay == 0.75
    with pytest.raises(ArgumentError):
        other.load_state_dict({"shadow": [fg.ones(2)], "decay": 0.5})


def test_a_schedule_resumes_where_it_was() -> None:
    def made() -> tuple[fg.optim.SGD, fg.optim.Schedule]:
        optimizer = fg.optim.SGD([{"params": [fg.ones(1)], "lr": 1.0}, {"params": [fg.ones(1)]}])
        shape = fg.optim.warmup(2, fg.optim.cosine(6, 0.1))
        return optimizer, fg.optim.Schedule(optimizer, shape)

    optimizer, schedule = made()
    rates = []
    for _ in range(10):
        rates.append(schedule.rates())
        schedule.step()
    assert rates[0] == [0, 0] and rates[2] == [1.0, 1e-3] and rates[9][0] == pytest.approx(0.1)
    again, later = made()
    later.load_state_dict({"count": 5})
    assert later.rates() == rates[5] and again.param_groups[0]["lr"] == rates[5][0]
    with pytest.raises(ArgumentError):
        fg.optim.linear(0)
    with pytest.raises(ArgumentError):
        fg.optim.join([], [1])
    with pytest.raises(ArgumentError):
        fg.optim.Schedule(optimizer, 3)  # type: ignore[arg-type]


def test_groups_that_are_added_later_follow_the_schedule_as_well() -> None:
    optimizer = fg.optim.SGD([fg.ones(1)], lr=1.0)
    schedule = fg.optim.Schedule(optimizer, fg.optim.linear(4))
    schedule.step()
    optimizer.add_param_group({"params": [fg.ones(1)], "lr": 2.0})
    schedule.step()
    assert schedule.rates() == [0.5, 1.0]


def test_gradients_in_float64_are_clipped_and_added_up_in_float64() -> None:
    (clipped,), norm = fg.optim.clip_by_norm([fg.Tensor(np.array([3e30, 4e30]))], 1.0)
    np.testing.assert_allclose(clipped.numpy(), [0.6, 0.8], rtol=1e-12)
    assert norm.dtype is fg.float64 and norm.item() == 5e30
    total = fg.optim.Accumulator([fg.Tensor(np.ones(1))])
    for _ in range(2):
        total.add([fg.Tensor(np.array([1 + 1e-12]))])
    assert total.take()[0].item() == 1 + 1e-12
