"""Where a node comes from: the user's file and line, and the named scopes around it.

In: the running frames. Out: an `Origin`, one object per call site and scope, which rides beside a
node and never enters its identity. Only the code object and instruction offset are taken while
building; the line is computed on demand. A node that several lines made keeps the
first few of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator, contextmanager
from itertools import islice
from sys import _getframe
from types import CodeType, FrameType

from ..errors import IS_OURS, PACKAGE, is_ours
from .extension import compiled, give

MAX_ORIGINS = 8  # origins kept beside one node
_MOST_SITES = 100_000

_sites: dict[tuple[object, ...], Origin] = {}
# What users call to index: anything else of ours between them and here indexes tensors of its own.
_SURFACE = frozenset([
    PACKAGE + name.replace("/", os.sep) for name in (
        "core/origin.py", "tensor/__init__.py", "tensor/methods.py", "tensor/torch_aliases.py",
        "functional/array/numpy_indexing.py", "functional/array/assignment.py",
        "functional/array/indexing.py", "functional/array/scatter.py",
    )
])  # fmt: skip


class _State(threading.local):
    scopes: tuple[str, ...] = ()
    here: Origin | None = None  # what `capture` answers while one line does all


_state = _State()
_enabled = True


@compiled
def surround(scopes: tuple[str, ...], here: Origin | None) -> None:
    """Say what surrounds the line that runs in this thread."""
    _state.scopes, _state.here = scopes, here


@compiled
def enable_origins(enabled: bool) -> bool:
    """Switch `capture` on or off; was it on?"""
    global _enabled
    before, _enabled = _enabled, enabled
    return before


class Origin:
    """One call site in the user's code, within named scopes, and the axes that it indexes."""

    __slots__ = ("axes", "code", "instruction", "scopes")
    text = ""  # what stands there, where the file is none that can be read line by line

    def __init__(
        self, code: CodeType, instruction: int, scopes: tuple[str, ...], axes: tuple[int, ...] = ()
    ) -> None:
        self.code, self.instruction, self.scopes, self.axes = code, instruction, scopes, axes

    @property
    def file(self) -> str:
        """The user's source file."""
        return self.code.co_filename

    @property
    def line(self) -> int:
        """The line in that file."""
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno

    def __repr__(self) -> str:
        scope = "/".join(self.scopes)
        return self.at(self.file) + (f" in {scope}" if scope else "")

    def at(self, file: str) -> str:
        """The place in a file of this name."""
        return f"{file}:{self.line}" + (f" ({self.text})" if self.text else "")


class NamedLine(Origin):
    """A line that somebody else names: of a graph that another library traced, or a model's node.

    A file that is no text says what stands there.
    """

    __slots__ = ("named_file", "named_line", "text")

    def __init__(self, file: str, line: int, scopes: tuple[str, ...] = (), text: str = "") -> None:
        super().__init__(_NOWHERE, 0, scopes)
        self.named_file, self.named_line, self.text = file, line, text

    @property
    def file(self) -> str:
        """The user's source file."""
        return self.named_file

    @property
    def line(self) -> int:
        """The line in that file."""
        return self.named_line


_NOWHERE = (lambda: None).__code__


def places(origins: Iterable[Origin]) -> str | None:
    """The user's lines of a node as an error shows them; None when none is known."""
    return " or ".join(dict.fromkeys(map(str, origins))) or None


def axes_at(origins: Iterable[Origin]) -> tuple[int, ...]:
    """The axes that all of a node's lines index, as they count them; none where they differ."""
    found = {origin.axes for origin in origins}
    return found.pop() if len(found) == 1 else ()


@compiled
def capture() -> Origin | None:
    """The origin of the innermost user frame, or None when capture is off."""
    if not _enabled:
        return None
    if _state.here is not None:
        return _state.here
    frame: FrameType | None = _getframe(1)
    while True:
        if frame is None:
            return None
        code = frame.f_code
        ours = IS_OURS.get(code.co_filename)
        if not (is_ours(code.co_filename) if ours is None else ours):
            break
        frame = frame.f_back
    return site(code, frame.f_lasti, _state.scopes)


def site(code: CodeType, instruction: int, scopes: tuple[str, ...]) -> Origin:
    """The one origin of a place in a code object.

    Instructions of one place are one: CPython 3.11 runs a call of C by another one when it is warm.
    """
    key = (id(code), instruction, scopes)
    found = _sites.get(key)
    if found is None:
        if len(_sites) >= _MOST_SITES:
            _sites.clear()
        place = next(islice(code.co_positions(), instruction // 2, None), None)
        found = _sites.setdefault((id(code), place, scopes), Origin(code, instruction, scopes))
        _sites[key] = found
    return found


def is_our_code(code: CodeType) -> bool:
    """True if a code object is a part of this package."""
    return is_ours(code.co_filename)


give(site=site, is_our_code=is_our_code)


class Within(ContextDecorator):
    """A block within one more name, or at another line; every call of a module is one."""

    def __init__(self, names: tuple[str, ...], *line: Origin | None) -> None:
        self._names, self._line = names, line

    def _recreate_cm(self) -> Within:
        return Within(self._names, *self._line)

    def __enter__(self) -> None:
        scopes, here = self._before = _state.scopes, _state.here
        _state.scopes, (_state.here,) = (*scopes, *self._names), self._line or (here,)
        surround(_state.scopes, _state.here)

    def __exit__(self, *_: object) -> None:
        _state.scopes, _state.here = self._before
        surround(*self._before)


def scope(name: str) -> Within:
    """Name what is built inside: `with scope("encoder"): ...` shows in origins and explain."""
    return Within((name,))


def one_line() -> Within:
    """What is built inside comes from the user's line that is running now: found once for all."""
    return at_line(capture())


def at_line(origin: Origin | None) -> Within:
    """What is built inside comes from this line."""
    return Within((), origin)


@contextmanager
def indexing(*axes: int) -> Iterator[None]:
    """What is built inside indexes these axes of the user's own tensor: errors name them."""
    frame: FrameType | None = _getframe(1)
    while frame is not None and (
        frame.f_code.co_filename in _SURFACE or frame.f_globals.get("__name__") == "contextlib"
    ):
        frame = frame.f_back
    here = None if frame is None or is_ours(frame.f_code.co_filename) else capture()
    if here is None:
        yield
        return
    key = (id(here.code), here.instruction, here.scopes, axes)
    found = _sites.get(key) or Origin(here.code, here.instruction, here.scopes, axes)
    with at_line(_sites.setdefault(key, found)):
        yield


@contextmanager
def origins(enabled: bool) -> Iterator[None]:
    """Switch the capture of origins on or off for all threads while the block runs."""
    before = enable_origins(enabled)
    try:
        yield
    finally:
        enable_origins(before)
