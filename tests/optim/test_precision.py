"""Mixed precision: few bits inside, float32 outside, and no step from gradients that overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, DTypeError


def loss(p: dict[str, fg.Tensor], x: fg.Tensor) -> fg.Tensor:
    assert p["w"].dtype is x.dtype and x.dtype.bits == 16
    return ((x @ p["w"] + p["b"]) ** 2).mean()


def data() -> tuple[dict[str, fg.Tensor], fg.Tensor]:
    random = np.random.default_rng(0)
    w, x = [random.normal(size=s).astype(np.float32) for s in ((4, 3), (8, 4))]
    return {"w": fg.Tensor(w), "b": fg.zeros(3)}, fg.Tensor(x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_gradients_and_losses_stay_float32(dtype: str) -> None:
    p, x = data()
    policy = fg.optim.Policy(dtype)
    value, grads = policy.value_and_grad(loss)(p, x)
    assert value.dtype is fg.float32 and grads["w"].dtype is fg.float32
    exact = fg.grad(lambda p: ((x @ p["w"] + p["b"]) ** 2).mean())(p)
    assert np.allclose(grads["w"].numpy(), exact["w"].numpy(), rtol=0.05, atol=0.02)
    assert (policy.scaler is not None) == (dtype == "float16")


def test_a_loss_is_not_rounded_to_few_bits_at_its_end() -> None:
    scores = np.random.default_rng(1).normal(size=(64, 5)).astype(np.float32)
    given, wanted = fg.Tensor(scores).astype("bfloat16").astype("float32"), fg.arange(64) % 5
    value, _ = fg.optim.Policy("bfloat16").value_and_grad(fg.cross_entropy)(given, wanted)
    exact = fg.cross_entropy(given, wanted).item()
    assert abs(value.item() - exact) < 1e-5
    assert abs(fg.cross_entropy(given.astype("bfloat16"), wanted).item() - exact) > 1e-4


def test_overflow_skips_the_step_and_halves_the_scale() -> None:
    p, x = data()
    scaler = fg.optim.LossScaler(scale=2.0**15, interval=2)
    policy = fg.optim.Policy("float16", scaler)
    optimizer = fg.optim.SGD(list(p.values()), lr=0.1)
    before = p["w"].numpy()
    _, grads = policy.value_and_grad(loss)(p, x * 1e4)
    assert not scaler.step(optimizer, grads).item()
    assert np.array_equal(p["w"].numpy(), before) and scaler.scale.item() == 2.0**14
    for _ in range(2):
        _, grads = policy.value_and_grad(lambda p, x: loss(p, x) * 1e-3)(p, x)
        assert scaler.step(optimizer, grads).item()
    assert scaler.scale.item() == 2.0**15 and not np.array_equal(p["w"].numpy(), before)
    again = fg.optim.LossScaler()
    again.load_state_dict(scaler.state_dict())
    assert again.scale.item() == 2.0**15


def test_buffers_of_a_model_are_not_cast() -> None:
    class Model(fg.nn.Module):
        mean: fg.Tensor

        def __init__(self) -> None:
            self.weight = fg.nn.Parameter(fg.ones(2))
            self.register_buffer("mean", fg.zeros(2))

        def forward(self, x: Any) -> Any:
            assert self.weight.dtype is fg.bfloat16 and self.mean.dtype is fg.float32
            self.mean.assign(self.mean + 1)
            return (x * self.weight).sum()

    model = Model()
    policy = fg.optim.Policy("bfloat16")
    value, grads = policy.value_and_grad(lambda m, x: m(x))(model, fg.ones(2))
    optimizer = fg.optim.SGD(model.parameters(), lr=0.5)
    optimizer.step(grads)
    assert value.item() == 2 and model.weight.tolist() == [0.5, 0.5]
    assert model.mean.tolist() == [1, 1] and model.weight.dtype is fg.float32


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(DTypeError):
        fg.optim.Policy("int8")
    for options in ({"scale": 0.0}, {"interval": 0}, {"growth": 0.5}):
        with pytest.raises(ArgumentError):
            fg.optim.LossScaler(**options)


def test_a_scale_never_becomes_zero_and_no_gradients_are_an_error() -> None:
    w = fg.ones(1)
    optimizer = fg.optim.SGD([w], lr=0.0)
    scaler = fg.optim.LossScaler(2.0**-119, interval=1)
    for _ in range(4):
        scaler.step(optimizer, [fg.Tensor([float("inf")])])
    assert scaler.scale.item() == 2.0**-120
    scaler.step(optimizer, [fg.ones(1)])
    assert scaler.scale.item() == 2.0**-119
    with pytest.raises(ArgumentError, match="no gradients"):
        scaler.step(optimizer, [None])


@pytest.mark.parametrize("jitted", [False, True])
def test_a_scaler_in_torchs_calls_skips_a_step_that_overflows_and_halves(jitted: bool) -> None:
    w = fg.Tensor([2.0, 3.0], requires_grad=True)
    optimizer = fg.optim.SGD([w], lr=0.5)
    scaler = fg.optim.GradScaler(init_scale=4.0, growth_interval=2)

    def step(x: fg.Tensor) -> fg.Tensor:
        with fg.autocast("float16"):
            loss = fg.vecdot(w, x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        fg.optim.clip_grad_norm_([w], 100.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    run = fg.jit(step) if jitted else step
    scales = []
    for value in (1.0, float("inf"), 1.0, 1.0):
        run(fg.Tensor([value, 1.0]))
        scales.append(scaler.get_scale())
    assert scales == [4.0, 2.0, 2.0, 4.0]
    np.testing.assert_allclose(w.numpy(), [0.5, 1.5], rtol=1e-3)
    other = fg.optim.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 4.0


def test_a_scaler_says_what_was_forgotten() -> None:
    w = fg.Tensor([2.0], requires_grad=True)
    optimizer, scaler = fg.optim.SGD([w], lr=0.5), fg.optim.GradScaler()
    with pytest.raises(ArgumentError, match="no step"):
        scaler.update()
    scaler.scale((w * w).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(ArgumentError, match="unscaled already"):
        scaler.unscale_(optimizer)
    off = fg.optim.GradScaler(enabled=False)
    assert off.scale(w) is w and off.get_scale() == 1.0 and not off.is_enabled()
