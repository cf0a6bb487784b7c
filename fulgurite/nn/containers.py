"""Modules that hold others: in sequence, in a list, in a dict; and lists and dicts of parameters.

In: modules, or parameters. Out: a module whose parts have their place or key as their name, as in
torch: `layers.0.weight`. The parts are attributes like any others, so nothing here knows about
state or trees. A plain Python list or dict of modules works as well; these classes can be called,
printed and changed like their Python namesakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_index
from typing import Any, ClassVar, TypeVar

from ..errors import ArgumentError, BoundsError
from ..tensor import Tensor
from .module import Module
from .module.parameter import Parameter

Self = TypeVar("Self", bound="_Numbered")


class _Numbered(Module):
    """Parts named by their place: attributes "0", "1", ..."""

    def _names(self) -> list[str]:
        return [name for name in vars(self) if name.isdigit()]

    def _fitting(self, item: Any) -> Any:
        if not isinstance(item, Module):
            raise ArgumentError(
                f"{type(self).__name__} holds modules, not {type(item).__name__}",
                "wrap a function in a module: class F(fg.nn.Module) with forward",
            )
        return item

    def _items(self) -> list[Any]:
        return [vars(self)[name] for name in self._names()]

    def _replace(self, items: Iterable[Any]) -> None:
        fitting = [self._fitting(item) for item in items]
        for name in self._names():
            delattr(self, name)
        for place, item in enumerate(fitting):
            setattr(self, str(place), item)

    def __len__(self) -> int:
        return len(self._names())

    def __bool__(self) -> bool:
        return True  # a module is something, even an empty one

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def _place(self, place: Any) -> str:
        try:
            number = as_index(place)
        except TypeError:
            raise ArgumentError(f"{place!r} is no place in a list", "use a whole number") from None
        count = len(self)
        if not -count <= number < count:
            raise BoundsError(f"there is no {number} among {count}", f"use {-count} to {count - 1}")
        return str(number % count)

    def __getitem__(self: Self, place: Any) -> Any:
        if isinstance(place, slice):
            return type(self)._of(self._items()[place])
        return vars(self)[self._place(place)]

    @classmethod
    def _of(cls, items: list[Any]) -> Any:
        return cls(items)  # type: ignore[call-arg]

    def __setitem__(self, place: Any, item: Any) -> None:
        setattr(self, self._place(place), self._fitting(item))

    def __delitem__(self, place: Any) -> None:
        items = self._items()
        if isinstance(place, slice):
            del items[place]
        else:
            del items[int(self._place(place))]
        self._replace(items)

    def append(self: Self, item: Any) -> Self:
        """Add a part at the end."""
        setattr(self, str(len(self)), self._fitting(item))
        return self

    def extend(self: Self, items: Iterable[Any]) -> Self:
        """Add several parts at the end."""
        for item in list(items):
            self.append(item)
        return self

    def insert(self, place: int, item: Any) -> None:
        """Add a part before a place."""
        items = self._items()
        items.insert(place, self._fitting(item))
        self._replace(items)

    def pop(self, place: int = -1) -> Any:
        """Take a part away."""
        item = self[place]
        del self[place]
        return item


class Sequential(_Numbered):
    """Modules that are called one after the other; a dict gives them names.

    >>> net = fg.nn.Sequential(fg.nn.Linear(4, 8), fg.nn.ReLU(), fg.nn.Linear(8, 2))
    >>> net(fg.ones((3, 4))).shape, list(net.state_dict())
    ((3, 2), ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, *parts: Module | Mapping[str, Module]) -> None:
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            for name, part in parts[0].items():
                self.add_module(name, self._fitting(part))
            return
        self._replace(parts)

    def _names(self) -> list[str]:
        return [name for name, value in vars(self).items() if isinstance(value, Module)]

    @classmethod
    def _of(cls, items: list[Any]) -> Any:
        return cls(*items)

    def _place(self, place: Any) -> str:
        names = self._names()
        return names[int(super()._place(place))]

    def __delitem__(self, place: Any) -> None:
        names = self._names()
        gone = names[place] if isinstance(place, slice) else [self._place(place)]
        for name in gone:
            delattr(self, name)
        if all([name.isdigit() for name in names]):
            self._replace(self._items())

    def forward(self, x: Any) -> Any:
        """What the last one gives."""
        for part in self._items():
            x = part(x)
        return x


