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
from functools import partial
from operator import index as as_int
from typing import Any

from ..core import build
from ..core import shape as sizes
from ..core.dtype import dtype_of, int64
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node, Size, toposort
from ..core.ops.elementwise import ADD, SUB
from ..core.ops.leaf import CONST, IOTA, VAR
from ..errors import ArgumentError, BoundsError, DTypeError, ShapeError
from ..functional.math import reduction
from ..functional.math.elementwise import where
from ..graph.fusion.user_patterns import PATTERNS, Pattern
from ..tensor import Tensor, TensorLike, lifted, node_of, wrap

Shape = tuple[Any, ...]


class UserKernel(NamedTuple):
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
        PATTERNS.append(
            Pattern(name, _operands(pattern), partial(_applied, pattern), partial(_applied, run))
        )


def _operands(pattern: Callable[..., Any]) -> int:
    """How many tensors a pattern is a function of."""
    try:
        every = inspect.signature(pattern).parameters.values()
    except ValueError:  # of a function that is not written in Python
        every = {}.values()
    found = [p for p in every if p.default is p.empty]
    if not found or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in found):
        raise ArgumentError(
            "a pattern takes its tensors one by one", "as in pattern=lambda a, b: a @ b"
        )
    return len(found)


def _applied(function: Callable[..., Any], nodes: Sequence[Node]) -> Node:
    """What a function of tensors makes of nodes."""
    return node_of(function(*[wrap(node) for node in nodes]))


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
        lines = [_line(place) for place in places]
        used = [line.axis for line in lines if line is not None and line.axis]
        inside = all([self._fits(place, d) for d, place in enumerate(places)])
        if None not in lines and len(set(used)) == len(used) and (inside or _is_zero(other)):
            return self._view([line for line in lines if line is not None])
        return self._gathered(places, other)

    def _place(self, part: Any, d: int) -> Node:
        """An index as a node of whole numbers."""
        if isinstance(part, Tensor):
            node = node_of(part)
            if node.dtype.kind not in "iu":
                raise DTypeError(
                    f"index {d} of {self._name} is {node.dtype}", "an index is a whole number"
                )
            return node
        try:
            return build.const(as_int(part), int64)
        except TypeError:
            raise ArgumentError(
                f"index {d} of {self._name} is {type(part).__name__}",
                "use the kernel's indices, whole numbers and expressions of them",
            ) from None

    def _fits(self, place: Node, d: int) -> bool:
        """True if an index is inside its axis, whatever it depends on."""
        line = _line(place)
        if line is not None and line.axis:  # sizes may be variables: the axis ends with them
            end = sizes.add(line.start, line.size)
            return line.size == 0 or (
                line.start >= 0 and sizes.lower(sizes.sub(self.shape[d], end)) >= 0
            )
        low, high = place.bounds or (-1, 0)
        return 0 in place.shape or (low >= 0 and high < sizes.lower(self.shape[d]))

    def _view(self, lines: list[_Line]) -> Node:
        """Elements along axes: cut out, with zeros around them, turned, stretched by who needs."""
        pads, cuts = [], []
        for line, size in zip(lines, self.shape, strict=True):
            before, end = max(0, -line.start), sizes.add(line.start, line.size)
            low, high = sizes.lower(size), sizes.upper(end)
            pads.append((before, max(0, high - low)))
            cuts.append((line.start + before, sizes.add(end, before)))
        part = build.pad(self._node, pads) if any([p != (0, 0) for p in pads]) else self._node
        part = build.shrink(part, cuts)
        kept = [d for d, line in enumerate(lines) if line.axis]
        part = build.reshape(part, [part.shape[d] for d in kept])
        part = build.permute(part, sorted(range(len(kept)), key=lambda at: -lines[kept[at]].axis))
        spread = {line.axis: line.size for line in lines if line.axis}
        return build.reshape(part, [spread.get(d, 1) for d in range(max(spread, default=0), 0, -1)])

    def _gathered(self, places: list[Node], other: Any) -> Node:
        """Elements at any indices."""
        valid: Tensor | None = None
        found: list[Tensor] = []
        for d, place in enumerate(places):
            at = wrap(place)
            if not self._fits(place, d):
                if other is not None:
                    here = (at >= 0) & (at < wrap(_number(self.shape[d])))
                    valid = here if valid is None else valid & here
                    at = where(here, at, 0)
                elif _line(place) is not None or not _is_known_later(place):
                    raise self._outside(place, d)
            found.append(at)
        values = wrap(self._node)[tuple(found)]
        return node_of(values if valid is None else where(valid, values, other))

    def _outside(self, place: Node, d: int) -> BoundsError:
        low, high = place.bounds or (0, 0)
        return BoundsError(
            f"index {d} of {self._name} runs from {low} to {high} in a dimension of size "
            f"{sizes.size_text(self.shape[d])}",
            f"keep it inside, or read {self._name}.get(..., other=0)",
        )


