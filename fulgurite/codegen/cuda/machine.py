"""The rates of GPUs that the search prices kernels by."""

from __future__ import annotations

from ...graph.fusion.machine import MachineModel

HOPPER = MachineModel(
    launch_ns=1800.0,
    cache_bw=9000.0,
    dram_bw=4100.0,
    cache_bytes=4e7,
    gemm_rate=40000.0,
    stream_gemm_rate=30000.0,
    narrow_gain=15.0,
    stream_loss=0.5,
    elementwise_rate=12000.0,
    stream_rate=12000.0,
    overlap=0.9,
    pack_rate=4100.0,
    compile_ns=50_000.0,
    stream_compile_ns=50_000.0,
    part_ns=1.0,
    proposal_ns=2_000.0,
    body_runs=1.0,
    spill_ns_per_byte=0.0002,
    strided_rate=500.0,
    blas_rate=40000.0,
    large_bytes=4e9,
    scarce_ns_per_byte=0.001,
    avoidable_ns_per_byte=0.0003,
    law_savings=0.25,
).quantised()
