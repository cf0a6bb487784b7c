"""Tests of fulgurite/functional/array/nested.py: lists of tensors are graphs, not constants."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ConstantError, DataError, GradientError
from tests.functional.helpers import raises


def _set_all(x: Any) -> fg.Tensor:
    y = fg.zeros(2)
    y[:] = [x, x * 2]
    return y


def _set_row(x: Any) -> fg.Tensor:
    y = fg.zeros((2, 2))
    y[0] = (x, x * 2)
    return y


def _set_mask(x: Any) -> fg.Tensor:
    y = fg.zeros(3)
    y[fg.Tensor([True, False, True])] = [x, x * 2]
    return y


def _objects(x: Any) -> np.ndarray[Any, Any]:
    found = np.empty(2, object)
    found[0], found[1] = x, x * 2
    return found


ONES = fg.Tensor(np.ones(2, np.float32))
WAYS: dict[str, Callable[[Any], fg.Tensor]] = {
    "Tensor": lambda x: fg.Tensor([x, x * 2]),
    "tensor": lambda x: fg.tensor([x, x * 2]),
    "asarray": lambda x: fg.asarray([x, x * 2]),
    "array": lambda x: fg.array((x, x * 2)),
    "nested": lambda x: fg.Tensor([[x, 5], (7.0, x * 2)]),
    "deep": lambda x: fg.Tensor([[[x], [1]], [[x], [x]]]),
    "mixed": lambda x: fg.Tensor([x * ONES, np.ones(2, np.float32), [1, x]]),
    "deque": lambda x: fg.Tensor(deque([x, x * 2])),
    "objects": lambda x: fg.Tensor(_objects(x)),
    "numbers": lambda x: fg.Tensor([1, 2, x * 3, 4, np.float32(5)]),
    "where": lambda x: fg.where([True, False], [x, x * 9], [x, x * 2]),
    "whole": _set_all,
    "row": _set_row,
    "mask": _set_mask,
    "assign": lambda x: fg.zeros(2).assign([x, x * 2]),
    "times": lambda x: ONES * [x, x * 2],
    "minus": lambda x: [x, x * 2] - ONES,
    "matmul": lambda x: ONES @ [x, x * 2],
    "rmatmul": lambda x: [[x, x], [x, 0]] @ ONES,
    "maximum": lambda x: fg.maximum(ONES, [x * 2, x]),
    "concat": lambda x: fg.concat([[x, x], ONES, [x]]),
    "full": lambda x: fg.full((2,), [x, x * 2]),
    "linspace": lambda x: fg.linspace(0, x * 3, 3),
    "arange": lambda x: fg.arange(x * 2, 4.1, x),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_list_of_tensors_has_their_gradients(name: str) -> None:
    way, x = WAYS[name], fg.Tensor(1.5)
    slope = fg.grad(lambda x: way(x).sum())(x).item()
    near = [way(fg.Tensor(1.5 + e)).sum().item() for e in (-0.01, 0.01)]
    assert slope == pytest.approx((near[1] - near[0]) / 0.02, abs=1e-2) and slope
    _, moved = fg.jvp(lambda x: way(x).sum(), (x,), (fg.Tensor(1.0),))
    assert moved.item() == pytest.approx(slope)


@pytest.mark.parametrize("name", [w for w in WAYS if w not in ("arange", "mask")])
def test_a_list_of_tensors_is_part_of_what_vmap_and_jit_compile(name: str) -> None:
    way, xs = WAYS[name], [fg.Tensor(v) for v in (1.5, 2.5, 3.5)]
    want = [way(x).tolist() for x in xs]
    compiled = fg.jit(way)
    assert [compiled(x).tolist() for x in xs] == want
    assert fg.vmap(way)(fg.stack(xs)).tolist() == want


def test_a_list_of_tensors_reaches_the_tape() -> None:
    w = fg.Tensor(3.0, requires_grad=True)
    fg.Tensor([w, 1.0, w * 2]).sum().backward()
    assert w.grad is not None and w.grad.item() == 3.0


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([fg.Tensor(1, "int8"), 2], "int8"),
        ([fg.Tensor(1, "int8"), fg.Tensor(1, "int16")], "int16"),
        ([fg.Tensor(1.0, "float16"), 2.5], "float16"),
        ([fg.Tensor(1.0, "float64"), 2], "float64"),
        ([fg.Tensor(1, "int8"), 2.5], "float32"),
        ([fg.Tensor(1.0), np.float64(2)], "float64"),
        ([fg.Tensor([1.0]), np.ones(1)], "float64"),
        ([fg.Tensor(1.0), 2j], "complex64"),
        ([fg.Tensor(True), False], "bool"),
    ],
)
def test_the_dtype_of_a_list_is_what_its_elements_promote_to(data: Any, dtype: str) -> None:
    found = fg.Tensor(data)
    assert found.dtype.name == dtype
    assert found.tolist() == [x.tolist() if hasattr(x, "tolist") else x for x in data]
    assert fg.Tensor(data, dtype="complex128").dtype is fg.complex128


def test_a_number_beside_tensors_must_be_a_value_of_their_dtype() -> None:
    with raises(ConstantError, "300"):
        fg.Tensor([fg.Tensor(1, "int8"), 300])
    with raises(ConstantError, "300"):
        fg.Tensor([fg.Tensor(1, "int8"), 1, 300])


def test_rows_of_unequal_length_are_an_error_at_the_line() -> None:
    x = fg.Tensor(1.0)
    with raises(DataError, "equal length"):
        fg.Tensor([[x, x], [x]])
    with raises(DataError, "equal length"):
        fg.Tensor([x, [1, 2]])


def test_an_index_may_be_a_list_of_tensors() -> None:
    x = fg.Tensor([10.0, 20.0, 30.0])
    picked = fg.jit(lambda x, i: x[[i, i - 1, 0]])
    assert [picked(x, fg.Tensor(i)).tolist() for i in (1, 2)] == [[20, 10, 10], [30, 20, 10]]


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: np.asarray(x),
        lambda x: np.array([x, x * 2]),
        lambda x: np.mean([x, x]),
        lambda x: np.nansum(x),
        lambda x: x.numpy(),
    ],
)
def test_numpy_is_not_given_what_is_being_differentiated(convert: Callable[[Any], Any]) -> None:
    def function(x: fg.Tensor) -> fg.Tensor:
        return x.sum() + fg.Tensor(convert(x)).sum()

    x = fg.Tensor([1.0, 2.0])
    for take in (lambda: fg.grad(function)(x), lambda: fg.jvp(function, (x,), (x,))):
        with pytest.raises(GradientError, match="detach") as caught:
            take()
        assert caught.value.where.startswith(__file__)
    constant = fg.grad(lambda x: x.sum() + fg.Tensor(convert(x.detach())).sum())
    assert constant(x).tolist() == [1.0, 1.0] and function(x).ndim == 0


def test_values_may_be_read_while_a_gradient_is_taken() -> None:
    def function(x: fg.Tensor) -> fg.Tensor:
        with fg.no_grad():
            assert x.numpy().tolist() == x.tolist() == [3.0]
        assert 3.0 in x and x[0] in x
        return x.sum() if float(x) > 2 else x.sum() * 0

    assert fg.grad(function)(fg.Tensor([3.0])).item() == 1.0
