"""Loops that end by themselves, choices, loops in loops, and what bodies may not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.ops.control import COND
from fulgurite.errors import (
    ArgumentError,
    BoundsError,
    DataError,
    DTypeError,
    FulguriteError,
    GradientError,
    ShapeError,
    VariableError,
)
from tests.control.test_control import DEVICES, close, counted, numbers, slope
from tests.properties import kernels

pytestmark = pytest.mark.device("cpu")


@pytest.fixture(autouse=True, params=DEVICES, ids=["reference", "native", "auto"])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test on every device."""
    with fg.config(**request.param, verify=True):
        yield


# --- while ---------------------------------------------------------------------------------------


@given(start=st.integers(1, 200), most=st.one_of(st.none(), st.integers(1, 40)))
@kernels
def test_a_while_loop_is_a_python_loop(start: int, most: int | None) -> None:
    def body(carry: tuple[fg.Tensor, fg.Tensor]) -> tuple[fg.Tensor, fg.Tensor]:
        n, steps = carry
        return fg.where((n % 2).eq(0), n // 2, 3 * n + 1), steps + 1

    found = fg.while_loop(lambda c: c[0] > 1, body, (fg.Tensor(start), fg.Tensor(0)), most)
    n, steps = start, 0
    while n > 1 and (most is None or steps < most):
        n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
    assert (found[0].item(), found[1].item()) == (n, steps)


def test_a_while_loop_of_no_steps_gives_what_it_was_given() -> None:
    x = fg.Tensor([5.0, 6.0])
    found = fg.while_loop(lambda v: v.sum() < 0, lambda v: v * 2, x, 4)
    assert found.tolist() == [5.0, 6.0]
    slopes = fg.grad(lambda v: fg.while_loop(lambda v: v.sum() < 0, lambda v: v * v, v, 4).sum())
    assert slopes(x).tolist() == [1.0, 1.0]


def root_of(a: fg.Tensor, most: int | None = 30) -> Any:
    """The square root by Newton's method, until it no longer changes much."""

    def better(pair: tuple[fg.Tensor, fg.Tensor]) -> tuple[fg.Tensor, fg.Tensor]:
        x, _ = pair
        return (x + a / x) / 2, x

    def differs(pair: tuple[fg.Tensor, fg.Tensor]) -> Any:
        return fg.any(fg.abs(pair[0] - pair[1]) > 1e-12)

    return fg.while_loop(differs, better, (a, a + 1), most)[0]


def test_the_gradient_of_a_while_loop_with_a_bound() -> None:
    a = fg.Tensor([2.0, 9.0, 0.5], "float64")
    close(root_of(a), np.sqrt(a.numpy()))
    close(fg.grad(lambda a: root_of(a).sum())(a), 0.5 / np.sqrt(a.numpy()), rtol=1e-7)
    close(fg.jvp(root_of, (a,), (a,))[1], 0.5 * np.sqrt(a.numpy()), rtol=1e-7)
    twice = fg.grad(lambda a: fg.grad(lambda a: root_of(a).sum())(a).sum())(a)
    close(twice, -0.25 * a.numpy() ** -1.5, rtol=1e-6)


def test_the_bound_ends_a_loop_and_its_gradient() -> None:
    def power(x: fg.Tensor) -> Any:
        return fg.while_loop(lambda v: v > 0, lambda v: v * x, x, 3)

    x = fg.Tensor(2.0)
    assert power(x).item() == 16.0 and fg.grad(power)(x).item() == 32.0


def test_a_loop_without_a_bound_has_no_gradient_and_says_where_it_is() -> None:
    def f(x: fg.Tensor) -> Any:
        return fg.while_loop(lambda v: v < 9, lambda v: v * x, x)  # HERE

    assert f(fg.Tensor(2.0)).item() == 16.0
    with pytest.raises(GradientError, match="max_steps") as caught:
        fg.grad(f)(fg.Tensor(2.0))
    check_line(caught.value, "# HERE")


def check_line(error: FulguriteError, mark: str) -> None:
    """The error names the line of this file that has the mark."""
    with open(__file__, encoding="utf-8") as file:
        lines = [n for n, line in enumerate(file, start=1) if line.rstrip().endswith(mark)]
    assert [f"{__file__}:{line}" in str(error) for line in lines] == [True], str(error)


# --- choices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [True, False])
def test_only_the_chosen_branch_runs(chosen: bool) -> None:
    calls: dict[str, list[int]] = {"then": [], "other": []}
    x, pred = fg.Tensor([1.0, 2.0]), fg.Tensor([1.0 if chosen else -1.0]).sum() > 0
    found = fg.cond(
        pred, lambda v: counted(v, calls["then"]) * 2, lambda v: counted(v, calls["other"]) * 3, x
    )
    assert not found.is_realized and not calls["then"] and not calls["other"]
    assert found.tolist() == ([2.0, 4.0] if chosen else [3.0, 6.0])
    assert [len(calls["then"]), len(calls["other"])] == ([1, 0] if chosen else [0, 1])


def test_what_a_branch_computes_from_closed_over_tensors_is_its_own() -> None:
    calls: list[int] = []
    x = fg.Tensor([1.0, 2.0])
    pred = x.sum() < 0
    for _ in range(2):  # the second time equal nodes may be alive already
        found = fg.cond(pred, lambda: counted(x, calls).sum(), lambda: x.max())
        assert found.item() == 2.0 and not calls


def test_a_pending_tensor_outside_is_shared_not_copied_into_a_branch() -> None:
    calls: list[int] = []
    x = fg.Tensor([1.0, 2.0])
    once = counted(x, calls)
    found = fg.cond(x.sum() > 0, lambda: once + 1, lambda: x)
    fg.realize(found, once)
    assert found.tolist() == [2.0, 3.0] and len(calls) == 1


def test_a_choice_of_trees_and_a_choice_made_at_once() -> None:
    def pair(a: Any, b: Any) -> dict[str, Any]:
        return {"sum": a + b["x"], "rest": (a, None)}

    found = fg.cond(
        fg.Tensor(1) > 0, pair, lambda a, b: {"rest": (b["x"], None), "sum": a}, 3, {"x": 4}
    )
    assert found["sum"].item() == 7 and found["rest"][0].item() == 3 and found["rest"][1] is None
    assert fg.cond(True, lambda: "then", lambda: "other") == "then"


@pytest.mark.parametrize("shift", [-3.0, 3.0])
def test_the_gradient_of_a_choice(shift: float) -> None:
    w = fg.Tensor(numbers(2, 3) + shift)

    def f(x: fg.Tensor) -> Any:
        return fg.cond(x.sum() > 0, lambda x: fg.sin(x * w), lambda x: x * x * x, x).sum()

    x = numbers(2, 3, seed=1) + shift
    close(fg.grad(f)(fg.Tensor(x)), slope(f, x), rtol=1e-6)

    def g(w_: fg.Tensor) -> Any:
        return fg.cond(w_.sum() > 0, lambda: (w_ * w_).sum(), lambda: fg.Tensor(1.0, "float64"))

    close(fg.grad(g)(w), slope(g, w.numpy()), rtol=1e-6)


def test_examples_of_a_batch_choose_for_themselves() -> None:
    x = fg.Tensor(numbers(5, 2))
    w = fg.Tensor(numbers(2, seed=1))

    def f(v: fg.Tensor) -> Any:
        return fg.cond(v.sum() > 0, fg.sin, lambda v: v * w, v)

    def same(v: fg.Tensor) -> Any:
        return fg.cond(w.sum() > 0, fg.sin, lambda v: v * w, v)

    for function in (f, same):
        close(fg.vmap(function)(x), np.stack([function(row).numpy() for row in x]))
    assert fg.vmap(same)(x).node.op is COND


# --- nesting -------------------------------------------------------------------------------------


def test_a_scan_in_a_scan() -> None:
    w = fg.Tensor(numbers(3, 3))

    def outer(h: fg.Tensor, rows: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        inner = fg.scan(lambda c, r: (fg.sin(c @ w + r), c.sum() * h.sum()), h, rows)
        return inner[0], inner[1]

    def unrolled(w: fg.Tensor, x: fg.Tensor) -> Any:
        h, total = fg.ones((3,), fg.float64), fg.Tensor(0.0, "float64")
        for rows in x:
            start = h
            for row in rows:
                total = total + (h.sum() * start.sum()) ** 2
                h = fg.sin(h @ w + row)
        return h.sum() + total

    def rolled(v: fg.Tensor, x: fg.Tensor) -> Any:
        nonlocal w
        w = v
        last, given_ = fg.scan(outer, fg.ones((3,), fg.float64), x)
        return last.sum() + (given_**2).sum()

    at, x = fg.Tensor(numbers(3, 3)), fg.Tensor(numbers(2, 4, 3, seed=1))
    found = fg.value_and_grad(rolled, (0, 1))(at, x)
    expected = fg.value_and_grad(unrolled, (0, 1))(at, x)
    close(found[0], expected[0])
    for a, b in zip(found[1], expected[1], strict=True):
        close(a, b)


def test_a_choice_and_a_while_loop_in_a_scan() -> None:
    def body(c: fg.Tensor, x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        halved = fg.while_loop(lambda v: fg.abs(v) > 1, lambda v: v / 2, c + x, 20)
        return fg.cond(x > 0, lambda v: v * x, lambda v: v - x, halved), halved

    def f(x: fg.Tensor) -> Any:
        last, given_ = fg.scan(body, fg.Tensor(0.5, "float64"), x)
        return last + (given_ * given_).sum()

    x = np.array([0.3, -2.2, 5.1, -0.4, 1.7])
    carry, total = 0.5, 0.0
    for row in x:
        carry += row
        while abs(carry) > 1:
            carry /= 2
        total += carry**2
        carry = carry * row if row > 0 else carry - row
    assert np.isclose(f(fg.Tensor(x)).item(), carry + total)
    close(fg.grad(f)(fg.Tensor(x)), slope(f, x), rtol=1e-6)


def test_a_loop_in_a_branch_runs_if_the_branch_is_chosen() -> None:
    x = fg.Tensor([1.0, 2.0, 3.0])

    def f(x: fg.Tensor) -> Any:
        total = fg.cond(
            x.sum() > 0,
            lambda: fg.scan(lambda c, r: (c * r, None), 1.0, x)[0],
            lambda: x.sum(),
        )
        return total * 2

    assert f(x).item() == 12.0 and fg.grad(f)(x).tolist() == [12.0, 6.0, 4.0]
    assert f(-x).item() == -12.0 and fg.grad(f)(-x).tolist() == [2.0, 2.0, 2.0]


# --- what bodies may not do ----------------------------------------------------------------------

Body = Callable[[Any, Any], Any]


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (lambda c, x: ((c[0], {"v": c[1]["v"][:1]}), None), ShapeError, r"\['v'\].*\(2,\).*\(1,\)"),
        (lambda c, x: ((c[0] + 0.5, c[1]), None), DTypeError, r"carry\[0\].*int32.*float32"),
        (lambda c, x: ((c[0],), None), ArgumentError, "the body"),
        (lambda c, x: ((c[0], {"w": c[1]["v"]}), None), ArgumentError, "'v'.*'w'"),
        (lambda c, x: ((None, c[1]), None), ArgumentError, r"carry\[0\].*None"),
        (lambda c, x: c[0], ArgumentError, "returned Tensor, not a carry and a value"),
        (lambda c, x: (c, "text"), DataError, "what the body gives is str"),
    ],
)  # fmt: skip
def test_a_carry_that_changes_is_one_error_that_names_what_differs(
    body: Body, error: type[FulguriteError], words: str
) -> None:
    start = (fg.Tensor(1), {"v": fg.Tensor([1.0, 2.0])})
    with pytest.raises(error, match=words) as caught:
        fg.scan(body, start, fg.Tensor([1.0, 2.0]))  # SCAN
    check_line(caught.value, "# SCAN")


def test_branches_that_differ_are_an_error_that_names_what_differs() -> None:
    x = fg.Tensor([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"true_fn gives.*\(2,\).*false_fn.*\(\)") as caught:
        fg.cond(x.sum() > 0, lambda: x, lambda: x.sum())  # COND
    check_line(caught.value, "# COND")


def test_rows_that_do_not_fit_are_an_error() -> None:
    a, b = fg.ones((3, 2)), fg.ones((4, 2))
    with pytest.raises(ShapeError, match=r"xs\[1\] has 4 rows, not 3"):
        fg.scan(lambda c, x: (c, None), 0.0, (a, b))
    with pytest.raises(ShapeError, match="xs has 3 rows, not 5"):
        fg.scan(lambda c, x: (c, None), 0.0, a, length=5)
    with pytest.raises(ShapeError, match="xs has no rows"):
        fg.scan(lambda c, x: (c, None), 0.0, 1.0)
    with pytest.raises(ArgumentError, match="needs a length"):
        fg.scan(lambda c, x: (c, None), 0.0)
    with pytest.raises(ArgumentError, match="length is -1"):
        fg.scan(lambda c, x: (c, None), 0.0, length=-1)
    with pytest.raises(VariableError, match="bind"):
        fg.scan(lambda c, x: (c, None), 0.0, length=fg.Var("unbound", 0, 3))  # type: ignore[arg-type]


def test_conditions_are_one_bool() -> None:
    for wrong in (lambda v: v, lambda v: v > 0, lambda v: "yes"):
        with pytest.raises((ArgumentError, DataError), match="a condition is"):
            fg.while_loop(wrong, lambda v: v, fg.Tensor([1.0, 2.0]))
    with pytest.raises(ArgumentError, match="one bool"):
        fg.cond(fg.Tensor(1), lambda: 1.0, lambda: 2.0)
    with pytest.raises(ArgumentError, match="max_steps"):
        fg.while_loop(lambda v: v > 0, lambda v: v, fg.Tensor(1.0), 0)


def test_an_exception_in_a_body_passes_and_leaves_everything_as_it_was() -> None:
    x = fg.Tensor([1.0, 2.0])

    def broken(c: fg.Tensor, r: fg.Tensor) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fg.scan(broken, 0.0, x)
    assert fg.scan(lambda c, r: (c + r, None), 0.0, x)[0].item() == 3.0


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.item(), lambda v: v.numpy(), lambda v: bool(v > 0), lambda v: repr(v),
        lambda v: (v * 2).realize(), lambda v: float(v + 1),
    ],
)  # fmt: skip
def test_a_value_inside_a_body_is_not_known(look: Callable[[Any], Any]) -> None:
    def body(c: fg.Tensor, r: fg.Tensor) -> Any:
        look(r)
        return c + r, None

    with pytest.raises(ArgumentError, match="not known while that is built"):
        fg.scan(body, 0.0, fg.Tensor([1.0, 2.0]))


