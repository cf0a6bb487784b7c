"""Values that grow by concatenation: memory with room, and old values that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import BoundsError
from fulgurite.functional.array import movement
from fulgurite.functional.nn import activation
from fulgurite.functional.template import memo_of
from fulgurite.runtime.cpu import pool
from fulgurite.runtime.sizes import growth

pytestmark = pytest.mark.device("cpu")
WIDTH = 2048
ROWS = np.random.default_rng(0).standard_normal((300, WIDTH)).astype(np.float32)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all rooms that are made."""
    found: list[int] = []

    class Counted(pool.Room):
        def __init__(self, nbytes: int) -> None:
            found.append(nbytes)
            super().__init__(nbytes)

    monkeypatch.setattr(pool, "Room", Counted)
    return found


def grown(count: int, begin: int = 32, scale: float = 1.0) -> Any:
    x = fg.Tensor(ROWS[:begin]).realize()
    for i in range(begin, begin + count):
        x = fg.concat([x, fg.Tensor(ROWS[i : i + 1]) * scale]).realize()
    return x


def test_appends_copy_as_much_as_there_is_and_not_its_square(rooms: list[int]) -> None:
    taken: list[int] = []
    take = pool.POOL.take

    def counted(size: int, slack: int = 8) -> Any:
        taken.append(size)
        return take(size, slack)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.POOL, "take", counted)
        x = grown(256)
    np.testing.assert_array_equal(x.numpy(), ROWS[:288])
    assert len(rooms) == 4  # of 33, 67, 135 and 271 rows, doubled
    assert sum(taken) < 10 * ROWS[:288].nbytes  # 160 times that if each were copied


def test_who_holds_an_old_value_keeps_it(rooms: list[int]) -> None:
    held, x = [], grown(4)
    for i in range(36, 60):
        held.append(x)
        x = fg.concat([x, fg.Tensor(ROWS[i : i + 1])]).realize()
    assert len(rooms) == 1
    for i, old in enumerate(held):
        np.testing.assert_array_equal(old.numpy(), ROWS[: 36 + i])


def test_two_values_that_grow_from_one_are_two(rooms: list[int]) -> None:
    x = grown(3)
    one, two = [fg.concat([x, fg.ones((1, WIDTH)) * i]).realize() for i in (1, 2)]
    assert len(rooms) == 2
    assert one.numpy()[-1, 0] == 1 and two.numpy()[-1, 0] == 2
    np.testing.assert_array_equal(two.numpy()[:-1], ROWS[:35])


def test_what_is_written_to_a_grown_value_stays_in_it() -> None:
    x = grown(3)
    y = fg.concat([x, fg.Tensor(ROWS[35:36])]).realize()
    x[0] = 7.0
    y[1] = 8.0
    fg.realize(x, y)
    assert (x.numpy()[0] == 7).all() and (y.numpy()[1] == 8).all()
    np.testing.assert_array_equal(x.numpy()[1:], ROWS[1:35])
    np.testing.assert_array_equal(y.numpy()[[0, 35]], ROWS[[0, 35]])


