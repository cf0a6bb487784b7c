"""Depthwise convolutions of ONNX models: where pictures get their channels last, and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.onnx import load
from tests.onnx.models import graph, model, node, port

RNG = np.random.default_rng(7)
Array = np.ndarray[Any, Any]


def convolution(x: Array, w: Array, stride: int, groups: int) -> Array:
    """In float64, padded so that the size stays."""
    pad = w.shape[-1] // 2
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], (2, 3))
    seen = seen[:, :, ::stride, ::stride]
    if groups > 1:
        return np.asarray(np.einsum("bchwij,cij->bchw", seen, w[:, 0]))
    return np.asarray(np.einsum("bchwij,ocij->bohw", seen, w))


def network(size: int, channels: int, stride: int) -> tuple[bytes, Array, Array]:
    """3x3, 1x1, depthwise, a gate, 1x1 and a residual: its text, its input, and what it gives."""
    shapes = {"a": (16, 3, 3, 3), "b": (channels, 16, 1, 1), "c": (channels, 1, 3, 3),
              "d": (channels, channels, 1, 1)}  # fmt: skip
    weights: dict[str, Array] = {
        name: (RNG.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }

    def conv(given: str, name: str, step: int = 1, groups: int = 1) -> list[bytes]:
        window = list(shapes[name][2:])
        made = node("Conv", f"{given} {name}", f"{name}0", pads=[window[0] // 2] * 4,
                    strides=[step, step], group=groups, kernel_shape=window)  # fmt: skip
        return [made, node("Relu", f"{name}0", f"{name}1")]

    nodes = [
        *conv("x", "a"), *conv("a1", "b"), *conv("b1", "c", stride, channels),
        node("GlobalAveragePool", "c1", "mean"), node("Mul", "c1 mean", "gated"),
        *conv("gated", "d"), node("Add", "d1 c1", "y"),
    ]  # fmt: skip
    x = RNG.standard_normal((1, 3, size, size)).astype(np.float32)
    ports = [port("x", "float32", x.shape)], [port("y", "float32")]
    y = np.maximum(convolution(x, weights["a"], 1, 1), 0)
    y = np.maximum(convolution(y, weights["b"], 1, 1), 0)
    c = np.maximum(convolution(y, weights["c"], stride, channels), 0)
    y = np.maximum(convolution(c * c.mean((2, 3), keepdims=True), weights["d"], 1, 1), 0) + c
    return model(graph(nodes, *ports, weights)), x, y


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("size", "channels"), [(6, 17), (20, 24), (33, 48)])
def test_values_are_those_of_float64(size: int, channels: int, stride: int) -> None:
    text, x, y = network(size, channels, stride)
    with fg.config(tier="native"):
        found = load(text)(x=x)["y"]
    np.testing.assert_allclose(np.asarray(found), y, rtol=1e-4, atol=1e-5)


@pytest.mark.device("cpu")
def test_a_product_before_a_depthwise_convolution_turns_what_it_reads() -> None:
    """The 3x3 one, the product that turns it, the depthwise one, its mean, and the gated
    product with its residual, which turns it back: nothing else is stored."""
    text, x, _ = network(40, 32, 1)
    with fg.config(tier="native"):
        loaded = load(text)
        loaded(x=x)  # lays weights out
        with fg.profile() as profile:
            np.asarray(loaded(x=x)["y"])
    names = [run.facts.name.split(":")[0] for run in profile.runs]
    assert names == ["contract", "contract", "reduce", "reduce", "contract"]


def test_wide_windows_of_channels_that_are_neighbours_are_summed_in_one_go() -> None:
    weights = {"w": RNG.standard_normal((32, 1, 7, 7)).astype(np.float32)}
    nodes = [
        node("Transpose", "x", "turned", perm=[0, 3, 1, 2]),
        node("Conv", "turned w", "z", pads=[3] * 4, group=32),
        node("Transpose", "z", "y", perm=[0, 2, 3, 1]),
    ]
    x = RNG.standard_normal((1, 20, 20, 32)).astype(np.float32)
    ports = [port("x", "float32", x.shape)], [port("y", "float32")]
    found = load(model(graph(nodes, *ports, weights)))(x)["y"].numpy()
    wanted = convolution(x.transpose(0, 3, 1, 2), weights["w"], 1, 32).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
