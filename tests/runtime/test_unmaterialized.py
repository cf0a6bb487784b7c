"""Tests of fulgurite/runtime/unmaterialized.py: results that become nodes when somebody looks."""

import gc
import threading

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.aot.schedule import PATIENCE, TensorSchedule
from fulgurite.core.node import live_count
from fulgurite.graph.ir.registry import REGISTRY, Entry
from fulgurite.runtime.unmaterialized import Fresh

X = np.arange(6, dtype=np.float32)


@pytest.fixture
def doubled() -> TensorSchedule:
    """A schedule of x * 2 that keeps nothing any more."""
    held = fg.schedule(fg.Tensor(X) * 2)
    for _ in range(PATIENCE + 1):
        held.run()
    return held


def test_a_result_that_nobody_looks_at_makes_no_node(doubled: TensorSchedule) -> None:
    gc.collect()
    before = live_count(), REGISTRY.entry_count(), REGISTRY.buffer_count()
    results = [doubled.run()[0] for _ in range(3)]
    assert all(type(r.entry) is Fresh for r in results)
    assert (live_count(), REGISTRY.entry_count(), REGISTRY.buffer_count()) == before
    assert [r.tolist() for r in results] == [(X * 2).tolist()] * 3  # nor does reading it
    assert (live_count(), REGISTRY.entry_count(), REGISTRY.buffer_count()) == before
    assert [r.shape for r in results] == [(6,)] * 3
    now = REGISTRY.entry_count(), REGISTRY.buffer_count()
    assert now == (before[1] + 3, before[2] + 3)
    del results
    assert (live_count(), REGISTRY.entry_count(), REGISTRY.buffer_count()) == before


def test_a_result_that_was_looked_at_is_like_any_tensor(doubled: TensorSchedule) -> None:
    (y,) = doubled.run()
    assert y.shape == (6,) and y.dtype is fg.float32 and type(y.entry) is Entry
    assert y.entry in REGISTRY.entries() and y.is_realized
    (z,) = doubled.run()
    assert (y + z).tolist() == (X * 4).tolist()
    z += 1
    z[2:4] = 0
    expected = X * 2 + 1
    expected[2:4] = 0
    assert z.tolist() == expected.tolist() and y.tolist() == (X * 2).tolist()


def test_a_result_can_be_watched_and_differentiated(doubled: TensorSchedule) -> None:
    (y,) = doubled.run()
    assert fg.grad(lambda t: (t * t).sum())(y).tolist() == (X * 4).tolist()


def look(y: fg.Tensor, start: threading.Barrier, found: list[object]) -> None:
    start.wait()
    found.append(y.entry.node)


def test_threads_that_look_at_once_see_one_node(doubled: TensorSchedule) -> None:
    for _ in range(50):
        (y,) = doubled.run()
        start, found = threading.Barrier(4), list[object]()
        threads = [threading.Thread(target=look, args=(y, start, found)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4 and len(set(map(id, found))) == 1


def test_results_that_are_held_are_never_written_over(doubled: TensorSchedule) -> None:
    rng = np.random.default_rng(5)
    held: list[fg.Tensor] = []
    arrays = []
    for _ in range(200):
        held.append(doubled.run()[0])
        if rng.random() < 0.3:
            arrays.append(held[-1].numpy())
        if len(held) > 5 and rng.random() < 0.5:
            del held[int(rng.integers(len(held)))]
        other = fg.Tensor(X) + 1
        other.realize()
    assert all((t.numpy() == X * 2).all() for t in held)
    assert all((a == X * 2).all() for a in arrays)


def test_reading_a_result_makes_no_node() -> None:
    with fg.config(device="cpu"):
        plan = fg.schedule(fg.from_numpy(np.arange(4.0)) + 1)
        results = [plan.run()[0] for _ in range(6)]
        assert type(results[-1].entry) is Fresh
        shown = np.asarray(results[-1])
        assert shown.tolist() == results[-1].numpy().tolist() == [1, 2, 3, 4]
        assert type(results[-1].entry) is Fresh and not shown.flags.writeable
        results[-1] += 1  # what was read stays as it was
        assert results[-1].tolist() == [2, 3, 4, 5] and shown.tolist() == [1, 2, 3, 4]
