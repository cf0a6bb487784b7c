"""What a fusion search may ask of a GPU: providers of kernels for merged graphs.

In: the table of the GPU. Out: its sources. A source knows from a kernel's work alone what it will
not go below, so a search that finds no use for any of them loads neither the template nor its
analysis.
"""

from __future__ import annotations

from ..._lazy import FORK_LOCK
from ...config import current
from ...core.passes import Watch
from ...graph.fusion.machine import CostTable, least_time
from ...graph.fusion.proposals import ROW_TIMES_MATRIX, ROWS, Proposal, Source
from ...graph.ir.kernel import Kernel
from .tiling import GpuTable


def propose_stream(kernel: Kernel, table: CostTable) -> Proposal | None:
    """A kernel as a streaming one, and what that costs."""
    with FORK_LOCK:
        from ...kernel.stream.price import propose
        from .stream import estimate, may_fit
    return propose(kernel, table, estimate, Watch.of(current()), may_fit)


def propose_crossing(kernel: Kernel, table: CostTable) -> Proposal | None:
    """A kernel as a streaming one with transposed sums, which programs add to as they come."""
    with FORK_LOCK:
        from ...kernel.stream.price import propose
        from .stream import estimate_crossing, may_fit
    return propose(kernel, table, estimate_crossing, Watch.of(current()), may_fit)


_SOURCES = (
    Source("fold", propose_stream, least_time),
    Source("crossing fold", propose_crossing, least_time, deterministic=False),
    ROWS,
)


def sources_of(table: GpuTable) -> tuple[Source, ...]:
    """The sources of a GPU."""
    return (*_SOURCES, ROW_TIMES_MATRIX) if table.joined_row_products else _SOURCES
