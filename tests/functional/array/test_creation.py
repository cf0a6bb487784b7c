"""Tests of fulgurite/functional/array/creation.py: what tensors start from."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.ops.leaf import BUFFER
from fulgurite.errors import ArgumentError, ConstantError, DataError, DTypeError, ShapeError
from tests.functional.helpers import raises, same_bits, tensor


def buffers(x: fg.Tensor) -> int:
    return sum(node.op is BUFFER for node in (*x.node.slice, x.node))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
def test_zeros_ones_full_and_empty_are_constants(shape: tuple[int, ...], dtype: str) -> None:
    same_bits(fg.zeros(shape, dtype), np.zeros(shape, dtype))
    same_bits(fg.ones(shape, dtype), np.ones(shape, dtype))
    same_bits(fg.empty(shape, dtype), np.zeros(shape, dtype))
    same_bits(fg.full(shape, 1, dtype), np.ones(shape, dtype))
    assert buffers(fg.full(shape, 1, dtype)) == 0


def test_the_default_dtypes_are_float32_and_int32() -> None:
    assert fg.zeros(2).dtype is fg.float32
    assert fg.full(2, 7).dtype is fg.int32
    assert fg.full(2, 7.5).dtype is fg.float32
    assert fg.full(2, True).dtype is fg.bool
    assert fg.arange(3).dtype is fg.int32
    assert fg.arange(3.0).dtype is fg.float32
    assert fg.linspace(0, 1, 3).dtype is fg.float32


def test_like_takes_shape_and_dtype_unless_told() -> None:
    x = tensor(np.ones((2, 3), np.int8))
    same_bits(fg.zeros_like(x), np.zeros((2, 3), np.int8))
    same_bits(fg.ones_like(x, dtype="float64"), np.ones((2, 3)))
    same_bits(fg.full_like(x, 7), np.full((2, 3), 7, np.int8))
    same_bits(fg.empty_like(x), np.zeros((2, 3), np.int8))


@given(st.integers(-40, 40), st.integers(-40, 40), st.integers(-7, 7).filter(bool))
def test_a_ramp_of_whole_numbers_is_numpys(start: int, stop: int, step: int) -> None:
    want = np.arange(start, stop, step, dtype=np.int32)
    same_bits(fg.arange(start, stop, step), want)
    same_bits(fg.arange(start, stop, step, dtype="float64"), want.astype(float))
    assert buffers(fg.arange(start, stop, step)) == 0


def test_a_ramp_may_go_down_through_an_unsigned_dtype() -> None:
    same_bits(fg.arange(200, 0, -60, dtype="uint8"), np.array([200, 140, 80, 20], np.uint8))
    same_bits(fg.arange(-100, 101, 200, dtype="int8"), np.array([-100, 100], np.int8))


def test_a_ramp_that_does_not_fit_int32_is_int64() -> None:
    same_bits(fg.arange(0, 1 << 40, 1 << 39), np.array([0, 1 << 39]))


def test_a_ramp_of_fractions_is_rounded_once() -> None:
    same_bits(fg.arange(0, 1, 0.1), np.arange(0, 1, 0.1).astype(np.float32))
    same_bits(fg.arange(0, 3, 0.5, dtype="float64"), np.arange(0, 3, 0.5))
    same_bits(fg.arange(5, 1, 1.5), np.zeros(0, np.float32))


@pytest.mark.parametrize("num", [0, 1, 2, 3, 50])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace_is_numpys(num: int, endpoint: bool) -> None:
    same_bits(
        fg.linspace(-3, 7.3, num, endpoint, dtype="float64"), np.linspace(-3, 7.3, num, endpoint)
    )
    same_bits(
        fg.linspace(-3, 7, num, endpoint, dtype="int32"),
        np.linspace(-3, 7, num, endpoint, dtype=np.int32),
    )
    ends: list[Any] = [(1 + 2j, -3j), (0, 1j), (np.complex64(2j), 5.5)]
    for first, last in ends:
        found = fg.linspace(first, last, num, endpoint)
        assert found.dtype is fg.complex64
        np.testing.assert_allclose(found.numpy(), np.linspace(first, last, num, endpoint), 1e-6)


def test_complex_ends_need_a_complex_dtype() -> None:
    assert fg.linspace(0, 1j, 3, dtype=fg.complex128).tolist() == [0, 0.5j, 1j]
    with pytest.raises(ArgumentError, match="float32 is not"):
        fg.linspace(0, 1j, 3, dtype=fg.float32)


@pytest.mark.parametrize("shape", [(0, 0), (3, 3), (2, 4), (4, 1)])
@pytest.mark.parametrize("k", [-2, 0, 1, 9])
def test_eye_and_triangles_are_numpys(shape: tuple[int, int], k: int) -> None:
    same_bits(fg.eye(*shape, k=k, dtype="float64"), np.eye(*shape, k=k))
    values = np.arange(2.0 * shape[0] * shape[1]).reshape(2, *shape)
    same_bits(fg.tril(tensor(values), k), np.tril(values, k))
    same_bits(fg.triu(tensor(values), k), np.triu(values, k))
    assert buffers(fg.eye(*shape, k=k)) == 0


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid_is_numpys(indexing: Any) -> None:
    lines = [np.arange(2), np.arange(3), np.arange(1)]
    for count in (0, 1, 2, 3):
        want = np.meshgrid(*lines[:count], indexing=indexing)
        got = fg.meshgrid(*map(tensor, lines[:count]), indexing=indexing)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same_bits(g, w)


@pytest.mark.host_memory
def test_array_copies_and_asarray_may_share() -> None:
    data = np.ones(3)
    copied, shared = fg.array(data), fg.asarray(data, copy=False)
    data[0] = 5
    assert copied.tolist() == [1, 1, 1]
    assert shared.tolist() == [5, 1, 1]
    assert fg.asarray(copied) is copied
    assert fg.asarray(copied, "int8").dtype is fg.int8
    assert fg.asarray(copied, device=copied.device) is copied


def test_python_numbers_that_need_64_bits_get_them() -> None:
    assert fg.array([1, 1 << 40]).dtype is fg.int64
    assert fg.array([1 << 63]).dtype is fg.uint64
    assert fg.array([1, 2]).dtype is fg.int32
    assert fg.array([]).dtype is fg.float32
    assert fg.array([1 + 2j]).dtype is fg.complex64


def test_a_variable_is_a_size_and_a_number() -> None:
    n = fg.Var("n", 1, 8)
    assert repr(n) == "Var('n', 1, 8)"
    for size in (3, 5):
        bound = n.bind(size)
        x = fg.ones((bound, 2))
        assert x.numpy().shape == (size, 2)
        assert (x * 2).sum().item() == size * 4
        assert fg.arange(8)[:bound].tolist() == list(range(size))
        assert fg.arange(8)[bound - 1].item() == size - 1
        assert fg.arange(bound).tolist() == list(range(size))
        assert fg.arange(1, bound, dtype="float64").tolist() == list(range(1, size))
        assert fg.Tensor(bound).item() == size


def test_functions_take_variable_sizes() -> None:
    n = fg.Var("rows", 1, 8)
    values = np.arange(24.0).reshape(8, 3)
    for size in (2, 5):
        x, want = tensor(values)[: n.bind(size)], values[:size]
        for name in ("sum", "mean", "var", "max", "logsumexp"):
            got = getattr(fg, name)(x, axis=0).numpy()
            np.testing.assert_allclose(got, getattr(fg, name)(tensor(want), axis=0).numpy())
        np.testing.assert_allclose(fg.softmax(x, 0).numpy(), fg.softmax(tensor(want), 0).numpy())
        np.testing.assert_allclose((x @ x.T).numpy(), want @ want.T)
        np.testing.assert_allclose(fg.einsum("ij,kj->ki", x, x).numpy(), want @ want.T)
        same_bits(fg.argmax(x, axis=0), np.argmax(want, 0).astype(np.int32))
        same_bits(fg.concat([x, tensor(values)]), np.concatenate([want, values]))
        same_bits(fg.pad(x, ((1, 0), (0, 2))), np.pad(want, ((1, 0), (0, 2))))
        same_bits(fg.take(x, [0, -1], axis=0), want[[0, -1]])
        same_bits(x[-1], want[-1])


def test_creation_names_the_line_of_a_mistake() -> None:
    with raises(ShapeError):
        fg.zeros(-1)
    with raises(ShapeError):
        fg.ones((2, 1.5))  # type: ignore[arg-type]
    with raises(DTypeError):
        fg.zeros(2, "float99")
    with raises(ArgumentError):
        fg.arange(0, 5, 0)
    with raises(ArgumentError):
        fg.arange(math.inf)
    with raises(ArgumentError):
        fg.arange("5")  # type: ignore[arg-type]
    with raises(ConstantError):
        fg.arange(300, dtype="int8")
    with raises(ConstantError):
        fg.full(2, 300, "uint8")
    with raises(ShapeError):
        fg.linspace(0, 1, -1)
    with raises(ArgumentError):
        fg.meshgrid(fg.ones(2), indexing="yx")
    with raises(ArgumentError):
        fg.asarray([1, 2], copy=False)
    with raises(ArgumentError):
        fg.tril(fg.ones(3))
    with raises(DataError):
        fg.from_numpy([1, 2])  # type: ignore[arg-type]
    with raises(DataError):
        fg.array(["a"])
    with raises(DataError):
        fg.array([[1, 2], [3]])


def test_a_truth_is_no_size_and_a_fraction_no_diagonal() -> None:
    wrong: Any = 1.5
    with raises(ShapeError, "True is not a size"):
        fg.zeros(True)
    with raises(ShapeError, "True is not a size"):
        fg.ones((2, True))
    with raises(ArgumentError, "k is 1.5"):
        fg.eye(3, 3, wrong)
    for function in (fg.tril, fg.triu, fg.diag):
        with raises(ArgumentError, "k is 1.5"):
            function(fg.zeros((2, 2)), wrong)
    with raises(ArgumentError, "offset is 1.5"):
        fg.diagonal(fg.zeros((2, 2)), wrong)


@pytest.mark.parametrize(
    ("values", "dtype", "says"),
    [
        ([300], "int8", "300 does not fit int8"),
        ([[1], [-1]], "uint8", "-1 does not fit uint8"),
        ([float("nan")], "int32", "nan is not a value of int32"),
        ((float("inf"),), "int32", "inf is not a value of int32"),
        ([0.0, 1.5], "int32", "1.5 is not whole"),
        ([2.0**63], "int64", "does not fit int64"),
        ([2**63], "int64", "does not fit int64"),
        ([1j], "float32", "1j is complex"),
        ([2], "bool", "2 does not fit bool"),
    ],
)
def test_a_list_is_checked_as_a_number_is(values: Any, dtype: str, says: str) -> None:
    with raises(ConstantError, says):
        fg.Tensor(values, dtype=dtype)


def test_values_at_the_limits_of_a_dtype_come_in_a_list() -> None:
    for dtype in (fg.int8, fg.uint8, fg.int64, fg.uint64):
        assert fg.Tensor(list(dtype.limits), dtype=dtype).tolist() == list(dtype.limits)
    assert fg.Tensor([1.0, 2.0], dtype="int8").tolist() == [1, 2]
    assert fg.Tensor([], dtype="int8").tolist() == []
    assert fg.Tensor([1e300], dtype="float32").tolist() == [float("inf")]


def test_a_numpy_array_is_cast_and_not_checked() -> None:
    assert fg.Tensor(np.array([300, -1]), dtype="uint8").tolist() == [44, 255]
    assert fg.Tensor(np.array([np.nan, 1e30]), dtype="int8").tolist() == [0, 127]


@pytest.mark.parametrize("k", [2**31 - 1, 2**31, 2**63, 2**70])
def test_a_diagonal_far_outside_is_no_diagonal(k: int) -> None:
    ones = np.ones((2, 3), np.float32)
    for sign in (1, -1):
        assert not fg.eye(2, 3, k=sign * k).numpy().any()
        same_bits(fg.tril(tensor(ones), sign * k), ones * (sign > 0))
        same_bits(fg.triu(tensor(ones), sign * k), ones * (sign < 0))


def test_several_results_are_a_tuple_and_no_shapes_are_a_shape() -> None:
    line = fg.arange(3)
    for found in (fg.meshgrid(line, line), fg.broadcast_arrays(line, line), fg.meshgrid()):
        assert isinstance(found, tuple)
    assert fg.broadcast_shapes() == ()
    assert fg.broadcast_shapes(*[(2, 1)] * 99, (3,)) == (2, 3)
    with raises(ShapeError, "is not a size"):
        fg.broadcast_shapes((2, 1.5))  # type: ignore[arg-type]
