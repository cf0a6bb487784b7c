"""More ONNX models with the shapes of known ones: speech, reading, attention in windows, steps of
decoders, diffusion, tables.

In: the name of a model in `MORE`. Out: its bytes and its inputs, as `onnx_zoo` has them, which says
what is faithful in them and what is random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bench.onnx_zoo import (
    ZOO,
    Made,
    Net,
    Quantised,
    inverted_bottleneck,
    mini_lm,
    mobilenet_v3,
    unet,
    vit,
    yolo,
)


def layer_norm(net: Net, x: str, width: int) -> str:
    """Layer normalisation as one node, as exporters from opset 17 on write it."""
    return net.op(
        "LayerNormalization", x, net.small(width), net.small(width), axis=-1, epsilon=1e-5
    )


def product(net: Net, x: str, inner: int, outer: int) -> str:
    """A product without a bias."""
    return str(net.op("MatMul", x, net.weight(inner, outer, fan=inner)))


def heads_of(net: Net, x: str, steps: int, heads: int, each: int) -> str:
    """Rows of (1, steps, heads x each) by heads."""
    return net.turn(net.shape(x, -1 if False else 1, steps, heads, each), 0, 2, 1, 3)


def attend(
    net: Net,
    q: str,
    k: str,
    v: str,
    width: int,
    heads: int,
    steps: int,
    keys: int,
    mask: str | None = None,
) -> str:
    """Attention of heads, spelled out."""
    each = width // heads
    q, v = heads_of(net, q, steps, heads, each), heads_of(net, v, keys, heads, each)
    k = net.turn(net.shape(k, 1, keys, heads, each), 0, 2, 3, 1)
    s = net.op("MatMul", net.op("Mul", q, net.const(each**-0.5)), k)
    if mask is not None:
        s = net.op("Add", s, mask)
    y = net.op("MatMul", net.op("Softmax", s, axis=-1), v)
    return net.shape(net.turn(y, 0, 2, 1, 3), 1, steps, width)


def pre_layer(net: Net, x: str, width: int, heads: int, steps: int, act: str = "gelu") -> str:
    """A transformer layer whose norms come first."""
    y = layer_norm(net, x, width)
    y = attend(
        net,
        net.linear(y, width, width),
        net.op("MatMul", y, net.weight(width, width, fan=width)),
        net.linear(y, width, width),
        width,
        heads,
        steps,
        steps,
    )
    x = net.op("Add", x, net.linear(y, width, width))
    y = net.act(net.linear(layer_norm(net, x, width), width, 4 * width), act)
    return net.op("Add", x, net.linear(y, 4 * width, width))


def whisper_encoder(frames: int = 3000, layers: int = 4) -> Made:
    """Whisper-tiny's encoder: two convolutions along time, four layers over 1500 frames."""
    net, w = Net(), 384
    x = net.conv(net.noise("mel", 1, 80, frames), 80, w, (3,), act="gelu")
    x = net.conv(x, w, w, (3,), 2, act="gelu")
    steps = frames // 2
    x = net.op("Add", net.turn(x, 0, 2, 1), net.small(steps, w))
    for _ in range(layers):
        x = pre_layer(net, x, w, 6, steps)
    return net.build(layer_norm(net, x, w))


def whisper_decoder(past: int = 40, keys: int = 1500, vocab: int = 51865, layers: int = 4) -> Made:
    """A step of Whisper-tiny's decoder: kept keys and values, the encoder's, many words."""
    net, w, heads = Net(), 384, 6
    ids = net.input("ids", net.rng.integers(0, 4000, (1, 1)))
    table = net.weight(vocab, w, fan=w)
    x = net.op("Add", net.op("Gather", table, ids, axis=0), net.small(1, 1, w))
    kept = []
    for n in range(layers):
        y = layer_norm(net, x, w)
        q = heads_of(net, net.linear(y, w, w), 1, heads, 64)
        k = heads_of(net, net.op("MatMul", y, net.weight(w, w, fan=w)), 1, heads, 64)
        v = heads_of(net, net.linear(y, w, w), 1, heads, 64)
        k = net.op("Concat", net.noise(f"k{n}", 1, heads, past, 64), k, axis=2)
        v = net.op("Concat", net.noise(f"u{n}", 1, heads, past, 64), v, axis=2)
        kept += [k, v]
        s = net.op("MatMul", net.op("Mul", q, net.const(0.125)), net.turn(k, 0, 1, 3, 2))
        y = net.op("MatMul", net.op("Softmax", s, axis=-1), v)
        x = net.op("Add", x, net.linear(net.shape(net.turn(y, 0, 2, 1, 3), 1, 1, w), w, w))
        q = heads_of(net, net.linear(layer_norm(net, x, w), w, w), 1, heads, 64)
        ck, cv = net.noise(f"ck{n}", 1, heads, keys, 64), net.noise(f"cv{n}", 1, heads, keys, 64)
        s = net.op("MatMul", net.op("Mul", q, net.const(0.125)), net.turn(ck, 0, 1, 3, 2))
        y = net.op("MatMul", net.op("Softmax", s, axis=-1), cv)
        x = net.op("Add", x, net.linear(net.shape(net.turn(y, 0, 2, 1, 3), 1, 1, w), w, w))
        y = net.act(net.linear(layer_norm(net, x, w), w, 4 * w), "gelu")
        x = net.op("Add", x, net.linear(y, 4 * w, w))
    x = layer_norm(net, x, w)
    return net.build(net.op("MatMul", x, net.turn(table, 1, 0)), *kept)


