"""The messages of an ONNX file as plain objects.

In: the bytes of a file. Out: a `Model` of messages; tensor data stays in the mapped
file until a weight is asked for. The table at the end says which field number means what; fields
that are not in it are skipped, as the format wants. Reading checks form only: what an operator
makes of its attributes is decided when a graph is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, dataclass_transform

from .errors import ModelError
from .wire import Field, Reader, View

TENSOR, GRAPH = 4, 5  # kinds of attributes that need care


@dataclass_transform(kw_only_default=True)
class Message:
    """Named fields, each with what it is where a file says nothing: only what is said is stored.

    To make a dataclass of every message would take longer than to read most models.
    """

    def __init__(self, **said: Any) -> None:
        self.__dict__.update(said)


class Entry(Message):
    """A key and a value."""

    key: str = ""
    value: str = ""


class TensorData(Message):
    """A tensor as it is stored: in one of the typed lists, raw, or in another file."""

    dims: Sequence[int] = ()
    data_type: int = 0
    float_data: Sequence[float] = ()
    int32_data: Sequence[int] = ()
    string_data: Sequence[View] = ()
    int64_data: Sequence[int] = ()
    name: str = ""
    raw_data: View | None = None
    double_data: Sequence[float] = ()
    uint64_data: Sequence[int] = ()
    external_data: Sequence[Entry] = ()
    data_location: int = 0
    segment: Any = None


class SparseData(Message):
    """A tensor of zeros but for some values, and where these are."""

    values: TensorData | None = None
    indices: TensorData | None = None
    dims: Sequence[int] = ()


class Attribute(Message):
    """A named constant of a node."""

    name: str = ""
    f: float = 0.0
    i: int = 0
    s: View | None = None
    t: TensorData | None = None
    g: Graph | None = None
    tp: Type | None = None
    sparse_tensor: SparseData | None = None
    floats: Sequence[float] = ()
    ints: Sequence[int] = ()
    strings: Sequence[View] = ()
    tensors: Sequence[TensorData] = ()
    graphs: Sequence[Graph] = ()
    type_protos: Sequence[Type] = ()
    type: int = 0
    ref_attr_name: str = ""


class Node(Message):
    """One use of an operator."""

    input: Sequence[str] = ()
    output: Sequence[str] = ()
    name: str = ""
    op_type: str = ""
    attribute: Sequence[Attribute] = ()
    domain: str = ""
    overload: str = ""


class Dimension(Message):
    """A size: a number, a name, or neither."""

    dim_value: int | None = None
    dim_param: str = ""


class Shape(Message):
    """The sizes of a tensor."""

    dim: Sequence[Dimension] = ()


class TensorType(Message):
    """An element type and perhaps a shape."""

    elem_type: int = 0
    shape: Shape | None = None


class Nested(Message):
    """The type of the elements of a sequence or an optional."""

    elem_type: Type | None = None


class Type(Message):
    """What a value is."""

    tensor_type: TensorType | None = None
    sequence_type: Nested | None = None
    optional_type: Nested | None = None
    map_type: Any = None
    sparse_tensor_type: Any = None
    opaque_type: Any = None


class ValueInfo(Message):
    """The name and type of an input or output."""

    name: str = ""
    type: Type | None = None


class Graph(Message):
    """Nodes in order, with the weights they read."""

    node: Sequence[Node] = ()
    name: str = ""
    initializer: Sequence[TensorData] = ()
    sparse_initializer: Sequence[SparseData] = ()
    input: Sequence[ValueInfo] = ()
    output: Sequence[ValueInfo] = ()


class OperatorSet(Message):
    """Which version of a domain's operators is meant."""

    domain: str = ""
    version: int = 0


class Function(Message):
    """An operator given by nodes."""

    name: str = ""
    input: Sequence[str] = ()
    output: Sequence[str] = ()
    attribute: Sequence[str] = ()
    attribute_proto: Sequence[Attribute] = ()
    node: Sequence[Node] = ()
    opset_import: Sequence[OperatorSet] = ()
    domain: str = ""
    overload: str = ""


