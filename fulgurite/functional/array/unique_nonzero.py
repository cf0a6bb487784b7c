"""Results whose size is data: which values occur, and where elements are other than zero.

In: a tensor. Out: tensors whose shapes nobody knows before the data, so these functions realize
a mask, count on the host, and gather. The values are lazy again and carry a gradient; whole
numbers, which have none, are looked at by NumPy where it can.
"""

from __future__ import annotations

import numpy as np

from ...core import build
from ...core import shape as sizes
from ...core.dtype import bool_
from ...core.node import Node
from ...core.ops.complexes import IMAG, REAL
from ...core.ops.elementwise import NE
from ...errors import ShapeError
from ...runtime.device import get_device
from ...tensor import Tensor, TensorLike, from_numpy, lifted, node_of, wrap
from ..common import apply, as_tensor, astype, common_dtype
from ..math.elementwise import equal, minimum
from ..math.scan import cumulative_sum, diff, neighbours
from ..results import UniqueAll, UniqueCounts, UniqueInverse
from ..template import templated
from .creation import full_like
from .indexing import take
from .movement import concat, flatten, pad, reshape, stack
from .sorting import searchsorted, sort


def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """For each dimension the places of the elements other than zero; realizes x.

    >>> [places.tolist() for places in fg.nonzero(fg.Tensor([[0, 3], [4, 0]]))]
    [[0, 1], [1, 0]]
    """
    tensor = as_tensor(x)
    if not tensor.ndim:
        raise ShapeError("a 0-d tensor has no places", "reshape it to (1,)")
    found = np.nonzero(np.asarray(astype(tensor, bool_)))
    return tuple(from_numpy(places.astype(np.int32), tensor.node.device) for places in found)


