"""Operands that stay are packed once; what is written over or assigned is never read stale."""

from __future__ import annotations

import gc
import json
import os
import threading
from copy import copy
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.aot.schedule import TensorSchedule
from fulgurite.codegen.cpu.target import target
from fulgurite.codegen.cpu.tiling import GEMM
from fulgurite.runtime.cpu.executor import Program, changes_between
from fulgurite.runtime.cpu.objects import Native, dump, restored
from fulgurite.runtime.derived import DERIVED, DerivedValues

pytestmark = pytest.mark.device("cpu")
K, N = 96, 176  # no multiples of a panel


def array(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(np.float32)


def weight(*shape: int, seed: int = 1) -> fg.Tensor:
    return fg.tensor(array(*shape, seed=seed)).realize()


def layer(rows: int, seed: int = 2) -> tuple[TensorSchedule, fg.Tensor, fg.Tensor, Any]:
    """A schedule of a product with weights, and what it reads: rows may be edited."""
    w, b, x = weight(K, N), weight(N, seed=3), array(rows, K, seed=seed)
    return fg.schedule(fg.relu(fg.from_numpy(x) @ w + b)), w, b, x


def wanted(x: Any, w: Any, b: Any) -> Any:
    return np.maximum(x.astype(np.float64) @ np.asarray(w) + np.asarray(b), 0)


def held(schedule: TensorSchedule) -> Any:
    return schedule._parts[0].holding.held


def launches(program: Any) -> int:
    return sum(len(items) for items in program.launched.values())


def plain_runs(schedule: TensorSchedule, count: int) -> list[Any]:
    """Results of runs of which none keeps anything."""
    schedule._plain = 10
    return [schedule.run()[0].numpy() for _ in range(count)]


def test_weights_are_packed_at_the_second_run_and_once() -> None:
    schedule, w, b, x = layer(24)
    before = DERIVED.mark
    first = plain_runs(schedule, 1)[0]
    assert held(schedule) is None
    found = plain_runs(schedule, 3)
    (packed,) = held(schedule).packed
    assert packed.value.nbytes >= 4 * K * N and DERIVED.mark == before
    for result in found:  # the order of additions is the same
        np.testing.assert_array_equal(result, first)
    np.testing.assert_allclose(first, wanted(x, w, b), rtol=1e-5, atol=1e-5)
    x[:] = array(24, K, seed=9)
    np.testing.assert_allclose(plain_runs(schedule, 1)[0], wanted(x, w, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [9, 17, 40, 130, 300])
def test_bits_are_those_of_a_run_that_packs(rows: int, transposed: bool) -> None:
    """Also of hostile numbers, of memory that is poisoned, and of columns along k."""
    x, w = array(rows, 333), array(*((77, 333) if transposed else (333, 77)), seed=4)
    x[0, :3], w[1, :3] = (np.inf, np.nan, -0.0), (1e-42, -np.inf, 0.0)
    a, c = fg.from_numpy(x), fg.tensor(w).realize()
    schedule = fg.schedule(a @ (c.mT if transposed else c))
    first = plain_runs(schedule, 1)[0]
    with fg.config(poison=True):
        again = plain_runs(schedule, 2)[1]
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(plain_runs(schedule, 1)[0], first)
    assert held(schedule) is not None


@pytest.mark.parametrize("left", [np.int8, np.uint8])
def test_bytes_that_are_summed_by_fours_are_packed_once(left: Any) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 100, (24, 301)).astype(left)
    w = rng.integers(-128, 128, (301, 205)).astype(np.int8)
    c = fg.tensor(w).realize()
    schedule = fg.schedule(fg.from_numpy(x).astype(fg.int32) @ c.astype(fg.int32))
    for found in plain_runs(schedule, 4):
        np.testing.assert_array_equal(found, x.astype(np.int64) @ w)


def test_a_prepacked_form_is_kept_on_disk_with_its_kernel() -> None:
    schedule, *_ = layer(24)
    (native,) = schedule.plans[0].executor.code  # type: ignore[attr-defined]
    assert native.prepacked is not None
    assert restored(json.loads(json.dumps(dump(native)))) == native


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 8])
def test_few_rows_read_panels_too_and_bits_are_those_of_memory_in_place(
    rows: int, transposed: bool
) -> None:
    x, w = array(rows, 333), array(*((77, 333) if transposed else (333, 77)), seed=4)
    x[0, :3], w[1, :3] = (np.inf, np.nan, -0.0), (1e-42, -np.inf, 0.0)
    c = fg.tensor(w).realize()
    schedule = fg.schedule(fg.from_numpy(x) @ (c.mT if transposed else c) + 1)
    first, *others = plain_runs(schedule, 4)
    for found in others:
        np.testing.assert_array_equal(found, first)
    assert transposed or len(held(schedule).packed) == 1


