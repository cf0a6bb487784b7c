"""Inputs and outputs of a model: names, element kinds, sizes.

In: what a file says of its inputs and outputs, and the sizes that users fix or let vary. Out: a
`Port` for each, dimensions by name, and inputs as arrays of their ports' kinds.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import fulgurite as fg

from ..core.lazy_dataclass import dataclass
from ..core.lazy_named_tuple import NamedTuple
from ..core.op import Array
from ..errors import ArgumentError, DataError, DTypeError
from ..runtime.realize import OBSERVER
from ..tensor import Tensor
from .types import STRING, Kind, carried, kind_of, kind_of_array

if TYPE_CHECKING:
    from .proto import Dimension, Graph, ValueInfo


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

    @property
    def dims(self) -> list[str]:
        """The names among its sizes."""
        return [n for n in self.shape or () if isinstance(n, str)]

    def takes(self, dtype: Any) -> bool:
        """True if arrays of a dtype are taken as they are."""
        kind = self.kind
        return kind is not None and kind.plain and bool(kind.numpy == dtype)

    def misfit(self, found: object) -> DTypeError:
        """The error for a value of another element type."""
        return DTypeError(f"input {self.name!r} is {found}", f"the model takes {self}: use astype")


class Signature(NamedTuple):
    """What a model takes and gives."""

    inputs: list[Port]
    optional: list[Port]  # weights that may be given
    outputs: list[Port]
    opset: int

    @classmethod
    def of(cls, graph: Graph, stored: Container[str], opset: int) -> Signature:
        """That of a graph some of whose inputs have stored values."""
        ports = [port_of(info) for info in graph.input]
        return cls(
            [port for port in ports if port.name not in stored],
            [port for port in ports if port.name in stored],
            [port_of(info) for info in graph.output], opset,
        )  # fmt: skip

    def dump(self) -> list[Any]:
        """As JSON has it."""
        rows = [
            [[p.name, None if p.kind is None else p.kind.number, p.shape, p.form] for p in ports]
            for ports in (self.inputs, self.optional, self.outputs)
        ]
        return [*rows, self.opset]

    @classmethod
    def loaded(cls, dumped: Sequence[Any]) -> Signature:
        """What was dumped."""
        *rows, opset = dumped

        def port(name: str, kind: int | None, shape: list[Any] | None, form: str) -> Port:
            sizes = None if shape is None else tuple(shape)
            return Port(name, None if kind is None else kind_of(kind), sizes, form)

        ports = [[port(*fields) for fields in row] for row in rows]
        inputs, optional, outputs = ports
        return cls(inputs, optional, outputs, opset)


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
    known = {name for port in ports for name in port.dims}
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


# --- inputs --------------------------------------------------------------------------------------


def converted(value: Any, port: Port) -> Any:
    """An input as an array of its kind's carrier, a lazy tensor, a list, or None."""
    if type(value) is np.ndarray and port.takes(value.dtype):
        return value  # the common case, on the path of every call
    if isinstance(value, list) and port.form != "tensor":
        return [converted(v, Port(port.name, None, None)) for v in value]
    if isinstance(value, Tensor):
        return _from_tensor(value, port)
    if value is not None:
        return _from_array(value, port)
    if port.form == "optional":
        return None
    raise DataError(f"input {port.name!r} is None", f"the model takes {port}")


def _from_tensor(value: Tensor, port: Port) -> Tensor | Array:
    """A tensor's numbers where there are some: while fg.jit captures there are none to take."""
    if port.kind is not None and port.kind.plain and value.dtype is not port.kind.carrier:
        raise port.misfit(value.dtype)
    taken = value.is_realized and not value.node.watched and OBSERVER.refuse is None
    return value._array() if taken else value


def _from_array(value: Any, port: Port) -> Array:
    """An array as its carrier has it; numbers and lists of Python's take the port's own type."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as problem:
        raise DataError(f"input {port.name!r} is no array: {problem}", str(port)) from None
    kind, wanted = kind_of_array(array.dtype), port.kind
    if kind is None or (kind is STRING) != (wanted is STRING):
        raise port.misfit(array.dtype)
    if wanted is STRING:
        return array.astype(object)
    if kind is not wanted:
        if not isinstance(value, np.ndarray | np.generic):
            array = np.asarray(fg.Tensor(value, dtype=None if wanted is None else wanted.carrier))
        elif wanted is not None and (wanted.plain or not _holds_carrier(array, wanted)):
            raise port.misfit(array.dtype)
    return array if wanted is None and not kind.plain else carried(array, wanted or kind)


def _holds_carrier(array: Array, kind: Kind) -> bool:
    """True if the elements are the carrier of a kind that NumPy does not have."""
    return kind.carrier is not None and array.dtype == kind.carrier.numpy
