"""The reference evaluator: one value per root, variables settled, each node once."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core.dtype import float32, float64, int32, int64
from fulgurite.core.node import Node, constant
from fulgurite.core.op import Array
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.core.ops.elementwise import CAST, EXP, LOG
from fulgurite.core.ops.leaf import bind, iota, new_buffer, param, variable
from fulgurite.core.ops.movement import expand, reshape
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.errors import VariableError
from fulgurite.runtime.host.evaluate import evaluate, settle
from tests.core.ops.samples import leaf

N = variable("n", 1, 9)


def test_roots_are_evaluated_in_order_and_shared_parts_once() -> None:
    calls: list[int] = []

    def count(a: Array) -> Array:
        calls.append(1)
        return a + 1

    x = leaf(np.zeros(2))
    shared = custom(HostFunction("count", count), (x,), (2,), float64)
    twice, itself, again = evaluate([shared * 2, shared, shared * 2], {x: np.zeros(2)})
    assert calls == [1]
    assert twice.tolist() == again.tolist() == [2, 2] and itself.tolist() == [1, 1]


def test_nothing_is_evaluated_without_roots() -> None:
    assert evaluate([]) == []


def test_a_given_array_stands_for_its_node_whatever_the_node_is() -> None:
    x = leaf(np.zeros(2))
    inner = EXP(x)
    (value,) = evaluate([inner + 1], {inner: np.array([1.0, 2.0]), x: np.zeros(2)})
    assert value.tolist() == [2, 3]


def test_a_leaf_without_an_array_is_named() -> None:
    with pytest.raises(AssertionError, match="no array was given for"):
        evaluate([leaf(np.zeros(2)) * 2])


def test_overflow_and_nan_are_values_not_warnings() -> None:
    with np.errstate(all="raise"):
        x = constant(-1.0, float32, (2,))
        (value,) = evaluate([LOG(x) + EXP(x * -1000)])
    assert np.isnan(value).all()


def test_a_long_chain_needs_no_recursion() -> None:
    x = leaf(np.zeros(1))
    node: Node = x
    for _ in range(20_000):
        node = node + 1
    assert evaluate([node], {x: np.zeros(1)})[0].tolist() == [20_000]


# --- variables -----------------------------------------------------------------------------------


def test_a_variable_is_a_number_and_a_size_at_once() -> None:
    x = param(0, (N,), float64)
    scaled = x * expand(reshape(CAST(N, arg=float64), (1,)), (N,))
    total = reduce_node("add", scaled, (0,))
    array = np.array([1.0, 2.0, 3.0])
    values = evaluate([total, iota((N,), 0), N], {x: array}, {"n": 3})
    assert values[0].tolist() == [18.0]
    assert values[1].tolist() == [0, 1, 2] and int(values[2]) == 3


def test_the_arrays_of_the_caller_are_not_touched() -> None:
    x = param(0, (N,), float64)
    arrays = {x: np.ones(2)}
    evaluate([x * x], arrays, {"n": 2})
    assert list(arrays) == [x]


def test_a_bound_variable_needs_no_value() -> None:
    (value,) = evaluate([bind(N, 4) + N])
    assert int(value) == 8


@pytest.mark.parametrize("number", [-3, 0, 7])
def test_a_bind_of_any_sign_settles_to_its_number(number: int) -> None:
    var = variable("k", -5, 9, dtype=int32)
    (value,) = evaluate([bind(var, number) * 2])
    assert int(value) == 2 * number


def test_two_values_of_one_variable_are_an_error() -> None:
    with pytest.raises(VariableError, match="'n' is bound to 2 and to 3"):
        evaluate([bind(N, 2) + bind(N, 3)])
    with pytest.raises(VariableError, match="bound to"):
        evaluate([bind(N, 2)], {}, {"n": 5})
    (value,) = evaluate([bind(N, 2) + N], {}, {"n": 2})
    assert int(value) == 4


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(VariableError, match="'n' has no value") as caught:
        evaluate([N + 1])
    assert "bind" in caught.value.hint


@pytest.mark.parametrize("number", [0, 10, -1])
def test_a_value_out_of_bounds_is_an_error(number: int) -> None:
    with pytest.raises(VariableError, match=rf"n = {number} is not in 1..9"):
        evaluate([N + 1], {}, {"n": number})


def test_settle_maps_each_variable_and_bind_to_its_constant() -> None:
    bound = bind(N, 4)
    wide = variable("w", 0, 3, (2,))
    found = settle([N, bound, wide], {"w": 1})
    assert found == {
        N: constant(4, int64),
        bound: constant(4, int64),
        wide: constant(1, int64, (2,)),
    }


def test_equal_buffers_are_told_apart() -> None:
    a, b = new_buffer((1,), float64), new_buffer((1,), float64)
    (value,) = evaluate([a - b], {a: np.array([5.0]), b: np.array([2.0])})
    assert value.tolist() == [3]
