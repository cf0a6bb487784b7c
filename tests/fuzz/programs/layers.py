"""Layers: convolutions, pools, norms, attention, products and activations of every kind."""

from __future__ import annotations

from .table import ANY, SPACE, step
from .writer import Unfit, Writer

TRUTHS = "rng.random({shape}) < 0.7"


def per_axis(w: Writer, count: int, *among: int) -> str:
    """A number for every axis, or now and then one for each."""
    if count > 1 and w.often(0.15):
        return str(tuple([w.one(*among) for _ in range(count)]))
    return str(w.one(*among))


def keywords(**given: object) -> str:
    """Keyword arguments, without those that are None."""
    return ", ".join([f"{name}={value}" for name, value in given.items() if value is not None])


def listed(*parts: str) -> str:
    """Arguments with commas between those that are there."""
    return ", ".join([part for part in parts if part])


def space_of(w: Writer, x: str) -> int:
    """How many axes of space a value has."""
    return len(w.shape(x)) - 2


# --- convolutions --------------------------------------------------------------------------------


@step(18, SPACE)
def convolution(w: Writer, x: str) -> str:
    d, channels = space_of(w, x), w.shape(x)[1]
    groups = w.one(1, 1, 1, 1, channels, 2)
    out = groups * w.one(1, 2, 3) if groups > 1 else w.one(2, 3, 4, 5, 6)
    if channels % groups:
        raise Unfit
    size = w.one(1, 1, 2, 3, 3, 3, 4)
    kernel = [size if w.often(0.85) else w.one(1, 2, 3) for _ in range(d)]
    weight = w.weight(out, channels // groups, *kernel)
    bias = w.weight(out) if w.often(0.4) else "None"
    stride = per_axis(w, d, 1, 1, 1, 2, 3)
    padding = w.one("0", "0", str(size // 2), "1", "'same'")
    if padding == "'same'" and stride != "1":
        padding = "1"
    dilation = per_axis(w, d, 1, 1, 1, 1, 2)
    more = keywords(
        stride=None if stride == "1" else stride, padding=None if padding == "0" else padding,
        dilation=None if dilation == "1" else dilation, groups=None if groups == 1 else groups,
    )  # fmt: skip
    if len({*kernel}) > 1 and padding == "'same'" and any(k % 2 == 0 for k in kernel):
        raise Unfit
    return w.function(f"conv{d}d", listed(x, weight, bias if bias != "None" else "", more))


@step(12, SPACE)
def pointwise_convolution(w: Writer, x: str) -> str:
    """1x1, the convolution that is a product."""
    d, channels = space_of(w, x), w.shape(x)[1]
    weight = w.weight(w.one(2, 3, 4, 5, 6, 8), channels, *[1] * d)
    return w.function(f"conv{d}d", x, weight)


@step(5, SPACE)
def transposed_convolution(w: Writer, x: str) -> str:
    d, channels = space_of(w, x), w.shape(x)[1]
    groups = w.one(1, 1, 1, 2, channels)
    if channels % groups:
        raise Unfit
    size, stride = w.one(1, 2, 3, 3), w.one(1, 2, 2, 3)
    weight = w.weight(channels, w.one(1, 2, 3), *[size] * d)
    more = keywords(
        stride=stride, padding=w.one(None, None, 1), groups=None if groups == 1 else groups,
        output_padding=stride - 1 if stride > 1 and w.often(0.3) else None,
        dilation=w.one(None, None, None, 2),
    )  # fmt: skip
    return w.function(f"conv_transpose{d}d", x, weight, more)


@step(2, SPACE)
def convolution_block(w: Writer, x: str) -> str:
    """A convolution, a norm and an activation."""
    y = w.say(*batch_norm_text(w, convolution(w, x)))
    return w.function("relu", y)


@step(10, (4,))
def channels_last(w: Writer, x: str) -> str:
    """The same picture with its channels last in memory."""
    return w.say(f"{x}.permute((0, 2, 3, 1)).contiguous().permute((0, 3, 1, 2))")


@step(24, (4,))
def separable_block(w: Writer, x: str) -> str:
    """Widened, by channel, gated by its mean, narrowed: with channels last, and perhaps a pool."""
    y, channels = x, w.shape(x)[1]
    if w.often(0.6):
        y = channels_last(w, y)
    if w.often(0.5):
        wide = w.one(4, 6, 8, 12, 16)
        y = w.function("relu", w.function("conv2d", y, w.weight(wide, channels, 1, 1)))
    y = _by_channel(w, y)
    if w.often(0.4):
        y = _gated(w, y)
    if w.often(0.6):
        outer = w.one(channels, channels, 3, 8, 16)
        y = w.function("conv2d", y, w.weight(outer, w.shape(y)[1], 1, 1))
    if w.shape(y) == w.shape(x):
        y = w.say(f"{x} + {y}")
    if w.often(0.3):
        y = channels_last(w, y)
    end = w.one("", "", "mean", "avg_pool2d", "max_pool2d")
    if end == "mean":
        return w.say(f"{y}.mean((2, 3))")
    return w.function(end, y, w.one("2", "3, stride=2, padding=1", "3, stride=1")) if end else y


def _by_channel(w: Writer, x: str) -> str:
    """A convolution of every channel by itself, and an activation."""
    channels, size = w.shape(x)[1], w.one(3, 3, 5)
    weight, bias = w.weight(channels, 1, size, size), w.weight(channels) if w.often(0.6) else ""
    more = keywords(stride=w.one(None, None, 2), padding=w.one(size // 2, 1), groups=channels)
    y = w.function("conv2d", listed(x, weight, bias, more))
    act = w.one("", "relu", "hardswish", "silu", "sigmoid")
    return w.function(act, y) if act else y


def _gated(w: Writer, x: str) -> str:
    """Squeeze and excite: every channel times a gate that its mean decides."""
    channels, inner = w.shape(x)[1], w.one(2, 4)
    mean = w.say(f"{x}.mean((2, 3), keepdims=True)", f"{x}.mean((2, 3), keepdim=True)")
    hidden = w.function("silu", w.function("conv2d", mean, w.weight(inner, channels, 1, 1)))
    gate = w.function("conv2d", hidden, w.weight(channels, inner, 1, 1))
    return w.say(f"{x} * {w.function('sigmoid', gate)}")


# --- pools ---------------------------------------------------------------------------------------


def pool_arguments(w: Writer, d: int, average: bool) -> str:
    """Window, stride and padding as they are usual, and now and then something else."""
    size = w.one(2, 2, 3, 3, 3, 4)
    kernel = str(size) if w.often(0.9) or d == 1 else str(tuple([w.one(1, 2, 3)] * d))
    stride = w.one(None, None, 1, 1, 2, 2, 3)
    padding = w.one(None, None, 1) if size > 1 and kernel == str(size) else None
    if average:
        more = keywords(
            stride=stride, padding=padding, ceil_mode=w.one(None, None, None, None, True),
            count_include_pad=w.one(None, False) if padding else None,
        )  # fmt: skip
    else:
        more = keywords(
            stride=stride, padding=padding, dilation=w.one(None, None, None, None, None, 2),
            ceil_mode=w.one(None, None, None, None, None, True),
        )  # fmt: skip
    return listed(kernel, more)


@step(18, SPACE)
def average_pool(w: Writer, x: str) -> str:
    d = space_of(w, x)
    return w.function(f"avg_pool{d}d", x, pool_arguments(w, d, True))


@step(18, SPACE)
def max_pool(w: Writer, x: str) -> str:
    d = space_of(w, x)
    return w.function(f"max_pool{d}d", x, pool_arguments(w, d, False))


@step(4, SPACE)
def adaptive_pool(w: Writer, x: str) -> str:
    d, kind = space_of(w, x), w.one("avg", "max")
    size = per_axis(w, d, 1, 2, 2, 3, 4)
    return w.function(f"adaptive_{kind}_pool{d}d", x, size)


@step(2, SPACE)
def lp_pool(w: Writer, x: str) -> str:
    d, size, stride = space_of(w, x), w.one(2, 3), w.one(1, 2)
    return w.say(
        f"fg.nn.LPPool{d}d(2, {size}, {stride})({x})",
        f"F.lp_pool{d}d({x}, 2.0, {size}, {stride})",
    )


@step(2, (4,))
def unfolded(w: Writer, x: str) -> str:
    """im2col."""
    size, stride, padding = w.one(1, 2, 3), w.one(1, 2), w.one(0, 1)
    return w.say(
        f"fg.nn.Unfold({size}, padding={padding}, stride={stride})({x})",
        f"F.unfold({x}, {size}, padding={padding}, stride={stride})",
    )


@step(2, (4,))
def unpooled(w: Writer, x: str) -> str:
    """Resized by the nearest element, or between elements."""
    mode = w.one("nearest", "nearest", "bilinear")
    more = "" if mode == "nearest" else f", align_corners={w.one(True, False)}"
    return w.function("interpolate", f"{x}, scale_factor={w.one(2, 2, 3)}, mode='{mode}'{more}")


# --- norms ---------------------------------------------------------------------------------------


def batch_norm_text(w: Writer, x: str) -> tuple[str, str]:
    """A norm of this batch, in both spellings."""
    channels = w.shape(x)[1]
    more = f"weight={w.weight(channels)}, bias={w.weight(channels)}, " if w.often(0.5) else ""
    return (
        f"fg.batch_norm({x}, {more}training=True).output",
        f"F.batch_norm({x}, None, None, {more}training=True)",
    )


@step(4, (2, 3, 4, 5))
def batch_norm(w: Writer, x: str) -> str:
    return w.say(*batch_norm_text(w, x))


@step(1, SPACE)
def batch_norm_of_the_past(w: Writer, x: str) -> str:
    channels = w.shape(x)[1]
    mean, var = [w.input((channels,), f"rng.random({{shape}}) + {n}") for n in (0, 0.5)]
    more = f"{mean}, {var}, {w.weight(channels)}"
    return w.say(f"fg.batch_norm({x}, {more}).output", f"F.batch_norm({x}, {more})")


@step(5, (2, 3, 4))
def layer_norm(w: Writer, x: str) -> str:
    shape = w.shape(x)
    inner = shape[-1:] if w.often(0.75) or len(shape) < 3 else shape[-2:]
    if shape[-1] < 2:
        raise Unfit
    if w.often(0.3):
        return w.say(f"fg.rms_norm({x}, {inner}, eps=1e-3)", f"F.rms_norm({x}, {inner}, eps=1e-3)")
    affine = listed(w.weight(*inner), w.weight(*inner) if w.often(0.7) else "")
    return w.function("layer_norm", listed(x, str(inner), affine if w.often(0.7) else ""))


@step(4, SPACE)
def group_norm(w: Writer, x: str) -> str:
    channels = w.shape(x)[1]
    groups = w.one(1, 2, channels)
    if channels % groups:
        raise Unfit
    if w.often(0.3):
        return w.function("instance_norm", x)
    affine = listed(w.weight(channels), w.weight(channels)) if w.often(0.6) else ""
    return w.function("group_norm", listed(x, str(groups), affine))


@step(1, (4,))
def local_response_norm(w: Writer, x: str) -> str:
    return w.function("local_response_norm", x, str(w.one(2, 3)), "alpha=0.1")


@step(2)
def normalised(w: Writer, x: str) -> str:
    """A norm written out by hand."""
    axis = w.random.randrange(len(w.shape(x)))
    if w.shape(x)[axis] < 2:
        raise Unfit
    mean = w.say(f"{x}.mean({axis}, keepdims=True)", f"{x}.mean({axis}, keepdim=True)")
    centred = w.say(f"{x} - {mean}")
    power = w.say(
        f"({centred} ** 2).mean({axis}, keepdims=True)",
        f"({centred} ** 2).mean({axis}, keepdim=True)",
    )
    return w.say(f"{centred} / ({power} + 1e-3).sqrt()")


# --- products and attention ----------------------------------------------------------------------


@step(6, (2, 3, 4))
def linear(w: Writer, x: str) -> str:
    inner, out = w.shape(x)[-1], w.one(2, 3, 4, 6, 8)
    way = w.random.random()
    if way < 0.5:
        y = w.say(f"{x} @ {w.weight(inner, out)}")
    elif way < 0.8:
        y = w.say(f"{x} @ {w.weight(out, inner)}.swapaxes(0, 1)")
    else:
        letters = "abcd"[: len(w.shape(x)) - 1]
        y = w.say(f"fg.einsum('{letters}k,kn->{letters}n', {x}, {w.weight(inner, out)})")
    return w.say(f"{y} + {w.weight(out)}") if w.often(0.5) else y


@step(2, (3, 4))
def batched_product(w: Writer, x: str) -> str:
    """Every row with every other: scores."""
    y = w.say(f"{x} @ {x}.swapaxes(-1, -2)")
    return w.function("softmax", y, "-1") if w.often(0.6) else y


@step(7, (3,))
def attention(w: Writer, x: str) -> str:
    """Heads split off, scores, a mask, and heads merged again."""
    batch, time, width = w.shape(x)
    heads = w.one(1, 2, 2, 4)
    if width % heads:
        raise Unfit
    size = width // heads
    fewer = heads // 2 if heads > 1 and w.often(0.3) else heads
    q = w.say(f"{x} @ {w.weight(width, width)}") if w.often(0.6) else x
    k = w.say(f"{x} @ {w.weight(width, fewer * size)}")
    v = w.say(f"{x} @ {w.weight(width, fewer * size)}")
    q, k, v = [
        w.say(f"{y}.reshape(({batch}, {time}, {count}, {size})).swapaxes(1, 2)")
        for y, count in ((q, heads), (k, fewer), (v, fewer))
    ]
    mask = ""
    way = w.random.random()
    if way < 0.3:
        mask = "is_causal=True"
    elif way < 0.5:
        mask = (
            f"attn_mask={w.input((time, time), f'np.tril(np.ones({{shape}}, bool)) | ({TRUTHS})')}"
        )
    elif way < 0.6:
        mask = f"attn_mask={w.weight(time, time)}"
    scale = f"scale={w.one(0.3, 1.0)}" if w.often(0.2) else ""
    grouped = "enable_gqa=True" if fewer != heads else ""
    if w.often(0.75):
        y = w.function("scaled_dot_product_attention", listed(q, k, v, mask, scale, grouped))
    else:
        if fewer != heads:
            raise Unfit
        scores = w.say(f"{q} @ {k}.swapaxes(-1, -2) * {round(size**-0.5, 4)}")
        if mask == "is_causal=True":
            hidden = w.input((time, time), "np.triu(np.ones({shape}, bool), 1)")
            scores = w.say(f"{scores}.masked_fill({hidden}, -1e9)")
        y = w.say(f"{w.function('softmax', scores, '-1')} @ {v}")
    y = w.say(f"{y}.swapaxes(1, 2).reshape(({batch}, {time}, {width}))")
    return w.say(f"{y} @ {w.weight(width, width)} + {x}") if w.often(0.5) else y


@step(1.5, (3,))
def feed_forward(w: Writer, x: str) -> str:
    width, inner = w.shape(x)[-1], w.one(4, 8)
    hidden = w.function(w.one("gelu", "relu", "silu"), w.say(f"{x} @ {w.weight(width, inner)}"))
    return w.say(f"{hidden} @ {w.weight(inner, width)} + {x}")


# --- activations ---------------------------------------------------------------------------------

ALIKE = (
    "relu", "relu", "relu", "gelu", "silu", "sigmoid", "tanh", "elu", "selu", "softplus", "mish",
    "hardswish", "hardtanh", "relu6", "softsign", "celu", "leaky_relu", "hardsigmoid",
    "tanhshrink", "hardshrink", "softshrink",
)  # fmt: skip


@step(14, ANY)
def activation(w: Writer, x: str) -> str:
    return w.function(w.one(*ALIKE), x)


@step(2, ANY)
def other_activation(w: Writer, x: str) -> str:
    way, shape = w.random.randrange(5), w.shape(x)
    if way == 0:
        return w.function("log_sigmoid", x, torch="logsigmoid")
    if way == 1 and len(shape) > 1:
        return w.function("prelu", x, w.weight(w.one(1, shape[1])))
    if way == 2:
        axis = w.random.randrange(len(shape))
        return w.function("glu", x, str(axis))
    if way == 3:
        return w.function("gelu", x, "approximate='tanh'")
    return w.function("threshold", x, "0.1", "-0.5")


@step(3, ANY)
def softmax(w: Writer, x: str) -> str:
    axis = w.random.randrange(len(w.shape(x)))
    return w.function(w.one("softmax", "softmax", "log_softmax", "softmin"), x, str(axis))