def argwhere(x: TensorLike) -> Tensor:
    """The places of the elements other than zero, a row for each; realizes x.

    >>> fg.argwhere(fg.Tensor([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    tensor = as_tensor(x)
    if not tensor.ndim:
        return reshape(nonzero(reshape(tensor, (1,)))[0], (-1, 1))[:, :0]
    return stack(nonzero(tensor), axis=1)


# --- the values that occur -----------------------------------------------------------------------


def unique_all(x: TensorLike) -> UniqueAll:
    """The values that occur, in order; where each is first; which each element is; how often.

    Every NaN is a value of its own. Realizes x.

    >>> [part.tolist() for part in fg.unique_all(fg.Tensor([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    tensor = as_tensor(x)
    node = node_of(tensor)
    flat = build.reshape(node, (sizes.prod(node.shape),))
    if 0 in node.shape:
        none = wrap(build.const(0, "int32", (0,)))
        return UniqueAll(wrap(flat), none, wrap(build.const(0, "int32", node.shape)), none)
    order, ordered, fresh = _ordered(flat)
    starts = nonzero(fresh)[0]
    back = _ranks(order, fresh)
    return UniqueAll(
        take(ordered, starts, axis=0),
        take(wrap(order), starts, axis=0),
        wrap(build.reshape(back, node.shape)),
        diff(starts, append=tensor.size),
    )


def _values_of(x: Tensor) -> Tensor:
    """The first part of `unique_all` alone."""
    node = node_of(x)
    flat = build.reshape(node, (sizes.prod(node.shape),))
    if 0 in node.shape:
        return wrap(flat)
    _, ordered, fresh = _ordered(flat)
    return take(ordered, nonzero(fresh)[0], axis=0)


def _ordered(flat: Node) -> tuple[Node, Tensor, Tensor]:
    """The places in order, the elements so, and which of them differ from the one before.

    Complex numbers go by their real part and then by the imaginary one, as in NumPy.
    """
    if flat.dtype.kind == "c":
        within = build.sort_order(build.apply(IMAG, flat), 0)
        parts = build.sort_order(build.gather(build.apply(REAL, flat), within, 0), 0)
        order = build.gather(within, parts, 0)
    else:
        order = build.sort_order(flat, 0)
    ordered = wrap(build.gather(flat, order, 0))
    return order, ordered, pad(apply(NE, *neighbours(ordered, 0)), (1, 0), constant_values=True)


def _ranks(order: Node, fresh: Tensor) -> Node:
    """For each element the number of its value, counted in order."""
    rank = node_of(cumulative_sum(fresh) - 1)
    return build.scatter("set", build.const(0, "int32", order.shape), order, rank, 0)


def unique_values(x: TensorLike) -> Tensor:
    """The values that occur, in order; realizes x.

    >>> fg.unique_values(fg.Tensor([3, 1, 3])).tolist()
    [1, 3]
    """
    whole = _whole_on_host(x)
    if whole is None:
        return _values_of(as_tensor(x))
    return from_numpy(np.unique(np.asarray(whole)), whole.node.device)


def _whole_on_host(x: TensorLike) -> Tensor | None:
    """A tensor without a gradient whose values NumPy can look at where they are, or None."""
    tensor = as_tensor(x)
    exact = tensor.dtype.is_integer or tensor.dtype is bool_
    return tensor if exact and get_device(tensor.device).host_visible else None


def unique_counts(x: TensorLike) -> UniqueCounts:
    """The values that occur, in order, and how often; realizes x.

    >>> values, counts = fg.unique_counts(fg.Tensor([3, 1, 3]))
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    whole = _whole_on_host(x)
    if whole is not None:
        values, counts = np.unique(np.asarray(whole), return_counts=True)
        device = whole.node.device
        return UniqueCounts(from_numpy(values, device), from_numpy(counts.astype(np.int32), device))
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: TensorLike) -> UniqueInverse:
    """The values that occur, in order, and for each element the place of its value; realizes x.

    >>> values, places = fg.unique_inverse(fg.Tensor([3, 1, 3]))
    >>> values.tolist(), places.tolist()
    ([1, 3], [1, 0, 1])
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique(
    x: TensorLike,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The values that occur, in order, and what else is asked for; realizes x.

    >>> fg.unique(fg.Tensor([3, 1, 3])).tolist()
    [1, 3]
    >>> [part.tolist() for part in fg.unique(fg.Tensor([3, 1, 3]), return_counts=True)]
    [[1, 3], [1, 2]]
    """
    if not (return_index or return_inverse or return_counts):
        return unique_values(x)
    found = unique_all(x)
    asked = (True, return_index, return_inverse, return_counts)
    chosen = tuple(part for part, wanted in zip(found, asked, strict=True) if wanted)
    return chosen if len(chosen) > 1 else chosen[0]


@templated
def isin(x1: TensorLike, x2: TensorLike, *, invert: bool = False) -> Tensor:
    """Which elements of x1 are among those of x2; NaN is among none.

    >>> fg.isin(fg.Tensor([1, 2, 3]), fg.Tensor([3, 1])).tolist()
    [True, False, True]
    """
    wanted, known = (flatten(x) if i else as_tensor(x) for i, x in enumerate(_together(x1, x2)))
    if known.shape == (0,):
        return full_like(wanted, invert, dtype=bool_)
    if known.dtype.kind == "c":
        return _shares_rank(wanted, known) ^ invert
    rising = sort(known)
    there = minimum(searchsorted(rising, wanted), known.size - 1)
    return equal(take(rising, there), wanted) ^ invert


def _shares_rank(wanted: Tensor, known: Tensor) -> Tensor:
    """Which elements of `wanted` have the rank of one of `known`, all of them ranked together."""
    both = node_of(concat([known, flatten(wanted)]))
    order, _, fresh = _ordered(both)
    rank = _ranks(order, fresh)
    ranks = wrap(rank)
    count = known.size
    seen = build.const(0, "int32", both.shape)
    seen = build.scatter("set", seen, node_of(ranks[:count]), 1, 0)
    found = take(wrap(seen), ranks[count:], axis=0)
    return reshape(astype(found, bool_), wanted.shape)


def _together(x1: TensorLike, x2: TensorLike) -> list[Tensor]:
    nodes = lifted(x1, x2)
    dtype = common_dtype(*nodes)
    return [astype(wrap(x) if isinstance(x, Node) else x, dtype) for x in nodes]
