"""Tests of fulgurite/jit/variables.py: the value of a bound variable is a number of the replay."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import BoundsError, JitWarning, VariableError
from tests.jitting import address, plainly

N = fg.Var("n", 1, 8)
PLACE = fg.Var("place", 0, 7)
SHIFT = fg.Var("shift", -3, 3)
X = fg.Tensor(np.arange(8, dtype=np.float32)).realize()
Table = fg.Tensor(np.arange(32, dtype=np.float32).reshape(8, 4)).realize()


def count(function: Callable[..., Any], calls: list[tuple[Any, ...]], captures: int = 1) -> Any:
    """Each call gives what the plain function gives; so many captures, and no more plans."""
    want = [plainly(function(*args)) for args in calls]
    jitted = fg.jit(function)
    assert plainly(jitted(*calls[0])) == want[0]
    before = fg.cache_stats()["schedule"]["misses"]
    for _ in range(2):
        assert [plainly(jitted(*args)) for args in calls] == want
    assert jitted.captured == captures
    if captures == 1:
        assert fg.cache_stats()["schedule"]["misses"] <= before + 1  # one that copies, at most
    return jitted


WAYS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "a size": (lambda k: X[:k].sum(), lambda i: (N.bind(i),)),
    "a place": (lambda k: Table[k] * 2, lambda i: (PLACE.bind(i - 1),)),
    "a size and its complement": (lambda k: X[:k].sum() - X[8 - k :].sum(), lambda i: (N.bind(i),)),
    "a number": (lambda k: X * k + fg.Tensor([1.0]), lambda i: (N.bind(i),)),
    "an expression": (lambda k: X[:k].sum(), lambda i: (PLACE.bind(i - 1) + 1,)),
    "one of two variables": (lambda k, p: X[:k].sum() + Table[p], lambda i: (N.bind(i),
                                                                           PLACE.bind(8 - i))),
    "a negative value": (lambda s: Table[s + 3, 0] + s, lambda i: (SHIFT.bind(i % 7 - 3),)),
    "in a list": (lambda ks: X[: ks[0]].sum(), lambda i: ([N.bind(i)],)),
    "in a dict": (lambda ks: X[: ks["k"]].sum(), lambda i: ({"k": N.bind(i)},)),
    "in a slice": (lambda s: X[s].sum(), lambda i: (slice(0, N.bind(i)),)),
    "a number that is bound inside": (lambda i: X[: N.bind(i)].sum(), lambda i: (i,)),
    "arithmetic that is bound inside": (
        lambda i: Table[PLACE.bind((i + 1) // 2)], lambda i: (i,)
    ),
    "a number bound twice": (lambda i: X[: N.bind(i)] + X[: N.bind(i)], lambda i: (i,)),
    "the size of a result": (lambda k: fg.ones((k, 2)) * 3, lambda i: (N.bind(i),)),
    "an argument that is returned": (lambda k: (X[:k].sum(), [k]), lambda i: (N.bind(i),)),
    "an expression that is returned": (lambda k: (X[:k].sum(), 2 * k - 1), lambda i: (N.bind(i),)),
    "a value that no kernel reads": (lambda k: X * 2, lambda i: (N.bind(i),)),
    "steps of a loop": (
        lambda k: fg.scan(lambda c, _: (c * 2, None), fg.Tensor(1.0), length=k)[0],
        lambda i: (N.bind(i),),
    ),
    "under a gradient": (
        lambda k: fg.grad(lambda x: (x[:k] ** 2).sum())(X), lambda i: (N.bind(i),)
    ),
    "under vmap": (lambda k: fg.vmap(lambda row: row * k)(Table), lambda i: (N.bind(i),)),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_one_capture_serves_every_value_of(way: str) -> None:
    function, arguments = WAYS[way]
    count(function, [arguments(i) for i in (3, 8, 1, 5)])


def test_a_variable_that_is_closed_over_or_an_attribute_is_read_in_every_call() -> None:
    thing = SimpleNamespace(k=N.bind(2), also=[N.bind(2)])
    k = N.bind(2)

    @fg.jit
    def f() -> Any:
        return X[:k].sum() + X[: thing.k].sum() + X[: thing.also[0]].sum()

    for i in (2, 5, 8):
        k = thing.k = thing.also[0] = N.bind(i)
        assert f().item() == 3 * sum(range(i))
    assert f.captured == 1


def test_a_row_of_a_cache_is_written_in_place_whatever_its_place() -> None:
    cache = fg.Tensor(np.zeros((8, 4), np.float32))

    @fg.jit
    def put(at: Any, row: fg.Tensor) -> Any:
        cache[at] = row
        return cache.sum()

    put(PLACE.bind(0), Table[0].realize())
    before = address(cache)
    for i in range(1, 8):
        put(PLACE.bind(i), Table[i].realize())
    assert cache.tolist() == Table.tolist() and put.captured == 1
    if cache.device == "cpu":
        assert address(cache) == before
    kept = cache * 1
    put(PLACE.bind(3), Table[0].realize())
    assert kept.tolist() == Table.tolist() and cache[3].tolist() == Table[0].tolist()


def test_a_gpt_decodes_with_one_capture_in_both_ways() -> None:
    def attend(cache: fg.Tensor, x: fg.Tensor, at: Any) -> fg.Tensor:
        cache[at] = x
        scores = cache @ x + fg.where(fg.arange(8) <= at, 0.0, -1e9)
        return fg.softmax(scores) @ cache

    def decode(wrap: Callable[[Any], Any], place: Callable[[int], Any]) -> list[Any]:
        cache, step = fg.Tensor(np.zeros((8, 4), np.float32)), wrap(attend)
        found = [step(cache, Table[i].realize(), place(i)).tolist() for i in range(8)]
        return [found, getattr(step, "captured", 0)]

    want, _ = decode(lambda f: f, lambda i: i)
    for place in (PLACE.bind, lambda i: fg.Tensor(i), lambda i: np.array(i)):
        got, captured = decode(fg.jit, place)
        assert captured == 1
        np.testing.assert_allclose(got, want, rtol=1e-5)


# --- guards --------------------------------------------------------------------------------------


def test_another_variable_is_another_capture() -> None:
    wider = fg.Var("n", 1, 4)
    f = count(lambda k: X[:k].sum(), [(N.bind(3),), (wider.bind(3),), (fg.Var("m", 1, 8).bind(2),)],
              captures=3)  # fmt: skip
    assert f(3).item() == 3  # no variable at all
    assert f.captured == 4


def test_other_expressions_are_other_captures() -> None:
    count(lambda k: X[:k].sum(), [(PLACE.bind(3) + 1,), (8 - PLACE.bind(3),), (PLACE.bind(5) + 1,)],
          captures=2)  # fmt: skip


def test_a_number_outside_the_bounds_is_the_error_of_the_plain_function() -> None:
    total = fg.Tensor([0.0])

    @fg.jit
    def f(i: int) -> Any:
        total.assign(total + 1)
        return X[: N.bind(i)].sum()

    f(3)
    for wrong in (0, 9):
        with pytest.raises(VariableError, match=rf"n = {wrong} is not in 1\.\.8") as caught:
            f(wrong)
        assert "test_jit_variables" in str(caught.value)
    assert f(8).item() == 28 and total.tolist() == [2] and len(f.captures) == 1
    with pytest.raises(VariableError, match="whole numbers"):
        f(2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("second", [fg.Var("rows", 0, 3), fg.Var("some", 2, 5)], ids=repr)
@pytest.mark.parametrize("turned", [False, True])
def test_a_number_is_within_the_bounds_of_every_variable_that_it_is_bound_to(
    second: fg.Var, turned: bool
) -> None:
    first, last = (second, N) if turned else (N, second)

    @fg.jit
    def f(i: int) -> Any:
        return X[: first.bind(i)].sum() * last.bind(i)

    f(3)
    for i in (0, 1, 4, 6):
        if second.low <= i <= second.high and i:
            assert f(i).item() == sum(range(i)) * i
        else:
            with pytest.raises(VariableError, match=f"= {i} is not in"):
                f(i)


def test_two_values_of_one_variable_are_the_error_of_the_plain_function() -> None:
    f = fg.jit(lambda a, b: X[: N.bind(a)].sum() + X[: N.bind(b)].sum())
    assert f(3, 3).item() == 6 and f(4, 4).item() == 12
    with pytest.raises(VariableError, match="bound to"):
        f(3, 4)
    assert f(5, 5).item() == 20 and len(f.captures) == 1

    g = fg.jit(lambda k: X[:k].sum() + X[: N.bind(3)].sum())
    assert g(N.bind(3)).item() == 6
    with pytest.raises(VariableError, match="bound to"):
        g(N.bind(4))
    h = fg.jit(lambda k, j: X[:k].sum() * 2)  # a second value that is not used is nobody's error
    assert [h(N.bind(i), N.bind(j)).item() for i, j in ((3, 3), (4, 3), (3, 5), (5, 4))] == [
        6, 12, 6, 20,
    ]  # fmt: skip


def test_what_python_tells_apart_is_told_apart() -> None:
    def f(a: Any, b: Any) -> Any:
        return X[:a].sum() if a is b else X[:a].sum() * 100

    count(f, [(N.bind(3), N.bind(3)), (N.bind(3), N.bind(4)), (N.bind(5), N.bind(5)),
              (N.bind(6), N.bind(5))], captures=2)  # fmt: skip


THREE = N.bind(3)
TABLE = {N.bind(i): float(i) for i in range(1, 6)}
TOLD: dict[str, Callable[[int], Any]] = {
    "equality": lambda i: X if N.bind(i) == N.bind(3) else -X,
    "identity with one outside": lambda i: X if N.bind(i) is THREE else -X,
    "keys of a dict": lambda i: X * len({N.bind(i): 1, N.bind(3): 2}),
    "a dict that is looked up": lambda i: X * TABLE.get(N.bind(i), 9.0),
    "a list that holds it": lambda i: X * (N.bind(i) in [THREE]),
    "a difference that folds": lambda i: X * (N.bind(i) - N.bind(3) is THREE - THREE),
    "its contents": lambda i: X * N.bind(i).arg,
}


@pytest.mark.parametrize("way", TOLD)
def test_what_python_tells_apart_is_told_apart_of_what_the_function_binds(way: str) -> None:
    jitted = fg.jit(TOLD[way])
    for i in (3, 5, 3, 4, 8, 3):
        assert jitted(i).tolist() == TOLD[way](i).tolist()


def test_bound_variables_in_keys_and_sets_that_a_function_leaves_are_those_of_the_call() -> None:
    left: dict[Any, Any] = {}

    def f(i: int) -> Any:
        k = N.bind(i)
        left[k] = left[k, 4] = left[frozenset({k})] = X * 2
        made: Any = OrderedDict([(k, X)])
        return {k: X}, made, {k + 1}, N.bind(10 - i - 1)

    jitted = fg.jit(f)
    for i in (3, 5, 2, 6):
        left.clear()
        (by_key, made, items, other), keys = jitted(i), list(left)
        k = N.bind(i)
        assert keys == [k, (k, 4), frozenset({k})] and list(by_key) == list(made) == [k]
        assert items == {k + 1} and other is N.bind(9 - i)
    assert jitted.captured == 1


def test_what_is_remembered_by_the_size_of_an_argument_that_varies_is_found_by_it() -> None:
    kept: dict[Any, Any] = {}

    @fg.jit(dynamic={"x": {0: N}})
    def f(x: fg.Tensor) -> Any:
        if x.shape not in kept:
            kept[x.shape] = x * 2
        return kept[x.shape], x.shape[0]

    for i in (3, 5, 3, 5):
        got, size = f(fg.ones(i))
        assert got.tolist() == [2.0] * i and size is N.bind(i)
    assert len(kept) == 2


def test_who_looks_into_a_bound_variable_has_a_capture_for_each_value() -> None:
    count(lambda k: X[:k].sum() + k.arg, [(N.bind(3),), (N.bind(4),)], captures=2)


def test_the_truth_of_a_comparison_of_variables_is_an_error() -> None:
    def f(k: Any) -> Any:
        return X[:k].sum() if k > 2 else X

    for g in (f, fg.jit(f)):
        with pytest.raises(VariableError, match="truth of a comparison"):
            g(N.bind(3))
    count(lambda k: fg.where(k > 2, X[:k].sum(), 0.0), [(N.bind(1),), (N.bind(3),)])


def test_a_number_that_decides_besides_being_bound_is_one_capture_for_each_value() -> None:
    def f(i: int) -> Any:
        return X[: N.bind(i)].sum() if i > 2 else X.sum()

    count(f, [(1,), (3,), (4,)], captures=3)


def test_sizes_of_arguments_and_bound_values_of_one_variable_agree() -> None:
    f = fg.jit(lambda x, k: x.sum() + X[:k].sum(), dynamic={"x": {0: N}})
    for i in (3, 5):
        assert f(fg.ones(i), N.bind(i)).item() == i + sum(range(i))
    assert f.captured == 1
    with pytest.raises(VariableError, match="one graph"):
        f(fg.ones(3), N.bind(4))
    g = fg.jit(lambda x, p: x.sum() + X[p], dynamic={"x": {0: N}})
    assert [g(fg.ones(i), PLACE.bind(7 - i)).item() for i in (3, 5, 7)] == [7, 7, 7]
    assert g.captured == 1


def test_an_index_outside_its_axis_names_the_line_for_the_values_of_this_call() -> None:
    f = fg.jit(lambda x, i, k: x[i][:k].sum())
    assert f(Table, fg.Tensor([1, 0]), fg.Var("rows", 0, 2).bind(1)).item() == 22
    for _ in range(2):
        with pytest.raises(BoundsError, match="test_jit_variables"):
            f(Table, fg.Tensor([1, 9]), fg.Var("rows", 0, 2).bind(2))
    assert f(Table, fg.Tensor([1, 0]), fg.Var("rows", 0, 2).bind(2)).item() == 28
    assert f.captured == 1


def test_a_maximum_over_no_elements_is_an_error_at_run_time() -> None:
    some = fg.Var("some", 0, 8)
    f = fg.jit(lambda k: X[:k].max())
    assert [f(some.bind(i)).item() for i in (3, 8)] == [2, 7]
    with pytest.raises(fg.errors.ShapeError, match="no elements"):
        f(some.bind(0)).item()
    assert f.captured == 1


def test_with_poison_numbers_arrays_and_draws_beside_it() -> None:
    def f(a: Any, k: Any, c: float) -> Any:
        return (fg.rand(8) * 0 + a)[:k].sum() * c

    calls: list[tuple[Any, ...]] = [
        (np.arange(8, dtype=np.float32) + i, N.bind(i), i / 2) for i in (3, 8, 1)
    ]
    with fg.config(poison=True):
        count(f, calls)
    count(f, calls)


def test_threads_give_one_capture_values_of_their_own() -> None:
    f = fg.jit(lambda k: X[:k].sum())
    f(N.bind(1))
    wrong: list[Any] = []

    def work(i: int) -> None:
        for _ in range(200):
            if f(N.bind(i)).item() != sum(range(i)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in (2, 5, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and f.captured == 1


# functions of rows of a matrix and of a number, and what NumPy says
BOTH: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a part": (lambda x, k: (x * 0.5)[: N.bind(k)], lambda x, k: (x * 0.5)[:k]),
    "the rest": (lambda x, k: x[N.bind(k) :] * 2, lambda x, k: x[k:] * 2),
    "a sum of a part": (lambda x, k: x[: N.bind(k)].sum() * x, lambda x, k: x[:k].sum() * x),
    "a size of both": (
        lambda x, k: (x[: N.bind(k)] @ x.T).reshape(-1) * 2, lambda x, k: (x[:k] @ x.T).ravel() * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BOTH)
@pytest.mark.parametrize("tier", ["auto", "native"])
def test_sizes_that_vary_beside_sizes_that_variables_are(what: str, tier: str) -> None:
    function, meaning = BOTH[what]
    f = fg.jit(function)
    with fg.config(tier=tier):
        for rows in (12, 9, 17, 11):
            for k in (1, 3):
                x = np.arange(3.0 * rows).reshape(rows, 3)
                assert np.allclose(f(fg.Tensor(x), k).numpy(), meaning(x, k)), (rows, k)


# --- too many captures ---------------------------------------------------------------------------


def doubled(x: Any, i: Any = None) -> Any:
    return x if i is None else x + len("a" * i)  # the line that decides


MANY: dict[str, tuple[Callable[[int], tuple[Any, ...]], str, str]] = {
    "a number": (lambda i: (X, i), "i is 33, and was 32", r"value decides.*test_jit_variables"),
    "a shape": (lambda i: (fg.ones(i),), r"x has shape \(33,\), not \(32,\)", "dynamic="),
    "another value": (lambda i: (X if i else 0, None, {str(i): i}), "the keys of", "try: let it"),
}


@pytest.mark.parametrize("what", MANY)
def test_the_thirty_third_capture_warns_once_and_says_why(what: str) -> None:
    arguments, why, hint = MANY[what]
    f = fg.jit(lambda x, i=None, more=None: doubled(x, i) * 2, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(1, 33):
            f(*arguments(i))
    with pytest.warns(JitWarning, match=f"(?s)captured 33 times.*{why}.*{hint}") as caught:
        f(*arguments(33))
        for i in range(34, 37):
            f(*arguments(i))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert f.captured == 36


def test_captures_that_cannot_be_replayed_warn_too() -> None:
    f = fg.jit(lambda x: iter([x]))
    with pytest.warns(JitWarning, match="(?s)captured 33 times.*cannot be made again") as caught:
        while f.captured < 36:
            f(X)
    assert len(caught) == 1
