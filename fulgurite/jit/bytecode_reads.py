"""What Python code can read: names of globals, cells and attributes, from its bytecode.

In: a code object. Out: `Reads`, what it and the code inside it load and store by name. It is an
upper bound: every branch counts, taken or not. Code that picks names at run time (`getattr`,
`vars`) may read any attribute; code that asks the world outside (`open`, `input`) or that cannot be
followed (`eval`) is named with the reason, so that nobody takes its answers for lasting.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable
from dataclasses import field
from types import CodeType
from typing import Any

from ..core.lazy_dataclass import dataclass

BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "vars", "dir", "attrgetter", "copy",
            "deepcopy", "asdict", "astuple"}  # fmt: skip
_DOTTED = re.compile(r"\{[^{}]*\.")  # "{0.name}".format(thing)
_ANY = {"__dict__", "attrgetter", "__getattribute__", "deepcopy", "asdict", "astuple"}
_OUTSIDE = {
    "open": "reads or writes a file", "input": "asks the user", "eval": "evaluates text",
    "exec": "executes text", "globals": "reads all globals", "locals": "reads all locals",
    "__import__": "imports by name", "breakpoint": "stops for a debugger",
}  # fmt: skip


@dataclass
class Reads:
    """Names that some code loads and stores."""

    globals: set[str] = field(default_factory=set)
    cells: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    stored: dict[str, set[str]] = field(
        default_factory=lambda: {"attributes": set(), "globals": set(), "cells": set()}
    )
    imports: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # module and names
    any_attribute: bool = False  # are names picked at run time?
    catches: bool = False  # does it catch exceptions, such as that of a missing attribute?
    outside: str = ""  # what it does that no capture can hold

    def add(self, other: Reads) -> None:
        """Take in what other code reads."""
        self.globals |= other.globals
        self.cells |= other.cells
        self.attributes |= other.attributes
        self.imports |= other.imports
        for kind, names in other.stored.items():
            self.stored[kind] |= names
        self.any_attribute |= other.any_attribute
        self.catches |= other.catches
        self.outside = self.outside or other.outside


_known: dict[CodeType, Reads] = {}
_MOST = 10_000


def reads(code: CodeType) -> Reads:
    """What a code object and those inside it read; looked at once."""
    found = _known.get(code)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[code] = _read(code)
    return found


def _read(code: CodeType) -> Reads:
    found = Reads()
    last: list[Any] = [0, None]  # the constants before an import: its level and names
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            last = [last[1], value]
        elif name == "IMPORT_NAME":
            found.imports.add(("." * last[0] + value, last[1] or ()))
        elif name in _NOTES:
            _NOTES[name](found, value, code.co_name)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.add(reads(constant))
        elif (
            isinstance(constant, str) and "format" in found.attributes and _DOTTED.search(constant)
        ):
            found.any_attribute = True
    return found


def _global(found: Reads, name: str, code: str) -> None:
    if name[:1] == "@":
        return  # pytest's, in an assert that it wrote anew: only asked when that fails
    found.globals.add(name)
    if name in BY_NAME:
        found.any_attribute = True
    elif name in _OUTSIDE:
        found.outside = found.outside or f"{code} {_OUTSIDE[name]} ({name})"


def _attribute(found: Reads, name: str, code: str) -> None:
    found.attributes.add(name)
    found.any_attribute |= name in _ANY


def _cell(found: Reads, name: str, code: str) -> None:
    found.cells.add(name)


def _stored(kind: str) -> Callable[[Reads, Any, str], None]:
    return lambda found, name, code: found.stored[kind].add(name)


def _match_class(found: Reads, name: Any, code: str) -> None:
    found.any_attribute = True


def _catch(found: Reads, name: Any, code: str) -> None:
    found.catches = True


# what an instruction says of the code it is in: its argument and the code's name are given
_NOTES: dict[str, Callable[[Reads, Any, str], None]] = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), _global),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD",
                     "IMPORT_FROM"), _attribute),
    **dict.fromkeys(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_CLOSURE"),
                    _cell),
    **dict.fromkeys(("STORE_DEREF", "DELETE_DEREF"), _stored("cells")),
    **dict.fromkeys(("STORE_ATTR", "DELETE_ATTR"), _stored("attributes")),
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), _stored("globals")),
    "MATCH_CLASS": _match_class,
    "PUSH_EXC_INFO": _catch,
}  # fmt: skip
