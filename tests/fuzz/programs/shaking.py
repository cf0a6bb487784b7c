"""Sums that round otherwise each time: what any order of adding may do, without compiling any.

A sum's order is the compiler's to choose, so two kernels that compute the same sum may disagree in
its last bits. Inside `shaken` the kernels of the reference device do: every sum (and running sum)
is off by a few units of its last place, anew at every run of every kernel. A result that depends
on two kernels agreeing, such as a gradient that looks for the extreme where another kernel found
it, is then wrong by far more than a rounding (stochastic arithmetic, as in CESTAC and Verrou).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fulgurite.core.node import Node
from fulgurite.core.op import Array
from fulgurite.core.ops.index import RUN
from fulgurite.runtime.host import index_interpreter

UNITS = 3  # of the last place, at most


def noisy(value: Array, rng: np.random.Generator, units: int = UNITS) -> Array:
    """The value, each element off by a few units of its last place."""
    unit = np.finfo(value.dtype).eps
    noise = 1 + unit * rng.integers(-units, units, value.shape, endpoint=True)
    return np.asarray(value * noise).astype(value.dtype)


def _terms(tile: Any, node: Node, fold: Any) -> Array:
    """How many terms of a sum are not 0: adding zeros to one rounds nothing, in any order."""
    known = tile.known
    tile.known = {n: (array != 0).astype(np.float64) for n, array in known.items()}
    try:
        count: Array = fold(tile, node)
    finally:
        tile.known = known
    return count


@contextmanager
def shaken(seed: int) -> Iterator[None]:
    """Sums of the reference device's kernels round at random in this block."""
    rng = np.random.default_rng(seed)
    tile: Any = index_interpreter._Tile
    fold, along = tile.fold, tile.along

    def other_fold(self: Any, node: Node) -> Array:
        value: Array = fold(self, node)
        adds = node.arg[0] == "add" and value.dtype in (np.float32, np.float64)
        return np.where(_terms(self, node, fold) > 1, noisy(value, rng), value) if adds else value

    def other_along(self: Any, node: Node, sources: Sequence[Array]) -> Array:
        value: Array = along(self, node, sources)
        adds = node.op is RUN and node.arg[0] == "add" and value.dtype in (np.float32, np.float64)
        return noisy(value, rng) if adds else value

    tile.fold, tile.along = other_fold, other_along
    try:
        yield
    finally:
        tile.fold, tile.along = fold, along
