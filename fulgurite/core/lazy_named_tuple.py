"""`NamedTuple` as in `typing`, without looking at what its fields are annotated with.

In: a class with annotated fields, in a module whose annotations are text. Out: what
`collections.namedtuple` makes of it, with the methods of the class. The standard one compiles each
annotation to check it, which is most of what such a class costs when its module is loaded.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

_OWN = frozenset({"__module__", "__qualname__", "__annotations__"})

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Meta(type):
        """Makes a tuple with names in the place of a class."""

        def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, space)
            fields = space["__annotations__"]
            defaults = [space.pop(field) for field in fields if field in space]
            made: Any = namedtuple(
                name, tuple(fields), defaults=defaults, module=space["__module__"]
            )
            made.__annotations__ = made.__new__.__annotations__ = dict(fields)
            made.__qualname__ = space["__qualname__"]
            for key, value in space.items():
                if key not in _OWN:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Meta):
        """The base that is written; no class has it."""