class _Line(NamedTuple):
    """Places one after the other: along an axis (a dimension from the back), or 0 and one place."""

    axis: int
    start: int
    size: Size


def _line(place: Node) -> _Line | None:
    """An index as a line, if it is a number or an axis plus a number."""
    if place.op is CONST and place.shape == ():
        return _Line(0, int(place.value), 1)  # type: ignore[arg-type]
    start = 0
    while place not in _open.axes[-1]:
        if place.op is ADD and place.src[0].op is CONST:
            place, number = place.src[1], place.src[0]
        elif place.op in (ADD, SUB) and place.src[1].op is CONST:
            number = place.src[1]
            place, start = place.src[0], start - 2 * int(number.value) * (place.op is SUB)  # type: ignore[arg-type]
        else:
            return None
        start += int(number.value)  # type: ignore[arg-type]
    return _Line(_open.axes[-1][place][0], start, _open.axes[-1][place][1])


def _is_zero(other: Any) -> bool:
    return isinstance(other, bool | int | float) and other == 0


def _number(size: Size) -> Node:
    return size if isinstance(size, Node) else build.const(size, int64)


def _is_known_later(node: Node) -> bool:
    """True if a value depends on data or variables, which are checked at run time."""
    return any([n.op is VAR or (n.op not in (CONST, IOTA) and not n.src) for n in toposort([node])])


# --- folds ---------------------------------------------------------------------------------------


def sum_over(body: Callable[[Tensor], TensorLike], size: Any) -> Tensor:
    """Inside a kernel: the sum of an expression over an index from 0 to size - 1.

    >>> @fg.kernel(out=lambda a: a.shape[:1])
    ... def row_sums(i, *, a):
    ...     return fg.sum_over(lambda k: a[i, k], a.shape[1])
    >>> row_sums(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [3, 7]
    """
    return _fold_over(body, size, reduction.sum)


def prod_over(body: Callable[[Tensor], TensorLike], size: Any) -> Tensor:
    """Inside a kernel: the product of an expression over an index.

    >>> @fg.kernel(out=())
    ... def factorial(*, n):
    ...     return fg.prod_over(lambda k: k + 1, 5) * n[()]
    >>> factorial(fg.Tensor(2)).item()
    240
    """
    return _fold_over(body, size, reduction.prod)


def max_over(body: Callable[[Tensor], TensorLike], size: Any) -> Tensor:
    """Inside a kernel: the greatest value of an expression over an index.

    >>> @fg.kernel(out=lambda a: a.shape[:1])
    ... def largest(i, *, a):
    ...     return fg.max_over(lambda k: a[i, k], a.shape[1])
    >>> largest(fg.Tensor([[1, 5], [4, 3]])).tolist()
    [5, 4]
    """
    return _fold_over(body, size, reduction.max)


def min_over(body: Callable[[Tensor], TensorLike], size: Any) -> Tensor:
    """Inside a kernel: the least value of an expression over an index.

    >>> @fg.kernel(out=lambda a: a.shape[:1])
    ... def smallest(i, *, a):
    ...     return fg.min_over(lambda k: a[i, k], a.shape[1])
    >>> smallest(fg.Tensor([[1, 5], [4, 3]])).tolist()
    [1, 3]
    """
    return _fold_over(body, size, reduction.min)


def _fold_over(
    body: Callable[[Tensor], TensorLike], size: Any, fold: Callable[..., Tensor]
) -> Tensor:
    if not _open.axes:
        raise ArgumentError("a fold over an index outside of a kernel", "use it under @fg.kernel")
    count = build.as_size(node_of(size) if isinstance(size, Tensor) else size)
    _open.depth[-1] += 1
    try:
        place = _open.depth[-1]
        value = node_of(body(_counted(count, place)))
    finally:
        _open.depth[-1] -= 1
    if value.ndim > place:
        raise ShapeError(
            f"the value under a fold has shape {sizes.show(value.shape)}",
            "it is one number for each index: read tensors at indices",
        )
    shape = (*[1] * (place - value.ndim), *value.shape)
    whole = build.expand(build.reshape(value, shape), (count, *shape[1:]))
    return fold(wrap(whole), axis=0)


# --- kernels -------------------------------------------------------------------------------------


