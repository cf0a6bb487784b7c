"""Tests of fulgurite/runtime/realize.py: one plan, found again, and nothing half done."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build, node
from fulgurite.core.operators import OPS
from fulgurite.core.ops.indexing import gather
from fulgurite.errors import BoundsError, ShapeError
from fulgurite.graph.ir.cache_key import Normal, normalize
from fulgurite.graph.ir.registry import REGISTRY
from fulgurite.runtime import realize as module
from fulgurite.runtime.device import MemoryLimitError, get_device
from fulgurite.runtime.host.device import HostBuffer, ReferenceDevice
from fulgurite.runtime.plan import KERNELS
from fulgurite.runtime.step_executor import StepCode
from fulgurite.tensor import Tensor, wrap
from tests.threads import together


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    module.clear_caches()
    gc.collect()
    yield
    module.clear_caches()


def entry_of(*tensors: Tensor) -> module.Compiled:
    """The schedule-cache entry that realizing these tensors uses."""
    return module.lookup(normalize([t.node for t in tensors]), tensors[0].device)


def random(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def misses() -> int:
    return fg.cache_stats()["schedule"]["misses"]


# --- the schedule cache --------------------------------------------------------------------------


def test_same_shape_with_other_data_hits_the_same_entry_object() -> None:
    assert entry_of(random(3) * 2 + 1) is entry_of(Tensor([7.0, 8.0, 9.0]) * 2 + 1)


def test_other_shape_op_dtype_and_output_order_miss() -> None:
    a = random(3)
    one, two = a * 2, a + 2
    seen = [
        entry_of(one),
        entry_of(random(4) * 2),
        entry_of(two),
        entry_of(Tensor(np.ones(3)) * 2),
        entry_of(one, two),
        entry_of(two, one),
    ]
    assert len({id(entry) for entry in seen}) == len(seen)


def test_options_are_part_of_the_key() -> None:
    plain = entry_of(random(3) * 2)
    with fg.config(simplify=False):
        assert entry_of(random(3) * 2) is not plain


def test_a_hit_makes_no_node_of_the_graph_and_compiles_nothing() -> None:
    (random(3) * 2 + 1).realize()
    again = random(3) * 2 + 1
    before, kernels = node.live_count(), KERNELS().stats.misses
    entry_of(again)
    assert node.live_count() == before
    assert KERNELS().stats.misses == kernels


@pytest.mark.parametrize("simplify", [True, False])
def test_cache_on_equals_cache_off(simplify: bool) -> None:
    def run() -> tuple[list[float], int, int]:
        with fg.config(simplify=simplify):
            gc.collect()
            before = REGISTRY.buffer_count()
            a = random(5)
            top = (a * 3 - a) / 2
            kernels = len(fg.schedule(top))
            return top.tolist(), kernels, REGISTRY.buffer_count() - before

    cold = run()
    warm = run()
    module.clear_caches()
    assert cold == warm == run()


def test_bind_values_share_a_key_and_are_all_right() -> None:
    n = build.variable("n", 0, 9)
    for first, second in ((3, 7), (7, 3)):
        module.clear_caches()
        start = misses()
        for value in (first, second):
            x = wrap(build.apply(OPS["add"], build.bind(n, value), 1))
            assert x.item() == value + 1
        assert misses() - start == 1


def test_restoring_does_not_change_the_entry() -> None:
    a = random(3)
    entry = entry_of(a * 2)
    before = (entry.constants, entry.lifted, entry.plan, entry.plan.kernels)
    (random(3) * 2).realize()
    (random(3) * 2).realize()
    assert (entry.constants, entry.lifted, entry.plan, entry.plan.kernels) == before


def test_buffers_are_new_for_each_call() -> None:
    a = random(3)
    one, two = (a * 2).realize(), (a * 2).realize()
    assert one.node is not two.node
    assert not np.shares_memory(np.asarray(one), np.asarray(two))


def test_the_cache_is_bounded() -> None:
    with fg.config(schedule_cache=4):
        for size in range(1, 12):
            (random(size) * 2).realize()
    assert fg.cache_stats()["schedule"]["size"] <= 4


def test_threads_that_miss_together_compile_once_100_times_over() -> None:
    def doubled(size: int) -> Any:
        with fg.config(dynamic=False):
            return (random(size) * 2 + 1).tolist()

    for number in range(100):
        before = misses()
        got = together(4, lambda _, size=number + 1: doubled(size))  # type: ignore[misc]
        assert all(values == got[0] for values in got)
        assert misses() - before == 1


# --- constants -----------------------------------------------------------------------------------


def test_a_constant_that_changes_becomes_a_run_time_scalar() -> None:
    a = random(4)
    start = misses()
    for step in range(20):
        got = (a * (0.1 * step) + 1.0).numpy()
        np.testing.assert_allclose(got, a.numpy() * np.float32(0.1 * step) + 1, rtol=1e-6)
    assert misses() - start == 2


def test_constants_that_decide_sizes_stay_in_the_key() -> None:
    n = build.variable("n", 1, 9)
    for extra in (1, 2, 3):
        shape = (build.apply(OPS["add"], build.bind(n, 4), extra),)
        x = wrap(build.expand(build.const(2.0), shape))
        y = wrap(build.apply(OPS["mul"], build.iota(shape, 0, "float32"), x.node))
        assert y.tolist() == [2.0 * i for i in range(4 + extra)]


def test_kernels_are_shared_by_graphs_that_differ_in_constants() -> None:
    fg.schedule(random(4) * 2.0 + random(4)).run()
    before = KERNELS().stats.misses
    (fg.exp(random(4)) * 3.0).realize()
    (random(4) * 4.0 + random(4)).realize()
    assert KERNELS().stats.misses - before == 1  # the exponential; the other kernel is known


def test_an_input_lives_as_long_as_a_run_reads_it() -> None:
    begun, go_on = threading.Event(), threading.Event()
    size = 50_000
    old = np.arange(size, dtype=np.float32)
    x = (fg.Tensor(old) * 1).realize()
    found: list[Any] = []

    def wait(a: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return a + 1

    def run(held: list[fg.Tensor]) -> None:
        found.append(held.pop().numpy())

    late = fg.custom(wait, fg.Tensor(np.zeros(1, np.float32)), shape=(1,))
    thread = threading.Thread(target=run, args=([fg.sort(x * 2 + late)],))
    del late
    thread.start()
    assert begun.wait(60)
    del x  # nobody but the run has it
    gc.collect()
    others = [(fg.full((size,), -1.0 - i) * 1).realize() for i in range(8)]  # would take its place
    go_on.set()
    thread.join()
    np.testing.assert_array_equal(found[0], old * 2 + 1)
    assert len(others) == 8


# --- the kernel cache ----------------------------------------------------------------------------


@pytest.mark.device("cpu", "reference", "remote")  # what is fused is the machine model's choice
@pytest.mark.parametrize(
    ("weigh", "search", "distinct"),
    [(fg.relu, True, 3), (fg.relu, False, 3), (fg.softmax, True, 3), (fg.softmax, False, 2)],
)
def test_identical_layers_share_their_kernels(
    weigh: Callable[[fg.Tensor], fg.Tensor], search: bool, distinct: int
) -> None:
    """At most three of twelve: the first, the last, and what is between."""
    gc.collect()  # plans that only a cycle holds would keep their kernels
    with fg.config(search=search):
        x = random(64, 64)
        before = KERNELS().stats.misses
        for _ in range(12):
            x = weigh(x) @ random(64, 64)
        x.realize()
    assert KERNELS().stats.misses - before == distinct


def test_kernels_of_dead_graphs_are_collected() -> None:
    before = len(KERNELS())
    (random(41) * 2 + 1).realize()
    assert len(KERNELS()) == before + 1
    module.clear_caches()
    gc.collect()
    assert len(KERNELS()) == before


# --- realizing -----------------------------------------------------------------------------------


def test_several_tensors_are_realized_in_one_plan() -> None:
    a = random(3)
    start = misses()
    b, c = fg.realize(a + 1, a * 2)
    assert misses() - start == 1
    assert b.is_realized and c.is_realized


def test_realizing_one_tensor_spares_the_others_its_work() -> None:
    a = random(3)
    shared = a * 2
    top = shared + 1
    shared.realize()
    assert len(fg.schedule(top)) == 1


def test_realizing_twice_does_nothing() -> None:
    a = (random(3) * 2).realize()
    runs = [step.plan.runs for step in [entry_of(random(3) * 2)]]
    a.realize()
    assert [step.plan.runs for step in [entry_of(random(3) * 2)]] == runs


def test_two_threads_realizing_equal_zeros_keep_distinct_buffers_100_times_over() -> None:
    for _ in range(100):
        one, two = together(2, lambda _: fg.zeros(3).realize())
        assert one.node is not two.node
        assert not np.shares_memory(np.asarray(one), np.asarray(two))


def test_with_10_000_unrelated_tensors_a_tiny_realize_does_no_more_work() -> None:
    def work() -> tuple[int, int]:
        before = (REGISTRY.visited, REGISTRY.rewritten)
        (Tensor([1.0]) + 1).realize()
        return REGISTRY.visited - before[0], REGISTRY.rewritten - before[1]

    quiet = work()
    unrelated = [Tensor([1.0, 2.0]) * 2 for _ in range(10_000)]
    assert work() == quiet
    assert len(unrelated) == 10_000


def test_a_dropped_graph_holds_no_memory() -> None:
    gc.collect()
    nodes, buffers = node.live_count(), REGISTRY.buffer_count()
    x = random(3) * 2 + 1
    del x
    assert (node.live_count(), REGISTRY.buffer_count()) == (nodes, buffers)


def test_poisoned_memory_never_shows() -> None:
    with fg.config(poison=True):
        assert (Tensor([1.0, 2.0]) * 2 + 1).tolist() == [3.0, 5.0]
        assert fg.zeros(()).item() == 0.0


def test_stages_can_be_verified_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with fg.config(verify=True, log="stages"):
        (random(6) * 2).realize()
    assert "simplify" in capsys.readouterr().err


# --- failure -------------------------------------------------------------------------------------

Kernel = StepCode


class Failing:
    """A compiler whose kernels raise once `after` of them have run, until it is mended."""

    def __init__(self, error: type[BaseException], after: int) -> None:
        self.error, self.left, self.broken = error, after, True
        self.real = ReferenceDevice.kernel_code

    def kernel_code(self, kernel: Any) -> Kernel:
        run = self.real(ReferenceDevice(), kernel)

        def counted(*args: Any) -> None:
            if self.broken and self.left == 0:
                raise self.error("injected")
            self.left -= 1
            run(*args)

        return counted


@pytest.mark.device("none")  # it looks inside the reference device
@pytest.mark.usefixtures("on_reference")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_kernel_that_fails_midway_leaves_every_tensor_usable_and_unchanged(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], after: int
) -> None:
    a = random(3)
    b = a * 2
    c = b + a
    d = c / b
    nodes = [t.node for t in (a, b, c, d)]
    buffers = REGISTRY.buffer_count()
    with monkeypatch.context() as patched:
        backend = Failing(error, after)
        patched.setattr(ReferenceDevice, "kernel_code", lambda _, k: backend.kernel_code(k))
        with fg.config(fuse=False), pytest.raises(error):
            fg.realize(b, c, d)
        backend.broken = False
    assert [t.node for t in (a, b, c, d)] == nodes
    gc.collect()
    assert REGISTRY.buffer_count() == buffers
    np.testing.assert_allclose(d.numpy(), np.full(3, 1.5, np.float32), rtol=1e-6)


@pytest.mark.device("none")  # it looks inside the reference device
@pytest.mark.usefixtures("on_reference")
@pytest.mark.parametrize("after", [0, 1])
def test_running_out_of_memory_midway_leaves_every_tensor_usable(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    a = random(3)
    c = (a * 2 + a) / 3
    real, made = ReferenceDevice.allocate, []

    def allocate(self: ReferenceDevice, *args: Any) -> HostBuffer:
        made.append(args)
        if len(made) > after:
            raise MemoryLimitError("no memory", "use less")
        return real(self, *args)

    before = c.node
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceDevice, "allocate", allocate)
        with fg.config(fuse=False), pytest.raises(MemoryError):
            c.realize()
    assert c.node is before
    np.testing.assert_allclose(c.numpy(), a.numpy(), rtol=1e-6)


@pytest.mark.device("none")  # it looks inside the reference device
@pytest.mark.usefixtures("on_reference")
def test_a_compiler_that_fails_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ReferenceDevice, kernel: Any) -> Kernel:
        raise RuntimeError("no compiler today")

    x = random(3) * 2
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceDevice, "compile", refuse)
        with pytest.raises(RuntimeError, match="today"):
            x.realize()
    assert x.realize().is_realized


@pytest.mark.device("none")  # it looks inside the reference device
@pytest.mark.usefixtures("on_reference")
def test_waiters_on_a_compile_that_is_interrupted_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    real, first = ReferenceDevice.compile, threading.Event()

    def compile_(self: ReferenceDevice, kernel: Any) -> list[Any]:
        if not first.is_set():
            first.set()
            raise KeyboardInterrupt
        return real(self, kernel)

    monkeypatch.setattr(ReferenceDevice, "compile", compile_)

    def work(_: int) -> object:
        try:
            return (random(9) * 2 + 1).tolist()
        except KeyboardInterrupt:
            return "interrupted"

    got = together(4, work)
    assert sorted(str(g) == "interrupted" for g in got) == [False, False, False, True]


def test_an_index_out_of_range_names_the_users_line_even_on_a_cache_hit() -> None:
    table = random(4, 2)

    def look_up(places: list[list[int]]) -> Tensor:
        return wrap(build.note(gather(table.node, Tensor(places, dtype="int32").node, 0)))

    look_up([[0, 1], [3, 3]]).realize()
    bad = look_up([[0, 1], [4, 0]])
    with pytest.raises(BoundsError, match="index 4 is outside an axis of size 4") as caught:
        bad.realize()
    assert __file__ in caught.value.where


def test_memory_that_cannot_be_had_is_a_clear_error() -> None:
    with pytest.raises(MemoryLimitError, match="no memory"):
        get_device("reference").allocate((1 << 62,), fg.float32)


@pytest.mark.parametrize(
    "bad",
    [lambda: fg.Tensor([1.0])[[0, 9]], lambda: fg.take(fg.Tensor([1.0]), fg.Tensor([-5])),
     lambda: fg.take(fg.ones(3), fg.Tensor([7])), lambda: fg.take(fg.ones(1), fg.Tensor([1]))],
    ids=["a single element", "a negative index", "a constant", "a single constant"],
)  # fmt: skip
def test_an_index_that_moves_nothing_is_checked_all_the_same(bad: Callable[[], Tensor]) -> None:
    with pytest.raises(BoundsError, match="outside"):
        bad().numpy()


def test_folds_over_a_variable_size_of_zero_give_their_identity() -> None:
    n = fg.Var("z", 0, 4)
    with fg.config(poison=True):
        assert fg.sum(fg.ones((n.bind(0),))).item() == 0.0
        assert fg.prod(fg.ones((n.bind(0),))).item() == 1.0
        assert fg.any(fg.ones((n.bind(0),), dtype="bool")).item() is False
        with pytest.raises(ShapeError, match="no elements"):
            fg.max(fg.ones((n.bind(0),))).numpy()


# --- threads -------------------------------------------------------------------------------------


def test_a_tensor_that_another_thread_rewrites_meanwhile_is_realized_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = fg.sin(random(3)) * 2
    outer = fg.exp(inner)
    real = module.run
    once: list[bool] = []

    def run(
        roots: Sequence[node.Node], normal: Normal, commit: module.Commit, may_append: bool
    ) -> None:
        def late(buffers: Sequence[node.Node]) -> None:
            if not once:  # what another thread may do between computing and writing back
                once.append(True)
                inner.realize()
            commit(buffers)

        real(roots, normal, late, may_append)

    monkeypatch.setattr(module, "run", run)
    fg.realize(outer)
    assert outer.is_realized


@pytest.mark.device("cpu", "reference", "remote")  # a GPU is lost to a fork
def test_a_child_of_a_process_with_busy_threads_can_compute() -> None:
    code = """
