"""Tests of fulgurite/functional/array/numpy_indexing.py: NumPy is the oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError
from fulgurite.functional.array import numpy_indexing
from fulgurite.functional.template import memo_of
from tests.functional.helpers import check_gradients, raises, same_bits, tensor
from tests.properties import arithmetic

VALUES = np.arange(60).reshape(3, 4, 5)
X = tensor(VALUES)


@st.composite
def shapes_and_indices(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and an index of any kind whose arrays broadcast and are inside."""
    shape = draw(st.lists(st.sampled_from([3, 2, 4, 1, 0]), min_size=2, max_size=4))
    common = tuple(draw(st.lists(st.sampled_from([3, 2, 1, 0]), max_size=2)))
    parts: list[Any] = []
    place, dots, masked = 0, False, False
    while place < len(shape) and (dots or draw(st.integers(0, 9))):  # after dots to the end
        size = shape[place]
        kind = draw(
            st.sampled_from(["array", "array", "array", "int", "mask", "slice", "none", "flag"])
        )
        if not dots and draw(st.integers(0, 6)) == 0:
            parts.append(Ellipsis)
            dots = True
            place += draw(st.integers(0, len(shape) - place))
            continue
        if kind == "none":
            parts.append(None)
            continue
        if kind == "flag" and not masked:
            parts.append(draw(st.booleans()) or common == ())
            masked = masked or not parts[-1]
            continue
        if kind == "mask" and not masked:
            width = draw(st.integers(1, len(shape) - place))
            covered = tuple(shape[place : place + width])
            count = int(np.prod(covered))
            flat = draw(st.lists(st.booleans(), min_size=count, max_size=count))
            parts.append(np.array(flat, bool).reshape(covered))
            masked, place = True, place + width
            continue
        if kind == "int" and size:
            parts.append(draw(st.integers(-size, size - 1)))
        elif kind == "array" and (size or 0 in common):
            own = tuple(n if draw(st.booleans()) else 1 for n in common)
            own = own[draw(st.integers(0, len(own))) :] if size else common
            count = int(np.prod(own, dtype=int))
            low, high = (-size, size - 1) if size else (0, 0)
            numbers = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
            parts.append(np.array(numbers, draw(st.sampled_from(["int32", "int64", "int8"]))))
            parts[-1] = parts[-1].reshape(own)
        else:
            bound = st.none() | st.integers(-5, 5)
            step = draw(st.none() | st.integers(-3, 3).filter(bool))
            parts.append(slice(draw(bound), draw(bound), step))
        place += 1
    return tuple(shape), tuple(parts)


