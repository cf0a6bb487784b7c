"""The table of operators: one entry each, with what builds it.

In: `@operator("Relu")` above a function. Out: an `Entry` in `OPERATORS` under its domain and name.
The function takes a `Call`, one use of the operator with its inputs, attributes and version, and
gives lazy tensors. `since` is the first version of the operator set whose meaning is built;
differences between later versions are the function's own. `fold` is the same operator on small
host arrays, for the computation of shapes; `host` marks operators whose work is done by NumPy or
Python (linear algebra, Fourier transforms, strings), which the conformance report tells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.lazy_dataclass import dataclass
from ..core.node import Node
from ..core.op import Array
from ..tensor import Tensor
from .errors import ModelError, UnsupportedError
from .proto import Attribute, Graph, TensorData, Type
from .proto import Node as OnnxNode
from .types import Kind, kind_of
from .values import Nothing, Value, is_symbolic

if TYPE_CHECKING:
    from .graph import Build, Scope

NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
MICROSOFT = "com.microsoft"
Function = Callable[["Call"], Any]
Fold = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator."""

    name: str
    domain: str
    build: Function
    since: int
    host: bool
    keeps: bool  # elements are moved, not computed with: the kind of input 0 stays


OPERATORS: dict[tuple[str, str], Entry] = {}
FOLDS: dict[tuple[str, str], Fold] = {}


def operator(
    *names: str, domain: str = "", since: int = 1, host: bool = False, keeps: bool = False
) -> Callable[[Function], Function]:
    """Enter a function into the table under one or several names."""

    def enter(function: Function) -> Function:
        for name in names:
            assert (domain, name) not in OPERATORS, f"{domain} {name} is entered twice"
            OPERATORS[domain, name] = Entry(name, domain, function, since, host, keeps)
        return function

    return enter


def microsoft(*names: str) -> Callable[[Function], Function]:
    """Enter a function into the table of the domain com.microsoft."""
    return operator(*names, domain=MICROSOFT)


def enter(domain: str = "", **functions: Function) -> None:
    """Enter several operators that are one call each."""
    for name, function in functions.items():
        operator(name, domain=domain)(function)


def fold(*names: str, domain: str = "") -> Callable[[Fold], Fold]:
    """Enter what an operator does to small host arrays."""

    def enter_fold(function: Fold) -> Fold:
        for name in names:
            FOLDS[domain, name] = function
        return function

    return enter_fold


