"""Lists that hold tensors: `fg.Tensor([x, 2 * x])` is a graph, as `fg.stack` of its elements.

In: lists and tuples, nested in any depth, of tensors, numbers and NumPy arrays; NumPy arrays of
objects too. Out: one node whose dtype all of them promote to, as if they were added up: Python
numbers give way. No value is computed, so gradients, vmap and jit see through the list; a list
without a tensor is host data and no business of this file. Plain elements that stand side by side
are one piece of memory: a long list with a few tensors in it makes a small graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ...core import build
from ...core import shape as sizes
from ...core.dtype import DType, Number, dtype_of, promote, weak_dtype
from ...core.node import Node
from ...errors import DataError
from ...tensor import Tensor, node_of
from ...tensor.from_data import array_node, to_array
from .movement import join

_PLAIN = frozenset([bool, int, float, complex])


def is_nest(data: object) -> bool:
    """True if it is a list, a tuple or another sequence of elements, or an array of objects."""
    if isinstance(data, np.ndarray):
        return data.dtype.kind == "O" and data.ndim > 0
    return isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray | memoryview)


def holds_tensor(data: object) -> bool:
    """True if it is a tensor, or a nest with a tensor somewhere in it."""
    if isinstance(data, Tensor | Node):
        return True
    if not is_nest(data) or isinstance(data, range):
        return False
    items: Any = data
    # one look at the types of a long list of numbers, not one call for each of them
    return not _PLAIN.issuperset(map(type, items)) and any([holds_tensor(item) for item in items])


def stacked(data: Any, dtype: DType | None, device: str | None = None) -> Node:
    """A nest with tensors in it as one node, in a dtype if one is asked for."""
    leaves = list(_leaves(data))
    nodes = [node_of(leaf) for leaf in leaves if isinstance(leaf, Tensor | Node)]
    here = build.same_device(nodes) or device
    kind = promote(*[_dtype(leaf) for leaf in leaves]) if dtype is None else dtype
    return _stacked(data, kind, here)


def _leaves(data: Any) -> Iterator[Any]:
    """What is no list in a nest, from left to right."""
    for item in data:
        if is_nest(item):
            yield from _leaves(item)
        else:
            yield item


def _dtype(leaf: Tensor | Node | Number | np.ndarray[Any, Any]) -> DType:
    if isinstance(leaf, Tensor | Node):
        return leaf.dtype
    return dtype_of(leaf.dtype) if isinstance(leaf, np.ndarray) else weak_dtype(leaf)


def _stacked(data: Any, dtype: DType, device: str | None) -> Node:
    if isinstance(data, Tensor | Node):
        return build.cast(node_of(data), dtype)
    rows: list[Node] = []
    for holds, items in groupby(data, holds_tensor):
        if holds:
            found = [_stacked(item, dtype, device) for item in items]
            rows.extend([build.reshape(node, (1, *node.shape)) for node in found])
        else:
            rows.append(_plain(list(items), dtype, device))
    shapes = dict.fromkeys([row.shape[1:] for row in rows])
    if len(shapes) > 1:
        texts = " and ".join(map(sizes.show, shapes))
        raise DataError(
            f"a {type(data).__name__} of elements of shapes {texts}", "give rows of equal length"
        )
    return join(rows, 0)


def _plain(items: list[Any], dtype: DType, device: str | None) -> Node:
    """Neighbours without a tensor, along a new first axis."""
    if len(items) == 1 and isinstance(items[0], bool | int | float | complex):
        return build.const(items[0], dtype, (1,))
    return array_node(to_array(items, dtype), device, share=False)
