"""What tensors can do, as methods: each is one line over the module function of the same name.

In: a tensor as `self`. Out: what `fulgurite.functional` makes of it. `Tensor` is the only class
that takes these methods; they are here so that its own file can be read in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fulgurite as fg  # its names are looked up in a call, when they are all there

if TYPE_CHECKING:
    from ..functional.common import Axis, ShapeLike
    from ..functional.results import Chosen
    from . import Tensor, TensorLike


class Methods:
    """Mix-in: the functions that users call on a tensor."""

    __slots__ = ()

    # --- elementwise -----------------------------------------------------------------------------

    def abs(self) -> Tensor:
        """The magnitude."""
        return fg.abs(self)

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return fg.sign(self)

    def square(self) -> Tensor:
        """x * x."""
        return fg.square(self)

    def reciprocal(self) -> Tensor:
        """1 / x."""
        return fg.reciprocal(self)

    def sqrt(self) -> Tensor:
        """The square root."""
        return fg.sqrt(self)

    def rsqrt(self) -> Tensor:
        """One over the square root."""
        return fg.rsqrt(self)

    def exp(self) -> Tensor:
        """e to the power x."""
        return fg.exp(self)

    def log(self) -> Tensor:
        """The natural logarithm."""
        return fg.log(self)

    def log2(self) -> Tensor:
        """The logarithm to base 2."""
        return fg.log2(self)

    def sin(self) -> Tensor:
        """The sine."""
        return fg.sin(self)

    def cos(self) -> Tensor:
        """The cosine."""
        return fg.cos(self)

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return fg.tanh(self)

    def erf(self) -> Tensor:
        """The error function."""
        return fg.erf(self)

    def floor(self) -> Tensor:
        """The next whole number at or below x."""
        return fg.floor(self)

    def ceil(self) -> Tensor:
        """The next whole number at or above x."""
        return fg.ceil(self)

    def round(self) -> Tensor:
        """The nearest whole number; halves go to the even one."""
        return fg.round(self)

    def isnan(self) -> Tensor:
        """Is it not a number?"""
        return fg.isnan(self)

    def isfinite(self) -> Tensor:
        """Is it a number, and not infinite?"""
        return fg.isfinite(self)

    def relu(self) -> Tensor:
        """x where it is positive, else 0."""
        return fg.relu(self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
        return fg.sigmoid(self)

    def silu(self) -> Tensor:
        """x * sigmoid(x)."""
        return fg.silu(self)

    def clip(self, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
        """x, or the bound that it passes."""
        return fg.clip(self, min, max)

    def maximum(self, other: TensorLike) -> Tensor:
        """The larger of the two."""
        return fg.maximum(self, other)

    def minimum(self, other: TensorLike) -> Tensor:
        """The smaller of the two."""
        return fg.minimum(self, other)

    def softmax(self, axis: int = -1) -> Tensor:
        """Positive numbers with sum 1 along an axis."""
        return fg.softmax(self, axis)

    def log_softmax(self, axis: int = -1) -> Tensor:
        """The logarithm of softmax."""
        return fg.log_softmax(self, axis)

    # --- reductions ------------------------------------------------------------------------------

    def sum(self, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Tensor:
        """The sum over axes."""
        return fg.sum(self, axis, dtype, keepdims)

    def prod(self, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Tensor:
        """The product over axes."""
        return fg.prod(self, axis, dtype, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The largest element over axes."""
        return fg.max(self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest element over axes."""
        return fg.min(self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The mean over axes."""
        return fg.mean(self, axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Is an element other than zero?"""
        return fg.any(self, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Are all elements other than zero?"""
        return fg.all(self, axis, keepdims)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """log(sum(exp(x))) over axes."""
        return fg.logsumexp(self, axis, keepdims)

    def var(self, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
        """The variance over axes."""
        return fg.var(self, axis, correction, keepdims)

    def std(self, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
        """The standard deviation over axes."""
        return fg.std(self, axis, correction, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The place of the first largest element."""
        return fg.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The place of the first smallest element."""
        return fg.argmin(self, axis, keepdims)

    # --- movement --------------------------------------------------------------------------------

    def reshape(self, *shape: ShapeLike) -> Tensor:
        """The elements in order, in another shape."""
        return fg.reshape(self, _spread(shape))

    def permute_dims(self, *axes: int | Sequence[int]) -> Tensor:
        """The dimensions in another order."""
        return fg.permute_dims(self, _spread(axes))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Two dimensions swapped, or all reversed, or a full order."""
        return fg.transpose(self, *axes)

    @property
    def T(self) -> Tensor:
        """The dimensions in reverse order."""
        return fg.transpose(self)

    @property
    def mT(self) -> Tensor:
        """Every matrix transposed."""
        return fg.matrix_transpose(self)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two dimensions swapped."""
        return fg.swapaxes(self, axis1, axis2)

    def broadcast_to(self, *shape: ShapeLike) -> Tensor:
        """x repeated along new dimensions and those of size 1."""
        return fg.broadcast_to(self, _spread(shape))

    def expand_dims(self, axis: int | Sequence[int]) -> Tensor:
        """New dimensions of size 1."""
        return fg.expand_dims(self, axis)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """x without dimensions of size 1."""
        return fg.squeeze(self, axis)

    def flatten(self, start: int = 0, end: int = -1) -> Tensor:
        """Neighbouring dimensions as one."""
        return fg.flatten(self, start, end)

    def flip(self, axis: Axis = None) -> Tensor:
        """Some dimensions backwards."""
        return fg.flip(self, axis)

    def pad(
        self, pad_width: Any, mode: str = "constant", constant_values: TensorLike = 0
    ) -> Tensor:
        """More elements before and after."""
        return fg.pad(self, pad_width, mode, constant_values)

    def split(self, size: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
        """Consecutive parts along an axis."""
        return fg.split(self, size, axis)

    def take(self, indices: TensorLike, axis: int | None = None) -> Tensor:
        """The slices at indexed places along an axis."""
        return fg.take(self, indices, axis)

    def gather(self, axis: int, index: TensorLike) -> Tensor:
        """The elements at indexed places along an axis."""
        return fg.gather(self, axis, index)

    # --- order and running totals -----------------------------------------------------------------

    def sort(self, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The elements in order along an axis."""
        return fg.sort(self, axis, descending, stable)

    def argsort(self, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The places of the elements in order along an axis."""
        return fg.argsort(self, axis, descending, stable)

    def topk(self, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Chosen:
        """The k largest or smallest elements along an axis, and their places."""
        return fg.topk(self, k, axis, largest, sorted)

    def kthvalue(self, k: int, axis: int = -1, keepdims: bool = False) -> Chosen:
        """The element number k, counted from 1, in rising order, and its place."""
        return fg.kthvalue(self, k, axis, keepdims)

    def median(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The middle element in order."""
        return fg.median(self, axis, keepdims)

    def quantile(
        self, q: TensorLike, axis: Axis = None, keepdims: bool = False, method: str = "linear"
    ) -> Tensor:
        """The number below which a part q of the elements lies."""
        return fg.quantile(self, q, axis, keepdims, method)

    def nonzero(self) -> tuple[Tensor, ...]:
        """For each dimension the places of the elements other than zero; realizes."""
        return fg.nonzero(self)

    def cumulative_sum(
        self, axis: int | None = None, dtype: object = None, include_initial: bool = False
    ) -> Tensor:
        """The sum of all elements so far along an axis."""
        return fg.cumulative_sum(self, axis, dtype, include_initial)

    def cumulative_prod(
        self, axis: int | None = None, dtype: object = None, include_initial: bool = False
    ) -> Tensor:
        """The product of all elements so far along an axis."""
        return fg.cumulative_prod(self, axis, dtype, include_initial)

    def cummax(self, axis: int) -> Chosen:
        """The largest element so far along an axis, and its place."""
        return fg.cummax(self, axis)

    def cummin(self, axis: int) -> Chosen:
        """The smallest element so far along an axis, and its place."""
        return fg.cummin(self, axis)

    def logcumsumexp(self, axis: int) -> Tensor:
        """log of the running sum of exp(x)."""
        return fg.logcumsumexp(self, axis)

    def diff(self, n: int = 1, axis: int = -1) -> Tensor:
        """Each element less the one before, n times over."""
        return fg.diff(self, n, axis)

    # --- arrangement ------------------------------------------------------------------------------

    def roll(self, shift: int | Sequence[int], axis: Axis = None) -> Tensor:
        """The elements moved along axes, round the ends."""
        return fg.roll(self, shift, axis)

    def repeat(self, repeats: TensorLike, axis: int | None = None) -> Tensor:
        """Each element several times in a row along an axis."""
        return fg.repeat(self, repeats, axis)

    def tile(self, *repetitions: int | Sequence[int]) -> Tensor:
        """x laid side by side, so many times along each dimension."""
        return fg.tile(self, _spread(repetitions))

    def unfold(self, axis: int, size: int, step: int = 1) -> Tensor:
        """Windows along an axis; the window's own axis comes last."""
        return fg.unfold(self, axis, size, step)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """A diagonal of two dimensions, as the last dimension."""
        return fg.diagonal(self, offset, axis1, axis2)

    def diag(self, k: int = 0) -> Tensor:
        """A diagonal of a matrix, or the matrix with these elements there."""
        return fg.diag(self, k)

    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: object = None
    ) -> Tensor:
        """The sum of a diagonal."""
        return fg.trace(self, offset, axis1, axis2, dtype)

    def tril(self, k: int = 0) -> Tensor:
        """x at and below a diagonal, 0 above."""
        return fg.tril(self, k)

    def triu(self, k: int = 0) -> Tensor:
        """x at and above a diagonal, 0 below."""
        return fg.triu(self, k)

    # --- places that are data ---------------------------------------------------------------------

    def take_along_axis(self, indices: TensorLike, axis: int = -1) -> Tensor:
        """For each place of `indices` the element there along the axis."""
        return fg.take_along_axis(self, indices, axis)

    def scatter(
        self, axis: int, index: TensorLike, src: TensorLike, reduce: str | None = None
    ) -> Tensor:
        """A copy with values at indexed places along an axis."""
        return fg.scatter(self, axis, index, src, reduce)

    def scatter_add(self, axis: int, index: TensorLike, src: TensorLike) -> Tensor:
        """A copy with values added at indexed places along an axis."""
        return fg.scatter_add(self, axis, index, src)

    def scatter_reduce(
        self, axis: int, index: TensorLike, src: TensorLike, reduce: str, include_self: bool = True
    ) -> Tensor:
        """Sums, products, extremes or means of what comes to each place."""
        return fg.scatter_reduce(self, axis, index, src, reduce, include_self)

    def index_add(
        self, axis: int, index: TensorLike, source: TensorLike, alpha: float = 1
    ) -> Tensor:
        """A copy with slices added at places along an axis."""
        return fg.index_add(self, axis, index, source, alpha)

    def index_copy(self, axis: int, index: TensorLike, source: TensorLike) -> Tensor:
        """A copy with slices set at places along an axis."""
        return fg.index_copy(self, axis, index, source)

    def index_fill(self, axis: int, index: TensorLike, value: TensorLike) -> Tensor:
        """A copy with one number in the slices at places along an axis."""
        return fg.index_fill(self, axis, index, value)


def _spread(arguments: tuple[Any, ...]) -> Any:
    """`f(2, 3)` as well as `f((2, 3))`."""
    alone = len(arguments) == 1 and isinstance(arguments[0], list | tuple)
    return arguments[0] if alone else arguments
