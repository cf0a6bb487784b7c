"""Where random bits come from: the generator of the process, or a key of one's own.

In: how many 32-bit words a draw needs. Out: a RANDOM node over a key and a counter. Both are
buffers, no part of the graph's key, so a hundred draws compile once. The process has one generator:
every draw reserves the blocks it reads, so no two draws meet, whatever their shapes and threads. A
key of one's own touches no state: the same key gives the same numbers. High counters are kept for
making keys from keys, so that those never meet the numbers that a key gives.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from operator import index as as_index
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..config import current
from ..core import build
from ..core.dtype import uint32, uint64
from ..core.node import Node, Shape, constant
from ..core.ops.random import threefry
from ..core.shape import prod, show, upper
from ..errors import ArgumentError, DataError, DTypeError, JitError
from ..tensor import SCOPES, Tensor, node_of, wrap
from ..tensor.from_data import array_node

P = ParamSpec("P")
T = TypeVar("T")
_WORDS = 2  # of a block, and of a key
_MASK = (1 << 64) - 1
SPLIT, FOLD = 1 << 63, 1 << 62  # where the counters of derived keys begin
_APART = 56  # 2**56 blocks lie between the draws of one call with a key


class Generator:
    """A key and a counter: the state behind every draw without a key. Safe to share by threads."""

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self.set(seed_key(seed), 0)

    def set(self, key: tuple[int, int], counter: int) -> None:
        """Go on from another state."""
        _not_captured("sets the state of the generator")
        with self._lock:
            self._key, self._counter = key, counter
            self._buffers: dict[str, Node] = {}  # the key on every device that drew

    def get(self) -> tuple[tuple[int, int], int]:
        """The key, and the block that the next draw begins with."""
        _not_captured("reads the state of the generator")
        with self._lock:
            return self._key, self._counter

    def reserve(self, blocks: int, device: str) -> tuple[Node, int]:
        """The key's buffer, and the first of so many blocks that nobody else gets."""
        with self._lock:
            key = self._buffers.get(device)
            if key is None:
                key = self._buffers[device] = _buffer(np.array(self._key, np.uint32), device)
            first = self._counter
            self._counter = first + blocks & _MASK
        return key, first

    def draw(self) -> int:
        """64 random bits as a number, for what is no part of a graph: the order of some data."""
        _not_captured("draws a number outside of its graph")
        with self._lock:
            (low, high), first = self._key, self._counter
            self._counter = first + 1 & _MASK
        words = [np.array([w], np.uint32) for w in (low, high, first & 0xFFFFFFFF, first >> 32)]
        out = threefry((words[0], words[1]), (words[2], words[3]))
        return int(out[0][0]) | int(out[1][0]) << 32

    def after_fork(self) -> None:
        """In a child process no other thread lives: a lock it held is open again."""
        self._lock = threading.Lock()


def _not_captured(what: str) -> None:
    if SCOPES.capturing:
        raise JitError(
            f"a captured function {what}, which a replay would not do again",
            "do it before the call, or draw with keys: fg.random.key(seed)",
        )


def seed_key(seed: object) -> tuple[int, int]:
    """A seed's key, apart from the key that `key(seed)` gives."""
    words = [np.array([w], np.uint32) for w in (*words_of(seed), 0, 0x73656564)]
    out = threefry((words[0], words[1]), (words[2], words[3]))
    return int(out[0][0]), int(out[1][0])


def words_of(seed: object) -> tuple[int, int]:
    """A whole number as a key: its low and its high half."""
    try:
        whole = as_index(seed)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"a seed is a whole number, not {seed!r}", "use an int") from None
    return whole & 0xFFFFFFFF, whole >> 32 & 0xFFFFFFFF


def _buffer(array: np.ndarray[Any, Any], device: str) -> Node:
    return array_node(array, device, share=False)


GENERATOR = Generator(0)
os.register_at_fork(after_in_child=GENERATOR.after_fork)


class _Here(threading.local):
    shared = True  # may examples of a vmap share draws?
    tape: Tape | None = None


_here = _Here()


@contextmanager
def sharing_draws(allowed: bool) -> Iterator[None]:
    """True if draws without a key are allowed here, where all examples would get the same ones."""
    before = _here.shared
    _here.shared = before and allowed
    try:
        yield
    finally:
        _here.shared = before


