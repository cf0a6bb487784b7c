"""Tests of fulgurite/autodiff/jacobian.py: both modes give the same derivatives."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from tests.functional.helpers import raises, tensor

A = np.random.default_rng(0).normal(size=(2, 3))


@pytest.mark.parametrize("jacobian", [fg.jacfwd, fg.jacrev])
def test_shapes_are_the_results_then_the_arguments(jacobian: Any) -> None:
    x = tensor(A[0])
    found = jacobian(lambda x: tensor(A) @ (x * x))(x)
    np.testing.assert_allclose(found.numpy(), A * 2 * A[0])
    by_both = jacobian(lambda x, y: {"r": x * y}, argnums=(0, 1))(x, x)
    assert [part.shape for part in by_both["r"]] == [(3, 3), (3, 3)]
    tree = jacobian(lambda p: p["w"].sum() * p["b"])({"w": x, "b": x[0]})
    assert tree["w"].shape == (3,) and tree["b"].shape == ()
    np.testing.assert_allclose(fg.jit(jacobian(lambda x: x * x))(x).numpy(), np.diag(2 * A[0]))
    each = fg.vmap(jacobian(lambda x: x * x))(tensor(A))
    np.testing.assert_allclose(each.numpy()[1], np.diag(2 * A[1]))


@pytest.mark.parametrize("outer", [fg.jacfwd, fg.jacrev])
@pytest.mark.parametrize("inner", [fg.jacfwd, fg.jacrev])
def test_they_nest_in_any_order(outer: Any, inner: Any) -> None:
    x = tensor(A[0])

    def f(x: Any) -> Any:
        return (x**3).sum() * x[0]

    np.testing.assert_allclose(outer(inner(f))(x).numpy(), fg.hessian(f)(x).numpy(), rtol=1e-12)


@pytest.mark.parametrize("jacobian", [fg.jacfwd, fg.jacrev])
def test_what_else_a_function_gives_comes_along(jacobian: Any) -> None:
    x = tensor(A[0])
    found, aux = jacobian(lambda x: (x * 2, {"seen": x + 1, "name": "x"}), has_aux=True)(x)
    np.testing.assert_allclose(found.numpy(), 2 * np.eye(3))
    np.testing.assert_allclose(aux["seen"].numpy(), A[0] + 1)
    assert aux["name"] == "x"
    slope = fg.grad(lambda x: jacobian(lambda v: (v, v * v), has_aux=True)(x)[1].sum())(x)
    np.testing.assert_allclose(slope.numpy(), 2 * A[0])
    with raises(ArgumentError, "return a pair"):
        jacobian(lambda x: x, has_aux=True)(x)
