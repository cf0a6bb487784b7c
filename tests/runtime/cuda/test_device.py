"""Tests of fulgurite/runtime/cuda: memory, graphs, errors and code on disk, over a fake libcuda."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn, optim
from fulgurite.codegen.cuda import generator
from fulgurite.codegen.cuda.generator import CudaCodeGenerator
from fulgurite.errors import BoundsError
from fulgurite.graph.ir.registry import LostError
from fulgurite.runtime.cuda import driver as cuda
from fulgurite.runtime.cuda.executor import CudaProgram
from fulgurite.runtime.cuda.memory import size_class
from fulgurite.runtime.device import MemoryLimitError
from tests.codegen.cuda.subprocesses import needs_triton

pytestmark = pytest.mark.usefixtures("gpu")
ROOT = Path(__file__).parents[3]


def counted(library: ctypes.CDLL, *names: str) -> dict[str, int]:
    return {name: library.fake_count(name.encode()) for name in names}


class Training:
    """A small net with Adam, and its step."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = fg.Tensor(rng.standard_normal((8, 6)).astype("float32"))
        self.y = fg.Tensor(rng.integers(0, 3, 8))
        self.model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        with fg.no_grad():
            for p in self.model.parameters():
                p.assign(fg.Tensor(rng.standard_normal(p.shape).astype("float32")))
        model, adam = self.model, optim.Adam(self.model.parameters(), lr=0.1)

        def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
            adam.zero_grad()
            loss: fg.Tensor = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            adam.step()
            return loss

        self.step, self.jitted = step, fg.jit(step)

    def weights(self) -> list[Any]:
        return [p.numpy().copy() for p in self.model.parameters()]


def test_a_training_step_has_the_references_values_and_is_one_graph_launch(
    library: ctypes.CDLL,
) -> None:
    with fg.config(device="reference"):
        plain = Training()
        want = [plain.step(plain.x, plain.y).item() for _ in range(6)]
        want += [plain.step(plain.x, plain.y).item() for _ in range(20)]
    training = Training()
    got = [training.jitted(training.x, training.y).item() for _ in range(6)]
    names = ("launches", "graphs", "updates", "waits")
    for _ in range(6):  # results take turns from here on
        loss = training.jitted(training.x, training.y)
    before = counted(library, *names, "calls")
    for _ in range(14):
        loss = training.jitted(training.x, training.y)
    after = counted(library, *names, "calls")
    assert after["calls"] - before["calls"] <= 14 + 2 * 4  # and a mark after every fourth
    assert {n: after[n] - before[n] for n in names} == {
        "launches": 0, "graphs": 14, "updates": 0, "waits": 0,
    }  # fmt: skip
    np.testing.assert_allclose([*got, loss.item()], [*want[:6], want[-1]], rtol=1e-5)
    for a, b in zip(training.weights(), plain.weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_keeps_the_memory_of_all_its_state_also_where_it_cannot_be_written_over_at_once(
    library: ctypes.CDLL,
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 3, 8, 8)).astype("float32") for _ in range(2)]

    def losses(device: str) -> tuple[list[float], dict[str, int], int]:
        fg.random.seed(0)
        with fg.config(device=device):
            layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)
            model = nn.Sequential(*layers, nn.BatchNorm2d(4))
            sgd = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            inputs = [fg.Tensor(a).realize() for a in arrays]

            @fg.jit
            def step(x: fg.Tensor) -> fg.Tensor:
                sgd.zero_grad()
                loss: fg.Tensor = (fg.tanh(model(x)) * x[:, :1, 2:-2, 2:-2]).mean()
                loss.backward()
                sgd.step()
                return loss

            found = [float(step(inputs[i % 2])) for i in range(6)]
            before: dict[str, int] = {}
            for i in range(20):  # results take turns from here on
                last = step(inputs[i % 2])
                before = counted(library, "graphs", "updates") if i == 13 else before
            after = counted(library, "graphs", "updates")
            memory = [p.entry.node.src[0].memory.address for p in model.parameters()]
            step(inputs[0])
            now = [p.entry.node.src[0].memory.address for p in model.parameters()]
            kept = sum([a == b for a, b in zip(memory, now, strict=True)])
            return [*found, float(last)], {n: after[n] - before[n] for n in after}, kept

    want, *_ = losses("reference")
    got, counts, kept = losses("cuda")
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert counts == {"graphs": 6, "updates": 0}
    assert kept == 8


