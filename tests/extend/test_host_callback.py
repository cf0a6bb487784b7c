"""Tests of fulgurite/extend/host_callback.py: the user's Python inside a lazy graph."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError, DTypeError, GradientError, ShapeError
from fulgurite.graph.ir.cache_key import digest, normalize

TIERS = ("auto", "native")


@pytest.fixture(autouse=True, params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[None]:
    with fg.config(tier=request.param):
        yield


def data(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def test_a_function_is_applied_when_a_value_is_needed() -> None:
    calls: list[int] = []

    def doubled(a: Array) -> Array:
        calls.append(1)
        return a * 2

    x = data(3, 4)
    y = fg.custom(doubled, fg.Tensor(x) + 1, shape=(3, 4)) * 3
    assert not calls
    np.testing.assert_allclose(y.numpy(), (x + 1) * 6, rtol=1e-6)
    assert len(calls) == 1


def test_several_results_come_from_one_call() -> None:
    calls: list[int] = []

    def split(a: Array, b: Array) -> tuple[Array, Array]:
        calls.append(1)
        return a.sum(axis=0), (a > b).astype(np.int32)

    x, y = data(3, 4), data(4)
    total, larger = fg.custom(
        split, fg.Tensor(x), fg.Tensor(y), shape=[(4,), (3, 4)], dtype=["float32", "int32"]
    )
    fg.realize(total, larger)
    assert len(calls) == 1 and larger.dtype is fg.int32
    np.testing.assert_allclose(total.numpy(), x.sum(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(larger.numpy(), x > y)


def test_an_argument_in_place_becomes_a_result_and_the_tensor_stays() -> None:
    def clear(a: Array) -> None:
        a[0] = 0

    x = fg.Tensor(data(3, 2))
    before = x.numpy()
    cleared = fg.custom(clear, x, inplace=[0])
    after = cleared.numpy()
    assert not after[0].any()
    np.testing.assert_array_equal(after[1:], before[1:])
    np.testing.assert_array_equal(x.numpy(), before)
    x.assign(cleared)
    np.testing.assert_array_equal(x.numpy(), after)


def test_a_schedule_holds_host_functions_that_work_in_place() -> None:
    def scale(a: Array, by: Array) -> Any:
        a *= by
        return a.sum(keepdims=True).reshape(1)

    x, by = data(3, 4), data(4)
    total, scaled = fg.custom(scale, fg.Tensor(x) + 1, fg.Tensor(by), shape=(1,), inplace=[0])
    plan = fg.schedule(total * 2, scaled - 1)
    assert [item.kind for item in plan.items].count("host") == 1
    for _ in range(2):
        got = [t.numpy() for t in plan.run()]
        np.testing.assert_allclose(got[0], ((x + 1) * by).sum()[None] * 2, rtol=1e-4)
        np.testing.assert_allclose(got[1], (x + 1) * by - 1, rtol=1e-6)


def test_one_buffer_as_input_and_in_place_target_is_copied() -> None:
    def add(a: Array, b: Array) -> None:
        assert not np.shares_memory(a, b)
        a += b[::-1]

    x = data(4)
    t = fg.Tensor(x)
    np.testing.assert_array_equal(fg.custom(add, t, t, inplace=[0]).numpy(), x + x[::-1])
    np.testing.assert_array_equal(t.numpy(), x)

    def both(a: Array, b: Array) -> None:
        a += 1
        b += 10

    one, ten = fg.custom(both, t, t, inplace=[0, 1])
    fg.realize(one, ten)
    np.testing.assert_array_equal(one.numpy(), x + 1)
    np.testing.assert_array_equal(ten.numpy(), x + 10)


def test_arguments_cannot_be_written_unless_they_are_declared_in_place() -> None:
    def write(a: Array) -> Array:
        with pytest.raises(ValueError):
            a[0] = 1
        with pytest.raises(ValueError):
            a.flags.writeable = True
        base: Any = a
        while isinstance(base, np.ndarray):
            assert not base.flags.writeable
            base = base.base
        return a + 1

    x = data(5)
    np.testing.assert_array_equal(fg.custom(write, fg.Tensor(x), shape=(5,)).numpy(), x + 1)


def test_a_function_that_raises_is_named_with_the_line_where_it_was_applied() -> None:
    def fail(a: Array) -> Array:
        raise ZeroDivisionError("mine")

    x = fg.Tensor(data(3))
    y = x + 1
    bad = fg.custom(fail, y, shape=(3,))  # this line
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            (bad * 2).numpy()
        (note,) = caught.value.__notes__
        assert "'fail'" in note and "test_host_callback.py:" in note
    assert not bad.is_realized
    np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)


def test_nothing_is_lost_when_a_function_fails_in_a_graph_that_assigns() -> None:
    def fail(a: Array) -> Array:
        raise RuntimeError("mine")

    before = data(4)
    x = fg.Tensor(before)
    x += fg.custom(fail, fg.ones(4), shape=(4,))
    with pytest.raises(RuntimeError, match="mine"):
        x.realize()
    x.assign(fg.Tensor(before) * 2)
    np.testing.assert_array_equal(x.numpy(), before * 2)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda a: a[:1], r"returned \(1,\) float32, not the declared \(3,\) float32"),
        (lambda a: a.astype(np.float64), "returned .* float64"),
        (lambda a: None, "returned"),
        (lambda a: [a, a], "returned"),
    ],
)
def test_a_function_that_breaks_its_word_is_named_with_its_line(
    answer: Any, complaint: str
) -> None:
    bad = fg.custom(answer, fg.Tensor(data(3)), shape=(3,))
    with pytest.raises(ArgumentError, match=complaint) as caught:
        bad.numpy()
    assert "test_host_callback.py:" in str(caught.value) and "<lambda>" in str(caught.value)


def test_several_results_must_all_be_returned() -> None:
    one = fg.custom(lambda a: (a,), fg.Tensor(data(3)), shape=[(3,), (3,)])[0]
    with pytest.raises(ArgumentError, match="returned 1 values, not 2"):
        one.numpy()
    none = fg.custom(lambda a: a, fg.Tensor(data(3)), inplace=[0])
    with pytest.raises(ArgumentError, match="returned ndarray, not nothing"):
        none.numpy()


def test_a_function_that_keeps_an_argument_is_an_error_and_nothing_is_lost() -> None:
    kept: list[Array] = []

    def keep(a: Array) -> Array:
        kept.append(a[1:])
        return a * 2

    x = data(6)
    bad = fg.custom(keep, fg.Tensor(x) + 1, shape=(6,))
    with pytest.raises(ArgumentError, match="'keep' keeps a reference to argument 0") as caught:
        bad.numpy()
    assert "test_host_callback.py:" in str(caught.value) and "copy()" in str(caught.value)
    copies: list[Array] = []
    good = fg.custom(lambda a: copies.append(a.copy()) or a * 2, fg.Tensor(x) + 1, shape=(6,))  # type: ignore[func-returns-value]
    np.testing.assert_allclose(good.numpy(), (x + 1) * 2, rtol=1e-6)
    np.testing.assert_allclose(copies[0], x + 1, rtol=1e-6)


def test_an_argument_in_a_cycle_that_nobody_reaches_is_not_kept() -> None:
    def cyclic(a: Array) -> Array:
        loop: list[Any] = [a]
        loop.append(loop)
        return a * 2

    x = data(3)
    np.testing.assert_array_equal(fg.custom(cyclic, fg.Tensor(x), shape=(3,)).numpy(), x * 2)


def test_what_a_function_keeps_of_its_results_is_never_ours() -> None:
    room = np.empty(4, np.float32)

    def reuse(a: Array) -> Array:
        np.multiply(a, 2, out=room)
        return room

    kept: list[Array] = []

    def place(a: Array) -> None:
        a += 1
        kept.append(a)

    x = data(4)
    y = fg.custom(reuse, fg.Tensor(x), shape=(4,)).realize()
    z = fg.custom(place, fg.Tensor(x), inplace=[0]).realize()
    room[:] = -1
    kept[0][:] = -1
    np.testing.assert_array_equal(y.numpy(), x * 2)
    np.testing.assert_array_equal(z.numpy(), x + 1)


def test_a_function_may_return_its_argument_or_a_view_of_it() -> None:
    x = data(3, 4)
    t = fg.Tensor(x)
    same = fg.custom(lambda a: a, t, shape=(3, 4)).realize()
    turned = fg.custom(lambda a: a.T[::-1], t, shape=(4, 3)).realize()
    t += 1
    t.realize()
    np.testing.assert_array_equal(same.numpy(), x)
    np.testing.assert_array_equal(turned.numpy(), x.T[::-1])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "float16", "bfloat16", "complex64", "complex128"]
)
def test_every_dtype_passes_through(dtype: str) -> None:
    x = fg.Tensor(np.array([[1, 0, 2]])).astype(dtype)
    y = fg.custom(lambda a: a[:, ::-1], x, shape=(1, 3))
    z = fg.custom(lambda a: None, x, inplace=[0])
    assert y.dtype is x.dtype
    np.testing.assert_array_equal(y.numpy(), x.numpy()[:, ::-1])
    np.testing.assert_array_equal(z.numpy(), x.numpy())


def test_numbers_and_empty_arrays_pass_through() -> None:
    assert fg.custom(lambda a: np.asarray(a + 1), fg.Tensor(2.0), shape=()).item() == 3
    empty = fg.custom(lambda a: a.reshape(0, 2), fg.zeros((2, 0)), shape=(0, 2))
    assert empty.numpy().shape == (0, 2)
    assert fg.custom(lambda: np.arange(3), shape=3, dtype="int64").tolist() == [0, 1, 2]


# --- gradients and transforms --------------------------------------------------------------------


def test_a_gradient_is_given_in_tensors() -> None:
    x = data(5)

    def loss(t: fg.Tensor) -> Any:
        y = fg.custom(np.sin, t, shape=t.shape, grad=lambda g, y, t: g * fg.cos(t))
        return (y * 2).sum()

    np.testing.assert_allclose(fg.grad(loss)(fg.Tensor(x)).numpy(), 2 * np.cos(x), rtol=1e-5)


def test_gradients_of_arguments_in_place_and_of_several_results_arrive_together() -> None:
    def square(a: Array, b: Array) -> Array:
        a *= a
        return b + 1

    def back(gs: Any, ys: Any, a: fg.Tensor, b: fg.Tensor) -> tuple[Any, Any]:
        assert len(gs) == len(ys) == 2
        return None if gs[1] is None else gs[1] * 2 * a, gs[0]

    x, y = data(3), data(3) + 1

    def loss(a: fg.Tensor, b: fg.Tensor) -> Any:
        more, squared = fg.custom(square, a, b, shape=(3,), inplace=[0], grad=back)
        return (more * 3 + squared).sum()

    da, db = fg.grad(loss, (0, 1))(fg.Tensor(x), fg.Tensor(y))
    np.testing.assert_allclose(da.numpy(), 2 * x, rtol=1e-6)
    np.testing.assert_array_equal(db.numpy(), [3, 3, 3])


def test_the_gradient_of_one_result_is_no_list_and_may_be_an_array() -> None:
    def clear(a: Array) -> None:
        a[0] = 0

    def loss(t: fg.Tensor, grad: Any) -> Any:
        return (fg.custom(clear, t, inplace=[0], grad=grad) * 2).sum()

    x = fg.Tensor(data(3))
    keep = np.array([0, 1, 1], np.float32)
    assert fg.grad(lambda t: loss(t, lambda g, y, t: g * keep))(x).tolist() == [0, 2, 2]
    assert fg.grad(lambda t: loss(t, lambda g, y, t: keep))(x).tolist() == [0, 1, 1]


def test_a_function_without_a_gradient_says_so() -> None:
    def loss(t: fg.Tensor) -> Any:
        return fg.custom(np.sin, t, shape=t.shape).sum()

    with pytest.raises(GradientError, match="'sin' has no gradient"):
        fg.grad(loss)(fg.Tensor(data(2)))

    def wrong(t: fg.Tensor) -> Any:
        return fg.custom(np.sin, t, shape=t.shape, grad=lambda g, y, t: g.sum()).sum()

    with pytest.raises(ShapeError, match="gradient of host function 'sin' by tensor 0"):
        fg.grad(wrong)(fg.Tensor(data(2)))

    def missing(t: fg.Tensor) -> Any:
        return fg.custom(np.sin, t, shape=t.shape, grad=lambda g, y, t: (g, g)).sum()

    with pytest.raises(GradientError, match="gave 2 values for 1 tensors"):
        fg.grad(missing)(fg.Tensor(data(2)))


def test_vmap_calls_it_for_each_example() -> None:
    def first(a: Array, b: Array) -> Array:
        b += a.max()
        return np.sort(a)

    x, y = data(3, 4), data(3)
    s, moved = fg.vmap(lambda a, b: fg.custom(first, a, b, shape=(4,), inplace=[1]))(
        fg.Tensor(x), fg.Tensor(y)
    )
    np.testing.assert_array_equal(s.numpy(), np.sort(x, axis=1))
    np.testing.assert_allclose(moved.numpy(), y + x.max(axis=1), rtol=1e-6)


def test_a_loop_calls_it_in_every_step() -> None:
    calls: list[int] = []

    def step(a: Array, b: Array) -> Array:
        calls.append(1)
        a += b
        return a * 2

    def body(h: fg.Tensor, row: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        twice, h = fg.custom(step, h, row, shape=(2,), inplace=[0])
        return h, twice

    x = data(5, 2)
    last, rows = fg.scan(body, fg.zeros(2), fg.Tensor(x))
    fg.realize(last, rows)
    assert len(calls) == 5
    np.testing.assert_allclose(last.numpy(), x.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(rows.numpy(), 2 * x.cumsum(axis=0), rtol=1e-5)


# --- identity ------------------------------------------------------------------------------------


class Scaler:
    """A callable with state, and a method."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, a: Array) -> Array:
        return a * np.float32(self.by)

    def method(self, a: Array) -> Array:
        return self(a)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler)  # equal, but not the same

    __hash__ = None  # type: ignore[assignment]