@pytest.mark.parametrize("k", [37, 96, 640, 1031])
@pytest.mark.parametrize("n", [47, 48, 61, 130, 176, 512, 1000])
@pytest.mark.parametrize("scaled", [False, True])
def test_one_row_reads_panels_of_a_matrix_with_short_rows(k: int, n: int, scaled: bool) -> None:
    """Bits are those of rows that are read in place, also of hostile numbers; the vector may be
    computed, and k be in chunks."""
    x, w = array(1, k), array(k, n, seed=4)
    x[0, :3], w[1, :3] = (np.inf, 1e-42, -0.0), (np.nan, -np.inf, 0.0)
    a, c, b = fg.from_numpy(x), fg.tensor(w).realize(), weight(n, seed=3)
    schedule = fg.schedule((a * 3 if scaled else a) @ c + b)
    first = plain_runs(schedule, 1)[0]
    with fg.config(poison=True):
        again = plain_runs(schedule, 2)[1]
    np.testing.assert_array_equal(again, first)
    assert len(held(schedule).packed) == (4 * k * n > GEMM.l1_bytes)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = x.astype(np.float64) * (3 if scaled else 1) @ w + np.asarray(b)
    np.testing.assert_allclose(first, exact, rtol=1e-4, atol=1e-3)


def test_one_row_reads_long_rows_of_a_matrix_in_place() -> None:
    x, w = array(1, 64), weight(64, 1024)
    schedule = fg.schedule(fg.from_numpy(x) @ w)
    plain_runs(schedule, 4)
    assert held(schedule).packed == []


def test_one_row_and_many_share_a_packed_weight() -> None:
    w = weight(K, N)
    schedules = [fg.schedule(fg.from_numpy(array(rows, K)) @ w) for rows in (1, 24)]
    for schedule in schedules:
        plain_runs(schedule, 3)
    one, many = [held(schedule).packed for schedule in schedules]
    assert len(one) == 1 and one == many