def kernel(
    out: Any, *, dtype: object = None, pattern: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Tensor]]:
    """A function of tensors from one that says what the element at some indices is.

    The function's positional parameters are indices, one for each dimension of the result; its
    keyword-only ones are tensors, passed in this order or by name, and read as `a[i, k]`, or
    `a.get(i - 1, other=0)` where an index may be outside. `out` is the result's shape, or a
    function of the tensors that gives it. Indices are whole-number tensors: `fg.where(i > j, ...)`.
    `pattern` is an expression that the kernel may stand for.

    >>> @fg.kernel(out=lambda a, b: (a.shape[0], b.shape[1]), pattern=lambda a, b: a @ b)
    ... def product(i, j, *, a, b):
    ...     return fg.sum_over(lambda k: a[i, k] * b[k, j], a.shape[1])
    >>> product(fg.Tensor([[1, 2], [3, 4]]), fg.Tensor([[1, 0], [1, 1]])).tolist()
    [[3, 2], [7, 4]]
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Tensor]:
        if not callable(function):
            raise ArgumentError(f"{type(function).__name__} is not a function", "decorate one")
        found = Notation(function, out, dtype)
        register_kernel(found.name, found, pattern)
        return found

    return decorate


class Notation:
    """A kernel in index notation, to be called with tensors."""

    def __init__(self, function: Callable[..., Any], out: Any, dtype: object) -> None:
        self.function, self.out, self.dtype = function, out, dtype
        self.name = getattr(function, "__name__", "kernel")
        self.indices: list[str] = []
        self.operands: list[str] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                self.operands.append(name)
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                self.indices.append(name)
            else:
                raise ArgumentError(
                    f"kernel {self.name!r} takes {parameter}",
                    "name its indices, then * and its tensors: def f(i, j, *, a, b)",
                )
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join([*self.indices, '*', *self.operands])})>"

    def __call__(self, *tensors: TensorLike, **named: TensorLike) -> Tensor:
        given = self._given(tensors, named)
        nodes = [node_of(x) for x in lifted(*given)]
        operands = [Operand(n, x) for n, x in zip(self.operands, nodes, strict=True)]
        shape = self._shape(operands)
        if len(shape) != len(self.indices):
            raise ShapeError(
                f"kernel {self.name!r} has {len(self.indices)} indices for a result of "
                f"{len(shape)} dimensions",
                f"its out shape is {sizes.show(shape)}: give one index for each dimension",
            )
        value = self._value(shape, dict(zip(self.operands, operands, strict=True)))
        if value.ndim > len(shape):
            raise ShapeError(
                f"kernel {self.name!r} gave shape {sizes.show(value.shape)} for one element",
                "it is one number for each index: read tensors at indices",
            )
        value = value if self.dtype is None else build.cast(value, dtype_of(self.dtype))
        return wrap(build.expand(value, shape))

    def _shape(self, operands: list[Operand]) -> Shape:
        """The shape of the result."""
        if not callable(self.out):
            return build.as_shape(self.out)
        try:
            return build.as_shape(self.out(*operands))
        except (IndexError, TypeError) as problem:
            given = ", ".join([f"{x._name} {sizes.show(x.shape)}" for x in operands])
            raise ShapeError(
                f"kernel {self.name!r} has no out shape for {given}: {problem}",
                "give tensors with as many dimensions as `out` and the kernel read",
            ) from problem

    def _given(self, tensors: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        if len(tensors) > len(self.operands):
            raise ArgumentError(
                f"kernel {self.name!r} takes {len(self.operands)} tensors, not {len(tensors)}",
                f"they are {', '.join(self.operands) or 'none'}",
            )
        known = dict(zip(self.operands, tensors, strict=False))
        for name, value in named.items():
            if name not in self.operands or name in known:
                twice = "is given twice" if name in known else "is none of its tensors"
                raise ArgumentError(
                    f"kernel {self.name!r}: {name!r} {twice}",
                    f"they are {', '.join(self.operands) or 'none'}",
                )
            known[name] = value
        missing = [name for name in self.operands if name not in known]
        if missing:
            raise ArgumentError(
                f"kernel {self.name!r} lacks {', '.join(missing)}", "give each tensor once"
            )
        return [known[name] for name in self.operands]

    def _value(self, shape: Shape, operands: dict[str, Operand]) -> Node:
        _open.axes.append({})
        _open.depth.append(len(shape))
        try:
            indices = [_counted(n, len(shape) - d) for d, n in enumerate(shape)]
            return node_of(self.function(*indices, **operands))
        finally:
            _open.axes.pop()
            _open.depth.pop()
