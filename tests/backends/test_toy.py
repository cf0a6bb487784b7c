"""A third device of sixty lines runs a network: tests/backends/toy.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.runtime import device as devices


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    from tests.backends import toy

    devices.register_device("toy", lambda name: toy.ToyDevice())
    with fg.config(device="toy"):
        yield
    del devices._factories["toy"]
    devices._devices.pop("toy", None)


def losses(device: str, jit: bool) -> list[float]:
    """Three steps of SGD on a small MLP."""
    with fg.config(device=device):
        rng = np.random.default_rng(0)
        x = fg.Tensor(rng.normal(size=(8, 5)).astype(np.float32))
        y = fg.Tensor(rng.integers(0, 3, 8))
        model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
        with fg.no_grad():
            for p in model.parameters():
                p.assign(fg.Tensor(rng.normal(size=p.shape).astype(np.float32)))
        optimizer = fg.optim.SGD(model.parameters(), lr=0.1)

        def step() -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = fg.jit(step) if jit else step
        return [float(run()) for _ in range(4)]


@pytest.mark.parametrize("jit", [False, True])
def test_it_trains_a_network(jit: bool) -> None:
    found = losses("toy", jit)
    np.testing.assert_allclose(found, losses("reference", jit), rtol=1e-5)
    assert found[-1] < found[0]


def test_loops_choices_host_functions_and_copies_follow() -> None:
    x = fg.Tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    last, trail = fg.scan(lambda c, row: (c + row, c * row), fg.zeros(3), x)
    np.testing.assert_array_equal(last.numpy(), x.numpy().sum(axis=0))
    assert fg.cond(x.sum() > 3, lambda v: v + 1, lambda v: v - 1, x).numpy()[0, 0] == 1
    assert fg.custom(np.sort, -x, shape=(4, 3)).numpy()[0, 0] == -2
    assert (trail.to("reference") * 2).device == "reference"
    np.testing.assert_array_equal(trail.to("reference").numpy(), trail.numpy())
    x[1] = 7
    assert x.numpy()[1].tolist() == [7, 7, 7]
    with pytest.raises(IndexError, match="index 9 is outside") as caught:
        x[fg.Tensor([9])].realize()
    assert "test_toy.py:" in str(caught.value)
