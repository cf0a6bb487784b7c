"""Items of a dataset as a batch: stacked leaf by leaf, as torch's default_collate does it.

In: items of one kind: numbers, arrays, tensors, text, or tuples, lists and dicts of such. Out: the
same nest with arrays (text stays a list), and then with tensors. Tuples stay tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from ..tensor import Tensor, realize_among
from ..tree import flatten


def collate(items: list[Any]) -> Any:
    """A batch of items, as arrays.

    >>> from fulgurite.data.collate import collate
    >>> collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    realize_among(flatten(items)[0])
    return _collated(items)


def _collated(items: list[Any]) -> Any:
    first = items[0]
    if isinstance(first, str | bytes):
        return items
    if isinstance(first, Mapping):
        return {key: _collated([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        if len({len(item) for item in items}) != 1:
            raise _uneven("they have different lengths")
        parts = [_collated(list(column)) for column in zip(*items, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    try:
        return np.stack([x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in items])
    except ValueError as problem:
        raise _uneven(str(problem)) from None


def _uneven(why: str) -> DataError:
    return DataError(
        f"items of this dataset do not stack: {why}", "make them of one shape, or give collate_fn"
    )


def as_tensors(batch: Any, device: str | None) -> Any:
    """A batch with tensors in the place of arrays; what is neither stays."""
    if isinstance(batch, np.ndarray | np.generic):
        return Tensor(np.asarray(batch), device=device)
    if isinstance(batch, Mapping):
        return {key: as_tensors(part, device) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [as_tensors(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
