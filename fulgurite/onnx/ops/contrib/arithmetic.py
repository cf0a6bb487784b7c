"""Distances, inverses, pairs as complex numbers, unique values (domain com.microsoft).

In: a `Call`. Out: lazy tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ....tensor import Tensor
from ...table import MICROSOFT, Call, enter, microsoft


@microsoft("CDist")
def cdist(op: Call) -> Tensor:
    """The distance of every row to every row."""
    apart = op[0][:, None] - op[1][None]
    square = fg.sum(apart * apart, axis=-1)
    return square if op.text("metric", "sqeuclidean") == "sqeuclidean" else fg.sqrt(square)


@microsoft("IsAllFinite")
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


@microsoft("MulInteger")
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


@microsoft("Rfft")
def rfft(op: Call) -> Tensor:
    """A Fourier transform of the last axes: one half of it, as pairs."""
    found = fg.fft.rfftn(op[0], axes=tuple(range(-op.int("signal_ndim", 1), 0)))
    return fg.stack([fg.real(found), fg.imag(found)], axis=-1)


@microsoft("Irfft")
def irfft(op: Call) -> Tensor:
    """The way back from one half of a transform."""
    real, imag = _pairs(op[0])
    whole = real.astype(fg.complex64) + imag.astype(fg.complex64) * 1j
    return fg.fft.irfftn(whole, axes=tuple(range(-op.int("signal_ndim", 1), 0)))


def _inverse(op: Call) -> Tensor:
    op.build.hosts.add("linear algebra")
    found: Tensor = fg.custom(np.linalg.inv, op[0], shape=op[0].shape, dtype=op[0].dtype)
    return found


@microsoft("Unique")
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


@microsoft("ExpandDims")
def expand_dims(op: Call) -> Tensor:
    """One axis more."""
    return fg.expand_dims(op[0], int(op.number(1)))


@microsoft("UnfoldTensor")
def unfold_tensor(op: Call) -> Tensor:
    """Windows along an axis, as a further axis."""
    return fg.unfold(op[0], op.int("dim", -1), op.int("size"), op.int("step", 1))


enter(
    MICROSOFT,
    ComplexMul=lambda op: _product(op, 1),
    ComplexMulConj=lambda op: _product(op, -1),
    Inverse=_inverse,
    SampleOp=lambda op: op[0],
    TorchEmbedding=lambda op: fg.take(op[0], op[1], axis=0),
)
