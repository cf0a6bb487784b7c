"""What an extreme of products passes on goes to the element that is it, however kernels are cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import free_axes
from fulgurite.kernel.stream.bit_stable import bit_stable
from fulgurite.kernel.stream.transposed import outermost_folds
from tests.graph.searching import error, lowered, numbers

Two = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]


def _root(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    return x * fg.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


def _powers(s: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.exp(s - s.max(axis=-1, keepdims=True)) @ v


def _weights(s: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.softmax(s, axis=-1) @ v + s.min(axis=-1, keepdims=True)


def _shares(s: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return (s / (s.max(axis=-1, keepdims=True) + 10)) @ v


FACTORS: dict[str, Two] = {"roots of squares": _root, "scaled": lambda x, w: x * w}
PROGRAMS: dict[str, Two] = {"powers": _powers, "weights": _weights, "shares": _shares}


def _compare(make: Callable[[str], list[fg.Tensor]]) -> None:
    with fg.config(device="reference", search=False):
        exact = [np.asarray(t.numpy()) for t in make("float64")]
    with fg.config(device="cpu", tier="native", search=True):
        found = [np.asarray(t.numpy()) for t in fg.realize(*make("float32"))]
    for a, b in zip(found, exact, strict=True):
        assert error(a, b) <= 1e-4 * float(np.sqrt(np.mean(b**2)))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_largest_of_products_of_scaled_factors_is_found_again(
    program: str, factor: str
) -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        scaled = FACTORS[factor]
        w = (numbers(4, 16) * 0.1 + 1).cast(dtype)

        def loss(
            q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, w: fg.Tensor, t: fg.Tensor
        ) -> tuple[fg.Tensor, fg.Tensor]:
            found = PROGRAMS[program](scaled(q, w) @ scaled(k, w).mT * 0.25 * t, v)
            return (found * numbers(5, 2, 130, 16).cast(dtype)).sum(), found

        q, k, v = (numbers(i, 2, n, 16).cast(dtype) for i, n in ((1, 130), (2, 257), (3, 257)))
        t = fg.Tensor(np.full(1, 0.93, dtype))
        (_, found), slopes = fg.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True)(q, k, v, w, t)
        return [found, *slopes]

    _compare(make)


def test_the_least_of_plain_products_is_found_again() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
            found = _weights(q @ k.mT * 0.18, v)
            return (found * numbers(5, 100, 16).cast(dtype)).sum(), found

        shapes = (1, (100, 32)), (2, (64, 32)), (3, (64, 16))
        leaves = [numbers(i, *shape).cast(dtype) for i, shape in shapes]
        (_, found), slopes = fg.value_and_grad(loss, (0, 1, 2), has_aux=True)(*leaves)
        return [found, *slopes]

    _compare(make)


def test_every_product_has_a_stand_in_of_its_own() -> None:
    q, k, others = numbers(1, 20, 8), numbers(2, 30, 8), numbers(3, 30, 8)
    first, second = q @ k.mT, q @ others.mT
    every = fg.exp(first) + fg.exp(second) + fg.tanh(first) + fg.tanh(second)
    values = [store.src[0] for store in lower(*lowered(every.sum(axis=-1))).body.src]
    (fold,) = outermost_folds(values[0])
    found = bit_stable(values, fold.arg[1], free_axes(toposort(values)))
    assert len(found) == len(set(found.values())) == 2


def test_functions_of_a_product_and_of_its_half_are_told_apart() -> None:
    # both are asked for several times, and each is what it was
    def make(dtype: str) -> list[fg.Tensor]:
        def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
            s = x @ w
            apart = fg.log_softmax(s, axis=-1) - fg.log_softmax(s * 0.5, axis=-1)
            return (fg.softmax(s, axis=-1) * apart).sum()

        given = numbers(1, 64, 8).cast(dtype), numbers(2, 8, 600).cast(dtype)
        return list(fg.grad(loss, argnums=(0, 1))(*given))

    _compare(make)


def test_products_that_are_compared_twice_stay_apart() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        def loss(q: fg.Tensor, k: fg.Tensor) -> fg.Tensor:
            return fg.logsumexp(fg.maximum(q @ k.mT * 0.35, -0.5), axis=-1).sum()

        q, k = (numbers(i, n, 8).cast(dtype) for i, n in ((1, 16), (2, 17)))
        return list(fg.grad(loss, (0, 1))(q, k))

    _compare(make)


def test_all_but_the_largest_of_scaled_products_are_found_again() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        q, k, v = (numbers(i, n, 16).cast(dtype) for i, n in ((1, 60), (2, 40), (3, 40)))
        scores = (q * 1.3) @ (k * 0.7).mT * 0.3
        return [fg.where(scores != scores.max(axis=-1, keepdims=True), scores, -1.0) @ v]

    _compare(make)


def test_the_largest_of_distances_is_found_again_in_one_kernel() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        def loss(q: fg.Tensor, k: fg.Tensor) -> fg.Tensor:
            apart = ((q[:, None, :3] - k[None, :, :3]) ** 2).sum(axis=-1)
            near = fg.softplus(-apart)
            near = near - near.max(axis=-1, keepdims=True).detach()
            near = near - near.max(axis=-1, keepdims=True)
            return (near * near * numbers(3, 40, 16).cast(dtype).sum()).sum()

        q, k = (numbers(i, n, 16).cast(dtype) for i, n in ((1, 60), (2, 40)))
        return list(fg.grad(loss, (0, 1))(q, k))

    _compare(make)


def test_the_largest_of_shares_times_factors_is_found_again() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        def loss(
            q: fg.Tensor, k: fg.Tensor, end: fg.Tensor, w: fg.Tensor, m: fg.Tensor
        ) -> tuple[fg.Tensor, fg.Tensor]:
            scores = fg.concatenate([end.expand((2, 1, 1)), q @ k.mT], axis=-1)
            shares = fg.softmax(scores, axis=-1)[..., 1:].mT @ w
            found = (shares - shares.max(axis=-2, keepdims=True)) @ m
            return (found * numbers(5, 2, 16, 4).cast(dtype)).sum(), found

        shapes = ((2, 1, 4), (2, 16, 4), (1, 1, 1), (2, 1, 4), (4, 4))
        leaves = [numbers(i, *shape).cast(dtype) for i, shape in enumerate(shapes)]
        (_, found), slopes = fg.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True)(*leaves)
        return [found, *slopes]

    _compare(make)


def test_a_difference_from_the_largest_that_is_nothing_is_found() -> None:
    def make(dtype: str) -> list[fg.Tensor]:
        q, k, v = (numbers(i, n, 16).cast(dtype) for i, n in ((1, 60), (2, 40), (3, 40)))
        s = (q * 1.3) @ (k * 0.7).mT * 0.3
        return [fg.where((s - s.max(axis=-1, keepdims=True)) == 0, 1.0, 0.0).cast(dtype) @ v]

    _compare(make)
