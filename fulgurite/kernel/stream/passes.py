"""Passes before a kernel is tried as a stream: its stores in the form that shows online reductions.

In: the stores of a kernel and the sizes of its axes. Out: stores of the same values. `CANONICAL`
changes what is computed, not how it streams, so it holds whatever else is known; `TRANSPOSED` and
`NAMED_ALIKE` give axes the names that candidates are looked for by (kernel/stream/online.py, which
lists the passes of one candidate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...core.node import Node
from ...core.ops.leaf import SINK
from ...core.passes import Level, Pass, show, verify_index
from .axis_names import separate_folds, share_rows
from .canonicalize import (
    distribute_bases,
    fold_conditions_as_floats,
    gather_one_hot,
    stabilize_logsumexp,
    widen_small_floats,
)
from .peel import peel
from .transposed import split_merged_axes


class Stores(NamedTuple):
    """The stores of a kernel, and the sizes of all its axes."""

    stores: tuple[Node, ...]
    sizes: tuple[int, ...]

    def of(self, stores: Sequence[Node], sizes: Sequence[int] | None = None) -> Stores:
        """Other stores; itself if nothing changed."""
        found = Stores(tuple(stores), self.sizes if sizes is None else tuple(sizes))
        return self if found == self else found

    def __str__(self) -> str:
        return f"axes {list(self.sizes)}\n{show(SINK(*self.stores))}"


STORES = Level("stores", verify=lambda value, name: verify_index(value.stores, name))

CANONICAL: tuple[Pass, ...] = (
    Pass("widen_small_floats", lambda v, c: v.of(widen_small_floats(v.stores)), STORES, STORES),
    Pass(
        "fold_conditions_as_floats",
        lambda v, c: v.of(fold_conditions_as_floats(v.stores)),
        STORES,
        STORES,
    ),
    Pass("gather_one_hot", lambda v, c: v.of(gather_one_hot(*v)), STORES, STORES),
    Pass("stabilize_logsumexp", lambda v, c: v.of(stabilize_logsumexp(v.stores)), STORES, STORES),
    Pass("distribute_bases", lambda v, c: v.of(distribute_bases(v.stores)), STORES, STORES),
    Pass("separate_folds", lambda v, c: v.of(*separate_folds(*v)), STORES, STORES),
    Pass("peel", lambda v, c: v.of(*peel(*v)), STORES, STORES),
)
NAMED_ALIKE: tuple[Pass, ...] = (
    Pass("share_rows", lambda v, c: v.of(share_rows(*v)), STORES, STORES),
)
TRANSPOSED: tuple[Pass, ...] = (
    Pass("split_merged_axes", lambda v, c: v.of(split_merged_axes(*v)), STORES, STORES),
    *NAMED_ALIKE,
)
