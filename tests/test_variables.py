"""Variables as users meet them: sizes, places and steps that change without compiling again."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import BoundsError, FulguriteError, ShapeError, VariableError
from fulgurite.runtime.realize import storage_of, value_node

pytestmark = pytest.mark.device("cpu")

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(params=("reference", "cpu"), autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels on each device, however small."""
    with fg.config(device=request.param, tier="native"):
        yield request.param


def misses() -> int:
    """How often a graph was compiled."""
    return int(fg.cache_stats()["schedule"]["misses"])


def owned() -> fg.Tensor:
    """Rows in memory that may be written in place."""
    return (fg.Tensor(ROWS) * 1).realize()


def address(x: fg.Tensor) -> int:
    node = value_node(x.node)
    assert node is not None
    found: int = storage_of(node).address
    return found


# --- one plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(3, 7), (7, 3)])
def test_two_values_share_a_plan_and_are_both_right(order: tuple[int, int]) -> None:
    fg.clear_caches()
    n, x, start = fg.Var("n", 1, 10), fg.Tensor(ROWS), misses()
    for count in order:
        np.testing.assert_allclose(x[: n.bind(count)].mean(0).numpy(), ROWS[:count].mean(0))
    assert misses() - start == 1


def test_a_row_at_any_of_4096_places_is_written_and_read_by_one_plan_each() -> None:
    place = fg.Var("place", 0, 4095)
    cache, kept = (fg.zeros((4096, 2)) * 1).realize(), np.zeros((4096, 2), np.float32)
    before, start = address(cache), misses()
    for row in np.random.default_rng(0).permutation(4096).tolist():
        kept[row] = row + 1
        cache[place.bind(row)] = fg.Tensor(kept[row])
        cache.realize()
    assert misses() - start == 1 and address(cache) == before
    start = misses()
    for row in (0, 17, 4095):
        assert cache[place.bind(row)].tolist() == kept[row].tolist()
    assert misses() - start == 1
    np.testing.assert_array_equal(cache.numpy(), kept)


# --- parts of variable size ----------------------------------------------------------------------


@pytest.mark.parametrize(("start", "count"), [(0, 1), (2, 3), (5, 5), (0, 5), (5, 1)])
def test_a_part_of_variable_size_is_replaced_and_nothing_beyond_it(start: int, count: int) -> None:
    at, n = fg.Var("at", 0, 5), fg.Var("n", 1, 5)
    x, rows = owned(), ROWS.copy()
    begin, before = at.bind(start), address(x)
    x[begin : begin + n.bind(count)] = fg.ones((n.bind(count), 4)) * 7
    x.realize()
    rows[start : start + count] = 7
    np.testing.assert_array_equal(x.numpy(), rows)
    assert address(x) == before
    x[begin : begin + n.bind(count)] += 1
    x[begin] = 5
    rows[start : start + count] += 1
    rows[start] = 5
    np.testing.assert_array_equal(x.numpy(), rows)


def test_places_below_zero_count_from_the_end() -> None:
    n, x = fg.Var("n", 1, 10), fg.Tensor(ROWS)
    for count in (1, 4, 10):
        k = n.bind(count)
        np.testing.assert_array_equal(x[-k:].numpy(), ROWS[-count:])
        np.testing.assert_array_equal(x[-k].numpy(), ROWS[-count])
        np.testing.assert_array_equal(x[:k][-1].numpy(), ROWS[count - 1])
        np.testing.assert_array_equal(x[:k][:-1].numpy(), ROWS[: count - 1])
        y, rows = owned(), ROWS.copy()
        y[-k:] = 0
        rows[-count:] = 0
        np.testing.assert_array_equal(y.numpy(), rows)


def test_a_row_at_a_variable_place_of_a_large_tensor_is_read() -> None:
    place, x = fg.Var("place", 0, 3), (fg.ones((4, 40_000)) * fg.reshape(fg.arange(4), (4, 1))) * 1
    x.realize()
    for row in (2, 0, 3):
        assert (x[place.bind(row)].numpy() == row).all()


def test_variables_are_numbers_on_both_sides_of_an_operator() -> None:
    k: Any = fg.Var("n", 1, 10).bind(3)
    x = fg.Tensor([1.0, 2.0])
    assert (k * x).tolist() == (x * k).tolist() == [3, 6]
    assert (k - x).tolist() == [2, 1] and (k / x).tolist() == [3, 1.5]
    assert (k + fg.Tensor(2)).item() == 5 and (k > x).tolist() == [True, True]


# --- errors --------------------------------------------------------------------------------------

