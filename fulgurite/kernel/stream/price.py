"""The price of a streaming kernel: what a plan of the target makes the machine do, at its rates.

In: a kernel, a table of rates, and the target's `estimate` of a problem. Out: a proposal, or None
for what does not stream. Time is that of products at their rate, of blocks traversed in whole
vectors, and of what must be packed, over memory as in every kernel (graph/fusion/machine.py). No
code is emitted for that: a kernel that is not chosen costs its description alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...core.lazy_dataclass import dataclass
from ...core.node import Node
from ...core.ops.leaf import SINK
from ...core.passes import UNWATCHED, Watch, run_passes
from ...graph.fusion.machine import (
    CostTable,
    both,
    memory_time,
    product_work,
    spill_time,
    work_of,
)
from ...graph.fusion.proposals import Proposal
from ...graph.ir.kernel import Kernel, param_dtypes
from ...graph.ir.lower import IndexKernel, lower
from ...graph.ir.reshape_groups import CannotLower
from ..contract.analysis import reached
from ..contract.summation import ORDER
from ..transform.passes import TRANSFORMS, TypedKernel
from .online import stream
from .roles import StreamedKernel, StreamProblem, find_problem


@dataclass(frozen=True)
class StreamWork:
    """What a plan makes a machine do beyond reading inputs and writing results once, counted."""

    elements: int  # of M x N, in whole vectors
    depths: tuple[int, ...]  # of products inside
    widths: tuple[int, ...]  # of weighted sums
    walked: int  # operations on each element, in additions
    again: int = 1  # how often products and walks are done: once for each tile of D
    strided: int = 0  # loads of each element that are not contiguous
    packed: int = 0  # numbers put in order for microkernels
    moved: int = 0  # bytes written and read on the way
    held: int = 0  # bytes that are held between phases
    overhead: float = 0.0  # nanoseconds of entering blocks
    phases: int = 1  # that threads wait for each other between
    share: float = 1.0  # of all elements, those that are not skipped
    idle: float = 1.0  # how much longer arithmetic takes, as too few tiles leave threads idle
    is_plain: bool = False  # True if rows alone are traversed, in registers
    note: str = ""  # what is special about the plan


Estimate = Callable[[StreamProblem], StreamWork | None]
MayFit = Callable[[IndexKernel], bool]  # told from axes alone, before any law is tried


def find_stream(
    kernel: Kernel, watch: Watch = UNWATCHED, may_fit: MayFit | None = None
) -> StreamedKernel | None:
    """A kernel as a streaming one, if it is one, and a target may have a template for its axes."""
    try:
        indexed = lower(kernel.body, kernel.inputs)
        if not all([isinstance(n, int) for n in indexed.axes]):
            return None
        value = TypedKernel(indexed, param_dtypes(kernel))
        value = run_passes(value, None, TRANSFORMS, watch)
    except CannotLower:
        return None
    if may_fit is not None and not may_fit(value.kernel):
        return None
    streaming = stream(value.kernel, watch)
    problem = None if streaming is None else find_problem(streaming)
    return None if problem is None else StreamedKernel(value.kernel, value.dtypes, problem)


def sides_of(value: StreamedKernel) -> list[StreamedKernel]:
    """A kernel with transposed sums as two: the main sums, and those."""
    across = {store.arg[0] for store in value.problem.streaming.across}
    roots = value.kernel.body.src
    found = []
    for crossed in (False, True):
        mine = [root for root in roots if (root.arg[0] in across) is crossed]
        kernel = value.kernel._replace(body=SINK(*mine))
        streaming = stream(kernel)
        problem = None if streaming is None else find_problem(streaming)
        if problem is not None:
            found.append(StreamedKernel(kernel, value.dtypes, problem))
    return found


def propose(
    kernel: Kernel, table: CostTable, estimate: Estimate, watch: Watch = UNWATCHED,
    may_fit: MayFit | None = None,
) -> Proposal | None:  # fmt: skip
    """A kernel as a streaming one, and what that costs."""
    found = find_stream(kernel, watch, may_fit)
    work = None if found is None else estimate(found.problem)
    if found is None or work is None:
        return None
    problem, streaming = found.problem, found.problem.streaming
    states = ", ".join(f"{s.op} {'row' if s in problem.row_states else 'rows of columns'}"
                       for s in problem.states)  # fmt: skip
    what = f"fold over {problem.n} elements, {len(problem.products)} products inside; "
    what += f"state: {states}{work.note}"
    whole = work_of(kernel)
    share = product_work(whole, table) / whole.products if whole.products else 1.0
    cost = stream_time(work, whole.bytes, table, share)
    return Proposal("fold", cost, what, streaming.fired, streaming.nodes, found)


def stream_time(work: StreamWork, moved: int, table: CostTable, wide: float = 1.0) -> float:
    """Nanoseconds of a plan that also reads and writes `moved` bytes.

    Its products take `wide` of the time that they would with factors of 32 bits.
    """
    inside, beside = [
        wide * sum([_product_time(depth, table) for depth in depths])
        for depths in (work.depths, work.widths)
    ]
    rate = table.elementwise_rate / 2 if work.is_plain else table.stream_rate
    walk = work.walked / rate + work.strided / table.strided_rate
    arithmetic = work.elements * (inside * work.again + beside + work.again * walk) * work.share
    arithmetic = work.idle * (arithmetic + work.packed / table.pack_rate)
    memory, between = memory_time(moved + work.moved, table), 0.0
    if work.phases > 1:  # nothing hides what moves between them
        memory, between = memory_time(moved, table), memory_time(work.moved, table)
        between += (work.phases - 1) * table.launch_ns
    time = both(memory, arithmetic + work.overhead, table) + between
    return time + spill_time([work.held], table)


def _product_time(depth: int, table: CostTable) -> float:
    """Nanoseconds of so many products: many in a row go as fast as in a GEMM."""
    share = min(1.0, depth / ORDER.block_steps)
    return 2 * depth / (share * table.gemm_rate + (1 - share) * table.stream_gemm_rate)


def nodes_along_n(
    problem: StreamProblem, roots: Sequence[Node], more: Iterable[Node] = ()
) -> list[Node]:
    """What a walk over a block computes for each element, above products and states."""
    stops = problem.computed | frozenset(more)
    return [n for n in reached(roots, stops) if n not in stops and problem.varies_along_n(n)]
