"""Tests of autodiff/custom_vjp.py, in the shapes that JAX documents; test_transforms.py has more.

In each of them `forward` calls the function itself. Rules are lies where a test must see that they
were used and not the function's own derivative.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import live_count
from fulgurite.errors import ArgumentError, GradientError


def t(*numbers: float) -> fg.Tensor:
    return fg.Tensor(np.array(numbers))


def s(number: float) -> fg.Tensor:
    return fg.Tensor(np.float64(number))


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12, atol=1e-12)


@fg.custom_vjp
def f(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    return fg.sin(x) * y


def f_fwd(x: fg.Tensor, y: fg.Tensor) -> tuple[Any, Any]:
    return f(x, y), (fg.cos(x), fg.sin(x), y)


def f_bwd(kept: Any, g: fg.Tensor) -> tuple[Any, ...]:
    cos_x, sin_x, y = kept
    return cos_x * g * y, sin_x * g


f.defvjp(f_fwd, f_bwd)


@fg.custom_vjp
def power(x: fg.Tensor) -> fg.Tensor:
    """exp, by a function that has no derivative: only the rule knows."""
    return fg.stop_gradient(fg.exp(x))


def power_fwd(x: fg.Tensor) -> tuple[Any, Any]:
    y = power(x)
    return y, y


power.defvjp(power_fwd, lambda y, g: (g * y,))


def test_forward_may_call_the_function_itself() -> None:
    x, y = s(2.0), s(3.0)
    slopes = fg.grad(f, argnums=(0, 1))(x, y)
    close(slopes[0], np.cos(2.0) * 3)
    close(slopes[1], np.sin(2.0))
    close(f(x, y), np.sin(2.0) * 3)


@pytest.mark.parametrize("order", range(1, 5))
def test_a_gradient_of_a_gradient_uses_the_rule_at_every_order(order: int) -> None:
    slope: Any = power
    for _ in range(order):
        slope = fg.grad(slope)
    close(slope(s(0.5)), np.exp(0.5))


def test_under_every_other_transform() -> None:
    x = t(0.1, 0.2, 0.3)
    want = np.exp(x.numpy())
    close(fg.vmap(power)(x), want)
    close(fg.vmap(fg.grad(power))(x), want)
    close(fg.vmap(fg.grad(fg.grad(power)))(x), want)
    close(fg.grad(lambda x: fg.vmap(power)(x).sum())(x), want)
    close(fg.grad(lambda x: fg.grad(lambda x: fg.vmap(power)(x).sum())(x).sum())(x), want)
    close(fg.jit(power)(x), want)
    close(fg.jit(fg.grad(lambda x: power(x).sum()))(x), want)
    close(fg.jit(fg.vmap(fg.grad(fg.grad(power))))(x), want)
    close(fg.grad(fg.jit(lambda x: power(x).sum()))(x), want)
    close(fg.hessian(lambda x: power(x).sum())(x), np.diag(want))
    close(fg.jacobian(power)(x), np.diag(want))
    close(fg.jvp(power, (x,), (t(1, 2, 3),))[1], want * [1, 2, 3])
    close(fg.grad(lambda x: fg.checkpoint(power)(x).sum())(x), want)


def test_backward_of_the_tape_uses_the_rule() -> None:
    x = fg.Tensor([0.1, 0.2], requires_grad=True)
    power(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp(x.detach().numpy()), rtol=1e-6)

    @fg.jit
    def step(x: fg.Tensor) -> Any:
        loss = power(x).sum()
        loss.backward()
        return loss

    x.grad = None
    for _ in range(2):
        step(x)
    found: Any = x.grad
    np.testing.assert_allclose(found.numpy(), 2 * np.exp(x.detach().numpy()), rtol=1e-6)


class Point(NamedTuple):
    x: Any
    y: Any


def test_arguments_results_and_what_is_kept_may_be_trees() -> None:
    @fg.custom_vjp
    def f(point: Point) -> dict[str, Any]:
        return {"a": point.x**2, "b": (fg.sin(point.x), fg.cos(point.y))}

    def forward(point: Point) -> tuple[Any, Any]:
        return f(point), {"point": point, "two": 2, "list": [point.x, "text", None]}

    def backward(kept: Any, g: Any) -> tuple[Any, ...]:
        a, (b0, b1) = g["a"], g["b"]
        x, y = kept["point"]
        assert isinstance(kept["point"], Point) and kept["list"][1:] == ["text", None]
        return (Point(kept["two"] * kept["list"][0] * a + fg.cos(x) * b0, -fg.sin(y) * b1),)

    f.defvjp(forward, backward)

    def loss(point: Point) -> Any:
        found = f(point)
        return (found["a"] + found["b"][0] + found["b"][1]).sum()

    at = Point(t(1.0, 2.0), t(3.0, 4.0))
    slope = fg.grad(loss)(at)
    x, y = at.x.numpy(), at.y.numpy()
    close(slope.x, 2 * x + np.cos(x))
    close(slope.y, -np.sin(y))
    twice = fg.grad(lambda p: fg.grad(loss)(p).x.sum())(at)
    close(twice.x, 2 - np.sin(x))


def test_nondiff_arguments_come_first_and_have_no_gradient() -> None:
    @partial(fg.custom_vjp, nondiff_argnums=(0,))
    def app(f: Any, x: fg.Tensor) -> Any:
        return f(x)

    app.defvjp(lambda f, x: (app(f, x), x), lambda f, x, g: (5 * g * f(x),))
    close(fg.grad(lambda x: app(lambda x: x**3, x))(s(1.0)), 5)
    close(fg.grad(fg.grad(lambda x: app(lambda x: x**3, x)))(s(2.0)), 5 * 3 * 4)

    @partial(fg.custom_vjp, nondiff_argnums=(-1, 1))
    def scaled(x: fg.Tensor, how: str, y: fg.Tensor, factor: fg.Tensor) -> Any:
        return x * y * factor

    def backward(how: str, factor: fg.Tensor, kept: Any, g: fg.Tensor) -> Any:
        assert how == "plain"
        return g * kept[1] * factor, g * kept[0] * factor

    scaled.defvjp(lambda x, how, y, c: (scaled(x, how, y, c), (x, y)), backward)
    x, y, c = t(1.0, 2.0), t(3.0, 4.0), t(5.0, 6.0)
    found = fg.grad(lambda x, y: scaled(x, "plain", y, c).sum(), (0, 1))(x, y)
    close(found[0], y.numpy() * c.numpy())
    close(found[1], x.numpy() * c.numpy())
    many = fg.vmap(lambda x, c: scaled(x, "plain", x, c))  # a tensor that differs by example
    close(fg.grad(lambda x: many(x, c).sum())(x), 2 * x.numpy() * c.numpy())
    twice = fg.grad(lambda x: fg.grad(lambda x: many(x, c).sum())(x).sum())
    close(twice(x), 2 * c.numpy())


def test_a_rule_in_one_line_with_nondiff_arguments() -> None:
    @partial(fg.custom_vjp, nondiff_argnums=1)
    def f(x: fg.Tensor, count: int) -> Any:
        return x * count

    f.defgrad(lambda g, y, x, count: (g * 100 * count,))
    close(fg.grad(lambda x: f(x, 3))(s(1.0)), 300)


def test_gradient_clipping_keeps_bounds_and_returns_none_for_them() -> None:
    @fg.custom_vjp
    def clip_gradient(low: float, high: float, x: fg.Tensor) -> fg.Tensor:
        return x

    clip_gradient.defvjp(
        lambda low, high, x: (clip_gradient(low, high, x), (low, high)),
        lambda kept, g: (None, None, fg.clip(g, *kept)),
    )
    steep = fg.grad(lambda x: (clip_gradient(-0.75, 0.75, x) * 3).sum())
    assert steep(t(1.0, 2.0)).tolist() == [0.75, 0.75]
    assert fg.vmap(steep)(t(1.0, 2.0)).tolist() == [0.75, 0.75]
    assert fg.jit(steep)(t(1.0, 2.0)).tolist() == [0.75, 0.75]


def test_a_fixed_point_is_differentiated_implicitly() -> None:
    @partial(fg.custom_vjp, nondiff_argnums=(0,))
    def fixed_point(f: Any, a: Any, x: fg.Tensor) -> fg.Tensor:
        for _ in range(60):
            x = f(a, x)
        return x

    def forward(f: Any, a: Any, x: fg.Tensor) -> Any:
        star = fixed_point(f, a, x)
        return star, (a, star)

    def backward(f: Any, kept: Any, g: fg.Tensor) -> Any:
        a, star = kept
        _, by_a = fg.vjp(lambda a: f(a, star), a)

        def again(packed: Any, u: fg.Tensor) -> Any:
            a, star, g = packed
            _, by_x = fg.vjp(lambda x: f(a, x), star)
            return g + by_x(u)[0]

        return *by_a(fixed_point(again, (a, star, g), g)), fg.zeros_like(star)

    fixed_point.defvjp(forward, backward)

    def root(a: fg.Tensor) -> Any:
        return fixed_point(lambda a, x: 0.5 * (x + a / x), a, fg.stop_gradient(a))

    close(root(s(2.0)), np.sqrt(2))
    close(fg.grad(root)(s(2.0)), 0.5 / np.sqrt(2))
    close(fg.grad(fg.grad(root))(s(2.0)), -0.25 * 2**-1.5)


def test_two_functions_may_call_each_other_in_forward() -> None:
    @fg.custom_vjp
    def a(x: fg.Tensor) -> Any:
        return fg.sin(x)

    @fg.custom_vjp
    def b(x: fg.Tensor) -> Any:
        return fg.cos(x)

    a.defvjp(lambda x: (a(x), b(x)), lambda kept, g: (g * kept,))
    b.defvjp(lambda x: (b(x), a(x)), lambda kept, g: (-g * kept,))
    x = s(0.3)
    close(fg.grad(a)(x), np.cos(0.3))
    close(fg.grad(fg.grad(a))(x), -np.sin(0.3))
    close(fg.grad(fg.grad(fg.grad(a)))(x), -np.cos(0.3))


def test_whole_numbers_among_the_arguments_are_batched_with_them() -> None:
    @fg.custom_vjp
    def pick(x: fg.Tensor, i: fg.Tensor) -> Any:
        return x[i] ** 2

    pick.defvjp(
        lambda x, i: (pick(x, i), (x, i, pick(x, i))),
        lambda kept, g: (fg.where(fg.arange(3) == kept[1], g * kept[2] * 10, 0.0), None),
    )
    x, places = t(1.0, 2.0, 3.0), fg.Tensor([2, 0])
    many = fg.vmap(pick, in_axes=(None, 0))
    close(fg.grad(lambda x: many(x, places).sum())(x), [10, 0, 90])
    twice = fg.grad(lambda x: fg.grad(lambda x: many(x, places).sum())(x).sum())(x)
    close(twice, [10 * 10, 0, 10 * 90])


def test_threads_do_not_see_each_others_forward() -> None:
    inside, going = threading.Event(), threading.Event()

    @fg.custom_vjp
    def slow(x: fg.Tensor) -> Any:
        return x * 2

    forwards = []

    def forward(x: fg.Tensor) -> Any:
        forwards.append(threading.get_ident())
        if len(forwards) == 1:
            inside.set()
            going.wait(10)
        return slow(x), None

    slow.defvjp(forward, lambda kept, g: (g * 7,))
    thread = threading.Thread(target=lambda: fg.grad(slow)(s(1.0)))
    thread.start()
    inside.wait(10)
    close(fg.grad(slow)(s(1.0)), 7)
    going.set()
    thread.join()
    assert len(set(forwards)) == 2


def test_a_rule_holds_no_graph() -> None:
    x = t(1.0, 2.0)
    fg.grad(lambda x: fg.grad(lambda x: power(x).sum())(x).sum())(x)
    before = live_count()
    found = fg.grad(lambda x: fg.grad(lambda x: power(x * 3).sum())(x).sum())(x)
    del found
    assert live_count() == before


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ArgumentError, match="there is no argument 2 of 1"):
        fg.custom_vjp(lambda x: x, nondiff_argnums=2)
    with pytest.raises(ArgumentError, match="does not say which arguments"):
        fg.custom_vjp(dict.update)

    @partial(fg.custom_vjp, nondiff_argnums=(0,))
    def two(n: int, x: fg.Tensor) -> Any:
        return x * n

    two.defvjp(lambda n, x: (two(n, x), x), lambda n, x, g: (None, g))
    with pytest.raises(GradientError, match="must return 1 gradients"):
        fg.grad(lambda x: two(3, x))(s(1.0))
