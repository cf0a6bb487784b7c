"""A shared library by ctypes: opened under the first name that is there, its functions declared.

In: names, and the types of each function. Out: functions that check what they are given, or the
caller's own error, made of the loader's words or of the name of the function that is missing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def open_library(names: Iterable[str], error: Callable[[str], Exception]) -> ctypes.CDLL:
    """The first library that can be opened; `error` is made of why the first could not."""
    problem = ""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as reason:
            problem = problem or str(reason)
    raise error(problem)


def declare(
    library: ctypes.CDLL, functions: Mapping[str, tuple[Any, ...]],
    error: Callable[[str], Exception],
) -> dict[str, Any]:  # fmt: skip
    """Functions that take these types and return a code; `error` is made of a missing name."""
    found: dict[str, Any] = {}
    for name, types in functions.items():
        function = getattr(library, name, None)
        if function is None:
            raise error(name)
        function.argtypes, function.restype = types, ctypes.c_int
        found[name] = function
    return found
