"""Parts of datasets and datasets joined: items, batches, and splits that a seed decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.data import Arrays, ConcatDataset, DataLoader, Subset, TensorDataset, random_split
from fulgurite.errors import ArgumentError, DataError
from tests.functional.helpers import raises


def test_a_subset_has_the_items_named_also_in_batches() -> None:
    for data in (Arrays(np.arange(5) * 10), [(10 * i,) for i in range(5)]):
        part = Subset(data, [3, -1, 0])
        assert len(part) == 3 and part[1][0] == 40
        loader = DataLoader(part, batch_size=2, shuffle=False)
        assert [x.tolist() for (x,) in loader] == [[30, 40], [0]]


def test_joined_datasets_count_on() -> None:
    joined = ConcatDataset([Arrays([1, 2]), [], [(3,)]])
    assert [joined[i][0] for i in range(-3, 3)] == [1, 2, 3, 1, 2, 3]
    (x,) = next(iter(DataLoader(joined, batch_size=3, shuffle=False)))
    assert x.tolist() == [1, 2, 3]
    with pytest.raises(IndexError, match="no item 3 of 3"):
        joined[3]


@given(st.integers(1, 60), st.lists(st.floats(0.1, 1), min_size=1, max_size=4), st.integers(0, 9))
def test_a_split_gives_every_item_to_one_part(count: int, shares: list[float], seed: int) -> None:
    data = TensorDataset(np.arange(count))
    total = sum(shares)
    parts = random_split(data, [share / total for share in shares], seed)
    items: list[Any] = [part[i][0] for part in parts for i in range(len(part))]
    assert sorted(items) == list(range(count))
    again = random_split(data, [len(part) for part in parts], seed)
    assert [part.indices.tolist() for part in again] == [part.indices.tolist() for part in parts]


def test_what_is_no_part_is_one_clear_error() -> None:
    data = Arrays(range(10))
    with raises(ArgumentError, "parts of [5, 4] of 10 items"):
        random_split(data, [5, 4])
    with raises(DataError, "places outside of a dataset of 10"):
        Subset(data, [10])
    with raises(DataError, "there are no datasets"):
        ConcatDataset([])