def test_functions_stand_in_the_graph_by_identity() -> None:
    x = fg.Tensor(data(3))
    a, b = Scaler(2), Scaler(3)
    assert fg.custom(a, x, shape=(3,)).node is fg.custom(a, x, shape=(3,)).node
    assert fg.custom(a, x, shape=(3,)).node is not fg.custom(b, x, shape=(3,)).node
    assert fg.custom(a.method, x, shape=(3,)).node is fg.custom(a.method, x, shape=(3,)).node
    assert fg.custom(a.method, x, shape=(3,)).node is not fg.custom(b.method, x, shape=(3,)).node
    np.testing.assert_array_equal(fg.custom(b, x, shape=(3,)).numpy(), x.numpy() * 3)


def test_a_function_that_nobody_uses_any_more_goes_away() -> None:
    scaler = Scaler(2)
    fg.custom(scaler, fg.Tensor(data(3)), shape=(3,)).realize()
    alive = weakref.ref(scaler)
    del scaler
    fg.clear_caches()
    gc.collect()
    assert alive() is None


@pytest.mark.usefixtures("clean_hosts")
def test_only_a_registered_function_has_a_key_for_the_disk() -> None:
    def mine(a: Array) -> Array:
        return a + 1

    x = fg.Tensor(data(3))
    normal = normalize([fg.custom(mine, x, shape=(3,)).node])
    with pytest.raises(ArgumentError, match="no stable name"):
        digest(*normal.key)
    assert fg.register_host("tests.mine", mine) is mine
    for how in (mine, "tests.mine"):
        normal = normalize([fg.custom(how, x, shape=(3,)).node])
        assert digest(*normal.key)
    fg.register_host("tests.mine", mine)  # again: the same
    with pytest.raises(ArgumentError, match="exists already"):
        fg.register_host("tests.mine", lambda a: a)


