"""`dataclass` as in the standard library, with methods that are generated when first needed.

In: a class with annotated fields. Out: the class with `__init__`, `__repr__`, `__eq__` and
`__hash__`, which `dataclasses.fields`, `replace` and `asdict` know. The standard decorator compiles
about seven functions for each class, half a millisecond that the first kernel of a process waits
for, some fifty times; here a class compiles nothing until its first instance compiles `__init__`.
That nobody assigns to a `frozen` class is left to the type checker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import _FIELD, MISSING, Field, field  # type: ignore[attr-defined]
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

Fields = dict[str, Field[Any]]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """A class whose methods follow from its fields."""
        return partial(_with_methods, **options) if cls is None else _with_methods(cls)


def _with_methods(
    cls: type, repr: bool = True, eq: bool = True, frozen: bool = False, slots: bool = False,
    kw_only: bool = False,
) -> type:  # fmt: skip
    own = _own_fields(cls, kw_only)
    fields: Fields = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= base.__dict__.get("__dataclass_fields__", {})
    fields |= own
    made: dict[str, Any] = {"__dataclass_fields__": fields}
    made["__match_args__"] = tuple([name for name, f in fields.items() if not f.kw_only])
    if repr:
        made["__repr__"] = _repr([name for name, f in fields.items() if f.repr])
    if eq:
        made["__eq__"], hashed = _comparison([name for name, f in fields.items() if f.compare])
        made["__hash__"] = hashed if frozen else None
    for name, value in made.items():
        if cls.__dict__.get(name) is None:
            setattr(cls, name, value)
    if slots:
        cls = _slotted(cls, own)
    cls.__init__ = _init_when_called(cls, fields)  # type: ignore[misc]
    return cls


def _own_fields(cls: type, kw_only: bool) -> Fields:
    """The fields that a class adds; a default stays a class attribute."""
    found: Fields = {}
    for name, annotation in cls.__annotations__.items():
        default = cls.__dict__.get(name, MISSING)
        one: Any = default if isinstance(default, Field) else field(default=default)
        one.name, one.type, one._field_type = name, annotation, _FIELD
        if one.kw_only is MISSING:
            one.kw_only = kw_only
        if one.default is not MISSING:
            setattr(cls, name, one.default)
        elif default is not MISSING:
            delattr(cls, name)
        found[name] = one
    return found


def _slotted(cls: type, own: Fields) -> type:
    """The class made again, with a slot in the place of each attribute."""
    left_out = {*own, "__dict__", "__weakref__"}
    space = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    made = type(cls)(cls.__name__, cls.__bases__, {**space, "__slots__": tuple(own)})
    made.__qualname__ = cls.__qualname__
    return made


def _repr(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        texts = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({texts})"

    return __repr__


def _comparison(names: list[str]) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    """Equality of two instances of one class by their fields, and the hash that goes with it."""
    key = attrgetter(*names)

    def __eq__(self: Any, other: object) -> bool:
        return key(self) == key(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(key(self))

    return __eq__, __hash__


def _init_when_called(cls: Any, fields: Fields) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        """Compile what all further instances are made by; a table of defaults needs none of it."""
        if not args and not kwargs and _fill_in_defaults(self, fields):
            return
        cls.__init__ = _compiled_init(cls, fields)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _fill_in_defaults(self: Any, fields: Fields) -> bool:
    """True if all fields have defaults, and that is all there is to do."""
    if hasattr(self, "__post_init__"):
        return False
    for name, one in fields.items():
        if one.default is not MISSING:
            setattr(self, name, one.default)
        elif one.default_factory is not MISSING:
            setattr(self, name, one.default_factory())
        else:
            return False
    return True


def _compiled_init(cls: type, fields: Fields) -> Callable[..., None]:
    space: dict[str, Any] = {"MISSING": MISSING}
    places, keywords, lines = ["self"], ["*"], []
    for name, one in fields.items():
        parameter, value, default = name, name, f"default_of_{name}"
        if one.default_factory is not MISSING:
            parameter, space[default] = f"{name}=MISSING", one.default_factory
            value = f"{default}() if {name} is MISSING else {name}"
        elif one.default is not MISSING:
            parameter, space[default] = f"{name}={default}", one.default
        (keywords if one.kw_only else places).append(parameter)
        lines.append(f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join(places + (keywords if len(keywords) > 1 else []))
    exec("\n".join([f"def __init__({parameters}):", *lines]), space)
    made: Callable[..., None] = space["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