def yolov8_head() -> Made:
    """YOLOv8-n's head at 640: three scales, distances as distributions, boxes."""
    net, heads = Net(), []
    for n, (w, s) in enumerate(((64, 80), (128, 40), (256, 20))):
        x = net.noise(f"p{n}", 1, w, s, s)
        box = net.conv(
            net.conv(net.conv(x, w, 64, 3, act="silu"), 64, 64, 3, act="silu"), 64, 64, 1
        )
        kind = net.conv(
            net.conv(net.conv(x, w, 80, 3, act="silu"), 80, 80, 3, act="silu"), 80, 80, 1
        )
        heads.append(net.shape(net.op("Concat", box, kind, axis=1), 1, 144, -1))
    joined = net.op("Concat", *heads, axis=2)
    count = 8400
    box, kind = net.op("Split", joined, net.ints(64, 80), axis=1, outputs=2)
    bins = net.op("Softmax", net.turn(net.shape(box, 1, 4, 16, count), 0, 2, 1, 3), axis=1)
    d = net.shape(
        net.op("Conv", bins, net.const(np.arange(16).reshape(1, 16, 1, 1)), kernel_shape=[1, 1]),
        1,
        4,
        count,
    )
    lt = net.op("Slice", d, net.ints(0), net.ints(2), net.ints(1))
    rb = net.op("Slice", d, net.ints(2), net.ints(4), net.ints(1))
    anchor = net.const(net.rng.random((1, 2, count)) * 80)
    a, b = net.op("Sub", anchor, lt), net.op("Add", anchor, rb)
    mid = net.op("Div", net.op("Add", a, b), net.const(2.0))
    box = net.op(
        "Mul",
        net.op("Concat", mid, net.op("Sub", b, a), axis=1),
        net.const(np.repeat([8.0, 16, 32], [6400, 1600, 400])[None]),
    )
    return net.build(net.op("Concat", box, net.op("Sigmoid", kind), axis=1))


def batch_norm(net: Net, x: str, c: int) -> str:
    """A normalisation by statistics that were kept."""
    return net.op(
        "BatchNormalization",
        x,
        net.const(1 + 0.1 * net.rng.random(c)),
        net.small(c),
        net.small(c),
        net.const(1 + net.rng.random(c)),
    )


