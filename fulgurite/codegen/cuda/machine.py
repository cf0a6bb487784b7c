"""The rates of GPUs that the search prices kernels by."""

from __future__ import annotations

from ...graph.fusion.machine import MachineModel

HOPPER = MachineModel(
    launch=1800.0, near=9000.0, far=4100.0, cache=4e7, products=40000.0, folded=30000.0,
    simple=12000.0, walked=12000.0, hidden=0.9, packed=4100.0, made=50_000.0, asked=2_000.0,
    kept=0.0002, strided=500.0, library=40000.0, large=4e9, scarce=0.001, spared=0.0003, saved=0.25,
).quantised()  # fmt: skip
