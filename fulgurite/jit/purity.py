"""Things that cannot be looked into, and code that asks the world: what may still be replayed.

In: modules, types and values that a function reaches. Out: whether something stays what it is as
long as it is the same thing (a lock, a compiled pattern, a builtin function), whether its state is
hidden from Python (a `memoryview`, a `ctypes` value), and which names of the standard library give
another answer in every call. What is not known to last is taken for something that changes: a
function that reaches it runs as it is.
"""

from __future__ import annotations

import _thread
import decimal
import enum
import functools
import logging
import operator
import os
import pathlib
import re
import sys
import types
import typing
from collections import namedtuple
from typing import Any

import numpy as np

from ..config import Options
from ..core.dtype import DType
from ..core.node import Node

CHANGING = (
    "time", "_random", "random", "secrets", "numpy.random", "_datetime", "datetime", "uuid",
    "contextvars", "_contextvars", "subprocess", "socket", "urllib", "http", "requests", "select",
    "tempfile", "shutil", "glob", "concurrent", "multiprocessing", "asyncio", "importlib",
    "inspect", "pickle", "_pickle", "gc", "mmap", "ctypes", "_ctypes", "sqlite3", "linecache",
    "fileinput",
)  # fmt: skip
FILES = ("load", "loadtxt", "fromfile", "genfromtxt", "memmap")  # of NumPy
_WORLD = {  # names in modules that otherwise last
    "threading": ("Thread", "Timer", "current_thread", "get_ident", "active_count", "enumerate"),
    "sys": ("_getframe", "getrefcount", "stdin"),
    "operator": ("attrgetter", "methodcaller"),
    "io": ("open", "open_code"),
    "_io": ("open", "open_code"),
    "builtins": ("open", "input", "eval", "exec", "globals", "locals", "__import__", "breakpoint"),
}
_OF_FILES = frozenset({
    "read_text", "read_bytes", "open", "exists", "is_file", "is_dir", "stat", "iterdir", "glob",
    "rglob", "cwd", "home", "resolve", "write_text", "write_bytes", "unlink", "mkdir",
})  # fmt: skip
_Pair = namedtuple("_Pair", "left")  # for the type of its field
_LASTING = (
    enum.Enum, Node, DType, Options, np.ufunc, property, re.Pattern, logging.Logger,
    logging.Handler, logging.Formatter, decimal.Decimal, pathlib.PurePath, _thread.LockType,
    _thread.RLock, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.CodeType, types.GenericAlias, types.UnionType, operator.itemgetter, typing.TypeVar,
    operator.attrgetter, operator.methodcaller, type(_Pair.left),
)  # fmt: skip
_DISPATCHED: Any = type(np.sum)  # a NumPy function, which Python sees as an object


def lasts(value: Any) -> bool:
    """Is it, as long as it is the same thing, what it was?"""
    kind = type(value)
    if isinstance(value, _LASTING) or kind in (object, _DISPATCHED):
        return True
    return str(kind.__module__) in ("typing", "fractions", "abc", "_abc")


def has_hidden_state(kind: type) -> bool:
    """Can its values hold something besides attributes and slots, which nobody can list?"""
    if any([base is not object and not _is_python(base) for base in kind.__mro__]):
        return True
    try:
        object.__new__(kind)
    except TypeError:  # which Python says of classes that hold more
        return True
    return False


@functools.cache
def _is_python(kind: type) -> bool:
    """Is it a class that was written in Python?"""
    module = str(kind.__module__)
    if module in sys.builtin_module_names and module != "__main__":
        return module == "builtins" and kind.__name__ in ("object", "type")
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not str(file).endswith((".so", ".pyd"))


def asks_the_world(module: str, label: str) -> bool:
    """Does a name of a standard module give something else in every call?"""
    if module in ("os", "posix", "os.path", "posixpath"):
        return label not in dir_of_paths()
    return label in _WORLD.get(module, ())


@functools.cache
def dir_of_paths() -> frozenset[str]:
    """Names in `os` that only work on text, or hold values."""
    lasting = {"join", "basename", "dirname", "split", "splitext", "normpath", "normcase", "isabs",
               "commonprefix", "commonpath", "fspath", "fsdecode", "fsencode", "path", "sep",
               "environ", "getenv", "PathLike"}  # fmt: skip
    return frozenset(lasting | {name for name in dir(os) if not callable(getattr(os, name))})


def touches_files(value: Any, attributes: set[str]) -> bool:
    """Is it a path, and does code use a name with which paths look at files?"""
    return isinstance(value, pathlib.PurePath) and not attributes.isdisjoint(_OF_FILES)
