"""Tests of runtime/cpu/loops.py: loops as records of the driver, with Python's loop as meaning."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.control import Looping
from fulgurite.runtime.cpu import loops
from fulgurite.runtime.cpu.executor import Program

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.device("cpu")
NATIVE: dict[str, Any] = {"device": "cpu", "tier": "native"}
ROWS = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)


def sums(c: Any, x: Any) -> Any:
    return (c[0] + x, c[1] * 2 + c[0]), c[0] * x


def pair() -> Any:
    return fg.Tensor(ROWS[0]), fg.Tensor(ROWS[1])


def in_place(c: Any, x: Any) -> Any:
    rows, place = c
    before = rows[place] * 1
    rows[place] = x
    return (rows, place + 1), before


def forgetful(c: Any, x: Any) -> Any:
    return (x * 2, c[1] + x), None


def inner(c: Any, x: Any) -> Any:
    return c + fg.scan(lambda d, y: (d + y * x, d), c, fg.Tensor(ROWS))[0], c.sum()


CASES: dict[str, Callable[[], Any]] = {
    "forward": lambda: fg.scan(sums, pair(), fg.Tensor(ROWS)),
    "reverse": lambda: fg.scan(sums, pair(), fg.Tensor(ROWS), reverse=True),
    "one step": lambda: fg.scan(sums, pair(), fg.Tensor(ROWS[:1])),
    "an even number": lambda: fg.scan(sums, pair(), fg.Tensor(ROWS[:4]))[1],
    "only a carry": lambda: fg.scan(sums, pair(), fg.Tensor(ROWS))[0][1],
    "in place": lambda: fg.scan(in_place, (fg.Tensor(ROWS), 0), fg.Tensor(ROWS)),
    "not read": lambda: fg.scan(forgetful, pair(), fg.Tensor(ROWS))[0],
    "no rows": lambda: fg.fori_loop(0, 7, lambda i, c: c * 2 + i, fg.Tensor(ROWS[0])),
    "constants": lambda: fg.scan(lambda c, x: (c + x, c), fg.zeros(3) + 1, fg.ones((4, 3))),
    "nested": lambda: fg.scan(inner, fg.Tensor(ROWS[0]), fg.Tensor(ROWS)),
    "gradients": lambda: fg.grad(
        lambda x: fg.scan(lambda c, r: (fg.sin(c * r), c), x, fg.Tensor(ROWS))[1].sum()
    )(fg.Tensor(ROWS[0])),
    "moved rows": lambda: fg.scan(sums, pair(), fg.Tensor(np.ascontiguousarray(ROWS.T)).T),
}


def plan_of(value: Any) -> Any:
    """The schedule of a tree of tensors."""
    return fg.schedule(*[leaf for leaf in fg.tree.leaves(value) if leaf is not None])


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_loop_of_the_driver_is_the_loop_of_python(
    case: str, poison: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fg.config(**NATIVE, poison=poison):
        plan = plan_of(CASES[case]())
        program = plan.compile().executor
        assert isinstance(program, Program) and program.is_one_call and program.loops
        found = [[value.numpy() for value in plan.run()] for _ in range(2)]
        monkeypatch.setattr(loops, "inlined", lambda *_: None)
        fg.clear_caches()
        again = plan_of(CASES[case]())
        assert again.compile().executor.host_items
        wanted = [value.numpy() for value in again.run()]
        fg.clear_caches()
    for run in found:
        for a, b in zip(run, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_is_not_known_before_stays_in_python() -> None:
    n = fg.Var("steps_in_python", 1, 9)
    with fg.config(**NATIVE):
        values = [
            fg.while_loop(lambda x: x < 100, lambda x: x * 3, fg.Tensor(2)),
            fg.scan(lambda c, _: (c * 3, None), fg.Tensor([1, 2]), length=n.bind(4))[0],
        ]
        for value in values:
            program = fg.schedule(value).compile().executor
            assert isinstance(program, Program) and not program.loops and program.host_items
        assert [value.tolist() for value in values] == [162, [81, 162]]


def test_a_jitted_function_with_a_loop_is_one_native_call() -> None:
    with fg.config(**NATIVE), fg.no_grad():
        layer = fg.nn.LSTM(3, 4)
        step = fg.jit(lambda x: layer(x)[0])
        x = fg.Tensor(np.random.default_rng(1).normal(size=(20, 1, 3)).astype(np.float32))
        first = step(x).numpy()
        assert len(step.captures) == 1 and step.captures[0].replay.bare is not None
        np.testing.assert_array_equal(step(x).numpy(), first)
        np.testing.assert_allclose(layer(x)[0].numpy(), first, rtol=1e-6)


def test_an_index_outside_is_an_error_of_the_users_line() -> None:
    with fg.config(**NATIVE):
        table = fg.Tensor(np.arange(4, dtype=np.float32))
        rows = fg.Tensor([1, 3, 5, 2])
        total, _ = fg.scan(lambda c, i: (c + table[i], None), fg.Tensor(0.0), rows)
        program = fg.schedule(total).compile().executor
        assert isinstance(program, Program) and program.loops
        with pytest.raises(fg.errors.BoundsError, match=r"of size 4[\s\S]*test_loops\.py"):
            total.numpy()


def test_two_threads_run_one_plan_with_a_loop() -> None:
    rows = fg.Tensor(np.tile(ROWS, (200, 1)))
    found: list[Any] = []
    with fg.config(**NATIVE):
        step = fg.jit(lambda x: fg.scan(sums, (x[0], x[1]), x)[1])
        wanted = step(rows).numpy()

        def work() -> None:
            with fg.config(**NATIVE):
                found.extend([step(rows).numpy() for _ in range(20)])

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 40 and all([np.array_equal(value, wanted) for value in found])


def test_a_profile_counts_every_step_of_a_loop() -> None:
    with fg.config(**NATIVE):
        plan = fg.schedule(fg.scan(sums, pair(), fg.Tensor(ROWS))[0][1])
        program = plan.compile().executor
        assert isinstance(program, Program) and isinstance(program.code[-1], Looping)
        with fg.profile() as profile:
            plan.run()
    counts = {row.name: row.calls for row in profile.kernels}
    assert counts == {"map:add": 2 * len(ROWS), "loop:loop": 1}


@pytest.mark.parametrize(("size", "laid_out"), [(32, 1), (128, 0)])
def test_large_weights_times_one_row_are_read_where_they_are(size: int, laid_out: int) -> None:
    layer = fg.nn.GRU(8, size)
    with fg.no_grad(), fg.config(**NATIVE):
        out = layer(fg.zeros((20, 1, 8)).realize())[0]
        kernels = [item.kernel.name for item in fg.schedule(out).items]
    assert kernels.count("map:contiguous") == laid_out


@pytest.mark.slow
def test_ctrl_c_ends_a_long_loop() -> None:
    def arrived(*_: object) -> None:
        raise KeyboardInterrupt

    with fg.config(**NATIVE):
        plan = fg.schedule(fg.fori_loop(0, 10**10, lambda i, c: c * 3 + i, fg.Tensor([1, 2])))
        before = signal.signal(signal.SIGALRM, arrived)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                plan.run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
