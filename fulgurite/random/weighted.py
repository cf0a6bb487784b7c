"""Draws from a table of weights: which places come up, and how often each does.

In: weights along the last axis, which need not add up to 1, and how many draws. Out: places, as
torch's `multinomial` gives them, or counts, as those of NumPy and JAX do; lazy, by a key or the
generator of the process. With replacement a draw is looked up among the running sums; without, the
largest of logarithms with Gumbel noise are taken, which is one draw after another among those left.
Weights that nothing can be drawn from are an error when a value is asked for: no value says so.
"""

from __future__ import annotations

import math
from typing import Any

from ..core import build
from ..core.dtype import default_float, float32, float64, int32
from ..core.node import constant_like
from ..core.ops.elementwise import MAX
from ..core.origin import scope
from ..errors import ArgumentError, ShapeError
from ..functional.array.creation import arange
from ..functional.array.indexing import take
from ..functional.array.movement import broadcast_to
from ..functional.array.sorting import searchsorted, topk
from ..functional.common import as_tensor, as_whole, astype
from ..functional.math.elementwise import isfinite, where
from ..functional.math.reduction import all as all_of
from ..functional.math.reduction import count_nonzero
from ..functional.math.scan import cumulative_sum
from ..tensor import Tensor, TensorLike, node_of, wrap
from . import distributions, reproducible_math
from .generator import Source

_WEIGHTS = "draws by weights (finite, none below 0, enough above 0)"


def multinomial(
    weights: TensorLike,
    num_samples: int,
    replacement: bool = False,
    key: Tensor | None = None,
) -> Tensor:
    """Places along the last axis, drawn by their weights; without `replacement` all differ.

    Weights are one line or a matrix of them, 0 or more, and need not add up to 1. This is torch's
    function; how often each place comes up is `fg.random.multinomial(n, p)`.

    >>> x = fg.multinomial(fg.Tensor([0.0, 3.0, 1.0]), 2, key=fg.random.key(0))
    >>> sorted(x.tolist())
    [1, 2]
    >>> fg.multinomial(fg.ones((4, 3)), 5, replacement=True).shape
    (4, 5)
    """
    if isinstance(weights, int | float):
        raise ArgumentError(
            f"weights are {weights!r}", "for counts as NumPy's: fg.random.multinomial(n, p)"
        )
    table, count = _table(weights), as_whole(num_samples, "num_samples")
    if table.ndim > 2:
        raise ShapeError(f"weights of shape {table.shape}", "give one line of them, or a matrix")
    size = table.shape[-1]
    if count < 1 or (not replacement and count > size):
        raise ArgumentError(
            f"{count} draws among {size}", "at least 1; more than there are with replacement=True"
        )
    source = Source(key, table.device)
    if replacement:
        return checked(_looked_up(source, table, (*table.shape[:-1], count)), table, 1)
    noise = wrap(distributions.gumbel(source, table.node.shape, table.dtype))
    node = node_of(table)
    logs = wrap(reproducible_math.log(MAX(node, constant_like(2.0**-120, node))))
    return checked(topk(where(table > 0, logs, -math.inf) + noise, count).indices, table, count)


def multinomial_counts(
    n: int,
    p: TensorLike,
    shape: Any = (),
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """How often each place comes up in `n` draws by the weights `p`; `shape` is put in front.

    This is the function of NumPy and JAX; the places drawn are `fg.multinomial(p, n)`.

    >>> x = fg.random.multinomial(100, [0.2, 0.0, 0.8], key=fg.random.key(0))
    >>> int(x.sum()), x[1].item()
    (100, 0)
    """
    if isinstance(n, Tensor | list | tuple):
        raise ArgumentError(
            "n is no number", "for places as torch's: fg.multinomial(weights, num_samples)"
        )
    count, table = as_whole(n, "n"), _table(p)
    if count < 0:
        raise ArgumentError(f"n is {count}", "give 0 or more draws")
    whole = (*build.as_shape(shape), *table.node.shape)
    start = build.const(0, int32, whole)
    if count == 0:
        return wrap(start)
    lines = broadcast_to(table, whole)
    places = _looked_up(Source(key, device or table.device), lines, (*whole[:-1], count))
    found = node_of(checked(places, lines, 1))
    return wrap(build.scatter("add", start, found, 1, len(whole) - 1))


def _table(weights: TensorLike) -> Tensor:
    """Weights as floats that sums are kept in; they have no gradient."""
    table = as_tensor(weights).detach()
    if table.ndim == 0 or table.shape[-1] == 0:
        raise ShapeError(f"weights of shape {table.shape}", "give at least one weight")
    table = table if table.dtype.is_float else astype(table, default_float)
    return astype(table, float64 if table.dtype is float64 else float32)


def _looked_up(source: Source, table: Tensor, shape: Any) -> Tensor:
    """The places whose part of the running sums holds a random number."""
    total = cumulative_sum(table, axis=table.ndim - 1)
    unit = wrap(distributions.unit_numbers(source, shape, table.dtype))
    return searchsorted(total / total[..., -1:], unit, side="right")


def checked(places: Tensor, table: Tensor, least: int) -> Tensor:
    """The places, if enough weights are above 0 and none is odd; else there are no such places."""
    size = table.shape[-1]
    good = all_of((table >= 0) & isfinite(table), axis=-1, keepdims=True)
    good = good & (count_nonzero(table, axis=-1, keepdims=True) >= least)
    with scope(_WEIGHTS):  # which the error names
        return take(arange(size, device=table.device), where(good, places, size))
