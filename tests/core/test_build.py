"""Tests of fulgurite/core/build.py: promotion, broadcasting, and one clear error for bad input."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core import build
from fulgurite.core.dtype import DType, bool_, float16, float32, float64, int8, int32, int64, uint8
from fulgurite.core.node import Node, constant, toposort
from fulgurite.core.op import source_device, source_watched
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import WATCH
from fulgurite.core.ops.elementwise import ADD, AND, DIV, EXP, LT, MUL, NEG, OR, SUB
from fulgurite.core.ops.leaf import CONST
from fulgurite.core.verify import verify
from fulgurite.errors import (
    ArgumentError,
    AxisError,
    ConstantError,
    DataError,
    DTypeError,
    FulguriteError,
    ShapeError,
    VariableError,
)


def x(shape: tuple[int, ...] = (4, 3), dtype: object = float32) -> Node:
    return build.buffer(shape, dtype)


# --- what fits -----------------------------------------------------------------------------------


def test_dtypes_promote_and_shapes_broadcast() -> None:
    top = build.apply(ADD, x((4, 1), float16), x((3,), float32))
    assert top.dtype is float32
    assert top.shape == (4, 3)


def test_a_python_number_takes_the_dtype_and_shape_of_its_neighbour() -> None:
    a = x(dtype=float16)
    top = build.apply(MUL, a, 2)
    assert top.dtype is float16
    assert top.src == (a, constant(2, float16, (4, 3)))


def test_a_python_float_lifts_integers_to_the_default_float() -> None:
    assert build.apply(ADD, x(dtype=int64), 0.5).dtype is float32


def test_functions_of_floats_take_integers_as_the_default_float() -> None:
    assert build.apply(EXP, x(dtype=int32)).dtype is float32
    assert build.apply(DIV, x(dtype=int8), x(dtype=int8)).dtype is float32
    assert build.apply(EXP, x(dtype=float64)).dtype is float64


def test_of_truths_plus_is_or_and_times_is_and() -> None:
    a, b = x(dtype=bool_), x(dtype=bool_)
    assert build.apply(ADD, a, b) is OR(a, b)
    assert build.apply(MUL, a, b) is AND(a, b)


def test_comparisons_give_bool() -> None:
    assert build.apply(LT, x(), 1).dtype is bool_


def test_a_numpy_scalar_is_strong() -> None:
    assert build.apply(ADD, x(), np.float64(2.0)).dtype is float64


def test_where_promotes_its_branches_only() -> None:
    top = build.where(x(dtype=bool_), x((3,), int32), 0.5)
    assert top.dtype is float32 and top.shape == (4, 3)


def test_constants_stretch_and_reshape_without_extra_nodes() -> None:
    two = build.const(2.0)
    assert build.expand(two, (4, 3)).op is CONST
    assert build.reshape(build.expand(two, (4, 3)), (12,)).op is CONST


def test_reshape_works_out_one_open_size() -> None:
    assert build.reshape(x((4, 6)), (3, -1)).shape == (3, 8)
    assert build.reshape(x(()), (-1,)).shape == (1,)
    n, m = [build.variable(name, 1, 9) for name in "nm"]
    top = build.pad(build.shrink(x((9, 9)), [(0, n), (0, m)]), [(0, 0), (1, 2)])
    assert build.reshape(top, (-1, top.shape[1])).shape[0] is top.shape[0]


def test_symbolic_sizes_flow_through_shapes() -> None:
    n = build.variable("n", 1, 8)
    top = build.expand(x((1, 3)), (n, 3))
    flat = build.reshape(top, (-1,))
    assert flat.shape[0] is build.reshape(top, (n * 3,)).shape[0]
    assert build.apply(ADD, top, 1.0).shape == (n, 3)


def test_folding_all_axes_gives_no_dimensions() -> None:
    assert build.fold("add", x()).shape == ()
    assert build.fold("max", x(), -1, keepdims=True).shape == (4, 1)


def test_an_empty_sum_and_product_exist() -> None:
    assert build.fold("add", x((0, 3)), 0).shape == (3,)


# --- what does not: each is one clear exception with the user's line -----------------------------

n = build.variable("n", 1, 8)
BAD: list[tuple[str, type[FulguriteError], str, Callable[[], object]]] = [
    ("shapes that do not broadcast", ShapeError, r"\(4, 3\) and \(4,\)", lambda: build.apply(ADD, x(), x((4,)))),
    ("an unknown dtype name", DTypeError, "float31", lambda: build.cast(x(), "float31")),
    ("an unknown dtype object", DTypeError, "element type", lambda: build.cast(x(), object())),
    ("a dtype of None", DTypeError, "element type", lambda: build.cast(x(), None)),
    ("a structured NumPy dtype", DTypeError, "element type", lambda: build.cast(x(), "i4,f4")),
    ("a constant too large for int8", ConstantError, "1000 does not fit int8", lambda: build.apply(ADD, x(dtype=int8), 1000)),
    ("a negative number as uint8", ConstantError, "-1 does not fit uint8", lambda: build.const(-1, uint8)),
    ("a fraction as an integer", ConstantError, "not whole", lambda: build.const(1.5, int32)),
    ("NaN as an integer", ConstantError, "nan", lambda: build.const(math.nan, int32)),
    ("a complex number as a float", ConstantError, "complex", lambda: build.const(1j, float32)),
    ("an infinite size", ShapeError, "inf is not a size", lambda: build.reshape(x(), (math.inf,))),
    ("a NaN size", ShapeError, "nan is not a size", lambda: build.reshape(x(), (math.nan, 2))),
    ("a negative size", ShapeError, "-4", lambda: build.reshape(x(), (-4, -3))),
    ("a huge size", ShapeError, "is not a size", lambda: build.const(1, int32, (2**63,))),
    ("a float size node", ShapeError, "whole number", lambda: build.expand(x((1,)), (build.const(2.0),))),
    ("a string size", ShapeError, "'3'", lambda: build.const(1, int32, ("3",))),
    ("a Python object as data", DataError, "object is not numeric", lambda: build.apply(ADD, x(), object())),  # type: ignore[arg-type]
    ("a string as data", DataError, "str is not numeric", lambda: build.apply(ADD, x(), "2")),  # type: ignore[arg-type]
    ("None as data", DataError, "NoneType is not numeric", lambda: build.apply(ADD, x(), None)),  # type: ignore[arg-type]
    ("a list as data", DataError, "list is not numeric", lambda: build.apply(ADD, x(), [1])),  # type: ignore[arg-type]
    ("reshaping to another count", ShapeError, "12 elements", lambda: build.reshape(x(), (5, 2))),
    ("two open sizes", ShapeError, "twice", lambda: build.reshape(x(), (-1, -1))),
    ("an open size beside 0", ShapeError, "worked out", lambda: build.reshape(x((0,)), (0, -1))),
    ("an open size that does not divide", ShapeError, "-1", lambda: build.reshape(x(), (-1, 5))),
    ("expanding a size that is not 1", ShapeError, "does not expand", lambda: build.expand(x(), (8, 3))),
    ("expanding to fewer dimensions", ShapeError, "does not expand", lambda: build.expand(x(), (3,))),
    ("an axis too large", AxisError, "no axis 2", lambda: build.fold("add", x(), 2)),
    ("an axis too small", AxisError, "no axis -3", lambda: build.fold("add", x(), -3)),
    ("an axis of a scalar", AxisError, "0 dimensions", lambda: build.fold("add", x(()), 1)),
    ("the axis of a scalar", AxisError, "0-d", lambda: build.flip(x(()), 0)),
    ("an axis named twice", AxisError, "twice", lambda: build.fold("add", x(), (0, -2))),
    ("a fractional axis", AxisError, "not an axis", lambda: build.fold("add", x(), 0.5)),  # type: ignore[arg-type]
    ("an incomplete order", AxisError, "no order", lambda: build.permute(x(), (0, 0))),
    ("too few paddings", ShapeError, "1 paddings", lambda: build.pad(x(), [(0, 0)])),
    ("negative padding", ShapeError, "-1", lambda: build.pad(x(), [(-1, 0), (0, 0)])),
    ("a cut outside", ShapeError, "not inside", lambda: build.shrink(x(), [(0, 5), (0, 3)])),
    ("a cut backwards", ShapeError, "not inside", lambda: build.shrink(x(), [(3, 2), (0, 3)])),
    ("a cut that a variable may push outside", ShapeError, "not inside", lambda: build.shrink(x(), [(0, n), (0, 3)])),
    ("a window larger than its axis", ShapeError, "does not fit", lambda: build.window(x(), 1, 4)),
    ("a stride of 0", ArgumentError, "stride", lambda: build.window(x(), 1, 2, stride=0)),
    ("subtracting truths", DTypeError, "sub does not take bool", lambda: build.apply(SUB, x(dtype=bool_), x(dtype=bool_))),
    ("negating truths", DTypeError, "neg does not take bool", lambda: build.apply(NEG, x(dtype=bool_))),
    ("bits of floats", DTypeError, "and does not take float32", lambda: build.apply(AND, x(), x())),
    ("ordering complex numbers", DTypeError, "lt does not take complex64", lambda: build.apply(LT, x(dtype="complex64"), 1)),
    ("mixing float8 types", DTypeError, "no common dtype", lambda: build.apply(ADD, x(dtype="float8_e5m2"), x(dtype="float8_e4m3fn"))),
    ("bits of another width", DTypeError, "equal width", lambda: build.bitcast(x(), int64)),
    ("an unknown reduction", ArgumentError, "median", lambda: build.fold("median", x())),
    ("the maximum of nothing", ShapeError, "no elements", lambda: build.fold("max", x((0,)))),
    ("a float index", DTypeError, "whole number", lambda: build.gather(x(), x(), 0)),
    ("an index of another shape", ShapeError, "cannot be indexed", lambda: build.gather(x(), x((4, 2), int32), 0)),
    ("an unknown scatter", ArgumentError, "xor", lambda: build.scatter("xor", x(), x(dtype=int32), 1, 0)),
    ("assigning to an expression", DataError, "not memory", lambda: build.assign(build.apply(ADD, x(), 1), x())),
    ("a variable with no values", VariableError, "no values", lambda: build.variable("m", 3, 2)),
    ("a variable with a bad name", VariableError, "cannot name", lambda: build.variable("a b", 0, 2)),
    ("a value out of bounds", VariableError, "not in 1..8", lambda: build.bind(n, 9)),
    ("binding what is no variable", VariableError, "not a variable", lambda: build.bind(x(), 1)),
    ("memory of unknown size", ShapeError, "fixed sizes", lambda: build.buffer((n,), float32)),
    ("tensors on two devices", DataError, "different devices", lambda: build.same_device([x(), build.buffer((1,), int8, "cpu")])),
]  # fmt: skip


@pytest.mark.parametrize(("error", "says", "bad"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_one_clear_error_at_the_users_line(
    error: type[FulguriteError], says: str, bad: Callable[[], object]
) -> None:
    with pytest.raises(error, match=says) as caught:
        bad()
    assert type(caught.value) is error
    assert caught.value.where.startswith(__file__)
    assert caught.value.hint


# --- facts that are filled in at once ------------------------------------------------------------


def test_elementwise_and_movement_ops_have_the_usual_rules_for_device_and_gradient_scopes() -> None:
    for op in OPS.values():
        if op.family in ("elementwise", "movement") or op is CONST:
            assert op.device is source_device and op.watched is source_watched, op


@given(
    shapes=st.lists(st.sampled_from([(), (1,), (3,), (4, 1), (1, 3), (4, 3)]), min_size=2),
    kinds=st.lists(st.sampled_from([float32, int32, bool_]), min_size=1),
    number=st.sampled_from([2.0, 2, True, np.float64(2.0), None]),
    watching=st.booleans(),
)
def test_what_a_node_knows_from_the_start_is_what_its_op_says(
    shapes: list[tuple[int, ...]], kinds: list[DType], number: Any, watching: bool
) -> None:
    leaves = [x(shape, kinds[i % len(kinds)]) for i, shape in enumerate(shapes)]
    if watching:
        leaves[0] = WATCH(build.cast(leaves[0], float32), arg=(1, 1))
    top = leaves[0]
    for leaf in leaves[1:]:
        top = build.apply(LT, build.apply(ADD, top, leaf), top) if number is True else top
        top = build.apply(MUL, leaf, top)
        top = top if number is None else build.apply(ADD, top, number)
        top = top if number is None else build.apply(ADD, number, top)
    root = build.apply(EXP, top)
    verify(root)
    for node in toposort([root]):
        assert node.shape == node.op.shape(node)
        assert node.device == node.op.device(node)
        assert node.watched == node.op.watched(node)
