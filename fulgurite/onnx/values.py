"""What flows along the edges of an ONNX graph while it is built.

In: tensors, host arrays, functions that work out a host array on demand. Out: `Value`: an element
kind, a lazy tensor, and, where it follows from constants, shapes or small inputs, its numbers on
the host. `sources` names the graph inputs those numbers depend on: a plan that used them is good
for these numbers only. A sequence is a list of values, an absent optional is `NOTHING`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np

import fulgurite as fg

from ..core.node import Node
from ..core.op import Array
from ..tensor import Tensor, wrap
from .errors import ModelError
from .types import FLOAT, INT64, STRING, Kind, kind_of_array, kind_of_dtype

NONE: frozenset[str] = frozenset()


class Nothing:
    """An optional without a value."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()
Items = list["Value"]  # a sequence
Anything = "Value | Items | Nothing"


class Sums(NamedTuple):
    """Where real numbers are from: exact sums of bytes by a constant scale, a bias, and bounds.

    Who quantises them takes the sums: two scales are one, and bounds are whole numbers.
    """

    total: Tensor  # with its channels at the end where the value has them there
    scale: Tensor
    bias: Tensor | None = None
    low: float = -inf
    high: float = inf

    def within(self, low: float, high: float) -> Sums:
        """The same within bounds."""
        return self._replace(low=min(max(self.low, low), high), high=min(max(self.high, low), high))


class Joined(NamedTuple):
    """Where quantised elements are from: whoever quantises them again takes each part."""

    parts: list[Value]
    axis: int


class Value:
    """One tensor of the model: lazy, and perhaps known on the host."""

    __slots__ = (
        "_array", "_fold", "_last", "_tensor", "constant", "joined", "kind", "sources", "sums",
    )  # fmt: skip

    def __init__(
        self,
        tensor: Tensor | None = None,
        kind: Kind | None = None,
        array: Array | None = None,
        sources: frozenset[str] = NONE,
        constant: bool = False,
    ) -> None:
        assert tensor is not None or array is not None
        self._tensor, self._array = tensor, array
        self._fold: Callable[[], Array | None] | None = None
        if kind is None:
            kind = kind_of_dtype(tensor.dtype) if tensor is not None else _kind(array)
        self.kind, self.sources, self.constant = kind, sources, constant
        self._last: Tensor | None = None
        self.sums: Sums | None = None
        self.joined: Joined | None = None

    @classmethod
    def channels_last(cls, tensor: Tensor, kind: Kind | None = None) -> Value:
        """A value that lies in memory with its channels at the end."""
        made = cls(fg.moveaxis(tensor, -1, 1), kind)
        made._last = tensor
        return made

    @property
    def last(self) -> Tensor | None:
        """The same with axis 1 at the end, where it lies in memory so."""
        return self._last

    def fold(self, work: Callable[[], Array | None], sources: frozenset[str]) -> None:
        """Its numbers can be worked out on the host, from these inputs."""
        self._fold, self.sources = work, sources

    def know(self, array: Array) -> None:
        """Its numbers, as somebody computed them."""
        self._array = array

    @property
    def is_foldable(self) -> bool:
        """May its numbers be known without computing a tensor?"""
        return self._array is not None or self._fold is not None

    def known(self) -> Array | None:
        """Its numbers, if they are known on the host."""
        if self._array is None and self._fold is not None:
            work, self._fold = self._fold, None
            self._array = work()
        return self._array

    @property
    def tensor(self) -> Tensor:
        """The lazy tensor."""
        if self._tensor is None:
            assert self._array is not None
            self._tensor = tensor_of(self._array, self.kind)
        return self._tensor

    @property
    def is_text(self) -> bool:
        """Does it hold strings?"""
        return self.kind is STRING

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes; a variable one is a node."""
        return self._array.shape if self._tensor is None and self._array is not None else (
            self.tensor.node.shape
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Value({self.kind}, {self.shape})"


class Dequantised(Value):
    """Real numbers (whole - zero) scale, written out only when somebody asks for them.

    Products take the whole numbers, and what moves elements moves those. Scale and zero are one
    number each, or one for each slice of `axis`; `decode` makes real numbers of whole ones.
    """

    __slots__ = ("axis", "decode", "scale", "whole", "zero")

    def __init__(
        self, whole: Value, scale: Value, zero: Value | None, axis: int,
        decode: Callable[[Tensor], Tensor],
    ) -> None:  # fmt: skip
        super().__init__(None, FLOAT, np.zeros(0, np.float32))
        self._array = None
        self.whole, self.scale, self.zero = whole, scale, zero
        self.axis, self.decode = axis, decode

    @property
    def tensor(self) -> Tensor:
        """The real numbers."""
        if self._tensor is None:
            self._tensor = self.decode(self.whole.tensor)
        return self._tensor

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes; a variable one is a node."""
        return self.whole.shape

    @property
    def last(self) -> Tensor | None:
        """The same with axis 1 at the end, where its whole numbers lie in memory so."""
        if self._last is None and self.whole.last is not None and self.is_uniform:
            self._last = self.decode(self.whole.last)
        return self._last

    @property
    def is_uniform(self) -> bool:
        """True if one scale and one zero are for all elements."""
        return all(v is None or v.shape in ((), (1,)) for v in (self.scale, self.zero))

    def moved(self, whole: Value) -> Dequantised:
        """Elements of it at other places."""
        return Dequantised(whole, self.scale, self.zero, 0, self.decode)

    def is_made_by(self, scale: Value, zero: Value | None, kind: Kind) -> bool:
        """True if quantising it like this gives its whole numbers again."""
        if kind is not self.whole.kind or not self.is_uniform:
            return False
        pairs = ((self.scale, scale), (self.zero, zero))
        return all(a is b or (a is not None and b is not None and _alike(a, b)) for a, b in pairs)


