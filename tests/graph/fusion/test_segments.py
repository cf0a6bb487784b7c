"""What pieces are: which values are walked, and how much memory an order of pieces needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core.node import Node
from fulgurite.graph.fusion.segments import Piece, Pieces
from fulgurite.graph.ir.queries import elements
from fulgurite.runtime.pipeline import searcher
from tests.graph.scheduling import schedule
from tests.graph.searching import lowered, numbers

pytestmark = pytest.mark.device("none")


def _pieces(*asked: fg.Tensor, then: Callable[[Pieces], list[Piece]] | None = None) -> Pieces:
    """The greedy pieces of some tensors."""
    found: list[Pieces] = []

    def keep(pieces: Sequence[Piece], roots: Set[Node]) -> list[Piece]:
        found.append(Pieces(pieces, roots))
        return list(pieces) if then is None else then(found[0])

    schedule(*lowered(*asked), True, keep)
    return found[0]


def _walked(work: Pieces) -> int:
    """How many matrices nobody needs all at once, of more than 100 thousand elements."""
    return sum([work.is_walked(n) for n in work.maker if elements(n.shape) > 100_000])


def _slopes(weigh: Callable[[fg.Tensor], fg.Tensor], *heads: int) -> list[fg.Tensor]:
    q, k, v, g = (numbers(i, *heads, 400, 32) for i in range(4))
    loss = lambda q, k, v: (weigh(q @ k.mT) @ v * g).sum()  # noqa: E731
    found: list[fg.Tensor] = list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))
    return found


@pytest.mark.parametrize("heads", [(), (2,)], ids=str)
def test_matrices_that_are_only_summed_are_walked(heads: tuple[int, ...]) -> None:
    work = _pieces(*_slopes(lambda s: fg.softmax(s, axis=-1), *heads))
    large = [n for n in work.maker if elements(n.shape) > 100_000]
    assert large and _walked(work) == len(large)
    assert all(not work.is_walked(n) for n in work.roots)


def test_a_matrix_that_is_asked_for_or_deep_is_not_walked() -> None:
    q, k, v = (numbers(i, 400, 32) for i in range(3))
    scores = q @ k.mT
    work = _pieces(scores, fg.relu(scores) @ v)
    assert not any(work.is_walked(n) for n in work.roots)
    x, w, u = numbers(1, 400, 300), numbers(2, 300, 400), numbers(3, 400, 32)
    assert _walked(_pieces(fg.relu(x @ w) @ u)) == 0  # more summands than a head has
    assert _walked(_pieces(fg.cumsum(fg.relu(scores), axis=0) @ v)) == 0  # needs it in order


def _random_program(seed: int) -> list[fg.Tensor]:
    rng = np.random.default_rng(seed)
    sizes = [int(rng.choice((8, 16, 33, 64))) for _ in range(3)]
    b, (n, m, d) = int(rng.choice((1, 4))), sizes

    def program(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> list[fg.Tensor]:
        draw = np.random.default_rng(seed + 1000)
        pool, found = [q @ k.mT * 0.1], list[fg.Tensor]()
        for choice in draw.integers(0, 6, 5):
            s = pool[int(draw.integers(len(pool)))]
            if choice < 3:
                pool.append((fg.tanh(s), fg.softmax(s, axis=-1), fg.relu(s) * s)[choice])
            else:
                found.append((s @ v, s.mT @ q, s.sum(axis=-1))[choice - 3])
        return [*found, pool[-1] @ v]

    given = [numbers(seed + i, b, length, d) for i, length in enumerate((n, m, m))]
    if rng.random() < 0.4:
        return program(*given)

    def loss(*given: fg.Tensor) -> fg.Tensor:
        parts = [(x * x).sum() for x in program(*given)]
        return sum(parts[1:], parts[0])

    return list(fg.grad(loss, argnums=(0, 1, 2))(*given))


@pytest.mark.parametrize("seed", range(25))
def test_no_choice_needs_more_memory_at_once(seed: int) -> None:
    def choose(work: Pieces) -> list[Piece]:
        with fg.config(search=True):
            search = searcher(current())
        assert search is not None
        chosen = search(work.pieces, work.roots)
        assert work.most_alive(chosen) <= work.most_alive(work.pieces)
        return chosen

    _pieces(*_random_program(seed), then=choose)


def test_a_value_counts_from_when_it_is_made_to_when_it_is_last_read() -> None:
    x = numbers(1, 100, 100)
    y = fg.cumsum(x, axis=0)
    work = _pieces(fg.cumsum(fg.cumsum(y, axis=1), axis=0) + y)
    assert work.most_alive(work.pieces) == 3 * 100 * 100 * 4
    assert work.most_alive(work.pieces[:1]) == 100 * 100 * 4


@pytest.mark.parametrize("asked", ["all", "some"])
def test_a_matrix_that_is_asked_for_is_kept_where_others_walk_it(asked: str) -> None:
    q, k, v, g = (numbers(i, 4, 200, 32) for i in range(4))

    def loss(q: fg.Tensor, k: fg.Tensor, bias: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT + bias, axis=-1) @ v * g).sum()

    found = list(fg.grad(loss, argnums=(0, 1, 2))(q, k, numbers(9, 4, 200, 200)))
    work = _pieces(*(found if asked == "all" else found[:2]))
    kept = [n for n in work.maker if work.is_kept(n)]
    assert len(kept) == (asked == "all") and all(n in work.roots for n in kept)


@pytest.mark.parametrize("classes", [True, False])
def test_it_is_known_whether_one_element_of_a_row_counts(classes: bool) -> None:
    x, w = numbers(1, 60, 32), numbers(2, 32, 200)
    labels = fg.Tensor(np.arange(60) % 7)

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        scores = x @ w
        if classes:
            return fg.cross_entropy(scores, labels)
        return (fg.softmax(scores, axis=-1) * numbers(3, 60, 200)).sum()

    work = _pieces(*fg.grad(loss, argnums=(0, 1))(x, w))
    assert any(work.about(i).sums.classes for i in range(len(work.pieces))) is classes
