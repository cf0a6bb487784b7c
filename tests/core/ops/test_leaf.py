"""Leaves: constants, counts, variables, buffers, views; their identity, meaning and checks."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core.dtype import DTYPES, DType, bool_, float32, float64, int8, int16, int64, uint8
from fulgurite.core.node import constant, constant_bits
from fulgurite.core.operators import OPS
from fulgurite.core.ops.leaf import (
    BIND,
    BUFFER,
    CONST,
    IOTA,
    VIEW,
    bind,
    iota,
    new_buffer,
    param,
    variable,
    view,
)
from fulgurite.core.shape import mul
from fulgurite.errors import ConstantError
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.samples import assert_same, hostile, numbers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_constant_evaluates_to_its_own_bits(dtype: DType) -> None:
    for value in hostile(dtype):
        raw = int.from_bytes(value.tobytes(), "little")
        (scalar, filled) = evaluate(
            [constant_bits(raw, dtype), constant_bits(raw, dtype, (2, 0, 3))]
        )
        assert scalar.tobytes() == value.tobytes() and scalar.shape == ()
        assert filled.shape == (2, 0, 3)


def test_a_constant_fills_its_shape() -> None:
    (value,) = evaluate([constant(2.5, float32, (2, 3))])
    assert_same(value, np.full((2, 3), 2.5, np.float32))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not bool_], ids=str)
def test_iota_counts_along_its_axis(axis: int, dtype: DType) -> None:
    node = iota((2, 3, 4), axis, dtype)
    (value,) = evaluate([node])
    expected = np.indices((2, 3, 4))[axis].astype(dtype.numpy)
    assert_same(value, expected)
    assert IOTA.check(node) is None


def test_iota_wraps_in_a_small_dtype_and_its_bounds_know() -> None:
    node = iota((300,), 0, int8)
    (value,) = evaluate([node])
    assert numbers(value)[126:130] == [126, 127, -128, -127]
    assert node.bounds == (-128, 127)
    assert iota((100,), 0, int8).bounds == (0, 99)
    assert iota((0,), 0, int8).bounds == (0, 0)


def test_a_wrong_iota_does_not_pass_the_check() -> None:
    assert "axis" in (IOTA.check(iota((2,), 1)) or "")
    assert "bool" in (IOTA.check(iota((2,), 0, bool_)) or "")
    assert "negative" in (CONST.check(constant(1, int8, (-1,))) or "")


def test_leaves_take_symbolic_sizes() -> None:
    n = variable("n", 1, 9)
    nodes = [constant(3, int16, (n, 2)), iota((2, mul(n, 2)), 1), param(0, (n,), float32)]
    array = np.array([1, 2, 3, 4], np.float32)
    filled, counted, given = evaluate(nodes, {nodes[2]: array}, {"n": 4})
    assert_same(filled, np.full((4, 2), 3, np.int16))
    assert counted.shape == (2, 8) and counted[1].tolist() == list(range(8))
    assert given is array


def test_new_buffers_are_never_equal() -> None:
    a, b = new_buffer((2,), float32), new_buffer((2,), float32)
    assert a is not b and a.op is BUFFER and a.arg[0] != b.arg[0]


def test_a_view_reads_consecutive_elements() -> None:
    buffer = new_buffer((3, 4), float64)
    array = np.arange(12.0).reshape(3, 4)
    node = view(buffer, 5, (2, 3))
    (value,) = evaluate([node], {buffer: array})
    np.testing.assert_array_equal(value, np.arange(5.0, 11.0).reshape(2, 3))
    assert VIEW.check(node) is None
    assert "not inside" in (VIEW.check(view(buffer, 7, (2, 3))) or "")
    assert "not inside" in (VIEW.check(view(buffer, -1, (2,))) or "")


@pytest.mark.parametrize("number", [-5, -1, 0, 5])
def test_a_bind_holds_any_value_within_its_bounds(number: int) -> None:
    node = bind(variable("k", -5, 5), number)
    assert BIND.check(node) is None
    (value,) = evaluate([node])
    assert value == number


def test_a_bind_outside_of_bounds_or_dtype_is_refused() -> None:
    var = variable("k", -5, 5)
    assert "-6 is not in -5..5" in (BIND.check(bind(var, -6)) or "")
    assert "6 is not in -5..5" in (BIND.check(bind(var, 6)) or "")
    assert "variable" in (BIND.check(OPS["bind"](constant(1, int64), arg=1)) or "")
    with pytest.raises(ConstantError):
        bind(variable("b", 0, 255, dtype=uint8), 256)