class ModuleList(_Numbered):
    """A list of modules.

    >>> layers = fg.nn.ModuleList([fg.nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers), [name for name, _ in layers.named_parameters()][-1]
    (3, '2.bias')
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._replace(modules)


class _Named(Module):
    """Parts by name: attributes with the names that users give."""

    kind: ClassVar[type[Any]]  # of what it holds
    word: ClassVar[str]

    def __init__(self, parts: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self.update(parts or ())

    def _fitting(self, name: str, part: Any) -> Any:
        raise NotImplementedError

    def _held(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if isinstance(part, self.kind)}

    def __getitem__(self, name: str) -> Any:
        found = self._held().get(name)
        if found is None:
            known = ", ".join(self._held()) or "none yet"
            raise ArgumentError(f"there is no {self.word} {name!r}", f"one of: {known}")
        return found

    def __setitem__(self, name: str, part: Any) -> None:
        fitting = self._fitting(name, part)
        if isinstance(name, str) and hasattr(type(self), name):
            raise ArgumentError(f"{name!r} is a method of modules", "use another name")
        self.add_module(name, fitting)

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __len__(self) -> int:
        return len(self._held())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __contains__(self, name: object) -> bool:
        return name in self._held()

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._held().keys()

    def values(self) -> Iterable[Any]:
        """The parts."""
        return self._held().values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and parts."""
        return self._held().items()

    def pop(self, name: str) -> Any:
        """Take a part away."""
        found = self[name]
        delattr(self, name)
        return found

    def clear(self) -> None:
        """Take all parts away."""
        for name in list(self._held()):
            delattr(self, name)

    def update(self, parts: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add parts by name."""
        for name, part in parts.items() if isinstance(parts, Mapping | _Named) else parts:
            self[name] = part


class ModuleDict(_Named):
    """Modules by name.

    >>> heads = fg.nn.ModuleDict({"a": fg.nn.Linear(2, 3), "b": fg.nn.Linear(2, 1)})
    >>> heads["b"](fg.ones((4, 2))).shape, list(heads)
    ((4, 1), ['a', 'b'])
    """

    kind, word = Module, "module"

    def _fitting(self, name: str, part: Any) -> Module:
        if not isinstance(part, Module):
            raise ArgumentError(f"{name!r} is {type(part).__name__}", "give a module")
        return part


class ParameterList(_Numbered):
    """A list of parameters; other tensors become parameters.

    >>> scales = fg.nn.ParameterList([fg.ones(2), fg.zeros(3)])
    >>> scales[1].shape, [name for name, _ in scales.named_parameters()]
    ((3,), ['0', '1'])
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._replace(values)

    def _fitting(self, item: Any) -> Any:
        return item if isinstance(item, Parameter) else Parameter(item)

    def __repr__(self) -> str:
        return f"ParameterList({_shapes(zip(self._names(), self._items(), strict=True))})"


class ParameterDict(_Named):
    """Parameters by name; other tensors become parameters.

    >>> parts = fg.nn.ParameterDict({"scale": fg.ones(2)})
    >>> parts["scale"].shape, list(parts)
    ((2,), ['scale'])
    """

    kind, word = Tensor, "parameter"

    def _fitting(self, name: str, part: Any) -> Parameter:
        return part if isinstance(part, Parameter) else Parameter(part)

    def __repr__(self) -> str:
        return f"ParameterDict({_shapes(self.items())})"


def _shapes(pairs: Iterable[tuple[str, Any]]) -> str:
    return ", ".join([f"{name}: {getattr(value, 'shape', value)}" for name, value in pairs])
