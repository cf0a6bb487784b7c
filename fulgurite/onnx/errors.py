"""What can be wrong with a model: its file, or an operator in it.

In: a sentence and a next step, as for every error of the package. Out: `ModelError` for a file
that is damaged, hostile or not ONNX at all; `UnsupportedError` for a sound model with something
that is not built. Both say where in the model: the byte, or the node and its operator.
"""

from __future__ import annotations

from ..errors import FulguriteError


class ModelError(FulguriteError, ValueError):
    """A file that is no sound ONNX model."""


class UnsupportedError(FulguriteError, NotImplementedError):
    """An operator, a version or a type that is not built."""


class NeedsValueError(FulguriteError, RuntimeError):
    """A number is needed while only its shape is known: inside the body of a compiled loop."""
