"""Kernels in index notation run as they say: tiles, folds, guards, orders and stores."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core import build
from fulgurite.core.cache import WeakCache
from fulgurite.core.context import Table
from fulgurite.core.dtype import float32, int32
from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.elementwise import ADD, DIV, EXP, MUL, SUB
from fulgurite.core.ops.leaf import SINK, new_buffer, param
from fulgurite.errors import BoundsError
from fulgurite.graph.ir.lower import lower
from fulgurite.runtime import plan
from fulgurite.runtime.host import index_interpreter
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.runtime.host.index_interpreter import Runner
from tests import fuzz
from tests.fuzz.programs.shaking import shaken
from tests.graph.ir.test_lower import agrees, matmul, softmax

X, Y = param(0, (6, 8), float32), param(1, (8, 5), float32)


def run(root: Node, *arrays: Array) -> Array:
    """One kernel over poisoned memory."""
    out = np.full([n for n in root.shape if isinstance(n, int)], 165).astype(root.dtype.numpy)
    Runner(lower(SINK(root), len(arrays))).run([a.reshape(-1) for a in (*arrays, out)], {})
    return out


def right(root: Node, *arrays: Array) -> Array:
    """The evaluator's answer."""
    params = {n.arg[0]: n for n in toposort([root]) if n.op is X.op}
    return evaluate([root], {params[i]: a for i, a in enumerate(arrays)})[0]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)


# --- tiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [1, 7, 16, 100])
def test_tiles_of_any_size_give_the_same_answer(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_interpreter, "TILE", tile)
    x, y = numbers(6, 8), numbers(8, 5)
    for root in (softmax(X), EXP(X), build.pad(X, [(1, 2), (0, 0)]), build.fold("add", X, 1, True)):
        assert np.array_equal(run(root, x), right(root, x))
    assert np.array_equal(run(matmul(X, Y), x, y), right(matmul(X, Y), x, y))


def test_random_graphs_agree_in_the_smallest_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_interpreter, "TILE", 5)
    monkeypatch.setattr(plan, "KERNELS", Table(lambda: WeakCache("tiled")))
    for seed in range(900_000, 900_150):
        fuzz.check(seed)


def test_axes_that_a_fold_needs_are_never_cut() -> None:
    runner = Runner(lower(SINK(softmax(X)), 1))
    assert runner.tiled == [0]


def test_temporaries_stay_within_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_interpreter, "TILE", 64)
    big = param(0, (512, 16), float32)
    runner = Runner(lower(SINK(softmax(big)), 1))
    sizes = [stop - start for start, stop in next(iter(runner._tiles([512, 16])))]
    assert sizes[0] * sizes[1] <= 64 and sizes[1] == 16


# --- contractions --------------------------------------------------------------------------------


def test_a_contraction_never_makes_the_product() -> None:
    runner = Runner(lower(SINK(matmul(X, Y)), 2))
    (product,) = runner.products
    assert product.op is MUL
    assert runner._largest([6, 5, 8]) < 6 * 5 * 8


def test_a_product_summed_over_an_axis_of_one_factor_is_not_a_contraction() -> None:
    column = build.expand(param(1, (1, 8), float32), (6, 8))
    root = build.fold("add", MUL(X, column), 0, True)
    runner = Runner(lower(SINK(root), 2))
    assert not runner.products
    x = np.zeros((6, 8), np.float32)
    x[0], x[1] = 3e38, -3e38
    y = np.zeros((1, 8), np.float32)
    assert np.array_equal(run(root, x, y), right(root, x, y))


def turned_softmax(scores: Node) -> Node:
    """Softmax along the last axis by statistics of the transpose, whose loops are others."""

    def rows(name: str, x: Node) -> Node:
        found = build.fold(name, build.permute(x, (1, 0)), 0, True)
        return build.expand(build.permute(found, (1, 0)), x.shape)

    powers = EXP(SUB(scores, rows("max", scores)))
    return DIV(powers, rows("add", powers))


