"""Tests of kernel/stream/peel.py: what differs at the ends of a fold is worked out by itself."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.elementwise import WHERE
from fulgurite.core.ops.index import FOLD, LOAD, STORE
from fulgurite.core.ops.leaf import SINK
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.stream.axis_names import separate_folds
from fulgurite.kernel.stream.peel import peel
from fulgurite.runtime.host.index_interpreter import Runner
from tests.graph.searching import error, lowered, numbers, one_fold, same_kind
from tests.properties import program


def cut_off(result: fg.Tensor) -> tuple[list[Node], list[int]]:
    """The nodes of a tensor's kernel with ends cut off, and the sizes of its axes."""
    sink, inputs = lowered(result)
    kernel = lower(sink, inputs)
    stores, sizes = peel(
        *separate_folds(kernel.body.src, [n for n in kernel.axes if isinstance(n, int)])
    )
    return toposort(stores), sizes


def folded(result: fg.Tensor) -> list[int]:
    """The lengths of all folds."""
    order, sizes = cut_off(result)
    return [sizes[axis] for n in order if n.op is FOLD for axis in n.arg[1]]


def test_a_number_put_at_the_end_of_a_row_is_joined_with_the_fold_of_the_row() -> None:
    rows, end = numbers(1, 5, 11), numbers(2, 5, 1)
    for parts in ([rows, end], [end, rows]):
        order, sizes = cut_off(fg.concatenate(parts, axis=-1).max(axis=-1))
        assert [sizes[a] for n in order if n.op is FOLD for a in n.arg[1]] == [11]
        assert not any(n.op is WHERE or (n.op is LOAD and n.arg[2]) for n in order)


def test_what_has_no_ends_of_few_elements_stays() -> None:
    x, y = numbers(1, 5, 11), numbers(2, 5, 7)
    assert folded(fg.concatenate([x, y], axis=-1).sum(axis=-1)) == [18]
    assert folded(fg.where(fg.arange(11) < fg.arange(5)[:, None], x, 0.0).sum(axis=-1)) == [11]
    assert folded(x.sum(axis=-1)) == [11]
    assert folded(fg.where(fg.arange(11) // 4 < 2, x, 0.0).sum(axis=-1)) == [11]


def test_distances_of_few_dimensions_are_written_out_inside_a_fold() -> None:
    x, y = numbers(1, 20, 3), numbers(2, 30, 3)
    apart = x[:, None] - y[None]
    assert folded(fg.exp(-(apart * apart).sum(axis=-1)).sum(axis=-1)) == [30]
    assert folded((apart * apart).sum(axis=-1)) == [3]  # inside nothing
    assert sorted(folded(fg.exp(x @ y.mT).sum(axis=-1))) == [3, 30]  # a product of two sides


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_smoother_over_points_is_one_fold_and_as_exact_as_the_reference(size: int) -> None:
    def make(dtype: str) -> fg.Tensor:
        x, y, v = (
            numbers(i, *n).cast(dtype) for i, n in enumerate(((40, size), (130, size), (130, 9)))
        )
        weights = fg.exp(-((x[:, None] - y[None]) ** 2).sum(axis=-1) / 2)
        return weights @ v / weights.sum(axis=-1, keepdims=True)

    with one_fold():
        got = make("float32").numpy()
    with fg.config(device="reference", search=False):
        known, exact = make("float32").numpy(), make("float64").numpy()
    assert error(got, exact) <= 1.5 * error(known, exact) + 1e-7


@pytest.mark.parametrize("most", [1, 23, 24, 30])
def test_two_axes_that_follow_each_other_are_one_line(most: int) -> None:
    x, place = numbers(1, 5, 6, 4), fg.arange(24).reshape((6, 4))
    rows = fg.where(place < most, x, 0.5)
    assert folded(x.max(axis=(1, 2))) == [24]
    assert folded(fg.where(place[None] == 2, x, 0).max(axis=(1, 2))) == [24]
    assert folded((x * numbers(2, 6, 1)).max(axis=(1, 2))) == [6, 4]
    order, sizes = cut_off(rows.sum(axis=(1, 2)))
    out = np.full(5, np.nan, np.float32)
    stores = [n for n in order if n.op is STORE]
    Runner(IndexKernel(tuple(sizes), SINK(*stores), 0)).run([x.numpy().reshape(-1), out], {})
    with fg.config(device="reference", search=False):
        np.testing.assert_allclose(out, rows.sum(axis=(1, 2)).numpy(), rtol=1e-5, atol=1e-5)


@program
@given(
    length=st.integers(2, 9), before=st.integers(0, 3), after=st.integers(0, 3),
    how=st.sampled_from(["sum", "max", "min"]), at=st.integers(-2, 10),
)  # fmt: skip
def test_values_stay_the_same(length: int, before: int, after: int, how: str, at: int) -> None:
    x = fg.pad(numbers(1, 3, length), ((0, 0), (before, after)))
    place = fg.arange(length + before + after)
    whole = getattr(fg.where(place <= at, x + 1, fg.where(place == at + 2, 7.0, x)), how)(axis=-1)
    sink, inputs = lowered(whole)
    kernel = lower(sink, inputs)
    stores, sizes = peel(
        *separate_folds(kernel.body.src, [n for n in kernel.axes if isinstance(n, int)])
    )
    found = []
    for body, axes in ((kernel.body.src, kernel.axes), (stores, tuple(sizes))):
        out = np.full(3, np.nan, np.float32)
        plain = IndexKernel(axes, kernel.body.op(*body), 0)
        Runner(plain).run([numbers(1, 3, length).numpy().reshape(-1), out], {})
        found.append(out)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


HOSTILE: dict[str, Callable[[np.ndarray, np.ndarray], object]] = {
    "nothing special": lambda s, end: None,
    "rows that see nothing": lambda s, end: s.__setitem__(np.s_[::3], -inf),
    "nothing anywhere": lambda s, end: [a.__setitem__(np.s_[:], -inf) for a in (s, end)],
    "an infinite end": lambda s, end: end.__setitem__(0, inf),
    "infinite scores": lambda s, end: s.__setitem__((1, 4), inf),
    "not numbers": lambda s, end: s.__setitem__((2, 9), np.nan),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rows_with_an_end_give_what_the_plain_plan_gives(name: str) -> None:
    scores, end, values = (np.array(numbers(i, *n).numpy()) for i, n in
                           enumerate(((20, 130), (20, 1), (130, 9))))  # fmt: skip
    HOSTILE[name](scores, end)

    def make() -> fg.Tensor:
        rows = fg.concatenate([fg.Tensor(scores), fg.Tensor(end)], axis=-1)
        return fg.softmax(rows, axis=-1)[:, :-1] @ fg.Tensor(values)

    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        want = make().numpy()
    assert same_kind(got, want)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
