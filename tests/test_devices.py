"""Tests of graphs across devices: fulgurite/runtime/multi_device.py, from the user's side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError, DataError, DTypeError
from fulgurite.runtime.device import get_device
from fulgurite.runtime.host.device import HostBuffer
from fulgurite.runtime.realize import FAMILIES, storage_of, value_node
from tests.properties import program

pytest.importorskip("llvmlite")

pytestmark = pytest.mark.device("cpu")
A, B = "cpu", "reference"


@pytest.fixture(autouse=True, params=["auto", "native"])
def tier(request: pytest.FixtureRequest) -> Iterator[None]:
    with fg.config(tier=request.param):
        yield


def data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def devices_run() -> list[str]:
    """The devices of every plan in the cache that has run."""
    found = [FAMILIES().peek(key) for key in FAMILIES().keys()]  # noqa: SIM118 - it is not a dict
    return sorted({m.plan.device for f in found if f for m in f.members if m.plan.runs})


def test_each_part_of_a_graph_runs_on_its_own_device() -> None:
    fg.clear_caches()
    x, w = data(3, 4), data(4, seed=1)
    a, b = fg.Tensor(x, device=A), fg.Tensor(w, device=B)
    y = (a * 2).to(B) + b
    z = fg.softmax((y * y).to(A) - a, axis=-1)
    assert (y.device, z.device) == (B, A)
    inner = (2 * x + w) ** 2 - x
    expected = np.exp(inner) / np.exp(inner).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(z.numpy(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(y.numpy(), 2 * x + w, rtol=1e-6)
    assert devices_run() == [A, B]


def test_results_on_two_devices_are_computed_together() -> None:
    x = data(5)
    a = fg.Tensor(x, device=A)
    there = (a + 1).to(B)
    here = there.to(A) * 3
    fg.realize(there, here)
    np.testing.assert_array_equal(there.numpy(), x + 1)
    np.testing.assert_array_equal(here.numpy(), (x + 1) * 3)
    assert there.is_realized and here.is_realized


def test_a_value_is_in_the_memory_of_its_device() -> None:
    x = data(600, 70)  # large enough not to be tiny
    a = fg.Tensor(x, device=A)
    b = (a * 2).to(B).realize()
    node = value_node(b.node)
    assert node is not None and node.device == B
    memory: Any = storage_of(node)
    assert type(memory) is HostBuffer  # the reference device's own kind
    c = (b + 1).to(A).realize()
    node = value_node(c.node)
    assert node is not None and node.device == A
    np.testing.assert_array_equal(c.numpy(), x * 2 + 1)


def test_moving_back_and_forth_shares_no_memory() -> None:
    a = fg.Tensor(data(4), device=A)
    b = a.to(B)
    c = b.to(A)
    before = b.numpy()
    a += 1
    c += 2
    a.realize(), c.realize()
    np.testing.assert_array_equal(b.numpy(), before)
    np.testing.assert_array_equal(a.numpy(), before + 1)
    np.testing.assert_array_equal(c.numpy(), before + 2)
    assert a.to(A) is not a and a.to(A).device == A


def test_an_assignment_before_a_copy_is_seen_and_one_after_is_not() -> None:
    x = data(4)
    a = fg.Tensor(x, device=A)
    a[0] = 5.0
    b = a.to(B) * 2
    a[1] = 7.0
    got = b.numpy()
    assert got[0] == 10 and got[1] == 2 * x[1]
    assert a.numpy()[:2].tolist() == [5, 7]


def test_gradients_come_back_to_the_device_of_each_argument() -> None:
    x, w = data(4), data(4, seed=1)

    def loss(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        return (((a * 2).to(B) * b).to(A) * a).sum()

    da, db = fg.grad(loss, (0, 1))(fg.Tensor(x, device=A), fg.Tensor(w, device=B))
    assert (da.device, db.device) == (A, B)
    np.testing.assert_allclose(da.numpy(), 4 * x * w, rtol=1e-5)
    np.testing.assert_allclose(db.numpy(), 2 * x * x, rtol=1e-5)
    leaf = fg.Tensor(x, device=A, requires_grad=True)
    ((leaf * 3).to(B) ** 2).sum().backward()
    assert leaf.grad is not None and leaf.grad.device == A
    np.testing.assert_allclose(leaf.grad.numpy(), 18 * x, rtol=1e-5)


def test_tensors_on_different_devices_do_not_meet_without_a_copy() -> None:
    a, b = fg.Tensor(data(4), device=A), fg.Tensor(data(4), device=B)
    meetings: list[Any] = [
        lambda: a + b, lambda: a @ b, lambda: fg.where(a > 0, a, b), lambda: fg.concat([a, b]),
        lambda: fg.stack([a, b]), lambda: a.assign(b), lambda: a.__setitem__(0, b[0]),
        lambda: fg.custom(np.add, a, b, shape=(4,)), lambda: fg.maximum(a, b),
        lambda: fg.take(a, b.astype("int32")), lambda: fg.einsum("i,i->", a, b),
    ]  # fmt: skip
    for meet in meetings:
        with pytest.raises(DataError, match=r"different devices: (cpu|reference) and") as caught:
            meet()
        assert ".to(" in str(caught.value) and "test_devices.py:" in str(caught.value)


def test_what_is_no_device_is_named() -> None:
    with pytest.raises(DTypeError, match="neither an element type nor a device"):
        fg.Tensor([1.0]).to("moon")


def test_a_failure_on_one_device_loses_nothing_on_the_other() -> None:
    def fail(a: Array) -> Array:
        raise RuntimeError("mine")

    x = data(4)
    a = fg.Tensor(x, device=A)
    b = fg.custom(fail, (a * 2).to(B), shape=(4,))
    c = b.to(A) + a
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            c.realize()
    assert not c.is_realized
    np.testing.assert_array_equal((a + 1).numpy(), x + 1)


def test_a_schedule_across_devices_has_a_part_for_each_and_copies_between() -> None:
    x, w = data(6), data(6, seed=1)
    a, b = fg.Tensor(x, device=A), fg.Tensor(w, device=B)
    y = (a * 2).to(B) + b
    z = (y * y).to(A) + a
    plan = fg.schedule(z, y)
    steps = [(item.kind, item.device) for item in plan.items]
    assert steps == [("map", A), ("copy", B), ("map", B), ("copy", A), ("map", A)]
    assert [p.device for p in plan.plans] == [A, B, A]  # each with an arena of its own
    assert "copy on reference" in str(plan) and plan.peak > 0

    def check(changed_only: bool) -> None:
        got = [t.numpy() for t in plan.run(changed_only=changed_only)]
        y = a.numpy() * 2 + b.numpy()
        np.testing.assert_allclose(got[0], y * y + a.numpy(), rtol=1e-5)
        np.testing.assert_allclose(got[1], y, rtol=1e-5)

    check(False)
    assert list(plan.ran) == [0, 1, 2, 3, 4]
    check(True)
    assert not plan.ran
    b += 1
    check(True)
    assert list(plan.ran) == [2, 3, 4]  # what crossed to the second device is there already
    a += 1
    check(True)
    assert list(plan.ran) == [0, 1, 2, 3, 4]
    for _ in range(5):
        a += 1
        check(False)
    with pytest.raises(ArgumentError, match="across devices cannot be saved"):
        plan.save("nowhere")


@given(seed=st.integers(0, 2**32 - 1))
@program
def test_any_graph_across_devices_has_the_values_of_numpy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    arrays = [generator.integers(-4, 5, (3, 3)).astype(np.float32) for _ in range(3)]
    values = [
        (fg.Tensor(x, device=(A, B)[int(generator.integers(2))]), x.astype(np.float64))
        for x in arrays
    ]
    for _ in range(8):
        (s, u), (t, v) = (values[int(generator.integers(len(values)))] for _ in range(2))
        device = (A, B)[int(generator.integers(2))]
        s, t = s.to(device), t.to(device)
        kind = int(generator.integers(4))
        if kind == 0:
            values.append((s + t, u + v))
        elif kind == 1:
            values.append((s - t.T, u - v.T))
        elif kind == 2:
            values.append((fg.maximum(s, t), np.maximum(u, v)))
        else:
            values.append((s.sum(axis=0, keepdims=True) + t, u.sum(axis=0, keepdims=True) + v))
        if generator.integers(4) == 0:
            values[-1][0].realize()
    plan = fg.schedule(*[t for t, _ in values[-3:]]) if not _all_known(values[-3:]) else None
    for tensor, expected in values[::-1]:
        np.testing.assert_array_equal(tensor.numpy(), expected)
    if plan is not None:
        for got, (_, expected) in zip(plan.run(), values[-3:], strict=True):
            np.testing.assert_array_equal(got.numpy(), expected)


def _all_known(values: list[tuple[fg.Tensor, Any]]) -> bool:
    return all(t.is_realized for t, _ in values)


def test_both_devices_are_there() -> None:
    assert get_device(A).name == A and get_device(B).name == B