def test_two_threads_call_one_function() -> None:
    x = fg.Tensor(data(100))
    expected = np.sort(x.numpy() + 1)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                y = fg.custom(np.sort, x + 1, shape=(100,)) * 1
                np.testing.assert_array_equal(y.numpy(), expected)
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# --- what is wrong when it is written ------------------------------------------------------------


def test_wrong_declarations_are_errors_at_the_users_line() -> None:
    x = fg.Tensor(data(3))
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ArgumentError, "no shape", lambda: fg.custom(np.sin, x)),
        (DTypeError, "no dtype", lambda: fg.custom(lambda: 1, shape=())),
        (ArgumentError, "not a function", lambda: fg.custom(3, x, shape=(3,))),  # type: ignore[arg-type]
        (ArgumentError, "inplace is", lambda: fg.custom(np.sin, x, inplace=[1])),
        (ArgumentError, "inplace is", lambda: fg.custom(np.sin, x, inplace=[0, 0])),
        (ArgumentError, "inplace is", lambda: fg.custom(np.sin, x, inplace=["a"])),  # type: ignore[list-item]
        (ArgumentError, "registered", lambda: fg.custom("nobody", x, shape=(3,))),
        (ArgumentError, "2 shapes and 1 dtypes",
         lambda: fg.custom(np.sin, x, shape=[(3,), (3,)], dtype=["float32"])),
        (ShapeError, "not a size", lambda: fg.custom(np.sin, x, shape=(1.5,))),
        (ArgumentError, "no name", lambda: fg.register_host("", np.sin)),
    ]  # fmt: skip
    for kind, complaint, ask in wrong:
        with pytest.raises(kind, match=complaint) as caught:
            ask()
        assert "test_host_callback.py:" in str(caught.value)


