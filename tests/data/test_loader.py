"""The loader: torch's meaning by default, orders that a seed decides, resuming that is exact."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.data import Arrays, DataLoader, Windows, order
from fulgurite.errors import ArgumentError, DataError


def read(loader: DataLoader, count: int) -> list[list[int]]:
    return [x.tolist() for (x,) in itertools.islice(loader.forever(), count)]


@given(st.integers(0, 200), st.integers(-5, 2**64), st.integers(0, 2**33))
def test_an_epochs_order_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    assert sorted(order(count, seed, epoch).tolist()) == list(range(count))


def test_the_order_is_the_same_on_every_machine() -> None:
    assert order(10, 0, 0).tolist() == [8, 7, 0, 4, 2, 6, 1, 3, 9, 5]
    assert order(10, 0, 1).tolist() != order(10, 0, 0).tolist() != order(10, 1, 0).tolist()


def test_places_are_spread_evenly() -> None:
    firsts = np.array([order(6, 7, epoch)[0] for epoch in range(600)])
    assert np.bincount(firsts, minlength=6).min() > 60


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("drop", [False, True])
def test_an_epoch_has_every_item_once(workers: int, drop: bool) -> None:
    loader = DataLoader(
        Arrays(range(23)), 5, shuffle=True, seed=3, num_workers=workers, drop_last=drop
    )
    seen = [x for batch in loader for x in batch[0].tolist()]
    assert len(loader) == (4 if drop else 5) and len(set(seen)) == len(seen) == (20 if drop else 23)
    assert loader.epoch == 1 and loader.position == 0


@given(st.integers(0, 12), st.integers(0, 3))
def test_resuming_anywhere_gives_the_batches_that_were_to_come(stop: int, workers: int) -> None:
    def fresh() -> DataLoader:
        ahead: dict[str, Any] = {"num_workers": workers, "prefetch_factor": 3} if workers else {}
        return DataLoader(Arrays(range(11)), 4, shuffle=True, seed=9, **ahead)

    whole = read(fresh(), 16)
    first = fresh()
    assert read(first, stop) == whole[:stop]  # batches that were prepared ahead do not count
    second = fresh()
    second.load_state_dict(first.state_dict())
    assert read(second, 16 - stop) == whole[stop:]


def test_a_transform_draws_the_same_numbers_after_resuming() -> None:
    def noisy(x: Any, random: np.random.Generator) -> Any:
        return x + random.normal(size=x.shape)

    first, second = [
        DataLoader(Arrays(np.zeros(8)), 2, transform=noisy, num_workers=w, seed=0) for w in (0, 3)
    ]
    whole = read(first, 6)
    assert read(second, 6) == whole and whole[0] != whole[1]


def test_plain_datasets_are_stacked() -> None:
    class Squares:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, place: int) -> tuple[Any, int]:
            return np.full(2, place), place * place

    loader = DataLoader(Squares(), 3, shuffle=False)
    x, y = next(iter(loader))
    assert x.tolist() == [[0, 0], [1, 1], [2, 2]] and y.tolist() == [0, 1, 4]


def test_windows_move_on_by_one() -> None:
    windows = Windows(np.arange(10), 4)
    x, y = windows.take([0, 5])
    assert len(windows) == 6 and x[1].tolist() == [5, 6, 7, 8] and y[1].tolist() == [6, 7, 8, 9]


def test_an_error_of_a_dataset_comes_out_and_no_thread_stays() -> None:
    class Broken:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, place: int) -> int:
            if place == 5:
                raise RuntimeError("item 5 is broken")
            return place

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="item 5"):
        list(DataLoader(Broken(), 2, num_workers=2))
    stream = DataLoader(Arrays(range(8)), 2, num_workers=2).forever()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_what_is_no_dataset_or_state_is_refused() -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: DataLoader(3), lambda: Arrays(), lambda: Arrays([1], [1, 2]),
        lambda: Windows([1, 2], 2), lambda: DataLoader(iter([1])),
        lambda: DataLoader(Arrays([1]), 2, drop_last=True).forever(),
    ]  # fmt: skip
    for make in wrong:
        with pytest.raises(DataError):
            make()
    with pytest.raises(ArgumentError):
        DataLoader(Arrays([1]), 0)
    loader = DataLoader(Arrays(range(8)), 2)
    with pytest.raises(ArgumentError, match="batch_size"):
        loader.load_state_dict(DataLoader(Arrays(range(8)), 4).state_dict())
    with pytest.raises(ArgumentError, match="no state"):
        loader.load_state_dict({})
    with pytest.raises(ArgumentError, match="outside"):
        loader.load_state_dict(loader.state_dict() | {"position": 4})
    with pytest.raises(DataError, match="stack") as caught:
        next(iter(DataLoader([np.ones(2), np.ones(3)], 2)))
    assert __file__ in caught.value.where  # not a line of the thread
    with pytest.raises(ArgumentError, match="seed"):
        DataLoader(Arrays([1]), 1, seed=1.5)  # type: ignore[arg-type]
    assert DataLoader(Arrays(range(8)), np.int64(4)).batch_size == 4  # type: ignore[arg-type]


def test_windows_are_counted_from_the_end_as_well() -> None:
    windows = Windows(range(5), 2)
    assert [part.tolist() for part in windows[-1]] == [[2, 3], [3, 4]]
    for place in (3, -4):
        with pytest.raises(IndexError):
            windows[place]


def test_batches_are_tensors_on_the_device_that_is_asked_for() -> None:
    (x,) = next(iter(DataLoader(Arrays(np.ones(4, np.float32)), 2, device="reference")))
    assert isinstance(x, fg.Tensor) and x.device == "reference" and x.dtype is fg.float32


# --- torch's meaning -----------------------------------------------------------------------------


def epochs(loader: DataLoader, count: int) -> list[list[list[int]]]:
    return [[x.tolist() for (x,) in loader] for _ in range(count)]


def test_the_order_is_that_of_the_dataset_unless_it_is_shuffled() -> None:
    assert epochs(DataLoader(Arrays(range(5)), 2), 2) == [[[0, 1], [2, 3], [4]]] * 2
    assert epochs(DataLoader(Arrays(range(5)), 2, shuffle=None), 1) == [[[0, 1], [2, 3], [4]]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 4])
def test_every_for_is_a_whole_epoch_however_the_one_before_ended(
    workers: int, seed: int | None
) -> None:
    loader = DataLoader(Arrays(range(12)), 2, shuffle=True, seed=seed, num_workers=workers)
    next(iter(loader))
    for batch in loader:
        assert batch[0].shape == (2,)
        break
    whole = [x for (batch,) in loader for x in batch.tolist()]
    assert sorted(whole) == list(range(12)) and len(loader) == 6
    plain = DataLoader(Arrays(range(4)), 2, num_workers=workers)
    assert next(iter(plain))[0].tolist() == next(iter(plain))[0].tolist() == [0, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_iterations_over_one_loader_do_not_disturb_each_other(workers: int) -> None:
    loader = DataLoader(Arrays(range(4)), 2, num_workers=workers)
    pairs = [(a.tolist(), b.tolist()) for (a,) in loader for (b,) in loader]
    assert pairs == [(a, b) for a in ([0, 1], [2, 3]) for b in ([0, 1], [2, 3])]
    endless, other = loader.forever(), loader.forever()
    first = [[next(s)[0].tolist() for s in (endless, other)] for _ in range(4)]
    assert [a for a, _ in first] == [[0, 1], [2, 3]] * 2


def test_orders_follow_the_seed_of_the_process_and_differ_from_epoch_to_epoch() -> None:
    def three(workers: int = 0) -> list[list[list[int]]]:
        fg.random.seed(11)
        loader = DataLoader(Arrays(range(20)), 6, shuffle=True, num_workers=workers)
        return epochs(loader, 3)

    found = three()
    assert found == three(2) and len({str(epoch) for epoch in found}) == 3
    fg.random.seed(12)
    assert epochs(DataLoader(Arrays(range(20)), 6, shuffle=True), 3) != found
    seeded = [DataLoader(Arrays(range(20)), 6, shuffle=True, seed=5) for _ in range(2)]
    assert epochs(seeded[0], 3) == epochs(seeded[1], 3)  # whatever was drawn in between


def test_what_is_not_random_draws_nothing() -> None:
    before = fg.random.get_state()
    list(DataLoader(Arrays(range(4)), 2))
    list(DataLoader(Arrays(range(4)), 2, shuffle=True, seed=1))
    assert fg.random.get_state() == before
    list(DataLoader(Arrays(range(4)), 2, shuffle=True))
    assert fg.random.get_state() != before


class _Torch:
    """What we know of torch's generator."""

    def initial_seed(self) -> int:
        return 99


