"""Plans for many sizes are found by comparison with the graph that they expect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.context import fresh_context
from fulgurite.runtime.realize import FAMILIES
from fulgurite.runtime.sizes.recent import RECENT

pytestmark = pytest.mark.device("cpu")


@pytest.fixture(autouse=True)
def _native() -> Any:
    with fg.config(device="cpu", tier="native", disk_cache=False), fresh_context():
        yield


def _misses() -> int:
    return fg.cache_stats()["schedule"]["misses"]


def _sum_of_squares(n: int, factor: float = 1.0) -> bool:
    data = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    got = ((fg.Tensor(data) * fg.Tensor(data)).sum(axis=0) * factor).numpy()
    return np.allclose(got, (data * data).sum(axis=0) * np.float32(factor))


def test_sizes_that_never_come_again_leave_no_key_behind() -> None:
    assert all([_sum_of_squares(n) for n in (11, 12, 13, 14)])
    before, known = _misses(), len(FAMILIES())
    assert all([_sum_of_squares(n) for n in range(20, 60)])
    assert (_misses(), len(FAMILIES())) == (before, known)


def test_another_program_of_the_same_length_is_not_taken_for_it() -> None:
    assert all([_sum_of_squares(n) for n in (11, 12, 13, 14)])
    assert RECENT()._known
    data = np.arange(45, dtype=np.float32).reshape(15, 3)
    x = fg.Tensor(data)
    assert np.allclose(((x + x).sum(axis=0) * 1.0).numpy(), 2 * data.sum(axis=0))
    assert np.allclose(((x * x).max(axis=0) * 1.0).numpy(), (data * data).max(axis=0))
    assert np.allclose(((x * x).sum(axis=1) * 1.0).numpy(), (data * data).sum(axis=1))
    assert _sum_of_squares(15, 3.0) and _sum_of_squares(1) and _sum_of_squares(15)


def test_a_cache_that_becomes_longer_than_a_head_is_wide_keeps_its_plan() -> None:
    rng, heads, width = np.random.default_rng(0), 2, 8
    first = rng.standard_normal((heads, 4, width), dtype=np.float32)
    mix, out = [fg.Tensor(rng.standard_normal(s, dtype=np.float32)) for s in ((16, 48), (16, 16))]
    keys, values, misses = fg.Tensor(first), fg.Tensor(first), list[int]()
    z = fg.Tensor(np.ones((1, 16), np.float32))
    for _ in range(8):
        parts = (fg.layer_norm(z, (16,)) @ mix).reshape(1, 3, heads, width)
        query, key, value = [parts[:, i].permute(1, 0, 2) for i in range(3)]
        keys, values = fg.concat([keys, key], axis=1), fg.concat([values, value], axis=1)
        seen = fg.softmax(query @ keys.permute(0, 2, 1), axis=-1) @ values
        z = z + seen.permute(1, 0, 2).reshape(1, 16) @ out
        fg.realize(z, keys, values)
        misses.append(_misses())
    assert misses[-1] == misses[2], "lengths from 7 on, past 8"