def lifted(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same index with tensors for arrays."""
    return tuple(tensor(part) if isinstance(part, np.ndarray) else part for part in key)


@arithmetic
@given(shapes_and_indices())
def test_any_index_agrees_with_numpy(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, key = case
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    try:
        want = np.asarray(values[key])
    except IndexError:  # masks and arrays that do not broadcast; or of no use where all is empty
        with pytest.raises((IndexError, ValueError)):
            tensor(values)[key].numpy()
        return
    same_bits(tensor(values)[key], want)
    same_bits(tensor(values)[lifted(key)], want)


@pytest.mark.parametrize(
    "key",
    [
        ([0, 1], [1, 2]),
        ([0, 1], slice(None), 1),
        (0, slice(None), [1, 2]),
        (slice(None), 0, [1, 2]),
        ([[0], [1]], slice(None), [0, 4]),
        (slice(None), [[0], [1]], [0, 4]),
        ([0, 1], Ellipsis, [1, 2]),
        (slice(None), [0, 1], Ellipsis, [1, 2]),
        ([0, 1], None, [1, 2]),
        (None, [0, -1], [1, -1], None),
        (slice(1), [True, False, False, True]),
        ([True, False, True], slice(None), [0, 1]),
        (True,),
        (False,),
        (slice(None), True, [0, 1]),
        (True, [0, 1], None),
        ([],),
        ((0, 1), (1, 1), (0, 0)),
        (np.array(1), [0, 1]),
        (np.array([[[2]]]), 0),
    ],
)
def test_arrays_come_where_numpy_puts_them(key: tuple[Any, ...]) -> None:
    want = VALUES[key]
    same_bits(X[key], want)
    arrays = tuple(np.asarray(p) if isinstance(p, list) and p else p for p in key)
    same_bits(X[lifted(arrays)], want)


def test_masks_choose_elements_and_realize_only_the_mask() -> None:
    x = X * 2
    same_bits(x[VALUES > 30], VALUES[VALUES > 30] * 2)
    same_bits(x[X > 30], VALUES[VALUES > 30] * 2)
    same_bits(x[X > 99], VALUES[VALUES > 99])
    mask = X > 30
    chosen = (X * 3)[mask]
    assert mask.is_realized
    assert not chosen.is_realized


@pytest.mark.parametrize("shape, masked", [((4, 0), 1), ((2, 4, 1, 0), 2), ((0, 0, 3), 2)])
def test_masks_choose_from_what_has_no_elements(shape: tuple[int, ...], masked: int) -> None:
    array = np.zeros(shape, np.float32)
    mask = np.ones(shape[:masked], bool)
    for key in (mask, fg.Tensor(mask)):
        same_bits(fg.Tensor(array)[key], array[mask])


def test_a_range_is_an_array() -> None:
    same_bits(X[range(2), range(1, 3)], VALUES[range(2), range(1, 3)])


def test_indices_of_every_whole_dtype_work_together() -> None:
    for first in ("int8", "uint8", "int32", "uint32", "int64", "uint64"):
        for second in ("int8", "uint16", "uint64"):
            a, b = tensor(np.array([0, 2], first)), tensor(np.array([3, 1], second))
            assert X[a, b, 0].tolist() == [15, 45]


def test_a_0_d_tensor_is_an_index_that_stays_lazy() -> None:
    place = fg.Tensor(1) + 1
    got = X[place, :, 0]
    assert not place.is_realized
    same_bits(got, VALUES[2, :, 0])
    same_bits(X[fg.Tensor(-1), fg.Tensor(1)], VALUES[-1, 1])


def test_several_arrays_are_one_kernel() -> None:
    rows, columns = tensor(np.array([0, 2, 1])), tensor(np.array([1, -1, 0]))
    x = tensor(np.random.default_rng(0).normal(size=(3, 4, 5)))
    assert len(fg.schedule((x[rows, columns] + 1) * 2).items) == 1
    assert len(fg.schedule(fg.exp(x)[[0, 1], :, [1, 2]].sum(axis=1)).items) == 1


def test_gradients_go_back_to_the_chosen_elements() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    check_gradients(lambda x: (x * x)[[0, 2, 0], [1, -1, 1]], values)
    check_gradients(lambda x: (x * x)[[0, 2, 0], None, 1:], values)
    check_gradients(lambda x: (x * x)[values > 0], values)
    check_gradients(lambda x: (x * x)[x > 0], values)
    check_gradients(lambda x: (x * x)[np.array([True, False, True]), [0, 3]], values)


def test_mistakes_name_the_users_line() -> None:
    with raises(BoundsError, "index 3"):
        X[[0, 3], [0, 0]]
    with raises(BoundsError, "index -6 is outside axis 2"):
        X[..., [0, -6]]
    with raises(BoundsError, "mask"):
        X[np.ones((3, 5), bool)]
    with raises(BoundsError, "4 indices"):
        X[np.ones((3, 4), bool), 0, 0]
    with raises(BoundsError, "4 indices"):
        X[[0], [0], [0], [0]]
    with raises(BoundsError, "broadcast"):
        X[[0, 1], [0, 1, 2]]
    with raises(BoundsError, "broadcast"):
        X[fg.Tensor([0, 1]), fg.Tensor([0, 1, 2])]
    with raises(DTypeError):
        X[np.array([0.5])]
    with raises(DTypeError):
        X[fg.Tensor([0.5]), 0]
    with raises(ArgumentError):
        X[[0], ..., ...]
    with raises(BoundsError):
        fg.zeros((0, 2))[fg.Tensor([0])]


def test_an_index_that_is_data_is_checked_and_names_the_line_that_used_it() -> None:
    with raises(BoundsError, "outside"):
        X[fg.Tensor([0, 3]), fg.Tensor([0, 0])].numpy()
    with raises(BoundsError, "outside"):
        X[fg.Tensor([0, 1]), fg.Tensor([0, -5])].numpy()
    with raises(BoundsError, "outside"):
        X[fg.Tensor([0, 2]), :, tensor(np.array([0, 2**64 - 1], "uint64"))].numpy()
    with raises(BoundsError, "outside"):
        X[fg.Tensor([0, 1]), tensor(np.array([0, 2**32 + 1], "uint64"))].numpy()


def test_index_arrays_that_do_not_broadcast_are_an_index_error() -> None:
    x = fg.Tensor(np.zeros((4, 5)))
    with pytest.raises(IndexError, match="do not broadcast"):
        x[[0, 1], [0, 1, 2]]
    with pytest.raises(IndexError, match="do not broadcast"):
        x[fg.Tensor([0, 1]), fg.Tensor([0, 1, 2])]


OUTSIDE: list[tuple[Any, int, int, int]] = [  # of (2, 3, 4): index, wrong place, axis, size
    ((slice(None), fg.Tensor([0, 9])), 9, 1, 3),
    ((fg.Tensor([0, 1]), slice(None), fg.Tensor([0, -5])), -5, 2, 4),
    ((fg.Tensor([0, 5]), fg.Tensor([0, 1])), 5, 0, 2),
    ((fg.Tensor([[0], [1]]), [0, 1], fg.Tensor([7, 1])), 7, 2, 4),
    ((None, 0, fg.Tensor([3])), 3, 1, 3),
    ((..., fg.Tensor([4])), 4, 2, 4),
    ((1, fg.Tensor([1]), fg.Tensor([4], dtype="uint8")), 4, 2, 4),
]


@pytest.mark.parametrize("number", range(len(OUTSIDE)))
def test_an_index_outside_is_told_by_the_users_axis(number: int) -> None:
    key, wrong, axis, size = OUTSIDE[number]
    x = fg.Tensor(np.zeros((2, 3, 4), np.float32))
    with raises(BoundsError, f"index {wrong} is outside axis {axis} of size {size}"):
        x[key].numpy()
    with raises(BoundsError, f"index {wrong} is outside axis {axis} of size {size}"):
        x[key] = 1.0
        x.numpy()


def test_functions_that_index_name_their_axis_and_what_calls_them_does_not() -> None:
    x, place = fg.zeros((2, 3)), fg.Tensor([[5]])
    with raises(BoundsError, "index 5 is outside axis 1 of size 3"):
        fg.take(x, place, axis=-1).numpy()
    with raises(BoundsError, "index 5 is outside axis 1 of size 3"):
        fg.take_along_axis(x + 1, place, axis=1).numpy()
    with raises(BoundsError, "index 5 is outside axis 0 of size 2"):
        x.scatter(0, place, fg.ones((1, 1))).numpy()
    with raises(BoundsError, "index 6 is outside an axis of size 6"):
        fg.take(x, fg.Tensor([6])).numpy()  # of the flattened tensor
    far = fg.Tensor([1, 7])
    both = x[0][far], x[0, far]  # one node: axis 0 here, axis 1 there
    with pytest.raises(BoundsError, match="index 7 is outside an axis of size 3"):
        fg.realize(*both)
    with pytest.raises(BoundsError, match="index 3 is outside an axis of size 3"):
        fg.nll_loss(x, fg.Tensor([3, 0])).numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_mask_chooses_as_numpy_does_from_known_values_and_others(dtype: str, ndim: int) -> None:
    values = (VALUES % 7).astype(getattr(fg, dtype).numpy)
    mask = VALUES.reshape(3, 4, 5)[(...,) + (0,) * (3 - ndim)] % 3 != 1
    x = fg.Tensor(values).realize()
    for key in (mask, fg.Tensor(mask), fg.Tensor(mask).realize()):
        same_bits(x[key], values[mask])
    assert not fg.flip(x, 0)[mask].is_realized
    same_bits(fg.flip(x, 0)[fg.Tensor(mask)], values[::-1][mask])
    assert x[np.zeros_like(mask)].shape == (0, *values.shape[ndim:])
    with raises(BoundsError, "mask"):
        x[np.ones((2,) * ndim, bool)]


@pytest.mark.host_memory
def test_a_mask_over_a_known_value_in_memory_of_the_host_is_read_by_numpy() -> None:
    x = fg.Tensor([1.0, 2.0, 3.0]).realize()
    assert x[np.array([True, False, True])].is_realized


def test_a_mask_under_a_gradient_is_gathered() -> None:
    x = fg.Tensor([1.0, 2.0, 3.0])
    slope = fg.grad(lambda v: (v[fg.Tensor([True, False, True])] ** 2).sum())(x)
    assert slope.tolist() == [2.0, 0.0, 6.0]


@pytest.mark.parametrize(
    "key",
    [
        (slice(None, None, 2),), (slice(None), None), (slice(3, None, -2), None, slice(1, 4, 3)),
        (None, 1, slice(None, None, -1)), (slice(2, 2, 5),), (None,), None, slice(None, None, -1),
    ],
    ids=str,
)  # fmt: skip
def test_parts_with_steps_and_new_axes_are_recalled_and_right(key: Any) -> None:
    memo = memo_of(numpy_indexing._plain_part)
    for turn in range(4):
        x = VALUES + turn
        made = memo.made
        assert tensor(x)[key].tolist() == x[key].tolist()
        assert turn < 3 or memo.made == made


def test_a_step_of_0_and_too_many_indices_are_errors_each_time() -> None:
    for _ in range(3):
        with pytest.raises(ArgumentError):
            X[::0]
        with pytest.raises(BoundsError):
            X[None, 0, 0, 0, 0]