def _alike(a: Value, b: Value) -> bool:
    """True if two values are constants of one number, and it is the same."""
    mine, other = a._array, b._array
    if mine is None or other is None or a.sources or b.sources:
        return False
    return mine.size == other.size == 1 and bool(mine.reshape(())[()] == other.reshape(())[()])


class Maps(Value):
    """Rows that users get as dicts; nothing computes with them any more."""

    __slots__ = ("keys",)

    def __init__(self, rows: Tensor, keys: list[Any]) -> None:
        super().__init__(rows)
        self.keys = keys

    def dicts(self, rows: Array) -> list[dict[Any, Any]]:
        """The rows of an array as users get them."""
        flat = rows.reshape(-1, len(self.keys)).tolist() if self.keys else []
        return [dict(zip(self.keys, row, strict=True)) for row in flat]


def _kind(array: Array | None) -> Kind:
    assert array is not None
    if is_symbolic(array):
        return INT64
    found = kind_of_array(array.dtype)
    assert found is not None, array.dtype
    return found


def is_symbolic(array: Array) -> bool:
    """Are there sizes in it that are not known yet?"""
    return array.dtype == object and any(isinstance(x, Node) for x in array.reshape(-1))


def is_text(array: Array) -> bool:
    """Is it an array of strings?"""
    return array.dtype == object and not is_symbolic(array)


def sizes_array(sizes: Any) -> Array:
    """Sizes as an array: whole numbers, or objects if one of them is variable."""
    if all(isinstance(n, int) for n in sizes):
        return np.array(sizes, np.int64).reshape(len(sizes))
    found = np.empty(len(sizes), object)
    found[:] = list(sizes)
    return found


def tensor_of(array: Array, kind: Kind) -> Tensor:
    """A tensor with an array's values."""
    if is_symbolic(array):
        parts = [_scalar(x) for x in array.reshape(-1)]
        return fg.reshape(fg.stack(parts), array.shape)
    if kind is STRING:
        raise ModelError("strings cannot be computed with", "they stay on the host")
    assert kind.carrier is not None
    if array.size == 1 and kind.carrier.kind != "c":
        return fg.full(array.shape, fg.Tensor(array.reshape(())[()].item(), dtype=kind.carrier))
    return Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=kind.carrier)


def _scalar(size: Any) -> Tensor:
    node = wrap(size) if isinstance(size, Node) else Tensor(int(size))
    return fg.astype(node, fg.int64)
