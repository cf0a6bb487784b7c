"""Tests of fulgurite/aot/schedule.py: a schedule you can hold, look at, and run again."""

import copy
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.aot.export import ScheduleFileError
from fulgurite.aot.schedule import KEEP, PATIENCE
from fulgurite.core.dtype import float32
from fulgurite.core.ops.effect import HOST_FUNCTIONS, HostFunction, custom
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, FulguriteError, ShapeError
from fulgurite.graph.memory.arena import plan_memory
from fulgurite.runtime.device import get_device
from fulgurite.tensor import wrap
from tests.properties import program


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
    fg.clear_caches()  # other tests run such plans too
    x = random(4) * 2
    plan = fg.schedule(x)
    assert plan.compile().runs == 0
    assert not x.is_realized


@pytest.mark.host_memory
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
    assert [item.kernel.kind == "host" for item in plan.items].count(True) == 1
    np.testing.assert_allclose(plan.run()[0].numpy(), (x.numpy() + 1) * 6, rtol=1e-6)


# --- what a schedule says ------------------------------------------------------------------------


def test_items_have_a_kind_bytes_and_lines() -> None:
    x = random(8, 4)
    plan = fg.schedule(fg.softmax(x, axis=-1))
    (item,) = plan.items
    assert (item.number, item.kind, item.bytes) == (0, "reduce", 2 * 8 * 4 * 4)
    assert "test_schedule.py" in item.lines[0] and item.reason
    assert plan.bytes == item.bytes and plan.peak >= 2 * 8 * 4 * 4
    assert [slot.shape for slot in plan.slots if slot is not None] == [(8, 4), (8, 4)]
    assert "reduce" in str(item)


def test_the_peak_counts_what_kernels_need_beside_their_values() -> None:
    """Gradients along both axes of one walk: each part of the rows has sums of its own."""

    def loss(q: fg.Tensor, k: fg.Tensor) -> fg.Tensor:
        return (fg.sigmoid(q @ k.mT) @ k).sum()

    with fg.config(device="cpu", tier="native"):
        q, k = random(200, 16), random(200, 16) + 1
        found = fg.grad(loss, argnums=(0, 1))(q, k)
        told = fg.explain(*found).peak_bytes
        plan = fg.schedule(*found)
        (made,) = plan.plans
    beside = max([kernel.code.workspace for kernel in made.kernels])
    assert beside >= 200 * 16 * 4
    assert plan.peak == plan_memory(made.schedule, 64).peak_bytes + beside == told


