"""Tensors put side by side or on top of each other, as NumPy's and torch's `*stack` functions do.

In: a list of tensors whose dimensions may be too few for the way they are joined: each is given
the missing ones first. Out: one `concat`. Whoever knows which axis is meant writes `fg.concat`
(along an axis that is there) or `fg.stack` (along a new one) instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...tensor import Tensor, TensorLike, lifted
from .movement import concat, reshape


def hstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors side by side: along the second axis, or the only one.

    >>> fg.hstack([fg.Tensor([1, 2]), fg.Tensor([3])]).tolist()
    [1, 2, 3]
    >>> fg.hstack([fg.Tensor([[1], [2]]), fg.Tensor([[3], [4]])]).tolist()
    [[1, 3], [2, 4]]
    """
    parts = _several(arrays)
    lines = [x if x.ndim else reshape(x, (1,)) for x in parts]
    return concat(lines, axis=min(1, lines[0].ndim - 1) if lines else 0)


def vstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors on top of each other: lines become the rows of a matrix.

    >>> fg.vstack([fg.Tensor([1, 2]), fg.Tensor([[3, 4], [5, 6]])]).tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    rows = [x if x.ndim > 1 else reshape(x, (1, *(x.shape or (1,)))) for x in _several(arrays)]
    return concat(rows, axis=0)


def dstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors behind each other: along the third axis, which lines and matrices are given.

    >>> fg.dstack([fg.Tensor([1, 2]), fg.Tensor([3, 4])]).tolist()
    [[[1, 3], [2, 4]]]
    """
    deep = []
    for x in _several(arrays):
        shape = (1, *x.shape, 1) if x.ndim == 1 else (*(x.shape or (1, 1)), 1)
        deep.append(x if x.ndim > 2 else reshape(x, shape))
    return concat(deep, axis=2)


def column_stack(arrays: Sequence[TensorLike]) -> Tensor:
    """Lines as the columns of a matrix; matrices side by side.

    >>> fg.column_stack([fg.Tensor([1, 2]), fg.Tensor([3, 4])]).tolist()
    [[1, 3], [2, 4]]
    """
    columns = [x if x.ndim > 1 else reshape(x, (*(x.shape or (1,)), 1)) for x in _several(arrays)]
    return concat(columns, axis=1)


def _several(arrays: Sequence[TensorLike]) -> list[Tensor]:
    """The tensors of a list; what is no list is `concat`'s to complain about."""
    if isinstance(arrays, Tensor) or not isinstance(arrays, Sequence):
        concat(arrays)
    return [Tensor(x) for x in lifted(*arrays)]
