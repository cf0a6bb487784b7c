"""Parts of datasets, and datasets joined.

In: datasets, anything with a length and items. Out: datasets, which take batches at once if what
they are made of does. A random split is a pure function of the seed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import floor
from typing import Any

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError, DataError
from .collate import collate
from .loader import order


class Subset:
    """Some items of a dataset.

    >>> from fulgurite.data import Arrays, Subset
    >>> Subset(Arrays([10, 11, 12]), [2, 0]).take([0, 1])[0].tolist()
    [12, 10]
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | Array) -> None:
        self.dataset, self.indices = dataset, np.asarray(indices, np.int64).reshape(-1)
        count = len(dataset)
        if self.indices.size and not -count <= self.indices.min() <= self.indices.max() < count:
            raise DataError(f"places outside of a dataset of {count}", "give places in it")
        self.indices = self.indices % max(count, 1)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Any:
        return self.dataset[int(self.indices[place])]

    @property
    def batched(self) -> bool:
        """True if it takes batches at once, as what it is a part of does."""
        return getattr(self.dataset, "batched", False)

    def take(self, places: Sequence[int] | Array) -> Any:
        """A batch of these items."""
        found = self.indices[np.asarray(places)]
        if self.batched:
            return self.dataset.take(found)
        return collate([self.dataset[int(place)] for place in found])


class ConcatDataset:
    """The items of several datasets, one after the other.

    >>> from fulgurite.data import Arrays, ConcatDataset
    >>> len(ConcatDataset([Arrays([1, 2]), Arrays([3])]))
    3
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        self.ends = list(accumulate([len(dataset) for dataset in self.datasets]))
        if not self.datasets:
            raise DataError("there are no datasets", "give some")

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, place: int) -> Any:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no item {place} of {len(self)}")
        place %= len(self)
        number = bisect_right(self.ends, place)
        return self.datasets[number][place - (self.ends[number - 1] if number else 0)]


def random_split(dataset: Any, lengths: Sequence[float], seed: int = 0) -> list[Subset]:
    """A dataset in parts of these lengths, or these shares of it, drawn by a seed.

    >>> from fulgurite.data import Arrays, random_split
    >>> [len(part) for part in random_split(Arrays(range(10)), [0.8, 0.2])]
    [8, 2]
    """
    count = len(dataset)
    sizes = list(lengths)
    if all([0 <= n <= 1 for n in sizes]) and abs(sum(sizes) - 1) < 1e-6:
        whole = [floor(count * share) for share in sizes]
        for place in range(count - sum(whole)):  # what is left goes round, as in torch
            whole[place % len(whole)] += 1
        sizes = list(whole)
    if sum(sizes) != count or any([n != int(n) or n < 0 for n in sizes]):
        raise ArgumentError(
            f"parts of {list(lengths)} of {count} items",
            f"give whole numbers with the sum {count}, or shares with the sum 1",
        )
    places, found, start = order(count, seed, 0), [], 0
    for size in sizes:
        found.append(Subset(dataset, places[start : start + int(size)]))
        start += int(size)
    return found
