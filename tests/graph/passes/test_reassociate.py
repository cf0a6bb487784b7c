"""Sums in the cheaper order: where the inner sum is there already, and only there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.reduce import REDUCE
from fulgurite.graph.ir.queries import elements, is_contraction
from fulgurite.graph.passes.reassociate import factor_sums
from tests.graph.scheduling import reassociated
from tests.graph.searching import lowered, numbers

Result = fg.Tensor | list[fg.Tensor]


def _factors() -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
    return numbers(1, 3, 40, 50), numbers(2, 3, 50, 8), numbers(3, 3, 40, 8)


def _adjoint(a: fg.Tensor, b: fg.Tensor, g: fg.Tensor) -> fg.Tensor:
    """Of `a` in a @ b, given that of the product."""
    found: fg.Tensor = fg.grad(lambda a: (a @ b * g).sum())(a)
    return found


def _weighed(scale: float = 1.0, sign: int = 1) -> list[fg.Tensor]:
    a, b, g = _factors()
    return [a @ b, sign * (a * _adjoint(a, b, g) * scale).sum(axis=-1)]


def _divided() -> list[fg.Tensor]:
    a, b, g = _factors()
    rows = numbers(4, 3, 40, 1)
    return [a @ b, (-(a * _adjoint(a, b, g)) / rows).sum(axis=-1, keepdims=True)]


def _gradient() -> list[fg.Tensor]:
    q, k, v, g = (numbers(i, 2, n, 8) for i, n in ((1, 40), (2, 50), (3, 50), (4, 40)))

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT, axis=-1) @ v * g).sum()

    value, slopes = fg.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)
    return [value, *slopes]


CHANGED: dict[str, Callable[[], list[fg.Tensor]]] = {
    "a factor times its adjoint": _weighed,
    "scaled": lambda: _weighed(0.3),
    "negated": lambda: _weighed(sign=-1),
    "divided by rows": _divided,
    "a gradient": _gradient,
}


def _large_sums(sink: Node) -> int:
    """Sums that are no products, of matrices."""
    found = [n for n in toposort([sink]) if n.op is REDUCE and n.arg[0] == "add"]
    return sum([elements(n.src[0].shape) in (3 * 40 * 50, 2 * 40 * 50) for n in found])


@pytest.mark.parametrize("name", CHANGED)
def test_a_known_sum_takes_the_place_of_a_sum_over_a_matrix(name: str) -> None:
    sink, _ = lowered(*CHANGED[name]())
    changed = reassociated(sink)
    assert _large_sums(changed) == _large_sums(sink) - 1
    assert [r.shape for r in changed.src] == [r.shape for r in sink.src]


@pytest.mark.parametrize("name", CHANGED)
def test_values_stay_the_same(name: str) -> None:
    def computed(search: bool) -> list[Array]:
        with fg.config(search=search, tier="native"):
            return [np.asarray(t.numpy()) for t in fg.realize(*CHANGED[name]())]

    for a, b in zip(computed(True), computed(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def _others() -> list[fg.Tensor]:
    a, b, g = _factors()
    return [(a + 1) @ b, (a * _adjoint(a, b, g)).sum(axis=-1)]


def _other_axis() -> list[fg.Tensor]:
    a, b, g = _factors()
    return [a @ b, (a * _adjoint(a, b, g)).sum(axis=-2)]


def _more_factors() -> list[fg.Tensor]:
    a, b, g = _factors()
    return [a @ b, (a * _adjoint(a, b, g) * numbers(5, 50)).sum(axis=-1)]


def _not_there() -> list[fg.Tensor]:
    a, b, g = _factors()
    return [(a * _adjoint(a, b, g)).sum(axis=-1)]


@pytest.mark.parametrize("make", [_others, _other_axis, _more_factors, _not_there])
def test_what_is_no_such_sum_stays(make: Callable[[], list[fg.Tensor]]) -> None:
    sink, _ = lowered(*make())
    assert reassociated(sink) is sink


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_rows_are_rounded_where_they_are_used(dtype: str) -> None:
    x = numbers(1, 4, 30).cast(dtype)
    sink, _ = lowered(x.sum(axis=-1) * 2, x @ x.mT)
    sums = [n for n in toposort([reassociated(sink)]) if n.op is REDUCE]
    assert sorted([n.dtype.name for n in sums]) == sorted(["float32", sums[-1].dtype.name])
    made = []
    for search in (False, True):
        with fg.config(tier="native", search=search):
            made.append((x.sum(axis=-1) * 2).cast("float32").numpy())
    np.testing.assert_array_equal(made[0], made[1])


def test_a_sum_of_two_products_is_a_sum_of_each() -> None:
    a, b, c, d = (numbers(i, *shape) for i, shape in enumerate([(30, 1, 20), (1, 40, 20)] * 2))
    sink, _ = lowered((a * b - c * d).sum(axis=-1))
    sums = [n for n in toposort([reassociated(sink)]) if n.op is REDUCE]
    assert len(sums) == 2 and all(is_contraction(n) for n in sums)
    beside, _ = lowered((a * b - c).sum(axis=-1))
    assert reassociated(beside) is beside


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_known_sum_of_small_floats_is_read_as_it_was_rounded(dtype: str) -> None:
    q, k, v, w = (numbers(i, 2, n, 8).astype(dtype) for i, n in ((1, 40), (2, 50), (3, 50), (4, 8)))

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        weights = fg.softmax((q @ k.mT).astype("float32"), axis=-1)
        found = (weights.astype(dtype) @ v @ w).astype("float32")
        return (found * found).sum()

    found = list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))
    sink, _ = lowered(*found)
    assert _large_sums(reassociated(sink)) == _large_sums(sink) - 1
    wide = fg.grad(loss, argnums=(0, 1, 2))(*[t.astype("float64") for t in (q, k, v)])
    for one, exact in zip(found, wide, strict=True):
        error = np.linalg.norm(one.astype("float64").numpy() - exact.numpy())
        assert error < (0.02 if dtype == "bfloat16" else 0.003) * np.linalg.norm(exact.numpy())


def _norm(x: fg.Tensor, scale: fg.Tensor, shift: fg.Tensor) -> fg.Tensor:
    centred = x - x.mean(axis=(0, 2), keepdims=True)
    variance = (centred * centred).mean(axis=(0, 2), keepdims=True)
    return centred * fg.rsqrt(variance + 1e-5) * scale + shift


def _norm_gradients(dtype: str = "float32") -> list[fg.Tensor]:
    x, scale, shift, g = (
        numbers(i, *shape).cast(dtype)
        for i, shape in enumerate([(6, 5, 40), (1, 5, 1), (1, 5, 1), (6, 5, 40)])
    )
    found = fg.vjp(_norm, x + 3, scale, shift)[1](g)
    return list(found)


def _sums_over(sink: Node, size: int) -> list[Node]:
    found = [n for n in toposort([sink]) if n.op is REDUCE and n.arg[0] == "add"]
    return [n for n in found if elements(n.src[0].shape) == size]


def test_gradients_of_a_norm_sum_each_product_once_and_none_waits_for_another() -> None:
    sink, _ = lowered(*_norm_gradients())
    before, after = (_sums_over(s, 6 * 5 * 40) for s in (sink, reassociated(sink)))
    assert len(before) == 6 and len(after) <= 5
    depth = {n: sum([m in after for m in toposort([n])[:-1]]) for n in after}
    assert max(depth.values()) == 1  # all of them need a mean alone


def test_sums_with_invariant_factors_keep_their_values() -> None:
    with fg.config(tier="native"):
        found = [t.numpy() for t in fg.realize(*_norm_gradients())]
    with fg.config(search=False):
        exact = [t.numpy() for t in fg.realize(*_norm_gradients("float64"))]
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_invariant_factors_stay_where_sums_would_not_be_fewer() -> None:
    x, c, d = numbers(1, 4, 50), numbers(2, 4, 1), numbers(3, 4, 1)
    sink, _ = lowered((x * c).sum(axis=1), (x * x * d).sum(axis=1), fg.exp(x).sum(axis=1))
    assert factor_sums(sink, toposort([sink])) is sink
    sink, _ = lowered((x * c).sum(axis=1), (x * d).sum(axis=1), (x * c * d).sum(axis=1))
    assert len(_sums_over(factor_sums(sink, toposort([sink])), 200)) == 1
