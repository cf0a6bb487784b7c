"""Dynamic shapes: sizes of arguments that vary within bounds, one capture for all of them.

In: for an argument, the axes whose size is an `fg.Var`. Out: what the function sees, a tensor whose
size is that variable, and for a call its memory laid out at the upper bound. A size outside the
bounds, or two sizes for one variable, is an error at the user's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..core import build
from ..core.lazy_dataclass import dataclass
from ..core.node import Node, Shape, Size, toposort
from ..core.ops.leaf import BIND, bind
from ..core.ops.movement import shrink
from ..core.rewriting.substitute import substitute
from ..errors import ArgumentError, VariableError
from ..functional.array.creation import Var
from ..runtime.device import Buffer, Device


@dataclass(frozen=True)
class Varying:
    """Which axes of a tensor vary, and how many dimensions and which sizes the others have."""

    axes: tuple[tuple[int, Node], ...]
    shape: tuple[int, ...]

    def fits(self, shape: Shape) -> bool:
        """Is it the same but for the axes that vary, which are within their bounds?"""
        vary = dict(self.axes)
        return len(shape) == len(self.shape) and all(
            [(vary[d].arg[1] <= n <= vary[d].arg[2]) if d in vary else n == m
             for d, (n, m) in enumerate(zip(shape, self.shape, strict=True))]
        )  # fmt: skip

    @property
    def most(self) -> tuple[int, ...]:
        """The shape at the upper bound of every size."""
        vary = dict(self.axes)
        return tuple([vary[d].arg[2] if d in vary else n for d, n in enumerate(self.shape)])

    def stand_in(self, buffer: Node, shape: Shape) -> Node:
        """A tensor whose sizes are variables, over memory at their upper bounds."""
        vary = {d: bind(var, shape[d]) for d, var in self.axes}  # type: ignore[arg-type]
        return shrink(buffer, [(0, vary.get(d, n)) for d, n in enumerate(self.most)])


def sizes_of(
    tensors: Iterable[tuple[Varying | None, Shape, str]], known: Mapping[str, int]
) -> dict[str, int]:
    """The values of a call by variable, each of which has one, and sizes with those known."""
    found = dict(known)
    for how, shape, path in tensors:
        for d, var in how.axes if how is not None else ():
            name, size = var.arg[0], shape[d]
            assert isinstance(size, int)
            if found.setdefault(name, size) != size:
                raise VariableError(
                    f"{name} is {found[name]} and, by {path}, {size} in one call",
                    "sizes with one variable are equal: use two variables",
                )
    return found


def unbound(shape: Shape) -> Shape:
    """A shape whose variables have no value yet."""
    found: list[Size] = []
    for size in shape:
        if isinstance(size, Node):
            bound = {n: n.src[0] for n in toposort([size]) if n.op is BIND}
            size = substitute(size, bound)
        found.append(size)
    return tuple(found)


def check_dynamic(
    dynamic: Any,
) -> tuple[dict[Any, dict[int, Node]], dict[Any, frozenset[int]]]:
    """What `jit(dynamic=...)` was given, checked: axes with a variable, and those with none."""
    if dynamic is None:
        return {}, {}
    if not isinstance(dynamic, Mapping):
        raise ArgumentError(f"dynamic is {dynamic!r}", 'write {"x": {0: fg.Var("n", 1, 64)}}')
    for key, axes in dynamic.items():
        _check_axes(key, axes)
    found = {
        key: {axis: var.node for axis, var in axes.items() if var is not True}
        for key, axes in dynamic.items()
    }
    free = {
        key: frozenset([axis for axis, var in axes.items() if var is True])
        for key, axes in dynamic.items()
    }
    if any(found.values()) and any(free.values()):
        raise ArgumentError(
            "dynamic has variables and axes without one", "give all axes a variable, or none"
        )
    return ({}, free) if any(free.values()) else (found, {})


def _check_axes(key: Any, axes: Any) -> None:
    if not isinstance(axes, Mapping) or not isinstance(key, str | int):
        raise ArgumentError(f"dynamic[{key!r}] is {axes!r}", 'write {"x": {0: fg.Var("n", 1, 64)}}')
    for axis, var in axes.items():
        if not isinstance(axis, int) or not (isinstance(var, Var) or var is True):
            raise ArgumentError(
                f"dynamic[{key!r}][{axis!r}] is {var!r}", 'give axes fg.Var("n", 1, 64) or True'
            )


def varying(axes: Mapping[int, Node], shape: tuple[int, ...], path: str) -> Varying:
    """The axes of a tensor that vary, checked against its shape in this call."""
    placed = {build.as_axis(axis, len(shape)): var for axis, var in axes.items()}
    for d, var in placed.items():
        name, low, high, _ = var.arg
        if not low <= shape[d] <= high:
            raise VariableError(
                f"axis {d} of {path} has size {shape[d]}; {name} is in {low}..{high}",
                "widen the variable",
            )
    return Varying(tuple(sorted(placed.items())), shape)


def padded(device: Device, memory: Buffer, node: Node, how: Varying) -> Buffer:
    """A value in memory that has room for the largest sizes.

    All of it is written: a vector that is read under a mask of none maps no page, and is slow
    wherever a page was never mapped.
    """
    shape: Any = node.shape
    if shape == how.most:
        whole = device.to_host(memory, shape, node.dtype)
    else:
        whole = np.zeros(how.most, node.dtype.numpy)
        whole[tuple([slice(n) for n in shape])] = device.to_host(memory, shape, node.dtype)
    return device.from_host(whole)