n = fg.Var("n", 1, 10)
x = fg.Tensor(ROWS, device="reference")
WRONG: list[tuple[str, type[Exception], str, Callable[[], Any]]] = [
    ("below", VariableError, r"n = 0 is not in 1\.\.10", lambda: n.bind(0)),
    ("above", VariableError, r"n = 11 is not in 1\.\.10", lambda: n.bind(11)),
    ("float", VariableError, "n is 2.5", lambda: n.bind(2.5)),  # type: ignore[arg-type]
    ("bounds", VariableError, "no values", lambda: fg.Var("k", 5, 2)),
    ("slice", VariableError, "no value", lambda: x[:n]),
    ("index", VariableError, "no value", lambda: x[n]),
    ("size", VariableError, "no value", lambda: fg.zeros((n, 2))),  # type: ignore[arg-type]
    ("sum", VariableError, "no value", lambda: n + 1),
    ("length", FulguriteError, "n.bind",
     lambda: fg.scan(lambda c, _: (c, None), 0.0, length=n)),  # type: ignore[arg-type]
    ("beyond", ShapeError, "for all values", lambda: x[: n.bind(3) * 2]),
    ("may be beyond", ShapeError, "for all values", lambda: x[n.bind(3)]),
    ("before", ShapeError, "for all values", lambda: x[: n.bind(3)][-2:]),
    ("either", BoundsError, "below 0 or not", lambda: x[n.bind(3) - 5]),
    ("below 0", ShapeError, "narrow the bounds", lambda: fg.zeros((n.bind(7) - 5,))),
    ("step", FulguriteError, "whole numbers", lambda: x[:: n.bind(2)]),
    ("put", ShapeError, "for all values", lambda: owned().__setitem__(n.bind(3), 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "match", "wrong"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_what_cannot_be_is_an_error_at_the_users_line(
    error: type[Exception], match: str, wrong: Callable[[], Any]
) -> None:
    with pytest.raises(error, match=match) as problem:
        wrong()
    assert "test_variables.py" in str(problem.value) and "try:" in str(problem.value)


def test_two_values_of_one_variable_in_one_graph_are_an_error() -> None:
    y = x[: n.bind(3)].sum() + x[: n.bind(4)].sum()
    with pytest.raises(VariableError, match="bound to 3 and to 4"):
        y.numpy()


def test_a_schedule_is_bound_to_other_values_and_compiles_nothing() -> None:
    n, x = fg.Var("n", 1, 10), fg.from_numpy(ROWS)
    plan = fg.schedule(x[: n.bind(3)] * 2, x[: n.bind(3)].sum(0))
    plan.run()
    start = misses()
    for count in (7, 1, 10):
        bound = plan.bound({"n": count})
        for _ in range(5):  # from the fourth on it is a replay
            rows, total = bound.run()
            np.testing.assert_array_equal(rows.numpy(), ROWS[:count] * 2)
            np.testing.assert_allclose(total.numpy(), ROWS[:count].sum(0))
    assert plan.run()[0].shape == (3, 4) and misses() == start


def test_axes_of_which_the_first_varies_become_one_and_indices_of_two_axes_gather(
    device: str,
) -> None:
    n, m = fg.Var("n", 1, 6), fg.Var("m", 1, 5)
    data = np.arange(6 * 4 * 5 * 2, dtype=np.float32).reshape(6, 4, 5, 2)
    places = (np.arange(30) * 7 % 10).reshape(6, 5)
    for a, b in ((6, 5), (2, 3), (1, 1)):
        x = fg.from_numpy(data)[: n.bind(a), :, : m.bind(b)]
        merged = fg.reshape(x, (n.bind(a) * 4, m.bind(b), 2)) * 2
        index = fg.from_numpy(places)[: n.bind(a), : m.bind(b)]
        taken = fg.take(fg.Tensor(ROWS), index, axis=0) + 1
        plan = fg.schedule(merged, taken)
        first, second = plan.run()
        np.testing.assert_array_equal(first.numpy(), data[:a, :, :b].reshape(4 * a, b, 2) * 2)
        np.testing.assert_array_equal(second.numpy(), ROWS[places[:a, :b]] + 1)
        if device == "cpu":  # all of it is native code
            segments = plan.plans[0].executor.segments  # type: ignore[attr-defined]
            assert not any(isinstance(s, tuple) for s in segments)


def test_a_size_that_is_divided_by_its_own_factor_is_that_size() -> None:
    def cut(x: fg.Tensor) -> fg.Tensor:
        rows = x.shape[0]
        return fg.reshape(x, (rows // 1, 2, 2)).sum(axis=1) + fg.zeros((rows * 6 // 6, 1))

    n = fg.Var("n", 1, 10)
    for rows in (3, 10):
        found = fg.jit(cut, dynamic={"x": {0: n}})(fg.Tensor(ROWS[:rows])).numpy()
        np.testing.assert_array_equal(found, ROWS[:rows].reshape(rows, 2, 2).sum(axis=1))
