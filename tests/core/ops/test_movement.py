"""Movement ops against plain NumPy and loops: empty and 0-d shapes, symbolic sizes, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import DTYPES, DType, bfloat16, float32
from fulgurite.core.node import Node, constant
from fulgurite.core.op import Array
from fulgurite.core.operators import OPS
from fulgurite.core.ops.leaf import iota, param, variable
from fulgurite.core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    UNWINDOW,
    WINDOW,
    expand,
    flip,
    pad,
    permute,
    reshape,
    shrink,
    unwindow,
    window,
)
from fulgurite.core.shape import sub
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.samples import hostile, run

X = np.arange(24.0).reshape(2, 3, 4)
EMPTY = np.zeros((2, 0, 4))
NUMBER = np.array(7.0)


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (X, (24,)), (X, (4, 1, 6)), (X, (2, 3, 4)), (EMPTY, (0,)), (EMPTY, (0, 7)),
        (NUMBER, (1, 1)), (NUMBER, ()), (X[:1, :1, :1], ()),
    ],
    ids=str,
)  # fmt: skip
def test_reshape_keeps_the_elements_in_order(x: Array, shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(run(lambda s: RESHAPE(s, arg=shape), x), x.reshape(shape))


def test_reshape_of_a_permuted_value_reads_it_in_its_own_order() -> None:
    value = run(lambda s: reshape(permute(s, (2, 0, 1)), (24,)), X)
    np.testing.assert_array_equal(value, X.transpose(2, 0, 1).ravel())


@pytest.mark.parametrize(
    ("x", "shape"),
    [(X[:, :1], (2, 5, 4)), (X[:, :1], (2, 0, 4)), (NUMBER, ()), (EMPTY[:1], (3, 0, 4))],
    ids=str,
)
def test_expand_repeats_dimensions_of_size_one(x: Array, shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(run(lambda s: EXPAND(s, arg=shape), x), np.broadcast_to(x, shape))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("x", [X, EMPTY], ids=["full", "empty"])
def test_permute_reorders_dimensions(x: Array, order: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(run(lambda s: PERMUTE(s, arg=order), x), np.transpose(x, order))


@pytest.mark.parametrize(
    ("x", "pads"),
    [
        (X, [(1, 2), (0, 0), (3, 0)]), (EMPTY, [(0, 0), (2, 1), (0, 0)]), (NUMBER, []),
        (X, [(0, 0)] * 3),
    ],
    ids=str,
)  # fmt: skip
def test_pad_puts_zeros_around(x: Array, pads: list[tuple[int, int]]) -> None:
    flat = tuple(n for pair in pads for n in pair)
    expected = np.pad(x, pads) if pads else x
    np.testing.assert_array_equal(run(lambda s: PAD(s, arg=flat), x), expected)


@pytest.mark.parametrize(
    ("x", "cuts"),
    [
        (X, [(0, 1), (1, 3), (2, 2)]), (X, [(1, 2), (0, 3), (1, 4)]),
        (EMPTY, [(0, 2), (0, 0), (3, 4)]), (NUMBER, []),
    ],
    ids=str,
)  # fmt: skip
def test_shrink_cuts_a_part_out(x: Array, cuts: list[tuple[int, int]]) -> None:
    flat = tuple(n for pair in cuts for n in pair)
    expected = x[tuple(slice(*cut) for cut in cuts)]
    np.testing.assert_array_equal(run(lambda s: SHRINK(s, arg=flat), x), expected)


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), ()], ids=str)
@pytest.mark.parametrize("x", [X, EMPTY], ids=["full", "empty"])
def test_flip_turns_dimensions_around(x: Array, axes: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(run(lambda s: FLIP(s, arg=axes), x), np.flip(x, axes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moving_changes_no_bit_of_any_dtype(dtype: DType) -> None:
    x = hostile(dtype)[:, None]
    n = len(x)

    def there_and_back(s: Node) -> Node:
        wide = pad(expand(permute(s, (1, 0)), (3, n)), [(0, 0), (1, 1)])
        return flip(flip(shrink(reshape(wide, (3, 1, n + 2)), [(1, 2), (0, 1), (1, n + 1)]),
                         (2,)), (2,))  # fmt: skip

    assert run(there_and_back, x).tobytes() == x.tobytes()


# --- windows -------------------------------------------------------------------------------------


def windows_by_loop(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    count = (x.shape[axis] - (size - 1) * dilation - 1) // stride + 1
    moved = np.moveaxis(x, axis, 0)
    out = np.zeros((count, *moved.shape[1:], size), x.dtype)
    for i in range(count):
        for j in range(size):
            out[i, ..., j] = moved[i * stride + j * dilation]
    return np.moveaxis(out, 0, axis)


def summed_by_loop(w: Array, axis: int, length: int, stride: int, dilation: int) -> Array:
    moved = np.moveaxis(w, axis, 0)
    out = np.zeros((length, *moved.shape[1:-1]), w.dtype)
    for i in range(len(moved)):
        for j in range(w.shape[-1]):
            out[i * stride + j * dilation] += moved[i, ..., j]
    return np.moveaxis(out, 0, axis)


SLIDES = st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))


@given(SLIDES, st.integers(0, 6), st.integers(0, 2))
def test_windows_and_their_sum_agree_with_loops(
    slide: tuple[int, int, int, int], more: int, other: int
) -> None:
    axis, size, stride, dilation = slide
    length = (size - 1) * dilation + 1 + more
    x = np.random.default_rng(1).integers(-9, 9, (length, other) if axis == 0 else (other, length))
    cut = run(lambda s: window(s, axis, size, stride, dilation), x)
    np.testing.assert_array_equal(cut, windows_by_loop(x, axis, size, stride, dilation))
    back = run(lambda s: unwindow(s, axis, length, stride, dilation), np.ascontiguousarray(cut))
    np.testing.assert_array_equal(back, summed_by_loop(cut, axis, length, stride, dilation))


def test_unwindow_adds_small_floats_in_float32() -> None:
    windows = np.full((256, 3), 1.0).astype(bfloat16.numpy)
    windows[:, 1] = 2**-9
    value = run(lambda s: unwindow(s, 0, 258), windows)
    assert float(value[100]) == np.float32(2 + 2**-9).astype(bfloat16.numpy)


def test_no_windows_add_up_to_zeros() -> None:
    value = run(lambda s: unwindow(s, 0, 5, 2), np.zeros((0, 3)))
    np.testing.assert_array_equal(value, np.zeros(5))


# --- symbolic sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4, 9])
def test_movement_takes_symbolic_sizes(n: int) -> None:
    size = variable("n", 1, 16)
    x = param(0, (size, 3), float32)
    array = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    cases: list[tuple[Node, Any]] = [
        (reshape(x, (OPS["mul"](size, constant(3, size.dtype)),)), array.ravel()),
        (permute(x, (1, 0)), array.T),
        (pad(x, [(1, size), (0, 0)]), np.pad(array, [(1, n), (0, 0)])),
        (shrink(x, [(sub(size, 1), size), (0, 3)]), array[-1:]),
        (flip(x, (0,)), array[::-1]),
        (expand(reshape(x, (size, 3, 1)), (size, 3, size)),
         np.broadcast_to(array[:, :, None], (n, 3, n))),
        (expand(constant(2, float32, (1, 1)), (size, size)), np.full((n, n), 2)),
    ]  # fmt: skip
    for node, expected in cases:
        assert node.op.check(node) is None
        (value,) = evaluate([node], {x: array}, {"n": n})
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("n", [5, 8, 11])
def test_windows_take_symbolic_sizes(n: int) -> None:
    size = variable("n", 5, 16)
    x = param(0, (size,), float32)
    array = np.arange(n, dtype=np.float32)
    cut = window(x, 0, 3, 2)
    back = unwindow(cut, 0, size, 2)
    assert cut.op.check(cut) is None and back.op.check(back) is None
    one = cut + constant(1, float32, cut.shape)  # a constant whose size is n // 2 and so on
    values = evaluate([cut, back, one, iota(cut.shape, 0)], {x: array}, {"n": n})
    expected = windows_by_loop(array, 0, 3, 2, 1)
    np.testing.assert_array_equal(values[0], expected)
    np.testing.assert_array_equal(values[1], summed_by_loop(expected, 0, n, 2, 1))
    np.testing.assert_array_equal(values[2], expected + 1)
    assert values[3].shape == expected.shape


# --- checks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "part"),
    [
        (lambda x: RESHAPE(x, arg=(5,)), "cannot take shape"),
        (lambda x: EXPAND(x, arg=(2, 3, 5)), "does not expand"),
        (lambda x: EXPAND(x, arg=(2, 3)), "does not expand"),
        (lambda x: PERMUTE(x, arg=(0, 1)), "no order"),
        (lambda x: PERMUTE(x, arg=(0, 1, 1)), "no order"),
        (lambda x: PAD(x, arg=(0, 0, -1, 0, 0, 0)), "bad padding"),
        (lambda x: PAD(x, arg=(0, 0)), "bad padding"),
        (lambda x: SHRINK(x, arg=(0, 2, 0, 4, 0, 4)), "not inside"),
        (lambda x: SHRINK(x, arg=(0, 2, 2, 1, 0, 4)), "not inside"),
        (lambda x: SHRINK(x, arg=(0, 2)), "bad cut"),
        (lambda x: FLIP(x, arg=(3,)), "bad axes"),
        (lambda x: FLIP(x, arg=(0, 0)), "bad axes"),
        (lambda x: WINDOW(x, arg=(0, 3, 1, 1)), "does not fit"),
        (lambda x: WINDOW(x, arg=(0, 0, 1, 1)), "bad window"),
        (lambda x: WINDOW(x, arg=(4, 1, 1, 1)), "bad window"),
        (lambda x: UNWINDOW(x, arg=(0, 4, 1, 1)), "do not fit"),
        (lambda x: UNWINDOW(x, arg=(2, 9, 1, 1)), "bad windows"),
    ],
)
def test_a_wrong_argument_does_not_pass_the_check(node: Any, part: str) -> None:
    made = node(constant(1, float32, (2, 3, 4)))
    assert part in made.op.check(made)


def test_moving_nothing_makes_no_node() -> None:
    x = constant(1, float32, (2, 3))
    assert reshape(x, (2, 3)) is x
    assert expand(x, (2, 3)) is x
    assert permute(x, (0, 1)) is x
    assert pad(x, [(0, 0), (0, 0)]) is x
    assert shrink(x, [(0, 2), (0, 3)]) is x
    assert flip(x, ()) is x
