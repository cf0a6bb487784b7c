"""Further operators of exporters (domain com.microsoft): layouts, experts, distances, old names.

In: a `Call`. Out: lazy tensors. Operators with the channels last are the plain ones between two
permutations, which cost nothing. What ONNX had before version 1.6 and exporters of that time wrote
(`Affine`, `ImageScaler`, ...) is here too, in the standard's domain.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ....tensor import Tensor
from ...errors import ModelError
from ...proto import Attribute
from ...table import MICROSOFT, Call, enter, operator
from ...values import Value
from ..movement import axis_of
from ..nn.convolution import conv_transpose, convolved
from ..nn.linear import scaled_product
from ..nn.normalization import along, wide
from ..nn.pooling import max_pool
from .fused import activated, ms


def _with(op: Call, *inputs: Any) -> Call:
    """The same operator with other inputs."""
    values = [Value(x) if isinstance(x, Tensor) else x for x in inputs]
    return Call(op.build, op.node, values, op.version, op._attributes, op.scope)


# --- channels last -------------------------------------------------------------------------------


@ms("NhwcConv", "NhwcFusedConv")
def nhwc_conv(op: Call) -> Tensor:
    """A convolution of pictures, and with weights, whose channels come last."""
    x, weight = (fg.moveaxis(op[i], -1, 1) for i in (0, 1))
    y = fg.moveaxis(convolved(op, x, weight, op.maybe(2)), 1, -1)
    return activated(op, y + op[3] if op.has(3) else y)


@ms("NhwcMaxPool")
def nhwc_max_pool(op: Call) -> Tensor:
    """The largest of each window, channels last."""
    return fg.moveaxis(max_pool(_with(op, fg.moveaxis(op[0], -1, 1)))[0], 1, -1)


@ms("MaxpoolWithMask")
def maxpool_with_mask(op: Call) -> Tensor:
    """The largest of each window among what a mask allows."""
    x = op[0]
    found: Tensor = max_pool(_with(op, fg.where(op[1] == 0, float("-inf"), x)))[0]
    return found


@ms("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(op: Call) -> Tensor:
    """A transposed convolution whose paddings are an input."""
    attributes = dict(op._attributes)
    if op.has(2):
        attributes["pads"] = Attribute("pads", ints=op.ints(2))
    inputs = [op.inputs[0], op.inputs[1], op.inputs[3] if op.has(3) else None]
    made = Call(op.build, op.node, inputs, op.version, attributes, op.scope)
    found: Tensor = conv_transpose(made)
    return found


@ms("CropAndResize")
def crop_and_resize(op: Call) -> Tensor:
    """Boxes cut out of pictures, each brought to one size."""
    x, boxes, which = op[0], op[1], op[2].astype(fg.int64)
    height, width = op.ints(3)
    rows, columns = x.shape[2:]
    outside = op.float("extrapolation_value", 0.0)

    def places(low: Tensor, high: Tensor, size: int, count: int) -> Tensor:
        if count == 1:
            return fg.reshape((low + high) * (0.5 * (size - 1)), (-1, 1))
        step = (high - low) * (size - 1) / (count - 1)
        return fg.reshape(low * (size - 1), (-1, 1)) + fg.reshape(step, (-1, 1)) * fg.arange(count)

    y = fg.reshape(places(boxes[:, 0], boxes[:, 2], rows, height), (-1, 1, height, 1))
    z = fg.reshape(places(boxes[:, 1], boxes[:, 3], columns, width), (-1, 1, 1, width))
    mine = fg.reshape(fg.take(x, which, axis=0), (boxes.shape[0], x.shape[1], rows * columns))
    shape = (boxes.shape[0], x.shape[1], height, width)

    def at(row: Tensor, column: Tensor) -> Tensor:
        inner = fg.clip(row, 0, rows - 1) * columns + fg.clip(column, 0, columns - 1)
        flat = fg.broadcast_to(inner.astype(fg.int64), shape)
        flat = fg.reshape(flat, (shape[0], shape[1], height * width))
        return fg.reshape(fg.take_along_axis(mine, flat, axis=-1), shape)

    if op.text("mode", "bilinear") == "nearest":
        found = at(fg.floor(y + 0.5), fg.floor(z + 0.5))
    else:
        top, left = fg.floor(y), fg.floor(z)
        down, right = y - top, z - left
        upper = at(top, left) * (1 - right) + at(top, left + 1) * right
        lower = at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right
        found = upper * (1 - down) + lower * down
    inside = (y >= 0) & (y <= rows - 1) & (z >= 0) & (z <= columns - 1)
    return fg.where(inside, found, outside)


@ms("UnfoldTensor")
def unfold_tensor(op: Call) -> Tensor:
    """Windows along an axis, as a further axis."""
    return fg.unfold(op[0], op.int("dim", -1), op.int("size"), op.int("step", 1))


# --- arithmetic ----------------------------------------------------------------------------------


@ms("GemmFastGelu")
def gemm_fast_gelu(op: Call) -> Tensor:
    """A product, a bias, the approximation by tanh."""
    return fg.gelu(scaled_product(op[0], op[1], op.maybe(2), 1.0, 1.0), "tanh")


@ms("BiasSoftmax")
def bias_softmax(op: Call) -> Tensor:
    """softmax(x + bias) of all axes from one on; a batch of the bias may be repeated inside."""
    x, bias = op[0], op[1]
    axis = axis_of(op.int("axis", 1), x.ndim)
    if bias.ndim < x.ndim:
        bias = fg.reshape(bias, (*bias.shape[:-1], *[1] * (x.ndim - bias.ndim), bias.shape[-1]))
    shape = x.shape
    flat = fg.reshape(x + bias, (*shape[:axis], prod(shape[axis:])))
    return fg.reshape(fg.softmax(flat, axis=-1), shape)


@ms("BiasDropout")
def bias_dropout(op: Call) -> tuple[Tensor, Tensor]:
    """x + bias + residual: a finished model drops nothing."""
    y = op[0] + op[1]
    y = y + op[2] if op.has(2) else y
    return y, fg.ones(y.shape, fg.bool)


@ms("SkipGroupNorm")
def skip_group_norm(op: Call) -> tuple[Tensor, Tensor]:
    """A group norm of a sum, channels last: x, gamma, beta, skip, bias."""
    skip = op[3] if op[3].ndim == 4 else fg.reshape(op[3], (op[3].shape[0], 1, 1, -1))
    total = op[0] + skip
    total = total + op[4] if op.has(4) else total
    last = bool(op.int("channels_last", 1))
    x = fg.moveaxis(total, -1, 1) if last else total
    y = fg.group_norm(wide(x), op.int("groups", 1), op[1], op[2], op.float("epsilon", 1e-5))
    y = fg.silu(y) if op.int("activation") == 1 else y
    return (fg.moveaxis(y, 1, -1) if last else y).astype(op[0].dtype), total


@ms("CDist")
def cdist(op: Call) -> Tensor:
    """The distance of every row to every row."""
    apart = op[0][:, None] - op[1][None]
    square = fg.sum(apart * apart, axis=-1)
    return square if op.text("metric", "sqeuclidean") == "sqeuclidean" else fg.sqrt(square)


@ms("IsAllFinite")
def is_all_finite(op: Call) -> Tensor:
    """Is every number of every input finite?"""
    found: Any = fg.asarray(True)
    for x in op.tensors():
        good = fg.isfinite(x)
        if op.int("isinf_only"):
            good = ~fg.isinf(x)
        elif op.int("isnan_only"):
            good = ~fg.isnan(x)
        found = found & fg.all(good)
    return fg.reshape(found, (1,))


@ms("ExpandDims")
def expand_dims(op: Call) -> Tensor:
    """One axis more."""
    return fg.expand_dims(op[0], int(op.number(1)))


@ms("MulInteger")
def mul_integer(op: Call) -> Tensor:
    """A product of whole numbers around their zeros."""
    zeros = [op.maybe(place) for place in (1, 3)]
    a, b = (
        op[place].astype(fg.int32) - (0 if zero is None else zero.astype(fg.int32))
        for place, zero in zip((0, 2), zeros, strict=True)
    )
    return a * b


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0], x[..., 1]


def _product(op: Call, sign: int) -> Tensor:
    """A product of pairs; with sign -1 the second ones are conjugated."""
    (a, b), (c, d) = _pairs(op[0]), _pairs(op[1])
    d = d if sign > 0 else -d
    return fg.stack([a * c - b * d, a * d + b * c], axis=-1)


@ms("Rfft")
def rfft(op: Call) -> Tensor:
    """A Fourier transform of the last axes: one half of it, as pairs."""
    found = fg.fft.rfftn(op[0], axes=tuple(range(-op.int("signal_ndim", 1), 0)))
    return fg.stack([fg.real(found), fg.imag(found)], axis=-1)


@ms("Irfft")
def irfft(op: Call) -> Tensor:
    """The way back from one half of a transform."""
    real, imag = _pairs(op[0])
    whole = real.astype(fg.complex64) + imag.astype(fg.complex64) * 1j
    return fg.fft.irfftn(whole, axes=tuple(range(-op.int("signal_ndim", 1), 0)))


enter(
    MICROSOFT,
    ComplexMul=lambda op: _product(op, 1),
    ComplexMulConj=lambda op: _product(op, -1),
    SampleOp=lambda op: op[0],
    TorchEmbedding=lambda op: fg.take(op[0], op[1], axis=0),
)


# --- experts and generation ----------------------------------------------------------------------


@ms("MoE")
def mixture_of_experts(op: Call) -> Tensor:
    """Each row by the few of many small networks that its router likes best.

    All experts are computed, and weighted with 0 where they were not chosen.
    """
    x, router = op[0], op[1]
    rows = fg.reshape(x, (-1, x.shape[-1]))
    count, experts = op.int("k", 1), router.shape[-1]
    router = fg.reshape(router, (-1, experts))
    best, chosen = fg.topk(wide(router), count)
    shares = fg.softmax(wide(router), axis=-1)
    weights = fg.take_along_axis(shares, chosen, axis=-1)
    if op.int("normalize_routing_weights"):
        weights = fg.softmax(best, axis=-1)
    hit = chosen[:, :, None] == fg.arange(experts, dtype=chosen.dtype)
    gate = fg.sum(fg.where(hit, weights[:, :, None], 0.0), axis=1)  # (rows, experts)
    names = {
        "relu": fg.relu, "gelu": lambda t: fg.gelu(t, "tanh"), "silu": fg.silu,
        "identity": lambda t: t,
    }  # fmt: skip
    kind = op.text("activation_type", "relu")
    if kind not in names:
        raise op.unsupported(f"activation {kind!r}")
    work: Any = names[kind]
    first = fg.matmul(rows[None], fg.matrix_transpose(op[2]))  # (experts, rows, inner)
    inner = work(first + op[3][:, None] if op.has(3) else first)
    if op.has(6):
        third = fg.matmul(rows[None], fg.matrix_transpose(op[6]))
        inner = inner * (third + op[7][:, None] if op.has(7) else third)
    last = fg.matmul(inner, fg.matrix_transpose(op[4]))
    last = last + op[5][:, None] if op.has(5) else last
    found = fg.sum(last * fg.matrix_transpose(gate)[:, :, None], axis=0)
    return fg.reshape(found.astype(x.dtype), x.shape)


@ms("NGramRepeatBlock")
def n_gram_repeat_block(op: Call) -> Tensor:
    """Scores of words that would repeat a row of words are -inf."""
    words, scores, size = op[0], op[1], op.int("ngram_size", 1)
    length = words.shape[1]
    if size < 1:
        raise ModelError(f"rows of {size} words", "the model is not valid ONNX")
    if length < size:
        return scores
    found = fg.unfold(words, 1, size)  # (batch, places, size)
    last = words[:, length - size + 1 :][:, None]
    same = fg.all(found[..., : size - 1] == last, axis=-1)
    hit = found[..., size - 1, None] == fg.arange(scores.shape[1], dtype=words.dtype)
    return fg.where(fg.any(hit & same[..., None], axis=1), float("-inf"), scores)


@ms("Unique")
def unique(op: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Values in the order in which they first come, where each is among them, and how many."""
    x = op.host(0).reshape(-1)
    op.build.hosts.add("Unique")
    _, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True,
                                          return_counts=True)  # fmt: skip
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    numbers = (x[first[order]], place[inverse.reshape(-1)], counts[order])
    values, where, many = (fg.Tensor(np.ascontiguousarray(n)) for n in numbers)
    return values, where.astype(fg.int64), many.astype(fg.int64)


