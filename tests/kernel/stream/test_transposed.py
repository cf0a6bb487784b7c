"""Crossed results: which stores fold over the rows of others, and how all of them are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.ops.index import FOLD
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import elements
from fulgurite.kernel.stream.online import Streaming, stream
from fulgurite.kernel.stream.roles import find_problem
from fulgurite.kernel.transform.merge_axes import merge_axes
from tests.graph.searching import kinds, lowered, numbers, planned

pytestmark = pytest.mark.device("none")

Program = Callable[[fg.Tensor, fg.Tensor, fg.Tensor, fg.Tensor], Sequence[fg.Tensor]]


def streamed(program: Program, rows: int = 70, keys: int = 90, heads: int = 2) -> Streaming | None:
    """A program of queries, keys, and values of both as one kernel."""
    q, k, v, g = (numbers(i, heads, n, 16) for i, n in ((1, rows), (2, keys), (3, keys), (4, rows)))
    sink, inputs = lowered(*program(q, k, v, g))
    return stream(merge_axes(lower(sink, inputs)))


def _both(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
    w = fg.tanh(q @ k.mT)
    return w @ v, w.mT @ g, w.mT @ q


def _turned_memory(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
    first, second, third = _both(q, k, v, g)
    return first, second.mT, third


def _heads_inside(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
    first, second, third = _both(q, k, v, g)
    return first.permute((1, 0, 2)), second, third.permute((1, 0, 2))


FOUND: dict[str, Program] = {
    "results of both axes": _both,
    "one that lies the other way": _turned_memory,
    "heads inside": _heads_inside,
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("sizes", [(70, 90), (80, 80), (16, 16), (2, 16)], ids=str)
def test_a_product_that_both_need_is_one(name: str, sizes: tuple[int, int]) -> None:
    found = streamed(FOUND[name], *sizes)
    assert found is not None and len(found.across) == 1 and len(found.states) == 2
    assert len(found.inner) == 1
    sums = {s.fold for s in (*found.states, *found.crossed)}
    every = {n for n in toposort([*found.stores, *found.across]) if n.op is FOLD}
    assert every == sums | set(found.inner)
    problem = find_problem(found)
    assert problem is not None
    rows, keys = sizes
    assert problem.m == keys and problem.n == rows
    assert [frozenset(s.fold.arg[1]) for s in found.crossed] == [frozenset(problem.m_axes)]


def _only_rows(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor]:
    w = fg.tanh(q @ k.mT)
    return w @ v, w @ (v + 1)


def _other_product(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor]:
    return fg.tanh(q @ k.mT) @ v, fg.tanh(v @ g.mT) @ q


def _built_on_rows(
    q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor]:
    w = fg.softmax(q @ k.mT, axis=-1)
    return w @ v, w.mT @ g


NOT: dict[str, Program] = {
    "sums along one axis": _only_rows,
    "products of other things": _other_product,
}


@pytest.mark.parametrize("name", NOT)
def test_what_shares_no_product_does_not_cross(name: str) -> None:
    found = streamed(NOT[name])
    assert found is None or not found.across


def test_weights_that_need_a_whole_row_wait_for_the_states_of_the_others() -> None:
    found = streamed(_built_on_rows)
    assert found is not None and found.waits and len(found.inner) == 1
    assert [s.op for s in found.states if s.repair is not None or s.op != "add"] == ["max", "add"]
    states = {s.fold for s in found.states}
    (crossed,) = found.crossed
    assert len(states & set(toposort([crossed.body]))) == 2
    assert [s.repair for s in found.states if s.fold not in toposort([crossed.body])] == [None]


def test_a_crossed_kernel_says_when_its_blocks_count_for_nothing() -> None:
    def masked(alike: bool) -> Program:
        def program(
            q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor
        ) -> tuple[fg.Tensor, fg.Tensor]:
            rows, keys = fg.arange(70)[:, None], fg.arange(90)[None, :]
            s = q @ k.mT
            w = fg.where(keys <= rows, s, 0.0)
            return w @ v, (w if alike else s).mT @ g

        return program

    for alike in (True, False):  # what one result leaves out the other may need
        found = streamed(masked(alike))
        assert found is not None and found.across
        problem = find_problem(found)
        assert problem is not None and bool(problem.skips) == alike


def _gradients(heads: int, rows: int, keys: int, size: int) -> list[fg.Tensor]:
    q, k, v = (numbers(i, heads, n, size) for i, n in ((1, rows), (2, keys), (3, keys)))
    g = numbers(4, heads, rows, size)

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        found = fg.softmax(q @ k.mT * 0.2, axis=-1) @ v
        return (found * g).sum(), found

    (_, found), grads = fg.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return [found, *grads]


SIZES = [(16, 128, 128, 64), (4, 512, 512, 64), (8, 256, 256, 64), (1, 384, 384, 64),
         (4, 64, 64, 64), (8, 128, 128, 128), (2, 100, 300, 32), (4, 1000, 1000, 64),
         (3, 33, 33, 16), (8, 256, 256, 256)]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_training_step_stores_no_matrix_of_weights(size: tuple[int, int, int, int]) -> None:
    found, _ = planned(*_gradients(*size))
    assert kinds(found) == ["fold", "reduce", "fold"]
    heads, rows, keys, wide = size
    made = [s.shape for s in found.slots[found.inputs :] if s is not None]
    assert max(map(elements, made)) <= heads * max(rows, keys) * wide


@pytest.mark.parametrize("shared", [(2, 1), (1, 1), (1,)], ids=str)
def test_heads_that_share_keys_have_one_walk_too(shared: tuple[int, ...]) -> None:
    q, k, v = numbers(1, 2, 4, 160, 32), numbers(2, *shared, 160, 32), numbers(3, *shared, 160, 32)

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT * 0.2, axis=-1) @ v * numbers(4, 2, 4, 160, 32)).sum()

    found, _ = planned(*fg.grad(loss, argnums=(0, 1, 2))(q, k, v))
    assert kinds(found) == ["fold", "fold"]


def test_projections_do_not_join_what_is_made_of_them() -> None:
    """Queries, keys and values from one product, as a layer has them."""
    b, t, h, d = 4, 128, 4, 64
    x, w = numbers(1, b, t, h * d), [numbers(i, h * d, 3 * h * d) for i in range(2, 6)]

    def loss(x: fg.Tensor, *w: fg.Tensor) -> fg.Tensor:
        for k in w:
            n = fg.layer_norm(x, (h * d,)) @ k
            q, k, v = (
                n[:, :, j * h * d : (j + 1) * h * d].reshape((b, t, h, d)).permute((0, 2, 1, 3))
                for j in range(3)
            )
            o = fg.softmax(q @ k.mT * 0.2, axis=-1) @ v
            x = x + o.permute((0, 2, 1, 3)).reshape((b, t, h * d))
        return (x * x).sum()

    found, who = planned(*fg.grad(loss, argnums=tuple(range(5)))(x, *w))
    assert kinds(found).count("fold") == 2 * len(w)
    asked = [report for report in who.reports if report.asked]
    assert len(asked) == len(w)
    assert [report.cached for report in asked].count(False) <= 2  # the last has another end
