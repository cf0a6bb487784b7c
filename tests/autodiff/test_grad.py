"""Tests of autodiff/grad.py: gradients of functions, and backward() as a shell over them."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import live_count, toposort
from fulgurite.errors import ArgumentError, GradientError, ShapeError
from tests.functional.helpers import raises


def x64(*values: float) -> fg.Tensor:
    return fg.Tensor(np.array(values, np.float64))


def test_grad_of_a_scalar_function() -> None:
    assert fg.grad(lambda x: (x * x * x).sum())(x64(1, 2)).tolist() == [3.0, 12.0]


def test_value_and_grad_gives_both() -> None:
    value, slope = fg.value_and_grad(lambda x: (x * 2).sum())(x64(1, 2))
    assert value.item() == 6.0 and slope.tolist() == [2.0, 2.0]


def test_gradients_follow_the_form_of_the_arguments() -> None:
    params = {"w": x64(2.0), "b": [x64(1.0), x64(0.5)]}
    got = fg.grad(lambda p: (p["w"] * p["b"][0] + p["b"][1]).sum())(params)
    assert got["w"].tolist() == [1.0]
    assert [b.tolist() for b in got["b"]] == [[2.0], [1.0]]


def test_what_a_function_assigns_to_its_arguments_the_caller_sees() -> None:
    count, mean = fg.Tensor(0), x64(1.0, 1.0)

    def step(w: fg.Tensor, state: dict[str, fg.Tensor]) -> fg.Tensor:
        state["count"] += 1
        state["mean"].assign(state["mean"] * 0.5 + w.detach())
        return (w * state["mean"]).sum()

    both = fg.value_and_grad(step, argnums=(0, 1))
    state = {"count": count, "mean": mean}
    for n in (1, 2):
        value, (by_w, by_state) = both(x64(2.0, 4.0), state)
        assert count.item() == n and by_state["count"] is None
    assert mean.tolist() == [3.25, 6.25] and not mean.requires_grad
    assert by_w.tolist() == [3.25, 6.25] and value.item() == 31.5
    assert by_state["mean"].tolist() == [1.0, 2.0]  # by the value that came in


def test_several_arguments_and_auxiliary_results() -> None:
    def f(a: fg.Tensor, b: fg.Tensor) -> tuple[fg.Tensor, str]:
        return (a * a * b).sum(), "more"

    (by_a, by_b), aux = fg.grad(f, argnums=(0, 1), has_aux=True)(x64(3.0), x64(2.0))
    assert (by_a.item(), by_b.item(), aux) == (12.0, 9.0, "more")


def test_one_tensor_given_twice_is_two_arguments() -> None:
    x = x64(3.0)
    by_a, by_b = fg.grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, x)
    assert (by_a.item(), by_b.item()) == (18.0, 9.0)


def test_equal_constants_are_told_apart() -> None:
    by_a, by_b = fg.grad(lambda a, b: (a * 2 + b * 3).sum(), argnums=(0, 1))(fg.ones(2), fg.ones(2))
    assert by_a.tolist() == [2.0, 2.0] and by_b.tolist() == [3.0, 3.0]


def test_an_argument_that_does_not_matter_has_gradient_zero() -> None:
    assert fg.grad(lambda a, b: a.sum(), argnums=1)(x64(1.0), x64(5.0)).tolist() == [0.0]


def test_integer_arguments_have_no_gradient() -> None:
    got = fg.grad(lambda p: (p["x"] * 2).sum())({"x": x64(1.0), "n": fg.Tensor([1, 2])})
    assert got["x"].tolist() == [2.0] and got["n"] is None


def test_gradients_of_gradients() -> None:
    def cube(x: fg.Tensor) -> fg.Tensor:
        return (x**3).sum()

    second = fg.grad(lambda x: fg.grad(cube)(x).sum())
    third = fg.grad(lambda x: second(x).sum())
    assert second(x64(2.0)).tolist() == [12.0]
    assert third(x64(2.0)).tolist() == [6.0]


def test_vjp_pulls_any_gradient_back() -> None:
    y, pull = fg.vjp(lambda a, b: (a * b, a + b), x64(2.0), x64(5.0))
    assert [t.item() for t in y] == [10.0, 7.0]
    by_a, by_b = pull((x64(1.0), x64(10.0)))
    assert (by_a.item(), by_b.item()) == (15.0, 12.0)


def test_a_value_looked_at_inside_does_not_cut_the_gradient() -> None:
    seen: list[float] = []

    def f(x: fg.Tensor) -> fg.Tensor:
        y = fg.exp(x)
        seen.append(float(y.sum().item()))  # type: ignore[arg-type]
        y.realize()
        return (y * y).sum()

    got = fg.grad(f)(x64(0.5))
    assert seen and got.item() == pytest.approx(2 * np.exp(1.0))


def test_stop_gradient_and_detach() -> None:
    assert fg.grad(lambda x: (fg.stop_gradient(x) * x).sum())(x64(3.0)).item() == 3.0
    assert fg.grad(lambda x: (x.detach() * x).sum())(x64(3.0)).item() == 3.0


def test_results_of_grad_are_ordinary_tensors() -> None:
    value, slope = fg.value_and_grad(lambda x: (x * x).sum())(x64(3.0))
    fg.realize(value, slope)
    assert not value.node.watched and not slope.node.watched
    assert value.node.op.name == "buffer"  # nothing of the graph is kept


def test_the_gradient_graph_is_linear_in_the_function() -> None:
    def chain(length: int) -> int:
        def f(x: fg.Tensor) -> fg.Tensor:
            for _ in range(length):
                x = fg.tanh(x * 1.01)
            return x.sum()

        return len(toposort([fg.grad(f)(x64(1.0)).node]))

    assert chain(400) <= 2.2 * chain(200)


def test_dropping_the_results_frees_the_graph() -> None:
    x = x64(1.0)
    before = live_count()
    value, slope = fg.value_and_grad(lambda x: fg.exp(x).sum())(x)
    del value, slope
    assert live_count() == before


# --- the shell -----------------------------------------------------------------------------------


def test_backward_fills_the_grad_of_every_leaf() -> None:
    a, b = fg.Tensor([2.0], requires_grad=True), fg.Tensor([5.0], requires_grad=True)
    (a * b + a).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert (a.grad.item(), b.grad.item()) == (6.0, 2.0)


def test_grads_add_up_over_calls() -> None:
    a = fg.Tensor([2.0], requires_grad=True)
    for _ in range(3):
        (a * 2).sum().backward()
    assert a.grad is not None and a.grad.tolist() == [6.0]


def test_backward_works_after_the_loss_was_looked_at() -> None:
    a = fg.Tensor([2.0], requires_grad=True)
    loss = (a * a).sum()
    assert loss.item() == 4.0
    loss.backward()
    assert a.grad is not None and a.grad.tolist() == [4.0]


def test_nothing_is_recorded_under_no_grad() -> None:
    a = fg.Tensor([2.0], requires_grad=True)
    with fg.no_grad():
        b = a * 3
    assert b.tolist() == [6.0] and not b.requires_grad
    assert (a * 3).requires_grad


def test_backward_of_a_vector_takes_a_gradient() -> None:
    a = fg.Tensor([2.0, 3.0], requires_grad=True)
    (a * a).backward(fg.Tensor([1.0, 10.0]))
    assert a.grad is not None and a.grad.tolist() == [4.0, 60.0]


def test_requires_grad_can_be_taken_back() -> None:
    a = fg.Tensor([2.0], requires_grad=True)
    a.requires_grad_(False)
    assert not (a * 2).requires_grad and a.tolist() == [2.0]
    a.requires_grad = True
    assert (a * 2).requires_grad
    a.requires_grad = False
    assert not (a * 2).requires_grad


BAD: list[tuple[str, type[Exception], str, Callable[[], object]]] = [
    ("a vector result", GradientError, "scalar", lambda: fg.grad(lambda x: x)(x64(1.0, 2.0))),
    ("no tensor", GradientError, "not a tensor", lambda: fg.grad(lambda x: 3)(x64(1.0))),
    ("an integer result", GradientError, "int32",
     lambda: fg.grad(lambda x: x.cast("int32").sum())(x64(1.0))),
    ("no such argument", ArgumentError, "no argument 2",
     lambda: fg.grad(lambda x: x.sum(), 2)(x64(1.0))),
    ("a seed of another shape", ShapeError, "gradient of shape",
     lambda: fg.vjp(lambda x: x, x64(1.0))[1](x64(1.0, 2.0))),
    ("nothing to reach", GradientError, "requires", lambda: x64(1.0).sum().backward()),
    ("backward of a vector", GradientError, "scalar",
     lambda: fg.Tensor([1.0, 2.0], requires_grad=True).backward()),
    ("an integer leaf", GradientError, "int32", lambda: fg.Tensor([1], requires_grad=True)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "says", "bad"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_has_no_gradient_is_a_clear_error(
    error: type[Exception], says: str, bad: Callable[[], object]
) -> None:
    with pytest.raises(error, match=says):
        bad()


# --- training ------------------------------------------------------------------------------------


def test_200_steps_with_changing_rates_compile_at_most_three_times() -> None:
    random = np.random.default_rng(0)
    x = fg.Tensor(random.normal(size=(32, 8)).astype(np.float32))
    y = fg.Tensor(random.integers(0, 3, 32).astype(np.int32))
    p = {"w": fg.Tensor(random.normal(size=(8, 3)).astype(np.float32)), "b": fg.zeros(3)}
    m = {k: fg.zeros_like(v) for k, v in p.items()}
    v = {k: fg.zeros_like(w) for k, w in p.items()}
    fg.realize(*p.values(), *m.values(), *v.values())
    step = fg.value_and_grad(lambda p: fg.cross_entropy(x @ p["w"] + p["b"], y))
    misses = fg.cache_stats()["schedule"]["misses"]
    losses = []
    for t in range(1, 201):
        loss, g = step(p)
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in p}
        v = {k: 0.99 * v[k] + 0.01 * g[k] * g[k] for k in p}
        rate = 0.1 / (1 + t / 50) / (1 - 0.9**t)
        p = {k: p[k] - rate * m[k] / (fg.sqrt(v[k] / (1 - 0.99**t)) + 1e-8) for k in p}
        fg.realize(loss, *p.values(), *m.values(), *v.values())
        losses.append(float(loss.item()))
    assert fg.cache_stats()["schedule"]["misses"] - misses <= 3
    assert losses[-1] < losses[0] / 2


def test_what_is_no_function_or_argument_is_a_clear_error() -> None:
    x, wrong = fg.Tensor(1.0), cast(Any, 3)
    for make in (fg.grad, fg.value_and_grad):
        with raises(ArgumentError, "int is not a function"):
            make(wrong)
        with raises(ArgumentError, "argnums is 'a'"):
            make(lambda x: x, argnums=cast(Any, "a"))
        with raises(ArgumentError, "argnums is 0.5"):
            make(lambda x: x, argnums=cast(Any, 0.5))
        with raises(ArgumentError, "name each argument once"):
            make(lambda x: x, argnums=(0, 0))
        with raises(ArgumentError, "name each argument once"):
            make(lambda x: x, argnums=(0, -1))(x)
    with raises(ArgumentError, "int is not a function"):
        fg.vjp(wrong, x)
    assert fg.grad(lambda x: x * x, argnums=cast(Any, np.int64(0)))(x).item() == 2.0


def test_what_comes_beside_a_value_is_an_ordinary_tensor_again() -> None:
    def loss(x: fg.Tensor) -> tuple[fg.Tensor, dict[str, fg.Tensor]]:
        return (x * x).sum(), {"twice": x * 2}

    (_, aux), _ = fg.value_and_grad(loss, has_aux=True)(fg.Tensor([1.0, 2.0]))
    assert not aux["twice"].node.watched and aux["twice"].tolist() == [2, 4]

    def outer(x: fg.Tensor) -> fg.Tensor:
        (_, aux), _ = fg.value_and_grad(loss, has_aux=True)(x)
        found: fg.Tensor = aux["twice"].sum()
        return found

    assert fg.grad(outer)(fg.Tensor([1.0, 2.0])).tolist() == [2, 2]  # to one further out it is not


STEPS: dict[str, Callable[[Any], Any]] = {
    "floor": fg.floor, "ceil": fg.ceil, "round": fg.round, "trunc": fg.trunc, "sign": fg.sign,
    "floordiv": lambda w: w // 2, "behind": lambda w: w.detach() * fg.floor(w),
    "beside": lambda w: fg.floor(w) + (w > 0),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_gradient_through_steps_is_zero_and_there(name: str) -> None:
    w = fg.Tensor([1.5, -2.5], requires_grad=True)
    other = fg.Tensor([1.0, 1.0], requires_grad=True)
    (STEPS[name](w) + other.detach()).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [0.0, 0.0]
    assert other.grad is None


@pytest.mark.parametrize(
    "choice", [lambda w: (w > 0).astype("float32"), lambda w: fg.argmax(w).astype("float32")]
)
def test_comparisons_and_places_have_no_gradient(choice: Callable[[Any], Any]) -> None:
    w = fg.Tensor([1.5, -2.5], requires_grad=True)
    with pytest.raises(GradientError):
        choice(w).sum().backward()
    assert w.grad is None
