"""Tests of fulgurite/random/weighted.py: draws follow their weights, and nothing else is drawn."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, ShapeError
from tests.functional.helpers import raises

KEY = fg.random.key(3)
WEIGHTS = [0.0, 1.0, 3.0, 0.0, 6.0, 0.0]


def test_places_are_drawn_by_their_weights() -> None:
    rows = fg.Tensor([WEIGHTS, [1.0, 0, 0, 0, 0, 0]])
    found = fg.multinomial(rows, 20_000, replacement=True, key=KEY)
    assert found.dtype is fg.int32 and found.shape == (2, 20_000)
    parts = np.bincount(found.numpy()[0], minlength=6) / 20_000
    np.testing.assert_allclose(parts, [0, 0.1, 0.3, 0, 0.6, 0], atol=0.01)
    assert not parts[[0, 3, 5]].any() and not found.numpy()[1].any()


def test_without_replacement_each_place_is_drawn_once_in_the_order_of_a_fair_draw() -> None:
    many = fg.broadcast_to(fg.Tensor(WEIGHTS), (20_000, 6))
    found = fg.multinomial(many, 3, key=KEY).numpy()
    assert (np.sort(found, 1) == [1, 2, 4]).all()
    first = np.bincount(found[:, 0], minlength=6) / 20_000
    np.testing.assert_allclose(first, [0, 0.1, 0.3, 0, 0.6, 0], atol=0.01)
    second = np.bincount(found[found[:, 0] == 4, 1], minlength=3)  # among 1 and 3 that are left
    np.testing.assert_allclose(second / second.sum(), [0, 0.25, 0.75], atol=0.02)


def test_counts_add_up_and_follow_their_weights() -> None:
    found = fg.random.multinomial(50, [0.2, 0.0, 0.8], (400,), key=KEY)
    assert found.shape == (400, 3) and found.dtype is fg.int32
    assert (found.numpy().sum(1) == 50).all() and not found.numpy()[:, 1].any()
    np.testing.assert_allclose(found.numpy().mean(0), [10, 0, 40], atol=0.6)
    np.testing.assert_allclose(found.numpy()[:, 0].var(), 50 * 0.2 * 0.8, rtol=0.25)
    assert fg.random.multinomial(0, [1.0, 1.0]).tolist() == [0, 0]
    assert fg.random.multinomial(3, fg.ones((2, 4))).shape == (2, 4)


def test_a_key_decides_alone_and_draws_work_under_transforms() -> None:
    weights = fg.Tensor(WEIGHTS)
    once, again = (fg.multinomial(weights, 2, key=KEY).tolist() for _ in range(2))
    assert once == again
    captured = fg.jit(lambda w, k: fg.multinomial(w, 2, key=k))
    assert captured(weights, KEY).tolist() == once
    keys = fg.random.split(KEY, 3)
    each = fg.vmap(lambda k: fg.multinomial(weights, 4, replacement=True, key=k))(keys)
    assert each.tolist()[1] == fg.multinomial(weights, 4, True, key=keys[1]).tolist()
    whole = fg.multinomial(fg.Tensor([0, 1, 0]), 1)
    assert whole.tolist() == [1] and weights.multinomial(3).shape == (3,)


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -1.0], [float("nan"), 1.0], [float("inf"), 1.0]]
)
def test_weights_that_nothing_can_be_drawn_from_are_an_error_when_a_value_is_asked(
    weights: list[float],
) -> None:
    chosen = [fg.random.choice(2, (3,), p=weights), fg.random.choice(2, (), False, p=weights)]
    drawn = [fg.multinomial(fg.Tensor(weights), 1), fg.random.multinomial(3, weights)]
    for draws in (*drawn, *chosen):
        with pytest.raises(BoundsError, match="none below 0, enough above 0"):
            draws.realize()


def test_choices_that_all_differ_need_as_many_weights_above_0() -> None:
    weights = [0.0, 1.0, 2.0]
    assert sorted(fg.random.choice(3, (2,), replace=False, p=weights).tolist()) == [1, 2]
    assert fg.random.choice(3, (0,), p=[0.0, 0.0, 0.0]).tolist() == []
    with pytest.raises(BoundsError, match="enough above 0"):
        fg.random.choice(3, (3,), replace=False, p=weights).realize()


def test_mistakes_name_the_users_line() -> None:
    with raises(ArgumentError, "3 draws among 2"):
        fg.multinomial(fg.ones(2), 3)
    with raises(ArgumentError):
        fg.multinomial(fg.ones(2), 0)
    with pytest.raises(BoundsError):
        fg.multinomial(fg.Tensor([1.0, 0.0]), 2).realize()
    with raises(ShapeError):
        fg.multinomial(fg.ones((2, 2, 2)), 1)
    with raises(ShapeError):
        fg.multinomial(fg.zeros(0), 1)
    with raises(ArgumentError, "fg.random.multinomial(n, p)"):
        fg.multinomial(10, [0.5, 0.5])  # type: ignore[arg-type]
    with raises(ArgumentError, "fg.multinomial(weights, num_samples)"):
        fg.random.multinomial(fg.ones(2), 10)  # type: ignore[arg-type]
    with raises(ArgumentError):
        fg.random.multinomial(-1, [1.0])
