"""Tests of fulgurite/functional/nn/convolution.py against sums of shifted slices."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.dtype import dtype_of
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import Array, check_gradients, raises, tensor

CONV: list[Any] = [None, fg.conv1d, fg.conv2d, fg.conv3d]
TRANSPOSE: list[Any] = [None, fg.conv_transpose1d, fg.conv_transpose2d, fg.conv_transpose3d]


def _steps(at: Any, counts: Any, stride: Any, dilation: Any) -> tuple[slice, ...]:
    rows = zip(at, counts, stride, dilation, strict=True)
    return tuple(slice(a * d, a * d + (n - 1) * s + 1, s) for a, n, s, d in rows)


def convolved(x: Array, w: Array, stride: Any, pads: Any, dilation: Any, groups: int) -> Array:
    """Each element of the window times a strided slice of x."""
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    inner, outer = w.shape[1], w.shape[0] // groups
    counts = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    for o, at in product(range(w.shape[0]), np.ndindex(*w.shape[2:])):
        channels = slice(o // outer * inner, (o // outer + 1) * inner)
        part = x[(slice(None), channels, *_steps(at, counts, stride, dilation))]
        out[:, o] += np.tensordot(part, w[(o, slice(None), *at)], (1, 0))
    return out


def transposed(
    x: Array, w: Array, stride: Any, cuts: Any, extras: Any, groups: int, dilation: Any
) -> Array:
    """Each element of x adds its multiple of the weights; then the edges are cut."""
    outer, inner = w.shape[1], x.shape[1] // groups
    rows = zip(x.shape[2:], w.shape[2:], stride, dilation, extras, strict=True)
    full = [(n - 1) * s + (k - 1) * d + 1 + e for n, k, s, d, e in rows]
    out = np.zeros((x.shape[0], outer * groups, *full), x.dtype)
    for c, o, at in product(range(x.shape[1]), range(outer), np.ndindex(*w.shape[2:])):
        to = (slice(None), c // inner * outer + o, *_steps(at, x.shape[2:], stride, dilation))
        out[to] += x[:, c] * w[(c, o, *at)]
    inside: Any = (..., *[slice(cut, n - cut) for cut, n in zip(cuts, full, strict=True)])
    return np.asarray(out[inside])


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, strides and so on of one convolution; whole numbers, so that sums are exact."""
    n = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    inner, outer = (groups * draw(st.integers(1, 2)) for _ in range(2))
    space, window = each(1, 6), each(1, 3)
    return {
        "n": n, "groups": groups, "stride": each(1, 3), "dilation": each(1, 2),
        "x": rng.integers(-4, 5, (draw(st.integers(1, 2)), inner, *space)).astype(np.float64),
        "w": rng.integers(-4, 5, (outer, inner // groups, *window)).astype(np.float64),
        "b": rng.integers(-4, 5, outer).astype(np.float64),
        "low": each(0, 2), "high": each(0, 2), "extra": each(0, 1),
    }  # fmt: skip


@given(layers())
def test_convolution_agrees_with_sums_of_slices(c: dict[str, Any]) -> None:
    pads = list(zip(c["low"], c["high"], strict=True))
    reach = [(k - 1) * d + 1 for k, d in zip(c["w"].shape[2:], c["dilation"], strict=True)]
    rest = (c["stride"], pads, c["dilation"], c["groups"])
    arguments = (tensor(c["x"]), tensor(c["w"]), tensor(c["b"]), *rest)
    rows = zip(c["x"].shape[2:], pads, reach, strict=True)
    if any(size + low + high < need for size, (low, high), need in rows):
        with raises(ShapeError, "does not fit"):
            CONV[c["n"]](*arguments)
        return
    want = convolved(c["x"], c["w"], *rest) + c["b"].reshape(-1, *[1] * c["n"])
    got = CONV[c["n"]](*arguments)
    assert got.shape == want.shape
    assert len(fg.schedule(fg.relu(got)).items) == 1
    np.testing.assert_array_equal(got.numpy(), want)


@given(layers())
def test_transposed_convolution_agrees_with_sums_of_slices(c: dict[str, Any]) -> None:
    groups, n = c["groups"], c["n"]
    rng = np.random.default_rng(0)
    inner = c["x"].shape[1]
    w = rng.integers(-4, 5, (inner, c["b"].size // groups, *c["w"].shape[2:])).astype(np.float64)
    extras = [
        min(e, max(s, d) - 1)
        for e, s, d in zip(c["extra"], c["stride"], c["dilation"], strict=True)
    ]
    rest = (c["stride"], c["low"], extras, groups, c["dilation"])
    want = transposed(c["x"], w, *rest)
    arguments = (tensor(c["x"]), tensor(w), tensor(c["b"]), *rest)
    if not all(want.shape):
        with raises(ShapeError, "would have size"):
            TRANSPOSE[n](*arguments)
        return
    got = TRANSPOSE[n](*arguments)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want + c["b"].reshape(-1, *[1] * n))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 6, 7])
def test_same_padding_gives_one_result_for_each_stride(stride: int, window: int, size: int) -> None:
    x, w = np.ones((1, 1, size)), np.ones((1, 1, window))
    got = fg.conv1d(tensor(x), tensor(w), stride=stride, padding="same")
    assert got.shape == (1, 1, -(-size // stride))
    if stride == 1:
        np.testing.assert_array_equal(got.numpy()[0, 0], np.convolve(x[0, 0], w[0, 0])[
            window // 2 : window // 2 + size
        ])  # fmt: skip


def test_the_odd_element_of_same_padding_comes_after() -> None:
    got = fg.conv1d(fg.Tensor([[[1.0, 2.0, 3.0]]]), fg.Tensor([[[1.0, 10.0]]]), padding="same")
    assert got.tolist() == [[[21.0, 32.0, 3.0]]]


def test_numbers_may_be_those_of_numpy() -> None:
    x, w, two = fg.ones((1, 2, 5)), fg.ones((3, 2, 3)), np.int64(2)
    assert fg.conv1d(x, w, None, two, two, two).shape == (1, 3, 3)  # type: ignore[arg-type]


def test_a_batch_may_be_left_out_or_empty() -> None:
    x, w = fg.ones((2, 5, 5)), fg.ones((3, 2, 3, 3))
    assert fg.conv2d(x, w).tolist() == fg.conv2d(fg.reshape(x, (1, 2, 5, 5)), w)[0].tolist()
    assert fg.conv_transpose2d(x, fg.ones((2, 3, 2, 2)), stride=2).shape == (3, 10, 10)
    assert fg.conv2d(fg.ones((0, 2, 5, 5)), w).numpy().shape == (0, 3, 3, 3)
    assert fg.conv2d(x, fg.ones((0, 2, 3, 3))).numpy().shape == (0, 3, 3)
    assert fg.conv1d(fg.ones((1, 0, 4)), fg.ones((2, 0, 3))).tolist() == [[[0.0, 0.0]] * 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_add_up_in_float32_and_round_once(dtype: str) -> None:
    rng = np.random.default_rng(0)
    numpy = dtype_of(dtype).numpy
    x, w, b = (rng.normal(size=s).astype(numpy) for s in ((1, 64, 6, 6), (4, 64, 3, 3), (4,)))
    got = fg.conv2d(tensor(x), tensor(w), tensor(b))
    assert got.dtype.name == dtype
    wide = [a.astype(np.float32) for a in (x, w, b)]
    exact = convolved(wide[0].astype(float), wide[1].astype(float), (1, 1), [(0, 0)] * 2, (1, 1), 1)
    exact += wide[2].reshape(-1, 1, 1)
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(got.numpy().astype(float), exact, rtol=step * 1.01, atol=1e-3 * step)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "int64"])
def test_whole_numbers_convolve_and_wrap_around(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 100, s).astype(dtype) for s in ((1, 2, 5), (3, 2, 3)))
    got = fg.conv1d(tensor(x), tensor(w))
    want = convolved(x.astype(np.int64), w.astype(np.int64), (1,), [(0, 0)], (1,), 1)
    np.testing.assert_array_equal(got.numpy(), want.astype(dtype))
    assert got.dtype.name == dtype


def test_convolution_with_bias_and_relu_is_one_contraction() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (tensor(rng.normal(size=s)) for s in ((2, 4, 8, 8), (6, 4, 3, 3), (6,)))
    for options in ({}, {"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2},
                    {"padding": "same"}, {"padding": [(0, 1), 2]}):  # fmt: skip
        items = fg.schedule(fg.relu(fg.conv2d(x, w, b, **options))).items
        assert [item.kernel.kind for item in items] == ["contract"]
    for kind, groups in (("contract", 2), ("reduce", 4)):  # depthwise has nothing to share
        weights = tensor(rng.normal(size=(4, 4 // groups, 3, 3)))
        items = fg.schedule(fg.relu(fg.conv2d(x, weights, None, groups=groups))).items
        assert [item.kernel.kind for item in items] == [kind]
    cast: Any = fg.realize(x.astype("float16"), w.astype("float16"), b.astype("float16"))
    half = fg.relu(CONV[2](*cast, padding=1))
    assert [item.kernel.kind for item in fg.schedule(half).items] == ["contract"]


def test_doubling_transposed_convolutions_are_one_contraction() -> None:
    rng = np.random.default_rng(0)
    x, b = tensor(rng.normal(size=(2, 4, 8, 8))), tensor(rng.normal(size=(6,)))
    one, cropped = ["contract"], ["contract", "map"]  # 4 products a result and a crop, not 9
    for window, kinds, options in (
        (2, one, {"stride": 2}),
        (4, cropped, {"stride": 2, "padding": 1}),
        (3, one, {"stride": 2, "padding": 1, "output_padding": 1}),
        (3, one, {"padding": 1}),
    ):
        w = tensor(rng.normal(size=(4, 6, window, window)))
        y = fg.relu(fg.conv_transpose2d(x, w, b, **options))
        assert [item.kernel.kind for item in fg.schedule(y).items] == kinds
        assert sum(kernel.text.count("//") for kernel in fg.explain(y).kernels) == 0


def test_gradients() -> None:
    rng = np.random.default_rng(0)

    def values(*shape: int) -> Array:
        return rng.normal(size=shape)

    check_gradients(
        lambda x, w, b: fg.conv1d(x, w, b, 2, [(1, 2)], 2), values(2, 2, 7), values(3, 2, 3),
        values(3),
    )  # fmt: skip
    check_gradients(
        lambda x, w: fg.conv2d(x, w, None, (1, 2), 1, 1, 2), values(1, 4, 3, 4), values(2, 2, 2, 3)
    )
    check_gradients(lambda x, w: fg.conv3d(x, w), values(1, 1, 2, 3, 2), values(1, 1, 2, 2, 1))
    check_gradients(
        lambda x, w, b: fg.conv_transpose1d(x, w, b, 2, 1, 1, 1, 2), values(1, 2, 3),
        values(2, 2, 3), values(2),
    )  # fmt: skip
    check_gradients(
        lambda x, w: fg.conv_transpose2d(x, w, None, (2, 1), 1, groups=2), values(1, 2, 3, 2),
        values(2, 1, 3, 3),
    )  # fmt: skip


def test_mistakes_name_the_users_line() -> None:
    x, w = fg.ones((1, 4, 5, 5)), fg.ones((6, 4, 3, 3))
    with raises(ShapeError, "groups"):
        fg.conv2d(x, w, groups=3)
    with raises(ShapeError, "channels / groups"):
        fg.conv2d(x, w, groups=2)
    with raises(ShapeError):
        fg.conv1d(x, w)
    with raises(ShapeError, "does not fit"):
        fg.conv2d(x, fg.ones((6, 4, 7, 7)))
    with raises(ShapeError, "bias"):
        fg.conv2d(x, w, fg.ones(5))
    with raises(ArgumentError, "padding"):
        fg.conv2d(x, w, padding="full")
    with raises(ArgumentError, "padding"):
        fg.conv2d(x, w, padding=(1, 2, 3))
    with raises(ArgumentError, "padding"):
        fg.conv2d(x, w, padding=-1)
    with raises(ArgumentError, "padding"):
        fg.conv2d(x, w, padding=[(1, -1), 1])
    with raises(ArgumentError, "stride"):
        fg.conv2d(x, w, stride=0)
    with raises(ArgumentError, "stride"):
        fg.conv2d(x, w, stride=[1.5, 2])  # type: ignore[list-item]
    with raises(ArgumentError, "stride"):
        fg.conv2d(x, w, stride=(1, 1, 1))
    with raises(ArgumentError, "dilation"):
        fg.conv2d(x, w, dilation=0)
    with raises(ShapeError, "channels"):
        fg.conv_transpose2d(x, w)
    with raises(ArgumentError, "output_padding"):
        fg.conv_transpose2d(x, fg.ones((4, 2, 3, 3)), stride=2, output_padding=2)
