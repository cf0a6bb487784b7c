"""Tests of fulgurite/functional/nn/pooling.py against windows taken one by one."""

from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.dtype import dtype_of
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import Array, check_gradients, hostile, raises, same_bits, tensor

MAX: list[Any] = [None, fg.max_pool1d, fg.max_pool2d, fg.max_pool3d]
AVG: list[Any] = [None, fg.avg_pool1d, fg.avg_pool2d, fg.avg_pool3d]
ADAPTIVE_MAX: list[Any] = [
    None, fg.adaptive_max_pool1d, fg.adaptive_max_pool2d, fg.adaptive_max_pool3d,
]  # fmt: skip
ADAPTIVE_AVG: list[Any] = [
    None, fg.adaptive_avg_pool1d, fg.adaptive_avg_pool2d, fg.adaptive_avg_pool3d,
]  # fmt: skip


def count_of(size: int, window: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    """How many windows torch takes."""
    room = size + 2 * pad - (window - 1) * gap - 1
    count = (ceil(room / step) if ceil_mode else room // step) + 1
    return count - (ceil_mode and (count - 1) * step >= size + pad)


def pooled(x: Array, c: dict[str, Any], mean: bool, include: bool = True) -> Array:
    """Window by window; what is outside x counts for nothing, or as torch counts it."""
    n = len(c["window"])
    rows = list(zip(x.shape[-n:], c["window"], c["step"], c["pad"], c["gap"], strict=True))
    counts = [count_of(*row, c["ceil"]) for row in rows]
    out = np.zeros((*x.shape[:-n], *counts))
    for at in np.ndindex(*counts):
        places, size = [], 1
        for i, (length, window, step, pad, gap) in zip(at, rows, strict=True):
            start = i * step - pad
            places.append([p for p in range(start, start + (window - 1) * gap + 1, gap)
                           if 0 <= p < length])  # fmt: skip
            size *= min(start + window, length + pad) - start if include else len(places[-1])
        boxes: list[Any] = [(..., *p) for p in product(*places)]
        part: list[Any] = [x[box] for box in boxes]
        out[(..., *at)] = sum(part) / size if mean else np.max(part or [-np.inf], axis=0)
    return out


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, dict[str, Any]]:
    """x of whole numbers, and windows that fit it."""
    n = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    window, gap = each(1, 3), each(1, 2)
    pad = [draw(st.integers(0, w // 2)) for w in window]
    rows = zip(each(0, 3), window, gap, pad, strict=True)
    space = [max(1, (w - 1) * g + 1 - 2 * p) + more for more, w, g, p in rows]
    lead = draw(st.lists(st.integers(1, 2), max_size=2))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    x = rng.integers(-9, 9, (*lead, *space)).astype(np.float64)
    ceil_mode = draw(st.booleans())
    return x, {"window": window, "gap": gap, "pad": pad, "step": each(1, 3), "ceil": ceil_mode}


@given(cases())
def test_max_pooling_agrees_with_windows_one_by_one(case: tuple[Array, dict[str, Any]]) -> None:
    x, c = case
    want = pooled(x, c, mean=False)
    n = len(c["window"])
    got = MAX[n](tensor(x), c["window"], c["step"], c["pad"], c["gap"], c["ceil"])
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want)
    whole = MAX[n](tensor(x.astype("int8")), c["window"], c["step"], c["pad"], c["gap"], c["ceil"])
    same_bits(whole, np.maximum(want, -128).astype("int8"))


@given(cases(), st.booleans())
def test_mean_pooling_agrees_with_windows_one_by_one(
    case: tuple[Array, dict[str, Any]], include: bool
) -> None:
    x, c = case
    n = len(c["window"])
    c = {**c, "gap": [1] * n}
    want = pooled(x, c, mean=True, include=include)
    got = AVG[n](tensor(x), c["window"], c["step"], c["pad"], c["ceil"], include)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-14, atol=1e-14)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.data())
def test_adaptive_pooling_agrees_with_windows_one_by_one(
    space: list[int], data: st.DataObject
) -> None:
    n = len(space)
    outs = data.draw(st.lists(st.integers(1, 8), min_size=n, max_size=n))
    x = np.random.default_rng(0).integers(-9, 9, (2, *space)).astype(np.float64)
    largest, mean = np.zeros((2, 2, *outs))
    for at in np.ndindex(*outs):
        rows = zip(at, space, outs, strict=True)
        box: Any = (..., *[slice(i * s // o, ceil((i + 1) * s / o)) for i, s, o in rows])
        axes = tuple(range(1, n + 1))
        largest[(..., *at)], mean[(..., *at)] = x[box].max(axes), x[box].mean(axes)
    np.testing.assert_array_equal(ADAPTIVE_MAX[n](tensor(x), outs).numpy(), largest)
    got = ADAPTIVE_AVG[n](tensor(x), outs)
    assert got.shape == mean.shape
    np.testing.assert_allclose(got.numpy(), mean, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "bfloat16"])
def test_padding_never_wins_a_maximum(dtype: str) -> None:
    numpy = dtype_of(dtype).numpy
    low = 0 if dtype in ("bool", "uint8") else -5
    x = np.full((1, 4), low).astype(numpy)
    got = fg.max_pool1d(tensor(x), 3, 1, 1)
    same_bits(got, x)
    assert fg.adaptive_max_pool1d(tensor(x), 3).numpy().tolist() == x[:, :3].tolist()


def test_nan_and_infinity_pass_through_their_windows_only() -> None:
    x = hostile("float64")[None]
    got = fg.max_pool1d(tensor(x), 2)
    same_bits(got, np.maximum(x[:, ::2], x[:, 1::2]) + 0.0 * 0)
    assert np.isnan(fg.avg_pool1d(tensor(x), 2).numpy()[0]).tolist() == [False] * 10 + [True]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_of_half_floats_add_up_in_float32(dtype: str) -> None:
    x = fg.ones((1, 4096), dtype)
    got = fg.avg_pool1d(x, 4096)
    assert got.dtype.name == dtype
    assert got.item() == 1
    assert fg.adaptive_avg_pool1d(x, 1).item() == 1
    assert fg.avg_pool1d(fg.Tensor([[1, 2]]), 2).dtype is fg.float32


def test_a_size_that_is_not_given_stays() -> None:
    x = fg.ones((2, 4, 6))
    assert fg.adaptive_avg_pool2d(x, (None, 3)).shape == (2, 4, 3)
    assert fg.adaptive_max_pool2d(x, (2, None)).shape == (2, 2, 6)
    assert fg.max_pool2d(x, 2).shape == (2, 2, 3)


def test_pooling_is_one_kernel_with_what_is_around_it() -> None:
    x = tensor(np.random.default_rng(0).normal(size=(2, 3, 8, 8)))
    for y in (
        fg.max_pool2d(x, 2), fg.max_pool2d(x, 3, 2, 1), fg.max_pool2d(x, 3, 2, ceil_mode=True),
        fg.avg_pool2d(x, 2), fg.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        fg.avg_pool2d(x, 3, 2, ceil_mode=True), fg.adaptive_avg_pool2d(x, 1),
        fg.adaptive_max_pool2d(x, (2, 4)),
    ):  # fmt: skip
        kinds = [item.kernel.kind for item in fg.schedule(fg.relu(y) * 2).items]
        assert kinds == ["reduce"]


def test_gradients() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 6))
    check_gradients(lambda x: fg.max_pool2d(x, 2), x)
    check_gradients(lambda x: fg.max_pool2d(x, 3, 2, 1, ceil_mode=True), x)
    check_gradients(lambda x: fg.max_pool1d(x, 2, 1, dilation=2), x)
    check_gradients(lambda x: fg.avg_pool2d(x * x, 2), x)
    check_gradients(lambda x: fg.avg_pool2d(x * x, 3, 2, 1, True, False), x)
    check_gradients(lambda x: fg.adaptive_avg_pool2d(x * x, (2, 4)), x)
    check_gradients(lambda x: fg.adaptive_max_pool2d(x, (2, 4)), x)
    check_gradients(lambda x: fg.adaptive_avg_pool2d(x * x, (5, 3)), x)


def test_mistakes_name_the_users_line() -> None:
    x = fg.ones((2, 4))
    with raises(ShapeError):
        fg.max_pool3d(x, 2)
    with raises(ShapeError):
        fg.adaptive_max_pool3d(x, 2)
    with raises(ShapeError, "does not fit"):
        fg.max_pool1d(x, 5)
    with raises(ArgumentError, "kernel_size"):
        fg.avg_pool1d(x, 0)
    with raises(ArgumentError, "stride"):
        fg.avg_pool1d(x, 2, stride=0)
    with raises(ArgumentError, "half a window"):
        fg.max_pool1d(x, 2, padding=2)
    with raises(ArgumentError, "output_size"):
        fg.adaptive_avg_pool2d(x, (1, 2, 3))
    with raises(ArgumentError, "output_size"):
        fg.adaptive_avg_pool2d(x, 0)
    with raises(ShapeError):
        fg.adaptive_avg_pool1d(fg.ones((2, 0)), 1)
