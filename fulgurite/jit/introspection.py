"""Whose a Python thing is, and what it is made of: questions that the survey asks.

In: modules, functions, classes, values. Out: whether code is the user's, ours, or of a library that
has nothing to do with tensors; which names a class holds; whether two values are the same. Nothing
here runs any code of the things that are looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import sys
import sysconfig
import types
from typing import Any

import numpy as np

from .. import tree
from ..errors import PACKAGE

_STANDARD = tuple(
    {os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)
# of a class, what no code of the user reads
OF_CLASSES = frozenset({
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__annotations__",
    "__slots__", "__hash__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
    "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__firstlineno__",
    "__static_attributes__", "__fulgurite_module__",
})  # fmt: skip
_MODULES = (PACKAGE + "nn" + os.sep, PACKAGE + "optim" + os.sep)


def place_of(file: str | None) -> str:
    """Whose a file is: the user's, ours (modules apart), or the standard library's."""
    if not file or file.startswith("<frozen"):
        return "standard"
    name = os.path.abspath(file)
    if name.startswith(PACKAGE):
        return "module" if name.startswith(_MODULES) else "ours"
    if name.startswith(_STANDARD) and f"{os.sep}site-packages{os.sep}" not in name:
        return "standard"
    return "numpy" if f"{os.sep}site-packages{os.sep}numpy{os.sep}" in name else "user"


@functools.cache
def place_of_module(name: str) -> str:
    """Whose a module is, by its name."""
    if name == "__main__":
        return "user"
    if name.partition(".")[0] in sys.builtin_module_names or name == "builtins":
        return "standard"
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None and getattr(module, "__spec__", None) is None:
        return "user"  # made by a program, not found by an import
    return _place(name, file)


def place_of_function(function: types.FunctionType) -> str:
    """Whose a function is, by its code."""
    return _place(str(function.__module__), function.__code__.co_filename)


def _place(module: str, file: str | None) -> str:
    where = place_of(file)
    return "standard" if where == "user" and is_foreign(module, str(file)) else where


_foreign: dict[str, bool] = {}


def is_foreign(module: str, file: str) -> bool:
    """Is it of an installed package no part of which has anything to do with tensors?"""
    if f"{os.sep}site-packages{os.sep}" not in file:
        return False
    top = module.partition(".")[0]
    found = _foreign.get(top)
    if found is None:
        parts = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == top]
        found = _foreign[top] = not any([_knows_us(part) for part in parts])
    return found


def is_installed(module: Any) -> bool:
    """Does a module belong to an installed package?"""
    return f"{os.sep}site-packages{os.sep}" in str(getattr(module, "__file__", ""))


def _knows_us(module: Any) -> bool:
    return any(
        [_home(v).startswith("fulgurite") for v in list(getattr(module, "__dict__", {}).values())]
    )


def _home(value: Any) -> str:
    """The module that a module, class or function is of, or else its class: nothing of it runs."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return str(value.__name__)
    return str((value if issubclass(kind, type | types.FunctionType) else kind).__module__)


def absolute_name(label: str, names: dict[str, Any]) -> str:
    """The name of a module that code imports, which may count from its own package."""
    package = str(names.get("__package__") or "")
    try:
        return importlib.util.resolve_name(label, package)
    except ImportError:
        return label


def can_be_found(module: str) -> bool:
    """Is there such a module, or at least the package that would hold it?"""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def within(module: str, names: tuple[str, ...]) -> bool:
    """Is it one of these modules, or inside one?"""
    return any([module == name or module.startswith(name + ".") for name in names])


def owner(thing: Any) -> str:
    """Whose a function or class is."""
    return place_of_module(str(getattr(thing, "__module__", None) or "builtins"))


def is_plain(kind: type, label: str) -> bool:
    """Does `thing.label` give what the thing's own table holds, without any code of its class?"""
    own: Any = kind.__getattribute__
    if own is not object.__getattribute__ or not label.isidentifier():
        return False
    return not any([hasattr(type(base.__dict__[label]), "__set__")
                    for base in kind.__mro__ if label in base.__dict__])  # fmt: skip


def class_names(kind: type) -> set[str]:
    """Names of values (no methods) that the user's classes hold."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base is not object and owner(base) == "user":
            found |= {k for k, v in base.__dict__.items() if not k.startswith("__")}
    return found


def unwrapped(inside: Any) -> Any:
    """The function in a method of any kind, or a property."""
    if isinstance(inside, staticmethod | classmethod):
        return inside.__func__
    if isinstance(inside, property):
        return inside.fget
    if isinstance(inside, functools.cached_property):
        return inside.func
    return inside.function if hasattr(inside, "__fulgurite_jit__") else inside


def slots_of(kind: type) -> list[str]:
    """The slots of a class that the user wrote."""
    found = []
    for base in kind.__mro__:
        if owner(base) in ("user", "module"):
            found += [k for k, v in base.__dict__.items()
                      if isinstance(v, types.MemberDescriptorType)]  # fmt: skip
    return found


def literal(key: Any) -> str:
    """The key of a dict as source; empty if it has none."""
    return repr(key) if type(key) in (str, int, bytes) else ""


def labels_of(function: Any, count: int) -> list[str]:
    """Names of positional arguments, for messages."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount] if code is not None else ()
    if isinstance(function, types.MethodType):
        names = names[1:]
    return [names[i] if i < len(names) else f"argument {i}" for i in range(count)]


def same_value(a: Any, b: Any) -> bool:
    """Are two immutable values the same, to the last bit and the type?"""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bool(a.hex() == b.hex())
    if isinstance(a, complex):
        return bool(a.real.hex() == b.real.hex() and a.imag.hex() == b.imag.hex())
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    bases: tuple[Any, ...] = (str, bytes, int)
    for base in bases:  # not by what a class of the user's calls equal
        if isinstance(a, base):
            return base.__eq__(a, b) is True
    return bool(a == b)


def same_items(a: list[Any], b: list[Any]) -> bool:
    """Are immutable values the same, one by one?"""
    return len(a) == len(b) and all([same_value(x, y) for x, y in zip(a, b, strict=True)])


def same_array(a: Any, b: Any) -> bool:
    """Do two arrays hold the same bits?"""
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.hasobject:
        return False
    return bool(a.tobytes() == b.tobytes())


def is_tree(kind: type) -> bool:
    """Is it a dataclass or a registered container, all of which `fg.tree` reads?"""
    return dataclasses.is_dataclass(kind) or tree._kind(kind) is not None
