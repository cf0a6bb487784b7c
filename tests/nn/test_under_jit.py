"""Modules under `fg.jit`: state in and out, settings that change, other weights; never stale."""

import copy
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite import nn

X = fg.Tensor(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
Y = fg.Tensor(np.array([0, 1, 2, 0, 1, 2]))


def net() -> nn.Sequential:
    fg.random.seed(5)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 3)).settle()


def step(model: nn.Module, x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    value, slope = fg.value_and_grad(lambda m: fg.cross_entropy(m(x), y))(model)
    with fg.no_grad():
        for p, g in zip(model.parameters(), slope.parameters(), strict=True):
            p.assign(p - 0.1 * g)
    return value  # type: ignore[no-any-return]


def test_steps_under_jit_are_those_without() -> None:
    plain, other, quick = net(), net(), fg.jit(step)
    for _ in range(4):
        want, found = step(plain, X, Y).item(), quick(other, X, Y).item()
        fg.realize(*plain.parameters(), *plain.buffers())
        np.testing.assert_allclose(found, want, rtol=1e-5)
    assert quick.captured == 1 and other[1].num_batches_tracked.item() == 4
    for (name, a), b in zip(plain.state_dict().items(), other.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_backward_inside_a_captured_step() -> None:
    model, twin = net(), net()

    @fg.jit
    def quick(x: fg.Tensor, y: fg.Tensor) -> Any:
        loss = fg.cross_entropy(model(x), y)
        loss.backward()
        with fg.no_grad():
            for p in model.parameters():
                p.assign(p - 0.1 * p.grad)  # type: ignore[operator]
        model.zero_grad()
        return loss.detach()

    for _ in range(3):
        np.testing.assert_allclose(quick(X, Y).item(), step(twin, X, Y).item(), rtol=1e-5)
        fg.realize(*twin.parameters(), *twin.buffers())
    assert quick.captured == 1


def test_what_changes_about_a_module_is_seen() -> None:
    model = net()
    forward = fg.jit(lambda m, x: m(x))

    def agrees() -> None:
        want = copy.deepcopy(model)(X).numpy()
        np.testing.assert_allclose(forward(model, X).numpy(), want, rtol=1e-4, atol=1e-5)

    agrees()
    agrees()
    model.eval()
    agrees()
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
    agrees()
    model[0].weight = nn.Parameter(fg.ones((5, 4)))
    agrees()
    model[2] = nn.Tanh()
    agrees()
    model[1].eps = 0.5
    agrees()
    model[3].bias = None
    agrees()
    agrees()
