"""Values that grow by concatenation: memory with room, and old values that stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.cpu import pool

pytestmark = pytest.mark.device("cpu")
WIDTH = 2048
ROWS = np.random.default_rng(0).standard_normal((300, WIDTH)).astype(np.float32)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all rooms that are made."""
    found: list[int] = []

    class Counted(pool.Room):
        def __init__(self, nbytes: int) -> None:
            found.append(nbytes)
            super().__init__(nbytes)

    monkeypatch.setattr(pool, "Room", Counted)
    return found


def grown(count: int, begin: int = 32, scale: float = 1.0) -> Any:
    x = fg.Tensor(ROWS[:begin]).realize()
    for i in range(begin, begin + count):
        x = fg.concat([x, fg.Tensor(ROWS[i : i + 1]) * scale]).realize()
    return x


def test_appends_copy_as_much_as_there_is_and_not_its_square(rooms: list[int]) -> None:
    taken: list[int] = []
    take = pool.POOL.take

    def counted(size: int) -> Any:
        taken.append(size)
        return take(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.POOL, "take", counted)
        x = grown(256)
    np.testing.assert_array_equal(x.numpy(), ROWS[:288])
    assert len(rooms) == 4  # of 33, 67, 135 and 271 rows, doubled
    assert sum(taken) < 10 * ROWS[:288].nbytes  # 160 times that if each were copied


def test_who_holds_an_old_value_keeps_it(rooms: list[int]) -> None:
    held, x = [], grown(4)
    for i in range(36, 60):
        held.append(x)
        x = fg.concat([x, fg.Tensor(ROWS[i : i + 1])]).realize()
    assert len(rooms) == 1
    for i, old in enumerate(held):
        np.testing.assert_array_equal(old.numpy(), ROWS[: 36 + i])


def test_two_values_that_grow_from_one_are_two(rooms: list[int]) -> None:
    x = grown(3)
    one, two = [fg.concat([x, fg.ones((1, WIDTH)) * i]).realize() for i in (1, 2)]
    assert len(rooms) == 2
    assert one.numpy()[-1, 0] == 1 and two.numpy()[-1, 0] == 2
    np.testing.assert_array_equal(two.numpy()[:-1], ROWS[:35])


def test_what_is_written_to_a_grown_value_stays_in_it() -> None:
    x = grown(3)
    y = fg.concat([x, fg.Tensor(ROWS[35:36])]).realize()
    x[0] = 7.0
    y[1] = 8.0
    fg.realize(x, y)
    assert (x.numpy()[0] == 7).all() and (y.numpy()[1] == 8).all()
    np.testing.assert_array_equal(x.numpy()[1:], ROWS[1:35])
    np.testing.assert_array_equal(y.numpy()[[0, 35]], ROWS[[0, 35]])


def test_what_others_compute_too_is_computed_once(rooms: list[int]) -> None:
    x, row = grown(2), fg.exp(fg.Tensor(ROWS[40:41]))
    total, y = row.sum(), fg.concat([x, row])
    before = len(rooms)
    fg.realize(total, y)
    assert len(rooms) == before  # one plan for both
    np.testing.assert_allclose(y.numpy()[-1], np.exp(ROWS[40]), rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_only_the_end_of_memory_grows(axis: int, rooms: list[int]) -> None:
    x = fg.Tensor(ROWS[:64].reshape(1, 64, WIDTH)).realize()
    shape = [1, 64, WIDTH]
    shape[axis] = 1
    y = fg.concat([x, fg.ones(tuple(shape))], axis=axis).realize()
    assert len(rooms) == (axis == 1)
    want = np.concatenate([ROWS[:64].reshape(1, 64, WIDTH), np.ones(shape, np.float32)], axis)
    np.testing.assert_array_equal(y.numpy(), want)


def test_a_gradient_goes_through_a_grown_value() -> None:
    x = fg.Tensor(ROWS[:40]).realize()
    found = fg.grad(lambda a: (fg.concat([x, a]).realize() ** 2).sum())(fg.Tensor(ROWS[40:41]))
    np.testing.assert_allclose(found.numpy(), 2 * ROWS[40:41], rtol=1e-5)