def dbnet(size: int = 320) -> Made:
    """PP-OCR's detector: features made larger and joined, two transposed convolutions."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, size, size), 3, 8, 3, 2, act="HardSwish")
    inner, kept = 8, []
    plan = (
        (8, 8, 1, 3, "Relu"),
        (16, 32, 2, 3, "Relu"),
        (16, 40, 1, 3, "Relu"),
        (24, 40, 2, 5, "Relu"),
        (24, 64, 1, 5, "Relu"),
        (24, 64, 1, 5, "Relu"),
        (40, 120, 2, 3, "HardSwish"),
        (40, 104, 1, 3, "HardSwish"),
        (40, 96, 1, 3, "HardSwish"),
        (56, 240, 1, 3, "HardSwish"),
        (56, 336, 1, 3, "HardSwish"),
        (80, 336, 2, 5, "HardSwish"),
        (80, 480, 1, 5, "HardSwish"),
        (80, 480, 1, 5, "HardSwish"),
    )
    for outer, wide, stride, k, act in plan:
        if stride == 2 and inner > 8:
            kept.append((x, inner))
        x, inner = inverted_bottleneck(net, x, inner, outer, wide, stride, act, k, False), outer
    kept.append((net.conv(x, 80, 480, 1, act="HardSwish"), 480))
    outs = [net.op("Conv", y, net.weight(96, c, 1, 1), kernel_shape=[1, 1]) for y, c in kept]

    def up(x, n):
        return net.op(
            "Resize",
            x,
            "",
            net.const([1, 1, n, n]),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    o4 = net.op("Add", outs[2], up(outs[3], 2))
    o3 = net.op("Add", outs[1], up(o4, 2))
    o2 = net.op("Add", outs[0], up(o3, 2))
    parts = [net.conv(y, 96, 24, 3) for y in (outs[3], o4, o3, o2)]
    x = net.op("Concat", up(parts[0], 8), up(parts[1], 4), up(parts[2], 2), parts[3], axis=1)
    x = net.op(
        "Relu",
        batch_norm(
            net, net.op("Conv", x, net.weight(24, 96, 3, 3), kernel_shape=[3, 3], pads=[1] * 4), 24
        ),
    )
    x = net.op(
        "ConvTranspose",
        x,
        net.weight(24, 24, 2, 2, fan=24),
        net.small(24),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    x = net.op("Relu", batch_norm(net, x, 24))
    x = net.op(
        "ConvTranspose",
        x,
        net.weight(24, 1, 2, 2, fan=24),
        net.small(1),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    return net.build(net.op("Sigmoid", x))


def ppocr_rec() -> Made:
    """PP-OCR's reader: separable convolutions, two layers over 80 columns, 6625 letters."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, 48, 320), 3, 16, 3, 2, act="HardSwish")
    inner = 16
    for outer, k, stride, se in (
        (32, 3, 1, 0),
        (64, 3, 1, 0),
        (64, 3, 1, 0),
        (128, 3, (2, 1), 0),
        (128, 3, 1, 0),
        (256, 3, (2, 1), 0),
        (256, 5, 1, 0),
        (256, 5, 1, 0),
        (256, 5, 1, 0),
        (512, 5, (2, 1), 1),
        (512, 5, (1, 2), 1),
    ):
        x = net.conv(x, inner, inner, k, stride, groups=inner, act="HardSwish")
        if se:
            x = net.squeeze_excite(x, inner, inner // 4, "HardSigmoid")
        x, inner = net.conv(x, inner, outer, 1, act="HardSwish"), outer
    x = net.op("AveragePool", x, kernel_shape=[3, 1], strides=[3, 1])
    steps, w = 80, 64
    y = net.conv(net.conv(x, 512, w, (1, 3), act="silu"), w, 120, 1, act="silu")
    y = net.turn(net.op("Squeeze", y, net.ints(2)), 0, 2, 1)
    for _ in range(2):
        y = pre_layer(net, y, 120, 8, steps, act="silu")
    y = net.shape(layer_norm(net, y, 120), 1, 1, steps, 120)
    y = net.conv(net.turn(y, 0, 3, 1, 2), 120, 512, 1, act="silu")
    y = net.conv(
        net.conv(net.op("Concat", x, y, axis=1), 1024, w, (1, 3), act="silu"), w, 64, 1, act="silu"
    )
    y = net.turn(net.op("Squeeze", y, net.ints(2)), 0, 2, 1)
    return net.build(net.op("Softmax", net.linear(y, 64, 6625), axis=2))


def rnnoise() -> Made:
    """One frame of RNNoise: two convolutions over kept frames, three GRUs of a step."""
    net = Net()
    x = net.noise("x", 1, 3, 65)
    y = net.act(net.conv(net.turn(x, 0, 2, 1), 65, 128, (3,), pads=(0, 0)), "Tanh")
    m = net.noise("m", 1, 128, 2)
    y = net.op("Concat", m, y, axis=2)
    z = net.act(net.conv(y, 128, 384, (3,), pads=(0, 0)), "Tanh")
    z = net.turn(z, 2, 0, 1)
    states, parts = [], [z]
    for n in range(3):
        h = net.noise(f"h{n}", 1, 1, 384)
        o, hn = net.recurrent("GRU", z, 384, 384, (h,))
        z = net.op("Squeeze", o, net.ints(1))
        states.append(hn)
        parts.append(z)
    a = net.op("Concat", *parts, axis=2)
    return net.build(
        net.op("Sigmoid", net.linear(a, 1536, 32)),
        net.op("Sigmoid", net.linear(a, 1536, 1)),
        net.op("Slice", y, net.ints(1), net.ints(3), net.ints(2)),
        *states,
    )


def conformer(frames: int = 400, w: int = 144, heads: int = 4, blocks: int = 2) -> Made:
    """Two blocks of a Conformer: halves, attention by relative places, a gated convolution."""
    net = Net()
    x = net.conv(net.noise("x", 1, 1, frames, 80), 1, w, 3, 2, act="Relu")
    x = net.conv(x, w, w, 3, 2, act="Relu")
    t = frames // 4
    x = net.linear(net.shape(net.turn(x, 0, 2, 1, 3), 1, t, w * 20), w * 20, w)
    pos = net.small(1, 2 * t - 1, w)
    each = w // heads
    for _ in range(blocks):

        def ff(x):
            y = net.act(net.linear(layer_norm(net, x, w), w, 4 * w), "silu")
            return net.op("Add", x, net.op("Mul", net.linear(y, 4 * w, w), net.const(0.5)))

        x = ff(x)
        y = layer_norm(net, x, w)
        q = net.shape(net.linear(y, w, w), 1, t, heads, each)
        k = net.turn(net.shape(net.linear(y, w, w), 1, t, heads, each), 0, 2, 3, 1)
        v = heads_of(net, net.linear(y, w, w), t, heads, each)
        p = net.turn(
            net.shape(net.op("MatMul", pos, net.weight(w, w, fan=w)), 1, 2 * t - 1, heads, each),
            0,
            2,
            3,
            1,
        )
        qu = net.turn(net.op("Add", q, net.small(heads, each)), 0, 2, 1, 3)
        qv = net.turn(net.op("Add", q, net.small(heads, each)), 0, 2, 1, 3)
        ac, bd = net.op("MatMul", qu, k), net.op("MatMul", qv, p)
        bd = net.op("Pad", bd, net.ints(0, 0, 0, 1, 0, 0, 0, 0))
        bd = net.shape(bd, 1, heads, 2 * t, t)
        bd = net.shape(
            net.op("Slice", bd, net.ints(1), net.ints(2 * t), net.ints(2)), 1, heads, t, 2 * t - 1
        )
        bd = net.op("Slice", bd, net.ints(0), net.ints(t), net.ints(3))
        s = net.op("Div", net.op("Add", ac, bd), net.const(each**0.5))
        y = net.op("MatMul", net.op("Softmax", s, axis=-1), v)
        x = net.op("Add", x, net.linear(net.shape(net.turn(y, 0, 2, 1, 3), 1, t, w), w, w))
        y = net.turn(layer_norm(net, x, w), 0, 2, 1)
        y = net.conv(y, w, 2 * w, (1,))
        a, b = net.op("Split", y, net.ints(w, w), axis=1, outputs=2)
        y = net.op("Mul", a, net.op("Sigmoid", b))
        y = net.conv(y, w, w, (31,), groups=w)
        y = net.conv(net.act(batch_norm(net, y, w), "silu"), w, w, (1,))
        x = net.op("Add", x, net.turn(y, 0, 2, 1))
        x = layer_norm(net, ff(x), w)
    return net.build(x)


def sam_block(size: int = 32, w: int = 192, heads: int = 3, window: int = 14) -> Made:
    """A block of SAM's encoder in windows, one over all: relative places along rows and columns."""
    net = Net()
    x = net.noise("x", 1, size, size, w)
    padded = -(-size // window) * window
    n, each = padded // window, w // heads
    for kind in ("window", "global"):
        y = layer_norm(net, x, w)
        s = size
        b = 1
        if kind == "window":
            y = net.op("Pad", y, net.ints(0, 0, 0, 0, 0, padded - size, padded - size, 0))
            y = net.turn(net.shape(y, 1, n, window, n, window, w), 0, 1, 3, 2, 4, 5)
            s, b = window, n * n
        y = net.shape(y, b, s, s, w)
        qkv = net.linear(y, w, 3 * w)
        qkv = net.turn(net.shape(qkv, b, s * s, 3, heads, each), 2, 0, 3, 1, 4)
        qkv = net.shape(qkv, 3, b * heads, s * s, each)
        q, k, v = [
            net.op("Squeeze", t, net.ints(0))
            for t in net.op("Split", qkv, net.ints(1, 1, 1), axis=0, outputs=3)
        ]
        sc = net.op("MatMul", net.op("Mul", q, net.const(each**-0.5)), net.turn(k, 0, 2, 1))
        rq = net.shape(q, b * heads, s, s, each)
        rel = np.arange(s)[:, None] - np.arange(s)[None] + s - 1
        rh = net.op("Gather", net.small(2 * s - 1, each), net.const(rel, np.int64), axis=0)
        rw = net.op("Gather", net.small(2 * s - 1, each), net.const(rel, np.int64), axis=0)
        eh = net.op("Einsum", rq, rh, equation="bhwc,hkc->bhwk")
        ew = net.op("Einsum", rq, rw, equation="bhwc,wkc->bhwk")
        sc = net.shape(sc, b * heads, s, s, s, s)
        sc = net.op("Add", sc, net.op("Unsqueeze", eh, net.ints(4)))
        sc = net.op("Add", sc, net.op("Unsqueeze", ew, net.ints(3)))
        sc = net.shape(sc, b * heads, s * s, s * s)
        y = net.op("MatMul", net.op("Softmax", sc, axis=-1), v)
        y = net.turn(net.shape(y, b, heads, s, s, each), 0, 2, 3, 1, 4)
        y = net.linear(net.shape(y, b, s, s, w), w, w)
        if kind == "window":
            y = net.turn(net.shape(y, 1, n, n, window, window, w), 0, 1, 3, 2, 4, 5)
            y = net.shape(y, 1, padded, padded, w)
            y = net.op("Slice", y, net.ints(0, 0), net.ints(size, size), net.ints(1, 2))
        x = net.op("Add", x, y)
        y = net.act(net.linear(layer_norm(net, x, w), w, 4 * w), "gelu")
        x = net.op("Add", x, net.linear(y, 4 * w, w))
    return net.build(x)


def swin() -> Made:
    """Two stages of Swin-T: windows, moved by half, and merged patches."""
    net, s, w, heads, win = Net(), 56, 96, 3, 7
    x = net.op(
        "Conv",
        net.noise("x", 1, 3, 224, 224),
        net.weight(w, 3, 4, 4),
        net.small(w),
        kernel_shape=[4, 4],
        strides=[4, 4],
    )
    x = layer_norm(net, net.turn(net.shape(x, 1, w, s * s), 0, 2, 1), w)
    for stage in range(2):
        for shift in (0, 3):
            y = net.shape(layer_norm(net, x, w), 1, s, s, w)

            def roll(y, k):
                for ax in (1, 2):
                    a = net.op("Slice", y, net.ints(k), net.ints(1 << 62), net.ints(ax))
                    b = net.op("Slice", y, net.ints(0), net.ints(k), net.ints(ax))
                    y = net.op("Concat", a, b, axis=ax)
                return y

            if shift:
                y = roll(y, shift)
            n, each = s // win, w // heads
            y = net.shape(
                net.turn(net.shape(y, 1, n, win, n, win, w), 0, 1, 3, 2, 4, 5), n * n, win * win, w
            )
            qkv = net.turn(
                net.shape(net.linear(y, w, 3 * w), n * n, win * win, 3, heads, each), 2, 0, 3, 1, 4
            )
            q, k, v = [net.op("Gather", qkv, net.const(i, np.int64), axis=0) for i in range(3)]
            sc = net.op("MatMul", net.op("Mul", q, net.const(each**-0.5)), net.turn(k, 0, 1, 3, 2))
            sc = net.op("Add", sc, net.small(1, heads, win * win, win * win))
            if shift:
                sc = net.shape(sc, 1, n * n, heads, win * win, win * win)
                mask = np.zeros((1, n * n, 1, win * win, win * win))
                mask[:, -n:, :, :20, 20:] = -100
                sc = net.shape(
                    net.op("Add", sc, net.const(mask)), n * n, heads, win * win, win * win
                )
            y = net.op("MatMul", net.op("Softmax", sc, axis=-1), v)
            y = net.linear(net.shape(net.turn(y, 0, 2, 1, 3), n * n, win * win, w), w, w)
            y = net.shape(
                net.turn(net.shape(y, 1, n, n, win, win, w), 0, 1, 3, 2, 4, 5), 1, s, s, w
            )
            if shift:
                y = roll(y, s - shift)
            x = net.op("Add", x, net.shape(y, 1, s * s, w))
            y = net.act(net.linear(layer_norm(net, x, w), w, 4 * w), "gelu")
            x = net.op("Add", x, net.linear(y, 4 * w, w))
        if stage == 0:
            y = net.shape(x, 1, s, s, w)
            parts = []
            for a, b in ((0, 0), (1, 0), (0, 1), (1, 1)):
                parts.append(
                    net.op(
                        "Slice",
                        y,
                        net.ints(a, b),
                        net.ints(1 << 62, 1 << 62),
                        net.ints(1, 2),
                        net.ints(2, 2),
                    )
                )
            y = net.shape(net.op("Concat", *parts, axis=-1), 1, s * s // 4, 4 * w)
            x = net.op("MatMul", layer_norm(net, y, 4 * w), net.weight(4 * w, 2 * w, fan=4 * w))
            s, w, heads = s // 2, 2 * w, 2 * heads
    return net.build(layer_norm(net, x, w))


def effnet_lite(size: int = 128) -> Made:
    """EfficientNet-lite: inverted bottlenecks without gates."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, size, size), 3, 32, 3, 2, act="relu6")
    inner = 32
    for outer, grow, stride, k, count in (
        (16, 1, 1, 3, 1),
        (24, 6, 2, 3, 2),
        (40, 6, 2, 5, 2),
        (80, 6, 2, 3, 2),
        (112, 6, 1, 5, 2),
        (192, 6, 2, 5, 2),
        (320, 6, 1, 3, 1),
    ):
        for n in range(count):
            x, inner = (
                inverted_bottleneck(
                    net, x, inner, outer, inner * grow, stride if n == 0 else 1, "relu6", k, False
                ),
                outer,
            )
    x = net.op("GlobalAveragePool", net.conv(x, 320, 1280, 1, act="relu6"))
    return net.build(net.linear(net.op("Flatten", x), 1280, 1000))


def hifigan(frames: int = 40) -> Made:
    """The decoder of a small VITS voice: transposed convolutions and dilated ones at each rate."""
    net, w = Net(), 256
    x = net.conv(net.noise("z", 1, 192, frames), 192, w, (7,))
    for rate, k in ((8, 16), (8, 16), (4, 8)):
        x = net.op("LeakyRelu", x, alpha=0.1)
        p = (k - rate) // 2
        x = net.op(
            "ConvTranspose",
            x,
            net.weight(w, w // 2, k, fan=w * 2),
            net.small(w // 2),
            kernel_shape=[k],
            strides=[rate],
            pads=[p, p],
        )
        w //= 2
        total = ""
        for size, dils in ((3, (1, 2)), (5, (2, 6)), (7, (3, 12))):
            y = x
            for d in dils:
                y = net.op(
                    "Add", y, net.conv(net.op("LeakyRelu", y, alpha=0.1), w, w, (size,), dilation=d)
                )
            total = net.op("Add", total, y) if total else y
        x = net.op("Div", total, net.const(3.0))
    x = net.conv(net.op("LeakyRelu", x, alpha=0.01), w, 1, (7,), act="Tanh")
    return net.build(x)


def bilstm_crf(steps: int = 60, tags: int = 19) -> Made:
    """Names in a text: an LSTM both ways, and the best path through its tags, by two scans."""
    net = Net()
    ids = net.input("ids", net.rng.integers(0, 5000, (1, steps)))
    x = net.op("Gather", net.weight(5000, 100, fan=1), ids, axis=0)
    y = net.recurrent("LSTM", net.turn(x, 1, 0, 2), 100, 128, both=2)[0]
    y = net.shape(net.turn(y, 2, 0, 1, 3), 1, steps, 256)
    e = net.shape(net.linear(y, 256, tags), steps, tags)
    V = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["s", "one"], ["s1"]),
            helper.make_node("Add", ["s1", "tr"], ["a"]),
            helper.make_node("ReduceMax", ["a"], ["m"], axes=[0], keepdims=0),
            helper.make_node("ArgMax", ["a"], ["bp"], axis=0, keepdims=0),
            helper.make_node("Add", ["m", "em"], ["s_out"]),
        ],
        "step",
        [V("s", TensorProto.FLOAT, [tags]), V("em", TensorProto.FLOAT, [tags])],
        [V("s_out", TensorProto.FLOAT, [tags]), V("bp", TensorProto.INT64, [tags])],
        [
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(
                0.1 * net.rng.standard_normal((tags, tags)).astype(np.float32), "tr"
            ),
        ],
    )
    start = net.small(tags)
    last, back = net.op("Scan", start, e, outputs=2, body=body, num_scan_inputs=1)
    best = net.op("ArgMax", last, axis=0, keepdims=0)
    body2 = helper.make_graph(
        [
            helper.make_node("Gather", ["bp", "t"], ["t_out"], axis=0),
            helper.make_node("Identity", ["t"], ["o"]),
        ],
        "back",
        [V("t", TensorProto.INT64, []), V("bp", TensorProto.INT64, [tags])],
        [V("t_out", TensorProto.INT64, []), V("o", TensorProto.INT64, [])],
    )
    _, path = net.op(
        "Scan",
        best,
        back,
        outputs=2,
        body=body2,
        num_scan_inputs=1,
        scan_input_directions=[1],
        scan_output_directions=[1],
    )
    made = net.build(net.op("Cast", path, to=1), last)
    return made


def tcn(length: int = 512, w: int = 64) -> Made:
    """A temporal network: dilated causal convolutions, cut at the end."""
    net, inner = Net(), 32
    x = net.noise("x", 1, 32, length)
    for n in range(6):
        d = 1 << n
        y = x
        for k in range(2):
            y = net.op(
                "Conv",
                y,
                net.weight(w, inner if k == 0 else w, 3),
                net.small(w),
                kernel_shape=[3],
                dilations=[d],
                pads=[2 * d, 2 * d],
            )
            y = net.op("Relu", net.op("Slice", y, net.ints(0), net.ints(-2 * d), net.ints(2)))
        kept = x if inner == w else net.conv(x, inner, w, (1,))
        x, inner = net.op("Relu", net.op("Add", y, kept)), w
    last = net.op("Gather", x, net.const(-1, np.int64), axis=2)
    return net.build(net.linear(last, w, 10))


def group_norm(net: Net, x: str, c: int, s: int, groups: int = 32) -> str:
    """Group normalisation, as exporters write it."""
    y = net.shape(x, 0, groups, -1)
    y = net.op(
        "InstanceNormalization",
        y,
        net.const(np.ones(groups)),
        net.const(np.zeros(groups)),
        epsilon=1e-5,
    )
    y = net.shape(y, 1, c, s, s)
    return net.op("Add", net.op("Mul", y, net.small(c, 1, 1)), net.small(c, 1, 1))


def sd_block(c: int = 160, s: int = 32, text: int = 77, ctx: int = 768, heads: int = 4) -> Made:
    """A block of a diffusion network: convolutions, attention also to a text, a gated product."""
    net = Net()
    x, t, mem = net.noise("x", 1, c, s, s), net.noise("t", 1, 640), net.noise("text", 1, text, ctx)
    for _ in range(2):
        y = net.conv(net.act(group_norm(net, x, c, s), "silu"), c, c, 3)
        e = net.linear(net.act(t, "silu"), 640, c)
        y = net.op("Add", y, net.op("Unsqueeze", net.op("Unsqueeze", e, net.ints(2)), net.ints(3)))
        y = net.conv(net.act(group_norm(net, y, c, s), "silu"), c, c, 3)
        x = net.op("Add", x, y)
        kept, n = x, s * s
        y = net.conv(group_norm(net, x, c, s), c, c, 1)
        y = net.shape(net.turn(y, 0, 2, 3, 1), 1, n, c)
        z = layer_norm(net, y, c)
        y = net.op(
            "Add",
            y,
            net.linear(
                attend(
                    net,
                    product(net, z, c, c),
                    product(net, z, c, c),
                    product(net, z, c, c),
                    c,
                    heads,
                    n,
                    n,
                ),
                c,
                c,
            ),
        )
        z = layer_norm(net, y, c)
        y = net.op(
            "Add",
            y,
            net.linear(
                attend(
                    net,
                    product(net, z, c, c),
                    product(net, mem, ctx, c),
                    product(net, mem, ctx, c),
                    c,
                    heads,
                    n,
                    text,
                ),
                c,
                c,
            ),
        )
        z = net.linear(layer_norm(net, y, c), c, 8 * c)
        a, b = net.op("Split", z, net.ints(4 * c, 4 * c), axis=-1, outputs=2)
        y = net.op("Add", y, net.linear(net.op("Mul", a, net.act(b, "gelu")), 4 * c, c))
        y = net.turn(net.shape(y, 1, s, s, c), 0, 3, 1, 2)
        x = net.op("Add", net.conv(y, c, c, 1), kept)
    return net.build(net.conv(x, c, c, 3, 2))


def resnet50(size: int = 96) -> Made:
    """Bottlenecks of ResNet-50, two of each width."""
    net = Net()
    x = net.conv(net.noise("x", 1, 3, size, size), 3, 64, 7, 2, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inner = 64
    for mid, count in ((64, 2), (128, 2), (256, 2)):
        for n in range(count):
            stride = 2 if n == 0 and mid > 64 else 1
            y = net.conv(
                net.conv(net.conv(x, inner, mid, 1, act="Relu"), mid, mid, 3, stride, act="Relu"),
                mid,
                4 * mid,
                1,
            )
            kept = x if inner == 4 * mid else net.conv(x, inner, 4 * mid, 1, stride)
            x, inner = net.op("Relu", net.op("Add", y, kept)), 4 * mid
    return net.build(net.linear(net.op("Flatten", net.op("GlobalAveragePool", x)), 1024, 1000))


def llama_step(
    past: int = 255, w: int = 512, heads: int = 8, kv: int = 2, layers: int = 4, vocab: int = 8000
) -> Made:
    """One word of a small Llama: turned places, shared heads, gated products."""
    net, each = Net(), 64
    ids = net.input("ids", net.rng.integers(0, vocab, (1, 1)))
    x = net.op("Gather", net.weight(vocab, w, fan=1), ids, axis=0)
    cos, sin = net.small(1, 1, 1, each), net.small(1, 1, 1, each)

    def rms(x):
        m = net.op("ReduceMean", net.op("Pow", x, net.const(2.0)), axes=[-1])
        r = net.op("Div", net.const(1.0), net.op("Sqrt", net.op("Add", m, net.const(1e-6))))
        return net.op("Mul", net.small(w), net.op("Mul", x, r))

    def rot(x):
        a = net.op("Slice", x, net.ints(0), net.ints(32), net.ints(3))
        b = net.op("Slice", x, net.ints(32), net.ints(1 << 62), net.ints(3))
        return net.op(
            "Add",
            net.op("Mul", x, cos),
            net.op("Mul", net.op("Concat", net.op("Neg", b), a, axis=-1), sin),
        )

    kept = []
    for n in range(layers):
        y = rms(x)
        q = rot(heads_of(net, product(net, y, w, w), 1, heads, each))
        k = rot(heads_of(net, product(net, y, w, kv * each), 1, kv, each))
        v = heads_of(net, product(net, y, w, kv * each), 1, kv, each)
        k = net.op("Concat", net.noise(f"k{n}", 1, kv, past, each), k, axis=2)
        v = net.op("Concat", net.noise(f"u{n}", 1, kv, past, each), v, axis=2)
        kept += [k, v]

        def rep(t):
            t = net.op(
                "Expand",
                net.op("Unsqueeze", t, net.ints(2)),
                net.ints(1, kv, heads // kv, past + 1, each),
            )
            return net.shape(t, 1, heads, past + 1, each)

        s = net.op("Mul", net.op("MatMul", q, net.turn(rep(k), 0, 1, 3, 2)), net.const(0.125))
        y = net.op("MatMul", net.op("Softmax", s, axis=-1), rep(v))
        x = net.op("Add", x, product(net, net.shape(net.turn(y, 0, 2, 1, 3), 1, 1, w), w, w))
        y = rms(x)
        x = net.op(
            "Add",
            x,
            product(
                net,
                net.op("Mul", net.act(product(net, y, w, 1376), "silu"), product(net, y, w, 1376)),
                1376,
                w,
            ),
        )
    return net.build(product(net, rms(x), w, vocab), *kept)


def trees(batch: int = 1) -> Made:
    """100 trees of depth 6 on 30 features, 3 classes."""
    rng = np.random.default_rng(0)
    net = Net()
    x = net.noise("x", batch, 30)
    ids, nid, feat, val, modes, t, fl = [], [], [], [], [], [], []
    ct, cn, ci, cw = [], [], [], []
    for tree in range(100):
        for n in range(127):
            leaf = n >= 63
            ids.append(tree)
            nid.append(n)
            feat.append(0 if leaf else int(rng.integers(30)))
            val.append(0.0 if leaf else float(rng.standard_normal()))
            modes.append("LEAF" if leaf else "BRANCH_LEQ")
            t.append(0 if leaf else 2 * n + 1)
            fl.append(0 if leaf else 2 * n + 2)
            if leaf:
                for c in range(3):
                    ct.append(tree)
                    cn.append(n)
                    ci.append(c)
                    cw.append(float(rng.random()))
    names = [net.name(), net.name()]
    net.nodes.append(
        helper.make_node(
            "TreeEnsembleClassifier",
            [x],
            names,
            domain="ai.onnx.ml",
            nodes_treeids=ids,
            nodes_nodeids=nid,
            nodes_featureids=feat,
            nodes_values=val,
            nodes_modes=modes,
            nodes_truenodeids=t,
            nodes_falsenodeids=fl,
            class_treeids=ct,
            class_nodeids=cn,
            class_ids=ci,
            class_weights=cw,
            classlabels_int64s=[0, 1, 2],
            post_transform="SOFTMAX",
        )
    )
    g = helper.make_graph(
        net.nodes,
        "net",
        net.inputs,
        [helper.make_tensor_value_info(names[1], 1, None)],
        net.weights,
    )
    m = helper.make_model(
        g,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=8,
    )
    return m.SerializeToString(), net.given


MORE: dict[str, Callable[[], Made]] = {
    "whisper enc": whisper_encoder,
    "whisper dec": whisper_decoder,
    "yolov8 head": yolov8_head,
    "dbnet": dbnet,
    "ppocr rec": ppocr_rec,
    "rnnoise": rnnoise,
    "conformer": conformer,
    "sam": sam_block,
    "swin": swin,
    "hifigan": hifigan,
    "bilstm-crf": bilstm_crf,
    "tcn": tcn,
    "sd block": sd_block,
    "resnet50": resnet50,
    "llama step": llama_step,
    "trees 1": trees,
    "trees 500": lambda: trees(500),
    "effnet-lite": effnet_lite,
    "effnet-lite int8 QDQ": Quantised(effnet_lite, "QDQ"),
    "mobilenetv3 int8 QDQ": Quantised(mobilenet_v3, "QDQ"),
    "minilm int8 dynamic": Quantised(mini_lm, "dynamic"),
    "vit int8 QDQ": Quantised(vit, "QDQ"),
    "resnet50 int8 QDQ": Quantised(resnet50, "QDQ"),
    "dbnet int8 QDQ": Quantised(dbnet, "QDQ"),
    "yolo int8 QDQ": Quantised(yolo, "QDQ"),
    "tcn int8 QDQ": Quantised(tcn, "QDQ", signed=True),
    "swin int8 dynamic": Quantised(swin, "dynamic"),
    "conformer int8 dynamic": Quantised(conformer, "dynamic"),
    "ppocr rec int8 QDQ": Quantised(ppocr_rec, "QDQ"),
    "unet int8 QDQ": Quantised(unet, "QDQ"),
    "bilstm-crf int8 dynamic": Quantised(bilstm_crf, "dynamic"),
    "llama int8 dynamic": Quantised(llama_step, "dynamic"),
    "resnet50 int8 QLinear": Quantised(resnet50, "QOperator"),
}

ALL: dict[str, Callable[[], Made]] = {**ZOO, **MORE}
