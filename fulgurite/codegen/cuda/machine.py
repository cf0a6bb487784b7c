"""The rates of GPUs that the search prices kernels by."""

from __future__ import annotations

from ...graph.fusion.machine import MachineModel

HOPPER = MachineModel(
    launch=1800.0,  # of a kernel inside a graph
    near=9000.0,  # bytes a nanosecond within the L2 cache
    far=4100.0,  # bytes a nanosecond from memory
    cache=4e7,
    products=40000.0,
    folded=30000.0,
    simple=12000.0,
    walked=12000.0,
)
