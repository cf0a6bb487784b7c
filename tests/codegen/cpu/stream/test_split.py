"""Split folds: parts of the streamed axis that are merged give what one pass gives."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from tests.codegen.cpu.stream.streaming import plans
from tests.graph.searching import numbers, one_fold

Make = Callable[[], fg.Tensor]


def _values(make: Make, **options: object) -> tuple[Array, int]:
    """A program's values by a fold, and into how many parts it was split."""
    with one_fold(**options), plans() as seen:
        found = np.asarray(make().numpy())
    assert len(seen) == 1
    return found, seen[0].splits


def _plain(make: Make) -> Array:
    with fg.config(device="reference", search=False):
        return np.asarray(make().numpy())


def _attention(rows: int, keys: int, heads: int = 1, size: int = 24) -> fg.Tensor:
    q, k, v = (numbers(i, heads, n, size) for i, n in ((1, rows), (2, keys), (3, keys)))
    return fg.softmax(q @ k.mT * 0.3, axis=-1) @ v


def _smoothed(rows: int) -> fg.Tensor:
    scores = numbers(1, rows, 20) @ numbers(2, 20, 3001)
    return fg.log_softmax(scores, axis=-1).mean(axis=-1)


def _divergence(rows: int) -> fg.Tensor:
    a, b = (numbers(1, rows, 20) @ numbers(i, 3001, 20).mT for i in (2, 3))
    logs = fg.log_softmax(a, axis=-1) - fg.log_softmax(b, axis=-1)
    return (fg.softmax(a, axis=-1) * logs).sum(axis=-1)


PROGRAMS: dict[str, Make] = {
    "one query": lambda: _attention(1, 3001),
    "a few queries": lambda: _attention(5, 2500, 2),
    "a tile of queries": lambda: _attention(40, 1999),
    "two tiles of queries": lambda: _attention(150, 2000),
    "smoothed losses": lambda: _smoothed(30),
    "a divergence": lambda: _divergence(50),
    "what follows": lambda: _attention(3, 2000) * numbers(4, 24) + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("vectors", ["", "avx2"])
def test_parts_give_what_one_pass_gives(name: str, vectors: str) -> None:
    got, splits = _values(PROGRAMS[name], **({"vectors": vectors} if vectors else {}))
    assert splits > 1
    np.testing.assert_allclose(got, _plain(PROGRAMS[name]), rtol=1e-4, atol=3e-6)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    found = {_values(PROGRAMS["a few queries"], threads=n)[0].tobytes() for n in (1, 2, 3)}
    assert len(found) == 1


@pytest.mark.parametrize("odd", [nan, inf, -inf])
@pytest.mark.parametrize("keys", [slice(0, 1), slice(1999, 2000), slice(0, 1000), slice(0, 2000)])
@pytest.mark.parametrize("rows", [1, 33])
def test_odd_scores_in_one_part_end_as_they_do_in_one_pass(
    odd: float, keys: slice, rows: int
) -> None:
    bias = np.zeros((rows, 2000), np.float32)
    bias[0, keys] = odd

    def make() -> fg.Tensor:
        scores = numbers(1, rows, 8) @ numbers(2, 2000, 8).mT + fg.Tensor(bias)
        return fg.softmax(scores, axis=-1) @ numbers(3, 2000, 5)

    got, splits = _values(make)
    assert splits > 1
    np.testing.assert_allclose(got, _plain(make), rtol=1e-4, atol=3e-6)


def test_what_skips_blocks_and_what_has_many_tiles_is_not_split() -> None:
    def causal() -> fg.Tensor:
        q, k, v = (numbers(i, 1, 60, 16) for i in (1, 2, 3))
        return fg.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert _values(causal)[1] == 1
    assert _values(lambda: _attention(150, 1000, 8))[1] == 1


@pytest.mark.parametrize("size", [64, 2000])
def test_one_query_is_as_exact_as_the_reference(size: int) -> None:
    def make(dtype: str) -> fg.Tensor:
        q, k, v = (numbers(i, 2, n, 64).cast(dtype) for i, n in ((1, 1), (2, size), (3, size)))
        return fg.softmax(q @ k.mT * 0.125, axis=-1) @ v

    got = _values(lambda: make("float32"))[0]
    with fg.config(device="reference", search=False):
        known, exact = make("float32").numpy(), make("float64").numpy()
    errors = [float(np.sqrt(np.mean((x - exact) ** 2))) for x in (got, known)]
    assert errors[0] <= 1.5 * errors[1]