@ms("RelativePositionBias")
def relative_position_bias(op: Call) -> Tensor:
    """A bias for each head by how far a key is from a query, in buckets."""
    table, queries, keys = op[0], int(op.number(1)), int(op.number(2))
    buckets, both = table.shape[0], bool(op.int("is_bidirectional"))
    most = op.int("max_distance")
    apart = np.arange(queries)[:, None] - np.arange(keys)[None]
    number = np.zeros_like(apart)
    if both:
        buckets //= 2
        number += (apart < 0) * buckets
        apart = np.abs(apart)
    else:
        apart = np.maximum(apart, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        ratio = np.log(np.maximum(apart, 1) / exact) / np.log(most / exact)
    far = np.minimum(exact + (ratio * (buckets - exact)).astype(np.int64), buckets - 1)
    number += np.where(apart < exact, apart, far)
    return fg.permute_dims(fg.take(table, fg.Tensor(number), axis=0), (2, 0, 1))[None]


# --- names that the standard had once ------------------------------------------------------------


@operator("ImageScaler")
def image_scaler(op: Call) -> Tensor:
    """scale x + bias, a bias for each channel."""
    bias = fg.Tensor(np.array(op.floats_of("bias", [0.0]), np.float32))
    return fg.add(op[0] * op.float("scale", 1.0), along(bias, op[0].ndim))


@operator("Crop")
def crop(op: Call) -> Tensor:
    """The inside of a border: left, top, right, bottom; or a part of some size."""
    left, top, right, bottom = op.ints_of("border", [0] * 4)
    height, width = op[0].shape[2:]
    scale = op.ints_of("scale")
    ends = (top + scale[0], left + scale[1]) if scale else (height - bottom, width - right)
    return op[0][:, :, top : ends[0], left : ends[1]]


enter(
    Affine=lambda op: op[0] * op.float("alpha", 1.0) + op.float("beta", 0.0),
    ScaledTanh=lambda op: fg.tanh(op[0] * op.float("beta", 1.0)) * op.float("alpha", 1.0),
    ParametricSoftplus=lambda op: (
        fg.softplus(op[0] * op.float("beta", 1.0)) * op.float("alpha", 1.0)
    ),
)