@pytest.mark.parametrize("shape", [(16, 40, 9, 9, 3), (64, 96, 5, 4, 3), (24, 130, 12, 6, 1)])
def test_a_convolution_with_few_pixels_has_its_weights_packed_once(shape: Any) -> None:
    """There the pixels are the rows; weights of other convolutions are read in place."""
    channels, out, high, wide, size = shape
    x, w = array(1, channels, high, wide), weight(out, channels, size, size)
    image = fg.from_numpy(x)
    schedule = fg.schedule(fg.relu(fg.nn.functional.conv2d(image, w, padding=size // 2)))
    first = plain_runs(schedule, 1)[0]
    np.testing.assert_array_equal(plain_runs(schedule, 3)[2], first)


def test_fewer_launches_and_less_workspace_where_tiles_shared_what_was_packed() -> None:
    x, w = array(600, 300), weight(700, 300)
    schedule = fg.schedule(fg.from_numpy(x) @ w.mT)
    plain_runs(schedule, 3)
    (program,) = [m for m in held(schedule)._made.values() if isinstance(m, Program)]
    plain = schedule.plans[0].executor
    assert launches(program) == 1 and program.workspace <= plain.workspace
    if target().cores == 1:  # tiles for many cores pack for themselves
        assert launches(plain) == 2 and program.workspace < plain.workspace


def test_an_assigned_weight_is_read_as_it_is_now() -> None:
    schedule, w, b, x = layer(24)
    plain_runs(schedule, 3)
    (packed,) = held(schedule).packed
    del packed
    w.assign(w * 2 + 1)
    for _ in range(4):
        found = plain_runs(schedule, 1)[0]
        np.testing.assert_allclose(found, wanted(x, w, b), rtol=1e-5, atol=1e-5)
    assert held(schedule) is None or not held(schedule).is_stale


def test_a_weight_that_is_shared_and_edited_is_never_packed() -> None:
    w, x = array(K, N, seed=1), array(24, K)
    schedule = fg.schedule(fg.from_numpy(x) @ fg.from_numpy(w))
    plain_runs(schedule, 3)
    assert held(schedule).packed == []
    w *= 3
    np.testing.assert_allclose(plain_runs(schedule, 1)[0], x @ w, rtol=1e-4, atol=1e-4)


def test_one_packed_copy_serves_all_plans_and_goes_with_them() -> None:
    w = weight(K, N)
    schedules = [fg.schedule(fg.from_numpy(array(rows, K)) @ w) for rows in (24, 50, 130)]
    for schedule in schedules:
        plain_runs(schedule, 3)
    packed = {id(p) for schedule in schedules for p in held(schedule).packed}
    assert len(packed) == 1
    gc.collect()
    before = fg.memory_stats()["used"]
    del schedule, schedules
    gc.collect()
    assert fg.memory_stats()["used"] <= before - 4 * K * N


def jitted(w: fg.Tensor) -> Any:
    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        return fg.tanh(x @ w)

    return step


def bound(step: Any) -> Any:
    return step.captures[0].replay.idle[0]


def test_a_jitted_function_packs_what_stays() -> None:
    w, x = weight(K, N), weight(24, K)
    step = jitted(w)
    results = [step(x).numpy() for _ in range(6)]
    assert len(bound(step).held.packed) == 1
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[-1])
    np.testing.assert_allclose(results[-1], np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)


def test_a_step_that_writes_over_weights_is_seen_by_a_function_that_packed_them() -> None:
    w, x = weight(K, N), weight(24, K)
    step = jitted(w)

    @fg.jit
    def train() -> None:
        w.assign(w * 0.5)

    for turn in range(6):
        for _ in range(5):
            found = step(x).numpy()
            np.testing.assert_allclose(found, np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)
        train()
        if turn == 3:
            w.assign(w + 0.01)
    assert bound(step).patience > 2  # it was written over where it is, and noticed


def test_an_eager_step_in_place_is_seen_too() -> None:
    w, x = weight(K, N), weight(24, K)
    step = jitted(w)
    for _ in range(4):
        step(x)
    for _ in range(3):
        w.assign(w * 0.5)
        w.realize()
        found = [step(x).numpy() for _ in range(3)]
        np.testing.assert_allclose(found[2], np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)


def test_packed_memory_goes_when_weights_do() -> None:
    w, x = weight(K, N), weight(24, K)
    step = jitted(w)
    for _ in range(4):
        step(x)
    (packed,) = bound(step).held.packed
    w.assign(fg.zeros((K, N)) + 1)
    w.realize()
    gc.collect()
    assert packed.stale and packed.value is None
    np.testing.assert_allclose(step(x).numpy(), np.tanh(x.numpy() @ w.numpy()), rtol=1e-4)


def test_sizes_that_vary_share_one_packed_copy() -> None:
    w = weight(K, N)
    step = jitted(w)
    for rows in (20, 33, 47, 61, 20, 75, 33, 18, 64):
        x = weight(rows, K, seed=rows)
        found = step(x).numpy()
        np.testing.assert_allclose(found, np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)
    (held_now,) = [b.held for c in step.captures for b in c.replay.idle if c.replay.sizes]
    assert len(held_now.packed) == 1 and len(held_now._made) > 3
    w.assign(w * 2)
    for rows in (20, 33, 20):
        x = weight(rows, K, seed=rows)
        found = step(x).numpy()
        np.testing.assert_allclose(found, np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)


def test_a_function_of_many_sizes_that_assigns_its_weights_reads_the_new_ones() -> None:
    w, olds = weight(K, N), []

    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        y = x @ w
        w.assign(w * 0.5)
        return y

    for rows in (20, 33, 47, 61, 61, 61, 20, 75, 33):
        olds.append(copy(w))  # so that the memory of old values stays theirs
        x, now = weight(rows, K, seed=rows), w.numpy()
        np.testing.assert_allclose(step(x).numpy(), x.numpy() @ now, rtol=1e-3, atol=1e-4)


def test_arguments_that_change_do_not_keep_weights_from_being_packed() -> None:
    w = weight(K, N)
    step = jitted(w)
    for seed in range(6):
        x = weight(24, K, seed=seed)
        found = step(x).numpy()
        np.testing.assert_allclose(found, np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)
    assert len(bound(step).held.packed) == 1


def test_threads_pack_once_and_agree() -> None:
    schedule, *_ = layer(64)
    first = plain_runs(schedule, 1)[0]
    found: list[Any] = []

    def work() -> None:
        found.extend([schedule.run()[0].numpy() for _ in range(10)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and len(held(schedule).packed) == 1
    for result in found:
        np.testing.assert_array_equal(result, first)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_reads_what_its_parent_packed() -> None:
    schedule, *_ = layer(24)
    first = plain_runs(schedule, 3)[0]
    child = os.fork()
    if child == 0:
        same = np.array_equal(plain_runs(schedule, 2)[1], first)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_derived_values_know_when_they_are_stale() -> None:
    known, buffer = DerivedValues(), fg.tensor([1.0])
    made = known.get(buffer, "twice", lambda: 2)
    assert known.get(buffer, "twice", lambda: 3) is made and made.value == 2
    known.overwritten([fg.tensor([2.0])])
    assert not made.stale
    known.overwritten([buffer])
    assert made.stale and made.value is None
    again = known.get(buffer, "twice", lambda: 4)
    assert again.value == 4 and not again.stale
    del buffer
    gc.collect()
    assert again.stale


def test_a_program_of_other_sizes_writes_records_when_it_runs_and_once() -> None:
    w = weight(K, N)
    x = fg.Var("rows", 2, 64)
    whole = array(64, K)
    schedule = fg.schedule(fg.tanh(fg.from_numpy(whole)[: x.bind(20)] @ w))
    schedule.compile(any_size=True)
    for rows in (20, 21, 33, 20, 41):
        (found,) = schedule.bound({"rows": rows}).run()
        np.testing.assert_allclose(
            found.numpy(), np.tanh(whole[:rows] @ w.numpy()), rtol=1e-4, atol=1e-5
        )
    executor: Any = schedule.compile().executor
    programs = {rows: executor.at({"rows": rows}) for rows in (33, 41)}  # without packed operands
    assert all("records" not in vars(program) for program in programs.values())
    entries: list[int] = []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait()
        entries.append(programs[33].entry)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*entries} == {programs[33].records[0].buffer_info()[0]} == {*programs[33].launched}
    for rows, program in programs.items():  # the other is made from one that has records by now
        inputs = schedule._inputs(schedule._parts[0], {})[0]
        (plain,) = program.run(inputs, {"rows": rows}, False)
        np.testing.assert_allclose(
            plain.array, np.tanh(whole[:rows] @ w.numpy()), rtol=1e-4, atol=1e-5
        )


def test_programs_of_other_sizes_are_made_of_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of two sizes changes, and with packed weights as without."""
    made: list[int] = []
    begin = Program.__init__

    def counted(self: Program, *args: Any, **more: Any) -> None:
        made.append(1)
        begin(self, *args, **more)

    v, w = weight(K, N), weight(K, N, seed=5)
    f = fg.jit(lambda x, y: (fg.softmax(x @ v), fg.tanh(y @ w).sum(axis=0)))

    def check(m: int, n: int) -> None:
        x, y = array(m, K), array(n, K, seed=4)
        found = [t.numpy() for t in f(fg.Tensor(x), fg.Tensor(y))]
        powers = np.exp(x @ v.numpy())
        wanted = powers / powers.sum(axis=1, keepdims=True), np.tanh(y @ w.numpy()).sum(axis=0)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)

    for m, n in ((40, 60), (41, 61), (42, 63), (43, 64), (44, 66)):
        check(m, n)
    monkeypatch.setattr(Program, "__init__", counted)
    for m, n in ((45, 66), (46, 66), (46, 67), (47, 68), (40, 60), (46, 67), (50, 51), (50, 70)):
        check(m, n)
    assert not made
    w.assign(w * 2)
    check(51, 71)
    check(52, 71)


def test_launches_in_which_code_differs_are_groups_of_items() -> None:
    plain = Native("a", (("f", 1, 0),), (), (1, 2), 0)
    more, longer = plain._replace(numbers=(3, 4)), plain._replace(numbers=(3, 4, 5))
    other = plain._replace(digest="b")
    old, new = [plain, other, plain, plain], [more, other, more, plain]
    assert changes_between(old, new) == {(0, 2): more}
    assert changes_between(old, old) == {}
    assert changes_between(old, [longer, other, more, plain]) is None
