"""Gradients of programs nobody thought of: few kernels, and no matrix of rows and keys."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.ir.queries import elements
from tests.graph.attended import MORE_KERNELS, OF_HEADS, ONE_MATRIX, ONE_WALK, Given, asked
from tests.graph.searching import planned

HEADS: list[tuple[int, ...]] = [(), (2, 4)]
EVERY = {**ONE_WALK, **MORE_KERNELS, **OF_HEADS}
WITH_VALUES = {**EVERY, **ONE_MATRIX}


def _given(heads: tuple[int, ...], dtype: str = "float32") -> Given:
    """Sizes at which a matrix does not stay in caches: a small one may be cheaper to keep."""
    return Given(heads, 1030, 1060, 32, dtype)


def _matrices(found: Schedule, given: Given) -> list[object]:
    """Values between kernels that are as large as a matrix of rows and keys."""
    most, results = prod(given.heads) * given.rows * given.keys, set(found.outputs)
    return [
        s.shape for i, s in enumerate(found.slots)
        if s is not None and i >= found.inputs and i not in results and elements(s.shape) >= most
    ]  # fmt: skip


@pytest.mark.device("none")
@pytest.mark.parametrize("forward", [True, False], ids=["with the result", "alone"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_gradients_keep_no_matrix(name: str, heads: tuple[int, ...], forward: bool) -> None:
    if name in OF_HEADS and not heads:
        heads = (1, 3)
    given = _given(heads)
    found, _ = planned(*asked(EVERY[name], given, forward))
    assert not _matrices(found, given)
    if name not in MORE_KERNELS:
        assert len(found.items) <= 4  # the result and three for its gradients


@pytest.mark.device("none")
@pytest.mark.parametrize("forward", [True, False], ids=["with the result", "alone"])
@pytest.mark.parametrize("name", ONE_MATRIX)
def test_what_must_be_read_whole_is_the_only_matrix(name: str, forward: bool) -> None:
    given = _given((4,))
    found, _ = planned(*asked(ONE_MATRIX[name], given, forward))
    assert len(_matrices(found, given)) == 1 and len(found.items) <= 4


def _values(name: str, heads: tuple[int, ...], dtype: str, search: bool) -> list[Array]:
    with fg.config(search=search, tier="native", poison=True):
        found = fg.realize(*asked(WITH_VALUES[name], Given(heads, 50, 70, 16, dtype), True))
        return [np.asarray(t.cast(fg.float64).numpy()) for t in found]


def _check(name: str, heads: tuple[int, ...], dtype: str, eps: float) -> None:
    wanted = _values(name, heads, "float64", search=False)
    for got, exact in zip(_values(name, heads, dtype, search=True), wanted, strict=True):
        assert got.shape == exact.shape and np.isfinite(got).all()
        most = np.abs(exact).max()
        np.testing.assert_allclose(got, exact, rtol=1e4 * eps, atol=200 * eps * most)


COMPUTED = [
    "less the largest", "powers of two", "less a logarithm by hand", "sliding window",
    "mask after, divided again", "mask of powers", "learned bias of keys", "learned scale",
    "squares", "gate", "less the largest, divided last", "with a penalty of entropy",
    "unit vectors", "heads taken apart", "an end beside the scores", "an end by hand",
    "one more in the sum", "difference of two", "two values", "three products",
    *ONE_MATRIX,
]  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_gradients_are_those_of_float64(name: str) -> None:
    heads = (1, 2) if name in OF_HEADS else (2,)
    _check(name, heads, "float32", float(np.finfo(np.float32).eps))


@pytest.mark.device("none")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["less the largest", "causal", "an end by hand", "gate"])
def test_gradients_of_small_floats_keep_no_matrix(name: str, dtype: str) -> None:
    given = _given((4,), dtype)
    assert not _matrices(planned(*asked(EVERY[name], given, True))[0], given)