@pytest.mark.parametrize(
    "make", [lambda: fg.random.key(3), lambda: np.random.default_rng(3), lambda: _Torch()]
)
def test_a_generator_draws_the_orders_in_the_place_of_the_process(make: Callable[[], Any]) -> None:
    before = fg.random.get_state()
    found = [
        epochs(DataLoader(Arrays(range(20)), 6, shuffle=True, generator=make()), 2)
        for _ in range(2)
    ]
    assert found[0] == found[1] and found[0][0] != found[0][1]
    assert fg.random.get_state() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_without_a_seed_resumes_exactly_with_the_state_of_the_generator(
    workers: int,
) -> None:
    def fresh() -> DataLoader:
        return DataLoader(Arrays(range(11)), 4, shuffle=True, num_workers=workers)

    for stop in range(8):
        fg.random.seed(2)
        whole = read(fresh(), 12)
        fg.random.seed(2)
        first = fresh()
        assert read(first, stop) == whole[:stop]
        state, generator = first.state_dict(), fg.random.get_state()
        fg.random.seed(77)
        second = fresh()
        second.load_state_dict(state)
        fg.random.set_state(generator)
        assert read(second, 12 - stop) == whole[stop:]


def test_after_loading_a_state_a_for_goes_on_and_the_next_is_whole_again() -> None:
    first = DataLoader(Arrays(range(8)), 2, shuffle=True, seed=3)
    seen = []
    for (x,) in first:
        seen.append(x.tolist())
        if len(seen) == 2:
            break
    second = DataLoader(Arrays(range(8)), 2, shuffle=True, seed=0)
    second.load_state_dict(first.state_dict())
    rest = [x.tolist() for (x,) in second]
    assert rest == [x.tolist() for (x,) in first.rest()]
    assert sorted([x for some in seen + rest for x in some]) == list(range(8))
    assert len(list(second)) == 4 and second.epoch == 2


