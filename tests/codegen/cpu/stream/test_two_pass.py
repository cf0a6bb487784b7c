"""Strips in native code: crossed sums of weights that need a whole row, from one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.stream.plan import StreamPlan
from fulgurite.core.op import Array
from tests.codegen.cpu.stream.streaming import plans
from tests.codegen.cpu.stream.test_transposed import near, plain
from tests.graph.searching import error, numbers, one_fold, same_kind, two_ways
from tests.properties import kernels

Make = Callable[[], Sequence[fg.Tensor]]
SMALL: dict[str, Any] = {
    "min_strip_m": 16,
    "max_strip_m": 32,
    "min_strip_split_n": 48,
    "strip_splits": 4,
    "strip_block_n": 24,
}  # many strips, parts, blocks


def by_strips(make: Make, **options: object) -> tuple[list[Array], StreamPlan]:
    """A program's values by one kernel in small strips, and its plan; memory is garbage."""
    with one_fold(**options), plans(**SMALL) as seen, fg.config(poison=True):
        found = list(make())
        fg.realize(*found)
        values = [np.asarray(t.numpy()) for t in found]
    assert len(seen) == 1 and seen[0].strips > 1
    return values, seen[0]


def weighed(
    heads: int, rows: int, keys: int, size: int, wide: int, other: int, *, dtype: str = "float32"
) -> list[fg.Tensor]:
    """Weights that sum to one along rows, times values, and turned times values of rows."""
    q, k, v, g = two_ways(heads, rows, keys, size, wide, other, dtype)
    s = q @ k.mT * 0.3
    w = fg.softmax(s, axis=-1)
    return [w @ v, w.mT @ g, fg.logsumexp(s, axis=-1)]


def layer(
    rows: int, size: int, count: int, turned: bool = False, dtype: str = "float32"
) -> list[fg.Tensor]:
    """The losses of a linear layer with classes, and its gradients."""
    shapes = (1, (rows, size)), (2, (size, count) if turned else (count, size)), (3, (rows,))
    x, w, g = (numbers(i, *shape).cast(dtype) for i, shape in shapes)
    places = np.random.default_rng(5).integers(0, count, rows)
    places[::7] = -100  # rows that do not count

    def loss(x: fg.Tensor, w: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        each = fg.cross_entropy(x @ (w if turned else w.mT), fg.Tensor(places), reduction="none")
        return (each * g).sum() / (fg.Tensor(places) != -100).sum(), each

    (_, each), grads = fg.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, w)
    return [each, *grads]


SIZES = [(1, 64, 48, 4, 3, 16), (2, 70, 131, 20, 33, 32), (3, 145, 260, 33, 48, 16),
         (1, 200, 49, 300, 16, 64), (2, 65, 200, 8, 600, 528)]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_odd_sizes_give_the_reference_values(size: tuple[int, ...]) -> None:
    near(by_strips(lambda: weighed(*size))[0], plain(lambda: weighed(*size)))


@settings(kernels, derandomize=True)
@given(st.integers(64, 150), st.tuples(*[st.integers(2, n) for n in (150, 20, 50)]))
def test_any_size_gives_the_reference_values(rows: int, size: tuple[int, int, int]) -> None:
    def make() -> list[fg.Tensor]:
        return weighed(2, rows, *size, 16)

    near(by_strips(make)[0], plain(make))


@pytest.mark.parametrize("vectors", ["avx2", "sse2"])
def test_every_target_gives_the_reference_values(vectors: str) -> None:
    size = (2, 70, 131, 20, 33, 48)
    near(by_strips(lambda: weighed(*size), vectors=vectors)[0], plain(lambda: weighed(*size)))


@pytest.mark.parametrize("heads", [1, 3])
def test_bits_do_not_depend_on_the_number_of_threads(heads: int) -> None:
    def make() -> list[fg.Tensor]:
        return weighed(heads, 150, 210, 16, 24, 32)

    first, plan = by_strips(make, threads=1)
    assert plan.splits == {1: 4, 3: 2}[heads]  # follows from sizes alone
    for threads in (2, 3):
        found, _ = by_strips(make, threads=threads)
        assert [a.tobytes() for a in first] == [a.tobytes() for a in found]


def test_numbers_of_64_bits_are_as_exact_as_they_can_be() -> None:
    size = (2, 70, 90, 16, 20, 32)
    got, want = (
        f(lambda: weighed(*size, dtype="float64")) for f in (lambda make: by_strips(make)[0], plain)
    )
    near(got, want, 1e-14)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [(100, 16, 131), (257, 32, 300), (70, 272, 90)], ids=str)