def test_random_numbers_in_a_loop_need_a_key() -> None:
    with pytest.raises(ArgumentError, match="without a key"):
        fg.scan(lambda c, _: (c + fg.random.normal(()), None), 0.0, length=3)
    keys = fg.random.split(fg.random.key(0), 3)
    drawn = fg.scan(lambda c, k: (c, fg.random.normal((), key=k)), 0.0, keys)[1]
    assert len(set(drawn.tolist())) == 3


def test_an_index_out_of_range_in_a_body_names_its_line() -> None:
    table = fg.Tensor(numbers(4))

    def body(c: fg.Tensor, place: fg.Tensor) -> Any:
        return c + fg.take(table, place), None  # TAKE

    found = fg.scan(body, fg.Tensor(0.0, "float64"), fg.Tensor([1, 2, 9]))[0]
    with pytest.raises(BoundsError) as caught:
        found.numpy()
    check_line(caught.value, "# TAKE")


def test_a_body_may_assign_to_its_own_tensors_only() -> None:
    memory = fg.Tensor([0.0, 0.0]).realize()

    def own(c: fg.Tensor, r: fg.Tensor) -> Any:
        c = c + 0
        c[0] = r
        return c, c

    last, given_ = fg.scan(own, fg.Tensor([5.0, 6.0]), fg.Tensor([1.0, 2.0]))
    assert last.tolist() == [2.0, 6.0] and given_.tolist() == [[1.0, 6.0], [2.0, 6.0]]

    def foreign(c: fg.Tensor, r: fg.Tensor) -> Any:
        memory[0] = r
        return c, None

    with pytest.raises(ArgumentError, match="from outside"):
        fg.scan(foreign, 0.0, fg.Tensor([1.0, 2.0]))
    assert memory.tolist() == [0.0, 0.0]
