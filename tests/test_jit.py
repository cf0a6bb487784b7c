"""`fg.jit`: arguments, numbers and errors are those of the plain function."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.errors import ArgumentError, ConstantError, JitError
from fulgurite.graph.ir.registry import REGISTRY
from fulgurite.jit import capture
from fulgurite.tensor import wrap
from tests.jitting import same, t
from tests.threads import together

pytestmark = pytest.mark.device("every")

# --- arguments -----------------------------------------------------------------------------------


def test_the_first_call_captures_and_later_ones_replay() -> None:
    calls = []

    def f(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        calls.append(1)
        return x * y + 1

    jitted = fg.jit(f)
    for i in range(5):
        assert jitted(t(1, i), t(i, 2)).tolist() == [i + 1, 2 * i + 1]
    # calls is a list that the function grows: every call has another one
    assert len(calls) == jitted.captured == 5


def test_a_function_runs_once_however_often_it_is_called() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        SimpleNamespace(tensor=x)
        return x.exp().sum()

    same(f, (t(1, 2),), (t(3, 4),), captures=1)


def _through_modules() -> tuple[Any, tuple[Any, ...]]:
    model = fg.nn.Sequential(fg.nn.Linear(3, 4), fg.nn.ReLU(), fg.nn.Linear(4, 2))
    return lambda x: fg.softmax(model(x), axis=-1).sum().detach(), (fg.ones((2, 3)),)


def _training() -> tuple[Any, tuple[Any, ...]]:
    model = fg.nn.Sequential(fg.nn.Linear(3, 4), fg.nn.LayerNorm(4), fg.nn.Linear(4, 2))
    optimizer = fg.optim.Adam(model.parameters(), lr=0.01)

    def step(x: fg.Tensor, rate: float) -> fg.Tensor:
        optimizer.zero_grad()
        loss: fg.Tensor = (model(x) ** 2).mean() * rate
        loss.backward()
        optimizer.step()
        return loss

    return step, (fg.ones((2, 3)), 0.5)


@pytest.mark.device("cpu")  # where a step writes its state in place
@pytest.mark.parametrize("made", [_through_modules, _training])
def test_a_replay_looks_up_no_plan_and_makes_no_node(made: Any) -> None:
    """Counted, as a function that is quietly run anew gives the right numbers too."""
    function, args = made()
    jitted = fg.jit(function)
    for _ in range(3):
        jitted(*args)
    captured, plans = jitted.captured, fg.cache_stats()["schedule"]
    before = new_buffer((1,), fg.float32, "cpu")
    results = [jitted(*args) for _ in range(5)]
    made_since = new_buffer((1,), fg.float32, "cpu").id - before.id - 1
    assert (jitted.captured, made_since) == (captured, 0)
    assert fg.cache_stats()["schedule"] == plans
    assert len({result.item() for result in results}) == (5 if made is _training else 1)


def test_other_sizes_dtypes_and_ranks() -> None:
    x = np.arange(6)
    calls = [
        (fg.Tensor(x.astype(dtype).reshape(shape)),)
        for dtype in ("float32", "int32", "float64")
        for shape in ((6,), (2, 3), (3, 2))
    ]
    same(lambda a: (a * 2 + 1).sum(axis=0), *calls, captures=9)
    same(lambda a: a * 3, (t(1, 2),), (t(1, 2, 3),), (t(4, 5),), captures=2)


def test_trees_of_tensors_in_any_nesting() -> None:
    Pair = namedtuple("Pair", "a b")

    @dataclasses.dataclass
    class Layer:
        w: Any
        scale: float

    def f(tree: Any) -> Any:
        leaves = [x for x in fg.tree.leaves(tree) if isinstance(x, fg.Tensor)]
        return {"sum": sum(leaves, fg.Tensor(0.0)), "same": [tree]}

    a, b = t(1, 2), t(3, 4)
    for tree in (
        {"x": [a, {"y": b}]},
        {"x": [b, {"y": a}]},
        {"x": [a]},
        {"y": [a]},
        (a, b),
        [a, b],
        Pair(a, b),
        Layer(a, 2.0),
        OrderedDict(p=a, q=b),
        {},
        (),
        [None, a],
    ):
        same(lambda tree: f(tree)["sum"], (tree,))


def test_keys_and_their_order_are_part_of_a_call() -> None:
    def f(d: dict[str, fg.Tensor]) -> list[fg.Tensor]:
        return [value * (i + 1) for i, value in enumerate(d.values())]

    a, b = t(1), t(10)
    same(f, ({"a": a, "b": b},), ({"b": b, "a": a},), ({"a": b, "b": a},), captures=2)


def test_strings_none_and_truths_decide() -> None:
    def f(x: fg.Tensor, mode: Any = None, flip: bool = False) -> fg.Tensor:
        y = x * 2 if mode == "double" else x if mode is None else x * 0
        return -y if flip else y

    same(
        f,
        (t(1),),
        (t(1), "double"),
        (t(1), None),
        (t(1), "other"),
        (t(1), "double", True),
        (t(1), "double", False),
    )
    jitted = fg.jit(f)
    assert jitted(t(1), mode="double").tolist() == [2]
    assert jitted(t(1), mode=None).tolist() == [1]
    assert jitted(x=t(3), flip=True).tolist() == [-3]


def test_enums_ranges_slices_and_complex_numbers_are_told_apart() -> None:
    class Mode(enum.Enum):
        UP, DOWN = 1, 2

    same(lambda x, m: x if m is Mode.UP else -x, (t(1), Mode.UP), (t(1), Mode.DOWN))
    same(lambda x, r: sum([x * i for i in r], x), (t(1), range(3)), (t(1), range(4)))
    same(lambda x, s: x[s], (t(1, 2, 3), slice(1)), (t(1, 2, 3), slice(2)))
    same(lambda x, c: x * c, (fg.Tensor([1 + 1j]), 2j), (fg.Tensor([1 + 1j]), 3j))
    same(lambda x, n: x * n, (t(1), np.float32(2)), (t(1), np.float32(3)), (t(1), np.int32(3)))


# --- numbers -------------------------------------------------------------------------------------


def test_numbers_that_only_meet_tensors_never_capture_again() -> None:
    def f(x: fg.Tensor, rate: float, step: int) -> fg.Tensor:
        return x - rate / (1 - 0.9**step) * x + step

    same(f, *[(t(1, 2), 0.1 * i, i) for i in range(1, 20)], captures=1)
    misses = fg.cache_stats()["schedule"]["misses"]
    jitted = fg.jit(f)
    for i in range(1, 20):
        jitted(t(1, 2), 0.1 * i, i)
    assert fg.cache_stats()["schedule"]["misses"] <= misses + 1


def test_numbers_keep_the_dtype_of_tensors_and_round_as_eager_ones() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "int32", "uint8", "complex64"):
        x = fg.Tensor(np.array([1, 2, 3])).astype(dtype)
        jitted = fg.jit(lambda x, n: x * n)
        for n in (1, 3, 7):
            assert jitted(x, n).dtype is (x * n).dtype
            assert jitted(x, n).tolist() == (x * n).tolist()
        if x.dtype.is_inexact:
            for number in (0.1, 1e-3, math.pi):
                assert jitted(x, number).tolist() == (x * number).tolist()
        else:
            assert jitted(x, 0.5).tolist() == (x * 0.5).tolist()


def test_a_number_that_does_not_fit_is_the_same_error() -> None:
    jitted = fg.jit(lambda x, n: x + n)
    x = fg.Tensor(np.array([1, 2], np.int8))
    assert jitted(x, 5).tolist() == [6, 7]
    with pytest.raises(ConstantError, match="300"):
        jitted(x, 300)
    assert jitted(x, 6).tolist() == [7, 8]


def test_numbers_that_decide_are_captured_for_each_value() -> None:
    def branches(x: fg.Tensor, n: int) -> fg.Tensor:
        return x * n if n > 2 else -x

    same(branches, *[(t(1, 2), n) for n in (1, 2, 3, 4, 1)], captures=4)
    same(lambda x, n: x.reshape(n, -1), (t(1, 2, 3, 4), 2), (t(1, 2, 3, 4), 4))
    same(lambda x, n: x[n], (t(1, 2, 3), 0), (t(1, 2, 3), 2))
    same(lambda x, n: sum([x] * n, x), (t(1), 2), (t(1), 3))
    same(lambda x, p: x * math.exp(p), (t(1), 0.5), (t(1), 0.25))
    same(lambda x, p: x * float(f"{p:.1f}"), (t(1), 0.51), (t(1), 0.61))
    same(lambda x, p: x * {1: 5, 2: 7}[p], (t(1), 1), (t(1), 2))
    same(lambda x, p: x * np.sqrt(p), (t(1), 4.0), (t(1), 9.0))
    same(lambda x, p: x + fg.Tensor([p, 1.0]), (t(1, 1), 4.0), (t(1, 1), 9.0))
    same(lambda x, p: x * (p if isinstance(p, float) else 0), (t(1), 4.0), (t(1), 9))


def test_zero_of_either_sign_and_nan() -> None:
    def f(x: fg.Tensor, n: float) -> fg.Tensor:
        return fg.copysign(x, n) if n == 0 else x * n

    jitted = fg.jit(f)
    assert jitted(t(1), 0.0).tolist() == [1] and jitted(t(1), -0.0).tolist() == [-1]
    for _ in range(2):
        assert math.isnan(jitted(t(1), math.nan).tolist()[0])
    assert jitted(t(1), math.inf).tolist() == [math.inf]


def test_an_int_and_a_float_of_one_value_differ() -> None:
    same(
        lambda x, n: x * n,
        (fg.Tensor([1, 2]), 2),
        (fg.Tensor([1, 2]), 2.0),
        (fg.Tensor([1, 2]), True),
    )


def test_numbers_are_returned_and_put_in_containers() -> None:
    same(lambda x, n: (x * n, n * 2 + 1, [n, -n], {"n": n}), (t(1), 2), (t(1), 5), captures=1)
    same(
        lambda c: c["x"] * c["rate"] + c["more"][0],
        ({"x": t(1), "rate": 0.5, "more": [1]},),
        ({"x": t(1), "rate": 0.25, "more": [3]},),
        captures=1,
    )


def test_division_by_a_number_that_is_zero_raises_in_a_replay_too() -> None:
    jitted = fg.jit(lambda x, n: x * (1 / n))
    assert jitted(t(4), 2.0).tolist() == [2]
    with pytest.raises(ZeroDivisionError):
        jitted(t(4), 0.0)
    assert jitted(t(4), 4.0).tolist() == [1]


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.numpy(), lambda x: x.sum().item(), lambda x: float(x.sum()), lambda x: -x
        if x.sum() > 0 else x, lambda x: f"{x}", lambda x: x.tolist(), lambda x: np.asarray(x),
        lambda x: x.realize(), lambda x: fg.realize(x + 1), lambda x: range(x.sum().astype(int)),
        lambda x: fg.schedule(x + 1).run(),
    ],
)  # fmt: skip
def test_looking_at_a_value_is_an_error_with_the_line_and_a_remedy(look: Any) -> None:
    x = t(1, 2)

    def f(x: fg.Tensor) -> fg.Tensor:
        x += 1
        look(x)
        return x

    with pytest.raises(JitError) as problem:
        fg.jit(f)(x)
    assert "test_jit.py" in str(problem.value) and "try:" in str(problem.value)
    assert x.tolist() == [1, 2]


def test_an_error_that_the_function_hides_is_raised_nevertheless() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        try:
            return x * x.sum().item()
        except RuntimeError:
            return x

    with pytest.raises(JitError):
        fg.jit(f)(t(1))


def test_a_function_that_raises_leaves_everything_as_it_was() -> None:
    state = SimpleNamespace(h=t(1), log=[])

    def f(x: fg.Tensor, fail: bool) -> Any:
        x += 1
        state.h = x * 2
        state.log.append(1)
        if fail:
            raise KeyError("mine")
        return x + state.h

    jitted = fg.jit(f)
    x, h = t(1), state.h
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            jitted(x, True)
        assert x.tolist() == [1] and state.h is h and state.log == []
        assert REGISTRY.storage(x.entry.node) is not None
    assert jitted(x, False).tolist() == [6] and state.log == [1] and x.tolist() == [2]


def test_an_index_that_leaves_its_axis_is_named_in_a_replay() -> None:
    table, state = fg.Tensor(np.arange(4000.0, dtype=np.float32)), t(0)

    @fg.jit
    def f(i: fg.Tensor) -> fg.Tensor:
        state.assign(state + 1)
        return fg.take(table, i)

    f(fg.Tensor([1, 2]))
    with pytest.raises(IndexError, match="4000") as problem:
        f(fg.Tensor([1, 5000])).numpy()  # a GPU says it when a value is read
    assert "test_jit.py" in str(problem.value)
    assert state.tolist() == [1]
    assert f(fg.Tensor([1, 3])).tolist() == [1, 3] and state.tolist() == [2]


def test_what_is_no_function_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="not a function"):
        fg.jit(3)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="staticmethod"):
        fg.jit(staticmethod(lambda x: x))


def test_the_log_says_why_a_call_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    jitted = fg.jit(lambda x, mode="a": x * 2)
    with caplog.at_level(logging.INFO, logger="fulgurite.jit"):
        for args in [(t(1),), (t(1, 2),), (t(1, 2), "b"), (fg.Tensor([1, 2]), "b")]:
            jitted(*args)
    text = caplog.text
    assert "first call" in text and "shape (2,), not (1,)" in text
    assert "2 arguments" in text or "1 arguments" in text
    assert "int32, not float32" in text


@pytest.mark.filterwarnings("ignore:.*captured 33 times:fulgurite.errors.JitWarning")
def test_captures_are_bounded() -> None:
    jitted = fg.jit(lambda x, n: x * n if n else x)
    for n in range(50):
        jitted(t(1), n)
    assert jitted.captured == 50 and len(jitted.captures) == 32


# --- nesting and threads -------------------------------------------------------------------------


def test_a_jitted_function_in_another_is_part_of_it() -> None:
    scale = 2.0
    inner = fg.jit(lambda x: x * scale)
    outer = fg.jit(lambda x: inner(x) + inner(x + 1))
    assert outer(t(1)).tolist() == [6]
    assert inner.captured == 0 and outer.captured == 1
    scale = 3.0
    assert outer(t(1)).tolist() == [9]


def test_recursion() -> None:
    @fg.jit
    def power(x: fg.Tensor, n: int) -> Any:
        return x if n == 1 else x * power(x, n - 1)

    assert [power(t(2), n).tolist() for n in (1, 3, 5, 3)] == [[2], [8], [32], [8]]
    assert power.captured == 3


def test_two_threads_at_once() -> None:
    w = t(2, 3)
    calls = []

    def f(x: fg.Tensor) -> fg.Tensor:
        calls.append(1) if False else None
        return fg.tanh(x * w).sum() + x

    for _ in range(3):
        jitted = fg.jit(f)
        x = [t(i, i + 1) for i in range(4)]
        want = [f(v).tolist() for v in x]

        def work(number: int, jitted: Any = jitted, x: Any = x) -> list[Any]:
            return [jitted(x[(number + i) % 4]).tolist() for i in range(20)]

        for number, results in enumerate(together(4, work)):
            assert results == [want[(number + i) % 4] for i in range(20)]
        assert jitted.captured == 1


def test_assignments_of_several_threads_all_count() -> None:
    total = fg.zeros(3000).realize()

    @fg.jit
    def add(x: fg.Tensor) -> None:
        total.assign(total + x)

    one = fg.ones(3000).realize()
    add(one)
    together(4, lambda _: [add(one) for _ in range(25)])
    assert (total.numpy() == 101).all()


def test_what_another_thread_builds_on_a_tensor_during_a_capture_has_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = t(2, 3)
    met: list[fg.Tensor] = []
    put_back = capture.Capture._put_back

    def meanwhile(self: Any) -> None:
        node = w.entry.node  # the stand-in, as another thread would find it
        met.append(wrap(node * node))
        put_back(self)

    monkeypatch.setattr(capture.Capture, "_put_back", meanwhile)
    assert fg.jit(lambda x: x * w)(t(1, 1)).tolist() == [2, 3]
    assert met[0].tolist() == [4, 9]


def test_a_reader_sees_a_whole_version() -> None:
    state = fg.zeros(20_000).realize()

    @fg.jit
    def step() -> None:
        state.assign(state + 1)

    look = fg.jit(lambda: (state.min(), state.max()))
    step(), look()

    def work(number: int) -> None:
        for _ in range(60):
            if number == 0:
                step()
            elif number == 1:
                low, high = look()
                assert low.item() == high.item()
            else:
                seen = (state * 1).numpy()
                assert (seen == seen[0]).all()

    together(3, work)
    assert (state.numpy() == 61).all()


def test_a_capture_keeps_no_argument_alive() -> None:
    jitted = fg.jit(lambda x: x * 2)
    x = fg.Tensor(np.ones(1000, np.float32))
    jitted(x)
    before = REGISTRY.buffer_count()
    for _ in range(5):
        x = fg.Tensor(np.ones(1000, np.float32))
        jitted(x)
    assert REGISTRY.buffer_count() <= before + 1


@pytest.mark.parametrize("other", [fg.Tensor(3.0), 3.0], ids=["no axes", "no tensor"])
def test_what_has_no_such_size_comes_after_sizes_that_vary(other: Any) -> None:
    def f(x: Any) -> Any:
        return x * 2 + (x.shape[0] if isinstance(x, fg.Tensor) and x.ndim else 0)

    jitted = fg.jit(f)
    with fg.config(device="cpu"):
        for rows in (2, 3, 4, 5):
            assert jitted(fg.ones(rows)).tolist() == [2 + rows] * rows
        assert float(jitted(other)) == 6
        assert jitted(fg.ones(7)).tolist() == [9] * 7


def test_sizes_that_vary_pass_the_verifier() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        n = x.shape[0]
        return (x * fg.arange(n)).sum() + fg.arange(2 * n + 1).sum()

    jitted = fg.jit(f)
    with fg.config(device="cpu", verify=True):
        for n in (3, 5, 7, 9):
            want = sum(range(n)) + sum(range(2 * n + 1))
            assert jitted(fg.ones(n)).item() == want == f(fg.ones(n)).item()