class Model(Message):
    """A whole file."""

    ir_version: int = 0
    opset_import: Sequence[OperatorSet] = ()
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    graph: Graph | None = None
    metadata_props: Sequence[Entry] = ()
    functions: Sequence[Function] = ()


class SequenceData(Message):
    """A stored sequence (test data)."""

    elem_type: int = 0
    tensor_values: Sequence[TensorData] = ()


def model_in(data: View) -> Model:
    """The model in some bytes."""
    model: Model = parse(data, "Model")
    if model.graph is None:
        raise ModelError("the file has no graph", "give an ONNX model; is this another format?")
    return model


def parse(data: View, message: str) -> Any:
    """One message out of bytes."""
    return Reader(data, MESSAGES).message(message, 0, len(data))


def _table(*rows: str) -> dict[int, Field]:
    """Fields from rows such as "8 ints int*" and "1 node Node*"."""
    found = {}
    for row in rows:
        number, name, kind = row.split()
        many, kind = kind.endswith("*"), kind.rstrip("*")
        message = kind if kind[0].isupper() else ""
        found[int(number)] = Field(name, "message" if message else kind, many, message)
    return found


MESSAGES = {
    "Entry": (Entry, _table("1 key text", "2 value text")),
    "OperatorSet": (OperatorSet, _table("1 domain text", "2 version int")),
    "Tensor": (TensorData, _table(
        "1 dims int*", "2 data_type int", "3 segment bytes", "4 float_data float*",
        "5 int32_data int*", "6 string_data bytes*", "7 int64_data int*", "8 name text",
        "9 raw_data bytes", "10 double_data double*", "11 uint64_data uint*",
        "13 external_data Entry*", "14 data_location int",
    )),
    "Sparse": (SparseData, _table("1 values Tensor", "2 indices Tensor", "3 dims int*")),
    "Attribute": (Attribute, _table(
        "1 name text", "2 f float", "3 i int", "4 s bytes", "5 t Tensor", "6 g Graph",
        "7 floats float*", "8 ints int*", "9 strings bytes*", "10 tensors Tensor*",
        "11 graphs Graph*", "14 tp Type", "15 type_protos Type*", "20 type int",
        "21 ref_attr_name text", "22 sparse_tensor Sparse",
    )),
    "Node": (Node, _table(
        "1 input text*", "2 output text*", "3 name text", "4 op_type text",
        "5 attribute Attribute*", "7 domain text", "8 overload text",
    )),
    "Dimension": (Dimension, _table("1 dim_value int", "2 dim_param text")),
    "Shape": (Shape, _table("1 dim Dimension*")),
    "TensorType": (TensorType, _table("1 elem_type int", "2 shape Shape")),
    "Nested": (Nested, _table("1 elem_type Type")),
    "Type": (Type, _table(
        "1 tensor_type TensorType", "4 sequence_type Nested", "5 map_type bytes",
        "7 opaque_type bytes", "8 sparse_tensor_type bytes", "9 optional_type Nested",
    )),
    "ValueInfo": (ValueInfo, _table("1 name text", "2 type Type")),
    "Graph": (Graph, _table(
        "1 node Node*", "2 name text", "5 initializer Tensor*", "11 input ValueInfo*",
        "12 output ValueInfo*", "15 sparse_initializer Sparse*",
    )),
    "Function": (Function, _table(
        "1 name text", "4 input text*", "5 output text*", "6 attribute text*", "7 node Node*",
        "9 opset_import OperatorSet*", "10 domain text", "11 attribute_proto Attribute*",
        "13 overload text",
    )),
    "Model": (Model, _table(
        "1 ir_version int", "2 producer_name text", "3 producer_version text", "4 domain text",
        "5 model_version int", "7 graph Graph", "8 opset_import OperatorSet*",
        "14 metadata_props Entry*", "25 functions Function*",
    )),
    "Sequence": (SequenceData, _table("2 elem_type int", "3 tensor_values Tensor*")),
}  # fmt: skip