def test_what_others_compute_too_is_computed_once(rooms: list[int]) -> None:
    x, row = grown(2), fg.exp(fg.Tensor(ROWS[40:41]))
    total, y = row.sum(), fg.concat([x, row])
    before = len(rooms)
    fg.realize(total, y)
    assert len(rooms) == before  # one plan for both
    np.testing.assert_allclose(y.numpy()[-1], np.exp(ROWS[40]), rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_only_the_end_of_memory_grows(axis: int, rooms: list[int]) -> None:
    x = fg.Tensor(ROWS[:64].reshape(1, 64, WIDTH)).realize()
    shape = [1, 64, WIDTH]
    shape[axis] = 1
    y = fg.concat([x, fg.ones(tuple(shape))], axis=axis).realize()
    assert len(rooms) == (axis == 1)
    want = np.concatenate([ROWS[:64].reshape(1, 64, WIDTH), np.ones(shape, np.float32)], axis)
    np.testing.assert_array_equal(y.numpy(), want)


def test_a_gradient_goes_through_a_grown_value() -> None:
    x = fg.Tensor(ROWS[:40]).realize()
    found = fg.grad(lambda a: (fg.concat([x, a]).realize() ** 2).sum())(fg.Tensor(ROWS[40:41]))
    np.testing.assert_allclose(found.numpy(), 2 * ROWS[40:41], rtol=1e-5)


# --- along any axis, inside a plan ----------------------------------------------------------------

CUBE = np.random.default_rng(1).standard_normal((6, 200, 32)).astype(np.float32)


def appended(x: Any, row: Any, axis: int = 1) -> tuple[Any, Any]:
    """A step of a loop whose cache grows: what is computed reads all of it."""
    x = fg.concat([x, row * 2.0], axis=axis)
    return x, fg.softmax(x.sum(axis=-1), axis=-1)


def stepped(step: Callable[[Any, Any], Any], data: Any, axis: int, begin: int, end: int) -> Any:
    """The last value of such a loop; every step is checked."""
    part = [slice(None)] * data.ndim
    part[axis] = slice(0, begin)
    x = fg.Tensor(data[tuple(part)]).realize()
    for i in range(begin, end):
        part[axis] = slice(i, i + 1)
        x, y = step(x, fg.Tensor(data[tuple(part)]))
        fg.realize(x, y)
    return x


def doubled_from(data: Any, axis: int, begin: int, end: int) -> Any:
    """What `stepped` makes of data."""
    old, new = np.split(np.take(data, range(end), axis), [begin], axis)
    return np.concatenate([old, new * 2], axis).astype(data.dtype)


def memory(x: Any) -> Any:
    value = x.entry.value if type(x.entry).__name__ == "Fresh" else None
    return value[0] if value is not None else x.node.memory


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    ("dtype", "axis"),
    [(np.float32, 1), (np.float64, 1), (np.float16, 2), (np.int32, 1), (np.int8, 2),
     (np.complex64, 1), (np.float32, 0), (np.bool_, 2)],
)  # fmt: skip
def test_a_value_grows_along_any_axis(
    jitted: bool, dtype: Any, axis: int, rooms: list[int]
) -> None:
    rest = [37, 129]
    shape = [*rest[:axis], 40, *rest[axis:]] if axis else [40, 37, 129]
    data = (np.random.default_rng(2).standard_normal(shape) * 9).astype(dtype)

    def step(x: Any, row: Any) -> tuple[Any, Any]:
        x = fg.concat([x, row], axis=axis)
        return x, x.astype(fg.float32).max(axis=axis) if x.dtype != fg.complex64 else x.sum(axis)

    x = stepped(fg.jit(step) if jitted else step, data, axis, 20, 40)
    assert type(memory(x)) is pool.Grown
    assert len(rooms) <= 2  # one doubling would do
    assert x.numpy().flags.c_contiguous
    np.testing.assert_array_equal(x.numpy(), data)


@pytest.mark.parametrize("jitted", [False, True])
def test_appends_inside_a_plan_copy_no_square_either(jitted: bool, rooms: list[int]) -> None:
    x = stepped(fg.jit(appended) if jitted else appended, CUBE, 1, 100, 200)
    assert type(memory(x)) is pool.Grown and memory(x).address == 0
    assert len(rooms) == 1
    np.testing.assert_array_equal(x.numpy(), doubled_from(CUBE, 1, 100, 200))


@pytest.mark.parametrize("jitted", [False, True])
def test_old_values_and_their_views_stay_along_an_inner_axis(jitted: bool) -> None:
    step: Any = fg.jit(appended) if jitted else appended
    x, held = stepped(step, CUBE, 1, 100, 110), []
    for i in range(110, 180):
        view, shown = x[:, 3:7], np.asarray(x)
        held.append((x, view, shown))
        x, y = step(x, fg.Tensor(CUBE[:, i : i + 1]))
        fg.realize(x, y)
    gc.collect()
    for i, (old, view, shown) in enumerate(held):
        want = doubled_from(CUBE, 1, 100, 110 + i)
        np.testing.assert_array_equal(old.numpy(), want)
        np.testing.assert_array_equal(shown, want)
        np.testing.assert_array_equal(view.numpy(), want[:, 3:7])
        with pytest.raises(ValueError, match="read-only"):
            shown[0] = 1


@pytest.mark.parametrize("jitted", [False, True])
def test_two_that_go_on_from_one_value_are_two_along_an_inner_axis(jitted: bool) -> None:
    step: Any = fg.jit(appended) if jitted else appended
    x = stepped(step, CUBE, 1, 100, 110)
    rows = [fg.Tensor(CUBE[:, i : i + 1]) for i in (120, 130)]
    (one, a), (two, b) = step(x, rows[0]), step(x, rows[1])
    fg.realize(one, a)
    fg.realize(two, b)
    both = fg.concat([x, rows[0]], axis=1), fg.concat([x, rows[1]], axis=1)
    fg.realize(*both)  # in one plan
    want = doubled_from(CUBE, 1, 100, 110)
    for found, i, times in ((one, 120, 2), (two, 130, 2), (both[0], 120, 1), (both[1], 130, 1)):
        row = CUBE[:, i : i + 1] * times
        np.testing.assert_array_equal(found.numpy(), np.concatenate([want, row], 1))
    np.testing.assert_array_equal(x.numpy(), want)


