"""What folds skip: conditions on indices of every kind leave results as they are."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from tests.graph.searching import numbers, one_fold
from tests.properties import kernels

Condition = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]  # of the places of a query and a key

CONDITIONS: dict[str, Condition] = {
    "not later": lambda i, j: j <= i,
    "earlier": lambda i, j: j < i,
    "not later by much": lambda i, j: j <= i + 170,
    "much earlier": lambda i, j: j + 40 <= i,
    "later": lambda i, j: ~(j <= i),
    "near": lambda i, j: (j <= i) & (i - j < 20),
    "near on both sides": lambda i, j: (j - i <= 9) & (i - j <= 11),
    "far": lambda i, j: (j - i > 50) | (i - j > 50),
    "steep": lambda i, j: 3 * j <= 2 * i + 5,
    "flat": lambda i, j: 2 * i >= j * 5 - 7,
    "towards the end": lambda i, j: i + j >= 260,
    "towards the start": lambda i, j: i + j <= 150,
    "the first ones": lambda i, j: j < 37,
    "the last ones": lambda i, j: j >= 237,
    "nothing": lambda i, j: j < i - 1000,
}


def attended(condition: Condition, rows: int, keys: int, turned: bool = False) -> fg.Tensor:
    q, v = numbers(1, 2, rows, 24), numbers(3, 2, keys, 24)
    k = numbers(2, 2, 24, keys) if turned else numbers(2, 2, keys, 24).mT
    allowed = condition(fg.arange(rows)[:, None], fg.arange(keys)[None, :])
    return fg.softmax(fg.where(allowed, q @ k * 0.3, -inf), axis=-1) @ v


def check(make: Callable[[], fg.Tensor]) -> None:
    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        np.testing.assert_allclose(got, make().numpy(), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("name", CONDITIONS)
def test_any_condition_on_indices_leaves_results_as_they_are(name: str) -> None:
    check(lambda: attended(CONDITIONS[name], 130, 300))


@pytest.mark.parametrize("name", ["not later by much", "near", "the last ones", "nothing"])
def test_few_rows_skip_the_same(name: str) -> None:
    check(lambda: attended(CONDITIONS[name], 5, 900))


@pytest.mark.parametrize("name", ["not later", "near", "towards the end"])
def test_keys_that_are_put_in_order_once_keep_their_blocks(name: str) -> None:
    check(lambda: attended(CONDITIONS[name], 400, 900, turned=True))


STEP = st.integers(-3, 3)


@kernels
@given(STEP, STEP, st.integers(-200, 200), st.sampled_from([1, 20, 150]))
def test_steps_and_offsets_of_any_sign_leave_results_as_they_are(
    up: int, down: int, offset: int, rows: int
) -> None:
    check(lambda: attended(lambda i, j: up * i + offset >= down * j, rows, 170))


@pytest.mark.parametrize("rows", [100, 4])
def test_what_no_row_of_a_tile_needs_is_not_looked_at(rows: int) -> None:
    def make(seen: int, unseen: float) -> np.ndarray:
        values = numbers(3, 300, 24).numpy().copy()
        values[rows:] = unseen
        q, k, v = numbers(1, rows, 24), numbers(2, 300, 24), fg.Tensor(values)
        found = fg.scaled_dot_product_attention(q, k[:seen], v[:seen], is_causal=True)
        return np.asarray(found.numpy())

    with one_fold():
        got = make(300, nan)  # 0 times which would be no number
    with fg.config(device="reference", search=False):
        want = make(rows, 0.0)
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("name", ["not later", "near", "later", "flat"])
def test_gradients_skip_the_same(name: str) -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 2, n, 24) for i, n in ((1, 150), (2, 290), (3, 290), (4, 150)))
        allowed = CONDITIONS[name](fg.arange(150)[:, None], fg.arange(290)[None, :])

        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
            scores = fg.where(allowed, q @ k.mT * 0.3, -1e30)
            return (fg.softmax(scores, axis=-1) @ v * g).sum()

        return list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))

    with fg.config(device="cpu", tier="native", search=True):
        got = [t.numpy() for t in make()]
    with fg.config(device="reference", search=False):
        for one, want in zip(got, make(), strict=True):
            np.testing.assert_allclose(one, want.numpy(), rtol=1e-4, atol=1e-5)
