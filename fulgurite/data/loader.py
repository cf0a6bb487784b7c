"""Batches of a dataset: torch's DataLoader, with orders that can be gone on with exactly.

In: a dataset (anything with a length and items) and a batch size. Out: batches as tensors. A `for`
loop meets every item once, however the loop before it ended. The order of an epoch is a pure
function of one number: of `seed` and the epoch, or drawn from `fg.random` when the epoch begins.
That number and the position are the loader's `state_dict`, so a resumed run meets exactly the
batches that the first one would have. Threads prepare batches ahead; what they do shows in nothing
but speed: nothing is drawn before the epoch before it has ended. Random changes of the data
(`transform`) get a generator that is made anew for every batch.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from itertools import count, islice
from operator import index as as_index
from typing import Any, SupportsIndex

import numpy as np

from ..core.op import Array
from ..core.ops.random import threefry
from ..errors import ArgumentError, DataError, FulguriteError
from ..random.generator import GENERATOR, Generator
from ..tensor import Tensor, realize_among
from .collate import as_tensors, collate

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

    batched = True  # `take` gives a batch at once

    def __init__(self, *arrays: Any) -> None:
        realize_among(arrays)
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

    batched = True

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


class LoaderTimeoutError(FulguriteError, RuntimeError):
    """A batch that did not come in time."""


class DataLoader:
    """Batches of a dataset, with torch's arguments and torch's meaning of them.

    Every `for` begins an epoch: all items, once each, in order or (`shuffle`) in an order that
    `fg.random.seed` decides, or `seed` and the number of the epoch alone. To go on in the middle,
    ask for it: `load_state_dict`, `rest` and `forever` do.

    `num_workers` threads prepare `prefetch_factor` batches each ahead, and `timeout` is how many
    seconds to wait for one; `worker_init_fn` gets each thread's number. `generator` is who draws
    orders in the place of `fg.random`: a key, NumPy's generator or torch's. `batch_size=None` gives
    single items. Hints without a meaning here are taken and ignored: `pin_memory`,
    `pin_memory_device`, `persistent_workers`, `multiprocessing_context`, `in_order` (always).
    `transform(*batch, random=generator)` changes batches; `device` is where tensors go.

    >>> from fulgurite.data import Arrays, DataLoader
    >>> loader = DataLoader(Arrays(range(10)), batch_size=4)
    >>> [x.tolist() for (x,) in loader], len(loader)
    ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 3)
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
        generator: Any = None, *, prefetch_factor: int | None = None,
        persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True,
        seed: int | None = None, transform: Callable[..., Any] | None = None,
        device: str | None = None,
    ) -> None:  # fmt: skip
        self.dataset, self.sampler, self.batch_sampler = dataset, sampler, batch_sampler
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.collate_fn, self.transform, self.device = collate_fn, transform, device
        self.timeout, self.worker_init_fn, self.generator = timeout, worker_init_fn, generator
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        self._check(batch_size, num_workers, prefetch_factor, seed)
        self.batch_size = None if batch_size is None else as_index(batch_size)
        self.num_workers = as_index(num_workers)
        self.prefetch_factor = 2 if prefetch_factor is None else as_index(prefetch_factor)
        self.seed = None if seed is None else as_index(seed)
        self.epoch = self.position = 0  # where it stands: the next batch is this one of this epoch
        self._drawn: int | None = None  # what the order of the epoch that was begun is made of
        self._begun = False  # is it in the middle of an epoch, which the next `for` leaves?
        self._last: object = None  # the iteration that says where it stands

    def _check(self, batch_size: Any, num_workers: Any, prefetch_factor: Any, seed: Any) -> None:
        """Raise where arguments make no sense, or not together."""
        known = hasattr(self.dataset, "__len__") or self.sampler or self.batch_sampler
        if not hasattr(self.dataset, "__getitem__") or not known:
            raise DataError(
                f"{type(self.dataset).__name__} is no dataset",
                "it needs __len__ and __getitem__; of what can only be iterated make a list",
            )
        numbers = {"num_workers": (num_workers, 0), "batch_size": (batch_size, 1),
                   "prefetch_factor": (prefetch_factor, 1)}  # fmt: skip
        for name, (value, least) in numbers.items():
            absent = value is None and name != "num_workers"
            if not absent and (not isinstance(value, SupportsIndex) or as_index(value) < least):
                raise ArgumentError(f"{name} is {value!r}", f"give a whole number from {least}")
        if self.timeout < 0:
            raise ArgumentError(f"timeout is {self.timeout!r}", "give seconds, or 0 for no limit")
        if seed is not None and not isinstance(seed, SupportsIndex):
            raise ArgumentError(f"seed is {seed!r}", "give a whole number")
        if self.generator is not None and seed is None:
            _check_generator(self.generator)
        self._check_agreement(batch_size, num_workers, prefetch_factor, seed)

    def _check_agreement(
        self, batch_size: Any, num_workers: Any, prefetch_factor: Any, seed: Any
    ) -> None:
        """Raise where two options say the same thing, or one says nothing."""
        sampled = self.sampler is not None
        own_batches = batch_size != 1 or self.shuffle or sampled or self.drop_last
        for holds, problem, hint in (
            (seed is not None and self.generator is not None,
             "seed and generator both say how to shuffle", "give one of them"),
            (sampled and self.shuffle,
             "sampler says the order, and so does shuffle", "give one of them"),
            (self.batch_sampler is not None and own_batches,
             "batch_sampler says all that batch_size, shuffle, sampler and drop_last say",
             "leave those out"),
            (batch_size is None and self.drop_last,
             "single items have no last batch to drop", "leave drop_last out"),
            (as_index(num_workers) == 0 and prefetch_factor is not None,
             "nothing is fetched ahead without workers", "give num_workers=1"),
        ):  # fmt: skip
            if holds:
                raise ArgumentError(problem, hint)

    def __len__(self) -> int:
        """Batches in an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        items = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        if self.batch_size is None:
            return items
        whole, rest = divmod(items, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    # --- iterating -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """All batches of an epoch; after `load_state_dict` those of that epoch still to come."""
        if self._begun:
            self._turn_over()
        return self._iterate(1)

    def rest(self) -> Iterator[Any]:
        """The batches of this epoch that are still to come, wherever an iteration stopped.

        >>> from fulgurite.data import Arrays, DataLoader
        >>> loader = DataLoader(Arrays(range(6)), batch_size=2)
        >>> first = next(iter(loader))
        >>> [x.tolist() for (x,) in loader.rest()]
        [[2, 3], [4, 5]]
        """
        return self._iterate(1)

    def forever(self) -> Iterator[Any]:
        """Batches of this epoch that are still to come, then of the next, without an end."""
        if not len(self):
            raise DataError("there are no batches", "use a smaller batch, or more data")
        return self._iterate(math.inf)

    def _begin(self) -> None:
        if not self._begun and self._drawn is None:
            self._drawn = self._draw(self.epoch)
        self._begun = True

    def _turn_over(self) -> None:
        """Stand at the beginning of the next epoch, of which nothing is drawn yet."""
        self.epoch, self.position, self._drawn, self._begun = self.epoch + 1, 0, None, False

    def _draw(self, epoch: int) -> int | None:
        """What the order of an epoch is made of; None: nobody needs it, or `seed` says it all."""
        if self.seed is not None or not (self.shuffle or self.transform):
            return None
        return _drawn(self.generator, epoch)

    def _iterate(self, epochs: float) -> Iterator[Any]:
        """Batches from where the loader stands, to the end of so many epochs."""
        self._begin()
        self._last = me = object()
        return self._batches(me, epochs, self.epoch, self.position, self._drawn)

    def _batches(
        self, me: object, epochs: float, epoch: int, position: int, drawn: int | None
    ) -> Iterator[Any]:
        """The batches of an iteration; the last one that was begun moves the loader on."""
        with _Workers(self) as workers:
            while True:
                lists = islice(self._places(epoch, drawn), position, None)
                for number, found, last in workers.made(epoch, drawn, position, _ends(lists)):
                    if self._last is me:
                        self.position = number + 1
                        if last:
                            self._turn_over()
                    yield found
                epochs, epoch, position = epochs - 1, epoch + 1, 0
                if epochs <= 0:
                    return
                if self._last is me:
                    self._begin()
                    drawn = self._drawn
                else:
                    drawn = self._draw(epoch)

    # --- batches ---------------------------------------------------------------------------------

    def batch(self, epoch: int, position: int) -> Any:
        """One batch as arrays, whatever was read before; without a seed only of known orders."""
        if (self.shuffle or self.transform) and self.seed is None:
            raise ArgumentError("what is drawn later is not known now", "give the loader a seed")
        ((places, _),) = islice(_ends(self._places(epoch, None)), position, position + 1)
        return self._made(epoch, None, position, places)

    def _places(self, epoch: int, drawn: int | None) -> Iterator[Any]:
        """The places of each batch of an epoch."""
        if self.batch_sampler is not None:
            yield from self.batch_sampler
            return
        if self.sampler is not None:
            places = iter(self.sampler)
            size = self.batch_size or 1
            while some := list(islice(places, size)):
                if len(some) == size or not self.drop_last:
                    yield some
            return
        items = len(self.dataset)
        whole = np.arange(items)
        if self.shuffle:
            whole = order(items, drawn or 0, 0) if self.seed is None else self._seeded(epoch)
        size = self.batch_size or 1
        for first in range(0, size * len(self), size):
            yield whole[first : first + size]

    def _seeded(self, epoch: int) -> Array:
        assert self.seed is not None
        return order(len(self.dataset), self.seed, epoch)

    def _made(self, epoch: int, drawn: int | None, position: int, places: Any) -> Any:
        """The batch of some places, as arrays, or as `collate_fn` gives it."""
        if self.collate_fn is None and getattr(self.dataset, "batched", False):
            found = self.dataset.take(places)
            if self.batch_size is None:
                found = tuple([part[0] for part in found])
        else:
            found = self._collated(places)
        if self.transform is None:
            return found
        number = (self.seed if drawn is None else drawn) or 0
        bits = np.random.SeedSequence([number & (1 << 64) - 1, epoch, position])
        random = np.random.Generator(np.random.Philox(bits))
        if not isinstance(found, tuple):
            return self.transform(found, random=random)
        found = self.transform(*found, random=random)
        return found if isinstance(found, tuple) else (found,)

    def _collated(self, places: Any) -> Any:
        """Items of a dataset that gives them one by one, as one batch."""
        fetch = getattr(self.dataset, "__getitems__", None)
        own = [int(p) if isinstance(p, np.integer) else p for p in places]
        items = fetch(own) if fetch is not None else [self.dataset[place] for place in own]
        if self.batch_size is None:
            return items[0] if self.collate_fn is None else self.collate_fn(items[0])
        return (self.collate_fn or collate)(items)

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, and what that depends on: whole numbers."""
        seed = self.seed if self.seed is not None else self._drawn
        return {
            "seed": 0 if seed is None else seed, "epoch": self.epoch, "position": self.position,
            "items": len(self.dataset), "batch_size": self.batch_size or 0,
            "shuffle": self.shuffle, "drop_last": self.drop_last, "begun": self._begun,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave: the next iteration begins there.

        The dataset and the options must be the same. A loader without a seed also needs the state
        of `fg.random` for the epochs after this one, which `fg.io.load_checkpoint` restores.
        """
        mine = self.state_dict()
        try:
            found = {name: int(state[name]) for name in mine if name != "begun"}
            begun = bool(state.get("begun", found["position"]))
        except (KeyError, TypeError, ValueError):
            raise ArgumentError("this is no state of a loader", "give its state_dict()") from None
        for name in ("items", "batch_size", "shuffle", "drop_last"):
            if found[name] != int(mine[name]):
                raise ArgumentError(
                    f"the state is of a loader with {name} {found[name]}, not {int(mine[name])}",
                    "make the loader as it was",
                )
        if found["epoch"] < 0 or not 0 <= found["position"] < max(1, len(self)):
            raise ArgumentError("the state stands outside of the dataset", "give its state_dict()")
        self.epoch, self.position = found["epoch"], found["position"]
        if self.seed is not None:
            self.seed = found["seed"]
        else:
            self._drawn = found["seed"] if begun else None
        self._begun, self._last = False, None


class _Workers:
    """Who makes batches: the one who asks, or threads that are some batches ahead."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.ahead = loader.num_workers * loader.prefetch_factor
        self.waiting: deque[tuple[int, bool, Future[Any]]] = deque()
        self.pool: ThreadPoolExecutor | None = None
        self._here, self._numbers = threading.local(), count()

    def __enter__(self) -> _Workers:
        if self.ahead:
            self.pool = ThreadPoolExecutor(self.loader.num_workers, "fulgurite-data")
        return self

    def __exit__(self, *about: object) -> None:
        for _, _, future in self.waiting:
            future.cancel()
        if self.pool is not None:
            # a thread that hangs is why we stopped waiting: do not wait for it here
            self.pool.shutdown(wait=not isinstance(about[1], LoaderTimeoutError))

    def made(
        self, epoch: int, drawn: int | None, first: int, lists: Iterator[tuple[Any, bool]]
    ) -> Iterator[tuple[int, Any, bool]]:
        """The number of each batch, the batch, and whether it is the last, in order."""
        loader, jobs = self.loader, enumerate(lists, first)
        if self.pool is None:
            for number, (places, last) in jobs:
                found = loader._made(epoch, drawn, number, places)
                yield number, as_tensors(found, loader.device), last
            return
        while True:
            for number, (places, last) in islice(jobs, self.ahead - len(self.waiting)):
                future = self.pool.submit(self._job, epoch, drawn, number, places)
                self.waiting.append((number, last, future))
            if not self.waiting:
                return
            number, last, future = self.waiting.popleft()
            yield number, as_tensors(_waited(future, loader.timeout), loader.device), last

    def _job(self, epoch: int, drawn: int | None, number: int, places: Any) -> Any:
        if self.loader.worker_init_fn is not None and not hasattr(self._here, "number"):
            self._here.number = next(self._numbers)
            self.loader.worker_init_fn(self._here.number)
        return self.loader._made(epoch, drawn, number, places)


def _waited(future: Future[Any], timeout: float) -> Any:
    """What a thread made; an error of ours names the line that waits, not one of the thread's."""
    try:
        return future.result(timeout or None)
    except LateError:
        if future.done():  # the dataset's own, or it came just now
            return future.result()
        future.cancel()
        raise LoaderTimeoutError(
            f"no batch came within {timeout:g} seconds", "give a larger timeout, or 0 for no limit"
        ) from None
    except DataError as problem:
        raise DataError(problem.what, problem.hint) from problem


def _ends(lists: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Everything with whether it is the last."""
    held: list[Any] = list(islice(lists, 1))
    for found in lists:
        yield held.pop(), False
        held.append(found)
    if held:
        yield held.pop(), True


# --- who draws orders ----------------------------------------------------------------------------


def _check_generator(generator: Any) -> None:
    known = isinstance(generator, Tensor | Generator | np.random.Generator)
    if not known and not hasattr(generator, "initial_seed"):
        raise ArgumentError(
            f"{type(generator).__name__} draws no orders",
            "give fg.random.key(seed), a NumPy generator or torch's, or seed=",
        )


def _drawn(generator: Any, epoch: int) -> int:
    """A number for the order of an epoch."""
    if generator is None:
        return GENERATOR.draw()
    if isinstance(generator, Generator):
        return generator.draw()
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(0, 1 << 63))
    if isinstance(generator, Tensor):
        low, high = [int(word) for word in generator.numpy().reshape(-1)[:2]]
        base = low | high << 32
    else:
        base = int(generator.initial_seed())
    words = threefry(_words(base), _words(epoch))
    return int(words[0][0]) | int(words[1][0]) << 32
