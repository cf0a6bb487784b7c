"""Proposals: kernels that could compute a merged graph, and the sources they come from.

In: a kernel and the table of rates. Out: a `Proposal` (its kind, its cost, what it is for people),
or None. A source is a plug-in: its name is part of every key, and it may say from a kernel's work
alone what none of its kernels goes below, so that it is not asked for what cannot pay. The source
that is known here runs rows and what is picked from them as one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import inf

from ...core.lazy_dataclass import dataclass
from ...core.node import Node, toposort
from ...core.ops.movement import EXPAND
from ...core.ops.reduce import REDUCE
from ..ir.kernel import Kernel
from ..ir.kernel_kind import KernelKind
from ..ir.queries import elements, is_contraction
from .access import access_of
from .machine import CostTable, Work, time_of


@dataclass(frozen=True)
class Proposal:
    """A kernel that a source has for a graph."""

    kind: str
    cost: float  # nanoseconds
    what: str  # for people: what it is
    rules: tuple[tuple[str, int], ...] = ()  # that fired on the way
    nodes: int = 0  # of the e-graph that was searched
    plan: object = field(default=None, compare=False, repr=False)  # how; its kernel carries it


@dataclass(frozen=True)
class Source:
    """Where alternatives come from; `name` is part of every key.

    `least`, if there is one, says from the work of a kernel what no proposal for it should go
    below: where even that does not pay, the source is not asked.
    """

    name: str
    propose: Callable[[Kernel, CostTable], Proposal | None]
    least: Callable[[Work, CostTable], float] | None = None
    kind: str = "fold"  # of its kernels
    deterministic: bool = True  # are its bits the same on every run and thread count?


def propose_rows(kernel: Kernel, table: CostTable) -> Proposal | None:
    """Rows that are folded over the same axes, and what is picked from them, as one kernel."""
    return _proposed(kernel, table, lambda sizes: sizes[0])


def propose_row_times_matrix(kernel: Kernel, table: CostTable) -> Proposal | None:
    """One row times a matrix, and the row's statistics, which each column computes again."""
    return _proposed(kernel, table, max)


def _proposed(
    kernel: Kernel, table: CostTable, most: Callable[[Sequence[int]], int]
) -> Proposal | None:
    """Folds over the same axes; `most` says of how many elements these are how many are stored."""
    folds = [n for n in toposort([kernel.body]) if n.op is REDUCE]
    if not folds or any(map(is_contraction, folds)):
        return None
    rows = most([elements(fold.src[0].shape) for fold in folds])
    if any(elements(root.shape) > rows for root in kernel.body.src):
        return None
    access = access_of(kernel)
    if access is None or len({reduction.axes for reduction in access.reductions}) != 1:
        return None
    cost = time_of(Kernel(KernelKind.REDUCE, kernel.body, kernel.inputs), table)
    cost += sum(map(_again, folds)) / table.elementwise_rate
    return Proposal("reduce", cost, "rows and what is picked from them in one kernel")


def _again(fold: Node) -> int:
    """Additions for what a fold computes for each of its results though all share it: a row that
    is repeated for the rows of a matrix. One number for a result is no row."""
    total = 0
    for node in toposort([fold.src[0]]):
        shared = elements(node.src[0].shape) if node.op is EXPAND else 0
        if shared > elements(fold.shape):
            inside = toposort([node.src[0]])
            work = [n.op.cost for n in inside if n.op.family == "elementwise"
                    and elements(n.shape) == shared]  # fmt: skip
            total += sum(work) * (elements(node.shape) - shared)
    return total


def least_rows(work: Work, table: CostTable) -> float:
    """What rows take at least: no product is among them."""
    return (
        inf if work.products else table.launch_ns + work.bytes / max(table.cache_bw, table.dram_bw)
    )


ROWS = Source("rows", propose_rows, least_rows, "reduce")
ROW_TIMES_MATRIX = Source("row times matrix", propose_row_times_matrix, least_rows, "reduce")
