"""`x[...]` as NumPy has it: ints, slices, None, an ellipsis, and arrays of numbers or truths.

In: an index as Python writes it. Out: the basic parts as cuts, then one gather for all arrays
together. The arrays broadcast; their dimensions come where the arrays stand, or first where a
slice, None or ellipsis separates them. A mask decides the shape of the result, so it is realized.
Numbers that the host knows are checked here; others when they are read, at the same line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial, reduce
from itertools import zip_longest
from typing import Any

import numpy as np

from ...core import build
from ...core import shape as sizes
from ...core.dtype import DType, int32, int64
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Size
from ...core.op import Array
from ...core.ops.elementwise import ADD, AND, LE, LT, MUL
from ...core.ops.leaf import BUFFER, CONST
from ...core.origin import indexing
from ...errors import ArgumentError, BoundsError, DTypeError, FulguriteError, ShapeError
from ...runtime.device import get_device
from ...runtime.realize import value_node
from ...tensor import SCOPES, Tensor, from_numpy, lift, node_of, placed, wrap
from ..template import templated
from .indexing import basic, places, slices_at
from .nested import holds_tensor, is_nest


def getitem(x: Tensor, key: Any) -> Tensor:
    """What `x[key]` gives: any index that NumPy takes, with NumPy's rules.

    >>> x = fg.reshape(fg.arange(12), (3, 4))
    >>> x[1].tolist(), x[:, -1].tolist(), x[::-2, 1:3].tolist()
    ([4, 5, 6, 7], [3, 7, 11], [[9, 10], [1, 2]])
    >>> x[[0, 2], [1, -1]].tolist(), x[x > 8].tolist()
    ([1, 11], [9, 10, 11])
    """
    kind = type(key)
    if kind in _CUT_KEYS and (plain := _plain_part(x, key)) is not None:
        return plain
    node = node_of(x)
    if kind is Tensor or kind is np.ndarray:
        if _is_mask(key) and (chosen := _chosen_by_host(x, key)) is not None:
            return chosen
        if kind is Tensor and key.dtype.kind in "iu" and node.ndim:
            with indexing(0):
                return _rows_at(x, key)
    if kind is tuple and all([_picks(part) for part in key]):
        with indexing(*range(len(key))):
            return _elements_at(x, key)
    return wrap(part_of(node, understood(node, key)))


@templated
def _rows_at(x: Tensor, index: Tensor) -> Tensor:
    """The rows that one tensor of whole numbers picks."""
    node, rows = node_of(x), node_of(index)
    build.same_device([node, rows])
    return wrap(slices_at(node, places(rows, node.shape[0]), 0))


def _picks(part: Any) -> bool:
    """Is it a tensor of whole numbers, whose values no shape depends on?"""
    return type(part) is Tensor and part.dtype.kind in "iu"


@templated
def _elements_at(x: Tensor, key: tuple[Tensor, ...]) -> Tensor:
    """What tensors of whole numbers pick, one for each of the first dimensions."""
    node = node_of(x)
    return wrap(part_of(node, understood(node, key)))


def _chosen_by_host(x: Tensor, mask: Tensor | Array) -> Tensor | None:
    """What NumPy chooses by a mask from a known value in memory of the host; None for all others.

    The mask is read here in any case, as it decides the shape. What a gradient, a trace or a batch
    looks at, and what is not computed yet, is gathered.
    """
    node = value_node(x.entry.node)
    if node is None or node.op is not BUFFER or _is_looked_at(x):
        return None
    if mask.ndim == 0 or tuple(mask.shape) != node.shape[: mask.ndim]:
        return None  # an error, which is told elsewhere
    if not get_device(node.device or "").host_visible:
        return None
    foreign = isinstance(mask, Tensor) and mask.node.device not in (None, node.device)
    if foreign or (isinstance(mask, Tensor) and _is_looked_at(mask)):
        return None
    lines = x._array().reshape(mask.size, *node.shape[mask.ndim :])
    return from_numpy(lines.take(np.flatnonzero(np.asarray(mask)), 0), node.device)


def _is_looked_at(x: Tensor) -> bool:
    """True if a gradient, a trace or a batch wants to know what becomes of a tensor."""
    now = SCOPES
    return bool(x.entry.node.watched or now.capturing or now.transforms or now.stack or now.bodies)


_CUTS, _ENDS, _ALL = {int, slice}, {int, type(None)}, slice(None)
_BASIC = {*_CUTS, type(None)}
_CUT_KEYS = {*_BASIC, tuple}


@templated
def _plain_part(tensor: Tensor, key: Any) -> Tensor | None:
    """The part that ints, slices and None say of fixed sizes; None for all others, and errors."""
    parts: tuple[Any, ...] = key if type(key) is tuple else (key,)
    x = node_of(tensor)
    shape: Any = x.shape
    if x.op is CONST or not {*map(type, parts)} <= _BASIC or not build.is_plain(shape):
        return None
    if not {*map(type, parts)} <= _CUTS:
        return _any_basic_part(x, parts)
    if len(parts) > len(shape):
        return None
    cuts: list[int] = []
    kept: list[int] = []
    every: Any = zip_longest(shape, parts, fillvalue=_ALL)
    for size, part in every:
        if type(part) is int:
            start = part + size if part < 0 else part
            cuts += (start, start + 1)
            if not 0 <= start < size:
                return None  # an error, which is told elsewhere
            continue
        if not {type(part.start), type(part.stop)} <= _ENDS:
            return None
        if part.step is not None:
            return _any_basic_part(x, parts)
        start, stop, _ = part.indices(size)
        if start >= stop:
            return None
        cuts += (start, stop)
        kept.append(stop - start)
    return wrap(build.cut(x, tuple(cuts), tuple(kept)))


def _any_basic_part(x: Node, parts: tuple[Any, ...]) -> Tensor | None:
    """The part that ints, slices with steps and None say; None for other ends, and errors."""
    ends = [end for p in parts if type(p) is slice for end in (p.start, p.stop, p.step)]
    if not {*map(type, ends)} <= _ENDS:
        return None
    try:
        return wrap(part_of(x, understood(x, parts)))
    except FulguriteError:
        return None  # which is told elsewhere


def understood(x: Node, key: Any) -> Index:
    """An index as written, read against the node that it is for."""
    written = key if isinstance(key, tuple) else (key,)
    found = Index(x.device)
    for part in _filled([_part(part) for part in written], x):
        found.meet(part, x.shape)
    return found


def part_of(node: Node, found: Index) -> Node:
    """The part of a node that an index means."""
    view = basic(node, found.plain)
    if not found.data:
        return view
    build.same_device([node, *[d.index for d in found.data if isinstance(d.index, Tensor)]])
    axes = [d.axis for d in found.data]
    rest = [axis for axis in range(view.ndim) if axis not in axes]
    first = found.before if found.together else 0
    before, after = rest[:first], rest[first:]
    moved = build.permute(view, [*before, *axes, *after])
    merged = sizes.prod([view.shape[axis] for axis in axes])
    shape = [view.shape[a] for a in before], [view.shape[a] for a in after]
    flat = build.reshape(moved, [*shape[0], merged, *shape[1]])
    with indexing(*[d.written for d in found.data]):
        return slices_at(flat, _flat_index(found.data, found.device), first)


# --- what stands in an index ---------------------------------------------------------------------


def _part(part: Any) -> Any:
    """Lists and truths as arrays; a 0-d array of a whole number is that number."""
    if is_nest(part) and holds_tensor(part):
        part = Tensor(part)
    elif isinstance(part, list | tuple | range | bool | np.bool_):
        array = np.asarray(part)
        part = array.astype(np.int32) if not array.size and array.dtype.kind == "f" else array
    if isinstance(part, np.ndarray) and part.ndim == 0 and part.dtype.kind in "iu":
        return int(part)
    if isinstance(part, Tensor | np.ndarray) and np.dtype(_numpy(part)).kind not in "biu":
        raise DTypeError(f"an index is a whole number, not {part.dtype}", "cast it to int32")
    return part


def _numpy(part: Tensor | Array) -> Any:
    return part.dtype.numpy if isinstance(part, Tensor) else part.dtype


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray) and np.dtype(_numpy(part)).kind == "b"


def _width(part: Any) -> int:
    """How many dimensions a part of an index uses up."""
    if part is None or part is Ellipsis:
        return 0
    return int(part.ndim) if _is_mask(part) else 1


def _filled(parts: Sequence[Any], x: Node) -> list[Any]:
    """The index with the full slices that its ellipsis, written or not, stands for after it."""
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise ArgumentError("an index has one ... at most", "write the slices out")
    used = sum(map(_width, parts))
    if used > x.ndim:
        raise BoundsError(
            f"{used} indices for {x.ndim} dimensions", f"the shape is {sizes.show(x.shape)}"
        )
    place = dots[0] + 1 if dots else len(parts)
    return [*parts[:place], *[slice(None)] * (x.ndim - used), *parts[place:]]


@dataclass(eq=False, repr=False)
class _Data:
    """An array of an index: the dimension it picks from, once the basic parts are applied."""

    index: Tensor | Array
    axis: int
    size: Size
    written: int  # the same dimension as the user counts it


@dataclass(eq=False, repr=False)
class Index:
    """An index read from left to right: its basic parts, its arrays, and where those stand."""

    device: str | None = None  # where arrays of NumPy's go
    plain: list[Any] = field(default_factory=list)
    data: list[_Data] = field(default_factory=list)
    used: int = 0  # dimensions of x that are dealt with
    kept: int = 0  # dimensions of the basic result
    before: int = 0  # of those, plain ones before the first array or int
    state: str = "none"  # "in" a run of arrays and ints, "after" one, or "apart": a second run
    together: bool = True

    def meet(self, part: Any, shape: Sequence[Size]) -> None:
        """Take in the next part."""
        if part is Ellipsis or part is None or isinstance(part, slice):
            self.state = "after" if self.state == "in" else self.state
            if part is not Ellipsis:
                self.add(part)
            return
        if self.state == "none":
            self.before = self.kept
        elif self.state == "after":
            self.together = False
        self.state = "in"
        if _is_mask(part):
            for line in self.lines_of(part, shape):
                self.pick(line, shape)
        elif isinstance(part, Tensor | np.ndarray):
            self.pick(part, shape)
        else:
            self.plain.append(part)
            self.used += 1

    def add(self, part: Any) -> None:
        """A basic part that keeps a dimension."""
        self.plain.append(part)
        self.used += part is not None
        self.kept += 1

    def pick(self, index: Tensor | Array, shape: Sequence[Size]) -> None:
        """A dimension whose elements an array of whole numbers picks."""
        size, axis = shape[self.used], self.used
        if isinstance(index, np.ndarray) and isinstance(size, int):
            index = _checked(index, size, axis)
        self.data.append(_Data(index, self.kept, size, axis))
        self.add(slice(None))

    def lines_of(self, mask: Tensor | Array, shape: Sequence[Size]) -> Sequence[Array]:
        """The places where a mask holds; without dimensions it is a new one of size 0 or 1."""
        known = np.asarray(mask)
        if not known.ndim:
            self.data.append(_Data(np.zeros(int(known), np.int32), self.kept, 1, self.used))
            self.add(None)
            return ()
        covered = tuple(shape[self.used : self.used + known.ndim])
        if known.shape != covered:
            raise BoundsError(
                f"a mask of shape {sizes.show(known.shape)} for dimensions {sizes.show(covered)}",
                "a mask has the sizes of the dimensions that it covers",
            )
        return np.nonzero(known)


def _checked(index: Array, size: int, axis: int) -> Array:
    """Places counted from the front, all of them inside."""
    outside = index[(index < -size) | (index >= size)]
    if outside.size:
        hint = f"indices run from {-size} to {size - 1}" if size else "it is empty"
        raise BoundsError(f"index {outside.flat[0]} is outside axis {axis} of size {size}", hint)
    kind = np.int32 if size <= int32.limits[1] else np.int64
    return np.where(index < 0, index + size, index).astype(kind)


# --- several arrays as one -----------------------------------------------------------------------


def _flat_index(data: Sequence[_Data], device: str | None) -> Node:
    """The places in the merged dimension; where one of several is outside, the place is -1."""
    if len(data) == 1:
        return places(lift(data[0].index, device), data[0].size)
    try:
        sizes.broadcast(*[tuple(d.index.shape) for d in data])
    except ShapeError as error:  # an IndexError, as in NumPy
        raise BoundsError(f"index arrays: {error.what}", error.hint) from None
    known = [d.index for d in data if isinstance(d.index, np.ndarray)]
    dims = [d.size for d in data if isinstance(d.size, int)]
    if len(known) == len(dims) == len(data) and all(dims):
        return placed(np.ravel_multi_index(np.broadcast_arrays(*known), dims), device)
    nodes = [lift(d.index, device) for d in data]
    kind = _wide_enough(data, nodes)
    total: Node | None = None
    inside: list[Node] = []
    for d, node in zip(data, nodes, strict=True):
        place = build.cast(places(node, d.size), kind)
        size = d.size if isinstance(d.size, int) else build.cast(d.size, kind)
        inside.append(build.apply(AND, build.apply(LE, 0, place), build.apply(LT, place, size)))
        total = place if total is None else build.apply(ADD, build.apply(MUL, total, size), place)
    assert total is not None
    fits = reduce(partial(build.apply, AND), inside)
    return build.cast(build.where(fits, total, -1), kind)


def _wide_enough(data: Sequence[_Data], nodes: Sequence[Node]) -> DType:
    """The dtype that holds every index, and every place in the merged dimension."""
    narrow = all(node.dtype.kind == "i" or node.dtype.bits < 32 for node in nodes)
    bits = max(node.dtype.bits for node in nodes)
    small = sizes.upper(sizes.prod([d.size for d in data])) <= int32.limits[1]
    return int32 if narrow and bits <= 32 and small else int64