def test_the_gradient_of_every_example_is_that_of_one() -> None:
    def both(x: fg.Tensor) -> Any:
        def pull(g: Any, y: Any, x: fg.Tensor) -> Any:
            return sum([0 if a is None else a * b for a, b in zip(g, (y[1], -y[0]), strict=True)])

        kinds: dict[str, Any] = {"shape": [x.shape] * 2, "dtype": [x.dtype] * 2}
        return fg.custom(lambda a: (np.sin(a), np.cos(a)), x, grad=pull, **kinds)

    x = fg.Tensor(np.linspace(0, 1, 24).reshape(2, 3, 4))
    every = fg.vmap(fg.vmap(lambda row: (both(row)[0] * 3 + both(row)[1]) ** 2))
    want = fg.grad(lambda x: ((fg.sin(x) * 3 + fg.cos(x)) ** 2).sum())(x).numpy()
    assert np.allclose(fg.grad(lambda x: every(x).sum())(x).numpy(), want)

    matrices = x[:, :, :3] + 2 * fg.eye(3, dtype="float64")
    for function in (fg.linalg.inv, fg.linalg.det, lambda a: fg.linalg.eigh(a + a.mT)[0]):
        mapped = fg.grad(lambda a, f=function: (fg.vmap(f)(a) ** 2).sum())(matrices).numpy()
        assert np.allclose(mapped, fg.grad(lambda a, f=function: (f(a) ** 2).sum())(matrices))
