"""What tensors can do, as methods: each is the module's function of the same name.

In: a tensor as the first argument. Out: what `fulgurite.functional` makes of it. Only what is
written otherwise on a tensor (`x.reshape(2, 3)`, `x.T`) is a function of its own here. When this is
read there are no functions yet: a line holds the place of one, which `torch_aliases.install` fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fulgurite as fg  # its names are looked up in a call, when they are all there

from .torch_aliases import Places

if TYPE_CHECKING:
    import fulgurite as ours

    from ..functional.common import ShapeLike
    from . import Tensor, TensorLike
else:
    ours = Places()


class Methods:
    """Mix-in: the functions that users call on a tensor."""

    __slots__ = ()

    # elementwise
    abs = ours.abs
    sign = ours.sign
    square = ours.square
    reciprocal = ours.reciprocal
    sqrt = ours.sqrt
    rsqrt = ours.rsqrt
    exp = ours.exp
    log = ours.log
    log2 = ours.log2
    sin = ours.sin
    cos = ours.cos
    tanh = ours.tanh
    erf = ours.erf
    floor = ours.floor
    ceil = ours.ceil
    round = ours.round
    isnan = ours.isnan
    isfinite = ours.isfinite
    relu = ours.relu
    sigmoid = ours.sigmoid
    silu = ours.silu
    clip = ours.clip
    softmax = ours.softmax
    log_softmax = ours.log_softmax

    # reductions
    sum = ours.sum
    prod = ours.prod
    max = ours.max
    min = ours.min
    mean = ours.mean
    any = ours.any
    all = ours.all
    logsumexp = ours.logsumexp
    var = ours.var
    std = ours.std
    argmax = ours.argmax
    argmin = ours.argmin

    # movement
    transpose = ours.transpose
    swapaxes = ours.swapaxes
    expand_dims = ours.expand_dims
    squeeze = ours.squeeze
    flatten = ours.flatten
    flip = ours.flip
    pad = ours.pad
    split = ours.split
    take = ours.take
    gather = ours.gather

    # order and running totals
    sort = ours.sort
    argsort = ours.argsort
    topk = ours.topk
    kthvalue = ours.kthvalue
    median = ours.median
    quantile = ours.quantile
    nonzero = ours.nonzero
    cumulative_sum = ours.cumulative_sum
    cumulative_prod = ours.cumulative_prod
    cummax = ours.cummax
    cummin = ours.cummin
    logcumsumexp = ours.logcumsumexp
    diff = ours.diff

    # arrangement
    roll = ours.roll
    repeat = ours.repeat
    unfold = ours.unfold
    diagonal = ours.diagonal
    diag = ours.diag
    trace = ours.trace
    tril = ours.tril
    triu = ours.triu

    # places that are data
    take_along_axis = ours.take_along_axis
    scatter = ours.scatter
    scatter_add = ours.scatter_add
    scatter_reduce = ours.scatter_reduce
    index_add = ours.index_add
    index_copy = ours.index_copy
    index_fill = ours.index_fill

    # what is written otherwise

    def maximum(self, other: TensorLike) -> Tensor:
        """The larger of the two."""
        return fg.maximum(self, other)

    def minimum(self, other: TensorLike) -> Tensor:
        """The smaller of the two."""
        return fg.minimum(self, other)

    def reshape(self, *shape: ShapeLike) -> Tensor:
        """The elements in order, in another shape."""
        return fg.reshape(self, _spread(shape))

    def permute_dims(self, *axes: int | Sequence[int]) -> Tensor:
        """The dimensions in another order."""
        return fg.permute_dims(self, _spread(axes))

    @property
    def T(self) -> Tensor:
        """The dimensions in reverse order."""
        return fg.transpose(self)

    @property
    def mT(self) -> Tensor:
        """Every matrix transposed."""
        return fg.matrix_transpose(self)

    def broadcast_to(self, *shape: ShapeLike) -> Tensor:
        """x repeated along new dimensions and those of size 1."""
        return fg.broadcast_to(self, _spread(shape))

    def tile(self, *repetitions: int | Sequence[int]) -> Tensor:
        """x laid side by side, so many times along each dimension."""
        return fg.tile(self, _spread(repetitions))


def _spread(arguments: tuple[Any, ...]) -> Any:
    """`f(2, 3)` as well as `f((2, 3))`."""
    alone = len(arguments) == 1 and isinstance(arguments[0], list | tuple)
    return arguments[0] if alone else arguments
