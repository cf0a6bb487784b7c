"""Tests of fulgurite/runtime/cpu/executor.py and tiny.py: one native call, and none at all."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.runtime.device import get_device
from fulgurite.runtime.host.tiny import TinyExecutor
from fulgurite.runtime.realize import storage_of
from fulgurite.tensor import wrap

pytest.importorskip("llvmlite")
from fulgurite.runtime.cpu import executor
from fulgurite.runtime.cpu.executor import Program
from fulgurite.runtime.cpu.pool import KEEPERS, forget_idle

NATIVE = {"device": "cpu", "tier": "native"}


def linked(plan: object) -> Program:
    found = plan.compile().executor  # type: ignore[attr-defined]
    assert isinstance(found, Program)
    return found


def test_a_hundred_kernels_are_one_native_call() -> None:
    with fg.config(fuse=False, **NATIVE):
        y = fg.Tensor(np.arange(64, dtype=np.float32))
        for n in range(100):
            y = y * 1.5 if n % 2 else y - 1.0
        plan = fg.schedule(y)
        program = linked(plan)
        calls: list[tuple[int, ...]] = []
        real = program.workers.call

        def counted(*arguments: int) -> int:
            calls.append(arguments)
            return real(*arguments)

        program.workers.call = counted
        try:
            (found,) = plan.run()
        finally:
            program.workers.call = real
    assert len(plan) == 100 and len(calls) == 1
    expected = np.arange(64, dtype=np.float32)
    for n in range(100):
        expected = expected * np.float32(1.5) if n % 2 else expected - np.float32(1.0)
    np.testing.assert_array_equal(found.numpy(), expected)


def calls_of(work: Callable[[], object]) -> list[str]:
    """The names of what a call calls, in Python and in C."""
    found: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_name)
        elif event == "c_call":
            found.append(argument.__name__)

    work()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found[:-1]  # setprofile itself


@pytest.mark.device("none")
def test_a_replay_calls_little_besides_the_driver() -> None:
    """Each call is a twentieth of a microsecond, of two; attributes must be quick as well."""
    with fg.config(fuse=False, **NATIVE):
        a = fg.ones(64).realize()
        held = fg.schedule(a * 2 + a)
        plan = held.compile()
        inputs = [storage_of(buffer) for buffer in held.only_part.normal.buffers]  # type: ignore[union-attr]
        for _ in range(5):
            held.run()
        below, whole = calls_of(lambda: plan.run(inputs)), calls_of(held.run)
    assert below.count("call") == whole.count("call") == 1, "the driver"
    assert len(below) <= 16 and len(whole) <= 24, (below, whole)
    assert "__getattr__" not in dir(linked(held)), "the interpreter specialises no such class"


def test_host_steps_split_a_program_and_share_its_memory() -> None:
    host = HostFunction("sorted", lambda a: np.sort(a))
    data = np.array([3.0, 1.0, 2.0], np.float32)
    with fg.config(**NATIVE):
        x = fg.Tensor(data)
        before = (x * 2).node
        y = wrap(custom(host, (before,), (3,), fg.float32)) + x
        plan = fg.schedule(y)
        kinds = [isinstance(s, int) for s in linked(plan).segments]
        assert kinds == [True, False, True]
        assert plan.run()[0].tolist() == [2 + 3, 4 + 1, 6 + 2]


@pytest.mark.parametrize("step", [-1, 2, 3])
def test_a_shared_array_whose_elements_do_not_follow_each_other_is_read_right(step: int) -> None:
    data = np.arange(60, dtype=np.float32)
    with fg.config(**NATIVE):
        x = fg.from_numpy(data[::step])
        plan = fg.schedule(x * 2)
        np.testing.assert_array_equal(plan.run()[0].numpy(), data[::step] * 2)
        data += 1
        np.testing.assert_array_equal(plan.run()[0].numpy(), data[::step] * 2)


@pytest.mark.parametrize("offset", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_memory_of_any_alignment_is_read_right(offset: int, dtype: str) -> None:
    raw = np.zeros(4096 + offset, np.uint8)
    array = raw[offset : offset + 4000].view(dtype)
    array[...] = np.arange(array.size) % 100
    assert array.ctypes.data % 64
    with fg.config(**NATIVE):
        x = fg.from_numpy(array)
        total, double = fg.realize(x.sum(), x + x)
        assert total.item() == array.sum(dtype=np.float64)
        np.testing.assert_array_equal(double.numpy(), array + array)


def test_outputs_of_two_runs_never_share_memory() -> None:
    with fg.config(**NATIVE):
        plan = fg.schedule(fg.Tensor(np.ones(1000, np.float32)) + 1)
        kept = [plan.run()[0] for _ in range(5)]
        addresses = {t.numpy().tobytes() for t in kept}
        arrays = [np.asarray(t) for t in kept]
    assert len(addresses) == 1
    assert len({a.__array_interface__["data"][0] for a in arrays}) == 5


def test_poison_never_shows_through_arenas_and_workspaces() -> None:
    x = np.random.default_rng(1).normal(size=(40, 333)).astype(np.float32)
    with fg.config(poison=True, fuse=False, **NATIVE):
        t = fg.Tensor(x)
        got = fg.softmax(t * 2 + t, axis=-1).sum(axis=0).numpy()
    e = np.exp((x * 3 - (x * 3).max(axis=1, keepdims=True)).astype(np.float64))
    np.testing.assert_allclose(got, (e / e.sum(axis=1, keepdims=True)).sum(axis=0), rtol=1e-5)


# --- the tiny tier -------------------------------------------------------------------------------


def test_a_tiny_graph_runs_no_native_code() -> None:
    with fg.config(device="cpu", tier="auto"):
        device = get_device("cpu")
        before = device.native  # type: ignore[attr-defined]
        x = fg.Tensor([1.0, 2.0])
        assert (x + 1).tolist() == [2.0, 3.0]
        assert device.native == before  # type: ignore[attr-defined]


def test_results_of_a_tiny_graph_own_their_memory() -> None:
    data = np.arange(6, dtype=np.float32)
    with fg.config(device="cpu", tier="auto"):
        x = fg.from_numpy(data)
        same, moved, twice = x.reshape(2, 3) + 0, fg.flip(x, 0), x * 1
        other = x * 1
        fg.realize(same, moved, twice, other)
        data[:] = -1
        assert same.tolist() == [[0, 1, 2], [3, 4, 5]] and moved.tolist() == [5, 4, 3, 2, 1, 0]
        assert twice.tolist() == other.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_tiny_plan_is_run_by_numpy_alone() -> None:
    from fulgurite.graph.ir.cache_key import normalize
    from fulgurite.runtime.realize import lookup

    with fg.config(device="cpu", tier="auto"):
        x = fg.Tensor(3.0)
        assert isinstance(lookup(normalize([(x * x).node]), "cpu").plan.executor, TinyExecutor)


def test_of_many_sizes_the_latest_keep_memory_for_their_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "FRAMED", 2)
    forget_idle()  # what other tests left
    rng = np.random.default_rng(0)
    w = fg.Tensor(rng.standard_normal((64, 64), np.float32))
    sizes = range(200, 400, 7)
    with fg.config(device="cpu", tier="native"):
        for n in (*sizes, *sizes):
            x = rng.standard_normal((n, 64), np.float32)
            found = (fg.tanh(fg.Tensor(x) @ w).sum(1, keepdims=True) + fg.Tensor(x)) @ w
            held = w.numpy().astype(np.float64)
            wanted = (np.tanh(x @ held).sum(1, keepdims=True) + x) @ held
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-3)
    kept = {id(p._idle): p._idle for p in KEEPERS if isinstance(p, Program) and p.resizes}
    assert len(kept) > 2 >= len([frames for frames in kept.values() if frames]) > 0


def test_sizes_of_one_layout_share_frames_whatever_came_between() -> None:
    forget_idle()
    rng = np.random.default_rng(0)
    w = fg.Tensor(rng.standard_normal((64, 64), np.float32)).realize()
    whole = rng.standard_normal((400, 64), np.float32)
    size = fg.Var("n", 2, 400)
    schedule = fg.schedule(fg.tanh(fg.from_numpy(whole)[: size.bind(200)] @ w) @ w)
    schedule.compile(any_size=True)
    for n in (200, 300, 390, 201, 303, 391, 205, 299, 389, 202):
        (found,) = schedule.bound({"n": n}).run()
        wanted = np.tanh(whole[:n].astype(np.float64) @ w.numpy()) @ w.numpy()
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-3)
    runs: Any = schedule.compile().executor
    of = {n: runs.at({"n": n}) for n in (201, 205, 303, 299)}
    assert of[201].layout is of[205].layout and of[201]._idle is of[205]._idle
    assert of[303].layout is of[299].layout and of[303]._idle is not of[201]._idle
