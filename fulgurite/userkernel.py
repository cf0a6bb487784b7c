"""Kernels of the user in index notation: what one element of the result is.

In: a function from indices to the value there, which reads its tensors as `a[i, k]` and folds with
`fg.sum_over(lambda k: ..., size)`. Out: a function of tensors. The indices are tensors that count,
each along a dimension of its own (results last, folds before them), so that every function of
elements works on them and broadcasting does the rest. What is read at plain indices is a view: the
compiler sees the contraction, the map or the row that the notation says, on every device and with
gradients. Other places are gathered; those that can be told to be outside are an error at the
user's line, those that depend on data are checked when they are known.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index as as_int
from typing import Any

from .core import build
from .core import shape as sizes
from .core.dtype import int64
from .core.node import Node, Size
from .errors import ArgumentError, BoundsError, DTypeError, ShapeError
from .tensor import Tensor, TensorLike, lifted, node_of, wrap

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class UserKernel:
    """A kernel of the user, and the expression that it may stand for, if they said one."""

    name: str
    run: Callable[..., Any]
    pattern: Callable[..., Any] | None


USER_KERNELS: list[UserKernel] = []


def register_kernel(name: str, run: Callable[..., Any], pattern: Callable[..., Any] | None) -> None:
    """Keep a kernel with its pattern, for a search that may choose it."""
    if pattern is not None:
        if not callable(pattern):
            raise ArgumentError(
                f"a pattern is a function of tensors, not {type(pattern).__name__}",
                "as in pattern=lambda a, b: a @ b",
            )
        USER_KERNELS.append(UserKernel(name, run, pattern))


# --- the notation --------------------------------------------------------------------------------


class _Open(threading.local):
    """The indices of the kernel that is being written in this thread."""

    def __init__(self) -> None:
        self.axes: list[dict[Node, tuple[int, Size]]] = []  # index -> dimension from the back, size
        self.depth: list[int] = []  # dimensions in use


_open = _Open()


def _counted(size: Size, place: int) -> Tensor:
    """0, 1, 2, ... along the dimension that is number `place` from the back."""
    node = build.iota((size, *[1] * (place - 1)), 0, int64)
    _open.axes[-1][node] = (place, size)
    return wrap(node)


class Operand:
    """A tensor inside a kernel: it is read at indices."""

    def __init__(self, name: str, node: Node) -> None:
        self._name, self._node = name, node

    @property
    def shape(self) -> Shape:
        """The sizes of its dimensions."""
        return self._node.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._node.ndim

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        return self._node.dtype

    def __repr__(self) -> str:
        return f"<{self._name}: {self._node.dtype} {sizes.show(self.shape)} of a kernel>"

    def __getitem__(self, key: Any) -> Tensor:
        return wrap(self._read(self._key(key), None))

    def get(self, *key: Any, other: Any = 0) -> Tensor:
        """The element at some indices, or `other` where that is outside."""
        return wrap(self._read(self._key(key), other))

    def _key(self, key: Any) -> tuple[Any, ...]:
        found = key if isinstance(key, tuple) else (key,)
        if len(found) != self.ndim:
            raise ShapeError(
                f"{self._name} has {self.ndim} dimensions and is read at {len(found)} indices",
                f"its shape is {sizes.show(self.shape)}: give one index for each",
            )
        return found

    def _read(self, key: tuple[Any, ...], other: Any) -> Node:
        if not _open.axes:
            raise ArgumentError("an operand is read outside of its kernel", "read it inside")
        places = [self._place(part, d) for d, part in enumerate(key)]
        axes = _open.axes[-1]
        known = [axes.get(p) if isinstance(p, Node) else None for p in places]
        numbers = [a[0] for a in known if a is not None]
        plain = all(a is not None or isinstance(p, int) for a, p in zip(known, places, strict=True))
        inside = all(self._fits(p, d) for d, p in enumerate(places))
        if plain and inside and len(set(numbers)) == len(numbers):
            return self._view(places, known)
        return self._gathered(places, other)

    def _place(self, part: Any, d: int) -> Node | int:
        """An index as a node or a number."""
        if isinstance(part, Tensor):
            node = node_of(part)
            if not node.dtype.is_integer or node.dtype.kind == "b":
                raise DTypeError(
                    f"index {d} of {self._name} is {node.dtype}", "an index is a whole number"
                )
            return node
        try:
            return as_int(part)
        except TypeError:
            raise ArgumentError(
                f"index {d} of {self._name} is {type(part).__name__}",
                "use the kernel's indices, whole numbers and expressions of them",
            ) from None

    def _fits(self, place: Node | int, d: int) -> bool:
        """Is an index inside, whatever it depends on?"""
        low, high = _bounds(place)
        return low >= 0 and high < sizes.lower(self.shape[d])

    def _view(self, places: list[Node | int], known: list[tuple[int, Size] | None]) -> Node:
        """Elements at plain indices: cut, turned, and stretched by whoever needs it."""
        cuts = [(p, p + 1) if isinstance(p, int) else (0, a[1]) for p, a in
                zip(places, known, strict=True) if isinstance(p, int) or a is not None]  # fmt: skip
        part = build.shrink(self._node, cuts)
        kept = [d for d, a in enumerate(known) if a is not None]
        part = build.reshape(part, [part.shape[d] for d in kept])
        order = sorted(range(len(kept)), key=lambda at: -known[kept[at]][0])  # type: ignore[index]
        part = build.permute(part, order)
        if not kept:
            return part
        spread: dict[int, Size] = {a[0]: a[1] for a in known if a is not None}
        return build.reshape(part, [spread.get(d, 1) for d in range(max(spread), 0, -1)])

    def _gathered(self, places: list[Node | int], other: Any) -> Node:
        """Elements at any indices."""
        flat: Any = build.const(0, int64)
        valid: Any = None
        for d, place in enumerate(places):
            size = self.shape[d]
            at: Any = build.cast(place if isinstance(place, Node) else build.const(place, int64),
                                 int64)  # fmt: skip
            if not self._fits(place, d):
                self._outside(place, d, other)
                if other is not None:
                    ok = wrap(at >= 0) & (wrap(at) < _number(size))
                    valid = ok if valid is None else valid & ok
                    at = node_of(_where(ok, wrap(at), 0))
                elif not all(isinstance(n, int) for n in self.shape):
                    raise ShapeError(
                        f"{self._name} of variable sizes is read at places known at run time",
                        "use fixed sizes, or .get(...)",
                    )
            flat = node_of(wrap(flat) * _number(size) + _checked(at, place, size, self._fits(place, d)))
        count = sizes.prod(self.shape)
        line = build.reshape(self._node, (count,))
        index = build.reshape(flat, (sizes.prod(flat.shape),))
        found = build.reshape(build.gather(line, index, 0), flat.shape)
        return found if valid is None else node_of(_where(valid, wrap(found), other))

    def _outside(self, place: Node | int, d: int, other: Any) -> None:
        """An error if an index is outside by what is known now."""
        low, high = _bounds(place)
        size = self.shape[d]
        loaded = isinstance(place, Node) and _reads_memory(place)
        if other is None and not loaded:
            raise BoundsError(
                f"index {d} of {self._name} runs from {low} to {high} in a dimension of size "
                f"{sizes.size_text(size)}",
                f"keep it inside, or read {self._name}.get(..., other=0)",
            )
