"""The loader: its order is a function of three numbers, and resuming is exact."""

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
    loader = DataLoader(Arrays(range(23)), 5, seed=3, workers=workers, drop_last=drop)
    seen = [x for batch in loader for x in batch[0].tolist()]
    assert len(loader) == (4 if drop else 5) and len(set(seen)) == len(seen) == (20 if drop else 23)
    assert loader.epoch == 1 and loader.position == 0


@given(st.integers(0, 12), st.integers(0, 3))
def test_resuming_anywhere_gives_the_batches_that_were_to_come(stop: int, workers: int) -> None:
    def fresh() -> DataLoader:
        return DataLoader(Arrays(range(11)), 4, seed=9, workers=workers, prefetch=3)

    whole = read(fresh(), 16)
    first = fresh()
    assert read(first, stop) == whole[:stop]  # batches that were prepared ahead do not count
    second = fresh()
    second.load_state_dict(first.state_dict())
    assert read(second, 16 - stop) == whole[stop:]


def test_a_transform_draws_the_same_numbers_after_resuming() -> None:
    def noisy(x: Any, random: np.random.Generator) -> Any:
        return x + random.normal(size=x.shape)

    first, second = [DataLoader(Arrays(np.zeros(8)), 2, transform=noisy, workers=w) for w in (0, 3)]
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
        list(DataLoader(Broken(), 2, shuffle=False, workers=2))
    stream = DataLoader(Arrays(range(8)), 2).forever()
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
        lambda: Windows([1, 2], 2), lambda: DataLoader(Arrays([1]), 2, drop_last=True),
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


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_whose_loader_was_moved_meanwhile_says_so(workers: int) -> None:
    loader = DataLoader(Arrays(range(12)), 2, workers=workers)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 5  # goes on from there
    with pytest.raises(DataError, match="moved it on meanwhile"):
        next(first)
    assert (loader.epoch, loader.position) == (1, 0)


def test_windows_are_counted_from_the_end_as_well() -> None:
    windows = Windows(range(5), 2)
    assert [part.tolist() for part in windows[-1]] == [[2, 3], [3, 4]]
    for place in (3, -4):
        with pytest.raises(IndexError):
            windows[place]


def test_batches_are_tensors_on_the_device_that_is_asked_for() -> None:
    (x,) = next(iter(DataLoader(Arrays(np.ones(4, np.float32)), 2, device="reference")))
    assert isinstance(x, fg.Tensor) and x.device == "reference" and x.dtype is fg.float32