def test_what_is_assigned_to_grown_values_stays_in_them() -> None:
    x = stepped(appended, CUBE, 1, 100, 110)
    y, z = appended(x, fg.Tensor(CUBE[:, 110:111]))
    fg.realize(y, z)
    x[0] = 7.0
    y[1, :, 3] = 8.0
    fg.realize(x, y)
    want = doubled_from(CUBE, 1, 100, 111)
    assert (x.numpy()[0] == 7).all() and (y.numpy()[1, :, 3] == 8).all()
    np.testing.assert_array_equal(x.numpy()[1:], want[1:, :110])
    np.testing.assert_array_equal(y.numpy()[[0, 2, 3, 4, 5]], want[[0, 2, 3, 4, 5]])


def test_what_grows_is_read_by_all_that_reads_memory(tmp_path: Any) -> None:
    x = stepped(appended, CUBE, 1, 100, 110)
    want = doubled_from(CUBE, 1, 100, 110)
    np.testing.assert_array_equal((x * 1).numpy(), want)
    np.testing.assert_array_equal(np.from_dlpack(x), want)
    np.testing.assert_array_equal(x[2].realize().numpy(), want[2])
    np.testing.assert_array_equal(x.to("reference").numpy(), want)
    np.testing.assert_array_equal(fg.jit(lambda a: a + 1)(x).numpy(), want + 1)
    assert x.tolist() == want.tolist()
    fg.save({"x": x}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(fg.load(tmp_path / "x.safetensors")["x"].numpy(), want)


def test_the_old_value_may_be_read_beside_the_new_one() -> None:
    @fg.jit
    def step(x: Any, row: Any) -> Any:
        longer = fg.concat([x, row], axis=1)
        return longer, longer.sum(axis=1) - x.sum(axis=1), fg.flip(x, 1)

    def plain(x: Any, row: Any) -> Any:
        longer = fg.concat([x, row], axis=1)
        return longer, longer.sum(axis=1) - x.sum(axis=1), fg.flip(x, 1)

    for run in (step, plain):
        x = fg.Tensor(CUBE[:, :100]).realize()
        for i in range(100, 120):
            x, difference, turned = run(x, fg.Tensor(CUBE[:, i : i + 1]))
            fg.realize(x, difference, turned)
            np.testing.assert_allclose(difference.numpy(), CUBE[:, i], rtol=1e-3, atol=1e-4)
            np.testing.assert_array_equal(turned.numpy(), CUBE[:, :i][:, ::-1])
            np.testing.assert_array_equal(x.numpy(), CUBE[:, : i + 1])


def test_a_part_that_is_made_of_the_old_value_is_appended() -> None:
    x, want = fg.Tensor(CUBE[:, :100]).realize(), CUBE[:, :100]
    for _ in range(12):
        row = fg.flip(x[:, -1:], 2) + x.max(axis=1, keepdims=True)
        x = fg.concat([x, row], axis=1)
        total = x.sum()
        fg.realize(x, total)
        made = want[:, -1:, ::-1] + want.max(axis=1, keepdims=True)
        want = np.concatenate([want, made], 1)
        np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize("jitted", [False, True])
def test_an_index_that_is_outside_takes_no_room(jitted: bool, rooms: list[int]) -> None:
    table = fg.Tensor(CUBE[0]).realize()

    def body(x: Any, places: Any) -> Any:
        x = fg.concat([x, table[places].reshape(1, -1, 32)[:, :1] * fg.ones((6, 1, 1))], axis=1)
        return x, x.sum(axis=1)

    step: Any = fg.jit(body) if jitted else body
    x, want = fg.Tensor(CUBE[:, :100]).realize(), CUBE[:, :100]
    for i in range(20):
        if i % 3 == 2:
            with pytest.raises(BoundsError):
                fg.realize(*step(x, fg.Tensor(np.array([900 + i], np.int32))))
        x, y = step(x, fg.Tensor(np.array([i], np.int32)))
        fg.realize(x, y)
        row = np.broadcast_to(CUBE[0, i], (6, 1, 32))
        want = np.concatenate([want, row], 1)
        np.testing.assert_array_equal(x.numpy(), want)
    assert len(rooms) == 1


def test_a_gradient_goes_through_what_grew_along_an_inner_axis() -> None:
    x = stepped(appended, CUBE, 1, 100, 110)
    row = fg.Tensor(CUBE[:, 110:111])
    found = fg.grad(lambda a: (fg.concat([x, a], axis=1) ** 2).sum())(row)
    np.testing.assert_allclose(found.numpy(), 2 * CUBE[:, 110:111], rtol=1e-5)
    found = fg.grad(lambda a: (fg.concat([a, row], axis=1) ** 2).sum())(x)
    np.testing.assert_allclose(found.numpy(), 2 * doubled_from(CUBE, 1, 100, 110), rtol=1e-5)
    held = fg.Tensor(CUBE[:, 111:112], requires_grad=True)
    for _ in range(4):
        grown_too = fg.concat([x, held], axis=1)
        fg.realize(grown_too, grown_too.sum())
        grown_too.sum().backward()
    assert held.grad is not None and (held.grad.numpy() == 4).all()


def test_threads_that_grow_from_one_value_have_their_own() -> None:
    x = stepped(appended, CUBE, 1, 100, 110)
    before, found = doubled_from(CUBE, 1, 100, 110), dict[int, Any]()

    def work(number: int) -> None:
        mine = x
        for i in range(20):
            mine, y = appended(mine, fg.Tensor(CUBE[:, i : i + 1]) * float(number))
            fg.realize(mine, y)
        found[number] = mine.numpy()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        rows = CUBE[:, :20] * np.float32(number) * 2
        np.testing.assert_array_equal(found[number], np.concatenate([before, rows], 1))


def test_pieces_of_several_rows_and_of_none_are_appended(rooms: list[int]) -> None:
    x, want, at = fg.Tensor(CUBE[:, :90]).realize(), CUBE[:, :90], 90
    for count in (3, 1, 7, 0, 2, 64, 5):
        part = CUBE[:, at : at + count]
        x = fg.concat([x, fg.Tensor(part) * 1.0], axis=1)
        fg.realize(x, x.sum(axis=1))
        want, at = np.concatenate([want, part], 1), at + count
        np.testing.assert_array_equal(x.numpy(), want)
    assert len(rooms) <= 2


def test_one_concatenation_gets_no_room(rooms: list[int]) -> None:
    x = fg.concat([fg.Tensor(CUBE[:, :150]).realize(), fg.Tensor(CUBE[:, 150:])], axis=1)
    fg.realize(x, x.sum())
    assert not rooms and memory(x).address


def test_a_loop_compiles_within_its_first_steps() -> None:
    for step in (appended, fg.jit(appended)):
        x = fg.Tensor(CUBE[:, :100]).realize()
        for i in range(100, 200):
            before = fg.cache_stats()["schedule"]["misses"]
            x, y = step(x, fg.Tensor(CUBE[:, i : i + 1]))
            fg.realize(x, y)
            assert i < 105 or fg.cache_stats()["schedule"]["misses"] == before


def test_a_loop_that_is_known_is_recognized_by_its_key_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No function is run for its nodes, no root looked at for what it appends."""
    looked: list[int] = []
    appends_of = growth.appends_of

    def counted(*args: Any) -> Any:
        looked.append(1)
        return appends_of(*args)

    monkeypatch.setattr(growth, "appends_of", counted)
    x = stepped(appended, CUBE, 1, 100, 110)
    memos = [memo_of(function) for function in (movement.concat, activation.softmax)]
    before = [memo.made for memo in memos]
    looked.clear()
    for i in range(110, 130):
        x, y = appended(x, fg.Tensor(CUBE[:, i : i + 1]))
        fg.realize(x, y)
    assert not looked and [memo.made for memo in memos] == before
    assert all([memo.filled >= 20 for memo in memos])
    np.testing.assert_array_equal(x.numpy(), doubled_from(CUBE, 1, 100, 130))


def test_a_known_structure_appends_only_where_it_may() -> None:
    stepped(appended, CUBE, 1, 100, 110)
    # memory that was never concatenated has no room
    x, y = appended(fg.Tensor(CUBE[:, :110]).realize(), fg.Tensor(CUBE[:, 110:111]))
    fg.realize(x, y)
    assert memory(x).address  # in order
    np.testing.assert_array_equal(x.numpy(), doubled_from(CUBE, 1, 110, 111))
    # a root that a gradient looks at keeps its expression
    grew = stepped(appended, CUBE, 1, 100, 112)
    row = fg.Tensor(CUBE[:, 112:113], requires_grad=True)
    x, y = appended(grew, row)
    fg.realize(x, y)
    x.sum().backward()
    assert row.grad is not None
    np.testing.assert_array_equal(row.grad.numpy(), np.full_like(CUBE[:, 112:113], 2))
    np.testing.assert_array_equal(x.numpy(), doubled_from(CUBE, 1, 100, 113))
    # and two that go on from one value are two, known or not
    rows = [fg.Tensor(CUBE[:, i : i + 1]) for i in (120, 130)]
    both = [appended(grew, row) for row in rows]
    for pair in both:
        fg.realize(*pair)
    for (x, _), i in zip(both, (120, 130), strict=True):
        np.testing.assert_array_equal(x.numpy()[:, -1:], CUBE[:, i : i + 1] * 2)
        np.testing.assert_array_equal(x.numpy()[:, :-1], grew.numpy())
