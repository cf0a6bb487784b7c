"""Crossed sums in native code: results over both axes of one product, from one walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.stream.plan import StreamPlan
from fulgurite.core.op import Array
from tests.codegen.cpu.stream.streaming import plans, problem_of
from tests.graph.searching import (
    ATTENTION,
    error,
    numbers,
    one_fold,
    same_kind,
    scarce_memory,
    two_ways,
)
from tests.properties import kernels

Make = Callable[[], Sequence[fg.Tensor]]
NATIVE = {"device": "cpu", "tier": "native", "search": True, "disk_cache": False, "poison": True}


def by_fold(make: Make, **options: object) -> tuple[list[Array], StreamPlan]:
    """A program's values by one kernel with transposed sums, and its plan; memory is garbage."""
    assert problem_of(*make()).transposed
    with one_fold(poison=True, **options), plans() as seen:
        with fg.config(poison=True):
            found = list(make())
            fg.realize(*found)
        values = [np.asarray(t.numpy()) for t in found]
    assert len(seen) == 1
    return values, seen[0]


def plain(make: Make) -> list[Array]:
    with fg.config(device="reference", search=False):
        return [np.asarray(t.numpy()) for t in make()]


def near(got: Sequence[Array], want: Sequence[Array], tolerance: float = 1e-5) -> None:
    for a, b in zip(got, want, strict=True):
        assert same_kind(a, b)
        both = np.isfinite(b)
        scale = float(np.abs(b[both]).max(initial=1e-30))
        np.testing.assert_allclose(a[both], b[both], rtol=10 * tolerance, atol=tolerance * scale)


def crossing(
    heads: int, rows: int, keys: int, size: int, wide: int, other: int, *, dtype: str = "float32"
) -> list[fg.Tensor]:
    """Weights times values, and the same weights turned times others."""
    q, k, v, g = two_ways(heads, rows, keys, size, wide, other, dtype)
    w = fg.tanh(q @ k.mT * 0.3)
    return [w @ v, (w * 2).mT @ g, w.mT @ (g + 1)]


SIZES = [(2, 3, 5, 4, 3, 6), (1, 129, 16, 5, 2, 65), (3, 145, 260, 33, 48, 20), (1, 2, 2, 2, 2, 2),
         (2, 300, 20, 8, 70, 16), (5, 17, 130, 300, 16, 33), (9, 64, 64, 16, 16, 16)]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_odd_sizes_give_the_reference_values(size: tuple[int, ...]) -> None:
    near(by_fold(lambda: crossing(*size))[0], plain(lambda: crossing(*size)))


@settings(kernels, derandomize=True)
@given(st.tuples(*[st.integers(2, n) for n in (3, 150, 150, 20, 50, 50)]))
def test_any_size_gives_the_reference_values(size: tuple[int, ...]) -> None:
    near(by_fold(lambda: crossing(*size))[0], plain(lambda: crossing(*size)))


@pytest.mark.parametrize("vectors", ["avx2", "sse2"])
def test_every_target_gives_the_reference_values(vectors: str) -> None:
    size = (2, 70, 131, 20, 33, 40)
    near(by_fold(lambda: crossing(*size), vectors=vectors)[0], plain(lambda: crossing(*size)))


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_bits_do_not_depend_on_the_number_of_threads(heads: int) -> None:
    def make() -> list[fg.Tensor]:
        return crossing(heads, 200, 210, 16, 24, 32)

    first, plan = by_fold(make, threads=1)
    assert plan.m_parts == {1: 4, 3: 2, 8: 1}[heads]  # follows from sizes alone
    for threads in (2, 3):
        found, _ = by_fold(make, threads=threads)
        assert [a.tobytes() for a in first] == [a.tobytes() for a in found]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes_are_as_exact_as_they_can_be(dtype: str) -> None:
    def make() -> list[fg.Tensor]:
        return crossing(2, 70, 90, 16, 20, 24, dtype=dtype)

    got = [a.astype(np.float64) for a in by_fold(make)[0]]
    want = [a.astype(np.float64) for a in plain(make)]
    near(got, want, {"float64": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}[dtype])


def test_factors_that_lie_the_other_way_are_packed() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 2, 20, n).mT for i, n in ((1, 90), (2, 140), (3, 140), (4, 90)))
        w = fg.exp(-((q @ k.mT) ** 2))
        return [w @ (v * 2 + 1), w.mT @ g]

    near(by_fold(make)[0], plain(make))


