"""ONNX models with the shapes of known ones and random weights, built with the `onnx` package.

In: the name of a model in `ZOO`. Out: its bytes and its inputs. Layers, kernel sizes, strides,
the way exporters spell an activation or a shuffle, and how tensors branch are those of the models
named; weights are random, scaled so that values stay near one. Quantised ones are made by
onnxruntime's own quantiser, so that their patterns are those that users have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Inputs = dict[str, np.ndarray]
OPSET = 17


class Net:
    """A graph that is being written: nodes, weights, inputs and outputs."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.given: Inputs = {}
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def input(self, name: str, values: Any) -> str:
        """An input, and what it is given."""
        values = np.asarray(values)
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, values.shape))
        self.given[name] = values
        return name

    def noise(self, name: str, *shape: int) -> str:
        return self.input(name, self.rng.standard_normal(shape).astype(np.float32))

    def const(self, values: Any, dtype: Any = np.float32) -> str:
        name = self.name()
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int, fan: int | None = None) -> str:
        """Random weights; fan is how many of them make one result."""
        fan = fan or int(np.prod(shape[1:]))
        return self.const(self.rng.standard_normal(shape) / fan**0.5)

    def small(self, *shape: int) -> str:
        return self.const(0.1 * self.rng.standard_normal(shape))

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def op(self, kind: str, *given: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of its output, or of its outputs."""
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(given), names, names[0], **attributes))
        return names[0] if outputs == 1 else names

    def build(self, *outputs: str) -> tuple[bytes, Inputs]:
        """The model."""
        made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, made, self.weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        return model.SerializeToString(), self.given

    # Layers.

    def conv(
        self, x: str, inner: int, outer: int, size: Any, stride: Any = 1, groups: int = 1,
        pads: Sequence[int] | None = None, dilation: int = 1, act: str = "",
    ) -> str:  # fmt: skip
        """A convolution with a bias, padded to keep its size unless told, and an activation."""
        size = (size, size) if isinstance(size, int) else tuple(size)
        stride = (stride,) * len(size) if isinstance(stride, int) else tuple(stride)
        half = [dilation * (s - 1) // 2 for s in size]
        x = self.op(
            "Conv", x, self.weight(outer, inner // groups, *size), self.small(outer),
            kernel_shape=size, strides=stride, group=groups, dilations=[dilation] * len(size),
            pads=list(pads) if pads is not None else half + half,
        )  # fmt: skip
        return self.act(x, act)

    def act(self, x: str, kind: str) -> str:
        """An activation, spelled as exporters spell it."""
        if kind == "relu6":
            return str(self.op("Clip", x, self.const(0.0), self.const(6.0)))
        if kind == "silu":
            return str(self.op("Mul", x, self.op("Sigmoid", x)))
        if kind == "prelu":
            return str(self.op("PRelu", x, self.const(0.25)))
        if kind == "gelu":
            erf = self.op("Erf", self.op("Div", x, self.const(2**0.5)))
            twice = self.op("Mul", x, self.op("Add", erf, self.const(1.0)))
            return str(self.op("Mul", twice, self.const(0.5)))
        return str(self.op(kind, x)) if kind else x

    def linear(self, x: str, inner: int, outer: int) -> str:
        product = self.op("MatMul", x, self.weight(inner, outer, fan=inner))
        return str(self.op("Add", product, self.small(outer)))

    def norm(self, x: str, width: int) -> str:
        """Layer normalisation, as exporters below opset 17 write it."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        square = self.op("Pow", centred, self.const(2.0))
        spread = self.op("Add", self.op("ReduceMean", square, axes=[-1]), self.const(1e-5))
        scaled = self.op("Div", centred, self.op("Sqrt", spread))
        return str(self.op("Add", self.op("Mul", scaled, self.small(width)), self.small(width)))

    def recurrent(
        self, kind: str, x: str, inner: int, hidden: int, states: Sequence[str] = (), both: int = 1
    ) -> list[str]:
        """An LSTM or GRU over (steps, batch, inner): its outputs."""
        gates = {"LSTM": 4, "GRU": 3}[kind]
        w = self.weight(both, gates * hidden, inner, fan=inner)
        r = self.weight(both, gates * hidden, hidden, fan=hidden)
        b = self.small(both, 2 * gates * hidden)
        more = {"linear_before_reset": 1} if kind == "GRU" else {}
        found: list[str] = self.op(
            kind, x, w, r, b, "", *states, outputs=3 if kind == "LSTM" else 2, hidden_size=hidden,
            direction="forward" if both == 1 else "bidirectional", **more,
        )  # fmt: skip
        return found

    def shape(self, x: str, *sizes: int) -> str:
        return str(self.op("Reshape", x, self.ints(*sizes)))

    def turn(self, x: str, *order: int) -> str:
        return str(self.op("Transpose", x, perm=order))

    def squeeze_excite(self, x: str, channels: int, inner: int, last: str) -> str:
        pooled = self.op("GlobalAveragePool", x)
        hidden = self.conv(pooled, channels, inner, 1, act="Relu")
        return str(self.op("Mul", x, self.conv(hidden, inner, channels, 1, act=last)))

    def encoder(self, x: str, width: int, heads: int, steps: int, mask: str | None = None) -> str:
        """A transformer layer as exported: separate projections, attention spelled out."""
        each = width // heads
        parts = [self.linear(x, width, width) for _ in range(3)]
        split = [self.shape(p, 1, steps, heads, each) for p in parts]
        q, k, v = (self.turn(s, *o) for s, o in zip(
            split, [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)], strict=True))  # fmt: skip
        scores = self.op("Div", self.op("MatMul", q, k), self.const(each**0.5))
        if mask is not None:
            scores = self.op("Add", scores, mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.shape(self.turn(mixed, 0, 2, 1, 3), 1, steps, width)
        x = self.norm(self.op("Add", self.linear(joined, width, width), x), width)
        hidden = self.act(self.linear(x, width, 4 * width), "gelu")
        return self.norm(self.op("Add", self.linear(hidden, 4 * width, width), x), width)


Made = tuple[bytes, Inputs]


# Sound.


def silero() -> Made:
    """Voice activity: a spectrum by convolution, four convolutions, one LSTM step."""
    net = Net()
    x = net.noise("x", 1, 576)
    state = net.noise("state", 2, 1, 128)
    x = net.op("Pad", net.shape(x, 1, 1, 576), net.ints(0, 0, 0, 0, 0, 64), mode="reflect")
    x = net.op("Conv", x, net.weight(258, 1, 256), kernel_shape=[256], strides=[128])
    real = net.op("Slice", x, net.ints(0), net.ints(129), net.ints(1))
    other = net.op("Slice", x, net.ints(129), net.ints(258), net.ints(1))
    two = net.const(2.0)
    x = net.op("Sqrt", net.op("Add", net.op("Pow", real, two), net.op("Pow", other, two)))
    for inner, outer, stride in ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)):
        x = net.conv(x, inner, outer, (3,), stride, act="Relu")
    x = net.turn(x, 2, 0, 1)
    h, c = net.op("Split", state, net.ints(1, 1), axis=0, outputs=2)
    y, h, c = net.recurrent("LSTM", x, 128, 128, (h, c))
    y = net.op("Relu", net.turn(net.op("Squeeze", y, net.ints(1)), 1, 2, 0))
    y = net.op("ReduceMean", net.conv(y, 128, 1, (1,), act="Sigmoid"), axes=[2])
    return net.build(y, net.op("Concat", h, c, axis=0))