def test_a_plan_is_a_sequence_of_launches_over_slots_with_places_in_an_arena() -> None:
    x, w = random(16, 16), random(16, 16)
    plan = fg.schedule(fg.softmax(fg.softmax(x @ w, axis=-1) @ w, axis=0) @ w).compile()
    schedule, layout = plan.schedule, plan.layout
    assert len(plan.kernels) == len(schedule.items) > 2
    written = {slot for item in schedule.items for slot in item.writes}
    assert set(layout.offsets) == written - set(schedule.outputs)
    total = sum(16 * 16 * 4 for _ in layout.offsets)
    assert layout.live_bytes <= layout.arena_bytes <= total  # places are freed and used again
    two = random(16, 16)
    inputs = [t.numpy() for t in (x, w)]
    assert plan.schedule.inputs == 2 and len(inputs) == 2
    first, second = fg.schedule(x @ w).run()[0].numpy(), fg.schedule(x @ two).run()[0].numpy()
    np.testing.assert_allclose(first, inputs[0] @ inputs[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, inputs[0] @ two.numpy(), rtol=1e-4, atol=1e-4)


def test_compile_takes_a_cache_of_yours_or_none() -> None:
    x = random(5, 3)
    mine: dict[object, object] = {}
    plan = fg.schedule(x * 3 + 1).compile(cache=mine)
    assert len(mine) == 1
    assert fg.schedule(x * 3 + 1).compile(cache=mine) is plan
    assert fg.schedule(x * 3 + 1).compile(cache=False) is not plan
    shared = fg.schedule(x * 3 + 1)
    assert shared.compile() is fg.schedule(x * 3 + 1).compile() and len(mine) == 1
    with pytest.raises(ArgumentError, match="a cache is a mapping"):
        shared.compile(cache=3)  # type: ignore[arg-type]


# --- runs after an edit --------------------------------------------------------------------------


class Branches:
    """Two branches over three inputs that meet at the end."""

    def __init__(self) -> None:
        generator = np.random.default_rng(2)
        self.a, self.b, self.c = (
            fg.Tensor(generator.normal(size=(6, 6)).astype(np.float32)) for _ in range(3)
        )
        left, right = self.left(), (self.c @ self.c).sum(axis=0)
        self.plan = fg.schedule((left @ self.b) * right, left)

    def left(self) -> fg.Tensor:
        return fg.softmax(self.a @ self.b, axis=-1)

    def check(self, results: tuple[fg.Tensor, ...]) -> None:
        a, b, c = (t.numpy().astype(np.float64) for t in (self.a, self.b, self.c))
        left = np.exp(a @ b) / np.exp(a @ b).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(results[1].numpy(), left, rtol=1e-4, atol=1e-5)
        expected = (left @ b) * (c @ c).sum(axis=0)
        np.testing.assert_allclose(results[0].numpy(), expected, rtol=1e-3, atol=1e-4)

    def below(self, *slots: int) -> tuple[int, ...]:
        """The items that depend on input slots, by what the schedule itself says."""
        dirty, found = set(slots), []
        for item in self.plan.items:
            if dirty & set(item.reads):
                dirty |= set(item.writes)
                found.append(item.number)
        return tuple(found)


def test_a_tensor_that_was_assigned_is_an_input_that_was_edited() -> None:
    x = random(4)
    plan = fg.schedule(x * 2 + 1)
    before = x.numpy()
    plan.run()
    x += 1
    np.testing.assert_allclose(plan.run()[0].numpy(), (before + 1) * 2 + 1, rtol=1e-6)
    x[2] = 50.0
    assert plan.run()[0].numpy()[2] == 101
    for _ in range(6):  # and when nobody asks what changed any more
        x += 1
        np.testing.assert_array_equal(plan.run()[0].numpy(), x.numpy() * 2 + 1)


def test_changed_only_runs_exactly_the_kernels_below_the_edit() -> None:
    made = Branches()
    made.check(made.plan.run())
    assert made.plan.ran == tuple(range(len(made.plan)))
    made.check(made.plan.run(changed_only=True))
    assert made.plan.ran == ()
    places = dict(zip("abc", (0, 1, 2), strict=True))
    for name, edit in (("a", 1.5), ("c", 2.5), ("b", 0.5), ("a", 0.25)):
        tensor = getattr(made, name)
        tensor *= edit
        made.check(made.plan.run(changed_only=True))
        assert made.plan.ran == made.below(places[name])
        assert 0 < len(made.plan.ran) <= len(made.plan)
        made.check(made.plan.run(changed_only=True))
        assert made.plan.ran == ()
    assert len(made.below(places["c"])) < len(made.plan)


def test_changed_only_sees_what_a_jitted_function_writes_over_again_and_again() -> None:
    @fg.jit
    def step(t: fg.Tensor) -> None:
        t += 1

    x = random(5).realize()
    plan = fg.schedule((x * 2).sum(), fg.ones(5) * 3)
    plan.run(changed_only=True)
    for _ in range(4):
        step(x)
        found = plan.run(changed_only=True)[0].item()
        assert found == pytest.approx(2 * float(x.numpy().sum()), rel=1e-5)
        plan.run(changed_only=True)
        assert plan.ran == ()


@pytest.mark.parametrize("turns", [0, PATIENCE + 2])
def test_a_copy_of_an_input_that_is_edited_is_not_taken_for_the_input(turns: int) -> None:
    x = random(5).realize()
    other, target = copy.copy(x), random(5)
    target.assign(x)
    plan = fg.schedule(x * 2)
    for _ in range(turns):
        plan.run()
    other += 1
    with pytest.raises(ArgumentError, match="differ by now"):
        plan.run()
    del other, target  # no doubt is left
    np.testing.assert_array_equal(plan.run()[0].numpy(), x.numpy() * 2)
    x += 1
    np.testing.assert_array_equal(plan.run()[0].numpy(), x.numpy() * 2)


def test_replays_go_back_to_what_changed_when_somebody_asks_and_on_again() -> None:
    made = Branches()
    for _ in range(2):
        for _ in range(PATIENCE + 2):
            made.check(made.plan.run())
            assert made.plan.ran == tuple(range(len(made.plan)))
        made.check(made.plan.run(changed_only=True))
        assert made.plan.ran == tuple(range(len(made.plan))), "replays kept nothing"
        made.check(made.plan.run(changed_only=True))
        assert made.plan.ran == ()
        made.a += 1
        made.check(made.plan.run(changed_only=True))
        assert made.plan.ran == made.below(0)


@pytest.mark.host_memory
def test_replays_see_every_edit_of_every_kind_of_input() -> None:
    shared = np.arange(5, dtype=np.float32)
    x, leaf = random(5), fg.Tensor(np.ones(5, np.float32), requires_grad=True)
    plan = fg.schedule(x * leaf + fg.from_numpy(shared))
    for turn in range(PATIENCE + 4):
        shared += 1
        if turn % 2:
            x += 0.5
        if turn % 3 == 0:
            with fg.no_grad():
                leaf.assign(leaf.detach() * 2)
        expected = x.numpy() * leaf.numpy() + shared
        np.testing.assert_allclose(plan.run()[0].numpy(), expected, rtol=1e-6)
        with fg.config(poison=True):
            np.testing.assert_allclose(plan.run()[0].numpy(), expected, rtol=1e-6)
    plan.compile(False)  # another plan: what the replay held is not used any more
    np.testing.assert_allclose(plan.run()[0].numpy(), expected, rtol=1e-6)


def test_what_is_large_is_kept_only_once_somebody_asked_what_changed() -> None:
    x, y = (fg.Tensor(np.ones(KEEP // 4, np.float32)) for _ in range(2))
    plan = fg.schedule((x + 1).sum(), fg.sin(y) * 2)
    everything = tuple(range(len(plan)))
    plan.run()
    plan.run(changed_only=True)
    assert plan.ran == everything
    plan.run()
    x += 1
    plan.run(changed_only=True)
    assert 0 < len(plan.ran) < len(everything)


def test_a_replay_whose_index_is_outside_names_the_line() -> None:
    place = fg.Tensor([0, 1])
    plan = fg.schedule(fg.take(random(3), place) * 2)
    for _ in range(PATIENCE + 2):
        plan.run()
    place.assign(fg.Tensor([0, 7]))
    with pytest.raises(BoundsError, match="test_schedule"):
        plan.run()
    place.assign(fg.Tensor([2, 1]))
    assert plan.run()[0].shape == (2,)


def test_changed_only_follows_parts_that_were_written_in_place() -> None:
    made = Branches()
    made.plan.run(changed_only=True)
    made.c[0] = 3.0
    made.c.realize()
    made.c[1, 2:] = -1.0
    made.check(made.plan.run(changed_only=True))
    assert made.plan.ran == made.below(2)

    def clear(a: Any) -> None:
        a[0] = 0

    x, y = random(6), fg.Tensor(np.arange(6, dtype=np.float32))
    z = fg.custom(clear, x * 2, inplace=[0])
    z[5] = 9.0
    plan = fg.schedule(z + 1, fg.cumulative_sum(y, axis=0))

    def check() -> None:
        first, second = plan.run(changed_only=True)
        expected = x.numpy() * 2 + 1
        expected[0], expected[5] = 1, 10
        np.testing.assert_allclose(first.numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(second.numpy(), np.cumsum(y.numpy()), rtol=1e-6)

    check()
    everything = len(plan)
    y += 1
    check()
    assert 0 < len(plan.ran) < everything
    one = plan.ran
    x += 1
    check()
    assert sorted((*one, *plan.ran)) == list(range(everything))


@pytest.mark.host_memory
def test_shared_memory_always_counts_as_changed() -> None:
    data = np.array([1.0, 2.0], np.float32)
    other = random(2)
    plan = fg.schedule(fg.from_numpy(data) * 2, fg.cumulative_sum(other, axis=0))
    plan.run()
    data[:] = [10.0, 20.0]
    assert plan.run(changed_only=True)[0].tolist() == [20.0, 40.0]
    assert len(plan.ran) == 1
    plan.run(changed_only=True)
    assert len(plan.ran) == 1


def test_a_run_that_fails_leaves_nothing_to_be_wrong_about() -> None:
    fail = [True]

    def sometimes(a: Any) -> Any:
        if fail[0]:
            raise RuntimeError("mine")
        return a + 1

    x, y = random(3), random(3)
    plan = fg.schedule(fg.custom(sometimes, x * 2, shape=(3,)) * 3, fg.cumulative_sum(y, axis=0))
    for changed_only in (True, False):
        with pytest.raises(RuntimeError, match="mine"):
            plan.run(changed_only=changed_only)
    fail[0] = False
    plan.run(changed_only=True)
    assert plan.ran == tuple(range(len(plan)))
    fail[0] = True
    x += 1
    with pytest.raises(RuntimeError, match="mine"):
        plan.run(changed_only=True)
    fail[0] = False
    got = plan.run(changed_only=True)[0].numpy()
    np.testing.assert_allclose(got, (x.numpy() * 2 + 1) * 3, rtol=1e-6)


def test_results_of_one_run_stay_as_they_are_when_the_next_one_comes() -> None:
    made = Branches()
    kept = made.plan.run()
    first = [t.numpy() for t in kept]
    for _ in range(3):
        made.a += 1
        made.plan.run(changed_only=True)
        made.plan.run()
    for tensor, value in zip(kept, first, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), value)
    again = made.plan.run(changed_only=True)[1]
    again += 1  # a result is the caller's: changing it changes no later run
    again.realize()
    made.check(made.plan.run(changed_only=True))


def test_variable_sizes_run_whole_and_right() -> None:
    n = fg.Var("n", 1, 9)
    x = random(9)
    plan = fg.schedule(fg.cumulative_sum(x[: n.bind(5)] * 2, axis=0) + 1)
    for _ in range(2):
        got = plan.run(changed_only=True)[0].numpy()
        np.testing.assert_allclose(got, np.cumsum(x.numpy()[:5] * 2) + 1, rtol=1e-5)
        x += 1


STEPS: list[Callable[[fg.Tensor, fg.Tensor], fg.Tensor]] = [
    lambda a, b: a @ b * 0.125,
    lambda a, b: fg.maximum(a, b) - 1,
    lambda a, b: a.T + b.sum(axis=0),
    lambda a, b: fg.cumulative_sum(a, axis=1) * 0.25,
    lambda a, b: fg.where(b > 0, a, -b),
]


@given(
    seed=st.integers(0, 2**32 - 1),
    edits=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8),
)
@program
def test_any_sequence_of_edits_gives_what_a_new_schedule_gives(
    seed: int, edits: list[tuple[int, bool]]
) -> None:
    generator = np.random.default_rng(seed)
    leaves = [fg.Tensor(generator.integers(-3, 4, (4, 4)).astype(np.float32)) for _ in range(4)]
    choices = generator.integers(0, 5, 8)
    picks = generator.integers(0, 100, (8, 2))

    def graph() -> list[fg.Tensor]:
        values = list(leaves)
        for kind, (i, j) in zip(choices, picks, strict=True):
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(STEPS[kind](a, b))
        return values[-3:]

    plan = fg.schedule(*graph())
    plan.run()
    for place, changed_only in edits:
        leaves[place][int(generator.integers(4))] = float(generator.integers(-3, 4))
        got = plan.run(changed_only=changed_only)
        for mine, fresh in zip(got, fg.schedule(*graph()).run(), strict=True):
            np.testing.assert_array_equal(mine.numpy(), fresh.numpy())


# --- files ---------------------------------------------------------------------------------------

SHIPPED = """
import json, sys, numpy as np, fulgurite as fg
loaded = fg.load_schedule(sys.argv[1])
x = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
w = np.arange(8, dtype=np.float32).reshape(4, 2) / 3
a = loaded.run(x=x, w=w)
b = loaded.run(x, fg.Tensor(w))
same = all((p.numpy() == q.numpy()).all() for p, q in zip(a, b))
compiled = 0
if loaded.plan.device == "cpu":
    from fulgurite.runtime.cpu.toolchain import code, code_for
    compiled = code().compiled + code_for("auto").compiled
print(json.dumps({
    "bits": [t.numpy().tobytes().hex() for t in a], "same": same, "compiled": compiled,
    "llvmlite": "llvmlite" in sys.modules, "kinds": [i.kernel.kind for i in loaded.items],
    "lines": len(loaded.lines), "inputs": [str(i) for i in loaded.inputs],
}))
"""


def shipped(path: Path) -> tuple[fg.Tensor, fg.Tensor, tuple[fg.Tensor, ...]]:
    """A schedule with products, rows, a loop and a run-time constant, saved."""
    x = fg.Tensor(np.arange(12, dtype=np.float32).reshape(3, 4) / 7)
    w = fg.Tensor(np.arange(8, dtype=np.float32).reshape(4, 2) / 3)
    h, _ = fg.scan(lambda h, row: (fg.tanh(h + row), None), fg.zeros(2), x @ w)
    plan = fg.schedule(fg.softmax(x @ w * 0.5, axis=-1) + h, (x * 3).sum(axis=0))
    plan.save(path, names={"x": x, "w": w})
    return x, w, plan.run()


def test_a_saved_plan_runs_in_another_process_which_compiles_nothing(tmp_path: Path) -> None:
    _, _, results = shipped(tmp_path / "plan")
    done = subprocess.run(
        [sys.executable, "-c", SHIPPED, str(tmp_path / "plan")], capture_output=True, text=True,
        cwd=Path(__file__).parents[2], timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bits"] == [t.numpy().tobytes().hex() for t in results]
    assert found["same"] and found["compiled"] == 0 and not found["llvmlite"]
    assert "loop" in found["kinds"] and found["lines"] == len(found["kinds"])
    assert found["inputs"] == ["x: float32 (3, 4)", "w: float32 (4, 2)"]


def test_a_file_of_which_any_bit_was_changed_is_refused(tmp_path: Path) -> None:
    shipped(tmp_path / "plan")
    whole = (tmp_path / "plan").read_bytes()
    generator = np.random.default_rng(7)
    heads = np.r_[0:60, len(whole) - 400 : len(whole)]  # flags, sizes and dates of the zip
    places = [*generator.integers(len(whole), size=60), *heads]
    for place in places:
        bad = bytearray(whole)
        bad[place] ^= 1 << int(generator.integers(8))
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(ScheduleFileError, match="is refused"):
            fg.load_schedule(tmp_path / "bad")
    for other in (*[whole[:cut] for cut in (0, 10, len(whole) // 2, len(whole) - 1)], whole + b"a"):
        (tmp_path / "bad").write_bytes(other)
        with pytest.raises(ScheduleFileError, match="is refused"):
            fg.load_schedule(tmp_path / "bad")


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A file whose manifest was changed by somebody who knows how digests are made."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members.pop("manifest.json"))
    change(about)
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("manifest.json", json.dumps(about).encode())
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = b"fulgurite schedule 1 " + b"0" * 32
    signed = target.read_bytes()[:-32]
    target.write_bytes(signed + hashlib.blake2b(signed, digest_size=16).hexdigest().encode())


def test_a_file_for_another_machine_or_version_is_refused(tmp_path: Path) -> None:
    with fg.config(device="cpu"):
        if get_device("cpu").name != "cpu":
            pytest.skip("no compiler")
        shipped(tmp_path / "plan")
    changes: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
        ("for riscv with avx512", lambda about: about.update(target=["riscv", "avx512", []])),
        ("lacks unheard_of", lambda about: about["target"].__setitem__(2, ["unheard_of"])),
        ("another version", lambda about: about.update(launch="0" * 32)),
        ("format is 7", lambda about: about.update(format=7)),
        ("damaged", lambda about: about.update(order=[0, 0])),
        ("damaged", lambda about: about.pop("inputs")),
        ("damaged", lambda about: about["members"].remove("plan.json")),
    ]
    for complaint, change in changes:
        changed(tmp_path / "plan", tmp_path / "bad", change)
        with pytest.raises(ScheduleFileError, match=complaint):
            fg.load_schedule(tmp_path / "bad")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ScheduleFileError, match="no schedule"):
        fg.load_schedule(tmp_path / "text")


def test_inputs_of_a_loaded_schedule_are_checked(tmp_path: Path) -> None:
    x, w, _ = shipped(tmp_path / "plan")
    loaded = fg.load_schedule(tmp_path / "plan")
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ArgumentError, "w is not given", lambda: loaded.run(x)),
        (ArgumentError, "3 arrays for 2 inputs", lambda: loaded.run(x, w, w)),
        (ArgumentError, "'q' is no input", lambda: loaded.run(x, w=w, q=w)),
        (ArgumentError, "'x' is given twice", lambda: loaded.run(x, x=x)),
        (DTypeError, "w is float64, not float32", lambda: loaded.run(x, w.numpy().astype(float))),
        (ShapeError, r"x has shape \(4, 2\)", lambda: loaded.run(w, w)),
    ]
    for kind, complaint, ask in wrong:
        with pytest.raises(kind, match=complaint):
            ask()
    assert "given x: float32 (3, 4)" in str(loaded) and len(loaded) == len(loaded.items)


def test_only_named_host_functions_are_saved(tmp_path: Path) -> None:
    def mine(a: Any) -> Any:
        return a + 1

    x = random(3)
    plan = fg.schedule(fg.custom(mine, x * 2, shape=(3,)) * 2)
    with pytest.raises(ArgumentError, match="'mine' has no name"):
        plan.save(tmp_path / "plan")
    assert not list(tmp_path.iterdir())
    fg.register_host("tests.shipped", mine)
    try:
        plan = fg.schedule(fg.custom("tests.shipped", x * 2, shape=(3,)) * 2)
        plan.save(tmp_path / "plan")
        loaded = fg.load_schedule(tmp_path / "plan")
        np.testing.assert_array_equal(loaded.run(x)[0].numpy(), plan.run()[0].numpy())
        with pytest.raises(ArgumentError, match="'y' is no input"):
            plan.save(tmp_path / "other", names={"y": random(2)})
    finally:
        del HOST_FUNCTIONS["tests.shipped"]
    with pytest.raises(FulguriteError, match=r"tests\.shipped"):
        fg.load_schedule(tmp_path / "plan").run(x)


@pytest.mark.device("cpu")
def test_a_schedule_for_other_sizes_keeps_nothing_unless_it_was_asked_what_changed() -> None:
    whole = np.arange(12, dtype=np.float32)
    size = fg.Var("n", 2, 12)
    schedule = fg.schedule(fg.from_numpy(whole)[: size.bind(4)] * 2)
    schedule.compile(any_size=True)
    other = schedule.bound({"n": 7})
    assert other.run()[0].tolist() == (whole[:7] * 2).tolist() and other._replay is not None
    whole[0] = 5
    assert other.run(changed_only=True)[0].tolist() == (whole[:7] * 2).tolist()
    assert schedule.run()[0].tolist() == (whole[:4] * 2).tolist()