def test_results_are_worked_out_from_the_sums() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 3, n, 16) for i, n in ((1, 150), (2, 170), (3, 170), (4, 150)))
        w = fg.sigmoid(q @ k.mT)
        crossed = (w.mT @ g) * 3 + k
        return [(w @ v) * q, (w.mT @ q), fg.tanh(crossed).mT]

    near(by_fold(make)[0], plain(make))


def test_several_streamed_axes() -> None:
    """Heads that share keys, with memory in which heads are inside."""

    def make() -> list[fg.Tensor]:
        q, g = (numbers(i, 2, 50, 3, 16).permute((0, 2, 1, 3)) for i in (1, 4))
        k, v = numbers(2, 2, 1, 70, 16), numbers(3, 2, 1, 70, 16)
        w = fg.tanh(q @ k.mT * 0.2)
        turned = w.reshape((2, 150, 70)).mT
        return [w @ v, turned @ g.reshape((2, 150, 16)), turned @ q.reshape((2, 150, 16))]

    near(by_fold(make)[0], plain(make))


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_odd_numbers_end_where_they_do_in_the_reference(odd: float) -> None:
    a = numbers(1, 2, 90, 8).numpy().copy()
    a[1, 37, 3] = odd

    def make() -> list[fg.Tensor]:
        q, k, v, g = fg.Tensor(a), numbers(2, 2, 70, 8), numbers(3, 2, 70, 8), numbers(4, 2, 90, 8)
        w = fg.relu(q @ k.mT)
        return [w @ v, w.mT @ g]

    with np.errstate(invalid="ignore"):
        near(by_fold(make)[0], plain(make))


@pytest.mark.parametrize("reach", [1, 40, 500])
def test_blocks_that_are_left_out_are_zeros_in_sums_over_the_rows(reach: int) -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 1, n, 16) for i, n in ((1, 400), (2, 300), (3, 300), (4, 400)))
        rows, keys = fg.arange(400)[:, None], fg.arange(300)[None, :]
        near = (keys + 20 <= rows) & (rows - keys < reach)  # the first rows and last keys: nothing
        w = fg.where(near, q @ k.mT, 0.0)
        return [w @ v, w.mT @ g]

    near(by_fold(make)[0], plain(make))


# --- gradients -----------------------------------------------------------------------------------


def gradients(name: str, q: int, k: int, size: int, dtype: str) -> list[fg.Tensor]:
    """A program of three operands and its gradients."""
    given = [numbers(i, 4, n, size).cast(dtype) for i, n in ((1, q), (2, k), (3, k))]
    program = ATTENTION[name]
    seed = numbers(4, *program(*given).shape).cast(dtype)

    def loss(*given: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        found = program(*given)
        return (found * seed).sum(), found

    (_, found), grads = fg.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*given)
    return [found, *grads]


# a maximum that is written out has a gradient of its own, which needs the scores
VARIANTS = [name for name in ATTENTION if name not in ("one query", "exp2")]


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_have_no_matrix_of_scores_and_are_as_exact_as_the_reference(name: str) -> None:
    rows, keys = (100, 100) if "causal" in name or "window" in name else (100, 131)
    with scarce_memory(), fg.config(**NATIVE):
        made = gradients(name, rows, keys, 16, "float32")
        report = fg.explain(*made)
        assert [k.kind for k in report.kernels if k.kind not in ("map", "reduce")] == ["fold"] * 2
        got = [t.numpy() for t in made]
    with fg.config(device="reference", search=False):
        known = [t.numpy() for t in gradients(name, rows, keys, 16, "float32")]
        exact = [t.numpy() for t in gradients(name, rows, keys, 16, "float64")]
    for a, b, c in zip(got, known, exact, strict=True):
        assert a.shape == c.shape and same_kind(a, c)
        assert error(a, c) <= 1.5 * error(b, c)


def test_rows_that_see_nothing_have_the_gradients_of_the_reference() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v = (numbers(i, 2, 150, 16) for i in (1, 2, 3))
        rows, keys = fg.arange(150)[:, None], fg.arange(150)[None, :]
        mask = (keys <= rows) & (rows > 70) & (keys != 3)

        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
            weights = fg.softmax(fg.where(mask, q @ k.mT, -1e30), axis=-1)
            return (fg.where(mask, weights, 0.0) @ v * numbers(4, 2, 150, 16)).sum()

        return list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))

    with scarce_memory(), fg.config(**NATIVE):
        got = [t.numpy() for t in make()]
    near(got, plain(make))
