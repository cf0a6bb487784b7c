"""Sizes that change in lazy code: one plan for all of them, checked against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.node import Node
from fulgurite.core.ops import special
from fulgurite.core.symbolic.polynomial import Polynomial
from fulgurite.core.symbolic.sym import Trace
from fulgurite.errors import BoundsError, NonFiniteError
from fulgurite.graph.ir.size_key import Fit
from fulgurite.runtime.realize import clear_caches
from fulgurite.runtime.sizes import shapes
from fulgurite.runtime.sizes.shapes import SHAPES
from fulgurite.tensor import wrap
from tests.fuzz.sizes import DECIDING, FEW_SIZES, STEPS, Program, chain, problem

pytestmark = pytest.mark.device("cpu")
JIT_SIZES: Any = import_module("fulgurite.jit.sizes")
CallSizes = JIT_SIZES.CallSizes


@pytest.fixture(autouse=True)
def _native() -> Any:
    with fg.config(device="cpu", tier="native"):
        yield


def misses() -> int:
    return fg.cache_stats()["schedule"]["misses"]


def attention(x: Any) -> Any:
    place = fg.arange(x.shape[0])
    scores = fg.where(place[:, None] >= place[None, :], x @ x.transpose(0, 1) * 0.1, -fg.inf)
    return fg.softmax(scores, axis=-1) @ x


def test_a_size_that_changes_for_the_second_time_is_compiled_for_once() -> None:
    rng = np.random.default_rng(0)
    before = misses()
    for n in (20, 33, 70, 2, 64, 41, 5, 300):
        data = rng.standard_normal((n, 16)).astype(np.float32)
        got = attention(fg.Tensor(data)).numpy()
        scores = np.where(np.tri(n, dtype=bool), data @ data.T * np.float32(0.1), -np.inf)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        want = scores / scores.sum(axis=1, keepdims=True) @ data
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert misses() - before == 3


def test_a_growing_cache_is_compiled_for_in_its_first_steps_only() -> None:
    rng = np.random.default_rng(1)
    cache, compiled = fg.Tensor(rng.standard_normal((3, 8)).astype(np.float32)), []
    for _ in range(12):
        row = fg.Tensor(rng.standard_normal((1, 8)).astype(np.float32))
        before = misses()
        cache = fg.concat([cache, row]).realize()
        seen = fg.softmax(row @ cache.transpose(0, 1), axis=-1) @ cache
        assert seen.numpy().shape == (1, 8)
        compiled.append(misses() - before)
    assert not any(compiled[3:])


def test_numbers_that_follow_from_a_size_are_given_at_run_time() -> None:
    for n in (9, 14, 30, 55):
        x = fg.Tensor(np.arange(4.0 * n, dtype=np.float32).reshape(n, 4))
        got = (x.mean(axis=0) + n + fg.arange(n).sum()).numpy()
        want = np.arange(4.0 * n).reshape(n, 4).mean(axis=0) + n + n * (n - 1) / 2
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_orders_of_derivatives_do_not_vary_as_sizes_do(soon: None) -> None:
    x = np.linspace(0.5, 4.0, 25, dtype=np.float32)
    for order in range(1, 5):  # as a size, the order was a number without an end
        found = wrap(build.polygamma(order, fg.Tensor(x).node)).numpy()
        with np.errstate(all="ignore"):
            want = special.polygamma(order, x).astype(np.float32)
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_axes_of_windows_do_not_vary_as_sizes_do() -> None:
    z = np.arange(6.0**5, dtype=np.float32).reshape((6,) * 5)
    x = fg.Tensor(z)
    for axis in (2, 3, 4):
        want = np.lib.stride_tricks.sliding_window_view(z, 3, axis=axis).sum(axis=-1)
        np.testing.assert_allclose(fg.sliding_window_view(x, 3, axis=axis).sum(axis=-1), want)


def test_results_of_a_loop_that_are_read_apart_do_not_vary_as_sizes_do() -> None:
    rng = np.random.default_rng(0)
    rows, start, *weights = (
        rng.standard_normal(shape) * 0.3 for shape in ((5, 3, 4), (3, 4), (4, 4), (4, 4), (4, 4))
    )

    def loss(*args: Any) -> Any:
        rows, start, a, b, c = args
        end, given = fg.scan(lambda h, x: (fg.tanh(x @ a + h @ b) @ c, h @ a), start, rows)
        return end.sum() + (given * given).sum()

    tensors = [fg.Tensor(array) for array in (rows, start, *weights)]
    slopes = fg.grad(loss, argnums=(0, 1, 2, 3, 4))
    together = slopes(*tensors)
    fg.realize(*together)
    for apart, known in zip(slopes(*tensors), together, strict=True):
        np.testing.assert_allclose(apart.numpy(), known.numpy(), rtol=1e-12)


def test_dynamic_off_compiles_for_each_size() -> None:
    before = misses()
    with fg.config(dynamic=False):
        for n in range(11, 17):
            (fg.Tensor(np.ones((n, 3), np.float32)) * 3).realize()
    assert misses() - before == 6


def test_memory_follows_the_size() -> None:
    def peak(n: int) -> int:
        fg.empty_cache()
        before = fg.memory_stats(reset_peak=True)["used"]
        scores = fg.softmax(fg.Tensor(np.ones((n, 16), np.float32)) @ fg.ones((16, n)), axis=-1)
        (scores.sum(axis=0) + scores.max(axis=1)).realize()
        return fg.memory_stats()["peak"] - before

    for n in (200, 250, 300):
        peak(n)
    before, large, small = misses(), peak(4000), peak(64)
    assert misses() == before  # one plan for all of them
    assert large >= 4000 * 4 and small * 20 < large


# --- random programs -----------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second size is compiled for as one of many."""
    monkeypatch.setattr(shapes, "SEEN", 1)
    monkeypatch.setattr(JIT_SIZES, "_SEEN", 1)


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_random_programs_agree_with_the_reference_at_all_sizes(first: int, soon: None) -> None:
    with fg.config(search=False):  # folds are looked for in the long run
        assert not [p for seed in range(first, first + 25) if (p := problem(seed, FEW_SIZES, 2))]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 100))
