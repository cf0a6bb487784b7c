"""Pooling over windows of space in one to three dimensions: extremes and means.

In: x whose last dimensions are space, with any others before them. Out: for each window its
largest element, or its mean; one kernel with what comes before and after. Padding never wins a
maximum, whatever the dtype. Means are taken in at least float32 and count what torch counts.
Adaptive windows are given by the size of the result; they overlap where it does not divide x's.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from ...core import build
from ...core import shape as sizes
from ...core.dtype import int32
from ...core.node import Node, Size
from ...core.ops.elementwise import DIV
from ...core.ops.reduce import identity_of
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..array.indexing import slices_at
from ..array.movement import pad
from ..common import apply, as_tensor, astype, floating, wide
from ..math.elementwise import maximum, minimum, where
from ..math.reduction import max, sum
from ..math.reduction import mean as _mean
from ..template import templated
from .convolution import Padding, PerAxis, pads_of, per_axis

# --- windows of a given size ----------------------------------------------------------------------


def max_pool1d(
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window along the last axis.

    >>> fg.max_pool1d(fg.Tensor([[1, 5, 2, 4]]), 2).tolist()
    [[5, 4]]
    """
    return _max_pool(1, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window of height and width, the last two axes.

    >>> fg.max_pool2d(fg.ones((1, 3, 8, 8)), 3, stride=2, padding=1).shape
    (1, 3, 4, 4)
    """
    return _max_pool(2, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d(
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window of the last three axes.

    >>> fg.max_pool3d(fg.ones((1, 4, 4, 4)), 2).shape
    (1, 2, 2, 2)
    """
    return _max_pool(3, x, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool1d(
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window along the last axis.

    >>> fg.avg_pool1d(fg.Tensor([[1.0, 5.0, 2.0, 4.0]]), 2).tolist()
    [[3.0, 3.0]]
    >>> fg.avg_pool1d(fg.Tensor([[2.0, 4.0]]), 2, padding=1, count_include_pad=False).tolist()
    [[2.0, 4.0]]
    """
    settings = (ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(1, x, kernel_size, stride, padding, *settings)


def avg_pool2d(
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of height and width, the last two axes.

    >>> fg.avg_pool2d(fg.ones((1, 3, 8, 8)), 2).shape
    (1, 3, 4, 4)
    """
    settings = (ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(2, x, kernel_size, stride, padding, *settings)


def avg_pool3d(
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of the last three axes.

    >>> fg.avg_pool3d(fg.ones((1, 4, 4, 4)), (1, 2, 2)).shape
    (1, 4, 2, 2)
    """
    settings = (ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(3, x, kernel_size, stride, padding, *settings)


def windows_of(
    count: int,
    x: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    dilation: PerAxis,
) -> tuple[list[int], tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    """Window, stride, dilation and padding of each axis."""
    if x.ndim < count:
        raise ShapeError(f"{x.ndim} dimensions hold no windows of {count}", f"give {count} or more")
    window = list(per_axis(kernel_size, count, "kernel_size"))
    steps = tuple(window) if stride in (None, ()) else per_axis(stride, count, "stride")
    gaps = per_axis(dilation, count, "dilation")
    pads = pads_of(padding, x.node.shape[x.ndim - count :], window, steps, gaps)
    if any(
        2 * p > (w - 1) * d + 1 for w, d, pair in zip(window, gaps, pads, strict=True) for p in pair
    ):
        raise ArgumentError(f"padding is {padding!r}", "pad by half a window at most")
    return window, steps, gaps, pads


def overhang(size: object, reach: int, step: int, pads: tuple[int, int], ceil_mode: bool) -> int:
    """How much more to add after an axis so that its last window, cut off, counts too."""
    if not ceil_mode:
        return 0
    if not isinstance(size, int):
        raise ShapeError("ceil_mode needs fixed sizes", "leave it out")
    room = size + pads[0] + pads[1] - reach
    count = -(-room // step) + 1
    if (count - 1) * step >= size + pads[0]:
        count -= 1  # a window must start inside, or in the padding before
    return builtins.max(0, (count - 1) * step - room)


@templated
def _max_pool(
    count: int,
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    dilation: PerAxis,
    ceil_mode: bool,
) -> Tensor:
    tensor = as_tensor(x)
    window, steps, gaps, pads = windows_of(count, tensor, kernel_size, stride, padding, dilation)
    first = tensor.ndim - count
    wide_pads = []
    for d, (low, high) in enumerate(pads):
        reach = (window[d] - 1) * gaps[d] + 1
        more = overhang(tensor.node.shape[first + d], reach, steps[d], (low, high), ceil_mode)
        wide_pads.append((low, high + more))
    if any(low or high for low, high in wide_pads):
        lowest = identity_of("max", tensor.dtype)
        tensor = pad(tensor, [(0, 0)] * first + wide_pads, constant_values=lowest)
    node = _slid(node_of(tensor), first, window, steps, gaps)
    return max(wrap(node), tuple(range(first + count, node.ndim)))


def _slid(
    x: Node, first: int, window: Sequence[int], steps: Sequence[int], gaps: Sequence[int]
) -> Node:
    for d, each in enumerate(zip(window, steps, gaps, strict=True)):
        x = build.window(x, first + d, *each)
    return x


@templated
def _avg_pool(
    count: int,
    x: TensorLike,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    if divisor_override == 0:
        raise ArgumentError("divisor_override is 0", "give another number, or None")
    narrow, tensor = floating(x), wide(x)
    window, steps, gaps, pads = windows_of(count, tensor, kernel_size, stride, padding, 1)
    first = tensor.ndim - count
    more = [
        overhang(tensor.node.shape[first + d], window[d], steps[d], pads[d], ceil_mode)
        for d in range(count)
    ]
    node = build.pad(
        node_of(tensor),
        [(0, 0)] * first + [(low, high + m) for (low, high), m in zip(pads, more, strict=True)],
    )
    node = _slid(node, first, window, steps, gaps)
    total = sum(wrap(node), tuple(range(first + count, node.ndim)))
    size: Tensor | int = 1
    for d in range(count):
        counted = pads[d] if count_include_pad else (0, 0)
        cut_off = more[d] or (pads[d] != (0, 0) and not count_include_pad)
        if cut_off:
            place = wrap(build.iota(total.node.shape, first + d)) * steps[d] - pads[d][0]
            end = sizes.add(tensor.node.shape[first + d], counted[1])
            last = end if isinstance(end, int) else astype(wrap(end), int32)
            inside = minimum(place + window[d], last) - maximum(place, -counted[0])
            size = inside * size
        else:
            size = size * window[d]
    size = size if divisor_override is None else divisor_override
    divisor = astype(size, total.dtype) if isinstance(size, Tensor) else size * 1.0
    return astype(apply(DIV, total, divisor), narrow.dtype)


# --- windows for a given result -------------------------------------------------------------------


def adaptive_avg_pool1d(x: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The means of windows of the last axis that make up a result of this size.

    >>> fg.adaptive_avg_pool1d(fg.Tensor([[1.0, 2.0, 3.0]]), 2).tolist()
    [[1.5, 2.5]]
    """
    return _adaptive(1, x, output_size, True)


def adaptive_avg_pool2d(x: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The means of windows of the last two axes that make up a result of this size.

    >>> fg.adaptive_avg_pool2d(fg.ones((2, 7, 5)), 1).shape
    (2, 1, 1)
    """
    return _adaptive(2, x, output_size, True)


def adaptive_avg_pool3d(x: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The means of windows of the last three axes that make up a result of this size.

    >>> fg.adaptive_avg_pool3d(fg.ones((2, 4, 6, 8)), (2, None, 4)).shape
    (2, 2, 6, 4)
    """
    return _adaptive(3, x, output_size, True)


def adaptive_max_pool1d(x: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The largest elements of windows of the last axis that make up a result of this size.

    >>> fg.adaptive_max_pool1d(fg.Tensor([[1, 2, 3]]), 2).tolist()
    [[2, 3]]
    """
    return _adaptive(1, x, output_size, False)


def adaptive_max_pool2d(x: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The largest elements of windows of the last two axes that make up a result of this size.

    >>> fg.adaptive_max_pool2d(fg.ones((2, 7, 5)), (3, 2)).shape
    (2, 3, 2)
    """
    return _adaptive(2, x, output_size, False)


def adaptive_max_pool3d(x: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The largest elements of windows of the last three axes that make up a result of this size.

    >>> fg.adaptive_max_pool3d(fg.ones((2, 4, 6, 8)), 2).shape
    (2, 2, 2, 2)
    """
    return _adaptive(3, x, output_size, False)


@templated
def _adaptive(
    count: int, x: TensorLike, output_size: int | Sequence[int | None] | None, mean: bool
) -> Tensor:
    narrow = floating(x) if mean else as_tensor(x)
    tensor = wide(x) if mean else narrow
    if tensor.ndim < count:
        raise ShapeError(
            f"{tensor.ndim} dimensions hold no windows of {count}", f"give {count} or more"
        )
    many = isinstance(output_size, Sequence)
    wanted = list(output_size) if many else [output_size] * count  # type: ignore[arg-type]
    if len(wanted) != count:
        raise ArgumentError(f"output_size is {output_size!r}", f"give {count} sizes")
    first = tensor.ndim - count
    counts = {
        first + d: build.as_positive(out, "output_size")
        for d, out in enumerate(wanted)
        if out is not None
    }
    even = {a: n for a, n in counts.items() if sizes.mod(tensor.node.shape[a], n) == 0}
    tensor = _even_windows(tensor, even, mean)
    for axis in [a for a in counts if a not in even]:
        tensor = _uneven_windows(tensor, axis, counts[axis], mean)
    return astype(tensor, narrow.dtype)


def _even_windows(x: Tensor, counts: dict[int, int], mean: bool) -> Tensor:
    """Axes cut into windows of equal size, all of them in one reduction."""
    shape: list[Size] = []
    for axis, size in enumerate(x.node.shape):
        if size == 0 and axis in counts:
            raise ShapeError("adaptive windows of nothing", "pool a dimension that is not empty")
        parts = (counts[axis], sizes.floordiv(size, counts[axis])) if axis in counts else (size,)
        shape += parts
    inner = tuple(axis + place + 1 for place, axis in enumerate(counts))
    rows = wrap(build.reshape(node_of(x), shape))
    return _mean(rows, inner) if mean else max(rows, inner)


def _uneven_windows(x: Tensor, axis: int, count: int, mean: bool) -> Tensor:
    """An axis in overlapping windows: number i from floor(i*n/count) to ceil((i + 1)*n/count)."""
    size, node = x.node.shape[axis], node_of(x)
    if not isinstance(size, int):
        raise ShapeError("adaptive windows need fixed sizes", "use windows of a fixed size")
    longest = builtins.max(-(-(i + 1) * size // count) - i * size // count for i in range(count))
    number, step = (wrap(build.iota((count, longest), d, int32)) for d in (0, 1))
    start = number * size // count
    length = ((number + 1) * size + (count - 1)) // count - start
    place = minimum(start + step, size - 1)
    rows = wrap(slices_at(node, node_of(place), axis))
    inside = wrap(
        build.reshape(node_of(step < length), (count, longest, *[1] * (x.ndim - axis - 1)))
    )
    if not mean:
        return max(where(inside, rows, identity_of("max", x.dtype)), axis + 1)
    divisor = build.reshape(node_of(length[:, 0]), (count, *[1] * (x.ndim - axis - 1)))
    return sum(where(inside, rows, 0), axis + 1) / astype(wrap(divisor), x.dtype)