def _dtln(net: Net, x: str, size: int) -> tuple[str, list[str]]:
    """Two LSTMs of one step with states given, and a mask."""
    found = []
    width = size
    for number in range(2):
        h, c = net.noise(f"h{number}", 1, 1, 128), net.noise(f"c{number}", 1, 1, 128)
        y, h, c = net.recurrent("LSTM", x, width, 128, (h, c))
        x, width = net.op("Squeeze", y, net.ints(1)), 128
        found += [h, c]
    return net.op("Sigmoid", net.linear(x, 128, size)), found


def dtln_1() -> Made:
    """Noise suppression in the spectrum: a mask of 257."""
    net = Net()
    x = net.noise("x", 1, 1, 257)
    mask, states = _dtln(net, net.op("Log", net.op("Add", net.op("Abs", x), net.const(1e-7))), 257)
    return net.build(net.op("Mul", mask, x), *states)


def dtln_2() -> Made:
    """Noise suppression on learned features: two convolutions of width one around a mask."""
    net = Net()
    x = net.noise("x", 1, 1, 512)
    code = net.op("Conv", net.turn(x, 0, 2, 1), net.weight(256, 512, 1), kernel_shape=[1])
    code = net.turn(code, 0, 2, 1)
    mask, states = _dtln(net, net.norm(code, 256), 256)
    made = net.turn(net.op("Mul", mask, code), 0, 2, 1)
    made = net.op("Conv", made, net.weight(512, 256, 1), kernel_shape=[1])
    return net.build(net.turn(made, 0, 2, 1), *states)


