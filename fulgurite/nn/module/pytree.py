"""Modules as trees: their tensors, each once, and a description of everything else.

In: a module. Out: for `fulgurite.tree` the tensors in it, in the order of attributes, also those in
parts, lists, tuples and dicts, and a description: nested tuples with a number for each tensor's
place, and settings, which are compared by value. A tensor or part that several places share is one
leaf, and shared again in the module that is put together, so tied weights stay tied under every
transform. Two modules have equal forms exactly if they compute the same with the same tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...tensor import Tensor
from ...tree import epoch

if TYPE_CHECKING:
    from . import Module

CACHE = "_cache"  # the attribute for what can be found again: never part of what a module is
KINDS = "_kinds"  # the attribute that says which names are parameters and which are buffers
_FIXED = (int, float, str, bytes, bool, type, type(None), complex)


class Setting:
    """What an attribute without tensors holds; compared by value, as it was when looked at."""

    __slots__ = ("seen", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.seen = value, snapshot(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and _alike(self.seen, other.seen)

    def __hash__(self) -> int:
        return hash(type(self.value))


def _alike(mine: Any, other: Any) -> bool:
    if mine is other:
        return True
    if type(mine) is not type(other):
        return False
    if isinstance(mine, tuple):
        return len(mine) == len(other) and all(map(_alike, mine, other))
    try:
        return bool(mine == other)
    except Exception:  # arrays and the like do not say whether they are equal
        return False


def snapshot(value: Any) -> Any:
    """A value that stays as it is when the lists, dicts and sets in it change."""
    if isinstance(value, list | tuple):
        return (type(value), *[snapshot(item) for item in value])
    if isinstance(value, dict):
        return (type(value), *[(key, snapshot(item)) for key, item in value.items()])
    return frozenset(value) if isinstance(value, set) else value


def is_module(value: Any) -> bool:
    """Is it a module?"""
    return hasattr(type(value), "__fulgurite_module__")


def holds_tensors(value: Any) -> bool:
    """Is it a tensor or a module, or a list, tuple or dict with one in it?"""
    if isinstance(value, Tensor) or is_module(value):
        return True
    if isinstance(value, list | tuple):
        return any([holds_tensors(item) for item in value])
    return isinstance(value, dict) and any([holds_tensors(item) for item in value.values()])


class _Described(NamedTuple):
    """What `apart` found, and where each leaf is, so that it need not look again."""

    epoch: int
    description: tuple[Any, ...]
    places: list[tuple[dict[str, Any], str]]


class _Walk:
    """One walk over a module: leaves, and the first number of whatever is met twice."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.names: list[str] = []
        self.places: list[tuple[dict[str, Any], str]] = []
        self.met: dict[Hashable, int] = {}  # a tensor's id, or the leaf it was made of -> its leaf
        self.modules: dict[int, int] = {}  # id of a module -> its number
        self.lasting = True  # can no part of it change without `tree.rebound`?

    def described(self, value: Any, name: str) -> tuple[Any, ...]:
        """A value as nested tuples; its tensors become leaves."""
        if isinstance(value, Tensor):
            return self._leaf(value, name, id(value))
        if is_module(value):
            return self.module(value, name)
        if not holds_tensors(value):
            self.lasting &= isinstance(value, _FIXED) or callable(value) or _is_plain(value)
            return ("set", Setting(value))
        self.lasting = False
        if isinstance(value, dict):
            rows = [(key, self.described(item, f"{name}.{key}")) for key, item in value.items()]
            return ("dict", type(value), tuple(rows))
        items = [self.described(item, f"{name}.{place}") for place, item in enumerate(value)]
        return ("list", type(value), tuple(items))

    def _leaf(self, value: Any, name: str, identity: Hashable) -> tuple[Any, ...]:
        found = self.met.setdefault(identity, len(self.leaves))
        if found == len(self.leaves):
            self.leaves.append(value)
            self.names.append(name)
        return ("leaf", found)

    def module(self, module: Module, name: str) -> tuple[Any, ...]:
        """A module as its type and its attributes."""
        number = self.modules.setdefault(id(module), len(self.modules))
        if number != len(self.modules) - 1:
            return ("again", number)
        own = vars(module)
        filled = own.get(CACHE, {}).get("leaves", {})  # made of leaves: they may be no tensors
        rows = []
        for key, value in own.items():
            if key == CACHE:
                continue
            path = f"{name}.{key}" if name else key
            before = len(self.leaves)
            if key in filled:
                rows.append((key, self._leaf(value, path, filled[key])))
            else:
                rows.append((key, self.described(value, path)))
            if rows[-1][1] == ("leaf", before):
                self.places.append((own, key))
        return ("module", type(module), tuple(rows))


def _is_plain(value: Any) -> bool:
    """Is it a tuple or a dict of kinds, which is changed together with `tree.rebound` only?"""
    if isinstance(value, tuple):
        return all([isinstance(item, _FIXED) or _is_plain(item) for item in value])
    return isinstance(value, Kinds)


class Kinds(dict[str, str]):
    """Which attribute names are parameters and buffers; changed by `Module.__setattr__` only."""

    __slots__ = ()


def apart(module: Module) -> tuple[Sequence[Any], Hashable]:
    """The tensors of a module, each once, and what else it is."""
    cache = vars(module).setdefault(CACHE, {})
    known: _Described | None = cache.get("apart")
    if known is not None and known.epoch == epoch():
        return [place[name] for place, name in known.places], known.description
    module.settle()
    walk = _Walk()
    description = (*walk.module(module, ""), tuple(walk.names))
    if walk.lasting and len(walk.places) == len(walk.leaves):
        cache["apart"] = _Described(epoch(), description, walk.places)
    return walk.leaves, description


def together(description: tuple[Any, ...], leaves: Sequence[Any]) -> Any:
    """A module with these leaves, made without `__init__`."""
    return _made(description[:-1], leaves, [], object())


def _made(part: tuple[Any, ...], leaves: Sequence[Any], modules: list[Any], making: object) -> Any:
    kind = part[0]
    if kind == "leaf":
        return leaves[part[1]]
    if kind == "again":
        return modules[part[1]]
    if kind == "set":
        value = part[1].value
        return Kinds(value) if type(value) is Kinds else value
    if kind == "module":
        made = object.__new__(part[1])
        modules.append(made)
        own = vars(made)
        for key, inner in part[2]:
            own[key] = _made(inner, leaves, modules, making)
        filled = {key: (making, inner[1]) for key, inner in part[2] if inner[0] == "leaf"}
        own[CACHE] = {"leaves": filled}  # what one leaf filled is one leaf, whatever it is now
        return made
    if kind == "dict":
        rows = [(key, _made(inner, leaves, modules, making)) for key, inner in part[2]]
        return part[1](rows)
    items = [_made(inner, leaves, modules, making) for inner in part[2]]
    return part[1](*items) if hasattr(part[1], "_fields") else part[1](items)


def names(description: tuple[Any, ...]) -> Iterable[str]:
    """The dotted names of the leaves."""
    found: tuple[str, ...] = description[-1]
    return found