def test_samplers_say_which_items_come_and_in_which_batches() -> None:
    data = Arrays(range(10))
    loader = DataLoader(data, 2, sampler=[7, 1, 3])
    assert epochs(loader, 2) == [[[7, 1], [3]]] * 2 and len(loader) == 2
    assert epochs(DataLoader(data, 2, sampler=[7, 1, 3], drop_last=True), 1) == [[[7, 1]]]
    batches = DataLoader(data, batch_sampler=[[1, 2, 3], [9]])
    assert epochs(batches, 1) == [[[1, 2, 3], [9]]] and len(batches) == 2
    named = DataLoader({"a": 1, "b": 2}, 2, sampler=["b", "a"])
    assert [x.tolist() for x in named] == [[2, 1]]


def test_items_are_put_together_as_they_are_nested() -> None:
    rows = [{"x": np.ones(2) * i, "y": (i, float(i)), "name": str(i)} for i in range(3)]
    (batch,) = DataLoader(rows, 3)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]] and batch["name"] == ["0", "1", "2"]
    assert [part.tolist() for part in batch["y"]] == [[0, 1, 2], [0.0, 1.0, 2.0]]
    assert [x.tolist() for x in DataLoader(np.arange(6).reshape(3, 2), 2)] == [
        [[0, 1], [2, 3]], [[4, 5]],
    ]  # fmt: skip
    assert [x.tolist() for x in DataLoader(fg.arange(4), 2)] == [[0, 1], [2, 3]]
    single = list(DataLoader(Arrays(range(3)), batch_size=None))
    assert [x.tolist() for (x,) in single] == [0, 1, 2]
    assert list(DataLoader(["a", "b"], batch_size=None)) == ["a", "b"]


