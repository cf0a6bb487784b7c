"""Who has kernels for merged graphs: what a search asks.

In: nothing. Out: `SOURCES`. A source knows from a kernel's work alone what it will not go below, so
a search that finds no use for any of them loads neither folds nor the rules that find them.
"""

from __future__ import annotations

from ..._lazy import lazy_import
from ...graph.fusion.machine import CostTable, least_time
from ...graph.fusion.proposals import ROWS, Proposal, Source
from ...graph.ir.kernel import Kernel


def propose_fold(kernel: Kernel, table: CostTable) -> Proposal | None:
    """A kernel as a fold, and what that costs."""
    found: Proposal | None = lazy_import("kernel.stream.price").propose(kernel, table)
    return found


SOURCES = (Source("fold", propose_fold, least_time), ROWS)
