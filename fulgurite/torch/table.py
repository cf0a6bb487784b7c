"""The table of ATen operators: one entry each, with what builds it.

In: `@aten("add.Tensor")` above a function. Out: an entry in `TABLE` under the operator's name. The
function takes a `Use`, one call of the operator with what torch knows of its result, and the
operator's own arguments, with lazy tensors in place of torch's. It gives a lazy tensor, or a tuple
of them; dtype and shape are those that torch's own meta function found, and are checked against
it. What an entry cannot build it refuses (`Refused`), and torch runs that operator. Operators that
are listed here are not decomposed; all others are, by torch's core ATen decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fulgurite as fg

from ..core.dtype import DType
from ..errors import ArgumentError
from ..tensor import Tensor, node_of, wrap
from .dtypes import TO_OURS, compute_dtype

Build = Callable[..., Any]
TABLE: dict[str, Build] = {}
HOST: dict[str, str] = {}  # operators that torch runs by design, and why


class Refused(ArgumentError):
    """A use of an operator that is left to torch; the text says why."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "torch runs this operator")
        self.why = why


class Use:
    """One call of an operator while a graph is lowered."""

    __slots__ = ("device", "fakes", "name", "out", "used")

    def __init__(self, name: str, out: Any, fakes: tuple[Any, ...], used: Any, device: str) -> None:
        self.name = name
        self.out = out  # torch's own knowledge of the result: a fake tensor, or several
        self.fakes = fakes  # and of the arguments
        self.used = used  # the numbers of those results that somebody reads
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(self.out.shape)

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return TO_OURS[self.out.dtype]

    @property
    def wide(self) -> DType:
        """The element type to compute the result in."""
        return compute_dtype(self.dtype)


def aten(*names: str) -> Callable[[Build], Build]:
    """Enter a function into the table under one or several operators' names."""

    def enter(function: Build) -> Build:
        for name in names:
            full = name if "." in name else f"{name}.default"
            assert full not in TABLE, f"{full} is entered twice"
            TABLE[full] = function
        return function

    return enter


def host(why: str, *names: str) -> None:
    """Note operators that torch runs by design."""
    for name in names:
        HOST[name if "." in name else f"{name}.default"] = why


def name_of(target: Any) -> str:
    """The name under which an overload is entered: `add.Tensor`."""
    return f"{target._schema.name.partition('::')[2]}.{target._overloadname}"


def title_of(target: Any) -> str:
    """An operator as it is counted: `add.Tensor` of ATen, `mine::op.default` of another library."""
    if not isinstance(target, torch._ops.OpOverload):
        return f"higher_order::{target}"
    return (
        name_of(target) if target.namespace == "aten" else f"{target.namespace}::{name_of(target)}"
    )


def cast(x: Any, dtype: DType) -> Any:
    """A tensor or number in an element type."""
    if isinstance(x, Tensor):
        return x if x.dtype is dtype else fg.astype(x, dtype)
    if dtype.kind == "f":
        return float(x)
    if dtype.kind in "iu":
        return int(x)
    return bool(x) if dtype.kind == "b" else complex(x)


def tensor(x: Any, dtype: DType) -> Tensor:
    """A tensor of an element type from a tensor or a number."""
    if isinstance(x, Tensor):
        found: Tensor = cast(x, dtype)
        return found
    return fg.full((), cast(x, dtype), dtype=dtype)


def replaced(x: Tensor, key: Any, value: Any) -> Tensor:
    """x with the part that an index means replaced."""
    found = wrap(node_of(x))
    found[key] = cast(value, x.dtype)
    return found


def axes_of(dim: Any, ndim: int, empty_is_all: bool = True) -> tuple[int, ...]:
    """Axes as torch gives them (none, one or a list), from 0 up."""
    if dim is None or (empty_is_all and isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    many = list(dim) if isinstance(dim, list | tuple) else [dim]
    return tuple([d % ndim if ndim else 0 for d in many]) if ndim else ()
