"""Products of whole numbers around their zeros, summed exactly in int32.

In: bytes and the zeros they are counted from. Out: lazy int32 tensors. A factor stays bytes, which
the processor multiplies four at a time, because the zeros are taken out of the sum:
sum (a - x)(b - y) = sum a b - y sum a - x sum b + n x y. Whole numbers wrap around, so that holds
bit for bit. Sums of weights are computed once, and so are weights by fours along the sum, where a
device reads them so: no product packs them again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fulgurite as fg

from ...core.lazy_dataclass import dataclass
from ...core.op import Array
from ...runtime.device import get_device
from ...tensor import Tensor
from ..table import Call
from ..values import Dequantised, Sums, Value

MOST_STEPS = (1 << 31) // (255 * 255)  # products of bytes around their zeros that fit an int32
FEW_STEPS = (1 << 24) // (255 * 255)  # the same that floats hold exactly


@dataclass(frozen=True)
class Whole:
    """Whole numbers and the zero they are counted from, which broadcasts against them."""

    tensor: Tensor
    zero: Tensor | None = None
    constant: bool = False  # it follows from weights alone
    fixed: bool = False  # its zero does
    fours: Tensor | None = None  # its columns, four steps of a sum next to each other

    @property
    def is_bytes(self) -> bool:
        """True if the processor may multiply it as it lies in memory."""
        return self.tensor.dtype in (fg.int8, fg.uint8)

    @property
    def has_one_zero(self) -> bool:
        """True if all are counted from one number, which is known before any run."""
        return self.zero is None or (self.constant and not self.zero.ndim)

    @property
    def wide(self) -> Tensor:
        """The numbers as they are summed, counted from 0."""
        return self.tensor.astype(fg.int32)

    @property
    def centred(self) -> Tensor:
        """The numbers counted from their zero."""
        return self.wide if self.zero is None else self.wide - self.zero

    @property
    def transposed(self) -> Whole:
        """Matrices with rows and columns exchanged."""
        turn, zero = fg.matrix_transpose, self.zero
        return replace(self, tensor=turn(self.tensor),
                       zero=turn(zero) if zero is not None and zero.ndim > 1 else zero)  # fmt: skip

    @property
    def unsigned(self) -> Whole:
        """The same numbers as uint8 and a larger zero."""
        if self.tensor.dtype is not fg.int8:
            return self
        zero = fg.full((), 0, dtype=fg.int32) if self.zero is None else self.zero
        return replace(self, tensor=fg.bitcast(self.tensor, fg.uint8) ^ 0x80, zero=zero + 128)

    @property
    def signed(self) -> Whole:
        """The same numbers as int8 and a smaller zero."""
        if self.tensor.dtype is not fg.uint8:
            return self
        zero = fg.full((), 0, dtype=fg.int32) if self.zero is None else self.zero
        return replace(self, tensor=fg.bitcast(self.tensor ^ 0x80, fg.int8), zero=zero - 128)


def whole(value: Value, zero: Value | None, shape: Any = ()) -> Whole:
    """A value and its zero; `shape` is the zero's where it is more than one number.

    Weights whose distance from their zero fits into a byte are stored as that.
    """
    if zero is None:
        return Whole(value.tensor, None, value.constant)
    known = None if zero.sources else zero.known()
    if known is not None and not known.any():
        return Whole(value.tensor, None, value.constant)
    shape = () if zero.tensor.size == 1 else shape or zero.shape
    near = _near(value, None if known is None else known.reshape(shape))
    if near is not None:
        return Whole(fg.Tensor(near), None, True)
    centre = fg.reshape(zero.tensor.astype(fg.int32), shape)
    return Whole(value.tensor, centre, value.constant and zero.constant, zero.constant)


def _near(value: Value, centre: Array | None) -> Array | None:
    """Weights around their zero in int8, where they fit."""
    known = value.known() if value.constant and centre is not None else None
    if known is None or centre is None or known.dtype.itemsize != 1:
        return None
    near = known.astype(np.int32) - centre.astype(np.int32)
    fits = near.min(initial=0) >= -128 and near.max(initial=0) <= 127
    return near.astype(np.int8) if fits else None


def product(op: Call, a: Whole, b: Whole, stored: bool = False) -> Tensor:
    """A product of matrices, exact in int32; `stored`: the left one is a view of memory."""
    steps = a.tensor.node.shape[-1] if a.tensor.ndim else 0
    plain = a.tensor.ndim > 1 and b.tensor.ndim > 1 and isinstance(steps, int)
    if not (a.is_bytes and b.is_bytes and plain):
        return fg.matmul(a.centred, b.centred)
    fours = _goes_by_fours(b)
    if fours or (a.tensor.dtype is fg.uint8 and b.tensor.dtype is fg.uint8):
        a, b = a.unsigned if fours else a, b.signed
        if b.constant:
            op.build.keep(b.tensor)
    if fours and not stored:  # words are read, never computed
        a = replace(a, tensor=a.tensor.contiguous())
    total = _by_fours(op, a, b) if fours else fg.matmul(a.wide, b.wide)
    return _around_zeros(op, total, a, b)


def _around_zeros(op: Call, total: Tensor, a: Whole, b: Whole) -> Tensor:
    """A product of numbers as they are, less what their zeros add to it."""
    if a.zero is not None:
        columns = fg.sum(b.wide, axis=-2, keepdims=True)
        columns = fg.reshape(columns, (-1,)) if b.tensor.ndim == 2 else columns
        surplus = a.zero * columns
        if b.constant:
            op.build.keep(surplus if a.fixed else columns)
        total = total - surplus
    if b.zero is not None:
        total = total - b.zero * fg.sum(a.wide, axis=-1, keepdims=True)
        if a.zero is not None:
            total = total + a.tensor.shape[-1] * (a.zero * b.zero)
    return total


def _goes_by_fours(b: Whole) -> bool:
    """True if constant columns should lie by fours along the sum."""
    if not b.constant or b.tensor.ndim != 2:
        return False
    steps = b.tensor.shape[0]
    return steps > 4 and steps % 4 == 0 and get_device(b.tensor.device).vnni_layout


def laid_by_fours(op: Call, b: Whole) -> Whole:
    """Constant columns as products read them, for a loop whose steps multiply by them."""
    if not b.is_bytes or not _goes_by_fours(b):
        return b
    b = b.signed
    op.build.keep(b.tensor)
    fours = _fours(b).contiguous()
    op.build.keep(fours)
    return replace(b, fours=fours)


def _fours(b: Whole) -> Tensor:
    steps, columns = b.tensor.shape
    return fg.permute_dims(fg.reshape(b.tensor, (steps // 4, 4, columns)), (0, 2, 1))


def _by_fours(op: Call, a: Whole, b: Whole) -> Tensor:
    """A product with constant columns: four of its steps are neighbours in both factors."""
    steps, fours = b.tensor.shape[0], b.fours
    if fours is None:
        fours = _fours(b)
        op.build.keep(fours)
    left = fg.reshape(a.wide, (*a.tensor.shape[:-1], 1, steps // 4, 4))
    return fg.sum(left * fg.moveaxis(fours, 1, 0).astype(fg.int32), axis=(-2, -1))


# --- real numbers that are kept as bytes ---------------------------------------------------------


def real_product(op: Call, transposed: bool = False) -> Value | None:
    """A product of two dequantised matrices by their bytes; None if they are none."""
    a, b = op.value(0), op.value(1)
    if not (isinstance(a, Dequantised) and isinstance(b, Dequantised) and a.is_uniform):
        return None
    last = len(b.shape) - (2 if transposed else 1)
    if len(a.shape) < 2 or len(b.shape) < 2 or not (b.is_uniform or b.axis == last):
        return None
    steps = a.shape[-1]
    if not isinstance(steps, int) or steps > MOST_STEPS:
        return None
    right = whole(b.whole, b.zero, (-1, 1) if transposed else (-1,))
    total = product(op, whole(a.whole, a.zero), right.transposed if transposed else right)
    return scaled(total, scale_of(op, a, b, (-1,)), None, False, a, b)


def scaled(
    total: Tensor, scale: Tensor, bias: Tensor | None, last: bool, a: Dequantised, b: Dequantised,
    known: bool = True,
) -> Value:  # fmt: skip
    """Sums as real numbers, which remember them where scales and bias (`known`) are constant."""
    real = total.astype(fg.float32) * scale
    real = real if bias is None else real + bias
    found = Value.channels_last(real) if last else Value(real)
    if a.scale.constant and b.scale.constant and known:
        found.sums = Sums(total, scale, bias)
    return found


def scale_of(op: Call, a: Dequantised, b: Dequantised, shape: Any) -> Tensor:
    """The scale of a product; the second factor's may be one for each result."""
    other = fg.reshape(b.scale.tensor, () if b.is_uniform else shape)
    found = fg.reshape(a.scale.tensor, ()) * other
    if a.scale.constant and b.scale.constant:
        op.build.keep(found)
    return found
