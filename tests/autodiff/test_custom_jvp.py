"""Tests of fulgurite/autodiff/custom_jvp.py: derivatives of every kind come from the rule."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, GradientError, ShapeError
from tests.functional.helpers import raises


@fg.custom_jvp
def marked(x: Any, y: Any) -> Any:
    """sin(x) * y, whose slope by y is ten times too steep: the rule's, not the graph's."""
    return fg.sin(x) * y


@marked.defjvp
def _marked_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return marked(x, y), fg.cos(x) * y * dx + fg.sin(x) * 10 * dy


X, Y = fg.Tensor([0.3, 0.5]), fg.Tensor([2.0, 3.0])
BY_X, BY_Y = np.cos([0.3, 0.5]) * [2, 3], np.sin([0.3, 0.5]) * 10


def near(got: fg.Tensor, want: Any) -> None:
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_both_modes_take_their_derivatives_from_the_rule() -> None:
    value, moved = fg.jvp(marked, (X, Y), (fg.ones(2), fg.ones(2)))
    near(value, np.sin([0.3, 0.5]) * [2, 3])
    near(moved, BY_X + BY_Y)
    by_x, by_y = fg.grad(lambda x, y: marked(x, y).sum(), (0, 1))(X, Y)
    near(by_x, BY_X)
    near(by_y, BY_Y)
    near(fg.grad(lambda y: marked(0.5, y).sum())(Y), [BY_Y[1]] * 2)
    near(fg.jvp(lambda y: marked(X, y), (Y,), (fg.ones(2),))[1], BY_Y)
    leaf = fg.Tensor([2.0, 3.0], requires_grad=True)
    marked(X, leaf).sum().backward()
    assert leaf.grad is not None
    near(leaf.grad, BY_Y)


def test_derivatives_nest_and_go_through_vmap_jit_and_loops() -> None:
    near(fg.vmap(fg.grad(marked, 1))(X, Y), BY_Y)
    near(fg.grad(lambda y: fg.vmap(marked)(X, y).sum())(Y), BY_Y)
    near(fg.jvp(lambda y: fg.vmap(marked)(X, y), (Y,), (fg.ones(2),))[1], BY_Y)
    near(fg.jit(fg.grad(lambda y: marked(X, y).sum()))(Y), BY_Y)
    near(fg.jit(lambda y: fg.jvp(lambda y: marked(X, y), (y,), (fg.ones(2),))[1])(Y), BY_Y)
    near(fg.hessian(lambda x: marked(x, Y).sum())(X), np.diag(-np.sin([0.3, 0.5]) * [2, 3]))
    near(fg.jacfwd(lambda y: marked(X, y))(Y), np.diag(BY_Y))
    near(fg.jacrev(lambda y: marked(X, y))(Y), np.diag(BY_Y))
    near(fg.grad(lambda y: fg.checkpoint(marked)(X, y).sum())(Y), BY_Y)
    last = fg.grad(lambda y: fg.scan(lambda c, _: (marked(X, c), None), y, length=2)[0].sum())(Y)
    near(last, BY_Y * BY_Y)


def test_a_batch_of_whole_numbers_reaches_the_rule_example_by_example() -> None:
    @fg.custom_jvp
    def pick(x: Any, place: Any) -> Any:
        return x[place] * 2

    pick.defjvp(lambda primals, tangents: (pick(*primals), tangents[0][primals[1]] * 5))
    rows, places = fg.Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), fg.Tensor([0, 2])
    want = [[5.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    assert fg.vmap(fg.grad(pick))(rows, places).tolist() == want
    assert fg.grad(lambda r: fg.vmap(pick)(r, places).sum())(rows).tolist() == want


def host_doubled(x: Any) -> Any:
    """A function that has no derivative."""
    found: Any = fg.custom(lambda a: a * 2, x, shape=x.shape)
    return found


def test_what_has_no_derivative_inside_needs_none() -> None:
    doubled = fg.custom_jvp(host_doubled)
    doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0] * 7))
    one = fg.Tensor([1.0])
    assert [part.item() for part in fg.jvp(doubled, (one,), (one,))] == [2.0, 7.0]
    assert fg.grad(lambda x: doubled(x).sum())(one).tolist() == [7.0]


def test_a_custom_gradient_hides_what_it_stands_for_from_forward_mode_too() -> None:
    doubled = fg.custom_vjp(host_doubled)
    doubled.defvjp(lambda x: (host_doubled(x), None), lambda kept, g: (g * 7,))
    assert fg.jvp(doubled, (fg.Tensor([1.0]),), (fg.Tensor([1.0]),))[1].tolist() == [7.0]


def test_a_loop_in_a_rule_is_transposed() -> None:
    @fg.custom_jvp
    def same(x: Any) -> Any:
        return x

    def rule(primals: Any, tangents: Any) -> Any:
        _, sums = fg.scan(lambda c, t: (c + t, c + t), fg.Tensor(0.0), tangents[0])
        return same(*primals), sums

    same.defjvp(rule)
    assert fg.grad(lambda x: same(x).sum())(fg.ones(3)).tolist() == [3.0, 2.0, 1.0]


def test_rules_for_each_argument_add_up_over_trees() -> None:
    @fg.custom_jvp
    def both(x: Any, y: Any, n: Any) -> Any:
        return {"product": x * y, "sum": x + y}

    both.defjvps(
        lambda t, r, x, y, n: {"product": t * y, "sum": t},
        lambda t, r, x, y, n: {"product": x * t, "sum": t * n},
        None,
    )

    def total(x: Any, y: Any) -> Any:
        found = both(x, y, 5)
        return found["product"] + found["sum"]

    slopes = fg.grad(total, (0, 1))(fg.Tensor(2.0), fg.Tensor(3.0))
    assert [slope.item() for slope in slopes] == [4.0, 7.0]


def test_options_come_before_the_arguments_that_move() -> None:
    @partial(fg.custom_jvp, nondiff_argnums=(0, 2))
    def applied(f: Any, x: Any, times: int = 1) -> Any:
        return f(x) * times

    applied.defjvp(lambda f, times, primals, tangents: (f(*primals), tangents[0] * 3 * times))
    assert fg.grad(lambda x: applied(fg.sin, x, times=2))(fg.Tensor(1.0)).item() == 6.0
    assert applied(fg.abs, fg.Tensor(-2.0)).item() == 2.0


def test_methods_have_rules_too() -> None:
    class Layer:
        scale = 4.0

        @fg.custom_jvp
        def call(self, x: Any) -> Any:
            return x * self.scale

    Layer.call.defjvp(lambda primals, tangents: (primals[1], tangents[1] * 9))
    assert fg.grad(Layer().call)(fg.Tensor(1.0)).item() == 9.0


def test_rules_that_are_wrong_are_errors() -> None:
    x = fg.Tensor([1.0, 2.0])

    @fg.custom_jvp
    def same(x: Any) -> Any:
        return x

    with raises(GradientError, "no derivative yet"):
        fg.grad(lambda x: same(x).sum())(x)
    assert same(x).tolist() == [1.0, 2.0]
    same.defjvp(lambda primals, tangents: (primals[0], tangents[0] * tangents[0]))
    with pytest.raises(GradientError, match="not linear"):
        fg.grad(lambda x: same(x).sum())(x)
    same.defjvp(lambda primals, tangents: tangents[0])
    with pytest.raises(GradientError, match="return the result and how it moves"):
        fg.grad(lambda x: same(x).sum())(x)
    same.defjvp(lambda primals, tangents: (primals[0], tangents[0].sum()))
    with pytest.raises(ShapeError, match="must be equal"):
        fg.grad(lambda x: same(x).sum())(x)
    same.defjvp(lambda primals, tangents: (primals[0], None))
    assert fg.grad(lambda x: same(x).sum())(x).tolist() == [0.0, 0.0]
    same.defjvps(None, None)
    with pytest.raises(GradientError, match="2 rules for 1 arguments"):
        fg.grad(lambda x: same(x).sum())(x)
    with pytest.raises(ArgumentError):
        fg.custom_jvp(lambda x: x, nondiff_argnums=3)(x)

    def outer(w: Any) -> Any:
        inner = fg.custom_jvp(lambda x: x * w)
        inner.defjvp(lambda primals, tangents: (inner(*primals), tangents[0]))
        return fg.grad(lambda x: inner(x).sum())(x).sum()

    with pytest.raises(GradientError, match="not its argument"):
        fg.grad(outer)(fg.Tensor(2.0))


def test_a_function_with_a_derivative_of_its_own_may_take_gradients_inside() -> None:
    slope = fg.custom_jvp(lambda x: fg.grad(lambda y: (y * y * y).sum())(x))
    slope.defjvp(lambda primals, tangents: (slope(*primals), 6 * primals[0] * tangents[0]))
    assert fg.grad(lambda x: slope(x).sum())(fg.Tensor([1.0, 2.0])).tolist() == [6.0, 12.0]
