"""Inputs and outputs of a model: names, element kinds, sizes.

In: what a file says of its inputs and outputs, and the sizes that users fix or let vary. Out: a
`Port` for each, and dimensions by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fulgurite as fg

from ..errors import ArgumentError
from .proto import Dimension, ValueInfo
from .types import Kind, kind_of


@dataclass(frozen=True)
class Port:
    """An input or output: its name, element kind and sizes (a number, a name, or None)."""

    name: str
    kind: Kind | None
    shape: tuple[int | str | None, ...] | None
    form: str = "tensor"  # or "sequence", "optional"

    def __str__(self) -> str:
        if self.kind is None or self.shape is None:
            return f"{self.name}: {self.kind or self.form}"
        sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name}: {self.kind}[{sizes}]"


def port_of(info: ValueInfo) -> Port:
    """What the model says of an input or output."""
    kind, form, shape = None, "tensor", None
    type_ = info.type
    if type_ is not None and type_.tensor_type is not None:
        if type_.tensor_type.elem_type:
            kind = kind_of(type_.tensor_type.elem_type)
        if type_.tensor_type.shape is not None:
            shape = tuple(_size(d) for d in type_.tensor_type.shape.dim)
    elif type_ is not None and type_.sequence_type is not None:
        form = "sequence"
    elif type_ is not None and type_.optional_type is not None:
        form = "optional"
    return Port(info.name, kind, shape, form)


def _size(dimension: Dimension) -> int | str | None:
    if dimension.dim_value is not None:
        return dimension.dim_value if dimension.dim_value >= 0 else None
    return dimension.dim_param or None


def checked_dims(dims: Mapping[str, object], ports: Sequence[Port]) -> dict[str, Any]:
    """What `load(dims=...)` was given, checked."""
    known = {n for port in ports for n in port.shape or () if isinstance(n, str)}
    for name, value in dims.items():
        if name not in known:
            raise ArgumentError(
                f"there is no dimension {name!r}", f"one of {', '.join(sorted(known)) or 'none'}"
            )
        if not isinstance(value, int | fg.Var) or (isinstance(value, int) and value < 0):
            raise ArgumentError(
                f"dimension {name!r} is {value!r}", 'a number, or fg.Var("batch", 1, 64)'
            )
    return dict(dims)


def names_of(ports: Sequence[Port]) -> str:
    """What to do about an input that is wrong."""
    return "the model takes " + (", ".join(map(str, ports)) or "no inputs")
