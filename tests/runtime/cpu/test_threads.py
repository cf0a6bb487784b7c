"""Tests of the native driver and its threads: right answers however many share the work."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.driver import COPY, END, LAUNCH, LIMITS
from fulgurite.core.op import Array

pytest.importorskip("llvmlite")
from fulgurite.runtime.cpu.toolchain import workers

ROWS = np.random.default_rng(3).normal(size=(700, 513)).astype(np.float32)


def several() -> tuple[Array, ...]:
    """Kernels of every kind that threads may share."""
    x = fg.Tensor(ROWS)
    found = (
        fg.softmax(x, axis=-1), x.sum(), x.sum(axis=0), fg.layer_norm(x, (513,)),
        x.T @ x, fg.cumulative_sum(x, axis=0), fg.sort(x, axis=1), fg.gelu(x) + x,
        fg.argmax(x, axis=0),
    )  # fmt: skip
    fg.realize(*found)
    return tuple([t.numpy() for t in found])


def test_bits_are_the_same_with_one_two_and_three_threads() -> None:
    found = []
    for threads in (1, 2, 3):
        with fg.config(device="cpu", tier="native", threads=threads):
            found.append([a.tobytes() for a in several()])
    assert found[0] == found[1] == found[2]


def test_bits_are_the_same_in_a_hundred_runs() -> None:
    with fg.config(device="cpu", tier="native", threads=3):
        x = fg.Tensor(ROWS)
        plan = fg.schedule(fg.softmax(x, axis=-1), x.sum(), x.sum(axis=0))
        runs = {tuple(t.numpy().tobytes() for t in plan.run()) for _ in range(100)}
    assert len(runs) == 1


def test_two_threads_that_replay_one_plan_get_right_answers() -> None:
    with fg.config(device="cpu", tier="native", threads=3):
        data = [np.full((300, 999), n, np.float32) for n in range(4)]
        plans = []
        for array in data:
            x = fg.Tensor(array)
            plans.append(fg.schedule((x * 2 + 1).sum(axis=1), x + 3))
            plans[-1].compile()
        wrong: list[int] = []

        def replay(number: int) -> None:
            with fg.config(device="cpu", threads=3):
                for _ in range(200):
                    total, more = plans[number].run()
                    if not (total.numpy() == (2 * number + 1) * 999).all():
                        wrong.append(number)
                    if not (more.numpy() == number + 3).all():
                        wrong.append(number)

        threads = [threading.Thread(target=replay, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id(p.compile().executor) for p in plans}) == 1  # one plan for all four
    assert not wrong


def run_python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if k != "FULGURITE_THREADS"}
    settings = own | {"FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native"} | environment
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, env=settings,
        timeout=120, cwd=Path(__file__).parents[3],
    )  # fmt: skip


def test_a_forked_child_has_threads_of_its_own() -> None:
    text = """
import os, sys, numpy as np, fulgurite as fg
x = fg.Tensor(np.ones((600, 1000), np.float32))
plan = fg.schedule(x.sum(axis=1))
assert (plan.run()[0].numpy() == 1000).all()
child = os.fork()
if child == 0:
    good = all((plan.run()[0].numpy() == 1000).all() for _ in range(50))
    good = good and (fg.exp(x * 0).sum().item() == 600_000)
    sys.stdout.flush()
    os._exit(0 if good else 1)
assert (plan.run()[0].numpy() == 1000).all()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_python(text, FULGURITE_THREADS="3", PYTHONWARNINGS="ignore")
    assert done.stdout.strip() == "0", done.stderr