class Tape:
    """Draws of a function that is to be run again: blocks counted from one counter buffer.

    Within `with tape:` a draw without a key reads `counter + so many`; running the graph again
    with the counter that `GENERATOR.reserve(tape.blocks, device)` gives draws what comes next.
    """

    def __init__(self, key: Node, counter: Node) -> None:
        self.key, self.counter, self.blocks = key, counter, 0
        self.drawn = False  # of sizes that vary there may be no block in one call, and some later
        self._before: list[Tape | None] = []

    def reserve(self, blocks: int) -> Node:
        """The counter of the next so many blocks."""
        first = self.counter + constant(self.blocks, uint64) if self.blocks else self.counter
        self.blocks += blocks
        self.drawn = True
        return first

    def __enter__(self) -> Tape:
        self._before.append(_here.tape)
        _here.tape = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.tape = self._before.pop()


class Source:
    """What one call draws from: blocks in sequence, of the given key or of the generator."""

    def __init__(self, key: Tensor | None, device: str | None) -> None:
        self.key = None if key is None else key_node(key)
        self.device = device or (None if self.key is None else self.key.device) or current().device
        if self.key is not None and self.key.device != self.device:
            self.key = build.copy_to(self.key, self.device)
        self.draws = 0  # of a given key: each begins far from the others, whatever its size

    def bits(self, shape: Shape, words: int = 1) -> Node:
        """Uniform uint32 bits, with `words` of them in a further axis if there are several."""
        whole = shape if words == 1 else (*shape, words)
        count = prod(tuple([upper(n) for n in whole]))
        assert isinstance(count, int)
        blocks = -(-count // _WORDS)
        if self.key is not None:
            counter = constant(self.draws << _APART, uint64)
            self.draws += 1
            return build.random_bits(self.key, counter, whole)
        if not _here.shared:
            raise ArgumentError(
                "inside vmap or a loop a draw without a key would be the same for every example "
                "or step",
                'give each a key, key=fg.random.split(key, n), or say vmap(randomness="same")',
            )
        if _here.tape is not None:
            return build.random_bits(_here.tape.key, _here.tape.reserve(blocks), whole)
        key, first = GENERATOR.reserve(blocks, self.device)
        counter = _buffer(np.array(first, np.uint64), self.device)
        return build.random_bits(key, counter, whole)


def key_node(key: object) -> Node:
    """The node of a key, or an error."""
    if not isinstance(key, Tensor):
        raise DTypeError(f"a key is a tensor, not {type(key).__name__}", "use fg.random.key(seed)")
    node = node_of(key)
    if node.dtype is not uint32 or node.shape != (2,):
        raise DTypeError(
            f"a key is uint32 of shape (2,), not {node.dtype} of shape {show(node.shape)}",
            "use fg.random.key(seed), one row of a split, or vmap for many keys",
        )
    return node


def key_by_name(function: Callable[P, T]) -> Callable[P, T]:
    """A draw that refuses a key in the first place, as in JAX, and numbers there, as in NumPy."""
    name = function.__name__
    data_first = name in ("choice", "permutation", "shuffle")
    shape_first = name in ("uniform", "normal", "truncated_normal", "exponential")

    @wraps(function)
    def draw(*arguments: P.args, **named: P.kwargs) -> T:
        first = arguments[0] if arguments else None
        if isinstance(first, Tensor) and first.dtype is uint32 and first.shape[-1:] == (2,):
            plain = len(arguments) < 2 or isinstance(arguments[1], int)  # may be two numbers
            if not (data_first and plain):
                raise ArgumentError(
                    f"the first argument of {name} is a key",
                    f"a key goes by its name: fg.random.{name}(..., key=key)",
                )
        if shape_first and len(arguments) > 1 and isinstance(first, int | float):
            given = ", ".join(map(repr, arguments))
            raise DataError(f"{name}({given}): a number for a shape", "a tuple: (3,) comes first")
        return function(*arguments, **named)

    return draw


def derived(key: object, counter: Node, shape: Shape) -> Tensor:
    """Words of a key at one of the high counters."""
    return wrap(build.random_bits(key_node(key), counter, shape))