def test_ten_thousand_random_programs_agree_with_the_reference(first: int, soon: None) -> None:
    assert not [p for seed in range(first, first + 100) if (p := problem(seed))]


def _no_remainders(trace: Trace, difference: Polynomial, sign: str) -> bool:
    return "%" not in str([*difference])


def _no_equality(trace: Trace, difference: Polynomial, sign: str) -> bool:
    return sign not in ("==", "!=") or "%" in str([*difference])


def _no_order(trace: Trace, difference: Polynomial, sign: str) -> bool:
    return sign in ("==", "!=")


@pytest.mark.parametrize("kept", [_no_remainders, _no_equality, _no_order])
def test_random_programs_find_a_missing_guard(
    kept: Any, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    note = Trace.note

    def noted(trace: Trace, difference: Polynomial, sign: str) -> None:
        if trace.ragged or kept(trace, difference, sign):  # kernels keep theirs
            note(trace, difference, sign)

    monkeypatch.setattr(Trace, "note", noted)
    assert _is_found()


def test_random_programs_find_a_missing_guard_for_1(
    monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    def values(self: Any, shapes: Any) -> Any:
        return self.fit.values(tuple([n for shape in shapes for n in shape]))

    monkeypatch.setattr(CallSizes, "values", values)
    assert _is_found(((9, 5), (34, 21), (1, 7)))


def _is_found(sizes: Any = FEW_SIZES) -> bool:
    """True if a jitted program that looks at sizes goes wrong."""
    programs = [(seed, Program(seed, 1)) for seed in range(300)]
    seeds = [s for s, p in programs if p.how == "jit" and p.names[0] in DECIDING]
    with fg.config(search=False):
        try:
            return any(problem(seed, sizes, 1) for seed in seeds)
        except AssertionError:  # a plan whose own guards are not those of the capture
            return True


def test_most_programs_have_one_plan_for_all_sizes(soon: None) -> None:
    clear_caches()
    for seed in range(6):
        assert not problem(seed, ((9, 5), (34, 21), (17, 12)))
    with_plans = [bool(s.members) for s in SHAPES()._values.values() if len(s.samples) > 1]
    assert all(with_plans) and with_plans


@pytest.mark.parametrize("is_checked", [True, False])
def test_an_expression_that_nobody_checks_is_caught(
    is_checked: bool, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    def run(n: int, m: int) -> bool:
        data = np.arange(n * m, dtype=np.float32).reshape(n, m)
        try:
            got = (fg.Tensor(data) * 2 + 1).numpy()
        except ValueError:  # memory of another size
            return False
        return bool((got == data * 2 + 1).all())

    clear_caches()
    if not is_checked:
        monkeypatch.setattr(Fit, "holds", lambda self, sizes, seen: min(self.values(sizes)) > 1)
    assert run(40, 41) and run(60, 61)  # the second size is the first and 1
    assert run(90, 30) is is_checked


def test_what_is_kept_of_sizes_says_why_there_is_another_plan(soon: None) -> None:
    clear_caches()
    for n, m in ((40, 41), (60, 61), (90, 30)):
        (fg.Tensor(np.ones((n, m), np.float32)) * 2 + 1).realize()
    (known,) = SHAPES()._values.values()
    assert len(known.members) == 2
    assert [len(member.fit.variables) for member in known.members] == [2, 1]


def test_programs_depend_on_their_seed_alone() -> None:
    assert str(Program(3)) == str(Program(3)) != str(Program(4))


def _plans(run: Callable[[int, int], Any], sizes: Sequence[tuple[int, int]]) -> int:
    """How often sizes were compiled for."""
    before = fg.cache_stats()["schedule"]["misses"]
    for n, m in sizes:
        run(n, m)
    return int(fg.cache_stats()["schedule"]["misses"] - before)


@pytest.mark.parametrize("steps", [["total", "padded", "norm", "norm"], ["twice"], ["norm"]])
def test_what_pays_at_some_sizes_is_no_guard(steps: list[str], soon: None) -> None:
    program = Program(1)
    program.dims, program.run = ["n"], chain([STEPS[name] for name in steps], False)
    sizes = (9, 5), (34, 21), (97, 3), (16, 16), (3, 7), (130, 48)
    assert _plans(lambda n, m: program.at(n, m), sizes) <= 3


def test_attention_that_learns_has_three_plans_for_batches_and_lengths(soon: None) -> None:
    rng, heads, width = np.random.default_rng(0), 2, 8
    mix = fg.Tensor(rng.standard_normal((16, 48), dtype=np.float32))

    def loss(mix: fg.Tensor, x: fg.Tensor, n: int, m: int) -> fg.Tensor:
        parts = (x @ mix).reshape(n, m, 3, heads, width)
        query, key, value = [parts[:, :, i].permute(0, 2, 1, 3) for i in range(3)]
        seen = fg.softmax(query @ key.permute(0, 1, 3, 2) * 0.3, axis=-1) @ value
        return (seen.permute(0, 2, 1, 3).reshape(n, m, 16) ** 2).mean()

    def step(n: int, m: int) -> None:
        x = rng.standard_normal((n, m, 16), dtype=np.float32)
        fg.realize(fg.grad(loss)(mix, fg.Tensor(x), n, m))

    assert _plans(step, ((4, 74), (3, 34), (3, 65), (9, 5), (2, 4), (10, 3), (6, 6))) <= 3


def test_a_capture_of_any_size_holds_no_graph_and_still_names_the_line() -> None:
    def function(x: fg.Tensor, i: fg.Tensor) -> fg.Tensor:
        y = x
        for _ in range(40):
            y = y * 2 - x
        return y[i] + 1

    step = fg.jit(function, dynamic={"x": {0: True}})
    one = fg.Tensor(np.array([1], np.int32))
    for count in (5, 3, 8):
        x = np.arange(count, dtype=np.float32)
        assert step(fg.Tensor(x), one).numpy().tolist() == [2.0]
    replay = step.captures[0].replay
    assert not any(isinstance(one, Node) for one in (*replay.roots, *replay.normal.nodes))
    with pytest.raises(BoundsError, match=r"test_automatic\.py"):
        step(fg.Tensor(x), fg.Tensor(np.array([9], np.int32))).numpy()
    with fg.config(check_nan=True), pytest.raises(NonFiniteError, match=r"test_automatic\.py"):
        step(fg.Tensor(np.full(4, np.inf, np.float32)), one).numpy()
