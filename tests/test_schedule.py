"""Tests of fulgurite/schedule.py: a schedule you can hold, look at, and run again."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import float32
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.errors import ArgumentError
from fulgurite.tensor import wrap


def random(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def test_kernels_come_in_an_order_in_which_they_can_run() -> None:
    x, w = random(4, 4), random(4, 4)
    plan = fg.schedule(fg.softmax(x @ w, axis=-1) @ w, x + 1)
    known = set(range(plan.compile().schedule.inputs))
    known |= {i for i, s in enumerate(plan.compile().schedule.slots) if s and s.bits is not None}
    for item in plan.items:
        assert set(item.reads) <= known
        known |= set(item.writes)


def test_a_schedule_holds_generated_kernels() -> None:
    plan = fg.schedule(fg.softmax(random(4, 4), axis=-1))
    assert [item.kernel.kind for item in plan.items] == ["reduce"]


def test_making_a_schedule_runs_nothing() -> None:
    x = random(4) * 2
    plan = fg.schedule(x)
    assert plan.compile().runs == 0
    assert not x.is_realized


def test_a_schedule_that_runs_again_after_its_input_was_edited_gives_the_new_numbers() -> None:
    data = np.array([1.0, 2.0], np.float32)
    plan = fg.schedule(fg.from_numpy(data) * 2 + 1)
    assert plan.run()[0].tolist() == [3.0, 5.0]
    data[:] = [10.0, 20.0]
    assert plan.run()[0].tolist() == [21.0, 41.0]


def test_each_run_returns_fresh_tensors() -> None:
    plan = fg.schedule(random(4) * 2)
    (one,), (two,) = plan.run(), plan.run()
    assert not np.shares_memory(np.asarray(one), np.asarray(two))


def test_an_empty_schedule_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="nothing to schedule"):
        fg.schedule()
    with pytest.raises(ArgumentError, match="nothing to schedule"):
        fg.schedule(random(3))
    with pytest.raises(ArgumentError, match="not a tensor"):
        fg.schedule(3)  # type: ignore[arg-type]


def test_a_schedule_prints_its_kernels() -> None:
    assert "reduce" in str(fg.schedule(random(4, 4).sum()))


def test_a_reshape_does_not_break_fusion() -> None:
    assert len(fg.schedule(fg.exp((random(4, 6) * 2).reshape(8, 3)) + 1)) == 1


def test_a_cheap_value_that_is_used_twice_is_not_stored() -> None:
    x = random(4, 4)
    shared = x * 2
    assert len(fg.schedule(shared.sum(), shared + 1)) <= 2
    written = [item.writes for item in fg.schedule(shared.sum(axis=0), shared.T @ x).items]
    assert sum(map(len, written)) == 2  # the two results and nothing else


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concatenation_is_right_along_every_axis(axis: int) -> None:
    a, b = np.arange(24.0).reshape(2, 3, 4), -np.arange(24.0).reshape(2, 3, 4)
    got = fg.concat([fg.Tensor(a), fg.Tensor(b)], axis=axis)
    np.testing.assert_array_equal(got.numpy(), np.concatenate([a, b], axis=axis))


def test_two_threads_run_one_schedule() -> None:
    from tests.threads import together

    x = random(64, 64)
    plan = fg.schedule(fg.softmax(x @ x, axis=-1) @ x)
    expected = plan.run()[0].numpy()
    for got in together(4, lambda _: [plan.run()[0].numpy() for _ in range(5)]):
        for value in got:
            np.testing.assert_array_equal(value, expected)


def test_a_schedule_holds_host_functions_that_return_a_new_buffer() -> None:
    host = HostFunction("twice", lambda a: a * 2)
    x = random(4)
    top = wrap(custom(host, ((x + 1).node,), (4,), float32)) * 3
    plan = fg.schedule(top)
    assert [item.kernel.kind for item in plan.items].count("host") == 1
    np.testing.assert_allclose(plan.run()[0].numpy(), (x.numpy() + 1) * 6, rtol=1e-6)
