"""Constants, sizes and ramps: operators whose result is known before anything runs.

In: a `Call`. Out: values that are known on the host where that is possible, so that the shapes
which exporters compute from them are plain numbers (or variable sizes) when a graph is built.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ...core import shape as sizes
from ...tensor import Tensor
from .. import types as t
from ..errors import ModelError
from ..table import Call, operator
from ..types import kind_of_dtype
from ..values import Value, sizes_array
from ..weights import dense


@operator("Constant")
def constant(op: Call) -> Value:
    """A stored tensor, or numbers."""
    stored = op.array("value")
    if stored is not None:
        return Value(None, stored[1], stored[0], constant=True)
    if op.given("sparse_value"):
        attribute = op.attribute("sparse_value")
        assert attribute is not None
        if attribute.sparse_tensor is not None:
            array, kind = dense(attribute.sparse_tensor, op.build.program.files)
            return Value(None, kind, array, constant=True)
    number: Any
    for name, read, numpy in (
        ("value_float", op.float, np.float32), ("value_int", op.int, np.int64),
        ("value_floats", op.floats_of, np.float32), ("value_ints", op.ints_of, np.int64),
    ):  # fmt: skip
        if op.given(name):
            number = read(name)
            return Value(None, None, np.array(number, numpy), constant=True)
    for name in ("value_string", "value_strings"):
        if op.given(name):
            text = op.text(name) if name == "value_string" else op.texts_of(name)
            return Value(None, t.STRING, np.array(text, object), constant=True)
    raise ModelError("it has no value", "the model is not valid ONNX")


@operator("Shape")
def shape(op: Call) -> Value:
    """The sizes of a tensor, or some of them."""
    found = op.value(0).shape
    end = op.int("end", None)
    return Value(None, t.INT64, sizes_array(found[op.int("start", 0) : end]))


@operator("Size")
def size(op: Call) -> Value:
    """The number of elements."""
    found = sizes.prod(op.value(0).shape)
    return Value(None, t.INT64, sizes_array([found]).reshape(()))


@operator("ConstantOfShape")
def constant_of_shape(op: Call) -> Tensor | Value:
    """One number everywhere."""
    wanted = op.sizes(0)
    stored = op.array("value")
    array, kind = stored if stored is not None else (np.zeros(1, np.float32), t.FLOAT)
    if array.size != 1:
        raise ModelError(f"its value has {array.size} elements", "it is one number")
    number = array.reshape(())[()]
    if kind is t.STRING:
        return Value(None, kind, np.full(wanted, number, object))
    made = Value(fg.full(tuple(wanted), fg.Tensor(number.item(), dtype=kind.carrier)), kind)
    fixed = all(isinstance(n, int) for n in wanted)
    if fixed and 0 <= int(np.prod(wanted, dtype=float)) <= 1024:
        small = np.full(wanted, number)
        made.fold(lambda: small, op.value(0).sources)
    return made


@operator("Range")
def range_(op: Call) -> Tensor:
    """A ramp."""
    kind = op.kind(0)
    start, limit, step = (op.host(i).reshape(-1)[0] for i in range(3))
    if kind.carrier is None:
        raise op.unsupported("strings")
    if not isinstance(limit, np.generic) or not isinstance(start, np.generic):
        if step == 1 and isinstance(start, np.generic):  # a variable size
            return fg.arange(int(start), limit, dtype=kind.carrier)
        raise op.unsupported("variable sizes and steps")
    count = max(int(np.ceil((float(limit) - float(start)) / float(step))), 0)
    if count > 1 << 31:
        raise ModelError(f"a ramp of {count} elements", "is the model damaged?")
    if kind.carrier.is_integer:
        whole = range(int(start), int(start) + count * int(step), int(step))
        first, last = whole.start, whole.stop
        return fg.arange(first, last, int(step), dtype=kind.carrier)
    ramp = fg.arange(count, dtype=fg.float64) * float(step) + float(start)
    return fg.astype(ramp, kind.carrier)


@operator("EyeLike")
def eye_like(op: Call) -> Tensor:
    """Ones on a diagonal."""
    rows, columns = op.value(0).shape
    kind = op.kind_attr("dtype", op.kind(0))
    return fg.eye(rows, columns, op.int("k", 0), dtype=kind.carrier)


@operator("OneHot")
def one_hot(op: Call) -> Tensor:
    """One value where an index points, another elsewhere."""
    index, depth, values = op[0], int(op.number(1)), op[2]
    axis = op.int("axis", -1)
    axis += index.ndim + 1 if axis < 0 else 0
    if not index.dtype.is_integer:
        index = index.astype(fg.int64)
    place = fg.expand_dims(fg.where(index < 0, index + depth, index), axis)
    line = [1] * (index.ndim + 1)
    line[axis] = depth
    on = fg.reshape(fg.arange(depth, dtype=index.dtype), line) == place
    return fg.where(on, values[1], values[0])


@operator("Dropout")
def dropout(op: Call) -> Any:
    """Nothing is dropped unless training is asked for, which needs a mask."""
    x = op[0]
    training = bool(op.number(2)) if op.version >= 12 and op.has(2) else False
    ratio = float(op.number(1)) if op.version >= 12 and op.has(1) else op.float("ratio", 0.5)
    if not training or ratio == 0:
        mask = fg.ones(x.shape, fg.bool)
        if op.version < 10:
            mask = mask.astype(x.dtype)
        return Value(x, kind_of_dtype(x.dtype)), mask
    drawn = op.build.uniform(x.shape, op.int("seed", None) if op.given("seed") else None)
    mask = drawn >= ratio
    return fg.where(mask, x / (1 - ratio), 0), mask