class Call:
    """One use of an operator while a graph is built."""

    __slots__ = ("_attributes", "build", "inputs", "node", "scope", "version")

    def __init__(
        self,
        build: Build,
        node: OnnxNode,
        inputs: Sequence[Any],
        version: int,
        attributes: dict[str, Attribute],
        scope: Scope,
    ) -> None:
        self.build, self.node, self.inputs, self.version = build, node, inputs, version
        self._attributes, self.scope = attributes, scope

    def with_inputs(self, *inputs: Any, **attributes: Attribute) -> Call:
        """The same operator with other inputs, and some attributes changed."""
        values = [Value(x) if isinstance(x, Tensor) else x for x in inputs]
        changed = self._attributes | attributes
        return Call(self.build, self.node, values, self.version, changed, self.scope)

    # --- inputs ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.inputs)

    def has(self, place: int) -> bool:
        """Is this input given?"""
        return place < len(self.inputs) and self.inputs[place] is not None

    def any(self, place: int) -> Any:
        """An input as it is: a value, a sequence or nothing."""
        if not self.has(place):
            raise ModelError(f"input {place} is missing", "the model is not valid ONNX")
        return self.inputs[place]

    def value(self, place: int) -> Value:
        """An input that is a tensor, with what is known of it."""
        found = self.any(place)
        if not isinstance(found, Value):
            what = "an empty optional" if isinstance(found, Nothing) else "a sequence"
            raise ModelError(f"input {place} is {what}, not a tensor", "the model is not valid")
        return found

    def __getitem__(self, place: int) -> Tensor:
        return self.value(place).tensor

    def maybe(self, place: int) -> Tensor | None:
        """An input that may be left out."""
        return self[place] if self.has(place) else None

    def tensors(self, start: int = 0) -> list[Tensor]:
        """All inputs from one on."""
        return [self[i] for i in range(start, len(self.inputs))]

    def kind(self, place: int) -> Kind:
        """The element kind of an input."""
        return self.value(place).kind

    def host(self, place: int) -> Array:
        """The numbers of an input, computed now if they must be."""
        return self.build.read(self.value(place))

    def known(self, place: int) -> Array | None:
        """The numbers of an input if no tensor must be computed for them."""
        return self.build.peek(self.value(place)) if self.has(place) else None

    def constant(self, place: int) -> Array | None:
        """The numbers of an input if they are the same for every call of the model."""
        if not self.has(place) or self.value(place).sources:
            return None
        found = self.value(place).known()
        return None if found is None or is_symbolic(found) else found

    def sizes(self, place: int) -> list[Any]:
        """An input of sizes; variable ones are nodes."""
        found = self.host(place)
        return [n if isinstance(n, Node) else int(n) for n in found.reshape(-1)]

    def ints(self, place: int) -> list[int]:
        """An input of whole numbers."""
        return [int(n) for n in self.build.fixed(self.host(place)).reshape(-1)]

    def number(self, place: int) -> Any:
        """An input of one number."""
        found = self.host(place)
        if found.size != 1:
            raise ModelError(f"input {place} has {found.size} numbers", "it is one number")
        single = found.reshape(-1)[0]
        return single.item() if isinstance(single, np.generic) else single

    # --- outputs ---------------------------------------------------------------------------------

    def wants(self, place: int) -> bool:
        """Is this output read by anything?"""
        return place < len(self.node.output) and bool(self.node.output[place])

    # --- attributes ------------------------------------------------------------------------------

    def given(self, name: str) -> bool:
        """Is this attribute there?"""
        return name in self._attributes

    def int(self, name: str, default: Any = 0) -> Any:
        """A whole number."""
        found = self._attributes.get(name)
        return default if found is None else found.i

    def float(self, name: str, default: Any = 0.0) -> Any:
        """A real number."""
        found = self._attributes.get(name)
        return default if found is None else found.f

    def text(self, name: str, default: str = "") -> str:
        """A word."""
        found = self._attributes.get(name)
        return default if found is None or found.s is None else str(found.s, "utf-8", "replace")

    def ints_of(self, name: str, default: Any = None) -> Any:
        """Whole numbers in a row."""
        found = self._attributes.get(name)
        return default if found is None else list(found.ints)

    def floats_of(self, name: str, default: Any = None) -> Any:
        """Real numbers in a row."""
        found = self._attributes.get(name)
        return default if found is None else list(found.floats)

    def texts_of(self, name: str, default: Any = None) -> Any:
        """Words in a row."""
        found = self._attributes.get(name)
        return default if found is None else [str(s, "utf-8", "replace") for s in found.strings]

    def stored(self, name: str) -> TensorData | None:
        """A tensor, as it is stored."""
        found = self._attributes.get(name)
        return None if found is None else found.t

    def array(self, name: str) -> tuple[Array, Kind] | None:
        """A tensor as an array of its carrier."""
        found = self.stored(name)
        return None if found is None else self.build.array(found)

    def graph(self, name: str) -> Graph:
        """A graph."""
        found = self._attributes.get(name)
        if found is None or found.g is None:
            raise ModelError(f"the graph {name!r} is missing", "the model is not valid ONNX")
        return found.g

    def attribute(self, name: str) -> Attribute | None:
        """An attribute as it is stored."""
        return self._attributes.get(name)

    def type(self, name: str) -> Type | None:
        """A type."""
        found = self._attributes.get(name)
        return None if found is None else found.tp

    def kind_attr(self, name: str, default: Kind) -> Kind:
        """An element kind by its number."""
        number = self.int(name, 0)
        return kind_of(number) if number else default

    def unsupported(self, what: str) -> UnsupportedError:
        """The error for a form of the operator that is not built."""
        return UnsupportedError(f"{self.node.op_type} with {what} is not built", "export it anew")