def _grouped_gru(net: Net, x: str, steps: int, batch: int, both: int) -> str:
    halves = net.op("Split", x, net.ints(8, 8), axis=2, outputs=2)
    made = []
    for half in halves:
        y = net.recurrent("GRU", half, 8, 8 // both, both=both)[0]
        made.append(net.shape(net.turn(y, 0, 2, 1, 3), steps, batch, 8))
    return net.linear(net.op("Concat", *made, axis=2), 16, 16)


def gtcrn() -> Made:
    """Speech enhancement of very few weights: shuffled convolutions, grouped GRUs both ways."""
    net, frames = Net(), 8
    x = net.noise("x", 1, 3, frames, 129)
    x = net.conv(x, 3, 16, (1, 5), (1, 2), pads=(0, 2, 0, 2), act="prelu")
    skip = [x]
    x = net.conv(x, 16, 16, (1, 5), (1, 2), groups=2, pads=(0, 2, 0, 2), act="prelu")
    skip.append(x)
    for dilation in (1, 2):
        kept, worked = net.op("Split", x, net.ints(8, 8), axis=1, outputs=2)
        worked = net.conv(worked, 8, 16, 1, act="prelu")
        worked = net.conv(worked, 16, 16, 3, groups=16, dilation=dilation, act="prelu")
        worked = net.conv(worked, 16, 8, 1)
        energy = net.op("ReduceMean", net.op("Mul", worked, worked), axes=[3], keepdims=0)
        gate = net.recurrent("GRU", net.turn(energy, 2, 0, 1), 8, 16)[0]
        gate = net.op("Sigmoid", net.linear(net.op("Squeeze", gate, net.ints(1)), 16, 8))
        worked = net.op("Mul", worked, net.shape(net.turn(gate, 1, 2, 0), 1, 8, frames, 1))
        both = net.shape(net.op("Concat", worked, kept, axis=1), 1, 2, 8, frames, 33)
        x = net.shape(net.turn(both, 0, 2, 1, 3, 4), 1, 16, frames, 33)
    for _ in range(2):
        rows = net.shape(net.turn(x, 3, 0, 2, 1), 33, frames, 16)
        rows = net.norm(_grouped_gru(net, rows, 33, frames, 2), 16)
        x = net.op("Add", x, net.turn(net.shape(rows, 33, 1, frames, 16), 1, 3, 2, 0))
        rows = net.shape(net.turn(x, 2, 0, 3, 1), frames, 33, 16)
        rows = net.norm(_grouped_gru(net, rows, frames, 33, 1), 16)
        x = net.op("Add", x, net.turn(net.shape(rows, frames, 1, 33, 16), 1, 3, 0, 2))
    for number, outer in ((1, 16), (0, 2)):
        x = net.op(
            "ConvTranspose", net.op("Add", x, skip[number]), net.weight(16, outer, 1, 5, fan=80),
            net.small(outer), kernel_shape=[1, 5], strides=[1, 2], pads=[0, 2, 0, 2],
        )  # fmt: skip
        x = net.act(x, "prelu" if number else "Tanh")
    return net.build(x)


def basic_pitch() -> Made:
    """Notes of music: a spectrum stacked at eight harmonics, then convolutions of wide kernels."""
    net, frames, bins = Net(), 86, 264
    x = net.noise("x", 1, 1, frames, 360)
    parts = []
    for shift in (-36, 0, 36, 57, 72, 84, 93, 101):
        first = max(shift, 0)
        cut = net.op("Slice", x, net.ints(first), net.ints(360), net.ints(3))
        pads = [0, 0, 0, max(-shift, 0), 0, 0, 0, first]
        moved = net.op("Pad", cut, net.ints(*pads))
        parts.append(net.op("Slice", moved, net.ints(0), net.ints(bins), net.ints(3)))
    x = net.op("Concat", *parts, axis=1)
    contour = net.conv(x, 8, 8, (3, 39), act="Relu")
    contour = net.conv(contour, 8, 1, 5, act="Sigmoid")
    note = net.conv(contour, 1, 32, 7, (1, 3), pads=(3, 2, 3, 2), act="Relu")
    note = net.conv(note, 32, 1, (7, 3), act="Sigmoid")
    onset = net.conv(x, 8, 32, 5, (1, 3), pads=(2, 1, 2, 1), act="Relu")
    onset = net.conv(net.op("Concat", onset, note, axis=1), 33, 1, 3, act="Sigmoid")
    return net.build(contour, note, onset)


def swift_f0() -> Made:
    """Pitch: log spectrum by a product, five convolutions of 5x5, a choice of 200 bins."""
    net, frames = Net(), 63
    x = net.noise("x", 1, frames * 256 + 768)
    columns = np.arange(frames)[:, None] * 256 + np.arange(1024)[None]
    rows = net.op("Gather", x, net.const(columns, np.int64), axis=1)
    rows = net.op("Mul", rows, net.const(np.hanning(1024)))
    parts = [net.op("MatMul", rows, net.weight(1024, 132, fan=1024)) for _ in range(2)]
    squares = [net.op("Mul", p, p) for p in parts]
    x = net.op("Log", net.op("Add", net.op("Sqrt", net.op("Add", *squares)), net.const(1e-5)))
    x = net.op("Unsqueeze", net.turn(x, 0, 2, 1), net.ints(1))
    for inner, outer in ((1, 8), (8, 16), (16, 32), (32, 64), (64, 1)):
        x = net.conv(x, inner, outer, 5, act="Relu")
    x = net.conv(net.op("Squeeze", x, net.ints(1)), 132, 200, (1,))
    chance = net.op("Softmax", x, axis=1)
    pitch = net.op("ReduceSum", net.op("Mul", chance, net.small(200, 1)), net.ints(1))
    return net.build(pitch, net.op("ReduceMax", chance, axes=[1]))


def wavenet() -> Made:
    """A temporal network: eight gated, dilated convolutions along time."""
    net, width = Net(), 64
    x = net.conv(net.noise("x", 1, 40, 400), 40, width, (1,))
    total = ""
    for number in range(8):
        dilation = 1 << number % 4
        both = net.conv(x, width, 2 * width, (3,), dilation=dilation)
        left, right = net.op("Split", both, net.ints(width, width), axis=1, outputs=2)
        gated = net.op("Mul", net.op("Tanh", left), net.op("Sigmoid", right))
        x = net.op("Add", x, net.conv(gated, width, width, (1,)))
        total = net.op("Add", total, gated) if total else gated
    return net.build(net.conv(net.op("Relu", total), width, 80, (1,)))


# Pictures.


def crnn() -> Made:
    """Text lines: convolutions down to one row, two LSTMs both ways, letters."""
    net = Net()
    x = net.conv(net.noise("x", 1, 1, 32, 100), 1, 64, 3, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.conv(x, 64, 128, 3, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.conv(net.conv(x, 128, 256, 3, act="Relu"), 256, 256, 3, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 1], pads=[0, 1, 0, 1])
    x = net.conv(net.conv(x, 256, 512, 3, act="Relu"), 512, 512, 3, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 1], pads=[0, 1, 0, 1])
    x = net.conv(x, 512, 512, 2, pads=(0, 0, 0, 0), act="Relu")
    x = net.turn(net.op("Squeeze", x, net.ints(2)), 2, 0, 1)
    width = 512
    for _ in range(2):
        y = net.recurrent("LSTM", x, width, 256, both=2)[0]
        y = net.shape(net.turn(y, 0, 2, 1, 3), -1, 1, 512)
        x, width = net.linear(y, 512, 256), 256
    return net.build(net.linear(x, 256, 37))


def inverted_bottleneck(net: Net, x: str, inner: int, outer: int, wide: int, stride: int, act: str,
              size: int = 3, gate: bool = False) -> str:  # fmt: skip
    """An inverted residual: wide by 1x1, depthwise, narrow by 1x1."""
    y = net.conv(x, inner, wide, 1, act=act)
    y = net.conv(y, wide, wide, size, stride, groups=wide, act=act)
    if gate:
        y = net.squeeze_excite(y, wide, wide // 4, "HardSigmoid")
    y = net.conv(y, wide, outer, 1)
    return str(net.op("Add", x, y)) if stride == 1 and inner == outer else y


def mobilenet_v2(size: int = 160) -> Made:
    """Inverted residuals with clipped activations."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, size, size), 3, 32, 3, 2, act="relu6")
    x = net.conv(net.conv(x, 32, 32, 3, groups=32, act="relu6"), 32, 16, 1)
    inner = 16
    for outer, count, stride in ((24, 2, 2), (32, 3, 2), (64, 3, 2), (96, 2, 1), (160, 2, 2)):
        for number in range(count):
            step = stride if number == 0 else 1
            x, inner = inverted_bottleneck(net, x, inner, outer, 6 * inner, step, "relu6"), outer
    x = net.op("GlobalAveragePool", net.conv(x, 160, 640, 1, act="relu6"))
    return net.build(net.linear(net.op("Flatten", x), 640, 1000))


def mobilenet_v3() -> Made:
    """The small one: gates, 5x5 depthwise, hard swish."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, 224, 224), 3, 16, 3, 2, act="HardSwish")
    inner = 16
    plan = ((16, 16, 2, 3, 1, "Relu"), (24, 72, 2, 3, 0, "Relu"), (24, 88, 1, 3, 0, "Relu"),
            (40, 96, 2, 5, 1, "HardSwish"), (40, 240, 1, 5, 1, "HardSwish"),
            (48, 120, 1, 5, 1, "HardSwish"), (96, 288, 2, 5, 1, "HardSwish"),
            (96, 576, 1, 5, 1, "HardSwish"))  # fmt: skip
    for outer, wide, stride, size, gate, act in plan:
        x, inner = (
            inverted_bottleneck(net, x, inner, outer, wide, stride, act, size, bool(gate)),
            outer,
        )
    x = net.op("GlobalAveragePool", net.conv(x, 96, 576, 1, act="HardSwish"))
    x = net.act(net.linear(net.op("Flatten", x), 576, 1024), "HardSwish")
    return net.build(net.linear(x, 1024, 1000))


def _separable(net: Net, x: str, inner: int, outer: int, stride: int = 1) -> str:
    x = net.conv(x, inner, inner, 3, stride, groups=inner, act="Relu")
    return net.conv(x, inner, outer, 1, act="Relu")


def rfb_face() -> Made:
    """A face detector: separable convolutions, a block of dilated branches, four heads."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, 480, 640), 3, 16, 3, 2, act="Relu")
    plan = ((16, 32, 1), (32, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1))
    for inner, outer, stride in plan:
        x = _separable(net, x, inner, outer, stride)
    branches = []
    for dilation in (2, 3, 5):
        y = net.conv(net.conv(x, 64, 8, 1), 8, 16, 3, act="Relu")
        branches.append(net.conv(y, 16, 16, 3, dilation=dilation))
    joined = net.conv(net.op("Concat", *branches, axis=1), 48, 64, 1)
    x = net.op("Relu", net.op("Add", joined, net.conv(x, 64, 64, 1)))
    found = []
    for inner, outer, anchors in ((64, 128, 3), (128, 256, 2), (256, 256, 2), (256, 256, 3)):
        heads = []
        for each in (2, 4):
            y = net.conv(x, inner, inner, 3, groups=inner, act="Relu")
            y = net.conv(y, inner, anchors * each, 1)
            heads.append(net.shape(net.turn(y, 0, 2, 3, 1), 1, -1, each))
        found.append(heads)
        if anchors != 3 or inner == 64:
            x = _separable(net, x, inner, outer, 2)
            x = _separable(net, x, outer, outer) if outer == 256 and inner == 128 else x
    scores, boxes = (net.op("Concat", *each, axis=1) for each in zip(*found, strict=True))
    return net.build(net.op("Softmax", scores, axis=-1), boxes)


def shuffle_angle() -> Made:
    """The angle of a text line: ShuffleNet units (split, work, join, shuffle) on 48x192."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, 48, 192), 3, 24, 3, 2, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    rows, columns, inner = 12, 48, 24
    for outer, count in ((48, 4), (96, 8), (192, 4)):
        half = outer // 2
        for number in range(count):
            if number == 0:
                rows, columns = (rows + 1) // 2, (columns + 1) // 2
                kept = net.conv(net.conv(x, inner, inner, 3, 2, groups=inner), inner, half, 1,
                                act="Relu")  # fmt: skip
                y, width, stride = x, inner, 2
            else:
                kept, y = net.op("Split", x, net.ints(half, half), axis=1, outputs=2)
                width, stride = half, 1
            y = net.conv(y, width, half, 1, act="Relu")
            y = net.conv(net.conv(y, half, half, 3, stride, groups=half), half, half, 1, act="Relu")
            x = net.shape(net.op("Concat", kept, y, axis=1), 1, 2, half, rows, columns)
            x = net.shape(net.turn(x, 0, 2, 1, 3, 4), 1, outer, rows, columns)
        inner = outer
    x = net.op("ReduceMean", net.conv(x, 192, 512, 1, act="Relu"), axes=[2, 3], keepdims=0)
    return net.build(net.op("Softmax", net.linear(x, 512, 2), axis=-1))


def resnet() -> Made:
    """ResNet-18 at 128x128."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, 128, 128), 3, 64, 7, 2, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inner = 64
    for outer in (64, 128, 256, 512):
        for number in range(2):
            stride = 2 if number == 0 and outer > 64 else 1
            y = net.conv(net.conv(x, inner, outer, 3, stride, act="Relu"), outer, outer, 3)
            kept = x if stride == 1 else net.conv(x, inner, outer, 1, 2)
            x, inner = net.op("Relu", net.op("Add", y, kept)), outer
    return net.build(net.linear(net.op("Flatten", net.op("GlobalAveragePool", x)), 512, 1000))


def small_resnet() -> Made:
    """Half as wide, at 96x96: for quantising."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, 96, 96), 3, 32, 3, 2, act="Relu")
    inner = 32
    for outer in (32, 64, 128):
        for number in range(2):
            stride = 2 if number == 0 and outer > 32 else 1
            y = net.conv(net.conv(x, inner, outer, 3, stride, act="Relu"), outer, outer, 3)
            kept = x if stride == 1 else net.conv(x, inner, outer, 1, 2)
            x, inner = net.op("Relu", net.op("Add", y, kept)), outer
    return net.build(net.linear(net.op("Flatten", net.op("GlobalAveragePool", x)), 128, 100))


def small_mobilenet() -> Made:
    """At 96x96: for quantising."""
    return mobilenet_v2(96)


def _csp(net: Net, x: str, inner: int, outer: int, count: int, add: bool = True) -> str:
    """A block of half-wide bottlenecks whose steps are all joined."""
    half = outer // 2
    x = net.conv(x, inner, outer, 1, act="silu")
    kept, y = net.op("Split", x, net.ints(half, half), axis=1, outputs=2)
    parts = [kept, y]
    for _ in range(count):
        z = net.conv(net.conv(y, half, half, 3, act="silu"), half, half, 3, act="silu")
        y = net.op("Add", y, z) if add else z
        parts.append(y)
    return net.conv(net.op("Concat", *parts, axis=1), (2 + count) * half, outer, 1, act="silu")


def yolo() -> Made:
    """A detector: joined bottlenecks, pooled pyramid, features resized and joined, three heads."""
    net, scales = Net(), []
    x = net.conv(net.noise("x", 1, 3, 256, 256), 3, 16, 3, 2, act="silu")
    inner = 16
    for outer in (32, 64, 128, 256):
        x = _csp(net, net.conv(x, inner, outer, 3, 2, act="silu"), outer, outer, 1)
        inner = outer
        scales.append(x)
    y = net.conv(x, 256, 128, 1, act="silu")
    parts = [y]
    for _ in range(3):
        parts.append(net.op("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2]))
    scales[3] = net.conv(net.op("Concat", *parts, axis=1), 512, 256, 1, act="silu")

    def larger(x: str) -> str:
        factors = net.const([1, 1, 2, 2])
        how: dict[str, Any] = {
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        return str(net.op("Resize", x, "", factors, mode="nearest", **how))

    up = net.op("Concat", larger(scales[3]), scales[2], axis=1)
    middle = _csp(net, up, 384, 128, 1, add=False)
    low = _csp(net, net.op("Concat", larger(middle), scales[1], axis=1), 192, 64, 1, add=False)
    down = net.op("Concat", net.conv(low, 64, 64, 3, 2, act="silu"), middle, axis=1)
    mid = _csp(net, down, 192, 128, 1, add=False)
    down = net.op("Concat", net.conv(mid, 128, 128, 3, 2, act="silu"), scales[3], axis=1)
    top = _csp(net, down, 384, 256, 1, add=False)
    heads = []
    for each, width in ((low, 64), (mid, 128), (top, 256)):
        box = net.conv(net.conv(each, width, 64, 3, act="silu"), 64, 64, 1)
        kind = net.conv(net.conv(each, width, 80, 3, act="silu"), 80, 80, 1)
        heads.append(net.shape(net.op("Concat", box, kind, axis=1), 1, 144, -1))
    joined = net.op("Concat", *heads, axis=2)
    box, kind = net.op("Split", joined, net.ints(64, 80), axis=1, outputs=2)
    bins = net.op("Softmax", net.turn(net.shape(box, 1, 4, 16, -1), 0, 2, 1, 3), axis=1)
    box = net.op("Conv", bins, net.const(np.arange(16).reshape(1, 16, 1, 1)), kernel_shape=[1, 1])
    return net.build(net.op("Concat", net.shape(box, 1, 4, -1), net.op("Sigmoid", kind), axis=1))


def unet() -> Made:
    """A mask for a picture: down by pools, up by linear resizing and by transposed convolutions."""
    net, kept = Net(), []
    x, inner = net.noise("x", 1, 3, 128, 128), 3
    for outer in (16, 32, 64, 128):
        x = net.conv(net.conv(x, inner, outer, 3, act="Relu"), outer, outer, 3, act="Relu")
        kept.append(x)
        x, inner = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), outer
    for number, outer in reversed(list(enumerate((16, 32, 64, 128)))):
        if number % 2:
            x = net.op("Resize", x, "", net.const([1, 1, 2, 2]), mode="linear",
                       coordinate_transformation_mode="half_pixel")  # fmt: skip
        else:
            w = net.weight(inner, inner, 2, 2, fan=inner)
            x = net.op("ConvTranspose", x, w, kernel_shape=[2, 2], strides=[2, 2])
        joined = net.op("Concat", x, kept[number], axis=1)
        x, inner = net.conv(joined, inner + outer, outer, 3, act="Relu"), outer
    return net.build(net.conv(x, 16, 1, 1, act="Sigmoid"))


# Language.


def bert(steps: int = 128, width: int = 256, layers: int = 4) -> Made:
    """A sentence encoder: embeddings, layers under a mask, a mean over the words."""
    net = Net()
    ids = net.input("ids", net.rng.integers(0, 1000, (1, steps)))
    seen = net.input("mask", (np.arange(steps)[None] < steps - 8).astype(np.int64))
    words = net.op("Gather", net.weight(1000, width, fan=1), ids, axis=0)
    x = net.norm(net.op("Add", words, net.weight(1, steps, width, fan=1)), width)
    real = net.op("Cast", seen, to=TensorProto.FLOAT)
    hidden = net.op("Sub", net.const(1.0), net.op("Unsqueeze", real, net.ints(1, 2)))
    mask = net.op("Mul", hidden, net.const(-10000.0))
    for _ in range(layers):
        x = net.encoder(x, width, 4, steps, mask)
    weights = net.op("Unsqueeze", real, net.ints(2))
    total = net.op("ReduceSum", net.op("Mul", x, weights), net.ints(1), keepdims=0)
    count = net.op("ReduceSum", real, net.ints(1), keepdims=1)
    return net.build(net.op("Div", total, count))


def mini_lm() -> Made:
    """Wider, on fewer words."""
    return bert(32, 384, 3)


def vit() -> Made:
    """Patches of 16 by a strided convolution, a class token, four layers."""
    net, width = Net(), 192
    x = net.op("Conv", net.noise("x", 1, 3, 224, 224), net.weight(width, 3, 16, 16),
               net.small(width), kernel_shape=[16, 16], strides=[16, 16])  # fmt: skip
    x = net.turn(net.shape(x, 1, width, 196), 0, 2, 1)
    x = net.op("Concat", net.weight(1, 1, width, fan=1), x, axis=1)
    x = net.op("Add", x, net.small(1, 197, width))
    for _ in range(4):
        x = net.encoder(x, width, 3, 197)
    first = net.op("Gather", x, net.const(0, np.int64), axis=1)
    return net.build(net.linear(first, width, 1000))


def decoder() -> Made:
    """One word of a decoder with kept keys and values: joined with the new ones, in and out."""
    net, width, heads, past = Net(), 256, 4, 127
    ids = net.input("ids", net.rng.integers(0, 4000, (1, 1)))
    x = net.op("Gather", net.weight(4000, width, fan=1), ids, axis=0)
    kept = []
    for number in range(4):
        each = width // heads
        y = net.norm(x, width)
        q, k, v = (
            net.turn(net.shape(net.linear(y, width, width), 1, 1, heads, each), 0, 2, 1, 3)
            for _ in range(3)
        )
        k = net.op("Concat", net.noise(f"k{number}", 1, heads, past, each), k, axis=2)
        v = net.op("Concat", net.noise(f"u{number}", 1, heads, past, each), v, axis=2)
        kept += [k, v]
        scores = net.op("Div", net.op("MatMul", q, net.turn(k, 0, 1, 3, 2)), net.const(each**0.5))
        mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
        joined = net.shape(net.turn(mixed, 0, 2, 1, 3), 1, 1, width)
        x = net.op("Add", x, net.linear(joined, width, width))
        hidden = net.act(net.linear(net.norm(x, width), width, 4 * width), "gelu")
        x = net.op("Add", x, net.linear(hidden, 4 * width, width))
    return net.build(net.linear(net.norm(x, width), width, 4000), *kept)


# Quantised.


class _Samples:
    """What a quantiser calibrates on: the model's inputs, and other noise of their shapes."""

    def __init__(self, given: Inputs) -> None:
        rng = np.random.default_rng(1)

        def other(values: np.ndarray) -> np.ndarray:
            if values.dtype.kind != "f":
                return values
            return rng.standard_normal(values.shape).astype(values.dtype)

        some = [given, *({n: other(v) for n, v in given.items()} for _ in range(2))]
        self.left: Iterator[Inputs] = iter(some)

    def get_next(self) -> Inputs | None:
        return next(self.left, None)


@dataclass(frozen=True)
class Quantised:
    """A model put through onnxruntime's quantiser."""

    make: Callable[[], Made]
    form: str  # dynamic, QDQ or QOperator
    signed: bool = False  # activations are int8, not uint8
    each: bool = True  # weights have a scale for each result

    def __call__(self) -> Made:
        import logging

        from onnxruntime import quantization as q

        logging.getLogger().setLevel(logging.ERROR)  # it advises to prepare the model
        text, given = self.make()
        with tempfile.TemporaryDirectory() as folder:
            source, goal = Path(folder, "a.onnx"), Path(folder, "b.onnx")
            source.write_bytes(text)
            if self.form == "dynamic":
                q.quantize_dynamic(source, goal, per_channel=self.each, op_types_to_quantize=[
                    "MatMul", "Conv"])  # fmt: skip
            else:
                q.quantize_static(
                    source, goal, _Samples(given), quant_format=q.QuantFormat[self.form],
                    per_channel=self.each, weight_type=q.QuantType.QInt8,
                    activation_type=q.QuantType.QInt8 if self.signed else q.QuantType.QUInt8,
                )  # fmt: skip
            return goal.read_bytes(), given


ZOO: dict[str, Callable[[], Made]] = {
    "silero": silero, "DTLN-1": dtln_1, "DTLN-2": dtln_2, "gtcrn": gtcrn,
    "basic-pitch": basic_pitch, "swift-f0": swift_f0, "wavenet": wavenet, "CRNN": crnn,
    "MobileNetV2": mobilenet_v2, "MobileNetV3": mobilenet_v3, "RFB face": rfb_face,
    "shuffled angle": shuffle_angle, "ResNet-18": resnet, "YOLO": yolo, "U-Net": unet,
    "BERT": bert, "MiniLM": mini_lm, "ViT": vit, "decoder step": decoder,
    "BERT int8 dynamic": Quantised(bert, "dynamic"),
    "ViT int8 dynamic": Quantised(vit, "dynamic", each=False),
    "BERT int8 QDQ": Quantised(bert, "QDQ"),
    "ViT int8 QDQ signed": Quantised(vit, "QDQ", signed=True),
    "ResNet int8 QLinear": Quantised(small_resnet, "QOperator"),
    "MobileNet int8 QDQ": Quantised(small_mobilenet, "QDQ"),
    "MiniLM int8 QLinear": Quantised(mini_lm, "QOperator", each=False),
}  # fmt: skip
