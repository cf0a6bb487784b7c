"""How often numbers occur: counts of whole numbers, and histograms.

In: whole numbers from 0 on, or numbers and the edges of bins. Out: for each number or bin a count,
or a sum of weights, which has a gradient by the weights. Everything is one scatter of ones (or
weights) into as many places as there are results. How many these are must be known: `bincount`
looks at its data unless it is told, so inside jit, vmap and loops it needs `length`.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np

from ...core import build
from ...core.dtype import int32
from ...errors import ArgumentError, DTypeError, FulguriteError, ShapeError
from ...runtime.device import get_device
from ...tensor import Tensor, TensorLike, node_of, wrap
from ...tensor.from_data import array_node
from ..array.movement import flatten
from ..array.sorting import searchsorted
from ..common import as_tensor, as_whole, astype, floating, wide
from ..results import Histogram
from ..template import templated
from .elementwise import equal, less, minimum, where
from .reduction import for_sums, max, min, sum
from .scan import diff

MOST_COUNTS = 1 << 24


def bincount(
    x: TensorLike,
    weights: TensorLike | None = None,
    minlength: int = 0,
    length: int | None = None,
) -> Tensor:
    """How often each whole number from 0 on occurs, or the sum of the weights at each.

    There are as many results as the largest number needs, at least `minlength`: to know it, x is
    realized. With `length` there are exactly that many, numbers past the last are left out, and
    nothing is realized, as jit and vmap need it. A number below 0 is an error.

    >>> fg.bincount(fg.Tensor([0, 1, 1, 3])).tolist()
    [1, 2, 0, 1]
    >>> fg.bincount(fg.Tensor([0, 1, 1, 3]), fg.Tensor([0.5, 1.0, 2.0, 4.0]), length=2).tolist()
    [0.5, 3.0]
    """
    numbers = _whole_numbers(x)
    amounts = None if weights is None else as_tensor(weights, numbers)
    if amounts is not None and amounts.shape != numbers.shape:
        raise ShapeError(
            f"weights of shape {amounts.shape} for numbers of shape {numbers.shape}",
            "give one weight for each number",
        )
    if length is None:
        least_count = _count("minlength", minlength)
        if amounts is None and get_device(numbers.device).host_visible:
            return _counted(numbers, least_count)
        return _totals(numbers, amounts, None, builtins.max(least_count, _needed(numbers)))
    count = _count("length", length)
    fits = less(numbers, count) if count <= numbers.dtype.limits[1] else None
    return _totals(numbers, amounts, fits, count)


def _count(name: str, value: object) -> int:
    count = as_whole(value, name)
    if count < 0:
        raise ArgumentError(f"{name} is {count}", "give 0 or more")
    return count


def _whole_numbers(x: TensorLike) -> Tensor:
    """One line of whole numbers, in a dtype that can index."""
    tensor = as_tensor(x)
    if not isinstance(x, Tensor) and tensor.shape == (0,):
        tensor = astype(tensor, int32)  # an empty list has no dtype of its own
    if not tensor.dtype.is_integer:
        raise DTypeError(
            f"{tensor.dtype} numbers are not counted", "cast them: x.astype('int32'), or histogram"
        )
    if tensor.ndim != 1:
        raise ShapeError(f"numbers of shape {tensor.shape}", "count one line: x.flatten()")
    return astype(tensor, int32) if tensor.dtype.bits < 32 else tensor


def _needed(numbers: Tensor) -> int:
    """How many results the largest number needs; realizes it."""
    if numbers.size == 0:
        return 0
    try:
        least, most = int(min(numbers)), int(max(numbers))
    except FulguriteError as error:
        raise _unknown(error) from None
    return _checked(least, most)


def _unknown(error: FulguriteError) -> ArgumentError:
    reason = str(error).partition("\n")[0]
    return ArgumentError(
        f"how far there is to count is not known: {reason}", "say so: bincount(x, length=10)"
    )


def _checked(least: int, most: int) -> int:
    if least < 0:
        raise ArgumentError(f"{least} cannot be counted", "numbers are counted from 0 on")
    return most + 1


def _counted(numbers: Tensor, least_count: int) -> Tensor:
    """Counts of numbers that have to be looked at anyway: counted where they are, by NumPy."""
    try:
        array = numbers._outside()
    except FulguriteError as error:
        raise _unknown(error) from None
    count = builtins.max(least_count, int(array.max()) + 1 if array.size else 0)
    if count > MOST_COUNTS:  # where there may be no memory, which is told by whom we ask for it
        _checked(int(array.min()), count)
        return _totals(numbers, None, None, count)
    try:
        found = np.bincount(array.astype(np.int64, copy=False), minlength=count)
    except ValueError:
        _checked(int(array.min()), count)
        raise
    return wrap(array_node(found.astype(np.int32), numbers.node.device, share=True))


def _totals(places: Tensor, amounts: Tensor | None, counted: Tensor | None, count: int) -> Tensor:
    """The sum of the amounts (or ones) that come to each place; only what is `counted` does."""
    ones = wrap(build.const(1, int32, places.node.shape))
    given = wrap(for_sums(ones if amounts is None else amounts, None))
    values = wide(given) if given.dtype.is_inexact else given
    start = build.const(0, values.dtype, (count,))
    if count == 0 or places.size == 0:
        return astype(wrap(start), given.dtype)
    if counted is not None:
        values, places = where(counted, values, 0), where(counted, places, 0)
    total = build.scatter("add", start, node_of(places), node_of(values), 0)
    return astype(wrap(total), given.dtype)


# --- bins ----------------------------------------------------------------------------------------

Range: TypeAlias = Sequence[float] | None


def histogram(
    x: TensorLike,
    bins: TensorLike = 10,
    range: Range = None,
    density: bool = False,
    weights: TensorLike | None = None,
) -> Histogram:
    """How many elements lie in each bin, and the edges of the bins.

    `bins` is a number of equal bins, from the smallest to the largest element or over `range`, or
    the edges themselves, which must not fall. A bin holds its lower edge and, but for the last, not
    its upper one; elements outside of all, and NaN, are left out. With `density` the counts are
    divided by the width of their bin and the number of elements in all bins, so that the area is 1.

    >>> counts, edges = fg.histogram(fg.Tensor([1.0, 2.0, 2.0, 5.0]), bins=2)
    >>> counts.tolist(), edges.tolist()
    ([3, 1], [1.0, 3.0, 5.0])
    >>> fg.histogram(fg.Tensor([1.0, 2.0, 2.0, 5.0]), bins=[0.0, 2.0, 4.0]).hist.tolist()
    [1, 2]
    """
    tensor = flatten(x)
    amounts = None if weights is None else as_tensor(weights, tensor)
    if amounts is not None and amounts.shape != as_tensor(x).shape:
        raise ShapeError(
            f"weights of shape {amounts.shape} for elements of shape {as_tensor(x).shape}",
            "give one weight for each element",
        )
    edges = histogram_bin_edges(tensor, bins, range)
    totals = _in_bins(tensor, edges, None if amounts is None else flatten(amounts))
    if density:
        totals = totals / astype(diff(edges), floating(totals).dtype) / sum(totals)
    return Histogram(totals, edges)


@templated
def _in_bins(x: Tensor, edges: Tensor, amounts: Tensor | None) -> Tensor:
    """The sum of the amounts (or ones) of the elements of a line in each bin."""
    count = edges.size - 1
    inside = (x >= edges[0]) & (x <= edges[-1])
    place = minimum(searchsorted(edges, x, side="right"), count) - 1
    return _totals(place, amounts, inside, count)


def histogram_bin_edges(x: TensorLike, bins: TensorLike = 10, range: Range = None) -> Tensor:
    """The edges of the bins that `histogram` would count in: one more than there are bins.

    >>> fg.histogram_bin_edges(fg.Tensor([1.0, 2.0, 5.0]), bins=4).tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    tensor = as_tensor(x)
    if tensor.dtype.kind == "c":
        raise DTypeError("complex numbers have no order", "count their real part or magnitude")
    if isinstance(bins, str):
        raise ArgumentError(f"bins is {bins!r}", "give a number of bins, or their edges")
    if isinstance(bins, Sequence | np.ndarray) or (isinstance(bins, Tensor) and bins.ndim):
        return _given_edges(bins, tensor)
    try:
        count = build.as_positive(index(bins), "bins")  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"bins is {bins!r}", "give a number of bins, or their edges") from None
    narrow = floating(tensor)
    if range is not None or narrow.size == 0:
        low, high = _limits(range)
        return astype(as_tensor(np.linspace(low, high, count + 1), narrow), narrow.dtype)
    line = wide(narrow)
    first, last = min(line), max(line)
    level = equal(first, last)
    first, last = where(level, first - 0.5, first), where(level, last + 0.5, last)
    place = wrap(build.iota((count + 1,), 0, line.dtype))
    ramp = place * ((last - first) / count) + first
    return astype(where(equal(place, count), last, ramp), narrow.dtype)


def _limits(range: Range) -> tuple[float, float]:
    """The ends of all bins: those asked for, or those of no elements."""
    try:
        low, high = (0.0, 1.0) if range is None else [float(end) for end in range]
    except (TypeError, ValueError):
        raise ArgumentError(f"range is {range!r}", "give two numbers: (0.0, 1.0)") from None
    if not -np.inf < low <= high < np.inf:
        raise ArgumentError(f"range is {range!r}", "give two finite numbers, the smaller first")
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _given_edges(bins: Any, beside: Tensor) -> Tensor:
    edges = as_tensor(bins, beside)
    if edges.ndim != 1 or edges.size < 2:
        raise ShapeError(f"edges of shape {edges.shape}", "give a line of at least two edges")
    if not isinstance(bins, Tensor) and not (np.diff(np.asarray(bins)) >= 0).all():
        raise ArgumentError("the edges of bins fall", "give them in rising order")
    return edges
