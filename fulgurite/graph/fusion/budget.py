"""How far fusion goes: counts, so that every process finds the same, and shares of cost."""

from __future__ import annotations

from ...core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FusionBudget:
    """The limits of greedy fusion, of the search, and of matching the user's patterns."""

    # of greedy fusion
    recompute_cost: int = 48  # an element, rather than to write it and read it once more
    shared_recompute_cost: int = 16  # the same of what is read twice
    kernel_nodes: int = 200  # of a kernel, and the largest cost of a value that is not stored
    # of the search
    proposals: int = 48  # fused kernels that are priced for one region
    failed_proposals: int = 12  # of those for which nobody has a kernel
    bound_steps: int = 4_000  # of branch and bound, to see which of them may pay
    plan_steps: int = 20_000  # of branch and bound, for the plan of a region
    region_segments: int = 24  # of a region, if it has places where it can be cut
    inline_depth: int = 4  # segments that one may inline, one behind the other
    cached_regions: int = 512  # regions whose answer is kept
    min_gain_region: float = 0.05  # of a region's cost: less is not looked for
    min_gain_graph: float = 0.03  # of the whole graph's cost, for equal regions together
    memory_slack: float = 0.01  # of the memory needed at once: row statistics are no more
    tie: float = 1.15  # costs that differ by less may be in the wrong order
    # of the user's patterns
    pattern_attempts: int = 256  # times that an expression is written out for one graph
    pattern_operands: int = 40  # nodes under a place among which operands are looked for


BUDGET = FusionBudget()
