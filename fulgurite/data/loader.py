"""Batches of a dataset in an order that is a pure function of (seed, epoch, position).

In: a dataset (anything with a length and items) and a batch size. Out: batches as tensors. No state
of a generator is carried along: where training stands is three whole numbers, which are the
loader's `state_dict`, so a resumed run meets exactly the batches that the first one would have.
Threads prepare batches ahead; what they do shows in nothing but speed. Random changes of the data
(`transform`) get a generator that is made anew for every batch, from the same three numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import index as as_index
from typing import Any, SupportsIndex

import numpy as np

from ..core.op import Array
from ..core.ops.random import threefry
from ..errors import ArgumentError, DataError
from ..tensor import Tensor

_ORDER = 0x6F726472  # apart from other uses of the same seed


def order(count: int, seed: int, epoch: int) -> Array:
    """The places 0 to count - 1 in the order of an epoch, the same on every machine.

    >>> from fulgurite.data import order
    >>> order(8, seed=0, epoch=1).tolist() == order(8, seed=0, epoch=1).tolist()
    True
    """
    low, high = _words(seed)
    turn, more = _words(epoch)
    key = threefry((low, high), (turn, more ^ np.uint32(_ORDER)))
    places = np.arange(count, dtype=np.uint64)
    block = (places & np.uint64(0xFFFFFFFF)).astype(np.uint32), (places >> np.uint64(32))
    words = threefry(key, (block[0], block[1].astype(np.uint32)))
    return np.argsort(words[0].astype(np.uint64) << np.uint64(32) | words[1], kind="stable")


def _words(number: int) -> tuple[Array, Array]:
    whole = as_index(number)
    return np.array([whole & 0xFFFFFFFF], np.uint32), np.array(
        [whole >> 32 & 0xFFFFFFFF], np.uint32
    )


class Arrays:
    """A dataset of equally long arrays: item i is the i-th of each.

    >>> from fulgurite.data import Arrays
    >>> data = Arrays([[1.0], [2.0], [3.0]], [0, 1, 0])
    >>> len(data), data.take([0, 2])[1].tolist()
    (3, [0, 0])
    """

    def __init__(self, *arrays: Any) -> None:
        self.arrays = [a.numpy() if isinstance(a, Tensor) else np.asarray(a) for a in arrays]
        if not self.arrays or any(a.ndim == 0 for a in self.arrays):
            raise DataError("a dataset needs arrays of one or more dimensions", "give some")
        if len({len(a) for a in self.arrays}) != 1:
            sizes = [len(a) for a in self.arrays]
            raise DataError(f"arrays of {sizes} items are no dataset", "give equally long ones")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        return tuple([a[place] for a in self.arrays])

    def take(self, places: Sequence[int] | Array) -> tuple[Array, ...]:
        """A batch of these items."""
        return tuple([a[np.asarray(places)] for a in self.arrays])


class Windows:
    """A dataset of all windows of a sequence: (length items, the same moved on by one).

    >>> from fulgurite.data import Windows
    >>> [part.tolist() for part in Windows([1, 2, 3, 4], 2).take([0, 1])]
    [[[1, 2], [2, 3]], [[2, 3], [3, 4]]]
    """

    def __init__(self, sequence: Any, length: int) -> None:
        self.sequence, self.length = np.asarray(sequence), length
        if self.sequence.ndim != 1 or not 0 < length < len(self.sequence):
            raise DataError(
                f"no windows of {length} in a sequence of shape {self.sequence.shape}",
                "give a longer sequence, or shorter windows",
            )

    def __len__(self) -> int:
        return len(self.sequence) - self.length

    def __getitem__(self, place: int) -> tuple[Array, Array]:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no window {place} of {len(self)}")
        found = self.take([place % len(self)])
        return found[0][0], found[1][0]

    def take(self, places: Sequence[int] | Array) -> tuple[Array, Array]:
        """A batch of these windows."""
        at = np.asarray(places)[:, None] + np.arange(self.length)
        return self.sequence[at], self.sequence[at + 1]


class DataLoader:
    """Batches of a dataset; iterating goes on from where the last iteration stopped.

    >>> from fulgurite.data import Arrays, DataLoader
    >>> loader = DataLoader(Arrays(range(10)), batch_size=4, shuffle=False)
    >>> [x.tolist() for (x,) in loader], loader.epoch
    ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 1)
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = True, *, seed: int = 0,
        drop_last: bool = False, transform: Callable[..., Any] | None = None, workers: int = 1,
        prefetch: int = 2, device: str | None = None,
    ) -> None:  # fmt: skip
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataError(
                f"{type(dataset).__name__} is no dataset", "it needs __len__ and __getitem__"
            )
        for name, value, least in (
            ("batch_size", batch_size, 1), ("workers", workers, 0), ("prefetch", prefetch, 0),
        ):  # fmt: skip
            if not isinstance(value, SupportsIndex) or as_index(value) < least:
                raise ArgumentError(f"{name} is {value!r}", f"give a number from {least}")
        if not isinstance(seed, SupportsIndex):
            raise ArgumentError(f"seed is {seed!r}", "give a whole number")
        self.dataset, self.batch_size, self.shuffle = dataset, as_index(batch_size), shuffle
        self.seed, self.drop_last, self.transform = as_index(seed), drop_last, transform
        self.workers, self.prefetch, self.device = workers, prefetch, device
        self.epoch = self.position = 0
        if not len(self):
            raise DataError(
                f"{len(dataset)} items give no batch of {batch_size}", "use a smaller batch"
            )
        self._order: tuple[int, Array] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches of this epoch that are still to come."""
        yield from self._batches(len(self) - self.position)

    def forever(self) -> Iterator[tuple[Tensor, ...]]:
        """Batches of this epoch, then of the next, without an end."""
        yield from self._batches(None)

    def batch(self, epoch: int, position: int) -> tuple[Array, ...]:
        """One batch as arrays, whatever was read before."""
        places = self._places(epoch)[position * self.batch_size :][: self.batch_size]
        if hasattr(self.dataset, "take"):
            found = tuple(self.dataset.take(places))
        else:
            found = _stacked([self.dataset[int(place)] for place in places])
        if self.transform is not None:
            bits = np.random.SeedSequence([self.seed & (1 << 64) - 1, epoch, position])
            found = self.transform(*found, random=np.random.Generator(np.random.Philox(bits)))
            found = found if isinstance(found, tuple) else (found,)
        return found

    def _places(self, epoch: int) -> Array:
        known = self._order
        if known is None or known[0] != epoch:
            count = len(self.dataset)
            places = order(count, self.seed, epoch) if self.shuffle else np.arange(count)
            known = self._order = epoch, places
        return known[1]

    def _batches(self, count: int | None) -> Iterator[tuple[Tensor, ...]]:
        given = 0
        if not self.workers or not self.prefetch:
            stand = self.epoch, self.position
            while count is None or given < count:
                yield self._given(self.batch(*stand), stand)
                stand = self._after(*stand)
                given += 1
            return
        ahead: deque[tuple[tuple[int, int], Future[tuple[Array, ...]]]] = deque()
        with ThreadPoolExecutor(self.workers, "fulgurite-data") as pool:
            epoch, position = self.epoch, self.position
            try:
                while count is None or given < count:
                    while len(ahead) < self.prefetch and (
                        count is None or given + len(ahead) < count
                    ):
                        future = pool.submit(self.batch, epoch, position)
                        ahead.append(((epoch, position), future))
                        epoch, position = self._after(epoch, position)
                    stand, future = ahead.popleft()
                    yield self._given(_waited(future), stand)
                    given += 1
            finally:
                for _, future in ahead:
                    future.cancel()

    def _after(self, epoch: int, position: int) -> tuple[int, int]:
        position += 1
        return (epoch + 1, 0) if position >= len(self) else (epoch, position)

    def _given(self, batch: tuple[Array, ...], stand: tuple[int, int]) -> tuple[Tensor, ...]:
        """A batch as tensors; the loader stands after it, so that saving now resumes after it."""
        if stand != (self.epoch, self.position):
            raise DataError(
                f"this iteration is at epoch {stand[0]}, position {stand[1]}, its loader at epoch "
                f"{self.epoch}, position {self.position}: something else moved it on meanwhile",
                "iterate anew, or make a second loader: one loader stands in one place",
            )
        self.epoch, self.position = self._after(self.epoch, self.position)
        return tuple([Tensor(part, device=self.device) for part in batch])

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, and what that depends on."""
        return {
            "seed": self.seed, "epoch": self.epoch, "position": self.position,
            "items": len(self.dataset), "batch_size": self.batch_size, "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; the dataset and options must be the same."""
        mine = self.state_dict()
        try:
            found = {name: int(state[name]) for name in mine}
        except (KeyError, TypeError, ValueError):
            raise ArgumentError("this is no state of a loader", "give its state_dict()") from None
        for name in ("items", "batch_size", "shuffle", "drop_last"):
            if found[name] != int(mine[name]):
                raise ArgumentError(
                    f"the state is of a loader with {name} {found[name]}, not {int(mine[name])}",
                    "make the loader as it was",
                )
        if found["epoch"] < 0 or not 0 <= found["position"] < len(self):
            raise ArgumentError("the state stands outside of the dataset", "give its state_dict()")
        self.seed, self.epoch, self.position = found["seed"], found["epoch"], found["position"]
        self._order = None


def _waited(future: Future[tuple[Array, ...]]) -> tuple[Array, ...]:
    """What a thread made; an error of ours names the line that waits, not one of the thread's."""
    try:
        return future.result()
    except DataError as problem:
        raise DataError(problem.what, problem.hint) from problem


def _stacked(items: list[Any]) -> tuple[Array, ...]:
    """Items of a plain dataset as a batch."""
    rows = [item if isinstance(item, tuple | list) else (item,) for item in items]
    try:
        return tuple([
            np.stack([x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in column])
            for column in zip(*rows, strict=True)
        ])  # fmt: skip
    except ValueError as problem:
        raise DataError(
            f"items of this dataset do not stack: {problem}", "make them of one shape"
        ) from None
