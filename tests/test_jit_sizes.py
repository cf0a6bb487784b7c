"""Sizes of arguments that change under `fg.jit`: one capture, with guards for what was decided."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import decode, encode, int32, int64
from fulgurite.core.symbolic.sym import Trace
from fulgurite.graph.ir.registry import REGISTRY
from fulgurite.runtime.realize import memory_node

pytestmark = pytest.mark.device("cpu")
SIZES = (7, 12, 30, 5, 64, 31, 2, 100)


@pytest.fixture(autouse=True)
def _native() -> Any:
    with fg.config(device="cpu"):
        yield


def rows(n: int, m: int = 3) -> Any:
    return fg.Tensor(np.arange(n * m, dtype=np.float32).reshape(n, m))


def agrees(f: Any, function: Any, sizes: Any = SIZES) -> bool:
    """True if a jitted function gives what the plain one gives."""
    for size in sizes:
        n, m = size if isinstance(size, tuple) else (size, 3)
        with fg.config(dynamic=False):
            want = np.asarray(function(rows(n, m)).numpy())
        got = np.asarray(f(rows(n, m)).numpy())
        if got.shape != want.shape or not np.allclose(got, want, rtol=1e-5, atol=1e-6):
            return False
    return True


FUNCTIONS = {
    "map": lambda x: fg.exp(x * 0.01) + 1,
    "mean": lambda x: x.mean(axis=0) / x.shape[0] + x.shape[0] ** 0.5,
    "positions": lambda x: x + fg.arange(x.shape[0])[:, None] * 2,
    "join": lambda x: fg.concat([x, x[:1], x[-1:]]).reshape(-1),
    "parts": lambda x: x[x.shape[0] // 2 :].sum(axis=0) + x[:-1].max(),
    "scores": lambda x: fg.softmax(x @ x.transpose(0, 1) * 0.001, axis=-1) @ x,
    "variance": lambda x: x.var(axis=0) + fg.std(x, axis=0),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_size_that_changes_for_the_second_time_is_captured_for_once(what: str) -> None:
    f = fg.jit(FUNCTIONS[what])
    assert agrees(f, FUNCTIONS[what]) and f.captured <= 4


def by_parity(x: Any) -> Any:
    return x.sum(axis=0) if x.shape[0] % 2 == 0 else x.max(axis=0)


def by_equality(x: Any) -> Any:
    return x + x.transpose(0, 1) if x.shape[0] == x.shape[1] else x * 2


def by_size(x: Any) -> Any:
    return x * 3 if x.shape[0] > 20 else x + 1


def by_steps(x: Any) -> Any:
    total = x[0]
    for i in range(1, x.shape[0]):
        total = total * 0.5 + x[i]
    return total


def by_table(x: Any) -> Any:
    return x * {7: 1.0, 12: 5.0, 30: 2.0}.get(x.shape[0], 0.5)


DECISIONS: dict[str, tuple[Any, Any]] = {
    "parity": (by_parity, (7, 12, 31, 30, 5, 64)),
    "equality": (by_equality, ((7, 4), (9, 5), (11, 6), (8, 8), (5, 7), (6, 6))),
    "order": (by_size, (7, 12, 30, 5, 64)),
    "a loop": (by_steps, (3, 4, 5, 6, 7)),
    "a table": (by_table, (7, 12, 9, 30, 10)),
    "one": (lambda x: x + x[:1].sum(axis=0), (5, 6, 7, 1, 8)),
}


@pytest.mark.parametrize("what", DECISIONS)
def test_what_a_size_decides_is_a_guard(what: str) -> None:
    function, sizes = DECISIONS[what]
    assert agrees(fg.jit(function), function, sizes)


@pytest.mark.parametrize("what", ["parity", "equality", "order", "a loop", "a table"])
def test_a_missing_guard_is_caught(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, sizes = DECISIONS[what]
    monkeypatch.setattr(Trace, "note", lambda self, difference, sign: None)
    with suppress(fg.errors.FulguriteError):  # shapes that do not fit
        assert not agrees(fg.jit(function), function, sizes)


def test_sizes_that_are_returned_are_those_of_the_call() -> None:
    f = fg.jit(lambda x: (x * 2, x.shape[0] + 1, x.shape))
    for n in (4, 5, 6, 9):
        y, count, shape = f(rows(n))
        assert (y.shape, count, shape) == ((n, 3), n + 1, (n, 3))
        assert type(count) is int and type(shape[0]) is int
    assert f.captured == 3


def test_dynamic_false_captures_each_size() -> None:
    f = fg.jit(lambda x: x + 1, dynamic=False)
    for n in (4, 5, 6, 9):
        f(rows(n))
    assert f.captured == 4


def test_the_log_says_which_guard_failed(caplog: pytest.LogCaptureFixture) -> None:
    f = fg.jit(by_size)
    with caplog.at_level(logging.INFO, "fulgurite.jit"):
        for n in (4, 5, 6, 40):
            f(rows(n))
    assert "its sizes are not 2 <= s0 <= 20" in caplog.text and f.captured == 4


def test_state_that_grows_is_captured_for_in_its_first_steps_only() -> None:
    def step(cache: Any, row: Any) -> Any:
        cache = fg.concat([cache, row])
        return cache, fg.softmax(row @ cache.transpose(0, 1), axis=-1) @ cache

    f, cache = fg.jit(step), rows(3)
    with fg.config(dynamic=False):
        known = rows(3)
    for i in range(10):
        cache, seen = f(cache, rows(1) * i)
        with fg.config(dynamic=False):
            known, want = step(known, rows(1) * i)
            np.testing.assert_allclose(seen.numpy(), want.numpy(), rtol=1e-5)
    assert f.captured == 3 and cache.shape == (13, 3)


def test_a_gradient_through_sizes_that_vary() -> None:
    def loss(x: Any) -> Any:
        return fg.grad(lambda y: (fg.softmax(y, axis=0) * y).mean())(x)

    assert agrees(fg.jit(loss), loss)


def test_an_index_outside_names_the_line() -> None:
    f = fg.jit(lambda x, i: x[i] * 2)
    for n in (4, 5, 6):
        f(rows(n), fg.Tensor([n - 1]))
    with pytest.raises(fg.errors.BoundsError, match="test_jit_sizes"):
        f(rows(9), fg.Tensor([9]))
    assert f.captured == 3


def test_sizes_that_pass_a_division_share_a_capture() -> None:
    def pairs(x: Any) -> Any:
        return x.reshape(2, x.shape[0] // 2, 3).sum(axis=0) * x.shape[0]

    f = fg.jit(pairs)
    assert agrees(f, pairs, (4, 8, 6, 20, 64, 10)) and f.captured == 3
    f = fg.jit(by_parity)
    assert agrees(f, by_parity, (4, 8, 6, 7, 20, 9, 64, 31)) and f.captured == 4


def put(cache: Any, at: Any, row: Any) -> Any:
    """A cache of two texts, of which one row of each is written."""
    at = (fg.arange(2) * (cache.shape[0] // 2) + at).contiguous()
    cache[at] = row
    return cache.reshape(2, -1, 3).sum(axis=1)


def address(x: Any) -> int:
    """Where a tensor's memory is; it is not held."""
    memory: Any = REGISTRY.memory(memory_node(x.entry.node))
    return int(memory.address)