def test_a_collate_function_gets_the_items_and_its_result_is_the_batch() -> None:
    def longest(items: list[Any]) -> dict[str, Any]:
        return {"sizes": [len(item) for item in items], "first": fg.Tensor(items[0])}

    words = [[1.0], [1.0, 2.0], [3.0]]
    found = list(DataLoader(words, 2, collate_fn=longest))
    assert [batch["sizes"] for batch in found] == [[1, 2], [1]]
    assert isinstance(found[0]["first"], fg.Tensor)
    pairs = list(DataLoader(Arrays([1, 2], [3, 4]), 2, collate_fn=lambda items: items))
    assert pairs == [[(1, 3), (2, 4)]]


def test_a_dataset_may_give_several_items_at_once() -> None:
    class Table:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, place: int) -> int:
            raise AssertionError("all at once")

        def __getitems__(self, places: list[int]) -> list[int]:
            return [10 * place for place in places]

    assert [x.tolist() for x in DataLoader(Table(), 3)] == [[0, 10, 20], [30]]


def test_all_of_torchs_arguments_are_taken() -> None:
    numbers: list[int] = []
    loader = DataLoader(
        Arrays(range(8)), 2, False, None, None, 2, None, True, False, 30, numbers.append, "fork",
        None, prefetch_factor=4, persistent_workers=True, pin_memory_device="cuda", in_order=True,
    )  # fmt: skip
    assert epochs(loader, 1) == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert {*numbers} <= {0, 1} and len(numbers) == len({*numbers}) >= 1
    assert (loader.num_workers, loader.timeout, loader.prefetch_factor) == (2, 30, 4)
    assert list(DataLoader([1], 2, drop_last=True)) == [] == list(DataLoader([], 2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shuffle": True, "sampler": [0]}, {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "shuffle": True}, {"batch_sampler": [[0]], "drop_last": True},
        {"batch_size": None, "drop_last": True}, {"num_workers": -1}, {"timeout": -1},
        {"prefetch_factor": 2}, {"num_workers": 1, "prefetch_factor": 0}, {"batch_size": 0},
        {"seed": 1, "generator": np.random.default_rng(0)}, {"generator": 3}, {"num_workers": 1.5},
    ],
    ids=" ".join,
)  # fmt: skip
def test_arguments_that_make_no_sense_are_value_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DataLoader(Arrays(range(4)), **wrong)


def test_a_batch_that_does_not_come_in_time_is_an_error() -> None:
    release = threading.Event()

    class Slow:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, place: int) -> int:
            release.wait(30)
            return place

    with pytest.raises(RuntimeError, match="no batch came within"):
        list(DataLoader(Slow(), num_workers=1, timeout=0.05))
    release.set()


def test_a_worker_that_cannot_begin_is_an_error() -> None:
    def broken(number: int) -> None:
        raise OSError(f"worker {number} has no disk")

    with pytest.raises(OSError, match="worker 0 has no disk"):
        list(DataLoader(Arrays(range(4)), num_workers=1, worker_init_fn=broken))


def test_one_batch_can_be_looked_at_without_iterating() -> None:
    loader = DataLoader(Arrays(range(10)), 4, shuffle=True, seed=6)
    whole = epochs(loader, 2)
    assert [part.tolist() for part in loader.batch(1, 2)] == [whole[1][2]]
    with pytest.raises(ArgumentError, match="drawn later"):
        DataLoader(Arrays(range(10)), 4, shuffle=True).batch(0, 0)