def test_a_replay_whose_addresses_came_before_is_one_call_of_the_driver(
    library: ctypes.CDLL,
) -> None:
    w = fg.Tensor(np.ones((4, 4)))
    step = fg.jit(lambda x: (fg.softmax(fg.relu(x @ w) @ w), x.sum()))
    inputs = [fg.Tensor(np.full((4, 4), float(i))) for i in range(2)]
    for x in inputs * 4:
        kept = step(x)
    before = counted(library, "calls", "graphs")
    for x in inputs * 3:
        kept = step(x)
    after = counted(library, "calls", "graphs")
    assert {n: after[n] - before[n] for n in after} == {"calls": 6, "graphs": 6}
    np.testing.assert_allclose(kept[0].numpy(), 0.25)
    assert kept[1].item() == 16.0


def test_a_cache_that_is_assigned_twice_at_a_place_is_written_in_place(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place: list[int] = []  # the updates of a graph before each call that writes in place
    launch = CudaProgram.launch_in_place

    def noted(self: CudaProgram, *given: Any) -> Any:
        in_place.append(counted(library, "updates")["updates"])
        return launch(self, *given)

    monkeypatch.setattr(CudaProgram, "launch_in_place", noted)

    def decoded(device: str) -> np.ndarray[Any, Any]:
        with fg.config(device=device):
            cache = fg.Tensor(np.zeros((2, 16, 4), np.float32)).realize()
            at = fg.Var("at", 0, 15)

            @fg.jit
            def step(x: fg.Tensor, place: Any) -> fg.Tensor:
                cache[0, place], cache[1, place] = x, x * 2.0
                seen = fg.arange(16) <= place
                return fg.softmax(fg.where(seen[:, None], cache[0] * cache[1], 0.0).sum(axis=0) + x)

            x = fg.Tensor(np.ones(4, np.float32)).realize()
            for i in range(16):
                y = step(x, at.bind(i))
            return np.concatenate([y.numpy(), cache.numpy().ravel()])

    np.testing.assert_allclose(decoded("cuda"), decoded("reference"), rtol=1e-6)
    assert len(in_place) >= 14, "it copies"
    assert in_place[-1] == in_place[-6], "a graph is told of a place"


def test_a_replayed_training_step_calls_few_functions_of_python(library: ctypes.CDLL) -> None:
    training = Training()
    for _ in range(12):
        loss = training.jitted(training.x, training.y)
    calls: list[str] = []
    fg.synchronize()  # kernels of the fake are Python too
    library.fake_idle(1)
    try:
        for _ in range(12):  # results take turns from here on
            loss = training.jitted(training.x, training.y)
        sys.setprofile(lambda frame, event, _: calls.append(event))
        for _ in range(8):
            loss = training.jitted(training.x, training.y)
    finally:
        sys.setprofile(None)
        library.fake_idle(0)
    assert loss.shape == ()
    assert calls.count("call") <= 8 * 80  # 3 for each of 5 results, one for each of 13 tensors


def test_a_plan_that_ran_once_gives_its_arena_to_the_next(gpu: Any) -> None:
    x = fg.Tensor(np.arange(4096, dtype=np.float32)).realize()

    def run(number: int) -> fg.Tensor:
        h = fg.cumulative_sum(x * float(number), axis=0)  # intermediates, in an arena
        return fg.cumulative_sum(h[::-1] + 1.0, axis=0).max() * fg.ones((number,))

    with fg.config(tier="native"):
        used, values = [], []
        for number in range(2, 8):
            values.append(run(number).numpy())
            used.append(gpu.memory_stats()["used"])
        again = [run(2).numpy() for _ in range(3)]
    assert used[-1] < used[0] + 4 * 4096  # of six plans, one arena
    assert all([np.array_equal(a, values[0]) for a in again])


def test_plans_that_take_turns_keep_their_memory(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CudaProgram] = []
    frame = CudaProgram.frame

    def noted(program: CudaProgram, poison: bool, layout: Any) -> Any:
        made.append(program)
        return frame(program, poison, layout)

    monkeypatch.setattr(CudaProgram, "frame", noted)
    with fg.config(tier="native"):
        for turn in range(6):
            x = fg.Tensor(np.arange(64, dtype=np.float32) + turn)
            up = fg.cumulative_sum(x * 2.0, axis=0).realize()
            down = (up[::-1] + 1.0).realize()
            assert down.numpy()[0] == 2 * (64 * 63 / 2 + 64 * turn) + 1
    assert max(Counter(map(id, made)).values()) <= 2  # the first is let go of


def test_blocks_that_wait_for_the_next_result_are_not_in_use(gpu: Any) -> None:
    step = fg.jit(lambda x: x + 1)
    x = fg.Tensor(np.ones(1000, np.float32)).realize()
    for _ in range(5):
        y = step(x)
    with_result = gpu.memory_stats()["used"]
    y.numpy()
    del y
    assert gpu.memory_stats()["used"] == with_result - size_class(4000)
    assert gpu.memory_stats()["idle"] >= size_class(4000)


def test_a_block_that_the_collector_finds_with_its_value_is_not_handed_out_twice(gpu: Any) -> None:
    step = fg.jit(lambda x: x + 1)
    x = fg.Tensor(np.ones(1000, np.float32)).realize()
    for _ in range(5):
        held: list[Any] = [step(x)]
        held.append(held)
        held = []
        gc.collect()
        entries = [b for ring in gpu.pool.rings for b, _ in ring.entries]
        waiting = [b.address for b in entries if b.address]  # 0: a check failed, in another test
        free = [address for listed in gpu.pool.free.values() for address in listed]
        assert len({*waiting, *free}) == len(waiting) + len(free)
    used = gpu.memory_stats()["used"]
    results = [step(x) for _ in range(4)]
    others = [fg.Tensor(np.full(1000, float(n), np.float32)).realize() for n in range(4)]
    for n in range(4):
        assert set(results[n].tolist()) == {2.0} and set(others[n].tolist()) == {float(n)}
    del step, results, others
    gc.collect()
    assert gpu.memory_stats()["used"] <= used


def test_a_result_that_somebody_holds_keeps_its_memory_and_one_that_nobody_does_is_a_result_again(
    gpu: Any,
) -> None:
    step = fg.jit(lambda x: (x + 1, x * 2))
    inputs = [fg.Tensor(np.full(1000, float(n), np.float32)).realize() for n in range(9)]
    for x in inputs[:3]:
        step(x)
    before = gpu.memory_stats()
    for x in inputs * 3:
        step(x)
    after = gpu.memory_stats()
    assert after["fresh"] == before["fresh"] and after["used"] == before["used"]
    kept = [step(x) for x in inputs]  # more than take turns
    for n, (a, b) in enumerate(kept):
        assert set(a.tolist()) == {n + 1.0} and set(b.tolist()) == {n * 2.0}
    a, _ = step(inputs[1])
    part = a[10:20].realize()
    del a
    for x in inputs[2:8]:
        step(x)
    assert set(part.tolist()) == {2.0}
    lent = fg.from_dlpack(Consumer(step(inputs[3])[0]))
    for x in inputs[4:9]:
        step(x)
    assert set(lent.tolist()) == {4.0}
    del kept, part, lent, b, _  # the names of loops hold results too
    gc.collect()
    gpu.empty_cache()
    assert gpu.memory_stats()["used"] <= before["used"]


def test_launches_return_before_they_have_run(gpu: Any) -> None:
    x = fg.Tensor(np.ones(5))
    y = (x * 3).realize()
    assert y.is_realized
    assert y.numpy().tolist() == [3.0] * 5


def test_kernels_that_read_an_input_that_moved_are_told_and_no_others(
    library: ctypes.CDLL,
) -> None:
    w = fg.Tensor(np.ones((4, 4)))
    step = fg.jit(lambda x: fg.softmax(fg.relu(x @ w) @ w))
    inputs = [fg.Tensor(np.full((4, 4), float(i))) for i in range(3)]
    for x in inputs * 2:
        step(x).numpy()
    before = counted(library, "updates", "graphs")
    again = step(inputs[0])
    again.numpy()
    after = counted(library, "updates", "graphs")
    assert after["graphs"] - before["graphs"] == 1
    assert after["updates"] - before["updates"] <= 2  # the first reads x, the last writes


def test_out_of_memory_at_every_allocation_of_a_step_leaves_every_tensor_as_it_was(
    library: ctypes.CDLL, gpu: Any
) -> None:
    rng = np.random.default_rng(0)
    w, m = (fg.Tensor(rng.standard_normal((6, 6))) for _ in range(2))
    x = fg.Tensor(rng.standard_normal((4, 6)))

    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        gradient = fg.grad(lambda w: (fg.softmax(x @ w) @ m).sum())(w)
        m.assign(0.9 * m + gradient)
        w.assign(w - 0.1 * m)
        return fg.relu(x @ w)

    for _ in range(3):
        step(x).numpy()
    met = 0
    for after in range(30):
        before = [t.numpy().copy() for t in (w, m)]
        gc.collect()
        gpu.empty_cache()
        library.fake_fail(b"cuMemAllocFromPoolAsync", after, 2)
        try:
            step(x)
        except MemoryLimitError as problem:
            met += 1
            assert "no memory for" in str(problem) and "free some tensors" in str(problem)
            library.fake_fail(b"", 0, 0)
            for tensor, array in zip((w, m), before, strict=True):
                np.testing.assert_array_equal(tensor.numpy(), array)
        else:
            library.fake_fail(b"", 0, 0)
            break
    assert met >= 3
    assert not np.array_equal(w.numpy(), before[0])


@pytest.mark.parametrize("after", range(8))
def test_a_kernel_that_fails_behind_one_that_wrote_leaves_no_value_that_is_half_new(
    library: ctypes.CDLL, after: int
) -> None:
    states = [fg.Tensor(np.full((n, 4096), n, np.float32)).realize() for n in (1, 2, 3, 4)]
    more = fg.Tensor(np.ones(4096, np.float32)).realize()
    before = [state.numpy().copy() for state in states]

    def step() -> None:
        for state in states:
            state.assign(state - (state * more).sum(axis=1, keepdims=True))
        fg.realize(*states)

    fg.clear_caches()  # of graphs
    library.fake_fail(b"cuLaunchKernel", after, 1)
    with pytest.raises(cuda.CudaError, match="cuLaunchKernel"):
        step()
    library.fake_fail(b"", 0, 0)
    met: set[str] = set()
    for state, old in zip(states, before, strict=True):
        try:
            np.testing.assert_array_equal(state.numpy(), old - 4096 * old)
        except LostError:
            met.add("lost")
        else:
            met.add("new")  # it is computed when it is asked for
    assert len(met) == 1


def without_room(library: ctypes.CDLL, name: bytes, step: int) -> list[list[Any]]:
    """The weights of seven steps, one of which has a call that fails for want of memory."""
    fg.clear_caches()
    training, found = Training(), []
    for number in range(7):
        library.fake_fail(name if number == step else b"", 0, 2)
        training.jitted(training.x, training.y)
        library.fake_fail(b"", 0, 0)
        found.append(training.weights())
    return found


@pytest.mark.parametrize(
    ("name", "step"),  # from the fifth on one is a look-up and a launch
    [("cuGraphCreate", 1), ("cuGraphInstantiateWithFlags", 1),
     ("cuGraphLaunch", 1), ("cuGraphLaunch", 5)],
)  # fmt: skip
def test_without_memory_for_a_graph_its_kernels_are_launched_one_by_one(
    library: ctypes.CDLL, name: str, step: int
) -> None:
    before = library.fake_count(b"launches")
    want = without_room(library, b"", step)
    after = library.fake_count(b"launches")
    found = without_room(library, name.encode(), step)
    assert library.fake_count(b"launches") - after > after - before
    for got, weights in zip(found, want, strict=True):
        for a, b in zip(got, weights, strict=True):
            np.testing.assert_array_equal(a, b)


def test_without_pinned_memory_the_error_is_the_only_one(
    library: ctypes.CDLL, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    fg.clear_caches()
    x = fg.Tensor(np.arange(6, dtype=np.float32)).realize()
    library.fake_fail(b"cuMemHostAlloc", 0, 2)
    with pytest.raises(cuda.CudaMemoryError, match="cuMemHostAlloc"):
        (x * 3.0 + 5.0).numpy()
    library.fake_fail(b"", 0, 0)
    gc.collect()
    assert not ignored
    assert (x * 3.0 + 5.0).tolist() == [5.0, 8.0, 11.0, 14.0, 17.0, 20.0]


def test_a_graph_that_is_not_launched_has_written_over_nothing(library: ctypes.CDLL) -> None:
    training = Training()
    for _ in range(4):  # from here on a step is a look-up and a launch
        training.jitted(training.x, training.y)
    before = training.weights()
    for name in ("cuGraphLaunch", "cuGraphInstantiateWithFlags"):
        if name != "cuGraphLaunch":
            training.x = fg.Tensor(training.x.numpy() + 1.0)  # at an address of its own
            training.jitted(training.x, training.y)
            before = training.weights()
        library.fake_fail(name.encode(), 0, 1)
        try:
            training.jitted(training.x, training.y)
        except cuda.CudaError as problem:
            assert name in str(problem)
            for weights, old in zip(training.weights(), before, strict=True):
                np.testing.assert_array_equal(weights, old)
        else:
            assert name != "cuGraphLaunch"
        library.fake_fail(b"", 0, 0)


def test_an_index_outside_its_axis_is_an_error_at_the_users_line() -> None:
    table = fg.Tensor(np.arange(6.0).reshape(3, 2))
    assert fg.take(table, fg.Tensor([2, 0]), 0).tolist() == [[4.0, 5.0], [0.0, 1.0]]
    with pytest.raises(BoundsError, match="index 5 is outside axis 0 of size 3") as caught:
        fg.take(table, fg.Tensor([2, 5]), 0).numpy()
    assert __file__ in (caught.value.where or "")
    assert fg.take(table, fg.Tensor([1]), 0).tolist() == [[2.0, 3.0]]


def test_an_index_outside_its_axis_leaves_what_a_step_would_write_over() -> None:
    table = fg.Tensor(np.arange(6.0))
    state = fg.Tensor(np.zeros(4))

    @fg.jit
    def step(at: fg.Tensor) -> None:
        nonlocal state
        state += fg.take(table, at, 0)

    for _ in range(4):
        step(fg.Tensor([1, 2, 3, 4]))
    before = state.tolist()
    step(fg.Tensor([1, 2, 3, 40]))
    with pytest.raises(BoundsError):  # when a value is asked for
        state.tolist()
    assert state.tolist() == before
    step(fg.Tensor([0, 0, 0, 1]))
    assert state.tolist() == [before[0], before[1], before[2], before[3] + 1]


def test_a_step_whose_labels_are_wrong_changes_no_weight_and_is_told_when_a_value_is_read() -> None:
    training = Training()
    for _ in range(6):
        good = training.jitted(training.x, training.y)
    before = training.weights()
    wrong = fg.Tensor(np.array([0, 1, 2, 3, 0, 1, 2, 0]))  # there is no class 3
    failed = training.jitted(training.x, wrong)
    after = training.jitted(training.x, training.y)  # launched before anybody knows
    with pytest.raises(BoundsError, match="index 3 is outside an axis of size 3"):
        after.item()
    for tensor in (failed, after):
        with pytest.raises(BoundsError):
            tensor.item()
        with pytest.raises(BoundsError):
            (tensor + 1).numpy()
    assert np.isfinite(good.item())
    for a, b in zip(training.weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    with fg.config(device="reference"):
        plain = Training()
        want = [plain.step(plain.x, plain.y).item() for _ in range(7)]
    np.testing.assert_allclose(training.jitted(training.x, training.y).item(), want[-1], rtol=1e-5)


def test_a_wrong_label_is_found_after_a_few_steps_also_if_nobody_reads(gpu: Any) -> None:
    training = Training()
    for _ in range(4):
        training.jitted(training.x, training.y)
    wrong = fg.Tensor(np.array([0, 1, 2, -4, 0, 1, 2, 0]))
    with pytest.raises(BoundsError, match="index -4 is outside an axis of size 3"):
        for _ in range(12):
            training.jitted(training.x, wrong)
    assert not gpu.unchecked
    assert np.isfinite(training.jitted(training.x, training.y).item())


class Consumer:
    """Another library's array: what it does with DLPack, and nothing else."""

    def __init__(self, x: fg.Tensor, stream: int = 1) -> None:
        self.x, self.stream = x, stream
        self.asked: list[Any] = []

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> object:
        self.asked.append(stream)
        return self.x.__dlpack__(stream=self.stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "complex64"])
def test_memory_goes_to_others_and_back_without_a_copy(gpu: Any, dtype: str) -> None:
    from fulgurite.runtime.realize import storage_of, value_node

    def address(x: fg.Tensor) -> int:
        node = value_node(x.realize().entry.node)
        assert node is not None
        return storage_of(node).address

    x = fg.Tensor(np.arange(6).reshape(2, 3), dtype=dtype).realize()
    foreign = Consumer(x)
    y = fg.from_dlpack(foreign)
    assert foreign.asked == [gpu.stream.handle]
    assert y.device == "cuda" and y.shape == (2, 3) and y.dtype is x.dtype
    assert address(y) == address(x) and y.tolist() == x.tolist()
    z = (y + y).numpy()
    np.testing.assert_array_equal(z, (x + x).numpy())
    before = x.tolist()
    x += 1 if dtype != "bool" else x
    x.realize()
    assert y.tolist() == before  # what was lent is not written over
    assert fg.from_dlpack(Consumer(y), copy=True).tolist() == before


def settle(gpu: Any) -> None:
    """Let everything go that nobody holds: one library's memory may hold another's."""
    gc.collect()
    gpu.enter()


def test_what_was_lent_goes_back_when_its_reader_is_done(gpu: Any) -> None:
    from fulgurite.interop.device_dlpack import _LENT

    settle(gpu)
    known = set(_LENT)
    x = fg.Tensor(np.ones(5000, np.float32)).realize()
    capsule = x.__dlpack__(stream=1, max_version=(1, 0))
    held = fg.from_dlpack(Consumer(x))
    again = fg.from_dlpack(Consumer(held))
    mine = set(_LENT) - known
    assert len(mine) == 3
    used = gpu.memory_stats()["used"]
    del x, capsule, held, again
    settle(gpu)
    assert not mine & set(_LENT) and gpu.memory_stats()["used"] <= used - 20000


def test_a_consumer_that_knows_no_streams_gets_a_copy_on_the_host() -> None:
    x = fg.Tensor([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(np.from_dlpack(x), [1.0, 2.0, 3.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("plans", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_handle_is_left_after_many_plans(library: ctypes.CDLL, gpu: Any, plans: int) -> None:
    def many(first: int, count: int) -> None:
        for n in range(first, first + count):
            x = fg.Tensor(np.ones((n, 2)))
            for _ in range(2):
                (fg.softmax(x) + x.sum()).numpy()

    def handles() -> int:
        from fulgurite.runtime.realize import FAMILIES

        FAMILIES().clear()
        gc.collect()
        gpu.empty_cache()
        gpu.enter()
        modules = len(gpu.table.modules)
        return int(counted(library, "handles")["handles"]) - modules

    many(3, 5)
    before = handles()
    many(10, plans)
    assert handles() <= before


def test_loops_choices_and_host_functions_run_over_the_gpus_memory() -> None:
    total, _ = fg.scan(lambda c, x: (c + x, c), fg.Tensor(0.0), fg.arange(5, dtype="float32"))
    assert total.item() == 10.0
    chosen = fg.cond(fg.Tensor(True), lambda x: x + 1, lambda x: x - 1, fg.Tensor([1.0, 2.0]))
    assert chosen.tolist() == [2.0, 3.0]
    doubled = fg.custom(lambda a: a * 2, fg.Tensor([1.0, 3.0]) + 1, shape=(2,), dtype="float32")
    assert (doubled + 1).tolist() == [5.0, 9.0]


def test_values_cross_between_devices() -> None:
    x = fg.Tensor([1.0, 2.0], device="cpu").to("cuda")
    assert x.device == "cuda" and (x + 1).to("cpu").tolist() == [2.0, 3.0]


def test_a_graph_crosses_between_gpus_and_each_works_in_its_own_context() -> None:
    x = fg.Tensor([1.0, 2.0]).realize()
    y = (x * 3).to("cuda:1")
    z = (y + 1).to("cuda") + x
    assert (y.device, z.device) == ("cuda:1", "cuda")
    assert z.tolist() == [5.0, 9.0] and y.tolist() == [3.0, 6.0]
    step = fg.jit(lambda a: ((a + 1).to("cuda:1") * 2).to("cuda") - a)
    for _ in range(3):
        assert step(x).tolist() == [3.0, 4.0]


@pytest.mark.parametrize("nbytes", [0, 1, 512, 513, 5000, 1 << 20, (1 << 20) + 1, 3 << 30])
def test_a_size_class_is_at_most_a_fourth_larger(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes and size % 512 == 0
    assert size <= max(512, nbytes * 1.25 + 512)


def test_memory_goes_back_to_the_pool_and_is_reused(gpu: Any) -> None:
    settle(gpu)  # also of what tests before this one lent
    before = gpu.memory_stats()
    for _ in range(10):
        fg.Tensor(np.ones(3000)).realize()
    gc.collect()
    after = gpu.memory_stats()
    assert after["used"] == before["used"]
    assert after["fresh"] - before["fresh"] <= 2


SCRIPT = """
import os, sys
import numpy as np
from tests.runtime.cuda import fake
import fulgurite as fg
{body}
"""


def script(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = os.environ | {"FULGURITE_DEVICE": "cuda", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT.format(body=body)], env=known, cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    body = """
x = fg.Tensor(np.arange(6.0).reshape(2, 3))
print(fg.softmax(x @ x.T).sum().item())
from fulgurite.runtime.device import get_device
print(get_device("cuda").table.compiled)
"""
    on = {"FULGURITE_CACHE_DIR": str(tmp_path), "FULGURITE_DISK_CACHE": "1"}
    first, second = script(body, **on), script(body, **on)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout.split()[0] == second.stdout.split()[0]
    assert int(first.stdout.split()[1]) > 0 and int(second.stdout.split()[1]) == 0


def test_a_forked_child_is_told_to_be_spawned() -> None:
    found = script("""
x = fg.Tensor(np.ones(3)).realize()
if os.fork() == 0:
    try:
        (x + 1).numpy()
    except Exception as problem:
        print(type(problem).__name__, str(problem))
        sys.stdout.flush()
    os._exit(0)
os.wait()
print((x + 1).tolist())
""")
    assert "DeviceError this process is a fork of one that used the GPU" in found.stdout
    assert "spawn" in found.stdout and "[2.0, 2.0, 2.0]" in found.stdout


def test_without_a_driver_the_error_says_so() -> None:
    code = "import fulgurite as fg; fg.Tensor([1.0]).numpy()"
    known = os.environ | {"FULGURITE_DEVICE": "cuda", "FULGURITE_LIBCUDA": "/nowhere/libcuda.so"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=known | {"PYTHONPATH": str(ROOT)}, cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode != 0
    assert "NoCudaError: no NVIDIA driver" in found.stderr
    assert "install it, or use another device" in found.stderr


def test_a_gpu_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(Exception, match=r"(?s)no device 'cuda:3'.*cuda"):
        fg.Tensor([1.0], device="cuda:3").numpy()


def test_doctor_names_the_gpu_its_memory_and_its_bandwidth() -> None:
    found = script("from fulgurite.cli import devices; print(dict(devices())['cuda'])")
    assert "ready (fake, sm_90, 132 processors, 128 of 128 GiB free" in found.stdout, found.stderr
    assert "GB/s measured" in found.stdout and "driver of CUDA 13.0" in found.stdout


def test_a_lost_gpu_is_said_clearly(library: ctypes.CDLL) -> None:
    x = fg.Tensor(np.ones(3)).realize()
    library.fake_fail(b"cuStreamSynchronize", 0, 700)
    with pytest.raises(RuntimeError, match="start the process again"):
        (x + 1).numpy()
    library.fake_fail(b"", 0, 0)
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]


def test_a_profile_has_the_times_of_launches_and_copies_from_events_of_the_stream(
    library: ctypes.CDLL,
) -> None:
    training, plain = Training(), Training()
    for _ in range(3):
        training.jitted(training.x, training.y)
        plain.jitted(plain.x, plain.y)
    with fg.profile() as p:
        loss = training.jitted(training.x, training.y).item()
    assert loss == plain.jitted(plain.x, plain.y).item()
    kernels = [run for run in p.runs if run.device == "cuda"]
    assert kernels and {run.end - run.begin for run in kernels} == {1_000_000}  # the fake clock's
    assert {copy.what for copy in p.copies} == {"to the host"}
    for _ in range(2):  # and the graphs go on with what changed meanwhile
        training.jitted(training.x, training.y)
        plain.jitted(plain.x, plain.y)
    for ours, theirs in zip(training.weights(), plain.weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@needs_triton
def test_a_page_has_ptx_and_sass_or_says_what_is_missing(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = fg.Tensor(np.ones((4, 256), np.float32)) * 1
    pending = fg.exp(x) * 3.0
    monkeypatch.setattr(gpu, "codegen", CudaCodeGenerator(gpu))
    (code,) = fg.viz_data(pending)["codes"]
    assert code["language"] == "triton" and "tl.store" in code["text"]
    assert ".visible .entry" in code["assembly"]["PTX"] and "ST" in code["assembly"]["SASS"]
    monkeypatch.setattr(shutil, "which", lambda *names, **paths: None)
    (code,) = fg.viz_data(pending)["codes"]
    assert "neither nvdisasm nor cuobjdump was found" in code["assembly"]["SASS"]
    monkeypatch.setattr(generator, "find_spec", lambda name: None)
    (code,) = fg.viz_data(pending)["codes"]
    assert "Triton is not installed" in code["assembly"]["PTX"]
