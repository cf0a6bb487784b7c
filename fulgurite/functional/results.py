"""What functions return that return several tensors: named tuples, in the order users unpack."""

from __future__ import annotations

from ..core.dtype import DType
from ..core.lazy_named_tuple import NamedTuple
from ..tensor import Tensor


class Chosen(NamedTuple):
    """Some elements, and their places along an axis."""

    values: Tensor
    indices: Tensor


class UniqueCounts(NamedTuple):
    """The values that occur, and how often."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The values that occur, and for each element the place of its value."""

    values: Tensor
    inverse_indices: Tensor


class UniqueAll(NamedTuple):
    """The values that occur, where first, for each element which, and how often."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class Histogram(NamedTuple):
    """What came into each bin, and the edges of the bins."""

    hist: Tensor
    bin_edges: Tensor


class BatchNorm(NamedTuple):
    """A normalised batch, and the running statistics with that batch taken in."""

    output: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None


class FloatLimits(NamedTuple):
    """What `finfo` tells of a float type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerLimits(NamedTuple):
    """What `iinfo` tells of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType
