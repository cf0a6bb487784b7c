"""Tests of fulgurite/functional/array/movement.py: NumPy is the oracle, bit for bit."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, ConstantError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, hostile, raises, same_bits, tensor

VALUES = np.arange(24.0).reshape(2, 3, 4)
X = tensor(VALUES)
DTYPES = ["bool", "int8", "uint64", "float16", "bfloat16", "float32", "float64"]


@given(st.permutations([1, 2, 3, 4]), st.permutations(range(4)), st.data())
def test_reshape_and_permute_agree_with_numpy(
    shape: list[int], order: list[int], data: st.DataObject
) -> None:
    values = np.arange(24).reshape(shape)
    moved = tensor(values).permute_dims(order)
    same_bits(moved, values.transpose(order))
    target = data.draw(st.sampled_from([(24,), (2, -1), (4, 6), (1, 24, 1), (2, 3, 2, 2)]))
    same_bits(moved.reshape(target), values.transpose(order).reshape(target))
    same_bits(moved.reshape(*target), values.transpose(order).reshape(target))


def test_reshape_takes_odd_shapes() -> None:
    same_bits(fg.reshape(fg.Tensor(3), (1, 1)), np.array([[3]], np.int32))
    same_bits(fg.reshape(fg.zeros((0, 3)), (3, 0, 2)), np.zeros((3, 0, 2), np.float32))
    same_bits(fg.ones((1, 1)).reshape(()), np.ones((), np.float32))
    same_bits(fg.reshape(X, 24), VALUES.reshape(24))


def test_transposes_agree_with_numpy() -> None:
    same_bits(X.T, VALUES.T)
    same_bits(X.mT, VALUES.transpose(0, 2, 1))
    same_bits(fg.transpose(X), VALUES.T)
    same_bits(fg.transpose(X, (1, 0, 2)), VALUES.transpose(1, 0, 2))
    same_bits(X.transpose(1, 0, 2), VALUES.transpose(1, 0, 2))
    same_bits(X.transpose(0, 1), VALUES.swapaxes(0, 1))
    same_bits(fg.swapaxes(X, 0, -1), VALUES.swapaxes(0, -1))
    same_bits(fg.Tensor(1.0).T, np.ones((), np.float32))
    for source, target in [(0, -1), (-1, 0), ((0, 1), (1, 2)), ((0, 2), (2, 0)), (1, 1)]:
        same_bits(fg.moveaxis(X, source, target), np.moveaxis(VALUES, source, target))  # type: ignore[arg-type]


def test_broadcasting_agrees_with_numpy() -> None:
    values = np.arange(3)[:, None]
    same_bits(fg.broadcast_to(tensor(values), (2, 3, 4)), np.broadcast_to(values, (2, 3, 4)))
    same_bits(tensor(values).broadcast_to(-1, 4), np.broadcast_to(values, (3, 4)))
    same_bits(fg.broadcast_to(fg.Tensor(5), 2), np.array([5, 5], np.int32))
    both = fg.broadcast_arrays(tensor(values), tensor(np.arange(2)), 1)
    assert [b.shape for b in both] == [(3, 2)] * 3
    assert fg.broadcast_arrays() == ()


def test_dimensions_of_size_1_come_and_go() -> None:
    for axis in (0, -1, (0, 2), (1, -1)):
        same_bits(fg.expand_dims(X, axis), np.expand_dims(VALUES, axis))
    values = np.ones((1, 3, 1))
    for gone in (None, 0, -1, (0, 2), ()):
        same_bits(fg.squeeze(tensor(values), gone), np.squeeze(values, gone))


def test_flatten_merges_neighbours() -> None:
    same_bits(X.flatten(), VALUES.reshape(24))
    same_bits(X.flatten(1), VALUES.reshape(2, 12))
    same_bits(X.flatten(0, 1), VALUES.reshape(6, 4))
    same_bits(fg.Tensor(3).flatten(), np.array([3], np.int32))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
def test_flip_agrees_with_numpy(axis: Any) -> None:
    same_bits(fg.flip(X, axis), np.flip(VALUES, axis))


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_with_a_constant_is_exact(dtype: str) -> None:
    values = hostile(dtype).reshape(2, 11)
    for width in (1, (1, 2), ((1, 2), (0, 3)), ((0, 0),), ((2, 0), (0, 0))):
        for value in (0, 1):
            want = np.pad(values, width, constant_values=value)
            same_bits(fg.pad(tensor(values), width, constant_values=value), want)


def test_padding_may_be_negative_zero_nan_or_a_tensor() -> None:
    x = fg.Tensor([1.0])
    assert np.signbit(fg.pad(x, 1, constant_values=-0.0).numpy()).tolist() == [True, False, True]
    assert np.isnan(fg.pad(x, (0, 1), constant_values=np.nan).numpy()[1])
    assert fg.pad(x, 1, constant_values=fg.Tensor(2)).tolist() == [2, 1, 2]
    big = np.array([1 << 62])
    same_bits(
        fg.pad(tensor(big), 1, constant_values=(1 << 62) + 1),
        np.pad(big, 1, constant_values=(1 << 62) + 1),
    )


@given(
    st.sampled_from(["edge", "reflect", "wrap", "symmetric"]),
    st.integers(1, 4), st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip
def test_padding_by_folding_agrees_with_numpy(mode: Any, size: int, low: int, high: int) -> None:
    values = np.arange(float(size * 2)).reshape(2, size) - 0.5
    width = ((1, 0), (low, high))
    same_bits(fg.pad(tensor(values), width, mode=mode), np.pad(values, width, mode=mode))


# --- joining -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_joining_keeps_every_bit(dtype: str) -> None:
    values = hostile(dtype)
    if dtype == "bfloat16":
        values = np.arange(0, 1 << 16, 13, dtype=np.uint16).view(values.dtype)  # NaN payloads too
    parts = [values[:5], values[5:5], values[5:6], values[6:]]
    same_bits(fg.concat([tensor(p) for p in parts]), values)
    same_bits(fg.stack([tensor(p) for p in values[:6]]), values[:6])
    assert fg.concat([tensor(p) for p in parts]).numpy().tobytes() == values.tobytes()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 2))
def test_joining_along_any_axis_agrees_with_numpy(lengths: list[int], axis: int) -> None:
    random = np.random.default_rng(sum(lengths))
    parts = [random.normal(size=[n if d == axis else d + 1 for d in range(3)]) for n in lengths]
    same_bits(fg.concat([tensor(p) for p in parts], axis), np.concatenate(parts, axis))
    same_bits(fg.concat([tensor(p) for p in parts], axis=-3 + axis), np.concatenate(parts, axis))
    same_bits(fg.concat([tensor(p) for p in parts], axis=None), np.concatenate(parts, axis=None))


def test_joining_promotes() -> None:
    assert fg.concat([fg.ones(1, "int8"), fg.ones(1, "float16")]).dtype is fg.float16
    assert fg.concat([[1, 2], np.array([3.5])]).tolist() == [1, 2, 3.5]


@pytest.mark.device("reference")  # one text of 300 pieces takes the compiler half a minute
def test_many_pieces_stay_shallow() -> None:
    many = fg.stack([fg.full((), float(i)) for i in range(300)])
    assert many.tolist() == list(range(300))


def test_dozens_of_pieces_are_joined_in_order() -> None:
    many = fg.stack([fg.full((), float(i)) for i in range(36)])
    assert many.tolist() == list(range(36))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_stack_and_unstack_agree_with_numpy(axis: int) -> None:
    parts = [VALUES[0], VALUES[1], -VALUES[0]]
    stacked = fg.stack([tensor(p) for p in parts], axis)
    same_bits(stacked, np.stack(parts, axis))
    for got, want in zip(fg.unstack(stacked, axis), parts, strict=True):
        same_bits(got, want)


def test_cutting_up_gives_the_parts() -> None:
    values = np.arange(10).reshape(2, 5)
    assert [p.tolist() for p in fg.split(tensor(values), 2, axis=1)] == [
        values[:, :2].tolist(), values[:, 2:4].tolist(), values[:, 4:].tolist(),
    ]  # fmt: skip
    assert [p.shape for p in fg.split(tensor(values), [1, 0, 4], axis=1)] == [
        (2, 1),
        (2, 0),
        (2, 4),
    ]
    assert [p.shape for p in fg.chunk(tensor(values), 3, axis=1)] == [(2, 2), (2, 2), (2, 1)]
    assert [p.shape for p in fg.chunk(tensor(values), 4, axis=1)] == [(2, 2), (2, 2), (2, 1)]
    assert fg.split(fg.zeros((0, 2)), 3) == ()


# --- gradients and errors ------------------------------------------------------------------------


def test_gradients_go_back_to_where_elements_came_from() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 3)), random.normal(size=(2, 2))
    check_gradients(lambda x: fg.reshape(x * x, (3, 2)), a)
    check_gradients(lambda x: fg.transpose(x * x), a)
    check_gradients(lambda x: fg.broadcast_to(x * x, (4, 2, 3)), a)
    check_gradients(lambda x: fg.flip(x * x, 1), a)
    check_gradients(lambda x: fg.pad(x * x, ((1, 2), (0, 1)), constant_values=3.0), a)
    for mode in ("edge", "reflect", "wrap"):
        check_gradients(lambda x, mode=mode: fg.pad(x * x, ((1, 1), (2, 1)), mode=mode), a)
    check_gradients(lambda x, y: fg.concat([x, y * y, x * 2], axis=1), a, b)
    check_gradients(lambda x: fg.stack([x, x * x], axis=1), a)
    check_gradients(lambda x: fg.split(x * x, [1, 2], axis=1)[1], a)
    check_gradients(lambda x: fg.squeeze(fg.expand_dims(x * x, 1), 1), a)


def test_mistakes_name_the_users_line() -> None:
    with raises(ShapeError, "elements"):
        X.reshape(5, 5)
    with raises(ShapeError):
        fg.reshape(X, (-1, -1))
    with raises(AxisError):
        fg.permute_dims(X, (0, 0, 1))
    with raises(AxisError):
        X.transpose(0, 3)
    with raises(AxisError):
        fg.moveaxis(X, (0, 1), 0)
    with raises(ShapeError):
        fg.broadcast_to(X, (5, 3, 4))
    with raises(ShapeError):
        fg.squeeze(X, 0)
    with raises(AxisError):
        fg.expand_dims(X, 9)
    with raises(AxisError):
        fg.flip(X, 3)
    with raises(AxisError):
        fg.flatten(X, 2, 1)
    with raises(ShapeError):
        fg.pad(X, ((1, 1), (1, 1)))
    with raises(ArgumentError):
        fg.pad(X, (1, 2, 3))
    with raises(ShapeError):
        fg.pad(X, -1)
    with raises(ArgumentError):
        fg.pad(X, 1, mode="magic")
    with raises(ConstantError):
        fg.pad(fg.ones(2, "int8"), 1, constant_values=0.5)
    with raises(ShapeError):
        fg.pad(fg.zeros(0), 1, mode="edge")
    with raises(ShapeError):
        fg.concat([X, fg.ones((2, 2, 2))])
    with raises(ArgumentError):
        fg.concat([])
    with raises(AxisError):
        fg.concat([X], axis=3)
    with raises(AxisError):
        fg.concat([fg.Tensor(1.0), fg.Tensor(2.0)])
    with raises(ShapeError):
        fg.stack([fg.ones(2), fg.ones(3)])
    with raises(ShapeError):
        fg.split(X, [1, 2, 3], axis=2 - 2)
    with raises(ArgumentError):
        fg.chunk(X, 0)
    with raises(DTypeError):
        fg.stack([fg.ones(2, "float8_e5m2"), fg.ones(2, "float8_e4m3fn")]).astype("x")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_every_padding_wants_a_pair_for_each_dimension(mode: str) -> None:
    x = fg.zeros((2, 3, 4))
    for count in (2, 4):
        with raises(ShapeError, f"{count} paddings for 3 dimensions"):
            fg.pad(x, [(1, 1)] * count, mode=mode)
    assert fg.pad(x, [(1, 0)], mode=mode).shape == (3, 4, 5)


def test_a_padding_is_checked_where_nothing_is_padded_too() -> None:
    x = fg.Tensor(1.0)
    with raises(ShapeError, "'a' is not a size"):
        fg.pad(x, "a")
    with raises(ArgumentError, "no padding 'mirror'"):
        fg.pad(x, 0, mode="mirror")
    with raises(ArgumentError, "is no padding"):
        fg.pad(fg.zeros(2), [[]])
    assert fg.pad(x, 1).item() == 1.0


def test_arguments_of_the_wrong_kind_are_clear_errors() -> None:
    x, wrong = fg.zeros((2, 3)), cast(Any, None)
    with raises(AxisError, "0 is no order of 2 dimensions"):
        fg.permute_dims(x, cast(Any, 0))
    with raises(AxisError, "0 is no order of 2 dimensions"):
        fg.transpose(x, 0)
    with raises(ShapeError, "None is not a size"):
        fg.broadcast_to(x, wrong)
    with raises(AxisError, "1.0 is not an axis"):
        fg.expand_dims(x, cast(Any, 1.0))
    with raises(ArgumentError, "size is 1.5"):
        fg.split(x, cast(Any, 1.5))
    with raises(ShapeError, "0.5 is not a size"):
        fg.split(x, cast(Any, [0.5, 1.5]))
    with raises(ShapeError, "variable size"):
        fg.split(x, cast(Any, [fg.Var("n", 0, 2).bind(2)]))


def test_joining_wants_a_list() -> None:
    x = fg.zeros((2, 3))
    for join in (fg.concat, fg.stack):
        with raises(ArgumentError, "one Tensor is not several tensors"):
            join(cast(Any, x))
        with raises(ArgumentError, "one int is not several tensors"):
            join(cast(Any, 3))
    assert fg.concat((x, x)).shape == (4, 3)


def test_axes_may_come_as_any_iterable() -> None:
    assert fg.expand_dims(fg.zeros(2), cast(Any, np.array([0, 2]))).shape == (1, 2, 1)
    assert fg.transpose(fg.zeros((2, 3)), ()).shape == (3, 2)
