"""What a function returned or left behind, as source that makes it again from fresh results.

In: values that hold tensors the function computed, things that were there before, numbers. Out: an
expression over the variables of the checks and the list `o` of results. Containers and plain
objects are made anew in every call, what was there before is that very thing. What cannot be made
again raises `CannotRemake` with the reason.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import tree
from ..core.dtype import DType
from ..core.node import Node
from ..core.symbolic.sym import Sym
from ..errors import FulguriteError
from ..tensor import Tensor
from .introspection import slots_of
from .purity import has_hidden_state
from .reachability import Survey
from .side_effects import MISSING, Effect, refill, set_attribute
from .symbolic_number import Number, source_of
from .variables import apart, together

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, np.generic,
          np.dtype, DType, enum.Enum, types.ModuleType)  # fmt: skip
_DEEP = 60  # Python takes 200 brackets, of which each level has up to three


class CannotRemake(Exception):
    """A value that a replay could not make again."""


class Template:
    """Expressions for values, and the tensors that they need as results."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.results: list[Tensor] = []
        self.known: dict[str, Any] = {
            "remade": remade, "refill": refill, "put": set_attribute, "drop": drop,
            "put_slot": object.__setattr__, "drop_slot": object.__delattr__,
        }  # fmt: skip
        self.numbers: list[tuple[str, str]] = []  # names and sources of numbers that it computes
        self._places: dict[int, int] = {}
        self._twice: dict[int, tuple[str, Any]] = {}  # containers that were made: the same again
        self._depth = 0

    def _constant(self, thing: Any) -> str:
        name = f"c{len(self.known)}"
        self.known[name] = thing
        return name

    def expression(self, value: Any) -> str:
        """Source for a value."""
        source = source_of(value)
        if source is not None:
            if source.isidentifier():
                return source
            self.numbers.append((f"q{len(self.numbers)}", source))  # before anything is changed
            return self.numbers[-1][0]
        known = self.survey.swapped.get(id(value))
        if known is None:
            found = self.survey.found.get(id(value))
            known = found[0] if found is not None and found[1] is value else None
        if known is not None and not isinstance(value, str | bytes | int | float):
            return known
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return f"{self._constant(value.copy())}.copy()"
        if id(value) in self._twice:
            return self._twice[id(value)][0]
        self._depth += 1
        if self._depth > _DEEP:
            raise CannotRemake("its result holds itself, or is nested too deeply")
        try:
            made = self._made(value)
        finally:
            self._depth -= 1
        if isinstance(value, _PLAIN) or type(value) in (tuple, Node):
            return made
        name = f"w{len(self._twice)}"
        self._twice[id(value)] = name, value
        return f"({name} := {made})"

    def _tensor(self, tensor: Tensor) -> str:
        if type(tensor) is not Tensor:
            raise CannotRemake(f"it makes a new {type(tensor).__name__}")
        if tensor.grad is not None:
            raise CannotRemake("it makes a tensor with a gradient of its own")
        place = self._places.setdefault(id(tensor), len(self.results))
        if place == len(self.results):
            self.results.append(tensor)
        return f"o[{place}]"

    def _made(self, value: Any) -> str:
        kind = type(value)
        write = _WRITERS.get(kind)
        if write is not None:
            return write(self, value)
        container = tree._kind(kind)
        if container is not None:
            try:
                children, extra = container.apart(value)
            except FulguriteError:  # a new module wants the values of its parameters
                raise CannotRemake(f"it makes a new {kind.__name__}") from None
            return (f"{self._constant(container.together)}({self._hashed(extra)}, "
                    f"[{self._listed(children)}])")  # fmt: skip
        if isinstance(value, set | frozenset):
            inside = ", ".join([self._hashed(item) for item in value])
            return f"{self._constant(kind)}([{inside}])"
        if isinstance(value, _PLAIN) or _is_lasting(value):
            return self._constant(value)
        if not hasattr(value, "__dict__") or isinstance(value, type | types.FunctionType) or (
            slots_of(kind) or has_hidden_state(kind)
        ):  # fmt: skip
            raise CannotRemake(f"it makes a {kind.__name__}, which cannot be made again")
        rows = [f"{k!r}: {self.expression(v)}" for k, v in vars(value).items()]
        return f"remade({self._constant(kind)}, {{{', '.join(rows)}}})"

    def _listed(self, items: Iterable[Any]) -> str:
        return ", ".join([self.expression(item) for item in items])

    def _tuple(self, value: tuple[Any, ...]) -> str:
        return f"({self._listed(value)}{',' if len(value) == 1 else ''})"

    def _dict(self, value: dict[Any, Any]) -> str:
        rows = [f"{self._hashed(k)}: {self.expression(v)}" for k, v in value.items()]
        return "{" + ", ".join(rows) + "}"

    def _slice(self, value: slice) -> str:
        return f"{self._constant(slice)}({self._listed((value.start, value.stop, value.step))})"

    def _size(self, value: Node) -> str:
        """An expression of variables, with their values in a replay."""
        form, values = apart(value)
        sources = [(name, self.survey.variables.source(name, v)) for name, v in values.items()]
        if not all([source for _, source in sources]):
            raise CannotRemake("it makes an expression of a variable of which it has two values")
        rows = ", ".join([f"{name!r}: {source}" for name, source in sources])
        return f"{self._constant(together)}({self._constant(form)}, {{{rows}}})"

    def _hashed(self, value: Any) -> str:
        """A key, an item of a set, or what else a container is: of values of this call as well."""
        if isinstance(value, Tensor) or type(value) in (Number, Sym):
            raise CannotRemake("a tensor or a number of the call is a key, or in a set")
        if type(value) in (str, int):
            return repr(value)
        if type(value) is tuple:
            return f"({''.join([f'{self._hashed(item)}, ' for item in value])})"
        if type(value) in (Node, frozenset) or tree._kind(type(value)) is not None:
            return self.expression(value)
        return self._constant(value)

    def effect(self, effect: Effect) -> str:
        """A statement that does a change again."""
        kind, name, key = effect.kind, effect.name, effect.key
        if kind == "array":
            raise CannotRemake(f"it writes to the NumPy array {effect.path}")
        if effect.value is MISSING:
            if kind == "item":
                return f"{name}.pop({key!r}, None)"
            if kind == "cell":
                raise CannotRemake(f"it deletes {effect.path}")
            return f"drop({name}, {key!r})" if kind == "attrs" else f"drop_slot({name}, {key!r})"
        source = self.expression(effect.value)
        if kind in ("list", "bytearray"):
            return f"{name}[:] = {source}"
        if kind in ("dict", "set", "deque"):
            return f"refill({name}, {source})"
        if kind == "item":
            return f"{name}[{key!r}] = {source}"
        if kind == "cell":
            return f"{name}.cell_contents = {source}"
        if kind == "grad":
            return f"{name}.grad = {source}"
        put = "put" if kind == "attrs" else "put_slot"
        return f"{put}({name}, {key!r}, {source})"


_WRITERS: dict[type, Callable[[Template, Any], str]] = {
    list: lambda template, value: f"[{template._listed(value)}]",
    tuple: Template._tuple,
    dict: Template._dict,
    slice: Template._slice,
    Node: Template._size,
}


def _is_lasting(value: Any) -> bool:
    """Is it a function or a class that the call did not make?"""
    if isinstance(value, types.FunctionType):
        made = value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value)
        return not made or "<locals>" not in value.__qualname__
    if isinstance(value, type):
        return "<locals>" not in value.__qualname__
    return isinstance(value, types.BuiltinFunctionType) and isinstance(
        value.__self__, types.ModuleType | None
    )


def remade(kind: type, attributes: dict[str, Any]) -> Any:
    """A plain object with these attributes, without any code of its class."""
    made: Any = object.__new__(kind)
    vars(made).update(attributes)
    return made


def drop(thing: Any, key: str) -> None:
    """Take an attribute away without any code of its class."""
    set_attribute(thing, key, MISSING)
