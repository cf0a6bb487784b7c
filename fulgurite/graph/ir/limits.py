"""How far symbolic rewriting looks: one table of caps, so that compiling stays quick.

None of them changes a result, only what is found; machines play no part.
"""

from __future__ import annotations

from ...core.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RewriteLimits:
    """Caps of the passes over sums and products."""

    # polynomials
    polynomial_terms: int = 6  # of one value
    bound_axes: int = 4  # of a contraction: all their orders are tried for the first
    cancelled: float = 1e-12  # of what was added: a coefficient that is no more is 0
    expanded_ops: int = 32  # looked through for a polynomial, contractions included
    expanded_ops_near: int = 10  # the same without contractions
    short_row_elements: int = 32  # of a row whose sum is off by as much as one of them
    # graphs
    tail_elements: int = 4  # of the short part of a concatenation
    zero_rows: int = 4  # of a product whose zero is worth a sum of the other factor
    strips: int = 64  # of rows of a matrix that is not stored whole
    contraction_distance: int = 64  # nodes between a sum and a contraction under it
    unwindow_ops: int = 24  # looked through for a product, or for what does not vary
    unwindow_branch_ops: int = 8  # of them that an op with several sources counts for
    unwindow_slices: int = 9  # of windows, over all dimensions, that are quicker added one by one
    phase_terms: int = 32  # of a sum for each element of a window: worth a kernel for each phase
    # bodies of kernels
    axis_matches: int = 64  # ways in which axes of two stores may be the same
    peeled_elements: int = 2  # of a fold that are computed by themselves
    unrolled_elements: int = 8  # of a fold that is unrolled
    states: int = 12  # of one pass over blocks
    shifted_factors: int = 3  # of one product: their subsets are expanded
    # e-graphs
    egraph_terms: int = 2000  # of one region
    egraph_rounds: int = 6
    product_factors: int = 12  # of a flat product
    nested_fold_cost: int = 4  # times more for every fold that a fold waits for: another pass


LIMITS = RewriteLimits()
