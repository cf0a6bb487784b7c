"""ONNX models as functions of tensors.

`fulgurite.onnx.load(path or bytes)` gives a `Model`: call it with named inputs, get named outputs.
The file is read by a bounded reader of our own and memory-mapped; weights are made when they are
used. `python -m fulgurite.onnx.conformance` runs the node tests of the installed `onnx` package.
"""

from .._hints import surface as _surface
from .errors import ModelError, UnsupportedError
from .model import Model, load
from .ports import Port
from .runs import Outputs

__all__ = ["Model", "ModelError", "Outputs", "Port", "UnsupportedError", "load"]

__getattr__, __dir__ = _surface(__name__)
