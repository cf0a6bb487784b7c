"""Loops and choices against plain Python loops, on both devices; their gradients; their errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.control import LOOP
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.errors import FulguriteError
from fulgurite.runtime.control import BODIES
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.tensor import wrap
from tests.properties import kernels
from tests.threads import together

pytestmark = pytest.mark.device("cpu")

DEVICES: list[dict[str, Any]] = [
    {"device": "reference"},
    {"device": "cpu", "tier": "native"},
    {"device": "cpu", "tier": "auto"},
]


@pytest.fixture(autouse=True, params=DEVICES, ids=["reference", "native", "auto"])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test on every device."""
    with fg.config(**request.param, verify=True):
        yield


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def close(found: Any, expected: Any, rtol: float = 1e-9) -> None:
    array = found.numpy() if isinstance(found, fg.Tensor) else found
    wanted = expected.numpy() if isinstance(expected, fg.Tensor) else expected
    np.testing.assert_allclose(array, wanted, rtol=rtol, atol=1e-10)


def slope(function: Callable[[fg.Tensor], fg.Tensor], at: Array, step: float = 1e-5) -> Array:
    """Finite differences of a scalar function."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][place] -= step
        moved[1][place] += step
        low, high = (float(function(fg.Tensor(m))) for m in moved)
        found[place] = (high - low) / (2 * step)
    return found


# --- scan ----------------------------------------------------------------------------------------


@given(
    steps=st.integers(0, 6),
    shape=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    reverse=st.booleans(),
)
@kernels
def test_a_scan_is_a_python_loop(steps: int, shape: tuple[int, ...], reverse: bool) -> None:
    rows, start = numbers(steps, *shape), numbers(*shape, seed=1)
    last, given_ = fg.scan(
        lambda c, x: (c * 0.5 + x, c - x), fg.Tensor(start), fg.Tensor(rows), reverse=reverse
    )
    carry, expected = start, np.zeros((steps, *shape))
    for step in range(steps)[:: -1 if reverse else 1]:
        expected[step] = carry - rows[step]
        carry = carry * 0.5 + rows[step]
    close(last, carry)
    close(given_, expected)


class State(NamedTuple):
    position: fg.Tensor
    rest: dict[str, Any]


def test_carries_rows_and_results_are_trees() -> None:
    start = State(fg.Tensor(1.0), {"speed": [fg.Tensor([1.0, 2.0])], "none": None})
    rows = {"a": fg.Tensor([1.0, 2.0, 3.0]), "b": (fg.Tensor([[1, 2], [3, 4], [5, 6]]),)}

    def body(state: State, row: Any) -> tuple[State, Any]:
        assert state.rest["none"] is None and row["a"].shape == () and row["b"][0].shape == (2,)
        speed = state.rest["speed"][0] * row["a"] + row["b"][0]
        after = {"none": None, "speed": [speed]}  # the order of keys is free
        return State(state.position + speed.sum(), after), (row["a"], None, [speed])

    last, (a, nothing, speeds) = fg.scan(body, start, rows)
    assert isinstance(last, State) and nothing is None
    assert a.tolist() == [1.0, 2.0, 3.0]
    assert speeds[0].tolist() == [[2.0, 4.0], [7.0, 12.0], [26.0, 42.0]]
    assert last.rest["speed"][0].tolist() == [26.0, 42.0] and last.position.item() == 94.0


def test_a_scan_without_rows_has_a_length() -> None:
    powers = fg.scan(lambda c, _: (c * 2, c), fg.Tensor(1), length=5)[1]
    assert powers.tolist() == [1, 2, 4, 8, 16]
    assert fg.scan(lambda c, _: (c + 1, None), 0, length=0)[0].item() == 0
    assert fg.scan(lambda c, _: (c + 1, None), 0, length=1)[0].item() == 1


def test_a_loop_is_lazy_and_part_of_a_larger_graph() -> None:
    x = fg.Tensor(numbers(4, 3))
    sums = fg.scan(lambda c, r: (c + r, c + r), fg.zeros((3,), fg.float64), x * 2)[1]
    assert not sums.is_realized
    close((sums.mT @ fg.exp(x)).sum(), (np.cumsum(x.numpy() * 2, 0).T @ np.exp(x.numpy())).sum())


def test_rows_that_were_moved_are_read_in_their_new_order() -> None:
    x = numbers(3, 4, 2)
    moved = fg.flip(fg.permute_dims(fg.Tensor(x), (1, 0, 2)), 0)
    found = fg.scan(lambda c, r: (c * 2 + r, c), fg.zeros((3, 2), fg.float64), moved)[0]
    carry = np.zeros((3, 2))
    for row in x.transpose(1, 0, 2)[::-1]:
        carry = carry * 2 + row
    close(found, carry)


def test_carries_may_change_places_and_be_results_too() -> None:
    (a, b), (c, d, e) = fg.scan(
        lambda s, x: ((s[1], s[0]), (s[0], s[0], x)), (fg.Tensor(1), fg.Tensor(2)), fg.arange(3)
    )
    assert (a.item(), b.item()) == (2, 1)
    assert c.tolist() == d.tolist() == [1, 2, 1] and e.tolist() == [0, 1, 2]


def test_a_step_may_need_no_carry_and_give_constants() -> None:
    carry, squares = fg.scan(lambda c, x: ((), (x * x, 7)), (), fg.Tensor([1, 2, 3]))
    assert carry == () and squares[0].tolist() == [1, 4, 9] and squares[1].tolist() == [7, 7, 7]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "uint64", "bool"])
def test_carries_of_any_dtype(dtype: str) -> None:
    x = fg.Tensor([1, 0, 1, 1]).astype(dtype)
    last, given_ = fg.scan(lambda c, r: (c * r, c + r), fg.Tensor(1).astype(dtype), x)
    assert last.dtype is x.dtype and last.item() == 0
    assert [float(v) for v in given_.tolist()] == (
        [1, 1, 1, 1] if dtype == "bool" else [2, 1, 1, 1]
    )


def test_a_carry_of_which_a_step_changes_a_row_stays_where_it_is() -> None:
    rows, start = numbers(5, 3), numbers(2000, 3, seed=1)

    def step(carry: Any, x: Any) -> Any:
        cache, place, same = carry
        before = cache[place] * 1
        cache[place] = x
        return (cache, place + 1, same), before

    given = fg.Tensor(start)
    (cache, place, same), old = fg.scan(step, (given, 7, given * 2), fg.Tensor(rows))
    (kernel,) = [k for k in fg.explain(cache, old).kernels if k.kind == "loop"]
    (writer,) = [k for k in kernel.inner if k.kind == "assign"]
    assert writer.bytes < 100 and {k.kind for k in kernel.inner} == {"assign", "map"}
    wanted, seen = start.copy(), np.zeros_like(rows)
    for i, row in enumerate(rows):
        seen[i] = wanted[7 + i]
        wanted[7 + i] = row
    fg.realize(cache, old, place, same)
    close(cache, wanted)
    close(old, seen)
    close(same, start * 2)
    close(given, start)
    assert place.item() == 12

    def loss(x: fg.Tensor) -> Any:
        return (fg.scan(step, (given, 7, given), x)[0][0] ** 2).sum()

    close(fg.grad(loss)(fg.Tensor(rows)), slope(loss, rows), rtol=1e-5)


@given(st.integers(0, 10_000))
@kernels
def test_carries_that_read_each_other_are_right_whatever_is_written_over(seed: int) -> None:
    pick = np.random.default_rng(seed)
    kinds = pick.integers(0, 6, 4)
    places = pick.integers(0, 4, (4, 2))
    which = pick.integers(0, 2, (4, 2))

    def step(carry: Any, x: Any) -> Any:
        now = [carry[0] * 1, carry[1]]
        for kind, (a, b), (i, j) in zip(kinds, places, which, strict=True):
            if kind == 0:
                now[i][a] = now[j][b]
            elif kind == 1:
                now[i][a:] = now[j][: 4 - a]
            elif kind == 2:
                now[i] = now[i] * 0.5 + now[j]
            elif kind == 3:
                now[i] = now[j][::-1] + x
            elif kind == 4:
                now[i], now[j] = now[j], now[i]
            else:
                now[i] = now[i] - now[j].sum(0) / 8
        return tuple(now), now[0] + now[1]

    rows, start = numbers(3, 2, seed=seed), numbers(2, 4, 2, seed=seed + 1)
    found, sums = fg.scan(step, (fg.Tensor(start[0]), fg.Tensor(start[1])), fg.Tensor(rows))
    carry: Any = (fg.Tensor(start[0]), fg.Tensor(start[1]))
    for i in range(3):
        carry, total = step((carry[0] * 1, carry[1] * 1), fg.Tensor(rows)[i])
        close(sums[i], total)
    for a, b in zip(found, carry, strict=True):
        close(a, b)


# --- what a body reads from around it ------------------------------------------------------------


def test_closed_over_tensors_become_inputs() -> None:
    weight, bias = fg.Tensor(numbers(3, 3)), fg.Tensor(numbers(3, seed=1))
    pending = bias * 2
    last = fg.scan(lambda h, _: (fg.tanh(h @ weight + pending), None), bias, length=4)[0]
    h = bias.numpy()
    for _ in range(4):
        h = np.tanh(h @ weight.numpy() + 2 * bias.numpy())
    close(last, h)


def counted(x: fg.Tensor, calls: list[int]) -> Any:
    """x through a host function that counts its calls."""

    def call(a: Array) -> Array:
        calls.append(1)
        return a + 0

    return wrap(custom(HostFunction("tests.counted", call), (x.node,), x.node.shape, x.dtype))


def test_what_stays_the_same_is_computed_once() -> None:
    calls: list[int] = []
    before = counted(fg.Tensor(2.0), calls)
    last = fg.scan(lambda c, _: (c + before, None), fg.Tensor(0.0), length=5)[0]
    assert last.item() == 10.0 and len(calls) == 1


def test_what_a_body_takes_without_its_gradient_stays_without() -> None:
    w = fg.Tensor([2.0, 3.0]).requires_grad_()
    with fg.no_grad():
        last = fg.scan(lambda c, _: (c * w, None), fg.Tensor([1.0, 1.0]), length=3)[0]
    assert not last.requires_grad and not last.node.watched and last.tolist() == [8.0, 27.0]


def test_a_host_function_inside_a_body_is_called_in_every_step() -> None:
    calls: list[int] = []
    x = fg.Tensor(2.0)
    last = fg.scan(lambda c, _: (c + counted(x, calls), None), fg.Tensor(0.0), length=5)[0]
    assert last.item() == 10.0 and len(calls) == 5


def test_equal_loops_are_one_node_whatever_function_made_them() -> None:
    x = fg.Tensor([1.0, 2.0])
    a, b = (fg.scan(lambda c, r: (c + r, None), 0.0, x)[0] for _ in range(2))
    assert a.node is b.node and a.node.op is LOOP


def test_a_step_of_training_is_found_again() -> None:
    def step(w: fg.Tensor, x: fg.Tensor) -> Any:
        return fg.grad(lambda w: fg.scan(lambda c, r: (fg.sin(c * w + r), None), w, x)[0])(w)

    w = step(fg.Tensor(0.3), fg.Tensor([1.0, 2.0])).realize()
    before = fg.cache_stats()["schedule"]["misses"], BODIES().stats.misses
    for seed in range(3):
        w = step(w, fg.Tensor(numbers(2, seed=seed).astype(np.float32))).realize()
    after = fg.cache_stats()["schedule"]["misses"], BODIES().stats.misses
    assert after[0] - before[0] <= 1  # the first w was a constant
    assert after[1] == before[1]


# --- one compile ---------------------------------------------------------------------------------


def test_nodes_and_compiles_do_not_depend_on_the_length() -> None:
    def loss(w: fg.Tensor, steps: int) -> Any:
        return fg.scan(lambda c, x: (fg.tanh(c @ w + x), c), fg.ones((2, 2)), length=None,
                       xs=fg.ones((steps, 2, 2)))[1].sum()  # fmt: skip

    w = fg.Tensor(numbers(2, 2).astype(np.float32))
    sizes, bodies = [], []
    for steps in (3, 30, 3000):
        slopes = fg.grad(loss)(w, steps)
        sizes.append(len(toposort([slopes.node])))
        with fg.config(tier="native"):
            before = BODIES().stats.misses
            slopes.realize()
            bodies.append(BODIES().stats.misses - before)
    assert len(set(sizes)) == 1 and sizes[0] < 60
    assert bodies[1:] == [0, 0]  # found as long as the first is alive


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_number_of_rows_may_be_a_variable(steps: int) -> None:
    n = fg.Var("steps_of_scan", 0, 8)
    x = fg.Tensor(numbers(8, 3))
    size = n.bind(steps)
    last, sums = fg.scan(lambda c, r: (c + r, c + r), fg.zeros((3,), fg.float64), x[:size])
    close(last, x.numpy()[:steps].sum(0))
    close(sums.sum(), np.cumsum(x.numpy()[:steps], 0).sum())


def test_lengths_that_vary_share_one_plan() -> None:
    n = fg.Var("length_of_scan", 0, 9)

    def power(steps: int) -> Any:
        return fg.scan(lambda c, _: (c * 3, None), fg.Tensor([1, 2]), length=n.bind(steps))[0]

    with fg.config(tier="native"):
        assert power(2).tolist() == [9, 18]
        before = fg.cache_stats()["schedule"]["misses"]
        assert power(0).tolist() == [1, 2] and power(4).tolist() == [81, 162]
        assert fg.cache_stats()["schedule"]["misses"] == before


def test_a_schedule_with_a_loop_runs_again_on_what_its_inputs_hold_then() -> None:
    array = np.array([1.0, 2.0, 3.0])
    total = fg.scan(lambda c, x: (c + x * x, None), fg.Tensor(0.0, "float64"), fg.from_numpy(array))
    plan = fg.schedule(total[0])
    assert [item.kernel.kind for item in plan.items] == ["loop"]
    assert plan.run()[0].item() == 14.0
    array[0] = 10.0
    assert plan.run()[0].item() == 113.0


def test_a_loop_is_explained_with_the_kernels_of_its_body() -> None:
    w = fg.Tensor(numbers(3, 3))
    last = fg.scan(lambda c, x: (c @ w + x, None), fg.Tensor(numbers(2, 3)),
                   fg.Tensor(numbers(5, 2, 3)))[0]  # fmt: skip
    (report,) = fg.explain(last).kernels
    assert report.kind == "loop" and __file__ in report.lines[0]
    assert report.flops == 5 * sum(kernel.flops for kernel in report.inner) > 0
    assert "step 1." in str(report)


def test_a_plan_with_a_loop_survives_the_disk(tmp_path: Path) -> None:
    def value(scale: float) -> float:
        x = fg.Tensor(np.linspace(0, 1, 7).astype(np.float32))
        got = fg.scan(lambda c, r: (fg.sin(c * scale) + r, None), fg.Tensor(0.5), x)[0]
        return float(got.item())

    expected = value(2.0), value(3.0)
    with fg.config(disk_cache=True, cache_dir=str(tmp_path), tier="native"):
        for _ in range(2):
            fg.clear_caches()
            assert np.allclose((value(2.0), value(3.0)), expected, rtol=1e-5)


def test_poisoned_memory_changes_nothing() -> None:
    x = fg.Tensor(numbers(6, 4))

    def loss(x: fg.Tensor) -> Any:
        return (fg.scan(lambda c, r: (fg.sin(c + r), c * r), x[0], x)[1] ** 2).sum()

    expected = fg.grad(loss)(x).numpy()
    with fg.config(poison=True):
        close(fg.grad(loss)(fg.Tensor(x.numpy())), expected)


def test_threads_run_one_loop_at_the_same_time() -> None:
    def run(seed: int) -> None:
        x = numbers(50, 3, seed=seed)
        for _ in range(5):
            found = fg.scan(lambda c, r: (c * 0.9 + r, None), fg.Tensor(x[0]), fg.Tensor(x))[0]
            carry = x[0]
            for row in x:
                carry = carry * 0.9 + row
            close(found, carry)

    together(4, run)


# --- gradients -----------------------------------------------------------------------------------


def rolled(w: fg.Tensor, x: fg.Tensor, reverse: bool = False) -> Any:
    last, given_ = fg.scan(
        lambda h, r: (fg.tanh(h @ w + r), h * r), fg.ones((3,), fg.float64), x, reverse=reverse
    )
    return last.sum() + (given_**2).sum()


def unrolled(w: fg.Tensor, x: fg.Tensor, reverse: bool = False) -> Any:
    h, total = fg.ones((3,), fg.float64), fg.Tensor(0.0, "float64")
    for row in list(x)[:: -1 if reverse else 1]:
        total = total + ((h * row) ** 2).sum()
        h = fg.tanh(h @ w + row)
    return h.sum() + total


@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_a_scan_is_that_of_the_unrolled_loop(reverse: bool) -> None:
    w, x = fg.Tensor(numbers(3, 3)), fg.Tensor(numbers(4, 3, seed=1))
    found = fg.value_and_grad(rolled, (0, 1))(w, x, reverse)
    expected = fg.value_and_grad(unrolled, (0, 1))(w, x, reverse)
    close(found[0], expected[0])
    for a, b in zip(found[1], expected[1], strict=True):
        close(a, b)
    close(found[1][0], slope(lambda w: rolled(w, x, reverse), w.numpy()), rtol=1e-5)


def test_second_derivatives_of_a_scan() -> None:
    w, x = fg.Tensor(numbers(3, 3)), fg.Tensor(numbers(3, 3, seed=1))

    def bend(f: Callable[..., fg.Tensor]) -> Any:
        return fg.grad(lambda w: (fg.grad(f, 0)(w, x) ** 2).sum())(w)

    close(bend(rolled), bend(unrolled))


def test_forward_derivatives_and_batches_of_a_scan() -> None:
    w, x = fg.Tensor(numbers(3, 3)), fg.Tensor(numbers(5, 2, 3, seed=1))
    close(fg.vmap(rolled, in_axes=(None, 0))(w, x), fg.vmap(unrolled, in_axes=(None, 0))(w, x))
    close(
        fg.vmap(fg.grad(rolled), in_axes=(None, 0))(w, x),
        fg.vmap(fg.grad(unrolled), in_axes=(None, 0))(w, x),
    )
    for f in (rolled, fg.grad(rolled)):
        plain = unrolled if f is rolled else fg.grad(unrolled)
        found, expected = (fg.jvp(g, (w, x[0]), (w * 2, x[1])) for g in (f, plain))
        close(found[1], expected[1])


def test_the_gradient_of_one_row_of_ints_and_one_of_floats() -> None:
    table, places = fg.Tensor(numbers(4)), fg.Tensor([3, 1, 3])

    def loss(table: fg.Tensor) -> Any:
        return fg.scan(lambda s, i: ((s[0] + fg.take(table, i), s[1] + 1), None), (0.0, 0), places)[
            0
        ][0]

    table32 = table.astype("float32")
    close(fg.grad(loss)(table32), [0, 1, 0, 2])


def test_gradients_stop_where_a_body_says_so() -> None:
    def stopped(x: fg.Tensor) -> Any:
        return fg.scan(lambda c, r: (c + fg.stop_gradient(r) * r, None), 0.0, x)[0]

    def unrecorded(c: fg.Tensor, r: fg.Tensor) -> tuple[fg.Tensor, None]:
        with fg.no_grad():
            known = r * r
        return c + known * r, None

    x = fg.Tensor([1.0, 2.0])
    assert fg.grad(stopped)(x).tolist() == [1.0, 2.0]
    assert fg.grad(lambda x: fg.scan(unrecorded, 0.0, x)[0])(x).tolist() == [1.0, 4.0]


def test_backward_reaches_leaves_through_a_loop() -> None:
    w = fg.Tensor([2.0, 3.0], requires_grad=True)
    fg.scan(lambda c, _: (c * w, None), fg.ones((2,)), length=3)[0].sum().backward()
    assert w.grad is not None and w.grad.tolist() == [12.0, 27.0]


def test_a_gradient_inside_a_body() -> None:
    def descend(x: fg.Tensor, _: None) -> tuple[fg.Tensor, None]:
        return x - 0.1 * fg.grad(lambda v: ((v - 3) ** 2).sum())(x), None

    found = fg.scan(descend, fg.Tensor([0.0, 1.0]), length=50)[0]
    close(found, [3.0, 3.0], rtol=1e-4)
    again = fg.grad(lambda x: fg.scan(descend, x, length=3)[0].sum())(fg.Tensor([0.0, 1.0]))
    close(again, [0.8**3] * 2, rtol=1e-5)


def test_a_body_with_checkpoints_and_gradient_rules_of_its_own() -> None:
    w, x = fg.Tensor(numbers(3, 3)), fg.Tensor(numbers(4, 3, seed=1))

    @fg.custom_vjp
    def square(v: Any) -> Any:
        return v * v

    square.defvjp(lambda v: (v * v, v), lambda v, g: (g * v * 2,))

    def loss(around: Callable[[Any], Any], squared: Any) -> Callable[[fg.Tensor], Any]:
        cell = around(lambda h, r: fg.tanh(fg.sin(h @ w) + squared(r)))
        return lambda x: fg.scan(lambda h, r: (cell(h, r), h * r), x[0], x)[1].sum()

    expected = fg.grad(loss(lambda f: f, fg.square))(x)
    close(fg.grad(loss(fg.checkpoint, square))(x), expected)
    close(fg.grad(fg.checkpoint(loss(lambda f: f, square)))(x), expected)


def loops_under(node: Node) -> list[Node]:
    return [n for n in toposort([node]) if n.op is LOOP]


def test_the_gradient_keeps_the_carries_that_it_needs_and_no_more() -> None:
    x = fg.Tensor(numbers(5, 2))
    linear = fg.grad(lambda x: fg.scan(lambda c, r: (c * 0.5 + r, None), x[0] * 0, x)[0].sum())(x)
    assert {n.arg[5] for n in loops_under(linear.node)} == {True}  # it needs no forward loop

    def pair(s: tuple[fg.Tensor, fg.Tensor], r: fg.Tensor) -> tuple[Any, None]:
        return (s[0] * r, s[1] + r), None

    mixed = fg.grad(lambda x: fg.scan(pair, (x[0], x[1]), x)[0][0].sum())(x)
    trails = {n.arg[0] for n in loops_under(mixed.node) if not n.arg[5]}
    assert trails == {2}  # of two roots and two carries: the trail of the first carry


@pytest.mark.parametrize(("rows", "sums"), [(2, 0), (9, 1)])
def test_a_weights_gradient_by_few_rows_is_one_product_after_the_loop(rows: int, sums: int) -> None:
    def loss(w: fg.Tensor, x: fg.Tensor, steps: bool = False) -> Any:
        h, total = x[0] * 0, fg.Tensor(0.0, "float64")
        for row in x if steps else ():
            h = fg.tanh(row + h @ w.T)
            total = total + (h * h).sum()
        if steps:
            return total

        def step(h: fg.Tensor, row: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
            after = fg.tanh(row + h @ w.T)
            return after, after

        return (fg.scan(step, h, x)[1] ** 2).sum()

    w, x = fg.Tensor(numbers(4, 4)), fg.Tensor(numbers(5, rows, 4, seed=1))
    found, expected = fg.grad(loss, (0, 1))(w, x), fg.grad(loss, (0, 1))(w, x, True)
    back = [n for part in found for n in loops_under(part.node) if n.arg[5]]
    assert {n.arg[2] for n in back} == {1 + sums}  # carries: h's gradient, and perhaps w's
    for a, b in zip(found, expected, strict=True):
        close(a, b)


def test_memory_grows_by_the_carries_alone() -> None:
    def bytes_for(steps: int) -> int:
        w, x = fg.Tensor(numbers(8, 8)), fg.Tensor(numbers(steps, 8))

        def loss(w: fg.Tensor) -> Any:
            return fg.scan(
                lambda h, r: (fg.tanh(fg.sin(h @ w) + fg.cos(h * r)), None),
                fg.zeros((8,), fg.float64), x,
            )[0].sum()  # fmt: skip

        return fg.schedule(fg.grad(loss)(w)).compile().layout.arena_bytes

    row = 8 * 8
    assert bytes_for(300) - bytes_for(100) == 200 * row


def lstm(size: int, w: fg.Tensor, u: fg.Tensor, b: fg.Tensor) -> Callable[..., Any]:
    def cell(carry: tuple[fg.Tensor, fg.Tensor], x: fg.Tensor) -> Any:
        h, c = carry
        z = x @ w + h @ u + b
        i, f, g, o = (z[:, k * size : (k + 1) * size] for k in range(4))
        c = fg.sigmoid(f) * c + fg.sigmoid(i) * fg.tanh(g)
        h = fg.sigmoid(o) * fg.tanh(c)
        return (h, c), h

    return cell


LONG = (1000, 2, 3)  # steps, batch, size


def lstm_start() -> tuple[fg.Tensor, fg.Tensor]:
    return fg.zeros(LONG[1:], fg.float64), fg.zeros(LONG[1:], fg.float64)


def lstm_tensors() -> list[fg.Tensor]:
    size = LONG[2]
    parts = [(size, 4 * size), (size, 4 * size), (4 * size,), LONG]
    return [fg.Tensor(0.5 * numbers(*s, seed=i)).realize() for i, s in enumerate(parts)]


@functools.cache
def unrolled_gradients() -> list[Array]:
    """Of a loss over a thousand steps that are written out, as the reference evaluator has them."""

    def loss(w: fg.Tensor, u: fg.Tensor, b: fg.Tensor, x: fg.Tensor) -> Any:
        cell, carry, total = lstm(LONG[2], w, u, b), lstm_start(), fg.Tensor(0.0, "float64")
        for step in range(LONG[0]):
            carry, y = cell(carry, x[step])
            total = total + (y * y).sum()
        return total / math.prod(LONG) + carry[1].sum()

    tensors = lstm_tensors()
    expected = fg.grad(loss, (0, 1, 2))(*tensors)
    return evaluate([e.node for e in expected], {t.node: t.numpy() for t in tensors})


def test_an_lstm_of_a_thousand_steps_has_the_gradient_of_the_unrolled_one() -> None:
    def loss(w: fg.Tensor, u: fg.Tensor, b: fg.Tensor, x: fg.Tensor) -> Any:
        (_, c), ys = fg.scan(lstm(LONG[2], w, u, b), lstm_start(), x)
        return (ys * ys).mean() + c.sum()

    with fg.config(verify=False):
        found = fg.realize(*fg.grad(loss, (0, 1, 2, 3))(*lstm_tensors()))
    for a, b in zip(found, unrolled_gradients(), strict=False):
        close(a, b, rtol=1e-8)
    assert found[3].shape == LONG


def test_a_counted_loop_is_a_python_loop() -> None:
    for lower, upper in ((0, 5), (3, 7), (-2, 1), (4, 4), (5, 2)):
        want = 1
        for i in range(lower, upper):
            want = want * 3 + i
        body = lambda i, total: total * 3 + i  # noqa: E731
        assert fg.fori_loop(lower, upper, body, fg.Tensor(1)).item() == want
        ends = fg.Tensor(lower), fg.Tensor(upper)
        assert fg.fori_loop(*ends, body, fg.Tensor(1)).item() == want
        assert fg.fori_loop(lower, ends[1], body, fg.Tensor(1)).item() == want
        captured = fg.jit(lambda n, lower=lower, body=body: fg.fori_loop(lower, n, body, 1))
        assert captured(ends[1]).item() == want


def test_a_counted_loop_carries_trees_and_has_derivatives() -> None:
    rows = fg.Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    def body(i: fg.Tensor, carry: dict[str, fg.Tensor]) -> dict[str, fg.Tensor]:
        return {"sum": carry["sum"] + rows[i], "last": rows[i]}

    start = {"sum": fg.zeros(2), "last": fg.zeros(2)}
    found = fg.fori_loop(0, 3, body, start)
    assert found["sum"].tolist() == [9.0, 12.0] and found["last"].tolist() == [5.0, 6.0]
    power = lambda x: fg.fori_loop(0, 3, lambda i, y: y * x, x)  # noqa: E731
    assert fg.grad(power)(fg.Tensor(2.0)).item() == 32.0
    assert fg.vmap(power)(fg.Tensor([1.0, 2.0])).tolist() == [1.0, 16.0]
    n = fg.Var("n", 0, 10)
    assert fg.fori_loop(0, n.bind(4), lambda i, total: total + i, fg.Tensor(0)).item() == 6


def test_bounds_that_are_no_whole_numbers_are_errors() -> None:
    for bad in (1.5, "3", fg.Tensor(1.0), fg.Tensor([1, 2])):
        with pytest.raises(FulguriteError, match="whole number"):
            fg.fori_loop(0, bad, lambda i, v: v, 0)
