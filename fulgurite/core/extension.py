"""The C extension, where there is one: the functions that every op goes through, compiled.

In: a function or class of the host's hot path, decorated with `compiled`. Out: the one of the same
name in `_fast.c`, if that was built for this interpreter, else itself. The Python text is the
meaning and the fallback: C answers the common cases and calls it for the rest. Without a C
compiler, or with `FULGURITE_EXTENSION=0`, all of it is Python; `fulgurite doctor` says which runs.
One that was built from another text is not used, and importing says so: nobody meant that.
"""

from __future__ import annotations

import os
import warnings
import zlib
from types import ModuleType
from typing import TypeVar

SWITCH = "FULGURITE_EXTENSION"
STALE = (
    "it was built from another version: install fulgurite again, or run fulgurite/core/_build.py"
)
_SOURCE = os.path.join(os.path.dirname(__file__), "_fast.c")
T = TypeVar("T")


def _load() -> tuple[ModuleType | None, str]:
    """The extension, or why there is none."""
    if os.environ.get(SWITCH, "").lower() in ("0", "off", "false"):
        return None, f"{SWITCH} turns it off"
    try:
        from . import _fast
    except ImportError as problem:
        return None, f"it was not built for this interpreter ({problem})"
    if os.path.exists(_SOURCE):
        with open(_SOURCE, "rb") as file:
            if zlib.crc32(file.read()) != _fast.SOURCE:
                return None, STALE
    return _fast, ""


def warn_if_stale() -> None:
    """Warn of an extension that is there and of no use; of one that is not there nobody is told."""
    if REASON == STALE:
        warnings.warn(
            f"fulgurite's C extension is out of date and not used, so building graphs takes "
            f"several times as long: {STALE}, or set {SWITCH}=0",
            RuntimeWarning,
            stacklevel=2,
        )


EXTENSION, REASON = _load()
warn_if_stale()
PURE: dict[str, object] = {}  # what is written in Python, by name


def compiled(pure: T) -> T:
    """The extension's function or class of this name, else this one."""
    name: str = pure.__name__  # type: ignore[attr-defined]
    PURE[name] = pure
    if EXTENSION is None:
        return pure
    EXTENSION.adopt(name, pure)
    found: T = getattr(EXTENSION, name)
    return found


def in_words() -> str:
    """What runs here, for `fulgurite doctor`."""
    if REASON == STALE:
        return f"Python, SEVERAL TIMES SLOWER: the C extension is OUT OF DATE; {STALE}"
    return "C" if EXTENSION is not None else f"Python: {REASON}"


def give(**objects: object) -> None:
    """Tell the extension what it has to know by identity."""
    if EXTENSION is not None:
        for name, thing in objects.items():
            EXTENSION.adopt(name, thing)
