"""Order: the largest elements, their places, and what occurs at all.

In: a `Call`. Out: lazy tensors, places as int64. How many different rows there are decides a
shape, so `Unique` reads that one number; the sorting and the rest is native code.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call, operator
from ..types import STRING
from ..values import Value
from .movement import axis_of


@operator("TopK")
def top_k(op: Call) -> tuple[Tensor, Tensor]:
    """The k largest or smallest."""
    k = int(op.number(1)) if op.version >= 10 else op.int("k")
    found = fg.topk(op[0], k, axis=op.int("axis", -1), largest=bool(op.int("largest", 1)))
    return found[0], found[1].astype(fg.int64)


def _place(op: Call, largest: bool) -> Tensor:
    x = op[0]
    axis = axis_of(op.int("axis", 0), x.ndim)
    work = fg.argmax if largest else fg.argmin
    keep = bool(op.int("keepdims", 1))
    if op.int("select_last_index"):
        last: Any = x.node.shape[axis] - 1
        return fg.astype(last - work(fg.flip(x, axis), axis=axis, keepdims=keep), fg.int64)
    return work(x, axis=axis, keepdims=keep).astype(fg.int64)


@operator("ArgMax")
def arg_max(op: Call) -> Tensor:
    """Where the largest is."""
    return _place(op, True)


@operator("ArgMin")
def arg_min(op: Call) -> Tensor:
    """Where the smallest is."""
    return _place(op, False)


@operator("Unique")
def unique(op: Call) -> tuple[Any, ...]:
    """The different elements (or slices), where each is first, which each is, and how often."""
    if op.kind(0) is STRING:
        return _unique_texts(op)
    x = op[0]
    axis = op.int("axis", None)
    if axis is None:
        rest: tuple[int, ...] = ()
        rows = fg.reshape(x, (x.size, 1))
    else:
        moved = fg.moveaxis(x, axis, 0)
        rest = moved.shape[1:]
        rows = fg.reshape(moved, (moved.shape[0], prod(rest)))
    count = rows.shape[0]
    order = fg.arange(count, dtype=fg.int64)
    for column in reversed(range(rows.shape[1])):
        line = fg.take(rows[:, column], order, axis=0)
        order = fg.take(order, fg.argsort(line), axis=0)
    ordered = fg.take(rows, order, axis=0)
    differs = fg.any(ordered[1:] != ordered[:-1], axis=1)
    begins = fg.concat([fg.ones((min(count, 1),), fg.bool), differs], axis=0)
    group = fg.cumulative_sum(begins.astype(fg.int32), axis=0) - 1
    different = int(op.build.read(Value(group[count - 1]))) + 1 if count else 0
    first = fg.searchsorted(group, fg.arange(different, dtype=fg.int32)).astype(fg.int64)
    places = fg.take(order, first, axis=0)
    inverse = fg.scatter(fg.zeros((count,), fg.int64), 0, order, group.astype(fg.int64))
    ends = fg.concat([first[1:], fg.full((min(count, 1),), count, fg.int64)], axis=0)
    counts = ends - first
    values = fg.take(ordered, first, axis=0)
    if not op.int("sorted", 1):
        by_place = fg.argsort(places)
        values, places, counts = (fg.take(t, by_place, axis=0) for t in (values, places, counts))
        inverse = fg.take(fg.argsort(by_place), inverse, axis=0).astype(fg.int64)
    if axis is None:
        values = fg.reshape(values, (different,))
    else:
        values = fg.moveaxis(fg.reshape(values, (different, *rest)), 0, axis)
    return values, places, inverse, counts


def _unique_texts(op: Call) -> tuple[Any, ...]:
    op.build.hosts.add("strings")
    texts = op.host(0).reshape(-1).astype(str)
    values, places, inverse, counts = np.unique(
        texts, return_index=True, return_inverse=True, return_counts=True
    )
    if not op.int("sorted", 1):
        by_place = np.argsort(places)
        values, places, counts = values[by_place], places[by_place], counts[by_place]
        inverse = np.argsort(by_place)[inverse]
    numbers = [a.reshape(-1).astype(np.int64) for a in (places, inverse, counts)]
    return Value(None, STRING, values.astype(object)), *numbers
