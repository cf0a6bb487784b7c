"""Folds of few rows, and what they leave where it lies: results as by the reference."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest

import fulgurite as fg
from tests.graph.searching import numbers, one_fold

ODD = (inf, -inf, nan, 0.0, -0.0, 1e30, -1e30)


def check(make: Callable[[], fg.Tensor], rtol: float = 3e-5, **options: object) -> None:
    with one_fold(**options):
        got = make().numpy()
    with fg.config(device="reference", search=False):
        want = make().numpy()
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol / 10 * np.nanmax(np.abs(want)))


def attended(rows: int, keys: int, depth: int, columns: int, dtype: str = "float32") -> fg.Tensor:
    q, k, v = (
        fg.Tensor(numbers(i, 3, *size).numpy().astype(dtype))
        for i, size in enumerate(((rows, depth), (keys, depth), (keys, columns)), 1)
    )
    return fg.softmax(q @ k.mT * 0.3, axis=-1) @ v


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 16, 17])
@pytest.mark.parametrize("size", [(5, 3, 2), (800, 17, 130)], ids=str)
def test_few_rows_are_multiplied_where_they_lie(rows: int, size: tuple[int, int, int]) -> None:
    check(lambda: attended(rows, *size))


@pytest.mark.parametrize("vectors", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize("rows", [1, 4])
def test_few_rows_on_every_target(rows: int, vectors: str) -> None:
    check(lambda: attended(rows, 401, 33, 20), vectors=vectors)


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_few_rows_in_double_precision(rows: int) -> None:
    check(lambda: attended(rows, 500, 70, 9, "float64"), rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 6, 50, 70])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_that_meet_odd_numbers_are_those_of_the_reference(rows: int, name: str) -> None:
    x, w = numbers(1, rows, 8).numpy().copy(), numbers(2, 8, 450).numpy().copy()
    x[:, 0], w[:, ::50], w[1:, ::50] = 1, 0, 0
    w[0, ::50] = [*ODD, 3, 4]  # products of which are the same numbers
    for place in range(0, 450, 50):

        def make(place: int = place) -> fg.Tensor:
            scores = fg.Tensor(x) @ fg.Tensor(w[:, place : place + 49])
            top = getattr(fg, name)(scores, axis=-1, keepdims=True)
            return fg.sum(fg.exp(-fg.abs(scores - top)), axis=-1)

        with fg.config(device="cpu", tier="native", search=True):
            got = make().numpy()
        with fg.config(device="reference", search=False):
            np.testing.assert_allclose(got, make().numpy(), rtol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "size", [(2, 33, 20), (20, 300, 7), (64, 128, 64), (130, 700, 96), (300, 64, 300)], ids=str
)
def test_rows_over_their_mean_are_read_where_they_lie(
    size: tuple[int, int, int], turned: bool
) -> None:
    rows, depth, columns = size

    def make() -> fg.Tensor:
        x = numbers(1, 2, depth, rows).mT if turned else numbers(1, 2, rows, depth)
        return (x / fg.abs(x).mean(axis=-1, keepdims=True)) @ numbers(2, 2, depth, columns)

    check(make)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("vectors", ["avx512", "avx2", "sse2"])
def test_keys_in_pieces_have_room_for_a_whole_block(groups: int, vectors: str) -> None:
    """Few rows, and more pixels in a block than rows in a tile."""

    def make() -> fg.Tensor:
        x, w = numbers(1, 1, groups, 4, 33), numbers(2, 16 * groups, 1, 1, 3)
        found = fg.conv2d(x, w, padding=((1, 0), (1, 4)), groups=groups)
        return fg.relu(found).mean(axis=(2, 3))

    with fg.config(device="cpu", tier="native", search=True, vectors=vectors):
        got = make().numpy()
    with fg.config(device="reference", search=False):
        np.testing.assert_allclose(got, make().numpy(), rtol=1e-5, atol=1e-6)