def test_memory_that_is_assigned_is_written_in_place_at_every_size() -> None:
    f = fg.jit(put)
    for n in (8, 12, 20, 200, 6, 64):
        cache, want = rows(n), np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        cache.numpy()
        where = []
        for step in range(4):
            at, row = np.array([step % (n // 2), 1]), np.full((2, 3), -step, np.float32)
            want[at + np.array([0, n // 2])] = row
            got = f(cache, fg.Tensor(at), fg.Tensor(row)).numpy()
            np.testing.assert_array_equal(got, want.reshape(2, -1, 3).sum(axis=1))
            np.testing.assert_array_equal(cache.numpy(), want)
            where.append(address(cache))
        assert n < 20 or len(set(where[1:])) == 1
    assert f.captured == 3


def test_what_somebody_else_holds_is_not_written_over_at_any_size() -> None:
    f = fg.jit(put)
    for n in (8, 12, 20, 200):
        cache = rows(n)
        other, copy = cache.detach(), cache.numpy().copy()
        view = cache[1:]
        f(cache, fg.Tensor([0, 1]), fg.ones((2, 3)))
        np.testing.assert_array_equal(other.numpy(), copy)
        np.testing.assert_array_equal(view.numpy(), copy[1:])
        assert (cache.numpy()[0] == 1).all()
        held = cache.numpy()
        before = held.copy()
        f(cache, fg.Tensor([0, 1]), fg.zeros((2, 3)))
        np.testing.assert_array_equal(held, before)
        assert (cache.numpy()[0] == 0).all()


def test_an_index_outside_leaves_memory_as_it_was_at_every_size() -> None:
    f = fg.jit(put)
    for n in (8, 12, 20, 200):
        cache = rows(n)
        f(cache, fg.Tensor([0, 1]), fg.ones((2, 3)))
        before = cache.numpy().copy()
        with pytest.raises(fg.errors.BoundsError, match="test_jit_sizes"):
            f(cache, fg.Tensor([0, n]), fg.zeros((2, 3)))
        np.testing.assert_array_equal(cache.numpy(), before)


def test_axes_without_bounds_vary_from_the_first_call_on() -> None:
    def step(xs: Any, rows: int, at: int) -> Any:
        return sum([x.reshape(rows, x.shape[0] // rows, 2).sum(axis=1) for x in xs]) + at

    f = fg.jit(step, dynamic={"xs": {0: True}})
    before = fg.cache_stats()["schedule"]["misses"]
    for at, n in enumerate((4, 60, 22, 8, 600)):
        data = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        want = data.reshape(2, n // 2, 2).sum(axis=1) * 2 + at
        np.testing.assert_allclose(f([fg.Tensor(data)] * 2, 2, at).numpy(), want, rtol=1e-6)
    assert f.captured == 1 and fg.cache_stats()["schedule"]["misses"] - before <= 2
    assert f([fg.ones((2, 2))] * 2, 1, 0).tolist() == [[4, 4]]  # a number that was fixed


def test_axes_with_and_without_bounds_are_an_error() -> None:
    both = {"x": {0: fg.Var("n", 1, 8), 1: True}}
    with pytest.raises(fg.errors.ArgumentError, match="without one"):
        fg.jit(lambda x: x, dynamic=both)
    with pytest.raises(fg.errors.ArgumentError, match="no argument"):
        fg.jit(lambda x: x + 1, dynamic={"y": {0: True}})(fg.ones(3))


def test_sizes_that_begin_with_0_are_no_error() -> None:
    f = fg.jit(lambda x, y: fg.concat([x, y[:1]]) * 2)
    for a, b in ((0, 0), (0, 4), (7, 7), (5, 5), (1, 3), (31, 4), (0, 1)):
        x, y = np.ones((a, 6), np.float32), np.ones((b, 6), np.float32)
        want = np.concatenate([x, y[:1]]) * 2
        np.testing.assert_array_equal(f(fg.Tensor(x), fg.Tensor(y)).numpy(), want)


BODIES: dict[str, Any] = {
    "cond": lambda x: fg.cond(x.sum() > 40, lambda x: x * 2, lambda x: x - 1, x),
    "cond of a tensor around it": lambda x: fg.cond(x.sum() > 40, lambda: x * 2, lambda: x - 1),
    "carry of a scan": lambda x: fg.scan(lambda c, r: (c + r, None), x, fg.ones(4))[0],
    "scan that reads": lambda x: fg.scan(
        lambda c, r: (c + (x * r).sum(), None), fg.Tensor(0.0), fg.ones(4)
    )[0],
    "scan that counts": lambda x: fg.scan(
        lambda c, r: (c + x.shape[0], None), fg.Tensor(0), fg.arange(4)
    )[0],
    "while": lambda x: fg.while_loop(lambda c: c.min() < 9, lambda c: c + 1, x),
    "cond within a scan": lambda x: fg.scan(
        lambda c, r: (fg.cond(r > 1, lambda c: c + 1, lambda c: c * 2, c), None), x, fg.arange(4)
    )[0],
    "gradient": lambda x: fg.grad(
        lambda x: fg.scan(lambda c, r: (c * fg.tanh(x * r), None), x, fg.ones(3))[0].sum()
    )(x),
}


@pytest.mark.parametrize("what", BODIES)
def test_bodies_of_loops_and_choices_are_of_sizes_that_are_known(what: str) -> None:
    assert agrees(fg.jit(BODIES[what]), BODIES[what], (3, 4, 5, 9, 17, 2, 1, 40))


def test_a_scan_over_more_or_fewer_rows_is_captured_for_once() -> None:
    f = fg.jit(lambda x: fg.scan(lambda c, r: (c * 0.5 + r, c), fg.zeros(3), x)[0])
    assert agrees(f, lambda x: f.__wrapped__(x)) and f.captured <= 4


DRAWS: dict[str, Any] = {
    "normal": lambda x: fg.random.normal((x.shape[0],)),
    "two": lambda x: fg.random.normal((x.shape[0], 3)) + fg.random.uniform((x.shape[0], 1)),
    "dropout": lambda x: fg.dropout(x, 0.5, training=True),
    "permutation": lambda x: x[fg.random.permutation(x.shape[0])],
    "by parity": lambda x: fg.random.normal((x.shape[0] if x.shape[0] % 2 else 2,)),
    "none of 3": lambda x: fg.random.normal((abs(x.shape[0] - 3), 2)),
    "the size decides": lambda x: fg.random.normal((x.shape[0],)) * len(x),
    "a choice": lambda x: (
        fg.cond(x.sum() > 40, lambda x: x * 2, lambda x: x - 1, x) + fg.random.normal(x.shape)
    ),
}


@pytest.mark.parametrize("what", DRAWS)
def test_draws_are_those_of_the_plain_function_at_every_size(what: str) -> None:
    f, sizes = fg.jit(DRAWS[what]), (8, 6, 3, 9, 17, 2, 1, 40, 3, 5)
    fg.random.seed(5)
    with fg.config(dynamic=False):
        want = [DRAWS[what](rows(n)).numpy() for n in sizes]
    state = fg.random.get_state()
    fg.random.seed(5)
    got = [f(rows(n)).numpy() for n in sizes]
    assert [a.tolist() for a in got] == [a.tolist() for a in want]
    assert fg.random.get_state() == state


def test_a_function_that_raises_has_drawn_what_the_plain_one_has() -> None:
    def step(x: Any) -> Any:
        y = x + fg.random.normal(x.shape)
        if x.shape[0] == 9:
            raise ValueError("nine")
        return y

    states = []
    for function in (step, fg.jit(step)):
        fg.random.seed(5)
        for n in (3, 4, 5, 9, 30):
            with suppress(ValueError):
                function(rows(n)).numpy()
        states.append(fg.random.get_state())
    assert states[0] == states[1]


def test_what_cannot_be_made_again_is_of_the_sizes_of_the_call() -> None:
    f = fg.jit(lambda x: (x * 2, range(x.shape[0]), np.arange(x.shape[0])))  # of no known type
    for n in (3, 4, 5, 9, 2, 17):
        doubled, steps, places = f(rows(n))
        assert doubled.tolist() == (rows(n) * 2).tolist()
        assert steps == range(n) and places.tolist() == [*range(n)]


def test_a_function_that_asks_for_types_sees_ints() -> None:
    f = fg.jit(lambda x: x * 2 if type(x.shape[0]) is int else x)
    for n in (3, 4, 5, 9):
        assert f(rows(n)).tolist() == (rows(n) * 2).tolist()


def test_sizes_that_part_have_plans_of_their_own_on_disk(tmp_path: Path) -> None:
    f = fg.jit(lambda x, t: x / t.shape[0])  # of t nothing but its size is read
    with fg.config(disk_cache=True, cache_dir=str(tmp_path)):
        for n, k in ((5, 10), (9, 18), (17, 34), (33, 66), (12, 3), (8, 8), (9, 31)):
            np.testing.assert_allclose(f(fg.ones((n, 4)), fg.zeros(k)).numpy(), 1 / k, rtol=1e-6)
    assert f.captured <= 5


def test_a_number_that_a_size_gives_is_itself_whatever_is_taken_from_it() -> None:
    for ragged in (True, False):
        trace = Trace({"n": 9}, ragged)
        for size in (trace.variable("n") - 1, 1 - trace.variable("n"), trace.variable("n") * 2 - 3):
            for dtype in (int32, int64):
                assert decode(encode(size, dtype), dtype) - size == 0 and not trace.guards


def overwritten(c: Any, r: Any) -> Any:
    c = c * 1
    c[: r.shape[0]] = r
    c[-1] += 2.0
    return c


def assigned(c: Any, r: Any) -> Any:
    c[-1] += r[-1]
    return c.sum()


@pytest.mark.parametrize("function", [overwritten, assigned])
def test_parts_that_are_set_at_the_end_and_the_beginning(function: Any) -> None:
    f = fg.jit(function)
    for n, k in ((8, 3), (9, 4), (17, 5), (17, 17), (33, 1), (5, 5), (64, 2), (64, 63), (3, 2)):
        with fg.config(device="reference", dynamic=False):
            want = function(rows(n), rows(k) * -1).numpy()
        np.testing.assert_allclose(f(rows(n), rows(k) * -1).numpy(), want, rtol=1e-5)


def striding(x: Any) -> Any:
    y = x * 1
    y[::2] = -1.0
    y[::-3] += 5.0
    y[x.shape[0] // 2 :: 2] *= 2.0
    return y


PARTS: dict[str, tuple[Any, int]] = {  # and how many captures there are at most
    "steps": (lambda x: x[::3] * 2, 4),
    "steps from a place": (lambda x: x[x.shape[0] // 2 :: 2], 4),
    "steps to a place": (lambda x: x[1:-1:2], 5),
    "steps back": (lambda x: x[::-3] + x[::-3][:1], 5),
    "reversed": (lambda x: x[::-1], 4),
    "halves": (lambda x: fg.split(x, (x.shape[0] + 1) // 2)[-1], 5),
    "chunks": (lambda x: fg.chunk(x, 2)[0] * 2, 5),
    "steps that are set": (striding, 7),
    "three factors": (lambda x: fg.einsum("ij,ik,il->jkl", x, x[:, :2], x), 4),
}


@pytest.mark.parametrize("what", PARTS)
def test_parts_follow_from_sizes(what: str) -> None:
    function, most = PARTS[what]
    f = fg.jit(function)
    assert agrees(f, function, (7, 12, 30, 5, 64, 31, 2, 3, 100, 13))
    assert f.captured <= most


ASKING = {
    "a mask picks": lambda x: x[x > 0],
    "how many values": fg.nonzero,
    "values are repeated": lambda x: fg.repeat(x, fg.Tensor([1, 2, 3]), 0),
}


@pytest.mark.parametrize("text", ASKING)
def test_sizes_that_follow_from_values_are_an_error_that_says_so(text: str) -> None:
    with pytest.raises(fg.errors.JitError, match=f"{text}.*while the function is captured"):
        fg.jit(ASKING[text])(rows(3))


def test_the_truth_of_many_elements_is_an_error_that_says_so() -> None:
    with pytest.raises(fg.errors.ShapeError, match=r"the truth of 9 elements(?s:.*)fg.any"):
        bool(rows(3))
    with pytest.raises(fg.errors.ShapeError, match="the truth of 0 elements"):
        bool(rows(0))
    assert not fg.zeros((1, 1))
