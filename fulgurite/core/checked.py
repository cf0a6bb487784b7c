"""What users write where numbers are meant: sizes, axes, flags, checked and in normal form.

In: anything. Out: whole numbers that fit, counted from the front, or an error at the user's line
that says what is taken. The constructors in `build.py` are called with nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from ..errors import ArgumentError, AxisError, DataError, ShapeError, VariableError
from . import shape as sizes
from .node import Node, Shape, Size
from .symbolic.sym import as_index

Axes: TypeAlias = int | Sequence[int] | None


def as_size(size: object) -> Size:
    """A size: a whole number at least 0, or an expression of variables that is never less."""
    found = as_place(size)
    if not isinstance(found, int) and sizes.lower(found) < 0:
        raise ShapeError(
            f"the size {sizes.size_text(found)} is {sizes.lower(found)} for some value of its "
            "variables",
            "sizes are never below 0: narrow the bounds of the variables",
        )
    return found


def as_place(size: object) -> Size:
    """A whole number at least 0, or any expression of variables."""
    if type(size) is int and 0 <= size < 1 << 63:
        return size
    if isinstance(size, Node):
        if size.dtype.kind in "iu" and size.shape == ():
            return sizes.normal(size)
        raise ShapeError(
            f"a size is a whole number, not {size.dtype} of shape {sizes.show(size.shape)}",
            "use ints, or expressions of fg.Var",
        )
    try:
        whole = as_index(None if isinstance(size, bool) else size)
    except TypeError:
        raise ShapeError(f"{size!r} is not a size", "sizes are whole numbers") from None
    if not 0 <= whole < 1 << 63:
        raise ShapeError(f"{whole} is not a size", "sizes run from 0 to 2**63 - 1")
    return whole


def as_shape(shape: object) -> Shape:
    """A shape: one size, or several."""
    if isinstance(shape, tuple) and all([type(n) is int and 0 <= n < 1 << 63 for n in shape]):
        return shape
    if isinstance(shape, Iterable) and not isinstance(shape, str | Node):
        return tuple([as_size(size) for size in shape])
    return (as_size(shape),)


def as_axis(axis: object, ndim: int, lone: bool = False) -> int:
    """An axis counted from the front; negative ones count from the back.

    If `lone`, 0 dimensions have an axis, that of their one element.
    A tensor is none, nor is a truth: who passes one means another argument (`fg.max(x, y)` as
    torch reads it, `x.sort(True)`).
    """
    if type(axis) is int:
        if -ndim <= axis < ndim:  # nearly always
            return axis if axis >= 0 else axis + ndim
    else:
        _no_tensor(axis)
    try:
        place = as_index(None if isinstance(axis, bool) else axis)
    except TypeError:
        raise AxisError(f"{axis!r} is not an axis", "axes are whole numbers") from None
    count = ndim or int(lone)
    if not -count <= place < count:
        hint = f"axes run from {-count} to {count - 1}" if count else "a 0-d tensor has no axes"
        raise AxisError(f"there is no axis {place} in {ndim} dimensions", hint)
    return place % count


def as_axes(axes: Axes, ndim: int, lone: bool = False) -> tuple[int, ...]:
    """Several axes in rising order; None means all of them. `lone`: 0 dimensions take axis 0."""
    if axes is None:
        return tuple(range(ndim))
    if type(axes) is int and -ndim <= axes < ndim:
        return (axes if axes >= 0 else axes + ndim,)
    if type(axes) is not int:
        _no_tensor(axes)
    listed = [axes] if not isinstance(axes, Iterable) else list(axes)
    found = sorted([as_axis(a, ndim, lone) for a in listed])
    if len(found) > 1 and len(set(found)) != len(found):
        raise AxisError(f"an axis is named twice in {tuple(listed)}", "name each axis once")
    return tuple(found[:ndim])


def _no_tensor(axis: object) -> None:
    if hasattr(type(axis), "__array_namespace__") and not isinstance(axis, np.ndarray | np.generic):
        raise DataError(
            "a tensor is no axis",
            "axes are whole numbers; the larger of two tensors is fg.maximum(x, y)",
        )


def as_flag(value: object, what: str) -> bool:
    """True or False, or 1 or 0: what else is given by place means another argument."""
    if value is True or value is False:
        return value
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise DataError(f"{what} is {value!r}", f"{what} is True or False; name other arguments")


def as_positive(value: object, what: str) -> int:
    """A whole number above 0."""
    try:
        whole = as_index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}", f"{what} is a whole number") from None
    if whole < 1:
        raise ArgumentError(f"{what} is {whole}", f"{what} is at least 1")
    return whole


def whole_number(value: object, what: str) -> int:
    """A whole number that belongs to a variable."""
    try:
        return as_index(value)
    except TypeError:
        raise VariableError(f"{what} is {value!r}", "use whole numbers") from None
