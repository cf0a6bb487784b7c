"""Writes that nobody sees: `x[0][1] = 5` sets an element of a slice that is dropped at once.

In: how many references a tensor has while `__setitem__` runs. Out: a warning at the user's line. A
slice is a value and not a window, so what is written into one that nothing holds is lost; torch and
NumPy would write through. How many references a temporary has is CPython's business: it is found
once, by writing into one; where a variable has as many, nothing can be told and nobody is warned.
"""

from __future__ import annotations

import warnings
from opcode import opmap
from sys import getrefcount

from ..errors import LostWriteWarning, user_frame


class _Probe:
    seen = 0

    def __setitem__(self, key: object, value: object) -> None:
        _Probe.seen = getrefcount(self)


def _references() -> int:
    """How many references `__setitem__` sees on what nothing else holds; -1 if it cannot tell."""
    _Probe()[0] = 0
    lost = _Probe.seen
    kept = _Probe()
    kept[0] = 0
    return lost if lost < _Probe.seen else -1


LOST = _references()
_WRITES = {opmap.get("STORE_SUBSCR"), opmap.get("STORE_SLICE")}


def warn_of_lost_write() -> None:
    """Say at the user's line that a write goes to a temporary, if that line writes with [...]."""
    frame = user_frame()
    if frame is not None and frame.f_code.co_code[frame.f_lasti] in _WRITES:
        warnings.warn_explicit(
            "this writes to a temporary, and the value is lost: x[0] is a value of its own, not a "
            "window on x. Write with one index, x[0, 1] = 5 and not x[0][1] = 5; or name the part, "
            "y = x[0], and keep it",
            LostWriteWarning, frame.f_code.co_filename, frame.f_lineno,
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )  # fmt: skip