def test_a_process_with_idle_and_busy_threads_ends_cleanly() -> None:
    text = """
import threading, numpy as np, fulgurite as fg
x = fg.Tensor(np.ones((2000, 1000), np.float32))
plan = fg.schedule(fg.exp(x).sum(axis=1))
plan.run()
def forever():
    while True:
        plan.run()
threading.Thread(target=forever, daemon=True).start()
for _ in range(20):
    plan.run()
print("done")
"""
    done = run_python(text, FULGURITE_THREADS="3")
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="a worker has nowhere else to go on one processor, and cannot be told to beyond Linux",
)
def test_a_worker_leaves_the_processor_of_its_caller() -> None:
    text = """
import ctypes, os, time, numpy as np, fulgurite as fg
x = fg.Tensor(np.ones((300, 1000), np.float32))
plan = fg.schedule(fg.exp(x).sum(axis=1))
before = set(os.listdir("/proc/self/task"))
plan.run()
(worker,) = map(int, set(os.listdir("/proc/self/task")) - before)
mine, here = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu
for _ in range(500):
    at = here()
    os.sched_setaffinity(worker, {at})
    for _ in range(20):
        plan.run()
    time.sleep(0.002)  # then it runs if it could not before
    now = os.sched_getaffinity(worker)
    if now != {at}:
        break
print(now == mine - {at} or now, os.sched_getaffinity(0) == mine)
"""
    done = run_python(text, FULGURITE_THREADS="2", OPENBLAS_NUM_THREADS="1")
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_the_number_of_threads_follows_the_options_and_the_affinity() -> None:
    text = """
import os, numpy as np
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import fulgurite as fg
x = fg.Tensor(np.ones((2000, 1000), np.float32))
fg.exp(x).realize()
print(len(os.listdir("/proc/self/task")))
with fg.config(threads=3):
    (x + 1).realize()
print(len(os.listdir("/proc/self/task")))
for _ in range(50):
    (x + 1).realize()
print(len(set.union(*[os.sched_getaffinity(int(n)) for n in os.listdir("/proc/self/task")])))
"""
    done = run_python(text, OPENBLAS_NUM_THREADS="1")
    assert done.stdout.split() == ["1", "3", "1"], done.stderr


def test_signals_reach_python_and_not_a_worker() -> None:
    with fg.config(device="cpu", tier="native", threads=3):
        several()
    seen = []
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread()))
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        until = time.monotonic() + 5
        while not seen and time.monotonic() < until:
            time.sleep(0.001)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert seen == [threading.main_thread()]


def test_an_index_out_of_range_in_a_shared_kernel_is_an_error() -> None:
    table, places = np.arange(50.0, dtype=np.float32), np.zeros(300_000, np.int32)
    places[123_456] = 50
    with fg.config(device="cpu", tier="native", threads=3):
        x, index = fg.Tensor(table), fg.from_numpy(places)
        plan = fg.schedule(x[index] * 2)
        with pytest.raises(IndexError, match="50"):
            plan.run()
        places[123_456] = 49
        assert plan.run()[0].numpy()[123_456] == 98


def test_the_pool_can_be_stopped_and_starts_again() -> None:
    with fg.config(device="cpu", tier="native", threads=3):
        first = several()
        workers().stop()
        assert workers().count == 1
        second = several()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


# --- signals -------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_long_plan_between_launches_and_other_signals_do_not() -> None:
    x = np.full(1 << 20, 3.0, np.float32)
    out = np.zeros_like(x)
    seen: list[int] = []

    def arrived(*_: object) -> None:
        seen.append(1)
        if len(seen) > 1:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    with fg.config(device="cpu", tier="native"):
        program: Any = fg.schedule(fg.Tensor(x) * 2).compile().executor
    words = program.records[0]
    launch = words[LIMITS.header_words : -2]
    assert launch[0] == LAUNCH and launch[4], "a launch that is large enough to share"
    # the kernel for longer than a driver takes to look at signals twice, then a copy over it
    long = words[: LIMITS.header_words] + launch * 500_000
    long.extend([COPY, 6, 1, 0, 0, x.nbytes, END, 2])
    frame = program.frame(False, program.layout)
    before = signal.signal(signal.SIGALRM, arrived)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            program.workers.call(
                long.buffer_info()[0], frame.address, program.workers.pool, 1, x.ctypes.data,
                out.ctypes.data,
            )  # fmt: skip
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 2 and (out == 6.0).all(), "begun, and not brought to its end"
    with fg.config(device="cpu", tier="native"):
        assert (fg.Tensor(x) * 2).numpy()[-1] == 6.0
