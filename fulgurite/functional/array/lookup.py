"""Rows of a table looked up by whole numbers, one by one or summed up in bags; one-hot rows.

In: whole numbers and a table (rows, size). Out: the rows. Here an index below 0 or past the last
row is an error that names the user's line, never a row counted from the end: a table of words has
no end to count from. `padding_idx` names a row that gets no gradient, and in a bag counts for
nothing. Bags are rows of a matrix, or parts of one line that begin at `offsets`.
"""

from __future__ import annotations

import numpy as np

from ...core import build
from ...core.dtype import dtype_of, int32
from ...core.ops.elementwise import EQ
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, stop_gradient, wrap
from ..common import apply, as_tensor, astype, wide
from ..math.elementwise import maximum, where
from ..math.reduction import max, sum
from ..template import templated
from .indexing import classes_along, slices_at
from .movement import broadcast_to, concat, expand_dims
from .scatter import scatter_add, scatter_reduce

_MODES = ("sum", "mean", "max")


def embedding(x: TensorLike, weight: TensorLike, padding_idx: int | None = None) -> Tensor:
    """The rows of a table at these places; the row `padding_idx` gets no gradient.

    >>> fg.nn.functional.embedding(fg.Tensor([1, 0]), fg.Tensor([[1.0], [2.0]])).tolist()
    [[2.0], [1.0]]
    """
    table = as_tensor(weight)
    places = as_tensor(x, table)
    if places.dtype.kind not in "iu":
        raise DTypeError(
            f"a table is looked up by whole numbers, not {places.dtype}",
            "cast them: x.astype('int32')",
        )
    if table.ndim != 2:
        raise ShapeError(f"a table of shape {table.shape}", "give (rows, size)")
    node, index = (node_of(part) for part in lifted(table, places))
    wanted = build.cast(index, int32) if index.dtype.bits < 32 else index
    rows = wrap(slices_at(node, wanted, 0))
    if padding_idx is None:
        return rows
    padded = expand_dims(places == row_of(padding_idx, table.shape[0]), -1)
    return where(padded, stop_gradient(rows), rows)


def row_of(padding_idx: int, count: int) -> int:
    """The row of padding, counted from the front."""
    if not -count <= padding_idx < count:
        raise ArgumentError(f"padding_idx is {padding_idx}", f"it is a row of {count}")
    return padding_idx % count


def embedding_bag(
    x: TensorLike,
    weight: TensorLike,
    offsets: TensorLike | None = None,
    mode: str = "mean",
    per_sample_weights: TensorLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or largest of the rows in each bag; an empty bag gives 0.

    >>> table = fg.Tensor([[1.0], [2.0], [4.0]])
    >>> fg.nn.functional.embedding_bag(fg.Tensor([[0, 2]]), table, mode="sum").tolist()
    [[5.0]]
    >>> fg.nn.functional.embedding_bag(fg.Tensor([0, 2, 1]), table, fg.Tensor([0, 2])).tolist()
    [[2.5], [2.0]]
    """
    table = as_tensor(weight)
    places = as_tensor(x, table)
    if mode not in _MODES:
        raise ArgumentError(f"mode is {mode!r}", f"one of {', '.join(_MODES)}")
    if places.ndim not in (1, 2) or (offsets is None) != (places.ndim == 2):
        raise ArgumentError(
            f"bags of shape {places.shape} {'without' if offsets is None else 'with'} offsets",
            "give a matrix with a bag in each row, or a line and the offsets of its bags",
        )
    rows = wide(embedding(places, table, padding_idx))
    if per_sample_weights is not None:
        shares = as_tensor(per_sample_weights, table)
        if mode != "sum" or shares.shape != places.shape:
            raise ArgumentError(
                f"weights of shape {shares.shape} for the {mode} of places {places.shape}",
                'give one for each place, with mode="sum"',
            )
        rows = rows * expand_dims(wide(shares), -1)
    kept = None if padding_idx is None else places != row_of(padding_idx, table.shape[0])
    if offsets is None:
        found = _bags_in_rows(rows, kept, mode)
    else:
        starts = as_tensor(offsets, table)
        if starts.ndim != 1 or starts.dtype.kind not in "iu":
            raise ArgumentError(
                f"offsets of {starts.dtype} and shape {starts.shape}", "give whole numbers"
            )
        starts = _inside(starts, places.shape[0])
        if include_last_offset and starts.shape[0]:
            used = wrap(build.iota(places.shape, 0, int32)) < starts[-1]
            starts, kept = starts[:-1], used if kept is None else kept & used
        found = _bags_in_a_line(rows, kept, starts, mode)
    return astype(found, table.dtype)


def _inside(starts: Tensor, count: int) -> Tensor:
    """The offsets; a first one above 0, or any outside the line, is an error when computed."""
    if not starts.shape[0]:
        return astype(starts, int32)
    line = Tensor(np.arange(count + 1, dtype=np.int32), device=starts.device)
    return concat([classes_along(line[:1], starts[:1]), classes_along(line, starts[1:])])


def _bags_in_rows(rows: Tensor, kept: Tensor | None, mode: str) -> Tensor:
    if kept is None:
        if not rows.shape[1]:
            return sum(rows, 1)
        return max(rows, 1) if mode == "max" else sum(rows, 1) / (rows.shape[1] ** (mode == "mean"))
    mask = expand_dims(kept, -1)
    count = sum(astype(mask, int32), 1)
    if mode == "max":
        return where(count > 0, max(where(mask, rows, float("-inf")), 1), 0)
    total = sum(where(mask, rows, 0), 1)
    return total if mode == "sum" else total / astype(maximum(count, 1), rows.dtype)


def _bags_in_a_line(rows: Tensor, kept: Tensor | None, starts: Tensor, mode: str) -> Tensor:
    """Bag number i has the places from starts[i] to the next one's start."""
    (count, size), bags = rows.shape, starts.shape[0]
    place = wrap(build.iota((count, bags), 0))
    bag = sum(astype(place >= starts, int32), 1) - 1  # how many bags have begun, less one
    if kept is not None:
        bag = where(kept, bag, bags)  # one more bag, for what does not count
    table = wrap(build.const(0.0, rows.dtype, (bags + 1, size)))
    index = broadcast_to(expand_dims(bag, -1), rows.shape)
    if mode == "max":
        return scatter_reduce(table, 0, index, rows, "amax", include_self=False)[:bags]
    total = scatter_add(table, 0, index, rows)[:bags]
    if mode == "sum":
        return total
    ones = wrap(build.const(1.0, rows.dtype, (count,)))
    counts = scatter_add(wrap(build.const(0.0, rows.dtype, (bags + 1,))), 0, bag, ones)[:bags]
    return total / expand_dims(maximum(counts, 1), -1)


@templated
def one_hot(x: TensorLike, num_classes: int, dtype: object = "float32") -> Tensor:
    """A new last axis with 1 at the place that x names and 0 elsewhere.

    >>> fg.one_hot(fg.Tensor([0, 2]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    tensor = as_tensor(x)
    if tensor.dtype.kind not in "iu":
        raise DTypeError(f"classes are whole numbers, not {tensor.dtype}", "cast them to int32")
    shape = (*tensor.node.shape, build.as_size(num_classes))
    column = wrap(build.reshape(node_of(tensor), (*tensor.node.shape, 1)))
    count = int32 if tensor.dtype.bits < 32 else tensor.dtype
    hit = apply(EQ, column, wrap(build.iota(shape, tensor.ndim, count)))
    return astype(hit, dtype_of(dtype))
