"""Ops about where and when: values pass through; ranks combine; host functions are called."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from fulgurite.core.dtype import DTYPES, DType, bfloat16, float32, float64
from fulgurite.core.gradient import gradient
from fulgurite.core.node import constant
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import (
    AFTER,
    ASSIGN,
    COLLECTIVE,
    HOST_FUNCTIONS,
    HostFunction,
    copy_to,
    custom,
    register_host,
)
from fulgurite.core.ops.leaf import new_buffer, param, variable, view
from fulgurite.errors import ArgumentError, GradientError
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.samples import FLOATS, apply, assert_same, hostile, leaf, on_grid, run

PASSING = [OPS[name] for name in ("contiguous", "detach", "remat", "after", "copy", "watch")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", PASSING, ids=str)
def test_a_value_passes_through_bit_for_bit(op: Op, dtype: DType) -> None:
    x = hostile(dtype)
    rest = [x] * ((op.arity or 3) - 1)
    assert apply(op, x, *rest, arg="elsewhere" if op.name == "copy" else None).tobytes() == (
        x.tobytes())  # fmt: skip


def test_contiguous_stores_in_order_whatever_the_source() -> None:
    turned = np.arange(6.0).reshape(2, 3).T
    value = apply(OPS["contiguous"], turned)
    assert value.flags.c_contiguous and value.tolist() == turned.tolist()
    assert apply(OPS["contiguous"], np.array(1.0)).shape == ()


def test_assign_gives_the_new_value() -> None:
    target, value = np.zeros(3), np.arange(3.0)
    np.testing.assert_array_equal(apply(ASSIGN, target, value), value)


@pytest.mark.parametrize(
    ("target", "value", "part"),
    [
        (constant(1.0, float32, (2,)), constant(1.0, float32, (2,)), "only memory"),
        (new_buffer((2,), float32), constant(1.0, float32, (3,)), "assigned to"),
        (new_buffer((2,), float32), constant(1.0, float64, (2,)), "assigned to"),
    ],
    ids=["no-memory", "shape", "dtype"],
)
def test_a_wrong_assignment_does_not_pass_the_check(target: Any, value: Any, part: str) -> None:
    assert part in (ASSIGN.check(ASSIGN(target, value)) or "")
    buffer = new_buffer((4,), float32)
    assert ASSIGN.check(ASSIGN(view(buffer, 1, (2,)), constant(1.0, float32, (2,)))) is None


def test_a_copy_is_on_its_device_and_an_after_where_its_value_is() -> None:
    x = new_buffer((2,), float32, "here")
    there = copy_to(x, "there")
    assert there.device == "there" and AFTER(x, there).device == "here"


# --- ranks ---------------------------------------------------------------------------------------

RANKS = [np.arange(6.0).reshape(2, 3) + 10 * r for r in range(3)]


@pytest.mark.parametrize("how", ["add", "max", "min"])
def test_an_all_reduce_combines_the_ranks(how: str) -> None:
    numpy: Any = {"add": np.sum, "max": np.max, "min": np.min}[how]
    value = apply(COLLECTIVE, *RANKS, arg=("all_reduce", how))
    np.testing.assert_array_equal(value, numpy(RANKS, axis=0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("how", ["max", "min"])
def test_an_all_reduce_orders_the_zeros_and_lets_nan_win(how: str, dtype: DType) -> None:
    rows = list(itertools.product([0.0, -0.0], repeat=3))
    ranks = [on_grid([row[r] for row in rows], dtype) for r in range(3)]
    pick = max if how == "max" else min
    expected = [pick(row, key=lambda v: math.copysign(1, v)) for row in rows]
    assert_same(apply(COLLECTIVE, *ranks, arg=("all_reduce", how)), on_grid(expected, dtype))
    ranks[1] = on_grid([math.nan] * len(rows), dtype)
    value = apply(COLLECTIVE, *ranks, arg=("all_reduce", how)).astype(np.float64)
    assert np.isnan(value).all()


def test_an_all_reduce_of_small_floats_adds_in_float32() -> None:
    ranks = [on_grid([1.0], bfloat16), *[on_grid([2.0**-9], bfloat16)] * 64]
    value = apply(COLLECTIVE, *ranks, arg=("all_reduce", "add"))
    assert float(value[0]) == 1 + 64 * 2.0**-9


@pytest.mark.parametrize("axis", [0, 1])
def test_an_all_gather_joins_the_ranks(axis: int) -> None:
    value = apply(COLLECTIVE, *RANKS, arg=("all_gather", axis))
    np.testing.assert_array_equal(value, np.concatenate(RANKS, axis))


def test_an_all_gather_takes_symbolic_sizes() -> None:
    n = variable("n", 1, 9)
    ranks = [param(r, (n, 2), float64) for r in range(2)]
    node = COLLECTIVE(*ranks, arg=("all_gather", 0))
    arrays = [np.ones((3, 2)), np.zeros((3, 2))]
    (value,) = evaluate([node], dict(zip(ranks, arrays, strict=True)), {"n": 3})
    np.testing.assert_array_equal(value, np.concatenate(arrays))


def test_a_broadcast_gives_every_rank_the_value_of_one() -> None:
    for rank in range(3):
        value = apply(COLLECTIVE, *RANKS, arg=("broadcast", rank))
        np.testing.assert_array_equal(value, RANKS[rank])


@pytest.mark.parametrize(
    "arg", [("all_reduce", "mul"), ("all_gather", 2), ("broadcast", 3), ("scatter", 0)], ids=str
)
def test_an_unknown_collective_does_not_pass_the_check(arg: Any) -> None:
    node = COLLECTIVE(*[constant(1.0, float32, (2, 3))] * 3, arg=arg)
    assert "no collective" in (COLLECTIVE.check(node) or "")


def test_ranks_that_differ_do_not_pass_the_check() -> None:
    node = COLLECTIVE(
        constant(1.0, float32, (2,)), constant(1.0, float32, (3,)), arg=("all_reduce", "add")
    )
    assert "same shape" in (COLLECTIVE.check(node) or "")


# --- host functions ------------------------------------------------------------------------------


def _outer(a: Array, b: Array) -> Array:
    return np.outer(a, b)


def test_a_host_function_is_called_with_arrays() -> None:
    host = HostFunction("outer", _outer)
    a, b = np.arange(2.0), np.arange(3.0)
    value = run(lambda x, y: custom(host, (x, y), (2, 3), float64), a, b)
    np.testing.assert_array_equal(value, np.outer(a, b))


def test_a_host_function_takes_a_symbolic_shape() -> None:
    n = variable("n", 1, 9)
    x = param(0, (n,), float64)
    node = custom(HostFunction("outer", _outer), (x, x), (n, n), float64)
    (value,) = evaluate([node], {x: np.arange(3.0)}, {"n": 3})
    assert value.shape == (3, 3)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 2), float64), ((2, 3), float32)], ids=["shape", "dtype"]
)
def test_a_host_function_that_breaks_its_word_is_named(shape: Any, dtype: DType) -> None:
    node = custom(HostFunction("liar", _outer), (leaf(RANKS[0][0]),), shape, dtype)
    single = custom(HostFunction("liar", lambda a: np.outer(a, a)[:2]), node.src, shape, dtype)
    with pytest.raises(ArgumentError, match="'liar' returned"):
        evaluate([single], {node.src[0]: np.arange(3.0)})


def test_host_functions_are_known_by_identity() -> None:
    x = leaf(np.zeros(2))
    one, two = HostFunction("f", _outer), HostFunction("f", _outer)
    assert custom(one, (x, x), (2, 2), float64) is custom(one, (x, x), (2, 2), float64)
    assert custom(one, (x, x), (2, 2), float64) is not custom(two, (x, x), (2, 2), float64)


@pytest.mark.usefixtures("clean_hosts")
def test_a_host_function_is_registered_once_under_its_name() -> None:
    host = register_host(HostFunction("test.registered", _outer))
    assert register_host(host) is host and HOST_FUNCTIONS["test.registered"] is host
    with pytest.raises(ArgumentError, match="exists already"):
        register_host(HostFunction("test.registered", _outer))


def test_a_host_function_without_backward_refuses_to_be_differentiated() -> None:
    x = leaf(np.zeros(2))
    node = custom(HostFunction("opaque", _outer), (x, x), (2, 2), float64)
    with pytest.raises(GradientError, match="'opaque' has no gradient"):
        gradient(node, [x])


def test_a_batch_of_no_examples_calls_no_host_function() -> None:
    def fail(*_: Array) -> Array:
        raise AssertionError("called")

    y = custom(HostFunction("fail", fail), (leaf(np.zeros(2)),), (2, 5), float64)
    assert OPS["custom"].batch is not None
    empty = leaf(np.zeros((0, 2)))
    (value,) = evaluate([OPS["custom"].batch(y, (empty,))], {empty: np.zeros((0, 2))})
    assert value.shape == (0, 2, 5)
