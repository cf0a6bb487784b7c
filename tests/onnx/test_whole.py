"""Products of quantised numbers: exact to the last bit, whatever zeros they are counted from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.ops.elementwise import CAST, MUL
from fulgurite.core.ops.index import LOAD
from fulgurite.core.ops.movement import PERMUTE
from fulgurite.core.passes import show
from fulgurite.graph.fusion.index_cost import only_chooses
from fulgurite.graph.ir.lower import IndexKernel
from fulgurite.onnx import load
from fulgurite.onnx.ops.nn import convolution as convolution_module
from fulgurite.runtime.device import get_device
from tests.onnx.models import graph, model, node, port

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
ENDS = {"uint8": (0, 1, 127, 128, 254, 255), "int8": (-128, -127, -1, 0, 1, 127)}


def hostile(kind: str, *shape: int) -> Array:
    """Bytes most of which are at the ends of their range."""
    return RNG.choice(ENDS[kind], shape).astype(kind)


def built(
    nodes: list[bytes], given: dict[str, Array], weights: dict[str, Array], out: str
) -> Array:
    ports = [port(name, x.dtype.name, x.shape) for name, x in given.items()]
    text = model(graph(nodes, ports, [port("y", out)], weights))
    return np.asarray(load(text)(**given)["y"])


def wrapped(total: Array) -> Array:
    """Exact sums as int32 has them."""
    return total.astype(np.int64).astype(np.int32)


@pytest.mark.parametrize("stored", [False, True], ids=["computed", "stored"])
@pytest.mark.parametrize("kinds", ["uint8 int8", "int8 uint8", "int8 int8", "uint8 uint8"])
@pytest.mark.parametrize("zeros", [(0, 0), (255, 127), (-128, 128)])
def test_products_of_bytes_are_exact(kinds: str, zeros: tuple[int, int], stored: bool) -> None:
    """Around zeros at both ends, of one row, and of so many steps that sums wrap around."""
    a_kind, b_kind = kinds.split()
    za, zb = (
        np.array(np.clip(z, *(ENDS[k][0], ENDS[k][-1])), k)
        for z, k in zip(zeros, (a_kind, b_kind), strict=True)
    )
    for m, k, n in ((5, 37, 19), (1, 64, 33), (2, 40_000, 3)):
        a, b = hostile(a_kind, m, k), hostile(b_kind, k, n)
        if k > 1000:  # the largest sums there are
            a[0], b[:, 0] = a.max(), b.max()
        left, right = (x.astype(np.int64) - int(z) for x, z in ((a, za), (b, zb)))
        given, weights = {"a": a}, {"za": za, "zb": zb}
        (weights if stored else given)["b"] = b
        found = built([node("MatMulInteger", "a b za zb", "y")], given, weights, "int32")
        np.testing.assert_array_equal(found, wrapped(left @ right))


def test_zeros_may_be_by_row_and_by_column() -> None:
    a, b = hostile("uint8", 3, 8, 20), hostile("uint8", 20, 6)
    za, zb = hostile("uint8", 8), hostile("uint8", 6)
    found = built([node("MatMulInteger", "a b za zb", "y")], {"a": a},
                  {"b": b, "za": za, "zb": zb}, "int32")  # fmt: skip
    left, right = a.astype(int) - za.reshape(-1, 1), b.astype(int) - zb
    np.testing.assert_array_equal(found, wrapped(left @ right))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("kinds", ["uint8 int8", "int8 int8", "uint8 uint8"])
def test_convolutions_of_bytes_are_exact(kinds: str, groups: int) -> None:
    """What is around a picture is its zero, not the number 0."""
    x_kind, w_kind = kinds.split()
    x, w = hostile(x_kind, 2, 6, 9, 7), hostile(w_kind, 12, 6 // groups, 3, 3)
    zx, zw = np.array(3, x_kind), np.array(0 if w_kind == "int8" else 128, w_kind)
    found = built(
        [node("ConvInteger", "x w zx zw", "y", pads=[1, 2, 1, 0], strides=[2, 1], group=groups)],
        {"x": x}, {"w": w, "zx": zx, "zw": zw}, "int32",
    )  # fmt: skip
    centred = np.pad(x.astype(int) - 3, ((0, 0), (0, 0), (1, 1), (2, 0)))
    weights = w.astype(int) - int(zw)
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 3), (2, 3))[:, :, ::2]
    each = 12 // groups
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * 6 // groups : (g + 1) * 6 // groups],
                  weights[g * each : (g + 1) * each])
        for g in range(groups)
    ]  # fmt: skip
    np.testing.assert_array_equal(found, np.concatenate(parts, 1))


SCALES: dict[str, Any] = {
    "sa": np.float32(0.03),
    "sy": np.float32(0.4),
    "za": np.uint8(131),
    "zy": np.int8(-5),
}


def test_dequantised_factors_are_multiplied_as_bytes() -> None:
    """DequantizeLinear, MatMul, QuantizeLinear: sums are exact, and nothing wider is stored."""
    x = RNG.standard_normal((64, 96)).astype(np.float32)
    b, sb = hostile("int8", 96, 32), np.linspace(0.01, 0.02, 32, dtype=np.float32)
    nodes = [
        node("QuantizeLinear", "x sa za", "q"), node("DequantizeLinear", "q sa za", "a"),
        node("DequantizeLinear", "w sb", "b", axis=1), node("MatMul", "a b", "p"),
        node("QuantizeLinear", "p sy zy", "y"),
    ]  # fmt: skip
    weights: dict[str, Any] = {"w": b, "sb": sb, **SCALES}
    found = built(nodes, {"x": x}, weights, "int8")
    q = np.clip(np.round(x / SCALES["sa"]) + 131, 0, 255).astype(int)
    total = ((q - 131) @ b.astype(int)).astype(np.float32) * (SCALES["sa"] * sb)
    want = np.clip(np.round(total / SCALES["sy"]) - 5, -128, 127)
    np.testing.assert_array_equal(found, want)


def test_bytes_that_are_moved_are_quantised_once() -> None:
    """QuantizeLinear of what DequantizeLinear gave, moved, is the bytes, moved."""
    q = hostile("uint8", 4, 6, 5)
    nodes = [
        node("DequantizeLinear", "q sa za", "x"), node("Transpose", "x", "t", perm=[2, 0, 1]),
        node("MaxPool", "t", "m", kernel_shape=[2], strides=[2]),
        node("QuantizeLinear", "m sa za", "y"),
    ]  # fmt: skip
    found = built(nodes, {"q": q}, dict(SCALES), "uint8")
    turned = q.transpose(2, 0, 1)
    np.testing.assert_array_equal(found, np.maximum(turned[..., ::2], turned[..., 1::2]))


@pytest.mark.parametrize(("inner", "groups"), [(4, 1), (16, 1), (8, 8)])
def test_dequantised_pictures_are_convolved_as_bytes(inner: int, groups: int) -> None:
    """With channels in front, at the end, and each alone; then quantised and convolved again."""
    x, w = hostile("uint8", 1, inner, 6, 6), hostile("int8", 8, inner // groups, 3, 3)
    sw, bias = np.linspace(0.01, 0.02, 8, dtype=np.float32), np.ones(8, np.float32)
    nodes = [
        node("DequantizeLinear", "x sa za", "f"), node("DequantizeLinear", "w sw", "g", axis=0),
        node("Conv", "f g bias", "c", pads=[1, 1, 1, 1], group=groups),
        node("QuantizeLinear", "c sy za", "q"), node("DequantizeLinear", "q sy za", "d"),
        node("DequantizeLinear", "v sw", "h", axis=0), node("Conv", "d h", "y"),
    ]  # fmt: skip
    v = hostile("int8", 8, 8, 1, 1)
    weights = {"w": w, "v": v, "sw": sw, "bias": bias, **SCALES}
    found = built(nodes, {"x": x}, weights, "float32")
    centred = np.pad(x.astype(int) - 131, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 3), (2, 3))
    total = (
        np.einsum("nchwij,ocij->nohw", windows, w.astype(int)) if groups == 1
        else np.einsum("nohwij,oij->nohw", windows, w[:, 0].astype(int))
    ).astype(np.float32)  # fmt: skip
    real = total * (SCALES["sa"] * sw)[:, None, None] + np.float32(1)
    q = np.clip(np.round(real / SCALES["sy"]) + 131, 0, 255).astype(int) - 131
    again = np.einsum("nchw,oc->nohw", q, v[:, :, 0, 0].astype(int)).astype(np.float32)
    want = again * (SCALES["sy"] * sw)[:, None, None]
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_computed_bytes_are_stored_as_bytes() -> None:
    """A product of computed bytes reads them, not what they are made of or made to."""
    x = fg.Tensor(RNG.standard_normal((64, 96)).astype(np.float32))
    w = fg.Tensor(hostile("int8", 96, 32))
    q = (fg.round(x / 0.1) + 128).astype(fg.uint8)
    with fg.config(tier="native"):
        items = fg.schedule(fg.exp(q.astype(fg.int32) @ w.astype(fg.int32))).items
    (product,) = [i.kernel for i in items if i.kernel.kind == "contract"]
    assert isinstance(product.lowered, IndexKernel)
    text = show(product.lowered.body)
    assert ": uint8[]" in text and ": int8[]" in text and "round" not in text


def real_convolution(x: Array, w: Array, pads: tuple[int, ...], stride: int, groups: int) -> Array:
    """Exact sums of a convolution of whole numbers around 0."""
    x = np.pad(x, ((0, 0), (0, 0), pads[::2], pads[1::2]))
    kinds = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    kinds = kinds[:, :, ::stride, ::stride]
    inner, outer = w.shape[1], w.shape[0] // groups
    parts = [
        np.einsum("nchwij,ocij->nohw", kinds[:, g * inner : (g + 1) * inner],
                  w[g * outer : (g + 1) * outer])
        for g in range(groups)
    ]  # fmt: skip
    return np.concatenate(parts, 1)


CONVOLUTIONS = [  # channels in and out, window, stride, pads before and after, depthwise
    (3, 16, (3, 3), 2, (1, 1, 0, 0), False), (16, 33, (1, 1), 1, (0, 0, 0, 0), False),
    (5, 20, (3, 2), 1, (1, 0, 2, 1), False), (32, 16, (1, 1), 2, (0, 0, 0, 0), False),
    (20, 20, (3, 3), 1, (1, 1, 1, 1), True), (16, 16, (5, 5), 2, (2, 2, 2, 2), True),
    (33, 33, (3, 1), 1, (1, 0, 0, 0), True), (17, 17, (1, 4), 1, (0, 3, 0, 1), True),
    (16, 50, (3, 3), 1, (1, 1, 1, 1), False), (20, 16, (3, 4), 3, (0, 2, 1, 1), False),
    (1, 32, (3, 3), 2, (0, 0, 0, 0), False), (1, 1, (3, 3), 1, (1, 1, 1, 1), True),
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kinds", ["uint8 int8", "int8 int8", "uint8 uint8"])
@pytest.mark.parametrize("one", CONVOLUTIONS, ids=lambda one: "-".join(map(str, one[:3])))
def test_quantised_convolutions_are_exact(one: Any, kinds: str, threads: int) -> None:
    """Whatever zero is around a picture, with a scale for each channel, at both limits."""
    inner, outer, size, stride, pads, alone = one
    x_kind, w_kind = kinds.split()
    x, groups = hostile(x_kind, 2, inner, 9, 11), inner if alone else 1
    w = hostile(w_kind, outer, inner // groups, *size)
    zx = np.array(RNG.choice(ENDS[x_kind]), x_kind)
    zw = np.array(0 if w_kind == "int8" else RNG.choice((3, 128)), w_kind)
    zy, bias = np.array(100, x_kind), RNG.integers(-4000, 4000, outer).astype(np.int32)
    sx, sw = np.float32(0.02), np.geomspace(0.001, 0.05, outer).astype(np.float32)
    weights: dict[str, Any] = {"sx": sx, "zx": zx, "w": w, "sw": sw, "zw": zw, "zy": zy}
    weights |= {"sy": np.float32(0.6), "bias": bias}
    nodes = [node("QLinearConv", "x sx zx w sw zw sy zy bias", "y",
                  pads=list(pads), strides=[stride] * 2, group=groups)]  # fmt: skip
    centred = x.astype(np.int64) - int(zx), w.astype(np.int64) - int(zw)
    total = real_convolution(*centred, pads, stride, groups) + bias[:, None, None]
    real = np.round(total.astype(np.float32) * (sx * sw / np.float32(0.6))[:, None, None]) + 100
    with fg.config(tier="native", threads=threads):
        found = built(nodes, {"x": x}, weights, x_kind)
    np.testing.assert_array_equal(found, np.clip(real, ENDS[x_kind][0], ENDS[x_kind][-1]))


def test_a_picture_of_one_channel_is_multiplied_by_fours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spectrum, or handwriting: three channels are added that have no weight."""
    if not get_device("cpu").vnni_layout:
        pytest.skip("no instruction multiplies bytes by fours")

    def refused(*_: Any) -> Any:
        raise AssertionError("whole numbers are multiplied one by one")

    monkeypatch.setattr(convolution_module, "convolution", refused)
    x, w = hostile("uint8", 1, 1, 9, 11), hostile("int8", 16, 1, 3, 3)
    weights: dict[str, Any] = {"one": np.float32(1), "zx": np.uint8(7), "zw": np.int8(0), "w": w,
               "sy": np.float32(20), "zy": np.uint8(100)}  # fmt: skip
    nodes = [node("QLinearConv", "x one zx w one zw sy zy", "y")]
    total = real_convolution(x.astype(int) - 7, w.astype(int), (0, 0, 0, 0), 1, 1)
    want = np.clip(np.round(total.astype(np.float32) / 20) + 100, 0, 255)
    with fg.config(device="cpu"):
        np.testing.assert_array_equal(built(nodes, {"x": x}, weights, "uint8"), want)