def test_a_pass_has_one_sum_for_loops_that_never_meet() -> None:
    """Scores that are shaken for the weights and again for their sum make weights of other than 1.

    Those of rows and of columns meet in one value, so they are two.
    """
    full, values = (6, 3, 5), param(2, (3, 5), float32)
    weights = build.expand(build.reshape(turned_softmax(matmul(X, Y)), (6, 1, 5)), full)
    root = build.fold("add", MUL(weights, build.expand(build.reshape(values, (1, 3, 5)), full)), 2)
    kernel = lower(SINK(root), 3)
    assert len(Runner(kernel, one_pass=True).repeated) == 1 and not Runner(kernel).repeated
    x, y, ones = numbers(6, 8) * 100 / 7, numbers(8, 5) * 100 / 3, np.ones((3, 5), np.float32)
    out = np.empty((6, 3), np.float32)
    with shaken(0):
        Runner(kernel, one_pass=True).run([a.reshape(-1) for a in (x, y, ones, out)], {})
    assert np.allclose(out, 1, atol=1e-5)
    square = matmul(param(0, (6, 6), float32), param(1, (6, 6), float32))
    both = SUB(square, build.permute(square, (1, 0)))
    assert not Runner(lower(SINK(both), 2), one_pass=True).repeated


# --- guards --------------------------------------------------------------------------------------


def test_an_index_out_of_range_is_an_error_that_names_it() -> None:
    table, index = param(0, (4, 3), float32), param(1, (2, 3), int32)
    root = build.gather(table, index, 0)
    for bad in (4, -1):
        places = np.zeros((2, 3), np.int32)
        places[1, 1] = bad
        with pytest.raises(BoundsError, match="is outside an axis of size 4"):
            run(root, numbers(4, 3), places)
    assert np.array_equal(run(root, numbers(4, 3), np.full((2, 3), 3)), numbers(4, 3)[[3, 3]])


def test_a_scatter_out_of_range_writes_nothing() -> None:
    base, index, values = param(0, (4,), float32), param(1, (2,), int32), param(2, (2,), float32)
    out = np.full(4, 165, np.float32)
    runner = Runner(lower(SINK(build.scatter("add", base, index, values, 0)), 3))
    arrays = [numbers(4), np.array([0, 4], np.int32), numbers(2), out]
    with pytest.raises(BoundsError):
        runner.run(arrays, {})
    assert (out == 165).all()


# --- orders and stores ---------------------------------------------------------------------------


def test_of_several_values_for_one_place_the_last_stays() -> None:
    base, index, values = param(0, (2,), float32), param(1, (4,), int32), param(2, (4,), float32)
    root = build.scatter("set", base, index, values, 0)
    places, new = np.array([1, 1, 0, 1], np.int32), np.array([5, 6, 7, 8], np.float32)
    assert run(root, np.zeros(2, np.float32), places, new).tolist() == [7, 8]


def test_an_update_is_combined_once_for_each_time_it_is_asked_for() -> None:
    base, line = param(0, (2, 3), float32), param(1, (1, 3), int32)
    index = build.expand(line, (4, 3))
    root = build.scatter("add", base, index, 2, 0)
    places = np.array([[0, 1, 1]], np.int32)
    found = run(root, np.zeros((2, 3), np.float32), places)
    assert found.tolist() == [[8, 0, 0], [0, 8, 8]]


@pytest.mark.parametrize("shape", [(1,), (1, 3), (3, 1), (1, 1, 1)])
def test_scans_and_sorts_along_an_axis_of_one_element(shape: tuple[int, ...]) -> None:
    x = param(0, shape, float32)
    axis = shape.index(1)
    data = numbers(*shape)
    for root in (
        build.scan("add", x, axis),
        build.sort_order(x, axis, True),
        build.affine_scan(x, x, axis),
    ):
        assert np.array_equal(run(root, data), right(root, data))


def test_everything_is_read_before_anything_is_written() -> None:
    other = param(1, (6, 8), float32)
    runner = Runner(lower(SINK(ADD(X, X), MUL(EXP(X), other)), 2))
    x, y = numbers(6, 8), numbers(6, 8) + 1
    expected, out = np.exp(x) * y, np.empty((6, 8), np.float32)
    runner.run([a.reshape(-1) for a in (x, y, y, out)], {})  # the sum takes the place of y
    assert np.array_equal(out, expected) and np.array_equal(y, x + x)


def test_memory_is_not_taken_over_by_what_reads_it_at_other_places() -> None:
    x = new_buffer((8, 8), float32)
    scores = build.permute(matmul(x, x), (1, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_interpreter, "TILE", 8)
        agrees(matmul(SUB(scores, build.expand(build.fold("max", scores, 1, True), (8, 8))), x))


def test_an_empty_axis_runs_nothing() -> None:
    empty = param(0, (0, 4), float32)
    assert run(EXP(empty), np.empty((0, 4), np.float32)).shape == (0, 4)