import os, threading, time
import fulgurite as fg
stop = False
def work(i):
    while not stop:
        (fg.Tensor([1.0] * (i + 1)) * 2 + 1).realize()
threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
[t.start() for t in threads]
for _ in range(8):
    time.sleep(0.02)
    child = os.fork()
    if not child:
        ok = (fg.Tensor([1.0, 2.0]) * 3).tolist() == [3.0, 6.0]
        os._exit(0 if ok else 1)
    until = time.monotonic() + 20
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, status
            break
        if time.monotonic() > until:
            os.kill(child, 9)
            raise SystemExit("the child hangs")
        time.sleep(0.005)
os._exit(0)
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr


def soak(seconds: float) -> None:
    """16 threads build and realize shared and private graphs; every value is checked."""
    import time

    shared = Tensor(np.arange(8, dtype=np.float32))
    common = shared * 3 + 1
    until = time.monotonic() + seconds
    expected = np.arange(8, dtype=np.float32) * 3 + 1

    def work(number: int) -> int:
        rounds = 0
        while time.monotonic() < until:
            mine = Tensor(np.full(8, number, np.float32))
            top = (common + mine) * (rounds % 5)
            other = common - mine
            np.testing.assert_array_equal(top.numpy(), (expected + number) * (rounds % 5))
            np.testing.assert_array_equal(other.numpy(), expected - number)
            rounds += 1
        return rounds

    assert min(together(16, work)) > 0


def measured_soak(seconds: float) -> None:
    module.clear_caches()
    gc.collect()
    nodes, buffers, entries = node.live_count(), REGISTRY.buffer_count(), REGISTRY.entry_count()
    soak(seconds)
    module.clear_caches()
    gc.collect()
    assert REGISTRY.entry_count() == entries
    assert REGISTRY.buffer_count() == buffers
    assert node.live_count() == nodes


def test_sixteen_threads_build_and_realize_for_3_seconds_without_error_or_leak() -> None:
    measured_soak(3)


@pytest.mark.slow
def test_sixteen_threads_build_and_realize_for_30_seconds_without_error_or_leak() -> None:
    measured_soak(30)
