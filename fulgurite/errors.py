"""Every error a user can meet: what went wrong, where in their code, and what to do.

In: a sentence and a next step. Out: one exception whose text holds both and the user's own file
and line, found by walking out of this package's frames. Each class also derives from the built-in
exception that NumPy users would catch (`ValueError`, `TypeError`, ...), so nobody must learn new
names to handle an error.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

import numpy as np

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
GENERATED = "<fulgurite "  # how the names of files begin that are made at run time
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
_BETWEEN = (os.sep + "contextlib.py", os.sep + "functools.py")
IS_OURS: dict[str, bool] = {}  # file name -> is it part of this package?


def is_ours(file: str) -> bool:
    """True if it is a file of this package."""
    found = IS_OURS.get(file)
    if found is None:
        name = os.path.abspath(file)
        if file.startswith(GENERATED):
            name = PACKAGE
        # NumPy, and helpers of the standard library, that call us back are between the user and us
        found = name.startswith((PACKAGE, _NUMPY)) or name.endswith(_BETWEEN)
        IS_OURS[file] = found
    return found


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame that is not ours: the line the user wrote."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(depth: int = 1) -> str:
    """The user's `file:line`, or nothing when the call did not come from user code."""
    frame = user_frame(depth + 1)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class FulguriteError(Exception):
    """Root of all errors: `what` happened, `where` in the user's code, and a `hint`."""

    def __init__(self, what: str, hint: str = "", where: str | None = None) -> None:
        self.what, self.hint = what, hint
        self.where = user_line(2) if where is None else where
        lines = [what]
        if self.where:
            lines.append(f"  at {self.where}")
        if hint:
            lines.append(f"  try: {hint}")
        super().__init__("\n".join(lines))


class ShapeError(FulguriteError, ValueError):
    """Sizes that do not fit together."""


class DTypeError(FulguriteError, TypeError):
    """An element type that does not exist or does not fit."""


class ConstantError(FulguriteError, OverflowError):
    """A number that its element type cannot hold."""


class DataError(FulguriteError, TypeError):
    """An object that is not numeric data."""


class AxisError(FulguriteError, IndexError, ValueError):
    """An axis that the tensor does not have."""


class BoundsError(FulguriteError, IndexError):
    """An index outside the tensor."""


class ArgumentError(FulguriteError, ValueError):
    """An argument that makes no sense here."""


class NonFiniteError(FulguriteError, ArithmeticError):
    """A NaN or an infinity that was computed, where `check_nan` looks for them."""


class GradientError(FulguriteError, ValueError):
    """A gradient that does not exist."""


class VariableError(FulguriteError, ValueError):
    """A variable that is unbound, out of bounds, or bound twice."""


class JitError(FulguriteError, RuntimeError):
    """Something that a captured function cannot do."""


class VerifyError(FulguriteError, AssertionError):
    """A graph that breaks the grammar of its level."""


class RewriteError(FulguriteError, RuntimeError):
    """Rewriting that does not end."""


class ParseError(FulguriteError, ValueError):
    """Text that is not a graph."""


class CompilerError(FulguriteError, RuntimeError):
    """Native code that LLVM refuses to make."""

    kernel: object = None  # whose code it is, if that is known


class DistributedError(FulguriteError, RuntimeError):
    """Processes that do not run the same program, or cannot reach each other."""


class JitWarning(RuntimeWarning):
    """A function that is captured again and again: results are right, but it is slow."""


class LostWriteWarning(UserWarning):
    """A write into a temporary: nobody will see it."""


class CacheWarning(RuntimeWarning):
    """Trouble with the disk cache: results are right, but something is compiled again."""
