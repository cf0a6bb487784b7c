"""Limits of the graph's own passes, which no target changes; targets have tables of their own."""

from __future__ import annotations

from ..core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GraphTable:
    """Sizes that decide how much a pass looks at, or whether it is worth its time."""

    tiny_graph_elements: int = 1 << 16  # of all nodes: some hundred microseconds of NumPy
    unsimplified_nodes: int = 16  # of a tiny graph: loading the rules takes longer than any gain
    numpy_call_elements: int = 64  # that take as long as one call of NumPy
    numpy_sort_elements: int = 128  # that NumPy adds while it finds the place of one in an order
    trial_lowering_nodes: int = 64  # of a part that is lowered to see if it needs a temporary
    copy_back_bytes: int = 1 << 20  # of a result that is copied to where the old one was
    copied_together: int = 8  # such results in one kernel
    joined_rows: int = 1024  # from which on sums of columns are worth partial ones beside the rows
    joined_columns: tuple[int, int] = (64, 4096)  # of rows that a program holds whole
    joined_map_elements: int = 1 << 12  # of a map that takes no longer than its launch
    joined_maps: int = 32  # such maps in one kernel
    joined_params: int = 256  # of it: arguments of a launch are few kilobytes
    early_result_bytes: int = 64  # no burden to memory however early they are computed


GRAPH = GraphTable()
