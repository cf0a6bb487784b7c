"""Tests of tensor/__init__.py: laziness, values, conversion, printing, gradients' shell."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core import build
from fulgurite.errors import (
    ArgumentError,
    BoundsError,
    DataError,
    DTypeError,
    GradientError,
    ShapeError,
)
from fulgurite.runtime.device import DeviceError, register_device
from fulgurite.runtime.host.device import ReferenceDevice
from tests.functional.helpers import raises, tensor


def here() -> str:
    """The device that the test runs on."""
    return current().device


class OtherDevice(ReferenceDevice):
    name = "other"


@pytest.fixture(autouse=True)
def _other_device() -> Iterator[None]:
    register_device("other", lambda name: OtherDevice())
    yield


# --- laziness ------------------------------------------------------------------------------------


def test_nothing_is_computed_before_a_value_is_asked_for() -> None:
    x = fg.Tensor([1.0, 2.0]) * 2
    assert not x.is_realized
    assert x.realize() is x
    assert x.is_realized
    assert x.tolist() == [2, 4]


def test_several_tensors_are_computed_in_one_plan() -> None:
    x = fg.Tensor([1.0, 2.0])
    a, b = fg.realize(x + 1, x * 3)
    assert a.is_realized and b.is_realized
    assert (a.tolist(), b.tolist()) == ([2, 3], [3, 6])


@pytest.mark.host_memory
def test_a_tensor_copies_and_from_numpy_shares() -> None:
    data = np.ones(2)
    copied, shared = fg.Tensor(data), fg.from_numpy(data)
    data[:] = 7
    assert copied.tolist() == [1, 1]
    assert shared.tolist() == [7, 7]


def test_a_tensor_knows_what_it_is() -> None:
    x = fg.zeros((2, 3), "int8")
    assert (x.shape, x.ndim, x.size, x.dtype, x.device) == ((2, 3), 2, 6, fg.int8, here())
    assert x.node.op.name == "const"
    assert isinstance(hash(x), int)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_values_come_back_as_numpy_has_them(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    x = fg.Tensor(values, dtype)
    assert x.numpy().dtype == x.dtype.numpy
    assert x.numpy().shape == shape
    assert x.tolist() == values.astype(x.dtype.numpy).tolist()
    np.testing.assert_array_equal(x.numpy(), values.astype(x.dtype.numpy))


def test_numpy_gives_an_array_of_its_own() -> None:
    x = fg.Tensor([1.0, 2.0])
    x.numpy()[0] = 9
    assert x.tolist() == [1, 2]


def test_the_array_protocol_gives_a_read_only_view_or_a_copy() -> None:
    x = fg.Tensor([1.0, 2.0])
    view = np.asarray(x)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    wide = np.asarray(x, dtype=np.float64)
    wide[0] = 5
    assert np.array(x, copy=True).flags.writeable
    assert x.tolist() == [1, 2]
    assert np.add(x, 1).tolist() == [2, 3]


def test_one_element_is_a_python_number() -> None:
    assert fg.Tensor([[3]]).item() == 3
    assert isinstance(fg.Tensor([[3]]).item(), int)
    assert isinstance(fg.Tensor(2.5).item(), float)
    assert fg.Tensor([True]).item() is True
    assert int(fg.Tensor(3.7)) == 3
    assert float(fg.Tensor([2])) == 2.0
    assert [10, 20][fg.Tensor(1)] == 20
    assert bool(fg.Tensor([0])) is False
    assert bool(fg.Tensor(0.1)) is True


def test_iteration_and_length_go_along_the_first_dimension() -> None:
    x = fg.Tensor([[1, 2], [3, 4]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    a, b = x
    assert (a + b).tolist() == [4, 6]
    assert list(fg.zeros((0, 2))) == []
    assert fg.Tensor([3, 4]).tolist()[::-1] == [4, 3]


def test_a_tensor_is_not_none() -> None:
    x = fg.Tensor([1])
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711


def test_repr_shows_values_when_small_or_realized() -> None:
    x = fg.Tensor([[1.5, -2.0]])
    assert repr(x) == f"Tensor([[ 1.5, -2. ]], shape=(1, 2), dtype=float32, device='{here()}')"
    assert repr(fg.Tensor(3)) == f"Tensor(3, shape=(), dtype=int32, device='{here()}')"
    big = fg.zeros((100, 100)) + 1
    about = f"shape=(100, 100), dtype=float32, device='{here()}'"
    assert repr(big) == f"Tensor({about}, pending add)"
    assert not big.is_realized
    assert repr(big.realize()).endswith(f"{about})")
    n = fg.Var("n", 1, 4)
    assert "shape=(n,)" in repr(fg.ones((n.bind(2),)))


# --- operators -----------------------------------------------------------------------------------


def test_operators_are_the_functions() -> None:
    x, y = np.array([5, -7, 2]), np.array([2, 3, 5])
    a, b = tensor(x), tensor(y)
    for got, want in (
        (a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, (x / y).astype(np.float32)),
        (a // b, x // y), (a % b, x % y), (a**b, x**y), (-a, -x), (+a, +x), (abs(a), abs(x)),
        (a & b, x & y), (a | b, x | y), (a ^ b, x ^ y), (~a, ~x), (b << 2, y << 2),
        (a >> 1, x >> 1), (a < b, x < y), (a <= b, x <= y), (a > b, x > y), (a >= b, x >= y),
        (a == b, x == y), (a != b, x != y), (1 + a, 1 + x), (1 - a, 1 - x), (2 * a, 2 * x),
        (7 // b, 7 // y), (7 % b, 7 % y), (2**b, 2**y), (1 << b, 1 << y), (a @ b, x @ y),
    ):  # fmt: skip
        np.testing.assert_array_equal(got.numpy(), want)
        assert got.numpy().dtype == np.asarray(want).dtype


def test_an_array_on_the_left_gives_way() -> None:
    x = fg.Tensor([1.0, 2.0])
    for found in (np.ones(2) + x, np.ones(2) == x, np.float64(2) * x, np.ones((1, 2)) @ x):
        assert isinstance(found, fg.Tensor)


def test_to_changes_dtype_or_device() -> None:
    x = fg.Tensor([1.5])
    assert x.to("float64").dtype is fg.float64
    assert x.to(fg.int8).dtype is fg.int8
    assert x.to(float).dtype is fg.float32
    assert x.cast("int8").dtype is fg.int8
    assert x.to("other").device == "other"
    assert x.to(here()).node is x.node
    assert x.bitcast("int32").dtype is fg.int32
    assert fg.zeros(2, device="other").device == "other"
    assert fg.Tensor(x, device="other").device == "other"
    assert fg.Tensor(1.5, device="other").device == "other"
    assert fg.asarray(x, device="other").device == "other"


# --- sizes that are variables, read-only views, copies -------------------------------------------


def test_one_element_of_a_variable_size_is_a_python_number() -> None:
    n = fg.Var("n", 1, 4)
    assert fg.ones((n.bind(1),)).item() == 1.0
    assert float(fg.ones((n.bind(1), 1)) * 2) == 2.0
    with raises(ShapeError, "item() of 2 elements"):
        fg.ones((n.bind(2),)).item()


def test_a_variable_size_is_no_length() -> None:
    x = fg.ones((fg.Var("n", 1, 4).bind(2), 3))
    with raises(ShapeError, "shape (n, 3) has no fixed length"):
        len(x)
    with raises(ShapeError, "shape (n, 3) has no fixed length"):
        list(x)


def test_a_complex_number_is_not_a_real_one() -> None:
    x = fg.Tensor([1 + 2j])
    for real in (float, int):
        with raises(DTypeError, "complex64 tensor is not a real number"):
            real(x)
    assert x.item() == 1 + 2j


def test_an_unknown_target_names_dtypes_and_devices() -> None:
    x = fg.Tensor([1.0])
    with raises(DTypeError, "neither an element type nor a device"):
        x.to("bogus")
    with raises(DTypeError, "a dtype such as float32, or a device: cpu"):
        x.to("bogus")


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint64", "float16", "float64", "complex128", "bfloat16", "float8_e4m3fn"],
)
def test_a_view_is_read_only_down_to_its_base(dtype: str, shape: tuple[int, ...]) -> None:
    x = fg.Tensor(np.ones(shape), dtype)
    view = np.asarray(x)
    assert (view.shape, view.dtype) == (shape, x.dtype.numpy)
    base: Any = view
    while isinstance(base, np.ndarray):
        assert not base.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            base.flags.writeable = True
        base = base.base
    assert isinstance(base, memoryview) and base.readonly
    assert x.numpy().flags.writeable


def test_a_view_of_shared_memory_keeps_its_strides() -> None:
    shared = np.arange(6.0)[::2]
    assert np.asarray(fg.from_numpy(shared)).tolist() == [0, 2, 4]


COPIES: dict[str, Any] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "bfloat16", "float8_e5m2"])
def test_a_copy_has_the_value_the_dtype_and_the_device(dtype: str, how: str) -> None:
    x = fg.Tensor(np.array([[0, 1], [1, 0]]), dtype, device="other")
    for original in (x, x[0], x.reshape(-1)):
        found = COPIES[how](original)
        assert found is not original and isinstance(found, fg.Tensor)
        assert (found.dtype, found.device, found.shape) == (x.dtype, "other", original.shape)
        assert found.tolist() == original.tolist()
        assert not found.requires_grad


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_leaf_is_a_leaf_of_its_own(how: str) -> None:
    x = fg.Tensor([1.0, 2.0], requires_grad=True)
    found = COPIES[how](x)
    assert found.requires_grad
    (found * found).sum().backward()
    assert x.grad is None
    assert found.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_deep_copy_does_not_share_memory(how: str) -> None:
    data = np.ones(2)
    shared = fg.from_numpy(data)
    found = COPIES[how](shared)
    data[:] = 7
    assert found.tolist() == [1, 1]
    assert b"Node" not in pickle.dumps(shared * 2)


def test_a_deep_copy_keeps_what_is_shared_shared() -> None:
    x = fg.Tensor([1.0])
    a, b = copy.deepcopy([x, x])
    assert a is b and a is not x


def test_a_gradient_goes_through_a_copy() -> None:
    assert fg.grad(lambda x: copy.copy(x) * x)(fg.Tensor(3.0)).item() == 6.0


# --- gradients' shell ----------------------------------------------------------------------------


def test_backward_fills_grad_and_adds_up() -> None:
    x = fg.Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5, 7]
    assert x.requires_grad and not x.detach().requires_grad


def test_no_grad_and_stop_gradient_cut_the_graph() -> None:
    x = fg.Tensor([1.0], requires_grad=True)
    with fg.no_grad():
        y = fg.softmax(x * 2) + fg.stack([x, x])[0]
    assert not y.requires_grad
    assert not fg.stop_gradient(x * 2).requires_grad
    assert fg.exp(x).requires_grad


def test_functions_of_watched_tensors_keep_their_gradients_through_a_realize() -> None:
    x = fg.Tensor([1.0, 2.0], requires_grad=True)
    y = fg.exp(x)
    y.realize()
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


# --- errors --------------------------------------------------------------------------------------


class Strange:
    pass


def test_mistakes_name_the_users_line() -> None:
    x = fg.Tensor([1.0, 2.0])
    strange: Any = Strange()
    with raises(ShapeError, "item() of 2 elements"):
        x.item()
    with raises(ShapeError, "item() of 0 elements"):
        fg.zeros(0).item()
    with raises(ShapeError):
        bool(x)
    with raises(DataError, "not numeric"):
        fg.Tensor(strange)
    with raises(DataError, "not numeric"):
        fg.Tensor("text")
    with raises(DataError, "not numeric"):
        fg.Tensor([None])
    with raises(DataError, "rows of equal length"):
        fg.Tensor([[1], [2, 3]])
    with raises(DataError):
        x + strange
    with raises(DTypeError):
        x.to("nowhere")
    with raises(DeviceError):
        fg.Tensor([1.0], device="nowhere")
    with raises(DeviceError):
        fg.zeros(2, device="nowhere")
    with raises(ShapeError):
        len(fg.Tensor(1))
    with raises(ShapeError):
        iter(fg.Tensor(1))
    with raises(DataError):
        [1, 2][fg.Tensor(1.0)]
    with raises(BoundsError):
        x[2]
    with raises(ArgumentError):
        fg.realize(x, 3)  # type: ignore[arg-type]
    with raises(GradientError):
        fg.Tensor([1], requires_grad=True)


def test_tensors_on_two_devices_do_not_meet() -> None:
    here, there = fg.Tensor([1.0]), fg.Tensor([1.0]).to("other")
    assert (there + 1).device == "other"
    assert (there * fg.ones(1)).device == "other"
    with raises(DataError, "different devices"):
        here + there
    with raises(DataError, "different devices"):
        fg.where(here > 0, there, 0)
    with raises(DataError, "different devices"):
        here @ there
    with raises(DataError, "different devices"):
        fg.concat([here, there])
    with raises(DataError, "different devices"):
        fg.einsum("i,i", here, there)
    with raises(DataError, "different devices"):
        fg.take(here, fg.Tensor([0]).to("other"))
    with raises(DataError, "different devices"):
        fg.cross_entropy(here, fg.Tensor(0).to("other"))


def test_every_node_remembers_the_line_that_asked_for_it() -> None:
    y = fg.softmax(fg.Tensor([1.0, 2.0]))
    nodes = [n for n in (*y.node.slice, y.node) if n.op.name not in ("const", "buffer")]
    assert nodes
    assert all(any(o.file == __file__ for o in n.origins) for n in nodes)


def test_an_expression_of_nodes_joins_in() -> None:
    n = fg.Var("n", 1, 9).bind(4)
    assert isinstance(n, type(build.const(1)))
    assert (fg.ones(2, "int64") * n).tolist() == [4, 4]
