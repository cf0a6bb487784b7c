"""Distributions as graphs: nodes of random numbers from the blocks of a `Source`.

In: a source, a shape, a dtype to compute in (float32 or float64) and parameters. Out: nodes. Every
step is exactly rounded (see `portable.py`), so a distribution is the same to the last bit on every
device. Whoever calls checks parameters and casts results; a call that draws twice reads the source
twice, and the source never gives the same block again.
"""

from __future__ import annotations

import math

from ..core import build
from ..core.dtype import DType, float32, float64, uint64
from ..core.node import Node, Shape, constant, constant_like
from ..core.ops.elementwise import CAST, LT, MAX, MIN, SHL, SHR, SQRT, WHERE
from ..core.ops.leaf import iota
from ..core.ops.movement import reshape, shrink
from ..core.ops.reduce import reduce_node
from ..errors import ArgumentError
from ..tensor import TensorLike, node_of
from . import reproducible_math
from .generator import Source

_ROUNDS = 8  # of accepting or rejecting a gamma variate: each fails once in 20 at most
_PRECISION = {
    "float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4,
    "float8_e5m2": 3,
}  # fmt: skip


def fitted(value: TensorLike, dtype: DType, shape: Shape) -> Node:
    """A parameter as numbers in the shape of the draw."""
    if isinstance(value, int | float):
        return constant(float(value), dtype, shape)
    return build.expand(build.cast(node_of(value), dtype), shape)


def words(pair: Node) -> tuple[Node, Node]:
    """The two words of a last axis."""
    whole = [(0, n) for n in pair.shape[:-1]]
    parts = [shrink(pair, [*whole, (i, i + 1)]) for i in (0, 1)]
    first, second = [reshape(part, pair.shape[:-1]) for part in parts]
    return first, second


def bits64(source: Source, shape: Shape) -> Node:
    """Uniform uint64 bits."""
    low, high = [CAST(word, arg=uint64) for word in words(source.bits(shape, 2))]
    return SHL(high, constant_like(32, high)) | low


def unit_numbers(source: Source, shape: Shape, dtype: DType) -> Node:
    """Multiples of the spacing below 1, from 0 to just below 1: float32 has 2**24 of them."""
    wide = dtype is float64
    found = bits64(source, shape) if wide else source.bits(shape)
    spacing = _PRECISION[dtype.name]
    top = SHR(found, constant_like((64 if wide else 32) - spacing, found))
    return CAST(top, arg=dtype) * 2.0**-spacing


def open_unit(source: Source, shape: Shape, dtype: DType) -> Node:
    """Numbers above 0, up to 1, as fine near 0 as floats are there."""
    wide = dtype is float64
    found = bits64(source, shape) if wide else source.bits(shape)
    return (CAST(found, arg=dtype) + 0.5) * 2.0 ** (-64 if wide else -32)


def standard_normal(source: Source, shape: Shape, dtype: DType) -> Node:
    """By the quantile: one bit is the sign, the others the probability beyond."""
    wide = dtype is float64
    width = 64 if wide else 32
    found = bits64(source, shape) if wide else source.bits(shape)
    beyond = (CAST(found & ((1 << width - 1) - 1), arg=dtype) + 0.5) * 2.0**-width
    size = reproducible_math.upper_quantile(MIN(beyond, constant_like(0.5, beyond)))
    return WHERE(found < (1 << width - 1), size, -size)


def normal_between(unit: Node, low: float, high: float) -> Node:
    """The quantile of probabilities between those of two limits."""
    start, stop = [math.erfc(-limit / math.sqrt(2)) / 2 for limit in (low, high)]
    p = unit * (stop - start) + start
    rest = unit * (start - stop) + (1 - start)
    below = LT(p, rest)
    small = WHERE(below, p, rest)
    least = 2.0**-120 if unit.dtype is float32 else 2.0**-1000
    half = MIN(MAX(small, constant_like(least, small)), constant_like(0.5, small))
    size = reproducible_math.upper_quantile(half)
    return WHERE(below, -size, size)


def gumbel(source: Source, shape: Shape, dtype: DType) -> Node:
    """Noise that makes the largest of logarithms a fair draw."""
    wait = -reproducible_math.log(open_unit(source, shape, dtype))
    least = constant_like(2.0**-60, wait)  # of a unit that rounded to 1 the log is 0
    return -reproducible_math.log(MAX(wait, least))


def gamma_variate(
    source: Source, alpha: TensorLike, shape: Shape, dtype: DType
) -> tuple[Node, Node]:
    """A gamma variate of alpha, or of alpha + 1 below 1, and the log of the factor between.

    Marsaglia and Tsang (2000): a cubed normal number is accepted at least 19 times of 20. All
    rounds are drawn at once and the first accepted one is taken, which suits a parallel machine.
    """
    if isinstance(alpha, int | float) and not alpha > 0:
        raise ArgumentError(f"alpha is {alpha}", "alpha is above 0")
    one = build.detach(fitted(alpha, dtype, shape))
    small = LT(one, constant_like(1, one))
    d = WHERE(small, one + 1, one) - 1 / 3
    many = (_ROUNDS, *shape)
    rounds = build.expand(build.reshape(d, (1, *shape)), many)
    x = standard_normal(source, many, dtype)
    root = x / SQRT(rounds * 9) + 1
    fits = LT(constant_like(0, root), root)
    v = WHERE(fits, root * root * root, constant_like(1, root))
    log_unit = reproducible_math.log(open_unit(source, many, dtype))
    accepted = fits & LT(log_unit, x * x * 0.5 + rounds * (1 - v + reproducible_math.log(v)))
    turn = iota(many, 0)
    none = constant_like(_ROUNDS - 1, turn)
    first = reduce_node("min", WHERE(accepted, turn, none), (0,))
    chosen = turn.eq(build.expand(first, many))
    value = reduce_node("add", WHERE(chosen, v, constant_like(0, v)), (0,))
    boost = reproducible_math.log(open_unit(source, shape, dtype)) / one
    zero = constant_like(0, boost)
    return d * build.reshape(value, shape), WHERE(small, boost, zero)


def whole_below(source: Source, shape: Shape, count: int) -> Node:
    """uint64 numbers below a count: the whole part of count times a fraction of many bits."""
    if count == 1 << 64:
        return bits64(source, shape)
    if count > 1 << 32:
        fine, coarse = bits64(source, shape), bits64(source, shape)
        low, high = _product(coarse, count)
        carried = low + _product(fine, count)[1]
        return high + CAST(LT(carried, low), arg=uint64)
    low, high = [CAST(word, arg=uint64) for word in words(source.bits(shape, 2))]
    width = constant_like(32, low)
    return SHR(high * count + SHR(low * count, width), width)


def _product(x: Node, count: int) -> tuple[Node, Node]:
    """The low and the high half of the 128 bits of a product."""
    width, mask = constant_like(32, x), (1 << 32) - 1
    low, high = x & mask, SHR(x, width)
    n_low, n_high = count & mask, count >> 32
    first = low * n_low
    middle = high * n_low + SHR(first, width)
    other = low * n_high + (middle & mask)
    return x * count, high * n_high + SHR(middle, width) + SHR(other, width)