def test_weights_far_from_their_zero_are_multiplied_as_bytes() -> None:
    """Of uint8 around 100, which int8 does not hold: their zero is taken out of the sum."""
    x, w = hostile("uint8", 1, 16, 12, 12), hostile("uint8", 32, 16, 3, 3)
    nodes = [node("ConvInteger", "x w zx zw", "y", pads=[1] * 4)]
    weights = {"w": w, "zx": np.array(3, np.uint8), "zw": np.array(100, np.uint8)}
    text = graph(nodes, [port("x", "uint8", x.shape)], [port("y", "int32")], weights)
    found = load(model(text))(fg.Tensor(x) + fg.zeros((), fg.uint8))["y"]
    with fg.config(tier="native"):
        items = fg.schedule(found).items
    (product,) = [i.kernel for i in items if i.kernel.kind == "contract"]
    assert isinstance(product.lowered, IndexKernel)
    loads = [n for n in toposort([product.lowered.body]) if n.op is MUL]
    factors = {leaf.dtype for n in loads for leaf in toposort([n]) if leaf.op is LOAD}
    assert {fg.uint8, fg.int8} <= factors and fg.int32 not in factors
    wanted = real_convolution(x.astype(int) - 3, w.astype(int) - 100, (1, 1, 1, 1), 1, 1)
    np.testing.assert_array_equal(found.numpy()[..., 1:-1, 1:-1], wanted[..., 1:-1, 1:-1])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("space", [(40,), (9, 3), (4, 5, 6)], ids=["line", "narrow", "volume"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_rows_of_windows_of_any_kind_are_exact(
    space: tuple[int, ...], dilation: int, threads: int
) -> None:
    """Those that are read in place, and those that are packed: too narrow, or with more runs."""
    count, size = len(space), [3] * len(space)
    x, w = hostile("uint8", 2, 16, *space), hostile("int8", 40, 16, *size)
    nodes = [node("ConvInteger", "x w zx", "y", pads=[dilation] * 2 * count,
                  dilations=[dilation] * count)]  # fmt: skip
    with fg.config(tier="native", threads=threads):
        found = built(nodes, {"x": x}, {"w": w, "zx": np.array(131, np.uint8)}, "int32")
    wide = np.pad(x.astype(int) - 131, [(0, 0), (0, 0), *[(dilation, dilation)] * count])
    reach = [2 * dilation + 1] * count
    windows = np.lib.stride_tricks.sliding_window_view(wide, reach, tuple(range(2, 2 + count)))
    taps = windows[(slice(None),) * (2 + count) + (slice(None, None, dilation),) * count]
    letters = "xyz"[:count], "ijk"[:count]
    text = f"nc{letters[0]}{letters[1]},oc{letters[1]}->no{letters[0]}"
    np.testing.assert_array_equal(found, np.einsum(text, taps, w.astype(int)))


def test_quantised_pictures_keep_their_channels_last() -> None:
    """Convolutions, a sum, a pool and a mean of bytes: none of them turns a picture around."""
    x = hostile("uint8", 1, 16, 10, 10)
    w, v = hostile("int8", 16, 16, 3, 3), hostile("int8", 16, 1, 3, 3)
    s, z = np.float32(0.05), np.uint8(7)
    weights: dict[str, Any] = {"w": w, "v": v, "s": s, "t": np.float32(20), "z": z, "o": np.int8(0)}
    nodes = [
        node("QLinearConv", "x s z w s o t z", "a", pads=[1, 1, 1, 1]),
        node("QLinearConv", "a s z v s o s z", "b", pads=[1, 1, 1, 1], group=16),
        node("QLinearAdd", "a s z b s z s z", "c", domain="com.microsoft"),
        node("MaxPool", "c", "d", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("QLinearGlobalAveragePool", "d s z s z", "y", domain="com.microsoft"),
    ]  # fmt: skip
    found = built(nodes, {"x": x}, weights, "uint8")

    def centred(x: Array) -> Array:
        return x.astype(np.int64) - 7

    def whole(x: Array) -> Array:
        return np.clip(np.round(x.astype(np.float32)) + 7, 0, 255).astype(np.uint8)

    a = whole(real_convolution(centred(x), w, (1, 1, 1, 1), 1, 1) * (s * s / np.float32(20)))
    b = whole(real_convolution(centred(a), v, (1, 1, 1, 1), 1, 16) * (s * s / s))
    c = whole((centred(a) * s + centred(b) * s).astype(np.float32) * (1 / s))
    d = np.pad(c, ((0, 0), (0, 0), (1, 1), (1, 1)))
    d = np.lib.stride_tricks.sliding_window_view(d, (3, 3), (2, 3))[:, :, ::2, ::2].max((4, 5))
    want = whole(centred(d).mean((2, 3), keepdims=True))
    assert np.abs(found.astype(int) - want).max() <= 1  # a mean may be half of one


@pytest.mark.parametrize("bounds", [None, "Relu", (0.0, 6.0), (-1.5, 0.7), (9.0, -9.0)])
@pytest.mark.parametrize(("inner", "groups"), [(3, 1), (16, 1), (20, 20)])
def test_sums_are_quantised_in_one_scale_within_their_bounds(
    inner: int, groups: int, bounds: Any
) -> None:
    """Every step by itself under `exact`; else a number may be one off where it is halfway."""
    outer = groups if groups > 1 else 16
    x, w = hostile("uint8", 1, inner, 7, 9), hostile("int8", outer, inner // groups, 3, 3)
    sw = np.geomspace(1e-4, 1e-3, outer).astype(np.float32)
    bias = RNG.standard_normal(outer).astype(np.float32)
    weights: dict[str, Any] = {"w": w, "sw": sw, "bias": bias, **SCALES}
    nodes = [
        node("DequantizeLinear", "x sa za", "f"), node("DequantizeLinear", "w sw", "g", axis=0),
        node("Conv", "f g bias", "c", pads=[1, 1, 1, 1], group=groups),
    ]  # fmt: skip
    if bounds == "Relu":
        nodes.append(node("Relu", "c", "r"))
    elif bounds:
        weights |= {"low": np.float32(bounds[0]), "high": np.float32(bounds[1])}
        nodes.append(node("Clip", "c low high", "r"))
    nodes.append(node("QuantizeLinear", "r sy za" if bounds else "c sy za", "y"))
    total = real_convolution(
        x.astype(np.int64) - 131, w.astype(np.int64), (1, 1, 1, 1), 1, groups
    ).astype(np.float32)
    real = total * (SCALES["sa"] * sw)[:, None, None] + bias[:, None, None]
    if bounds:
        low, high = (0, np.inf) if bounds == "Relu" else bounds
        real = np.minimum(np.maximum(real, np.float32(low)), np.float32(high))
    want = np.clip(np.round(real / SCALES["sy"]) + 131, 0, 255).astype(int)
    with fg.config(tier="native", exact=True):
        np.testing.assert_array_equal(built(nodes, {"x": x}, weights, "uint8"), want)
    with fg.config(tier="native"):
        found = built(nodes, {"x": x}, weights, "uint8").astype(int)
    halfway = np.abs(np.abs(real / SCALES["sy"] % 1) - 0.5) < 1e-3
    assert np.abs(found - want).max() <= 1 and np.array_equal(found[~halfway], want[~halfway])


def test_sums_of_a_bias_that_floats_do_not_hold_are_exact() -> None:
    x, w = hostile("uint8", 1, 16, 5, 5), hostile("int8", 16, 1, 3, 3)
    bias = np.full(16, (1 << 30) + 1, np.int32)
    weights: dict[str, Any] = {"w": w, "bias": bias, "one": np.float32(1), "s": np.float32(2.0**23)}
    weights |= {"zx": np.uint8(0), "zw": np.int8(0)}
    nodes = [node("QLinearConv", "x one zx w one zw s zx bias", "y", group=16)]
    total = real_convolution(x.astype(np.int64), w.astype(np.int64), (0, 0, 0, 0), 1, 16) + bias[0]
    want = np.clip(np.round(total.astype(np.float32) / np.float32(2.0**23)), 0, 255)
    np.testing.assert_array_equal(built(nodes, {"x": x}, weights, "uint8"), want)


def test_the_steps_of_a_quantised_lstm_read_weights_that_were_laid_by_fours_before() -> None:
    """Inside of a loop nothing that follows from weights is kept: the layout is made outside."""
    if not get_device("cpu").vnni_layout:
        pytest.skip("no instruction multiplies bytes by fours")
    steps, inner, hidden = 30, 12, 20
    weights: dict[str, Any] = {
        "w": RNG.integers(-99, 99, (1, inner, 4 * hidden)).astype(np.int8),
        "r": RNG.integers(-99, 99, (1, hidden, 4 * hidden)).astype(np.int8),
        "b": RNG.standard_normal((1, 8 * hidden)).astype(np.float32),
        "sw": np.array([0.003], np.float32), "sr": np.array([0.004], np.float32),
        "zw": np.array([3], np.int8), "zr": np.array([0], np.int8),
    }  # fmt: skip
    line = node("DynamicQuantizeLSTM", "x w r b . . . . sw zw sr zr", "y", domain="com.microsoft",
                hidden_size=hidden)  # fmt: skip
    ports = [port("x", "float32", (steps, 1, inner))], [port("y", "float32")]
    text, x = model(graph([line], *ports, weights)), RNG.standard_normal((steps, 1, inner))
    found = {}
    for device in ("cpu", "reference"):
        with fg.config(device=device):
            given = fg.Tensor(x.astype(np.float32)) * 1
            found[device] = load(text)(given)["y"]
    (loop,) = [n for n in toposort([found["cpu"].node]) if n.op.name == "loop"]
    shapes = [s.shape for s in loop.src if s.dtype is fg.int8]
    assert shapes == [(hidden // 4, 4 * hidden, 4)]
    np.testing.assert_allclose(found["cpu"].numpy(), found["reference"].numpy(), atol=1e-3)


def items_of(nodes: list[bytes], given: dict[str, Array], weights: dict[str, Any]) -> list[Any]:
    """The kernels of a model whose result is bytes."""
    ports = [port(name, x.dtype.name, x.shape) for name, x in given.items()]
    made = load(model(graph(nodes, ports, [port("y", "uint8")], weights)))
    made(**given)
    assert made.last is not None and made.last.schedule is not None
    return list(made.last.schedule.items)


@pytest.mark.device("cpu")
def test_bytes_that_are_joined_are_quantised_apart_and_copied() -> None:
    """Those in the joint's scale are as they are, others get it; then all are copied as bytes."""
    a, b = hostile("uint8", 1, 32, 20, 20), hostile("uint8", 1, 16, 20, 20)
    nodes = [
        node("DequantizeLinear", "a sa za", "f"), node("DequantizeLinear", "b sb zb", "g"),
        node("Concat", "f g", "c", axis=1), node("QuantizeLinear", "c sa za", "y"),
    ]  # fmt: skip
    weights: dict[str, Any] = {"sb": np.float32(0.07), "zb": np.uint8(9), **SCALES}
    given = {"a": a, "b": b}
    real = (b.astype(np.int32) - 9).astype(np.float32) * np.float32(0.07)
    other = np.clip(np.round(real / SCALES["sa"]) + 131, 0, 255).astype(np.uint8)
    found = built(nodes, given, weights, "uint8")
    np.testing.assert_array_equal(found, np.concatenate([a, other], 1))
    items = items_of(nodes, given, weights)
    assert [only_chooses(toposort([i.kernel.body])) for i in items] == [False, True]


@pytest.mark.device("cpu")
def test_bytes_that_are_repeated_are_no_real_numbers_meanwhile() -> None:
    x, factors = hostile("uint8", 1, 8, 5, 6), np.array([1, 1, 2, 3], np.float32)
    for how in ("nearest", "linear"):
        nodes = [
            node("DequantizeLinear", "x sa za", "f"),
            node("Resize", "f . factors", "r", mode=how, nearest_mode="floor",
                 coordinate_transformation_mode="asymmetric"),
            node("QuantizeLinear", "r sa za", "y"),
        ]  # fmt: skip
        weights = {"factors": factors, **SCALES}
        items = items_of(nodes, {"x": x}, weights)
        casts = [n for i in items for n in toposort([i.kernel.body]) if n.op is CAST]
        assert bool(casts) == (how == "linear")
        if how == "nearest":
            found = built(nodes, {"x": x}, weights, "uint8")
            np.testing.assert_array_equal(found, x.repeat(2, 2).repeat(3, 3))


@pytest.mark.device("cpu")
@pytest.mark.parametrize("cut", [[0, 0, 0, 0], [1, 0, 2, 1]])
def test_bytes_that_become_larger_keep_their_channels_last(cut: list[int]) -> None:
    """A convolution, a transposed one and a resize: one turn at the beginning, one at the end."""
    x, w = hostile("uint8", 1, 16, 20, 20), hostile("int8", 16, 16, 1, 1)
    v = RNG.standard_normal((16, 16, 2, 2)).astype(np.float32)
    nodes = [
        node("DequantizeLinear", "x sa za", "f"), node("DequantizeLinear", "w sa", "g"),
        node("Conv", "f g", "c"), node("QuantizeLinear", "c sy za", "q"),
        node("DequantizeLinear", "q sy za", "d"),
        node("ConvTranspose", "d v bias", "t", strides=[2, 2], pads=cut),
        node("QuantizeLinear", "t sy za", "r"), node("DequantizeLinear", "r sy za", "h"),
        node("Resize", "h . factors", "l", mode="linear"), node("QuantizeLinear", "l sy za", "y"),
    ]  # fmt: skip
    bias, factors = np.linspace(-1, 1, 16, dtype=np.float32), np.array([1, 1, 2, 2], np.float32)
    weights = {"w": w, "v": v, "bias": bias, "factors": factors, **SCALES}
    found = built(nodes, {"x": x}, weights, "uint8")
    sa, sy = SCALES["sa"], SCALES["sy"]

    def whole(real: Array) -> Array:
        found: Array = np.clip(np.round(real / sy) + 131, 0, 255).astype(np.float32) - 131
        return found

    total = np.einsum("nchw,oc->nohw", x.astype(int) - 131, w[:, :, 0, 0].astype(int))
    d = whole(total.astype(np.float32) * (sa * sa)) * sy
    t = np.einsum("nchw,coij->nohiwj", d, v).reshape(1, 16, 40, 40) + bias[:, None, None]
    t = t[:, :, cut[0] : 40 - cut[2], cut[1] : 40 - cut[3]]
    h = fg.Tensor(whole(t) * sy)
    wide = fg.nn.functional.interpolate(h, scale_factor=2, mode="bilinear").numpy()
    assert np.abs(found.astype(int) - (whole(wide) + 131)).max() <= 1  # one rounding either way
    *others, last = items_of(nodes, {"x": x}, weights)
    assert any(n.op is PERMUTE and n.arg == (0, 3, 1, 2) for n in toposort([last.kernel.body]))
    before = [n for i in others for n in toposort([i.kernel.body])]
    assert not any(n.op is PERMUTE and n.arg == (0, 3, 1, 2) for n in before)