def test_losses_and_gradients_of_a_layer_are_as_exact_as_the_reference(
    size: tuple[int, int, int], turned: bool
) -> None:
    got, _ = by_strips(lambda: layer(*size, turned))
    known = plain(lambda: layer(*size, turned))
    exact = plain(lambda: layer(*size, turned, "float64"))
    for a, b, c in zip(got, known, exact, strict=True):
        assert a.shape == c.shape and same_kind(a, c)
        assert error(a, c) <= 1.5 * error(b, c) + 2e-8  # a BLAS may have a tenth of an ulp


def test_gradients_of_products_weighed_by_products_are_one_kernel() -> None:
    """Two products inside, both kept, three results, two of them crossed."""

    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 2, n, 16) for i, n in ((1, 90), (2, 70), (3, 70), (4, 90)))

        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
            return (fg.softmax(q @ k.mT * 0.3, axis=-1) @ v * g).sum()

        return list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))

    near(by_strips(make)[0], plain(make))


def test_results_are_worked_out_from_the_sums_by_the_last_strip() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 3, n, 16) for i, n in ((1, 150), (2, 170), (3, 170), (4, 150)))
        s = q @ k.mT
        w = s / fg.sqrt((s * s).sum(axis=-1, keepdims=True) + 1)
        return [(w @ v) * q, fg.tanh((w.mT @ g) * 3 + k)]

    near(by_strips(make)[0], plain(make))


def test_states_are_those_at_the_end_of_a_row() -> None:
    """Sums that no repair could mend: what is above half of the maximum."""

    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 1, n, 16) for i, n in ((1, 100), (2, 170), (3, 170), (4, 100)))
        s = q @ k.mT
        w = fg.maximum(s - s.max(axis=-1, keepdims=True) * 0.5, 0)
        return [w @ v, w.mT @ g, s.max(axis=-1)]

    near(by_strips(make)[0], plain(make))


def test_factors_that_lie_the_other_way_are_packed() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 2, 32, n).mT for i, n in ((1, 90), (2, 140), (3, 140), (4, 90)))
        w = fg.softmax(q @ k.mT * 0.2, axis=-1)
        return [w @ (v * 2 + 1), w.mT @ (g + 1)]

    near(by_strips(make)[0], plain(make))


@pytest.mark.parametrize("other", [3, 16, 33, 70])
def test_results_that_lie_along_the_streamed_axis_are_turned(other: int) -> None:
    def make() -> list[fg.Tensor]:
        shapes = (1, (90, 16)), (2, (140, 16)), (3, (140, 16)), (4, (90, other)), (5, (other, 140))
        q, k, v, g, h = (numbers(i, 2, *shape) for i, shape in shapes)
        w = fg.softmax(q @ k.mT * 0.2, axis=-1)
        return [w @ v, g.mT @ w, (g.mT @ w) * 2 + h]

    near(by_strips(make)[0], plain(make))


def test_a_matrix_that_lies_along_the_streamed_axis_is_turned() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 2, n, 16) for i, n in ((1, 90), (2, 140), (3, 140), (4, 90)))
        w = fg.softmax(q @ k.mT * 0.2 + numbers(5, 2, 90, 140), axis=-1)
        return [w @ v, w.mT @ g]

    near(by_strips(make)[0], plain(make))


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_odd_numbers_end_where_they_do_in_the_reference(odd: float) -> None:
    a = numbers(1, 2, 90, 8).numpy().copy()
    a[1, 37, 3] = odd

    def make() -> list[fg.Tensor]:
        q, k, v = fg.Tensor(a), numbers(2, 2, 70, 8), numbers(3, 2, 70, 8)
        w = fg.softmax(q @ k.mT, axis=-1)
        return [w @ v, w.mT @ numbers(4, 2, 90, 16)]

    with np.errstate(invalid="ignore"):
        near(by_strips(make)[0], plain(make))


def test_rows_that_see_nothing_add_nothing() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 1, n, 16) for i, n in ((1, 90), (2, 140), (3, 140), (4, 90)))
        seen = fg.Tensor(np.random.default_rng(3).random((90, 140)) < 0.3) & (
            fg.arange(90)[:, None] % 5 != 0
        )
        s = fg.where(seen, q @ k.mT, -1e30)
        w = fg.where(seen, fg.softmax(s, axis=-1), 0.0)
        return [w @ v, w.mT @ g]

    near(by_strips(make)[0], plain(make))
