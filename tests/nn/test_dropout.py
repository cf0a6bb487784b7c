"""Tests of fulgurite/nn/dropout.py: how much is left out, what stays, and the seed."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import raises


def test_elements_are_left_out_with_their_probability_and_the_mean_stays() -> None:
    fg.random.seed(0)
    out = nn.Dropout(0.25)(fg.ones((100, 100))).numpy()
    assert set(np.unique(out).tolist()) == {0.0, float(np.float32(1 / 0.75))}
    assert abs((out == 0).mean() - 0.25) < 0.02 and abs(out.mean() - 1) < 0.03


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (nn.Dropout1d, (50, 40, 3)),
        (nn.Dropout2d, (50, 40, 2, 2)),
        (nn.Dropout3d, (50, 40, 2, 1, 2)),
    ],
)
def test_whole_channels_are_left_out(make: Any, shape: tuple[int, ...]) -> None:
    fg.random.seed(0)
    out = make(0.5)(fg.ones(shape)).numpy().reshape(50, 40, -1)
    assert (out.min(-1) == out.max(-1)).all()
    assert abs((out == 0).mean() - 0.5) < 0.05
    alone = make(0.5)(fg.ones(shape[1:])).numpy().reshape(40, -1)
    assert (alone.min(-1) == alone.max(-1)).all() and 0 < (alone == 0).mean() < 1
    with raises(ShapeError, "channels"):
        make(0.5)(fg.ones(3))


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    fg.random.seed(0)
    x = fg.randn(200, 200)
    for layer in (nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)):
        out = layer(x).numpy()
        assert abs(out.mean()) < 0.05 and abs(out.std() - 1) < 0.05
    least = nn.AlphaDropout(0.5)(fg.zeros(1000)).numpy()
    assert len(np.unique(least)) == 2


@pytest.mark.parametrize(
    "make", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
def test_nothing_happens_in_use_or_without_a_probability_and_all_goes_with_1(make: Any) -> None:
    x = fg.ones((2, 3, 4))
    assert make(0.5).eval()(x).node is x.node
    assert (make(0.0)(x).numpy() == 1).all()
    assert (make(1.0)(x).numpy() == 0).all()
    with raises(ArgumentError, "p is 1.5"):
        make(1.5)


def test_draws_follow_the_seed_and_differ_from_call_to_call() -> None:
    drop, x = nn.Dropout(0.5), fg.ones(100)
    fg.random.seed(1)
    first, second = drop(x).tolist(), drop(x).tolist()
    fg.random.seed(1)
    assert drop(x).tolist() == first and second != first


def test_gradients_flow_through_what_is_kept() -> None:
    x = fg.ones(1000)
    drop = nn.Dropout(0.5)

    def both(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        out = drop(x)
        return out.sum(), out

    slope, out = fg.grad(both, has_aux=True)(x)
    np.testing.assert_array_equal(slope.numpy(), out.numpy())


def test_steps_with_dropout_compile_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = fg.ones((3, 4))
    net(x).numpy()
    before = fg.cache_stats()["schedule"]["misses"]
    for _ in range(5):
        net(x).numpy()
    assert fg.cache_stats()["schedule"]["misses"] == before
